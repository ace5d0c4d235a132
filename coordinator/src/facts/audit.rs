//! The audit record: who did what. Lines are kept in chains, one for each cluster and one for what is of the whole
//! fleet, so that whoever floods one of them drops no line of another. A line's hash covers the hash of the line
//! before: what is missing in the middle, or was changed, shows.

use std::{collections::BTreeMap, fmt, sync::Arc};

use muster_proto::{
    model::{ClusterName, ItemHash, MachineName},
    resource::HashedAudit,
};
use serde::{Deserialize, Serialize};

use super::{Facts, SecretId};

/// Lines kept of one chain; the oldest are dropped.
const LINES_PER_CHAIN_MAX: usize = 5_000;
/// Bytes of text kept of one chain: as many lines as a chain has, of 400 bytes each.
const TEXT_PER_CHAIN_MAX: usize = 2_000_000;
/// Lines kept of all chains together; the oldest of the longest chain are dropped.
const LINES_MAX: usize = 20_000;
/// A line that comes so soon again, in milliseconds, is counted, and makes no line of its own.
const REPEATED_WITHIN_MS: u64 = 60_000;

/// A chain of audit lines. What is done with join tokens has chains of its own: whoever holds a token makes as many
/// lines as it likes, and what people did has to stay.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AuditScope {
    /// None: what is of no single cluster.
    pub cluster: Option<ClusterName>,
    /// Was it done with a join token, not by a person or by the coordinator?
    pub by_token: bool,
}

/// `edge-7`, `edge-7+tokens`, of what is of no single cluster `+fleet`. No cluster's name has a `+`.
impl fmt::Display for AuditScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cluster, self.by_token) {
            (Some(cluster), false) => write!(f, "{cluster}"),
            (Some(cluster), true) => write!(f, "{cluster}+tokens"),
            (None, false) => f.write_str("+fleet"),
            (None, true) => f.write_str("+fleet+tokens"),
        }
    }
}

impl AuditScope {
    /// Key of the chain's newest line, as recorded beside the lines.
    pub(super) fn head_key(&self) -> String {
        format!("{self}/")
    }

    /// Key of a line. Zero-padded, so that keys sort as numbers.
    pub(super) fn line_key(&self, number: u64) -> String {
        format!("{self}/{number:020}")
    }

    /// The scope and the number of a line that a key names; without a number it is the chain's newest line.
    pub(super) fn of_key(key: &str) -> Option<(Self, Option<u64>)> {
        let (scope, number) = key.split_once('/')?;
        let (cluster, by_token) = match scope.split_once('+') {
            None => (Some(scope), false),
            Some(("", "fleet")) => (None, false),
            Some(("", "fleet+tokens")) => (None, true),
            Some((cluster, "tokens")) => (Some(cluster), true),
            Some(_) => return None,
        };
        let cluster = cluster.map(ClusterName::new).transpose().ok()?;
        let number = (!number.is_empty()).then(|| number.parse()).transpose().ok()?;
        Some((Self { cluster, by_token }, number))
    }
}

/// One line of who did what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow {
    /// Its chain.
    pub scope: AuditScope,
    /// Its number in its chain, from 1.
    pub number: u64,
    /// Its number in the whole record, from 1.
    pub seq: u64,
    /// When it was done, of several times first, Unix milliseconds.
    pub at_ms: u64,
    /// When it was done last, Unix milliseconds.
    pub last_ms: u64,
    /// How often.
    pub times: u32,
    /// `operator/anna`.
    pub actor: String,
    /// `retry`.
    pub action: String,
    /// `machine/worker-3`.
    pub object: String,
    /// The rest, in one line.
    pub message: String,
    /// The hash of the line before in its chain; of the first, zeros.
    pub previous: ItemHash,
    /// Over all of this.
    pub hash: ItemHash,
}

/// Who enrols is known by its join token: `token/` and the token's id.
const TOKEN: &str = "token/";

/// What something was done to.
#[derive(Clone, Copy, Debug)]
pub enum AuditObject<'a> {
    /// A machine.
    Machine(&'a MachineName),
    /// A cluster.
    Cluster(&'a ClusterName),
    /// A cluster and its machines, by a manifest.
    Manifest(&'a ClusterName),
    /// A rollout.
    Rollout(&'a str),
    /// A join token.
    Token(&'a str),
    /// A secret.
    Secret(&'a SecretId),
    /// Credentials of a person or a program.
    Credentials(&'a str),
    /// The coordinator itself.
    Coordinator,
    /// The whole record.
    Store,
}

/// As the record has it: `machine/worker-3`.
impl fmt::Display for AuditObject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine(name) => write!(f, "machine/{name}"),
            Self::Cluster(name) => write!(f, "cluster/{name}"),
            Self::Manifest(_) => f.write_str("manifest"),
            Self::Rollout(name) => write!(f, "rollout/{name}"),
            Self::Token(id) => write!(f, "token/{id}"),
            Self::Secret(id) => write!(f, "secret/{id}"),
            Self::Credentials(subject) => write!(f, "credentials/{subject}"),
            Self::Coordinator => f.write_str("coordinator"),
            Self::Store => f.write_str("store"),
        }
    }
}

impl AuditObject<'_> {
    /// The cluster that it is of; None: of no single one.
    fn cluster(&self, facts: &Facts) -> Option<ClusterName> {
        match self {
            Self::Machine(name) => facts.machines.get(*name).map(|row| row.spec.cluster_name.clone()),
            Self::Cluster(name) | Self::Manifest(name) => Some((*name).clone()),
            Self::Rollout(name) => facts.rollouts.get(*name).map(|row| row.cluster.clone()),
            Self::Token(id) => facts.tokens.get(*id).map(|row| row.cluster.clone()),
            Self::Secret(id) => id.cluster.clone(),
            Self::Credentials(_) | Self::Coordinator | Self::Store => None,
        }
    }
}

/// What is to be recorded.
#[derive(Clone, Debug)]
pub(super) struct Deed<'a> {
    pub(super) scope: AuditScope,
    actor: &'a str,
    action: &'a str,
    object: String,
    message: &'a str,
}

impl<'a> Deed<'a> {
    pub(super) fn new(
        facts: &Facts,
        (actor, action): (&'a str, &'a str),
        object: AuditObject<'_>,
        message: &'a str,
    ) -> Self {
        let scope = AuditScope { cluster: object.cluster(facts), by_token: actor.starts_with(TOKEN) };
        Self { scope, actor, action, object: object.to_string(), message }
    }
}

impl AuditRow {
    /// The actor of what is done with this join token.
    #[must_use]
    pub fn token(id: &str) -> String {
        format!("{TOKEN}{id}")
    }

    /// The hash that it should have.
    #[must_use]
    pub fn computed_hash(&self) -> ItemHash {
        let chain = self.scope.to_string();
        let Self { number, seq, at_ms, last_ms, times, actor, action, object, message, previous, .. } = self;
        HashedAudit {
            chain: &chain,
            number: *number,
            seq: *seq,
            at_ms: *at_ms,
            last_ms: *last_ms,
            times: *times,
            actor,
            action,
            object,
            message,
            previous: *previous,
        }
        .hash()
    }

    fn text_bytes(&self) -> usize {
        self.actor.len() + self.action.len() + self.object.len() + self.message.len()
    }

    fn is_repeated_by(&self, deed: &Deed<'_>, at_ms: u64) -> bool {
        let Deed { actor, action, object, message, .. } = deed;
        let same = (self.actor.as_str(), self.action.as_str(), self.object.as_str(), self.message.as_str());
        same == (*actor, *action, object.as_str(), *message) && at_ms.saturating_sub(self.last_ms) <= REPEATED_WITHIN_MS
    }
}

/// The newest line of a chain, recorded beside the lines: a line that is missing at the end shows too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditHead {
    /// Its number.
    pub number: u64,
    /// Its hash.
    pub hash: ItemHash,
}

/// The lines of one scope, as far as they are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditChain {
    /// By number.
    lines: BTreeMap<u64, Arc<AuditRow>>,
    head: AuditHead,
    text_bytes: usize,
}

/// What is wrong with a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditGap {
    /// Lines are missing.
    #[error("line {missing} of {chain} is missing")]
    Missing {
        /// The chain.
        chain: String,
        /// The number of the first of them.
        missing: u64,
    },
    /// A line is not the one that was written.
    #[error("line {number} of {chain} is not as it was written")]
    Changed {
        /// The chain.
        chain: String,
        /// Its number.
        number: u64,
    },
}

impl AuditChain {
    /// The lines, oldest first.
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = &Arc<AuditRow>> {
        self.lines.values()
    }

    /// Its newest line, as recorded beside the lines.
    #[must_use]
    pub const fn head(&self) -> AuditHead {
        self.head
    }

    /// Lines kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Has it no line?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn line(&self, number: u64) -> Option<&Arc<AuditRow>> {
        self.lines.get(&number)
    }

    pub(super) fn load(&mut self, row: AuditRow) {
        self.text_bytes += row.text_bytes();
        self.lines.insert(row.number, Arc::new(row));
    }

    pub(super) const fn load_head(&mut self, head: AuditHead) {
        self.head = head;
    }

    /// Writes a line, or counts its newest one once more. `next_seq`: the number of a new line in the whole record.
    pub(super) fn write(&mut self, deed: &Deed<'_>, at_ms: u64, next_seq: u64) -> Arc<AuditRow> {
        let newest = self.lines.get(&self.head.number).filter(|newest| newest.is_repeated_by(deed, at_ms));
        let mut row = match newest {
            Some(newest) => AuditRow { times: newest.times.saturating_add(1), last_ms: at_ms, ..(**newest).clone() },
            None => AuditRow {
                scope: deed.scope.clone(),
                number: self.head.number + 1,
                seq: next_seq,
                at_ms,
                last_ms: at_ms,
                times: 1,
                actor: deed.actor.to_owned(),
                action: deed.action.to_owned(),
                object: deed.object.clone(),
                message: deed.message.to_owned(),
                previous: self.head.hash,
                hash: ItemHash::default(),
            },
        };
        row.hash = row.computed_hash();
        if row.times == 1 {
            self.text_bytes += row.text_bytes();
        }
        self.head = AuditHead { number: row.number, hash: row.hash };
        let row = Arc::new(row);
        self.lines.insert(row.number, Arc::clone(&row));
        row
    }

    /// More than one chain may have?
    pub(super) fn is_too_long(&self) -> bool {
        self.lines.len() > LINES_PER_CHAIN_MAX || (self.text_bytes > TEXT_PER_CHAIN_MAX && self.lines.len() > 1)
    }

    /// Drops the oldest line: its number.
    pub(super) fn drop_oldest(&mut self) -> Option<u64> {
        let (number, row) = self.lines.pop_first()?;
        self.text_bytes = self.text_bytes.saturating_sub(row.text_bytes());
        Some(number)
    }

    /// Is every line from the oldest one to the newest there, as it was written?
    ///
    /// # Errors
    /// [`AuditGap`], the first.
    pub fn verify(&self, scope: &AuditScope) -> Result<(), AuditGap> {
        let missing = |missing| AuditGap::Missing { chain: scope.to_string(), missing };
        let mut before: Option<(u64, ItemHash)> = None;
        for (number, row) in &self.lines {
            let changed = AuditGap::Changed { chain: scope.to_string(), number: *number };
            if let Some((last, hash)) = before {
                if *number != last + 1 {
                    return Err(missing(last + 1));
                }
                if row.previous != hash {
                    return Err(changed);
                }
            }
            if row.hash != row.computed_hash() || row.scope != *scope || row.number != *number {
                return Err(changed);
            }
            before = Some((*number, row.hash));
        }
        match before {
            Some((number, _)) if number < self.head.number => Err(missing(number + 1)),
            Some(newest) if newest != (self.head.number, self.head.hash) => {
                Err(AuditGap::Changed { chain: scope.to_string(), number: newest.0 })
            }
            None if self.head.number > 0 => Err(missing(self.head.number)),
            Some(_) | None => Ok(()),
        }
    }
}

/// The chain of which the oldest line goes, if all chains together have too many.
pub(super) fn longest(chains: &BTreeMap<AuditScope, Arc<AuditChain>>) -> Option<&AuditScope> {
    let lines: usize = chains.values().map(|chain| chain.len()).sum();
    let longest = chains.iter().max_by_key(|(_, chain)| chain.len());
    longest.map(|(scope, _)| scope).filter(|_| lines > LINES_MAX)
}
