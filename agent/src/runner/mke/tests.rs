use std::collections::BTreeMap;

use super::{run::tag_of, *};

fn wanted(params: &[(&str, &str)]) -> Result<Wanted, String> {
    let request: Request = serde_json::from_value(serde_json::json!({
        "key": { "item": "mke", "generation": 1, "attempt": 1 },
        "hash": "0".repeat(64),
        "machine": "c1",
        "machine_id": uuid::Uuid::nil(),
        "cluster": "edge",
        "runner": "mke",
        "version": "1",
        "phase": "deploy",
        "params": params.iter().copied().collect::<BTreeMap<_, _>>(),
        "timeout_ms": 1_000,
    }))
    .expect("a request");
    Wanted::of(&request).map_err(|refused| refused.to_string())
}

#[test]
fn params_are_checked() {
    let install = [("action", "install"), ("version", "3.7.1")];
    let good = wanted(&install).expect("good");
    assert_eq!((good.image.as_str(), good.port, good.admin), (IMAGE_DEFAULT, PORT_DEFAULT, None));
    assert!(wanted(&[("action", "backup")]).expect("good").version.is_none());
    let args = wanted(&[("action", "backup"), ("args", " --no-passphrase\n--debug ")]).expect("good").args;
    assert_eq!(args, ["--no-passphrase", "--debug"]);
    for (params, missing) in [
        (&[][..], "`action`"),
        (&[("action", "uninstall")], "`action`"),
        (&[("action", "upgrade")], "`version`"),
        (&[install[0], install[1], ("admin_user", "a")], "`admin_password`"),
        (&[install[0], install[1], ("admin_password", "p")], "`admin_user`"),
        (&[install[0], install[1], ("port", "70000")], "`port`"),
        (&[("action", "backup"), ("keep", "0")], "`keep`"),
    ] {
        let refused = wanted(params).err().expect("refused");
        assert!(refused.contains(missing), "{params:?}: {refused}");
    }
}

#[test]
fn what_runs_already_decides_what_is_done() {
    use Action::{Backup, Install, Upgrade};
    let run = |version: &str| Ok(Step::Run { version: version.to_owned() });
    for (action, wanted, running, in_swarm, expected) in [
        (Install, Some("2"), None, false, run("2")),
        (Install, Some("2"), None, true, Ok(Step::Confirm)),
        (Install, Some("2"), Some("2"), false, Ok(Step::Confirm)),
        (Install, Some("2"), Some("1"), false, Err("MkeOtherVersion")),
        (Upgrade, Some("2"), Some("1"), false, run("2")),
        (Upgrade, Some("2"), Some("2"), false, Ok(Step::Confirm)),
        (Upgrade, Some("2"), None, true, Err("MkeNotInstalled")),
        (Backup, None, Some("1"), false, run("1")),
        (Backup, Some("2"), Some("1"), false, run("2")),
        (Backup, None, None, true, Err("MkeNotInstalled")),
    ] {
        let there = There { running: running.map(str::to_owned), in_swarm };
        let found = next(action, wanted, &there).map_err(|error| error.to_string());
        let same = match (&found, &expected) {
            (Ok(found), Ok(expected)) => found == expected,
            (Err(found), Err(expected)) => found.starts_with(expected),
            _ => false,
        };
        assert!(same, "{action} {wanted:?} {there:?}: {found:?}");
    }
}

#[test]
fn the_version_is_the_tag_of_the_image() {
    for (image, tag) in [
        ("mirantis/ucp-proxy:3.7.1", Some("3.7.1")),
        ("registry.example:5000/ucp-proxy:3.7.1", Some("3.7.1")),
        ("registry.example:5000/ucp-proxy", None),
        ("mirantis/ucp-proxy:3.7.1@sha256:abc", Some("3.7.1")),
        ("mirantis/ucp-proxy@sha256:abc", None),
        ("ucp-proxy", None),
        ("ucp-proxy:", None),
    ] {
        assert_eq!(tag_of(image), tag, "{image}");
    }
}
