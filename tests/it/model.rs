//! Models, each gone through as a whole: the number of states is written down, so that an accidental cut is noticed. It
//! changes with whatever the cores do; that it is still about what it was is for the eye.

use muster_proto::model::Counts;
use muster_tests::model::{Fault, Outcome, Scenario};

/// The last control machine and the last worker: each has another of its type in the same place.
const LAST_OF_ITS_TYPE: &[usize] = &[2, 4];

/// Three control machines and two workers, and this may go wrong once.
fn with(faults: &'static [Fault]) -> Scenario {
    let counts = Counts { control: 3, worker: 2 };
    Scenario { counts, prepare: false, reconfigure: true, faults, spared: &[], faults_max: 1, plant: None }
}

fn check(scenario: Scenario, states: usize) {
    let outcome = scenario.check();
    if let Some((property, seen)) = &outcome.broken {
        panic!("{property}: {seen}");
    }
    assert_eq!(outcome, Outcome { states, broken: None, ready_after_faults: true });
}

#[test]
fn nothing_goes_wrong() {
    check(Scenario { prepare: true, faults_max: 0, ..with(&[]) }, 1_086);
}

#[test]
fn the_coordinator_crashes() {
    check(Scenario { reconfigure: false, ..with(&[Fault::CoordinatorCrash]) }, 8_771);
}

#[test]
fn an_agent_crashes() {
    check(Scenario { spared: LAST_OF_ITS_TYPE, ..with(&[Fault::AgentCrash]) }, 12_809);
}

#[test]
fn a_machine_loses_power() {
    check(with(&[Fault::PowerCut]), 3_751);
}

#[test]
fn a_stream_breaks() {
    check(Scenario { reconfigure: false, spared: LAST_OF_ITS_TYPE, ..with(&[Fault::Cut]) }, 7_978);
}

#[test]
fn a_list_comes_late() {
    check(Scenario { spared: LAST_OF_ITS_TYPE, ..with(&[Fault::Late]) }, 2_077);
}

#[test]
fn a_program_fails() {
    check(with(&[Fault::Failure]), 1_839);
}

/// Three machines: every order of five of them, twice, is too much. Two of either type can collide.
#[test]
fn an_old_store_takes_the_place_of_the_newest() {
    for (control, worker, states) in [(2, 1, 9_814), (1, 2, 9_647)] {
        let counts = Counts { control, worker };
        check(Scenario { counts, reconfigure: false, faults_max: 2, ..with(&[Fault::OldStore]) }, states);
    }
}
