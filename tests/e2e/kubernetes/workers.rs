//! A small fleet whose updates change its workers alone, and what the tests on it share.

use std::{process::Child, sync::Arc, time::Duration};

use super::*;

/// One control machine and three workers.
pub(super) const SMALL: [&str; 4] = ["control-1", "worker-1", "worker-2", "worker-3"];
/// The workers among them.
pub(super) const WORKERS: usize = SMALL.len() - 1;
/// Time for an update with its waits, beside other tests.
pub(super) const UPDATE_MAX: Duration = Duration::from_secs(240);
/// Time that each item of a worker takes: several samples of an observer.
const ITEM: &str = "sleep 1";

/// A deploy item of workers.
pub(super) fn item(fleet: &Fleet, name: &str, body: &str) -> String {
    bash(name, "deploy", &fleet.effects_log(), body, &[])
}

/// The manifest of a release that changes these items of so many workers, with these further lines of the spec. The
/// first ones may continue `kubernetes`.
pub(super) fn release_of(fleet: &Fleet, (workers, release): (usize, u32), items: &[String], more: &[&str]) -> String {
    let items: Vec<String> =
        items.iter().map(|item| item.replace("version: \"1\"", &format!("version: \"{release}\""))).collect();
    let control = [item(fleet, "install", ":")];
    let spec = ["kubernetes:", "  kubeconfig: ${secret.kubeconfig}"];
    let whole = cluster(1, workers, &control, &items, &[&spec[..], more].concat());
    whole.replace("release: \"1.0\"", &format!("release: \"{release}.0\""))
}

/// The manifest of a release that changes one item of the workers.
pub(super) fn release(fleet: &Fleet, release: u32, more: &[&str]) -> String {
    release_for(fleet, (WORKERS, release), more)
}

/// The same for so many workers.
pub(super) fn release_for(fleet: &Fleet, (workers, release): (usize, u32), more: &[&str]) -> String {
    release_of(fleet, (workers, release), &[item(fleet, "install", ITEM)], more)
}

/// The deployed fleet on this cluster.
pub(super) fn deployed_on(name: &str, kubernetes: &Kubernetes) -> Result<Fleet> {
    deployed_with(name, kubernetes, WORKERS)
}

/// A deployed fleet of one control machine and so many workers.
pub(super) fn deployed_with(name: &str, kubernetes: &Kubernetes, workers: usize) -> Result<Fleet> {
    let mut fleet = Fleet::start(name, &[])?;
    fleet.set_time_limit(UPDATE_MAX);
    let first = release_for(&fleet, (workers, 1), &[]);
    deploy(&mut fleet, kubernetes, &kubernetes.kubeconfig(TOKEN)?, &SMALL[..=workers], &first)?;
    Ok(fleet)
}

/// The deployed fleet, and the usual workloads on it.
pub(super) fn small(name: &str) -> Result<(Fleet, Arc<Kubernetes>)> {
    let kubernetes = Arc::new(start_kubernetes(Config::default(), &SMALL)?);
    Ok((deployed_on(name, &kubernetes)?, kubernetes))
}

/// Starts an update beside the test. Its lines are in the log `update`.
pub(super) fn start_update(fleet: &Fleet) -> Result<Child> {
    fleet.start_ctl(&["--config", "operator.toml", "update", "e2e", "--yes"], "update")
}

/// Waits for the end of an update, with this exit status.
pub(super) fn ends(fleet: &Fleet, mut update: Child, code: i32) -> Result<()> {
    let status = wait_for("the end of the update", UPDATE_MAX, || Ok(update.try_wait()?))?;
    ensure!(status.code() == Some(code), "{status}, not {code}\n{}", fleet.log("update"));
    Ok(())
}

/// Waits until a machine waits for this reason, in these words.
pub(super) fn waits_for(fleet: &Fleet, machine: &str, reason: Reason, words: &[&str]) -> Result<()> {
    let what = format!("{reason} {words:?}");
    fleet.wait_machine(machine, &what, |machine| {
        let blocked = machine.status.blocked.as_ref().map(|since| &since.blocked);
        let says = |text: &str| words.iter().all(|word| text.contains(word));
        blocked.is_some_and(|blocked| blocked.reason == reason && says(&blocked.message))
    })?;
    Ok(())
}

/// Waits until a machine is Ready at this release.
pub(super) fn is_at(fleet: &Fleet, machine: &str, release: &str) -> Result<()> {
    fleet.wait_machine(machine, release, |machine| {
        machine.status.state == "Ready" && machine.status.release.as_deref() == Some(release)
    })?;
    Ok(())
}

/// Lets new pods of these labels run on these nodes alone.
pub(super) fn label(kubernetes: &Kubernetes, nodes: &[&str], key: &str) -> Result<()> {
    nodes.iter().try_for_each(|node| kubernetes.label_node(node, key, Some("yes")))
}

/// A node selector for nodes with this label.
pub(super) fn only_on(key: &str) -> Vec<(String, String)> {
    vec![(key.to_owned(), "yes".to_owned())]
}

/// A pod that has to leave the node, and does not end until it is let go: it keeps a drain in its middle.
pub(super) struct Held {
    namespace: String,
    name: String,
}

impl Held {
    /// Chooses one of `web` on this node.
    fn on(kubernetes: &Kubernetes, node: &str) -> Result<Self> {
        let pods = evidence::leaving(kubernetes, node);
        let pod = pods.iter().find(|pod| pod.starts_with("shop/web-")).with_context(|| format!("{node}: {pods:?}"))?;
        let (namespace, name) = pod.split_once('/').context("namespace and name")?;
        kubernetes.set_stuck(namespace, name, true)?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Was it evicted?
    fn is_evicted(&self, kubernetes: &Kubernetes) -> bool {
        let pod = kubernetes.object("pods", &self.namespace, &self.name);
        pod.is_some_and(|pod| pod["metadata"].get("deletionTimestamp").is_some())
    }

    /// Lets it end.
    pub(super) fn let_go(self, kubernetes: &Kubernetes) -> Result<()> {
        kubernetes.set_stuck(&self.namespace, &self.name, false)
    }
}

/// A held pod on each worker: drains come to their middle and stay there. The order of workers is Muster's.
pub(super) struct Holds(BTreeMap<&'static str, Held>);

impl Holds {
    /// Holds one pod on each worker.
    pub(super) fn on_workers(kubernetes: &Kubernetes) -> Result<Self> {
        let workers = SMALL.into_iter().filter(|machine| machine.starts_with("worker"));
        Ok(Self(workers.map(|worker| Ok((worker, Held::on(kubernetes, worker)?))).collect::<Result<_>>()?))
    }

    /// Waits for the next worker in the middle of its drain.
    pub(super) fn next(&mut self, kubernetes: &Kubernetes) -> Result<(&'static str, Held)> {
        let worker = wait_for("the eviction of a held pod", UPDATE_MAX, || {
            Ok(self.0.iter().find(|(_, held)| held.is_evicted(kubernetes)).map(|(worker, _)| *worker))
        })?;
        Ok((worker, self.0.remove(worker).context("it is held")?))
    }
}
