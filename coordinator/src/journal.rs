//! The audit record as the log has it, for whoever keeps the journal elsewhere: every line, as soon as it is durable
//! and before its operator is answered. It is in the log at every level (`proto/src/daemon/logging.rs`).

use muster_proto::daemon::logging::AUDIT_TARGET;

use crate::facts::{AuditRow, Facts};

/// Writes one line. A line that was counted up comes again, under the same numbers and with another hash.
pub(crate) fn audit(line: &AuditRow) {
    let AuditRow { scope, number, seq, times, actor, action, object, message, previous, hash, .. } = line;
    tracing::info!(
        target: AUDIT_TARGET,
        seq, chain = %scope, number, times, actor, action, object, %previous, %hash,
        "audit: {message}"
    );
}

/// Says where the record goes on from. A crash may have come between a line and its copy here.
pub(crate) fn audit_goes_on(facts: &Facts) {
    for gap in facts.verify_audit().err().into_iter().flatten() {
        tracing::error!(
            target: AUDIT_TARGET,
            "the audit record has a gap: {gap}. It was damaged or changed; what it held is in the journal \
             (`journalctl -u muster-coordinator MUSTER_CHAIN=…`) and in backups"
        );
    }
    if let Some(newest) = facts.audit_lines().last() {
        let AuditRow { scope, number, seq, times, hash, .. } = &***newest;
        tracing::info!(
            target: AUDIT_TARGET,
            seq, chain = %scope, number, times, %hash,
            "audit: the record goes on after this line"
        );
    }
}
