//! Programs that are to fail, and what they write.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use usage_service::fail_points::VARIABLE;
use usage_tests::pipeline::Pipeline;

use crate::PATIENCE;

/// How long a program is given to run into its failure.
const FAILS_WITHIN: Duration = Duration::from_secs(8);

/// A program that was started with a configuration of its own, and what it writes.
struct Program {
    child: tokio::process::Child,
    dir: tempfile::TempDir,
}

impl Program {
    fn start(
        pipeline: &Pipeline,
        program: &str,
        config: &str,
        arguments: &[String],
        fail_point: &str,
    ) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("config.toml");
        std::fs::write(&path, config)?;
        let child = tokio::process::Command::new(pipeline.program(program))
            .arg("--config")
            .arg(&path)
            .args(["--set", "telemetry.listen=127.0.0.1:0"])
            .args(arguments)
            .envs(pipeline.env())
            .env(VARIABLE, fail_point)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(dir.path().join("out"))?)
            .stderr(std::fs::File::create(dir.path().join("err"))?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("can't run {program}"))?;
        Ok(Self { child, dir })
    }

    fn output(&self) -> anyhow::Result<String> {
        let read = |name: &str| std::fs::read_to_string(self.dir.path().join(name));
        Ok(format!("{}{}", read("out")?, read("err")?))
    }

    /// Waits until it has ended, or has written this text.
    async fn wrote(&mut self, text: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut every = tokio::time::interval(Duration::from_millis(50));
        loop {
            every.tick().await;
            let output = self.output()?;
            if self.child.try_wait()?.is_some() || (!text.is_empty() && output.contains(text)) {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "it wrote no {text:?}: {output}");
        }
    }

    /// Gives it its time to say more, or to end.
    async fn end(mut self) -> anyhow::Result<String> {
        if tokio::time::timeout(FAILS_WITHIN, self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        self.output()
    }
}

/// Runs a program until it ends or has had its time to go wrong; all that it wrote.
pub async fn failing(
    pipeline: &Pipeline,
    program: &str,
    config: &str,
    arguments: &[String],
) -> anyhow::Result<String> {
    Program::start(pipeline, program, config, arguments, "")?.end().await
}

/// Runs a program that only looks at its configuration to its end; all that it wrote.
pub async fn checked(pipeline: &Pipeline, program: &str, config: &str) -> anyhow::Result<String> {
    let mut program = Program::start(pipeline, program, config, &["--check-config".into()], "")?;
    program.wrote("").await?;
    program.output()
}

/// Runs a program until it has written `said` and what is asked of it then is answered; all that it wrote, and the answer.
pub async fn serving<T>(
    pipeline: &Pipeline,
    program: &str,
    config: &str,
    said: &str,
    ask: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<(String, T)> {
    let mut program = Program::start(pipeline, program, config, &[], "")?;
    program.wrote(said).await?;
    let answer = ask.await?;
    program.child.kill().await?;
    Ok((program.output()?, answer))
}

/// Runs a program into a panic at its fail point; all that it wrote.
pub async fn panicking(
    pipeline: &Pipeline,
    program: &str,
    config: &str,
    fail_point: &str,
) -> anyhow::Result<String> {
    let mut program = Program::start(pipeline, program, config, &[], fail_point)?;
    program.wrote("panicked").await?;
    program.end().await
}
