//! What must hold of the machines' swarm.

use muster_proto::model::{Epoch, SwarmCall};

use super::{Checked, Watcher};
use crate::sim::machine::Machine;

impl Watcher {
    /// Rule 6: nothing is asked of a swarm for a coordinator that this machine knows to be succeeded.
    pub fn swarm_asked(&self, machine: &Machine, call: &SwarmCall) -> Checked {
        let seen = self.ledgers.get(&machine.id).map_or(Epoch(0), |(epoch, ..)| *epoch);
        if call.epoch < seen.max(machine.disk.epoch) || call.epoch > machine.disk.epoch {
            let detail = format!("{}: its swarm was asked for epoch {}, seen {seen}", machine.name, call.epoch);
            return Err(self.violation("6", detail));
        }
        Ok(())
    }
}
