//! Another build of the coordinator takes over, in the middle of whatever goes on. What it makes anew and compares with
//! the store is another there: the digest of a list, whose form is the build's own.

use muster_coordinator::{proof::Told, store::Table};
use muster_proto::{
    convert::Hello,
    model::{Assignment, ItemHash, ListProof, MachineId},
};
use serde_json::Value;

use super::{World, proof_key};
use crate::{invariants::Violation, rng::Rng};

/// In chaos so many of a thousand starts of the coordinator are those of another build.
const UPGRADES_PERMILLE: u64 = 200;

impl World {
    /// Now and then the coordinator that starts is another build than the one that recorded the lists. Dice of their
    /// own.
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

    /// A list is given: its digest has the form of the build that runs now.
    pub(super) fn note_build(&mut self, id: MachineId, assignment: &Assignment) {
        self.built.insert((id, assignment.generation), self.other_build);
    }

    /// The agent has the digest as it was told, and so has the store. It is the store's that is written anew above, so
    /// here the agent's goes with it, when its greeting arrives. A made-up digest stays made up.
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
