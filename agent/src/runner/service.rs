//! Brings a systemd unit into a state: checks first, acts if necessary, and waits for the result. After an
//! interruption, a repeat does only the rest; `restart` and `reload` act each time.

use std::{process::Command, time::Duration};

use muster_proto::model::ItemState;
use tokio::time::{Instant, sleep};

use super::{
    BuiltinWork, Outcome, Refused,
    programs::{ProgramError, output_of},
};
use crate::{
    attempt::Request,
    exec_item::{Report, with_sources},
    systemd::{Job, JobEnd, Systemd, SystemdError, unit::UnitState},
};

/// Fraction of the item's time limit that is kept for the report on a failed unit.
const REPORT_PART: u32 = 10;
/// Polling interval of a unit in transition.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time that a service must stay up: `Type=simple` counts as active before its program has begun.
const SETTLE: Duration = Duration::from_secs(1);
/// Number of automatic restarts (`Restart=`) after which a unit counts as failed.
const RESTARTS_MAX: u32 = 3;
/// Last journal lines of a failed unit for the item's output.
const JOURNAL_LINES: &str = "20";
/// Last lines of the unit's own output for the item's message.
const MESSAGE_LINES: &str = "3";
/// Supported unit types.
const SUFFIXES: &[&str] = &[".service", ".socket", ".timer", ".target", ".path", ".mount", ".automount", ".swap"];
/// State of a unit file from a generator, such as the one for init scripts (systemctl(1), `is-enabled`).
const GENERATED: &str = "generated";
/// systemd's maximum length of a unit name.
const NAME_BYTES_MAX: usize = 255;

/// Requested action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Start,
    Stop,
    Restart,
    Reload,
    Enable,
    Disable,
}

/// Reason of a failure.
#[derive(Debug, thiserror::Error)]
enum ServiceError {
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    #[error("cannot start the runtime")]
    Runtime(#[source] std::io::Error),
    #[error("{}", not_loaded(unit, load))]
    NotLoaded { unit: String, load: String },
    #[error("unit {0} cannot be enabled: it has no [Install] section")]
    NotInstallable(String),
    #[error("cannot {verb} unit {unit}, which a generator of systemd made")]
    Generated {
        verb: &'static str,
        unit: String,
        #[source]
        source: ProgramError,
    },
    #[error("unit {unit} failed: {state}")]
    Failed { unit: String, state: String },
    #[error("unit {unit} ends again and again: systemd has started it {restarts} times more, and it is {state}")]
    KeepsEnding { unit: String, restarts: u32, state: String },
    #[error("systemd did not {} unit {unit}: {}; it is {state}", job.as_str(), why(result))]
    NotDone { unit: String, job: Job, result: String, state: String },
    #[error("unit {unit} was left as it is, {state}: not met is {}", unmet.join(", "))]
    Unmet { unit: String, state: String, unmet: Vec<String> },
    #[error("unit {unit} is {state}, and not {wanted} after {} s", waited.as_secs())]
    Late { unit: String, state: String, wanted: &'static str, waited: Duration },
}

impl ServiceError {
    /// Is the unit itself the cause, so that its journal explains it?
    const fn is_of_unit(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::KeepsEnding { .. } | Self::NotDone { .. } | Self::Late { .. })
    }

    /// May a retry help? A missing or unsuitable unit stays so.
    const fn is_retryable(&self) -> bool {
        !matches!(self, Self::NotLoaded { .. } | Self::NotInstallable(_) | Self::Generated { .. })
    }
}

/// Explains why loading a unit failed, from its `LoadState` in systemd.unit(5).
fn not_loaded(unit: &str, load: &str) -> String {
    match load {
        "not-found" => format!("there is no unit {unit} on this machine"),
        "masked" => format!("unit {unit} is masked; `systemctl unmask {unit}` makes it usable"),
        _ => format!("systemd cannot load unit {unit}: {load}; `systemd-analyze verify {unit}` says why"),
    }
}

/// Explains a job's result, from `JobRemoved` in org.freedesktop.systemd1(5).
fn why(result: &str) -> String {
    match result {
        "dependency" => "a unit that it requires did not start (`systemctl list-dependencies --failed`)".to_owned(),
        "assert" => "an Assert…= of its file is not met".to_owned(),
        "invalid" => "its state does not allow it".to_owned(),
        "canceled" => "somebody asked for another job meanwhile".to_owned(),
        "timeout" => "the job's own time was up".to_owned(),
        result => format!("the job's result is `{result}`"),
    }
}

/// State of a unit after a job to start it has ended.
#[derive(Debug)]
enum Judged {
    /// It is up; is it still up in a moment?
    Up,
    /// It ended successfully: a `oneshot` service.
    Ended,
    /// It is in transition.
    OnItsWay,
}

/// Judges the unit's state. systemd may retry a failed start by itself (`Restart=`): wait for that, up to a limit.
fn judge(unit: &str, job: Job, end: &JobEnd, state: &UnitState) -> Result<Judged, ServiceError> {
    let unit = unit.to_owned();
    if let JobEnd::Not(result) = end {
        let again = result == "failed" && job != Job::Reload;
        if again && state.has_failed() {
            return Err(ServiceError::Failed { unit, state: state.to_string() });
        }
        if !again || state.is_down() {
            return Err(ServiceError::NotDone { unit, job, result: result.clone(), state: state.to_string() });
        }
    }
    if state.is_up() {
        Ok(Judged::Up)
    } else if state.is_down() && !state.unmet.is_empty() {
        Err(ServiceError::Unmet { unit, state: state.to_string(), unmet: state.unmet.clone() })
    } else if state.is_finished() {
        Ok(Judged::Ended)
    } else if state.has_failed() {
        Err(ServiceError::Failed { unit, state: state.to_string() })
    } else if job != Job::Reload && state.restarts >= RESTARTS_MAX {
        Err(ServiceError::KeepsEnding { unit, restarts: state.restarts, state: state.to_string() })
    } else {
        Ok(Judged::OnItsWay)
    }
}

/// Checks the params and returns the work.
pub(super) fn prepare(request: &Request) -> Result<BuiltinWork, Refused> {
    let param = |name| request.params.get(name).map(String::as_str).ok_or(Refused::Missing(name));
    let unit = unit_name(param("unit")?)?.to_owned();
    let action = action(param("action")?)?;
    let limit = Duration::from_millis(request.timeout_ms);
    let time_limit = limit - limit / REPORT_PART;
    Ok(Box::new(move |report| match bring_about(&unit, action, time_limit) {
        Ok(message) => {
            report.line(&message);
            Outcome { state: ItemState::Succeeded, message, result_json: None }
        }
        Err(error) => {
            let mut message = with_sources(&error);
            if error.is_of_unit() {
                message += &journal(&unit, report);
            }
            Outcome::failed(message, error.is_retryable())
        }
    }))
}

fn unit_name(text: &str) -> Result<&str, Refused> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b":-_.\\@".contains(&b);
    let named = SUFFIXES.iter().any(|suffix| text.strip_suffix(suffix).is_some_and(|stem| !stem.is_empty()));
    if text.len() <= NAME_BYTES_MAX && text.bytes().all(good) && named {
        Ok(text)
    } else {
        Err(Refused::param("unit", format!("is not the name of a unit that ends in {}", SUFFIXES.join(", "))))
    }
}

fn action(text: &str) -> Result<Action, Refused> {
    Ok(match text {
        "start" => Action::Start,
        "stop" => Action::Stop,
        "restart" => Action::Restart,
        "reload" => Action::Reload,
        "enable" => Action::Enable,
        "disable" => Action::Disable,
        _ => {
            let problem = "expected one of: start, stop, restart, reload, enable, disable";
            return Err(Refused::param("action", problem));
        }
    })
}

/// Does the work and summarizes it in one line.
fn bring_about(unit: &str, action: Action, time_limit: Duration) -> Result<String, ServiceError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ServiceError::Runtime)?;
    runtime.block_on(async {
        let work = Work { systemd: Systemd::connect().await?, unit, began: Instant::now(), time_limit };
        let state = work.look().await?;
        if !state.is_loaded() && action != Action::Disable {
            return Err(ServiceError::NotLoaded { unit: unit.to_owned(), load: state.load });
        }
        match action {
            Action::Start if state.is_up() => Ok(format!("unit {unit} is active already")),
            Action::Start => work.up(Job::Start, "started").await,
            Action::Restart => work.up(Job::Restart, "restarted").await,
            Action::Reload => work.up(Job::Reload, "reloaded").await,
            Action::Stop if state.is_down() => Ok(format!("unit {unit} is {state} already")),
            Action::Stop => work.down().await,
            Action::Enable => work.enable().await,
            Action::Disable => work.disable().await,
        }
    })
}

struct Work<'a> {
    systemd: Systemd,
    unit: &'a str,
    began: Instant,
    time_limit: Duration,
}

impl Work<'_> {
    async fn look(&self) -> Result<UnitState, SystemdError> {
        self.systemd.state(self.unit).await
    }

    /// Runs the job. After a timeout, the later checks report the state.
    async fn job(&self, job: Job) -> Result<JobEnd, SystemdError> {
        self.systemd.job(self.unit, job, self.time_limit.saturating_sub(self.began.elapsed())).await
    }

    /// Runs the job and waits until the unit is up and stays up.
    async fn up(&self, job: Job, done: &str) -> Result<String, ServiceError> {
        let end = self.job(job).await?;
        let mut up_since = None;
        loop {
            let state = self.look().await?;
            let now = Instant::now();
            up_since = match judge(self.unit, job, &end, &state)? {
                Judged::Ended => return Ok(format!("unit {} {done}, and has ended well", self.unit)),
                Judged::Up => up_since.or(Some(now)),
                Judged::OnItsWay => None,
            };
            if up_since.is_some_and(|since| now - since >= SETTLE) {
                return Ok(format!("unit {} {done}", self.unit));
            }
            self.wait(&state, "active").await?;
        }
    }

    async fn down(&self) -> Result<String, ServiceError> {
        let end = self.job(Job::Stop).await?;
        loop {
            let state = self.look().await?;
            if state.is_down() {
                return Ok(format!("unit {} stopped", self.unit));
            }
            if let JobEnd::Not(result) = end {
                let (unit, state) = (self.unit.to_owned(), state.to_string());
                return Err(ServiceError::NotDone { unit, job: Job::Stop, result, state });
            }
            self.wait(&state, "inactive").await?;
        }
    }

    async fn wait(&self, state: &UnitState, wanted: &'static str) -> Result<(), ServiceError> {
        let waited = self.began.elapsed();
        if waited >= self.time_limit {
            let (unit, state) = (self.unit.to_owned(), state.to_string());
            return Err(ServiceError::Late { unit, state, wanted, waited });
        }
        sleep(LOOK_EVERY).await;
        Ok(())
    }

    async fn enable(&self) -> Result<String, ServiceError> {
        match self.systemd.file_state(self.unit).await?.as_deref() {
            Some("enabled") => return Ok(format!("unit {} is enabled already", self.unit)),
            Some(GENERATED) => return self.systemctl("enable", "enabled"),
            Some(_) | None => {}
        }
        if !self.systemd.enable(self.unit).await? {
            return Err(ServiceError::NotInstallable(self.unit.to_owned()));
        }
        Ok(format!("unit {} enabled", self.unit))
    }

    async fn disable(&self) -> Result<String, ServiceError> {
        match self.systemd.file_state(self.unit).await?.as_deref() {
            Some("enabled" | "enabled-runtime" | "linked" | "linked-runtime") => {
                self.systemd.disable(self.unit).await?;
                Ok(format!("unit {} disabled", self.unit))
            }
            Some(GENERATED) => self.systemctl("disable", "disabled"),
            Some(state) => Ok(format!("unit {} is {state} already", self.unit)),
            None => Ok(format!("unit {} is not on this machine, and so not enabled", self.unit)),
        }
    }

    /// Calls systemctl: it passes init scripts to the distribution's own tool (`systemd-sysv-install`), unlike
    /// systemd's bus.
    fn systemctl(&self, verb: &'static str, done: &str) -> Result<String, ServiceError> {
        let generated = |source| ServiceError::Generated { verb, unit: self.unit.to_owned(), source };
        output_of(Command::new("systemctl").args(["--quiet", verb, "--", self.unit])).map_err(generated)?;
        Ok(format!("unit {} {done} (an init script)", self.unit))
    }
}

/// The unit's last journal lines: all for the output, those of the unit itself for the message.
fn journal(unit: &str, report: &Report) -> String {
    report.line(&format!("the last of the journal of {unit}:"));
    let said = read_journal(&["--unit", unit, "--lines", JOURNAL_LINES]);
    said.iter().for_each(|line| report.line(line));
    let own = read_journal(&[&format!("_SYSTEMD_UNIT={unit}"), "--lines", MESSAGE_LINES]);
    if own.is_empty() { String::new() } else { format!("; its journal ends: {}", own.join(" | ")) }
}

/// Reads the journal; empty if it is missing. Its only time limit is the item's.
fn read_journal(which: &[&str]) -> Vec<String> {
    let mut command = Command::new("journalctl");
    command.args(which).args(["--output", "cat", "--no-pager", "--quiet"]);
    let said = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_job_is_believed_only_as_far_as_it_goes() {
        let (up, ended, on) = ("Ok(Up)", "Ok(Ended)", "Ok(OnItsWay)");
        for (job, end, active, result, unmet, expected) in [
            (Job::Start, "done", "active", "success", "", up),
            (Job::Start, "done", "inactive", "success", "", ended),
            (Job::Start, "done", "inactive", "success", "ConditionPathExists=/x", "not met is ConditionPathExists=/x"),
            (Job::Start, "done", "failed", "exit-code", "", "unit a.service failed: failed (x), exit-code"),
            // The unit itself is fine, but nothing happened.
            (
                Job::Start,
                "dependency",
                "inactive",
                "success",
                "",
                "did not start unit a.service: a unit that it requires",
            ),
            (Job::Start, "assert", "inactive", "success", "", "an Assert…= of its file is not met; it is inactive (x)"),
            (Job::Start, "failed", "inactive", "success", "", "the job's result is `failed`"),
            (Job::Start, "failed", "failed", "exit-code", "", "unit a.service failed: failed (x), exit-code"),
            (Job::Start, "canceled", "active", "success", "", "somebody asked for another job"),
            (Job::Reload, "done", "active", "success", "", up),
            (Job::Reload, "failed", "active", "success", "", "did not reload unit a.service"),
            (Job::Reload, "invalid", "inactive", "success", "", "its state does not allow it; it is inactive (x)"),
            // systemd restarts it by itself.
            (Job::Start, "failed", "activating", "exit-code", "", on),
            (Job::Start, "done", "activating", "watchdog", "", "has started it 3 times more, and it is activating (x)"),
            (Job::Start, "done", "active", "watchdog", "", up),
            (Job::Restart, "failed", "active", "success", "", up),
            (Job::Start, "", "activating", "success", "", on),
        ] {
            let end = match end {
                "done" => JobEnd::Done,
                "" => JobEnd::Running,
                result => JobEnd::Not(result.to_owned()),
            };
            let state = UnitState {
                load: "loaded".to_owned(),
                active: active.to_owned(),
                sub: "x".to_owned(),
                has_job: false,
                restarts: if result == "watchdog" { RESTARTS_MAX } else { RESTARTS_MAX - 1 },
                result: result.to_owned(),
                unmet: unmet.split_terminator(' ').map(str::to_owned).collect(),
            };
            let judged = judge("a.service", job, &end, &state);
            let said = judged.map_or_else(|error| error.to_string(), |judged| format!("Ok({judged:?})"));
            assert!(said.contains(expected), "{job:?} {end:?} {state:?}: {said}");
        }
    }

    #[test]
    fn a_unit_that_cannot_be_had_is_told_why() {
        assert_eq!(not_loaded("a.service", "not-found"), "there is no unit a.service on this machine");
        assert!(not_loaded("a.service", "masked").contains("`systemctl unmask a.service`"));
        assert!(not_loaded("a.service", "bad-setting").contains("bad-setting"));
    }

    #[test]
    fn units_are_named_in_full() {
        for good in ["docker.service", "getty@tty1.service", r"dev-disk\x2d1.swap", "a.timer", "multi-user.target"] {
            assert_eq!(unit_name(good).ok(), Some(good));
        }
        let long = format!("{}.service", "x".repeat(248));
        for bad in
            ["", "docker", ".service", "a b.service", "../x.service", "a.service\n", "-.slice", &long, "ü.service"]
        {
            assert!(unit_name(bad).is_err(), "{bad}");
        }
        assert_eq!(action("reload").ok(), Some(Action::Reload));
        assert!(action("Start").is_err());
    }
}
