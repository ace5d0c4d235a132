//! Secrets in the simulated world: created, renewed, requested with and without permission, and handed out.

use std::collections::BTreeSet;

use muster_coordinator::{
    core::{Input, Refusal, Reply, Request},
    facts::{Sealed, SecretId},
};
use muster_proto::model::{Assignment, Generation, ItemName, MachineId, MachineType, SecretName};

use super::{
    World,
    manifest::{cluster_name, secret_name},
    network::{Parcel, Said},
    swarm::Way,
};
use crate::invariants::Violation;

/// A request for inputs: the machine, the item, and the generation of the list.
pub(crate) type Fetch = (MachineId, ItemName, Generation);

pub(crate) fn fetch_of(input: &Input) -> Option<Fetch> {
    match input {
        Input::Fetch { id, item, generation } => Some((*id, item.clone(), *generation)),
        _ => None,
    }
}

impl World {
    /// Creates a new version of the secret that machines of a type refer to. In this world its value is its version.
    pub(crate) fn create_secret(&mut self, machine_type: MachineType) -> Result<(), Violation> {
        let Some(version) = self.facts().map(|facts| facts.meta.secret_seq + 1) else { return Ok(()) };
        // One belongs to a cluster, the other is shared by all clusters.
        let cluster = (machine_type == MachineType::Control).then(cluster_name);
        let id = SecretId { cluster, name: secret_name(machine_type) };
        let sealed = Sealed(version.to_be_bytes().to_vec());
        let clusters = if id.cluster.is_none() { [cluster_name()].into() } else { BTreeSet::new() };
        let made = self.operator(Request::CreateSecret { id, version, sealed, clusters })?;
        made.map(|_| ()).map_err(|error| self.watcher.violation("sim", error))
    }

    /// An operator renews a secret, or tries to delete one in use.
    pub(crate) fn operate_secrets(&mut self) -> Result<(), Violation> {
        if self.coordinator.is_none() {
            return Ok(());
        }
        let machine_type = if self.rng.permille(500) { MachineType::Control } else { MachineType::Worker };
        if self.rng.permille(700) {
            self.count("secret renewed");
            return self.create_secret(machine_type);
        }
        let id = SecretId { cluster: Some(cluster_name()), name: secret_name(MachineType::Control) };
        let used = self.facts().is_some_and(|facts| {
            let specs = facts.specs.values().flat_map(|spec| spec.machine_types.values().flatten());
            specs.flat_map(|item| muster_proto::variables::secrets_of(&item.params)).any(|name| name == id.name)
        });
        if used {
            self.count("deletion of a secret in use refused");
            if self.operator(Request::DeleteSecret { id, in_use: false })?.is_ok() {
                return Err(self.watcher.violation("secret", "a secret in use was deleted"));
            }
        }
        Ok(())
    }

    /// A machine requests inputs of a random past assignment: permitted only if it is its own current one.
    pub(crate) fn ask_for_any(&mut self, index: usize) {
        let Some(machine) = self.machines.get(index) else { return };
        let (id, Some(session)) = (machine.id, machine.session) else { return };
        let asked = self.rng.pick(&self.past).map(|(_, assignment)| assignment.clone());
        let Some(assignment) = asked else { return };
        if let Some(item) = self.rng.pick(&assignment.items).map(|item| item.name.clone()) {
            self.count("secrets asked for without need");
            self.carry(Parcel { index, id, session, what: Said::Fetch(item, assignment.generation) });
        }
    }

    /// Handles the coordinator's answer. `sent_before`: number of lists sent before the step. Only secrets named by an
    /// item of the machine's current list are handed out; a later input of the same step may replace that list.
    pub(crate) fn hand_out(
        &mut self,
        (id, item, generation): Fetch,
        answer: &Result<Reply, Refusal>,
        sent_before: usize,
    ) -> Result<(), Violation> {
        let outcome = match answer {
            Ok(Reply::Inputs { secrets, entry }) => {
                if let Some(foreign) = secrets.iter().find(|row| !row.is_for(&cluster_name())) {
                    let detail = format!("{id} got {}, which is not for its cluster", foreign.id);
                    return Err(self.watcher.violation("secret", detail));
                }
                let served: Vec<SecretName> = secrets.iter().map(|row| row.id.name.clone()).collect();
                let lists = [&self.past[..sent_before], &self.past[..]];
                if !lists.iter().any(|sent| has_right(sent, (id, &item, generation), &served)) {
                    let detail = format!("{id} got {served:?} for item {item} of generation {generation}");
                    return Err(self.watcher.violation("secret", detail));
                }
                if let Some(entry) = entry.clone() {
                    return self.let_in((id, item, generation), entry);
                }
                self.count("secrets handed out");
                Ok(None)
            }
            Ok(Reply::Ok | Reply::Done(_) | Reply::Token { .. } | Reply::Enrolled { .. }) => Ok(None),
            Err(refusal) => {
                self.count("secrets refused");
                Err(refusal.to_string())
            }
        };
        self.answer_fetch(&(id, item, generation), outcome);
        Ok(())
    }

    /// The answer reaches the agent: values are available for this one step.
    pub(crate) fn inputs_came(
        &mut self,
        index: usize,
        item: &ItemName,
        generation: Generation,
        outcome: Result<Option<Way>, String>,
    ) -> Result<(), Violation> {
        let input = self.machines.get_mut(index).and_then(|machine| machine.fetched(item, generation, outcome));
        if let Some(input) = input {
            self.agent_input(index, input)?;
        }
        if let Some(machine) = self.machines.get_mut(index) {
            machine.at_hand = None;
        }
        Ok(())
    }
}

/// Does the newest of these lists for that machine name all that was handed out?
fn has_right(
    sent: &[(MachineId, Assignment)],
    (id, item, generation): (MachineId, &ItemName, Generation),
    served: &[SecretName],
) -> bool {
    let newest = sent.iter().rev().find(|(to, _)| *to == id).map(|(_, assignment)| assignment);
    newest.filter(|newest| newest.generation == generation).is_some_and(|newest| {
        let named = newest.items.iter().find(|known| known.name == *item).map(|item| item.secrets());
        named.is_some_and(|named| served.iter().all(|name| named.contains(name)))
    })
}
