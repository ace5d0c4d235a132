//! Add-ons of a cluster, the Helm controller first: applied in order once the cluster has a control and a worker
//! machine, and verified by every update. Level-triggered: what is due follows from what is recorded of each and from
//! the last look at the Deployments.

use muster_proto::model::{
    Addon, AddonDeployment, AddonManifest, Blocked, HELM_CONTROLLER, KubernetesSpec, MachineType, Reason,
};

use super::{
    drain::kubernetes::{SETTLE_MS, questions},
    safety::{self, blocked},
    secrets,
    snapshot::{ClusterSnapshot, MachineView},
    update::{ClusterStep, halt},
};
use crate::facts::{
    AddonRow, AddonsObservation, ClusterStage, DesiredState, Seen, StageRow, UpdateKind, UpdateRow,
    kubernetes::{
        KubernetesFailure, KubernetesOp,
        addons::{AddonText, AddonToApply, DeploymentState},
    },
};

/// Interval between two looks at the add-ons of a cluster at rest, in milliseconds.
const LOOK_EVERY_MS: u64 = 5 * 60_000;
/// The same while one is awaited.
const AWAITED_LOOK_MS: u64 = questions::LOOK_EVERY_MS;
/// The same while one is awaited past its deadline, or while the update is paused.
const LATE_LOOK_MS: u64 = 30_000;
/// Delay before an add-on that could not be applied is applied again, in milliseconds: it is fetched again, too.
const APPLY_AGAIN_MS: u64 = 30_000;

/// What lets the account apply anything.
const ALLOW: &str = "the account has its rights (`musterctl kubernetes rbac --with-addons | kubectl apply -f -`)";

/// What is said of an add-on with another content than is wanted.
const UNAPPLIED: &str = "its manifest in force was never applied";

/// Why an add-on is applied, and how often.
#[derive(Clone, Copy)]
enum Purpose<'a> {
    /// It was never available: it is applied as soon as the cluster has machines for it.
    Install,
    /// An update looks at each of them, and applies again what is not as it should be.
    Verify { rollout: &'a str, update: &'a UpdateRow, stage: &'a StageRow },
}

/// The add-on that is applied or awaited now.
struct Current<'a> {
    purpose: Purpose<'a>,
    addon: Addon,
    /// What is to be applied, for [`AddonRow::content`]. None: its secret is missing.
    content: Option<String>,
    row: Option<&'a AddonRow>,
}

/// Has the cluster add-ons, and a control and a worker machine that were Ready?
#[must_use]
pub fn has_any(snapshot: &ClusterSnapshot<'_>) -> bool {
    let wants = snapshot.spec.kubernetes.as_ref().is_some_and(KubernetesSpec::has_addons);
    let is_there = |view: &MachineView<'_>| view.ready_once() && !view.row.revoked;
    let has = |machine_type| snapshot.of_type(machine_type).any(is_there);
    wants && has(MachineType::Control) && has(MachineType::Worker)
}

/// Does this update verify add-ons?
#[must_use]
pub fn has(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> bool {
    update.kind == UpdateKind::Update && has_any(snapshot)
}

fn all(snapshot: &ClusterSnapshot<'_>) -> Vec<Addon> {
    snapshot.spec.kubernetes.iter().flat_map(KubernetesSpec::all_addons).collect()
}

fn row<'a>(snapshot: &ClusterSnapshot<'a>, addon: &Addon) -> Option<&'a AddonRow> {
    snapshot.cluster.addons.get(&addon.name)
}

/// What this add-on's manifest is now. None: its secret is missing.
fn content(snapshot: &ClusterSnapshot<'_>, addon: &Addon) -> Option<String> {
    match &addon.manifest {
        AddonManifest::Url { sha256, .. } => Some(format!("sha256:{sha256}")),
        AddonManifest::Secret { secret } => {
            let found = secrets::find(snapshot.facts, &snapshot.cluster.name, secret)?;
            Some(format!("secret:{}@{}", found.id, found.version))
        }
    }
}

fn look<'a>(snapshot: &ClusterSnapshot<'a>) -> Option<&'a AddonsObservation> {
    snapshot.facts.live.addons.get(&snapshot.cluster.name)
}

fn stage(update: &UpdateRow) -> Option<&StageRow> {
    update.stages.get(&ClusterStage::AddonsVerified).filter(|stage| stage.finished_at_ms.is_none())
}

/// What is done about add-ons now. None: nothing.
fn purpose<'a>(snapshot: &ClusterSnapshot<'a>) -> Option<Purpose<'a>> {
    if !has_any(snapshot) || safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return None;
    }
    match (snapshot.rollout, snapshot.update()) {
        (Some(rollout), Some(update)) if update.desired != DesiredState::Abort => {
            Some(Purpose::Verify { rollout: &rollout.name, update, stage: stage(update)? })
        }
        (_, Some(_)) => None,
        (_, None) => Some(Purpose::Install),
    }
}

/// The first add-on that is not settled. The others wait for it.
fn current<'a>(snapshot: &ClusterSnapshot<'a>) -> Option<Current<'a>> {
    let purpose = purpose(snapshot)?;
    let is_settled = |row: &AddonRow| match purpose {
        Purpose::Install => row.installed,
        Purpose::Verify { rollout, .. } => row.verified_in.as_deref() == Some(rollout),
    };
    let open = all(snapshot).into_iter().find(|addon| !row(snapshot, addon).is_some_and(is_settled))?;
    let (row, content) = (row(snapshot, &open), content(snapshot, &open));
    Some(Current { purpose, addon: open, content, row })
}

/// The add-on that is due for its first application.
#[must_use]
pub fn due(snapshot: &ClusterSnapshot<'_>) -> Option<String> {
    let current = current(snapshot).filter(|current| matches!(current.purpose, Purpose::Install))?;
    (!current.is_applied()).then_some(current.addon.name)
}

impl Current<'_> {
    /// Was its present manifest applied?
    fn is_applied(&self) -> bool {
        self.row.is_some_and(|row| Some(&row.content) == self.content.as_ref())
    }

    /// The time from which a look at it counts, in monotonic milliseconds. None: that is not noted yet.
    fn counts_from(&self, snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
        let applied = applied_mono_ms(snapshot, &self.addon).unwrap_or(0);
        match self.purpose {
            Purpose::Install => Some(applied),
            // A look from before the pause tells why it paused.
            Purpose::Verify { .. } if self.is_paused() => Some(applied),
            Purpose::Verify { .. } => Some(applied.max(verified_from_mono_ms(snapshot)?)),
        }
    }

    /// The last look that counts: a look that was asked for before the last application says nothing.
    fn problem(&self, snapshot: &ClusterSnapshot<'_>) -> Option<Result<(), String>> {
        let (seen, from) = (look(snapshot)?.seen.as_ref()?, self.counts_from(snapshot)?);
        (seen.at_mono_ms >= from).then(|| problem(snapshot, &self.addon))
    }

    /// Is it to be applied, once nothing holds that?
    fn needs_application(&self, snapshot: &ClusterSnapshot<'_>) -> bool {
        match self.purpose {
            _ if !self.is_applied() => true,
            // What is there may become available by itself.
            Purpose::Install => {
                let applied = applied_mono_ms(snapshot, &self.addon);
                let rests = applied.is_some_and(|at| at.saturating_add(APPLY_AGAIN_MS) > snapshot.now.mono_ms);
                !rests && matches!(self.problem(snapshot), Some(Err(_))) && lacks_deployment(snapshot, &self.addon)
            }
            Purpose::Verify { update, stage, .. } => {
                // Once in a stage, and once again after an operator's word: else it would undo somebody's changes
                // every few seconds. The wall clock may have stepped back since.
                let recorded = self.row.is_some_and(|row| row.applied_at_ms >= verified_from_ms(update, stage));
                let applied = applied_mono_ms(snapshot, &self.addon).zip(verified_from_mono_ms(snapshot));
                let applied = recorded || applied.is_some_and(|(at, from)| at >= from);
                !applied && matches!(self.problem(snapshot), Some(Err(_)))
            }
        }
    }

    /// Is its update paused?
    fn is_paused(&self) -> bool {
        matches!(self.purpose, Purpose::Verify { update, .. } if update.desired != DesiredState::Go)
    }

    /// When it is late, in Unix milliseconds. A pause stands outside of it.
    fn deadline_ms(&self, snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
        let row = self.row.filter(|_| self.is_applied());
        let begun_ms = match self.purpose {
            Purpose::Install => {
                // Later applications of the same give it no more time.
                let applied = row.map(|row| row.since_ms);
                let due = look(snapshot).and_then(|look| look.due.as_ref());
                applied.or_else(|| due.filter(|(name, _)| *name == self.addon.name).map(|(_, since_ms)| *since_ms))?
            }
            Purpose::Verify { rollout, update, stage } => {
                let rows = snapshot.cluster.addons.values();
                let settled = rows.filter(|row| row.verified_in.as_deref() == Some(rollout));
                let before = settled.filter_map(|row| row.settled_at_ms).max().unwrap_or(0);
                let begun_ms = stage.started_at_ms.max(before).max(row.map_or(0, |row| row.applied_at_ms));
                // This coordinator has to look first.
                begun_ms.max(update.resumed_at_ms).max(snapshot.facts.live.started_wall_ms)
            }
        };
        Some(begun_ms.saturating_add(snapshot.spec.update_deadlines.addons.after_ms))
    }

    fn is_late(&self, snapshot: &ClusterSnapshot<'_>) -> bool {
        self.deadline_ms(snapshot).is_some_and(|at_ms| snapshot.now.wall_ms >= at_ms)
    }

    /// Why it could not be applied when that was tried last.
    fn refused<'s>(&self, snapshot: &ClusterSnapshot<'s>) -> Option<&'s Seen<KubernetesFailure>> {
        let (name, seen) = look(snapshot)?.refused.as_ref()?;
        (*name == self.addon.name).then_some(seen)
    }

    fn waits(&self, snapshot: &ClusterSnapshot<'_>) -> Blocked {
        let addon = &self.addon;
        let late = self.is_late(snapshot);
        let reason = |in_time: Reason| if late { Reason::AddonNotAvailable } else { in_time };
        if self.content.is_none()
            && let AddonManifest::Secret { secret } = &addon.manifest
        {
            let message = format!("add-on {addon} is not applied: there is no secret {secret} with its manifest");
            let clears_when = format!("`musterctl secret create {secret} --cluster {}`", snapshot.cluster.name);
            return blocked(reason(Reason::AddonNotApplied), message, clears_when);
        }
        if self.needs_application(snapshot) {
            if let Err(held) = safety::may_start_hooks(snapshot) {
                return held;
            }
            return match (self.refused(snapshot), look(snapshot).and_then(|look| look.failure.as_ref())) {
                (Some(failure), _) | (None, Some(failure)) => {
                    let message = format!("add-on {addon} is not applied: {}", failure.what);
                    let what = if failure.what.lacks_right() { ALLOW } else { "it is applied" };
                    blocked(reason(Reason::AddonNotApplied), message, self.clears_when(what, late))
                }
                (None, None) => {
                    let message = match self.problem(snapshot).filter(|_| self.is_paused()) {
                        Some(Err(why)) => format!("add-on {addon}: {why}"),
                        _ => format!("add-on {addon} is being applied"),
                    };
                    blocked(reason(Reason::AddonInstalling), message, self.clears_when("it is applied", late))
                }
            };
        }
        let message = match (self.problem(snapshot), look(snapshot).and_then(|look| look.failure.as_ref())) {
            (Some(Err(why)), _) => format!("add-on {addon}: {why}"),
            (_, Some(failure)) => format!("add-on {addon} cannot be looked at: {}", failure.what),
            (_, None) => format!("add-on {addon} is being looked at"),
        };
        let describe = describe(snapshot, addon);
        blocked(reason(Reason::AddonInstalling), message, self.clears_when(&describe, late))
    }

    /// What ends the wait. Past the deadline of an update it has paused, and an operator resumes it.
    fn clears_when(&self, what: &str, late: bool) -> String {
        match self.purpose {
            Purpose::Install if late => format!("{what}; it is tried and looked at on, or a new manifest replaces it"),
            Purpose::Install | Purpose::Verify { .. } => what.to_owned(),
        }
    }
}

/// When this process applied it last, in monotonic milliseconds. None: never, so that every look came after it.
fn applied_mono_ms(snapshot: &ClusterSnapshot<'_>, addon: &Addon) -> Option<u64> {
    look(snapshot)?.applied.get(&addon.name).copied()
}

/// The time from which an update looks at its add-ons, in Unix milliseconds: an operator may have mended one before it
/// goes on.
fn verified_from_ms(update: &UpdateRow, stage: &StageRow) -> u64 {
    stage.started_at_ms.max(update.resumed_at_ms)
}

/// The time from which the update under way looks at its add-ons, in Unix milliseconds.
#[must_use]
pub fn verifies_from_ms(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    match purpose(snapshot)? {
        Purpose::Install => None,
        Purpose::Verify { update, stage, .. } => Some(verified_from_ms(update, stage)),
    }
}

/// The same in monotonic milliseconds. None: it is not noted yet.
fn verified_from_mono_ms(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    let (recorded_ms, mono_ms) = look(snapshot)?.verified_from?;
    (Some(recorded_ms) == verifies_from_ms(snapshot)).then_some(mono_ms)
}

/// Is one of its Deployments absent, by the last look?
fn lacks_deployment(snapshot: &ClusterSnapshot<'_>, addon: &Addon) -> bool {
    let Some(seen) = look(snapshot).and_then(|look| look.seen.as_ref()) else { return false };
    addon.available.iter().any(|name| !matches!(seen.what.get(name), Some(Some(_))))
}

/// The command that shows more about what an add-on waits for.
fn describe(snapshot: &ClusterSnapshot<'_>, addon: &Addon) -> String {
    let bad = addon.available.iter().find(|name| deployment_problem(snapshot, addon, name).is_err());
    match bad.or_else(|| addon.available.first()) {
        Some(AddonDeployment { namespace, deployment }) => {
            format!("it is available (`kubectl describe deployment -n {namespace} {deployment}`)")
        }
        None => "it is available".to_owned(),
    }
}

/// Is the add-on available, and of its version, by the last look?
fn problem(snapshot: &ClusterSnapshot<'_>, addon: &Addon) -> Result<(), String> {
    addon.available.iter().try_for_each(|name| deployment_problem(snapshot, addon, name))
}

fn deployment_problem(snapshot: &ClusterSnapshot<'_>, addon: &Addon, name: &AddonDeployment) -> Result<(), String> {
    let seen = look(snapshot).and_then(|look| look.seen.as_ref()).and_then(|seen| seen.what.get(name));
    let Some(DeploymentState { version, wanted, ready, available, message }) = seen.and_then(Option::as_ref) else {
        return Err(format!("there is no Deployment {name}"));
    };
    let expected = addon.version.as_ref().filter(|_| addon.available.first() == Some(name));
    if let Some(expected) = expected.filter(|expected| !is_version(version.as_deref(), expected)) {
        let found = version.as_deref().unwrap_or("none");
        return Err(format!("Deployment {name} is of version {found}, not {expected}"));
    }
    if *available {
        return Ok(());
    }
    let more = if message.is_empty() { String::new() } else { format!(": {message}") };
    Err(format!("Deployment {name} is not available, {ready} of {wanted} replicas are ready{more}"))
}

/// Are these the same version, with or without a leading `v`?
fn is_version(found: Option<&str>, expected: &str) -> bool {
    let bare = |text: &str| text.strip_prefix('v').unwrap_or(text).to_owned();
    found.is_some_and(|found| bare(found) == bare(expected))
}

/// The add-on that the last look shows to be as it should be, and that is to be recorded as such.
#[must_use]
pub fn proved(snapshot: &ClusterSnapshot<'_>) -> Option<Addon> {
    let current = current(snapshot)?;
    let proves = current.is_applied() && current.problem(snapshot) == Some(Ok(()));
    proves.then_some(current.addon)
}

/// The rollout that verifies add-ons now.
#[must_use]
pub fn verifying<'a>(snapshot: &ClusterSnapshot<'a>) -> Option<&'a str> {
    match purpose(snapshot)? {
        Purpose::Install => None,
        Purpose::Verify { rollout, .. } => Some(rollout),
    }
}

/// The next question about add-ons. One at a time.
#[must_use]
pub fn question(snapshot: &ClusterSnapshot<'_>) -> Option<KubernetesOp> {
    if !has_any(snapshot) || safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return None;
    }
    if asks_at(snapshot).is_some_and(|at_mono_ms| at_mono_ms > snapshot.now.mono_ms) {
        return None;
    }
    let current = current(snapshot);
    if let Some(op) = current.and_then(|current| application(snapshot, &current)) {
        return Some(op);
    }
    let mut deployments: Vec<AddonDeployment> = all(snapshot).into_iter().flat_map(|addon| addon.available).collect();
    deployments.sort();
    deployments.dedup();
    Some(KubernetesOp::Addons { deployments })
}

/// The application that is due. None: a look is. The first look shows which cluster it is.
fn application(snapshot: &ClusterSnapshot<'_>, current: &Current<'_>) -> Option<KubernetesOp> {
    let cluster_uid = snapshot.cluster.kubernetes_uid.clone()?;
    let again_at = current.refused(snapshot).map(|seen| seen.at_mono_ms.saturating_add(APPLY_AGAIN_MS));
    let rests = again_at.is_some_and(|at| at > snapshot.now.mono_ms);
    let held = current.is_paused() || safety::may_start_hooks(snapshot).is_err();
    if rests || held || !current.needs_application(snapshot) {
        return None;
    }
    let text = match &current.addon.manifest {
        AddonManifest::Url { url, sha256 } => AddonText::Url { url: url.clone(), sha256: sha256.clone() },
        AddonManifest::Secret { secret } => {
            AddonText::Secret(secrets::find(snapshot.facts, &snapshot.cluster.name, secret)?.clone())
        }
    };
    let namespace = current.addon.available.first().map(|first| first.namespace.clone()).unwrap_or_default();
    let addon = AddonToApply {
        name: current.addon.name.clone(),
        version: current.addon.version.clone(),
        content: current.content.clone()?,
        namespace,
        text,
    };
    Some(KubernetesOp::Apply { cluster_uid, addon: Box::new(addon) })
}

/// When the next question may be asked, in monotonic milliseconds. None: at once.
fn asks_at(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    let look = look(snapshot)?;
    // An answer that is so late counts as lost.
    if let Some(asked) = &look.asked {
        return Some(asked.at_mono_ms.saturating_add(SETTLE_MS));
    }
    let current = current(snapshot);
    let failed = look.failure.as_ref().map(|failure| (failure.at_mono_ms, questions::delay_ms(&failure.what)));
    let Some(current) = current else {
        let seen = look.seen.as_ref().map(|seen| seen.at_mono_ms.saturating_add(LOOK_EVERY_MS));
        return seen.max(failed.map(|(at, delay)| at.saturating_add(delay.max(LATE_LOOK_MS))));
    };
    let failed = failed.map(|(at, delay)| at.saturating_add(delay));
    if application(snapshot, &current).is_some() {
        return failed;
    }
    let every = if current.is_paused() || current.is_late(snapshot) { LATE_LOOK_MS } else { AWAITED_LOOK_MS };
    // A look that says nothing of what is awaited now delays the next one least.
    let counts = |at: u64| current.counts_from(snapshot).is_some_and(|from| at >= from);
    let next = |at: u64| at.saturating_add(if counts(at) { every } else { AWAITED_LOOK_MS });
    look.seen.as_ref().map(|seen| next(seen.at_mono_ms)).max(failed)
}

/// The next step of the cluster's stage.
pub(super) fn step(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<ClusterStep> {
    if !update.stages.contains_key(&ClusterStage::AddonsVerified) {
        let may = update.desired == DesiredState::Go && safety::may_start_hooks(snapshot).is_ok();
        return may.then_some(ClusterStep::Begin(ClusterStage::AddonsVerified));
    }
    let Some(current) = current(snapshot) else {
        return Some(ClusterStep::End(ClusterStage::AddonsVerified));
    };
    let outcome = snapshot.spec.update_deadlines.addons.outcome;
    let late = current.is_late(snapshot) && update.desired == DesiredState::Go;
    late.then(|| halt(update.kind, outcome, ClusterStage::AddonsVerified))
}

/// The stage, if it is past its deadline, and its start, Unix milliseconds. The time of a pause that began before the
/// deadline is excluded.
pub(super) fn overdue(snapshot: &ClusterSnapshot<'_>) -> Option<(ClusterStage, u64)> {
    let update = snapshot.update()?;
    let until_ms = match update.desired {
        DesiredState::Go => snapshot.now.wall_ms,
        DesiredState::Pause { since_ms } => since_ms,
        DesiredState::Abort => return None,
    };
    let stage = stage(update)?;
    let late = current(snapshot)?.deadline_ms(snapshot).is_some_and(|at_ms| until_ms >= at_ms);
    late.then_some((ClusterStage::AddonsVerified, stage.started_at_ms))
}

/// What the update waits for in its stage. None: it is not under way.
#[must_use]
pub fn of_update(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Option<Blocked> {
    stage(update)?;
    current(snapshot).map(|current| current.waits(snapshot))
}

/// What the add-ons of a cluster without an update wait for, or how they differ from the manifest.
#[must_use]
pub fn of_cluster(snapshot: &ClusterSnapshot<'_>) -> Option<Blocked> {
    if let Some(current) = current(snapshot) {
        return Some(current.waits(snapshot));
    }
    if !has_any(snapshot) {
        return None;
    }
    let name = &snapshot.cluster.name;
    if let Some((addon, why)) = differing(snapshot) {
        let clears_when = format!("`musterctl update {name}` applies it again");
        return Some(blocked(Reason::AddonDiffers, format!("add-on {addon}: {why}"), clears_when));
    }
    let (names, failure) = (names(snapshot), &look(snapshot)?.failure.as_ref()?.what);
    let message = format!("add-ons ({names}) cannot be looked at: {failure}");
    Some(blocked(Reason::KubernetesUnavailable, message, "the API server answers: it is asked every few minutes"))
}

/// The first applied add-on that is not as it should be: it has another content, or the last look says so.
fn differing(snapshot: &ClusterSnapshot<'_>) -> Option<(Addon, String)> {
    let all = all(snapshot).into_iter().filter(|addon| row(snapshot, addon).is_some());
    let differs = |addon: Addon| {
        let why = if has_unapplied(snapshot, &addon) { UNAPPLIED.to_owned() } else { seen_problem(snapshot, &addon)? };
        Some((addon, why))
    };
    all.filter_map(differs).next()
}

/// Was it installed with another content than is wanted now? That is for an update.
fn has_unapplied(snapshot: &ClusterSnapshot<'_>, addon: &Addon) -> bool {
    let row = row(snapshot, addon).filter(|row| row.installed);
    row.is_some_and(|row| Some(&row.content) != content(snapshot, addon).as_ref())
}

/// What a look that came after its last application says against it.
fn seen_problem(snapshot: &ClusterSnapshot<'_>, addon: &Addon) -> Option<String> {
    let seen = look(snapshot)?.seen.as_ref()?;
    let counts = seen.at_mono_ms >= applied_mono_ms(snapshot, addon).unwrap_or(0);
    problem(snapshot, addon).err().filter(|_| counts)
}

/// Would an update apply an add-on again: because its manifest changed, or because it is not as it should be?
#[must_use]
pub fn has_work(snapshot: &ClusterSnapshot<'_>) -> bool {
    has_any(snapshot) && differing(snapshot).is_some()
}

/// How much the last look at the add-ons is worth, in words. None: the cluster has none.
#[must_use]
pub fn looked(snapshot: &ClusterSnapshot<'_>) -> Option<String> {
    let look = look(snapshot).filter(|_| has_any(snapshot));
    let age_s = |at_mono_ms: u64| snapshot.now.mono_ms.saturating_sub(at_mono_ms) / 1_000;
    let seen = look.and_then(|look| look.seen.as_ref()).map(|seen| age_s(seen.at_mono_ms));
    let seen = seen.map_or_else(|| "were not looked at yet".to_owned(), |age| format!("were looked at {age} s ago"));
    let failure = look.and_then(|look| look.failure.as_ref());
    let since = failure.map(|failure| format!(", and cannot be since: {}", failure.what)).unwrap_or_default();
    has_any(snapshot).then(|| format!("its add-ons {seen}{since}"))
}

/// The add-ons that this update leaves unverified, each with the reason. Before its stage it is those whose content it
/// would have applied.
#[must_use]
pub fn unverified(snapshot: &ClusterSnapshot<'_>) -> Vec<String> {
    let (Some(rollout), Some(update)) = (snapshot.rollout, snapshot.update()) else { return Vec::new() };
    let current = current(snapshot);
    let why = |addon: Addon| {
        let verified = row(snapshot, &addon).and_then(|row| row.verified_in.as_ref()) == Some(&rollout.name);
        match &current {
            _ if verified => None,
            Some(current) if current.addon.name == addon.name => Some(current.waits(snapshot).message),
            _ if has_unapplied(snapshot, &addon) => Some(format!("add-on {addon}: {UNAPPLIED}")),
            Some(_) => Some(format!("add-on {addon} was not verified")),
            None => None,
        }
    };
    if has(snapshot, update) { all(snapshot).into_iter().filter_map(why).collect() } else { Vec::new() }
}

/// Their names, in their order.
#[must_use]
pub fn names(snapshot: &ClusterSnapshot<'_>) -> String {
    let all = all(snapshot);
    safety::some_names(all.iter().map(|addon| addon.name.as_str()))
}

/// How an add-on stands.
pub struct AddonStatus {
    /// It.
    pub addon: Addon,
    /// Is it as it should be, as far as is known?
    pub settled: bool,
    /// Number of times that it was applied.
    pub attempt: u32,
    /// When it was applied last, in Unix milliseconds. None: never.
    pub applied_at_ms: Option<u64>,
    /// What it waits for, or how it differs; empty: neither.
    pub message: String,
}

/// How each add-on stands, in their order.
#[must_use]
pub fn statuses(snapshot: &ClusterSnapshot<'_>) -> Vec<AddonStatus> {
    let current = current(snapshot);
    let status = |addon: Addon| {
        let row = row(snapshot, &addon);
        let known = row.filter(|row| row.installed);
        let is_current = current.as_ref().is_some_and(|current| current.addon.name == addon.name);
        let fault = if is_current {
            current.as_ref().map(|current| current.waits(snapshot).message)
        } else if known.is_none() {
            Some(not_due(snapshot, current.as_ref()))
        } else {
            standing(snapshot, &addon).err()
        };
        AddonStatus {
            settled: known.is_some() && fault.is_none(),
            attempt: row.map_or(0, |row| row.applications),
            applied_at_ms: row.map(|row| row.applied_at_ms),
            message: fault.unwrap_or_default(),
            addon,
        }
    };
    all(snapshot).into_iter().map(status).collect()
}

/// Is the Helm controller as it should be, as far as is known? None: the manifest has none.
#[must_use]
pub fn helm_settled(snapshot: &ClusterSnapshot<'_>) -> Option<bool> {
    snapshot.spec.kubernetes.as_ref()?.helm_controller.as_ref()?;
    let of_helm = statuses(snapshot).into_iter().find(|status| status.addon.name == HELM_CONTROLLER);
    of_helm.map(|status| status.settled)
}

/// Is an installed add-on as it should be, and is that known?
fn standing(snapshot: &ClusterSnapshot<'_>, addon: &Addon) -> Result<(), String> {
    if has_unapplied(snapshot, addon) {
        return Err(UNAPPLIED.to_owned());
    }
    // An answer takes the failure of an earlier look away.
    match look(snapshot) {
        Some(AddonsObservation { failure: Some(failure), .. }) => Err(format!("cannot be looked at: {}", failure.what)),
        Some(AddonsObservation { seen: Some(_), .. }) => problem(snapshot, addon),
        Some(_) | None => Err("not looked at yet".to_owned()),
    }
}

/// Why an add-on is not applied yet.
fn not_due(snapshot: &ClusterSnapshot<'_>, current: Option<&Current<'_>>) -> String {
    match current {
        Some(current) => format!("waits for add-on {}", current.addon.name),
        None if !has_any(snapshot) => "waits for the first control and the first worker machine".to_owned(),
        None => "waits for the end of the rollout".to_owned(),
    }
}

/// When time alone changes something about add-ons, in Unix milliseconds.
#[must_use]
pub fn wakes_at_ms(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    if !has_any(snapshot) {
        return None;
    }
    let now = snapshot.now;
    let current = current(snapshot);
    let refused = current.as_ref().and_then(|current| current.refused(snapshot));
    let again = refused.map(|seen| seen.at_mono_ms.saturating_add(APPLY_AGAIN_MS));
    let asks = asks_at(snapshot).into_iter().chain(again).filter(|at| *at > now.mono_ms);
    let asks = asks.map(|at| now.wall_ms.saturating_add(at - now.mono_ms));
    let late = current.and_then(|current| current.deadline_ms(snapshot));
    asks.chain(late).filter(|at_ms| *at_ms > now.wall_ms).min()
}
