//! The audit record: actors and their actions. Lines are kept in chains. Each cluster, and the fleet as a whole, has
//! one chain of operators, one of join tokens and one of Muster itself. A flood drops lines only of its own chain. A
//! line's hash covers the hash of the previous line. The head beside a chain names its oldest and newest line, and the
//! record lists its chains. So a missing or changed line is detected anywhere.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use muster_proto::{
    model::{ClusterName, ItemHash, MachineName},
    resource::HashedAudit,
};
use serde::{Deserialize, Serialize};

use super::{Facts, SecretId};

/// Maximum lines of one chain; the oldest are dropped.
const LINES_PER_CHAIN_MAX: usize = 5_000;
/// Maximum bytes of text of one chain: its maximum of lines, of 400 bytes each.
const TEXT_PER_CHAIN_MAX: usize = 2_000_000;
/// Maximum lines of all operators' chains together; the oldest of the longest chain are dropped.
const OPERATORS_LINES_MAX: usize = 20_000;
/// The same for all chains of join tokens, and for Muster's own.
const OTHERS_LINES_MAX: usize = 10_000;
/// Maximum message of a line that a machine can cause, in bytes; the rest is cut.
const CAUSED_MESSAGE_BYTES_MAX: usize = 4_096;
/// A repetition within this time, in milliseconds, only increments the count of its line.
const REPEATED_WITHIN_MS: u64 = 60_000;

/// Origin of a chain's lines. Holders of a join token and machines can cause any number of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditSource {
    /// People and programs with credentials, and commands on the coordinator's machine.
    Operators,
    /// Holders of a join token.
    Tokens,
    /// Muster itself, about its findings on machines.
    Muster,
}

/// Actor of Muster's own actions.
pub const MUSTER: &str = "muster";
/// Prefix of an enrolling machine's actor, `token/`; the token's id follows.
const TOKEN: &str = "token/";
/// Name of the chains outside any single cluster. Names of clusters never contain `+`.
const FLEET: &str = "+fleet";

impl AuditSource {
    fn of(actor: &str) -> Self {
        match actor {
            MUSTER => Self::Muster,
            actor if actor.starts_with(TOKEN) => Self::Tokens,
            _ => Self::Operators,
        }
    }

    /// Suffix after the cluster in a chain's name.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Operators => "",
            Self::Tokens => "+tokens",
            Self::Muster => "+muster",
        }
    }

    /// Maximum lines of all its chains together.
    const fn lines_max(self) -> usize {
        match self {
            Self::Operators => OPERATORS_LINES_MAX,
            Self::Tokens | Self::Muster => OTHERS_LINES_MAX,
        }
    }
}

/// The key of a chain of audit lines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct AuditScope {
    /// The cluster. None: outside any single cluster.
    pub cluster: Option<ClusterName>,
    /// Origin of its lines.
    pub source: AuditSource,
}

/// `edge-7`, `edge-7+tokens`, `edge-7+muster`; outside any single cluster `+fleet`, `+fleet+tokens`, `+fleet+muster`.
impl fmt::Display for AuditScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.cluster.as_ref().map_or(FLEET, ClusterName::as_str);
        write!(f, "{of}{}", self.source.suffix())
    }
}

/// Error: invalid name of a chain.
#[derive(Debug, thiserror::Error)]
#[error("a chain is named CLUSTER or {FLEET}, and then +tokens, +muster or nothing")]
pub struct InvalidAuditScope;

impl FromStr for AuditScope {
    type Err = InvalidAuditScope;

    fn from_str(text: &str) -> Result<Self, InvalidAuditScope> {
        let suffixed = [AuditSource::Tokens, AuditSource::Muster].into_iter();
        let (of, source) = suffixed
            .filter_map(|source| Some((text.strip_suffix(source.suffix())?, source)))
            .next()
            .unwrap_or((text, AuditSource::Operators));
        let cluster = match of {
            FLEET => None,
            name => Some(ClusterName::new(name).map_err(|_| InvalidAuditScope)?),
        };
        Ok(Self { cluster, source })
    }
}

impl From<AuditScope> for String {
    fn from(scope: AuditScope) -> Self {
        scope.to_string()
    }
}

impl TryFrom<String> for AuditScope {
    type Error = InvalidAuditScope;

    fn try_from(text: String) -> Result<Self, InvalidAuditScope> {
        text.parse()
    }
}

impl AuditScope {
    /// Key of the chain's head, as recorded beside the lines.
    pub(super) fn head_key(&self) -> String {
        format!("{self}/")
    }

    /// Key of a line. Zero-padded, so that keys sort as numbers.
    pub(super) fn line_key(&self, number: u64) -> String {
        format!("{self}/{number:020}")
    }

    /// The scope and line number of a key; without a number it is the chain's head.
    pub(super) fn of_key(key: &str) -> Option<(Self, Option<u64>)> {
        let (scope, number) = key.split_once('/')?;
        let number = (!number.is_empty()).then(|| number.parse()).transpose().ok()?;
        Some((scope.parse().ok()?, number))
    }
}

/// One line of the audit record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow {
    /// Its chain.
    pub scope: AuditScope,
    /// Its number in its chain, from 1.
    pub number: u64,
    /// Its number in the whole record, from 1. Each repetition gets the next one.
    pub seq: u64,
    /// Time of the first occurrence, in Unix milliseconds.
    pub at_ms: u64,
    /// Time of the last occurrence, in Unix milliseconds.
    pub last_ms: u64,
    /// Number of occurrences.
    pub times: u32,
    /// `operator/anna`.
    pub actor: String,
    /// `retry`.
    pub action: String,
    /// `machine/worker-3`.
    pub object: String,
    /// The rest, in one line.
    pub message: String,
    /// The hash of the previous line in its chain; zeros for the first.
    pub previous: ItemHash,
    /// Hash over all fields above.
    pub hash: ItemHash,
}

/// Object of an action.
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

/// As in the record: `machine/worker-3`.
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
    /// Its cluster; None: outside any single one.
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

/// An action to record.
#[derive(Clone, Debug)]
pub(super) struct Deed<'a> {
    pub(super) scope: AuditScope,
    actor: &'a str,
    action: &'a str,
    object: String,
    message: &'a str,
}

/// The beginning of a text, of at most `bytes_max` bytes.
fn beginning(text: &str, bytes_max: usize) -> &str {
    let at = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.get(..at.unwrap_or_default()).unwrap_or_default()
}

impl<'a> Deed<'a> {
    pub(super) fn new(
        facts: &Facts,
        (actor, action): (&'a str, &'a str),
        object: AuditObject<'_>,
        message: &'a str,
    ) -> Self {
        let scope = AuditScope { cluster: object.cluster(facts), source: AuditSource::of(actor) };
        // Operators' messages are bounded by their requests, and must be kept in full.
        let message = match scope.source {
            AuditSource::Operators => message,
            AuditSource::Tokens | AuditSource::Muster => beginning(message, CAUSED_MESSAGE_BYTES_MAX),
        };
        Self { scope, actor, action, object: object.to_string(), message }
    }
}

impl AuditRow {
    /// The actor of actions with this join token.
    #[must_use]
    pub fn token(id: &str) -> String {
        format!("{TOKEN}{id}")
    }

    /// The expected hash.
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

/// The ends of a chain, recorded beside the lines, so that lines missing at an end are detected too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditHead {
    /// Number of the oldest kept line.
    pub oldest: u64,
    /// Number of the newest line.
    pub number: u64,
    /// The newest line's hash.
    pub hash: ItemHash,
}

/// The kept lines of one scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditChain {
    /// Lines by number.
    lines: BTreeMap<u64, Arc<AuditRow>>,
    head: AuditHead,
    text_bytes: usize,
}

/// A defect of a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditGap {
    /// Lines are missing.
    #[error("line {missing} of {chain} is missing")]
    Missing {
        /// The chain.
        chain: String,
        /// Number of the first missing line.
        missing: u64,
    },
    /// A line differs from the written one.
    #[error("line {number} of {chain} is not as it was written")]
    Changed {
        /// The chain.
        chain: String,
        /// Its number.
        number: u64,
    },
    /// A whole chain is missing.
    #[error("every line of {chain} is missing")]
    Chain {
        /// The chain.
        chain: String,
    },
    /// A chain was added.
    #[error("{chain} is no chain of this record")]
    Unlisted {
        /// The chain.
        chain: String,
    },
    /// The newest line of the whole record is missing.
    #[error("the newest line of all is number {newest} of the record, and should be {expected}")]
    NotNewest {
        /// Its number in the whole record.
        newest: u64,
        /// The recorded number.
        expected: u64,
    },
}

impl AuditChain {
    /// The lines, oldest first.
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = &Arc<AuditRow>> {
        self.lines.values()
    }

    /// Its ends, as recorded beside the lines.
    #[must_use]
    pub const fn head(&self) -> AuditHead {
        self.head
    }

    /// Number of kept lines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Is it empty?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn line(&self, number: u64) -> Option<&Arc<AuditRow>> {
        self.lines.get(&number)
    }

    /// Loads a stored line under this number.
    pub(super) fn load(&mut self, number: u64, row: AuditRow) {
        self.text_bytes += row.text_bytes();
        self.lines.insert(number, Arc::new(row));
    }

    pub(super) const fn load_head(&mut self, head: AuditHead) {
        self.head = head;
    }

    /// Writes a line, or increments the count of its newest one. `next_seq`: its number in the whole record.
    pub(super) fn write(&mut self, deed: &Deed<'_>, at_ms: u64, next_seq: u64) -> Arc<AuditRow> {
        let newest = self.lines.get(&self.head.number).filter(|newest| newest.is_repeated_by(deed, at_ms));
        let mut row = match newest {
            Some(newest) => {
                let times = newest.times.saturating_add(1);
                AuditRow { times, seq: next_seq, last_ms: at_ms, ..(**newest).clone() }
            }
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
        self.head = AuditHead { oldest: self.head.oldest.max(1), number: row.number, hash: row.hash };
        let row = Arc::new(row);
        self.lines.insert(row.number, Arc::clone(&row));
        row
    }

    /// Does it exceed the quota of a chain?
    pub(super) fn is_too_long(&self) -> bool {
        self.lines.len() > LINES_PER_CHAIN_MAX || (self.text_bytes > TEXT_PER_CHAIN_MAX && self.lines.len() > 1)
    }

    /// Drops the oldest line and returns its number.
    pub(super) fn drop_oldest(&mut self) -> Option<u64> {
        let (number, row) = self.lines.pop_first()?;
        self.text_bytes = self.text_bytes.saturating_sub(row.text_bytes());
        self.head.oldest = number + 1;
        Some(number)
    }

    /// Are all lines from the oldest to the newest present and unchanged?
    ///
    /// # Errors
    /// The first [`AuditGap`].
    pub fn verify(&self, scope: &AuditScope) -> Result<(), AuditGap> {
        let missing = |missing| AuditGap::Missing { chain: scope.to_string(), missing };
        let mut expected = self.head.oldest.max(1);
        // Of the line before the first one, only its hash in the first one is kept.
        let mut before = self.lines.values().next().filter(|_| expected > 1).map(|first| first.previous);
        for (number, row) in &self.lines {
            if *number > expected {
                return Err(missing(expected));
            }
            let as_written = row.hash == row.computed_hash() && row.scope == *scope && row.number == *number;
            if *number != expected || row.previous != before.unwrap_or_default() || !as_written {
                return Err(AuditGap::Changed { chain: scope.to_string(), number: *number });
            }
            before = Some(row.hash);
            expected += 1;
        }
        if self.lines.is_empty() {
            return Err(AuditGap::Chain { chain: scope.to_string() });
        }
        if expected <= self.head.number {
            return Err(missing(expected));
        }
        if expected != self.head.number + 1 || before != Some(self.head.hash) {
            return Err(AuditGap::Changed { chain: scope.to_string(), number: expected - 1 });
        }
        Ok(())
    }
}

/// The chain that loses its oldest line, if all chains of this source together have too many. Its newest line stays.
pub(super) fn longest(chains: &BTreeMap<AuditScope, Arc<AuditChain>>, source: AuditSource) -> Option<&AuditScope> {
    let of_source = || chains.iter().filter(|(scope, _)| scope.source == source);
    let lines: usize = of_source().map(|(_, chain)| chain.len()).sum();
    let longest = of_source().max_by_key(|(_, chain)| chain.len()).filter(|(_, chain)| chain.len() > 1);
    longest.map(|(scope, _)| scope).filter(|_| lines > source.lines_max())
}
