//! Archives with random changes: if both Muster and GNU tar unpack one, the results are equal, and the outside is
//! unchanged.

use std::process::{Command, Stdio};

use super::{packers_tests::*, *};

/// Changed archives per format.
const ROUNDS: u64 = 20;

/// Deterministic random numbers: splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).expect("below")
    }
}

/// Offsets of blocks that look like headers.
fn headers(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len() / 512).map(|block| block * 512).filter(|at| &bytes[at + 257..at + 262] == b"ustar").collect()
}

fn with_checksum(bytes: &mut [u8], at: usize) {
    let header = Header::from_byte_slice(&bytes[at..at + 512]);
    let mut header = header.clone();
    header.set_cksum();
    bytes[at..at + 512].copy_from_slice(header.as_bytes());
}

/// Changes one to three bytes: in a header, whose checksum is then fixed, in the block after one, or anywhere.
fn changed(bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    let headers = headers(bytes);
    for _ in 0..=dice.below(3) {
        let header = headers[dice.below(headers.len())];
        let at = match dice.below(4) {
            0 => dice.below(bytes.len()),
            1 => (header + 512 + dice.below(512)).min(bytes.len() - 1),
            _ => header + dice.below(512),
        };
        changed[at] = match dice.below(4) {
            0 => b"0123456789/.\0 gxSLK57"[dice.below(21)],
            1 => changed[at] ^ (1 << dice.below(8)),
            2 => bytes[dice.below(bytes.len())],
            _ => u8::try_from(dice.below(256)).expect("a byte"),
        };
        if headers.contains(&(at / 512 * 512)) {
            with_checksum(&mut changed, at / 512 * 512);
        }
    }
    changed
}

/// Result of GNU tar. None: it reports an error.
fn by_gnu_tar(bytes: &[u8], into: &Path) -> Option<Inventory> {
    fs::create_dir(into).expect("a directory");
    let mut tar = Command::new("tar")
        .args(["-xpf", "-", "--numeric-owner", "--same-owner", "--xattrs", "--xattrs-include=*", "-C"])
        .arg(into)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    // It may stop reading before the end.
    let _ = tar.stdin.take().expect("piped").write_all(bytes);
    let good = tar.wait().expect("ended").success();
    good.then(|| Inventory::take(into, "").expect("readable"))
}

#[test]
fn changed_archives_come_out_as_gnu_tar_has_them() {
    // Only root can set other owners and attributes.
    if !is_root() {
        return;
    }
    let mut compared = 0;
    for (number, packer) in (0..).zip([
        "tar --format=ustar",
        "tar --format=gnu -S",
        "tar --format=posix -S --sparse-version=0.1 --xattrs --xattrs-include=*",
        "tar --format=posix -S --sparse-version=1.0 --xattrs --xattrs-include=*",
        "bsdtar --format=pax --xattrs",
    ]) {
        let origin = tempfile::tempdir().expect("a directory");
        plain(origin.path());
        if !packer.contains("ustar") {
            long_and_sparse(origin.path());
        }
        if packer.contains("xattrs") {
            attributes(origin.path());
        }
        let bytes = packed(packer, origin.path());
        let mut dice = Dice(number);
        for round in 0..ROUNDS {
            let changed = changed(&bytes, &mut dice);
            let site = Site::new();
            let ours = site.unpack_as(Owners::Archive, Format::Tar, &changed);
            assert_eq!(fs::read_to_string(site.dir.path().join("victim")).expect("the victim"), "untouched");
            if ours.is_err() {
                site.is_untouched();
                continue;
            }
            let ours = Inventory::take(&site.target(), "").expect("readable");
            if let Some(theirs) = by_gnu_tar(&changed, &site.dir.path().join("theirs")) {
                compared += 1;
                assert_eq!(ours, theirs, "{packer}, round {round}");
            }
        }
    }
    assert!(compared > 20, "only {compared} were unpacked by both");
}
