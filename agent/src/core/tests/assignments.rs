//! Assignments: which are accepted, and how they affect running attempts.

use super::*;

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
            assert_eq!(records.first(), Some(&Record::EpochSeen(new.epoch, AuthCode::NONE)));
        }
    }
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
    // Removed from the assignment while it runs: its outcome still counts.
    assert_eq!(started_key(&rig.receive(assignment(1, 3, vec![]))), None);
    rig.end(key("a", 2, 1), FAILED);
    assert_eq!(rig.state("a"), Some(FAILED));
    assert_eq!(rig.core.wake_at(), None);
    // Added again: the next attempt continues the count.
    rig.now.mono_ms += BACKOFF_MS_MAX;
    assert_eq!(started_key(&rig.receive(assignment(1, 4, vec![item("a", "2")]))), Some(key("a", 4, 2)));
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
fn a_question_about_a_control_plane_is_answered_only_for_the_newest_coordinator() {
    use muster_proto::model::{ControlPlaneCall, ControlPlaneOp, EtcdProbe};
    let now = Now { wall_ms: 0, mono_ms: 0 };
    let call = |epoch| {
        let probe = EtcdProbe { health: "http://127.0.0.1:2381".to_owned(), ca_file: None, client: None };
        ControlPlaneCall { id: 7, epoch: Epoch(epoch), op: ControlPlaneOp::EtcdHealth(probe) }
    };
    let mut core = Core::new(config(), empty());
    drop(core.step(Input::Started { boot_id: "b".to_owned() }, now));
    drop(core.step(Input::LinkUp { epoch: Epoch(2), code: AuthCode::NONE }, now));
    let effects = core.step(Input::ControlPlaneCalled(call(3)), now);
    assert_eq!(effects.last(), Some(&Effect::AskControlPlane(call(3))));
    let effects = core.step(Input::ControlPlaneCalled(call(2)), now);
    let [Effect::Send(ToCoordinator::ControlPlane(answer))] = effects.as_slice() else { panic!("{effects:?}") };
    assert!(answer.result.as_ref().is_err_and(|why| why.contains("epoch 2 is over")), "{answer:?}");
}

#[test]
fn a_call_is_answered_beside_what_runs_and_only_for_the_newest_coordinator() {
    use muster_proto::model::{SwarmCall, SwarmFailureCode, SwarmOp};
    let call = |epoch| Input::SwarmCalled(SwarmCall { id: 7, epoch: Epoch(epoch), op: SwarmOp::Nodes });
    let now = Now { wall_ms: 0, mono_ms: 0 };
    let mut core = Core::new(config(), empty());
    for input in [
        Input::Started { boot_id: "b".to_owned() },
        Input::LinkUp { epoch: Epoch(2), code: AuthCode::NONE },
        Input::Received(assignment(2, 1, vec![item("a", "1")])),
    ] {
        drop(core.step(input, now));
    }
    assert!(core.ledger().running().is_some(), "an item runs");
    for (epoch, recorded) in [(2, false), (3, true)] {
        let effects = core.step(call(epoch), now);
        assert!(matches!(effects.last(), Some(Effect::CallSwarm(call)) if call.epoch == Epoch(epoch)), "{effects:?}");
        let seen = [Record::EpochSeen(Epoch(3), AuthCode::NONE)];
        let first = matches!(effects.first(), Some(Effect::Record(records)) if *records == seen);
        assert_eq!(first, recorded, "a higher epoch is durable before the swarm is touched: {effects:?}");
    }
    let effects = core.step(call(2), now);
    let [Effect::Send(ToCoordinator::Swarm(answer))] = effects.as_slice() else { panic!("{effects:?}") };
    let code = answer.result.as_ref().map_err(|failure| failure.code);
    assert_eq!((answer.id, code), (7, Err(SwarmFailureCode::StaleEpoch)));
}
