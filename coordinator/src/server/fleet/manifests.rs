//! Conversion of manifests from the wire, and of their faults to the wire.

use muster_proto::wire;

use crate::{
    facts::{Facts, SecretId},
    manifest::{self, Fault, GivenSchema, Known, Manifest, Source},
    pki::Peer,
};

/// What a manifest of this peer may refer to. Foreign clusters count as missing, so that faults keep them secret. A
/// shared secret exists for the clusters that share it.
pub(super) fn known_to(peer: &Peer, facts: &Facts) -> Known {
    let own = facts.clusters.keys().filter(|name| peer.may_touch(name));
    let clusters = own.filter_map(|name| Some((name.clone(), (**facts.spec(name)?).clone())));
    let secrets = facts.secrets.values().flat_map(|row| {
        let of = row.id.cluster.iter().chain(&row.clusters).filter(|cluster| peer.may_touch(cluster));
        of.map(|cluster| SecretId { cluster: Some(cluster.clone()), name: row.id.name.clone() })
    });
    Known { clusters: clusters.collect(), secrets: secrets.collect() }
}

/// Parse manifests on a blocking thread: 4 MiB of YAML take a while, and other calls must go on.
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
