//! Manifests as the wire brings them, and their faults as it takes them.

use muster_proto::wire;

use crate::{
    facts::{Facts, SecretId},
    manifest::{self, Fault, GivenSchema, Known, Manifest, Source},
    pki::Peer,
};

/// What a manifest of this peer may refer to. What it may not touch is for it as if it were not there: its faults must
/// not tell of others' clusters. A shared secret is there for the clusters it is shared with.
pub(super) fn known_to(peer: &Peer, facts: &Facts) -> Known {
    let own = facts.clusters.keys().filter(|name| peer.may_touch(name));
    let clusters = own.filter_map(|name| Some((name.clone(), (**facts.spec(name)?).clone())));
    let secrets = facts.secrets.values().flat_map(|row| {
        let of = row.id.cluster.iter().chain(&row.clusters).filter(|cluster| peer.may_touch(cluster));
        of.map(|cluster| SecretId { cluster: Some(cluster.clone()), name: row.id.name.clone() })
    });
    Known { clusters: clusters.collect(), secrets: secrets.collect() }
}

/// Parses manifests. 4 MiB of YAML take a while: not where others' calls wait for it.
pub(super) fn parse(
    files: &[wire::ManifestFile],
    schemas: &[wire::ItemSchema],
    known: &Known,
) -> Result<Manifest, Vec<Fault>> {
    let sources: Vec<_> = files.iter().map(|file| Source { name: &file.name, text: &file.text }).collect();
    let given = schemas.iter().map(|given| GivenSchema { item: &given.item, name: &given.name, text: &given.text });
    manifest::parse_with(&sources, known, &given.collect::<Vec<_>>())
}

pub(super) fn wire_fault(fault: Fault) -> wire::Fault {
    let Fault { file, line, column, path, problem, expected, nearest } = fault;
    wire::Fault { file, line, column, path, problem, expected, nearest }
}
