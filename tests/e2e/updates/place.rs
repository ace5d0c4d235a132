//! The demo's fleet for tests: deployed, with a second release and a toy controller.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use muster_tests::fleet::{
    TIME_LIMIT, processes,
    programs::{self, Programs, Ran},
    wait_for,
};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tempfile::TempDir;

/// A directory for one fleet; drop ends its processes.
pub(super) struct Place(TempDir);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = processes::end_all(self.dir()); // the test has said already what was wrong
    }
}

impl Place {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(tempfile::Builder::new().prefix("muster-e2e-update-").tempdir()?))
    }

    pub(super) fn dir(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn demo(&self, words: &[&str]) -> Result<Ran> {
        programs::run(Command::new(Programs::find()?.musterctl).args(["demo", "--dir"]).arg(self.dir()).args(words))
    }

    pub(super) fn ctl(&self, words: &[&str]) -> Result<Ran> {
        let config = self.dir().join("operator.toml");
        programs::run(Command::new(Programs::find()?.musterctl).arg("--config").arg(config).args(words))
    }

    /// As `ctl`, in the background; its output goes to this file.
    pub(super) fn start_ctl(&self, words: &[&str], said: &Path) -> Result<Child> {
        let config = self.dir().join("operator.toml");
        let said = fs::File::create(said)?;
        let mut command = Command::new(Programs::find()?.musterctl);
        command.arg("--config").arg(config).args(words).stdin(Stdio::null());
        Ok(command.stdout(said.try_clone()?).stderr(said).spawn()?)
    }

    /// Creates its controller's credentials in `controller.toml`, which must not exist.
    pub(super) fn credentials(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(Programs::find()?.coordinator);
        command.args(["credentials", "--role", "controller", "--name", "toy"]).args(words);
        command.arg("--state-dir").arg(self.dir().join("coordinator"));
        command.arg("--key-file").arg(self.dir().join("coordinator.key"));
        programs::run(command.arg("--out").arg(self.dir().join("controller.toml")))?.exits(0)?;
        Ok(())
    }

    /// Starts a toy controller of these machines.
    pub(super) fn controller(&self, machines: &str, words: &[&str]) -> Result<Child> {
        let config = self.dir().join("controller.toml");
        let mut command = Command::new(Programs::find()?.musterctl);
        command.args(["demo", "toy-controller", "--config"]).arg(config);
        command.args(["--cluster", "demo", "--machines", machines]);
        command.arg("--effects").arg(self.dir().join("effects.log")).args(words);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // An update may take unguarded machines at once.
        let guarded = wait_for("the controller's locks", TIME_LIMIT, || {
            let locks = self.ctl(&["get", "locks"])?.ok()?;
            Ok(machines.split(',').all(|machine| locks.contains(&format!("toy-{machine} "))).then_some(()))
        });
        if guarded.is_err() {
            child.kill()?;
            child.wait()?;
        }
        guarded.map(|()| child)
    }

    /// One text field of every document of a kind.
    pub(super) fn items(&self, kind: &str, pointer: &str) -> Result<Vec<String>> {
        let documents: serde_json::Value = serde_json::from_str(&self.ctl(&["get", kind, "-o", "json"])?.ok()?)?;
        let items = documents["items"].as_array().context("a list")?;
        let text = |item: &serde_json::Value| item.pointer(pointer).and_then(|text| text.as_str()).map(str::to_owned);
        items.iter().map(|item| text(item).with_context(|| format!("{pointer} in {item}"))).collect()
    }

    /// Machines out of service together, each time that another went, by the controller's own actions: between
    /// `lock-inactive` and `request-gone`.
    pub(super) fn away(&self) -> Result<Vec<Vec<String>>> {
        let (mut now, mut all) = (Vec::new(), Vec::new());
        for line in self.lines()? {
            match line.split_once(' ') {
                Some((machine, "lock-inactive")) => {
                    now.push(machine.to_owned());
                    all.push(now.clone());
                }
                Some((machine, "request-gone")) => now.retain(|away| away != machine),
                _ => {}
            }
        }
        Ok(all)
    }

    /// Complete lines of effects.log, less their times.
    pub(super) fn lines(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(self.dir().join("effects.log"))?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        Ok(whole.lines().filter_map(|line| Some(line.split_once(' ')?.1.to_owned())).collect())
    }

    /// Kills the coordinator (SIGKILL), and starts another with the same arguments.
    pub(super) fn kill_coordinator(&self) -> Result<()> {
        let coordinator = Programs::find()?.coordinator;
        let of_it = |pid: &Pid| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == coordinator);
        let pid = processes::of_dir(self.dir())?.into_iter().find(of_it).context("a coordinator runs")?;
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
        let words: Vec<&str> = words.split_terminator('\0').skip(1).collect();
        kill(pid, Signal::SIGKILL)?;
        // Wait for the end of all its threads, or the next one would find its store in use. A child of this test must
        // be reaped; any other process has another parent.
        let gone = || match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => Ok(None),
            Ok(_) => Ok(Some(())),
            Err(_) => Ok((!Path::new(&format!("/proc/{pid}")).exists()).then_some(())),
        };
        wait_for("the end of the coordinator", TIME_LIMIT, gone)?;
        let mut command = Command::new(&coordinator);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(())
    }

    /// Words of effects.log by machine, in order: the controller's actions, and `items` where the update's items ran.
    pub(super) fn stories(&self) -> Result<BTreeMap<String, Vec<String>>> {
        let mut stories: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in fs::read_to_string(self.dir().join("effects.log"))?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (machine, word) = match words[..] {
                [_, machine, step] => (machine, step),
                [_, machine, _, _, _, _, "2"] => (machine, "items"),
                _ => continue,
            };
            let story = stories.entry(machine.to_owned()).or_default();
            if story.last().is_none_or(|last| last != word) {
                story.push(word.to_owned());
            }
        }
        Ok(stories)
    }
}

/// Applies the next release of the demo's manifest, with this deadline for locks, and items that take this many
/// seconds.
pub(super) fn second_release(place: &Place, width: u32, (locks_after, seconds): (&str, &str)) -> Result<()> {
    apply(place, &next_manifest(place, width, (locks_after, seconds))?)
}

/// The same, with items that fail on a machine with a file `fail-MACHINE`, and are not retried.
pub(super) fn failing_release(place: &Place, width: u32) -> Result<()> {
    let fails =
        format!("effect start\n            [ ! -e {}/fail-$MUSTER_MACHINE ] || exit 7\n", place.dir().display());
    let text = next_manifest(place, width, ("60s", "0.1"))?;
    let text = text.replace("effect start\n", &fails).replace("phase: deploy\n", "phase: deploy\n        retries: 0\n");
    apply(place, &text)
}

fn next_manifest(place: &Place, width: u32, (locks_after, seconds): (&str, &str)) -> Result<String> {
    let text = fs::read_to_string(place.dir().join("manifest.yaml"))?;
    let text = text.replace("seconds: \"0.1\"", &format!("seconds: \"{seconds}\""));
    let settings = format!(
        "release: \"2.0\"\n  maxWorkerUpgradeCount: {width}\n  workloadControllers: [toy]\n  updateDeadlines:\n    \
         nodeLocks: {{after: {locks_after}}}\n"
    );
    let text = text.replace("release: \"1.0\"\n", &settings);
    let text = text.replace(
        "        version: \"1\"\n        phase: deploy\n        params:\n",
        "        version: \"2\"\n        phase: deploy\n        params:\n          release: \"2\"\n",
    );
    if !text.contains("release: \"2\"") {
        bail!("the demo's manifest looks otherwise:\n{text}");
    }
    Ok(text)
}

fn apply(place: &Place, manifest: &str) -> Result<()> {
    let path = place.dir().join("manifest-2.yaml");
    fs::write(&path, manifest)?;
    place.ctl(&["apply", "-f", path.to_str().context("text")?])?.ok().map(drop)
}

/// A deployed fleet of 3 and this many workers, and credentials for its controller.
pub(super) fn deployed(workers: &str) -> Result<Place> {
    let place = Place::new()?;
    place.demo(&["--keep", "--workers", workers, "--seconds-per-item", "0.1", "--artifact-mib", "1"])?.exits(0)?;
    place.credentials(&[])?;
    Ok(place)
}
