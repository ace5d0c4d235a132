//! Reasons for refusing a new rollout: the machines that keep the open one from ending, and the lack of deployed
//! machines.

use super::{
    blocked,
    names::{for_each, some_names},
    snapshot::{ClusterSnapshot, MachineView, State},
};
use crate::facts::DesiredState;

/// Why the open rollout prevents another, and the remedy. None: no rollout is open.
#[must_use]
pub fn by_whom(snapshot: &ClusterSnapshot<'_>) -> Option<String> {
    let rollout = snapshot.rollout?;
    let (name, cluster) = (&rollout.name, &rollout.cluster);
    let keeps = |view: &&MachineView<'_>| {
        let member = view.row.rollout.as_ref() == Some(name) && !view.row.revoked;
        member && (view.update().is_some() || (rollout.update.is_none() && view.state() != State::Ready))
    };
    let who: Vec<String> = snapshot
        .machines
        .iter()
        .filter(keeps)
        .map(|view| match blocked::of_machine(snapshot, view) {
            Some(why) => format!("{} ({})", view.row.name, why.reason),
            None => view.row.name.to_string(),
        })
        .collect();
    if who.is_empty() {
        return Some(format!("{name} has not ended; `musterctl plan {cluster}` says what it waits for"));
    }
    let are = if who.len() == 1 { "is" } else { "are" };
    let first = who.iter().filter_map(|who| who.split(' ').next()).collect::<Vec<_>>();
    let who = some_names(who.iter().map(String::as_str));
    let remedy = match &rollout.update {
        None => format!(
            "what helps: {}; one that is not to be deployed at all is removed (`musterctl remove`)",
            for_each("describe machine", first)
        ),
        Some(update) if matches!(update.desired, DesiredState::Pause { .. }) => {
            format!("it is paused: `musterctl resume {name}`, or, to do without the rest, `musterctl abort {name}`")
        }
        Some(update) if matches!(update.desired, DesiredState::Abort) => {
            format!("it is being aborted, and ends when what it has taken is given back: `musterctl watch {cluster}`")
        }
        Some(_) => format!("to do without the rest: `musterctl abort {name}`"),
    };
    Some(format!("{name} has not ended: {who} {are} not through (`musterctl plan {cluster}` says why); {remedy}"))
}

/// Why there is nothing to disturb, and the remedy. None: there is something.
#[must_use]
pub fn undeployed(snapshot: &ClusterSnapshot<'_>) -> Option<String> {
    let cluster = &snapshot.cluster.name;
    let mut deployed = snapshot.machines.iter().filter(|view| view.ready_once()).map(|view| view.row);
    let Some(first) = deployed.clone().next() else {
        return Some(format!("cluster {cluster} is not deployed yet: `musterctl plan {cluster}`"));
    };
    let name = &first.name;
    deployed.all(|row| row.revoked).then(|| {
        format!(
            "every deployed machine of cluster {cluster} is revoked: `musterctl replace {name}`, and it enrols again"
        )
    })
}
