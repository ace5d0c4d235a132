//! Copies the audit record to the log, for operators who store the journal elsewhere: every line, once it is durable
//! and before its operator is answered. It is logged at every level (`proto/src/daemon/logging.rs`). A process may be
//! killed in between, so the next one writes the newest batch's lines again before it makes another batch.

use muster_proto::daemon::logging::AUDIT_TARGET;

use crate::facts::{AuditRow, Facts};

/// Write one line. A line whose count rose is written again, under the same numbers and with another hash.
pub(crate) fn audit(line: &AuditRow) {
    let AuditRow { scope, number, seq, times, actor, action, object, message, previous, hash, .. } = line;
    tracing::info!(
        target: AUDIT_TARGET,
        seq, chain = %scope, number, times, actor, action, object, %previous, %hash,
        "audit: {message}"
    );
}

/// Write the newest batch's lines again: the process that committed it may have been killed before.
pub(crate) fn catch_up(facts: &Facts) {
    facts.audit_lines_of_newest_batch().into_iter().for_each(|line| audit(line));
}

/// Write where the record continues.
pub(crate) fn audit_goes_on(facts: &Facts) {
    for gap in facts.verify_audit().err().into_iter().flatten() {
        tracing::error!(
            target: AUDIT_TARGET,
            "the audit record has a gap: {gap}. It was damaged or changed; what it held is in the journal \
             (`journalctl -u muster-coordinator MUSTER_CHAIN=…`) and in backups"
        );
    }
    catch_up(facts);
    if let Some(newest) = facts.audit_lines().last() {
        let AuditRow { scope, number, seq, times, hash, .. } = &***newest;
        tracing::info!(
            target: AUDIT_TARGET,
            seq, chain = %scope, number, times, %hash,
            "audit: the record goes on after this line"
        );
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        fmt::{Debug, Write as _},
        sync::{Arc, Mutex},
    };

    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span,
    };

    use super::*;
    use crate::facts::{AuditObject, Transaction};

    /// Collects the text and numbers of the audit record's lines.
    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<String>>>);

    #[derive(Default)]
    struct Line {
        seq: u64,
        message: String,
    }

    impl Visit for Line {
        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == "seq" {
                self.seq = value;
            }
        }

        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            if field.name() == "message" {
                write!(self.message, "{value:?}").expect("text");
            }
        }
    }

    impl Subscriber for Told {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == AUDIT_TARGET
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = Line::default();
            event.record(&mut line);
            self.0.lock().expect("a lock").push(format!("{} {}", line.seq, line.message));
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    /// Run `act`, and return the journal's lines meanwhile, with number and text.
    pub(crate) fn told_by<T>(act: impl FnOnce() -> T) -> (T, Vec<String>) {
        let told = Told::default();
        let done = tracing::subscriber::with_default(told.clone(), act);
        let lines = told.0.lock().expect("a lock").clone();
        (done, lines)
    }

    /// A process killed right after its commit leaves that batch out of the log. All earlier batches are there: each is
    /// a condition of the next.
    #[test]
    fn lines_of_newest_batch_are_told_again() {
        let mut facts = Facts::default();
        for batch in [&["one", "two"][..], &["three", "four", "four"], &["four", "five"]] {
            let mut tx = Transaction::new(&mut facts);
            for message in batch {
                tx.audit("operator/anna", "annotate", AuditObject::Store, message, 0);
            }
            // A change outside the audit record leaves its newest batch as it is.
            drop(tx);
            Transaction::new(&mut facts).next_revision();
        }
        let ((), told) = told_by(|| catch_up(&facts));
        assert_eq!(told, ["6 audit: four", "7 audit: five"], "a line that was counted up is told too");
        let ((), told) = told_by(|| audit_goes_on(&facts));
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told_by(|| catch_up(&Facts::default())).1.is_empty());
    }
}
