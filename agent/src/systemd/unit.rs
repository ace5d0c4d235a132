//! Transient unit of an attempt: its name, its properties, and the meaning of its end. Pure data.

use std::{ffi::OsStr, fmt, path::Path, time::Duration};

use nix::{libc, sys::signal::Signal};
use zbus::{OwnedVariant, Variant};

use crate::attempt::{AttemptKey, InvalidKey};

const PREFIX: &str = "muster-item-";
const SUFFIX: &str = ".service";
/// Pattern of the units of all attempts.
pub(crate) const ALL: &str = "muster-item-*.service";
/// Extra time of systemd's limit. exec-item itself ends the program at its time limit, with TERM and KILL; systemd acts
/// only if exec-item hangs.
const RUNTIME_MARGIN: Duration = Duration::from_secs(120);
/// Delay from systemd's TERM to its KILL at shutdown: time for exec-item to end the program and report it.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// `muster-item-<item>-<generation>-<attempt>.service`. An item's name is a DNS label, which is valid unescaped, and
/// the unit's name has at most 115 of the 255 bytes. The two numbers at the end are free of dashes, so the name parses
/// back.
pub(crate) fn name(key: &AttemptKey) -> String {
    format!("{PREFIX}{}-{}-{}{SUFFIX}", key.item, key.generation, key.attempt)
}

/// Attempt of a unit.
pub(crate) fn key(name: &str) -> Result<AttemptKey, InvalidKey> {
    let inner = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)).ok_or(InvalidKey)?;
    let mut parts = inner.rsplitn(3, '-');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(attempt), Some(generation), Some(item)) => format!("{item}.{generation}.{attempt}").parse(),
        _ => Err(InvalidKey),
    }
}

/// Unit of an attempt. It omits params and secrets, because all users can read a unit's properties.
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a AttemptKey,
    /// Path of `muster-agent`.
    pub(crate) program: &'a Path,
    pub(crate) args: [&'a OsStr; 2],
    pub(crate) stdout: &'a Path,
    pub(crate) stderr: &'a Path,
    pub(crate) timeout: Duration,
}

impl Wanted<'_> {
    /// Properties for `StartTransientUnit`. `agent`: the unit that stops before this one at shutdown.
    pub(crate) fn properties(&self, agent: &str) -> Vec<(String, OwnedVariant)> {
        let AttemptKey { item, generation, attempt } = self.key;
        let program = self.program.to_string_lossy().into_owned();
        let args = self.args.iter().map(|arg| arg.to_string_lossy().into_owned());
        let argv: Vec<String> = std::iter::once(program.clone()).chain(args).collect();
        let path = |path: &Path| Variant::from(path.to_string_lossy().into_owned());
        let text = |text: &'static str| Variant::from(text);
        let wanted = [
            ("Description", Variant::from(format!("Muster item {item}, generation {generation}, attempt {attempt}"))),
            ("Before", Variant::from(vec![agent.to_owned()])),
            ("Type", text("exec")),
            ("ExecStart", Variant::from(vec![(program, argv, false)])),
            // The end stays visible until the agent has recorded it.
            ("RemainAfterExit", Variant::from(true)),
            // TERM is for exec-item, which ends the program; KILL is for all remaining processes.
            ("KillMode", text("mixed")),
            ("TimeoutStopUSec", Variant::from(micros(STOP_TIMEOUT))),
            ("RuntimeMaxUSec", Variant::from(micros(self.timeout.saturating_add(RUNTIME_MARGIN)))),
            // exec-item sees it in its memory events and stays alive to report it.
            ("OOMPolicy", text("continue")),
            ("StandardInput", text("null")),
            ("StandardOutputFile", path(self.stdout)),
            ("StandardErrorFile", path(self.stderr)),
        ];
        wanted
            .into_iter()
            // Fails for file descriptors only.
            .filter_map(|(name, value)| Some((name.to_owned(), OwnedVariant::try_from(value).ok()?)))
            .collect()
    }
}

fn micros(time: Duration) -> u64 {
    // The maximum means infinity, for systemd too.
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// State of a unit: properties `LoadState`, `ActiveState`, `SubState`, `Job`, `Conditions` and, of a service, `Result`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnitState {
    pub(crate) load: String,
    pub(crate) active: String,
    pub(crate) sub: String,
    pub(crate) has_job: bool,
    /// Number of automatic restarts since the last requested start.
    pub(crate) restarts: u32,
    pub(crate) result: String,
    /// Unmet conditions (`ConditionPathExists=/x`) that made systemd skip the last start.
    pub(crate) unmet: Vec<String>,
}

impl UnitState {
    /// Is its file loaded?
    pub(crate) fn is_loaded(&self) -> bool {
        self.load == "loaded"
    }

    /// Is it active, with no job pending?
    pub(crate) fn is_up(&self) -> bool {
        !self.has_job && self.active == "active"
    }

    /// Is it down, with no job pending?
    pub(crate) fn is_down(&self) -> bool {
        !self.has_job && matches!(self.active.as_str(), "inactive" | "failed")
    }

    /// Did it end successfully, as a `oneshot` service does?
    pub(crate) fn is_finished(&self) -> bool {
        !self.has_job && self.active == "inactive" && self.result == "success"
    }

    /// Did it fail, with no restart by systemd pending?
    pub(crate) fn has_failed(&self) -> bool {
        self.is_down() && !self.is_finished()
    }
}

impl fmt::Display for UnitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.active, self.sub)?;
        match self.result.as_str() {
            "" | "success" => Ok(()),
            result => write!(f, ", {result}"),
        }
    }
}

/// End of a service: properties `Result`, `ExecMainCode` (a `CLD_…` of wait) and `ExecMainStatus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceEnd {
    pub(crate) result: String,
    pub(crate) code: i32,
    pub(crate) status: i32,
}

/// Meaning of an end for an attempt with a missing outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The whole unit was ended for this reason: the attempt failed.
    Ended(String),
    /// Only this is known; the program's progress is unknown.
    Unknown(String),
}

impl ServiceEnd {
    /// Has systemd noticed the end?
    pub(crate) fn is_known(&self) -> bool {
        self.code != 0 || self.result != "success"
    }

    /// Text for people.
    pub(crate) fn text(&self) -> String {
        match (self.result.as_str(), self.code) {
            ("oom-kill", _) => "the kernel ended it: out of memory".to_owned(),
            ("timeout" | "watchdog", _) => "systemd ended it: its time was up".to_owned(),
            (_, libc::CLD_EXITED) => format!("its host ended with exit status {}", self.status),
            (_, libc::CLD_KILLED | libc::CLD_DUMPED) => match Signal::try_from(self.status) {
                Ok(signal) => format!("its host was killed by {signal}"),
                Err(_) => format!("its host was killed by signal {}", self.status),
            },
            (result, _) => format!("systemd says: {result}"),
        }
    }

    /// Meaning of this end.
    pub(crate) fn verdict(&self) -> Verdict {
        match self.result.as_str() {
            "oom-kill" | "timeout" | "watchdog" => Verdict::Ended(self.text()),
            _ => Verdict::Unknown(self.text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::model::{Generation, ItemName};
    use proptest::prelude::*;

    use super::*;

    fn attempt(item: &str, generation: u64, attempt: u32) -> AttemptKey {
        AttemptKey { item: ItemName::new(item).expect("a label"), generation: Generation(generation), attempt }
    }

    proptest! {
        #[test]
        fn every_attempt_has_a_unit_name_of_its_own(
            item in "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", generation: u64, number: u32,
        ) {
            let of = attempt(&item, generation, number);
            let name = name(&of);
            // systemd.unit(5): "a valid unit name".
            prop_assert!(name.len() <= 255);
            prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b)), "{}", name);
            prop_assert_eq!(key(&name), Ok(of));
        }
    }

    #[test]
    fn other_units_are_nobodys() {
        for bad in ["docker.service", "muster-item-.service", "muster-item-a-1.service", "muster-item-a-1-x.service"] {
            assert_eq!(key(bad), Err(InvalidKey), "{bad}");
        }
        assert_eq!(key("muster-item-a-1-2-3.service"), Ok(attempt("a-1", 2, 3)));
    }

    #[test]
    fn a_unit_is_told_what_it_needs_and_no_more() {
        let key = attempt("docker", 4, 2);
        let wanted = Wanted {
            key: &key,
            program: Path::new("/usr/bin/muster-agent"),
            args: ["exec-item".as_ref(), "/var/lib/x".as_ref()],
            stdout: Path::new("/var/lib/x/begun"),
            stderr: Path::new("/var/lib/x/stderr"),
            timeout: Duration::from_secs(60),
        };
        let properties: Vec<String> = wanted
            .properties("muster-agent.service")
            .iter()
            .map(|(name, value)| format!("{name}={}", **value))
            .collect();
        let expected = [
            r#"Description="Muster item docker, generation 4, attempt 2""#,
            r#"Before=["muster-agent.service"]"#,
            r#"Type="exec""#,
            r#"ExecStart=[("/usr/bin/muster-agent", ["/usr/bin/muster-agent", "exec-item", "/var/lib/x"], false)]"#,
            "RemainAfterExit=true",
            r#"KillMode="mixed""#,
            "TimeoutStopUSec=uint64 30000000",
            "RuntimeMaxUSec=uint64 180000000",
            r#"OOMPolicy="continue""#,
            r#"StandardInput="null""#,
            r#"StandardOutputFile="/var/lib/x/begun""#,
            r#"StandardErrorFile="/var/lib/x/stderr""#,
        ];
        assert_eq!(properties, expected);
        let endless = Wanted { timeout: Duration::MAX, ..wanted }.properties("a.service");
        assert!(endless.iter().any(|(name, value)| name == "RuntimeMaxUSec" && **value == Variant::from(u64::MAX)));
    }

    #[test]
    fn states_are_told_apart() {
        let state = |active: &str, has_job, result: &str| UnitState {
            load: "loaded".to_owned(),
            active: active.to_owned(),
            sub: "x".to_owned(),
            has_job,
            restarts: 0,
            result: result.to_owned(),
            unmet: Vec::new(),
        };
        for (active, has_job, result, [up, down, finished, failed]) in [
            ("active", false, "success", [true, false, false, false]),
            ("active", true, "success", [false, false, false, false]),
            ("activating", false, "exit-code", [false, false, false, false]),
            ("inactive", false, "success", [false, true, true, false]),
            ("inactive", true, "success", [false, false, false, false]),
            ("failed", false, "exit-code", [false, true, false, true]),
            ("inactive", false, "", [false, true, false, true]),
        ] {
            let state = state(active, has_job, result);
            let told = [state.is_up(), state.is_down(), state.is_finished(), state.has_failed()];
            assert_eq!(told, [up, down, finished, failed], "{state:?}");
        }
        assert_eq!(state("failed", false, "exit-code").to_string(), "failed (x), exit-code");
    }

    #[test]
    fn ends_are_told_apart() {
        let end = |result: &str, code, status| ServiceEnd { result: result.to_owned(), code, status };
        let ended = |text: &str| Verdict::Ended(text.to_owned());
        let unknown = |text: &str| Verdict::Unknown(text.to_owned());
        for (end, verdict) in [
            (end("oom-kill", libc::CLD_KILLED, 9), ended("the kernel ended it: out of memory")),
            (end("timeout", libc::CLD_KILLED, 9), ended("systemd ended it: its time was up")),
            (end("signal", libc::CLD_KILLED, 9), unknown("its host was killed by SIGKILL")),
            (end("core-dump", libc::CLD_DUMPED, 6), unknown("its host was killed by SIGABRT")),
            (end("signal", libc::CLD_KILLED, 40), unknown("its host was killed by signal 40")),
            (end("exit-code", libc::CLD_EXITED, 203), unknown("its host ended with exit status 203")),
            (end("resources", 0, 0), unknown("systemd says: resources")),
        ] {
            assert_eq!(end.verdict(), verdict, "{end:?}");
        }
    }
}
