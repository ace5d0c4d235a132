//! Selection of the attempt to start, and the time of its start.

use std::sync::Arc;

use muster_proto::model::{ItemState, ItemStatus, Now};

use super::{
    Core, Effect, Record, Slot, Step,
    decide::{self, Next},
    outcome,
};
use crate::attempt::record::AttemptKey;

impl Core {
    /// Starts the due attempt, unless one is running.
    pub(super) fn advance(&mut self, now: Now, step: &mut Step) {
        let Some(boot_id) = self.boot_id.clone().filter(|_| self.stopped().is_none()) else {
            self.fetch = None;
            return;
        };
        self.start_recorded(now, step);
        if self.permits.unstarted().is_some() {
            return;
        }
        let due = match decide::next(&self.ledger, &self.config.machine, self.ended_mono_ms) {
            Next::Start { name, hash, attempt, not_before_mono_ms } if now.mono_ms >= not_before_mono_ms => {
                Some((name, hash, attempt))
            }
            Next::Start { .. } | Next::Nothing | Next::Running => None,
        };
        let Some((name, hash, attempt)) = due else {
            self.fetch = None;
            return;
        };
        let key = AttemptKey { item: name.clone(), generation: self.ledger.generation(), attempt };
        if !self.may_begin(&key, now, step) {
            return;
        }
        let status = Arc::new(ItemStatus {
            name,
            hash,
            state: ItemState::Running,
            attempt,
            generation: self.ledger.generation(),
            message: String::new(),
            output_tail: String::new(),
            result_json: None,
            started_at_ms: now.wall_ms,
            finished_at_ms: None,
        });
        let rebooted = self.reboot_is_done(&status.name, status.hash);
        let (kept, seq) = (self.kept_attempts(), self.ledger.last_seq.next());
        self.record(Record::Started { seq, boot_id, status: Arc::clone(&status) }, step);
        let keep = self.kept_attempts();
        step.acts.extend(kept.into_iter().filter(|key| !keep.contains(key)).map(Effect::Remove));
        if rebooted {
            return self.finish(&Slot::key_of(&status), outcome::rebooted(), now, step);
        }
        self.start(status, now, step);
    }

    /// Starts the attempt that is recorded as running, at once or when its wait is over.
    pub(super) fn start(&mut self, status: Arc<ItemStatus>, now: Now, step: &mut Step) {
        self.use_permit(&status.name);
        if !self.says_goodbye(&status, now) {
            self.launch(status, now, step);
        }
    }

    /// Starts the attempt that is recorded as running, or records the failure.
    pub(super) fn launch(&mut self, status: Arc<ItemStatus>, now: Now, step: &mut Step) {
        match decide::request(&self.ledger, &self.config, &status) {
            Ok(request) => step.acts.push(Effect::Start(Box::new(request))),
            Err(exit) => {
                let key = Slot::key_of(&status);
                self.finish(&key, exit, now, step);
            }
        }
    }
}
