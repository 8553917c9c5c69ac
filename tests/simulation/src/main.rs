//! `cargo xtask sim --seeds N [--seed S]`.

use std::process::ExitCode;
use std::time::Instant;

use steadfast_simulation::{Summary, run};

fn main() -> ExitCode {
    let mut seeds = 1000_u64;
    let mut only = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let number = arguments.next().and_then(|text| text.parse::<u64>().ok());
        match (argument.as_str(), number) {
            ("--seeds", Some(number)) => seeds = number,
            ("--seed", Some(number)) => only = Some(number),
            _ => {
                eprintln!("usage: cargo xtask sim [--seeds N] [--seed S]");
                return ExitCode::from(2);
            }
        }
    }
    let range = only.map_or(0..seeds, |seed| seed..seed + 1);
    let begun = Instant::now();
    let mut total = Summary::default();
    let count = range.end - range.start;
    for seed in range {
        match run(seed, None) {
            Ok(summary) => total.add(summary),
            Err(failure) => {
                println!("{}", failure.story.join("\n"));
                println!("\nseed {seed} breaks \"{}\": {}", failure.invariant, failure.how);
                println!("replay it with: cargo xtask sim --seed {seed}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{count} worlds in {:.1} s: {} calls, {} effects, {} answers given again, {} times told that nobody knows; every promise held",
        begun.elapsed().as_secs_f64(),
        total.calls,
        total.effects,
        total.replays,
        total.unknown,
    );
    ExitCode::SUCCESS
}
