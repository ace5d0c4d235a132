//! `${…}` in params. *Early* variables are replaced by the coordinator and so are part of an item's hash; *late* ones
//! (addresses that may move, and secrets) travel as text and are replaced by the agent right before the start.

use std::collections::BTreeMap;

/// Replaced by the coordinator.
pub const EARLY: &[&str] =
    &["machine.name", "machine.hostname", "cluster.name", "cluster.release", "cluster.controlPlaneNodes"];
/// Replaced by the agent; out of the hash.
pub const LATE: &[&str] = &["machine.internalIP", "cluster.controlNodeIP"];
/// Prefix of the variables that stand for a secret's value; late.
pub const SECRET_PREFIX: &str = "secret.";
/// The one param that is never searched for variables: shell has its own `${}`.
pub const VERBATIM_PARAM: &str = "script";

/// What is wrong with a param's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// `$` that begins neither `${name}` nor `$$`.
    #[error("a lone '$'; write '$$' for a dollar sign")]
    LoneDollar,
    /// `${` without `}`.
    #[error("'${{' without '}}'; write '$${{' for the text itself")]
    Unclosed,
    /// Not one of the known names.
    #[error("unknown variable '{0}'")]
    Unknown(String),
    /// Known, but it has no value here and now.
    #[error("variable '{0}' has no value here")]
    NoValue(String),
}

/// A piece of a param's text.
enum Piece<'a> {
    Text(&'a str),
    Dollar,
    Variable(&'a str),
}

/// Cuts a text into pieces.
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

fn is_late(name: &str) -> bool {
    LATE.contains(&name) || name.starts_with(SECRET_PREFIX)
}

/// The variables of a text, all of them known.
///
/// # Errors
/// [`VariableError`] for the first fault.
pub fn names(text: &str) -> Result<Vec<&str>, VariableError> {
    pieces(text)?
        .into_iter()
        .filter_map(|piece| match piece {
            Piece::Variable(name) if EARLY.contains(&name) || is_late(name) => Some(Ok(name)),
            Piece::Variable(name) => Some(Err(VariableError::Unknown(name.to_owned()))),
            Piece::Text(_) | Piece::Dollar => None,
        })
        .collect()
}

/// Replaces the early variables. Late ones and `$$` stay as they are, and a `$` in a value becomes `$$`, so that the
/// result is again a text for [`replace_late`].
///
/// # Errors
/// [`VariableError`] for the first fault.
pub fn replace_early(text: &str, values: &BTreeMap<&str, String>) -> Result<String, VariableError> {
    let mut result = String::with_capacity(text.len());
    for piece in pieces(text)? {
        match piece {
            Piece::Text(text) => result.push_str(text),
            Piece::Dollar => result.push_str("$$"),
            Piece::Variable(name) if is_late(name) => {
                result.push_str("${");
                result.push_str(name);
                result.push('}');
            }
            Piece::Variable(name) => match values.get(name) {
                Some(value) => result.push_str(&value.replace('$', "$$")),
                None if EARLY.contains(&name) => return Err(VariableError::NoValue(name.to_owned())),
                None => return Err(VariableError::Unknown(name.to_owned())),
            },
        }
    }
    Ok(result)
}

/// Replaces the late variables and `$$`: the text as the runner gets it.
///
/// # Errors
/// [`VariableError`] for the first fault.
pub fn replace_late(text: &str, values: &BTreeMap<String, String>) -> Result<String, VariableError> {
    let mut result = String::with_capacity(text.len());
    for piece in pieces(text)? {
        match piece {
            Piece::Text(text) => result.push_str(text),
            Piece::Dollar => result.push('$'),
            Piece::Variable(name) => match values.get(name) {
                Some(value) => result.push_str(value),
                None if is_late(name) => return Err(VariableError::NoValue(name.to_owned())),
                None => return Err(VariableError::Unknown(name.to_owned())),
            },
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
        assert_eq!(names("${machine.nam}"), Err(unknown));
        assert_eq!(names("${secret.a} ${cluster.name} $$"), Ok(vec!["secret.a", "cluster.name"]));
    }
}
