//! `musterctl get … -w`: prints the present documents, then every change, until Ctrl-C.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_proto::{printable::printable, resource::Kind};
use serde_json::Value;

use super::{Format, value, yaml};
use crate::{
    client::Coordinator,
    config::Context,
    errors::{Failure, not_this_version},
    feed::{Feed, FeedItem, Subject},
    terminal,
    view::{self, Look},
};

pub(super) async fn run(context: &Context, subject: Subject, format: Option<Format>) -> Result<(), Failure> {
    let config = context.config()?;
    if !subject.name.is_empty() || !subject.cluster.is_empty() {
        // An unknown name is an error now, instead of an endless wait.
        Coordinator::connect(&config).await?.get(subject.kind, &subject.name, &subject.cluster).await?;
    }
    let mut printer = Printer { kind: subject.kind, format, shown: BTreeMap::new(), widths: Vec::new() };
    // Keep the coordinator's order, as in a plain `get`.
    let mut first = Vec::new();
    let mut feed = Feed::open(config, vec![subject]);
    let mut synced = false;
    loop {
        match feed.next().await? {
            FeedItem::Put { key, name, json, .. } if synced => printer.change(&key, &name, json)?,
            FeedItem::Put { key, name, json, .. } => {
                first.push(Document { key, name, json });
            }
            FeedItem::Synced if !synced => {
                synced = true;
                printer.all(std::mem::take(&mut first))?;
            }
            FeedItem::Synced => terminal::say("up to date again"),
            FeedItem::Deleted { key, name, .. } => {
                printer.shown.remove(&key);
                terminal::say(&printable(&format!("{} {name} deleted", printer.kind.singular())));
            }
            FeedItem::Lost(why) => terminal::say(&format!("connection lost ({why}); connecting again")),
            FeedItem::Back => {
                first.clear(); // everything comes again
                terminal::say("connected again");
            }
        }
    }
}

struct Document {
    key: String,
    name: String,
    json: Vec<u8>,
}

struct Printer {
    kind: Kind,
    format: Option<Format>,
    /// Printed documents, by key: a new connection prints only changes.
    shown: BTreeMap<String, Vec<u8>>,
    /// Widths of the first table's columns.
    widths: Vec<u16>,
}

impl Printer {
    fn all(&mut self, documents: Vec<Document>) -> Result<(), Failure> {
        match self.format {
            None | Some(Format::Wide) => {
                let texts = documents.iter().map(|document| document.json.as_slice());
                let table = view::table(self.kind, texts, self.look()).map_err(not_this_version)?;
                self.widths = table.widths();
                self.shown = documents.into_iter().map(|document| (document.key, document.json)).collect();
                terminal::print_all(&table.lines())
            }
            Some(Format::Json | Format::Yaml | Format::Name) => {
                documents.into_iter().try_for_each(|Document { key, name, json }| self.change(&key, &name, json))
            }
        }
    }

    fn change(&mut self, key: &str, name: &str, json: Vec<u8>) -> Result<(), Failure> {
        let shown = self.shown.get(key);
        if shown == Some(&json) {
            return Ok(());
        }
        match self.format {
            None | Some(Format::Wide) => {
                let look = self.look();
                let same = match shown {
                    Some(shown) => reads(self.kind, shown, look)? == reads(self.kind, &json, look)?,
                    None => false,
                };
                if !same {
                    let row = view::table(self.kind, [json.as_slice()], look).map_err(not_this_version)?;
                    terminal::print_all(&row.lines_below(&self.widths))?;
                }
            }
            Some(Format::Json) => terminal::print(&value(&json)?.to_string())?,
            Some(Format::Yaml) => terminal::print(&format!("---\n{}", yaml(&value(&json)?)?.trim_end()))?,
            Some(Format::Name) => terminal::print(&printable(&format!("{}/{name}", self.kind.singular())))?,
        }
        self.shown.insert(key.to_owned(), json);
        Ok(())
    }

    fn look(&self) -> Look {
        Look { wide: self.format == Some(Format::Wide), now: Timestamp::now() }
    }
}

/// A document's table row minus its volatile parts, so that a download's progress or a playbook's task adds no row.
fn reads(kind: Kind, json: &[u8], look: Look) -> Result<Vec<String>, Failure> {
    let mut document = value(json)?;
    if let Some(activity) = document.pointer_mut("/status/activity").and_then(Value::as_object_mut) {
        activity.remove("progress");
        activity.remove("task");
    }
    let table = view::table(kind, [document.to_string().as_bytes()], look).map_err(not_this_version)?;
    Ok(table.lines())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(seen: u32, state: &str, done: u32) -> Vec<u8> {
        let text = format!(
            r#"{{"metadata":{{"name":"a","creationTimestamp":"2026-03-01T12:00:00Z"}},
            "spec":{{"clusterName":"c","type":"worker"}},
            "status":{{"state":"{state}","addresses":[],"connected":true,"lost":false,"failed":false,
            "indeterminate":false,"lastSeen":"2026-03-01T12:00:0{seen}Z","generation":1,"items":[],
            "stateItemStatuses":{{}},"stages":[],"activity":{{"item":"i","attempt":1,
            "startedAt":"2026-03-01T12:00:00Z","progress":{{"done":{done},"total":9,"perSecond":1}}}}}}}}"#
        );
        text.into_bytes()
    }

    #[test]
    fn a_heartbeat_and_a_byte_are_no_news() {
        let look = Look { wide: true, now: Timestamp::UNIX_EPOCH };
        let reads = |json: Vec<u8>| reads(Kind::Machines, &json, look).expect("a machine");
        assert_eq!(reads(machine(1, "Prepare", 1)), reads(machine(2, "Prepare", 2)));
        assert_ne!(reads(machine(1, "Prepare", 1)), reads(machine(1, "Deploy", 1)));
    }
}
