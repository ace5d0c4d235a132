use serde::{Deserialize, Serialize};

use super::{Generation, ItemHash, ItemName, OnInterrupt};

/// Outcome of one attempt at an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemState {
    /// Started; the outcome is still to be recorded.
    Running,
    /// Succeeded. Never executed again with the same hash.
    Succeeded,
    /// Ended with a failure.
    Failed {
        /// Exit code of the program; -1 if it has none (failed to start, killed by a signal, timed out).
        exit_code: i32,
        /// May another attempt help? A missing runner stays missing.
        retryable: bool,
    },
    /// Started, and its outcome is unknown: it counts neither as success nor as failure.
    Indeterminate,
}

/// The newest attempt at an item, in the slot of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ItemStatus {
    /// Name of the slot.
    pub name: ItemName,
    /// Hash of the item as it was started.
    pub hash: ItemHash,
    /// Outcome.
    pub state: ItemState,
    /// Number from 1; it rises while the hash stays the same.
    pub attempt: u32,
    /// Generation of the assignment it was started under.
    pub generation: Generation,
    /// One line for people.
    pub message: String,
    /// The end of its output, redacted; at most 8 KiB.
    pub output_tail: String,
    /// Free JSON that the runner leaves.
    pub result_json: Option<String>,
    /// Unix milliseconds by the machine's clock.
    pub started_at_ms: u64,
    /// Unix milliseconds by the machine's clock; none while it runs.
    pub finished_at_ms: Option<u64>,
}

/// State of an item on a machine: always derived from its hash and the recorded status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemProgress {
    /// To be started as this attempt. Above 1: after a failure, so after its backoff.
    Due {
        /// The next attempt.
        attempt: u32,
    },
    /// An attempt is under way.
    Running {
        /// Number of the attempt.
        attempt: u32,
    },
    /// Done.
    Done,
    /// Failed, with all attempts used, or a failure that retries cannot fix. A person decides.
    Failed,
    /// Outcome unknown, and unsafe to run again unasked. A person decides.
    Held,
}

impl ItemProgress {
    /// See [`super::AssignedItem::standing`].
    #[must_use]
    pub fn of(
        hash: ItemHash,
        retries: u32,
        cleared_attempts: u32,
        on_interrupt: OnInterrupt,
        redo_up_to: Generation,
        status: Option<&ItemStatus>,
    ) -> Self {
        let Some(status) = status.filter(|status| status.hash == hash) else {
            return Self::Due { attempt: 1 };
        };
        let cleared = status.attempt <= cleared_attempts;
        let attempts_left = status.attempt.saturating_sub(cleared_attempts) <= retries;
        let next = Self::Due { attempt: status.attempt.saturating_add(1) };
        match &status.state {
            ItemState::Running => Self::Running { attempt: status.attempt },
            ItemState::Succeeded if status.generation <= redo_up_to => Self::Due { attempt: 1 },
            ItemState::Succeeded => Self::Done,
            ItemState::Failed { .. } | ItemState::Indeterminate if cleared => next,
            ItemState::Failed { retryable, .. } if *retryable && attempts_left => next,
            ItemState::Failed { .. } => Self::Failed,
            ItemState::Indeterminate if on_interrupt == OnInterrupt::Rerun && attempts_left => next,
            ItemState::Indeterminate => Self::Held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: ItemHash = ItemHash([7; 32]);

    fn status(state: ItemState, attempt: u32) -> ItemStatus {
        ItemStatus {
            name: ItemName::new("a").expect("a label"),
            hash: HASH,
            state,
            attempt,
            generation: Generation(1),
            message: String::new(),
            output_tail: String::new(),
            result_json: None,
            started_at_ms: 0,
            finished_at_ms: None,
        }
    }

    #[test]
    fn standing_of_an_item() {
        use ItemState::{Failed, Indeterminate, Running, Succeeded};
        use OnInterrupt::{Hold, Rerun};
        let failed = Failed { exit_code: 1, retryable: true };
        let hopeless = Failed { exit_code: -1, retryable: false };
        let check = |state: &ItemState, attempt, retries, cleared, on_interrupt, expected| {
            let status = status(state.clone(), attempt);
            let standing = ItemProgress::of(HASH, retries, cleared, on_interrupt, Generation(0), Some(&status));
            assert_eq!(standing, expected, "{status:?}");
        };
        check(&Running, 2, 3, 0, Hold, ItemProgress::Running { attempt: 2 });
        check(&Succeeded, 1, 3, 0, Hold, ItemProgress::Done);
        check(&Succeeded, 1, 3, 1, Hold, ItemProgress::Done);
        check(&failed, 1, 3, 0, Hold, ItemProgress::Due { attempt: 2 });
        check(&failed, 3, 3, 0, Hold, ItemProgress::Due { attempt: 4 });
        check(&failed, 4, 3, 0, Hold, ItemProgress::Failed);
        check(&failed, 4, 3, 4, Hold, ItemProgress::Due { attempt: 5 });
        check(&failed, 8, 3, 4, Hold, ItemProgress::Failed);
        check(&failed, 1, 0, 0, Hold, ItemProgress::Failed);
        check(&hopeless, 1, 3, 0, Hold, ItemProgress::Failed);
        check(&hopeless, 1, 3, 1, Hold, ItemProgress::Due { attempt: 2 });
        check(&Indeterminate, 1, 3, 0, Hold, ItemProgress::Held);
        check(&Indeterminate, 1, 3, 1, Hold, ItemProgress::Due { attempt: 2 });
        check(&Indeterminate, 1, 3, 0, Rerun, ItemProgress::Due { attempt: 2 });
        check(&Indeterminate, 4, 3, 0, Rerun, ItemProgress::Held);
    }

    #[test]
    fn another_hash_starts_anew() {
        let old = status(ItemState::Succeeded, 3);
        let standing = |hash, status| ItemProgress::of(hash, 3, 0, OnInterrupt::Hold, Generation(0), status);
        assert_eq!(standing(ItemHash([8; 32]), Some(&old)), ItemProgress::Due { attempt: 1 });
        assert_eq!(standing(HASH, None), ItemProgress::Due { attempt: 1 });
    }

    #[test]
    fn success_to_redo_starts_anew() {
        use ItemState::{Failed, Indeterminate, Running, Succeeded};
        let standing = |state, generation, redo_up_to| {
            let status = ItemStatus { generation: Generation(generation), ..status(state, 2) };
            ItemProgress::of(HASH, 0, 0, OnInterrupt::Hold, Generation(redo_up_to), Some(&status))
        };
        for generation in [3, 4] {
            assert_eq!(standing(Succeeded, generation, 4), ItemProgress::Due { attempt: 1 });
        }
        assert_eq!(standing(Succeeded, 5, 4), ItemProgress::Done);
        // A running attempt ends first, and a held item waits for a person.
        assert_eq!(standing(Running, 3, 4), ItemProgress::Running { attempt: 2 });
        assert_eq!(standing(Indeterminate, 3, 4), ItemProgress::Held);
        assert_eq!(standing(Failed { exit_code: 1, retryable: true }, 3, 4), ItemProgress::Failed);
    }
}
