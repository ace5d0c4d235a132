//! The copy that MKE's backup writes. Its directory is accessible only to root, because MKE makes the copy readable to
//! all and it contains its keys. Then it is made private and durable, read completely, and renamed.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use muster_proto::model::ItemState;

use super::MkeError;
use crate::{
    exec_item::Report,
    runner::{
        Outcome,
        copies::{Copies, CopyError, Digesting, part_of, put_in_place},
    },
};

/// File name of MKE's copy.
pub(super) const FILE: &str = "backup.tar";

/// Creates the directory into which MKE writes the unfinished copy of `target`.
pub(super) fn begin(target: &Path) -> Result<PathBuf, CopyError> {
    let dir = part_of(target);
    DirBuilder::new().mode(0o700).create(&dir).map_err(CopyError::file("create", &dir))?;
    Ok(dir)
}

/// Takes over MKE's file as the unfinished copy of `target`.
pub(super) fn finish(
    copies: &Copies,
    target: &Path,
    version: Option<&str>,
    report: &Report,
) -> Result<Outcome, MkeError> {
    let dir = part_of(target);
    let part = dir.join(FILE);
    let file = File::open(&part).map_err(CopyError::file("open", &part))?;
    file.set_permissions(Permissions::from_mode(0o600)).map_err(CopyError::file("make private", &part))?;
    let mut reader = Digesting::new(&file);
    io::copy(&mut reader, &mut io::sink()).map_err(CopyError::file("read back", &part))?;
    let (bytes, sha256) = reader.finish();
    if bytes == 0 {
        return Err(MkeError::EmptyCopy { path: part });
    }
    put_in_place(&file, &part, target)?;
    fs::remove_dir(&dir).map_err(CopyError::file("remove", &dir))?;
    for name in copies.remove_old()? {
        report.line(&format!("removed the old copy {name}"));
    }
    let message = format!("backup of MKE {}, {bytes} bytes, in {}", version.unwrap_or("?"), target.display());
    report.line(&message);
    let result = serde_json::json!({ "version": version, "path": target, "bytes": bytes, "sha256": sha256 });
    Ok(Outcome { state: ItemState::Succeeded, message, result_json: Some(result.to_string()) })
}
