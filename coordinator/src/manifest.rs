//! Parses YAML text into specs, with line, column and path forevery fault. The Fleet service calls it for `apply` (dry
//! runs included). Pure: it depends only on its arguments; the same text always gives the same answer.

mod addons;
mod backup;
mod cluster;
mod etcd;
mod fault;
mod group;
mod hook;
mod item;
mod kubernetes;
mod machine;
mod maintenance;
mod on_delete;
mod params;
mod read;
mod schema;
mod shape;
mod tree;
mod update;
mod vars;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
};

use muster_proto::model::{ClusterName, ClusterSpec, MachineName, MachineSpec};

pub use self::{
    cluster::MACHINES_MAX,
    fault::{FAULTS_MAX, Fault},
    read::TEXT_BYTES_MAX,
    schema::GivenSchema,
    tree::{DEPTH_MAX, NODES_MAX},
};
use self::{
    fault::{Faults, Position, shown},
    machine::Clusters,
    params::Secrets,
    read::{Fields, Free, LATER, Map, Spot},
    schema::Schemas,
    tree::Node,
};
use crate::facts::SecretId;

/// The one `apiVersion` of this release.
pub const API_VERSION: &str = "muster/v1alpha1";
/// Largest total size of all sources (reliability.md, "Bad input").
pub const TEXT_ALL_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Largest total size of one document's annotations, keys and values: Kubernetes's limit for a node.
pub const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;
/// Longest prefix of an annotation's key, before the `/` (Kubernetes).
const ANNOTATION_PREFIX_BYTES_MAX: usize = 253;
/// Longest name in an annotation's key (Kubernetes).
const ANNOTATION_NAME_BYTES_MAX: usize = 63;
/// Format of annotation keys, for messages.
pub const ANNOTATION_KEY: &str = "name or prefix/name of letters, digits, '.', '_' and '-', up to 63 and 253 bytes";

const DOCUMENT: Fields = Fields { known: &["apiVersion", "kind", "metadata", "spec"], later: &[], elsewhere: &[] };
const METADATA: Fields = Fields { known: &["name", "annotations"], later: &["labels"], elsewhere: &[] };
const KINDS: Fields = Fields { known: &["Cluster", "Machine"], later: &["Release"], elsewhere: &[] };

/// A file, or another origin of a text.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Name given by the operator, for messages.
    pub name: &'a str,
    /// YAML, one document or several.
    pub text: &'a str,
}

/// Free notes on a cluster or machine.
pub type Annotations = BTreeMap<String, String>;

/// Content of the sources, free of faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The clusters.
    pub clusters: BTreeMap<ClusterName, (ClusterSpec, Annotations)>,
    /// The declared machines.
    pub machines: BTreeMap<MachineName, (MachineSpec, Annotations)>,
}

/// A document of a known kind.
struct Document<'n> {
    file: usize,
    root: Map<'n>,
}

/// Readable parts of the documents of one kind, by name.
type Found<N, S> = BTreeMap<N, (Option<S>, Option<Annotations>)>;

/// Recorded objects that documents may refer to.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Clusters, with their newest specs.
    pub clusters: BTreeMap<ClusterName, ClusterSpec>,
    /// The secrets that items of each cluster may refer to: its own, and those shared with it.
    pub secrets: BTreeSet<SecretId>,
}

/// Parse all sources as one manifest, independent of their order.
///
/// # Errors
/// Every fault found, in the order of the text; at most [`FAULTS_MAX`] and one that counts the rest.
pub fn parse(sources: &[Source<'_>], known: &Known) -> Result<Manifest, Vec<Fault>> {
    parse_with(sources, known, &[])
}

/// The same, with schemas for the `vars` of items.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(sources: &[Source<'_>], known: &Known, given: &[GivenSchema<'_>]) -> Result<Manifest, Vec<Fault>> {
    let schemas = Schemas::new(given);
    let mut faults = Faults::new(sources.iter().map(|source| source.name).collect());
    let trees = trees(sources, &mut faults);
    let (mut clusters, mut machines) = (Vec::new(), Vec::new());
    let mut complete = true;
    for (file, tree) in &trees {
        faults.enter(*file);
        match tree.as_ref().and_then(|tree| kind_of(tree, &mut faults)) {
            Some((Kind::Cluster, root)) => clusters.push(Document { file: *file, root }),
            Some((Kind::Machine, root)) => machines.push(Document { file: *file, root }),
            None => complete = false,
        }
    }
    let declared = read_all(&clusters, &mut faults, |spot, name, faults| {
        let secrets = Secrets { known: &known.secrets, cluster: name, release: None, schemas: &schemas };
        cluster::read(spot, secrets, faults)
    });
    let complete = complete && declared.len() == clusters.len();
    if complete {
        schemas_are_used(&schemas, &declared, &mut faults);
    }
    let lookup = Clusters { declared: &declared, known: &known.clusters, secrets: &known.secrets, complete };
    let machines = read_all(&machines, &mut faults, |spot, _, faults| machine::read(spot, &lookup, faults));
    if faults.count() > 0 {
        return Err(faults.finish());
    }
    Ok(Manifest { clusters: faultless(declared), machines: faultless(machines) })
}

/// A schema that applies to no item has a mistyped name.
fn schemas_are_used(schemas: &Schemas<'_>, declared: &Found<ClusterName, ClusterSpec>, faults: &mut Faults<'_>) {
    let specs = declared.values().filter_map(|(spec, _)| spec.as_ref());
    let names: BTreeSet<&str> = specs
        .flat_map(|spec| {
            let items = spec.machine_types.values().flatten().map(|item| item.name.as_str());
            items.chain(spec.update_hooks.all().map(|hook| hook.name.as_str()))
        })
        .collect();
    for given in schemas.unused() {
        let problem = format!("schema {} is for an item '{}', and there is none", shown(given.name), shown(given.item));
        let names = names.iter().copied();
        faults.add_near(Position::START, "", problem, "the name of an item or a hook", (given.item, names));
    }
}

/// The documents of all sources, with the number of their source. `None` = unreadable.
fn trees<'s>(sources: &[Source<'s>], faults: &mut Faults<'_>) -> Vec<(usize, Option<Node<'s>>)> {
    let mut trees = Vec::new();
    let mut nodes = 0;
    let mut bytes = 0usize;
    if sources.is_empty() {
        faults.add(Position::START, "", "no manifest", "at least one file");
    }
    for (file, Source { text, .. }) in sources.iter().enumerate() {
        faults.enter(file);
        bytes = bytes.saturating_add(text.len());
        if bytes > TEXT_ALL_BYTES_MAX {
            let expected = format!("at most {} MiB in one apply", TEXT_ALL_BYTES_MAX / (1024 * 1024));
            faults.add(Position::START, "", "the manifest is too long", expected);
            trees.push((file, None));
        } else if let Some(at) = text.find('\0') {
            faults.add(Position::of_byte(text, at), "", "a NUL character", "text without it");
            trees.push((file, None));
        } else {
            let before = trees.len();
            let documents = tree::documents(text, &mut nodes, faults).into_iter();
            trees
                .extend(documents.filter(|tree| !tree.as_ref().is_some_and(Node::is_nothing)).map(|tree| (file, tree)));
            if trees.len() == before {
                faults.add(
                    Position::START,
                    "",
                    "the file is empty",
                    "a document with apiVersion, kind, metadata and spec",
                );
            }
        }
    }
    trees
}

/// The kinds of this release.
enum Kind {
    Cluster,
    Machine,
}

/// Kind of a document; `None` = its head has faults.
fn kind_of<'n>(tree: &'n Node<'n>, faults: &mut Faults<'_>) -> Option<(Kind, Map<'n>)> {
    let root = Spot::root(tree).map(faults, &DOCUMENT)?;
    let version = root.required_of(faults, "apiVersion", &[API_VERSION]).and_then(|spot| {
        let text = spot.text(faults)?;
        if text != API_VERSION {
            spot.unknown(faults, &format!("unknown apiVersion '{}'", shown(text)), &[API_VERSION]);
        }
        (text == API_VERSION).then_some(())
    });
    let kind = root.required_of(faults, "kind", KINDS.known).and_then(|spot| match spot.text(faults)? {
        "Cluster" => Some(Kind::Cluster),
        "Machine" => Some(Kind::Machine),
        "UpdateGroup" => {
            let expected = "update groups in spec.updateGroups of their Cluster";
            spot.fault(faults, "kind 'UpdateGroup' is no document of its own here", expected);
            None
        }
        later if KINDS.later.contains(&later) => {
            spot.fault(faults, format!("kind '{later}' is {LATER}"), "the document left out");
            None
        }
        other => {
            spot.unknown(faults, &format!("unknown kind '{}'", shown(other)), KINDS.known);
            None
        }
    });
    version.and(kind).map(|kind| (kind, root))
}

/// The documents of one kind.
fn read_all<'n, N, S>(
    documents: &[Document<'n>],
    faults: &mut Faults<'_>,
    read: impl Fn(&Spot<'n>, Option<&N>, &mut Faults<'_>) -> Option<S>,
) -> Found<N, S>
where
    N: TryFrom<String> + Ord + Clone + Display,
{
    let mut found = Found::new();
    let mut firsts: BTreeMap<N, String> = BTreeMap::new();
    for Document { file, root } in documents {
        faults.enter(*file);
        let metadata = root.required(faults, "metadata").and_then(|spot| spot.map(faults, &METADATA));
        let name_spot = metadata.as_ref().and_then(|metadata| metadata.required(faults, "name"));
        let name = name_spot.as_ref().and_then(|spot| spot.label::<N>(faults));
        let annotations = match &metadata {
            Some(metadata) => metadata.or("annotations", Annotations::new(), |spot| annotations(&spot, faults)),
            None => None,
        };
        let spec = root.required(faults, "spec").and_then(|spot| read(&spot, name.as_ref(), faults));
        let (Some(spot), Some(name)) = (name_spot, name) else { continue };
        if let Some(first) = firsts.get(&name) {
            spot.fault(faults, format!("a second document for '{name}'"), format!("one; the first is at {first}"));
        } else {
            firsts.insert(name.clone(), format!("{}:{}", faults.name(*file), spot.at().line));
            found.insert(name, (spec, annotations));
        }
    }
    found
}

/// The faultless parts.
fn faultless<N: Ord, S>(found: Found<N, S>) -> BTreeMap<N, (S, Annotations)> {
    found.into_iter().filter_map(|(name, (spec, annotations))| Some((name, (spec?, annotations?)))).collect()
}

/// `metadata.annotations`. Values may be sensitive and stay out of messages.
fn annotations(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<Annotations> {
    let before = faults.count();
    let mut all = Annotations::new();
    let mut bytes = 0;
    for Free { key, key_at, value } in spot.free(faults)? {
        if !is_annotation_key(key) {
            faults.add(key_at, &value.path, "not an annotation's key", ANNOTATION_KEY);
        }
        if let Some(text) = value.text(faults) {
            bytes += key.len() + text.len();
            all.insert(key.to_owned(), text.to_owned());
        }
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        spot.fault(faults, "too long annotations", format!("at most {} KiB together", ANNOTATIONS_BYTES_MAX / 1024));
    }
    (faults.count() == before).then_some(all)
}

/// Is it a valid annotation key? Its format: [`ANNOTATION_KEY`].
#[must_use]
pub fn is_annotation_key(key: &str) -> bool {
    let fits = |part: &str, bytes_max: usize| {
        (1..=bytes_max).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    };
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    fits(name, ANNOTATION_NAME_BYTES_MAX) && prefix.is_none_or(|prefix| fits(prefix, ANNOTATION_PREFIX_BYTES_MAX))
}

#[cfg(test)]
mod tests;
