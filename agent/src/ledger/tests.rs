//! The ledger under crashes at every step, torn tails, damage, and resets.

mod bytes;

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};

use muster_proto::model::{
    AckProof, Assignment, AuthCode, ClusterName, Epoch, Generation, ItemHash, ItemName, ItemState, ItemStatus,
    LedgerId, MachineId, Seq,
};
use uuid::Uuid;

use super::{disk::Disk, *};
use crate::{
    attempt::{Found, Trace},
    core::{LedgerState, Record},
};

const MACHINE: MachineId = MachineId(Uuid::from_u128(2));

fn fresh() -> LedgerState {
    LedgerState::new(LedgerId(Uuid::from_u128(1)), MACHINE)
}

fn status(name: &str, state: ItemState, attempt: u32, tail: usize) -> Arc<ItemStatus> {
    let finished_at_ms = (state != ItemState::Running).then_some(9);
    Arc::new(ItemStatus {
        name: ItemName::new(name).expect("a label"),
        hash: ItemHash([7; 32]),
        state,
        attempt,
        generation: Generation(1),
        message: String::new(),
        output_tail: "x".repeat(tail),
        result_json: None,
        started_at_ms: 1,
        finished_at_ms,
    })
}

fn started(seq: u64, name: &str, attempt: u32) -> Record {
    Record::Started { seq: Seq(seq), boot_id: "b".to_owned(), status: status(name, ItemState::Running, attempt, 0) }
}

fn finished(seq: u64, name: &str, attempt: u32, tail: usize) -> Record {
    Record::Finished { seq: Seq(seq), status: status(name, ItemState::Succeeded, attempt, tail) }
}

fn accepted(generation: u64, names: &[&str]) -> Record {
    let item = |name: &&str| crate::core::tests::item(name, "1");
    Record::Accepted(Arc::new(Assignment {
        epoch: Epoch(1),
        generation: Generation(generation),
        cluster: ClusterName::new("c").expect("a label"),
        items: names.iter().map(item).collect(),
        variables: BTreeMap::new(),
        digest: ItemHash([1; 32]),
        code: AuthCode::NONE,
    }))
}

/// A disk in memory that tracks durability and can crash at its n-th operation.
#[derive(Clone, Debug, Default)]
struct FakeDisk {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    operations: usize,
    kill_at: Option<usize>,
    full: Option<io::ErrorKind>,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    content: Vec<u8>,
    durable: Vec<u8>,
}

/// Effect of a power cut on unsynced data.
#[derive(Clone, Copy, Debug)]
enum Cut {
    LosesAll,
    KeepsHalf,
    KeepsAll,
}

impl FakeDisk {
    fn inode(&mut self, name: &str) -> &mut Inode {
        let at = *self.names.entry(name.to_owned()).or_insert_with(|| {
            self.inodes.push(Inode::default());
            self.inodes.len() - 1
        });
        &mut self.inodes[at]
    }

    fn operate(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.kill_at == Some(self.operations) { Err(io::Error::other("killed")) } else { Ok(()) }
    }

    fn after(mut self, cut: Cut) -> Self {
        if !matches!(cut, Cut::KeepsAll) {
            self.names.clone_from(&self.durable_names);
        }
        for inode in &mut self.inodes {
            let synced = inode.durable.len();
            let appended = inode.content.starts_with(&inode.durable);
            match cut {
                Cut::KeepsAll => {}
                Cut::KeepsHalf if appended => inode.content.truncate(synced + (inode.content.len() - synced) / 2),
                Cut::KeepsHalf | Cut::LosesAll => inode.content.clone_from(&inode.durable),
            }
            inode.durable.clone_from(&inode.content);
        }
        Self { durable_names: self.names.clone(), operations: 0, kill_at: None, ..self }
    }

    fn content(&self, name: &str) -> Vec<u8> {
        self.names.get(name).map(|at| self.inodes[*at].content.clone()).unwrap_or_default()
    }

    fn with(name: &str, content: &[u8]) -> Self {
        let mut disk = Self::default();
        disk.inode(name).content = content.to_vec();
        disk.after(Cut::KeepsAll)
    }
}

impl Disk for FakeDisk {
    fn read(&mut self, name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.names.get(name).map(|at| self.inodes[*at].content.clone()))
    }
    fn truncate(&mut self, name: &str, bytes: u64) -> io::Result<()> {
        self.operate()?;
        self.inode(name).content.truncate(usize::try_from(bytes).expect("small"));
        Ok(())
    }
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        if let Some(why) = self.full {
            // A prefix is written.
            self.inode(name).content.extend(&bytes[..bytes.len() / 2]);
            return Err(why.into());
        }
        let killed = self.operate();
        let written = if killed.is_err() { bytes.len() / 2 } else { bytes.len() };
        self.inode(name).content.extend(&bytes[..written]);
        killed
    }
    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.operate()?;
        let inode = self.inode(name);
        inode.durable.clone_from(&inode.content);
        Ok(())
    }
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.operate()?;
        let at = self.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        self.names.insert(to.to_owned(), at);
        Ok(())
    }
    fn sync_dir(&mut self) -> io::Result<()> {
        self.operate()?;
        self.durable_names.clone_from(&self.names);
        Ok(())
    }
    fn reserve(&mut self, _: &str, _: u64) -> io::Result<bool> {
        Ok(self.full.is_none())
    }
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }
}

/// A long history: many attempts with much output, acknowledged in between, so that the log is compacted twice.
fn life() -> Vec<Vec<Record>> {
    let mut batches = vec![vec![Record::EpochSeen(Epoch(1), AuthCode::NONE), accepted(1, &["a"])]];
    for attempt in 1..=20_u32 {
        let seq = u64::from(attempt) * 2;
        batches.push(vec![started(seq - 1, "a", attempt)]);
        batches.push(vec![finished(seq, "a", attempt, 32 * 1024)]);
        batches.push(vec![Record::Acked(Seq(seq - 1), AckProof::NONE)]);
        batches.push(vec![Record::Acked(Seq(seq), AckProof::NONE)]);
    }
    batches
}

/// Continues from `state`, the result of the first `from` batches; returns how many batches are certainly done.
fn live(ledger: &mut Ledger<FakeDisk>, states: &[LedgerState], from: usize, batches: &[Vec<Record>]) -> usize {
    let mut certain = from;
    for (at, batch) in batches.iter().enumerate().skip(from) {
        if ledger.append(batch).is_err() {
            return certain;
        }
        if !ledger.has_lazy() {
            certain = at + 1;
        }
        if ledger.compact(&states[at + 1]).is_err() {
            return certain;
        }
    }
    certain
}

fn states(batches: &[Vec<Record>]) -> Vec<LedgerState> {
    let mut states = vec![fresh()];
    for batch in batches {
        let mut next = states.last().expect("one").clone();
        batch.iter().for_each(|record| next.apply_read(record).expect("a sound life"));
        states.push(next);
    }
    states
}

#[test]
fn a_kill_at_any_step_loses_nothing_that_was_acknowledged() {
    let batches = life();
    let states = states(&batches);
    let (mut ledger, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    live(&mut ledger, &states, 0, &batches);
    let operations = ledger.disk.operations;
    let compacted = ledger.disk.content(LOG).len() < 600 * 1024 / 2;
    assert!(operations > 80 && compacted, "{operations}");
    for kill_at in 1..=operations {
        for cut in [Cut::LosesAll, Cut::KeepsHalf, Cut::KeepsAll] {
            let disk = FakeDisk { kill_at: Some(kill_at), ..FakeDisk::default() };
            let (certain, disk) = match Ledger::open(disk.clone(), fresh()) {
                Ok((mut ledger, _)) => (live(&mut ledger, &states, 0, &batches), ledger.disk),
                Err(_) => (0, FakeDisk::default()), // the fake went with the error; nothing was acknowledged
            };
            let (mut ledger, state) = Ledger::open(disk.after(cut), fresh()).expect("opened again");
            let at = states.iter().position(|known| *known == state);
            let at = at.unwrap_or_else(|| panic!("{kill_at} {cut:?}: a state that never was"));
            assert!(at >= certain, "{kill_at} {cut:?}: {certain} batches were acknowledged, {at} are there");
            live(&mut ledger, &states, at, &batches);
            ledger.flush().expect("flushed");
            assert_eq!(read(&mut ledger.disk).ok().flatten().as_ref(), states.last(), "{kill_at} {cut:?}");
        }
    }
}

#[test]
fn an_acknowledgement_is_put_off_and_joined() {
    let (mut ledger, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    ledger.append(&[started(1, "a", 1), finished(2, "a", 1, 0)]).expect("appended");
    let before = ledger.disk.operations;
    ledger.append(&[Record::Acked(Seq(1), AckProof::NONE)]).expect("appended");
    ledger.append(&[Record::Acked(Seq(2), AckProof::NONE)]).expect("appended");
    assert_eq!((ledger.disk.operations, ledger.has_lazy()), (before, true));
    ledger.flush().expect("flushed");
    assert!(!ledger.has_lazy());
    let text = String::from_utf8(ledger.disk.content(LOG)).expect("text");
    let last = text.lines().last().expect("a line");
    let record = serde_json::to_string(&[Record::Acked(Seq(2), AckProof::NONE)]).expect("JSON");
    assert!(last.ends_with(&format!(" {record}")), "{last}");
}

#[test]
fn a_torn_tail_is_cut_and_damage_is_an_error() {
    let (mut ledger, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    ledger.append(&[started(1, "a", 1)]).expect("appended");
    ledger.append(&[finished(2, "a", 1, 0)]).expect("appended");
    let sound = ledger.disk.content(LOG);
    let ends: Vec<usize> = (0..sound.len()).filter(|at| sound[*at] == b'\n').collect();
    let open = |bytes: &[u8]| Ledger::open(FakeDisk::with(LOG, bytes), fresh()).map(|(_, state)| state.last_seq.0);

    for length in ends[1] + 1..sound.len() {
        assert_eq!(open(&sound[..length]).ok(), Some(1), "torn at {length}");
    }
    // The file has grown, but its last block is unwritten.
    let end = sound.len() - 1;
    assert_eq!(open(&[&sound[..end], b"\0"].concat()).ok(), Some(1), "a zero where the end was to be");
    assert_eq!(open(&[&sound[..], b"\0"].concat()).ok(), Some(2), "a zero behind the end");
    for at in 0..sound.len() {
        let line = 1 + ends.iter().filter(|end| **end < at).count();
        for bit in 0..8 {
            let mut damaged = sound.clone();
            damaged[at] ^= 1 << bit;
            match open(&damaged) {
                Ok(seq) => panic!("bit {bit} of byte {at} of line {line}: {seq} was read"),
                Err(LedgerError::Corrupt { line: said, .. }) => assert_eq!(said, line, "bit {bit} of byte {at}"),
                Err(other) => panic!("bit {bit} of byte {at}: {other}"),
            }
        }
    }
    let mut two = sound.clone();
    two[ends[0] + 20] ^= 0x10;
    two[ends[1] + 20] ^= 0x10;
    assert!(matches!(open(&two), Err(LedgerError::Corrupt { line: 2, .. })), "two damaged lines are not one torn one");
    let json = br#"[{"of-the-future":1}]"#;
    let newer = line_of_json(&sound, json);
    match open(&[&sound[..], &newer].concat()) {
        Err(LedgerError::Corrupt { line: 4, problem, .. }) => assert!(problem.contains("install"), "{problem}"),
        other => panic!("a newer agent's record, written whole: {other:?}"),
    }
    let mut lines: Vec<&[u8]> = sound.split_inclusive(|byte| *byte == b'\n').collect();
    let missing = [lines[0], lines[2]].concat();
    assert!(matches!(open(&missing), Err(LedgerError::Corrupt { line: 2, .. })), "a line that is gone");
    assert_eq!(open(&[lines[0], lines[1]].concat()).ok(), Some(1), "the last one: what lies beside it tells");
    lines.swap(1, 2);
    assert!(matches!(open(&lines.concat()), Err(LedgerError::Corrupt { line: 2, .. })), "lines out of order");
    assert!(matches!(open(b""), Err(LedgerError::Corrupt { line: 1, .. })), "emptied by somebody");
    assert!(matches!(open(b"hello\n"), Err(LedgerError::Corrupt { line: 1, .. })));

    let error = open(b"").expect_err("corrupt").to_string();
    for part in ["LedgerCorrupt", LOG, "line 1", "muster-agent ledger reset --keep-identity"] {
        assert!(error.contains(part), "{error}");
    }
}

/// The line with this JSON after a valid log.
fn line_of_json(log: &[u8], json: &[u8]) -> Vec<u8> {
    let all: Vec<u8> =
        log.split(|byte| *byte == b'\n').flat_map(|line| line.get(9..).unwrap_or_default()).copied().collect();
    format!("{:08x} {}\n", crc32fast::hash(&[&all, json].concat()), String::from_utf8_lossy(json)).into_bytes()
}

/// Later records are independent of the missing ones: only the checksum of the next line reveals the gap.
#[test]
fn whole_line_taken_out_is_missed() {
    let batches: Vec<_> = life().into_iter().take(200).collect();
    let states = states(&batches);
    let (mut ledger, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    for (at, batch) in batches.iter().enumerate() {
        ledger.append(batch).expect("appended");
        ledger.compact(&states[at + 1]).expect("compacted");
    }
    ledger.append(&[Record::EpochSeen(Epoch(80), AuthCode::NONE)]).expect("appended");
    ledger.append(&[Record::EpochSeen(Epoch(81), AuthCode::NONE)]).expect("appended");
    let sound = ledger.disk.content(LOG);
    let lines: Vec<&[u8]> = sound.split_inclusive(|byte| *byte == b'\n').collect();
    assert!(lines.len() > 10, "{}", lines.len());
    for gone in 0..lines.len() - 1 {
        let rest = [&lines[..gone], &lines[gone + 1..]].concat().concat();
        let found = Ledger::open(FakeDisk::with(LOG, &rest), fresh()).map(|(_, state)| state.last_seq);
        assert!(matches!(found, Err(LedgerError::Corrupt { line, .. }) if line == gone + 1), "{gone}: {found:?}");
    }
    // A piece of an older log of the same machine is rejected too.
    let (mut other, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    batches.iter().take(3).for_each(|batch| other.append(batch).expect("appended"));
    let foreign = other.disk.content(LOG);
    let foreign = foreign.split_inclusive(|byte| *byte == b'\n').next_back().expect("a line");
    assert!(Ledger::open(FakeDisk::with(LOG, &[&sound, foreign].concat()), fresh()).is_err());
}

#[test]
fn what_follows_a_torn_tail_is_sound() {
    let (mut ledger, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    ledger.append(&[started(1, "a", 1)]).expect("appended");
    let mut torn = ledger.disk.content(LOG);
    torn.extend(b"0123abcd [{\"fini");
    let (mut ledger, _) = Ledger::open(FakeDisk::with(LOG, &torn), fresh()).expect("opened");
    ledger.append(&[finished(2, "a", 1, 0)]).expect("appended");
    assert_eq!(read(&mut ledger.disk).ok().flatten().map(|state| state.last_seq), Some(Seq(2)));
}

#[test]
fn a_full_disk_puts_compaction_off() {
    let (mut ledger, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    let batches: Vec<_> = life().into_iter().take(60).collect();
    let states = states(&batches);
    for batch in &batches {
        ledger.append(batch).expect("appended");
    }
    let long = ledger.disk.content(LOG).len();
    for why in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
        let mut ledger = Ledger { disk: ledger.disk.clone(), lazy: Vec::new(), ..ledger };
        ledger.disk.full = Some(why);
        assert_eq!(ledger.reserve().ok(), Some(false));
        ledger.compact(&states[60]).expect("no error");
        assert_eq!((ledger.disk.content(LOG).len(), ledger.disk.content(NEXT).len()), (long, 0), "{why}");
    }
}

#[test]
fn the_ledger_of_another_machine_is_kept_aside() {
    let (mut ledger, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    ledger.append(&[accepted(7, &["a"])]).expect("appended");
    let old = ledger.disk.content(LOG);
    let other = LedgerState::new(LedgerId(Uuid::from_u128(8)), MachineId(Uuid::from_u128(9)));
    let (ledger, state) = Ledger::open(ledger.disk, other.clone()).expect("opened");
    assert_eq!(state, other);
    assert_eq!(ledger.disk.content(&format!("{LOG}.{MACHINE}")), old);
}

#[test]
fn a_reset_keeps_what_can_be_read_and_guesses_nothing() {
    let id = LedgerId(Uuid::from_u128(77));
    let (mut ledger, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    let item = |name: &str| crate::core::tests::item(name, "1");
    let of = |record: Record, name: &str| match record {
        Record::Started { seq, boot_id, status } => {
            let status = Arc::new(ItemStatus { hash: item(name).hash, ..ItemStatus::clone(&status) });
            Record::Started { seq, boot_id, status }
        }
        Record::Finished { seq, status } => {
            let status = Arc::new(ItemStatus { hash: item(name).hash, ..ItemStatus::clone(&status) });
            Record::Finished { seq, status }
        }
        other => other,
    };
    let names = ["done", "acked", "runs", "next"];
    for batch in [
        vec![Record::EpochSeen(Epoch(4), AuthCode::NONE), accepted(3, &names)],
        vec![of(started(1, "acked", 1), "acked"), of(finished(2, "acked", 1, 0), "acked")],
        vec![
            Record::Acked(Seq(2), AckProof::NONE),
            of(started(3, "done", 1), "done"),
            of(finished(4, "done", 1, 0), "done"),
        ],
        vec![of(started(5, "runs", 2), "runs")],
    ] {
        ledger.append(&batch).expect("appended");
    }
    let sound = ledger.disk.content(LOG);
    let check = |bytes: &[u8], indeterminate: &[&str], events: &[&str]| {
        let mut disk = FakeDisk::with(LOG, bytes);
        let outcome = reset(&mut disk, (id, MACHINE), &[], 5_000).expect("reset");
        let named: Vec<&str> = outcome.indeterminate.iter().map(ItemName::as_str).collect();
        assert_eq!(named, indeterminate);
        assert_eq!(disk.content(&format!("{LOG}.5000")), bytes);
        let (_, state) = Ledger::open(disk, fresh()).expect("opened");
        assert_eq!((state.ledger_id, state.epoch, state.generation()), (id, Epoch(4), Generation(3)));
        let of_events: Vec<&str> = state.outbox.values().map(|status| status.name.as_str()).collect();
        assert_eq!(of_events, events);
        assert_eq!(state.last_seq.0, events.len() as u64);
        for (name, slot) in &state.slots {
            let unsure = indeterminate.contains(&name.as_str());
            assert_eq!(slot.status.state == ItemState::Indeterminate, unsure, "{name}");
            assert!(!slot.is_running(), "{name}");
        }
    };
    // Undamaged: only items that ran are uncertain.
    check(&sound, &["runs"], &["done", "runs"]);
    // A damaged line may have held the start of any item, except those known to be done.
    let mut lines: Vec<Vec<u8>> = sound.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    lines[2][20] ^= 1;
    check(&lines.concat(), &["runs", "acked", "next"], &["done", "runs", "acked", "next"]);
}

#[test]
fn reset_takes_over_what_attempts_prove() {
    let (mut ledger, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    ledger
        .append(&[Record::EpochSeen(Epoch(1), AuthCode::NONE), accepted(1, &["a", "b", "c", "d"])])
        .expect("appended");
    let hash = |item| crate::core::tests::item(item, "1").hash;
    let Record::Started { seq, boot_id, status } = started(1, "a", 1) else { panic!("a start") };
    let status = Arc::new(ItemStatus { hash: hash("a"), ..ItemStatus::clone(&status) });
    ledger.append(&[Record::Started { seq, boot_id, status }]).expect("appended");
    let exited = |state| Found::Exited(crate::core::tests::exit(state));
    let failed = ItemState::Failed { exit_code: 1, retryable: true };
    let trace = |item, generation, attempt, found| Trace {
        key: crate::core::tests::key(item, generation, attempt),
        hash: Some(hash(item)),
        found,
    };
    let traces = [
        trace("a", 1, 1, exited(ItemState::Succeeded)),
        trace("b", 1, 1, exited(failed.clone())),
        trace("b", 1, 2, Found::Lost),
        trace("c", 1, 1, exited(failed.clone())),
        Trace { hash: None, ..trace("d", 1, 1, exited(ItemState::Succeeded)) },
        trace("later", 2, 1, exited(ItemState::Succeeded)),
    ];
    let mut damaged = ledger.disk.content(LOG);
    damaged.extend(b"00000000 [{}]\n");
    for (bytes, indeterminate) in [(ledger.disk.content(LOG), &["b"][..]), (damaged, &["b", "c"])] {
        let mut disk = FakeDisk::with(LOG, &bytes);
        let outcome = reset(&mut disk, (LedgerId(Uuid::from_u128(9)), MACHINE), &traces, 5_000).expect("reset");
        assert_eq!(outcome.indeterminate.iter().map(ItemName::as_str).collect::<Vec<_>>(), indeterminate);
        let state = read(&mut disk).expect("sound").expect("a ledger");
        assert_eq!(traces.iter().find(|trace| state.lacks(&trace.key)), None, "it is not behind again");
        let status = |name: &str| &state.slots[name].status;
        assert_eq!((&status("a").state, status("a").hash), (&ItemState::Succeeded, hash("a")));
        assert_eq!((&status("b").state, status("b").attempt), (&ItemState::Indeterminate, 2));
        assert_eq!((&status("later").state, status("later").generation), (&ItemState::Succeeded, Generation(2)));
        assert_eq!((&status("d").state, status("d").hash), (&ItemState::Succeeded, hash("d")), "of the list");
        assert_eq!(state.outbox.len(), state.slots.len(), "the coordinator hears of each");
    }
}

#[test]
fn a_reset_takes_nothing_from_the_ledger_of_another_machine() {
    let (mut ledger, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    ledger.append(&[Record::EpochSeen(Epoch(57), AuthCode::NONE), accepted(300, &["a"])]).expect("appended");
    ledger.append(&[started(1, "a", 1)]).expect("appended");
    let (id, machine) = (LedgerId(Uuid::from_u128(77)), MachineId(Uuid::from_u128(9)));
    let mut disk = FakeDisk::with(LOG, &ledger.disk.content(LOG));
    let outcome = reset(&mut disk, (id, machine), &[], 5_000).expect("reset");
    assert_eq!(outcome.indeterminate, []);
    assert_eq!(read(&mut disk).ok().flatten(), Some(LedgerState::new(id, machine)));
}

#[test]
fn real_files_are_locked_reserved_and_read_beside_their_owner() {
    let dir = tempfile::tempdir().expect("a directory");
    let held = lock(dir.path()).expect("locked");
    assert!(matches!(lock(dir.path()), Err(LedgerError::InUse { .. })) && in_use(dir.path()));
    let (mut ledger, _) = Ledger::open(FileDisk::new(dir.path()), fresh()).expect("opened");
    assert_eq!(ledger.reserve().ok(), Some(true));
    for batch in life().iter().take(60) {
        ledger.append(batch).expect("appended");
    }
    let beside = read(&mut FileDisk::new(dir.path())).expect("read").expect("there");
    let long = std::fs::metadata(dir.path().join(LOG)).expect("there").len();
    ledger.flush().expect("flushed");
    ledger.compact(&states(&life())[60]).expect("compacted");
    assert!(std::fs::metadata(dir.path().join(LOG)).expect("there").len() < long / 4);
    for batch in &life()[60..62] {
        ledger.append(batch).expect("appended");
    }
    drop((ledger, held));
    assert!(!in_use(dir.path()));
    let _held = lock(dir.path()).expect("free again");
    let (_, state) = Ledger::open(FileDisk::new(dir.path()), fresh()).expect("opened again");
    assert_eq!(beside.last_seq, Seq(30));
    assert!(state == states(&life())[62], "{:?}", state.last_seq);
}
