//! Another build of the coordinator takes over, at any time. It recomputes values and compares them with the store,
//! where one differs: the digest of a list, whose form depends on the build.

use muster_coordinator::{proof::Told, store::Table};
use muster_proto::{
    convert::Hello,
    model::{Assignment, ItemHash, ListProof, MachineId},
};
use serde_json::Value;

use super::{World, proof_key};
use crate::{invariants::Violation, rng::Rng};

/// Permille of coordinator starts in chaos that run another build.
const UPGRADES_PERMILLE: u64 = 200;

impl World {
    /// Occasionally the starting coordinator is another build than the one that recorded the lists. Uses separate
    /// random numbers.
    pub(super) fn upgrade(&mut self) -> Result<(), Violation> {
        let mut dice = Rng::new(self.rng.clone().next());
        if !self.chaos || !dice.permille(UPGRADES_PERMILLE) {
            return Ok(());
        }
        let mut lists = 0;
        self.other_build = !self.other_build;
        self.undo.forget();
        let copy = self.old_disk.iter_mut().flatten();
        for ((_, name), row) in self.disk.iter_mut().chain(copy).filter(|((table, _), _)| *table == Table::Machines) {
            let unread = |error: serde_json::Error| self.watcher.violation("codec", format!("{name}: {error}"));
            let mut value: Value = serde_json::from_slice(row).map_err(unread)?;
            let Some(digest) = value.pointer_mut("/assigned/digest").filter(|digest| !digest.is_null()) else {
                continue;
            };
            *digest = of_another_build(serde_json::from_value(digest.take()).map_err(unread)?).to_string().into();
            *row = serde_json::to_vec(&value).map_err(unread)?;
            lists += 1;
        }
        if lists > 0 {
            self.count("coordinator upgraded");
        }
        Ok(())
    }

    /// A list is assigned: its digest has the form of the running build.
    pub(super) fn note_build(&mut self, id: MachineId, assignment: &Assignment) {
        self.built.insert((id, assignment.generation), self.other_build);
    }

    /// Agent and store both hold the digest as it was assigned. The store's is rewritten above, so the agent's is
    /// rewritten here when its Hello arrives. A made-up digest stays made up.
    pub(super) fn as_of_this_build(&self, id: MachineId, hello: &mut Hello) {
        let given = self.built.get(&(id, hello.generation)).copied();
        let Some(list) = hello.list.as_mut().filter(|_| given.is_some_and(|given| given != self.other_build)) else {
            return;
        };
        let shown = Told::List { epoch: list.epoch, generation: hello.generation, digest: list.digest };
        if !proof_key().proves(id, &shown, list.code) {
            return;
        }
        let digest = of_another_build(list.digest);
        let told = Told::List { epoch: list.epoch, generation: hello.generation, digest };
        *list = ListProof { digest, code: proof_key().code(id, &told), ..*list };
    }
}

/// The digest that another build makes of the same list.
fn of_another_build(digest: ItemHash) -> ItemHash {
    ItemHash(digest.0.map(|byte| !byte))
}
