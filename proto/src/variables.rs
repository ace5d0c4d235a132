//! `${…}` in params. The coordinator replaces *early* variables, so they are part of an item's hash. *Late* ones
//! (addresses that may move) travel as text; the agent replaces them right before the start. A secret travels as its
//! name and version; only the process that runs the item sees its value in the text.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::model::SecretName;

/// Variables that the coordinator replaces.
pub const EARLY: &[&str] =
    &["machine.name", "machine.hostname", "cluster.name", "cluster.release", "cluster.controlPlaneNodes"];
/// Variables that the agent replaces; excluded from the hash.
pub const LATE: &[&str] = &["machine.internalIP", "cluster.controlNodeIP"];
/// Prefix of the variables that stand for a secret's value; they are late.
pub const SECRET_PREFIX: &str = "secret.";
/// Separates a secret's name from its version; invalid in names.
const VERSION_MARK: char = '@';
/// The one param whose `${}` are left alone: they belong to the shell.
pub const VERBATIM_PARAM: &str = "script";

/// The param that carries an item's `vars`: a JSON object. Its values are searched one by one, its names are left
/// alone. Manifests cannot set it: params' names begin with a letter.
pub const VARS_PARAM: &str = "_vars";

/// Why a param's text is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// A `$` that begins something other than `${name}` or `$$`.
    #[error("a lone '$'; write '$$' for a dollar sign")]
    LoneDollar,
    /// `${` that lacks its `}`.
    #[error("'${{' without '}}'; write '$${{' for the text itself")]
    Unclosed,
    /// An unknown name.
    #[error("unknown variable '{0}'")]
    Unknown(String),
    /// A known name that has no value here.
    #[error("variable '{0}' has no value here")]
    NoValue(String),
    /// The param that carries `vars` is malformed.
    #[error("not a JSON object")]
    NotVars,
}

/// A piece of a param's text.
enum Piece<'a> {
    Text(&'a str),
    Dollar,
    Variable(&'a str),
}

/// Split a text into pieces.
fn pieces(mut text: &str) -> Result<Vec<Piece<'_>>, VariableError> {
    let mut found = Vec::new();
    while let Some(at) = text.find('$') {
        let (before, rest) = text.split_at(at);
        if !before.is_empty() {
            found.push(Piece::Text(before));
        }
        if let Some(after) = rest.strip_prefix("$$") {
            found.push(Piece::Dollar);
            text = after;
        } else if let Some(after) = rest.strip_prefix("${") {
            let (name, after) = after.split_once('}').ok_or(VariableError::Unclosed)?;
            found.push(Piece::Variable(name));
            text = after;
        } else {
            return Err(VariableError::LoneDollar);
        }
    }
    if !text.is_empty() {
        found.push(Piece::Text(text));
    }
    Ok(found)
}

/// The name of a secret in a variable, `secret.NAME` or `secret.NAME@VERSION`.
#[must_use]
pub fn secret_of(variable: &str) -> Option<SecretName> {
    let name = variable.strip_prefix(SECRET_PREFIX)?;
    SecretName::new(name.split_once(VERSION_MARK).map_or(name, |(name, _)| name)).ok()
}

fn unknown(name: &str) -> VariableError {
    VariableError::Unknown(name.to_owned())
}

/// The variables of a text; all must be known.
///
/// # Errors
/// [`VariableError`] for the first fault.
pub fn names(text: &str) -> Result<Vec<&str>, VariableError> {
    pieces(text)?
        .into_iter()
        .filter_map(|piece| match piece {
            // Only the coordinator may add a version.
            Piece::Variable(name) if name.contains(VERSION_MARK) => Some(Err(unknown(name))),
            Piece::Variable(name) if EARLY.contains(&name) || LATE.contains(&name) => Some(Ok(name)),
            Piece::Variable(name) if secret_of(name).is_some() => Some(Ok(name)),
            Piece::Variable(name) => Some(Err(unknown(name))),
            Piece::Text(_) | Piece::Dollar => None,
        })
        .collect()
}

/// The secrets that some params refer to, sorted and unique. A param that fails to parse is skipped.
#[must_use]
pub fn secrets_of(params: &BTreeMap<String, String>) -> Vec<SecretName> {
    let found: BTreeSet<SecretName> = params.iter().flat_map(|(name, text)| secrets_of_param(name, text)).collect();
    found.into_iter().collect()
}

/// Does a param refer to a secret?
#[must_use]
pub fn has_secret(name: &str, text: &str) -> bool {
    !secrets_of_param(name, text).is_empty()
}

fn secrets_of_param(name: &str, text: &str) -> Vec<SecretName> {
    match name {
        VERBATIM_PARAM => Vec::new(),
        VARS_PARAM => vars(text).map(|vars| vars.values().flat_map(secrets_in_value).collect()).unwrap_or_default(),
        _ => secrets_in(text),
    }
}

fn secrets_in_value(value: &Value) -> Vec<SecretName> {
    match value {
        Value::String(text) => secrets_in(text),
        Value::Array(all) => all.iter().flat_map(secrets_in_value).collect(),
        Value::Object(all) => all.values().flat_map(secrets_in_value).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

/// Parse an item's `vars` from the param that carries them.
///
/// # Errors
/// [`VariableError::NotVars`].
pub fn vars(text: &str) -> Result<Map<String, Value>, VariableError> {
    serde_json::from_str(text).map_err(|_| VariableError::NotVars)
}

/// Replace the variables in a param: in the whole text, or in each value of `vars`, whose structure stays fixed.
///
/// # Errors
/// [`VariableError`] for the first fault.
pub fn replace_in_param(
    name: &str,
    text: &str,
    replace: impl Fn(&str) -> Result<String, VariableError>,
) -> Result<String, VariableError> {
    match name {
        VERBATIM_PARAM => Ok(text.to_owned()),
        VARS_PARAM => {
            let mut vars = vars(text)?;
            vars.values_mut().try_for_each(|value| replace_in_value(value, &replace))?;
            Ok(Value::Object(vars).to_string())
        }
        _ => replace(text),
    }
}

fn replace_in_value(
    value: &mut Value,
    replace: &impl Fn(&str) -> Result<String, VariableError>,
) -> Result<(), VariableError> {
    match value {
        Value::String(text) => *text = replace(text)?,
        Value::Array(all) => all.iter_mut().try_for_each(|value| replace_in_value(value, replace))?,
        Value::Object(all) => all.values_mut().try_for_each(|value| replace_in_value(value, replace))?,
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    Ok(())
}

fn secrets_in(text: &str) -> Vec<SecretName> {
    let secret = |piece| match piece {
        Piece::Variable(name) => secret_of(name),
        Piece::Text(_) | Piece::Dollar => None,
    };
    pieces(text).unwrap_or_default().into_iter().filter_map(secret).collect()
}

/// Replacement of a variable in [`rewritten`].
enum Put<'a> {
    /// It stays a variable with this name.
    Variable(String),
    /// Its value replaces it.
    Value(&'a str),
}

/// Replace some variables. `$$` stays, and a `$` in a value becomes `$$`, so the result is again a text for
/// [`replace_late`].
fn rewritten<'a>(text: &str, put: impl Fn(&str) -> Result<Put<'a>, VariableError>) -> Result<String, VariableError> {
    let mut result = String::with_capacity(text.len());
    for piece in pieces(text)? {
        match piece {
            Piece::Text(text) => result.push_str(text),
            Piece::Dollar => result.push_str("$$"),
            Piece::Variable(name) => match put(name)? {
                Put::Variable(name) => {
                    result.push_str("${");
                    result.push_str(&name);
                    result.push('}');
                }
                Put::Value(value) => result.push_str(&value.replace('$', "$$")),
            },
        }
    }
    Ok(result)
}

/// Replace the early variables. Late ones stay. A secret gets its version, `${secret.NAME@VERSION}`, which `values` has
/// under `secret.NAME`: an item's hash depends on the version, but is independent of the value.
///
/// # Errors
/// [`VariableError`] for the first fault.
pub fn replace_early(text: &str, values: &BTreeMap<&str, String>) -> Result<String, VariableError> {
    rewritten(text, |name| match values.get(name) {
        Some(version) if secret_of(name).is_some() => Ok(Put::Variable(format!("{name}{VERSION_MARK}{version}"))),
        Some(value) => Ok(Put::Value(value)),
        None if LATE.contains(&name) => Ok(Put::Variable(name.to_owned())),
        None if EARLY.contains(&name) || secret_of(name).is_some() => Err(VariableError::NoValue(name.to_owned())),
        None => Err(unknown(name)),
    })
}

/// Replace the late variables except secrets. The result is a text for [`replace_late`] where the secrets are
/// available.
///
/// # Errors
/// [`VariableError`] for the first fault.
pub fn replace_all_but_secrets(text: &str, values: &BTreeMap<String, String>) -> Result<String, VariableError> {
    rewritten(text, |name| match values.get(name) {
        Some(value) => Ok(Put::Value(value)),
        None if secret_of(name).is_some() => Ok(Put::Variable(name.to_owned())),
        None if LATE.contains(&name) => Err(VariableError::NoValue(name.to_owned())),
        None => Err(unknown(name)),
    })
}

/// Replace the late variables and `$$`: the text as the runner gets it. `values` has a secret under `secret.NAME`,
/// whatever its version.
///
/// # Errors
/// [`VariableError`] for the first fault.
pub fn replace_late(text: &str, values: &BTreeMap<String, String>) -> Result<String, VariableError> {
    let mut result = String::with_capacity(text.len());
    for piece in pieces(text)? {
        match piece {
            Piece::Text(text) => result.push_str(text),
            Piece::Dollar => result.push('$'),
            Piece::Variable(name) => {
                let secret = secret_of(name);
                let known = secret.as_ref().map_or_else(|| name.to_owned(), |name| format!("{SECRET_PREFIX}{name}"));
                match values.get(&known) {
                    Some(value) => result.push_str(value),
                    None if secret.is_some() || LATE.contains(&name) => return Err(VariableError::NoValue(known)),
                    None => return Err(unknown(name)),
                }
            }
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(text: &str) -> Result<String, VariableError> {
        let early = BTreeMap::from([("machine.name", "w$1".to_owned())]);
        let late = BTreeMap::from([("machine.internalIP".to_owned(), "10.0.0.7".to_owned())]);
        replace_late(&replace_early(text, &early)?, &late)
    }

    #[test]
    fn variables_are_replaced_once() {
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("a ${machine.name} b", "a w$1 b"),
            ("${machine.internalIP}:2377", "10.0.0.7:2377"),
            ("$$${machine.name}$$", "$w$1$"),
            ("$${machine.name}", "${machine.name}"),
            ("{{ }} ; rm -rf / \n", "{{ }} ; rm -rf / \n"),
        ] {
            assert_eq!(both(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn faults_are_named() {
        let unknown = VariableError::Unknown("machine.nam".to_owned());
        for (text, expected) in [
            ("$", VariableError::LoneDollar),
            ("$HOME", VariableError::LoneDollar),
            ("${machine.name", VariableError::Unclosed),
            ("${machine.nam}", unknown.clone()),
            ("${}", VariableError::Unknown(String::new())),
            ("${cluster.release}", VariableError::NoValue("cluster.release".to_owned())),
            ("${secret.a}", VariableError::NoValue("secret.a".to_owned())),
        ] {
            assert_eq!(both(text), Err(expected), "{text}");
        }
        for bad in ["machine.nam", "secret.a@1", "secret.", "secret.A", "secret.a.b", "secret"] {
            assert_eq!(names(&format!("${{{bad}}}")), Err(VariableError::Unknown(bad.to_owned())), "{bad}");
        }
        assert_eq!(names("${secret.a} ${cluster.name} $$"), Ok(vec!["secret.a", "cluster.name"]));
    }

    #[test]
    fn a_secret_enters_by_version_and_leaves_by_value() {
        let early = BTreeMap::from([("secret.db-1", "7".to_owned()), ("cluster.name", "e$".to_owned())]);
        let text = replace_early("$$ ${cluster.name} u:${secret.db-1}@${machine.internalIP}", &early).expect("good");
        assert_eq!(text, "$$ e$$ u:${secret.db-1@7}@${machine.internalIP}");
        let late = BTreeMap::from([("machine.internalIP".to_owned(), "1$2".to_owned())]);
        let text = replace_all_but_secrets(&text, &late).expect("good");
        assert_eq!(text, "$$ e$$ u:${secret.db-1@7}@1$$2");
        let secrets = BTreeMap::from([("secret.db-1".to_owned(), "p$$${x}".to_owned())]);
        assert_eq!(replace_late(&text, &secrets).as_deref(), Ok("$ e$ u:p$$${x}@1$2"));
        assert_eq!(replace_late(&text, &late), Err(VariableError::NoValue("secret.db-1".to_owned())));
    }

    #[test]
    fn vars_are_replaced_text_by_text() {
        let text = r#"{"${secret.no}":[{"a":"${secret.b@2} ${machine.internalIP}"},true,7,null],"z":"$$"}"#;
        let params = BTreeMap::from([(VARS_PARAM.to_owned(), text.to_owned())]);
        assert_eq!(secrets_of(&params).into_iter().map(String::from).collect::<Vec<_>>(), ["b"]);
        let values = [("secret.b", "\"}],\"owned\":\"$"), ("machine.internalIP", "10.0.0.7")];
        let values = values.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let replaced = replace_in_param(VARS_PARAM, text, |text| replace_late(text, &values)).expect("replaced");
        let expected = serde_json::json!({
            "${secret.no}": [{"a": "\"}],\"owned\":\"$ 10.0.0.7"}, true, 7, null],
            "z": "$",
        });
        assert_eq!(vars(&replaced).map(Value::Object), Ok(expected));
        for bad in ["", "[]", "7", "{"] {
            assert_eq!(replace_in_param(VARS_PARAM, bad, |_| Ok(String::new())), Err(VariableError::NotVars), "{bad}");
        }
    }

    #[test]
    fn secrets_are_found_in_every_param_but_a_script() {
        let params = [("script", "${secret.no}"), ("a", "${secret.b@2}${secret.a}"), ("b", "${secret.a}"), ("c", "$")];
        let params = params.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        let found: Vec<String> = secrets_of(&params).into_iter().map(String::from).collect();
        assert_eq!(found, ["a", "b"]);
    }
}
