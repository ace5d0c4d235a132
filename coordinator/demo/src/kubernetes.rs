//! A toy Kubernetes, a process of its own: the stand-in for the API server that Muster's tests use, with a node for
//! each machine and a few workloads. It reports what Muster asked it for and what became of the pods: SIGUSR1 and
//! SIGTERM make it write that into a file. Nothing in the report comes from Muster.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use muster_kubernetes_stand_in::{Allowance, Config, Kubernetes, LoggedRequest, PodTraits, Rule};
use musterctl::errors::Failure;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tokio::{
    process::Child,
    signal::unix::{SignalKind, signal},
    time::{Instant, interval, sleep},
};
use uuid::Uuid;

use super::drains::{Asked, Node, Pod, Report, Request, Workload};

/// Credentials for Muster. Written last.
pub(super) const KUBECONFIG: &str = "kubeconfig";
/// Credentials for people.
pub(super) const ADMIN_KUBECONFIG: &str = "admin.conf";
/// The report.
pub(super) const REPORT: &str = "kubernetes.json";

/// Muster's rights, as an operator gives them.
const RIGHTS: &str = include_str!("../../../packaging/kubernetes/rbac.yaml");
/// Muster's account, which those rights are for.
const USER: &str = "system:serviceaccount:muster:coordinator";
/// Label of the nodes that take the workloads.
const WORKER: &str = "node-role.kubernetes.io/worker";
const NAMESPACE: &str = "shop";

/// Period in which the pods are noted. A pod takes longer to start.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// Timeout for the pods to become Ready, and the budgets to count them.
const READY_MAX: Duration = Duration::from_secs(30);
/// Timeout for a report.
const REPORT_MAX: Duration = Duration::from_secs(10);

/// A workload under a budget.
struct Guarded {
    name: &'static str,
    replicas: usize,
    /// Pods that its budget keeps Ready.
    promised: usize,
    /// Time until a new pod is Ready.
    start: Duration,
}

/// A Deployment: more pods than workers, so that two share one.
const WEB: Guarded = Guarded { name: "web", replicas: 6, promised: 5, start: Duration::from_millis(500) };
/// A StatefulSet whose pods take long to start.
const DB: Guarded = Guarded { name: "db", replicas: 3, promised: 2, start: Duration::from_secs(3) };
const GUARDED: [&Guarded; 2] = [&WEB, &DB];

/// A toy Kubernetes (the demo starts it)
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the demo, which has the machines' boot ids
    #[arg(long)]
    dir: PathBuf,
    /// Machines that are its nodes
    #[arg(long, value_delimiter = ',')]
    machines: Vec<String>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    toy(&args).await.map_err(|error| Failure::failed(format!("{error:#}")))
}

async fn toy(args: &Args) -> Result<()> {
    let kubernetes = Kubernetes::start(Config::default())?;
    add_machines(&kubernetes, args)?;
    add_workloads(&kubernetes)?;
    all_ready(&kubernetes).await?;
    kubernetes.reset_lowest_ready();
    let (mut wanted, mut ended) = (signal(SignalKind::user_defined1())?, signal(SignalKind::terminate())?);
    let (token, admin) = (Uuid::new_v4().to_string(), Uuid::new_v4().to_string());
    kubernetes.add_admin(&admin);
    kubernetes.add_token(&token, USER, Rule::of_cluster_roles(RIGHTS)?);
    for (file, token) in [(ADMIN_KUBECONFIG, &admin), (KUBECONFIG, &token)] {
        put(&args.dir.join(file), &kubernetes.kubeconfig(token)?)?;
    }
    let report = args.dir.join(REPORT);
    let mut pods = BTreeMap::new();
    let mut ticks = interval(SAMPLE_EVERY);
    loop {
        tokio::select! {
            _ = ticks.tick() => note(&kubernetes, &mut pods),
            _ = wanted.recv() => write_report(&kubernetes, &mut pods, &report)?,
            _ = ended.recv() => return write_report(&kubernetes, &mut pods, &report),
        }
    }
}

/// A node for each machine, with the boot id that its agent reports. Control machines run a static pod.
fn add_machines(kubernetes: &Kubernetes, args: &Args) -> Result<()> {
    for (number, machine) in args.machines.iter().enumerate() {
        let path = args.dir.join("boot-ids").join(machine);
        let boot_id = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let address = format!("10.0.{}.{}", number / 250, number % 250 + 1);
        kubernetes.add_node(machine, &address, boot_id.trim())?;
        if machine.starts_with("worker-") {
            kubernetes.label_node(machine, WORKER, Some(""))?;
        } else {
            kubernetes.mirror_pod("kube-system", &format!("kube-apiserver-{machine}"), machine)?;
        }
    }
    Ok(())
}

fn add_workloads(kubernetes: &Kubernetes) -> Result<()> {
    kubernetes.namespace(NAMESPACE)?;
    kubernetes.daemonset("kube-system", "network")?;
    let traits = |workload: &Guarded| PodTraits {
        node_selector: vec![(WORKER.to_owned(), String::new())],
        start_after: u64::try_from(workload.start.as_millis()).ok(),
        ..PodTraits::default()
    };
    kubernetes.deployment_with(NAMESPACE, WEB.name, i64::try_from(WEB.replicas)?, &traits(&WEB))?;
    kubernetes.statefulset_with(NAMESPACE, DB.name, i64::try_from(DB.replicas)?, &traits(&DB))?;
    for workload in GUARDED {
        let promise = Allowance::MinAvailable(i64::try_from(workload.promised)?);
        kubernetes.budget(NAMESPACE, workload.name, promise)?;
    }
    Ok(())
}

/// Wait until all pods are Ready, and the budgets count them.
async fn all_ready(kubernetes: &Kubernetes) -> Result<()> {
    let counted = |workload: &&Guarded| {
        let budget = kubernetes.object("poddisruptionbudgets.policy", NAMESPACE, workload.name);
        budget.is_some_and(|budget| budget["status"]["currentHealthy"] == workload.replicas)
    };
    let ready = || {
        let all = kubernetes.ready_replicas();
        all.iter().all(|replicas| replicas.ready == replicas.wanted) && GUARDED.iter().all(counted)
    };
    let deadline = Instant::now() + READY_MAX;
    while !ready() {
        anyhow::ensure!(Instant::now() < deadline, "not all pods became Ready: {:?}", kubernetes.ready_replicas());
        sleep(SAMPLE_EVERY).await;
    }
    Ok(())
}

/// Write a file whole, for its owner alone.
fn put(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
    file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Note the pods that are there now.
fn note(kubernetes: &Kubernetes, pods: &mut BTreeMap<String, Pod>) {
    for pod in pods.values_mut() {
        pod.gone = true;
    }
    for object in kubernetes.objects("pods") {
        let text = |pointer| text(&object, pointer);
        let (uid, name) =
            (text("/metadata/uid"), format!("{}/{}", text("/metadata/namespace"), text("/metadata/name")));
        pods.insert(uid.clone(), Pod { uid, name, node: text("/spec/nodeName"), gone: false });
    }
}

fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn write_report(kubernetes: &Kubernetes, pods: &mut BTreeMap<String, Pod>, path: &Path) -> Result<()> {
    note(kubernetes, pods);
    let requests = kubernetes.requests();
    let asked = requests.iter().filter(|request| request.user == USER).filter_map(request);
    let report = Report {
        requests: asked.collect(),
        pods: std::mem::take(pods).into_values().collect(),
        workloads: workloads(kubernetes),
        nodes: kubernetes.objects("nodes").iter().map(|object| node(object)).collect(),
    };
    put(path, &serde_json::to_string_pretty(&report)?)?;
    *pods = report.pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
    Ok(())
}

/// A request of Muster's, unless it read something or recorded an Event, as it may.
fn request(logged: &LoggedRequest) -> Option<Request> {
    // A request without an answer did nothing: its coordinator was killed.
    let status = logged.status?;
    let asked = match (logged.verb.as_str(), logged.resource.as_str(), logged.subresource.as_str()) {
        ("patch", "nodes", "") if logged.body["spec"]["unschedulable"] == true => Asked::Cordon,
        ("patch", "nodes", "") => Asked::Uncordon,
        ("create", "pods", "eviction") => Asked::Evict(text(&logged.body, "/deleteOptions/preconditions/uid")),
        ("get" | "list", _, _) | ("create", "events", "") if status != 403 => return None,
        (verb, resource, _) => Asked::Other(format!("{verb} {resource}")),
    };
    let space = if logged.namespace.is_empty() { String::new() } else { format!("{}/", logged.namespace) };
    let at_ms = logged.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    Some(Request {
        at_ms: u64::try_from(at_ms).unwrap_or(u64::MAX),
        asked,
        object: format!("{space}{}", logged.name),
        status,
    })
}

fn workloads(kubernetes: &Kubernetes) -> Vec<Workload> {
    let all = kubernetes.ready_replicas();
    let found = GUARDED.iter().filter_map(|guarded| {
        let replicas = all.iter().find(|replicas| replicas.workload.name == guarded.name)?;
        let name = format!("{}/{}", replicas.workload.namespace, guarded.name);
        Some(Workload { name, wanted: replicas.wanted, lowest: replicas.lowest, promised: guarded.promised })
    });
    found.collect()
}

fn node(object: &Value) -> Node {
    let annotations = object["metadata"]["annotations"].as_object().into_iter().flat_map(serde_json::Map::keys);
    Node {
        name: text(object, "/metadata/name"),
        cordoned: object["spec"]["unschedulable"] == true,
        annotations: annotations.filter(|key| key.starts_with("muster/")).cloned().collect(),
    }
}

/// The workloads, a line each.
pub(super) fn about() -> [String; 3] {
    let [web, db] = GUARDED.map(|workload| {
        let Guarded { name, replicas, promised, .. } = workload;
        format!("{NAMESPACE}/{name}: {replicas} pods on the workers, of which a budget keeps {promised} Ready")
    });
    let stay = "A DaemonSet, and a static pod on each control machine: their pods stay";
    [
        format!("Deployment {web}"),
        format!("StatefulSet {db}; a new one takes {} s", DB.start.as_secs()),
        stay.to_owned(),
    ]
}

/// Make the toy write its report, and read it.
pub(super) async fn report(process: &Child, path: &Path) -> Result<Report, Failure> {
    let cannot = || Failure::failed(format!("cannot read {}", path.display()));
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(cannot().because(error)),
        Ok(()) | Err(_) => {}
    }
    let pid = process.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::failed("the toy Kubernetes ended by itself"))?;
    kill(pid, Signal::SIGUSR1).map_err(|source| Failure::failed("cannot ask the toy Kubernetes").because(source))?;
    let deadline = Instant::now() + REPORT_MAX;
    while !path.exists() {
        if Instant::now() > deadline {
            let seconds = REPORT_MAX.as_secs();
            return Err(Failure::failed(format!("the toy Kubernetes did not write {} in {seconds} s", path.display())));
        }
        sleep(SAMPLE_EVERY).await;
    }
    let text = fs::read_to_string(path).map_err(|source| cannot().because(source))?;
    serde_json::from_str(&text).map_err(|source| cannot().because(source))
}
