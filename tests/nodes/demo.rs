//! `make demo-nodes`: a fleet of nodes to try Muster by hand.

use anyhow::Result;
use muster_tests::{
    fleet::{manifest::named_cluster, programs::complain},
    nodes::{Nodes, Turn},
};

use crate::{site::item, swarm::join};

/// Name of all its Docker objects; also in the Makefile.
const FLEET: &str = "muster-demo";
const CLUSTER: &str = "demo";

const WHAT_NEXT: &str = "The fleet deploys itself. To play with it:
  docker exec -it muster-demo-operator bash        # musterctl get machines, describe, logs, …
  docker exec -it muster-demo-worker-1 bash        # muster-agent status, journalctl -u muster-agent
  make demo-nodes-down                             # remove it";

/// Starts the fleet, enrols every node, and leaves it running.
pub(crate) fn run() -> Result<()> {
    let mut fleet = Nodes::start(&Turn::take()?, FLEET, 3, 3)?;
    let items = [
        item("prepare", "prepare", "sleep 2", &[]),
        item("configure", "deploy", "sleep 3", &[]),
        item("launch", "deploy", "sleep 3", &[]),
        join(),
    ];
    fleet.apply(&named_cluster(CLUSTER, (3, 3), &items, &items, &[]))?;
    for node in fleet.all() {
        let machine_type = if node.name.starts_with("control") { "control" } else { "worker" };
        node.enroll(&node.name, &fleet.token(CLUSTER, machine_type, 1)?)?.exits(0)?;
    }
    fleet.keep();
    complain(WHAT_NEXT);
    Ok(())
}
