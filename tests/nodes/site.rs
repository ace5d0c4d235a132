//! Shared by the tests: a machine alone in its own cluster, so that tests do not affect each other.

use anyhow::{Result, ensure};
use muster_tests::{
    fleet::manifest::{bash, named_cluster},
    nodes::{
        Nodes,
        node::{EFFECTS_LOG, Node},
    },
};

/// Fails with all errors: each part of a test is checked, independent of the others.
pub(crate) fn all_of(parts: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let failed: Vec<String> = parts.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// A bash item of these nodes, with `body` between logging `start` and `end`.
pub(crate) fn item(name: &str, phase: &str, body: &str, more: &[&str]) -> String {
    bash(name, phase, EFFECTS_LOG, body, more)
}

/// A bash item `unit` that creates a unit of that name with this command.
pub(crate) fn unit(name: &str, command: &str) -> String {
    let body = format!(
        "printf '[Service]\\nType=exec\\nExecStart=%s\\n[Install]\\nWantedBy=multi-user.target\\n' '{command}' \
         >/etc/systemd/system/{name}\nsystemctl daemon-reload"
    );
    item("unit", "prepare", &body, &[])
}

/// A node enrolled as the only machine of a new cluster.
pub(crate) struct Alone<'a> {
    pub(crate) fleet: &'a Nodes,
    pub(crate) node: &'a Node,
    /// Name of the cluster and of the machine.
    pub(crate) name: String,
}

impl<'a> Alone<'a> {
    /// Resets the node, creates the cluster with these items, and enrols the node.
    pub(crate) fn begin(fleet: &'a Nodes, node: &'a Node, name: &str, items: &[String]) -> Result<Self> {
        fleet.begin_anew(node)?;
        Self::enter(fleet, node, name, items)
    }

    /// As [`Self::begin`], with a node that is already reset.
    pub(crate) fn enter(fleet: &'a Nodes, node: &'a Node, name: &str, items: &[String]) -> Result<Self> {
        fleet.apply(&named_cluster(name, (1, 0), items, &[], &[]))?;
        let alone = Self { fleet, node, name: name.to_owned() };
        alone.enroll()?.exits(0)?;
        Ok(alone)
    }

    /// Enrols the node as this machine.
    pub(crate) fn enroll(&self) -> Result<muster_tests::fleet::programs::Ran> {
        self.node.enroll(&self.name, &self.fleet.token(&self.name, "control", 1)?)
    }

    pub(crate) fn wait_ready(&self) -> Result<()> {
        self.fleet.wait_ready(&self.name)
    }
}
