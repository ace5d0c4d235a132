//! Rules of the core, one by one, on a core with a manual clock ([`Rig`]).

mod assignments;
mod attempts;
mod permits;
mod reports;
mod secrets;
mod swarm;

use std::{collections::BTreeSet, sync::Arc};

use muster_proto::{
    convert::ITEMS_MAX,
    model::{
        AckProof, AssignedItem, Assignment, AuthCode, ClusterName, Epoch, Generation, HostFacts, ItemName, ItemState,
        ItemStatus, LedgerId, MachineId, MachineName, Now, OnInterrupt, Phase, Seq,
    },
};
use uuid::Uuid;

use super::*;
use crate::attempt::record::{AttemptKey, Exit, Found, Request};

pub(crate) fn item(name: &str, version: &str) -> AssignedItem {
    let mut item = AssignedItem {
        name: ItemName::new(name).expect("a label"),
        runner: "bash".to_owned(),
        version: version.to_owned(),
        params: [("script".to_owned(), "echo ${HOME}".to_owned())].into(),
        phase: Phase::Deploy,
        hash: muster_proto::model::ItemHash([0; 32]),
        timeout_ms: 1_000,
        retries: 2,
        on_interrupt: OnInterrupt::Hold,
        cleared_attempts: 0,
        redo_up_to: Generation(0),
        ignore_changes: BTreeSet::new(),
        permit: None,
    };
    item.hash = item.computed_hash();
    item
}

/// An item that refers to a secret.
pub(crate) fn with_secret(name: &str, version: &str) -> AssignedItem {
    let mut item = item(name, version);
    item.params.insert("dsn".to_owned(), "$$u:${secret.db@3}@${machine.internalIP}".to_owned());
    item.hash = item.computed_hash();
    item
}

/// Contents of assignments, by number. Some items change their version, some leave and come back.
pub(crate) fn contents(number: usize) -> Vec<AssignedItem> {
    let rerun = |mut item: AssignedItem| {
        item.on_interrupt = OnInterrupt::Rerun;
        item
    };
    let cleared = |mut item: AssignedItem| {
        item.cleared_attempts = 3;
        item
    };
    match number {
        0 => vec![item("a", "1")],
        1 => vec![item("a", "1"), rerun(item("b", "1"))],
        2 => vec![with_secret("a", "2"), rerun(with_secret("b", "1"))],
        3 => vec![rerun(item("b", "1"))],
        4 => vec![cleared(item("a", "1")), item("b", "2")],
        _ => vec![],
    }
}

pub(crate) fn assignment(epoch: u64, generation: u64, items: Vec<AssignedItem>) -> Assignment {
    Assignment {
        epoch: Epoch(epoch),
        generation: Generation(generation),
        cluster: ClusterName::new("edge").expect("a label"),
        items,
        variables: [("machine.internalIP".to_owned(), "10.0.0.7".to_owned())].into(),
        digest: muster_proto::model::ItemHash([1; 32]),
        code: AuthCode::NONE,
    }
}

pub(crate) fn config() -> Config {
    Config {
        machine: MachineName::new("worker-1").expect("a label"),
        supports: |runner| matches!(runner, "bash" | "downloader" | "swarm-join"),
    }
}

pub(crate) fn empty() -> LedgerState {
    LedgerState::new(LedgerId(Uuid::from_u128(1)), MachineId(Uuid::from_u128(2)))
}

pub(crate) fn exit(state: ItemState) -> Exit {
    Exit {
        state,
        message: "said".to_owned(),
        output_tail: "tail".to_owned(),
        result_json: None,
        started_at_ms: 10,
        finished_at_ms: 20,
    }
}

pub(crate) fn key(item: &str, generation: u64, attempt: u32) -> AttemptKey {
    AttemptKey { item: ItemName::new(item).expect("a label"), generation: Generation(generation), attempt }
}

const FAILED: ItemState = ItemState::Failed { exit_code: 1, retryable: true };

/// A core with a manual clock.
struct Rig {
    core: Core,
    now: Now,
}

impl Rig {
    fn new() -> Self {
        let mut rig = Self::on(empty());
        assert_eq!(rig.started("boot-1"), []);
        rig
    }

    fn on(ledger: LedgerState) -> Self {
        Self { core: Core::new(config(), ledger), now: Now { wall_ms: 1_000, mono_ms: 0 } }
    }

    fn started(&mut self, boot_id: &str) -> Vec<Effect> {
        self.step(Input::Started { boot_id: boot_id.to_owned() })
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        self.now.wall_ms += 1;
        let effects = self.core.step(input, self.now);
        let records = effects.iter().filter(|effect| matches!(effect, Effect::Record(_))).count();
        assert!(records <= 1, "{effects:?}");
        assert_eq!(self.core.step(Input::Tick, self.now), [], "a tick with nothing new");
        effects
    }

    fn receive(&mut self, assignment: Assignment) -> Vec<Effect> {
        self.step(Input::Received(assignment))
    }

    fn end(&mut self, key: AttemptKey, state: ItemState) -> Vec<Effect> {
        self.step(Input::Ended { key, found: Found::Exited(exit(state)) })
    }

    fn restarted(&self) -> Self {
        let mut now = self.now;
        now.mono_ms = 0;
        Self { core: Core::new(config(), self.core.ledger().clone()), now }
    }

    fn status(&self, item: &str) -> Option<ItemStatus> {
        self.core.ledger().slots.get(item).map(|slot| ItemStatus::clone(&slot.status))
    }

    fn state(&self, item: &str) -> Option<ItemState> {
        self.status(item).map(|status| status.state)
    }
}

fn started_key(effects: &[Effect]) -> Option<AttemptKey> {
    request(effects).map(|request| request.key)
}

fn request(effects: &[Effect]) -> Option<Request> {
    effects.iter().find_map(|effect| match effect {
        Effect::Start(request) => Some(Request::clone(request)),
        _ => None,
    })
}

fn answer(effects: &[Effect]) -> Result<(), Option<RefusalCode>> {
    let answer = effects.iter().find_map(|effect| match effect {
        Effect::Send(ToCoordinator::Answer { refusal, .. }) => Some(refusal.clone()),
        _ => None,
    });
    match answer {
        Some(None) => Ok(()),
        Some(Some(refusal)) => Err(Some(refusal.code)),
        None => Err(None),
    }
}

fn sent_seqs(effects: &[Effect]) -> Vec<u64> {
    let seq = |effect: &Effect| match effect {
        Effect::Send(ToCoordinator::Event { seq, .. }) => Some(seq.0),
        _ => None,
    };
    effects.iter().filter_map(seq).collect()
}

fn fetched_key(effects: &[Effect]) -> Option<AttemptKey> {
    effects.iter().find_map(|effect| match effect {
        Effect::Fetch { key, .. } => Some(key.clone()),
        _ => None,
    })
}

fn fetched(key: AttemptKey, generation: u64, outcome: Result<(), &str>) -> Input {
    Input::Fetched { key, generation: Generation(generation), outcome: outcome.map_err(str::to_owned) }
}

fn blocked_message(rig: &Rig) -> Option<String> {
    rig.core.blocked().map(|blocked| format!("{}: {}", blocked.reason, blocked.message))
}
