//! One run of MKE's image: a container with a fixed name, so that there is only one and every attempt finds it. It is
//! started, followed to its end, and removed. It is never stopped from here.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use bollard::{
    Docker,
    errors::Error,
    models::{ContainerCreateBody, ContainerStateStatusEnum, HostConfig},
    query_parameters::{
        CreateContainerOptionsBuilder, CreateImageOptionsBuilder, ListServicesOptionsBuilder, LogsOptionsBuilder,
    },
};
use futures_util::StreamExt;

use super::{Action, MkeError, There, Wanted, backup};
use crate::{
    docker::{self, DockerError},
    exec_item::Report,
    host::unix_ms,
    runner::programs::Lines,
};

/// MKE's container with MKE's version as its image tag.
pub(super) const PROXY: &str = "ucp-proxy";
/// MKE's service on every node of its swarm, which installs the rest of MKE there.
const SERVICE: &str = "ucp-agent";
/// Our container.
pub(crate) const NAME: &str = "muster-mke";
/// Label of our container: its action.
const LABEL: &str = "muster.mke";
/// Label of our container: the copy it makes.
const COPY_LABEL: &str = "muster.mke.copy";
/// Directory of a backup inside its container, from MKE's manual.
const BACKUP_DIR: &str = "/backup";
/// Timeout of one request to the engine, streams excluded.
pub(super) const REQUEST_DEADLINE: Duration = Duration::from_secs(120);

/// A run of MKE's image.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Path of the copy, for a backup.
    pub(super) copy: Option<PathBuf>,
}

/// Leftover of an earlier attempt.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LeftOver {
    Nothing,
    /// An unfinished run of the same command.
    Ours(Run),
}

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}

/// Tag of an image's name: the text after the last colon, unless that colon belongs to a registry's port.
pub(super) fn tag_of(image: &str) -> Option<&str> {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    name.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.is_empty() && !tag.contains('/'))
}

/// Version of MKE that is installed here.
pub(super) async fn running_version(docker: &Docker) -> Result<Option<String>, MkeError> {
    match docker.inspect_container(PROXY, None).await {
        Ok(found) => {
            let image = found.config.and_then(|config| config.image).unwrap_or_default();
            Ok(tag_of(&image).map(str::to_owned))
        }
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(DockerError { what: "look at MKE's container", source: error }.into()),
    }
}

/// Existing MKE: on this machine, or else in its swarm.
pub(super) async fn there(docker: &Docker) -> Result<There, MkeError> {
    let running = running_version(docker).await?;
    let in_swarm = running.is_none() && is_in_swarm(docker).await?;
    Ok(There { running, in_swarm })
}

/// Does the swarm have MKE's service? Only managers know; elsewhere MKE's own installation refuses to run.
async fn is_in_swarm(docker: &Docker) -> Result<bool, MkeError> {
    let named = HashMap::from([("name", vec![SERVICE])]);
    let options = ListServicesOptionsBuilder::new().filters(&named).build();
    match docker.list_services(Some(options)).await {
        Ok(services) => Ok(services
            .into_iter()
            .any(|service| service.spec.and_then(|spec| spec.name).is_some_and(|name| name == SERVICE))),
        Err(Error::DockerResponseServerError { status_code: 503 | 406, .. }) => Ok(false),
        Err(error) => Err(DockerError { what: "look for MKE in the swarm", source: error }.into()),
    }
}

/// Looks for an earlier attempt's run. A finished one is removed: its effects show its result.
pub(super) async fn left_over(docker: &Docker, wanted: &Wanted) -> Result<LeftOver, MkeError> {
    let found = match docker.inspect_container(NAME, None).await {
        Ok(found) => found,
        Err(error) if is_gone(&error) => return Ok(LeftOver::Nothing),
        Err(error) => return Err(DockerError { what: "look for an earlier run", source: error }.into()),
    };
    if found.state.and_then(|state| state.running) != Some(true) {
        return remove(docker).await.map(|()| LeftOver::Nothing);
    }
    let mut labels = found.config.and_then(|config| config.labels).unwrap_or_default();
    match labels.remove(LABEL).unwrap_or_default() {
        what if what == wanted.action.as_str() => {
            Ok(LeftOver::Ours(Run { copy: labels.remove(COPY_LABEL).map(PathBuf::from) }))
        }
        what => Err(MkeError::Busy { what }),
    }
}

/// Removes an abandoned finished run, after an operator accepted or skipped the item. The engine keeps a container's
/// environment on disk, and a run's environment has the administrator's password.
///
/// # Errors
/// The engine is unresponsive, or the removal fails.
pub(crate) async fn forget_ended(socket: &Path) -> Result<(), DockerError> {
    use ContainerStateStatusEnum::{DEAD, EXITED};
    let docker = docker::connect(socket, REQUEST_DEADLINE)?;
    let found = match docker.inspect_container(NAME, None).await {
        Ok(found) => found,
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(DockerError { what: "look for a run of MKE's image that has ended", source: error }),
    };
    let ended = matches!(found.state.and_then(|state| state.status), Some(EXITED | DEAD));
    let ours = found.config.and_then(|config| config.labels).is_some_and(|labels| labels.contains_key(LABEL));
    // By its id: the next run has the same name.
    match found.id.filter(|_| ended && ours) {
        None => Ok(()),
        Some(id) => docker
            .remove_container(&id, None)
            .await
            .map_err(DockerError::while_doing("remove a run of MKE's image that has ended")),
    }
}

async fn remove(docker: &Docker) -> Result<(), MkeError> {
    match docker.remove_container(NAME, None).await {
        Ok(()) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) => Err(DockerError { what: "remove the container of the run", source: error }.into()),
    }
}

/// Follows the run to its end, however long, and removes its container.
pub(super) async fn to_its_end(docker: &Docker, action: Action, report: &Report) -> Result<(), MkeError> {
    follow(docker, report).await?;
    let code = exit_code(docker).await?;
    remove(docker).await?;
    if code == 0 { Ok(()) } else { Err(MkeError::Failed { action, code }) }
}

/// Starts a run of MKE's image of this version.
pub(super) async fn start(docker: &Docker, wanted: &Wanted, version: &str, report: &Report) -> Result<Run, MkeError> {
    let image = format!("{}:{version}", wanted.image);
    have_image(docker, &image, version, wanted, report).await?;
    let mut command = vec![wanted.action.as_str().to_owned()];
    let mut binds = vec![format!("{0}:{0}", docker::SOCKET)];
    let mut labels = HashMap::from([(LABEL.to_owned(), wanted.action.to_string())]);
    let mut copy = None;
    match wanted.action {
        Action::Install => {}
        Action::Upgrade => {
            let swarm = docker.inspect_swarm().await.map_err(DockerError::while_doing("read the swarm"))?;
            command.extend(["--id".to_owned(), swarm.id.unwrap_or_default(), "--manual-worker-upgrade".to_owned()]);
        }
        Action::Backup => {
            let target = wanted.copies.begin(unix_ms())?;
            binds.push(format!("{}:{BACKUP_DIR}", backup::begin(&target)?.display()));
            command.extend(["--file".to_owned(), backup::FILE.to_owned()]);
            labels.insert(COPY_LABEL.to_owned(), target.to_string_lossy().into_owned());
            copy = Some(target);
        }
    }
    command.extend(wanted.args.iter().cloned());
    report.line(&format!("running {image} {}", command.join(" ")));
    report.line(&format!(
        "it outlives this attempt, the next one follows it; it ends only by itself or by: docker kill {NAME}"
    ));
    let env = wanted
        .admin
        .as_ref()
        .map(|(user, password)| vec![format!("UCP_ADMIN_USER={user}"), format!("UCP_ADMIN_PASSWORD={password}")]);
    let config = ContainerCreateBody {
        image: Some(image),
        cmd: Some(command),
        env,
        labels: Some(labels),
        host_config: Some(HostConfig {
            binds: Some(binds),
            // With SELinux, a container with its own label is denied the engine's socket.
            security_opt: Some(vec!["label=disable".to_owned()]),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::new().name(NAME).build();
    docker.create_container(Some(options), config).await.map_err(DockerError::while_doing("create MKE's container"))?;
    docker.start_container(NAME, None).await.map_err(DockerError::while_doing("start MKE's container"))?;
    Ok(Run { copy })
}

/// Pulls the image unless the engine has it.
async fn have_image(
    docker: &Docker,
    image: &str,
    version: &str,
    wanted: &Wanted,
    report: &Report,
) -> Result<(), MkeError> {
    match docker.inspect_image(image).await {
        Ok(_) => return Ok(()),
        Err(error) if is_gone(&error) => report.line(&format!("fetching {image}")),
        Err(error) => return Err(DockerError { what: "look for MKE's image", source: error }.into()),
    }
    let options = CreateImageOptionsBuilder::new().from_image(&wanted.image).tag(version).build();
    let mut fetched = docker.create_image(Some(options), None, None);
    while let Some(step) = fetched.next().await {
        step.map_err(DockerError::while_doing("fetch MKE's image"))?;
    }
    Ok(())
}

/// Forwards the run's output until it ends.
async fn follow(docker: &Docker, report: &Report) -> Result<(), MkeError> {
    let options = LogsOptionsBuilder::new().follow(true).stdout(true).stderr(true).build();
    let mut output = docker.logs(NAME, Some(options));
    let mut lines = Lines::default();
    while let Some(piece) = output.next().await {
        let piece = piece.map_err(DockerError::while_doing("read MKE's output"))?;
        lines.take(&piece.into_bytes(), |line| report.line(line));
    }
    lines.end(|line| report.line(line));
    Ok(())
}

async fn exit_code(docker: &Docker) -> Result<i64, MkeError> {
    let found =
        docker.inspect_container(NAME, None).await.map_err(DockerError::while_doing("see how the run ended"))?;
    Ok(found.state.and_then(|state| state.exit_code).unwrap_or(-1))
}
