//! `--schema ITEM=FILE`: the schema of a module's variables, from its `schema.json` or from the published archive.
//! musterctl reads it because the operator has the archives at hand; the coordinator fetches none.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek as _},
};

use flate2::read::MultiGzDecoder;
use muster_proto::{SCHEMA_BYTES_MAX, wire::ItemSchema};

use super::{TEXT_BYTES_MAX, left_after};
use crate::errors::Failure;

/// Name of the schema in an archive.
const SCHEMA_FILE: &str = "schema.json";
/// First bytes of a gzip stream.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const SCHEMA_BYTES_READ_MAX: u64 = SCHEMA_BYTES_MAX as u64 + 1;

/// Read the named schemas. `left`: bytes that the request may still use.
pub(super) fn read(named: &[String], left: &mut u64) -> Result<Vec<ItemSchema>, Failure> {
    let one = |named: &String| {
        let (item, name) =
            named.split_once('=').filter(|(item, file)| !item.is_empty() && !file.is_empty()).ok_or_else(|| {
                Failure::bad_input(format!("--schema {named}: expected ITEM=FILE"))
                    .next("As: --schema tuning=schema.json")
            })?;
        let text = text_of(name)?;
        *left = left_after(text.len(), *left).ok_or_else(|| {
            let most = TEXT_BYTES_MAX / 1024;
            Failure::bad_input(format!("{name}: manifests and schemas are larger than {most} KiB together"))
        })?;
        Ok(ItemSchema { item: item.to_owned(), name: name.to_owned(), text })
    };
    named.iter().map(one).collect()
}

fn text_of(name: &str) -> Result<String, Failure> {
    let cannot = |source: io::Error| {
        Failure::bad_input(format!("cannot read a schema from {name}"))
            .because(source)
            .next(format!("--schema ITEM=FILE names a {SCHEMA_FILE}, or a tar or tar.gz archive that has one."))
    };
    let mut file = BufReader::new(File::open(name).map_err(cannot)?);
    let mut magic = Vec::new();
    (&mut file).take(GZIP_MAGIC.len() as u64).read_to_end(&mut magic).map_err(cannot)?;
    file.rewind().map_err(cannot)?;
    let bytes = if magic == GZIP_MAGIC {
        in_archive(MultiGzDecoder::new(file)).map_err(cannot)?
    } else if name.ends_with(".tar") {
        in_archive(file).map_err(cannot)?
    } else {
        bounded(file).map_err(cannot)?
    };
    String::from_utf8(bytes).map_err(|_| cannot(io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8")))
}

/// The schema nearest to the root of an archive.
fn in_archive(archive: impl Read) -> io::Result<Vec<u8>> {
    let invalid = |problem: &str| io::Error::new(io::ErrorKind::InvalidData, problem.to_owned());
    let mut found: Option<(usize, Vec<u8>)> = None;
    let mut beside = false;
    for entry in tar::Archive::new(archive).entries()? {
        let entry = entry?;
        let path = entry.path()?;
        if !entry.header().entry_type().is_file() || path.file_name().is_none_or(|name| name != SCHEMA_FILE) {
            continue;
        }
        let depth = path.components().filter(|part| matches!(part, std::path::Component::Normal(_))).count();
        let known = found.as_ref().map_or(usize::MAX, |(depth, _)| *depth);
        if depth == known {
            beside = true;
        } else if depth < known {
            (found, beside) = (Some((depth, bounded(entry)?)), false);
        }
    }
    match found {
        Some(_) if beside => Err(invalid("the archive has several, at one depth; name the file itself")),
        Some((_, bytes)) => Ok(bytes),
        None => Err(invalid(&format!("the archive has no {SCHEMA_FILE}"))),
    }
}

fn bounded(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(SCHEMA_BYTES_READ_MAX).read_to_end(&mut bytes)?;
    if bytes.len() > SCHEMA_BYTES_MAX {
        let problem = format!("it is longer than {} KiB", SCHEMA_BYTES_MAX / 1024);
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn archive(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, text) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, text.as_bytes()).expect("in memory");
        }
        tar.into_inner().expect("in memory")
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
        gz.write_all(bytes).expect("in memory");
        gz.finish().expect("in memory")
    }

    #[test]
    fn schema_is_found_in_file_and_archive() {
        let dir = tempfile::tempdir().expect("a directory");
        let entries = [("m/roles/x/schema.json", "deep"), ("m/schema.json", "{}"), ("m/site.yml", "x")];
        let twice = [("a/schema.json", "{}"), ("b/schema.json", "{}")];
        let long = "x".repeat(SCHEMA_BYTES_MAX + 1);
        for (name, bytes, expected) in [
            ("schema.json", b"{}".to_vec(), Ok("{}")),
            ("m.tar.gz", gzip(&archive(&entries)), Ok("{}")),
            ("m.tar", archive(&entries), Ok("{}")),
            ("none.tgz", gzip(&archive(&[("m/site.yml", "x")])), Err("has no schema.json")),
            ("twice.tar.gz", gzip(&archive(&twice)), Err("several, at one depth")),
            ("long.json", long.clone().into_bytes(), Err("longer than 64 KiB")),
            ("long.tar", archive(&[("schema.json", &long)]), Err("longer than 64 KiB")),
        ] {
            let path = dir.path().join(name).display().to_string();
            std::fs::write(&path, bytes).expect("written");
            let read = read(&[format!("tuning={path}")], &mut 1_000_000);
            match (read, expected) {
                (Ok(read), Ok(text)) => {
                    assert_eq!((read[0].item.as_str(), read[0].text.as_str()), ("tuning", text), "{name}");
                }
                (Err(failure), Err(told)) => {
                    let said = format!("{failure:?}");
                    assert!(said.contains(told), "{name}: {said}");
                }
                (read, _) => panic!("{name}: {:?}", read.map(|all| all.len()).is_ok()),
            }
        }
        for wrong in ["tuning", "=x", "tuning="] {
            assert!(read(&[wrong.to_owned()], &mut 9).is_err(), "{wrong}");
        }
    }
}
