//! `backups`: how every update backs up the Swarm and MKE.

use std::collections::BTreeMap;

use muster_proto::model::{Backups, MachineType, RunnerKind, StateItem, UpdateHooks};

use super::{
    fault::Faults,
    item,
    params::{self, Secrets},
    read::{Fields, Spot},
};

/// Fields of `backups`.
pub(super) const BACKUPS: Fields = Fields { known: &["swarm", "mke"], later: &[], elsewhere: &[] };

type Types = BTreeMap<MachineType, Vec<StateItem>>;

/// `backups`: params of the two runners, except those that an update sets itself. `of_cluster`: the items of the
/// cluster's machines and its hooks, unless they have faults.
pub(super) fn read(
    spot: &Spot<'_>,
    of_cluster: Option<(&Types, &UpdateHooks)>,
    secrets: Secrets<'_>,
    faults: &mut Faults<'_>,
) -> Option<Backups> {
    let map = spot.map(faults, &BACKUPS)?;
    let mut of = |name: &str, runner: RunnerKind, own: &str| -> Option<BTreeMap<String, String>> {
        let Some(spot) = map.get(name) else { return Some(BTreeMap::new()) };
        params::read(&spot, Some(runner), Some(own), secrets, faults)
    };
    let (swarm, mke) = (of("swarm", RunnerKind::SwarmBackup, "mode"), of("mke", RunnerKind::Mke, "action"));
    let backups = Backups { swarm: swarm?, mke: mke? };
    if let Some((types, hooks)) = of_cluster {
        let own = types.get(&MachineType::Control).map(Vec::as_slice).unwrap_or_default();
        let of_mke = backups.of_mke(own, "");
        if let Some(given) = map.get("mke") {
            let has = |name: &str| of_mke.params.contains_key(name);
            params::complete(given.at(), &given.path, RunnerKind::Mke, has, faults);
        }
        let added = [backups.hot_copy(""), backups.consistent_copy(""), of_mke];
        let added: Vec<StateItem> = added.into_iter().chain(hooks.all().map(|hook| hook.item(""))).collect();
        item::fits(spot, own.iter().chain(&added), faults);
    }
    Some(backups)
}
