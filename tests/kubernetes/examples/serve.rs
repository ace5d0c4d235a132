//! Runs a stand-in with a few workloads until stdin ends, and writes a kubeconfig to the given file.

use std::{env, fs, io::Read as _};

use anyhow::{Context as _, Result};
use muster_kubernetes_stand_in::{Allowance, Config, Kubernetes, PodTraits};

fn main() -> Result<()> {
    let path = env::args().nth(1).context("usage: serve KUBECONFIG")?;
    let kubernetes = Kubernetes::start(Config::default())?;
    kubernetes.add_admin("admin");
    for node in 1..=3 {
        kubernetes.add_node(&format!("node-{node}"), &format!("10.0.0.{node}"), "boot")?;
    }
    kubernetes.namespace("shop")?;
    kubernetes.deployment_with("shop", "web", 6, &PodTraits { empty_dir: true, ..PodTraits::default() })?;
    kubernetes.budget("shop", "web", Allowance::MaxUnavailable(1))?;
    kubernetes.statefulset_with("shop", "db", 2, &PodTraits { claim: Some("data".into()), ..PodTraits::default() })?;
    kubernetes.daemonset("kube-system", "agent")?;
    kubernetes.mirror_pod("kube-system", "etcd-node-1", "node-1")?;
    fs::write(&path, kubernetes.kubeconfig("admin")?)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
