//! Output of `muster-agent status` for people and programs: the ledger, the identity and the link's last state. It
//! reads files only.

use std::fmt::Write as _;

use jiff::Timestamp;
use muster_proto::{
    address::Addresses,
    model::{ItemProgress, ItemState, ItemStatus},
};
use serde::Serialize;

use crate::{
    config::{StateDir, command},
    core::LedgerState,
    identity::{Identity, IdentityError},
    ledger::{self, FileDisk, LedgerError},
    link::LinkReport,
    status_file::BlockReport,
};

/// Maximum width of a message in the table; `-o json` has all of it.
const MESSAGE_CHARS_MAX: usize = 100;

/// Note below the table if a row lacks a phase.
const NOT_ASSIGNED: &str = "\nPHASE -: not assigned any more (taken out of the manifest, or an operator decided about \
                            it)\n";

/// Error in reading the status.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The identity is unreadable.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The ledger is unreadable.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Status of the agent.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus {
    /// Machine name at enrolment.
    pub machine: String,
    /// Machine id at enrolment.
    pub machine_id: String,
    /// Cluster at enrolment.
    pub cluster: String,
    /// Machine type at enrolment.
    pub machine_type: String,
    /// `HOST:PORT` each, in the order of tries.
    pub coordinators: Addresses,
    /// End of the certificate.
    pub certificate_not_after: Option<Timestamp>,
    /// Does the agent run? Otherwise link and blocked describe the agent that ran here last.
    pub running: bool,
    /// Last state of the link.
    pub link: Option<LinkReport>,
    /// Reason why the agent is blocked, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockReport>,
    /// None before the first run as this machine.
    pub ledger: Option<LedgerStatus>,
}

/// Content of the ledger.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerStatus {
    /// Id of this ledger.
    pub ledger_id: String,
    /// Highest epoch seen.
    pub epoch: u64,
    /// Accepted generation.
    pub generation: u64,
    /// Number of events that the coordinator has yet to acknowledge.
    pub outbox: usize,
    /// Assigned items in order; then former ones.
    pub items: Vec<ItemRow>,
}

/// One item.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ItemRow {
    /// Name of its slot.
    pub name: String,
    /// Phase of the item; None after its removal from the assignment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<&'static str>,
    /// `Waiting`, or the state of the newest attempt.
    pub state: &'static str,
    /// Newest attempt; 0 = none yet.
    pub attempt: u32,
    /// Start of this state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Message for people.
    pub message: String,
}

impl AgentStatus {
    /// Reads the status. A running agent is undisturbed.
    ///
    /// # Errors
    /// [`StatusError`].
    pub fn read(dir: &StateDir) -> Result<Self, StatusError> {
        let identity = Identity::load(&dir.identity())?;
        // A ledger of an earlier identity is irrelevant to this machine: the agent's next start moves it away.
        let ledger = ledger::read(&mut FileDisk::new(dir.path()))?;
        let ledger = ledger.filter(|ledger| ledger.machine_id == identity.machine_id);
        Ok(Self {
            machine: identity.name.to_string(),
            machine_id: identity.machine_id.to_string(),
            cluster: identity.cluster.to_string(),
            machine_type: identity.machine_type.to_string(),
            coordinators: identity.coordinators,
            certificate_not_after: timestamp(identity.not_after_ms),
            running: ledger::in_use(dir.path()),
            link: LinkReport::load(dir),
            blocked: BlockReport::load(dir),
            ledger: ledger.as_ref().map(LedgerStatus::of),
        })
    }

    /// Text with a table, for the agent of this state directory.
    #[must_use]
    pub fn text(&self, dir: &StateDir) -> String {
        let mut text = format!("machine      {} ({}, cluster {})\n", self.machine, self.machine_type, self.cluster);
        let link = match &self.link {
            _ if !self.running => {
                let run = command("run", Some(dir.path()));
                format!("not connected: the agent does not run (`systemctl start muster-agent`, or {run})")
            }
            None => "never connected".to_owned(),
            Some(link) => match (&link.error, timestamp(link.since_ms)) {
                (Some(error), since) => format!("not connected since {}: {error}", shown(since)),
                (None, since) => format!("connected since {}", shown(since)),
            },
        };
        // Writing to a String always succeeds.
        writeln!(text, "coordinator  {}, {link}", self.coordinators).ok();
        if let Some(BlockReport { reason, message, since_ms }) = self.blocked.as_ref().filter(|_| self.running) {
            writeln!(text, "blocked      {reason} since {}: {message}", shown(timestamp(*since_ms))).ok();
        }
        let Some(ledger) = &self.ledger else {
            text.push_str("ledger       none yet: the agent has not run as this machine\n");
            return text;
        };
        writeln!(
            text,
            "ledger       generation {}, epoch {}, {} unacknowledged",
            ledger.generation, ledger.epoch, ledger.outbox
        )
        .ok();
        if ledger.items.is_empty() {
            text.push_str("items        none assigned yet\n");
            return text;
        }
        let width = ledger.items.iter().map(|item| item.name.len()).max().unwrap_or_default().max(4);
        writeln!(text, "\n{:width$}  {:11}  {:13}  ATTEMPT  {:20}  MESSAGE", "NAME", "PHASE", "STATE", "SINCE").ok();
        for item in &ledger.items {
            let message = cut(&item.message);
            let line = format!(
                "{:width$}  {:11}  {:13}  {:7}  {:20}  {message}",
                item.name,
                item.phase.unwrap_or("-"),
                item.state,
                item.attempt,
                shown(item.since)
            );
            text.push_str(line.trim_end());
            text.push('\n');
        }
        if ledger.items.iter().any(|item| item.phase.is_none()) {
            text.push_str(NOT_ASSIGNED);
        }
        text
    }
}

/// A message cut to the table's width, with an ellipsis.
fn cut(message: &str) -> String {
    if message.chars().count() <= MESSAGE_CHARS_MAX {
        return message.to_owned();
    }
    let kept: String = message.chars().take(MESSAGE_CHARS_MAX - 1).collect();
    format!("{kept}…")
}

impl LedgerStatus {
    fn of(state: &LedgerState) -> Self {
        let assigned = state.assignment.iter().flat_map(|assignment| &assignment.items);
        let mut items: Vec<ItemRow> = assigned
            .map(|item| {
                let status = state.slots.get(&item.name).map(|slot| &*slot.status);
                let fresh = item.standing(status) == ItemProgress::Due { attempt: 1 };
                let row = status.filter(|_| !fresh).map(ItemRow::of);
                let waiting = ItemRow {
                    name: item.name.to_string(),
                    phase: None,
                    state: "Waiting",
                    attempt: 0,
                    since: None,
                    message: String::new(),
                };
                ItemRow { phase: Some(item.phase.as_str()), ..row.unwrap_or(waiting) }
            })
            .collect();
        let left = state.slots.values().filter(|slot| !state.is_assigned(&slot.status.name));
        items.extend(left.map(|slot| ItemRow::of(&slot.status)));
        Self {
            ledger_id: state.ledger_id.to_string(),
            epoch: state.epoch.0,
            generation: state.generation().0,
            outbox: state.outbox.len(),
            items,
        }
    }
}

impl ItemRow {
    fn of(status: &ItemStatus) -> Self {
        Self {
            name: status.name.to_string(),
            phase: None,
            state: match status.state {
                ItemState::Running => "Running",
                ItemState::Succeeded => "Succeeded",
                ItemState::Failed { .. } => "Failed",
                ItemState::Indeterminate => "Indeterminate",
            },
            attempt: status.attempt,
            since: timestamp(status.finished_at_ms.unwrap_or(status.started_at_ms)),
            message: status.message.clone(),
        }
    }
}

pub(crate) fn timestamp(unix_ms: u64) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(unix_ms).ok()?).ok()
}

pub(crate) fn shown(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_shows() {
        let whole = "é".repeat(MESSAGE_CHARS_MAX);
        assert_eq!(cut(&whole), whole);
        let long = cut(&format!("{whole}!"));
        assert_eq!((long.chars().count(), long.ends_with("é…")), (MESSAGE_CHARS_MAX, true));
    }
}
