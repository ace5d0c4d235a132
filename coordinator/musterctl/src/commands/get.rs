//! `musterctl get`: documents as a table, as JSON, as YAML, once or as they change.

mod follow;

use clap::ValueEnum;
use jiff::Timestamp;
use muster_proto::{
    printable::{is_unprintable, printable},
    resource::{Kind, Of},
    wire::{Resource, VersionRequest},
};
use serde_json::{Value, json};

use crate::{
    commands::version::scope,
    config::Context,
    errors::{Failure, not_this_version},
    feed::Subject,
    name::{self, What, WhatParser},
    terminal,
    view::{self, Look},
};

/// List clusters, machines, rollouts, locks, requests, cluster states, tokens, secrets, credentials or the audit record
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl get machines
  musterctl get machines --cluster edge-7 -o wide
  musterctl get machine worker-3 -o yaml
  musterctl get machines worker-3 worker-4
  musterctl get machines -w                          and then every change
  musterctl get machines -o json | jq -r '.items[] | select(.status.failed) | .metadata.name'")]
pub(crate) struct Args {
    /// What to list; KIND/NAME, as `-o name` prints it, is one
    #[arg(value_name = "KIND", value_parser = WhatParser { kinds: KINDS, shown: Kind::word })]
    kind: What,
    /// Only those of these names
    #[arg(value_name = "NAME", value_parser = name::any)]
    names: Vec<String>,
    /// Output format
    #[arg(short, long)]
    output: Option<Format>,
    /// Then go on with every change
    #[arg(short, long)]
    watch: bool,
    /// Of this cluster only
    #[arg(long, value_name = "NAME", value_parser = name::cluster)]
    cluster: Option<String>,
}

/// Kinds that can be listed, with their help texts.
const KINDS: &[(Kind, &str)] = &[
    (Kind::Clusters, ""),
    (Kind::Machines, ""),
    (Kind::Rollouts, ""),
    (Kind::Locks(Of::All), "Workload locks of application controllers"),
    (Kind::Locks(Of::Nodes), "Those of machines"),
    (Kind::Locks(Of::Clusters), "Those of whole clusters"),
    (Kind::Requests(Of::All), "Maintenance requests"),
    (Kind::Requests(Of::Nodes), "Those of machines"),
    (Kind::Requests(Of::Clusters), "Those of whole clusters"),
    (
        Kind::ClusterStates,
        "What updates and removals bring about in the child cluster: Swarm nodes that are drained or removed",
    ),
    (Kind::Tokens, ""),
    (Kind::Credentials, "Of people and programs"),
    (Kind::Secrets, "Without their values"),
    (Kind::Audit, ""),
];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// More columns
    Wide,
    Json,
    Yaml,
    /// `machine/worker-3`
    Name,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let names = args.kind.names(args.names)?;
    let mut subject = Subject { kind: args.kind.kind, name: String::new(), cluster: args.cluster.unwrap_or_default() };
    if args.watch {
        if names.len() > 1 {
            let next = "Of all: leave the names out; `musterctl watch CLUSTER` has a whole cluster.";
            return Err(Failure::bad_input("-w follows one of them, or all").next(next));
        }
        subject.name = names.into_iter().next().unwrap_or_default();
        return follow::run(context, subject, args.output).await;
    }
    show(context, &subject, &names, args.output).await
}

/// Print the table of one kind.
pub(crate) async fn list(kind: Kind, cluster: String, context: &Context) -> Result<(), Failure> {
    show(context, &Subject { kind, name: String::new(), cluster }, &[], None).await
}

async fn show(context: &Context, subject: &Subject, names: &[String], format: Option<Format>) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let kind = subject.kind;
    let mut found = Vec::new();
    for name in names {
        found.append(&mut coordinator.get(kind, name, &subject.cluster).await?);
    }
    if names.is_empty() {
        found = coordinator.get(kind, "", &subject.cluster).await?;
    }
    match format {
        Some(Format::Json) => terminal::print(&pretty_json(&list_of(&found)?)?),
        Some(Format::Yaml) => terminal::print(yaml(&list_of(&found)?)?.trim_end()),
        Some(Format::Name) => {
            found.iter().try_for_each(|item| terminal::print(&printable(&format!("{}/{}", kind.singular(), item.name))))
        }
        None | Some(Format::Wide) if found.is_empty() => {
            let answer = coordinator.call(coordinator.fleet().version(VersionRequest {})).await?;
            terminal::say(&nothing(subject, scope(&answer).as_deref()));
            Ok(())
        }
        None | Some(Format::Wide) => {
            let look = Look { wide: format == Some(Format::Wide), now: Timestamp::now() };
            let documents = found.iter().map(|item| item.json.as_slice());
            terminal::print_all(&view::table(kind, documents, look).map_err(not_this_version)?.lines())
        }
    }
}

/// Text for an empty list: its subject, and the clusters to which the credentials are limited.
fn nothing(subject: &Subject, only: Option<&str>) -> String {
    let scope = match subject.cluster.as_str() {
        "" => String::new(),
        cluster => format!(" in cluster {cluster}"),
    };
    let only = only.map_or_else(String::new, |clusters| format!(" Your credentials are for {clusters} only."));
    printable(&format!("No {} found{scope}.{only}", subject.kind.word()))
}

/// `{"items":[…]}`, with the documents as the coordinator sent them: unknown fields stay.
fn list_of(found: &[Resource]) -> Result<Value, Failure> {
    let items = found.iter().map(|item| value(&item.json)).collect::<Result<Vec<_>, _>>()?;
    Ok(json!({ "items": items }))
}

pub(crate) fn value(json: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(json).map_err(not_this_version)
}

/// JSON that is safe for a terminal: control characters are escaped.
pub(crate) fn pretty_json(value: &Value) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|source| Failure::failed("cannot write JSON").because(source))?;
    Ok(text.chars().fold(String::with_capacity(text.len()), |mut safe, c| {
        if c != '\n' && is_unprintable(c) {
            safe.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            safe.push(c);
        }
        safe
    }))
}

pub(crate) fn yaml(value: &Value) -> Result<String, Failure> {
    serde_saphyr::to_string(value).map_err(|source| Failure::failed("cannot write YAML").because(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_tells_a_terminal_nothing_and_stays_the_same_text() {
        let value = json!({"a": "x\u{9b}31m\u{7f}\u{202e}", "b": ["Zürich\n"]});
        let text = pretty_json(&value).expect("JSON");
        assert!(text.contains(r"x\u009b31m\u007f\u202e") && text.contains("Zürich"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value);
    }
}
