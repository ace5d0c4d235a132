//! Extended attributes of a file itself, never of what a link leads to.

use std::{io, path::Path};

use rustix::{
    buffer::spare_capacity,
    fs::{lgetxattr, llistxattr},
    io::Errno,
};

/// Longest list of names, and longest value: XATTR_LIST_MAX and XATTR_SIZE_MAX of the kernel.
const BYTES_MAX: usize = 64 * 1024;
/// Labels that the machine's own policy gives a file when it is made.
const LABELS: [&[u8]; 3] = [b"security.selinux", b"security.ima", b"security.evm"];

/// Is it a label, which says nothing of who made the file?
pub(super) fn is_label(name: &[u8]) -> bool {
    LABELS.contains(&name)
}

/// All attributes but labels, by name. None where the file system has none.
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
