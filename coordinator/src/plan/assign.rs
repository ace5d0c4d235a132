//! The list of a machine, and when it may change.

use std::{borrow::Cow, collections::BTreeMap};

use aws_lc_rs::digest;
use muster_proto::{
    hash::of_json,
    json::json,
    model::{AssignedItem, Assignment, Epoch, Generation, ItemHash, ItemProgress, Permit, Phase},
    seeded_bug::seeded_bug,
};

use super::{items::first_control, snapshot::MachineView, update::hooks};
use crate::{
    facts::Facts,
    proof::{ProofKey, Told},
};

/// Validity of a permit from its receipt, in milliseconds.
pub const PERMIT_MS: u64 = 30_000;

/// Content of an assignment, before it has a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content<'a> {
    /// In execution order.
    pub items: Vec<Listed<'a>>,
    /// Values of the late variables.
    pub variables: BTreeMap<&'static str, &'a str>,
}

/// One item of a content. Most contents are compared and dropped, so resolved items are only borrowed, with their
/// digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The item to send.
    pub item: Cow<'a, AssignedItem>,
    /// Digest of the whole item.
    digest: ItemHash,
}

impl Listed<'_> {
    fn changed(item: AssignedItem) -> Self {
        Self { digest: of_json(&item), item: Cow::Owned(item) }
    }
}

impl Content<'_> {
    /// Digest of the whole content: another content gets another generation.
    #[must_use]
    pub fn digest(&self) -> ItemHash {
        let mut whole = digest::Context::new(&digest::SHA256);
        self.items.iter().for_each(|listed| whole.update(&listed.digest.0));
        whole.update(&json(&self.variables));
        let mut sum = [0; 32];
        sum.copy_from_slice(whole.finish().as_ref());
        ItemHash(sum)
    }

    /// Make the assignment, with its fences and its proof.
    #[must_use]
    pub fn into_assignment(
        self,
        view: &MachineView<'_>,
        epoch: Epoch,
        generation: Generation,
        key: &ProofKey,
    ) -> Assignment {
        let digest = self.digest();
        let told = Told::List { epoch, generation, digest };
        Assignment {
            digest,
            // A machine that has yet to enrol is told nothing.
            code: view.row.id.map(|id| key.code(id, &told)).unwrap_or_default(),
            epoch,
            generation,
            cluster: view.row.spec.cluster_name.clone(),
            items: self.items.into_iter().map(|listed| listed.item.into_owned()).collect(),
            variables: self.variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        }
    }
}

/// Has the agent accepted exactly the list that the machine should have? Only then is an outcome final: with an older
/// list it may still start a removed item.
#[must_use]
pub fn is_accepted(facts: &Facts, view: &MachineView<'_>) -> bool {
    let assigned = &view.row.assigned;
    assigned.accepted == assigned.generation
        && wanted(facts, view).is_some_and(|content| assigned.digest == Some(content.digest()))
}

/// May the machine's list change now? Deploy and reconfigure items change only under a slot. A machine keeps its list
/// while it is Ready, and after its slot was freed by a failure.
#[must_use]
pub fn may_change(view: &MachineView<'_>) -> bool {
    match view.row.max_phase {
        None => false,
        // It is told to stop starting items.
        Some(_) if view.is_let_go() => true,
        Some(Phase::Prepare) if view.update().is_some_and(|mine| mine.hooks_only) => true,
        Some(Phase::Prepare) => {
            let assigned = &view.row.assigned;
            // Otherwise it would wait for the inputs of an item that may be obsolete.
            view.waits_for_inputs()
                || view.in_flight()
                || assigned.digest.is_none()
                || assigned.accepted != assigned.generation
        }
        Some(Phase::Deploy | Phase::Reconfigure) => view.row.slot.is_some() || seeded_bug("assign-without-slot"),
    }
}

/// The items that its list covers now. In an update the list ends at the next item that needs a permit: before the item
/// while the permit is missing, and after the item otherwise.
fn reached<'a>(view: &MachineView<'a>, max_phase: Phase) -> Option<impl Iterator<Item = Listed<'a>> + use<'a>> {
    let items = view.items.ok()?;
    let digests = view.live.and_then(|live| live.items.as_deref()).map_or(&[][..], |items| &items.digests);
    let open = |item: &&AssignedItem| view.needs_permit(item) && view.standing(item) != ItemProgress::Done;
    let gate = items.iter().position(|item| item.phase <= max_phase && open(&item));
    let permit = gate.and_then(|gate| view.listed_permit(items.get(gate)?));
    let permit = permit.map(|number| Permit { number, start_within_ms: PERMIT_MS });
    let end = gate.map_or(items.len(), |gate| gate + usize::from(permit.is_some()));
    let reached = items.iter().zip(digests).take(end).enumerate().filter(move |(_, (item, _))| item.phase <= max_phase);
    Some(reached.map(move |(at, (item, digest))| match permit.filter(|_| Some(at) == gate) {
        None => Listed { item: Cow::Borrowed(item), digest: *digest },
        permit => Listed::changed(AssignedItem { permit, ..item.clone() }),
    }))
}

/// The list that the machine should have now, according to its granted phases. None: it keeps its list.
#[must_use]
pub fn wanted<'a>(facts: &'a Facts, view: &MachineView<'a>) -> Option<Content<'a>> {
    wanted_beside(facts, view, || first_control(facts, &view.row.spec.cluster_name))
}

/// As [`wanted`], for a caller that may know the address of its cluster's first control machine.
#[must_use]
pub fn wanted_beside<'a>(
    facts: &'a Facts,
    view: &MachineView<'a>,
    first_control: impl FnOnce() -> Option<&'a str>,
) -> Option<Content<'a>> {
    if !may_change(view)
        || !view.row.reported()
        || (facts.live.older_than_fleet().is_some() && !seeded_bug("trust-old-store"))
        || facts.meta.recovering
        || view.unproven().is_some()
    {
        return None;
    }
    let max_phase = view.row.max_phase?;
    let wanted = |listed: Listed<'a>| {
        let Listed { item, .. } = &listed;
        let verdict = view.row.verdicts.get(&item.name).filter(|verdict| verdict.hash == item.hash);
        if verdict.is_some_and(|verdict| verdict.left_out.is_some()) {
            return None;
        }
        let redo_up_to = view.row.redo_up_to(&item.name);
        if verdict.is_none() && redo_up_to == Generation(0) {
            return Some(listed);
        }
        let cleared_attempts = verdict.map_or(0, |verdict| verdict.cleared_attempts);
        Some(Listed::changed(AssignedItem { cleared_attempts, redo_up_to, ..listed.item.into_owned() }))
    };
    let items = match hooks::is_called_off(facts, view.row) {
        true => Vec::new(),
        false => reached(view, max_phase)?.filter_map(wanted).collect(),
    };
    let mut variables = BTreeMap::new();
    if let Some(ip) = view.row.internal_ip() {
        variables.insert("machine.internalIP", ip);
    }
    if let Some(first) = first_control() {
        variables.insert("cluster.controlNodeIP", first);
    }
    Some(Content { items, variables })
}
