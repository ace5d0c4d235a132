//! Turns documents into text for people: tables, pages and lines. PURE: everything here is a function of documents and
//! of the time given as an argument.
//!
//! All output is free of control characters (see [`printable`]): names and messages of machines are data, and must not
//! control an operator's terminal.

mod audit;
mod clusters;
mod credentials;
mod describe;
mod durations;
mod handshake;
mod kubernetes;
mod machines;
mod plan;
mod progress;
mod rollouts;
mod secrets;
mod table;
mod text;
mod tokens;
mod update_plan;

use jiff::Timestamp;
use muster_proto::{
    printable::{printable, printable_lines},
    resource::{Kind, Rollout},
};
use serde::de::DeserializeOwned;

pub use clusters::ready_line;
pub use describe::{describe_cluster, describe_machine, describe_rollout};
pub use durations::{age, bytes, span};
pub use kubernetes::check_lines;
pub use machines::note as machine_note;
pub use plan::plan_lines;
pub use progress::{Fleet, PhaseLine, Verdict, cluster_changes, machine_move, machine_troubles, rollout_changes};
pub use table::Table;

/// Longest line of a table, in characters: it fits a terminal of 120.
const LINE_CHARS_MAX: u16 = 120;

/// Level of detail of a table, and the current time.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Show more columns, uncut.
    pub wide: bool,
    /// End of ages.
    pub now: Timestamp,
}

/// The table of one kind of documents, from their JSON, in the given order.
///
/// # Errors
/// A document has an unexpected form: the coordinator has another version.
pub fn table<'a>(
    kind: Kind,
    documents: impl IntoIterator<Item = &'a [u8]>,
    look: Look,
) -> Result<Table, serde_json::Error> {
    let mut table = Table::new(match kind {
        Kind::Clusters if look.wide => clusters::HEADERS_WIDE,
        Kind::Clusters => clusters::HEADERS,
        Kind::Machines if look.wide => machines::HEADERS_WIDE,
        Kind::Machines => machines::HEADERS,
        Kind::Rollouts if look.wide => rollouts::HEADERS_WIDE,
        Kind::Rollouts => rollouts::HEADERS,
        Kind::Locks(_) if look.wide => handshake::LOCKS_WIDE,
        Kind::Locks(_) => handshake::LOCKS,
        Kind::Requests(_) if look.wide => handshake::REQUESTS_WIDE,
        Kind::Requests(_) => handshake::REQUESTS,
        Kind::ClusterStates => handshake::CLUSTER_STATES,
        Kind::Tokens => tokens::HEADERS,
        Kind::Credentials => credentials::HEADERS,
        Kind::Secrets => secrets::HEADERS,
        Kind::Audit => audit::HEADERS,
        Kind::AuditChains => audit::CHAIN_HEADERS,
    });
    let mut documents: Vec<&[u8]> = documents.into_iter().collect();
    if kind == Kind::Rollouts {
        sort_by_start(&mut documents)?;
    }
    for json in documents {
        table.push(match kind {
            Kind::Clusters => clusters::row(&read(json)?, look),
            Kind::Machines => machines::row(&read(json)?, look),
            Kind::Rollouts => rollouts::row(&read(json)?, look),
            Kind::Locks(_) => handshake::lock(&read(json)?, look),
            Kind::Requests(_) => handshake::request(&read(json)?, look),
            Kind::ClusterStates => handshake::cluster_state(&read(json)?),
            Kind::Tokens => tokens::row(&read(json)?, look),
            Kind::Credentials => credentials::row(&read(json)?, look),
            Kind::Secrets => secrets::row(&read(json)?, look),
            Kind::Audit => audit::row(&read(json)?),
            Kind::AuditChains => audit::chain_row(&read(json)?),
        });
    }
    if !look.wide && kind != Kind::Audit {
        table.cut("NOTE", LINE_CHARS_MAX);
        table.cut("MESSAGE", LINE_CHARS_MAX);
    }
    Ok(table)
}

/// Sort rollouts by start time: their names give this order only within one kind.
fn sort_by_start(rollouts: &mut Vec<&[u8]>) -> Result<(), serde_json::Error> {
    let mut begun = Vec::new();
    for json in rollouts.drain(..) {
        begun.push((read::<Rollout>(json)?.metadata.creation_timestamp, json));
    }
    begun.sort_by_key(|(at, _)| *at);
    rollouts.extend(begun.into_iter().map(|(_, json)| json));
    Ok(())
}

fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(json)
}

#[cfg(test)]
mod tests;
