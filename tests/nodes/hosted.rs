//! A coordinator on a node, installed from its package as in the manual: tests of its key, its files and its users, and
//! of its move to another machine. The fleet's own coordinator takes no part.

use anyhow::{Context as _, Result};
use muster_tests::{
    fleet::{manifest::named_cluster, programs::Ran},
    nodes::{Nodes, node::Node},
};
use serde_json::Value;

use crate::site::{all_of, item};

const CLUSTER: &str = "edge-7";
/// Name of the only machine in the cluster, which asks for two.
const MACHINE: &str = "hosted-1";
/// Validity of an agent's certificate, short so that one expires during the test.
const CERTIFICATE_S: u32 = 6;
const KEY: &str = "/etc/muster/coordinator.key";
const STATE: &str = "/var/lib/muster/coordinator";
/// systemd passes the key by a mount, which reaches the service only where mounts are shared. They are shared on every
/// machine, but in a container only on request.
const INSTALL: &str = "apt-get -qq install --yes /var/tmp/muster-coordinator.deb /var/tmp/musterctl.deb
mkdir /root/hosted && mount --make-rshared /";
/// Removes everything of the coordinator and of its first operator.
const REMOVE: &str = "dpkg --purge muster-coordinator musterctl && rm -rf /root/.config/muster /root/hosted";

/// Installs the coordinator's package; the service does not start before it has a record.
fn install(fleet: &Nodes, node: &Node) -> Result<()> {
    for program in ["muster-coordinator", "musterctl"] {
        node.copy_in(&fleet.package(program)?, &format!("/var/tmp/{program}.deb"))?;
    }
    node.sh(INSTALL)?;
    Ok(())
}

/// Creates a coordinator on the node with its first operator, and a cluster of two machines.
fn begin(fleet: &Nodes, node: &Node, machines: (usize, usize)) -> Result<()> {
    install(fleet, node)?;
    node.sh(&format!("muster-coordinator init --address {}", address(node)))?;
    node.sh(&format!("echo 'agent-cert-ttl = \"{CERTIFICATE_S}s\"' >>/etc/muster/coordinator.toml"))?;
    node.sh("systemctl enable --now muster-coordinator")?;
    let items = [item("set", "deploy", ":", &[])];
    node.run_with(&["musterctl", "apply", "-f", "-"], &named_cluster(CLUSTER, machines, &items, &items, &[]))?.ok()?;
    Ok(())
}

fn address(node: &Node) -> String {
    format!("{}:7443", node.name)
}

/// Enrols a node as that machine of the cluster; the coordinator runs on node `at`.
fn enroll(node: &Node, (at, coordinators): (&Node, &str), name: &str, machine_type: &str) -> Result<()> {
    let token = at.sh(&format!("musterctl token create --cluster {CLUSTER} --type {machine_type} --uses 1"))?;
    node.enroll_at(coordinators, name, &token)?.exits(0).map(drop)
}

/// Waits until the coordinator on that node reports the machine as Ready and connected.
fn wait_ready(at: &Node, name: &str) -> Result<()> {
    at.wait_until(&format!("{name} is Ready"), || {
        let got: Value = serde_json::from_str(&at.look(&format!("musterctl get machine {name} -o json"))?)?;
        let status = &got["items"][0]["status"];
        Ok(status["state"] == "Ready" && status["connected"] == true)
    })
}

/// Status that the node's agent reports.
fn agent_status(node: &Node) -> Result<Value> {
    Ok(serde_json::from_str(&node.look("muster-agent status -o json")?)?)
}

pub(crate) fn faults_of_a_coordinator_are_told(fleet: &Nodes, node: &Node) -> Result<()> {
    fleet.begin_anew(node)?;
    let begun = begin(fleet, node, (1, 1))
        .and_then(|()| enroll(node, (node, &address(node)), MACHINE, "control"))
        // Deploys before the other machine is there.
        .and_then(|()| {
            let deploy = || Ok(node.run(&["musterctl", "deploy", CLUSTER])?.code == Some(0));
            node.wait_until("it has reported, and is deployed", deploy)
        })
        .and_then(|()| wait_ready(node, MACHINE));
    let seen = begun.and_then(|()| {
        all_of([
            missing_machine_is_counted(node),
            names_are_not_people(node),
            lost_key_is_noticed(node),
            offline_commands_leave_nothing(node),
        ])
    });
    // This machine is unknown to the fleet's coordinator.
    node.forget()?;
    node.sh(REMOVE)?;
    seen
}

fn missing_machine_is_counted(node: &Node) -> Result<()> {
    let clusters = node.run(&["musterctl", "get", "clusters"])?.exits(0)?;
    clusters.says(&[" 1/1 ", "1 of 2 machines are there"]).map(drop)
}

/// Two certificates with one name are two rows. An operator limited to another cluster sees nothing of this one.
fn names_are_not_people(node: &Node) -> Result<()> {
    for (cluster, file) in [(CLUSTER, "here"), ("elsewhere", "elsewhere")] {
        let who = format!("--role operator --name anna --cluster {cluster} --out /root/hosted/{file}.toml");
        node.sh(&format!("muster-coordinator credentials {who}"))?;
    }
    let listed = node.sh("musterctl get credentials")?;
    let rows: Vec<&str> = listed.lines().filter(|row| row.starts_with("operator/anna ")).collect();
    let told = rows.len() == 2 && [CLUSTER, "elsewhere"].iter().all(|name| listed.contains(&format!(" {name} ")));
    let retry = |config: &str, machine: &str| {
        node.run(&["musterctl", "--config", &format!("/root/hosted/{config}.toml"), "retry", machine])
    };
    let words = |ran: Ran| ran.out + &ran.err;
    let none = words(retry("elsewhere", "hosted-9")?);
    let foreign = words(retry("elsewhere", MACHINE)?);
    let alike = none.contains("there is no machine") && foreign == none.replace("hosted-9", MACHINE);
    all_of([
        told.then_some(()).with_context(|| format!("two certificates of one name:\n{listed}")),
        alike.then_some(()).with_context(|| format!("a foreign machine: {foreign}\none that is not there: {none}")),
    ])
}

/// The coordinator keeps running with the key in memory; both `health` and `backup` report the loss.
fn lost_key_is_noticed(node: &Node) -> Result<()> {
    let health = || node.run(&["muster-coordinator", "health"]);
    let backup = |to: &str| node.run(&["muster-coordinator", "backup", to]);
    health()?.exits(0)?;
    node.sh(&format!("mv {KEY} /root/hosted/kept.key"))?;
    let gone = "its next start would fail";
    let lost = [
        health()?.exits(1).and_then(|ran| ran.says(&[gone, KEY])),
        backup("/root/hosted/unopened")?.exits(1).and_then(|ran| ran.says(&[gone, KEY])),
    ];
    let place = "--state-dir /root/hosted/other --out /root/hosted/other.toml";
    node.sh(&format!("muster-coordinator init --address x:1 --key-file {KEY} {place}"))?;
    let other = [health()?.exits(1), backup("-")?.exits(1)];
    node.sh(&format!("mv /root/hosted/kept.key {KEY}"))?;
    health()?.exits(0)?;
    // Standard output carries the copy only.
    let copied = node.run(&[
        "sh",
        "-c",
        "mkdir -m 700 /root/hosted/copy && muster-coordinator backup - >/root/hosted/copy/store \
         && muster-coordinator recover --state-dir /root/hosted/copy",
    ])?;
    let seen = lost.into_iter().chain(other).chain([copied.exits(0)]);
    all_of(seen.map(|ran| ran.map(drop).context("the key")))
}

/// Commands of root beside the running service, or while it is down, never obstruct it. The machine is off meanwhile,
/// for longer than its certificate is valid: no message advises to replace it.
fn offline_commands_leave_nothing(node: &Node) -> Result<()> {
    node.sh("systemctl stop muster-agent muster-coordinator")?;
    let until = agent_status(node)?["certificateNotAfter"].as_str().context("the certificate's end")?.to_owned();
    let run = node.run(&["timeout", "5", "muster-coordinator", "run", "--config", "/etc/muster/coordinator.toml"])?;
    let refused = run.exits(2).and_then(|ran| ran.says(&[STATE]));
    node.sh(&format!(
        "muster-coordinator credentials --role viewer --name cy --out /root/hosted/cy.toml
muster-coordinator backup /root/hosted/offline
muster-coordinator set-address {}",
        address(node)
    ))?;
    let roots = node.sh(&format!("find {STATE} ! -user muster-coordinator"))?;
    let starts = node.run(&["systemctl", "start", "muster-coordinator"])?.exits(0);
    let answers = node.run(&["muster-coordinator", "health"])?.exits(0);
    node.sh(&format!("while test $(date +%s) -le $(date -d {until} +%s); do sleep 0.2; done"))?;
    let since = node.sh("date +%s")?;
    node.sh("systemctl start muster-agent")?;
    let said = || node.look(&format!("journalctl --unit muster-agent --output json --since @{}", since.trim()));
    let renewed = node.wait_until("its certificate is renewed", || Ok(said()?.contains("certificate renewed")));
    let log = said()?;
    all_of([
        refused.map(drop),
        roots.is_empty().then_some(()).with_context(|| format!("root has left in the state directory:\n{roots}")),
        starts.map(drop),
        answers.map(drop),
        renewed,
        (!log.contains("musterctl replace")).then_some(()).with_context(|| format!("what is not called for:\n{log}")),
        wait_ready(node, MACHINE),
    ])
}

/// The coordinator moves to another machine, by the steps of the manual. One agent learns of it before; one was off.
pub(crate) fn coordinator_moves_to_another_machine(fleet: &Nodes) -> Result<()> {
    let [old, new] = ["control-1", "control-2"].map(|name| fleet.node(name));
    let [stays, away] = ["worker-1", "worker-2"].map(|name| fleet.node(name));
    let (old, new, stays, away) = (old?, new?, stays?, away?);
    for node in [old, new, stays, away] {
        fleet.begin_anew(node)?;
    }
    let begun = begin(fleet, old, (1, 1)).and_then(|()| install(fleet, new));
    let seen = begun.and_then(|()| moves((old, new), (stays, away)));
    for node in [old, new, stays, away] {
        node.forget()?;
        node.sh(REMOVE)?;
    }
    seen
}

fn moves((old, new): (&Node, &Node), (stays, away): (&Node, &Node)) -> Result<()> {
    enroll(stays, (old, &address(old)), "stays", "control")?;
    // Nothing listens at the first address.
    enroll(away, (old, &format!("{},{}", address(new), address(old))), "away", "worker")?;
    ["stays", "away"].iter().try_for_each(|name| wait_ready(old, name))?;
    // The path unit starts the agent when its identity changes: this machine stays off for a while.
    away.sh("systemctl stop muster-agent.path muster-agent")?;
    away.sh(&format!("muster-agent set-coordinator {}", address(old)))?;

    let both = serde_json::json!([address(old), address(new)]);
    old.sh(&format!("muster-coordinator set-address {}", address(new)))?;
    let told = stays.wait_until("it knows both addresses", || Ok(agent_status(stays)?["coordinators"] == both));

    old.sh("systemctl disable --now muster-coordinator")?;
    for file in [&format!("{STATE}/store"), &format!("{STATE}/store.mark"), KEY] {
        let text = old.sh(&format!("base64 {file}"))?;
        new.run_with(&["sh", "-c", &format!("base64 --decode >/root/hosted/{}", base_name(file))], &text)?.ok()?;
    }
    new.sh(&format!(
        "install -m 600 /root/hosted/coordinator.key {KEY}
install -d -m 700 {STATE}
install -m 600 /root/hosted/store /root/hosted/store.mark {STATE}/
systemctl enable --now muster-coordinator"
    ))?;
    old.sh(&format!("sed -i 's/{}/{}/' /root/.config/muster/config.toml", address(old), address(new)))?;
    let connected = |node: &Node| {
        node.wait_until("it is connected at the new place", || {
            let link = &agent_status(node)?["link"];
            Ok(link["connected"] == true && link["coordinator"] == address(new).as_str())
        })
    };
    let followed = told.and_then(|()| connected(stays));

    away.sh("systemctl start muster-agent.path muster-agent")?;
    let lost = away.wait_until("it finds nobody", || {
        let link = &agent_status(away)?["link"];
        Ok(link["error"].as_str().is_some_and(|error| error.contains(&address(old))))
    });
    away.sh(&format!("muster-agent set-coordinator {}", address(new)))?;
    let brought = lost.and_then(|()| connected(away));
    let knows = ["stays", "away"].map(|name| wait_ready(old, name));
    all_of([followed, brought].into_iter().chain(knows))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
