//! Tungsten Fabric's order beside Rockoon's: one lets node after node go, the other thirty at once. Both know the
//! cluster by its API server alone.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use muster_kubernetes_stand_in::rockoon::{TungstenFabric, TungstenFabricConfig};
use muster_tests::fleet::programs::complain;

use super::{
    handshake::{CLUSTER_LOCKS, LOCKS, OpenStack, quick},
    workers::UPDATE_MAX,
    *,
};

const COMPUTES: usize = 60;
/// Computes that Rockoon lets go at once, and that the manifest permits.
const AT_ONCE: usize = 30;
/// Computes of Tungsten Fabric, the first ones in the order of names: one more than there are slots, so that all slots
/// are held by machines that wait for it, and others wait for a slot. With all sixty it takes twice as long.
const OF_FABRIC: usize = AT_ONCE + 1;
/// Time for turns that follow one another, beside other tests.
const ALL_MAX: Duration = Duration::from_secs(900);
const CONTROLLERS: &str = "controllers: [{name: openstack}, {name: tungstenfabric, nodeLabels: [tfvrouter=enabled]}]";

/// An operator of Tungsten Fabric that looks again at once.
fn fabric() -> TungstenFabricConfig {
    let quick = Duration::from_millis(100);
    TungstenFabricConfig { poll: quick, reconnect: quick, work: quick, restore: quick, ..Default::default() }
}

/// Both controllers' answers about computes, as the log of the API server shows them.
#[derive(Default)]
struct Story {
    /// Computes whose requests exist.
    standing: BTreeSet<String>,
    /// Computes that Rockoon lets go.
    of_rockoon: BTreeSet<String>,
    /// The compute that Tungsten Fabric lets go.
    of_fabric: Option<String>,
    /// All that it let go, in its order.
    order: Vec<String>,
    /// All computes that were requested.
    requested: BTreeSet<String>,
    /// Most computes with a request, and most that Rockoon let go, at one moment.
    most: (usize, usize),
    /// Progress that Tungsten Fabric wrote for the cluster while its lock there was inactive, in percent.
    progress: BTreeSet<u64>,
}

impl Story {
    fn of(log: &[LoggedRequest]) -> Result<Self> {
        let mut story = Self::default();
        let done = |request: &&LoggedRequest| request.status.is_some_and(|status| status < 300);
        log.iter().filter(done).try_for_each(|request| story.read(request))?;
        Ok(story)
    }

    fn read(&mut self, request: &LoggedRequest) -> Result<()> {
        let LoggedRequest { body, name, .. } = request;
        match (request.resource.as_str(), request.verb.as_str(), request.subresource.as_str()) {
            ("nodemaintenancerequests", "create", "") if name_of(body).starts_with("worker") => {
                ensure!(self.requested.insert(name_of(body).to_owned()), "{} is requested twice", name_of(body));
                self.standing.insert(name_of(body).to_owned());
                ensure!(self.standing.len() <= AT_ONCE, "{} computes at once: {request:?}", self.standing.len());
                self.most.0 = self.most.0.max(self.standing.len());
            }
            // Its last finalizer goes, and the object with it.
            ("nodemaintenancerequests", "patch", "") if body["metadata"]["finalizers"] == json!([]) => {
                self.standing.remove(name);
            }
            ("nodeworkloadlocks", "patch", "status") => {
                let Some(state) = body["status"]["state"].as_str() else { return Ok(()) };
                match name.split_once('-') {
                    Some(("openstack", node)) if node.starts_with("worker") => self.rockoon(node, state),
                    Some(("tf", node)) => self.fabric(node, state)?,
                    _ => {}
                }
            }
            ("clusterworkloadlocks", "patch", "status") if name.starts_with("tf-") => {
                self.progress.extend(body["status"]["inactivationProgress"]["percentage"].as_u64());
            }
            _ => {}
        }
        Ok(())
    }

    fn rockoon(&mut self, node: &str, state: &str) {
        if state == "inactive" {
            self.of_rockoon.insert(node.to_owned());
        } else {
            self.of_rockoon.remove(node);
        }
        self.most.1 = self.most.1.max(self.of_rockoon.len());
    }

    fn fabric(&mut self, node: &str, state: &str) -> Result<()> {
        if state == "inactive" {
            let before = self.of_fabric.replace(node.to_owned());
            ensure!(before.is_none(), "Tungsten Fabric lets {node} go while {before:?} is away");
            ensure!(self.standing.contains(node), "{node} is let go without a request");
            self.order.push(node.to_owned());
        } else if self.of_fabric.as_deref() == Some(node) {
            self.of_fabric = None;
        }
        Ok(())
    }
}

/// The node of a request.
fn name_of(request: &Value) -> &str {
    request["spec"]["nodeName"].as_str().unwrap_or("")
}

/// Thirty computes hold all slots and wait for Tungsten Fabric, which takes one of them after another in its own order,
/// while Rockoon has let all of them go. None keeps another one away from either: the update completes, each compute is
/// requested once, and so none was deferred.
#[test]
fn tungsten_fabric_beside_rockoon_never_deadlocks() -> Result<()> {
    let cloud = OpenStack::deployed("width", (1, COMPUTES), quick())?;
    let computes: BTreeSet<&String> = cloud.machines.iter().filter(|machine| machine.starts_with("worker")).collect();
    let of_fabric: BTreeSet<String> = computes.into_iter().take(OF_FABRIC).cloned().collect();
    for machine in &of_fabric {
        cloud.kubernetes.label_node(machine, "tfvrouter", Some("enabled"))?;
    }
    cloud.kubernetes.add_admin("tf");
    let _fabric = TungstenFabric::start(&cloud.kubernetes.kubeconfig("tf")?, fabric())?;
    wait_for("the locks of both", UPDATE_MAX, || {
        let of_nodes = cloud.kubernetes.objects(LOCKS).len() == cloud.machines.len() + OF_FABRIC;
        Ok((of_nodes && cloud.kubernetes.objects(CLUSTER_LOCKS).len() == 2).then_some(()))
    })?;
    cloud.apply(2, &[CONTROLLERS])?;
    cloud.kubernetes.clear_requests();
    let began = Instant::now();
    let mut update = cloud.start_update()?;
    let status = wait_for("the end of the update", ALL_MAX, || Ok(update.try_wait()?))?;
    let seconds = began.elapsed().as_secs();
    ensure!(status.success(), "{status}\n{}", cloud.fleet.log("update"));
    cloud.fleet.wait_ready(cloud.machines.len())?;
    cloud.all_is_given_back()?;
    wait_for("active locks of the cluster", TIME_LIMIT, || {
        let locks = cloud.kubernetes.objects(CLUSTER_LOCKS);
        Ok(locks.iter().all(|lock| lock["status"]["state"] == "active").then_some(()))
    })?;
    let story = Story::of(&cloud.kubernetes.requests())?;
    complain(&format!("60 computes, 30 at once, 31 of them one by one: {seconds} s, in the order {:?}", story.order));
    let every_one: BTreeSet<String> = story.order.iter().cloned().collect();
    ensure!(story.order.len() == OF_FABRIC && every_one == of_fabric, "{:?}", story.order);
    ensure!(story.requested.len() == COMPUTES, "{:?}", story.requested);
    ensure!(story.standing.is_empty() && story.of_rockoon.is_empty() && story.of_fabric.is_none());
    ensure!(story.most == (AT_ONCE, AT_ONCE), "requested and let go by Rockoon at once: {:?}", story.most);
    ensure!(story.progress.len() > 1, "progress of the cluster's lock: {:?}", story.progress);
    is_given_back(&cloud.kubernetes)?;
    budgets_held(&cloud.kubernetes)?;
    cloud.fleet.done()
}
