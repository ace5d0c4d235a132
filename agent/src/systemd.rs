//! systemd over D-Bus: the few calls of this agent. Each has a timeout. A connection lives only as long as its purpose,
//! so that an idle agent holds none and survives a restart of the bus. This module decides nothing.

pub(crate) mod unit;

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::timeout;
use zbus::{Connection, OwnedVariant, proxy::CacheProperties};
use zbus_systemd::systemd1::{ManagerProxy, ServiceProxy, UnitProxy};

use unit::{ServiceEnd, UnitState};

/// Timeout of an answer. systemd answers within milliseconds; while it reloads on a busy machine, within seconds.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// Mode of a job: it replaces queued ones.
const MODE: &str = "replace";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";

/// The agent's own service.
const OWN_SERVICE: &str = "muster-agent.service";
/// Directory that exists while systemd is process 1.
const RUNS_SYSTEMD: &str = "/run/systemd/system";

/// Result of starting the agent's service after an enrolment.
#[derive(Debug)]
pub enum AfterEnrolment {
    /// It runs now and starts at every boot.
    Starts,
    /// systemd is down here, or lacks the service.
    NoService,
    /// systemd failed to do it.
    Refused(SystemdError),
}

/// Starts the agent's service now and at every boot. An .rpm leaves that to presets, which may disable everything.
pub async fn run_from_now_on() -> AfterEnrolment {
    if !std::path::Path::new(RUNS_SYSTEMD).exists() {
        return AfterEnrolment::NoService;
    }
    let start = async {
        let systemd = Systemd::connect().await?;
        match systemd.file_state(OWN_SERVICE).await? {
            None => return Ok(AfterEnrolment::NoService),
            Some(state) if state == "enabled" => {}
            Some(_) => drop(systemd.enable(OWN_SERVICE).await?),
        }
        let start = systemd.manager.start_unit(OWN_SERVICE.to_owned(), MODE.to_owned());
        answer(format!("start {OWN_SERVICE}"), start).await?;
        Ok(AfterEnrolment::Starts)
    };
    start.await.unwrap_or_else(AfterEnrolment::Refused)
}

/// Job for a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    Start,
    Stop,
    Restart,
    Reload,
}

/// End of a job: a result of `JobRemoved` in org.freedesktop.systemd1(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobEnd {
    Done,
    /// Failure, in systemd's word: `failed`, `dependency`, `assert`, `invalid`, `canceled`, …
    Not(String),
    /// Timeout: it is still running.
    Running,
}

impl Job {
    /// Name for people.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Reload => "reload",
        }
    }
}

/// Error of a call to systemd.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// systemd refused.
    #[error("systemd did not {what}")]
    Refused {
        /// The request.
        what: String,
        /// The answer of systemd or of the bus.
        #[source]
        source: Box<zbus::Error>,
    },
    /// The bus closed the connection meanwhile.
    #[error("systemd did not {what}: the system bus closed the connection")]
    Closed {
        /// The request.
        what: String,
    },
    /// Timeout of systemd's answer.
    #[error("systemd did not {what}: no answer for {} s", ANSWER_DEADLINE.as_secs())]
    Silent {
        /// The request.
        what: String,
    },
}

impl SystemdError {
    fn is(&self, name: &str) -> bool {
        match self {
            Self::Refused { source, .. } => {
                matches!(&**source, zbus::Error::MethodError(of, ..) if of.as_str() == name)
            }
            Self::Closed { .. } | Self::Silent { .. } => false,
        }
    }

    /// Answer of older systemd versions for a missing file.
    fn is_not_found(&self) -> bool {
        match self {
            Self::Refused { source, .. } => matches!(&**source, zbus::Error::FDO(error)
                if matches!(**error, zbus::fdo::Error::FileNotFound(_))),
            Self::Closed { .. } | Self::Silent { .. } => false,
        }
    }
}

/// Waits for an answer, with a timeout.
pub(crate) async fn answer<T>(
    what: impl Into<String>,
    call: impl Future<Output = zbus::Result<T>>,
) -> Result<T, SystemdError> {
    let what = what.into();
    match timeout(ANSWER_DEADLINE, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(SystemdError::Refused { what, source: Box::new(source) }),
        Err(_) => Err(SystemdError::Silent { what }),
    }
}

/// Connects to the system bus.
///
/// # Errors
/// [`SystemdError`].
pub(crate) async fn bus() -> Result<Connection, SystemdError> {
    answer("take a connection over the system bus (is dbus.service active?)", Connection::system()).await
}

/// Client of this machine's service manager.
pub(crate) struct Systemd {
    connection: Connection,
    manager: ManagerProxy<'static>,
}

impl Systemd {
    /// Connects.
    pub(crate) async fn connect() -> Result<Self, SystemdError> {
        let connection = bus().await?;
        let builder = ManagerProxy::builder(&connection).cache_properties(CacheProperties::No);
        let manager = answer("answer", builder.build()).await?;
        Ok(Self { connection, manager })
    }

    /// The service with `pid` as its main process, if there is one.
    pub(crate) async fn service_of(&self, pid: u32) -> Result<Option<String>, SystemdError> {
        let found = answer(format!("find the unit of process {pid}"), self.manager.get_unit_by_pid(pid)).await;
        let path = match found {
            // Outside all units, such as a container's shell.
            Err(error) if error.is("org.freedesktop.systemd1.NoUnitForPID") => return Ok(None),
            found => found?,
        };
        let unit = UnitProxy::builder(&self.connection).cache_properties(CacheProperties::No).path(path.clone());
        let name = answer("name a unit", async { unit.build().await?.id().await }).await?;
        if !name.ends_with(".service") {
            return Ok(None);
        }
        let service = ServiceProxy::builder(&self.connection).cache_properties(CacheProperties::No).path(path);
        let main = answer("name a main process", async { service.build().await?.main_pid().await }).await?;
        Ok((main == pid).then_some(name))
    }

    /// Starts a transient unit, which exists until it ends. False = the name is taken.
    pub(crate) async fn start_transient(
        &self,
        name: &str,
        properties: Vec<(String, OwnedVariant)>,
    ) -> Result<bool, SystemdError> {
        let call = self.manager.start_transient_unit(name.to_owned(), MODE.to_owned(), properties, Vec::new());
        match answer(format!("start {name}"), call).await {
            Ok(_) => Ok(true),
            Err(error) if error.is(UNIT_EXISTS) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Stops a unit and makes systemd drop it. Succeeds if it is missing.
    pub(crate) async fn forget(&self, name: &str) -> Result<(), SystemdError> {
        let stop = self.manager.stop_unit(name.to_owned(), MODE.to_owned());
        absent_is_fine(answer(format!("stop {name}"), stop).await.map(drop))?;
        let reset = self.manager.reset_failed_unit(name.to_owned());
        absent_is_fine(answer(format!("forget {name}"), reset).await)
    }

    /// Loaded units with matching names.
    pub(crate) async fn units(&self, pattern: &str) -> Result<Vec<String>, SystemdError> {
        let call = self.manager.list_units_by_patterns(Vec::new(), vec![pattern.to_owned()]);
        Ok(answer("list its units", call).await?.into_iter().map(|unit| unit.0).collect())
    }

    /// State of a unit; a missing one is not loaded.
    pub(crate) async fn state(&self, name: &str) -> Result<UnitState, SystemdError> {
        let path = answer(format!("load {name}"), self.manager.load_unit(name.to_owned())).await?;
        let builder = UnitProxy::builder(&self.connection).cache_properties(CacheProperties::No).path(path.clone());
        let services = ServiceProxy::builder(&self.connection).cache_properties(CacheProperties::No).path(path);
        answer(format!("tell the state of {name}"), async {
            let unit = builder.build().await?;
            // Read the job first: a state read after its end is the result. Read the result last: a failed unit has one
            // by then.
            let has_job = unit.job().await?.0 != 0;
            let (load, active, sub) = (unit.load_state().await?, unit.active_state().await?, unit.sub_state().await?);
            let (restarts, result) = match name.ends_with(".service") {
                true => {
                    let service = services.build().await?;
                    (service.n_restarts().await?, service.result().await?)
                }
                false => (0, String::new()),
            };
            let unmet = match unit.condition_result().await? {
                true => Vec::new(),
                false => unmet(unit.conditions().await?),
            };
            Ok(UnitState { load, active, sub, has_job, restarts, result, unmet })
        })
        .await
    }

    /// Starts a job and waits for its end, up to the timeout.
    pub(crate) async fn job(&self, name: &str, job: Job, at_most: Duration) -> Result<JobEnd, SystemdError> {
        // Subscribe before the job exists, to see its end.
        answer("tell of its jobs", self.manager.subscribe()).await?;
        let mut ends = answer("tell of its jobs", self.manager.receive_job_removed()).await?;
        // systemd drops an inactive unit at once, with its unmet conditions. This reference keeps it while the
        // connection lives.
        answer(format!("keep {name} loaded"), self.manager.ref_unit(name.to_owned())).await?;
        let (unit, mode) = (name.to_owned(), MODE.to_owned());
        let what = format!("{} {name}", job.as_str());
        let path = match job {
            Job::Start => answer(&what, self.manager.start_unit(unit, mode)).await,
            Job::Stop => answer(&what, self.manager.stop_unit(unit, mode)).await,
            Job::Restart => answer(&what, self.manager.restart_unit(unit, mode)).await,
            Job::Reload => answer(&what, self.manager.reload_unit(unit, mode)).await,
        }?;
        let ours = async {
            while let Some(end) = ends.next().await {
                let end = end.args()?;
                if end.job == path {
                    return Ok(Some(end.result));
                }
            }
            Ok(None)
        };
        match timeout(at_most, ours).await {
            Ok(Ok(Some(result))) if result == "done" => Ok(JobEnd::Done),
            Ok(Ok(Some(result))) => Ok(JobEnd::Not(result)),
            Ok(Ok(None)) => Err(SystemdError::Closed { what }),
            Ok(Err(source)) => Err(SystemdError::Refused { what, source: Box::new(source) }),
            Err(_) => Ok(JobEnd::Running),
        }
    }

    /// State of the unit's file: `enabled`, `disabled`, `static`, … None = the file is missing.
    pub(crate) async fn file_state(&self, name: &str) -> Result<Option<String>, SystemdError> {
        let asked = answer(format!("find the file of {name}"), self.manager.get_unit_file_state(name.to_owned())).await;
        match asked {
            Ok(state) => Ok(Some(state)),
            Err(error) if error.is(NO_SUCH_UNIT) || error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Enables the unit at boot. False = its file lacks an [Install] section.
    pub(crate) async fn enable(&self, name: &str) -> Result<bool, SystemdError> {
        let call = self.manager.enable_unit_files(vec![name.to_owned()], false, false);
        let (installable, _) = answer(format!("enable {name}"), call).await?;
        self.reload_files().await?;
        Ok(installable)
    }

    /// Disables the unit at boot.
    pub(crate) async fn disable(&self, name: &str) -> Result<(), SystemdError> {
        let call = self.manager.disable_unit_files(vec![name.to_owned()], false);
        answer(format!("disable {name}"), call).await?;
        self.reload_files().await
    }

    async fn reload_files(&self) -> Result<(), SystemdError> {
        answer("reload its unit files", self.manager.reload()).await
    }

    /// How a service ended. None = it is unknown to systemd.
    pub(crate) async fn end_of(&self, name: &str) -> Result<Option<ServiceEnd>, SystemdError> {
        let path = match answer(format!("find {name}"), self.manager.get_unit(name.to_owned())).await {
            Err(error) if error.is(NO_SUCH_UNIT) => return Ok(None),
            found => found?,
        };
        let builder = ServiceProxy::builder(&self.connection).cache_properties(CacheProperties::No).path(path);
        let end = answer(format!("tell how {name} ended"), async {
            let service = builder.build().await?;
            let (result, code, status) =
                (service.result().await?, service.exec_main_code().await?, service.exec_main_status().await?);
            Ok(ServiceEnd { result, code, status })
        });
        Ok(Some(end.await?))
    }
}

/// Conditions that were unmet at a unit's last start, in the syntax of its file. The fields are: name, triggering,
/// negated, parameter, and a state that is negative if unmet.
fn unmet(conditions: Vec<(String, bool, bool, String, i32)>) -> Vec<String> {
    let text = |(name, triggering, negated, parameter, _)| {
        format!("{name}={}{}{parameter}", if triggering { "|" } else { "" }, if negated { "!" } else { "" })
    };
    conditions.into_iter().filter(|condition| condition.4 < 0).map(text).collect()
}

fn absent_is_fine(outcome: Result<(), SystemdError>) -> Result<(), SystemdError> {
    match outcome {
        Err(error) if error.is(NO_SUCH_UNIT) => Ok(()),
        outcome => outcome,
    }
}
