//! Links the static agent with packed relocations. It is position independent and relocates itself when it starts, and
//! reads its whole table of relocations for that: packed, that is 1.3 MiB less of resident memory on every machine.
#![allow(missing_docs, reason = "a build script has no readers of its documentation")]

use std::{env, process::Command};

/// The first C library that can relocate a program by a packed table (DT_RELR), as its release notes say.
const GLIBC_MIN: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let is_static = features.split(',').any(|feature| feature == "crt-static");
    if is_static && glibc().is_some_and(|version| version >= GLIBC_MIN) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
    // A profile of its own for a package loses `strip` of the profile it is made from.
    if is_static && env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
}

/// The C library that is linked in: this machine's, for it is never built for another.
fn glibc() -> Option<(u32, u32)> {
    let answer = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
