//! How a thing is named on the command line: by its name, or by kind and name as `get -o name` prints it.

use std::ffi::OsStr;

use clap::{
    Arg, Command, Error, ValueEnum,
    builder::{EnumValueParser, PossibleValue, TypedValueParser},
};
use muster_coordinator::view::Kind;

use crate::failure::Failure;

/// Reads the name of a machine: `worker-3`, `machine/worker-3`.
pub(crate) fn machine(text: &str) -> Result<String, String> {
    of(Kind::Machines, text)
}

/// Reads the name of anything.
pub(crate) fn any(text: &str) -> Result<String, String> {
    match text {
        "" => Err("empty name: is a shell variable unset?".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// Reads the name of a cluster: `edge-7`, `cluster/edge-7`.
pub(crate) fn cluster(text: &str) -> Result<String, String> {
    of(Kind::Clusters, text)
}

/// Reads the name of a rollout, or of the cluster whose rollout is meant.
pub(crate) fn rollout(text: &str) -> Result<String, String> {
    of(Kind::Rollouts, text).or_else(|problem| of(Kind::Clusters, text).map_err(|_| problem))
}

fn of(kind: Kind, text: &str) -> Result<String, String> {
    match text.split_once('/') {
        None => any(text),
        Some((word, name)) if word == kind.singular() || word == kind.word() => any(name),
        Some(("node" | "nodes", name)) if kind == Kind::Machines => any(name),
        Some((word, _)) => {
            Err(format!("the name of a {} is wanted, and \"{word}/\" says something else", kind.singular()))
        }
    }
}

/// A kind, and the name if it stands with it: `machine`, `machine/worker-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct What<K> {
    pub(crate) kind: K,
    name: Option<String>,
}

impl<K: ValueEnum + PartialEq> What<K> {
    /// The name that stands with the kind or is the word after it; None: neither.
    ///
    /// # Errors
    /// There are two.
    pub(crate) fn name(&self, word: Option<String>) -> Result<Option<String>, Failure> {
        match (&self.name, word) {
            (Some(name), Some(word)) => {
                Err(Failure::bad_input(format!("there are two names, \"{name}\" and \"{word}\""))
                    .next("One at a time; without a name it is all of them."))
            }
            (name, word) => Ok(word.map(|word| self.bare(word)).or_else(|| name.clone())),
        }
    }

    /// The name alone, where the same kind stands with it: `get -o name` prints names so.
    fn bare(&self, word: String) -> String {
        let named = word.split_once('/').filter(|(kind, name)| !name.is_empty() && self.is(kind));
        named.map_or_else(|| word.clone(), |(_, name)| name.to_owned())
    }

    fn is(&self, kind: &str) -> bool {
        K::from_str(kind, true).is_ok_and(|kind| kind == self.kind)
    }

    /// The names that stand with the kind or are the words after it.
    ///
    /// # Errors
    /// There is one with the kind, and there are more.
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

/// Reads a [`What`]; kinds are shown in help and errors as without it.
#[derive(Clone)]
pub(crate) struct WhatParser<K>(EnumValueParser<K>)
where
    K: ValueEnum + Clone + Send + Sync + 'static;

impl<K: ValueEnum + Clone + Send + Sync + 'static> WhatParser<K> {
    pub(crate) fn new() -> Self {
        Self(EnumValueParser::new())
    }
}

impl<K: ValueEnum + Clone + Send + Sync + 'static> TypedValueParser for WhatParser<K> {
    type Value = What<K>;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<What<K>, Error> {
        let (kind, name) = match value.to_str().and_then(|text| text.split_once('/')) {
            Some((kind, name)) if !name.is_empty() => (OsStr::new(kind), Some(name.to_owned())),
            _ => (value, None),
        };
        let known = kind.to_str().and_then(|kind| K::from_str(kind, true).ok());
        Ok(What { kind: known.map_or_else(|| self.0.parse_ref(command, arg, kind), Ok)?, name })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        self.0.possible_values()
    }
}

#[cfg(test)]
mod tests {
    use clap::ColorChoice;

    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for text in ["worker-3", "machine/worker-3", "machines/worker-3", "node/worker-3"] {
            assert_eq!(machine(text).as_deref(), Ok("worker-3"), "{text}");
        }
        assert!(machine("cluster/edge-7").is_err_and(|problem| problem.ends_with("says something else")));
        for text in ["", "machine/"] {
            assert!(machine(text).is_err_and(|problem| problem.contains("unset")), "{text}");
        }
        assert_eq!(rollout("rollout/edge-7-update-2").as_deref(), Ok("edge-7-update-2"));
        assert_eq!(rollout("cluster/edge-7").as_deref(), Ok("edge-7"));
        assert!(rollout("machine/worker-3").is_err_and(|problem| problem.contains("a rollout is wanted")));
    }

    /// As in CamelCase, which documents have.
    #[test]
    fn kinds_are_known_in_capitals() {
        let command = || Command::new("get").arg(Arg::new("what").value_parser(WhatParser::<ColorChoice>::new()));
        let read = |text: &str| command().try_get_matches_from(["get", text]);
        let what = |text: &str| read(text).expect("known").remove_one::<What<ColorChoice>>("what").expect("given");
        for text in ["never/x", "Never/x", "NEVER/x"] {
            let What { kind, name } = what(text);
            assert_eq!((kind, name.as_deref()), (ColorChoice::Never, Some("x")), "{text}");
        }
        let refused = read("Sometimes").expect_err("no such kind").to_string();
        assert!(
            refused.contains("'Sometimes'") && refused.contains("possible values: auto, always, never"),
            "{refused}"
        );
    }

    #[test]
    fn a_name_stands_with_its_kind_or_after_it() {
        let what = |name: Option<&str>| What { kind: ColorChoice::Never, name: name.map(str::to_owned) };
        assert_eq!(what(Some("a")).name(None).expect("one"), Some("a".to_owned()));
        assert_eq!(what(None).name(Some("b".to_owned())).expect("one"), Some("b".to_owned()));
        assert_eq!(what(None).name(None).expect("none"), None);
        assert!(what(Some("a")).name(Some("b".to_owned())).is_err());
        let words = || vec!["b".to_owned(), "c".to_owned()];
        assert_eq!(what(None).names(words()).expect("two"), words());
        assert_eq!(what(Some("a")).names(Vec::new()).expect("one"), ["a"]);
        assert!(what(Some("a")).names(words()).is_err());
        // As `get -o name` prints them, for `xargs`.
        let printed = || vec!["never/b".to_owned(), "Never/c".to_owned()];
        assert_eq!(what(Some("a")).names(printed()).expect("three"), ["a", "b", "c"]);
        assert_eq!(what(None).names(printed()).expect("two"), ["b", "c"]);
        assert_eq!(what(None).name(Some("never/b".to_owned())).expect("one"), Some("b".to_owned()));
        for other in ["operator/bo", "always/b", "never/"] {
            assert_eq!(what(None).names(vec![other.to_owned()]).expect("a name"), [other]);
        }
    }
}
