//! Notified playbook handlers of an item that are still due. Each item has one file beside its attempts, which outlives
//! them. The callback plugin of the ansible runner appends a line at each change, durably before the task goes on. The
//! last complete line counts. The item is done only when all handlers have run.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use muster_proto::model::ItemName;
use serde::Deserialize;
use serde_json::json;

use super::durable;

/// Handlers that a message names.
const NAMED_MAX: usize = 8;

/// File of the record. Its name differs from that of any attempt.
pub(crate) fn file(attempts: &Path, item: &ItemName) -> PathBuf {
    attempts.join(format!("{item}.handlers"))
}

/// Starts the record of an attempt with the handlers that earlier attempts left.
pub(crate) fn begin(file: &Path) -> io::Result<()> {
    let line = match last_line(file)? {
        Some((line, _)) => line,
        None => json!({ "due": [] }).to_string(),
    };
    durable::replace(file, format!("{line}\n").as_bytes())
}

/// The due handlers, as text. None: each has run, or the item notifies none.
pub(crate) fn left(file: &Path) -> io::Result<Option<String>> {
    let due = last_line(file)?.map(|(_, line)| line.due).unwrap_or_default();
    let named: Vec<&str> = due.iter().take(NAMED_MAX).map(|due| due.name.as_str()).collect();
    let more = due.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Ok((!due.is_empty()).then(|| format!("notified handlers did not run: {}{more}", named.join(", "))))
}

/// The part of a line that is read here; the rest belongs to the plugin.
#[derive(Deserialize)]
struct Line {
    due: Vec<Due>,
}

#[derive(Deserialize)]
struct Due {
    name: String,
}

/// Last complete line. A line torn by a crash is ignored: the task waits for the complete line.
fn last_line(file: &Path) -> io::Result<Option<(String, Line)>> {
    let text = match fs::read(file) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let lines = text.lines().rev();
    Ok(lines.filter_map(|line| Some((line.to_owned(), serde_json::from_str(line).ok()?))).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = file(dir.path(), &ItemName::new("play").expect("a label"));
        assert_eq!(left(&file).expect("none"), None);
        begin(&file).expect("begun");
        assert_eq!(left(&file).expect("none"), None);
        let lines =
            "{\"due\":[{\"name\":\"a\"}]}\n{\"due\":[{\"name\":\"a\",\"task\":\"t\"},{\"name\":\"b\"}]}\n{\"due\":[";
        fs::write(&file, lines).expect("written");
        for _ in 0..2 {
            assert_eq!(left(&file).expect("two").as_deref(), Some("notified handlers did not run: a, b"));
            begin(&file).expect("begun");
        }
        let text = fs::read_to_string(&file).expect("text");
        assert_eq!(text, "{\"due\":[{\"name\":\"a\",\"task\":\"t\"},{\"name\":\"b\"}]}\n");
        let many: Vec<String> = (0..10).map(|i| format!("{{\"name\":\"h{i}\"}}")).collect();
        fs::write(&file, format!("{{\"due\":[{}]}}\n", many.join(","))).expect("written");
        assert!(left(&file).expect("ten").expect("some").ends_with("h6, h7 and 2 more"));
    }
}
