//! The rows "archive" of the bad-input table, with archives built byte by byte.

use std::{io::Write, os::unix::fs::MetadataExt};

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use rustix::fs::{XattrFlags, lremovexattr, lsetxattr};
use tar::{Builder, EntryType, Header};

use super::*;

#[path = "mutation_tests.rs"]
mod mutation_tests;
#[path = "packers_tests.rs"]
mod packers_tests;

/// One entry: kind, name, mode, link target, content.
type Sample = (EntryType, &'static str, u32, &'static str, &'static [u8]);

const fn file(name: &'static str, body: &'static [u8]) -> Sample {
    (EntryType::Regular, name, 0o644, "", body)
}

const fn link(name: &'static str, target: &'static str) -> Sample {
    (EntryType::Symlink, name, 0o777, target, b"")
}

/// Bypasses the checks of the tar crate: names go into the header unchanged.
fn tar(samples: &[Sample]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, mode, target, body) in samples {
        let mut header = Header::new_gnu();
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name.as_bytes());
        old.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_size(body.len() as u64);
        header.set_cksum();
        builder.append(&header, *body).expect("append");
    }
    builder.into_inner().expect("an archive")
}

struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("opt")).expect("a directory");
        fs::write(dir.path().join("victim"), "untouched").expect("a victim");
        Self { dir }
    }

    fn target(&self) -> PathBuf {
        self.dir.path().join("opt/app")
    }

    fn unpack(&self, format: Format, bytes: &[u8]) -> Result<bool, ArchiveError> {
        self.unpack_amid(Surroundings::Workloads, format, bytes)
    }

    fn unpack_amid(&self, surroundings: Surroundings, format: Format, bytes: &[u8]) -> Result<bool, ArchiveError> {
        self.unpack_at(surroundings, Owners::Root, format, bytes).map(|unpacked| unpacked != Unpacked::Before)
    }

    fn unpack_as(&self, owners: Owners, format: Format, bytes: &[u8]) -> Result<Unpacked, ArchiveError> {
        self.unpack_at(Surroundings::Workloads, owners, format, bytes)
    }

    fn unpack_at(
        &self,
        surroundings: Surroundings,
        owners: Owners,
        format: Format,
        bytes: &[u8],
    ) -> Result<Unpacked, ArchiveError> {
        let archive = self.dir.path().join("archive");
        fs::write(&archive, bytes).expect("an archive");
        let digest = format!("digest of {} bytes", bytes.len());
        let target = self.target();
        let place = Place { target: &target, owners, digest: &digest, surroundings };
        unpack(&File::open(&archive).expect("there"), format, &place)
    }

    /// Checks that everything is unchanged and that partial results are gone.
    fn is_untouched(&self) {
        assert_eq!(fs::read_to_string(self.dir.path().join("victim")).expect("the victim"), "untouched");
        assert_eq!(fs::read_dir(self.dir.path().join("opt")).expect("opt").count(), 0);
        assert_eq!(fs::read_dir(self.dir.path()).expect("the site").count(), 3);
    }
}

#[test]
fn an_archive_is_unpacked_in_each_format() {
    let tar = tar(&[
        (EntryType::Directory, "./", 0o755, "", b""),
        (EntryType::Directory, "bin/", 0o700, "", b""),
        (EntryType::Regular, "bin/app", 0o755, "", b"app"),
        file("./share/deep/er/data", b"data"),
        link("share/latest", "deep/er"),
        link("share/deep/up", "../../bin/app"),
        (EntryType::Link, "bin/again", 0o644, "bin/app", b""),
        file("twice", b"first"),
        file("twice", b"second"),
    ]);
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(&tar).expect("compress");
    let formats = [
        (Format::Tar, tar.clone()),
        (Format::TarGz, gz.finish().expect("compress")),
        (Format::TarZst, zstd::encode_all(tar.as_slice(), 1).expect("compress")),
    ];
    for (format, bytes) in formats {
        let site = Site::new();
        assert!(site.unpack(format, &bytes).expect("unpacked"));
        let read = |name: &str| fs::read_to_string(site.target().join(name)).expect(name);
        let mode = |name: &str| fs::metadata(site.target().join(name)).expect(name).mode() & 0o7777;
        assert_eq!(read("bin/app") + &read("share/latest/data") + &read("share/deep/up"), "appdataapp");
        assert_eq!((read("bin/again"), read("twice")), ("app".to_owned(), "second".to_owned()));
        assert_eq!((mode(""), mode("bin"), mode("bin/app"), mode("share")), (0o755, 0o700, 0o755, 0o755));
        assert_eq!(fs::read_dir(site.dir.path().join("opt")).expect("opt").count(), 1);
        assert!(!site.unpack(format, &bytes).expect("there already"));
    }
}

#[test]
fn nothing_leads_out() {
    let out = "leads out of the archive";
    let hard_out = "is a hard link that leads out of the archive";
    let link_out = "is a link that leads out of the archive";
    let through = "goes through a link or a file";
    let no_file = "is a hard link to no file of the archive";
    let hard = |name, target| (EntryType::Link, name, 0o644, target, &b""[..]);
    for (samples, problem) in [
        (vec![file("../victim", b"x")], out),
        (vec![file("a/../../victim", b"x")], out),
        (vec![file("a/..", b"x")], out),
        (vec![file("/victim", b"x")], out),
        (vec![(EntryType::Directory, "../d", 0o755, "", b"")], out),
        (vec![link("a", "/etc")], link_out),
        (vec![link("a", "..")], link_out),
        (vec![link("d/a", "../..")], link_out),
        (vec![link("a", "b/../..")], link_out),
        // Harmless in its text, but `d/e` is a link, so its `..` is elsewhere.
        (vec![link("d/e", ".."), link("x", "d/e/../victim")], link_out),
        (vec![link("a", "."), file("a/victim", b"x")], through),
        (vec![link("a", "b"), (EntryType::Directory, "a", 0o755, "", b"")], "is there as no directory"),
        (vec![file("a", b""), file("a/b", b"")], through),
        (vec![hard("a", "../victim")], hard_out),
        (vec![hard("a", "/etc/passwd")], hard_out),
        (vec![hard("a", "missing")], no_file),
        (vec![link("a", "b"), file("b", b""), hard("c", "a")], no_file),
        (vec![link("a", "."), file("b", b""), hard("c", "a/b")], no_file),
        (vec![(EntryType::Char, "null", 0o666, "", b"")], "is a device"),
        (vec![(EntryType::Block, "sda", 0o666, "", b"")], "is a device"),
        (vec![(EntryType::Fifo, "pipe", 0o666, "", b"")], "is a fifo"),
        (vec![file(".muster-unpacked", b"x")], "has a name that is Muster's own"),
        (vec![(EntryType::Regular, "su", 0o4755, "", b"x")], "is set-user-id or set-group-id"),
        (vec![(EntryType::Regular, "sg", 0o2755, "", b"x")], "is set-user-id or set-group-id"),
        (vec![(EntryType::new(b'Z'), "z", 0o644, "", b"")], "is of a kind that is not unpacked"),
    ] {
        let site = Site::new();
        let name = samples.last().expect("a sample").1;
        let first = samples.first().expect("a sample").1;
        let error = site.unpack(Format::Tar, &tar(&samples)).expect_err(problem);
        assert!(!error.is_retryable());
        let expected = [name, first].map(|name| format!("entry {name:?} {problem}"));
        assert!(expected.contains(&error.to_string()), "{error}, expected {expected:?}");
        site.is_untouched();
    }
}

#[test]
fn bombs_do_not_go_off() {
    // 100 MiB of zeros in some KiB.
    let mut zst = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
    let mut header = Header::new_gnu();
    header.set_path("zeros").expect("a path");
    header.set_mode(0o644);
    header.set_size(100 << 20);
    header.set_cksum();
    zst.write_all(header.as_bytes()).expect("compress");
    std::io::copy(&mut std::io::repeat(0).take(100 << 20), &mut zst).expect("compress");
    let bytes = zst.finish().expect("compress");
    let site = Site::new();
    let error = site.unpack(Format::TarZst, &bytes).expect_err("a bomb");
    assert_eq!(error.to_string(), format!("it unpacks to more than {} bytes", 64 << 20));
    assert!(!error.is_retryable());
    site.is_untouched();
}

/// A file of this length that is one hole.
fn sparse_tar(bytes: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_path("sparse").expect("a path");
    header.set_mode(0o644);
    header.set_size(0);
    let gnu = header.as_gnu_mut().expect("gnu");
    gnu.set_real_size(bytes);
    gnu.sparse[0].set_offset(bytes);
    gnu.sparse[0].set_length(0);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend([0; 1024]);
    bytes
}

#[test]
fn holes_have_a_limit_of_their_own() {
    let site = Site::new();
    site.unpack(Format::Tar, &sparse_tar(GROWN_BYTES_MIN * 2)).expect("a disk image that is nearly empty");
    let found = fs::metadata(site.target().join("sparse")).expect("there");
    assert_eq!((found.len(), found.blocks()), (GROWN_BYTES_MIN * 2, 0));
    let site = Site::new();
    let error = site.unpack(Format::Tar, &sparse_tar(LENGTH_BYTES_MAX + 1)).expect_err("a bomb");
    assert_eq!(
        error.to_string(),
        format!("its files are longer than {} bytes in all, with the holes in them", 1_u64 << 40)
    );
    assert!(!error.is_retryable());
    site.is_untouched();
}

#[test]
fn what_is_no_archive_is_an_error() {
    let whole = tar(&[file("a", &[7; 4000])]);
    for (format, bytes) in [
        (Format::Tar, &b"<html>not found</html>"[..]),
        (Format::Tar, &whole[..2000]),
        (Format::TarGz, &whole),
        (Format::TarZst, &whole),
    ] {
        let site = Site::new();
        let error = site.unpack(format, bytes).expect_err("no archive");
        assert!(matches!(error, ArchiveError::Unreadable(_)), "{error:?}");
        site.is_untouched();
    }
}

#[test]
fn a_new_archive_replaces_the_old_as_a_whole() {
    let site = Site::new();
    site.unpack(Format::Tar, &tar(&[file("old", b"old"), file("both", b"old")])).expect("unpacked");
    // Partial result of an earlier try, as a kill leaves it.
    fs::create_dir(site.dir.path().join("opt/app.muster-new")).expect("a directory");
    fs::write(site.dir.path().join("opt/app.muster-new/half"), "").expect("a file");
    assert!(site.unpack(Format::Tar, &tar(&[file("both", b"new")])).expect("unpacked"));
    let mut names: Vec<_> =
        fs::read_dir(site.target()).expect("target").flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, [".muster-unpacked", "both"]);
    assert_eq!(fs::read_to_string(site.target().join("both")).expect("both"), "new");
    assert!(!site.dir.path().join("opt/app.muster-new").exists());
    // A bad archive leaves all as it is.
    site.unpack(Format::Tar, &tar(&[file("both", b"bad"), file("../x", b"")])).expect_err("leads out");
    assert_eq!(fs::read_to_string(site.target().join("both")).expect("both"), "new");
}

#[test]
fn what_others_put_there_is_not_replaced() {
    let archive = tar(&[file("a", b"a")]);
    let site = Site::new();
    fs::create_dir(site.target()).expect("a directory");
    assert!(site.unpack(Format::Tar, &archive).expect("an empty directory is taken"));
    let site = Site::new();
    fs::create_dir(site.target()).expect("a directory");
    fs::write(site.target().join("precious"), "").expect("a file");
    let error = site.unpack(Format::Tar, &archive).expect_err("occupied");
    assert!(matches!(error, ArchiveError::Occupied(_)) && !error.is_retryable(), "{error:?}");
    assert!(site.target().join("precious").exists() && !site.target().join("a").exists());
    let site = Site::new();
    std::os::unix::fs::symlink("..", site.target()).expect("a link");
    site.unpack(Format::Tar, &archive).expect_err("a link to elsewhere");
    assert!(!site.dir.path().join("a").exists());
}

/// Two releases of one application.
fn releases() -> [Vec<u8>; 2] {
    let release = |app: &'static [u8]| {
        tar(&[(EntryType::Regular, "bin/app", 0o755, "", app), file("app.conf", b"default"), link("now", "bin/app")])
    };
    [release(b"one"), [release(b"two"), vec![0; 512]].concat()]
}

#[test]
fn foreign_content_is_named_and_kept() {
    let [one, two] = releases();
    let site = Site::new();
    site.unpack(Format::Tar, &one).expect("unpacked");
    let at = |name: &str| site.target().join(name);
    let refused = |name: &str| {
        let error = site.unpack(Format::Tar, &two).expect_err(name);
        assert!(error.to_string().contains(&format!("changed since: {name};")), "{error}");
        assert!(!error.is_retryable());
        assert_eq!(fs::read_to_string(at("bin/app")).expect("the app"), "one");
        assert_eq!(fs::read_dir(site.dir.path().join("opt")).expect("opt").count(), 1);
    };
    fs::create_dir(at("data")).expect("a directory");
    fs::write(at("data/db"), "precious").expect("data");
    refused("data");
    fs::remove_dir_all(at("data")).expect("moved elsewhere");
    fs::write(at("app.conf"), "edited!").expect("an edit of the same length");
    refused("app.conf");
    fs::write(at("app.conf"), "default").expect("as it was");
    fs::set_permissions(at("bin"), Permissions::from_mode(0o700)).expect("a mode");
    refused("bin");
    fs::set_permissions(at("bin"), Permissions::from_mode(0o755)).expect("a mode");
    let attribute = "user.note";
    lsetxattr(at("app.conf"), attribute, b"mine", XattrFlags::empty()).expect("an attribute");
    refused("app.conf");
    lremovexattr(at("app.conf"), attribute).expect("removed");
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(at("app.conf"), Some(7), None).expect("given away");
        refused("app.conf");
        std::os::unix::fs::chown(at("app.conf"), Some(0), None).expect("taken back");
    }
    fs::remove_file(at("now")).expect("removed");
    std::os::unix::fs::symlink("app.conf", at("now")).expect("another link");
    refused("now");
    fs::remove_file(at("now")).expect("removed");
    // A missing entry is harmless.
    assert!(site.unpack(Format::Tar, &two).expect("replaced"));
    assert_eq!(fs::read_to_string(at("bin/app")).expect("the app"), "two");
    assert!(at("now").exists());
}

#[test]
fn swapped_out_content_with_additions_is_kept() {
    let [one, two] = releases();
    let site = Site::new();
    site.unpack(Format::Tar, &one).expect("unpacked");
    // State after a kill between swap and removal, with an application that kept writing there.
    fs::rename(site.target(), beside(&site.target())).expect("moved");
    fs::write(beside(&site.target()).join("late"), "precious").expect("written");
    let error = site.unpack(Format::Tar, &two).expect_err("something is there");
    assert!(error.to_string().contains("app.muster-new is replaced as a whole") && !error.is_retryable(), "{error}");
    fs::remove_file(beside(&site.target()).join("late")).expect("moved elsewhere");
    site.unpack(Format::Tar, &two).expect("unpacked");
}

#[test]
fn error_behind_the_swap_removes_nothing_unchecked() {
    let [one, two] = releases();
    for recovers in [true, false] {
        let site = Site::new();
        site.unpack(Format::Tar, &one).expect("unpacked");
        let archive = site.dir.path().join("archive");
        fs::write(&archive, &two).expect("an archive");
        let tries = std::cell::Cell::new(0);
        let sync = |_: &Path| {
            tries.set(tries.get() + 1);
            if recovers && tries.get() > 1 { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
        };
        let target = site.target();
        let surroundings = Surroundings::Workloads;
        let place = Place { target: &target, owners: Owners::Root, digest: "two", surroundings };
        let error =
            unpack_with(&sync, &File::open(&archive).expect("there"), Format::Tar, &place).expect_err("a fault");
        assert!(error.is_retryable(), "{error}");
        assert_eq!(fs::read_to_string(target.join("bin/app")).expect("the app"), "one");
        let left = beside(&target);
        assert_eq!(left.exists(), !recovers, "{error}");
        assert_eq!(error.to_string().contains(&left.display().to_string()), !recovers, "{error}");
        site.unpack(Format::Tar, &two).expect("the next attempt");
        assert!(!left.exists());
    }
}

/// A write to the old directory before the swap restores that directory, with the write included.
#[test]
fn write_before_the_swap_takes_it_back() {
    let [one, two] = releases();
    let site = Site::new();
    site.unpack(Format::Tar, &one).expect("unpacked");
    let archive = site.dir.path().join("archive");
    fs::write(&archive, &two).expect("an archive");
    let (target, swaps) = (site.target(), std::cell::Cell::new(0));
    let sync = |_: &Path| {
        swaps.set(swaps.get() + 1);
        if swaps.get() == 1 { fs::write(beside(&target).join("late"), "precious") } else { Ok(()) }
    };
    let surroundings = Surroundings::Workloads;
    let place = Place { target: &target, owners: Owners::Root, digest: "two", surroundings };
    let error = unpack_with(&sync, &File::open(&archive).expect("there"), Format::Tar, &place).expect_err("a writer");
    assert!(error.to_string().contains("changed since: late;") && !error.is_retryable(), "{error}");
    let read = |name: &str| fs::read_to_string(target.join(name)).expect(name);
    assert_eq!((read("bin/app"), read("late")), ("one".to_owned(), "precious".to_owned()));
    assert!(!beside(&target).exists());
}

#[test]
fn moment_tells_late_changes() {
    let site = Site::new();
    site.unpack(Format::Tar, &releases()[0]).expect("unpacked");
    let now = || Moment::of(&site.target()).expect("readable");
    let before = now();
    assert_eq!(now().since(&before), [""; 0]);
    fs::write(site.target().join("app.conf"), "default").expect("written");
    fs::write(site.target().join("bin/new"), "").expect("written");
    assert_eq!(now().since(&before), ["app.conf", "bin", "bin/new"]);
}

#[test]
fn directory_in_use_is_replaced_in_its_turn_only() {
    let [one, two] = releases();
    let site = Site::new();
    site.unpack(Format::Tar, &one).expect("unpacked");
    let mut app =
        std::process::Command::new("sleep").arg("60").current_dir(site.target().join("bin")).spawn().expect("started");
    let in_use = site.unpack(Format::Tar, &two).expect_err("in use");
    let cleared = site.unpack_amid(Surroundings::Cleared, Format::Tar, &two);
    app.kill().expect("killed");
    app.wait().expect("ended");
    assert!(in_use.to_string().contains(&format!("process sleep (pid {}) works in", app.id())), "{in_use}");
    assert!(in_use.is_retryable(), "it may end");
    assert!(cleared.expect("its turn"));
}

#[test]
fn directory_with_a_mount_is_not_replaced() {
    // Only root can mount.
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let site = Site::new();
    fs::create_dir(site.target()).expect("a directory");
    let mount = |program: &str, args: &[&str]| {
        std::process::Command::new(program).args(args).arg(site.target()).status().expect(program).success()
    };
    assert!(mount("mount", &["-t", "tmpfs", "none"]));
    let refused = [Surroundings::Workloads, Surroundings::Cleared]
        .map(|surroundings| site.unpack_amid(surroundings, Format::Tar, &releases()[0]));
    assert!(mount("umount", &[]));
    for refused in refused {
        let error = refused.expect_err("mounted").to_string();
        assert_eq!(error, format!("{} is mounted there: unmount it first", site.target().display()));
    }
}

/// A container's volume: the mount stays with the old directory.
#[test]
fn directory_mounted_into_container_is_in_use() {
    // Only root can mount.
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let [one, two] = releases();
    let site = Site::new();
    let volume = site.dir.path().join("volume");
    fs::create_dir(&volume).expect("a directory");
    for empty in [true, false] {
        if empty {
            fs::create_dir(site.target()).expect("a directory");
        } else {
            site.unpack(Format::Tar, &one).expect("unpacked");
        }
        let mut container = std::process::Command::new("unshare")
            .args(["--mount", "sh", "-c", "mount --bind \"$0\" \"$1\" && cd / && echo ready && read x"])
            .args([site.target(), volume.clone()])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("started");
        let mut ready = [0; 6];
        container.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("mounted");
        let in_use = site.unpack(Format::Tar, &two);
        drop(container.stdin.take());
        container.wait().expect("ended");
        let expected = format!("(pid {}) sees it mounted at {}", container.id(), volume.display());
        let told = in_use.expect_err("in use").to_string();
        assert!(told.contains(&expected), "{told}");
    }
}

/// Parts of names that an attacker or a bug would combine.
fn names() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["a", "b", "..", ".", "", "victim", "opt"]);
    prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"))
}

fn entries() -> impl Strategy<Value = Vec<(u8, String, String)>> {
    prop::collection::vec((prop::sample::select(b"0125".to_vec()), names(), names()), 1..12)
}

fn all_below(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next).cloned() {
        next += 1;
        if fs::symlink_metadata(&path).is_ok_and(|file| file.is_dir()) {
            found.extend(fs::read_dir(&path).expect("a directory").flatten().map(|entry| entry.path()));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any entries in any order: the outside is unchanged, and every created link stays inside.
    #[test]
    fn no_combination_leads_out(entries in entries(), flip in prop::option::of((0..512_usize, any::<u8>()))) {
        let mut builder = Builder::new(Vec::new());
        for (kind, name, target) in &entries {
            let mut header = Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
            header.set_entry_type(EntryType::new(*kind));
            header.set_mode(0o644);
            header.set_size(0);
            header.set_cksum();
            builder.append(&header, &b""[..]).expect("append");
        }
        let mut bytes = builder.into_inner().expect("an archive");
        if let Some((at, value)) = flip {
            bytes[at] = value;
        }
        let site = Site::new();
        fs::write(site.dir.path().join("archive"), "").expect("a file");
        fs::create_dir(site.target()).expect("a directory");
        // Links are checked at the end: a bad archive is rejected before it is put in place.
        let unpacked = entries::unpack(bytes.as_slice(), &site.target(), 1 << 20, Owners::Root);
        let root = fs::canonicalize(site.target()).expect("the target");
        for path in all_below(&root).into_iter().filter(|_| unpacked.is_ok()) {
            if let Ok(real) = fs::canonicalize(&path) {
                prop_assert!(real.starts_with(&root), "{} -> {}", path.display(), real.display());
            }
        }
        fs::remove_dir_all(site.target()).expect("remove");
        site.is_untouched();
    }
}

/// In `/tmp` and similar places, any user may have created the directory first, marker included.
#[test]
fn what_another_user_has_laid_down_is_not_taken_for_ours() {
    // Only root can change the owner of a directory.
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let site = Site::new();
    let opt = site.dir.path().join("opt");
    let bytes = tar(&[file("run", b"good")]);
    assert!(site.unpack(Format::Tar, &bytes).expect("unpacked"));
    std::os::unix::fs::chown(site.target(), Some(4_000_000), None).expect("given away");
    assert!(!site.unpack(Format::Tar, &bytes).expect("only root could give it away here"), "it is there already");
    fs::set_permissions(&opt, Permissions::from_mode(0o1777)).expect("as /tmp is");
    let error = site.unpack(Format::Tar, &bytes).expect_err("it may be anybody's");
    assert!(error.to_string().contains("opt/app belongs to user 4000000") && !error.is_retryable(), "{error}");
    fs::remove_dir_all(site.target()).expect("removed");
    std::os::unix::fs::symlink("/etc", site.target()).expect("a link");
    std::os::unix::fs::lchown(site.target(), Some(4_000_000), None).expect("given away");
    assert!(matches!(site.unpack(Format::Tar, &bytes), Err(ArchiveError::Planted { .. })), "nor is a link");
}
