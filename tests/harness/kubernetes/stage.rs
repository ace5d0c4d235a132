//! What one scenario needs: nodes with kubelets, workloads under budgets, and a fleet of real processes on these nodes'
//! machines. Everything has names of its own, so that nothing of another scenario is in its way.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{
    STAGE_LABEL, admin,
    client::{Client, MERGE},
    cluster::ClusterUnderTest,
    is_cordoned, is_given_back, is_ready, label, list, name,
    observer::Seen,
    relay::Relay,
    text, uid,
    workloads::{self, Place},
};
use crate::fleet::{
    CLUSTER, Fleet,
    manifest::{bash, cluster},
    programs::{Ran, complain},
};

/// Timeout of every wait for a machine.
const TIME_LIMIT: Duration = Duration::from_secs(240);
const MACHINES: [(&str, usize); 2] = [("control", 3), ("worker", 3)];
/// What the budgets of the stage promise.
pub(super) const PROMISES: [(&str, usize); 2] = [("web", 3), ("db", 2)];
/// Replicas of the stage's workloads. A DaemonSet has one for each machine.
const REPLICAS: [(&str, usize); 3] = [("web", 4), ("db", 3), ("agent", 6)];
const STATIC_POD: &str = "static";

/// How Muster reaches the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By TLS with the API server itself.
    Plain,
    /// Through a relay that records what it asks.
    Recorded,
}

/// Place, workloads and addresses of a scenario. Drop removes them.
pub(super) struct Stage<'c> {
    pub(super) cluster: &'c ClusterUnderTest,
    pub(super) relay: Relay,
    /// Names of the machines and of their nodes: three control machines, then three workers.
    pub(super) machines: Vec<String>,
    place: Place,
    /// What is to stay at the end.
    before: BTreeSet<String>,
    is_over: bool,
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            complain(&format!("{error:#}"));
        }
    }
}

impl<'c> Stage<'c> {
    /// An empty stage.
    pub(super) fn new(cluster: &'c ClusterUnderTest, name: &str, way: Way) -> Result<Self> {
        let client = Client::new(&admin::with_token(cluster.kubeconfig(), cluster.token()))?;
        let relay = match way {
            Way::Plain => Relay::plain(&client)?,
            Way::Recorded => Relay::recording(&client)?,
        };
        let stage_name = format!("{}-{name}", cluster.run());
        let place = Place { run: cluster.run().to_owned(), stage: stage_name.clone() };
        let names = MACHINES.iter().flat_map(|(kind, count)| (1..=*count).map(move |n| format!("{kind}-{n}")));
        let machines = names.map(|machine| format!("{stage_name}-{machine}")).collect();
        let before = cluster.paths();
        Ok(Self { cluster, relay, machines, place, before, is_over: false })
    }

    /// A stage with its fleet, deployed at release 1.
    pub(super) fn deployed(cluster: &'c ClusterUnderTest, name: &str, way: Way) -> Result<(Self, Fleet)> {
        let stage = Self::new(cluster, name, way)?;
        stage.build()?;
        let mut fleet = Fleet::start(&format!("real-{name}"), &[])?;
        cluster.set_fleet(Some(fleet.dir()));
        fleet.set_time_limit(TIME_LIMIT);
        stage.deploy(&mut fleet)?;
        Ok((stage, fleet))
    }

    /// Namespace of the workloads.
    pub(super) fn namespace(&self) -> &str {
        &self.place.stage
    }

    /// Path of a collection in the stage's namespace. `group`: such as `api/v1`.
    fn within(&self, group: &str, plural: &str) -> String {
        format!("/{group}/namespaces/{}/{plural}", self.place.stage)
    }

    /// Make nodes and workloads, and wait until all is ready.
    pub(super) fn build(&self) -> Result<()> {
        let mut first = None;
        for (number, machine) in self.machines.iter().enumerate() {
            let address = format!("10.253.0.{}", number + 10);
            let node = self.place.node(machine, machine_type(machine), &address, &boot_id(number));
            let status = json!({"status": node["status"]});
            let node = self.cluster.create("/api/v1/nodes", &node)?;
            // As kubelets do, whatever the server keeps of the status of a new node.
            let path = format!("/api/v1/nodes/{machine}/status");
            self.cluster.client().patch(&path, MERGE, &status)?.object(&path)?;
            self.cluster.create(workloads::LEASES, &self.place.lease(machine, uid(&node)))?;
            first.get_or_insert(node);
        }
        self.cluster.wait(
            "Ready nodes without taints of the node lifecycle controller (does a controller-manager run?)",
            |seen| {
                let ours = |node: &&Value| label(node, STAGE_LABEL) == self.place.stage;
                let fits = |node: &Value| is_ready(node) && list(node, "/spec/taints").len() == 1;
                seen.nodes.values().filter(ours).filter(|node| fits(node)).count() == self.machines.len()
            },
        )?;
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": self.place.stage, "labels": {
                super::RUN_LABEL: self.place.run,
                // A cluster may have a stricter default.
                "pod-security.kubernetes.io/enforce": "privileged",
            }},
        });
        self.cluster.create("/api/v1/namespaces", &namespace)?;
        self.make_account()?;
        let apps = self.within("apis/apps/v1", "deployments");
        self.cluster.create(&apps, &self.place.deployment("web", 4, None))?;
        self.add_budget("web", "maxUnavailable", 1)?;
        let sets = self.within("apis/apps/v1", "statefulsets");
        self.cluster.create(&sets, &self.place.stateful_set("db", 3))?;
        self.add_budget("db", "minAvailable", 2)?;
        let daemons = self.within("apis/apps/v1", "daemonsets");
        self.cluster.create(&daemons, &self.place.daemon_set("agent"))?;
        if let Some(node) = &first {
            let mirror = self.place.mirror_pod(STATIC_POD, name(node), uid(node));
            self.cluster.create(&self.within("api/v1", "pods"), &mirror)?;
        }
        for (app, replicas) in REPLICAS.into_iter().chain([(STATIC_POD, 1)]) {
            self.wait_ready_pods(app, replicas)?;
        }
        ["web", "db"].iter().try_for_each(|app| self.wait_counted(app))
    }

    /// Pods need the account `default`. A controller makes it in a moment, or just did.
    fn make_account(&self) -> Result<()> {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        let answer = self.cluster.client().post(&self.within("api/v1", "serviceaccounts"), &account)?;
        ensure!(matches!(answer.status, 201 | 409), "cannot create the account default: {}", answer.body);
        Ok(())
    }

    /// Add a budget. `field`: `minAvailable` or `maxUnavailable`.
    fn add_budget(&self, app: &str, field: &str, pods: usize) -> Result<()> {
        let budget = self.place.budget(app, field, pods);
        self.cluster.create(&self.within("apis/policy/v1", "poddisruptionbudgets"), &budget).map(drop)
    }

    /// Add a Deployment of one pod on a worker, with a budget that never lets it go. Returns the pod's node.
    pub(super) fn add_undrainable(&self, app: &str) -> Result<String> {
        let deployment = self.place.deployment(app, 1, Some("worker"));
        self.cluster.create(&self.within("apis/apps/v1", "deployments"), &deployment)?;
        self.add_budget(app, "minAvailable", 1)?;
        self.wait_ready_pods(app, 1)?;
        self.wait_counted(app)?;
        let seen = self.cluster.observer().seen();
        let pod = seen.pods.values().find(|pod| self.is_of(pod, app));
        Ok(pod.map(|pod| text(pod, "/spec/nodeName").to_owned()).unwrap_or_default())
    }

    /// Add a pod without a controller.
    pub(super) fn add_bare_pod(&self, app: &str) -> Result<()> {
        self.cluster.create(&self.within("api/v1", "pods"), &self.place.bare_pod(app))?;
        self.wait_ready_pods(app, 1)
    }

    /// Remove a budget.
    pub(super) fn remove_budget(&self, app: &str) -> Result<()> {
        self.cluster.delete(&format!("{}/{app}", self.within("apis/policy/v1", "poddisruptionbudgets")))
    }

    fn is_of(&self, pod: &Value, app: &str) -> bool {
        text(pod, "/metadata/namespace") == self.place.stage && label(pod, "app") == app
    }

    fn wait_ready_pods(&self, app: &str, replicas: usize) -> Result<()> {
        let what = format!("{replicas} ready pods of {app} (do a controller-manager and a scheduler run?)");
        let ready = |seen: &Seen| seen.pods.values().filter(|pod| self.is_of(pod, app) && is_ready(pod)).count();
        self.cluster.wait(&what, |seen| ready(seen) == replicas)
    }

    /// Wait until a budget's numbers are those of its pods.
    fn wait_counted(&self, app: &str) -> Result<()> {
        let path = format!("{}/{app}", self.within("apis/policy/v1", "poddisruptionbudgets"));
        let replicas = REPLICAS.iter().find(|(known, _)| *known == app).map_or(1, |(_, replicas)| *replicas);
        let mut last = Value::Null;
        let counted = crate::fleet::look_every(super::LOOK_EVERY, "the budget's numbers", super::CLUSTER_LIMIT, || {
            last = self.cluster.client().get(&path)?.unwrap_or_default();
            let status = |field: &str| last["status"][field].as_u64();
            let current =
                status("observedGeneration").is_some_and(|seen| Some(seen) == last["metadata"]["generation"].as_u64());
            let healthy = status("currentHealthy") == u64::try_from(replicas).ok();
            Ok((current && healthy && status("expectedPods") == status("currentHealthy")).then_some(()))
        });
        counted.map_err(|error| error.context(format!("budget {app}: {}", last["status"])))
    }

    /// The manifest of a release. `drain`: further lines of `kubernetes`.
    pub(super) fn manifest(&self, fleet: &Fleet, release: u32, drain: &[&str]) -> String {
        let item = bash("install", "deploy", &fleet.effects_log(), "sleep 0.1", &[]);
        let items = [item.replace("version: \"1\"", &format!("version: \"{release}\""))];
        let spec = ["maxWorkerUpgradeCount: 2", "kubernetes:", "  kubeconfig: ${secret.kubeconfig}"];
        let whole = cluster(3, 3, &items, &items, &[&spec[..], drain].concat());
        whole.replace("release: \"1.0\"", &format!("release: \"{release}.0\""))
    }

    fn deploy(&self, fleet: &mut Fleet) -> Result<()> {
        let address = self.relay.address().to_string();
        let kubeconfig = self.cluster.kubeconfig();
        let own = (admin::certificate_name(kubeconfig), kubeconfig.ca.as_str());
        let (certificate_name, ca) = self.relay.identity().unwrap_or(own);
        fleet.write_secret("kubeconfig", &admin::text(&address, certificate_name, ca, self.cluster.token()))?;
        let secret = ["secret", "create", "kubeconfig", "--cluster", CLUSTER, "--from-file", "kubeconfig"];
        fleet.ctl(&secret)?.exits(0)?;
        fleet.apply(&self.manifest(fleet, 1, &[]))?;
        for (kind, count) in MACHINES {
            let token = fleet.token(kind, &["--uses", &count.to_string()])?;
            for machine in self.machines.iter().filter(|machine| machine_type(machine) == kind) {
                fleet.enroll(machine, &token, &[])?.ok()?;
            }
        }
        for (number, machine) in self.machines.iter().enumerate() {
            fleet.start_agent_as_host(machine, &boot_id(number))?;
        }
        fleet.wait_ready(self.machines.len())?;
        self.relay.clear();
        self.sample();
        Ok(())
    }

    /// Start to count ready replicas.
    pub(super) fn sample(&self) {
        self.sample_with(&[]);
    }

    /// The same with further apps.
    pub(super) fn sample_with(&self, more: &[&str]) {
        let apps = [&REPLICAS.map(|(app, _)| app)[..], more].concat();
        self.cluster.observer().sample(self.namespace(), &apps);
    }

    /// Add a DaemonSet that renews no pod by itself.
    pub(super) fn add_daemon_set(&self, app: &str) -> Result<()> {
        self.cluster.create(&self.within("apis/apps/v1", "daemonsets"), &self.place.daemon_set(app))?;
        self.wait_ready_pods(app, self.machines.len())
    }

    /// A DaemonSet as it is.
    pub(super) fn daemon_set(&self, app: &str) -> Result<Value> {
        let path = format!("{}/{app}", self.within("apis/apps/v1", "daemonsets"));
        Ok(self.cluster.client().get(&path)?.unwrap_or_default())
    }

    /// Change the template of a DaemonSet as an operator does.
    pub(super) fn change_template(&self, app: &str) -> Result<()> {
        let path = format!("{}/{app}", self.within("apis/apps/v1", "daemonsets"));
        let annotations = json!({"muster-test/template": "2"});
        let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
        self.cluster.client().patch(&path, MERGE, &patch)?.object(&path).map(drop)
    }

    /// UIDs of an app's pods.
    pub(super) fn uids(&self, app: &str) -> BTreeSet<String> {
        let seen = self.cluster.observer().seen();
        seen.pods.values().filter(|pod| self.is_of(pod, app)).map(|pod| uid(pod).to_owned()).collect()
    }

    /// Label each node by its machine's type, control machines first.
    pub(super) fn label_nodes(&self, [control, worker]: [&str; 2]) -> Result<()> {
        self.machines.iter().try_for_each(|machine| {
            let label = if machine_type(machine) == "control" { control } else { worker };
            let path = format!("/api/v1/nodes/{machine}");
            let patch = json!({"metadata": {"labels": {label: "enabled"}}});
            self.cluster.client().patch(&path, MERGE, &patch)?.object(&path).map(drop)
        })
    }

    /// Cordon a node as an operator does.
    pub(super) fn cordon(&self, node: &str) -> Result<()> {
        let path = format!("/api/v1/nodes/{node}");
        self.cluster.client().patch(&path, MERGE, &json!({"spec": {"unschedulable": true}}))?.object(&path)?;
        self.cluster.wait("the operator's cordon", |seen| seen.nodes.get(node).is_some_and(is_cordoned))
    }

    /// Each node is as before: only `kept` is cordoned, and none bears an annotation of a drain.
    pub(super) fn is_given_back(&self, kept: Option<&str>) -> Result<()> {
        for machine in &self.machines {
            let path = format!("/api/v1/nodes/{machine}");
            let node = self.cluster.client().get(&path)?.unwrap_or_default();
            ensure!(name(&node) == machine, "node {machine} is gone");
            is_given_back(&node, kept == Some(machine.as_str()))?;
        }
        Ok(())
    }

    /// The workloads kept what their budgets promise, pods left by eviction alone, and no right was missing. `ran`:
    /// what musterctl said.
    pub(super) fn budgets_held(&self, fleet: &Fleet, ran: &[&Ran]) -> Result<()> {
        self.cluster.observer().kept(&PROMISES)?;
        let evicted = self.cluster.observer().evicted();
        let stays = |pod: &&String| pod.starts_with("agent-") || pod.starts_with(STATIC_POD);
        ensure!(!evicted.iter().any(|pod| stays(&pod)), "a pod was evicted that stays on its node: {evicted:?}");
        for exchange in self.relay.log() {
            ensure!(exchange.status != Some(403), "a right is missing: {exchange:?}");
            let is_own_request = exchange.path.starts_with("/apis/lcm.mirantis.com/");
            ensure!(exchange.method != hyper::Method::DELETE || is_own_request, "Muster deletes nothing: {exchange:?}");
            if exchange.evicted_pod().is_some() {
                ensure!(exchange.body["deleteOptions"]["preconditions"]["uid"].is_string(), "{exchange:?}");
            }
        }
        let outputs = ran.iter().flat_map(|ran| [&ran.out, &ran.err]).map(String::as_str);
        for said in outputs.chain([fleet.log("coordinator").as_str()]) {
            let line = said.lines().find(|line| line.contains("is forbidden"));
            ensure!(line.is_none(), "a right is missing: {line:?}");
        }
        Ok(())
    }

    /// End the stage: everything that was made for it goes.
    pub(super) fn end(mut self, fleet: Fleet) -> Result<()> {
        fleet.done()?;
        self.clear()
    }

    fn clear(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        self.cluster.set_fleet(None);
        self.cluster.set_controller(None);
        self.cluster.observer().stop_sampling();
        self.cluster.remove_but(&self.before)
    }
}

/// A machine's type, which its name holds.
fn machine_type(machine: &str) -> &'static str {
    if machine.contains("-control-") { "control" } else { "worker" }
}

fn boot_id(machine: usize) -> String {
    format!("00000000-0000-4000-8000-{machine:012}")
}
