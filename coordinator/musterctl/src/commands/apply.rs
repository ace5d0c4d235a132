//! `musterctl apply`: sends manifests to the coordinator, which checks all of them before it changes anything.

mod schemas;

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use muster_proto::{
    APPLY_MESSAGE_BYTES_MAX,
    printable::printable,
    wire::{ApplyRequest, Fault, ManifestFile},
};

use crate::{
    config::Context,
    errors::{Exit, Failure},
    terminal,
};

/// Most text that is read: the coordinator's limit for one call, less room for names.
const TEXT_BYTES_MAX: u64 = APPLY_MESSAGE_BYTES_MAX as u64 - 64 * 1024;

/// Create or change clusters and machines from manifests
///
/// All files are checked together, wholly, before anything changes. Faults are printed as
/// FILE:LINE:COLUMN: PATH: PROBLEM, and the exit status is 2.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl apply -f edge-7.yaml
  musterctl apply -f edge-7.yaml --dry-run          check only
  musterctl apply -f cluster.yaml -f machines.yaml
  musterctl apply -f edge-7.yaml --schema tuning=tuning-1.4.tar.gz
  cat edge-7.yaml | musterctl apply -f -")]
pub(crate) struct Args {
    /// Manifest; `-` is stdin. Several: -f A -f B, or -f *.yaml
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<String>,
    /// Check the `vars` of items named ITEM against a module's JSON schema: its schema.json, or its archive (tar,
    /// tar.gz) that has one. Not recorded. Several: --schema A=FILE --schema B=FILE
    #[arg(long = "schema", value_name = "ITEM=FILE")]
    schemas: Vec<String>,
    /// Make every check, change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    if args.files.iter().filter(|file| *file == "-").count() > 1 {
        return Err(Failure::bad_input("stdin (`-f -`) can be read only once"));
    }
    let mut left = TEXT_BYTES_MAX;
    let files = args.files.iter().map(|file| read(file, &mut left)).collect::<Result<Vec<_>, _>>()?;
    let schemas = schemas::read(&args.schemas, &mut left)?;
    let coordinator = context.coordinator().await?;
    let request = ApplyRequest { files, dry_run: args.dry_run, schemas };
    let answer = coordinator.call(coordinator.fleet().apply(request)).await?;
    if answer.faults.is_empty() {
        let suffix = if args.dry_run { " (dry run: nothing was changed)" } else { "" };
        let tell = if args.dry_run { terminal::print } else { terminal::done };
        return answer.changes.iter().try_for_each(|line| tell(&printable(&format!("{line}{suffix}"))));
    }
    for fault in &answer.faults {
        terminal::say(&printable(&fault_line(fault)));
    }
    let count = match answer.faults.len() {
        1 => "1 fault".to_owned(),
        count => format!("{count} faults"),
    };
    terminal::say(&format!("error: {count}; nothing was changed"));
    Err(Failure::silent(Exit::BadInput))
}

/// `edge-7.yaml:12:9: spec.machineTypes.control[2].params: unknown field "shaa256"; expected …; did you mean "sha256"?`
fn fault_line(fault: &Fault) -> String {
    let mut line = fault.file.clone();
    if fault.line > 0 {
        line.push_str(&format!(":{}:{}", fault.line, fault.column));
    }
    if !fault.path.is_empty() {
        line.push_str(&format!(": {}", fault.path));
    }
    line.push_str(&format!(": {}", fault.problem));
    if !fault.expected.is_empty() {
        line.push_str(&format!("; expected {}", fault.expected));
    }
    if !fault.nearest.is_empty() {
        line.push_str(&format!("; did you mean \"{}\"?", fault.nearest));
    }
    line
}

fn read(name: &str, left: &mut u64) -> Result<ManifestFile, Failure> {
    let cannot = |source| {
        let next = match name.split_once("://") {
            Some(_) => format!("URLs are not fetched: curl -fsS {name} | musterctl apply -f -"),
            None => {
                "-f names a manifest, or is - for standard input; what one looks like: docs/reference/manifest.md, \
                     musterctl demo"
                    .to_owned()
            }
        };
        Failure::bad_input(format!("cannot read {name}")).because(source).next(next)
    };
    let mut bytes = Vec::new();
    let most = left.saturating_add(1);
    if name == "-" {
        io::stdin().lock().take(most).read_to_end(&mut bytes).map_err(cannot)?;
    } else {
        File::open(Path::new(name)).map_err(cannot)?.take(most).read_to_end(&mut bytes).map_err(cannot)?;
    }
    *left = left_after(bytes.len(), *left).ok_or_else(|| {
        Failure::bad_input(format!("{name}: the manifests are larger than {} KiB together", TEXT_BYTES_MAX / 1024))
            .next("Apply them in several calls. Or is this no manifest? One is YAML, as text.")
    })?;
    let name = if name == "-" { "stdin" } else { name }.to_owned();
    let text = String::from_utf8(bytes).map_err(|error| {
        Failure::bad_input(format!("{name}: not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
            .next("A manifest is YAML, as text in UTF-8.")
    })?;
    Ok(ManifestFile { name, text })
}

/// Bytes of a request that remain. None: it is over the limit.
fn left_after(bytes: usize, left: u64) -> Option<u64> {
    u64::try_from(bytes).ok().and_then(|bytes| left.checked_sub(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_read_like_a_compilers() {
        let fault = Fault {
            file: "a.yaml".into(),
            line: 12,
            column: 9,
            path: "spec.release".into(),
            problem: "unknown field \"relase\"".into(),
            expected: "one of: release".into(),
            nearest: "release".into(),
        };
        let whole =
            "a.yaml:12:9: spec.release: unknown field \"relase\"; expected one of: release; did you mean \"release\"?";
        assert_eq!(fault_line(&fault), whole);
        let bare = Fault { file: "a.yaml".into(), problem: "empty".into(), ..Fault::default() };
        assert_eq!(fault_line(&bare), "a.yaml: empty");
    }
}
