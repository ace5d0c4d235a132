//! Archives made by GNU tar and bsdtar: the unpacked content equals the packed content.

use std::{
    fs::FileTimes,
    os::unix::fs::{FileExt, MetadataExt, chown, symlink},
    process::Command,
    time::{Duration, SystemTime},
};

use rustix::fs::{XattrFlags, lsetxattr};

use super::*;

/// `cap_dac_override,cap_fowner,cap_net_bind_service+ep`, as the kernel stores it: its bytes include a newline.
const CAPABILITY: &[u8] = &[1, 0, 0, 2, 0x0a, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const CHANGED: SystemTime = SystemTime::UNIX_EPOCH;

pub(super) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Content that every format can express.
pub(super) fn plain(src: &Path) {
    for dir in ["bin", "lib", "data", "drop"] {
        fs::create_dir_all(src.join(dir)).expect("a directory");
    }
    fs::write(src.join("lib/libx.so.1"), "lib").expect("a file");
    fs::write(src.join("empty"), "").expect("a file");
    fs::write(src.join("bin/app"), vec![7; 100_000]).expect("a file");
    fs::hard_link(src.join("bin/app"), src.join("bin/again")).expect("a hard link");
    for (name, target) in [
        ("bin/a.so", "./../lib/libx.so.1"),
        ("bin/b.so", "../bin/../lib/libx.so.1"),
        ("bin/up", ".."),
        ("here", "."),
        ("dangling", "nowhere/at/all"),
    ] {
        symlink(target, src.join(name)).expect("a link");
    }
    if is_root() {
        chown(src.join("data"), Some(999), Some(998)).expect("given away");
        std::os::unix::fs::lchown(src.join("here"), Some(7), Some(8)).expect("given away");
    }
    for (name, mode) in [("bin/app", 0o750), ("data", 0o2775), ("drop", 0o1777), ("lib", 0o555), ("empty", 0o400)] {
        fs::set_permissions(src.join(name), Permissions::from_mode(mode)).expect("a mode");
    }
    for (seconds, name) in (1_577_836_800..).zip(["lib/libx.so.1", "lib", "data", "bin", "empty", "."]) {
        let times = FileTimes::new().set_modified(CHANGED + Duration::from_secs(seconds));
        File::open(src.join(name)).expect("there").set_times(times).expect("a time");
    }
}

/// Content that needs extra headers: long names and sparse files.
pub(super) fn long_and_sparse(src: &Path) {
    let deep = src.join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&deep).expect("directories");
    fs::write(deep.join("n".repeat(200)), "far").expect("a file");
    symlink("x".repeat(300), src.join("long")).expect("a link");
    fs::write(src.join("zw\u{f6}lf\nlines"), "odd").expect("a file");
    let sparse = |name: &str, bytes: u64, parts: &[(u64, &[u8])]| {
        let file = File::create(src.join(name)).expect("a file");
        file.set_len(bytes).expect("long");
        for (at, part) in parts {
            file.write_all_at(part, *at).expect("written");
        }
    };
    sparse("disk.raw", 4 << 20, &[(0, b"HEAD"), (3_000_000, b"TAIL")]);
    sparse("hole", 1 << 20, &[]);
    // More parts than fit into any header.
    let parts: Vec<(u64, &[u8])> = (0..60).map(|n| (n * 65_536 + 8192, &b"part"[..])).collect();
    sparse("many", 4 << 20, &parts);
}

pub(super) fn attributes(src: &Path) {
    let set = |name: &str, attribute: &str, value: &[u8]| {
        lsetxattr(src.join(name), attribute, value, XattrFlags::empty()).expect(attribute);
    };
    set("lib/libx.so.1", "user.note", b"1\n23 path=somewhere/else\n\0end");
    set("data", "user.a=b", b"kept");
    if is_root() {
        set("bin/app", "security.capability", CAPABILITY);
    }
}

/// Packs `src` with a command line.
pub(super) fn packed(packer: &str, src: &Path) -> Vec<u8> {
    let mut words = packer.split(' ');
    let mut command = Command::new(words.next().expect("a program"));
    let output = command.args(words).arg("-cf").arg("-").arg("-C").arg(src).arg(".").output().expect(packer);
    assert!(output.status.success(), "{packer}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Everything below a directory, with modification time and allocated blocks.
fn times_and_blocks(dir: &Path) -> Vec<(PathBuf, i64, u64)> {
    let mut found: Vec<_> = all_below(dir)
        .into_iter()
        .filter_map(|path| {
            let found = fs::symlink_metadata(&path).expect("there");
            let inside = path.strip_prefix(dir).expect("below").to_owned();
            let blocks = if found.is_file() { found.blocks() } else { 0 };
            (inside != Path::new(inventory::MARKER)).then(|| (inside, found.mtime(), blocks))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn real_archives_come_out_as_packed() {
    let gnu: &[fn(&Path)] = &[plain, long_and_sparse];
    let posix: &[fn(&Path)] = &[plain, long_and_sparse, attributes];
    let xattrs = "--xattrs --xattrs-include=*";
    for (packer, contents) in [
        ("tar --format=v7", &gnu[..1]),
        ("tar --format=ustar", &gnu[..1]),
        ("tar --format=oldgnu -S", gnu),
        ("tar --format=gnu -S", gnu),
        (&format!("tar --format=posix {xattrs}"), posix),
        (&format!("tar --format=posix -S --sparse-version=0.0 {xattrs}"), posix),
        (&format!("tar --format=posix -S --sparse-version=0.1 {xattrs}"), posix),
        (&format!("tar --format=posix -S --sparse-version=1.0 {xattrs}"), posix),
        ("bsdtar --format=ustar", &gnu[..1]),
        ("bsdtar --format=gnutar", gnu),
        ("bsdtar --format=pax --xattrs", posix),
    ] {
        let site = Site::new();
        let src = site.dir.path().join("src");
        fs::create_dir(&src).expect("a directory");
        contents.iter().for_each(|content| content(&src));
        let owners = if is_root() { Owners::Archive } else { Owners::Root };
        let bytes = packed(packer, &src);
        let unpacked = site.unpack_as(owners, Format::Tar, &bytes);
        let unpacked = unpacked.unwrap_or_else(|error| panic!("{packer}: {}", crate::exec_item::with_sources(&error)));
        assert_eq!(unpacked, Unpacked::Now { disowned: 0 }, "{packer}");
        let content = |dir: &Path| Inventory::take(dir, "").expect("readable");
        assert_eq!(content(&site.target()), content(&src), "{packer}");
        let sparse = packer.contains(" -S") || packer.contains("=pax ");
        let found = |dir: &Path| {
            let mut found = times_and_blocks(dir);
            found.iter_mut().filter(|_| !sparse).for_each(|(_, _, blocks)| *blocks = 0);
            found
        };
        assert_eq!(found(&site.target()), found(&src), "{packer}");
        let again = fs::metadata(site.target().join("bin/again")).expect("there");
        assert_eq!(again.nlink(), 2, "{packer}");
    }
}

#[test]
fn owners_are_root_unless_asked() {
    if !is_root() {
        return;
    }
    let site = Site::new();
    let src = site.dir.path().join("src");
    fs::create_dir(&src).expect("a directory");
    plain(&src);
    let unpacked = site.unpack_as(Owners::Root, Format::Tar, &packed("tar", &src)).expect("unpacked");
    assert_eq!(unpacked, Unpacked::Now { disowned: 2 });
    for path in all_below(&site.target()) {
        let found = fs::symlink_metadata(&path).expect("there");
        assert_eq!((found.uid(), found.gid()), (0, 0), "{}", path.display());
    }
}

/// A record of an extended header.
fn record(key: &str, value: &str) -> String {
    let rest = key.len() + value.len() + 3;
    let length = (rest + 1..rest + 8).find(|length| rest + length.to_string().len() == *length).expect("one");
    format!("{length} {key}={value}\n")
}

/// Consecutive members: kind, name, content.
fn raw(members: &[(EntryType, &str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, name, content) in members {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        header.set_link_name("f").expect("short");
        header.set_cksum();
        bytes.extend(header.as_bytes());
        bytes.extend(*content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes
}

fn described(records: &[(&str, &str)], content: &[u8]) -> Vec<u8> {
    let records: String = records.iter().map(|(key, value)| record(key, value)).collect();
    let mut bytes = raw(&[(EntryType::XHeader, "x", records.as_bytes()), (EntryType::Regular, "f", content)]);
    bytes.extend([0; 1024]);
    bytes
}

#[test]
fn what_is_not_kept_is_refused_by_name() {
    let sparse = |version: &str, size: &str, map: &str| {
        described(
            &[("GNU.sparse.major", version), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", size)],
            &[map.as_bytes(), &vec![0; 512 - map.len()], b"12345"].concat(),
        )
    };
    let not_kept = |key: &str| format!("has the attribute {key:?}, which is not kept");
    let ended = |mut bytes: Vec<u8>| {
        bytes.extend([0; 1024]);
        bytes
    };
    let unknown = "is sparse in a way that is not known".to_owned();
    let no_map = "has a map that is no map of it".to_owned();
    let no_file = || "has content, and is no file".to_owned();
    for (bytes, problem) in [
        (described(&[("SCHILY.fflags", "append")], b""), not_kept("SCHILY.fflags")),
        (described(&[("SCHILY.acl.access", "user::rwx\nuser:7:rwx")], b""), not_kept("SCHILY.acl.access")),
        (described(&[("SUN.holesdata", " 0 5")], b""), not_kept("SUN.holesdata")),
        (
            described(&[("SCHILY.xattr.nowhere.a", "x")], b""),
            "has the attribute \"nowhere.a\", which cannot be set here: Operation not supported (os error 95)"
                .to_owned(),
        ),
        (sparse("2", "5", "1\n0\n5\n"), unknown.clone()),
        (sparse("1", "5", "1\n0\nx\n"), unknown.clone()),
        (sparse("1", "5", &"9".repeat(400)), unknown.clone()),
        (sparse("1", "4", "1\n0\n5\n"), no_map.clone()),
        (sparse("1", "9", "2\n4\n3\n0\n2\n"), no_map),
        (sparse("1", "9", "1\n0\n4\n"), "has more or less content than its map says".to_owned()),
        (described(&[("GNU.sparse.size", "5"), ("GNU.sparse.numblocks", "2")], b""), unknown),
        (described(&[("uid", "root")], b""), "has a uid that is no number".to_owned()),
        (described(&[("uid", "4294967295")], b""), "has an owner that is none of Linux".to_owned()),
        (described(&[("mtime", "today")], b""), "has an mtime that is no time".to_owned()),
        (ended(raw(&[(EntryType::Directory, "f", b"x")])), no_file()),
        (ended(raw(&[(EntryType::Regular, "f", b""), (EntryType::Link, "f", b"x")])), no_file()),
        (
            ended(raw(&[(EntryType::Directory, "f", b""), (EntryType::Regular, "f", b"")])),
            "is there as a directory".to_owned(),
        ),
    ] {
        let site = Site::new();
        let error = site.unpack(Format::Tar, &bytes).expect_err(&problem);
        assert_eq!(error.to_string(), format!("entry \"f\" {problem}"));
        assert!(!error.is_retryable());
        site.is_untouched();
    }
}

#[test]
fn records_override_the_header() {
    let site = Site::new();
    let bytes = described(&[("path", "real/name"), ("mtime", "1577836800.5"), ("comment", "none")], b"content");
    site.unpack(Format::Tar, &bytes).expect("unpacked");
    let found = fs::metadata(site.target().join("real/name")).expect("there");
    assert_eq!((found.mtime(), found.mtime_nsec(), found.len()), (1_577_836_800, 500_000_000, 7));
    assert!(!site.target().join("f").exists());
}

#[test]
fn end_of_archive_is_certain() {
    let one = raw(&[(EntryType::Regular, "f", b"one")]);
    let whole = [one.clone(), vec![0; 1024]].concat();
    let mut damaged = whole.clone();
    damaged[100] ^= 1;
    for (bytes, problem) in [
        (one.clone(), "it was cut off"),
        (
            [one, raw(&[(EntryType::XHeader, "x", record("path", "g").as_bytes())]), vec![0; 1024]].concat(),
            "is missing",
        ),
        ([whole.clone(), whole.clone()].concat(), "two archives in one?"),
        (damaged, "another checksum"),
    ] {
        let site = Site::new();
        let error = site.unpack(Format::Tar, &bytes).expect_err(problem);
        assert!(crate::exec_item::with_sources(&error).contains(problem), "{error:?}");
        site.is_untouched();
    }
    // Padded to a record, as usual.
    Site::new().unpack(Format::Tar, &[whole, vec![0; 9216]].concat()).expect("unpacked");
}

#[test]
fn links_are_followed_as_the_kernel_does() {
    let dir = |name| (EntryType::Directory, name, 0o755, "", &b""[..]);
    for (samples, leads_out) in [
        (vec![dir("bin"), dir("lib"), link("bin/x", "./../lib/x")], false),
        (vec![dir("bin"), dir("lib"), link("bin/x", "../bin/../lib/x")], false),
        (vec![link("x", "missing/../also")], false),
        (vec![link("x", "missing/../../out")], true),
        // Down a link, and up from its target.
        (vec![dir("a/b"), link("down", "a/b"), link("x", "down/../../f")], false),
        (vec![dir("a/b"), link("down", "a/b"), link("x", "down/../../../f")], true),
        (vec![dir("a"), link("a/top", ".."), link("x", "a/top/f")], false),
        (vec![dir("a"), link("a/top", ".."), link("x", "a/top/../f")], true),
        (vec![link("x", "y"), link("y", "x")], false),
        (vec![link("x", "x/../../..")], false),
        (vec![link("x", "/opt/app/f")], true),
        (vec![link("x", "../app/f")], true),
        // Only the final state counts.
        (vec![link("x", "../victim"), file("x", b"x")], false),
        (vec![dir("a"), link("x", "a/../f"), link("a/../x", "f")], true),
    ] {
        let site = Site::new();
        let result = site.unpack(Format::Tar, &tar(&samples));
        assert_eq!(result.is_err(), leads_out, "{samples:?}: {result:?}");
    }
}
