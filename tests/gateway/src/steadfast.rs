//! The program under test. What is on its heap, in bytes, is written into the file that `TESTED_HEAP` names, again and again.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    if let Some(file) = env::var_os("TESTED_HEAP").map(PathBuf::from) {
        thread::spawn(move || tell(&file.with_extension("new"), &file));
    }
    steadfast_cli::main()
}

/// Writes it beside and puts it in place, so that nobody reads a half.
fn tell(new: &std::path::Path, file: &std::path::Path) {
    loop {
        let told = fs::write(new, HEAP.current_usage().to_string()).and_then(|()| fs::rename(new, file));
        if told.is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}
