//! One process of the pipeline as the chaos has it: it is started without waiting, since what it waits for may be away, and it is
//! started again whenever it has ended.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use nix::sys::signal::Signal;
use usage_devstack::process::{Launch, Life, Server};

use super::schedule::Actor;

/// Services stop within 10 s.
const GRACE: Duration = Duration::from_secs(15);

/// What is started, and what runs of it.
#[derive(Debug)]
pub struct Member {
    pub actor: Actor,
    pub program: PathBuf,
    /// `{life}` in an argument stands for the number of this start.
    pub arguments: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub log: PathBuf,
    lives: u32,
    server: Option<Server>,
}

impl Member {
    pub fn new(
        actor: Actor,
        program: PathBuf,
        arguments: Vec<String>,
        env: BTreeMap<String, String>,
        log: PathBuf,
    ) -> Self {
        Self { actor, program, arguments, env, log, lives: 0, server: None }
    }

    /// Starts it; one that still runs is killed.
    pub fn start(&mut self) -> anyhow::Result<()> {
        self.kill9();
        self.lives += 1;
        let life = self.lives.to_string();
        let mut command = Command::new(&self.program);
        command.args(self.arguments.iter().map(|argument| argument.replace("{life}", &life))).envs(&self.env);
        let launch = Launch { command, log: self.log.clone(), life: Life::Attached(Signal::SIGKILL) };
        self.server = Some(Server::start(launch)?);
        Ok(())
    }

    pub fn kill9(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill9();
        }
    }

    /// SIGTERM, then the exit; whether it came by itself.
    pub fn terminate(&mut self) -> anyhow::Result<bool> {
        let Some(mut server) = self.server.take() else { return Ok(true) };
        let began = tokio::time::Instant::now();
        server.stop(Signal::SIGTERM, GRACE)?;
        Ok(began.elapsed() < GRACE)
    }

    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        if let Some(server) = &self.server {
            server.signal(signal)?;
        }
        Ok(())
    }

    /// How it ended, if it did so by itself.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.server.as_mut().map_or(Ok(None), Server::exited)
    }
}

#[cfg(test)]
mod tests {
    use usage_devstack::process::wait_until;

    use super::*;

    fn member(dir: &tempfile::TempDir, script: &str) -> Member {
        let arguments = vec!["-c".into(), script.into()];
        Member::new(Actor::Api, "/bin/sh".into(), arguments, BTreeMap::new(), dir.path().join("log"))
    }

    #[test]
    fn each_life_has_its_number_and_adds_to_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut member = member(&dir, "echo life {life}; exit {life}");
        for life in 1..=2 {
            member.start().unwrap();
            assert!(wait_until(Duration::from_secs(30), || member.ended().unwrap().is_some()));
            assert_eq!(member.ended().unwrap().and_then(|status| status.code()), Some(life));
        }
        assert_eq!(std::fs::read_to_string(&member.log).unwrap(), "life 1\nlife 2\n");
    }

    #[test]
    fn one_that_was_ended_on_purpose_did_not_end_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let mut member = member(&dir, "exec sleep 1000");
        member.start().unwrap();
        assert!(member.ended().unwrap().is_none());
        member.freeze().unwrap();
        member.thaw().unwrap();
        assert!(member.terminate().unwrap());
        assert!(member.ended().unwrap().is_none());
        member.start().unwrap();
        member.kill9();
        assert!(member.ended().unwrap().is_none());
    }
}
