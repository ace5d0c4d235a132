//! `--crash`: a crash at the worst moment, on purpose.

use std::{fs, time::Duration};

use musterctl::errors::Failure;
use tokio::time::sleep;

use super::{
    effects::{Effect, in_the_middle, parse},
    fleet::DemoFleet,
};

/// Polling interval of effects.log: well below the length of an item.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Wait for a running item (a worker's, if there are workers), kill the coordinator and that machine's agent with
/// SIGKILL, and restart them. Each step goes to `say` as a line.
pub(super) async fn crash(
    fleet: &mut DemoFleet<'_>,
    workers: bool,
    mut say: impl FnMut(String) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let prefix = if workers { "worker-" } else { "control-" };
    let caught = loop {
        if let Some(effect) = open_item(fleet, prefix) {
            break effect;
        }
        sleep(LOOK_EVERY).await;
    };
    let machine = &caught.machine;
    fleet.kill(machine).await?;
    say(format!("# item {} of {machine} is in the middle: coordinator and agent are killed", caught.item))?;
    say(fleet.layout().kill(machine).line())?;
    for line in fleet.restart_lines(machine) {
        say(line.line())?;
    }
    fleet.restart(machine)?;
    say(fleet.layout().wait_for_coordinator().line())?;
    fleet.coordinator_answers().await
}

/// A running item of such a machine. A half-written last line is read again later.
fn open_item(fleet: &DemoFleet<'_>, prefix: &str) -> Option<Effect> {
    let text = fs::read_to_string(fleet.layout().effects()).ok()?;
    let effects = parse(&text).ok()?;
    in_the_middle(&effects).into_iter().find(|effect| effect.machine.starts_with(prefix)).cloned()
}
