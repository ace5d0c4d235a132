//! The order in which machines go: the output of `musterctl plan`.

use serde::{Deserialize, Serialize};

use super::{Rollout, UpdatePlan};
use crate::model::{Blocked, MachineType, Phase};

/// The order in which machines go, and why they wait: the answer of `plan`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Its cluster.
    pub cluster: String,
    /// Why the cluster is blocked, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
    /// The waves in their order.
    pub waves: Vec<Wave>,
    /// The rollout under way, other than a deployment: an update, a reboot, maintenance, a removal, a reconfigure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// What an update would do to a deployed cluster with a newer manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdatePlan>,
}

/// Machines that share a turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wave {
    /// Number from 1.
    pub number: u32,
    /// The phase they run.
    pub phase: Phase,
    /// Their type.
    pub machine_type: MachineType,
    /// Number of them that run at once.
    pub at_once: u32,
    /// The machines in the order in which they start.
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
    /// Why it waits, if it is blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
}
