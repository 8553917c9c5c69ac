//! The program under test. If `TESTED_HEAP` names a file, it writes a port there on which it sends the number of bytes
//! on its heap to every client.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::ExitCode;
use std::{env, fs, io, thread};

use peak_alloc::PeakAlloc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    if let Some(file) = env::var_os("TESTED_HEAP")
        && serve_heap_usage(&file).is_err()
    {
        return ExitCode::FAILURE;
    }
    steadfast_cli::main()
}

fn serve_heap_usage(file: &std::ffi::OsStr) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    fs::write(file, listener.local_addr()?.port().to_string())?;
    thread::spawn(move || {
        for caller in listener.incoming().flatten() {
            let _ = write!(&caller, "{}", HEAP.current_usage());
        }
    });
    Ok(())
}
