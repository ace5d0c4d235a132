//! What every program of ours sets up before it does anything else. Each `main` calls [`abort_on_panic`] first.
//!
//! The statically linked programs also need `process/nss.c`, which the build script adds to every one of them; that
//! file says why.

use std::{panic, process};

/// From now on a panic in any thread is said on stderr and ends the process by SIGABRT. A panic is a bug: systemd
/// starts the program again, and its record brings it back. To unwind would end one task and leave the rest waiting
/// for it for ever.
///
/// This is no `panic = "abort"` in the profile, because tests cannot be built with that: every library would be
/// compiled twice, once for the programs and once for the tests.
pub fn abort_on_panic() {
    let say = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        say(info);
        process::abort();
    }));
}
