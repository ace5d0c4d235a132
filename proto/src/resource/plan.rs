//! Who goes when: what `musterctl plan` prints.

use serde::{Deserialize, Serialize};

use super::{Rollout, UpdatePlan};
use crate::model::{Blocked, MachineType, Phase};

/// Who goes when, and why not now: the answer of `plan`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Of which cluster.
    pub cluster: String,
    /// Why nothing starts, where that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
    /// In the order in which they go.
    pub waves: Vec<Wave>,
    /// The rollout under way that is no deployment: an update, a reboot, maintenance, a removal, a reconfigure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// What an update would do, on a cluster that is deployed and whose manifest is newer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdatePlan>,
}

/// Machines that share a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wave {
    /// From 1.
    pub number: u32,
    /// The phase they run.
    pub phase: Phase,
    /// Their type.
    pub machine_type: MachineType,
    /// How many of them are in it at once.
    pub at_once: u32,
    /// In the order in which they start.
    pub machines: Vec<PlannedMachine>,
}

/// One machine in a wave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedMachine {
    /// Its name.
    pub name: String,
    /// Its state now.
    pub state: String,
    /// Items it is to run in this wave.
    pub items: Vec<String>,
    /// Why not now, where that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
}
