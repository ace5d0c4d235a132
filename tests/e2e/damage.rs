//! The store is damaged, or replaced by an older copy: an acknowledged change is never undone silently.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use muster_coordinator::{
    facts::Facts,
    store::{EmbeddedStore, Row, Store, StoreError},
};
use muster_tests::fleet::{
    Fleet,
    manifest::{bash, named_cluster},
    programs::complain,
    wait_for,
};

const CLUSTER: &str = "edge";
/// Bits flipped while the coordinator is down: half in the newest commit's bytes, half anywhere.
const FLIPS: usize = 80;
/// Bits flipped while it runs; it is killed afterwards.
const FLIPS_UNDER_IT: usize = 20;
/// Older copies restored.
const ROLLBACKS: usize = 25;
/// Copies among them restored while the coordinator runs.
const ROLLBACKS_UNDER_IT: usize = 3;
/// A coordinator notices the loss of its store within this time.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

/// The two files of a store.
#[derive(Clone)]
struct Files {
    store: Vec<u8>,
    mark: Vec<u8>,
}

impl Files {
    fn of(fleet: &Fleet) -> Result<Self> {
        Ok(Self { store: fs::read(fleet.store())?, mark: fs::read(mark_of(&fleet.store()))? })
    }

    fn put(&self, at: &Path) -> Result<()> {
        fs::write(at, &self.store)?;
        Ok(fs::write(mark_of(at), &self.mark)?)
    }

    /// Rows that a coordinator reads from them at its start.
    fn rows(&self, scratch: &Path) -> Result<Result<Vec<Row>, StoreError>> {
        self.put(scratch)?;
        Ok(EmbeddedStore::open(scratch).and_then(|store| store.load()))
    }

    fn flipped(&self, at: usize, bit: usize) -> Self {
        let mut flipped = self.clone();
        flipped.store[at] ^= 1 << (bit % 8);
        flipped
    }
}

fn mark_of(store: &Path) -> PathBuf {
    store.with_extension("mark")
}

/// A coordinator with a cluster; its last change revokes an operator.
fn with_revoked_operator(name: &str) -> Result<(Fleet, Files)> {
    let fleet = Fleet::start(name, &[])?;
    let item = [bash("one", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&named_cluster(CLUSTER, (1, 0), &item, &[], &[]))?;
    let vera = ["--state-dir", "coordinator", "--role", "operator", "--name", "vera", "--out", "vera.toml"];
    fleet.coordinator_command(&[&["credentials"], &vera[..]].concat())?.ok()?;
    let before = Files::of(&fleet)?;
    fleet.ctl(&["revoke", "operator/vera"])?.exits(0)?;
    Ok((fleet, before))
}

fn annotate(fleet: &Fleet, n: usize) -> Result<bool> {
    let annotated = fleet.ctl(&["annotate", "cluster", CLUSTER, &format!("n={n}")])?;
    Ok(annotated.exits(0).is_ok())
}

/// Is the operator revoked, and what are the cluster's annotations?
fn known(rows: Vec<Row>) -> Result<(bool, BTreeMap<String, String>)> {
    let facts = Facts::load(rows)?;
    let vera = facts.credentials.get("operator/vera").context("the operator's row")?;
    let annotations = facts.clusters.get(CLUSTER).context("the cluster")?.annotations.clone();
    Ok((vera.revoked_at_ms.is_some(), annotations))
}

#[test]
fn flipped_bits_undo_nothing_silently() -> Result<()> {
    let (mut fleet, before) = with_revoked_operator("flips")?;
    let scratch = PathBuf::from(fleet.path("scratch"));
    fleet.kill_coordinator()?;
    let killed = Files::of(&fleet)?;
    let acknowledged = killed.rows(&scratch)??;
    let newest: Vec<usize> =
        (0..killed.store.len()).filter(|at| before.store.get(*at) != killed.store.get(*at)).collect();
    let spread = |places: usize, n: usize, of: usize| n * places / of;

    let (mut refused, mut harmless, mut damaging) = (0, 0, None);
    for n in 0..FLIPS {
        let half = FLIPS / 2;
        let at =
            if n < half { newest[spread(newest.len(), n, half)] } else { spread(killed.store.len(), n - half, half) };
        match killed.flipped(at, n).rows(&scratch)? {
            Ok(rows) if rows == acknowledged => harmless += 1,
            Ok(_) => bail!("the flip of bit {} in byte {at} undid something", n % 8),
            Err(error) => {
                ensure!(error.to_string().contains("muster-coordinator recover"), "it says what to do: {error}");
                damaging = Some((at, n));
                refused += 1;
            }
        }
    }
    // The program itself reports it, and refuses to start.
    let (at, n) = damaging.context("no flip was refused")?;
    killed.flipped(at, n).put(&fleet.store())?;
    let error = fleet.start_coordinator().err().context("it starts on a damaged commit")?.to_string();
    ensure!(error.contains("muster-coordinator recover"), "{error}");

    for n in 0..FLIPS_UNDER_IT {
        killed.put(&fleet.store())?;
        fleet.start_coordinator()?;
        let bytes = fs::read(fleet.store())?;
        let places = if n % 2 == 0 { newest.len() } else { bytes.len() };
        let at = spread(places, n, FLIPS_UNDER_IT);
        let at = if n % 2 == 0 { newest[at] } else { at };
        let store = fs::OpenOptions::new().write(true).open(fleet.store())?;
        store.write_all_at(&[bytes[at] ^ 1 << (n % 8)], at as u64)?;
        let annotated = annotate(&fleet, n)?;
        fleet.kill_coordinator()?;
        match Files::of(&fleet)?.rows(&scratch)? {
            Ok(rows) => {
                let (is_revoked, annotations) = known(rows)?;
                ensure!(is_revoked, "byte {at} under it: a revoked operator is back");
                ensure!(
                    !annotated || annotations.get("n") == Some(&n.to_string()),
                    "byte {at} under it: {annotations:?}"
                );
                harmless += 1;
            }
            Err(error) => {
                ensure!(error.to_string().contains("muster-coordinator recover"), "it says what to do: {error}");
                refused += 1;
            }
        }
    }
    complain(&format!("{} flips: {refused} refused, {harmless} harmless", FLIPS + FLIPS_UNDER_IT));
    ensure!(refused > 20 && harmless > 10, "{refused} refused, {harmless} harmless: too few to prove it");
    fleet.done()
}

#[test]
fn older_copies_are_refused_up_and_down() -> Result<()> {
    let (mut fleet, before) = with_revoked_operator("rollbacks")?;
    let mut copies = vec![before.store];
    for n in 1..ROLLBACKS {
        copies.push(fs::read(fleet.store())?);
        ensure!(annotate(&fleet, n)?, "annotated");
    }
    let not_the_newest =
        |error: &str| error.contains("was acknowledged") && error.contains("muster-coordinator recover");
    for copy in copies.iter().rev().take(ROLLBACKS_UNDER_IT) {
        fs::hard_link(fleet.store(), fleet.path("newest"))?;
        fs::write(fleet.path("older"), copy)?;
        fs::rename(fleet.path("older"), fleet.store())?;
        let since = Instant::now();
        let pid = fleet.coordinator_pid()?;
        wait_for("the end of a coordinator whose store is gone", NOTICED_WITHIN + Duration::from_secs(5), || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let ended = stat.is_empty() || stat.contains(") Z ");
            Ok(ended.then_some(()))
        })?;
        ensure!(since.elapsed() < NOTICED_WITHIN, "noticed after {:?}", since.elapsed());
        ensure!(fleet.log("coordinator").contains("was moved, removed or replaced"), "it says why it ended");
        let error = fleet.start_coordinator().err().context("it starts on an older copy")?.to_string();
        ensure!(not_the_newest(&error), "{error}");
        fs::rename(fleet.path("newest"), fleet.store())?;
        fleet.start_coordinator()?;
    }
    fleet.kill_coordinator()?;
    let newest = Files::of(&fleet)?;
    let scratch = PathBuf::from(fleet.path("scratch"));
    for (n, copy) in copies.iter().enumerate() {
        match (Files { store: copy.clone(), mark: newest.mark.clone() }).rows(&scratch)? {
            Ok(_) => bail!("copy {n} is taken for the newest"),
            Err(error) => ensure!(not_the_newest(&error.to_string()), "copy {n}: {error}"),
        }
    }
    // The advised command repairs it.
    fs::write(fleet.store(), &copies[ROLLBACKS / 2])?;
    fleet.coordinator_command(&["recover", "--state-dir", "coordinator"])?.ok()?;
    fleet.start_coordinator()?;
    ensure!(annotate(&fleet, 99)?, "it goes on from the copy");
    fleet.kill_coordinator()?;
    fleet.start_coordinator()?;
    fleet.done()
}
