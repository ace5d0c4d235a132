use super::*;
use crate::{LINK_MESSAGE_BYTES_MAX, Message as _};

fn swarm_id(text: &str) -> SwarmId {
    SwarmId::new(text).expect("an id")
}

fn node(address: &str) -> SwarmNode {
    SwarmNode {
        id: swarm_id("n1"),
        hostname: "edge-7-c1".to_owned(),
        state: SwarmNodeState::Down,
        availability: SwarmAvailability::Drain,
        manager: Some(SwarmManager { leader: false, reachable: true, address: address.to_owned() }),
    }
}

#[test]
fn calls_come_back_as_they_went() {
    let node = swarm_id("n1");
    for op in [
        SwarmOp::Info,
        SwarmOp::Tokens,
        SwarmOp::Nodes,
        SwarmOp::Tasks { node: node.clone() },
        SwarmOp::Services { node: node.clone() },
        SwarmOp::SetAvailability { node: node.clone(), availability: SwarmAvailability::Pause },
        SwarmOp::Demote { node: node.clone() },
        SwarmOp::Remove { node: node.clone(), hostname: "edge-7-c1".to_owned(), force: true },
        SwarmOp::Leave { node },
    ] {
        let call = SwarmCall { id: 7, epoch: Epoch(3), op };
        assert_eq!(SwarmCall::try_from(wire::SwarmCall::from(&call)), Ok(call));
    }
}

#[test]
fn answers_come_back_as_they_went() {
    let info = SwarmInfo {
        state: SwarmLocalState::Locked,
        node: None,
        manager: false,
        hostname: "h".to_owned(),
        error: "e".to_owned(),
    };
    let tokens = SwarmTokens { swarm: swarm_id("s"), manager: "SWMTKN-m".to_owned(), worker: "SWMTKN-w".to_owned() };
    let worker = SwarmNode { manager: None, ..node("") };
    let task = SwarmTask { id: swarm_id("t"), service: "web".to_owned(), state: "running".to_owned() };
    for result in [
        Err(SwarmFailure { code: SwarmFailureCode::NoQuorum, message: "no leader".to_owned() }),
        Ok(SwarmReply::Info(info)),
        Ok(SwarmReply::Tokens(tokens)),
        Ok(SwarmReply::Nodes(vec![node("10.0.0.1:2377"), worker])),
        Ok(SwarmReply::Tasks(vec![task])),
        Ok(SwarmReply::Services(vec![SwarmService { name: "web".to_owned(), wanted: 3, running: 2 }])),
        Ok(SwarmReply::Done),
    ] {
        let answer = SwarmAnswer { id: 9, result };
        assert_eq!(SwarmAnswer::try_from(wire::SwarmAnswer::from(&answer)), Ok(answer));
    }
}

fn call_fault(change: impl FnOnce(&mut wire::SwarmCall)) -> &'static str {
    let op = SwarmOp::Remove { node: swarm_id("n1"), hostname: "h".to_owned(), force: false };
    let mut call = wire::SwarmCall::from(&SwarmCall { id: 1, epoch: Epoch(1), op });
    change(&mut call);
    SwarmCall::try_from(call).expect_err("a fault").field
}

#[test]
fn calls_that_are_none() {
    assert_eq!(call_fault(|call| call.epoch = 0), "swarm_call.epoch");
    assert_eq!(call_fault(|call| call.epoch = u64::MAX), "swarm_call.epoch");
    assert_eq!(call_fault(|call| call.op = None), "swarm_call.op");
    let bad_node = Op::Tasks(wire::SwarmTasksOp { node_id: "../images".to_owned() });
    assert_eq!(call_fault(|call| call.op = Some(bad_node)), "swarm_call.tasks.node_id");
    let no_word = Op::SetAvailability(wire::SwarmAvailabilityOp { node_id: "n1".to_owned(), availability: 0 });
    assert_eq!(call_fault(|call| call.op = Some(no_word)), "swarm.availability");
    let empty = Op::Demote(wire::SwarmDemoteOp::default());
    assert_eq!(call_fault(|call| call.op = Some(empty)), "swarm_call.demote.node_id");
    let unknown = Op::SetAvailability(wire::SwarmAvailabilityOp { node_id: "n1".to_owned(), availability: 99 });
    assert_eq!(call_fault(|call| call.op = Some(unknown)), "swarm.availability");
    let no_node = Op::SetAvailability(wire::SwarmAvailabilityOp { node_id: String::new(), availability: 1 });
    assert_eq!(call_fault(|call| call.op = Some(no_node)), "swarm_call.set_availability.node_id");
    let nobody = Op::Remove(wire::SwarmRemoveOp { node_id: String::new(), hostname: "h".to_owned(), force: false });
    assert_eq!(call_fault(|call| call.op = Some(nobody)), "swarm_call.remove.node_id");
    let long_host =
        Op::Remove(wire::SwarmRemoveOp { node_id: "n1".to_owned(), hostname: "x".repeat(257), force: false });
    assert_eq!(call_fault(|call| call.op = Some(long_host)), "swarm_call.remove.hostname");
    let no_host =
        Op::Remove(wire::SwarmRemoveOp { node_id: "n1".to_owned(), hostname: "a\nb".to_owned(), force: false });
    assert_eq!(call_fault(|call| call.op = Some(no_host)), "swarm_call.remove.hostname");
}

fn answer_fault(result: Option<WireResult>) -> WireError {
    SwarmAnswer::try_from(wire::SwarmAnswer { id: 1, result }).expect_err("a fault")
}

#[test]
fn answers_that_are_none() {
    assert_eq!(answer_fault(None).field, "swarm_answer.result");
    let failure = wire::SwarmFailure { code: 99, message: String::new() };
    assert_eq!(answer_fault(Some(WireResult::Failure(failure))).field, "swarm.failure.code");
    let good = wire::SwarmNode::from(&node("10.0.0.1:2377"));
    for (change, field) in [
        (wire::SwarmNode { id: "a/b".to_owned(), ..good.clone() }, "swarm.node.id"),
        (wire::SwarmNode { state: 0, ..good.clone() }, "swarm.node.state"),
        (wire::SwarmNode { hostname: "x".repeat(NAME_BYTES_MAX + 1), ..good.clone() }, "swarm.node.hostname"),
        (wire::SwarmNode { address: "a\0b".to_owned(), ..good.clone() }, "swarm.node.address"),
    ] {
        let nodes = wire::SwarmNodes { nodes: vec![change] };
        assert_eq!(answer_fault(Some(WireResult::Nodes(nodes))).field, field);
    }
    let nodes = wire::SwarmNodes { nodes: vec![good; SWARM_NODES_MAX + 1] };
    assert_eq!(answer_fault(Some(WireResult::Nodes(nodes))).field, "swarm_answer.nodes");
    let tasks = wire::SwarmTasks { tasks: vec![wire::SwarmTask::default(); SWARM_TASKS_MAX + 1] };
    assert_eq!(answer_fault(Some(WireResult::Tasks(tasks))).field, "swarm_answer.tasks");
    let services = wire::SwarmServices { services: vec![wire::SwarmService::default(); SWARM_SERVICES_MAX + 1] };
    assert_eq!(answer_fault(Some(WireResult::Services(services))).field, "swarm_answer.services");
}

#[test]
fn a_token_is_shown_nowhere_and_a_bad_one_is_not_echoed() {
    let tokens = |manager: &str| wire::SwarmTokens {
        swarm_id: "s".to_owned(),
        manager: manager.to_owned(),
        worker: "SWMTKN-w".to_owned(),
    };
    let wired = wire::SwarmAnswer { id: 1, result: Some(WireResult::Tokens(tokens("SWMTKN-m"))) };
    assert!(!format!("{wired:?}").contains("SWMTKN"), "{wired:?}");
    for bad in ["", "SWMTKN 1", "SWMTKN\n", &"S".repeat(TOKEN_BYTES_MAX + 1)] {
        let error = answer_fault(Some(WireResult::Tokens(tokens(bad))));
        assert_eq!((error.field, error.problem), ("swarm_answer.tokens.manager", "not a token"));
    }
}

#[test]
fn the_largest_answer_fits_into_a_message() {
    let long = || "h".repeat(63);
    let id = || SwarmId::new("x".repeat(25)).expect("an id");
    let full = SwarmNode { id: id(), hostname: long(), ..node("[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:2377") };
    let task = SwarmTask { id: id(), service: long(), state: "preparing".to_owned() };
    let service = SwarmService { name: long(), wanted: u32::MAX, running: u32::MAX };
    for reply in [
        SwarmReply::Nodes(vec![full; SWARM_NODES_MAX]),
        SwarmReply::Tasks(vec![task; SWARM_TASKS_MAX]),
        SwarmReply::Services(vec![service; SWARM_SERVICES_MAX]),
    ] {
        let answer = wire::SwarmAnswer::from(&SwarmAnswer { id: u64::MAX, result: Ok(reply) });
        assert!(answer.encoded_len() < LINK_MESSAGE_BYTES_MAX, "{}", answer.encoded_len());
    }
}

#[test]
fn parts_of_answers_that_are_none() {
    let info = wire::SwarmInfo { state: 1, hostname: "h".to_owned(), ..Default::default() };
    SwarmInfo::try_from(info.clone()).expect("in no swarm");
    for (change, field) in [
        (wire::SwarmInfo { state: 0, ..info.clone() }, "swarm.info.state"),
        (wire::SwarmInfo { state: 99, ..info.clone() }, "swarm.info.state"),
        (wire::SwarmInfo { node_id: "a/b".to_owned(), ..info.clone() }, "swarm_answer.info.node_id"),
        (wire::SwarmInfo { hostname: "x".repeat(257), ..info.clone() }, "swarm_answer.info.hostname"),
        (wire::SwarmInfo { error: "a\nb".to_owned(), ..info }, "swarm_answer.info.error"),
    ] {
        assert_eq!(answer_fault(Some(WireResult::Info(change))).field, field);
    }
    let tokens = wire::SwarmTokens { swarm_id: "s".to_owned(), manager: "m".to_owned(), worker: "w".to_owned() };
    for (change, field) in [
        (wire::SwarmTokens { swarm_id: String::new(), ..tokens.clone() }, "swarm_answer.tokens.swarm_id"),
        (wire::SwarmTokens { manager: String::new(), ..tokens.clone() }, "swarm_answer.tokens.manager"),
        (wire::SwarmTokens { manager: "x".repeat(257), ..tokens.clone() }, "swarm_answer.tokens.manager"),
        (wire::SwarmTokens { worker: "a b".to_owned(), ..tokens }, "swarm_answer.tokens.worker"),
    ] {
        assert_eq!(answer_fault(Some(WireResult::Tokens(change))).field, field);
    }
    let task = wire::SwarmTask { id: "t".to_owned(), ..Default::default() };
    for (change, field) in [
        (wire::SwarmTask::default(), "swarm.task.id"),
        (wire::SwarmTask { service: "x".repeat(257), ..task.clone() }, "swarm.task.service"),
        (wire::SwarmTask { state: "a\0".to_owned(), ..task }, "swarm.task.state"),
    ] {
        let tasks = wire::SwarmTasks { tasks: vec![change] };
        assert_eq!(answer_fault(Some(WireResult::Tasks(tasks))).field, field);
    }
    let failure = wire::SwarmFailure { code: 1, message: "a\nb".to_owned() };
    assert_eq!(answer_fault(Some(WireResult::Failure(failure))).field, "swarm_answer.failure.message");
    let node = wire::SwarmNode { availability: 99, ..wire::SwarmNode::from(&node("10.0.0.1:2377")) };
    assert_eq!(
        answer_fault(Some(WireResult::Nodes(wire::SwarmNodes { nodes: vec![node] }))).field,
        "swarm.availability"
    );
}
