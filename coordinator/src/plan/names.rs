//! Names of machines, as operators read them, and commands with them.

pub use muster_proto::listing::some_names;
use muster_proto::model::{ClusterName, MachineType};

/// A command that is given once for each machine: `` `musterctl replace worker-3` ``, of several the first one's.
pub fn for_each<'a>(command: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let first = names.next().unwrap_or_default();
    let others = if names.next().is_some() { ", and so for the others" } else { "" };
    format!("`musterctl {command} {first}`{others}")
}

/// The same as the beginning of a sentence: `control-1 is`, `control-1, worker-3 are`.
pub fn some_names_are<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let are = if names.len() == 1 { "is" } else { "are" };
    format!("{} {are}", some_names(names))
}

/// With which token a machine joins that is declared as such a one.
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
