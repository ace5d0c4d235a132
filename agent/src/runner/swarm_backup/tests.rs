use std::{collections::BTreeMap, fs};

use muster_proto::model::{SwarmAvailability, SwarmManager, SwarmNode, SwarmNodeState};

use super::*;
use crate::attempt::AttemptDir;

fn request(params: &[(&str, &str)]) -> Request {
    serde_json::from_value(serde_json::json!({
        "key": { "item": "copy", "generation": 1, "attempt": 1 },
        "hash": "0".repeat(64),
        "machine": "c1",
        "machine_id": uuid::Uuid::nil(),
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
        ("mlm", "hot", "consistent"),
        ("mlmww", "hot", "consistent"),
        ("lmm", "hot", "hot, for this manager leads the swarm"),
        ("lmu", "hot", "hot, for this manager leads the swarm"),
        ("l", "hot", "hot, for this manager leads the swarm"),
        ("ml", "hot", "hot, for the swarm has 2 managers; of fewer than 3 none is stopped"),
        ("mlu", "hot", "QuorumAtRisk: a consistent copy stops Docker on one manager, and h2 cannot be reached"),
        ("mlmmu", "hot", "QuorumAtRisk: a consistent copy stops Docker on one manager, and h4 cannot be reached"),
        ("wlmm", "NotManager", "NotManager"),
    ] {
        for (mode, expected) in [(Mode::Hot, hot), (Mode::Consistent, consistent)] {
            let found = match choose(mode, &seen(nodes)) {
                Ok(Choice { mode, hot_because: None }) => mode.as_str().to_owned(),
                Ok(Choice { mode, hot_because: Some(why) }) => format!("{}, for {why}", mode.as_str()),
                Err(error) => error.to_string(),
            };
            let says = |error: &str| expected.starts_with(char::is_uppercase) && error.starts_with(expected);
            assert!(found == expected || says(&found), "{nodes} {mode:?}: {found}");
        }
    }
    let outside = Seen { state: SwarmLocalState::Inactive, ..seen("m") };
    assert!(matches!(choose(Mode::Hot, &outside), Err(BackupError::NotManager)));
}

#[test]
fn the_record_says_what_kind_of_copy_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("copies");
    let wanted = Wanted::of(&request(&[("mode", "consistent"), ("path", &path.to_string_lossy())])).expect("good");
    fs::create_dir_all(dir.path().join("swarm/raft")).expect("a directory");
    fs::write(dir.path().join("swarm/raft/wal"), "log").expect("written");
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    let report = Report::new(writer, AttemptDir::new(dir.path().join("attempt")));
    let leader = Seen { root_dir: dir.path().to_owned(), ..seen("lmm") };
    let outcome = copy(&wanted, &leader, &report).expect("a copy");
    assert!(
        outcome.message.starts_with("hot copy, not a consistent one: this manager leads the swarm; "),
        "{outcome:?}"
    );
    let result: serde_json::Value = serde_json::from_str(&outcome.result_json.expect("a result")).expect("JSON");
    let label = &result["label"];
    assert_eq!((&label["mode"], &label["leader"]), (&"hot".into(), &true.into()));
    assert_eq!(label["hotBecause"], "this manager leads the swarm");
    let names: Vec<_> =
        fs::read_dir(&path).expect("listed").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names.len(), 1);
    assert!(names[0].to_string_lossy().starts_with("swarm-c1-hot-"), "{names:?}");
    // The archive contains it too, for a reader who lacks the record.
    let archive = fs::read(path.join(&names[0])).expect("read");
    assert!(String::from_utf8_lossy(&archive).contains(r#""hotBecause": "this manager leads the swarm""#));
}
