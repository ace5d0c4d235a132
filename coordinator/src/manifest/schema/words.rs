//! Describes what a schema expects, in words. These may quote the schema's texts; those of `vars` stay out.

use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use serde_json::Value;

use super::super::fault::shown;

/// Most words of a list that are shown.
const WORDS_MAX: usize = 10;

/// The expected form, for this error.
pub(super) fn expected(kind: &Kind) -> String {
    match kind {
        Kind::Type { kind: TypeKind::Single(one) } => format!("a value of type {one}"),
        Kind::Type { kind: TypeKind::Multiple(all) } => {
            let all: Vec<String> = all.iter().map(|one| one.to_string()).collect();
            format!("a value of type {}", all.join(" or "))
        }
        Kind::Enum { options } => {
            let options: Vec<String> = options.as_array().into_iter().flatten().map(value).collect();
            one_of_some(&options.iter().map(String::as_str).collect::<Vec<_>>())
        }
        Kind::Constant { expected_value } => value(expected_value),
        Kind::Minimum { limit } => format!("at least {limit}"),
        Kind::Maximum { limit } => format!("at most {limit}"),
        Kind::ExclusiveMinimum { limit } => format!("more than {limit}"),
        Kind::ExclusiveMaximum { limit } => format!("less than {limit}"),
        Kind::MultipleOf { multiple_of } => format!("a multiple of {multiple_of}"),
        Kind::MinLength { limit } => format!("at least {limit} characters"),
        Kind::MaxLength { limit } => format!("at most {limit} characters"),
        Kind::MinItems { limit } => format!("at least {limit} values"),
        Kind::MaxItems { limit } => format!("at most {limit} values"),
        Kind::AdditionalItems { limit } => format!("at most {limit} values"),
        Kind::MinProperties { limit } => format!("at least {limit} keys"),
        Kind::MaxProperties { limit } => format!("at most {limit} keys"),
        Kind::UniqueItems => "values that differ".to_owned(),
        Kind::Pattern { pattern } => format!("a text that matches {}", shown(pattern)),
        Kind::Format { format } => format!("a text of format {}", shown(format)),
        Kind::FalseSchema => "it left out".to_owned(),
        other => format!("what its '{}' says", other.keyword()),
    }
}

/// `one of: a, b`, at most [`WORDS_MAX`] of them.
pub(super) fn one_of_some(words: &[&str]) -> String {
    let told: Vec<String> = words.iter().take(WORDS_MAX).map(|word| shown(word)).collect();
    let rest = words.len().saturating_sub(told.len());
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("one of: {}{more}", told.join(", "))
}

/// A value of the schema.
fn value(value: &Value) -> String {
    match value {
        Value::String(text) => shown(text),
        other => shown(&other.to_string()),
    }
}
