//! The tasks beside the main loop, one per attempt that is started, followed or inspected. They only report to the
//! loop.

use std::{path::Path, time::Duration};

use muster_proto::model::ItemInput;
use tokio::{
    sync::mpsc,
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, sleep},
};
use tracing::{debug, error, warn};

use super::FromAttempt;
use crate::{
    attempt::{AttemptError, AttemptKey, Attempts, Found, Request},
    core::Input,
    docker,
    link::chain,
    runner::mke,
};

/// Interval of progress reports of a running attempt.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Delay before an unreadable attempt directory is read again.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Inspects an attempt that an earlier agent recorded as running.
pub(super) async fn inspect(attempts: Attempts, key: AttemptKey, engine: mpsc::Sender<FromAttempt>) {
    loop {
        if let Some(found) = settled(&key, attempts.inspect(&key)) {
            let found = attempts.explain(&key, found).await;
            if found != Found::Running {
                forget_inputs(&attempts, &key);
            }
            engine.send(FromAttempt::Input(Input::Inspected { key, found })).await.ok();
            return;
        }
        sleep(READ_AGAIN_AFTER).await;
    }
}

/// Removes the inputs. exec-item removes them itself unless it was killed.
pub(super) fn forget_inputs(attempts: &Attempts, key: &AttemptKey) {
    if let Err(error) = attempts.forget_inputs(key) {
        error!(item = %key.item, attempt = key.attempt, error = %chain(&error), "secrets stay on the machine");
    }
}

/// Starts an attempt and follows it. Old output beyond the quota of `kept` attempts is removed in parallel, to keep the
/// start fast.
pub(super) async fn start(
    attempts: Attempts,
    (request, inputs, kept): (Box<Request>, Vec<ItemInput>, Vec<AttemptKey>),
    engine: mpsc::Sender<FromAttempt>,
) {
    let key = request.key.clone();
    // The disk may have filled since the last check.
    if matches!(attempts.has_room(), Ok(false)) {
        let message = "the disk of the agent's state directory has filled".to_owned();
        engine.send(FromAttempt::Input(Input::NoRoom { key, message })).await.ok();
        return;
    }
    let started = match attempts.create(&request, &inputs) {
        Ok(()) => attempts.start(&key).await,
        Err(error) => Err(error),
    };
    let room = attempts.clone();
    spawn_blocking(move || make_room(&room, &kept));
    let Err(error) = started else { return follow(attempts, key, engine).await };
    let message = chain(&error);
    error!(item = %key.item, attempt = key.attempt, error = %message, "not started");
    if error.is_full() && matches!(attempts.inspect(&key), Ok(Found::NotStarted)) {
        forget_inputs(&attempts, &key);
        engine.send(FromAttempt::Input(Input::NoRoom { key, message })).await.ok();
        return;
    }
    if has_begun(&attempts, &key).await {
        return follow(attempts, key, engine).await;
    }
    forget_inputs(&attempts, &key);
    engine.send(FromAttempt::Input(Input::StartFailed { key, message })).await.ok();
}

/// Has an attempt begun although its start failed? Otherwise it is prevented for good. This retries until it is
/// certain, because the core may then start the next attempt.
async fn has_begun(attempts: &Attempts, key: &AttemptKey) -> bool {
    loop {
        match attempts.bar(key) {
            Ok(barred) => return !barred,
            Err(error) => {
                error!(item = %key.item, attempt = key.attempt, error = %chain(&error), "it may begin yet");
            }
        }
        sleep(READ_AGAIN_AFTER).await;
    }
}

/// Waits for the end of an attempt and reports its progress meanwhile.
pub(super) async fn follow(attempts: Attempts, key: AttemptKey, engine: mpsc::Sender<FromAttempt>) {
    let ended = async {
        loop {
            if let Some(found) = settled(&key, attempts.ended(&key).await) {
                break attempts.explain(&key, found).await;
            }
            sleep(READ_AGAIN_AFTER).await;
        }
    };
    tokio::pin!(ended);
    let mut progress = tokio::time::interval_at(Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
    progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let found = loop {
        tokio::select! {
            found = &mut ended => break found,
            _ = progress.tick() => {
                if let Some(progress) = attempts.progress(&key) {
                    engine.send(FromAttempt::Progress(key.clone(), progress)).await.ok();
                }
            }
        }
    };
    forget_inputs(&attempts, &key);
    engine.send(FromAttempt::Input(Input::Ended { key: key.clone(), found })).await.ok();
}

/// Releases an attempt at its host. After a failure, the next start of the agent does it.
pub(super) async fn release(attempts: Attempts, key: AttemptKey) {
    if let Err(error) = attempts.release(&key).await {
        warn!(item = %key.item, attempt = key.attempt, error = %chain(&error), "its unit stays");
    }
}

/// Deletes the directory of an attempt. Blocks.
pub(super) fn remove(attempts: &Attempts, key: &AttemptKey) {
    if let Err(error) = attempts.remove(key) {
        warn!(item = %key.item, attempt = key.attempt, error = %chain(&error), "old output stays on the disk");
    }
}

/// Deletes old output beyond the quota. Blocks.
fn make_room(attempts: &Attempts, newest_first: &[AttemptKey]) {
    if let Err(error) = attempts.make_room(newest_first) {
        warn!(error = %chain(&error), "old output stays on the disk");
    }
}

/// Removes abandoned leftovers of an attempt of an `mke` item.
pub(super) async fn forget_ended_runs() {
    match mke::forget_ended(Path::new(docker::SOCKET)).await {
        Ok(()) => {}
        // An unresponsive engine is asked again soon, and this log is the wrong place to report it.
        Err(error) if error.status().is_none() => debug!(error = %chain(&error), "no look at runs of MKE's image"),
        Err(error) => warn!(error = %chain(&error), "it may stay, with a password in it: docker rm muster-mke"),
    }
}

/// State of an attempt. A damaged record counts as lost. None: it is unreadable and must be read again, because its
/// process may live.
fn settled(key: &AttemptKey, found: Result<Found, AttemptError>) -> Option<Found> {
    match found {
        Ok(found) => Some(found),
        Err(error @ AttemptError::Damaged { .. }) => {
            error!(item = %key.item, attempt = key.attempt, error = %chain(&error), "outcome unknown");
            Some(Found::Lost)
        }
        Err(error) => {
            error!(item = %key.item, attempt = key.attempt, error = %chain(&error), "cannot read the attempt");
            None
        }
    }
}
