//! `cargo xtask bench`: measurements on a stack of their own.

use std::process::Command;

use anyhow::Result;

use crate::{paths, run, test, up};

/// Builds with `--release` and runs `usage-bench NAME …` beside private servers.
pub fn bench(name: &str, rest: &[String]) -> Result<()> {
    up::build_tools()?;
    run::run(run::cargo(&["build", "--release", "--workspace", "--bins"])?)?;
    test::with_private_servers(|_, env| {
        let bin = paths::bin_dir(true)?;
        let mut command = Command::new(bin.join("usage-bench"));
        command.arg(name).args(rest).envs(env).env("USAGE_BIN_DIR", &bin);
        run::run(command)
    })
}
