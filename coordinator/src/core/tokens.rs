//! Join tokens: created for the number of missing machines, and revoked along with unreported machines.

use muster_proto::model::{ClusterName, MachineName, MachineType, Now, TOKEN_TTL_DEFAULT_MS};

use super::{
    Effect, Refusal, Reply, Request, enroll, operators::audited, operators::known_cluster, operators::not_found,
};
use crate::{
    facts::{AuditObject, MachineRow, TokenRow, Transaction},
    plan::{enrolment, safety::some_names},
};

/// Maximum join tokens recorded for one cluster. Unusable ones make room.
pub(super) const TOKENS_MAX: usize = 1_000;
/// Uses of a token beyond the missing machines: one may have to enrol again, for example under a mistyped name.
const SPARE_USES: u32 = 1;

pub(super) fn create(tx: &mut Transaction<'_>, actor: &str, request: Request, now: Now) -> Result<Reply, Refusal> {
    let Request::CreateToken { id, secret_sha256, cluster, machine_type, machine, ttl_ms, uses } = request else {
        return Ok(Reply::Ok);
    };
    known_cluster(tx, &cluster)?;
    if let Some(row) = machine.as_ref().and_then(|machine| tx.machines.get(machine)) {
        enroll::fits_role(row, &cluster, machine_type)?;
    }
    let uses = match (uses, &machine) {
        (Some(uses), _) => uses,
        (None, Some(_)) => 1,
        (None, None) => uses_of(tx, &cluster, machine_type)?,
    };
    make_room(tx, &cluster, now)?;
    let default_ms = tx.spec(&cluster).map_or(TOKEN_TTL_DEFAULT_MS, |spec| spec.token_ttl_ms);
    let expires_at_ms = now.wall_ms.saturating_add(ttl_ms.unwrap_or(default_ms));
    let times = if uses == 1 { "once".to_owned() } else { format!("up to {uses} times") };
    let message = match &machine {
        Some(machine) => format!("for {machine_type} machines of {cluster}, for {machine} only, {times}"),
        None => format!("for {machine_type} machines of {cluster}, any name, {times}"),
    };
    tx.put_token(TokenRow {
        id: id.clone(),
        secret_sha256,
        cluster,
        machine_type,
        machine,
        uses,
        used: 0,
        created_at_ms: now.wall_ms,
        expires_at_ms,
        revoked: false,
    });
    tx.audit(actor, "create", AuditObject::Token(&id), &message, now.wall_ms);
    Ok(Reply::Token { expires_at_ms, uses })
}

/// Number of machines that the manifest still lacks, plus [`SPARE_USES`].
fn uses_of(tx: &Transaction<'_>, cluster: &ClusterName, machine_type: MachineType) -> Result<u32, Refusal> {
    let message = match enrolment::lacking(tx, cluster, machine_type) {
        Some(0) => format!(
            "every {machine_type} machine that the manifest of cluster {cluster} names has enrolled; say `--uses N` \
             for a token with which N more may join, or apply a manifest that names more"
        ),
        Some(lacking) => return Ok(lacking.saturating_add(SPARE_USES)),
        None => format!(
            "the manifest of cluster {cluster} does not say how many machines it has (`machines`): say `--uses N`"
        ),
    };
    Err(Refusal::State { reason: "NothingLacking", message })
}

/// Drops the cluster's oldest unusable tokens to make room for a new one. Revoked and expired ones go first, because a
/// machine that missed its answer may ask again with a token that is merely used up.
fn make_room(tx: &mut Transaction<'_>, cluster: &ClusterName, now: Now) -> Result<(), Refusal> {
    let of_cluster = || tx.tokens.values().filter(|token| token.cluster == *cluster);
    let excess = (of_cluster().count() + 1).saturating_sub(TOKENS_MAX);
    if excess == 0 {
        return Ok(());
    }
    let is_over = |token: &TokenRow| token.revoked || token.expires_at_ms <= now.wall_ms;
    let mut spent: Vec<_> = of_cluster().filter(|token| is_over(token) || token.used >= token.uses).cloned().collect();
    spent.sort_by_key(|token| (!is_over(token), token.created_at_ms));
    if spent.len() < excess {
        let message = format!(
            "cluster {cluster} has {TOKENS_MAX} join tokens that are still good (`musterctl get tokens`); `musterctl \
             token revoke ID` makes room"
        );
        return Err(Refusal::State { reason: "TooManyTokens", message });
    }
    spent.iter().take(excess).for_each(|token| tx.drop_token(&token.id));
    Ok(())
}

/// Revokes a token. `machines`: also revoke the enrolments made with it, of machines that never reported.
pub(super) fn revoke(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    actor: &str,
    (id, machines): (&str, bool),
    now: Now,
) -> Result<Reply, Refusal> {
    if !tx.tokens.contains_key(id) {
        return Err(not_found("token", id, tx.tokens.keys().map(String::as_str)));
    }
    if let Some(token) = tx.token_mut(id) {
        token.revoked = true;
    }
    let by_it = |row: &MachineRow| row.enrolled_with.as_ref().is_some_and(|with| with.token_id == id);
    let came = tx.machines.values().filter(|row| by_it(row) && row.id.is_some());
    let (silent, reported): (Vec<_>, Vec<_>) = came.cloned().partition(|row| tx.never_reported(row));
    let mut lines = vec![format!("token {id} revoked")];
    if machines {
        for row in &silent {
            enroll::take_back(tx, effects, &row.name, now);
        }
        lines.push(format!("{} taken back that never reported", machines_of_it(silent.len())));
    } else if !silent.is_empty() {
        let count = machines_of_it(silent.len());
        lines.push(format!("{count} never reported; `musterctl token revoke {id} --machines` takes them back"));
    }
    if machines && !reported.is_empty() {
        let names = names(reported.iter().map(|row| &row.name));
        lines.push(format!("{} reported and stay: {names}", machines_of_it(reported.len())));
    }
    audited(tx, actor, "revoke", AuditObject::Token(id), lines, now)
}

fn machines_of_it(count: usize) -> String {
    format!("{count} machine{} enrolled with it", if count == 1 { "" } else { "s" })
}

fn names<'a>(names: impl Iterator<Item = &'a MachineName>) -> String {
    some_names(names.map(MachineName::as_str))
}
