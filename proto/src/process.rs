//! Setup that every program of ours does first. Each `main` calls [`abort_on_panic`] before anything else.
//!
//! The statically linked programs also need `process/nss.c`, which the build script adds to each of them; that file
//! says why.

use std::{panic, process};

/// From now on, report a panic in any thread on stderr and end the process by SIGABRT. A panic is a bug: systemd
/// restarts the program, and its record restores its state. Unwinding would end one task and leave the rest waiting for
/// it forever.
///
/// `panic = "abort"` in the profile would not do. Tests cannot be built with it, so every library would be compiled
/// twice: once for the programs and once for the tests.
pub fn abort_on_panic() {
    let say = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        say(info);
        process::abort();
    }));
}
