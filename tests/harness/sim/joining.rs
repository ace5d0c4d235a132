//! How simulated machines get their identities.

use muster_coordinator::core::{Enroll, Input, Request};
use muster_proto::model::{ItemHash, MachineId, MachineType};

use super::{World, manifest};
use crate::invariants::Violation;

impl World {
    pub(crate) fn create_token(&mut self, machine_type: MachineType) -> Result<(), Violation> {
        let id = format!("token-{machine_type}-{}", self.at);
        self.tokens.insert(machine_type, id.clone());
        let made = self.operator(Request::CreateToken {
            id,
            secret_sha256: ItemHash([7; 32]),
            cluster: manifest::cluster_name(),
            machine_type,
            machine: None,
            ttl_ms: Some(24 * 3600 * 1000),
            uses: Some(u32::MAX),
        })?;
        made.map(|_| ()).map_err(|error| self.watcher.violation("sim", error))
    }

    pub(crate) fn enroll(&mut self, index: usize, id: MachineId) -> Result<bool, Violation> {
        let Some(machine) = self.machines.get(index) else { return Ok(false) };
        let enroll = Enroll {
            token_id: self.tokens.get(&machine.machine_type).cloned().unwrap_or_default(),
            secret_sha256: ItemHash([7; 32]),
            // A reinstalled machine has another key.
            key_sha256: ItemHash([*id.0.as_bytes(); 2].concat().try_into().unwrap_or_default()),
            name: machine.name.clone(),
            new_id: id,
            agent_version: "sim".to_owned(),
        };
        let enrolled = self.ask(Input::Enroll(enroll))?.is_ok();
        if let Some(machine) = self.machines.get_mut(index) {
            machine.enrolled |= enrolled && machine.id == id;
        }
        Ok(enrolled)
    }
}
