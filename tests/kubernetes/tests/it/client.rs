//! The client of the tests, and waiting for conditions.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
pub(crate) use muster_kubernetes_stand_in::client::{Answer, Client};
use tokio::time::{Instant, sleep, timeout};

/// How long a test waits for a condition.
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const MERGE: &str = "application/merge-patch+json";

/// Wait until the condition holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        if Instant::now() > end {
            bail!("not within {DEADLINE:?}: {what}");
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Bound a future that could hang.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> Result<T> {
    timeout(DEADLINE, future).await.context("took too long")
}
