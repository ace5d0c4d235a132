//! The program `musterctl`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    musterctl::main()
}
