use std::collections::BTreeMap;

use muster_proto::model::{SwarmAvailability, SwarmManager, SwarmNode, SwarmNodeState};

use super::*;

fn request(params: &[(&str, &str)]) -> Request {
    serde_json::from_value(serde_json::json!({
        "key": { "item": "copy", "generation": 1, "attempt": 1 },
        "machine": "c1",
        "cluster": "edge",
        "runner": "swarm-backup",
        "version": "1",
        "phase": "deploy",
        "params": params.iter().copied().collect::<BTreeMap<_, _>>(),
        "timeout_ms": 1_000,
    }))
    .expect("a request")
}

#[test]
fn params_are_checked() {
    let good = Wanted::of(&request(&[("mode", "hot")])).expect("good");
    assert_eq!(good.mode, Mode::Hot);
    let all = [("mode", "consistent"), ("path", "/b"), ("keep", "100")];
    assert_eq!(Wanted::of(&request(&all)).expect("good").mode, Mode::Consistent);
    for bad in [
        &[][..],
        &[("mode", "cold")],
        &[("mode", "hot"), ("path", "b")],
        &[("mode", "hot"), ("path", "/b/../etc")],
        &[("mode", "hot"), ("keep", "0")],
        &[("mode", "hot"), ("keep", "101")],
        &[("mode", "hot"), ("keep", "many")],
    ] {
        assert!(Wanted::of(&request(bad)).is_err(), "{bad:?}");
    }
}

/// `l` leader, `m` manager, `u` unreachable manager, `w` worker. This machine is the first.
fn seen(nodes: &str) -> Seen {
    let id = |n: usize| SwarmId::new(format!("n{n}")).expect("an id");
    let node = |(n, sort): (usize, char)| SwarmNode {
        id: id(n),
        hostname: format!("h{n}"),
        state: SwarmNodeState::Ready,
        availability: SwarmAvailability::Active,
        manager: (sort != 'w').then(|| SwarmManager {
            leader: sort == 'l',
            reachable: sort != 'u',
            address: String::new(),
        }),
    };
    Seen {
        state: SwarmLocalState::Active,
        node: Some(id(0)),
        manager: !nodes.starts_with('w'),
        swarm_id: "s".to_owned(),
        autolock: false,
        engine_version: "20.10".to_owned(),
        root_dir: PathBuf::from("/var/lib/docker"),
        nodes: nodes.chars().enumerate().map(node).collect(),
    }
}

#[test]
fn docker_is_stopped_only_where_the_others_keep_the_majority() {
    for (nodes, hot, consistent) in [
        ("mlm", "", ""),
        ("mlmww", "", ""),
        ("lmm", "", "SwarmLeader"),
        ("ml", "", "QuorumAtRisk"),
        ("l", "", "SwarmLeader"),
        ("mlu", "", "QuorumAtRisk"),
        ("mlmmu", "", "QuorumAtRisk"),
        ("wlmm", "NotManager", "NotManager"),
    ] {
        for (mode, expected) in [(Mode::Hot, hot), (Mode::Consistent, consistent)] {
            let error = may_copy(mode, &seen(nodes)).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(
                error.starts_with(expected) && error.is_empty() == expected.is_empty(),
                "{nodes} {mode:?}: {error}"
            );
        }
    }
    let outside = Seen { state: SwarmLocalState::Inactive, ..seen("m") };
    assert!(matches!(may_copy(Mode::Hot, &outside), Err(BackupError::NotManager)));
}
