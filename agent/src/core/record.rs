//! The durable record of an agent and its state: [`LedgerState`] is a pure fold over [`Record`]s.

use std::{collections::BTreeMap, sync::Arc};

use muster_proto::{
    model::{
        AckProof, AssignedItem, Assignment, AuthCode, Epoch, Generation, ItemName, ItemState, ItemStatus, LedgerId,
        MachineId, Seq,
    },
    seeded_bug::seeded_bug,
};
use serde::{Deserialize, Serialize};

use crate::attempt::record::AttemptKey;

/// Memory of one status beside its texts; a generous estimate.
const STATUS_BYTES: usize = 256;
/// Seeded bug `agent-drop-oldest-event`: capacity of the outbox.
const PLANTED_OUTBOX_MAX: usize = 4;

/// One line of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Record {
    /// Everything up to here: the first line of a ledger.
    Snapshot(Box<LedgerState>),
    /// A coordinator with a higher epoch was met: older ones are refused from now on.
    EpochSeen(Epoch, AuthCode),
    /// The desired items of the machine.
    Accepted(Arc<Assignment>),
    /// An attempt is about to be started. An event.
    Started {
        /// Number of the event.
        seq: Seq,
        /// Boot in which it was started.
        boot_id: String,
        /// Status that the event reports.
        status: Arc<ItemStatus>,
    },
    /// An attempt ended. An event.
    Finished {
        /// Number of the event.
        seq: Seq,
        /// Status that the event reports.
        status: Arc<ItemStatus>,
    },
    /// The coordinator has every event up to this one.
    Acked(Seq, AckProof),
}

impl Record {
    /// Must it survive a power cut before any action depends on it? False for an acknowledgement: if it is lost, an
    /// event is sent twice, and the coordinator accepts it once.
    #[must_use]
    pub const fn must_be_synced(&self) -> bool {
        match self {
            Self::Snapshot(_)
            | Self::EpochSeen(..)
            | Self::Accepted(_)
            | Self::Started { .. }
            | Self::Finished { .. } => true,
            Self::Acked(..) => false,
        }
    }
}

/// Progress of a ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    ledger_id: LedgerId,
    machine_id: MachineId,
    epoch: Epoch,
    generation: Generation,
    last_seq: Seq,
}

impl Mark {
    /// Mark of this ledger.
    #[must_use]
    pub fn of(ledger: &LedgerState) -> Self {
        let LedgerState { ledger_id, machine_id, epoch, last_seq, .. } = *ledger;
        Self { ledger_id, machine_id, epoch, generation: ledger.generation(), last_seq }
    }

    /// Has this machine's ledger been further than it is? True for a different ledger too, because a new ledger starts
    /// without a mark.
    #[must_use]
    pub fn is_ahead_of(&self, ledger: &LedgerState) -> bool {
        let now = Self::of(ledger);
        let further = self.epoch > now.epoch || self.generation > now.generation || self.last_seq > now.last_seq;
        self.machine_id == now.machine_id && (self.ledger_id != now.ledger_id || further)
    }
}

/// Content of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerState {
    /// Unique per ledger; a reset creates a new one.
    pub ledger_id: LedgerId,
    /// Machine that owns this ledger.
    pub machine_id: MachineId,
    /// Highest epoch ever seen.
    pub epoch: Epoch,
    /// Proves the epoch to the coordinator.
    pub epoch_code: AuthCode,
    /// The accepted assignment.
    pub assignment: Option<Arc<Assignment>>,
    /// The newest attempt of each item ever assigned.
    pub slots: BTreeMap<ItemName, Slot>,
    /// Events that wait for acknowledgement.
    pub outbox: BTreeMap<Seq, Arc<ItemStatus>>,
    /// Number of the newest event.
    pub last_seq: Seq,
    /// Highest event acknowledged.
    pub acked: Seq,
    /// Proof of `acked` for the coordinator. None before the first acknowledgement.
    pub acked_proof: Option<AckProof>,
}

/// The newest attempt of one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// Its status. Output and result are dropped once the coordinator has them.
    pub status: Arc<ItemStatus>,
    /// Boot in which it was started.
    pub boot_id: String,
    /// Number of its newest event.
    pub seq: Seq,
}

impl Slot {
    /// Key of the attempt.
    #[must_use]
    pub fn key(&self) -> AttemptKey {
        Self::key_of(&self.status)
    }

    /// Key of the attempt that a status belongs to.
    #[must_use]
    pub fn key_of(status: &ItemStatus) -> AttemptKey {
        AttemptKey { item: status.name.clone(), generation: status.generation, attempt: status.attempt }
    }

    /// Has it started, with no outcome recorded yet?
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.status.state == ItemState::Running
    }
}

/// A record that does not follow the ones before it: a line is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it does not follow on the lines before it")]
pub struct Misfit;

impl LedgerState {
    /// An empty ledger.
    #[must_use]
    pub const fn new(ledger_id: LedgerId, machine_id: MachineId) -> Self {
        Self {
            ledger_id,
            machine_id,
            epoch: Epoch(0),
            epoch_code: AuthCode::NONE,
            assignment: None,
            slots: BTreeMap::new(),
            outbox: BTreeMap::new(),
            last_seq: Seq(0),
            acked: Seq(0),
            acked_proof: None,
        }
    }

    /// Applies one record.
    pub fn apply(&mut self, record: &Record) {
        match record {
            Record::Snapshot(state) => self.clone_from(state),
            Record::EpochSeen(epoch, code) => (self.epoch, self.epoch_code) = (*epoch, *code),
            Record::Accepted(assignment) => self.assignment = Some(Arc::clone(assignment)),
            Record::Started { seq, boot_id, status } => {
                let slot = Slot { status: Arc::clone(status), boot_id: boot_id.clone(), seq: *seq };
                self.slots.insert(status.name.clone(), slot);
                self.event(*seq, status);
            }
            Record::Finished { seq, status } => {
                if let Some(slot) = self.slots.get_mut(&status.name) {
                    slot.status = Arc::clone(status);
                    slot.seq = *seq;
                }
                self.event(*seq, status);
            }
            Record::Acked(seq, proof) => {
                self.forget(*seq);
                self.acked_proof = Some(*proof);
            }
        }
    }

    /// Applies one record that was read from disk.
    ///
    /// # Errors
    /// [`Misfit`] if it does not follow the current state, which then stays unchanged.
    pub fn apply_read(&mut self, record: &Record) -> Result<(), Misfit> {
        let fits = match record {
            Record::Snapshot(_) => false,
            Record::EpochSeen(epoch, _) => *epoch > self.epoch,
            Record::Accepted(assignment) => assignment.generation > self.generation(),
            Record::Started { seq, .. } => *seq == self.last_seq.next(),
            Record::Finished { seq, status } => {
                *seq == self.last_seq.next() && self.slots.get(&status.name).is_some_and(Slot::is_running)
            }
            Record::Acked(seq, _) => *seq > self.acked && *seq <= self.last_seq,
        };
        if !fits {
            return Err(Misfit);
        }
        self.apply(record);
        Ok(())
    }

    fn event(&mut self, seq: Seq, status: &Arc<ItemStatus>) {
        self.last_seq = seq;
        self.outbox.insert(seq, Arc::clone(status));
        // Seeded bug: a full outbox drops its oldest event.
        if seeded_bug("agent-drop-oldest-event") && self.outbox.len() > PLANTED_OUTBOX_MAX {
            self.outbox.pop_first();
        }
    }

    fn forget(&mut self, acked: Seq) {
        self.acked = acked;
        self.outbox = self.outbox.split_off(&acked.next());
        // Seeded bug: an acknowledgement also removes later events.
        if seeded_bug("agent-forget-on-ack-of-later") {
            self.outbox.clear();
        }
        for slot in self.slots.values_mut().filter(|slot| slot.seq <= acked) {
            if !slot.status.output_tail.is_empty() || slot.status.result_json.is_some() {
                let status = Arc::make_mut(&mut slot.status);
                status.output_tail = String::new();
                status.result_json = None;
            }
        }
    }

    /// Generation of the accepted assignment, or 0.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.assignment.as_ref().map_or(Generation(0), |assignment| assignment.generation)
    }

    /// The item of that name in the accepted assignment.
    #[must_use]
    pub fn assigned(&self, name: &ItemName) -> Option<&AssignedItem> {
        self.assignment.as_ref()?.items.iter().find(|item| item.name == *name)
    }

    /// Is an item of that name in the accepted assignment?
    #[must_use]
    pub fn is_assigned(&self, name: &ItemName) -> bool {
        self.assigned(name).is_some()
    }

    /// The running attempt. There is at most one.
    #[must_use]
    pub fn running(&self) -> Option<&Slot> {
        self.slots.values().find(|slot| slot.is_running())
    }

    /// Is this attempt newer than the newest one that the ledger holds of its item? A start is durable before its
    /// directory is created, so such a directory proves that an older ledger was restored. Generations only increase,
    /// and so do the attempts within one.
    #[must_use]
    pub fn lacks(&self, key: &AttemptKey) -> bool {
        self.slots
            .get(&key.item)
            .is_none_or(|slot| (slot.status.generation, slot.status.attempt) < (key.generation, key.attempt))
    }

    /// Approximate memory of the unacknowledged events, in bytes.
    #[must_use]
    pub fn outbox_bytes(&self) -> usize {
        let bytes = |status: &Arc<ItemStatus>| {
            STATUS_BYTES
                + status.message.len()
                + status.output_tail.len()
                + status.result_json.as_ref().map_or(0, String::len)
        };
        self.outbox.values().map(bytes).sum()
    }
}
