//! `musterctl audit`: checks that the audit record is complete.

use muster_proto::resource::{AuditChain, verify_audit};

use crate::{
    config::Context,
    errors::{Failure, not_this_version},
    terminal,
};

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
    /// Each line's hash covers that of the line before, in chains of their own for each cluster, and the record lists
    /// its chains with their oldest and newest lines. Whoever may write the record could make all of that anew. So the
    /// coordinator's journal has every line with the same numbers and hashes: what is printed here can be compared with
    /// a copy of the journal that is kept elsewhere: journalctl -u muster-coordinator | grep HASH
    Verify,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let AuditCommand::Verify = args.command;
    let coordinator = context.coordinator().await?;
    for chain in coordinator.audit_chains().await? {
        let chain: AuditChain = serde_json::from_slice(&chain.json).map_err(not_this_version)?;
        verify_audit(&chain).map_err(|fault| {
            Failure::failed(format!("the audit record is not whole: {fault}")).next(
                "What it held is in the coordinator's journal: journalctl -u muster-coordinator | grep 'audit:'. Was \
                 an old copy of the record put back, or its file changed?",
            )
        })?;
        let AuditChain { metadata, status, .. } = chain;
        let line = format!("{}: lines {} to {}, whole; {}", metadata.name, status.oldest, status.newest, status.hash);
        terminal::print(&line)?;
    }
    Ok(())
}
