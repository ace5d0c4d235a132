//! Runs a stand-in until stdin ends, and writes an administrator's kubeconfig to the given file. It has a few nodes and
//! workloads; with `--bare` it has neither these nor kubelets, as a control plane of its own.

use std::{env, fs, io::Read as _, time::Duration};

use anyhow::{Context as _, Result, ensure};
use muster_kubernetes_stand_in::{Allowance, Config, Kubernetes, PodTraits};

/// A real node lifecycle controller waits longer: a suite that is late here is late there.
const NODE_GRACE: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let path = args.first().context("usage: serve KUBECONFIG [--bare]")?;
    let bare = args.get(1).is_some_and(|word| word == "--bare");
    ensure!(args.len() == if bare { 2 } else { 1 }, "usage: serve KUBECONFIG [--bare]");
    let config = match bare {
        true => Config { kubelets: false, node_grace: Some(NODE_GRACE), ..Config::default() },
        false => Config::default(),
    };
    let kubernetes = Kubernetes::start(config)?;
    kubernetes.add_admin("admin");
    if !bare {
        furnish(&kubernetes)?;
    }
    // Whoever waits for the file finds it whole.
    let draft = format!("{path}.new");
    fs::write(&draft, kubernetes.kubeconfig("admin")?)?;
    fs::rename(&draft, path)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn furnish(kubernetes: &Kubernetes) -> Result<()> {
    for node in 1..=3 {
        kubernetes.add_node(&format!("node-{node}"), &format!("10.0.0.{node}"), "boot")?;
    }
    kubernetes.namespace("shop")?;
    kubernetes.deployment_with("shop", "web", 6, &PodTraits { empty_dir: true, ..PodTraits::default() })?;
    kubernetes.budget("shop", "web", Allowance::MaxUnavailable(1))?;
    kubernetes.statefulset_with("shop", "db", 2, &PodTraits { claim: Some("data".into()), ..PodTraits::default() })?;
    kubernetes.daemonset("kube-system", "agent")?;
    kubernetes.mirror_pod("kube-system", "etcd-node-1", "node-1")
}
