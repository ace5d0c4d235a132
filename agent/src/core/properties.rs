//! Invariants under any order of events: the core on a simulated machine, with crashes between any two effects. The
//! simulator in `tests/harness` does the same with whole fleets; this finds an agent's own faults in milliseconds.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use muster_proto::model::{
    AckProof, AssignedItem, AuthCode, Epoch, Generation, ItemHash, ItemName, ItemState, ItemStatus, Now, Seq,
};
use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any},
    prop_oneof,
    test_runner::{Config as Cases, RngAlgorithm, TestCaseError, TestRng, TestRunner},
};

use super::{
    tests::{assignment, config, contents, empty, exit},
    *,
};
use crate::attempt::record::{AttemptKey, Found};

/// Maximum length of one case.
const ACTIONS_MAX: usize = 60;
/// Number of cases.
const CASES: u32 = 1_500;

#[derive(Clone, Debug)]
enum Action {
    Assign {
        content: usize,
        generation: i64,
        epoch: i64,
    },
    LinkUp {
        epoch: i64,
    },
    LinkDown,
    Ack {
        back: u64,
    },
    End {
        state: ItemState,
    },
    Deliver,
    Advance {
        ms: u64,
    },
    DiskFull(bool),
    /// The agent crashes before the n-th of the next effects.
    CrashBefore {
        effect: usize,
    },
    Reboot,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let ends = prop_oneof![
        2 => Just(ItemState::Succeeded),
        1 => Just(ItemState::Failed { exit_code: 1, retryable: true }),
        1 => Just(ItemState::Indeterminate),
    ];
    let action = prop_oneof![
        4 => (0..6_usize, -1..3_i64, -1..2_i64)
            .prop_map(|(content, generation, epoch)| Action::Assign { content, generation, epoch }),
        2 => (-1..2_i64).prop_map(|epoch| Action::LinkUp { epoch }),
        1 => Just(Action::LinkDown),
        2 => (0..3_u64).prop_map(|back| Action::Ack { back }),
        5 => ends.prop_map(|state| Action::End { state }),
        5 => Just(Action::Deliver),
        2 => (0..70_000_u64).prop_map(|ms| Action::Advance { ms }),
        1 => any::<bool>().prop_map(Action::DiskFull),
        2 => (0..4_usize).prop_map(|effect| Action::CrashBefore { effect }),
        1 => Just(Action::Reboot),
    ];
    vec(action, 1..ACTIONS_MAX)
}

/// Process of an attempt, as its directory shows it.
#[derive(Clone, Debug, PartialEq)]
enum Process {
    Running,
    Ended(ItemState),
    Lost,
}

/// A machine with its agent, and a coordinator that remembers what it received.
struct World {
    core: Core,
    durable: LedgerState,
    mark: Option<Mark>,
    now: Now,
    boot: u64,
    processes: BTreeMap<AttemptKey, Process>,
    followed: BTreeSet<AttemptKey>,
    replies: VecDeque<Input>,
    crash_before: Option<usize>,
    at_hand: Option<AttemptKey>,
    heard: BTreeMap<Seq, Arc<ItemStatus>>,
    epoch_met: Epoch,
    contents: BTreeMap<Generation, Vec<AssignedItem>>,
    succeeded: BTreeMap<ItemName, ItemHash>,
}

type Verdict = Result<(), TestCaseError>;

fn hold(holds: bool, law: &'static str) -> Verdict {
    if holds { Ok(()) } else { Err(TestCaseError::fail(law)) }
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            core: Core::new(config(), empty()),
            durable: empty(),
            mark: None,
            now: Now { wall_ms: 1_000, mono_ms: 0 },
            boot: 1,
            processes: BTreeMap::new(),
            followed: BTreeSet::new(),
            replies: VecDeque::new(),
            crash_before: None,
            at_hand: None,
            heard: BTreeMap::new(),
            epoch_met: Epoch(0),
            contents: BTreeMap::new(),
            succeeded: BTreeMap::new(),
        };
        let started = world.boot_input();
        assert_eq!(world.core.step(started, world.now), []);
        world
    }

    fn boot_input(&self) -> Input {
        Input::Started { boot_id: format!("boot-{}", self.boot) }
    }

    fn act(&mut self, action: Action) -> Verdict {
        let shifted = |base: u64, by: i64| base.saturating_add_signed(by).max(1);
        match action {
            Action::Assign { content, generation, epoch } => {
                let generation = shifted(self.core.ledger().generation().0, generation);
                let epoch = shifted(self.epoch_met.0, epoch);
                self.meet(epoch);
                self.step(Input::Received(assignment(epoch, generation, contents(content))))
            }
            Action::LinkUp { epoch } => {
                let epoch = shifted(self.epoch_met.0, epoch);
                self.meet(epoch);
                self.step(Input::LinkUp { epoch: Epoch(epoch), code: AuthCode::NONE })
            }
            Action::LinkDown => self.step(Input::LinkDown),
            Action::Ack { back } => {
                let last = self.heard.last_key_value().map_or(0, |(seq, _)| seq.0);
                self.step(Input::Acked(Seq(last.saturating_sub(back)), AckProof::NONE))
            }
            Action::End { state } => {
                for process in self.processes.values_mut().filter(|process| **process == Process::Running) {
                    let lost = state == ItemState::Indeterminate;
                    *process = if lost { Process::Lost } else { Process::Ended(state.clone()) };
                }
                self.notice();
                Ok(())
            }
            Action::Deliver => match self.replies.pop_front() {
                Some(reply) => {
                    let fetched =
                        if let Input::Fetched { key, outcome: Ok(()), .. } = &reply { Some(key) } else { None };
                    self.at_hand = fetched.cloned();
                    self.step(reply).map(|()| self.at_hand = None)
                }
                None => Ok(()),
            },
            Action::Advance { ms } => {
                self.now.mono_ms += ms;
                self.step(Input::Tick)
            }
            Action::DiskFull(full) => self.step(Input::DiskFull(full)),
            Action::CrashBefore { effect } => {
                self.crash_before = Some(effect);
                Ok(())
            }
            Action::Reboot => {
                self.boot += 1;
                for process in self.processes.values_mut().filter(|process| **process == Process::Running) {
                    *process = Process::Lost;
                }
                self.restart()
            }
        }
    }

    /// A coordinator of this epoch exists; once the agent has acted for it, its predecessors are fenced.
    fn meet(&mut self, epoch: u64) {
        if self.crash_before.is_none() {
            self.epoch_met = self.epoch_met.max(Epoch(epoch));
        }
    }

    fn restart(&mut self) -> Verdict {
        self.core = Core::new(config(), self.durable.clone());
        self.followed.clear();
        self.replies.clear();
        self.crash_before = None;
        let attempts = self.processes.keys().cloned().collect();
        self.step(Input::TracesFound { attempts, mark: self.mark.clone() })?;
        hold(!self.core.is_behind(), "what a crash leaves is no ledger that was put back")?;
        self.step(self.boot_input())
    }

    fn found(&self, key: &AttemptKey) -> Found {
        match self.processes.get(key) {
            None => Found::NotStarted,
            Some(Process::Running) => Found::Running,
            Some(Process::Ended(state)) => Found::Exited(exit(state.clone())),
            Some(Process::Lost) => Found::Lost,
        }
    }

    /// Reports the end of an attempt to its followers.
    fn notice(&mut self) {
        let over = |key: &&AttemptKey| self.processes.get(*key).is_none_or(|process| *process != Process::Running);
        for key in self.followed.iter().filter(over).cloned().collect::<Vec<_>>() {
            self.followed.remove(&key);
            self.replies.push_back(Input::Ended { found: self.found(&key), key });
        }
    }

    fn step(&mut self, input: Input) -> Verdict {
        self.now.wall_ms += 1;
        let effects = self.core.step(input, self.now);
        let crash_before = self.crash_before.take();
        for (at, effect) in effects.into_iter().enumerate() {
            if crash_before == Some(at) {
                return self.restart();
            }
            self.perform(effect)?;
        }
        if crash_before.is_some() {
            return self.restart();
        }
        hold(self.durable == *self.core.ledger(), "what the core holds is durable")?;
        hold(self.core.step(Input::Tick, self.now).is_empty(), "a tick with nothing new does nothing")?;
        self.invariants()
    }

    fn perform(&mut self, effect: Effect) -> Verdict {
        match effect {
            Effect::Record(records) => records.iter().try_for_each(|record| self.record(record)),
            Effect::Send(ToCoordinator::Event { seq, status }) => {
                let last = self.heard.last_key_value().map_or(0, |(seq, _)| seq.0);
                hold(seq.0 <= last + 1, "events come without gaps")?;
                let before = self.heard.insert(seq, Arc::clone(&status));
                hold(before.is_none_or(|before| before == status), "an event never changes")
            }
            Effect::Send(
                ToCoordinator::Answer { .. }
                | ToCoordinator::Swarm(_)
                | ToCoordinator::ControlPlane(_)
                | ToCoordinator::PermitWanted(_)
                | ToCoordinator::Blocked(_),
            ) => Ok(()),
            Effect::Inspect(key) => {
                self.replies.push_back(Input::Inspected { found: self.found(&key), key });
                Ok(())
            }
            Effect::Fetch { key, generation } => {
                let outcome = if self.now.wall_ms.is_multiple_of(3) { Err("refused".to_owned()) } else { Ok(()) };
                if !self.now.wall_ms.is_multiple_of(7) {
                    self.replies.push_back(Input::Fetched { key, generation, outcome });
                }
                Ok(())
            }
            Effect::Start(request) => {
                let provided = request.secret_params.is_empty() || self.at_hand.as_ref() == Some(&request.key);
                hold(provided, "nothing starts without its secrets")?;
                let slot = self.durable.slots.get(&request.key.item);
                let recorded = slot.filter(|slot| slot.is_running() && slot.key() == request.key);
                hold(recorded.is_some(), "a start is durable before its process begins")?;
                let hash = recorded.map(|slot| slot.status.hash);
                hold(self.succeeded.get(&request.key.item).copied() != hash, "what has succeeded is not done again")?;
                let before = self.processes.insert(request.key.clone(), Process::Running);
                hold(before.is_none(), "one process for one attempt")?;
                self.followed.insert(request.key);
                Ok(())
            }
            Effect::Follow(key) => {
                self.followed.insert(key);
                self.notice();
                Ok(())
            }
            Effect::Release(key) => {
                let ended =
                    self.durable.slots.get(&key.item).is_some_and(|slot| slot.key() != key || !slot.is_running());
                hold(ended, "an outcome is durable before the host forgets the attempt")
            }
            Effect::Remove(key) => {
                let running = self.processes.get(&key) == Some(&Process::Running);
                hold(!running, "the directory of what runs is kept")
            }
            Effect::CallSwarm(call) => hold(call.epoch == self.durable.epoch, "the epoch is durable before the call"),
            Effect::AskControlPlane(call) => {
                hold(call.epoch == self.durable.epoch, "the epoch is durable before the answer")
            }
        }
    }

    fn record(&mut self, record: &Record) -> Verdict {
        match record {
            Record::EpochSeen(epoch, _) => hold(*epoch > self.durable.epoch, "the epoch never goes back")?,
            Record::Accepted(new) => {
                hold(new.generation >= self.durable.generation(), "the generation never goes back")?;
                hold(new.epoch >= self.durable.epoch, "an older coordinator is not obeyed")?;
                let known = self.contents.insert(new.generation, new.items.clone());
                hold(known.is_none_or(|known| known == new.items), "a generation has one content")?;
            }
            Record::Started { status, .. } => {
                hold(self.durable.running().is_none(), "one item at a time")?;
                let old = self.durable.slots.get(&status.name).filter(|slot| slot.status.hash == status.hash);
                let expected = old.map_or(1, |slot| slot.status.attempt + 1);
                hold(status.attempt == expected, "attempts are counted without gaps")?;
            }
            Record::Finished { status, .. } => {
                let process = self.processes.get(&Slot::key_of(status));
                let true_success = process == Some(&Process::Ended(ItemState::Succeeded));
                hold(true_success == (status.state == ItemState::Succeeded), "success is what a process said")?;
                if true_success {
                    self.succeeded.insert(status.name.clone(), status.hash);
                } else {
                    self.succeeded.remove(&status.name);
                }
            }
            Record::Acked(seq, _) => hold(self.heard.contains_key(seq), "what was acknowledged was heard")?,
            Record::Snapshot(_) => {}
        }
        self.durable.apply(record);
        self.mark = Some(Mark::of(&self.durable));
        Ok(())
    }

    fn invariants(&self) -> Verdict {
        let ledger = &self.durable;
        let kept: Vec<u64> = ledger.outbox.keys().map(|seq| seq.0).collect();
        let expected: Vec<u64> = (ledger.acked.0 + 1..=ledger.last_seq.0).collect();
        hold(kept == expected, "an event is kept until it is acknowledged")?;
        let running = self.processes.values().filter(|process| **process == Process::Running).count();
        hold(running <= 1, "one item at a time")?;
        hold(ledger.epoch >= self.epoch_acted_for(), "the highest epoch is durable")
    }

    /// Highest epoch of an accepted assignment.
    fn epoch_acted_for(&self) -> Epoch {
        self.durable.assignment.as_ref().map_or(Epoch(0), |assignment| assignment.epoch)
    }
}

fn tell_stories() -> Result<(), String> {
    let cases = Cases { cases: CASES, failure_persistence: None, ..Cases::default() };
    let mut runner = TestRunner::new_with_rng(cases, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    runner
        .run(&actions(), |actions| {
            let mut world = World::new();
            actions.into_iter().try_for_each(|action| world.act(action))
        })
        .map_err(|error| error.to_string())
}

#[test]
fn the_laws_hold_in_any_order_of_events() {
    assert_eq!(tell_stories(), Ok(()));
}

/// Each seeded bug breaks the invariant named for it.
#[cfg(feature = "seeded-bugs")]
#[test]
fn planted_bugs_are_found() {
    for (plant, law) in [
        ("agent-start-without-secrets", "nothing starts without its secrets"),
        ("agent-start-before-record", "a start is durable before its process begins"),
        ("agent-send-before-record", "an event never changes"),
        ("agent-accept-older-generation", "the generation never goes back"),
        ("agent-accept-reused-generation", "a generation has one content"),
        ("agent-accept-older-epoch", "an older coordinator is not obeyed"),
        ("agent-forget-epoch", "the highest epoch is durable"),
        ("agent-rerun-done", "what has succeeded is not done again"),
        ("agent-two-at-once", "one item at a time"),
        ("agent-restart-lost", "one process for one attempt"),
        ("agent-indeterminate-is-success", "success is what a process said"),
        ("agent-drop-oldest-event", "an event is kept until it is acknowledged"),
        ("agent-forget-on-ack-of-later", "an event is kept until it is acknowledged"),
    ] {
        muster_proto::seeded_bug::set(Some(plant));
        let outcome = tell_stories();
        muster_proto::seeded_bug::set(None);
        let error = outcome.expect_err(plant);
        assert!(error.contains(law), "{plant}: {error}");
    }
}
