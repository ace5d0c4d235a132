//! Does the newest manifest change anything for a machine?

use std::collections::BTreeMap;

use muster_proto::model::MachineType;

use crate::plan::snapshot::{ClusterSnapshot, MachineView};

/// Cache by the spec version and type that machines follow: does the newest version ask the same of them? One lookup
/// serves the many machines that follow the same.
#[derive(Default)]
pub(super) struct Versions(BTreeMap<(u64, MachineType), bool>);

impl Versions {
    pub(super) fn ask_the_same(&mut self, snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
        let (newest, specs) = (snapshot.cluster.spec_version, &snapshot.facts.specs);
        let Some(version) = view.row.follows() else { return false };
        let spec = |version| specs.get(&(snapshot.cluster.name.clone(), version));
        let of = view.row.spec.machine_type;
        let look = || spec(version).zip(spec(newest)).is_some_and(|(its, newest)| its.asks_the_same(newest, of));
        *self.0.entry((version, of)).or_insert_with(|| version == newest || look())
    }
}
