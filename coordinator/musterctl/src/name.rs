//! Names on the command line: a name alone, or kind and name as `get -o name` prints them.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use muster_proto::resource::Kind;

use crate::errors::Failure;

/// Names of the same kinds in LCM and kubectl, in the singular.
const ALIASES: &[(&str, Kind)] = &[
    ("lcmcluster", Kind::Clusters),
    ("lcmmachine", Kind::Machines),
    ("node", Kind::Machines),
    ("no", Kind::Machines),
    ("lcmclusterstate", Kind::ClusterStates),
];

/// The kind of this word, in the singular or the plural, in any case.
fn kind(word: &str) -> Option<Kind> {
    let word = word.to_lowercase();
    let is = |singular: &str| word == singular || word.strip_suffix('s') == Some(singular);
    let known = Kind::ALL.into_iter().map(|kind| (kind.singular(), kind)).chain(ALIASES.iter().copied());
    known.into_iter().find(|(singular, _)| is(singular)).map(|(_, kind)| kind)
}

/// Parse the name of a machine: `worker-3`, `machine/worker-3`.
pub(crate) fn machine(text: &str) -> Result<String, String> {
    of(Kind::Machines, text)
}

/// Parse a name of any kind.
pub(crate) fn any(text: &str) -> Result<String, String> {
    match text {
        "" => Err("empty name: is a shell variable unset?".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// Parse the name of a cluster: `edge-7`, `cluster/edge-7`.
pub(crate) fn cluster(text: &str) -> Result<String, String> {
    of(Kind::Clusters, text)
}

/// Parse the name of a rollout, or of the cluster that has it.
pub(crate) fn rollout(text: &str) -> Result<String, String> {
    of(Kind::Rollouts, text).or_else(|problem| of(Kind::Clusters, text).map_err(|_| problem))
}

fn of(expected: Kind, text: &str) -> Result<String, String> {
    match text.split_once('/') {
        None => any(text),
        Some((word, name)) if kind(word) == Some(expected) => any(name),
        Some((word, _)) => Err(format!("expected the name of a {}, not of a {word}", expected.singular())),
    }
}

/// A kind with an optional name: `machine`, `machine/worker-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct What {
    pub(crate) kind: Kind,
    name: Option<String>,
}

impl What {
    /// The name beside the kind or in the next word, if any.
    ///
    /// # Errors
    /// Both have one.
    pub(crate) fn name(&self, word: Option<String>) -> Result<Option<String>, Failure> {
        match (&self.name, word) {
            (Some(name), Some(word)) => Err(Failure::bad_input(format!("expected one name, not {name} and {word}"))),
            (name, word) => Ok(word.map(|word| self.bare(word)).or_else(|| name.clone())),
        }
    }

    /// The bare name, if it has the same kind before it: `get -o name` prints names so.
    fn bare(&self, word: String) -> String {
        let named = word.split_once('/').filter(|(word, name)| !name.is_empty() && kind(word) == Some(self.kind));
        named.map_or_else(|| word.clone(), |(_, name)| name.to_owned())
    }

    /// The names beside the kind or in the following words.
    ///
    /// # Errors
    /// A bare name follows a kind with a name.
    pub(crate) fn names(&self, words: Vec<String>) -> Result<Vec<String>, Failure> {
        match &self.name {
            Some(name) if words.iter().all(|word| self.bare(word.clone()) != *word) => {
                Ok([name.clone()].into_iter().chain(words.into_iter().map(|word| self.bare(word))).collect())
            }
            Some(name) => {
                let words = words.join(" ");
                Err(Failure::bad_input(format!("there are two names, \"{name}\" and \"{words}\""))
                    .next(format!("With several the kind stands alone, as in: machines {name} {words}")))
            }
            None => Ok(words.into_iter().map(|word| self.bare(word)).collect()),
        }
    }
}

/// Parser of a [`What`] of one of these kinds.
#[derive(Clone)]
pub(crate) struct WhatParser {
    /// The kinds, with their help texts.
    pub(crate) kinds: &'static [(Kind, &'static str)],
    /// The word for a kind in help and errors.
    pub(crate) shown: fn(Kind) -> &'static str,
}

impl TypedValueParser for WhatParser {
    type Value = What;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<What, Error> {
        let (word, name) = match value.to_str().and_then(|text| text.split_once('/')) {
            Some((word, name)) if !name.is_empty() => (OsStr::new(word), Some(name.to_owned())),
            _ => (value, None),
        };
        let known = word.to_str().and_then(kind).filter(|kind| self.kinds.iter().any(|(listed, _)| listed == kind));
        match known {
            Some(kind) => Ok(What { kind, name }),
            // An unknown word: this returns clap's own error.
            None => {
                let words = PossibleValuesParser::from(self.possible_values().into_iter().flatten());
                let _: String = words.parse_ref(command, arg, word)?;
                Err(Error::new(clap::error::ErrorKind::InvalidValue).with_cmd(command))
            }
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let listed = self.kinds.iter().map(|(kind, about)| {
            let value = PossibleValue::new((self.shown)(*kind));
            if about.is_empty() { value } else { value.help(*about) }
        });
        Some(Box::new(listed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: &[(Kind, &str)] = &[(Kind::Clusters, ""), (Kind::Machines, ""), (Kind::ClusterStates, "")];

    #[test]
    fn names_are_read_as_they_are_printed() {
        for text in ["worker-3", "machine/worker-3", "machines/worker-3", "node/worker-3"] {
            assert_eq!(machine(text).as_deref(), Ok("worker-3"), "{text}");
        }
        assert!(machine("cluster/edge-7").is_err_and(|problem| problem.ends_with("not of a cluster")));
        assert!(machine("worker-3/hello").is_err_and(|problem| problem.contains("expected the name of a machine")));
        for text in ["", "machine/"] {
            assert!(machine(text).is_err_and(|problem| problem.contains("unset")), "{text}");
        }
        assert_eq!(rollout("rollout/edge-7-update-2").as_deref(), Ok("edge-7-update-2"));
        assert_eq!(rollout("cluster/edge-7").as_deref(), Ok("edge-7"));
        assert!(rollout("machine/worker-3").is_err_and(|problem| problem.contains("name of a rollout")));
    }

    /// Including CamelCase, as in documents.
    #[test]
    fn kinds_are_known_in_any_form() {
        let command = || {
            Command::new("get").arg(Arg::new("what").value_parser(WhatParser { kinds: KINDS, shown: Kind::singular }))
        };
        let read = |text: &str| command().try_get_matches_from(["get", text]);
        let what = |text: &str| read(text).expect("known").remove_one::<What>("what").expect("given");
        for text in ["machine/x", "Machines/x", "NODE/x", "lcmmachine/x", "no/x", "nodes/x"] {
            let What { kind, name } = what(text);
            assert_eq!((kind, name.as_deref()), (Kind::Machines, Some("x")), "{text}");
        }
        assert_eq!(what("LcmClusterStates").kind, Kind::ClusterStates);
        for other in ["Sometimes", "tokens"] {
            let refused = read(other).expect_err("not listed").to_string();
            let known = "possible values: cluster, machine, clusterstate";
            assert!(refused.contains(&format!("'{other}'")) && refused.contains(known), "{refused}");
        }
    }

    #[test]
    fn a_name_stands_with_its_kind_or_after_it() {
        let what = |name: Option<&str>| What { kind: Kind::Machines, name: name.map(str::to_owned) };
        assert_eq!(what(Some("a")).name(None).expect("one"), Some("a".to_owned()));
        assert_eq!(what(None).name(Some("b".to_owned())).expect("one"), Some("b".to_owned()));
        assert_eq!(what(None).name(None).expect("none"), None);
        assert!(what(Some("a")).name(Some("b".to_owned())).is_err());
        let words = || vec!["b".to_owned(), "c".to_owned()];
        assert_eq!(what(None).names(words()).expect("two"), words());
        assert_eq!(what(Some("a")).names(Vec::new()).expect("one"), ["a"]);
        assert!(what(Some("a")).names(words()).is_err());
        // As `get -o name` prints them, for `xargs`.
        let printed = || vec!["machine/b".to_owned(), "Node/c".to_owned()];
        assert_eq!(what(Some("a")).names(printed()).expect("three"), ["a", "b", "c"]);
        assert_eq!(what(None).names(printed()).expect("two"), ["b", "c"]);
        assert_eq!(what(None).name(Some("machine/b".to_owned())).expect("one"), Some("b".to_owned()));
        for other in ["operator/bo", "cluster/b", "machine/"] {
            assert_eq!(what(None).names(vec![other.to_owned()]).expect("a name"), [other]);
        }
    }
}
