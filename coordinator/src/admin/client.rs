//! Client of a running coordinator's admin socket.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use muster_proto::address::Addresses;
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use super::{
    AdminError, Answer, FILE_MODE, REQUEST_TIMEOUT, Request, TAKE_UP_TIMEOUT, Wanted, has_room, read_line, with_socket,
    write_line,
};
use crate::{config::StateDir, setup::Issued};

/// A connection to the coordinator that runs on a state directory.
pub struct AdminClient(UnixStream);

impl AdminClient {
    /// Connect. None: the state directory has no running coordinator.
    ///
    /// # Errors
    /// [`AdminError::Socket`] if the socket exists but is unreachable.
    pub fn connect(state_dir: &StateDir) -> Result<Option<Self>, AdminError> {
        with_socket(state_dir, |path| {
            let stream = match std::os::unix::net::UnixStream::connect(path) {
                Ok(stream) => stream,
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            Ok(Some(Self(UnixStream::from_std(stream)?)))
        })
    }

    /// Request credentials.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn credentials(mut self, wanted: Wanted) -> Result<Issued, AdminError> {
        match self.ask(&Request::Credentials(wanted)).await?.0 {
            Answer::Credentials(issued) => Ok(issued),
            Answer::Error(text) => Err(AdminError::Refused(text)),
            Answer::Backup { .. } | Answer::TakenUp | Answer::Done => {
                Err(AdminError::Talk(io::ErrorKind::InvalidData.into()))
            }
        }
    }

    /// Set the coordinator's addresses.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn set_address(mut self, addresses: Addresses) -> Result<(), AdminError> {
        match self.ask(&Request::SetAddress(addresses)).await?.0 {
            Answer::Done => Ok(()),
            Answer::Error(text) => Err(AdminError::Refused(text)),
            Answer::Credentials(_) | Answer::Backup { .. } | Answer::TakenUp => {
                Err(AdminError::Talk(io::ErrorKind::InvalidData.into()))
            }
        }
    }

    /// Request a copy of the store and write it to `to`, which must not exist. Return its size in bytes.
    ///
    /// # Errors
    /// [`AdminError`]; then there is no file at `to`.
    pub async fn backup(mut self, to: &Path) -> Result<u64, AdminError> {
        let write_error = |source| AdminError::Write { path: to.to_owned(), source };
        if to.symlink_metadata().is_ok() {
            let there = io::Error::new(io::ErrorKind::AlreadyExists, "there is such a file");
            return Err(write_error(there));
        }
        let (bytes, mut rest) = self.ask_backup().await?;
        // It may be the store's own disk, which also holds the source of the copy until the end.
        has_room(dir_of(to), bytes).map_err(write_error)?;
        let mut part = to.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let written = write_copy(&mut rest, bytes, &part, to).await;
        if written.is_err() {
            // A failed copy is useless, so ignore errors of its removal.
            let _ = fs::remove_file(&part);
        }
        written.map_err(write_error)?;
        Ok(bytes)
    }

    /// Request a copy of the store and write it to a stream. Return its size in bytes.
    ///
    /// # Errors
    /// [`AdminError`]; then the written bytes are an invalid copy.
    pub async fn backup_to(mut self, to: &mut (impl AsyncWrite + Unpin)) -> Result<u64, AdminError> {
        let (bytes, mut rest) = self.ask_backup().await?;
        copy_whole(&mut rest, bytes, to).await.map_err(AdminError::Talk)?;
        Ok(bytes)
    }

    async fn ask_backup(&mut self) -> Result<(u64, impl AsyncReadExt + Unpin), AdminError> {
        let (answer, rest) = self.ask(&Request::Backup).await?;
        match answer {
            Answer::Backup { bytes } => Ok((bytes, rest)),
            Answer::Error(text) => Err(AdminError::Refused(text)),
            Answer::Credentials(_) | Answer::TakenUp | Answer::Done => {
                Err(AdminError::Talk(io::ErrorKind::InvalidData.into()))
            }
        }
    }

    async fn ask(&mut self, request: &Request) -> Result<(Answer, impl AsyncReadExt + Unpin), AdminError> {
        let (read, mut write) = self.0.split();
        let mut read = BufReader::new(read);
        let taken_up = async {
            write_line(&mut write, request).await?;
            read_line(&mut read).await
        };
        let taken_up = tokio::time::timeout(TAKE_UP_TIMEOUT, taken_up).await.map_err(|_| AdminError::Hangs)?;
        let answer = match taken_up.map_err(AdminError::Talk)? {
            Answer::TakenUp => {
                let late = |_| Err(io::ErrorKind::TimedOut.into());
                let answer = tokio::time::timeout(REQUEST_TIMEOUT, read_line(&mut read)).await;
                answer.unwrap_or_else(late).map_err(AdminError::Talk)?
            }
            answer => answer,
        };
        Ok((answer, read))
    }
}

/// Copy everything, which must be exactly `bytes` long.
async fn copy_whole(
    read: &mut (impl AsyncReadExt + Unpin),
    bytes: u64,
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    if tokio::io::copy(read, to).await? != bytes {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the coordinator broke off"));
    }
    to.flush().await
}

/// Write the input to `part`, and rename it to `to` once it is complete and durable.
async fn write_copy(read: &mut (impl AsyncReadExt + Unpin), bytes: u64, part: &Path, to: &Path) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(part)?;
    let mut file = tokio::fs::File::from_std(file);
    copy_whole(read, bytes, &mut file).await?;
    file.sync_all().await?;
    fs::rename(part, to)?;
    let parent = dir_of(to);
    fs::File::open(parent)?.sync_all()
}

/// Directory of a file.
fn dir_of(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
