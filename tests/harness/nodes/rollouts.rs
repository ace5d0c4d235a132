//! Rollouts as an operator sees them who looks now and then.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use muster_proto::resource::Rollout;

use super::{ASK_EVERY, Nodes, PATIENCE};
use crate::fleet::look_every;

impl Nodes {
    /// The newest update of a cluster, if it ever had one.
    ///
    /// # Errors
    /// musterctl failed.
    pub fn update_of(&self, cluster: &str) -> Result<Option<Rollout>> {
        let got = self.ctl(&["get", "rollouts", "-o", "json"])?.ok()?;
        let mut list: BTreeMap<String, Vec<Rollout>> = serde_json::from_str(&got)?;
        let rollouts = list.remove("items").context("no items")?.into_iter();
        let updates = rollouts.filter(|rollout| rollout.spec.kind == "update" && rollout.spec.cluster_name == cluster);
        Ok(updates.max_by_key(|update| update.metadata.creation_timestamp))
    }

    /// Waits until the newest update of a cluster is as wanted. The coordinator may be away meanwhile.
    ///
    /// # Errors
    /// It is not, in time.
    pub fn wait_update(&self, cluster: &str, what: &str, wanted: impl Fn(&Rollout) -> bool) -> Result<Rollout> {
        let mut last = None;
        let seen = look_every(ASK_EVERY, &format!("the update of {cluster}: {what}"), PATIENCE, || {
            last = self.update_of(cluster).ok().flatten();
            Ok(last.clone().filter(&wanted))
        });
        seen.with_context(|| format!("last seen: {last:?}"))
    }
}
