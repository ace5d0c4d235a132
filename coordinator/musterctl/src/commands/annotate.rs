//! `musterctl annotate`: notes on machines and clusters that controllers read.

use std::collections::BTreeMap;

use muster_proto::{resource::Kind, wire::AnnotateRequest};

use crate::{
    commands::actions::show,
    config::Context,
    errors::Failure,
    name::{What, WhatParser},
};

/// Set or remove annotations of a machine or cluster
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl annotate machine worker-3 openstack.lcm.mirantis.com/instance_migration_mode=manual
  musterctl annotate machine worker-3 openstack.lcm.mirantis.com/instance_migration_mode-")]
pub(crate) struct Args {
    /// What to annotate
    #[arg(value_name = "KIND", value_parser = WhatParser { kinds: KINDS, shown: Kind::singular })]
    kind: What,
    /// Its name
    name: String,
    /// KEY=VALUE sets, KEY- removes
    #[arg(required = true, value_name = "KEY=VALUE|KEY-")]
    changes: Vec<String>,
}

/// Kinds that can have annotations.
const KINDS: &[(Kind, &str)] = &[(Kind::Machines, ""), (Kind::Clusters, "")];

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let (set, remove) = changes(&args.changes)?;
    let kind = args.kind.kind;
    let request = AnnotateRequest { kind: kind.singular().to_owned(), name: args.name.clone(), set, remove };
    let coordinator = context.coordinator().await?;
    show(&coordinator.call_on(kind, &args.name, coordinator.fleet().annotate(request)).await?)
}

fn changes(texts: &[String]) -> Result<(BTreeMap<String, String>, Vec<String>), Failure> {
    let (mut set, mut remove) = (BTreeMap::new(), Vec::new());
    for text in texts {
        match (text.split_once('='), text.strip_suffix('-')) {
            (Some((key, value)), _) if !key.is_empty() => {
                if set.insert(key.to_owned(), value.to_owned()).is_some() {
                    return Err(Failure::bad_input(format!("annotation \"{key}\" is given twice")));
                }
            }
            (None, Some(key)) if !key.is_empty() => remove.push(key.to_owned()),
            _ => {
                return Err(Failure::bad_input(format!("\"{text}\" is not an annotation"))
                    .next("KEY=VALUE sets one, KEY- (with a minus at its end) removes it."));
            }
        }
    }
    match remove.iter().find(|key| set.contains_key(*key)) {
        Some(key) => Err(Failure::bad_input(format!("annotation \"{key}\" is both set and removed"))),
        None => Ok((set, remove)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read() {
        let read = |texts: &[&str]| changes(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let (set, remove) = read(&["a/b=c=d-", "e="]).expect("good");
        assert_eq!(set, BTreeMap::from([("a/b".into(), "c=d-".into()), ("e".into(), String::new())]));
        assert!(remove.is_empty());
        assert_eq!(read(&["a-"]).expect("good").1, ["a"]);
        for bad in [&["a"][..], &["=b"], &["-"], &["a=1", "a=2"], &["a=1", "a-"]] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
