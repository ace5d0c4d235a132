//! `musterctl audit`: is the record of who did what whole?

use std::collections::BTreeMap;

use muster_coordinator::view::Kind;
use muster_proto::resource::{Audit, verify_audit};

use crate::{config::Context, failure::Failure, get::not_this_version, terminal};

/// Check the record of who did what; `musterctl get audit` shows it
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(clap::Subcommand)]
enum AuditCommand {
    /// Check that no line is missing and none was changed
    ///
    /// Each line's hash covers that of the line before, in one chain for each cluster. The coordinator's journal has
    /// every line with the same numbers and hashes, so that what is printed here can be compared with a copy of the
    /// journal that is kept elsewhere: journalctl -u muster-coordinator | grep HASH
    Verify,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let AuditCommand::Verify = args.command;
    let coordinator = context.coordinator().await?;
    let mut chains: BTreeMap<String, Vec<Audit>> = BTreeMap::new();
    for line in coordinator.get(Kind::Audit, "", "").await? {
        let line: Audit = serde_json::from_slice(&line.json).map_err(not_this_version)?;
        chains.entry(line.status.chain.clone()).or_default().push(line);
    }
    for (chain, mut lines) in chains {
        lines.sort_by_key(|line| line.status.number);
        verify_audit(&lines).map_err(|fault| {
            Failure::failed(format!("the audit record is not whole: {fault}")).next(
                "What it held is in the coordinator's journal: journalctl -u muster-coordinator | grep 'audit:'. Was \
                 an old copy of the record put back, or its file changed?",
            )
        })?;
        if let (Some(first), Some(last)) = (lines.first(), lines.last()) {
            let (first, last) = (&first.status, &last.status);
            terminal::print(&format!("{chain}: lines {} to {}, whole; {}", first.number, last.number, last.hash))?;
        }
    }
    Ok(())
}
