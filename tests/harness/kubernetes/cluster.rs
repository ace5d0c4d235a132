//! The cluster under test: what a run makes in it, and how everything goes again.

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use muster_coordinator::orchestrator::kubernetes::kubeconfig::Kubeconfig;
use muster_kubernetes_stand_in::rockoon::Rockoon;
use serde_json::{Value, json};

use super::{
    CLUSTER_LIMIT, LOOK_EVERY, RUN_LABEL, admin,
    client::{Client, MERGE},
    handshake, is_pending,
    journal::{Journal, Made},
    kubelets::Kubelets,
    label, name,
    observer::Observer,
    rights, text, uid,
    workloads::tolerates_runs,
};
use crate::fleet::{look_every, processes, programs::complain};

const NODES: &str = "/api/v1/nodes";
const NAMESPACES: &str = "/api/v1/namespaces";
const PODS: &str = "/api/v1/pods";
const DAEMON_SETS: &str = "/apis/apps/v1/daemonsets";
/// Names in a message.
const NAMES_MAX: usize = 5;

/// Why the suite does not touch a cluster. Nothing was made.
#[derive(Clone, Debug)]
pub struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// A cluster that a run works in. Drop removes what the run made.
pub struct ClusterUnderTest {
    kubeconfig: Kubeconfig,
    client: Client,
    journal: Journal,
    observer: Observer,
    kubelets: Kubelets,
    /// Token of the coordinator's account.
    token: String,
    /// Directory of the fleet that runs now.
    fleet: Mutex<Option<PathBuf>>,
    /// The application controller that runs now.
    controller: Mutex<Option<Rockoon>>,
    /// Paths of objects that somebody else is to make for the run.
    expected: Mutex<BTreeSet<String>>,
    /// Held while an object is made: the end waits until it is written down.
    making: Mutex<()>,
    /// Is everything being removed? Nothing may be made any more.
    ended: AtomicBool,
}

impl fmt::Debug for ClusterUnderTest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ClusterUnderTest").field("run", &self.run()).finish_non_exhaustive()
    }
}

impl ClusterUnderTest {
    /// Start a run in the cluster of an administrator's kubeconfig. `records`: the directory with the journals of runs.
    ///
    /// # Errors
    /// [`Refusal`]: it has nodes that are not the suite's, workloads that would run on the suite's nodes, or an earlier
    /// run left something. Any other error: it cannot be reached, or its controllers do not work.
    pub fn start(kubeconfig: &Path, records: &Path) -> Result<Self> {
        let kubeconfig = admin::read(kubeconfig)?;
        let client = Client::new(&kubeconfig)?;
        let identity = identity(&client)?;
        refuse_leftovers(&client, records, &identity)?;
        refuse_nodes(&client)?;
        refuse_workloads(&client)?;
        let random = uuid::Uuid::new_v4().simple().to_string();
        let run = format!("muster-test-{}", random.get(..6).unwrap_or(&random));
        let journal = Journal::start(records, &run, &identity)?;
        let mut cluster = Self::of(kubeconfig, client, journal)?;
        cluster.token = rights::token(&cluster)?;
        Ok(cluster)
    }

    /// A cluster with what this journal lists.
    fn of(kubeconfig: Kubeconfig, client: Client, journal: Journal) -> Result<Self> {
        let observer = Observer::start(&client, journal.run())?;
        let kubelets = Kubelets::start(&client, &observer)?;
        Ok(Self {
            kubeconfig,
            client,
            journal,
            observer,
            kubelets,
            token: String::new(),
            fleet: Mutex::default(),
            controller: Mutex::default(),
            expected: Mutex::default(),
            making: Mutex::default(),
            ended: AtomicBool::new(false),
        })
    }

    /// Name of the run, which all that it makes bears.
    #[must_use]
    pub fn run(&self) -> &str {
        self.journal.run()
    }

    /// Address of the API server.
    #[must_use]
    pub fn server(&self) -> &str {
        self.client.host()
    }

    /// Version of the API server.
    ///
    /// # Errors
    /// Fails if it does not answer.
    pub fn version(&self) -> Result<String> {
        let version = self.client.get("/version")?.context("the API server has no version")?;
        Ok(text(&version, "/gitVersion").to_owned())
    }

    pub(super) fn kubeconfig(&self) -> &Kubeconfig {
        &self.kubeconfig
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn observer(&self) -> &Observer {
        &self.observer
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// The fleet with this directory runs now.
    pub(super) fn set_fleet(&self, directory: Option<&Path>) {
        *self.fleet.lock().unwrap_or_else(PoisonError::into_inner) = directory.map(Path::to_owned);
    }

    /// This controller runs now. The one before is stopped.
    pub(super) fn set_controller(&self, controller: Option<Rockoon>) {
        *self.controller.lock().unwrap_or_else(PoisonError::into_inner) = controller;
    }

    /// An object that is not there is about to be made by somebody else for the run.
    pub(super) fn expect(&self, path: &str) -> Result<()> {
        self.journal.intend(path)?;
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
        Ok(())
    }

    /// Write down that an expected object is the run's, if it is there.
    pub(super) fn adopt(&self, path: &str) -> Result<()> {
        if !self.expected.lock().unwrap_or_else(PoisonError::into_inner).remove(path) {
            return Ok(());
        }
        let Some(object) = self.client.get(path)? else { return self.journal.not_made(path) };
        let labels = json!({"metadata": {"uid": uid(&object), "labels": {RUN_LABEL: self.run()}}});
        self.client.patch(path, MERGE, &labels)?.object(path)?;
        self.journal.made(path, uid(&object))
    }

    /// Create an object, and write down that it is the run's.
    pub(super) fn create(&self, collection: &str, object: &Value) -> Result<Value> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(!self.ended.load(Ordering::SeqCst), "the run was ended");
        let path = format!("{collection}/{}", name(object));
        self.journal.intend(&path)?;
        let answer = self.client.post(collection, object)?;
        if answer.status == 201 {
            self.journal.made(&path, uid(&answer.body))?;
            if collection == NODES {
                self.kubelets.add(name(object));
            }
            return Ok(answer.body);
        }
        self.journal.not_made(&path)?;
        answer.object(&format!("cannot create {path}"))
    }

    /// Delete an object that this run made.
    pub(super) fn delete(&self, path: &str) -> Result<()> {
        let made = self.journal.all_made().into_iter().find(|made| made.path == path);
        self.remove(&made.with_context(|| format!("this run did not make {path}"))?)
    }

    /// Paths of what the run made so far.
    pub(super) fn paths(&self) -> BTreeSet<String> {
        self.journal.all_made().into_iter().map(|made| made.path).collect()
    }

    /// Delete what the run made besides these paths: namespaces with their content first, for their pods need kubelets,
    /// and nodes last.
    ///
    /// # Errors
    /// What could not be deleted, after all the rest was.
    pub(super) fn remove_but(&self, kept: &BTreeSet<String>) -> Result<()> {
        let made = self.journal.all_made();
        let mut left: Vec<&Made> = made.iter().filter(|made| !kept.contains(&made.path)).collect();
        let mut failures = Vec::new();
        // Nodes and definitions wait for them.
        if let Err(error) = handshake::clear(&self.client, self.run()) {
            failures.push(format!("{error:#}"));
        }
        let spaces: Vec<&Made> = left.iter().copied().filter(|made| is_in(&made.path, NAMESPACES)).collect();
        for space in &spaces {
            match self.remove(space) {
                Err(error) => failures.push(format!("{error:#}")),
                // Its content went with it.
                Ok(()) => {
                    let inside = format!("{}/", space.path.replacen(NAMESPACES, "/namespaces", 1));
                    for made in left.iter().filter(|made| made.path.contains(&inside)) {
                        self.journal.gone(&made.path)?;
                    }
                    left.retain(|made| !made.path.contains(&inside) && made.path != space.path);
                }
            }
        }
        left.retain(|made| !spaces.contains(made));
        left.sort_by_key(|made| is_in(&made.path, NODES));
        for made in left {
            if let Err(error) = self.remove(made) {
                failures.push(format!("{error:#}"));
            }
        }
        ensure!(failures.is_empty(), "{}", failures.join("\n"));
        Ok(())
    }

    /// Delete one object if it is the one that the run made, and wait until it is gone.
    fn remove(&self, made: &Made) -> Result<()> {
        let path = &made.path;
        let Some(wanted) = &made.uid else {
            let left = self.client.get(path)?;
            if left.is_some_and(|object| label(&object, RUN_LABEL) == self.run()) {
                bail!(
                    "{path} bears the run's label, and no UID was recorded for it: delete it by hand (kubectl delete)"
                );
            }
            return self.journal.gone(path);
        };
        let is_it = |object: &Value| uid(object) == wanted;
        let Some(found) = self.client.get(path)?.filter(is_it) else { return self.journal.gone(path) };
        ensure!(label(&found, RUN_LABEL) == self.run(), "{path} lost the run's label: is it somebody else's now?");
        if is_in(path, NODES) {
            self.kubelets.remove(name(&found));
            handshake::release(&self.client, path, &found)?;
        }
        let answer = self.client.delete(path, wanted, None)?;
        // It went in the meantime, or another one has its name.
        ensure!(matches!(answer.status, 200 | 202 | 404 | 409), "cannot delete {path}: {}", answer.body);
        let gone = look_every(LOOK_EVERY, &format!("the end of {path}"), CLUSTER_LIMIT, || {
            Ok(self.client.get(path)?.is_none_or(|object| !is_it(&object)).then_some(()))
        });
        gone.with_context(|| self.excuse(path))?;
        self.journal.gone(path)
    }

    /// What may keep an object from going.
    fn excuse(&self, path: &str) -> String {
        let object = self.client.get(path).ok().flatten().unwrap_or_default();
        let (finalizers, status) = (&object["metadata"]["finalizers"], &object["status"]["conditions"]);
        let failure = self.kubelets.failure().unwrap_or_default();
        format!("finalizers {finalizers}, conditions {status}\n  {}\n  {failure}", self.observer.summary())
    }

    /// Wait for the cluster's controllers.
    pub(super) fn wait(&self, what: &str, holds: impl Fn(&super::observer::Seen) -> bool) -> Result<()> {
        let waited = self.observer.wait(what, holds);
        waited.map_err(|error| match self.kubelets.failure() {
            Some(failure) => error.context(failure),
            None => error,
        })
    }

    /// Block until a pod of somebody else is bound to a node of this run, where Muster's drains would evict it. Returns
    /// what to say about it.
    #[must_use]
    pub fn wait_foreign_pod(&self) -> String {
        let pod = self.observer.wait_foreign_pod();
        format!(
            "{pod} and is not of this run: Muster's drains would evict it. So the run was ended, and Kubernetes \
             deletes the pod with its node. Remove what makes such pods, or let their tolerations name the taints \
             that they mean, and run the suite again"
        )
    }

    /// End the run: remove what it made, and then its journal. May be called again, and while a scenario runs: that one
    /// fails then.
    ///
    /// # Errors
    /// What is left, and how to remove it.
    pub fn end(&self) -> Result<()> {
        if self.ended.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        drop(self.making.lock().unwrap_or_else(PoisonError::into_inner));
        let fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(directory) = fleet {
            processes::end_all(&directory)?;
        }
        self.set_controller(None);
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner).clone();
        expected.iter().try_for_each(|path| self.adopt(path))?;
        self.remove_but(&BTreeSet::new()).with_context(|| {
            format!(
                "run {} left objects behind, which {} lists: run the suite again with --clean-up",
                self.run(),
                self.journal.path().display()
            )
        })?;
        self.journal.end()
    }
}

impl Drop for ClusterUnderTest {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            complain(&format!("{error:#}"));
        }
    }
}

/// Is this the path of an object in this collection?
fn is_in(path: &str, collection: &str) -> bool {
    path.strip_prefix(collection).and_then(|rest| rest.strip_prefix('/')).is_some_and(|name| !name.contains('/'))
}

/// The UID of kube-system, which stands for the cluster.
fn identity(client: &Client) -> Result<String> {
    let namespace = client.get("/api/v1/namespaces/kube-system")?;
    let uid = namespace.as_ref().map(uid).filter(|uid| !uid.is_empty()).map(str::to_owned);
    uid.context("the cluster has no namespace kube-system: the API server makes it when it starts")
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = names.collect();
    let more = all.len().saturating_sub(NAMES_MAX);
    let shown = all[..all.len().min(NAMES_MAX)].join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// The journals of earlier runs in this cluster. A cluster in which one still runs is refused.
fn journals_of(records: &Path, identity: &str) -> Result<Vec<Journal>> {
    let mut journals = Journal::all(records)?;
    journals.retain(|journal| journal.cluster() == identity);
    if let Some(journal) = journals.iter().find(|journal| journal.in_use()) {
        return Err(anyhow!(Refusal(format!(
            "run {} still runs in this cluster, or is being cleaned up, for {} is locked: wait for its end, or end it \
             by SIGINT. Nothing was changed",
            journal.run(),
            journal.path().display()
        ))));
    }
    Ok(journals)
}

/// Refuse a cluster in which an earlier run left something, or in which one runs.
fn refuse_leftovers(client: &Client, records: &Path, identity: &str) -> Result<()> {
    let journals = journals_of(records, identity)?;
    if let Some(journal) = journals.first() {
        let (run, path, count) = (journal.run(), journal.path().display(), journal.all_made().len());
        return Err(anyhow!(Refusal(format!(
            "run {run} was ended in its middle and left up to {count} objects in this cluster; {path} lists them. \
             Remove them by `make test-kubernetes KUBECONFIG=FILE ARGS=--clean-up`"
        ))));
    }
    for collection in [NODES, NAMESPACES] {
        let (objects, _) = client.list(collection)?;
        let labelled = objects.iter().find(|object| !label(object, RUN_LABEL).is_empty());
        if let Some(object) = labelled {
            let (object, run) = (name(object), label(object, RUN_LABEL));
            return Err(anyhow!(Refusal(format!(
                "{object} is of run {run} of this suite, of which {} has no record: run it with --clean-up where that \
                 run was started, or remove by hand what bears its label: `kubectl delete namespaces,nodes,\
                 clusterroles,clusterrolebindings,customresourcedefinitions -l {RUN_LABEL}={run}`",
                records.display()
            ))));
        }
    }
    Ok(())
}

fn refuse_nodes(client: &Client) -> Result<()> {
    let (nodes, _) = client.list(NODES)?;
    if nodes.is_empty() {
        return Ok(());
    }
    Err(anyhow!(Refusal(format!(
        "the cluster at {} has nodes that this suite did not make: {}. It updates machines under a cluster, so it runs \
         only on one without nodes: an API server, a controller-manager and a scheduler. Nothing was changed",
        client.host(),
        names(nodes.iter().map(name))
    ))))
}

/// Refuse a cluster in which pods of somebody else would be bound to the suite's nodes: those that wait for a node, and
/// those that a DaemonSet makes for every node.
fn refuse_workloads(client: &Client) -> Result<()> {
    let named = |kind: &str, object: &Value| format!("{kind} {}/{}", text(object, "/metadata/namespace"), name(object));
    let (pods, _) = client.list(PODS)?;
    let waits =
        |pod: &&Value| is_pending(pod) && text(pod, "/spec/nodeName").is_empty() && tolerates_runs(&pod["spec"]);
    let mut found: Vec<String> = pods.iter().filter(waits).map(|pod| named("pod", pod)).collect();
    let (sets, _) = client.list(DAEMON_SETS)?;
    let admitted = |set: &&Value| tolerates_runs(&set["spec"]["template"]["spec"]);
    found.extend(sets.iter().filter(admitted).map(|set| named("daemonset", set)));
    if found.is_empty() {
        return Ok(());
    }
    Err(anyhow!(Refusal(format!(
        "pods of somebody else would run on this suite's nodes at {}, where they would be evicted, for they tolerate \
         every taint: {}. Remove them (`kubectl delete`), or let their tolerations name the taints that they mean. \
         Nothing was changed",
        client.host(),
        names(found.iter().map(String::as_str))
    ))))
}

/// Remove what earlier runs left in the cluster of this kubeconfig: by the run's label and the recorded UIDs. Returns
/// the names of these runs.
///
/// # Errors
/// [`Refusal`]: a run is still under way. Any other error: what could not be removed.
pub fn clean_up(kubeconfig: &Path, records: &Path) -> Result<Vec<String>> {
    let kubeconfig = admin::read(kubeconfig)?;
    let client = Client::new(&kubeconfig)?;
    let identity = identity(&client)?;
    let mut runs = Vec::new();
    for journal in journals_of(records, &identity)? {
        let cluster = ClusterUnderTest::of(kubeconfig.clone(), client.clone(), journal)?;
        for node in cluster.journal.all_made().iter().filter(|made| is_in(&made.path, NODES)) {
            let is_it =
                |object: &Value| node.uid.as_deref() == Some(uid(object)) && label(object, RUN_LABEL) == cluster.run();
            if let Some(found) = client.get(&node.path)?.filter(is_it) {
                cluster.kubelets.add(name(&found));
            }
        }
        cluster.end()?;
        runs.push(cluster.run().to_owned());
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use std::{fs, mem, time::Duration};

    use muster_kubernetes_stand_in::{Config, Kubernetes};
    use serde_json::json;
    use tempfile::TempDir;

    use super::{
        super::stage::{Stage, Way},
        *,
    };

    #[test]
    fn objects_are_told_from_their_content() {
        assert!(is_in("/api/v1/nodes/a", NODES));
        assert!(is_in("/api/v1/namespaces/a", NAMESPACES));
        assert!(!is_in("/api/v1/namespaces/a/pods/b", NAMESPACES));
        assert!(!is_in("/api/v1/nodes", NODES));
    }

    #[test]
    fn many_names_are_counted() {
        assert_eq!(names(["a", "b"].into_iter()), "a, b");
        assert_eq!(names(["a", "b", "c", "d", "e", "f", "g"].into_iter()), "a, b, c, d, e and 2 more");
    }

    /// A control plane without nodes and kubelets, and a directory with its kubeconfig.
    fn control_plane() -> Result<(Kubernetes, TempDir)> {
        let node_grace = Some(Duration::from_secs(20));
        let kubernetes = Kubernetes::start(Config { kubelets: false, node_grace, ..Config::default() })?;
        kubernetes.add_admin("admin");
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join("kubeconfig"), kubernetes.kubeconfig("admin")?)?;
        Ok((kubernetes, directory))
    }

    fn start(directory: &TempDir) -> Result<ClusterUnderTest> {
        ClusterUnderTest::start(&directory.path().join("kubeconfig"), &directory.path().join("records"))
    }

    fn clean(directory: &TempDir) -> Result<Vec<String>> {
        clean_up(&directory.path().join("kubeconfig"), &directory.path().join("records"))
    }

    /// Everything that the cluster has, but for what the stand-in's own controllers keep.
    fn content(kubernetes: &Kubernetes) -> Vec<String> {
        let kinds = [
            "namespaces",
            "nodes",
            "pods",
            "deployments.apps",
            "replicasets.apps",
            "leases.coordination.k8s.io",
            "clusterroles.rbac.authorization.k8s.io",
            "clusterrolebindings.rbac.authorization.k8s.io",
        ];
        let all = kinds.iter().flat_map(|kind| kubernetes.objects(kind).into_iter().map(move |object| (kind, object)));
        all.map(|(kind, object)| format!("{kind} {}", name(&object))).collect()
    }

    fn refusal<T: fmt::Debug>(result: Result<T>) -> String {
        let error = result.expect_err("it is refused");
        error.downcast_ref::<Refusal>().expect("a refusal").to_string()
    }

    /// A run that was killed in its middle is named, and cleaned up by another process. Not while it lives.
    #[test]
    fn killed_run_is_cleaned_up() -> Result<()> {
        let (kubernetes, directory) = control_plane()?;
        let before = content(&kubernetes);
        let cluster = start(&directory)?;
        let stage = Stage::new(&cluster, "killed", Way::Recorded)?;
        stage.build()?;
        let run = cluster.run().to_owned();
        let alive = content(&kubernetes);
        for words in [refusal(clean(&directory)), refusal(start(&directory))] {
            assert!(words.contains(&run) && words.contains("still runs"), "{words}");
        }
        assert_eq!(content(&kubernetes), alive);
        // What a killed process leaves: no kubelet acts for its nodes any more, and its journal is not locked.
        stage.machines.iter().for_each(|machine| cluster.kubelets.remove(machine));
        cluster.journal.unlock()?;
        mem::forget(stage);
        mem::forget(cluster);
        let words = refusal(start(&directory));
        assert!(words.contains(&run) && words.contains("--clean-up"), "{words}");
        assert_eq!(clean(&directory)?, [run]);
        assert_eq!(content(&kubernetes), before);
        start(&directory)?.end()?;
        assert_eq!(content(&kubernetes), before);
        assert!(clean(&directory)?.is_empty());
        Ok(())
    }

    /// Nodes of somebody else keep the suite away, and so does another run without a record.
    #[test]
    fn foreign_nodes_are_refused() -> Result<()> {
        let (kubernetes, directory) = control_plane()?;
        kubernetes.add_node("theirs", "10.0.0.1", "boot")?;
        let before = content(&kubernetes);
        let words = refusal(start(&directory));
        assert!(words.contains("theirs") && words.contains("did not make"), "{words}");
        kubernetes.label_node("theirs", RUN_LABEL, Some("muster-test-other"))?;
        let words = refusal(start(&directory));
        assert!(words.contains("muster-test-other") && words.contains("no record"), "{words}");
        assert_eq!(content(&kubernetes), before);
        Ok(())
    }

    /// A pod as an operator makes it for every node, whatever its taints.
    fn pod_for_every_node() -> Value {
        json!({"tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "fake"}]})
    }

    /// Pods of somebody else that would run on the suite's nodes keep it away, and they are named.
    #[test]
    fn workloads_for_every_node_are_refused() -> Result<()> {
        let (kubernetes, directory) = control_plane()?;
        let template = json!({"metadata": {"labels": {"app": "proxy"}}, "spec": pod_for_every_node()});
        let set = json!({"metadata": {"name": "proxy"}, "spec": {"template": template}});
        kubernetes.put("daemonsets.apps", "kube-system", set)?;
        kubernetes.put("pods", "default", json!({"metadata": {"name": "waits"}, "spec": pod_for_every_node()}))?;
        kubernetes.bare_pod("default", "tolerates-nothing", None)?;
        let before = content(&kubernetes);
        let words = refusal(start(&directory));
        assert!(words.contains("pod default/waits, daemonset kube-system/proxy. Remove them"), "{words}");
        assert_eq!(content(&kubernetes), before);
        kubernetes.remove("daemonsets.apps", "kube-system", "proxy")?;
        kubernetes.remove("pods", "default", "waits")?;
        start(&directory)?.end()
    }

    /// A pod of somebody else that is bound to the run's nodes later is named, and no kubelet acts for it.
    #[test]
    fn foreign_pod_is_named_and_left_alone() -> Result<()> {
        let (kubernetes, directory) = control_plane()?;
        let cluster = start(&directory)?;
        let stage = Stage::new(&cluster, "foreign", Way::Recorded)?;
        stage.build()?;
        kubernetes.put("pods", "default", json!({"metadata": {"name": "late"}, "spec": pod_for_every_node()}))?;
        cluster.wait("a pod of somebody else on a node of the run", |seen| seen.foreign.is_some())?;
        let words = cluster.wait_foreign_pod();
        assert!(words.contains(&format!("pod default/late is on node {}", stage.namespace())), "{words}");
        // Pods of the run that come later are started meanwhile.
        stage.add_bare_pod("bare")?;
        let pod = kubernetes.object("pods", "default", "late").context("it is left")?;
        assert!(is_pending(&pod), "{pod}");
        drop(stage);
        cluster.end()
    }

    /// An object that was made anew under a recorded name is somebody else's.
    #[test]
    fn other_uid_is_kept() -> Result<()> {
        let (kubernetes, directory) = control_plane()?;
        let cluster = start(&directory)?;
        let settings = "/api/v1/namespaces/default/configmaps";
        let labels = json!({RUN_LABEL: cluster.run()});
        for named in ["gone", "taken"] {
            cluster.create(settings, &json!({"metadata": {"name": named, "labels": labels}}))?;
        }
        kubernetes.modify("configmaps", "default", "taken", |object| object["metadata"]["uid"] = json!("theirs"))?;
        cluster.end()?;
        assert!(kubernetes.object("configmaps", "default", "gone").is_none());
        assert!(kubernetes.object("configmaps", "default", "taken").is_some());
        Ok(())
    }

    /// Defines the kinds of the maintenance handshake, as Muster or a controller's chart does.
    fn define(kubernetes: &Kubernetes, kinds: &[&str]) -> Result<()> {
        kinds.iter().try_for_each(|plural| {
            let version =
                json!({"name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {}}});
            let names = json!({"kind": plural, "plural": plural});
            let spec = json!({"group": "lcm.mirantis.com", "scope": "Cluster", "names": names, "versions": [version]});
            let name = format!("{plural}.lcm.mirantis.com");
            kubernetes.put(DEFINITIONS, "", json!({"metadata": {"name": name}, "spec": spec}))
        })
    }

    const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
    const LOCKS: &str = "nodeworkloadlocks.lcm.mirantis.com";

    /// Definitions that came during the run go with what is in them. Those that were there stay, with what is not the
    /// run's. No finalizer of the run's controller, which is gone, keeps anything.
    #[test]
    fn definitions_of_run_are_removed() -> Result<()> {
        for were_there in [false, true] {
            let (kubernetes, directory) = control_plane()?;
            let all = &handshake::KINDS[..];
            let (before, during) = if were_there { (all, &all[..0]) } else { (&all[..0], all) };
            define(&kubernetes, before)?;
            let cluster = start(&directory)?;
            let expected = handshake::expect(&cluster)?;
            define(&kubernetes, during)?;
            ensure!(expected.len() == during.len(), "{expected:?}");
            // The others are adopted by the end of the run.
            handshake::adopt(&cluster, &expected[..during.len() / 2])?;
            let stage = Stage::new(&cluster, "handshake", Way::Recorded)?;
            stage.build()?;
            let node = stage.machines[0].clone();
            let held = json!(["lcm.mirantis.com/rockoon.node-finalizer"]);
            kubernetes.modify("nodes", "", &node, |node| node["metadata"]["finalizers"] = held.clone())?;
            for (name, node) in [("theirs", "node-1"), ("ours", node.as_str())] {
                let finalizers = if name == "ours" { held.clone() } else { json!([]) };
                let lock = json!({"metadata": {"name": name, "finalizers": finalizers}, "spec": {"nodeName": node}});
                kubernetes.put(LOCKS, "", lock)?;
            }
            drop(stage);
            ensure!(kubernetes.object("nodes", "", &node).is_none(), "the node is gone");
            cluster.end()?;
            let names = |kind: &str| kubernetes.objects(kind).iter().map(|object| name(object).to_owned()).collect();
            let (definitions, locks): (Vec<String>, Vec<String>) = (names(DEFINITIONS), names(LOCKS));
            ensure!(definitions.len() == before.len(), "{definitions:?}");
            ensure!(locks == if were_there { vec!["theirs"] } else { vec![] }, "{locks:?}");
        }
        Ok(())
    }
}
