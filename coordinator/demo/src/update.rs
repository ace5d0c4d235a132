//! Second part of the demo: an update of the running fleet.

use std::time::Duration;

use musterctl::{config::Config, errors::Failure, terminal};

use super::{
    DEPLOY_ITEMS, Follow, TIME_LIMIT, Wanted,
    fleet::{DemoFleet, background, run},
    kubernetes, summary,
};

/// Time of a machine's turn beside its items: workloads move away and back.
const TURN_S: f64 = 1.0;
/// Time of a machine's turn beside its items under Kubernetes: a refused eviction is tried again after 6 s.
const DRAIN_S: f64 = 20.0;

/// Start the toy controller, and the toy Kubernetes if one is wanted, apply the second release, update to it, and check
/// the result.
pub(super) async fn story(
    fleet: &mut DemoFleet<'_>,
    config: Config,
    wanted: Wanted,
    width: u32,
    crash: bool,
) -> Result<(), Failure> {
    let layout = fleet.layout();
    terminal::print("# The update: a toy controller guards three workloads on every machine")?;
    run(&layout.controller_credentials()).await?;
    fleet.keep(background(&layout.run_controller(&wanted.names()))?);
    if wanted.kubernetes {
        terminal::print("# A toy Kubernetes with a node for every machine. Muster gets a kubeconfig as a secret.")?;
        kubernetes::about().iter().try_for_each(|line| terminal::print(&format!("# {line}")))?;
        fleet.start_kubernetes(&wanted.names()).await?;
        run(&layout.create_kubeconfig_secret()).await?;
    }
    run(&layout.apply_second()).await?;
    if wanted.goes_down() {
        terminal::print(
            "# Fewer than three control machines: the update takes the control plane down, which is accepted",
        )?;
    }
    run(&layout.plan(wanted)).await?;
    run(&layout.update(wanted)).await?;
    // Workers whose pods share a budget are drained one after another.
    let (at_once, turn_s) = if wanted.kubernetes { (1, DRAIN_S) } else { (width, TURN_S) };
    let turns = wanted.control + wanted.workers.div_ceil(at_once);
    let items_s = wanted.seconds_per_item * f64::from(DEPLOY_ITEMS);
    let time_limit = TIME_LIMIT + Duration::from_secs_f64((items_s + turn_s) * f64::from(turns));
    // Under Kubernetes it is worth another crash: a node is cordoned then.
    let crash = crash && wanted.kubernetes;
    super::watch(fleet, config, Follow { workers: wanted.workers > 0, crash, time_limit }).await?;
    let report = fleet.kubernetes_report().await?;
    summary::show_update(layout, wanted, width, report.as_ref()).await
}
