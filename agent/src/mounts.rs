//! Mounts, from the lines of `/proc/PID/mountinfo`. This module only handles text: an access to the files would hang on
//! a dead file server.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// Location of a directory that is valid in every mount namespace: the device as mountinfo writes it, and the path on
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    device: Vec<u8>,
    path: PathBuf,
}

impl Place {
    /// Is it equal to the other place, or below it?
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

/// One line of mountinfo.
#[derive(Debug)]
struct Mount {
    /// The mounted directory.
    source: Place,
    /// The mount point.
    point: PathBuf,
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let (device, root, point) = (fields.next()?.to_vec(), fields.next()?, fields.next()?);
        Some(Self { source: Place { device, path: unescaped(root) }, point: unescaped(point) })
    }
}

/// Mounts that one process sees, in order of creation.
#[derive(Debug)]
pub(crate) struct Mounts(Vec<Mount>);

impl Mounts {
    /// Mounts of a process, possibly `self`.
    ///
    /// # Errors
    /// The kernel's error: the process may be gone or belong to another user.
    pub(crate) fn of(process: &str) -> io::Result<Self> {
        Ok(Self::parse(&fs::read(format!("/proc/{process}/mountinfo"))?))
    }

    /// Parses the lines of mountinfo.
    pub(crate) fn parse(mountinfo: &[u8]) -> Self {
        Self(mountinfo.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect())
    }

    /// A mount point at the path or below it.
    pub(crate) fn below(&self, path: &Path) -> Option<&Path> {
        self.0.iter().map(|mount| mount.point.as_path()).find(|point| point.starts_with(path))
    }

    /// Real location of the path, resolved by its innermost mount. If several mounts share a point, the last one
    /// counts.
    pub(crate) fn place_of(&self, path: &Path) -> Option<Place> {
        let mounts = self.0.iter().filter(|mount| path.starts_with(&mount.point));
        let mount = mounts.max_by_key(|mount| mount.point.components().count())?;
        let inside = path.strip_prefix(&mount.point).ok()?;
        let path = mount.source.path.components().chain(inside.components()).collect();
        Some(Place { device: mount.source.device.clone(), path })
    }

    /// Mount point of the place or of something below it.
    pub(crate) fn point_of(&self, place: &Place) -> Option<&Path> {
        self.0.iter().find(|mount| mount.source.is_within(place)).map(|mount| mount.point.as_path())
    }
}

/// Decodes the kernel's escapes: blank, tab, newline and backslash are a backslash and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match octal.filter(|_| *first == b'\\') {
            Some(byte) => {
                plain.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &[u8] = b"22 1 253:0 / / rw - ext4 /dev/vda rw\n\
        30 22 0:5 / /proc rw - proc proc rw\n\
        31 22 253:1 / /srv rw - ext4 /dev/vdb rw\n\
        32 22 253:2 / /srv rw - ext4 /dev/vdc rw\n\
        41 22 0:40 / /var/lib/muster/attempts/a.1.1/work/my\\040share rw - nfs4 nas:/ rw\n";

    #[test]
    fn mounts_below_path_are_found() {
        for (path, expected) in [
            ("/var/lib/muster/attempts/a.1.1", Some("/var/lib/muster/attempts/a.1.1/work/my share")),
            ("/var/lib/muster/attempts/a.1.1/work/my share", Some("/var/lib/muster/attempts/a.1.1/work/my share")),
            ("/var/lib/muster/attempts/a.1.10", None),
            ("/var/lib/muster/attempts/a.1", None),
            ("/opt/app", None),
            ("/proc", Some("/proc")),
        ] {
            assert_eq!(Mounts::parse(HOST).below(Path::new(path)), expected.map(Path::new), "{path}");
        }
    }

    #[test]
    fn container_sees_same_place() {
        let host = Mounts::parse(HOST);
        let opt_app = host.place_of(Path::new("/opt/app")).expect("a place");
        let srv_app = host.place_of(Path::new("/srv/app")).expect("a place");
        assert_eq!(host.point_of(&opt_app), None);
        let container = Mounts::parse(
            b"90 80 0:60 / / rw - overlay overlay rw\n\
              91 90 253:0 /opt/app/data /data rw - ext4 /dev/vda rw\n\
              92 90 253:0 / /host rw - ext4 /dev/vda rw\n\
              93 90 253:1 /app /old rw - ext4 /dev/vdb rw\n",
        );
        assert_eq!(container.point_of(&opt_app), Some(Path::new("/data")), "mounted into it");
        assert_eq!(container.point_of(&srv_app), None, "what the host has hidden is another place");
        let open = container.place_of(Path::new("/host/opt/app/bin/app")).expect("a place");
        assert!(open.is_within(&opt_app) && !open.is_within(&srv_app));
        assert!(!container.place_of(Path::new("/opt/app/x")).expect("a place").is_within(&opt_app));
    }
}
