use std::{
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use super::*;

fn put(table: Table, key: &str, value: &str) -> Change {
    Change::Put { table, key: key.to_owned(), value: value.as_bytes().to_vec() }
}

fn delete(table: Table, key: &str) -> Change {
    Change::Delete { table, key: key.to_owned() }
}

fn row(table: Table, key: &str, value: &str) -> Row {
    (table, key.to_owned(), value.as_bytes().to_vec())
}

/// Both stores give the same rows after the same batches, and the file still does after it is reopened.
#[test]
fn rows_are_what_the_batches_made_of_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let check = |batches: &[&[Change]], expected: &[Row]| {
        let _ = fs::remove_file(&path);
        let mut embedded = EmbeddedStore::create(&path).expect("create");
        let mut memory = super::super::MemoryStore::default();
        for batch in batches {
            embedded.commit(batch).expect("commit");
            memory.commit(batch).expect("commit");
        }
        assert_eq!(embedded.load().expect("load"), expected);
        assert_eq!(memory.load().expect("load"), expected);
        drop(embedded);
        assert_eq!(EmbeddedStore::open(&path).expect("open").load().expect("load"), expected);
    };
    use Table::{Clusters, Meta};
    check(&[], &[]);
    check(&[&[]], &[]);
    check(&[&[put(Meta, "a", "1")], &[put(Meta, "a", "2")]], &[row(Meta, "a", "2")]);
    check(
        &[&[put(Clusters, "a", "1"), put(Meta, "z", "2"), put(Meta, "b", "")]],
        &[row(Meta, "b", ""), row(Meta, "z", "2"), row(Clusters, "a", "1")],
    );
    check(&[&[put(Meta, "a", "1")], &[delete(Meta, "a"), delete(Meta, "never"), delete(Clusters, "a")]], &[]);
    check(&[&[delete(Meta, "a"), put(Meta, "a", "1")]], &[row(Meta, "a", "1")]);
}

/// A copy that root put there. Root may open everything, so the refusal is simulated.
#[test]
fn who_may_not_open_the_store_is_told_whose_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let refused = || opening(&path, io::Error::from(io::ErrorKind::PermissionDenied).into());
    assert!(matches!(refused(), StoreError::Open { .. }), "there is nothing there");
    EmbeddedStore::create(&path).expect("create");
    let (text, us) = (refused().to_string(), geteuid());
    let chown = format!("`chown --reference={} {}`", dir.path().display(), path.display());
    for part in [format!("user {us} may not open"), format!("belongs to user {us} (mode 600)"), chown] {
        assert!(text.contains(&part), "{part}: {text}");
    }
}

#[test]
fn a_second_process_is_told_who_has_the_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let first = EmbeddedStore::create(&path).expect("create");
    let Err(error) = EmbeddedStore::open(&path) else { panic!("opened twice") };
    assert!(matches!(error, StoreError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    drop(first);
    EmbeddedStore::open(&path).expect("free again");
}

#[test]
fn open_makes_no_store_and_create_takes_none_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    assert!(matches!(EmbeddedStore::open(&path), Err(StoreError::Open { .. })));
    assert!(!path.exists());
    drop(EmbeddedStore::create(&path).expect("create"));
    assert!(matches!(EmbeddedStore::create(&path), Err(StoreError::Open { .. })));
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_backup_is_a_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = EmbeddedStore::create(&dir.path().join("store")).expect("create");
    store.commit(&[put(Table::Meta, "a", "1"), put(Table::Audit, "1", "x")]).expect("commit");
    let copy = dir.path().join("copy");
    store.backup(&copy).expect("backup");
    store.commit(&[put(Table::Meta, "a", "2")]).expect("commit");
    assert!(
        matches!(EmbeddedStore::open(&copy), Err(StoreError::NotNewest { .. })),
        "nobody says that it is the newest"
    );
    let copied = EmbeddedStore::open_copy(&copy).expect("open");
    assert_eq!(copied.load().expect("load"), [row(Table::Meta, "a", "1"), row(Table::Audit, "1", "x")]);
    assert!(matches!(store.backup(&copy), Err(StoreError::Backup { .. })), "it overwrites nothing");
    assert!(matches!(store.backup(&dir.path().join("no/such/dir")), Err(StoreError::Backup { .. })));
    let mut left: Vec<_> =
        fs::read_dir(dir.path()).expect("list").map(|entry| entry.expect("entry").file_name()).collect();
    left.sort();
    assert_eq!(left, ["copy", "store", "store.mark"]);
}

/// After any damage the file gives the committed rows, or an error that says what to do; never a panic or other rows.
#[test]
fn damage_is_an_error_and_never_silence() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let mut store = EmbeddedStore::create(&path).expect("create");
    for n in 0..40 {
        let machine = put(Table::Machines, &format!("worker-{n}"), &"value ".repeat(n * 7));
        store.commit(&[machine, put(Table::Audit, &n.to_string(), "line")]).expect("commit");
    }
    let expected = store.load().expect("load");
    drop(store);
    let whole = fs::read(&path).expect("read");
    fs::copy(Mark::path(&path), Mark::path(&dir.path().join("broken"))).expect("copied");
    let found = std::cell::Cell::new(0);
    let check = |what: String, bytes: Vec<u8>| {
        let broken = dir.path().join("broken");
        fs::write(&broken, bytes).expect("write");
        match EmbeddedStore::open(&broken).and_then(|store| store.load()) {
            Ok(rows) => assert_eq!(rows, expected, "{what}"),
            Err(error) => {
                found.set(found.get() + 1);
                assert!(error.to_string().contains("recover"), "{what}: {error}: {error:?}");
            }
        }
    };
    for length in (0..whole.len()).step_by(whole.len() / 64) {
        check(format!("cut to {length}"), whole[..length].to_vec());
    }
    for at in (0..512).chain((512..whole.len()).step_by(whole.len() / 1500)) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x41;
        check(format!("byte {at} changed"), bytes);
    }
    for at in (0..whole.len()).step_by(4096) {
        let mut bytes = whole.clone();
        bytes[at..(at + 4096).min(whole.len())].fill(0);
        check(format!("page at {at} zeroed"), bytes);
    }
    assert!(found.get() > 100, "only {} of them were found", found.get());
}

/// Passes the store's file to the process to be killed: this test, run again alone.
const CRASH_CHILD: &str = "MUSTER_TEST_STORE_CHILD";
const CRASHES: u32 = 12;

/// After a kill, the reopened file has everything acknowledged, and each batch is complete or absent.
#[test]
fn an_acknowledged_commit_survives_a_kill() {
    if let Some(path) = std::env::var_os(CRASH_CHILD) {
        return commit_until_killed(Path::new(&path));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    drop(EmbeddedStore::create(&path).expect("create"));
    for crash in 0..CRASHES {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "store::embedded::tests::an_acknowledged_commit_survives_a_kill", "--nocapture"])
            .env(CRASH_CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("spawn");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut acknowledged = lines.map_while(Result::ok).filter_map(|line| line.parse::<u64>().ok());
        let mut last = acknowledged.nth(crash as usize * 5).expect("it commits");
        child.kill().expect("kill");
        last = acknowledged.last().unwrap_or(last);
        child.wait().expect("wait");

        let rows = EmbeddedStore::open(&path).expect("open after a kill").load().expect("load");
        let count = |table| rows.iter().filter(|(of, ..)| *of == table).count() as u64;
        assert!(count(Table::Machines) > last, "{last} was acknowledged, {} are there", count(Table::Machines));
        assert_eq!(count(Table::Machines), count(Table::Audit), "half a batch");
    }
}

fn commit_until_killed(path: &Path) {
    let mut store = EmbeddedStore::open(path).expect("open");
    let first = store.load().expect("load").len() as u64 / 2;
    for number in first.. {
        let key = format!("{number:08}");
        store.commit(&[put(Table::Machines, &key, &"x".repeat(500)), put(Table::Audit, &key, "y")]).expect("commit");
        println!("{number}");
    }
}

/// The mark of an open store is lost in every possible way: the next check, or the next commit, creates it again.
#[test]
fn lost_mark_is_made_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let mark = Mark::path(&path);
    let copy = dir.path().join("copy");
    let ways: [(&str, &dyn Fn()); 6] = [
        ("removed", &|| fs::remove_file(&mark).expect("removed")),
        ("moved away", &|| fs::rename(&mark, &copy).expect("moved")),
        ("replaced", &|| {
            fs::copy(&mark, &copy).expect("copied");
            fs::rename(&copy, &mark).expect("put in its place");
        }),
        ("emptied", &|| fs::write(&mark, "").expect("written")),
        ("overwritten", &|| fs::write(&mark, [7; 8192]).expect("written")),
        ("gone, with half a new one", &|| {
            fs::rename(&mark, dir.path().join("store.mark.part")).expect("moved");
        }),
    ];
    for (way, lose) in ways {
        for commits in [false, true] {
            let _ = fs::remove_file(&path);
            let mut store = EmbeddedStore::create(&path).expect("create");
            store.commit(&[put(Table::Meta, "a", "1")]).expect("commit");
            let beside = store.clone();
            assert!(matches!(beside.check_place(), Ok(Place::Kept)), "{way}");
            lose();
            if commits {
                store.commit(&[put(Table::Meta, "a", "2")]).expect("commit");
            } else {
                let found = beside.check_place();
                assert!(matches!(&found, Ok(Place::MarkMade { mark: made }) if *made == mark), "{way}: {found:?}");
            }
            assert!(matches!(beside.check_place(), Ok(Place::Kept)), "{way}");
            drop((store, beside));
            let value = if commits { "2" } else { "1" };
            let rows = EmbeddedStore::open(&path).expect(way).load().expect("rows");
            assert_eq!(rows, [row(Table::Meta, "a", value)], "{way}");
            assert!(!dir.path().join("store.mark.part").exists(), "{way}");
        }
    }
    let store = EmbeddedStore::open(&path).expect("open");
    fs::remove_file(&mark).expect("removed");
    fs::create_dir_all(mark.join("taken")).expect("made");
    let refused = store.check_place().expect_err("a directory is there").to_string();
    assert!(refused.contains("store.mark") && refused.contains("cannot be made again"), "{refused}");
}

/// A coordinator ends only when the answer is that the file is gone.
#[test]
fn unanswered_look_is_no_move() {
    use nix::errno::Errno;
    for (errno, expected) in [
        (Errno::ENOENT, Some(true)),
        (Errno::ENOTDIR, Some(true)),
        (Errno::EIO, None),
        (Errno::ESTALE, None),
        (Errno::EACCES, None),
        (Errno::ETIMEDOUT, None),
    ] {
        let found = is_gone(&Err(errno.into()), FileId::default());
        assert_eq!(found.as_ref().ok().copied(), expected, "{errno}");
        assert!(found.is_ok() || found.is_err_and(|error| error.raw_os_error() == Some(errno as i32)), "{errno}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (path, kept) = (dir.path().join("store"), dir.path().join("kept"));
    let store = EmbeddedStore::create(&path).expect("create");
    fs::rename(&path, &kept).expect("moved");
    assert!(matches!(store.check_place(), Err(StoreError::Moved { .. })));
    std::os::unix::fs::symlink(&path, &path).expect("a link to itself");
    assert!(matches!(store.check_place(), Ok(Place::Unknown { .. })), "a look that fails");
    fs::rename(&kept, &path).expect("put back");
    assert!(matches!(store.check_place(), Ok(Place::Kept)));
}

/// `recover` is killed after each of its steps. A start then succeeds, or says that `recover` is needed; and a second
/// `recover` always leads to a start.
#[test]
fn killed_recover_can_be_run_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let (mark, part) = (Mark::path(&path), dir.path().join("store.mark.part"));
    let recovered = || [put(Table::Meta, "recovered", "yes")];
    let recover = || EmbeddedStore::open_copy(&path)?.commit(&recovered());
    let commits_only = || {
        let mut store = EmbeddedStore::open_copy(&path).expect("a copy");
        store.marking = Marking::Never;
        store.commit(&recovered()).expect("commit");
    };
    let steps: [(&str, &dyn Fn()); 6] = [
        ("nothing is done", &|| {}),
        ("it is committed", &commits_only),
        ("a mark is begun", &|| {
            commits_only();
            fs::write(&part, "").expect("written");
        }),
        ("half a mark is written", &|| {
            commits_only();
            fs::write(&part, [0; 4200]).expect("written");
        }),
        ("the mark has no name yet", &|| {
            let old = fs::read(&mark).expect("a mark");
            recover().expect("recovered");
            fs::rename(&mark, &part).expect("moved");
            fs::write(&mark, old).expect("written");
        }),
        ("all is done", &|| recover().expect("recovered")),
    ];
    for without_mark in [false, true] {
        for (step, act) in &steps {
            for left in [&path, &mark, &part] {
                let _ = fs::remove_file(left);
            }
            let mut store = EmbeddedStore::create(&path).expect("create");
            store.commit(&[put(Table::Meta, "a", "old")]).expect("commit");
            store.backup(&dir.path().join("copy")).expect("copied");
            store.commit(&[put(Table::Meta, "a", "new")]).expect("commit");
            drop(store);
            fs::rename(dir.path().join("copy"), &path).expect("put in its place");
            act();
            if without_mark && *step != "the mark has no name yet" && *step != "all is done" {
                fs::remove_file(&mark).expect("removed");
            }
            match EmbeddedStore::open(&path) {
                Ok(_) => assert_eq!(*step, "all is done", "without mark: {without_mark}"),
                Err(refused) => {
                    assert!(matches!(refused, StoreError::NotNewest { .. }), "{step}: {refused}");
                    assert!(refused.to_string().contains("then run `muster-coordinator recover`"), "{refused}");
                }
            }
            recover().expect(step);
            let rows = EmbeddedStore::open(&path).expect(step).load().expect("rows");
            assert_eq!(rows, [row(Table::Meta, "a", "old"), row(Table::Meta, "recovered", "yes")], "{step}");
            assert!(!part.exists(), "{step}");
        }
    }
}

/// A store of a build before the first release.
#[test]
fn store_without_commit_numbers_is_of_another_format() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let database = builder().create(&path).expect("made");
    let transaction = database.begin_write().expect("begun");
    transaction.open_table(definition(Table::Meta)).expect("a table").insert("core", &b"{}"[..]).expect("written");
    transaction.commit().expect("committed");
    drop(database);
    for open in [EmbeddedStore::open, EmbeddedStore::open_copy] {
        let Err(refused) = open(&path) else { panic!("it was opened") };
        let said = refused.to_string();
        assert!(said.contains("of another format") && said.contains("init") && !said.contains("damaged"), "{said}");
    }
}

/// If placing a copy fails for any reason, its partial file is removed from the disk.
#[test]
fn a_copy_that_cannot_be_placed_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let taken = dir.path().join("taken");
    fs::create_dir_all(taken.join("by others")).expect("directories");
    EmbeddedStore::create_with(&taken, &[put(Table::Meta, "a", "1")]).expect_err("a directory is there");
    let left: Vec<_> = fs::read_dir(dir.path()).expect("listed").map(|entry| entry.expect("one").file_name()).collect();
    assert_eq!(left, ["taken"]);
}
