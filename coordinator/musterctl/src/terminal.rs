//! The one place that writes to stdout and stderr.

use std::io::{self, ErrorKind, Write as _};

use crate::errors::{Exit, Failure};

/// Writes one line to stdout. A reader that has gone away (`| head`) ends the command quietly.
pub fn print(line: &str) -> Result<(), Failure> {
    write(format!("{line}\n").as_bytes())
}

/// Says on stdout what was done; where that cannot be, on stderr. It is done, whoever can be told.
pub(crate) fn done(line: &str) -> Result<(), Failure> {
    match print(line) {
        Err(failure) if failure.exit != Exit::Done => say(line),
        Ok(()) | Err(_) => {}
    }
    Ok(())
}

/// Writes lines to stdout.
pub fn print_all(lines: &[String]) -> Result<(), Failure> {
    lines.iter().try_for_each(|line| print(line))
}

/// Writes bytes to stdout as they are.
pub(crate) fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|source| match source.kind() {
        ErrorKind::BrokenPipe => Failure::silent(Exit::Done),
        _ => Failure::failed("cannot write to stdout").because(source),
    })
}

/// Writes one line to stderr. Nothing can be done where that fails.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
