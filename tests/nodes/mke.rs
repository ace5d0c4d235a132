//! MKE on a manager: it fails, is retried, upgraded and backed up. It is a mock; tests/nodes/mke/ucp says how to
//! compare it with the real one. Its password exists only in the environment of its own container.

use anyhow::{Context as _, Result, ensure};
use muster_tests::{
    fleet::manifest::{named_cluster, other},
    nodes::{Nodes, node::Node},
};

use crate::{
    site::Alone,
    swarm::{join, leave},
};

const NAME: &str = "mke";
const SECRET: &str = "mke-admin";
const ADMIN: [(&str, &str); 2] = [("admin_user", "admin"), ("admin_password", "${secret.mke-admin}")];
/// The versions of MKE.
const FIRST: &str = "3.7.1";
const NEXT: &str = "3.7.2";
/// Build directory of the mock.
const PLACE: &str = "/var/tmp/mke";

/// The node's only items: join a swarm, and this MKE action there.
fn items(version: &str, args: &str, more: &[&str]) -> [String; 2] {
    let action = if version == FIRST { "install" } else { "upgrade" };
    let params = [("action", action), ("version", version), ("args", args), ADMIN[0], ADMIN[1]];
    [join(), other("mke", "mke", "deploy", &params, more)]
}

/// Prepares a swarm without MKE, and an engine with its images.
fn make_images(fleet: &Nodes, node: &Node) -> Result<()> {
    fleet.begin_anew(node)?;
    leave(node)?;
    node.sh(&format!("docker rm --force ucp-proxy muster-mke 2>/dev/null; rm -rf /srv/backup/ucp; mkdir -p {PLACE}"))?;
    for file in ["image", "ucp"] {
        node.copy_in(&format!("{}/nodes/mke/{file}", env!("CARGO_MANIFEST_DIR")), &format!("{PLACE}/{file}"))?;
    }
    node.sh(&format!("sh {PLACE}/image {FIRST} {NEXT}")).map(drop)
}

/// The image of the controller that runs there.
fn runs(node: &Node) -> Result<String> {
    Ok(node.sh("docker inspect --format '{{.Config.Image}}' ucp-proxy")?.trim().to_owned())
}

/// Checks an item's final message and its output.
fn says(fleet: &Nodes, item: &str, message: &str, words: &[&str], canary: &str) -> Result<()> {
    fleet.wait_machine(NAME, message, |machine| {
        machine.status.state_item_statuses.get(item).is_some_and(|status| status.message.starts_with(message))
    })?;
    let logs = fleet.ctl(&["logs", NAME, item])?.exits(0)?.says(words)?;
    ensure!(!format!("{}{}", logs.out, logs.err).contains(canary), "the password is in the output of {item}");
    Ok(())
}

pub(crate) fn mke_is_installed_upgraded_and_backed_up(fleet: &Nodes, node: &Node) -> Result<()> {
    let canary = format!("canary-mke-{}", node.boot_id()?);
    fleet.secret(SECRET, NAME, &canary)?.exits(0)?;
    make_images(fleet, node)?;

    // It fails, and its output gives the reason.
    let alone = Alone::enter(fleet, node, NAME, &items(FIRST, "--stand-in-fail", &["retries: 0"]))?;
    says(
        fleet,
        "mke",
        "MkeFailed: `install` ended with status 7",
        &["arguments: install", "failing as told"],
        &canary,
    )?;

    // It hangs: the item ends at its time limit. Its message says what still runs, and how to end that.
    let hangs = items(FIRST, "--stand-in-hang", &["retries: 0", "timeout: 10s"]);
    fleet.apply(&named_cluster(NAME, (1, 0), &hangs, &[], &[]))?;
    let way_out = "ends only by itself or by: docker kill muster-mke";
    says(fleet, "mke", "timed out after 10 s", &["arguments: install", way_out], &canary)?;
    node.sh("docker kill muster-mke")?;

    // It runs for long, and its host process dies meanwhile. The next attempt follows the same run.
    let slow = items(FIRST, "--stand-in-slow", &["onInterrupt: rerun"]);
    fleet.apply(&named_cluster(NAME, (1, 0), &slow, &[], &[]))?;
    node.wait_until("MKE is at work", || Ok(node.sh("docker logs muster-mke 2>&1")?.contains("stand-in: working")))?;
    node.sh("systemctl kill --signal KILL 'muster-item-mke-*'")?;
    says(fleet, "mke", "MKE 3.7.1 runs and is healthy", &["following the run that an earlier attempt began"], &canary)?;
    alone.wait_ready()?;
    ensure!(runs(node)? == "mirantis/ucp-proxy:3.7.1", "{} runs", runs(node)?);

    let copy = other("copy", "mke", "deploy", &[("action", "backup"), ADMIN[0], ADMIN[1]], &[]);
    let upgrade = [&items(NEXT, "--stand-in-slow", &[])[..], &[copy]].concat();
    fleet.apply(&named_cluster(NAME, (1, 0), &upgrade, &[], &[]))?;
    fleet.ctl(&["update", NAME, "--yes", "--detach", "--accept-control-plane-downtime"])?.exits(0)?;
    says(fleet, "mke", "MKE 3.7.2 runs and is healthy", &["--manual-worker-upgrade"], &canary)?;
    let updated = fleet.wait_update(NAME, "Ready", |update| update.status.state == "Ready")?;
    let made = updated.status.update.context("an update")?.backups;
    let items: Vec<&str> = made.iter().map(|backup| backup.item.as_str()).collect();
    ensure!(items == ["muster-backup-swarm", "muster-backup-mke"], "{items:?}");
    let before = &made[1];
    ensure!(before.message.starts_with(&format!("backup of MKE {FIRST}, ")), "{}", before.message);
    let found = node.sh(&format!("stat -c %a {0}; sha256sum <{0}", before.path))?;
    ensure!(found == format!("600\n{}  -\n", before.sha256), "{found}, not {before:?}");
    ensure!(runs(node)? == "mirantis/ucp-proxy:3.7.2", "{} runs", runs(node)?);

    let machine = fleet.machine(NAME)?;
    let status = machine.status.state_item_statuses.get("copy").context("its copy")?;
    let result = status.result.as_ref().context("a result")?;
    let path = result["path"].as_str().context("a path")?;
    let found = node.sh(&format!("stat -c %a {path}; sha256sum <{path}"))?;
    let sum = result["sha256"].as_str().context("a digest")?;
    ensure!(found == format!("600\n{sum}  -\n"), "{found}, not {sum}");
    // A finished run that an operator accepted or skipped: no later attempt would remove it.
    let abandoned = format!("docker run --name muster-mke --label muster.mke=install --env X={canary}");
    node.sh(&format!("{abandoned} mirantis/ucp:{FIRST} install --stand-in-fail || true"))?;
    node.wait_until("the run that has ended is removed", || Ok(!node.sh("docker ps --all")?.contains("muster-mke")))?;
    let places = "/etc /run /tmp /var/lib/docker/containers /var/lib/muster /var/log /srv";
    let look = format!("grep -rals --devices=skip --file=- {places} || true");
    let left = node.run_with(&["sh", "-c", &look], &canary)?;
    ensure!(left.out.is_empty(), "the password is in {}", left.out);
    node.sh("docker rm --force ucp-proxy")?;
    leave(node)
}
