//! An API server that refuses, is silent, or loses answers in the middle of an update.

use std::time::Duration;

use muster_kubernetes_stand_in::{Fault, FaultAction};

use muster_tests::fleet::pause;

use super::{
    evidence::{Observer, cordons, evicted_rarely},
    workers::*,
    *,
};

/// Longer than a request and the wait after it take.
const SILENCE: Duration = Duration::from_secs(16);

/// The coordinator's requests that meet a fault.
fn faulty(count: usize, action: FaultAction) -> Fault {
    Fault::next(count, action).user(USER)
}

/// Changes of nodes by the coordinator that meet a fault.
fn lost(count: usize, action: FaultAction) -> Fault {
    faulty(count, action).verb("patch").resource("nodes")
}

/// Credentials that expire, rights that are taken away, and a server that is silent: each in the middle of a drain.
#[test]
fn drain_survives_refusals_and_silence() -> Result<()> {
    let (fleet, kubernetes) = small("refusals")?;
    fleet.apply(&release(&fleet, 2, &[]))?;
    let observer = Observer::start(&kubernetes);
    let mut holds = Holds::on_workers(&kubernetes)?;
    let update = start_update(&fleet)?;

    let (worker, held) = holds.next(&kubernetes)?;
    kubernetes.revoke_token(TOKEN);
    waits_for(&fleet, worker, Reason::KubernetesUnavailable, &["does not accept the credentials (401)"])?;
    fleet.ctl(&["describe", "machine", worker])?.exits(0)?.says(&["musterctl secret create"])?;
    kubernetes.add_token("rotated-token", USER, rights()?);
    fleet.write_secret("kubeconfig-2", &kubernetes.kubeconfig("rotated-token")?)?;
    fleet.ctl(&["secret", "create", "kubeconfig", "--cluster", "e2e", "--from-file", "kubeconfig-2"])?.exits(0)?;
    held.let_go(&kubernetes)?;

    let (worker, held) = holds.next(&kubernetes)?;
    kubernetes.inject(Fault::always(FaultAction::Forbidden).user(USER).resource("pods"));
    waits_for(&fleet, worker, Reason::KubernetesUnavailable, &["cannot list resource \"pods\""])?;
    fleet.ctl(&["describe", "machine", worker])?.exits(0)?.says(&["musterctl kubernetes rbac | kubectl apply"])?;
    kubernetes.clear_faults();
    held.let_go(&kubernetes)?;

    let (worker, held) = holds.next(&kubernetes)?;
    kubernetes.inject(faulty(1, FaultAction::Hang).verb("list"));
    waits_for(&fleet, worker, Reason::KubernetesUnavailable, &["no answer within 10"])?;
    kubernetes.hang_handshakes(true);
    pause(SILENCE);
    waits_for(&fleet, worker, Reason::KubernetesUnavailable, &["no answer within"])?;
    kubernetes.hang_handshakes(false);
    kubernetes.inject(faulty(3, FaultAction::Starting));
    waits_for(&fleet, worker, Reason::KubernetesUnavailable, &["before all known HTTP paths"])?;
    held.let_go(&kubernetes)?;

    ends(&fleet, update, 0)?;
    observer.end()?.ran_on_drained(&fleet, WORKERS)?;
    is_given_back(&kubernetes)?;
    kept_ready(&kubernetes, &[])?;
    evicted_rarely(&kubernetes)?;
    fleet.done()
}

/// Cordons and uncordons whose answers are lost, which land after their request was given up, or never arrive.
#[test]
fn lost_answers_leave_nothing_cordoned() -> Result<()> {
    let (fleet, kubernetes) = small("lost-answers")?;
    fleet.apply(&release(&fleet, 2, &[]))?;
    let observer = Observer::start(&kubernetes);
    for action in [FaultAction::CutAfter, FaultAction::LandLate(Duration::from_secs(12))] {
        // A cordon, and an uncordon.
        kubernetes.inject(lost(2, action));
    }
    // The third cordon is repeated; the uncordon is lost when that was seen.
    kubernetes.inject(lost(1, FaultAction::CutBefore));
    let update = start_update(&fleet)?;
    let third = wait_for("the repeated cordon", UPDATE_MAX, || {
        let repeats = |worker: &&str| cordons(&kubernetes, worker) == [true, true];
        Ok(SMALL.into_iter().find(repeats))
    })?;
    kubernetes.inject(lost(1, FaultAction::CutBefore));
    ends(&fleet, update, 0)?;
    observer.end()?.ran_on_drained(&fleet, WORKERS)?;
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    for worker in &SMALL[1..] {
        let patches = cordons(&kubernetes, worker);
        let wanted: &[bool] = if *worker == third { &[true, true, false, false] } else { &[true, false] };
        ensure!(patches == wanted, "{worker}: what was carried out is seen, the rest is repeated: {patches:?}");
    }
    fleet.done()
}
