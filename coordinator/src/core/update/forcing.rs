//! An operator's word that a pod is deleted from the Kubernetes node of a machine in its turn.

use muster_proto::model::{MachineName, Now};

use super::{deadlines, decides, refusal};
use crate::{
    core::{
        Refusal, Reply,
        operators::{audited, known_machine},
    },
    facts::{AuditObject, ForcedPod, Transaction, kubernetes::PodName},
    plan::{
        Limits,
        drain::kubernetes::{
            eviction,
            forcing::{self, DrainRules, NotForced, WordFault},
        },
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Records the word. The pod is deleted by its UID, once the node is cordoned. A machine that was deferred because of
/// this pod alone has its turn again.
pub(in crate::core) fn force_pod(
    tx: &mut Transaction<'_>,
    actor: &str,
    (machine, named): (&MachineName, &PodName),
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    let row = known_machine(tx, machine)?;
    let Some(snapshot) = ClusterSnapshot::of(tx, &row.spec.cluster_name, limits, now) else {
        return Err(refusal("NoKubernetes", format!("machine {machine} is of no cluster")));
    };
    decides(&snapshot)?;
    let view = MachineView::of(tx, &row, limits, now);
    let meant = forcing::meant(&snapshot, &view, named);
    let pod = meant.map_err(|NotForced { fault, message }| refusal(reason(fault), message))?;
    let (name, uid) = (eviction::name_of(&pod), pod.uid.clone());
    if let Some(mine) = tx.machine_mut(machine).and_then(|row| row.update.as_mut()) {
        mine.forced_pods.push(ForcedPod { pod, by: actor.to_owned(), since_ms: now.wall_ms });
    }
    let line = format!(
        "machine {machine}: pod {name} (UID {uid}) is deleted once its node is cordoned, whatever its \
         disruption budget says; another pod of that name is not"
    );
    let mut lines = vec![line];
    let other = other_that_keeps(tx, machine);
    lines.extend(other.iter().map(|why| format!("machine {machine}: {why}; it keeps the machine as well")));
    let Reply::Done(lines) = audited(tx, actor, "drain-force", AuditObject::Machine(machine), lines, now)? else {
        return Ok(Reply::Ok);
    };
    if other.is_some() || !deadlines::is_deferred(tx, machine) {
        return Ok(Reply::Done(lines));
    }
    match deadlines::ask_again(tx, actor, machine, now)? {
        Reply::Done(more) => Ok(Reply::Done([lines, more].concat())),
        reply => Ok(reply),
    }
}

const fn reason(fault: WordFault) -> &'static str {
    match fault {
        WordFault::NoKubernetes => "NoKubernetes",
        WordFault::NotDraining => "NotDraining",
        WordFault::NotListed => "NotListed",
        WordFault::NoSuchPod => "NoSuchPod",
        WordFault::PodStays => "PodStays",
        WordFault::NothingToDo => "NothingToDo",
        WordFault::TooManyPods => "TooManyPods",
    }
}

/// Another pod that can never leave the machine as things are, as its last list shows.
fn other_that_keeps(tx: &Transaction<'_>, machine: &MachineName) -> Option<String> {
    let row = tx.machines.get(machine)?;
    let spec = tx.spec(&row.spec.cluster_name)?.kubernetes.as_ref()?;
    let load = tx.live.machines.get(machine)?.kubernetes.load.as_ref()?;
    let rules = DrainRules { policy: &spec.drain, forced: &row.update.as_ref()?.forced_pods };
    eviction::undrainable(&load.what, &rules).map(|kept| kept.why)
}
