//! Secrets: recorded as the rim sealed them, and handed out, with whatever else an item starts with, when it is about
//! to. No value and no key is ever here.

use std::sync::Arc;

use muster_proto::{
    model::{Generation, ItemName, MachineId, Now},
    plant::planted,
};

use super::{Refusal, Reply, Rules, agents, decide::current_assignment, operators, swarm};
use crate::{
    facts::{Draft, Sealed, SecretId, SecretRow},
    plan::secrets,
};

/// Secrets recorded at once: 16 MiB of values in memory.
const SECRETS_MAX: usize = 256;
/// Users of a secret that a message names.
const USERS_SHOWN_MAX: usize = 5;

/// A new secret, or a new version of one.
pub(super) fn create(
    draft: &mut Draft<'_>,
    actor: &str,
    (id, version, sealed): (SecretId, u64, Sealed),
    now: Now,
) -> Result<Reply, Refusal> {
    // The version is part of what was sealed; another secret was created meanwhile.
    if version != draft.meta.secret_seq + 1 {
        let message = format!("version {version} is not the next; try again");
        return Err(Refusal::State { reason: "Conflict", message });
    }
    let known = draft.secrets.contains_key(&id);
    if !known && draft.secrets.len() >= SECRETS_MAX {
        let message = format!("there are {SECRETS_MAX} secrets; `musterctl secret delete` those that nothing uses");
        return Err(Refusal::State { reason: "TooManySecrets", message });
    }
    draft.meta_mut().secret_seq = version;
    draft.put_secret(SecretRow { id: id.clone(), version, created_at_ms: now.wall_ms, sealed });
    // A manifest may refer to it from the first: it comes before its cluster.
    let to_come = id.cluster.as_ref().filter(|cluster| !draft.clusters.contains_key(*cluster));
    let line = if let Some(cluster) = to_come {
        format!("secret {id} created; there is no cluster {cluster} yet: `musterctl apply` makes one")
    } else if known {
        format!(
            "secret {id} has a new value; items that refer to it run again, but not on deployed machines \
             until an update is started"
        )
    } else {
        format!("secret {id} created")
    };
    operators::audited(draft, actor, "create", &format!("secret/{id}"), vec![line], now)
}

pub(super) fn delete(
    draft: &mut Draft<'_>,
    actor: &str,
    id: &SecretId,
    in_use: bool,
    now: Now,
) -> Result<Reply, Refusal> {
    if !draft.secrets.contains_key(id) {
        let known: Vec<String> = draft.secrets.keys().map(ToString::to_string).collect();
        return Err(operators::not_found("secret", &id.to_string(), known.iter().map(String::as_str)));
    }
    let users = secrets::used_by(draft, id);
    if !users.is_empty() && !in_use {
        let shown = users.iter().take(USERS_SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = users.len().saturating_sub(USERS_SHOWN_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        return Err(Refusal::State {
            reason: "SecretInUse",
            message: format!(
                "{id} is used by {shown}{more}; apply a manifest without it first, or say --in-use: such items cannot \
                 be started then"
            ),
        });
    }
    draft.drop_secret(id);
    operators::audited(draft, actor, "delete", &format!("secret/{id}"), vec![format!("secret {id} deleted")], now)
}

/// The inputs of an item that an agent is about to start. Granted only for an item of the very list that the machine
/// should have now, and has accepted: what the agent says of itself is that list's number and the item's name.
pub(super) fn fetch(
    draft: &mut Draft<'_>,
    id: MachineId,
    item: &ItemName,
    generation: Generation,
    rules: &Rules<'_>,
    now: Now,
) -> Result<Reply, Refusal> {
    let machine = agents::heard(draft, id, now)?;
    let refused = |message: String| Refusal::State { reason: "NotAssigned", message };
    let assignment = current_assignment(draft, &machine, rules, now)
        .ok_or_else(|| refused(format!("{machine} is not to start anything now")))?;
    let found = assignment.items.iter().find(|known| known.name == *item && assignment.generation == generation);
    // Planted: an item of any machine's list is good enough.
    let foreign = planted("serve-foreign-secrets").then(|| any_item(draft, item)).flatten();
    let found = found
        .or(foreign.as_ref())
        .ok_or_else(|| refused(format!("item {item} is not in generation {} of {machine}", assignment.generation)))?;
    let cluster = &assignment.cluster;
    let secret = |name| {
        let row = secrets::find(draft, cluster, &name).map(Arc::clone);
        row.ok_or_else(|| Refusal::State {
            reason: "SecretMissing",
            message: format!(
                "secret {name} was deleted; `musterctl secret create {name} --cluster {cluster} --from-file FILE` \
                 makes it again, for every cluster without --cluster"
            ),
        })
    };
    let secrets = found.secrets().into_iter().map(secret).collect::<Result<_, _>>()?;
    let joins = found.joins_swarm();
    let entry = if joins { swarm::enter(draft, &machine, rules.limits, now)? } else { None };
    Ok(Reply::Inputs { secrets, entry })
}

/// For the planted bug only: the first machine's item of that name.
fn any_item(draft: &Draft<'_>, item: &ItemName) -> Option<muster_proto::model::AssignedItem> {
    let lists = draft.live.machines.values().filter_map(|live| live.items.as_deref()?.resolved.as_ref().ok());
    lists.flatten().find(|known| known.name == *item).cloned()
}
