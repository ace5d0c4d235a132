//! Programs that a runner starts: their output goes to the item's output, and what went wrong is quoted from it.

use std::{
    io::{self, BufRead, BufReader, pipe},
    process::{Command, ExitStatus, Stdio},
};

use crate::exec_item::Report;

/// A program that did not do what it was to.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    #[error("cannot start {program}")]
    Start {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error("{program} ended with {status}: {complaint}")]
    Failed { program: String, status: ExitStatus, complaint: String },
}

/// Complaints quoted of one program.
const COMPLAINTS_MAX: usize = 3;

fn name_of(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// Runs it to its end, its output line by line to the report.
pub(super) fn run(command: &mut Command, report: &Report) -> Result<(), ProgramError> {
    let program = name_of(command);
    let failed = |source| ProgramError::Start { program: program.clone(), source };
    let (reader, writer) = pipe().map_err(failed)?;
    let errors = writer.try_clone().map_err(failed)?;
    let mut child = command.stdin(Stdio::null()).stdout(writer).stderr(errors).spawn().map_err(failed)?;
    // The command holds the pipe's other end, and would keep us reading.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut complaints = Vec::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.map_err(failed)?;
        let line = String::from_utf8_lossy(&line);
        report.line(&line);
        if is_complaint(&line) && complaints.len() < COMPLAINTS_MAX {
            complaints.push(line.trim().to_owned());
        }
    }
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    Err(ProgramError::Failed { program, status, complaint: complaints.join("; ") })
}

/// `E: …` of apt, `dpkg: error …`, `Error: …` of dnf and `error: …` of rpm, `ERROR! …` of Ansible.
fn is_complaint(line: &str) -> bool {
    ["E: ", "dpkg: error", "Error: ", "error: ", "ERROR! "].iter().any(|start| line.starts_with(start))
}

/// What it prints.
pub(super) fn output_of(command: &mut Command) -> Result<String, ProgramError> {
    let program = name_of(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| ProgramError::Start { program: program.clone(), source })?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(ProgramError::Failed { program, status: output.status, complaint });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Does it end well? It prints nothing of interest.
pub(super) fn succeeds(command: &mut Command) -> bool {
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}
