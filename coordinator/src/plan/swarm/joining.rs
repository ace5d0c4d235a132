//! One machine's entry into the swarm, as far as the swarm itself must be asked. This is a sans-IO state machine: it
//! says which machine to ask what, and when to give up. It holds a token only until it is handed on, and records
//! nothing.
//!
//! The order: ask the machine's own engine whether it is in a swarm already. Then, through one manager, list the nodes,
//! remove what a reinstalled machine left behind, check the quorum, and get the tokens. If a manager cannot answer, the
//! next one is asked, again from the list on.

use std::collections::BTreeMap;

use muster_proto::{
    model::{
        MachineId, MachineName, SwarmAvailability, SwarmFailure, SwarmFailureCode, SwarmId, SwarmInfo, SwarmJoin,
        SwarmLabels, SwarmLocalState, SwarmManager, SwarmNode, SwarmNodeState, SwarmOp, SwarmReply, SwarmTokens,
        SwarmWay,
    },
    seeded_bug::seeded_bug,
};

use super::super::safety::some_names;

/// Timeout of an entry, in milliseconds. The waiting agent gives up after 40 s; this ends earlier, with a better
/// message.
pub const JOINING_DEADLINE_MS: u64 = 35_000;
/// Timeout of one answer, in milliseconds. It is shorter than the maximum of a call, which leaves time for another
/// manager.
pub const ANSWER_DEADLINE_MS: u64 = 12_000;

/// Maximum of dead nodes' entries removed in one attempt of a machine. A manager that lists ever more would keep the
/// record and its journal busy.
pub const LEFTOVERS_MAX: u32 = 8;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask this, with a timeout.
    Ask {
        /// The machine to ask.
        machine: MachineId,
        /// The operation.
        op: SwarmOp,
        /// Timeout in milliseconds.
        timeout_ms: u64,
    },
    /// Record what this entry has: it is removed next.
    Record(NodeEntry),
    /// Hand this to the machine.
    Give {
        /// How the machine enters.
        join: SwarmJoin,
        /// For [`SwarmWay::Join`].
        token: Option<Token>,
    },
    /// It cannot enter now.
    Refuse(Refused),
}

/// Entry that a machine has left behind in its swarm's list of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// The node.
    pub node: SwarmId,
    /// Its hostname.
    pub hostname: String,
    /// Its availability.
    pub availability: SwarmAvailability,
    /// Its labels.
    pub labels: SwarmLabels,
}

/// A token on its way to the machine.
#[derive(PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token itself, to be handed on to the machine only.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_bytes()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Why a machine cannot enter now. It asks again; the only changes so far are removed leftovers of dead nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its own engine cannot be asked.
    #[error("EngineNotReady: this machine's Docker Engine: {0}")]
    Engine(SwarmFailure),
    /// No manager answered.
    #[error("NoManagerReachable: {0}")]
    NoManager(String),
    /// The managers refuse.
    #[error("SwarmRefused: {manager}: {failure}")]
    Swarm {
        /// The manager that was asked.
        manager: MachineName,
        /// Its answer.
        failure: SwarmFailure,
    },
    /// Recording what its former entry has failed, so that entry stays.
    #[error("NotRecorded: what swarm node {node}, which this machine has left behind, has is not recorded: {why}")]
    Unrecorded {
        /// The node.
        node: SwarmId,
        /// The cause.
        why: String,
    },
    /// Its hostname has ever more dead nodes.
    #[error(
        "TooManyLeftBehind: {LEFTOVERS_MAX} dead nodes with the hostname {hostname} were removed for this attempt, and \
         the swarm lists more; the next attempt removes further ones. If there is no end to them, look at the manager \
         {manager}, which lists them"
    )]
    Leftovers {
        /// The hostname.
        hostname: String,
        /// The manager that lists them.
        manager: String,
    },
    /// Another node has its hostname.
    #[error(
        "HostnameInUse: the swarm has a node {node} with the hostname {hostname} that is not down; if it is this \
         machine before it was installed anew, it goes as soon as the swarm takes it for down"
    )]
    Hostname {
        /// The node.
        node: SwarmId,
        /// The hostname.
        hostname: String,
    },
    /// A node that has its hostname is down and belongs to another machine.
    #[error(
        "HostnameInUse: {hostname} is the hostname of {owner} too, whose node {node} is down; give one of the two \
         another hostname, or, if {owner} is gone for good, `musterctl remove {owner} --policy forced`"
    )]
    Owned {
        /// The node.
        node: SwarmId,
        /// The hostname.
        hostname: String,
        /// The machine that owns the node.
        owner: MachineName,
    },
    /// One more manager could cost the swarm its majority.
    #[error(
        "QuorumAtRisk: {reachable} of {managers} managers are reachable; with one more, {needed} must be, in case the \
         new one does not come up. Not reachable: {missing}"
    )]
    Quorum {
        /// Managers that are reachable.
        reachable: usize,
        /// All managers.
        managers: usize,
        /// Majority with one more manager.
        needed: usize,
        /// The unreachable managers.
        missing: String,
    },
}

/// Progress of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Info,
    Nodes,
    /// What a dead node's entry has is being read.
    Labels(SwarmNode),
    /// A dead node's entry is being removed. These operations are left.
    Clean(Vec<SwarmOp>),
    Tokens,
}

/// One machine's entry.
#[derive(Clone, Debug)]
pub struct Joining {
    machine: MachineId,
    manager: bool,
    /// Managers not asked yet; the last is asked next.
    left: Vec<(MachineName, MachineId)>,
    asked: Option<(MachineName, MachineId)>,
    /// Nodes of other machines: leftovers exclude them.
    others: BTreeMap<SwarmId, MachineName>,
    stage: Stage,
    info: Option<SwarmInfo>,
    /// Its node, if the managers know it.
    member: Option<SwarmId>,
    /// Addresses of the reachable managers, the leader first.
    addresses: Vec<String>,
    said: Vec<String>,
    /// Number of dead nodes' entries that were removed, or are about to be.
    leftovers: u32,
    until_mono_ms: u64,
}

impl Joining {
    /// Begin the entry of a machine through one of these managers. `others`: nodes of other machines.
    #[must_use]
    pub fn begin(
        machine: MachineId,
        manager: bool,
        managers: Vec<(MachineName, MachineId)>,
        others: BTreeMap<SwarmId, MachineName>,
        now_mono_ms: u64,
    ) -> (Self, Next) {
        let joining = Self {
            machine,
            manager,
            left: managers.into_iter().rev().collect(),
            asked: None,
            others,
            stage: Stage::Info,
            info: None,
            member: None,
            addresses: Vec::new(),
            said: Vec::new(),
            leftovers: 0,
            until_mono_ms: now_mono_ms.saturating_add(JOINING_DEADLINE_MS),
        };
        let next = joining.ask(machine, SwarmOp::Info, now_mono_ms);
        (joining, next)
    }

    /// Process the answer to the last question.
    pub fn answered(&mut self, answer: Result<SwarmReply, SwarmFailure>, now_mono_ms: u64) -> Next {
        match answer {
            Err(failure) if self.stage == Stage::Info => Next::Refuse(Refused::Engine(failure)),
            Err(failure) if failure.code.another_may_help() => self.another(&failure, now_mono_ms),
            Err(failure) => Next::Refuse(self.refused_by_swarm(failure)),
            Ok(SwarmReply::Info(info)) => {
                self.info = Some(info);
                self.next_manager(now_mono_ms)
            }
            Ok(SwarmReply::Nodes(nodes)) => self.listed(&nodes, now_mono_ms),
            Ok(SwarmReply::Labels(labels)) => self.read(labels, now_mono_ms),
            Ok(SwarmReply::Done) => self.cleaned(now_mono_ms),
            Ok(SwarmReply::Tokens(tokens)) => self.let_in(tokens),
            Ok(SwarmReply::Tasks(_) | SwarmReply::Services(_)) => self.another_question(now_mono_ms),
        }
    }

    fn another_question(&mut self, now_mono_ms: u64) -> Next {
        let message = "the answer belongs to another question".to_owned();
        self.another(&SwarmFailure { code: SwarmFailureCode::Engine, message }, now_mono_ms)
    }

    /// Record what the entry of a dead node has before the entry is removed.
    fn read(&mut self, labels: SwarmLabels, now_mono_ms: u64) -> Next {
        let Stage::Labels(SwarmNode { id, hostname, availability, .. }) = self.stage.clone() else {
            return self.another_question(now_mono_ms);
        };
        Next::Record(NodeEntry { node: id, hostname, availability, labels })
    }

    /// What the entry has is recorded, so remove it.
    pub fn recorded(&mut self, now_mono_ms: u64) -> Next {
        let Stage::Labels(SwarmNode { id: node, hostname, manager, .. }) = self.stage.clone() else {
            return self.another_question(now_mono_ms);
        };
        let remove = SwarmOp::Remove { node: node.clone(), hostname, force: false };
        match manager {
            Some(_) => self.ask_manager(Stage::Clean(vec![remove]), SwarmOp::Demote { node }, now_mono_ms),
            None => self.ask_manager(Stage::Clean(Vec::new()), remove, now_mono_ms),
        }
    }

    fn ask(&self, machine: MachineId, op: SwarmOp, now_mono_ms: u64) -> Next {
        let left_ms = self.until_mono_ms.saturating_sub(now_mono_ms);
        if left_ms == 0 {
            return Next::Refuse(Refused::NoManager(format!("no answer in time; {}", self.said.join("; "))));
        }
        Next::Ask { machine, op, timeout_ms: left_ms.min(ANSWER_DEADLINE_MS) }
    }

    fn ask_manager(&mut self, stage: Stage, op: SwarmOp, now_mono_ms: u64) -> Next {
        self.stage = stage;
        match &self.asked {
            Some((_, id)) => self.ask(*id, op, now_mono_ms),
            None => Next::Refuse(Refused::NoManager(self.said.join("; "))),
        }
    }

    fn next_manager(&mut self, now_mono_ms: u64) -> Next {
        self.asked = self.left.pop();
        self.ask_manager(Stage::Nodes, SwarmOp::Nodes, now_mono_ms)
    }

    fn another(&mut self, failure: &SwarmFailure, now_mono_ms: u64) -> Next {
        self.said.push(format!("{}: {failure}", self.asked_name()));
        self.next_manager(now_mono_ms)
    }

    fn asked_name(&self) -> &str {
        self.asked.as_ref().map_or("nobody", |(name, _)| name.as_str())
    }

    fn refused_by_swarm(&self, failure: SwarmFailure) -> Refused {
        match self.asked.clone() {
            Some((manager, _)) => Refused::Swarm { manager, failure },
            None => Refused::Engine(failure),
        }
    }

    /// Process the list of nodes: first remove what this machine has left behind, then check the quorum.
    fn listed(&mut self, nodes: &[SwarmNode], now_mono_ms: u64) -> Next {
        let Some(info) = &self.info else { return self.ask(self.machine, SwarmOp::Info, now_mono_ms) };
        match info.node.clone().filter(|_| info.state != SwarmLocalState::Inactive) {
            Some(node) if nodes.iter().any(|known| known.id == node) => self.member = Some(node),
            Some(node) => return self.give(SwarmWay::Foreign { node }, None),
            None => match newcomer(nodes, &self.others, &info.hostname, self.manager) {
                Err(refused) => return Next::Refuse(refused),
                Ok(Some(found)) if self.leftovers == LEFTOVERS_MAX => {
                    let manager = self.asked_name().to_owned();
                    return Next::Refuse(Refused::Leftovers { hostname: found.hostname, manager });
                }
                Ok(Some(found)) => {
                    self.leftovers += 1;
                    let op = SwarmOp::Labels { node: found.id.clone() };
                    return self.ask_manager(Stage::Labels(found), op, now_mono_ms);
                }
                Ok(None) => {}
            },
        }
        self.addresses = addresses(nodes);
        self.ask_manager(Stage::Tokens, SwarmOp::Tokens, now_mono_ms)
    }

    fn cleaned(&mut self, now_mono_ms: u64) -> Next {
        match std::mem::replace(&mut self.stage, Stage::Nodes) {
            Stage::Clean(mut ops) if !ops.is_empty() => {
                let first = ops.remove(0);
                self.ask_manager(Stage::Clean(ops), first, now_mono_ms)
            }
            Stage::Clean(_) | Stage::Info | Stage::Nodes | Stage::Labels(_) | Stage::Tokens => {
                self.ask_manager(Stage::Nodes, SwarmOp::Nodes, now_mono_ms)
            }
        }
    }

    fn let_in(&self, tokens: SwarmTokens) -> Next {
        let SwarmTokens { swarm, manager, worker } = tokens;
        match self.member.clone() {
            Some(node) => self.give(SwarmWay::Member { swarm, node }, None),
            None => {
                let token = Token(if self.manager { manager } else { worker });
                self.give(SwarmWay::Join { swarm, managers: self.addresses.clone() }, Some(token))
            }
        }
    }

    const fn give(&self, way: SwarmWay, token: Option<Token>) -> Next {
        Next::Give { join: SwarmJoin { manager: self.manager, way }, token }
    }
}

/// The entry to remove before a machine outside any swarm may join.
fn newcomer(
    nodes: &[SwarmNode],
    others: &BTreeMap<SwarmId, MachineName>,
    hostname: &str,
    manager: bool,
) -> Result<Option<SwarmNode>, Refused> {
    let leftover = leftover(nodes, others, hostname)?;
    if manager && leftover.is_none() {
        quorum(nodes)?;
    }
    Ok(leftover)
}

/// The first entry that a machine of this hostname has left behind. All its entries must be down and unowned: another
/// machine that reboots is down too.
fn leftover(
    nodes: &[SwarmNode],
    others: &BTreeMap<SwarmId, MachineName>,
    hostname: &str,
) -> Result<Option<SwarmNode>, Refused> {
    let found = || nodes.iter().filter(|found| found.hostname == hostname);
    for SwarmNode { id: node, hostname, state, .. } in found().cloned() {
        if state != SwarmNodeState::Down {
            return Err(Refused::Hostname { node, hostname });
        }
        if let Some(owner) = others.get(&node).cloned() {
            return Err(Refused::Owned { node, hostname, owner });
        }
    }
    Ok(found().next().cloned())
}

/// Does the swarm keep its majority if one more manager is counted and never comes up? This is impossible from one
/// manager to two, so it is allowed: two are only an intermediate step.
fn quorum(nodes: &[SwarmNode]) -> Result<(), Refused> {
    let managers: Vec<(&SwarmNode, &SwarmManager)> =
        nodes.iter().filter_map(|node| Some((node, node.manager.as_ref()?))).collect();
    let reachable = managers.iter().filter(|(_, manager)| manager.reachable).count();
    let needed = majority(managers.len() + 1);
    let alone = managers.len() == 1 && reachable == 1;
    // Seeded bug: add a manager regardless of the other managers' state.
    if alone || reachable >= needed || seeded_bug("join-without-quorum") {
        return Ok(());
    }
    let missing = managers.iter().filter(|(_, manager)| !manager.reachable).map(|(node, _)| node.hostname.as_str());
    Err(Refused::Quorum { reachable, managers: managers.len(), needed, missing: some_names(missing) })
}

const fn majority(managers: usize) -> usize {
    managers / 2 + 1
}

/// Addresses for joining the reachable managers, the leader first.
fn addresses(nodes: &[SwarmNode]) -> Vec<String> {
    let mut managers: Vec<&SwarmManager> =
        nodes.iter().filter_map(|node| node.manager.as_ref()).filter(|manager| manager.reachable).collect();
    managers.sort_by_key(|manager| !manager.leader);
    managers.into_iter().map(|manager| manager.address.clone()).collect()
}
