//! One machine's way into the swarm, as far as the swarm itself must be asked: a sans-IO machine that says whom to ask
//! what, and when to give up. It holds no token for longer than it takes to hand it on, and records nothing.
//!
//! The order: the engine of the machine itself (is it in a swarm already?), then through one manager the list of nodes,
//! the removal of what a reinstalled machine has left behind, the quorum, and the tokens. A manager that cannot answer
//! is passed over, and the next is asked from the list on.

use std::collections::BTreeMap;

use muster_proto::{
    model::{
        MachineId, MachineName, SwarmAvailability, SwarmFailure, SwarmFailureCode, SwarmId, SwarmInfo, SwarmJoin,
        SwarmLabels, SwarmLocalState, SwarmManager, SwarmNode, SwarmNodeState, SwarmOp, SwarmReply, SwarmTokens,
        SwarmWay,
    },
    plant::planted,
};

use super::super::safety::some_names;

/// The agent that waits gives up after 40 s; we do a moment before, and with a better word.
pub const JOINING_DEADLINE_MS: u64 = 35_000;
/// One answer. Shorter than a call may take at most, so that there is time for another manager.
pub const ANSWER_DEADLINE_MS: u64 = 12_000;

/// Entries of dead nodes that are removed while one machine joins once. A manager that lists ever new ones would keep
/// the record and its journal busy.
pub const LEFTOVERS_MAX: u32 = 8;

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask this, for at most so long.
    Ask {
        /// Whose agent.
        machine: MachineId,
        /// What.
        op: SwarmOp,
        /// Milliseconds.
        patience_ms: u64,
    },
    /// Record what this entry has: it is removed next.
    Record(NodeEntry),
    /// Hand this to the machine.
    Give {
        /// The way in.
        join: SwarmJoin,
        /// For [`SwarmWay::Join`].
        token: Option<Token>,
    },
    /// It cannot get in now.
    Refuse(Refused),
}

/// What a machine has left behind in the list of its swarm's nodes.
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
    /// The token itself, to be handed on and to nobody else.
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

/// Why a machine cannot get in now. It asks again; nothing was changed but what a dead node has left behind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its own engine cannot be asked.
    #[error("EngineNotReady: this machine's Docker Engine: {0}")]
    Engine(SwarmFailure),
    /// No manager answered.
    #[error("NoManagerReachable: {0}")]
    NoManager(String),
    /// The managers do not want to.
    #[error("SwarmRefused: {manager}: {failure}")]
    Swarm {
        /// Who was asked.
        manager: MachineName,
        /// What it said.
        failure: SwarmFailure,
    },
    /// What its former entry has could not be recorded, so that entry is not removed.
    #[error("NotRecorded: what swarm node {node}, which this machine has left behind, has is not recorded: {why}")]
    Unrecorded {
        /// The node.
        node: SwarmId,
        /// Why not.
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
        /// Who lists them.
        manager: String,
    },
    /// Another node has its name.
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
    /// A node that has its name is down, and is another machine's.
    #[error(
        "HostnameInUse: {hostname} is the hostname of {owner} too, whose node {node} is down; give one of the two \
         another hostname, or, if {owner} is gone for good, `musterctl remove {owner} --policy forced`"
    )]
    Owned {
        /// The node.
        node: SwarmId,
        /// The hostname.
        hostname: String,
        /// Whose node it is.
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
        /// Managers there are.
        managers: usize,
        /// Majority of one more.
        needed: usize,
        /// Who is not reachable.
        missing: String,
    },
}

/// Where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Info,
    Nodes,
    /// What a dead node has is being read.
    Labels(SwarmNode),
    /// What a dead node has left behind is being removed: what is asked, and what remains to be asked.
    Clean(Vec<SwarmOp>),
    Tokens,
}

/// One machine's way in.
#[derive(Clone, Debug)]
pub struct Joining {
    machine: MachineId,
    manager: bool,
    /// Managers not asked yet; the last is asked next.
    left: Vec<(MachineName, MachineId)>,
    asked: Option<(MachineName, MachineId)>,
    /// Nodes of other machines: whatever becomes of them is nothing that this one has left behind.
    others: BTreeMap<SwarmId, MachineName>,
    stage: Stage,
    info: Option<SwarmInfo>,
    /// Its node, if the managers know it.
    member: Option<SwarmId>,
    /// Of the managers that are reachable, the leader first.
    addresses: Vec<String>,
    said: Vec<String>,
    /// Entries of dead nodes that were removed, or are about to be.
    leftovers: u32,
    until_mono_ms: u64,
}

impl Joining {
    /// A machine that is to join, through one of these managers. `others`: nodes that are other machines'.
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

    /// Takes the answer to what was asked last.
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

    /// What the entry of a dead node has is to be recorded before the entry goes.
    fn read(&mut self, labels: SwarmLabels, now_mono_ms: u64) -> Next {
        let Stage::Labels(SwarmNode { id, hostname, availability, .. }) = self.stage.clone() else {
            return self.another_question(now_mono_ms);
        };
        Next::Record(NodeEntry { node: id, hostname, availability, labels })
    }

    /// What the entry has is recorded: it goes.
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
        Next::Ask { machine, op, patience_ms: left_ms.min(ANSWER_DEADLINE_MS) }
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

    /// The list of nodes has come: what this machine has left behind goes first, then the quorum is looked at.
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

/// The entry that has to go before a machine that is in no swarm may join.
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

/// The first of the entries that a machine of this hostname has left behind: all of them are down, and nobody else's.
/// Another that reboots is down too.
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

/// Does the swarm keep its majority even if one more manager is counted and never comes up? From one manager to two
/// there is no such way, and two are never where it ends.
fn quorum(nodes: &[SwarmNode]) -> Result<(), Refused> {
    let managers: Vec<(&SwarmNode, &SwarmManager)> =
        nodes.iter().filter_map(|node| Some((node, node.manager.as_ref()?))).collect();
    let reachable = managers.iter().filter(|(_, manager)| manager.reachable).count();
    let needed = majority(managers.len() + 1);
    let alone = managers.len() == 1 && reachable == 1;
    // Planted: a manager is added whatever the others are.
    if alone || reachable >= needed || planted("join-without-quorum") {
        return Ok(());
    }
    let missing = managers.iter().filter(|(_, manager)| !manager.reachable).map(|(node, _)| node.hostname.as_str());
    Err(Refused::Quorum { reachable, managers: managers.len(), needed, missing: some_names(missing) })
}

const fn majority(managers: usize) -> usize {
    managers / 2 + 1
}

/// Where the reachable managers are joined, the leader first.
fn addresses(nodes: &[SwarmNode]) -> Vec<String> {
    let mut managers: Vec<&SwarmManager> =
        nodes.iter().filter_map(|node| node.manager.as_ref()).filter(|manager| manager.reachable).collect();
    managers.sort_by_key(|manager| !manager.leader);
    managers.into_iter().map(|manager| manager.address.clone()).collect()
}
