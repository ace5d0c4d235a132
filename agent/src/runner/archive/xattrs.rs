//! Extended attributes of a file itself; symbolic links are not followed.

use std::{io, path::Path};

use rustix::{
    buffer::spare_capacity,
    fs::{lgetxattr, llistxattr},
    io::Errno,
};

/// Maximum size of a name list and of a value: the kernel's XATTR_LIST_MAX and XATTR_SIZE_MAX.
const BYTES_MAX: usize = 64 * 1024;
/// Labels that the machine's policy sets on new files.
const LABELS: [&[u8]; 3] = [b"security.selinux", b"security.ima", b"security.evm"];

/// Is it a label, which is independent of the file's creator?
pub(super) fn is_label(name: &[u8]) -> bool {
    LABELS.contains(&name)
}

/// All attributes except labels, by name; empty if the file system lacks support.
pub(super) fn all(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut list = Vec::with_capacity(BYTES_MAX);
    match llistxattr(path, spare_capacity(&mut list)) {
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        listed => listed?,
    };
    let mut names: Vec<&[u8]> =
        list.split(|byte| *byte == 0).filter(|name| !name.is_empty() && !is_label(name)).collect();
    names.sort_unstable();
    let value = |name: &[u8]| {
        let mut value = Vec::with_capacity(BYTES_MAX);
        lgetxattr(path, name, spare_capacity(&mut value))?;
        value.shrink_to_fit();
        Ok((name.to_vec(), value))
    };
    names.into_iter().map(value).collect()
}
