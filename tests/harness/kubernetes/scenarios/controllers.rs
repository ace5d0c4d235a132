//! Controllers in the cluster: one that answers maintenance requests with locks as custom resources, and that of
//! DaemonSets whose pods are renewed at the end of an update.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use hyper::Method;
use serde_json::Value;

use super::super::{
    ClusterUnderTest, LOOK_EVERY, handshake, is_cordoned, rights,
    stage::{Stage, Way},
    text,
};
use crate::fleet::look_every;

/// Time for an update with its waits.
const UPDATE_MAX: Duration = Duration::from_secs(600);
/// A DaemonSet of update strategy OnDelete.
const VROUTER: &str = "vrouter";

/// What reads of the requests and locks in the cluster showed during an update.
#[derive(Debug, Default)]
struct Seen {
    /// Nodes with a request.
    requested: BTreeSet<String>,
    /// Nodes with an inactive lock.
    released: BTreeSet<String>,
}

impl Seen {
    fn look(&mut self, stage: &Stage<'_>) -> Result<()> {
        let client = stage.cluster.client();
        let node = |object: &Value| text(object, "/spec/nodeName").to_owned();
        self.requested.extend(handshake::objects(client, handshake::NODE_REQUESTS)?.iter().map(node));
        let locks = handshake::objects(client, handshake::NODE_LOCKS)?;
        self.released.extend(locks.iter().filter(|lock| text(lock, "/status/state") == "inactive").map(node));
        Ok(())
    }
}

/// Muster makes the definitions that the cluster lacks, requests the maintenance of each machine, waits for the lock of
/// a controller that knows the cluster by its API server alone, and takes the request back.
pub(super) fn release_machines(cluster: &ClusterUnderTest) -> Result<()> {
    let made = handshake::expect(cluster)?;
    let (stage, fleet) = Stage::deployed(cluster, "handshake", Way::Recorded)?;
    rights::add_maintenance(cluster)?;
    stage.label_nodes(handshake::ROLES)?;
    fleet.apply(&stage.manifest(&fleet, 1, &["  maintenance: {}"]))?;
    handshake::adopt(cluster, &made)?;
    cluster.set_controller(Some(handshake::rockoon(cluster, stage.namespace())?));
    wait_locks(&stage)?;
    stage.relay.clear();
    stage.sample();
    fleet.apply(&stage.manifest(&fleet, 2, &["  maintenance:", "    controllers: [{name: openstack}]"]))?;
    let holds = "openstack (spec.kubernetes.maintenance.controllers) holds locks";
    let checked = fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(0)?.says(&["all 31", holds])?;
    let mut update = fleet.start_ctl(&["--config", "operator.toml", "update", "e2e", "--yes"], "update")?;
    let mut seen = Seen::default();
    let status = look_every(LOOK_EVERY, "the end of the update", UPDATE_MAX, || {
        seen.look(&stage)?;
        Ok(update.try_wait()?)
    })?;
    ensure!(status.success(), "{status}\n{}", fleet.log("update"));
    fleet.wait_ready(stage.machines.len())?;
    let all: BTreeSet<String> = stage.machines.iter().cloned().collect();
    ensure!(seen.requested == all && seen.released == all, "{seen:?}");
    stage.machines.iter().try_for_each(|machine| is_in_order(&stage, machine))?;
    wait_locks(&stage)?;
    for kind in [handshake::NODE_REQUESTS, handshake::CLUSTER_REQUESTS] {
        let left = handshake::objects(cluster.client(), kind)?;
        ensure!(left.is_empty(), "requests are left: {left:?}");
    }
    stage.is_given_back(None)?;
    stage.budgets_held(&fleet, &[&checked])?;
    stage.end(fleet)
}

/// Wait until the controller has a lock for each node and for the cluster, all of them active.
fn wait_locks(stage: &Stage<'_>) -> Result<()> {
    look_every(LOOK_EVERY, "active locks", UPDATE_MAX, || {
        let client = stage.cluster.client();
        let of_nodes = handshake::objects(client, handshake::NODE_LOCKS)?;
        let of_cluster = handshake::objects(client, handshake::CLUSTER_LOCKS)?;
        let complete = of_nodes.len() == stage.machines.len() && of_cluster.len() == 1;
        let mut all = of_nodes.iter().chain(&of_cluster);
        let active = all.all(|lock| text(lock, "/status/state") == "active");
        Ok((complete && active).then_some(()))
    })
}

/// The machine's node was requested, cordoned, given back, and its request withdrawn: once, and in this order.
fn is_in_order(stage: &Stage<'_>, machine: &str) -> Result<()> {
    let requests = handshake::path(handshake::NODE_REQUESTS);
    let request = format!("{requests}/{machine}");
    let word = |change: &super::super::relay::Exchange| {
        let done = change.status.is_some_and(|status| status < 300);
        match () {
            () if !done => None,
            () if change.path == requests && text(&change.body, "/spec/nodeName") == machine => Some("requested"),
            () if change.path == request && change.method == Method::DELETE => Some("withdrawn"),
            () if change.patched_node() == Some(machine) => {
                Some(if is_cordoned(&change.body) { "cordoned" } else { "given back" })
            }
            () => None,
        }
    };
    let words: Vec<&str> = stage.relay.changes().iter().filter_map(word).collect();
    ensure!(words == ["requested", "cordoned", "given back", "withdrawn"], "{machine}: {words:?}");
    Ok(())
}

/// A template changed before the update. Each pod of it is renewed at the end, by one eviction with its UID, and the
/// others stay Ready meanwhile.
pub(super) fn renew_daemon_pods(cluster: &ClusterUnderTest) -> Result<()> {
    let (stage, fleet) = Stage::deployed(cluster, "renewal", Way::Recorded)?;
    stage.add_daemon_set(VROUTER)?;
    let before = stage.uids(VROUTER);
    stage.change_template(VROUTER)?;
    stage.sample_with(&[VROUTER]);
    let on_delete = format!("  onDelete: [{{namespace: {}, matchLabels: {{app: {VROUTER}}}}}]", stage.namespace());
    fleet.apply(&stage.manifest(&fleet, 2, &[&on_delete]))?;
    fleet.ctl(&["plan", "e2e"])?.exits(0)?.says(&["renewal of pods"])?;
    let ran = fleet.ctl(&["update", "e2e", "--yes"])?.exits(0)?;
    fleet.wait_ready(stage.machines.len())?;
    let count = stage.machines.len();
    cluster.observer().kept(&[(VROUTER, count - 1)])?;
    let after = stage.uids(VROUTER);
    ensure!(after.len() == count && after.is_disjoint(&before), "{before:?} {after:?}");
    let status = &stage.daemon_set(VROUTER)?["status"];
    for field in ["updatedNumberScheduled", "currentNumberScheduled"] {
        ensure!(status[field] == count, "{field}: {status}");
    }
    let evicted = stage.relay.changes();
    let of_vrouter = evicted.iter().filter(|change| change.status.is_some_and(|status| status < 300));
    let of_vrouter = of_vrouter.filter(|change| change.evicted_pod().is_some_and(|pod| pod.starts_with(VROUTER)));
    ensure!(of_vrouter.clone().count() == count, "each once: {:?}", of_vrouter.collect::<Vec<_>>());
    stage.is_given_back(None)?;
    stage.budgets_held(&fleet, &[&ran])?;
    stage.end(fleet)
}
