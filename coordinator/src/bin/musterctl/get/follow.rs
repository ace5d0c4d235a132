//! `musterctl get … -w`: what is there, then every change, until Ctrl-C.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_coordinator::view::{self, Kind, Look, printable};
use serde_json::Value;

use super::{Format, not_this_version, value, yaml};
use crate::{
    client::Coordinator,
    config::Context,
    failure::Failure,
    feed::{Feed, News, Subject},
    terminal,
};

pub(super) async fn run(context: &Context, subject: Subject, format: Option<Format>) -> Result<(), Failure> {
    let config = context.config()?;
    if !subject.name.is_empty() {
        // A name that nobody has is an error now, not a wait for ever.
        Coordinator::connect(&config).await?.get(subject.kind, &subject.name, &subject.cluster).await?;
    }
    let mut printer = Printer { kind: subject.kind, format, shown: BTreeMap::new(), widths: Vec::new() };
    let mut first: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut feed = Feed::open(config, vec![subject]);
    let mut synced = false;
    loop {
        match feed.next().await? {
            News::Put { name, json, .. } if synced => printer.change(&name, json)?,
            News::Put { name, json, .. } => {
                first.insert(name, json);
            }
            News::Synced if !synced => {
                synced = true;
                printer.all(std::mem::take(&mut first))?;
            }
            News::Synced => terminal::say("up to date again"),
            News::Deleted { name, .. } => {
                printer.shown.remove(&name);
                terminal::say(&printable(&format!("{} {name} deleted", printer.kind.singular())));
            }
            News::Lost(why) => terminal::say(&format!("connection lost ({why}); connecting again")),
            News::Back => terminal::say("connected again"),
        }
    }
}

struct Printer {
    kind: Kind,
    format: Option<Format>,
    /// What was printed, so that a connection made again repeats nothing.
    shown: BTreeMap<String, Vec<u8>>,
    /// Of the first table's columns.
    widths: Vec<u16>,
}

impl Printer {
    fn all(&mut self, documents: BTreeMap<String, Vec<u8>>) -> Result<(), Failure> {
        match self.format {
            None | Some(Format::Wide) => {
                let table = view::table(self.kind, documents.values().map(Vec::as_slice), self.look())
                    .map_err(not_this_version)?;
                self.widths = table.widths();
                self.shown = documents;
                terminal::print_all(&table.lines())
            }
            Some(Format::Json | Format::Yaml | Format::Name) => {
                documents.into_iter().try_for_each(|(name, json)| self.change(&name, json))
            }
        }
    }

    fn change(&mut self, name: &str, json: Vec<u8>) -> Result<(), Failure> {
        let shown = self.shown.get(name);
        if shown == Some(&json) {
            return Ok(());
        }
        match self.format {
            None | Some(Format::Wide) => {
                if let Some(shown) = shown
                    && essence(shown)? == essence(&json)?
                {
                    return Ok(());
                }
                let table = view::table(self.kind, [json.as_slice()], self.look()).map_err(not_this_version)?;
                terminal::print_all(&table.lines_below(&self.widths))?;
            }
            Some(Format::Json) => terminal::print(&value(&json)?.to_string())?,
            Some(Format::Yaml) => terminal::print(&format!("---\n{}", yaml(&value(&json)?)?.trim_end()))?,
            Some(Format::Name) => terminal::print(&printable(&format!("{}/{name}", self.kind.singular())))?,
        }
        self.shown.insert(name.to_owned(), json);
        Ok(())
    }

    fn look(&self) -> Look {
        Look { wide: self.format == Some(Format::Wide), now: Timestamp::now() }
    }
}

/// A document without what changes all the time: a table has no new row for every heartbeat.
fn essence(json: &[u8]) -> Result<Value, Failure> {
    let mut document = value(json)?;
    if let Some(status) = document.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("lastSeen");
        if let Some(activity) = status.get_mut("activity").and_then(Value::as_object_mut) {
            activity.remove("progress");
        }
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_is_no_news() {
        let document = |seen: &str, state: &str| {
            format!(r#"{{"status":{{"lastSeen":"{seen}","state":"{state}","activity":{{"progress":{{}}}}}}}}"#)
        };
        let essence = |text: String| essence(text.as_bytes()).expect("JSON");
        assert_eq!(essence(document("1", "Ready")), essence(document("2", "Ready")));
        assert_ne!(essence(document("1", "Ready")), essence(document("1", "Deploy")));
    }
}
