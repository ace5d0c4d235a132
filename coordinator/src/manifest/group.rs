//! Update groups of a cluster, and the one a machine names.

use muster_proto::model::{
    ClusterSpec, DEFAULT_GROUP, DEFAULT_GROUP_INDEX, MachineType, UpdateGroup, UpdateGroupName, WORKERS_AT_ONCE_MAX,
};

use super::{
    fault::Faults,
    read::{Fields, Spot, one_of},
};

/// Fields of an update group.
pub(super) const GROUP: Fields =
    Fields { known: &["name", "index", "concurrentUpdates", "rebootIfUpdateRequires"], later: &[], elsewhere: &[] };
/// Most groups of one cluster.
const GROUPS_MAX: usize = 64;
/// Highest `index`.
const INDEX_MAX: u32 = 1_000;

/// Parse `updateGroups`. `at_once`: `maxWorkerUpgradeCount`, unless it has a fault.
pub(super) fn read_all(spot: &Spot<'_>, at_once: Option<u32>, faults: &mut Faults<'_>) -> Option<Vec<UpdateGroup>> {
    let before = faults.count();
    let spots = spot.list(faults)?;
    if spots.len() > GROUPS_MAX {
        spot.fault(faults, "too many update groups", format!("at most {GROUPS_MAX}"));
        return None;
    }
    let mut groups: Vec<UpdateGroup> = Vec::new();
    for spot in &spots {
        let Some(group) = read(spot, at_once, faults) else { continue };
        if groups.iter().any(|known| known.name == group.name) {
            spot.child("name").fault(faults, "two update groups of one name", "another name");
        }
        groups.push(group);
    }
    (faults.count() == before).then_some(groups)
}

fn read(spot: &Spot<'_>, at_once: Option<u32>, faults: &mut Faults<'_>) -> Option<UpdateGroup> {
    let map = spot.map(faults, &GROUP)?;
    let name = map.required(faults, "name").and_then(|spot| spot.label(faults));
    let index = map.or("index", DEFAULT_GROUP_INDEX, |spot| spot.number(faults, 0..=INDEX_MAX));
    let most = at_once.unwrap_or(WORKERS_AT_ONCE_MAX);
    let concurrent = map.or("concurrentUpdates", most, |spot| concurrent(&spot, most, faults));
    let reboot = map.or("rebootIfUpdateRequires", false, |spot| spot.boolean(faults));
    Some(UpdateGroup {
        name: name?,
        index: index?,
        concurrent_updates: concurrent?,
        reboot_if_update_requires: reboot?,
    })
}

fn concurrent(spot: &Spot<'_>, most: u32, faults: &mut Faults<'_>) -> Option<u32> {
    let count = spot.number(faults, 1..=WORKERS_AT_ONCE_MAX)?;
    if count > most {
        let expected = format!("at most {most}, or a higher maxWorkerUpgradeCount");
        spot.fault(faults, "more than maxWorkerUpgradeCount lets go together", expected);
        return None;
    }
    Some(count)
}

/// Check that a machine of this type may name this group. `cluster`: its own, if it is known and faultless.
pub(super) fn fits(
    spot: &Spot<'_>,
    name: &UpdateGroupName,
    cluster: Option<&ClusterSpec>,
    machine_type: Option<MachineType>,
    faults: &mut Faults<'_>,
) {
    if machine_type == Some(MachineType::Control) {
        spot.fault(faults, "update groups are for workers", "it left out: control machines go first, one by one");
        return;
    }
    let Some(cluster) = cluster.filter(|cluster| !has(cluster, name)) else { return };
    let declared = || cluster.update_groups.iter().map(|group| group.name.as_str());
    let names = || declared().filter(|name| *name != DEFAULT_GROUP).chain([DEFAULT_GROUP]);
    let problem = format!("the cluster has no update group '{name}'");
    let expected = one_of(&names().collect::<Vec<_>>());
    faults.add_near(spot.at(), &spot.path, problem, expected, (name.as_str(), names()));
}

fn has(cluster: &ClusterSpec, name: &UpdateGroupName) -> bool {
    name.as_str() == DEFAULT_GROUP || cluster.update_group(Some(name)).is_some()
}
