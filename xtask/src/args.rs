//! What the command line asks for.

use std::fmt;

/// How the command is called.
pub const USAGE: &str = "\
usage: cargo xtask COMMAND

  up [--release]           install and start Kafka, ClickHouse, Postgres and the services; write target/stack/env
  down [--purge]           stop what `up` started; --purge removes its data too
  demo [--keep] [ARG…]     up, play a workload, compare the totals, down; --keep leaves the stack up;
                           --trace FILE.csv plays a trace; other arguments go to the demo program
  test                     formatting, lints and all tests on a stack of their own
  bench drain [ARG…]       how fast the consumer drains a full topic, on a stack of its own, built with --release
  bench recovery [ARG…]    how soon a backlog is gone after ClickHouse was away, and what emitters feel of it
  bench quota [ARG…]       what a quiet tenant feels of one that floods its partition over its quota
  chaos [--release] [ARG…] faults drawn from a seed against a whole pipeline of its own, judged by what its source committed;
                           --seed N --minutes M --rate R --records N --faults KIND,KIND --plan (docs/chaos.md)
  ci                       test, and cargo-deny if it is installed

Preset USAGE_KAFKA_BROKERS, USAGE_CLICKHOUSE_URL, USAGE_CONTROL_DATABASE_URL or USAGE_SOURCE_DATABASE_URL
to use those services instead of starting them.";

/// One command with its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Start the stack.
    Up {
        /// Services built with `--release`.
        release: bool,
    },
    /// Stop the stack.
    Down {
        /// Remove its data.
        purge: bool,
    },
    /// Play a workload.
    Demo {
        /// Leave the stack up.
        keep: bool,
        /// For the demo program.
        rest: Vec<String>,
    },
    /// Everything that must pass.
    Test,
    /// A benchmark by its name.
    Bench {
        /// Which one.
        name: String,
        /// For the benchmark program.
        rest: Vec<String>,
    },
    /// Faults and a verdict.
    Chaos {
        /// Programs built with `--release`.
        release: bool,
        /// For the chaos program.
        rest: Vec<String>,
    },
    /// What CI runs.
    Ci,
    /// Print how the command is called.
    Help,
}

/// Why a command line is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadArguments(String);

impl fmt::Display for BadArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Benchmarks that there are.
const BENCHES: [&str; 3] = ["drain", "recovery", "quota"];

/// Reads the arguments after the program's name.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, BadArguments> {
    let mut arguments = arguments.into_iter();
    let Some(command) = arguments.next() else {
        return Err(BadArguments("no command given".to_owned()));
    };
    let rest: Vec<String> = arguments.collect();
    match command.as_str() {
        "up" => Ok(Command::Up { release: switch(&command, &rest, "--release")? }),
        "down" => Ok(Command::Down { purge: switch(&command, &rest, "--purge")? }),
        "demo" => {
            let (keep, rest) = taken(rest, "--keep");
            Ok(Command::Demo { keep, rest })
        }
        "chaos" => {
            let (release, rest) = taken(rest, "--release");
            Ok(Command::Chaos { release, rest })
        }
        "test" => nothing(&command, &rest).map(|()| Command::Test),
        "ci" => nothing(&command, &rest).map(|()| Command::Ci),
        "bench" => bench(rest),
        "help" | "--help" | "-h" => Ok(Command::Help),
        _ => Err(BadArguments(format!("there is no command {command:?}"))),
    }
}

fn bench(mut rest: Vec<String>) -> Result<Command, BadArguments> {
    if rest.is_empty() {
        return Err(BadArguments(format!("bench needs a name: {}", BENCHES.join(", "))));
    }
    let name = rest.remove(0);
    if !BENCHES.contains(&name.as_str()) {
        return Err(BadArguments(format!("there is no bench {name:?}, only: {}", BENCHES.join(", "))));
    }
    Ok(Command::Bench { name, rest })
}

/// Whether the switch was given, and the arguments without it.
fn taken(rest: Vec<String>, switch: &str) -> (bool, Vec<String>) {
    let given = rest.iter().any(|argument| argument == switch);
    (given, rest.into_iter().filter(|argument| argument != switch).collect())
}

/// Whether the one switch that the command knows was given; anything else is refused.
fn switch(command: &str, rest: &[String], known: &str) -> Result<bool, BadArguments> {
    match rest.iter().find(|argument| *argument != known) {
        Some(other) => Err(BadArguments(format!("{command} does not know {other:?}, only {known}"))),
        None => Ok(!rest.is_empty()),
    }
}

fn nothing(command: &str, rest: &[String]) -> Result<(), BadArguments> {
    match rest.first() {
        Some(other) => Err(BadArguments(format!("{command} takes no arguments, but {other:?} was given"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned)).map_err(|error| error.to_string())
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn commands_and_their_switches() {
        assert_eq!(parsed("up"), Ok(Command::Up { release: false }));
        assert_eq!(parsed("up --release"), Ok(Command::Up { release: true }));
        assert_eq!(parsed("down"), Ok(Command::Down { purge: false }));
        assert_eq!(parsed("down --purge"), Ok(Command::Down { purge: true }));
        assert_eq!(parsed("test"), Ok(Command::Test));
        assert_eq!(parsed("ci"), Ok(Command::Ci));
        assert_eq!(parsed("--help"), Ok(Command::Help));
    }

    #[test]
    fn demo_passes_on_what_is_not_its_own() {
        let expected = Command::Demo { keep: true, rest: strings(&["--trace", "x.csv", "--seconds", "5"]) };
        assert_eq!(parsed("demo --trace x.csv --keep --seconds 5"), Ok(expected));
    }

    #[test]
    fn chaos_passes_on_what_is_not_its_own() {
        let expected = Command::Chaos { release: true, rest: strings(&["--seed", "7"]) };
        assert_eq!(parsed("chaos --release --seed 7"), Ok(expected));
        assert_eq!(parsed("chaos"), Ok(Command::Chaos { release: false, rest: Vec::new() }));
    }

    #[test]
    fn bench_needs_a_name_that_there_is() {
        let expected = Command::Bench { name: "drain".to_owned(), rest: strings(&["--records", "9"]) };
        assert_eq!(parsed("bench drain --records 9"), Ok(expected));
        assert_eq!(parsed("bench"), Err("bench needs a name: drain, recovery, quota".to_owned()));
        assert_eq!(
            parsed("bench fast"),
            Err("there is no bench \"fast\", only: drain, recovery, quota".to_owned())
        );
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(parsed(""), Err("no command given".to_owned()));
        assert_eq!(parsed("start"), Err("there is no command \"start\"".to_owned()));
        assert_eq!(parsed("down --prune"), Err("down does not know \"--prune\", only --purge".to_owned()));
        assert_eq!(parsed("up now"), Err("up does not know \"now\", only --release".to_owned()));
        assert_eq!(parsed("test fast"), Err("test takes no arguments, but \"fast\" was given".to_owned()));
    }

    #[test]
    fn the_usage_names_every_command() {
        for command in
            ["up", "down", "demo", "test", "bench drain", "chaos", "bench recovery", "bench quota", "ci"]
        {
            assert!(USAGE.lines().any(|line| line.trim_start().starts_with(command)), "{command}");
        }
    }
}
