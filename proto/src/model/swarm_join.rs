use serde::{Deserialize, Serialize};

use super::SwarmId;

/// Name of the input that carries a [`SwarmJoin`] as JSON to the runner `swarm-join`. It is public.
pub const SWARM_JOIN_INPUT: &str = "swarm-join";
/// Name of the input that carries the token. It is secret. Present only for [`SwarmWay::Join`].
pub const SWARM_TOKEN_INPUT: &str = "swarm-token";
/// Label of every swarm that Muster initialises; its value is the cluster's name.
pub const SWARM_LABEL: &str = "muster.cluster";

/// How a machine joins its cluster's swarm, as its coordinator decided at the moment of the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SwarmJoin {
    /// Is it to be a manager?
    pub manager: bool,
    /// How it joins.
    pub way: SwarmWay,
}

/// How to join a swarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SwarmWay {
    /// The swarm is still to be initialised: do it.
    Init,
    /// The managers know this machine's engine: it is already in the swarm.
    Member {
        /// The swarm.
        swarm: SwarmId,
        /// Its node.
        node: SwarmId,
    },
    /// Its engine is in another swarm: a person must resolve that.
    Foreign {
        /// Its node in that swarm.
        node: SwarmId,
    },
    /// Join with the token in the other input.
    Join {
        /// The swarm.
        swarm: SwarmId,
        /// `HOST:PORT` of the managers that were reachable a moment ago, the leader first.
        managers: Vec<String>,
    },
}

/// The result that the runner `swarm-join` leaves.
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
