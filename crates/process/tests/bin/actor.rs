//! The program that the tests start: a leash, and an owner to be killed.

use std::process::ExitCode;

#[cfg(unix)]
use std::error::Error;

use steadfast_process::leash_main;
#[cfg(unix)]
use steadfast_process::{Leash, StderrLog};
#[cfg(unix)]
use tokio::io::{AsyncBufReadExt, BufReader};
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};

#[cfg(unix)]
#[path = "../common/mod.rs"]
mod common;

fn main() -> ExitCode {
    if let Some(code) = leash_main(std::env::args_os()) {
        return code;
    }
    #[cfg(not(unix))]
    return ExitCode::FAILURE;
    #[cfg(unix)]
    match own() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the script in the first argument as a child, passes its output on, and runs until the child ends.
#[cfg(unix)]
#[tokio::main(flavor = "current_thread")]
async fn own() -> Result<(), Box<dyn Error>> {
    let script = std::env::args().nth(1).ok_or("a script is missing")?;
    let started = common::sh(&script).start(&Leash::of_this_program()?, &StderrLog::new()).await?;
    // A program that starts tests in the background ignores these signals, and that is inherited.
    for kind in [SignalKind::interrupt(), SignalKind::hangup()] {
        let mut received = signal(kind)?;
        tokio::spawn(async move {
            received.recv().await;
            std::process::exit(1);
        });
    }
    let mut lines = BufReader::new(started.stdout).lines();
    while let Some(line) = lines.next_line().await? {
        println!("{line}");
    }
    started.child.wait_until_gone().await;
    Ok(())
}
