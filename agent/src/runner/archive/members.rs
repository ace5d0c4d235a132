//! Members of a tar archive, one by one: old (V7), ustar, GNU and POSIX (pax) headers, as written by GNU tar, bsdtar
//! and others. Every member is described completely, or the archive is refused: unknown parts are never skipped.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{self, Read},
    os::unix::ffi::OsStringExt,
    path::PathBuf,
};

use tar::{EntryType, GnuExtSparseHeader, Header};

use super::{
    pax::{self, Records},
    sparse::{Extent, Extents, PaxMap},
};

/// Alignment of headers and contents.
const BLOCK_BYTES: u64 = super::sparse::BLOCK_BYTES as u64;
/// Maximum size of an extended header or name: attributes of 64 KiB each, or the map of a sparse file.
const HEADER_BYTES_MAX: u64 = 8 << 20;

/// Header data of one member.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: PathBuf,
    pub(super) kind: EntryType,
    /// Permissions, set-id and sticky bits.
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    /// Seconds and nanoseconds since 1970.
    pub(super) mtime: (i64, i64),
    pub(super) link: Option<PathBuf>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Position of the content's bytes; the rest is holes.
    pub(super) extents: Extents,
}

/// Error in reading the next member.
#[derive(Debug)]
pub(super) enum MemberError {
    /// Read error, truncation, or unknown format.
    Read(io::Error),
    /// A feature of this member is unknown.
    Member(String, String),
}

impl From<io::Error> for MemberError {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

fn broken(problem: &'static str) -> MemberError {
    MemberError::Read(io::Error::new(io::ErrorKind::InvalidData, problem))
}

/// Headers that describe the following member.
#[derive(Default)]
struct Before {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    records: Option<Records>,
}

/// Reader of members.
pub(super) struct Members<R> {
    inner: R,
    /// Unread bytes of the last member's content.
    left: u64,
    /// Padding after it, up to the next header.
    padding: u64,
    /// Records of POSIX headers for all following members.
    global: Records,
}

impl<R: Read> Members<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, left: 0, padding: 0, global: Records::default() }
    }

    /// The next member; [`Self::read`] returns its content. None: the archive's end marker.
    pub(super) fn next(&mut self) -> Result<Option<Member>, MemberError> {
        self.skip()?;
        let mut before = Before::default();
        loop {
            let Some(header) = self.header()? else {
                let complete = before.name.is_none() && before.link.is_none() && before.records.is_none();
                return if complete {
                    Ok(None)
                } else {
                    Err(broken("the member behind an extended header is missing"))
                };
            };
            match header.entry_type() {
                EntryType::GNULongName => once(&mut before.name, self.text(&header)?)?,
                EntryType::GNULongLink => once(&mut before.link, self.text(&header)?)?,
                EntryType::XHeader => {
                    let records = self.records(&header)?;
                    once(&mut before.records, records)?;
                }
                EntryType::XGlobalHeader => {
                    self.global = self.records(&header)?.over(&self.global);
                }
                _ => return self.member(&header, before).map(Some),
            }
        }
    }

    /// Skips the rest of the last member.
    fn skip(&mut self) -> io::Result<()> {
        let left = self.left + self.padding;
        (self.left, self.padding) = (0, 0);
        let skipped = io::copy(&mut (&mut self.inner).take(left), &mut io::sink())?;
        if skipped < left { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Reads a header. None: the archive's end.
    fn header(&mut self) -> Result<Option<Header>, MemberError> {
        let mut header = Header::new_old();
        self.inner.read_exact(header.as_mut_bytes()).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => broken("it ends without the mark of its end: it was cut off"),
            _ => MemberError::Read(error),
        })?;
        let bytes = header.as_bytes();
        if bytes.iter().all(|byte| *byte == 0) {
            return self.nothing_follows().map(|()| None);
        }
        // The checksum field itself counts as blanks. Some writers sum signed bytes.
        let summed = bytes.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { b' ' } else { *byte });
        let (unsigned, signed) = summed.fold((0_u32, 0_i32), |(unsigned, signed), byte| {
            (unsigned + u32::from(byte), signed + i32::from(byte.cast_signed()))
        });
        let told = header.cksum()?;
        if told != unsigned && i32::try_from(told) != Ok(signed) {
            return Err(broken("a header has another checksum than it says"));
        }
        Ok(Some(header))
    }

    /// Rejects archives that were joined end to end: all but the first would be lost.
    fn nothing_follows(&mut self) -> Result<(), MemberError> {
        let mut buffer = [0; 32 * 1024];
        loop {
            let count = match self.inner.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if count == 0 {
                return Ok(());
            }
            if buffer.iter().take(count).any(|byte| *byte != 0) {
                return Err(broken("something follows the mark of its end: two archives in one?"));
            }
        }
    }

    /// Content of a header that describes another.
    fn small_content(&mut self, size: u64) -> Result<Vec<u8>, MemberError> {
        if size > HEADER_BYTES_MAX {
            return Err(broken("an extended header is too long"));
        }
        let padded = size.next_multiple_of(BLOCK_BYTES);
        let mut bytes = Vec::new();
        (&mut self.inner).take(padded).read_to_end(&mut bytes)?;
        if (bytes.len() as u64) < padded {
            return Err(MemberError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        bytes.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        Ok(bytes)
    }

    /// A long name; it ends with a NUL.
    fn text(&mut self, header: &Header) -> Result<Vec<u8>, MemberError> {
        let mut bytes = self.small_content(header.entry_size()?)?;
        if bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(bytes)
    }

    fn records(&mut self, header: &Header) -> Result<Records, MemberError> {
        let bytes = self.small_content(header.entry_size()?)?;
        Records::parse(&bytes).ok_or_else(|| broken("an extended header has records of no known form"))
    }

    fn member(&mut self, header: &Header, before: Before) -> Result<Member, MemberError> {
        let records = before.records.unwrap_or_default().over(&self.global);
        let sparse_name = records.get("GNU.sparse.name");
        let name = before.name.as_deref().or(sparse_name).or_else(|| records.get("path"));
        let name = name.map_or_else(|| header.path_bytes().into_owned(), <[u8]>::to_vec);
        let shown = String::from_utf8_lossy(&name).into_owned();
        let bad = |problem: &str| MemberError::Member(shown.clone(), problem.to_owned());
        let link = before.link.as_deref().or_else(|| records.get("linkpath")).map(<[u8]>::to_vec);
        let link =
            link.or_else(|| header.link_name_bytes().map(|name| name.into_owned())).filter(|link| !link.is_empty());
        if name.contains(&0) || link.as_ref().is_some_and(|link| link.contains(&0)) {
            return Err(bad("has a NUL in its name"));
        }
        let number = |key: &str, field: io::Result<u64>| match records.number(key) {
            Some(Some(number)) => Ok(number),
            Some(None) => Err(bad(&format!("has a {key} that is no number"))),
            None => field.map_err(MemberError::from),
        };
        let stored = number("size", header.entry_size())?;
        let fields = header.as_old();
        let uid = number("uid", or_zero(&fields.uid, header.uid()))?;
        let gid = number("gid", or_zero(&fields.gid, header.gid()))?;
        let mtime = match records.get("mtime") {
            Some(text) => pax::time(text),
            None => i64::try_from(or_zero(&fields.mtime, header.mtime())?).ok().map(|seconds| (seconds, 0)),
        };
        let mtime = mtime.ok_or_else(|| bad("has an mtime that is no time"))?;
        let xattrs = records.xattrs().map_err(|key| bad(&format!("has the attribute {key:?}, which is not kept")))?;
        let directory = name.ends_with(b"/");
        let kind = match header.entry_type() {
            // Older formats lack a separate type for directories.
            EntryType::Regular if directory => EntryType::Directory,
            EntryType::Continuous => EntryType::Regular,
            kind => kind,
        };
        let padded = stored.checked_next_multiple_of(BLOCK_BYTES).ok_or_else(|| bad("is longer than any file"))?;
        (self.left, self.padding) = (stored, padded - stored);
        let extents = self.extents(header, kind, &records, stored).map_err(|problem| match problem {
            Ok(problem) => bad(problem),
            Err(error) => MemberError::Read(error),
        })?;
        let content = matches!(kind, EntryType::Regular | EntryType::GNUSparse);
        if !content && stored > 0 && matches!(kind, EntryType::Directory | EntryType::Symlink | EntryType::Link) {
            return Err(bad("has content, and is no file"));
        }
        let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
        Ok(Member {
            name: path(name),
            kind,
            mode: header.mode()? & 0o7777,
            uid,
            gid,
            mtime,
            link: link.map(path),
            xattrs,
            extents,
        })
    }

    /// Position of the content. Ok in the error: a fault in the member.
    fn extents(
        &mut self,
        header: &Header,
        kind: EntryType,
        records: &Records,
        stored: u64,
    ) -> Result<Extents, Result<&'static str, io::Error>> {
        if kind == EntryType::GNUSparse {
            let (list, size) = self.gnu_extents(header)?;
            return Extents::new(list, size, stored).map_err(Ok);
        }
        if !records.is_sparse() {
            return Ok(Extents::whole(stored));
        }
        if kind != EntryType::Regular {
            return Err(Ok("is sparse, and no file"));
        }
        match PaxMap::of(records).map_err(Ok)? {
            PaxMap::Told { list, size } => Extents::new(list, size, stored).map_err(Ok),
            PaxMap::InContent { size } => {
                let list = super::sparse::read_map(&mut *self)?;
                Extents::new(list, size, self.left).map_err(Ok)
            }
        }
    }

    /// Map of GNU's own format: in the header and in as many following blocks as needed.
    fn gnu_extents(&mut self, header: &Header) -> Result<(Vec<Extent>, u64), Result<&'static str, io::Error>> {
        let gnu = header.as_gnu().ok_or(Ok("is sparse in a way that is not known"))?;
        let size = gnu.real_size().map_err(Err)?;
        let mut list = Vec::new();
        let mut add = |headers: &[tar::GnuSparseHeader]| {
            for extent in headers.iter().filter(|extent| !extent.is_empty()) {
                let extent = Extent { at: extent.offset().map_err(Err)?, bytes: extent.length().map_err(Err)? };
                super::sparse::push(&mut list, extent).map_err(Ok)?;
            }
            Ok(())
        };
        add(&gnu.sparse)?;
        let mut more = gnu.is_extended();
        while more {
            let mut block = GnuExtSparseHeader::new();
            self.inner.read_exact(block.as_mut_bytes()).map_err(Err)?;
            add(block.sparse())?;
            more = block.is_extended();
        }
        Ok((list, size))
    }
}

/// Reads the last member's content as stored.
impl<R: Read> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = (&mut self.inner).take(self.left).read(buffer)?;
        if count == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// Some writers leave fields blank.
fn or_zero(field: &[u8], number: io::Result<u64>) -> io::Result<u64> {
    if field.iter().all(|byte| matches!(byte, 0 | b' ')) { Ok(0) } else { number }
}

fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), MemberError> {
    if slot.replace(value).is_some() {
        Err(broken("two extended headers of a kind describe one member"))
    } else {
        Ok(())
    }
}
