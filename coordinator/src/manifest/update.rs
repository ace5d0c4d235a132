//! A cluster's settings for updates: controllers that must answer, and deadlines.

use muster_proto::model::{Deadline, DeadlineOutcome, Unknown, UpdateDeadlines, is_label};

use super::{
    fault::{Faults, shown},
    read::{Fields, Spot},
};

/// Fields of `updateDeadlines`.
const DEADLINES: Fields = Fields {
    known: &[
        "hooks",
        "prepare",
        "turn",
        "clusterLocks",
        "nodeLocks",
        "kubernetesDrain",
        "swarmDrain",
        "items",
        "reboot",
        "locksReturned",
        "addons",
    ],
    later: &[],
    elsewhere: &[],
};
/// Fields of one deadline.
const DEADLINE: Fields = Fields { known: &["after", "outcome"], later: &[], elsewhere: &[] };
/// Fields of a deadline with a fixed outcome.
const TIME_ONLY: Fields = Fields { known: &["after"], later: &[], elsewhere: &[] };
/// Longest deadline: a week.
const DEADLINE_MS_MAX: u64 = 7 * 24 * 3600 * 1000;
/// Most controllers of one cluster.
const CONTROLLERS_MAX: usize = 16;

/// `workloadControllers`: names as in the controllers' certificates.
pub(super) fn controllers(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<Vec<String>> {
    let names = spot.list(faults)?;
    if names.len() > CONTROLLERS_MAX {
        spot.fault(faults, "too many controllers", format!("at most {CONTROLLERS_MAX}"));
        return None;
    }
    let mut controllers: Vec<String> = Vec::new();
    for spot in names {
        let name = spot.text(faults)?;
        if !is_label(name) || controllers.iter().any(|known| known == name) {
            let problem = format!("'{}' is not the name of another controller", shown(name));
            spot.fault(faults, problem, "a name of a-z, 0-9 and '-', each once");
            return None;
        }
        controllers.push(name.to_owned());
    }
    Some(controllers)
}

/// `updateDeadlines`.
pub(super) fn deadlines(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<UpdateDeadlines> {
    let map = spot.map(faults, &DEADLINES)?;
    let default = UpdateDeadlines::default();
    let hooks = map.or("hooks", default.hooks, |spot| of_cluster(&spot, default.hooks, faults));
    let prepare = map.or("prepare", default.prepare, |spot| deadline(&spot, default.prepare, None, faults));
    let turn = map.or("turn", default.turn_ms, |spot| time_only(&spot, faults));
    let cluster_locks =
        map.or("clusterLocks", default.cluster_locks, |spot| of_cluster(&spot, default.cluster_locks, faults));
    let node_locks = map.or("nodeLocks", default.node_locks, |spot| deadline(&spot, default.node_locks, None, faults));
    let swarm_drain =
        map.or("swarmDrain", default.swarm_drain, |spot| deadline(&spot, default.swarm_drain, None, faults));
    let kubernetes_drain = map.or("kubernetesDrain", default.kubernetes_drain, |spot| {
        deadline(&spot, default.kubernetes_drain, None, faults)
    });
    let items = map.or("items", default.items, |spot| no_way_back(&spot, default.items, faults));
    let reboot = map.or("reboot", default.reboot, |spot| no_way_back(&spot, default.reboot, faults));
    let returned =
        map.or("locksReturned", default.locks_returned, |spot| is_done(&spot, default.locks_returned, faults));
    let addons = map.or("addons", default.addons, |spot| of_cluster(&spot, default.addons, faults));
    Some(UpdateDeadlines {
        hooks: hooks?,
        prepare: prepare?,
        turn_ms: turn?,
        cluster_locks: cluster_locks?,
        node_locks: node_locks?,
        swarm_drain: swarm_drain?,
        kubernetes_drain: kubernetes_drain?,
        items: items?,
        reboot: reboot?,
        locks_returned: returned?,
        addons: addons?,
    })
}

fn time_only(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<u64> {
    let map = spot.map(faults, &TIME_ONLY)?;
    map.required(faults, "after")?.duration_ms(faults, DEADLINE_MS_MAX)
}

/// An outcome that a deadline forbids, why, and the allowed ones.
type Refused = (DeadlineOutcome, &'static str, &'static str);

fn deadline(spot: &Spot<'_>, default: Deadline, refused: Option<Refused>, faults: &mut Faults<'_>) -> Option<Deadline> {
    let map = spot.map(faults, &DEADLINE)?;
    let after_ms = map.or("after", default.after_ms, |spot| spot.duration_ms(faults, DEADLINE_MS_MAX));
    let outcome = map.or("outcome", default.outcome, |spot| outcome(&spot, refused, faults));
    Some(Deadline { after_ms: after_ms?, outcome: outcome? })
}

fn outcome(spot: &Spot<'_>, refused: Option<Refused>, faults: &mut Faults<'_>) -> Option<DeadlineOutcome> {
    let text = spot.text(faults)?;
    match (text.parse::<DeadlineOutcome>(), refused) {
        (Ok(outcome), Some((refused, problem, expected))) if outcome == refused => {
            spot.fault(faults, problem, expected);
            None
        }
        (Ok(outcome), _) => Some(outcome),
        (Err(Unknown { known }), refused) => {
            let refused = refused.map(|(outcome, ..)| outcome.as_str());
            let known: Vec<&str> = known.iter().copied().filter(|word| Some(*word) != refused).collect();
            spot.unknown(faults, &format!("unknown outcome '{}'", shown(text)), &known);
            None
        }
    }
}

/// The deadline of a stage that begins with a disturbed machine: it can fail or pause.
fn no_way_back(spot: &Spot<'_>, default: Deadline, faults: &mut Faults<'_>) -> Option<Deadline> {
    let problem = "a machine that was disturbed cannot be put aside";
    deadline(spot, default, Some((DeadlineOutcome::Defer, problem, "fail or pause")), faults)
}

/// The deadline of a stage of the whole cluster: it can abort or pause the update.
fn of_cluster(spot: &Spot<'_>, default: Deadline, faults: &mut Faults<'_>) -> Option<Deadline> {
    let problem = "the whole cluster waits there, and no machine can be put aside for it";
    deadline(spot, default, Some((DeadlineOutcome::Defer, problem, "fail or pause")), faults)
}

/// The deadline of a stage that begins when a machine is complete: failing is no longer possible.
fn is_done(spot: &Spot<'_>, default: Deadline, faults: &mut Faults<'_>) -> Option<Deadline> {
    let problem = "a machine that is at its new version does not fail for it";
    deadline(spot, default, Some((DeadlineOutcome::Fail, problem, "defer or pause")), faults)
}
