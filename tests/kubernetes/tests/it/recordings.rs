//! Replays answers of a real API server against the stand-in.
//!
//! Of the recordings these are left out:
//!
//! | recordings | why |
//! |---|---|
//! | 15-kubelet-credentials | the stand-in has no node authorizer; no client of ours has a kubelet's rights |
//! | 60 to 69 | what Rockoon does: `rockoon.rs` replays them |
//!
//! Not compared: `managedFields` of 30f, which the stand-in does not show; the `Warning` headers of 21e and 21i, for it
//! drops unknown fields in silence.

pub(crate) mod definitions;
mod evictions;
mod nodes;
mod objects;
pub(crate) mod replay;
mod watches;

use anyhow::{Context as _, Result, ensure};
use replay::Replay;

#[tokio::test]
async fn answers_match_recordings() -> Result<()> {
    let mut replay = Replay::load()?;
    macro_rules! scenarios {
        ($($module:ident::$name:ident),* $(,)?) => {
            $($module::$name(&mut replay).await.context(stringify!($name))?;)*
        };
    }
    scenarios!(
        evictions::without_budget,
        evictions::blocked,
        evictions::budget_of_one,
        evictions::lost_budget,
        evictions::terminating,
        evictions::idle_pods,
        evictions::unready_pods,
        evictions::finalizer,
        evictions::at_once,
        evictions::mirror,
        evictions::namespace_terminating,
        evictions::unobserved,
        evictions::priority_and_fairness,
        definitions::served,
        definitions::schemas,
        objects::access,
        objects::status_subresource,
        objects::conflicts_and_deletion,
        objects::lists,
        objects::apply,
        nodes::cordon,
        nodes::cordon_by_apply,
        nodes::on_delete,
        watches::events,
        watches::starts,
        watches::expired,
        watches::starting,
        watches::restarts,
    );
    ensure!(replay.failures.is_empty(), "{} differences:\n{}", replay.failures.len(), replay.failures.join("\n"));
    let files = replay.files();
    let left: Vec<_> = files.difference(&replay.replayed).collect();
    ensure!(left.is_empty(), "recordings without a scenario: {left:?}");
    Ok(())
}
