//! JSON schemas for `vars`: the `schema` of an item, and those that an operator gives beside the manifest. They come
//! from the module's author, so their cost is bounded before use: references stay within the schema and are free of
//! cycles, and patterns match in linear time. Values of `vars` stay out of messages.

mod bounds;
mod words;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

use jsonschema::{PatternOptions, ValidationError, Validator, error::ValidationErrorKind};
use muster_proto::{
    SCHEMA_BYTES_MAX,
    model::{ClusterName, ItemName, RunnerKind},
    variables::{self, VARS_PARAM},
};
use serde_json::Value;

use self::bounds::count;
use super::{
    fault::{Faults, printable, shown},
    params::Secrets,
    read::{Map, Spot},
    tree::join,
};

/// Deepest nesting of `schema` in a manifest.
const SCHEMA_DEPTH_MAX: usize = 24;
/// Total steps of all checks in one apply: each value of `vars` is compared with each node of its schema.
const STEPS_MAX: usize = 2_000_000;
/// Most faults reported for one item's `vars` and one schema.
const FAULTS_PER_ITEM_MAX: usize = 20;
/// Largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// Longest text of a fault of a schema, in characters.
const PROBLEM_CHARS_MAX: usize = 200;

type Params = BTreeMap<String, String>;

/// A schema that an operator gives beside the manifest.
#[derive(Clone, Copy, Debug)]
pub struct GivenSchema<'a> {
    /// Name of the items and hooks to check.
    pub item: &'a str,
    /// Name of its file as the operator gave it, for messages.
    pub name: &'a str,
    /// The schema as JSON.
    pub text: &'a str,
}

/// The given schemas, and the steps left for checks.
pub(super) struct Schemas<'a> {
    given: &'a [GivenSchema<'a>],
    used: RefCell<BTreeSet<usize>>,
    steps: Cell<usize>,
}

impl<'a> Schemas<'a> {
    pub(super) const fn new(given: &'a [GivenSchema<'a>]) -> Self {
        Self { given, used: RefCell::new(BTreeSet::new()), steps: Cell::new(STEPS_MAX) }
    }

    /// The schemas given for this item.
    fn of(&self, item: &ItemName) -> Vec<GivenSchema<'a>> {
        let all = self.given.iter().enumerate().filter(|(_, given)| given.item == item.as_str());
        let mut used = self.used.borrow_mut();
        all.map(|(index, given)| {
            used.insert(index);
            *given
        })
        .collect()
    }

    /// The unused schemas.
    pub(super) fn unused(&self) -> impl Iterator<Item = &'a GivenSchema<'a>> {
        let used = self.used.borrow();
        self.given.iter().enumerate().filter(move |(index, _)| !used.contains(index)).map(|(_, given)| given)
    }

    /// Take this number of steps, if they are left.
    fn takes(&self, steps: usize) -> bool {
        let left = self.steps.get().checked_sub(steps);
        self.steps.set(left.unwrap_or_default());
        left.is_some()
    }
}

/// Why a schema is invalid, and where.
struct SchemaFault {
    /// A JSON pointer.
    pointer: String,
    problem: String,
    expected: String,
}

/// A valid schema.
struct Schema {
    text: Value,
    validator: Validator,
    nodes: usize,
}

/// `vars` with their values, as far as those are known at apply.
struct Instance {
    value: Value,
    /// JSON pointers of texts with variables whose values are still unknown.
    open: BTreeSet<String>,
}

/// Check the `vars` of an item or a hook against its schemas. `params`: None if they have faults; then only the schemas
/// themselves are checked.
pub(super) fn check(
    item: &Spot<'_>,
    map: &Map<'_>,
    (name, runner): (Option<&ItemName>, Option<RunnerKind>),
    params: Option<&Params>,
    context: Secrets<'_>,
    faults: &mut Faults<'_>,
) {
    let inline = map.get("schema");
    let given = name.map(|name| context.schemas.of(name)).unwrap_or_default();
    if runner.is_some_and(|runner| runner != RunnerKind::Ansible) {
        let problem = "a schema of variables, which this runner has not";
        let at = inline.iter().chain(given.first().map(|_| item));
        at.for_each(|spot| spot.fault(faults, problem, "runner ansible, or no schema"));
        return;
    }
    let mut schemas = Vec::new();
    if let Some(spot) = &inline
        && let Some(text) = spot.data(SCHEMA_DEPTH_MAX, &|_, _, _| true, faults)
    {
        match Schema::new(text) {
            Ok(schema) => schemas.push(("the item's schema".to_owned(), schema)),
            Err(fault) => spot.at_pointer(&fault.pointer).fault(faults, fault.problem, fault.expected),
        }
    }
    for given in given {
        match Schema::parse(given.text) {
            Ok(schema) => schemas.push((shown(given.name), schema)),
            Err(SchemaFault { pointer, problem, expected }) => {
                let at = if pointer.is_empty() { String::new() } else { format!(" at {}", shown(&pointer)) };
                item.fault(faults, format!("schema {}{at}: {problem}", shown(given.name)), expected);
            }
        }
    }
    let Some(params) = params.filter(|_| !schemas.is_empty()) else { return };
    let place = map.get("vars").unwrap_or_else(|| {
        let mut place = item.clone();
        place.path = join(&item.path, "vars");
        place
    });
    let instance = Instance::of(params, context);
    for (from, schema) in &schemas {
        schema.check(&place, &instance, (from, context.schemas), faults);
    }
}

impl Schema {
    fn parse(text: &str) -> Result<Self, SchemaFault> {
        let fault = |problem| SchemaFault { pointer: String::new(), problem, expected: "a JSON schema".to_owned() };
        Self::new(serde_json::from_str(text).map_err(|error| fault(format!("not JSON: {error}")))?)
    }

    fn new(text: Value) -> Result<Self, SchemaFault> {
        let fault = |problem: &str, expected: &str| {
            let (pointer, problem, expected) = (String::new(), problem.to_owned(), expected.to_owned());
            SchemaFault { pointer, problem, expected }
        };
        if !text.is_object() {
            return Err(fault("no JSON schema", "a JSON schema: a map"));
        }
        if text.to_string().len() > SCHEMA_BYTES_MAX {
            let expected = format!("at most {} KiB as JSON", SCHEMA_BYTES_MAX / 1024);
            return Err(fault("too long a schema", &expected));
        }
        let nodes = count(&text)?;
        let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX);
        let built = jsonschema::options().offline().with_pattern_options(patterns).build(&text);
        let validator = built.map_err(|error| SchemaFault {
            pointer: error.instance_path().as_str().to_owned(),
            problem: format!("no valid JSON schema: {}", printable(&error.to_string(), PROBLEM_CHARS_MAX)),
            expected: String::new(),
        })?;
        Ok(Self { text, validator, nodes })
    }

    /// Report every mismatch in `vars`. `place`: their position.
    fn check(
        &self,
        place: &Spot<'_>,
        instance: &Instance,
        (from, schemas): (&str, &Schemas<'_>),
        faults: &mut Faults<'_>,
    ) {
        if !schemas.takes(self.nodes.saturating_mul(values(&instance.value))) {
            place.fault(
                faults,
                format!("too large to be checked against {from}"),
                "fewer variables, or a smaller schema",
            );
            return;
        }
        let errors = self.validator.iter_errors(&instance.value).filter(|error| !instance.leaves_open(error));
        for error in errors.take(FAULTS_PER_ITEM_MAX) {
            self.tell(place, &error, from, faults);
        }
    }

    fn tell(&self, place: &Spot<'_>, error: &ValidationError<'_>, from: &str, faults: &mut Faults<'_>) {
        let spot = place.at_pointer(error.instance_path().as_str());
        match error.kind() {
            ValidationErrorKind::Required { property } => {
                let path = join(&spot.path, property.as_str().unwrap_or_default());
                faults.add(spot.at(), &path, "missing", format!("a value: {from} requires it"));
            }
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                let known = self.properties_beside(error.schema_path().as_str());
                let expected = if known.is_empty() { "it left out".to_owned() } else { words::one_of_some(&known) };
                for key in unexpected {
                    let (at, path) = spot.key(key);
                    let near = (key.as_str(), known.iter().copied());
                    faults.add_near(at, &path, format!("{from} has no such variable"), expected.clone(), near);
                }
            }
            kind => spot.fault(faults, format!("not what {from} says"), words::expected(kind)),
        }
    }

    /// The names in the `properties` beside this keyword.
    fn properties_beside(&self, keyword: &str) -> Vec<&str> {
        let parent = keyword.rsplit_once('/').map_or("", |(parent, _)| parent);
        let properties =
            self.text.pointer(parent).and_then(|parent| parent.get("properties")).and_then(Value::as_object);
        properties.into_iter().flatten().map(|(name, _)| name.as_str()).collect()
    }
}

impl Instance {
    /// Variables of the cluster already have values; a text with any other variable stays open.
    fn of(params: &Params, context: Secrets<'_>) -> Self {
        let vars = params.get(VARS_PARAM).and_then(|text| variables::vars(text).ok()).unwrap_or_default();
        let known = [("cluster.name", context.cluster.map(ClusterName::as_str)), ("cluster.release", context.release)];
        let known = known
            .into_iter()
            .filter_map(|(name, value): (&str, Option<&str>)| Some((name.to_owned(), value?.to_owned())));
        let mut instance = Self { value: Value::Null, open: BTreeSet::new() };
        let mut value = Value::Object(vars);
        instance.fill(&mut value, &mut String::new(), &known.collect());
        instance.value = value;
        instance
    }

    fn fill(&mut self, value: &mut Value, at: &mut String, known: &BTreeMap<String, String>) {
        let length = at.len();
        match value {
            Value::String(text) => match variables::replace_late(text, known) {
                Ok(replaced) => *text = replaced,
                Err(_) => drop(self.open.insert(at.clone())),
            },
            Value::Array(all) => {
                for (index, value) in all.iter_mut().enumerate() {
                    at.push_str(&format!("/{index}"));
                    self.fill(value, at, known);
                    at.truncate(length);
                }
            }
            Value::Object(all) => {
                for (key, value) in all.iter_mut() {
                    at.push_str(&format!("/{}", bounds::escaped(key)));
                    self.fill(value, at, known);
                    at.truncate(length);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// May this error concern a text that is still open? Its type is known to be a text.
    fn leaves_open(&self, error: &ValidationError<'_>) -> bool {
        use ValidationErrorKind::{
            AnyOf, Constant, Contains, Enum, FalseSchema, Not, OneOfMultipleValid, OneOfNotValid, Type, UniqueItems,
        };
        let at = error.instance_path().as_str();
        if self.open.contains(at) {
            return !matches!(error.kind(), Type { .. } | FalseSchema);
        }
        let of_whole = matches!(
            error.kind(),
            AnyOf { .. }
                | Constant { .. }
                | Contains
                | Enum { .. }
                | Not { .. }
                | OneOfMultipleValid { .. }
                | OneOfNotValid { .. }
                | UniqueItems
        );
        let inside = |open: &String| open.strip_prefix(at).is_some_and(|rest| rest.starts_with('/'));
        of_whole && self.open.iter().any(inside)
    }
}

/// Number of values in a value, itself included.
fn values(value: &Value) -> usize {
    match value {
        Value::Array(all) => 1 + all.iter().map(values).sum::<usize>(),
        Value::Object(all) => 1 + all.values().map(values).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

#[cfg(test)]
mod tests;
