use serde::{Deserialize, Serialize};

use super::SwarmId;

/// Name of the input that carries a [`SwarmJoin`] as JSON to the runner `swarm-join`. Not secret.
pub const SWARM_JOIN_INPUT: &str = "swarm-join";
/// Name of the input that carries the token. Secret. There only for [`SwarmWay::Join`].
pub const SWARM_TOKEN_INPUT: &str = "swarm-token";
/// Label of every swarm that Muster initialises; its value is the cluster's name.
pub const SWARM_LABEL: &str = "muster.cluster";

/// How a machine gets into its cluster's swarm, as its coordinator decided at the moment of the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SwarmJoin {
    /// Is it to be a manager?
    pub manager: bool,
    /// The way in.
    pub way: SwarmWay,
}

/// The way into a swarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SwarmWay {
    /// There is none yet: make it.
    Init,
    /// The managers know this machine's engine: it is in already.
    Member {
        /// The swarm.
        swarm: SwarmId,
        /// Its node.
        node: SwarmId,
    },
    /// Its engine is in another swarm: that is for a person to solve.
    Foreign {
        /// Its node there.
        node: SwarmId,
    },
    /// Join with the token that comes beside this.
    Join {
        /// The swarm.
        swarm: SwarmId,
        /// `HOST:PORT` of those that were reachable a moment ago, the leader first.
        managers: Vec<String>,
    },
}

/// What the runner `swarm-join` leaves as the item's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SwarmMember {
    /// The swarm.
    pub swarm_id: SwarmId,
    /// The machine's node in it.
    pub node_id: SwarmId,
    /// Did it join as a manager?
    pub manager: bool,
}
