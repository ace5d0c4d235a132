//! Label selectors, as PodDisruptionBudgets use them.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Labels of an object.
pub(crate) type Labels = BTreeMap<String, String>;

/// A `LabelSelector`: labels match if all its terms hold. Without terms it matches everything.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct LabelSelector {
    /// Labels that must have these values.
    pub(crate) match_labels: Labels,
    /// Further terms.
    pub(crate) match_expressions: Vec<Expression>,
}

/// A term of [`LabelSelector`].
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Expression {
    /// The label's name.
    pub(crate) key: String,
    /// What must hold for its value.
    pub(crate) operator: Operator,
    /// Values that `In` and `NotIn` compare with.
    #[serde(default)]
    pub(crate) values: Vec<String>,
}

/// An operator of [`Expression`]. Kubernetes knows these four; an answer with another one cannot be read.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) enum Operator {
    /// The label is there, with one of the values.
    In,
    /// The label is absent, or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl LabelSelector {
    /// Does it select an object with these labels?
    pub(crate) fn matches(&self, labels: &Labels) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|term| term.matches(labels))
    }
}

impl Expression {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let is_listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => is_listed,
            Operator::NotIn => !is_listed,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn matches(selector: Value, labels: Value) -> bool {
        let selector: LabelSelector = serde_json::from_value(selector).unwrap();
        selector.matches(&serde_json::from_value(labels).unwrap())
    }

    fn term(operator: &str, values: Value) -> Value {
        json!({ "matchExpressions": [{ "key": "app", "operator": operator, "values": values }] })
    }

    #[test]
    fn empty_selector_matches_all() {
        assert!(matches(json!({}), json!({})));
        assert!(matches(json!({}), json!({ "app": "web" })));
    }

    #[test]
    fn match_labels_need_every_value() {
        let both = json!({ "matchLabels": { "app": "web", "tier": "front" } });
        assert!(matches(both.clone(), json!({ "app": "web", "tier": "front", "more": "" })));
        assert!(!matches(both.clone(), json!({ "app": "web" })));
        assert!(!matches(both, json!({ "app": "web", "tier": "back" })));
    }

    #[test]
    fn operators_match_table() {
        // Operator, values; then whether it matches: value listed, value not listed, label absent.
        let table = [
            ("In", json!(["web", "db"]), [true, false, false]),
            ("NotIn", json!(["web", "db"]), [false, true, true]),
            ("Exists", json!([]), [true, true, false]),
            ("DoesNotExist", json!([]), [false, false, true]),
        ];
        let labels = [json!({ "app": "web" }), json!({ "app": "mail" }), json!({ "other": "web" })];
        for (operator, values, expected) in table {
            let found = labels.clone().map(|labels| matches(term(operator, values.clone()), labels));
            assert_eq!(found, expected, "{operator}");
        }
    }

    #[test]
    fn terms_all_must_hold() {
        let selector = json!({
            "matchLabels": { "app": "web" },
            "matchExpressions": [{ "key": "canary", "operator": "DoesNotExist" }],
        });
        assert!(matches(selector.clone(), json!({ "app": "web" })));
        assert!(!matches(selector.clone(), json!({ "app": "web", "canary": "" })));
        assert!(!matches(selector, json!({})));
    }

    #[test]
    fn unknown_operator_is_unreadable() {
        assert!(serde_json::from_value::<LabelSelector>(term("Gt", json!(["1"]))).is_err());
    }
}
