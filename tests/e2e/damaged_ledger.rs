//! An agent's ledger is damaged and restored in every way: each is refused or harmless, and no item runs twice.

use muster_proto::model::Reason;
use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use muster_tests::{
    fleet::{Fleet, TIME_LIMIT, manifest::bash, manifest::cluster, wait_for},
    rng::Rng,
};

const ITEMS: usize = 8;
const FLIPS: usize = 100;
const ROLLBACKS: usize = 26;

/// A machine that has completed all its items, with copies of its disk.
struct Site {
    fleet: Fleet,
    machine: String,
    ledger: PathBuf,
    attempts: PathBuf,
    sound: Vec<u8>,
}

impl Site {
    fn deployed(name: &str) -> Result<Self> {
        let mut fleet = Fleet::start(name, &[])?;
        let effects = fleet.effects_log();
        let items: Vec<_> = (0..ITEMS).map(|n| bash(&format!("i{n}"), "deploy", &effects, ":", &[])).collect();
        fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
        let machine = fleet.add_machines(1, 0)?.remove(0);
        fleet.wait_ready(1)?;
        fleet.kill_agent(&machine)?;
        let dir = fleet.agent_dir(&machine);
        let (ledger, attempts) = (dir.join("ledger.log"), dir.join("attempts"));
        copy(&attempts, &PathBuf::from(fleet.path("attempts")))?;
        fs::copy(dir.join("ledger.mark"), fleet.path("mark"))?;
        let sound = fs::read(&ledger)?;
        Ok(Self { fleet, machine, ledger, attempts, sound })
    }

    /// Restores the state after completion, except the ledger, and the attempts if they are to be missing. No agent
    /// runs.
    fn put_back(&self, ledger: &[u8], attempts_kept: bool) -> Result<()> {
        fs::write(&self.ledger, ledger)?;
        fs::copy(self.fleet.path("mark"), self.fleet.agent_dir(&self.machine).join("ledger.mark"))?;
        // Status files of the previous agent, which was killed.
        for left in ["blocked.json", "attempts"] {
            let left = self.fleet.agent_dir(&self.machine).join(left);
            if left.is_dir() {
                fs::remove_dir_all(&left)?;
            } else if left.exists() {
                fs::remove_file(&left)?;
            }
        }
        if attempts_kept {
            copy(&PathBuf::from(self.fleet.path("attempts")), &self.attempts)?;
        }
        Ok(())
    }

    /// Each item has run exactly once.
    fn ran_once(&self) -> Result<()> {
        let effects = self.fleet.effects()?.len();
        ensure!(effects == 2 * ITEMS, "{effects} effects, not {}: something ran twice", 2 * ITEMS);
        Ok(())
    }
}

fn copy(from: &PathBuf, to: &PathBuf) -> Result<()> {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status()?;
    ensure!(copied.success(), "cp: {copied}");
    Ok(())
}

#[test]
fn flipped_ledger_is_refused() -> Result<()> {
    let mut site = Site::deployed("flips")?;
    let mut dice = Rng::new(34);
    let machine = site.machine.clone();
    for flip in 0..FLIPS {
        let (agent_up, attempts_kept) = (flip % 2 == 0, flip % 4 < 2);
        let mut damaged = site.sound.clone();
        let at = usize::try_from(dice.between(0, damaged.len() as u64 - 1))?;
        let bit = dice.between(0, 7);
        *damaged.get_mut(at).context("a byte")? ^= 1 << bit;
        let what = format!("bit {bit} of byte {at}, agent up: {agent_up}, attempts kept: {attempts_kept}");
        site.put_back(if agent_up { &site.sound } else { &damaged }, attempts_kept)?;
        if agent_up {
            // In place, while the agent has the file open.
            site.fleet.start_agent(&machine)?;
            wait_for("the agent's lock", TIME_LIMIT, || {
                Ok(site.fleet.agent_status(&machine)?.out.contains("\"running\": true").then_some(()))
            })?;
            let byte = [damaged[at]];
            let file = fs::OpenOptions::new().write(true).open(&site.ledger)?;
            std::os::unix::fs::FileExt::write_all_at(&file, &byte, at as u64)?;
            site.fleet.kill_agent(&machine)?;
        }
        let refused = site.fleet.agent_command(&machine, &["run"])?;
        ensure!(refused.code == Some(1) && refused.err.contains("LedgerCorrupt"), "{what}: {refused:?}");
        ensure!(refused.err.contains("muster-agent ledger reset --keep-identity"), "{what}: {refused:?}");
        site.ran_once()?;
    }
    site.put_back(&site.sound, true)?;
    site.fleet.start_agent(&machine)?;
    site.fleet.wait_ready(1)?;
    site.ran_once()?;
    site.fleet.done()
}

#[test]
fn ledger_put_back_is_noticed() -> Result<()> {
    let mut site = Site::deployed("rollbacks")?;
    let machine = site.machine.clone();
    let ends: Vec<usize> =
        site.sound.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
    // A copy that lacks only acknowledgements, and no event, counts as complete.
    let newest = site.fleet.ledger(&machine)?.context("a ledger")?.last_seq;
    let whole = site.sound.len();
    let mut older = Vec::new();
    for end in ends {
        fs::write(&site.ledger, &site.sound[..end])?;
        older.extend((site.fleet.ledger(&machine)?.context("a ledger")?.last_seq < newest).then_some(end));
    }
    ensure!(older.len() > ITEMS, "{} lines", older.len());
    let mut dice = Rng::new(34);
    for rollback in 0..ROLLBACKS {
        let (coordinator_up, attempts_kept) = (rollback % 2 == 0, rollback % 4 < 2);
        let end = *dice.pick(&older).context("a line")?;
        let what = format!("cut at {end} of {whole}, coordinator up: {coordinator_up}, attempts kept: {attempts_kept}");
        site.put_back(&site.sound[..end], attempts_kept)?;
        if !coordinator_up {
            site.fleet.stop_coordinator()?;
        }
        site.fleet.start_agent(&machine)?;
        wait_for(&what, TIME_LIMIT, || {
            let status = site.fleet.agent_status(&machine)?.out;
            Ok(status.contains("LedgerBehind").then_some(()))
        })?;
        if coordinator_up {
            let says = |machine: &muster_proto::resource::Machine| {
                machine.status.blocked.as_ref().is_some_and(|since| since.blocked.reason == Reason::LedgerBehind)
            };
            site.fleet.wait_machine(&machine, &what, says)?;
        } else {
            site.fleet.start_coordinator()?;
        }
        site.fleet.kill_agent(&machine)?;
        site.ran_once().context(what)?;
    }
    site.put_back(&site.sound, true)?;
    site.fleet.start_agent(&machine)?;
    site.fleet.wait_machine(&machine, "no reason to wait", |machine| {
        machine.status.connected && machine.status.blocked.is_none()
    })?;
    site.ran_once()?;
    site.fleet.done()
}
