//! Reasons for refusing a new rollout: the machines that keep the open one from ending, and the lack of deployed
//! machines.

use super::{
    blocked,
    names::{for_each, some_names},
    survey::{Position, State, Survey},
};
use crate::facts::Wish;

/// Why the open rollout prevents another, and the remedy. None: no rollout is open.
#[must_use]
pub fn by_whom(survey: &Survey<'_>) -> Option<String> {
    let rollout = survey.rollout?;
    let (name, cluster) = (&rollout.name, &rollout.cluster);
    let keeps = |position: &&Position<'_>| {
        let member = position.row.rollout.as_ref() == Some(name) && !position.row.revoked;
        member && (position.update().is_some() || (rollout.update.is_none() && position.state() != State::Ready))
    };
    let who: Vec<String> = survey
        .machines
        .iter()
        .filter(keeps)
        .map(|position| match blocked::of_machine(survey, position) {
            Some(why) => format!("{} ({})", position.row.name, why.reason),
            None => position.row.name.to_string(),
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
        Some(update) if matches!(update.wish, Wish::Pause { .. }) => {
            format!("it is paused: `musterctl resume {name}`, or, to do without the rest, `musterctl abort {name}`")
        }
        Some(update) if matches!(update.wish, Wish::Abort) => {
            format!("it is being aborted, and ends when what it has taken is given back: `musterctl watch {cluster}`")
        }
        Some(_) => format!("to do without the rest: `musterctl abort {name}`"),
    };
    Some(format!("{name} has not ended: {who} {are} not through (`musterctl plan {cluster}` says why); {remedy}"))
}

/// Why there is nothing to disturb, and the remedy. None: there is something.
#[must_use]
pub fn undeployed(survey: &Survey<'_>) -> Option<String> {
    let cluster = &survey.cluster.name;
    let mut deployed = survey.machines.iter().filter(|position| position.ready_once()).map(|position| position.row);
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
