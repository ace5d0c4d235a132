//! Field selectors and label selectors of lists and watches.

use serde_json::Value;

use super::{call::Call, failure::Failure, kinds::Kind};

/// Selection of a list or a watch.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    namespace: String,
    fields: Vec<(String, bool, String)>,
    labels: Vec<Requirement>,
}

#[derive(Clone, Debug)]
struct Requirement {
    key: String,
    /// `None`: only the presence of the label counts.
    values: Option<Vec<String>>,
    negated: bool,
}

impl Filter {
    /// The selection that a request asks for.
    pub(super) fn parse(call: &Call, kind: &Kind) -> Result<Self, Failure> {
        let mut filter = Self { namespace: call.namespace.clone(), ..Self::default() };
        for term in call.parameter("fieldSelector").split(',').filter(|term| !term.is_empty()) {
            let (field, equal, value) = comparison(term).ok_or_else(|| {
                Failure::bad_request(format!("invalid selector: '{term}'; can't understand '{term}'"))
            })?;
            if !is_supported(kind, field) {
                return Err(Failure::bad_request(format!("field label not supported: {field}")));
            }
            filter.fields.push((field.to_owned(), equal, value.to_owned()));
        }
        if !call.name.is_empty() {
            filter.fields.push(("metadata.name".to_owned(), true, call.name.clone()));
        }
        filter.labels = split_terms(call.parameter("labelSelector")).iter().map(|term| requirement(term)).collect();
        Ok(filter)
    }

    /// Does it leave something out within its namespace?
    pub(super) fn is_selective(&self) -> bool {
        !self.fields.is_empty() || !self.labels.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        (self.namespace.is_empty() || super::objects::namespace(object) == self.namespace)
            && self.fields.iter().all(|(field, equal, value)| (field_text(object, field) == *value) == *equal)
            && self.labels.iter().all(|requirement| requirement.matches(object))
    }
}

impl Requirement {
    fn matches(&self, object: &Value) -> bool {
        let label = object.pointer("/metadata/labels").and_then(|labels| labels.get(&self.key)).and_then(Value::as_str);
        let holds = match (&self.values, label) {
            (None, label) => label.is_some(),
            (Some(values), Some(label)) => values.iter().any(|value| value == label),
            (Some(_), None) => false,
        };
        holds != self.negated
    }
}

fn comparison(term: &str) -> Option<(&str, bool, &str)> {
    if let Some((field, value)) = term.split_once("!=") {
        return Some((field.trim(), false, value.trim()));
    }
    let (field, value) = term.split_once("==").or_else(|| term.split_once('='))?;
    Some((field.trim(), true, value.trim()))
}

fn is_supported(kind: &Kind, field: &str) -> bool {
    if field == "metadata.name" || field == "metadata.namespace" {
        return true;
    }
    match kind.resource().as_str() {
        "pods" => [
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
        ]
        .contains(&field),
        "nodes" => field == "spec.unschedulable",
        "namespaces" => field == "status.phase",
        "events" => field.starts_with("involvedObject.") || ["reason", "type", "reportingComponent"].contains(&field),
        _ => false,
    }
}

fn field_text(object: &Value, field: &str) -> String {
    match object.pointer(&format!("/{}", field.replace('.', "/"))) {
        Some(Value::String(text)) => text.clone(),
        None if field == "spec.unschedulable" => "false".to_owned(),
        None => String::new(),
        Some(other) => other.to_string(),
    }
}

/// Split at commas outside parentheses.
fn split_terms(selector: &str) -> Vec<String> {
    let (mut terms, mut term, mut depth) = (Vec::new(), String::new(), 0);
    for letter in selector.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(std::mem::take(&mut term));
                continue;
            }
            _ => {}
        }
        term.push(letter);
    }
    terms.push(term);
    terms.retain(|term| !term.trim().is_empty());
    terms
}

fn requirement(term: &str) -> Requirement {
    let term = term.trim();
    for (operator, negated) in [(" notin ", true), (" in ", false)] {
        if let Some((key, values)) = term.split_once(operator) {
            let values = values.trim().trim_start_matches('(').trim_end_matches(')');
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            return Requirement { key: key.trim().to_owned(), values: Some(values), negated };
        }
    }
    if let Some((key, equal, value)) = comparison(term) {
        return Requirement { key: key.to_owned(), values: Some(vec![value.to_owned()]), negated: !equal };
    }
    let key = term.trim_start_matches('!');
    Requirement { key: key.trim().to_owned(), values: None, negated: key != term }
}
