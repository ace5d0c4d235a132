//! Permits: a disruptive item starts only soon after its permit, in the process that received it.

use muster_proto::model::Permit;

use super::*;

const PERMIT_MS: u64 = 30_000;

fn permitted(number: u64) -> AssignedItem {
    AssignedItem { permit: Some(Permit { number, start_within_ms: PERMIT_MS }), ..item("a", "1") }
}

fn asked(effects: &[Effect]) -> Option<u64> {
    effects.iter().find_map(|effect| match effect {
        Effect::Send(ToCoordinator::PermitWanted(permit)) => Some(*permit),
        _ => None,
    })
}

/// An agent with a link and a full disk, so that received items wait.
fn held_up() -> Rig {
    let mut rig = Rig::new();
    rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
    rig.step(Input::DiskFull(true));
    rig
}

#[test]
fn a_permit_counts_from_its_receipt_and_runs_out() {
    for (late_ms, starts) in [(0, true), (PERMIT_MS - 1, true), (PERMIT_MS, false), (PERMIT_MS * 9, false)] {
        let mut rig = held_up();
        assert_eq!(started_key(&rig.receive(assignment(1, 1, vec![permitted(1)]))), None);
        rig.now.mono_ms += late_ms;
        let effects = rig.step(Input::DiskFull(false));
        assert_eq!(started_key(&effects).is_some(), starts, "{late_ms} ms late");
        assert_eq!(asked(&effects).is_none(), starts, "{late_ms} ms late");
        assert!(starts || rig.core.wake_at().is_none(), "it waits for the coordinator, not for time");
    }
}

#[test]
fn after_a_restart_it_asks_and_a_new_permit_lets_it_go_on() {
    let mut rig = held_up();
    rig.receive(assignment(1, 1, vec![permitted(1)]));
    let mut rig = rig.restarted();
    assert_eq!(started_key(&rig.started("boot-1")), None, "nobody knows how old the permit is");
    assert_eq!(asked(&rig.step(Input::LinkUp { epoch: Epoch(2), code: AuthCode::NONE })), Some(1));
    let again = rig.receive(assignment(2, 1, vec![permitted(1)]));
    assert_eq!((started_key(&again), asked(&again)), (None, None), "the same permit, sent again, counts no more");
    assert_eq!(asked(&rig.step(Input::LinkUp { epoch: Epoch(2), code: AuthCode::NONE })), Some(1), "once a session");
    assert_eq!(started_key(&rig.receive(assignment(2, 2, vec![permitted(2)]))), Some(key("a", 2, 1)));
}

#[test]
fn a_permit_grows_no_younger_in_a_new_list() {
    for restarted in [false, true] {
        let mut rig = held_up();
        rig.receive(assignment(1, 1, vec![permitted(1)]));
        rig.now.mono_ms += PERMIT_MS;
        if restarted {
            rig = rig.restarted();
            rig.started("boot-1");
        }
        rig.receive(assignment(1, 2, vec![permitted(1)]));
        assert_eq!(started_key(&rig.step(Input::DiskFull(false))), None, "restarted: {restarted}");
    }
}

#[test]
fn an_attempt_recorded_but_not_started_waits_for_a_permit_too() {
    let mut rig = Rig::new();
    rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
    assert_eq!(started_key(&rig.receive(assignment(1, 1, vec![permitted(1)]))), Some(key("a", 1, 1)));
    let mut rig = rig.restarted();
    rig.started("boot-1");
    let not_started = Input::Inspected { key: key("a", 1, 1), found: Found::NotStarted };
    assert_eq!(started_key(&rig.step(not_started)), None);
    assert_eq!(asked(&rig.step(Input::LinkUp { epoch: Epoch(2), code: AuthCode::NONE })), Some(1));
    let effects = rig.receive(assignment(2, 2, vec![permitted(2)]));
    assert_eq!(started_key(&effects), Some(key("a", 1, 1)), "the same attempt, under the new permit");
}

#[test]
fn a_retry_needs_a_permit_of_its_own() {
    for ran_ms in [0, PERMIT_MS] {
        let mut rig = Rig::new();
        rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
        rig.receive(assignment(1, 1, vec![permitted(1)]));
        rig.now.mono_ms += ran_ms;
        rig.end(key("a", 1, 1), FAILED);
        rig.now.mono_ms += BACKOFF_MS_MIN * 2;
        let effects = rig.step(Input::Tick);
        assert_eq!((started_key(&effects), asked(&effects)), (None, Some(1)), "it ran for {ran_ms} ms");
        let effects = rig.receive(assignment(1, 2, vec![permitted(2)]));
        assert_eq!(started_key(&effects), Some(key("a", 2, 2)), "it ran for {ran_ms} ms");
    }
}

#[test]
fn what_needs_no_permit_uses_none_up() {
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![item("b", "1"), permitted(1)]));
    let effects = rig.end(key("b", 1, 1), ItemState::Succeeded);
    assert_eq!(started_key(&effects), Some(key("a", 1, 1)));
}

#[test]
fn what_needs_no_permit_asks_for_none() {
    let mut rig = held_up();
    rig.receive(assignment(1, 1, vec![item("a", "1")]));
    rig.now.mono_ms += PERMIT_MS * 9;
    assert_eq!(started_key(&rig.step(Input::DiskFull(false))), Some(key("a", 1, 1)));
}
