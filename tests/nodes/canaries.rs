//! Known values as join token, as secrets and as a registry's password: they are looked for in every byte that the
//! fleet produced, after failures too.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use muster_proto::resource::Machine;
use muster_tests::{
    fleet::manifest::{named_cluster, other},
    nodes::{Nodes, node::Node},
};

use crate::site::item;

/// Of the cluster, and of the machine.
const NAME: &str = "canaries";
const NODE: &str = "worker-3";
/// In one line, for a script.
const PLAYBOOK: &str =
    "[{hosts: all, gather_facts: no, tasks: [{name: reach, fail: {msg: \"cannot reach {{ dsn }}\"}}]}]";
const WAITS: &str = "until [ -e /var/tmp/go ]; do sleep 0.1; done; rm /var/tmp/go";
/// Reads values, a line each, and names every place on a machine that has one of them: its files (the journal's among
/// them), what its processes show of themselves, its journal as text, and what systemd knows of its units. The values
/// are never an argument.
const LOOK: &str = r#"values=$(cat)
look() { printf '%s\n' "$values" | grep --binary-files=text --fixed-strings --file=- "$@"; }
look --recursive --files-with-matches --devices=skip /etc /root /run /tmp /var /opt /srv || true
for file in /proc/[0-9]*/cmdline /proc/[0-9]*/environ; do
    look --quiet "$file" 2>/dev/null && echo "$file"
done
if command -v journalctl >/dev/null && [ -d /run/systemd/system ]; then
    journalctl --all --output=export | look --quiet && echo the journal
    systemctl show --all '*' | look --quiet && echo "properties of units"
fi
true"#;

pub(crate) fn no_secret_is_found(fleet: &Nodes) -> Result<()> {
    // Of this run: what an earlier one may have left in a cache is none of its.
    let salt = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let (database, password) = (format!("canary-database-{salt}"), format!("canary-registry-{salt}"));
    fleet.secret("database", &database)?.exits(0)?;
    fleet.secret("registry", &password)?.exits(0)?;
    let node = fleet.node(NODE)?;
    fleet.begin_anew(node)?;
    fleet.apply(&named_cluster(NAME, (1, 0), &items(), &[], &[]))?;
    let token = fleet.token(NAME, "control", 1)?;
    let values = [database.as_str(), &password, token.split('.').nth(1).context("a token's secret")?];
    node.enroll(NAME, &token)?.exits(0)?;

    // While it runs: in the files that are meant to hold it.
    node.wait_started("good")?;
    let found = places(node, &values)?;
    let meant = |place: &str| place.starts_with("/run/") && place.contains("/inputs/");
    ensure!(!found.is_empty() && found.lines().all(meant), "while the item runs:\n{found}");
    node.sh("touch /var/tmp/go")?;

    for (item, failure) in [("login", "exit status 1"), ("play", "cannot reach [redacted]"), ("fetch", "no mirror")] {
        fails(fleet, item, failure)?;
        let logs = fleet.ctl(&["logs", NAME, item])?.exits(0)?;
        has_none(&format!("logs of {item}"), &(logs.out + &logs.err), &values)?;
        fleet.ctl(&["skip", NAME, item])?.exits(0)?;
    }
    fleet.wait_ready(NAME)?;
    let found = places(node, &values)?;
    ensure!(found.is_empty(), "on the node:\n{found}");
    let found = fleet.look_at_coordinator(LOOK, &values.join("\n"))?;
    ensure!(found.is_empty(), "of the coordinator:\n{found}");
    has_none("the coordinator's log", &fleet.coordinator_log()?, &values)?;
    for kind in ["secrets", "machines", "clusters", "tokens", "audit"] {
        has_none(kind, &fleet.ctl(&["get", kind, "-o", "json"])?.ok()?, &values)?;
    }
    for words in [&["describe", "machine", NAME][..], &["get", "machines", "-o", "wide"]] {
        has_none(&words.join(" "), &fleet.ctl(words)?.ok()?, &values)?;
    }
    Ok(())
}

/// One that succeeds and says what it knows, and three that fail with it.
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

/// The item fails, for that reason.
fn fails(fleet: &Nodes, item: &str, failure: &str) -> Result<()> {
    let failed = |machine: &Machine| {
        let status = machine.status.state_item_statuses.get(item);
        status.is_some_and(|status| status.state == "Failed" && status.message.contains(failure))
    };
    fleet.wait_machine(NAME, &format!("{item}: {failure}"), failed).map(drop)
}

/// The places of a machine, one a line.
fn places(node: &Node, values: &[&str]) -> Result<String> {
    node.run_with(&["sh", "-c", LOOK], &values.join("\n"))?.ok()
}

fn has_none(what: &str, text: &str, values: &[&str]) -> Result<()> {
    ensure!(!values.iter().any(|value| text.contains(value)), "{what}:\n{text}");
    Ok(())
}
