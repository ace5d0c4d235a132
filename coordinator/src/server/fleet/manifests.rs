//! Manifests as the wire brings them, and their faults as it takes them.

use muster_proto::wire;
use tonic::Status;

use crate::{
    facts::Facts,
    manifest::{self, Fault, Known, Manifest, Source},
    server::status,
};

/// Parses manifests, beside the calls of others: 4 MiB of YAML take a while.
pub(super) async fn parse(
    files: Vec<wire::ManifestFile>,
    facts: &Facts,
) -> Result<Result<Manifest, Vec<Fault>>, Status> {
    let clusters = facts.clusters.keys().filter_map(|name| Some((name.clone(), (**facts.spec(name)?).clone())));
    let known = Known { clusters: clusters.collect(), secrets: facts.secrets.keys().cloned().collect() };
    let parsed = tokio::task::spawn_blocking(move || {
        let sources: Vec<_> = files.iter().map(|file| Source { name: &file.name, text: &file.text }).collect();
        manifest::parse(&sources, &known)
    });
    parsed.await.map_err(|error| status::internal(&error))
}

pub(super) fn wire_fault(fault: Fault) -> wire::Fault {
    let Fault { file, line, column, path, problem, expected, nearest } = fault;
    wire::Fault { file, line, column, path, problem, expected, nearest }
}
