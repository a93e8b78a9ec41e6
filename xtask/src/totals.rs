//! What cargo's test programs say, read line by line.

use std::fmt;

/// Lines of a failure that are shown again at the end.
const LINES: usize = 12;

/// How many tests there were, and what the failed ones said.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Totals {
    passed: u64,
    failed: u64,
    ignored: u64,
    failures: Vec<Failure>,
    /// The lines are those of the last failure.
    inside: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Failure {
    test: String,
    lines: Vec<String>,
}

impl Totals {
    /// Tests that ran.
    pub fn run(&self) -> u64 {
        self.passed + self.failed
    }

    /// `test result: ok. 41 passed; 0 failed; 1 ignored; …` is counted; what follows `---- name stdout ----` is kept.
    pub fn read(&mut self, line: &str) {
        if let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) {
            self.inside = false;
            self.count(counts);
        } else if let Some(test) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.failures.push(Failure { test: test.to_owned(), lines: Vec::new() });
            self.inside = true;
        } else if line == "stack backtrace:" || line == "failures:" {
            self.inside = false;
        } else if self.inside
            && let Some(failure) = self.failures.last_mut()
        {
            failure.add(line);
        }
    }

    fn count(&mut self, counts: &str) {
        for part in counts.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

impl Failure {
    /// From the panic or the error on; before it lie the test's logs.
    fn add(&mut self, line: &str) {
        if line.contains(" panicked at ") || line.starts_with("Error: ") {
            self.lines.clear();
        }
        if self.lines.len() < LINES && !line.is_empty() {
            self.lines.push(line.to_owned());
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "FAILED {}", failure.test)?;
            for line in &failure.lines {
                writeln!(f, "    {line}")?;
            }
        }
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Totals {
        let mut totals = Totals::default();
        output.lines().for_each(|line| totals.read(line));
        totals
    }

    #[test]
    fn results_of_all_programs_are_added_up() {
        let totals = read(
            "running 3 tests\n\
             test result: ok. 41 passed; 0 failed; 2 ignored; 0 measured; 7 filtered out; finished in 0.45s\n\
             test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        );
        assert_eq!(totals.run(), 45);
        assert_eq!(totals.to_string(), "44 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn what_a_failed_test_said_is_said_again_without_its_logs() {
        let totals = read(
            "failures:\n\n\
             ---- quota::shared stdout ----\n\
             INFO a line of the log\n\n\
             thread 'quota::shared' (7) panicked at it/quota.rs:117:5:\n\
             362 of 300\n\
             stack backtrace:\n   0: begin\n\n\
             ---- garbage::waits stdout ----\n\
             Error: no letter\n\n\
             failures:\n    garbage::waits\n    quota::shared\n\n\
             test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        );
        let expected = "FAILED quota::shared\n    \
             thread 'quota::shared' (7) panicked at it/quota.rs:117:5:\n    362 of 300\n\
             FAILED garbage::waits\n    Error: no letter\n\
             1 passed, 2 failed, 0 skipped";
        assert_eq!(totals.to_string(), expected);
    }
}
