//! Models, each explored completely. The expected number of states makes an accidental cut visible. It changes with the
//! behaviour of the cores; a reviewer must judge whether the model still covers the same subject.

use muster_proto::model::Counts;
use muster_tests::model::{Fault, Outcome, Scenario};

/// Three control machines and two workers, with each of these faults at most once.
fn with(faults: &'static [Fault]) -> Scenario {
    let counts = Counts { control: 3, worker: 2 };
    Scenario {
        counts,
        prepare: false,
        reconfigure: true,
        update: false,
        workers_at_once: 1,
        faults,
        spared: &[],
        faults_max: 1,
        seeded_bug: None,
    }
}

fn check(scenario: Scenario, states: usize) {
    let outcome = scenario.check();
    let story = outcome.broken.as_ref().map(|broken| broken.story.as_str());
    assert!(story.is_none(), "{}", story.unwrap_or_default());
    assert_eq!(outcome, Outcome { states, broken: None, ready_after_faults: true });
}

#[test]
fn nothing_goes_wrong() {
    check(Scenario { prepare: true, faults_max: 0, ..with(&[]) }, 1_253);
}

#[test]
fn the_coordinator_crashes() {
    check(Scenario { reconfigure: false, ..with(&[Fault::CoordinatorCrash]) }, 9_001);
}

#[test]
fn an_agent_crashes() {
    check(with(&[Fault::AgentCrash]), 18_399);
}

#[test]
fn a_machine_loses_power() {
    check(with(&[Fault::PowerCut]), 3_796);
}

#[test]
fn a_stream_breaks() {
    check(Scenario { reconfigure: false, ..with(&[Fault::Cut]) }, 11_543);
}

#[test]
fn a_list_comes_late() {
    check(with(&[Fault::Late]), 2_721);
}

#[test]
fn a_program_fails() {
    check(with(&[Fault::Failure]), 1_839);
}

/// Three machines: every order of five of them, twice, is too much. Two of either type can collide.
#[test]
fn an_old_store_takes_the_place_of_the_newest() {
    for (control, worker, states) in [(2, 1, 11_102), (1, 2, 10_032)] {
        let counts = Counts { control, worker };
        check(Scenario { counts, reconfigure: false, faults_max: 2, ..with(&[Fault::OldStore]) }, states);
    }
}

#[test]
fn a_machine_is_silent() {
    check(with(&[Fault::Silence]), 18_396);
}

#[test]
fn something_comes_twice() {
    check(with(&[Fault::Twice]), 13_193);
}

/// Faults that may occur in an update.
const IN_AN_UPDATE: &[Fault] = &[
    Fault::CoordinatorCrash,
    Fault::AgentCrash,
    Fault::PowerCut,
    Fault::Cut,
    Fault::Late,
    Fault::Failure,
    Fault::Twice,
    Fault::Silence,
    Fault::TakenBack,
];

/// Only updates use permits; most of an update happens in one order only.
fn update_with(faults: &'static [Fault]) -> Scenario {
    Scenario { reconfigure: false, update: true, ..with(faults) }
}

#[test]
fn an_update() {
    check(Scenario { workers_at_once: 2, faults_max: 0, ..update_with(&[]) }, 277);
}

#[test]
fn an_update_and_anything_goes_wrong() {
    check(update_with(IN_AN_UPDATE), 16_593);
}
