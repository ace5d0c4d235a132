//! Rollouts, as an operator sees them by polling.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use muster_proto::resource::Rollout;

use super::{ASK_EVERY, Nodes, TIME_LIMIT};
use crate::fleet::look_every;

impl Nodes {
    /// The newest update of a cluster, if there was one.
    ///
    /// # Errors
    /// Fails if musterctl does.
    pub fn update_of(&self, cluster: &str) -> Result<Option<Rollout>> {
        let got = self.ctl(&["get", "rollouts", "-o", "json"])?.ok()?;
        let mut list: BTreeMap<String, Vec<Rollout>> = serde_json::from_str(&got)?;
        let rollouts = list.remove("items").context("no items")?.into_iter();
        let updates = rollouts.filter(|rollout| rollout.spec.kind == "update" && rollout.spec.cluster_name == cluster);
        Ok(updates.max_by_key(|update| update.metadata.creation_timestamp))
    }

    /// Waits until the newest update of a cluster satisfies a condition. The coordinator may be down meanwhile.
    ///
    /// # Errors
    /// Fails on timeout.
    pub fn wait_update(&self, cluster: &str, what: &str, wanted: impl Fn(&Rollout) -> bool) -> Result<Rollout> {
        let mut last = None;
        let seen = look_every(ASK_EVERY, &format!("the update of {cluster}: {what}"), TIME_LIMIT, || {
            last = self.update_of(cluster).ok().flatten();
            Ok(last.clone().filter(&wanted))
        });
        seen.with_context(|| format!("last seen: {last:?}"))
    }
}
