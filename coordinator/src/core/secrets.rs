//! Secrets: recorded as the rim sealed them, and handed out with the other inputs when an item is about to start. Plain
//! values and keys stay outside.

use std::{collections::BTreeSet, sync::Arc};

use muster_proto::{
    model::{ClusterName, Generation, ItemName, MachineId, Now, SecretName},
    seeded_bug::seeded_bug,
};

use super::{Refusal, Reply, Request, Rules, agents, decide::current_assignment, operators, swarm};
use crate::{
    facts::{AuditObject, Sealed, SecretId, SecretRow, Transaction},
    plan::{
        safety::some_names,
        secrets::{self, SecretUser},
    },
};

/// Maximum secrets of one cluster, and of shared ones: 16 MiB of values in memory.
pub(super) const SECRETS_MAX: usize = 256;
/// Maximum users of a secret in one message.
const USERS_SHOWN_MAX: usize = 5;

/// Handles operators' requests about secrets.
pub(super) fn take(tx: &mut Transaction<'_>, actor: &str, request: Request, now: Now) -> Result<Reply, Refusal> {
    match request {
        Request::CreateSecret { id, version, sealed, clusters } => {
            create(tx, actor, (id, version, sealed), clusters, now)
        }
        Request::ShareSecret { name, add, remove, in_use } => share(tx, actor, name, (add, &remove), in_use, now),
        Request::DeleteSecret { id, in_use } => delete(tx, actor, &id, in_use, now),
        _ => Ok(Reply::Ok),
    }
}

/// Creates a secret, or a new version of one. A shared secret is available only to the named clusters.
fn create(
    tx: &mut Transaction<'_>,
    actor: &str,
    (id, version, sealed): (SecretId, u64, Sealed),
    clusters: BTreeSet<ClusterName>,
    now: Now,
) -> Result<Reply, Refusal> {
    // The version is part of the sealed data; another secret was created meanwhile.
    if version != tx.meta.secret_seq + 1 {
        let message = format!("version {version} is not the next; try again");
        return Err(Refusal::State { reason: "Conflict", message });
    }
    let known = tx.secrets.get(&id).cloned();
    let beside = tx.secrets.keys().filter(|other| other.cluster == id.cluster).count();
    if known.is_none() && beside >= SECRETS_MAX {
        let whose = match &id.cluster {
            Some(cluster) => format!("cluster {cluster} has {SECRETS_MAX} secrets of its own"),
            None => format!("{SECRETS_MAX} secrets are shared"),
        };
        let message = format!("{whose}; `musterctl secret delete` those that nothing uses");
        return Err(Refusal::State { reason: "TooManySecrets", message });
    }
    let mut shared = known.as_ref().map(|row| row.clusters.clone()).unwrap_or_default();
    shared.extend(clusters);
    if id.cluster.is_none() && shared.is_empty() {
        let message = format!(
            "secret {id} is for no cluster: say --clusters A,B for those that share it, or --cluster C for one of that \
             cluster's own"
        );
        return Err(Refusal::State { reason: "ForNoCluster", message });
    }
    tx.meta_mut().secret_seq = version;
    // A secret may precede its cluster, so that the first manifest can refer to it.
    let to_come: Vec<&str> = id
        .cluster
        .iter()
        .chain(&shared)
        .filter(|cluster| !tx.clusters.contains_key(*cluster))
        .map(ClusterName::as_str)
        .collect();
    let mut line = match known {
        Some(_) => format!(
            "secret {id} has a new value; items that refer to it run again, but not on deployed machines until an \
             update is started"
        ),
        None => format!("secret {id} created"),
    };
    if id.cluster.is_none() {
        line = format!("{line}; it is for {}", names(&shared));
    }
    if !to_come.is_empty() {
        line = format!("{line}; there is no cluster {} yet: `musterctl apply` makes one", some_names(to_come));
    }
    tx.put_secret(SecretRow { id: id.clone(), version, created_at_ms: now.wall_ms, sealed, clusters: shared });
    operators::audited(tx, actor, "create", AuditObject::Secret(&id), vec![line], now)
}

/// Adds and removes clusters whose items may refer to a shared secret. Its version stays, so all items stay done.
fn share(
    tx: &mut Transaction<'_>,
    actor: &str,
    name: SecretName,
    (add, remove): (BTreeSet<ClusterName>, &BTreeSet<ClusterName>),
    in_use: bool,
    now: Now,
) -> Result<Reply, Refusal> {
    let id = SecretId { cluster: None, name };
    let Some(row) = tx.secrets.get(&id).cloned() else { return Err(unknown(tx, &id)) };
    let users = secrets::used_by(tx, &id).into_iter().filter(|user| remove.contains(&user.cluster)).collect();
    is_unused(&id, users, in_use)?;
    let mut clusters = row.clusters.clone();
    clusters.extend(add);
    clusters.retain(|cluster| !remove.contains(cluster));
    let line = format!("secret {id} is for {}", names(&clusters));
    tx.put_secret(SecretRow { clusters, ..(*row).clone() });
    operators::audited(tx, actor, "share", AuditObject::Secret(&id), vec![line], now)
}

fn names(clusters: &BTreeSet<ClusterName>) -> String {
    match clusters.is_empty() {
        true => "no cluster".to_owned(),
        false => clusters.iter().map(ClusterName::as_str).collect::<Vec<_>>().join(", "),
    }
}

/// The error for a missing secret, with the nearest name of the same owner.
fn unknown(tx: &Transaction<'_>, id: &SecretId) -> Refusal {
    let known: Vec<String> =
        tx.secrets.keys().filter(|known| known.cluster == id.cluster).map(ToString::to_string).collect();
    operators::not_found("secret", &id.to_string(), known.iter().map(String::as_str))
}

/// Protects a secret with users: without it their items could not start. The operator can override this.
fn is_unused(id: &SecretId, users: Vec<SecretUser>, in_use: bool) -> Result<(), Refusal> {
    if users.is_empty() || in_use {
        return Ok(());
    }
    let shown = users.iter().take(USERS_SHOWN_MAX).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = users.len().saturating_sub(USERS_SHOWN_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!(
        "{id} is used by {shown}{more}; apply a manifest without it first, or say --in-use: such items cannot be \
         started then"
    );
    Err(Refusal::State { reason: "SecretInUse", message })
}

fn delete(tx: &mut Transaction<'_>, actor: &str, id: &SecretId, in_use: bool, now: Now) -> Result<Reply, Refusal> {
    if !tx.secrets.contains_key(id) {
        return Err(unknown(tx, id));
    }
    is_unused(id, secrets::used_by(tx, id), in_use)?;
    tx.drop_secret(id);
    operators::audited(tx, actor, "delete", AuditObject::Secret(id), vec![format!("secret {id} deleted")], now)
}

/// The inputs of an item that an agent is about to start. The item must be in the machine's current list, which the
/// agent must have accepted. The agent supplies only the list's number and the item's name.
pub(super) fn fetch(
    tx: &mut Transaction<'_>,
    id: MachineId,
    item: &ItemName,
    generation: Generation,
    rules: &Rules<'_>,
    now: Now,
) -> Result<Reply, Refusal> {
    let machine = agents::heard(tx, id, now)?;
    let refused = |message: String| Refusal::State { reason: "NotAssigned", message };
    let assignment = current_assignment(tx, &machine, rules, now)
        .ok_or_else(|| refused(format!("{machine} is not to start anything now")))?;
    let found = assignment.items.iter().find(|known| known.name == *item && assignment.generation == generation);
    // Seeded bug: serve an item of any machine's list.
    let foreign = seeded_bug("serve-foreign-secrets").then(|| any_item(tx, item)).flatten();
    let found = found
        .or(foreign.as_ref())
        .ok_or_else(|| refused(format!("item {item} is not in generation {} of {machine}", assignment.generation)))?;
    let cluster = &assignment.cluster;
    let secret = |name| {
        let row = secrets::find(tx, cluster, &name).map(Arc::clone);
        row.ok_or_else(|| Refusal::State {
            reason: "SecretMissing",
            message: format!(
                "secret {name} was deleted, or is not for cluster {cluster} any more; `musterctl secret create {name} \
                 --cluster {cluster} --from-file FILE` makes it again, `musterctl secret share {name} --clusters \
                 {cluster}` shares it again"
            ),
        })
    };
    let secrets = found.secrets().into_iter().map(secret).collect::<Result<_, _>>()?;
    let joins = found.joins_swarm();
    let entry = if joins { swarm::enter(tx, &machine, rules.limits, now)? } else { None };
    Ok(Reply::Inputs { secrets, entry })
}

/// Only for the seeded bug: the first machine's item of that name.
fn any_item(tx: &Transaction<'_>, item: &ItemName) -> Option<muster_proto::model::AssignedItem> {
    let lists = tx.live.machines.values().filter_map(|live| live.items.as_deref()?.resolved.as_ref().ok());
    lists.flatten().find(|known| known.name == *item).cloned()
}
