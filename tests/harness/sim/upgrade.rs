//! Another build of the coordinator takes over, in the middle of whatever goes on. What it makes anew and compares with
//! the store is another there: the digest of a list, whose form is the build's own.

use muster_coordinator::store::Table;
use muster_proto::model::ItemHash;
use serde_json::Value;

use super::World;
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
        for ((_, name), row) in self.disk.iter_mut().filter(|((table, _), _)| *table == Table::Machines) {
            let unread = |error: serde_json::Error| self.watcher.violation("codec", format!("{name}: {error}"));
            let mut value: Value = serde_json::from_slice(row).map_err(unread)?;
            let Some(digest) = value.pointer_mut("/assigned/digest").filter(|digest| !digest.is_null()) else {
                continue;
            };
            let ItemHash(ours) = serde_json::from_value(digest.take()).map_err(unread)?;
            *digest = ItemHash(ours.map(|byte| !byte)).to_string().into();
            *row = serde_json::to_vec(&value).map_err(unread)?;
            lists += 1;
        }
        if lists > 0 {
            self.count("coordinator upgraded");
        }
        Ok(())
    }
}
