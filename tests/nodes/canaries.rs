//! Known values are used as join token, as secrets and as a registry's password, along with the tokens of a swarm. The
//! tests search for them in every byte that the fleet produced, also after failures.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use muster_proto::resource::Machine;
use muster_tests::{
    fleet::manifest::{named_cluster, other},
    nodes::{Nodes, node::Node},
};

use crate::{
    places::{has_none, nowhere, places_on},
    site::item,
    swarm::{join, leave, tokens},
};

/// Name of the cluster and of the machine.
const NAME: &str = "canaries";
const NODE: &str = "worker-3";
/// Name of the cluster with a worker that fails to join the swarm.
const OUTSIDE: &str = "outside";
/// From now on this machine reaches another server in place of any swarm manager, with answers that no manager gives,
/// until the unit is stopped.
const MISLEAD: &str = "systemd-run --quiet --unit misled --property \
    'ExecStopPost=/usr/sbin/iptables -t nat -D OUTPUT -p tcp --dport 2377 -j REDIRECT --to-ports 2999' \
    python3 -m http.server 2999
iptables -t nat -I OUTPUT -p tcp --dport 2377 -j REDIRECT --to-ports 2999";
/// Runtime files that contain one of the values.
const HOLDS: &str = "grep --recursive --files-with-matches --devices=skip --fixed-strings --file=- /run || true";
/// One line, for use in a script.
const PLAYBOOK: &str =
    "[{hosts: all, gather_facts: no, tasks: [{name: reach, fail: {msg: \"cannot reach {{ dsn }}\"}}]}]";
const WAITS: &str = "until [ -e /var/tmp/go ]; do sleep 0.1; done; rm /var/tmp/go";

pub(crate) fn no_secret_is_found(fleet: &Nodes) -> Result<()> {
    // New in each run: an earlier run may have left its values in a cache.
    let salt = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let (database, password) = (format!("canary-database-{salt}"), format!("canary-registry-{salt}"));
    fleet.secret("database", &format!("{NAME},{OUTSIDE}"), &database)?.exits(0)?;
    fleet.secret("registry", &format!("{NAME},{OUTSIDE}"), &password)?.exits(0)?;
    let node = fleet.node(NODE)?;
    fleet.begin_anew(node)?;
    fleet.apply(&named_cluster(NAME, (1, 0), &items(), &[], &[]))?;
    let token = fleet.token(NAME, "control", 1)?;
    let values = [database.as_str(), &password, secret_of(&token)?];
    node.enroll(NAME, &token)?.exits(0)?;

    // While the item runs, the values are in the files that are meant to hold them.
    node.wait_started("good")?;
    let found = places_on(node, &values)?;
    let meant = |place: &str| place.starts_with("/run/") && place.contains("/inputs/");
    ensure!(!found.is_empty() && found.lines().all(meant), "while the item runs:\n{found}");
    node.sh("touch /var/tmp/go")?;

    for (item, failure) in [("login", "exit status 1"), ("play", "cannot reach [redacted]"), ("fetch", "no mirror")] {
        fails(fleet, NAME, item, failure)?;
        let logs = fleet.ctl(&["logs", NAME, item])?.exits(0)?;
        has_none(&format!("logs of {item}"), &(logs.out + &logs.err), &values)?;
        fleet.ctl(&["skip", NAME, item])?.exits(0)?;
    }
    fleet.wait_ready(NAME)?;
    nowhere(fleet, NAME, &values)
}

/// The secret part of a join token.
fn secret_of(token: &str) -> Result<&str> {
    token.split('.').nth(1).context("a token's secret")
}

/// A worker that has its token fails to join: the address of the manager leads to another server.
pub(crate) fn no_token_is_found_after_a_join_that_fails(fleet: &Nodes) -> Result<()> {
    let (control, worker) = (fleet.node("control-1")?, fleet.node(NODE)?);
    for node in [control, worker] {
        fleet.begin_anew(node)?;
        leave(node)?;
    }
    worker.sh(MISLEAD)?;
    let looked = join_fails(fleet, control, worker);
    worker.sh("systemctl stop misled")?;
    looked
}

fn join_fails(fleet: &Nodes, control: &Node, worker: &Node) -> Result<()> {
    let advertise = [("advertise", "${machine.internalIP}")];
    let misled = other("misled", "swarm-join", "deploy", &advertise, &["retries: 0"]);
    fleet.apply(&named_cluster(OUTSIDE, (1, 1), &[join()], &[misled], &[]))?;
    let control_token = fleet.token(OUTSIDE, "control", 1)?;
    let worker_token = fleet.token(OUTSIDE, "worker", 1)?;
    control.enroll("outside-1", &control_token)?.exits(0)?;
    worker.enroll("outside-2", &worker_token)?.exits(0)?;
    worker.wait_until("it tries to join", || {
        Ok(!worker.sh("ls /run/systemd/transient | grep muster-item")?.is_empty())
    })?;
    let tokens = tokens(control)?;
    let own = [secret_of(&control_token)?, secret_of(&worker_token)?];
    let values: Vec<&str> = tokens.iter().map(String::as_str).chain(own).collect();
    worker.wait_until("it has the token while it tries", || {
        Ok(worker.run_with(&["sh", "-c", HOLDS], &values.join("\n"))?.out.contains("/inputs/"))
    })?;
    fails(fleet, "outside-2", "misled", "NoManagerReachable")?;

    let logs = fleet.ctl(&["logs", "outside-2", "misled"])?.exits(0)?;
    has_none("logs of the join", &(logs.out + &logs.err), &values)?;
    nowhere(fleet, "outside-2", &values)
}

/// An item that succeeds and prints its secrets, and others that fail while using them.
fn items() -> [String; 5] {
    let with = |item: String, param: &str| item.replacen("params:", &format!("params:\n          {param}"), 1);
    let dsn = "dsn: 'postgres://app:${secret.database}@db/app'";
    let good = format!("set -x; cat \"$MUSTER_SECRET_DATABASE_FILE\" \"$MUSTER_PARAM_DSN_FILE\" >&2\n{WAITS}");
    let login = "docker login --username site --password-stdin operator:8080 <\"$MUSTER_SECRET_REGISTRY_FILE\"";
    let once = ["retries: 0"];
    let play = [("playbook", "/var/tmp/fails.yml"), ("dsn", "${secret.database}")];
    let url = "http://app:${secret.registry}@operator:9/x?key=${secret.database}";
    let sum = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let fetch = [("url", url), ("sha256", sum), ("path", "/var/tmp/never")];
    [
        item("playbook", "prepare", &format!("echo '{PLAYBOOK}' >/var/tmp/fails.yml"), &[]),
        with(item("good", "deploy", &good, &[]), dsn),
        with(item("login", "deploy", login, &once), "registry: '${secret.registry}'"),
        other("play", "ansible", "deploy", &play, &once),
        other("fetch", "downloader", "deploy", &fetch, &once),
    ]
}

/// The item fails for this reason.
fn fails(fleet: &Nodes, machine: &str, item: &str, failure: &str) -> Result<()> {
    let failed = |machine: &Machine| {
        let status = machine.status.state_item_statuses.get(item);
        status.is_some_and(|status| status.state == "Failed" && status.message.contains(failure))
    };
    fleet.wait_machine(machine, &format!("{item}: {failure}"), failed).map(drop)
}
