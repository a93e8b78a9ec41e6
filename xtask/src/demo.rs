//! `cargo xtask demo`: the main job on data one can see.

use std::process::Command;

use anyhow::Result;

use crate::up::{self, Options};
use crate::{down, paths, run};

/// Brings the stack up, plays, and ends it again unless it is to be kept or was up before.
pub fn demo(keep: bool, rest: &[String]) -> Result<()> {
    let stack = up::up(Options { release: false, attached: !keep, packages: &["usage-tests"] })?;
    let result = play(&stack.env, rest);
    if keep || stack.ran_before {
        println!("the stack stays up; `cargo xtask down` stops it");
        return result;
    }
    let ended = down::down(false);
    result.and(ended)
}

fn play(env: &crate::servers::Env, rest: &[String]) -> Result<()> {
    let mut command = Command::new(paths::bin_dir(false)?.join("usage-demo"));
    command
        .args(rest)
        .envs(env)
        .env("USAGE_STACK_DIR", paths::stack())
        .env("USAGE_BIN_DIR", paths::bin_dir(false)?);
    run::run(command)
}
