//! Running containers that no Swarm drain moves: those that somebody made with `docker run`. Never starts an engine
//! that is stopped, as a connection to its socket would.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    pin::pin,
    time::Duration,
};

use bollard::{
    models::ContainerSummary,
    query_parameters::{EventsOptionsBuilder, ListContainersOptions},
};
use futures_util::StreamExt;
use muster_proto::convert::{CONTAINERS_MAX, as_line};
use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

use crate::{
    docker::{SOCKET, connect},
    runner::mke::run::NAME as MKE_CONTAINER,
};

/// There while an engine runs.
const PID_FILE: &str = "/run/docker.pid";
/// Longest wait for the engine's answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Between two looks for an engine that does not run, or whose events have ended, as they do when it restarts. Each
/// costs one look at a file.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Every container of a task of a service has this label.
const TASK_LABEL: &str = "com.docker.swarm.task.id";
/// MKE's own containers begin with it, and their labels with the other.
const MKE_NAMES: &str = "ucp-";
const MKE_LABELS: &str = "com.docker.ucp.";

/// Their names, the first ones. Empty: there are none, or the engine does not say.
pub async fn running() -> Vec<String> {
    if !is_engine_up() {
        return Vec::new();
    }
    let Ok(docker) = connect(Path::new(SOCKET), ANSWER_DEADLINE) else { return Vec::new() };
    let found = docker.list_containers(None::<ListContainersOptions>).await.unwrap_or_default();
    let names: BTreeSet<String> = found.into_iter().filter_map(plain_name).collect();
    names.into_iter().take(CONTAINERS_MAX).collect()
}

fn is_engine_up() -> bool {
    Path::new(PID_FILE).exists()
}

/// Its name, if nobody moves it.
fn plain_name(container: ContainerSummary) -> Option<String> {
    let labels = container.labels.unwrap_or_default();
    let of_task = labels.contains_key(TASK_LABEL);
    let of_mke = labels.keys().any(|label| label.starts_with(MKE_LABELS));
    let name = container.names.unwrap_or_default().into_iter().next().or(container.id)?;
    let name = name.trim_start_matches('/');
    let own = name.starts_with(MKE_NAMES) || name == MKE_CONTAINER;
    (!of_task && !of_mke && !own).then(|| as_line(name))
}

/// Tells when containers start and end. Dropped, it stops.
pub struct Watch {
    changed: mpsc::Receiver<()>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Watches the engine of this machine, whenever it runs.
    #[must_use]
    pub fn begin() -> Self {
        // One word is enough: what there is, is looked at then.
        let (tell, changed) = mpsc::channel(1);
        Self { changed, task: tokio::spawn(watch(tell)) }
    }

    /// Waits until one has started or ended, or the engine has.
    pub async fn changed(&mut self) {
        if self.changed.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(tell: mpsc::Sender<()>) {
    let filters = HashMap::from([("type", vec!["container"]), ("event", vec!["start", "die", "rename"])]);
    loop {
        if is_engine_up()
            && let Ok(docker) = connect(Path::new(SOCKET), ANSWER_DEADLINE)
        {
            let mut events = pin!(docker.events(Some(EventsOptionsBuilder::new().filters(&filters).build())));
            // Whoever does not listen has the last word yet to hear.
            tell.try_send(()).ok();
            while let Some(Ok(_)) = events.next().await {
                tell.try_send(()).ok();
            }
            tell.try_send(()).ok();
        }
        sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, label: &str) -> ContainerSummary {
        ContainerSummary {
            names: Some(vec![format!("/{name}")]),
            labels: Some(HashMap::from([(label.to_owned(), String::new())])),
            ..ContainerSummary::default()
        }
    }

    #[test]
    fn containers_of_others_are_plain() {
        for (name, label, expected) in [
            ("plain", "", Some("plain")),
            ("web.1.x", TASK_LABEL, None),
            ("ucp-proxy", "", None),
            ("agent", "com.docker.ucp.version", None),
            (MKE_CONTAINER, "", None),
        ] {
            assert_eq!(plain_name(container(name, label)).as_deref(), expected, "{name} {label}");
        }
    }
}
