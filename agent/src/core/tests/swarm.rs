//! An item that joins its machine to the swarm: it waits for the join token and reports it.

use super::*;

#[test]
fn a_swarm_join_waits_for_the_way_in() {
    let mut join = item("a", "1");
    join.runner = "swarm-join".to_owned();
    join.params = [("advertise".to_owned(), "${machine.internalIP}".to_owned())].into();
    join.hash = join.computed_hash();
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![join]));
    let waits = "WaitingForSwarm: item a waits for the way into the swarm: ";
    let no_session = format!("{waits}there is no session with the coordinator");
    assert_eq!(blocked_message(&rig), Some(no_session));
    let effects = rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
    assert_eq!((fetched_key(&effects), started_key(&effects)), (Some(key("a", 1, 1)), None));
    rig.step(fetched(key("a", 1, 1), 1, Err("QuorumAtRisk: 2 of 3")));
    assert_eq!(blocked_message(&rig), Some(format!("{waits}QuorumAtRisk: 2 of 3")));
    rig.now.mono_ms = rig.core.wake_at().expect("it asks again");
    assert_eq!(fetched_key(&rig.step(Input::Tick)), Some(key("a", 1, 1)));
    let effects = rig.step(fetched(key("a", 1, 1), 1, Ok(())));
    assert!(request(&effects).expect("started").secret_params.is_empty());
    assert_eq!(blocked_message(&rig), None);
}
