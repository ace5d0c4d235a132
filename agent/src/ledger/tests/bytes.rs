//! Arbitrary bytes as a ledger file, and a valid file with an arbitrary change.

use proptest::prelude::*;

use super::*;

/// Items that are done one after another; each record has its own line.
fn names() -> [&'static str; 4] {
    ["a", "b", "c", "d"]
}

/// A log of complete lines, and the state after each of its lines.
fn sound() -> (Vec<u8>, Vec<LedgerState>) {
    let Record::Accepted(mut assignment) = accepted(1, &names()) else { panic!("an assignment") };
    // The content hash in the statuses.
    Arc::make_mut(&mut assignment).items.iter_mut().for_each(|item| item.hash = ItemHash([7; 32]));
    let mut batches = vec![vec![Record::EpochSeen(Epoch(1), AuthCode::NONE), Record::Accepted(assignment)]];
    for (name, seq) in names().into_iter().zip((1..).step_by(2)) {
        batches.push(vec![started(seq, name, 1)]);
        batches.push(vec![finished(seq + 1, name, 1, 40)]);
    }
    let (mut ledger, _) = Ledger::open(FakeDisk::default(), fresh()).expect("opened");
    batches.iter().for_each(|batch| ledger.append(batch).expect("appended"));
    (ledger.disk.content(LOG), states(&batches))
}

/// Text that resembles a log.
fn nearly_a_log() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        "[0-9a-f]{8} \\[.{0,40}\\]\n".prop_map(String::into_bytes),
        "\\[\\{\"(acked|epochSeen|finished|snapshot)\":.{0,20}\\}\\]".prop_map(|json| format!(
            "{:08x} {json}\n",
            crc32fast::hash(json.as_bytes())
        )
        .into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..60),
    ];
    proptest::collection::vec(line, 0..6).prop_map(|lines| lines.concat())
}

/// Recovery from an unreadable file: it is unchanged, the error names the line, and a reset starts a new ledger.
fn has_a_way_out(bytes: &[u8], error: &LedgerError) {
    let text = error.to_string();
    assert!(text.contains("LedgerCorrupt") && text.contains(", line ") && text.contains("ledger reset"), "{text}");
    let mut disk = FakeDisk::with(LOG, bytes);
    assert!(read(&mut disk).is_err(), "what only looks says the same");
    reset(&mut disk, (LedgerId(Uuid::from_u128(9)), MACHINE), &[], 7).expect("reset");
    let kept = format!("{LOG}.7");
    assert_eq!(disk.content(&kept), bytes, "the old one is kept as it was");
    let fresh = LedgerState::new(LedgerId(Uuid::from_u128(9)), MACHINE);
    let (mut ledger, state) = Ledger::open(disk, fresh).expect("a new ledger");
    let seq = state.last_seq.next().0;
    ledger.append(&[started(seq, "later", 1)]).expect("it goes on");
    assert_eq!(read(&mut ledger.disk).ok().flatten().map(|state| state.last_seq), Some(Seq(seq)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in nearly_a_log()) {
        if let Err(error) = Ledger::open(FakeDisk::with(LOG, &bytes), fresh()) {
            has_a_way_out(&bytes, &error);
        }
    }

    #[test]
    fn no_whole_line_is_lost(at in any::<prop::sample::Index>(), cut in 0..90_usize, put in nearly_a_log()) {
        let (sound, states) = sound();
        let ends: Vec<usize> = (1..=sound.len()).filter(|end| sound[end - 1] == b'\n').collect();
        let from = at.index(sound.len() + 1);
        let to = (from + cut).min(sound.len());
        let changed = [&sound[..from], &put, &sound[to..]].concat();
        let whole_before = ends.iter().filter(|end| **end <= from).count();
        let whole_behind = ends.iter().filter(|end| **end > to).count().saturating_sub(1);
        match Ledger::open(FakeDisk::with(LOG, &changed), fresh()) {
            Ok((_, state)) => {
                let lines = states.iter().position(|known| *known == state).map(|batches| batches + 1);
                prop_assert!(lines >= Some(whole_before), "{lines:?} of {whole_before}");
                // A truncation is visible from outside only: see `Core::traces_found`.
                prop_assert!(whole_behind == 0 || changed == sound, "{whole_behind} lines behind the damage");
            }
            Err(error) => {
                has_a_way_out(&changed, &error);
                // The lines before and after the damage are kept: an item is done if both of its lines are complete.
                let mut disk = FakeDisk::with(LOG, &changed);
                reset(&mut disk, (LedgerId(Uuid::from_u128(9)), MACHINE), &[], 7).expect("reset");
                let state = read(&mut disk).expect("sound").expect("a ledger");
                for (name, lines) in names().into_iter().zip((2..).step_by(2)) {
                    let done = state.slots.get(name).is_some_and(|slot| slot.status.state == ItemState::Succeeded);
                    let whole = lines + 2 <= whole_before;
                    prop_assert!(done || !whole, "{name}, whose lines are before the damage, is not done");
                }
            }
        }
    }
}
