//! Second part of the demo: an update of the running fleet.

use musterctl::{
    commands::watch::{self, Screen},
    config::Config,
    errors::Failure,
    terminal,
};
use tokio::time::timeout;

use super::{
    CLUSTER, COMMENT, DEPLOY_ITEMS, TIME_LIMIT, Wanted,
    fleet::{DemoFleet, background, run},
    summary,
};

/// Time of a machine's turn beside its items: workloads move away and back.
const TURN_S: f64 = 1.0;

/// Start the toy controller, apply the second release, update to it, and check the result.
pub(super) async fn story(
    fleet: &mut DemoFleet<'_>,
    config: Config,
    wanted: Wanted,
    width: u32,
) -> Result<(), Failure> {
    let layout = fleet.layout();
    terminal::print("# The update: a toy controller guards three workloads on every machine")?;
    run(&layout.controller_credentials()).await?;
    fleet.keep(background(&layout.run_controller(&wanted.names()))?);
    run(&layout.apply_second()).await?;
    if wanted.goes_down() {
        terminal::print(
            "# Fewer than three control machines: the update takes the control plane down, which is accepted",
        )?;
    }
    run(&layout.plan(wanted)).await?;
    run(&layout.update(wanted)).await?;
    terminal::print(&layout.watch().line())?;
    let mut screen = Screen::marked(COMMENT);
    let turns = wanted.control + wanted.workers.div_ceil(width);
    let items_s = wanted.seconds_per_item * f64::from(DEPLOY_ITEMS);
    let time_limit = TIME_LIMIT + std::time::Duration::from_secs_f64((items_s + TURN_S) * f64::from(turns));
    let followed = timeout(time_limit, watch::follow(config, CLUSTER, &mut screen)).await;
    screen.clear();
    followed.unwrap_or_else(|_| Err(super::too_slow(layout)))?;
    summary::show_update(layout, wanted, width).await
}
