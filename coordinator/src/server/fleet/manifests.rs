//! Manifests as the wire brings them, and their faults as it takes them.

use muster_proto::wire;

use crate::{
    facts::Facts,
    manifest::{self, Fault, Known, Manifest, Source},
    pki::Peer,
};

/// What a manifest of this peer may refer to. What it may not touch is for it as if it were not there: its faults must
/// not tell of others' clusters. Secrets for all clusters may be named in any.
pub(super) fn known_to(peer: &Peer, facts: &Facts) -> Known {
    let own = facts.clusters.keys().filter(|name| peer.may_touch(name));
    let clusters = own.filter_map(|name| Some((name.clone(), (**facts.spec(name)?).clone())));
    let secrets = facts.secrets.keys().filter(|id| id.cluster.as_ref().is_none_or(|name| peer.may_touch(name)));
    Known { clusters: clusters.collect(), secrets: secrets.cloned().collect() }
}

/// Parses manifests. 4 MiB of YAML take a while: not where others' calls wait for it.
pub(super) fn parse(files: &[wire::ManifestFile], known: &Known) -> Result<Manifest, Vec<Fault>> {
    let sources: Vec<_> = files.iter().map(|file| Source { name: &file.name, text: &file.text }).collect();
    manifest::parse(&sources, known)
}

pub(super) fn wire_fault(fault: Fault) -> wire::Fault {
    let Fault { file, line, column, path, problem, expected, nearest } = fault;
    wire::Fault { file, line, column, path, problem, expected, nearest }
}
