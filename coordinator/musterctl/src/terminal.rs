//! The only place that writes to stdout and stderr.

use std::io::{self, ErrorKind, Write as _};

use crate::errors::{Exit, Failure};

/// Write one line to stdout. If the reader is gone (`| head`), the command ends quietly.
pub fn print(line: &str) -> Result<(), Failure> {
    write(format!("{line}\n").as_bytes())
}

/// Report a completed action on stdout; if that fails, on stderr. The action counts even if the report fails.
pub(crate) fn done(line: &str) -> Result<(), Failure> {
    match print(line) {
        Err(failure) if failure.exit != Exit::Done => say(line),
        Ok(()) | Err(_) => {}
    }
    Ok(())
}

/// Write lines to stdout.
pub fn print_all(lines: &[String]) -> Result<(), Failure> {
    lines.iter().try_for_each(|line| print(line))
}

/// Write bytes to stdout unchanged.
pub(crate) fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|source| match source.kind() {
        ErrorKind::BrokenPipe => Failure::silent(Exit::Done),
        _ => Failure::failed("cannot write to stdout").because(source),
    })
}

/// Write one line to stderr; errors are ignored.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
