//! Builds the documents that people read (`proto/src/resource.rs`) from the facts. PURE. The Fleet service sends them.

mod backups;
mod cluster;
mod handshake;
mod hooks;
pub mod kubernetes;
mod progress;
mod rollout;
mod update;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use muster_proto::{
    model::{Blocked, ClusterName, ItemProgress, ItemState, ItemStatus, Now, Reason},
    resource::{
        Activity, Address, Audit, AuditChain, AuditChainSpec, AuditChainStatus, AuditSpec, AuditStatus, BlockedSince,
        Bytes, Cluster, Credential, CredentialSpec, CredentialStatus, Document, HostInfo, ItemPlan, Machine,
        MachineStatus, Metadata, Plan, Rollout, Secret, SecretSpec, SecretStatus, StageStatus, StateItemStatus, Token,
        TokenSpec, TokenStatus,
    },
};

pub use crate::plan::requests::{Requested, requested};
pub use handshake::{cluster_states, locks, requests};

use crate::{
    core::update::Options,
    facts::{
        self, AuditRow, AuditScope, CertificateRow, CredentialRow, Facts, LeftOut, MachineRow, SecretRow, Stage,
        StageRow, TokenRow,
    },
    plan::{
        self, Limits, blocked,
        snapshot::{ClusterSnapshot, MachineView, Progress},
        waves,
    },
};

/// Unix milliseconds as a timestamp. A clock beyond the year 9999 shows as the epoch.
fn at(ms: u64) -> Timestamp {
    i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn since(blocked: Option<Blocked>, noted: Option<(Reason, u64)>, now: Now) -> Option<BlockedSince> {
    let blocked = blocked?;
    let noted = noted.filter(|(reason, _)| *reason == blocked.reason).map_or(now.wall_ms, |(_, ms)| ms);
    Some(BlockedSince { since: at(noted), blocked })
}

/// Every cluster that `wanted` accepts.
#[must_use]
pub fn clusters(facts: &Facts, wanted: impl Fn(&ClusterName) -> bool, limits: &Limits, now: Now) -> Vec<Cluster> {
    snapshots(facts, wanted, limits, now).iter().map(|snapshot| cluster::document(snapshot, now)).collect()
}

/// Every machine of the clusters that `wanted` accepts; output and results of items are omitted. Those of a thousand
/// machines would be too much for a reader or for musterctl.
#[must_use]
pub fn machines(facts: &Facts, wanted: impl Fn(&ClusterName) -> bool, limits: &Limits, now: Now) -> Vec<Machine> {
    snapshots(facts, wanted, limits, now)
        .iter()
        .flat_map(|snapshot| snapshot.machines.iter().map(|view| machine(snapshot, view, now)))
        .collect()
}

/// The machine of this name, with output and results of its items, if `wanted` accepts its cluster.
#[must_use]
pub fn machine_named(
    facts: &Facts,
    name: &str,
    wanted: impl Fn(&ClusterName) -> bool,
    limits: &Limits,
    now: Now,
) -> Option<Machine> {
    let row = facts.machines.get(name).filter(|row| wanted(&row.spec.cluster_name))?;
    let snapshot = ClusterSnapshot::of(facts, &row.spec.cluster_name, limits, now)?;
    let view = snapshot.machines.iter().find(|view| view.row.name == row.name)?;
    let mut found = machine(&snapshot, view, now);
    for (item, shown) in &mut found.status.state_item_statuses {
        let Some(status) = row.statuses.get(item.as_str()) else { continue };
        shown.result = status.result_json.as_deref().and_then(|json| serde_json::from_str(json).ok());
        shown.output_tail.clone_from(&status.output_tail);
    }
    Some(found)
}

/// Every rollout of the clusters that `wanted` accepts, in order of their start.
#[must_use]
pub fn rollouts(facts: &Facts, wanted: impl Fn(&ClusterName) -> bool, limits: &Limits, now: Now) -> Vec<Rollout> {
    let mut rollouts: Vec<Rollout> = snapshots(facts, wanted, limits, now)
        .iter()
        .flat_map(|snapshot| {
            let of_cluster = facts.rollouts.values().filter(|row| row.cluster == snapshot.cluster.name);
            of_cluster.map(|row| rollout::document(snapshot, row, now)).collect::<Vec<_>>()
        })
        .collect();
    rollouts.sort_by_key(Rollout::order);
    rollouts
}

/// Every join token of the clusters that `wanted` accepts.
#[must_use]
pub fn tokens(facts: &Facts, wanted: impl Fn(&ClusterName) -> bool, now: Now) -> Vec<Token> {
    facts.tokens.values().filter(|row| wanted(&row.cluster)).map(|row| token(row, now)).collect()
}

/// All certificates of people and programs, by role and name, oldest first: two of one name may be for different
/// clusters.
#[must_use]
pub fn credentials(facts: &Facts, now: Now) -> Vec<Credential> {
    let of = |row: &Arc<CredentialRow>| -> Vec<Credential> {
        row.certificates.iter().map(|certificate| credential(row, certificate, now)).collect()
    };
    facts.credentials.values().flat_map(of).collect()
}

/// Secrets of the clusters that `wanted` accepts, and those shared with one of them; with `all`, all shared ones.
/// Values and other clusters are omitted.
#[must_use]
pub fn secrets(facts: &Facts, wanted: impl Fn(&ClusterName) -> bool, all: bool) -> Vec<Secret> {
    let seen = |row: &&Arc<SecretRow>| {
        let shared = row.id.cluster.is_none() && (all || row.clusters.iter().any(&wanted));
        shared || row.id.cluster.as_ref().is_some_and(&wanted)
    };
    facts.secrets.values().filter(seen).map(|row| secret(facts, row, &wanted)).collect()
}

/// The audit record of one cluster or of all, in the order in which it was written.
#[must_use]
pub fn audit(facts: &Facts, only: Option<&ClusterName>) -> Vec<Audit> {
    let wanted = |row: &&&Arc<AuditRow>| only.is_none_or(|only| row.scope.cluster.as_ref() == Some(only));
    facts.audit_lines().iter().filter(wanted).map(|row| audit_line(row)).collect()
}

/// Every chain of the audit record, listed or merely present.
#[must_use]
pub fn audit_chains(facts: &Facts) -> Vec<AuditChain> {
    let scopes: BTreeSet<&AuditScope> = facts.meta.audit_chains.iter().chain(facts.audit.keys()).collect();
    scopes.into_iter().map(|scope| audit_chain(scope, facts.audit.get(scope).map(|chain| &**chain))).collect()
}

fn audit_chain(scope: &AuditScope, chain: Option<&facts::AuditChain>) -> AuditChain {
    let head = chain.map(facts::AuditChain::head).unwrap_or_default();
    let lines: Vec<Audit> = chain.iter().flat_map(|chain| chain.lines()).map(|row| audit_line(row)).collect();
    Document {
        metadata: Metadata {
            name: scope.to_string(),
            creation_timestamp: lines.first().map_or(Timestamp::UNIX_EPOCH, |line| line.metadata.creation_timestamp),
            annotations: BTreeMap::new(),
        },
        spec: AuditChainSpec { cluster_name: scope.cluster.as_ref().map(ToString::to_string) },
        status: AuditChainStatus { oldest: head.oldest, newest: head.number, hash: head.hash, lines },
    }
}

/// The plan of a cluster, if it exists: the order of its machines.
#[must_use]
pub fn plan(facts: &Facts, cluster: &ClusterName, options: &Options, limits: &Limits, now: Now) -> Option<Plan> {
    let snapshot = ClusterSnapshot::of(facts, cluster, limits, now)?;
    let update = update::planned(&snapshot, options, limits);
    let under_way = snapshot.rollout.filter(|row| row.update.is_some());
    let rollout = under_way.map(|row| rollout::document(&snapshot, row, now));
    Some(Plan { rollout, update, ..waves::plan(&snapshot) })
}

fn snapshots<'a>(
    facts: &'a Facts,
    wanted: impl Fn(&ClusterName) -> bool,
    limits: &Limits,
    now: Now,
) -> Vec<ClusterSnapshot<'a>> {
    facts
        .clusters
        .keys()
        .filter(|name| wanted(name))
        .filter_map(|name| ClusterSnapshot::of(facts, name, limits, now))
        .collect()
}

fn machine(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, now: Now) -> Machine {
    let row = view.row;
    let live = view.live;
    let address = |kind: &str, address: &str| Address { kind: kind.to_owned(), address: address.to_owned() };
    let hostname = row.host.as_ref().map(|host| address("Hostname", &host.hostname));
    Document {
        metadata: Metadata {
            name: row.name.to_string(),
            creation_timestamp: at(row.created_at_ms),
            annotations: row.annotations.clone(),
        },
        spec: row.spec.clone(),
        status: MachineStatus {
            state: view.state().as_str().to_owned(),
            addresses: row.internal_ip().map(|ip| address("InternalIP", ip)).into_iter().chain(hostname).collect(),
            agent_version: Some(row.agent_version.clone()).filter(|version| !version.is_empty()),
            machine_id: row.id.map(|id| id.to_string()),
            join_token: row.enrolled_with.as_ref().map(|with| with.token_id.clone()),
            connected: view.connected(),
            two_agents: live.is_some_and(|live| live.has_two_agents(now)),
            lost: is_lost(view),
            failed: view.failed(),
            indeterminate: is_indeterminate(view),
            last_seen: live.and_then(|live| live.heard_wall_ms).map(at),
            generation: row.assigned.generation.0,
            slot_since: row.slot.map(|slot| at(slot.granted_at_ms)),
            release: row.ready_at.as_ref().map(|(release, _)| release.clone()),
            blocked: since(blocked::of_machine(snapshot, view), row.blocked_since, now),
            activity: activity(view, now),
            items: item_plans(view),
            state_item_statuses: row
                .statuses
                .iter()
                .map(|(name, status)| (name.to_string(), item_status(status)))
                .collect(),
            stages: stages(row),
            lcm_operation_stuck: update::stuck(view),
            reboot: rollout::reboot(row),
            maintenance: update::maintenance(row),
            forced_pods: kubernetes::forced_pods(row),
            prepare_deletion_phase: update::deletion_phase(snapshot, view),
            host_info: row.host.as_ref().map(HostInfo::from),
        },
    }
}

/// Is it lost? A machine that was asked to reboot is overdue instead.
fn is_lost(view: &MachineView<'_>) -> bool {
    view.lost && view.rebooting.is_none() && !view.in_maintenance()
}

/// Is the outcome of one of its items unknown?
fn is_indeterminate(view: &MachineView<'_>) -> bool {
    matches!(view.trouble(), Some(Progress::Held(_)))
}

fn activity(view: &MachineView<'_>, now: Now) -> Option<Activity> {
    let (item, attempt, running) = blocked::activity(view)?;
    let status = view.row.statuses.get(&item.name).filter(|status| running && status.hash == item.hash);
    let progress = view.live.and_then(|live| live.progress.as_ref()).filter(|known| known.item == item.name);
    let task = progress.and_then(|known| known.task.clone());
    Some(Activity {
        item: item.name.to_string(),
        attempt,
        started_at: at(status.map_or(now.wall_ms, |status| status.started_at_ms)),
        progress: progress.filter(|_| task.is_none()).map(|known| Bytes {
            done: known.done,
            total: known.total,
            per_second: known.per_second,
        }),
        task,
    })
}

fn item_plans(view: &MachineView<'_>) -> Vec<ItemPlan> {
    let plan = |item: &muster_proto::model::AssignedItem| {
        let verdict = view.row.verdicts.get(&item.name).filter(|verdict| verdict.hash == item.hash);
        let standing = match (verdict.and_then(|verdict| verdict.left_out), view.standing(item)) {
            (Some(LeftOut::Skipped), _) => "skipped",
            (Some(LeftOut::Accepted), _) => "accepted",
            (Some(LeftOut::DoneBefore), _) | (None, ItemProgress::Done) => "done",
            (None, ItemProgress::Due { attempt: 1 }) => "due",
            (None, ItemProgress::Due { .. }) => "retrying",
            (None, ItemProgress::Running { .. }) => "running",
            (None, ItemProgress::Failed) => "failed",
            (None, ItemProgress::Held) => "held",
        };
        ItemPlan {
            name: item.name.to_string(),
            phase: item.phase,
            runner: item.runner.clone(),
            version: item.version.clone(),
            standing: standing.to_owned(),
        }
    };
    view.items.unwrap_or_default().iter().map(plan).collect()
}

/// Status of an item; output and result are left out.
fn item_status(status: &ItemStatus) -> StateItemStatus {
    let (state, exit_code) = match status.state {
        ItemState::Running => ("Running", None),
        ItemState::Succeeded => ("Succeeded", Some(0)),
        ItemState::Failed { exit_code, .. } => ("Failed", Some(exit_code)),
        ItemState::Indeterminate => ("Indeterminate", None),
    };
    StateItemStatus {
        hash: status.hash,
        state: state.to_owned(),
        exit_code,
        message: status.message.clone(),
        result: None,
        attempt: status.attempt,
        started_at: at(status.started_at_ms),
        finished_at: status.finished_at_ms.map(at),
        output_tail: String::new(),
    }
}

fn stages(row: &MachineRow) -> Vec<StageStatus> {
    let expected = [Stage::PrepareDone, Stage::PreviousDeployed, Stage::DeployDone];
    let shown = Stage::ALL.iter().filter(|stage| expected.contains(stage) || row.stages.contains_key(stage));
    shown.map(|stage| stage_status(stage.as_str(), row.stages.get(stage))).collect()
}

fn stage_status(name: &str, known: Option<&StageRow>) -> StageStatus {
    let status = match known {
        None => "NotStarted",
        Some(row) if row.finished_at_ms.is_none() => "InProgress",
        Some(row) if row.succeeded => "Success",
        Some(_) => "Fail",
    };
    StageStatus {
        name: name.to_owned(),
        status: status.to_owned(),
        started_at: known.map(|row| at(row.started_at_ms)),
        finished_at: known.and_then(|row| row.finished_at_ms).map(at),
    }
}

fn token(row: &TokenRow, now: Now) -> Token {
    let state = if row.revoked {
        "Revoked"
    } else if row.expires_at_ms <= now.wall_ms {
        "Expired"
    } else if row.used >= row.uses {
        "UsedUp"
    } else {
        "Valid"
    };
    Document {
        metadata: Metadata {
            name: row.id.clone(),
            creation_timestamp: at(row.created_at_ms),
            annotations: std::collections::BTreeMap::new(),
        },
        spec: TokenSpec {
            cluster_name: row.cluster.to_string(),
            machine_type: row.machine_type,
            machine: row.machine.as_ref().map(ToString::to_string),
            uses: row.uses,
        },
        status: TokenStatus { state: state.to_owned(), used: row.used, expires_at: at(row.expires_at_ms) },
    }
}

fn credential(row: &CredentialRow, certificate: &CertificateRow, now: Now) -> Credential {
    let revoked = row.has_revoked(certificate);
    let state = match revoked {
        true => "Revoked",
        false if certificate.expires_at_ms <= now.wall_ms => "Expired",
        false => "Valid",
    };
    Document {
        metadata: Metadata {
            name: row.subject.clone(),
            creation_timestamp: at(certificate.issued_at_ms),
            annotations: std::collections::BTreeMap::new(),
        },
        spec: CredentialSpec { clusters: certificate.clusters.iter().map(ToString::to_string).collect() },
        status: CredentialStatus {
            state: state.to_owned(),
            expires_at: at(certificate.expires_at_ms),
            revoked_at: row.revoked_at_ms.filter(|_| revoked).map(at),
        },
    }
}

fn secret(facts: &Facts, row: &SecretRow, wanted: impl Fn(&ClusterName) -> bool) -> Secret {
    let users = plan::secrets::used_by(facts, &row.id).into_iter().filter(|user| wanted(&user.cluster));
    Document {
        metadata: Metadata {
            name: row.id.to_string(),
            creation_timestamp: at(row.created_at_ms),
            annotations: std::collections::BTreeMap::new(),
        },
        spec: SecretSpec {
            cluster_name: row.id.cluster.as_ref().map(ToString::to_string),
            clusters: row.clusters.iter().filter(|cluster| wanted(cluster)).map(ToString::to_string).collect(),
        },
        status: SecretStatus { version: row.version, used_by: users.map(|user| user.to_string()).collect() },
    }
}

fn audit_line(row: &AuditRow) -> Audit {
    Document {
        metadata: Metadata {
            name: row.seq.to_string(),
            creation_timestamp: at(row.at_ms),
            annotations: std::collections::BTreeMap::new(),
        },
        spec: AuditSpec {
            cluster_name: row.scope.cluster.as_ref().map(ToString::to_string),
            actor: row.actor.clone(),
            action: row.action.clone(),
            object: row.object.clone(),
            message: row.message.clone(),
            times: row.times,
            last_ms: row.last_ms,
        },
        status: AuditStatus {
            chain: row.scope.to_string(),
            number: row.number,
            previous: row.previous,
            hash: row.hash,
        },
    }
}

#[cfg(test)]
mod tests;
