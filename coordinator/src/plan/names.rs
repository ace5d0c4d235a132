//! Names of machines, and commands with them, as operators read them.

pub use muster_proto::listing::some_names;
use muster_proto::model::{ClusterName, MachineType};

/// A command to give once per machine: `` `musterctl replace worker-3` ``, with the first one's name if there are
/// several.
pub fn for_each<'a>(command: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let first = names.next().unwrap_or_default();
    let others = if names.next().is_some() { ", and so for the others" } else { "" };
    format!("`musterctl {command} {first}`{others}")
}

/// Names as the beginning of a sentence: `control-1 is`, `control-1, worker-3 are`.
pub fn some_names_are<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let are = if names.len() == 1 { "is" } else { "are" };
    format!("{} {are}", some_names(names))
}

/// The token with which a machine of this declared type joins.
pub fn token_for(cluster: &ClusterName, machine_type: MachineType) -> String {
    match machine_type {
        MachineType::Control | MachineType::Worker => {
            format!("`musterctl token create --cluster {cluster} --type {machine_type}` makes a token that fits")
        }
        MachineType::Unassigned => {
            "nothing joins as that: give its Machine document another type, apply it, and make a token of that type"
                .to_owned()
        }
    }
}
