//! Waiting, and programs that are not left behind.

use std::ops::{Deref, DerefMut};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

/// Timeout of a test that hangs. Nothing is measured with it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until a condition is true.
pub(crate) fn wait(mut is_so: impl FnMut() -> bool, description: impl Fn() -> String) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TEST_TIMEOUT, "waited in vain: {}", description());
        thread::sleep(Duration::from_millis(5));
    }
}

/// A program that is ended with the test, even if the test fails.
pub(crate) struct ChildGuard(pub(crate) Child);

impl Deref for ChildGuard {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for ChildGuard {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
