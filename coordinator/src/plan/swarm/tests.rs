//! A machine's entry into the swarm: questions and answers.

use std::collections::BTreeMap;

use muster_proto::model::{
    MachineId, MachineName, SwarmAvailability, SwarmFailure, SwarmFailureCode, SwarmId, SwarmInfo, SwarmJoin,
    SwarmLocalState, SwarmManager, SwarmNode, SwarmNodeState, SwarmOp, SwarmReply, SwarmTokens, SwarmWay,
};
use uuid::Uuid;

use super::joining::{ANSWER_DEADLINE_MS, JOINING_DEADLINE_MS, Joining, LEFTOVERS_MAX, Next, NodeEntry, Refused};

const JOINER: MachineId = MachineId(Uuid::from_u128(100));

fn swarm_id(text: &str) -> SwarmId {
    SwarmId::new(text).expect("an id")
}

fn machine(n: u128) -> (MachineName, MachineId) {
    (MachineName::new(format!("c{n}")).expect("a label"), MachineId(Uuid::from_u128(n)))
}

/// `m` manager, `l` leader, `u` unreachable manager, `d` a manager that is down; capital: a worker, `D` down.
fn node(n: usize, sort: char, hostname: &str) -> SwarmNode {
    let down = sort.eq_ignore_ascii_case(&'d') || sort == 'u';
    let manager = sort.is_ascii_lowercase().then(|| SwarmManager {
        leader: sort == 'l',
        reachable: !down,
        address: format!("10.0.0.{n}:2377"),
    });
    SwarmNode {
        id: swarm_id(&format!("n{n}")),
        hostname: hostname.to_owned(),
        state: if down { SwarmNodeState::Down } else { SwarmNodeState::Ready },
        availability: SwarmAvailability::Active,
        manager,
    }
}

/// A list such as `l:c1 m:c2 D:w1`.
fn nodes(text: &str) -> SwarmReply {
    let one = |(at, word): (usize, &str)| {
        let (sort, hostname) = word.split_once(':').expect("sort:hostname");
        node(at + 1, sort.chars().next().expect("a sort"), hostname)
    };
    SwarmReply::Nodes(text.split_whitespace().enumerate().map(one).collect())
}

fn info(state: SwarmLocalState, node: Option<&str>) -> SwarmReply {
    SwarmReply::Info(SwarmInfo {
        state,
        node: node.map(swarm_id),
        manager: false,
        hostname: "me".to_owned(),
        error: String::new(),
    })
}

fn tokens() -> SwarmReply {
    let (manager, worker) = ("token-m".to_owned(), "token-w".to_owned());
    SwarmReply::Tokens(SwarmTokens { swarm: swarm_id("s"), manager, worker })
}

fn failure(code: SwarmFailureCode) -> SwarmFailure {
    SwarmFailure { code, message: "said so".to_owned() }
}

/// Run a machine's entry with these answers; return the questions, and how it ended.
fn run(manager: bool, managers: u128, answers: Vec<Result<SwarmReply, SwarmFailureCode>>) -> (Vec<String>, Next) {
    // The last node of a swarm of nine belongs to another machine.
    let others = [(swarm_id("n9"), machine(9).0)].into();
    let (mut joining, mut next) = Joining::begin(JOINER, manager, (1..=managers).map(machine).collect(), others, 0);
    let mut asked = Vec::new();
    for answer in answers {
        if let Next::Record(NodeEntry { node, availability, labels, .. }) = &next {
            asked.push(format!("record {node} {availability} {labels:?}"));
            next = joining.recorded(0);
        }
        let Next::Ask { machine, op, timeout_ms } = &next else { panic!("nothing is asked any more: {next:?}") };
        assert_eq!(*timeout_ms, ANSWER_DEADLINE_MS);
        let of = if *machine == JOINER { "me".to_owned() } else { format!("c{}", machine.0.as_u128()) };
        asked.push(match op {
            SwarmOp::Demote { node } => format!("{of} demote {node}"),
            SwarmOp::Remove { node, hostname, .. } => format!("{of} remove {node} {hostname}"),
            SwarmOp::Leave { node } => format!("{of} leave {node}"),
            SwarmOp::Labels { node } => format!("{of} labels {node}"),
            op => format!("{of} {op:?}"),
        });
        next = joining.answered(answer.map_err(failure), 0);
    }
    (asked, next)
}

fn given(next: Next) -> (SwarmWay, Option<String>) {
    match next {
        Next::Give { join: SwarmJoin { way, .. }, token } => {
            (way, token.map(|token| String::from_utf8(token.into_bytes()).expect("text")))
        }
        other => panic!("{other:?}"),
    }
}

const OUT: SwarmLocalState = SwarmLocalState::Inactive;
const IN: SwarmLocalState = SwarmLocalState::Active;

#[test]
fn each_role_gets_its_token_and_the_leader_first() {
    for (manager, token) in [(true, "token-m"), (false, "token-w")] {
        let (asked, next) = run(manager, 2, vec![Ok(info(OUT, None)), Ok(nodes("m:c1 l:c2 m:c3 R:w1")), Ok(tokens())]);
        assert_eq!(asked, ["me Info", "c1 Nodes", "c1 Tokens"]);
        let managers = ["10.0.0.2:2377", "10.0.0.1:2377", "10.0.0.3:2377"].map(str::to_owned).to_vec();
        let way = SwarmWay::Join { swarm: swarm_id("s"), managers };
        assert_eq!(given(next), (way, Some(token.to_owned())));
    }
}

#[test]
fn a_member_gets_no_token_and_a_stranger_nothing() {
    let (_, next) = run(true, 1, vec![Ok(info(IN, Some("n2"))), Ok(nodes("l:c1 m:me")), Ok(tokens())]);
    assert_eq!(given(next), (SwarmWay::Member { swarm: swarm_id("s"), node: swarm_id("n2") }, None));
    let (_, next) = run(true, 1, vec![Ok(info(IN, Some("n9"))), Ok(nodes("l:c1 d:me"))]);
    assert_eq!(given(next), (SwarmWay::Foreign { node: swarm_id("n9") }, None), "and nothing is removed");
}

#[test]
fn what_a_reinstalled_machine_left_behind_goes_first() {
    let (asked, next) = run(
        true,
        1,
        vec![
            Ok(info(OUT, None)),
            Ok(nodes("l:c1 d:me m:c3 D:me")),
            Ok(SwarmReply::Labels([("disk".to_owned(), "ssd".to_owned())].into())),
            Ok(SwarmReply::Done),
            Ok(SwarmReply::Done),
            Ok(nodes("l:c1 m:c3 m:c4 D:me")),
            Ok(SwarmReply::Labels(BTreeMap::new())),
            Ok(SwarmReply::Done),
            Ok(nodes("l:c1 m:c3")),
            Ok(tokens()),
        ],
    );
    let cleaning = [
        "c1 labels n2",
        "record n2 active {\"disk\": \"ssd\"}",
        "c1 demote n2",
        "c1 remove n2 me",
        "c1 Nodes",
        "c1 labels n4",
        "record n4 active {}",
        "c1 remove n4 me",
    ];
    assert_eq!(asked, [["me Info", "c1 Nodes"].as_slice(), &cleaning, &["c1 Nodes", "c1 Tokens"]].concat());
    assert!(matches!(next, Next::Give { .. }), "{next:?}");
    let (_, next) = run(false, 1, vec![Ok(info(OUT, None)), Ok(nodes("l:c1 R:me"))]);
    assert!(matches!(next, Next::Refuse(Refused::Hostname { .. })), "what lives is nobody's leftover: {next:?}");
    let down = "l:c1 R:w2 R:w3 R:w4 R:w5 R:w6 R:w7 D:me D:me";
    let (asked, next) = run(false, 1, vec![Ok(info(OUT, None)), Ok(nodes(down))]);
    assert_eq!(asked, ["me Info", "c1 Nodes"], "not even its own is removed before that is clear");
    let Next::Refuse(refused @ Refused::Owned { .. }) = next else { panic!("{next:?}") };
    assert!(refused.to_string().starts_with("HostnameInUse: me is the hostname of c9 too, whose node n9 is down"));
}

/// A compromised manager lists a new dead node at each question.
#[test]
fn endless_dead_nodes_end_the_attempt() {
    let round = || [Ok(nodes("l:c1 D:me")), Ok(SwarmReply::Labels(BTreeMap::new())), Ok(SwarmReply::Done)];
    let removed = usize::try_from(LEFTOVERS_MAX).expect("few");
    let mut answers = vec![Ok(info(OUT, None))];
    answers.extend((0..removed).flat_map(|_| round()));
    answers.push(Ok(nodes("l:c1 D:me")));
    let (asked, next) = run(false, 1, answers.clone());
    assert_eq!(asked.iter().filter(|line| line.starts_with("record ")).count(), removed, "{asked:?}");
    let Next::Refuse(refused @ Refused::Leftovers { .. }) = next else { panic!("{next:?}") };
    assert!(refused.to_string().contains("the manager c1, which lists them"), "{refused}");
    let at = answers.len() - 1;
    answers[at] = Ok(nodes("l:c1"));
    answers.push(Ok(tokens()));
    assert!(matches!(run(false, 1, answers).1, Next::Give { .. }), "so many are removed");
}

#[test]
fn one_more_manager_never_costs_the_majority() {
    for (list, joins) in [
        ("l:a", true),
        ("l:a m:b", true),
        ("l:a m:b m:c", true),
        ("l:a m:b u:c", false),
        ("l:a m:b m:c u:d", true),
        ("l:a m:b m:c u:d u:e", false),
    ] {
        let (_, next) = run(true, 1, vec![Ok(info(OUT, None)), Ok(nodes(list))]);
        let asks = matches!(next, Next::Ask { op: SwarmOp::Tokens, .. });
        assert_eq!(asks, joins, "{list}: {next:?}");
        assert!(joins || matches!(next, Next::Refuse(Refused::Quorum { .. })), "{list}: {next:?}");
        let (_, next) = run(false, 1, vec![Ok(info(OUT, None)), Ok(nodes(list))]);
        assert!(matches!(next, Next::Ask { op: SwarmOp::Tokens, .. }), "a worker does not vote: {next:?}");
    }
}

#[test]
fn a_manager_that_cannot_answer_is_passed_over() {
    use SwarmFailureCode::{NoQuorum, NotAllowed, Timeout};
    let (asked, next) = run(
        false,
        3,
        vec![Ok(info(OUT, None)), Err(Timeout), Ok(nodes("l:c2")), Err(NoQuorum), Ok(nodes("l:c3")), Ok(tokens())],
    );
    assert_eq!(asked, ["me Info", "c1 Nodes", "c2 Nodes", "c2 Tokens", "c3 Nodes", "c3 Tokens"]);
    assert!(matches!(next, Next::Give { .. }), "{next:?}");

    let (_, next) = run(false, 2, vec![Ok(info(OUT, None)), Err(Timeout), Err(NoQuorum)]);
    let Next::Refuse(refused) = next else { panic!("{next:?}") };
    assert_eq!(refused.to_string(), "NoManagerReachable: c1: Timeout: said so; c2: NoQuorum: said so");

    let (_, next) = run(false, 2, vec![Ok(info(OUT, None)), Ok(nodes("l:c1 D:me")), Err(NotAllowed)]);
    assert!(matches!(next, Next::Refuse(Refused::Swarm { .. })), "another would say the same: {next:?}");
    let (_, next) = run(false, 2, vec![Err(SwarmFailureCode::Engine)]);
    assert!(matches!(next, Next::Refuse(Refused::Engine(_))), "{next:?}");
}

#[test]
fn time_runs_out_for_all_managers_together() {
    let (mut joining, _) = Joining::begin(JOINER, false, vec![machine(1), machine(2)], BTreeMap::new(), 1_000);
    let late = 1_000 + JOINING_DEADLINE_MS;
    let next = joining.answered(Ok(info(OUT, None)), late - 5);
    assert!(matches!(next, Next::Ask { timeout_ms: 5, .. }), "{next:?}");
    let next = joining.answered(Err(failure(SwarmFailureCode::Timeout)), late);
    assert!(matches!(next, Next::Refuse(Refused::NoManager(_))), "{next:?}");
}
