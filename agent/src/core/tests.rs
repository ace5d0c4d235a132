//! The rules of the core, one by one.

mod permits;
mod swarm;

use std::sync::Arc;

use muster_proto::{
    convert::ITEMS_MAX,
    model::{
        AssignedItem, Assignment, ClusterName, Epoch, Generation, HostFacts, ItemName, ItemState, ItemStatus, LedgerId,
        MachineId, MachineName, Now, OnInterrupt, Phase, Seq,
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

/// What machines are made to have, by number. Some items change their version, some leave and come back.
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

/// A core with a clock that the test moves.
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

#[test]
fn which_assignments_are_accepted() {
    use RefusalCode::{GenerationReused, HashMismatch, StaleEpoch, StaleGeneration};
    let v1 = || vec![item("a", "1")];
    let mut tampered = item("a", "1");
    tampered.version = "2".to_owned();
    let moved = Assignment { variables: [].into(), ..assignment(5, 5, v1()) };
    for (new, expected) in [
        (assignment(5, 6, v1()), Ok(())),
        (assignment(6, 6, v1()), Ok(())),
        (assignment(5, 5, v1()), Ok(())),
        (assignment(6, 5, v1()), Ok(())),
        (assignment(5, 5, vec![]), Err(GenerationReused)),
        (moved, Err(GenerationReused)),
        (assignment(5, 4, v1()), Err(StaleGeneration)),
        (assignment(9, 4, vec![]), Err(StaleGeneration)),
        (assignment(4, 6, v1()), Err(StaleEpoch)),
        (assignment(4, 5, v1()), Err(StaleEpoch)),
        (assignment(5, 6, vec![tampered.clone()]), Err(HashMismatch)),
        (assignment(6, 6, vec![item("b", "1"), tampered.clone()]), Err(HashMismatch)),
    ] {
        let mut rig = Rig::new();
        assert_eq!(answer(&rig.receive(assignment(5, 5, v1()))), Ok(()));
        let before = rig.core.ledger().clone();
        let effects = rig.receive(new.clone());
        assert_eq!(answer(&effects), expected.map_err(Some), "{new:?}");
        let ledger = rig.core.ledger();
        assert_eq!(ledger.epoch, new.epoch.max(before.epoch), "the highest epoch is kept, whatever the answer");
        let is_new = expected.is_ok() && new.generation > Generation(5);
        assert_eq!(ledger.assignment != before.assignment, is_new);
        if new.epoch > before.epoch {
            let Some(Effect::Record(records)) = effects.first() else { panic!("recorded first: {effects:?}") };
            assert_eq!(records.first(), Some(&Record::EpochSeen(new.epoch)));
        }
    }
}

#[test]
fn items_run_in_order_and_one_at_a_time() {
    let mut rig = Rig::new();
    let effects = rig.receive(assignment(1, 1, vec![item("a", "1"), item("b", "1")]));
    assert!(matches!(effects.first(), Some(Effect::Record(records)) if records.len() == 3), "{effects:?}");
    assert_eq!(started_key(&effects), Some(key("a", 1, 1)));
    assert_eq!(rig.core.wake_at(), None);
    let effects = rig.end(key("a", 1, 1), ItemState::Succeeded);
    assert!(matches!(effects.first(), Some(Effect::Record(records)) if records.len() == 2), "one sync: {effects:?}");
    assert_eq!(started_key(&effects), Some(key("b", 1, 1)));
    assert_eq!(started_key(&rig.end(key("b", 1, 1), ItemState::Succeeded)), None);
    // The same items again, under a new generation: nothing to do.
    assert_eq!(started_key(&rig.receive(assignment(1, 2, vec![item("a", "1"), item("b", "1")]))), None);
    // A new version of one: only that one.
    let effects = rig.receive(assignment(1, 3, vec![item("a", "1"), item("b", "2")]));
    assert_eq!(started_key(&effects), Some(key("b", 3, 1)));
    assert!(effects.contains(&Effect::Remove(key("b", 1, 1))), "{effects:?}");
}

#[test]
fn a_new_assignment_lets_the_running_item_finish() {
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![item("a", "1")]));
    assert_eq!(started_key(&rig.receive(assignment(1, 2, vec![item("a", "2")]))), None);
    let effects = rig.end(key("a", 1, 1), ItemState::Succeeded);
    assert_eq!(started_key(&effects), Some(key("a", 2, 1)), "the old version's success is not the new one's");
    let Some(Effect::Record(records)) = effects.first() else { panic!("{effects:?}") };
    let finished =
        matches!(records.first(), Some(Record::Finished { status, .. }) if status.hash == item("a", "1").hash);
    assert!(finished, "{records:?}");
    // Taken out of the assignment while it runs: its outcome still counts.
    assert_eq!(started_key(&rig.receive(assignment(1, 3, vec![]))), None);
    rig.end(key("a", 2, 1), FAILED);
    assert_eq!(rig.state("a"), Some(FAILED));
    assert_eq!(rig.core.wake_at(), None);
    // Put back: the next attempt, counted on.
    rig.now.mono_ms += BACKOFF_MS_MAX;
    assert_eq!(started_key(&rig.receive(assignment(1, 4, vec![item("a", "2")]))), Some(key("a", 4, 2)));
}

#[test]
fn a_failed_item_is_retried_after_its_backoff_and_then_waits_for_a_person() {
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![item("a", "1"), item("b", "1")]));
    for (attempt, wait_ms) in [(1, 1_000), (2, 2_000)] {
        assert_eq!(started_key(&rig.end(key("a", 1, attempt), FAILED)), None);
        let wake_at = rig.core.wake_at().expect("a retry");
        assert!((wait_ms..wait_ms * 5 / 4).contains(&(wake_at - rig.now.mono_ms)), "{wake_at}");
        rig.now.mono_ms = wake_at - 1;
        assert_eq!(rig.step(Input::Tick), []);
        rig.now.mono_ms = wake_at;
        let effects = rig.core.step(Input::Tick, rig.now);
        assert_eq!(started_key(&effects), Some(key("a", 1, attempt + 1)));
        // The output of the first failure is kept: what follows often says only what that left behind.
        assert_eq!(effects.contains(&Effect::Remove(key("a", 1, attempt))), attempt > 1, "{effects:?}");
    }
    rig.end(key("a", 1, 3), FAILED);
    assert_eq!(rig.core.kept_attempts(), [key("a", 1, 3), key("a", 1, 1)]);
    assert_eq!(rig.core.wake_at(), None, "no attempt left, and b waits behind a");
    // The operator's retry clears three attempts: at once, and counted on.
    let mut cleared = item("a", "1");
    cleared.cleared_attempts = 3;
    let effects = rig.receive(assignment(1, 2, vec![cleared.clone(), item("b", "1")]));
    assert_eq!(started_key(&effects), Some(key("a", 2, 4)));
    // Said twice, it changes nothing.
    rig.end(key("a", 2, 4), ItemState::Failed { exit_code: 1, retryable: false });
    assert_eq!(started_key(&rig.receive(assignment(1, 3, vec![cleared]))), None);
    assert_eq!(rig.core.wake_at(), None);
    // Of other content, nothing of it counts.
    let effects = rig.receive(assignment(1, 4, vec![item("a", "2")]));
    assert_eq!(started_key(&effects), Some(key("a", 4, 1)));
    assert_eq!(rig.core.kept_attempts(), [key("a", 4, 1)]);
    assert!(effects.contains(&Effect::Remove(key("a", 1, 1))), "{effects:?}");
}

#[test]
fn what_cannot_run_here_fails_at_once() {
    let with = |runner: &str, params: &[(&str, &str)]| {
        let mut item = item("a", "1");
        item.runner = runner.to_owned();
        item.params.extend(params.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        item.hash = item.computed_hash();
        item
    };
    for (item, begins) in [
        (with("mke", &[]), "RunnerNotSupported: "),
        (with("nonsense", &[]), "RunnerNotSupported: "),
        (with("bash", &[("to", "${cluster.controlNodeIP}")]), "param to: variable 'cluster.controlNodeIP'"),
        (with("bash", &[("to", "$x")]), "param to: a lone '$'"),
    ] {
        let mut rig = Rig::new();
        let effects = rig.receive(assignment(1, 1, vec![item]));
        assert_eq!(started_key(&effects), None, "{begins}");
        let status = rig.status("a").expect("a status");
        assert_eq!(status.state, ItemState::Failed { exit_code: -1, retryable: false });
        assert!(status.message.starts_with(begins), "{}", status.message);
        assert_eq!(rig.core.ledger().outbox.len(), 2, "started and finished");
    }
}

#[test]
fn a_request_has_its_late_variables_replaced() {
    let mut rig = Rig::new();
    let mut item = item("a", "7");
    item.params.insert("ip".to_owned(), "${machine.internalIP}:80 $$".to_owned());
    item.hash = item.computed_hash();
    let request = request(&rig.receive(assignment(1, 1, vec![item]))).expect("started");
    assert_eq!(request.params["ip"], "10.0.0.7:80 $");
    assert_eq!(request.params["script"], "echo ${HOME}", "a script has its own variables");
    assert_eq!((request.version.as_str(), request.machine.as_str()), ("7", "worker-1"));
}

#[test]
fn recovery() {
    let rebooted = Some("the machine rebooted while it ran");
    let restarted = Some("its process ended without an outcome");
    let running = ItemState::Running;
    for (boot_id, found, expected, message) in [
        ("boot-1", Found::NotStarted, running.clone(), None),
        ("boot-2", Found::NotStarted, running.clone(), None),
        ("boot-1", Found::Running, running.clone(), None),
        ("boot-1", Found::Lost, ItemState::Indeterminate, restarted),
        ("boot-2", Found::Lost, ItemState::Indeterminate, rebooted),
        ("boot-1", Found::Exited(exit(ItemState::Succeeded)), ItemState::Succeeded, Some("said")),
        ("boot-2", Found::Exited(exit(FAILED)), FAILED, Some("said")),
    ] {
        let mut rig = Rig::new();
        rig.receive(assignment(1, 1, vec![item("a", "1")]));
        let mut rig = rig.restarted();
        assert_eq!(rig.started(boot_id), [Effect::Inspect(key("a", 1, 1))]);
        let effects = rig.step(Input::Inspected { key: key("a", 1, 1), found: found.clone() });
        let status = rig.status("a").expect("a slot");
        assert_eq!(status.state, expected, "{boot_id} {found:?}");
        if let Some(message) = message {
            assert_eq!(status.message, message);
        }
        match found {
            Found::NotStarted => assert_eq!(started_key(&effects), Some(key("a", 1, 1)), "the same attempt"),
            Found::Running => assert_eq!(effects, [Effect::Follow(key("a", 1, 1))]),
            Found::Lost | Found::Exited(_) => assert_eq!(started_key(&effects), None),
        }
    }
}

#[test]
fn an_attempt_never_started_is_not_started_for_an_old_assignment() {
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![item("a", "1")]));
    rig.receive(assignment(1, 2, vec![item("a", "2")]));
    let mut rig = rig.restarted();
    rig.started("boot-1");
    let effects = rig.step(Input::Inspected { key: key("a", 1, 1), found: Found::NotStarted });
    assert_eq!(started_key(&effects), Some(key("a", 2, 1)));
}

#[test]
fn a_start_that_failed_is_retried() {
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![item("a", "1")]));
    rig.step(Input::StartFailed { key: key("a", 1, 1), message: "no\nspace".to_owned() });
    let status = rig.status("a").expect("a slot");
    assert_eq!(
        (status.state, status.message.as_str()),
        (ItemState::Failed { exit_code: -1, retryable: true }, "no space")
    );
    assert!(rig.core.wake_at().is_some());
    // What is said of another attempt than the running one changes nothing.
    assert_eq!(rig.step(Input::StartFailed { key: key("a", 1, 1), message: String::new() }), []);
    assert_eq!(rig.end(key("a", 1, 1), ItemState::Succeeded), []);
}

#[test]
fn events_are_sent_in_order_until_they_are_acknowledged() {
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![item("a", "1"), item("b", "1")]));
    assert_eq!(sent_seqs(&rig.step(Input::LinkUp { epoch: Epoch(1) })), [1]);
    assert_eq!(sent_seqs(&rig.end(key("a", 1, 1), ItemState::Succeeded)), [2, 3]);
    assert_eq!(rig.step(Input::Acked(Seq(2))), [Effect::Record(vec![Record::Acked(Seq(2))])]);
    assert_eq!(rig.step(Input::Acked(Seq(2))), [], "said twice");
    assert_eq!(rig.step(Input::Acked(Seq(9))), [], "never sent");
    rig.step(Input::LinkDown);
    assert_eq!(sent_seqs(&rig.end(key("b", 1, 1), ItemState::Succeeded)), [] as [u64; 0]);
    let mut rig = rig.restarted();
    rig.started("boot-1");
    assert_eq!(sent_seqs(&rig.step(Input::LinkUp { epoch: Epoch(2) })), [3, 4]);
    rig.step(Input::Acked(Seq(4)));
    assert!(rig.core.ledger().outbox.is_empty());
    assert_eq!(rig.status("b").map(|status| status.output_tail), Some(String::new()), "the coordinator has it");
    assert_eq!(sent_seqs(&rig.step(Input::LinkUp { epoch: Epoch(2) })), [] as [u64; 0]);
}

#[test]
fn an_older_coordinator_gets_no_events() {
    let mut rig = Rig::new();
    rig.receive(assignment(5, 1, vec![item("a", "1")]));
    assert_eq!(rig.step(Input::LinkUp { epoch: Epoch(4) }), []);
    assert_eq!(rig.step(Input::Acked(Seq(1))), []);
    assert_eq!(sent_seqs(&rig.step(Input::LinkUp { epoch: Epoch(6) })), [1]);
    assert_eq!(rig.core.ledger().epoch, Epoch(6));
}

#[test]
fn few_events_are_in_flight() {
    let items: Vec<_> = (0..100).map(|n| item(&format!("i{n}"), "1")).collect();
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, items));
    for n in 0..100 {
        rig.end(key(&format!("i{n}"), 1, 1), ItemState::Succeeded);
    }
    let first: Vec<u64> = (1..=64).collect();
    assert_eq!(sent_seqs(&rig.step(Input::LinkUp { epoch: Epoch(1) })), first);
    assert_eq!(sent_seqs(&rig.step(Input::Acked(Seq(10)))), (65..=74).collect::<Vec<u64>>());
}

#[test]
fn a_full_disk_or_outbox_starts_nothing_new_and_says_so() {
    let said = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Send(ToCoordinator::Blocked(blocked)) => Some(blocked.as_ref().map(|blocked| blocked.reason)),
            _ => None,
        })
    };
    let mut rig = Rig::new();
    rig.step(Input::LinkUp { epoch: Epoch(1) });
    rig.receive(assignment(1, 1, vec![item("a", "1"), item("b", "1")]));
    assert_eq!(said(&rig.step(Input::DiskFull(true))), Some(Some("DiskFull")));
    let effects = rig.end(key("a", 1, 1), ItemState::Succeeded);
    assert_eq!((started_key(&effects), rig.state("a")), (None, Some(ItemState::Succeeded)));
    assert_eq!(said(&rig.step(Input::LinkUp { epoch: Epoch(1) })), Some(Some("DiskFull")), "on every session");
    let effects = rig.step(Input::DiskFull(false));
    assert_eq!((said(&effects), started_key(&effects)), (Some(None), Some(key("b", 1, 1))));

    let items: Vec<_> = (0..1000).map(|n| item(&format!("i{n}"), "1")).collect();
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, items));
    let large = Exit { output_tail: "x".repeat(20_000), ..exit(ItemState::Succeeded) };
    let mut ended = 0;
    while let Some(slot) = rig.core.ledger().running() {
        let ended_key = slot.key();
        let _ = rig.core.step(Input::Ended { key: ended_key, found: Found::Exited(large.clone()) }, rig.now);
        ended += 1;
    }
    assert!((600..800).contains(&ended), "{ended}");
    assert_eq!(said(&rig.step(Input::LinkUp { epoch: Epoch(1) })), Some(Some("OutboxFull")));
    assert!(started_key(&rig.step(Input::Acked(Seq(60)))).is_some());
}

#[test]
fn the_hello_fits_into_a_message() {
    let items: Vec<_> = (0..ITEMS_MAX).map(|n| item(&format!("{n}-{}", "x".repeat(55)), "1")).collect();
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, items));
    let wordy = Exit { message: "ü".repeat(4_000), ..exit(ItemState::Succeeded) };
    while let Some(slot) = rig.core.ledger().running() {
        let ended = slot.key();
        rig.step(Input::Ended { key: ended, found: Found::Exited(wordy.clone()) });
        rig.step(Input::LinkUp { epoch: Epoch(1) });
        rig.step(Input::Acked(rig.core.ledger().last_seq));
    }
    let hello = rig.core.hello(HostFacts::default());
    assert_eq!(hello.statuses.len(), ITEMS_MAX);
    // JSON is longer than the wire.
    let bytes = serde_json::to_vec(&hello.statuses).expect("JSON").len();
    assert!(bytes < muster_proto::LINK_MESSAGE_BYTES_MAX, "{bytes}");
}

#[test]
fn the_newest_attempt_is_found_for_its_output() {
    let mut rig = Rig::new();
    assert_eq!(rig.core.newest_attempt(None), None);
    rig.receive(assignment(1, 1, vec![item("b", "1"), item("a", "1")]));
    rig.end(key("b", 1, 1), ItemState::Succeeded);
    assert_eq!(rig.core.newest_attempt(None), Some(key("a", 1, 1)));
    assert_eq!(rig.core.newest_attempt(ItemName::new("b").ok().as_ref()), Some(key("b", 1, 1)));
    assert_eq!(rig.core.newest_attempt(ItemName::new("c").ok().as_ref()), None);
    // Out of the assignment: its output can still be read.
    rig.receive(assignment(1, 2, vec![item("a", "1")]));
    assert_eq!(rig.core.kept_attempts(), [key("a", 1, 1), key("b", 1, 1)]);
}

#[test]
fn the_output_of_old_attempts_is_removed() {
    let items: Vec<_> = (0..40).map(|n| item(&format!("i{n}"), "1")).collect();
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, items));
    for n in 0..39 {
        let effects = rig.end(key(&format!("i{n}"), 1, 1), ItemState::Succeeded);
        let removed: Vec<_> = effects.into_iter().filter(|effect| matches!(effect, Effect::Remove(_))).collect();
        let expected =
            (n + 2_usize).checked_sub(ATTEMPTS_KEPT + 1).map(|old| Effect::Remove(key(&format!("i{old}"), 1, 1)));
        assert_eq!(removed, Vec::from_iter(expected), "at the end of i{n}");
    }
    assert_eq!(rig.core.kept_attempts().len(), ATTEMPTS_KEPT);
}

#[test]
fn the_ledger_is_a_fold_of_its_records() {
    let mut rig = Rig::new();
    let mut folded = empty();
    let mut inputs = vec![Input::LinkUp { epoch: Epoch(3) }, Input::Received(assignment(3, 1, vec![item("a", "1")]))];
    inputs.push(Input::Ended { key: key("a", 1, 1), found: Found::Lost });
    inputs.push(Input::Acked(Seq(1)));
    for input in inputs {
        for effect in rig.step(input) {
            if let Effect::Record(records) = effect {
                for record in &records {
                    assert_eq!(folded.apply_read(record), Ok(()));
                    assert_eq!(folded.apply_read(record), Err(Misfit), "twice: {record:?}");
                }
            }
        }
    }
    assert_eq!(&folded, rig.core.ledger());
    let text = serde_json::to_string(&folded).expect("JSON");
    assert_eq!(serde_json::from_str::<LedgerState>(&text).ok(), Some(folded));
    assert_eq!(Arc::strong_count(&rig.core.ledger().outbox[&Seq(2)]), 2, "slot and outbox share a status");
}

#[test]
fn a_call_is_answered_beside_what_runs_and_only_for_the_newest_coordinator() {
    use muster_proto::model::{SwarmCall, SwarmFailureCode, SwarmOp};
    let call = |epoch| Input::SwarmCalled(SwarmCall { id: 7, epoch: Epoch(epoch), op: SwarmOp::Nodes });
    let now = Now { wall_ms: 0, mono_ms: 0 };
    let mut core = Core::new(config(), empty());
    for input in [
        Input::Started { boot_id: "b".to_owned() },
        Input::LinkUp { epoch: Epoch(2) },
        Input::Received(assignment(2, 1, vec![item("a", "1")])),
    ] {
        drop(core.step(input, now));
    }
    assert!(core.ledger().running().is_some(), "an item runs");
    for (epoch, recorded) in [(2, false), (3, true)] {
        let effects = core.step(call(epoch), now);
        assert!(matches!(effects.last(), Some(Effect::CallSwarm(call)) if call.epoch == Epoch(epoch)), "{effects:?}");
        let first =
            matches!(effects.first(), Some(Effect::Record(records)) if *records == [Record::EpochSeen(Epoch(3))]);
        assert_eq!(first, recorded, "a higher epoch is durable before the swarm is touched: {effects:?}");
    }
    let effects = core.step(call(2), now);
    let [Effect::Send(ToCoordinator::Swarm(answer))] = effects.as_slice() else { panic!("{effects:?}") };
    let code = answer.result.as_ref().map_err(|failure| failure.code);
    assert_eq!((answer.id, code), (7, Err(SwarmFailureCode::StaleEpoch)));
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

const NO_SESSION: &str = "WaitingForSecret: item a needs secrets, which only the coordinator has: there is no session \
                          with the coordinator";

#[test]
fn an_item_with_secrets_is_started_when_they_have_come_and_recorded_without_them() {
    let mut rig = Rig::new();
    let effects = rig.receive(assignment(1, 1, vec![with_secret("a", "1"), item("b", "1")]));
    assert_eq!((fetched_key(&effects), started_key(&effects)), (None, None), "no session");
    assert_eq!((blocked_message(&rig).as_deref(), rig.core.wake_at()), (Some(NO_SESSION), None));
    let effects = rig.step(Input::LinkUp { epoch: Epoch(1) });
    assert_eq!((fetched_key(&effects), started_key(&effects)), (Some(key("a", 1, 1)), None));
    assert_eq!((rig.state("a"), blocked_message(&rig)), (None, None), "nothing is recorded yet, nothing is wrong");
    let effects = rig.step(fetched(key("a", 1, 1), 1, Ok(())));
    let request = request(&effects).expect("started");
    assert_eq!(request.secret_params, [("dsn".to_owned(), "$$u:${secret.db@3}@10.0.0.7".to_owned())].into());
    assert!(!request.params.contains_key("dsn"), "{request:?}");
    assert_eq!(rig.state("a"), Some(ItemState::Running));
    let effects = rig.end(key("a", 1, 1), ItemState::Succeeded);
    assert_eq!((fetched_key(&effects), started_key(&effects)), (None, Some(key("b", 1, 1))));
}

#[test]
fn a_refused_or_lost_fetch_is_asked_again_with_backoff_and_said() {
    let mut rig = Rig::new();
    rig.step(Input::LinkUp { epoch: Epoch(1) });
    let mut asked = rig.receive(assignment(1, 1, vec![with_secret("a", "1")]));
    for (failures, why) in [(1, "NotAssigned: not now"), (2, "it did not answer for 45 s"), (3, "NotAssigned: not now")]
    {
        assert_eq!(fetched_key(&asked), Some(key("a", 1, 1)), "{failures}");
        let effects = if why.starts_with("it") {
            rig.now.mono_ms += FETCH_DEADLINE_MS;
            rig.step(Input::Tick)
        } else {
            rig.step(fetched(key("a", 1, 1), 1, Err(why)))
        };
        assert_eq!((fetched_key(&effects), started_key(&effects)), (None, None));
        let expected = format!("WaitingForSecret: item a needs secrets, which only the coordinator has: {why}");
        assert_eq!(blocked_message(&rig), Some(expected));
        let wait_ms = rig.core.wake_at().expect("a wait") - rig.now.mono_ms;
        let least_ms = BACKOFF_MS_MIN << (failures - 1);
        assert!((least_ms..least_ms * 5 / 4).contains(&wait_ms), "{failures}: {wait_ms}");
        rig.now.mono_ms += wait_ms;
        asked = rig.step(Input::Tick);
    }
    // An answer to the first of them is as good as any.
    assert_eq!(started_key(&rig.step(fetched(key("a", 1, 1), 1, Ok(())))), Some(key("a", 1, 1)));
    assert_eq!(blocked_message(&rig), None);
}

#[test]
fn secrets_that_nobody_waits_for_any_more_start_nothing() {
    for (change, next) in [
        (Input::Received(assignment(1, 2, vec![])), None),
        (Input::Received(assignment(1, 2, vec![with_secret("a", "2")])), Some(key("a", 2, 1))),
        (Input::DiskFull(true), None),
        (Input::LinkDown, None),
    ] {
        let mut rig = Rig::new();
        rig.step(Input::LinkUp { epoch: Epoch(1) });
        rig.receive(assignment(1, 1, vec![with_secret("a", "1")]));
        assert_eq!(fetched_key(&rig.step(change.clone())), next, "{change:?}");
        let effects = rig.step(fetched(key("a", 1, 1), 1, Ok(())));
        // A session that ended meanwhile does not make the values worse.
        let expected = matches!(change, Input::LinkDown).then(|| key("a", 1, 1));
        assert_eq!(started_key(&effects), expected, "{change:?}");
    }
}

#[test]
fn an_attempt_that_was_recorded_but_not_begun_gets_its_secrets_again() {
    let mut rig = Rig::new();
    rig.step(Input::LinkUp { epoch: Epoch(1) });
    rig.receive(assignment(1, 1, vec![with_secret("a", "1")]));
    rig.step(fetched(key("a", 1, 1), 1, Ok(())));
    let mut rig = rig.restarted();
    assert_eq!(rig.started("boot-1"), [Effect::Inspect(key("a", 1, 1))]);
    let effects = rig.step(Input::Inspected { key: key("a", 1, 1), found: Found::NotStarted });
    assert_eq!((fetched_key(&effects), blocked_message(&rig).as_deref()), (None, Some(NO_SESSION)));
    assert_eq!(fetched_key(&rig.step(Input::LinkUp { epoch: Epoch(1) })), Some(key("a", 1, 1)));
    // The same item under a new generation: asked for under that.
    let effects = rig.receive(assignment(1, 2, vec![with_secret("a", "1")]));
    let asked = Effect::Fetch { key: key("a", 1, 1), generation: Generation(2) };
    assert!(effects.contains(&asked), "{effects:?}");
    assert_eq!(started_key(&rig.step(fetched(key("a", 1, 1), 1, Ok(())))), None, "an answer under the old one");
    assert_eq!(started_key(&rig.step(fetched(key("a", 1, 1), 2, Ok(())))), Some(key("a", 1, 1)));
    // Taken out of the list while it waits: recorded as never started.
    let mut rig = rig.restarted();
    rig.started("boot-1");
    rig.step(Input::Inspected { key: key("a", 1, 1), found: Found::NotStarted });
    rig.receive(assignment(1, 3, vec![]));
    assert!(matches!(rig.state("a"), Some(ItemState::Failed { .. })), "{:?}", rig.state("a"));
    assert_eq!(blocked_message(&rig), None);
}
