//! Faults of mismatched `vars`, of invalid schemas, and the bounds of schemas.

use super::{super::*, *};

/// A manifest with one playbook that contains these lines.
fn manifest(lines: &str) -> String {
    let head = "apiVersion: muster/v1alpha1\nkind: Cluster\nmetadata: {name: c1}\nspec:\n  lcmType: generic\n  \
                release: '1.2'\n  machineTypes:\n    control:\n      - name: tuning\n        runner: ansible\n        \
                version: '1'\n        phase: deploy\n        params: {playbook: /x.yml}\n";
    let lines: String = lines.lines().map(|line| format!("        {line}\n")).collect();
    format!("{head}{lines}")
}

fn read(lines: &str, given: &[GivenSchema<'_>]) -> Result<Manifest, Vec<Fault>> {
    let secrets = ["c1/db".parse().expect("an id")].into();
    let known = Known { secrets, ..Known::default() };
    parse_with(&[Source { name: "m.yaml", text: &manifest(lines) }], &known, given)
}

/// The faults after the path of the item, one per line.
fn told(lines: &str, given: &[GivenSchema<'_>]) -> Vec<String> {
    let faults = read(lines, given).err().unwrap_or_default();
    faults.iter().map(|fault| fault.to_string().replace("spec.machineTypes.control[0].", "")).collect()
}

const VARS: &str = "\
vars:
  ports: [22, hunter2]
  mod: true
  peer: {}
  size: 2
  name: hunter2
";
const SCHEMA: &str = r##"{"type": "object", "additionalProperties": false, "required": ["size", "level"],
  "properties": {
  "ports": {"type": "array", "items": {"type": "integer"}}, "mode": {"enum": ["a", "b"]},
  "peer": {"$ref": "#/$defs/peer"}, "size": {"minimum": 3}, "level": {}, "name": {"pattern": "^[a-z]+$"}},
  "$defs": {"peer": {"required": ["host"]}}}"##;

#[test]
fn variables_that_do_not_fit_are_named() {
    let from = |from: &str| {
        [
            format!("m.yaml:15:11: vars.level: missing; expected a value: {from} requires it"),
            format!("m.yaml:15:23: vars.ports[1]: not what {from} says; expected a value of type integer"),
            format!(
                "m.yaml:16:11: vars.mod: {from} has no such variable; expected one of: level, mode, name, peer, ports, \
                 size; did you mean 'mode'?"
            ),
            format!("m.yaml:17:17: vars.peer.host: missing; expected a value: {from} requires it"),
            format!("m.yaml:18:17: vars.size: not what {from} says; expected at least 3"),
            format!("m.yaml:19:17: vars.name: not what {from} says; expected a text that matches ^[a-z]+$"),
        ]
    };
    let inline = format!("{VARS}schema: {}", SCHEMA.replace('\n', " "));
    let found = told(&inline, &[]);
    assert_eq!(found, from("the item's schema"));
    let given = [GivenSchema { item: "tuning", name: "s.json", text: SCHEMA }];
    let by_file = told(VARS, &given);
    assert_eq!(by_file, from("s.json"), "just so");
    assert!(!by_file.concat().contains("hunter2"), "no value: {by_file:?}");
    assert_eq!(told("", &given).len(), 2, "without vars what is required is missing");
    let good = "vars: {ports: [22], size: 3, level: null, name: abc}";
    assert_eq!(told(good, &given), [""; 0]);
}

#[test]
fn schema_is_not_recorded() {
    let plain = read("vars: {a: 1}", &[]).expect("good");
    let with = read("vars: {a: 1}\nschema: {properties: {a: {type: integer}}}", &[]).expect("good");
    assert_eq!(plain, with, "the same items with the same hashes");
}

#[test]
fn faulty_schemas_are_refused_at_their_place() {
    for (schema, at, told_of) in [
        ("schema: [a]", "schema: ", "no JSON schema"),
        ("schema: {properties: {a: {type: strin}}}", "schema.properties.a.type: ", "no valid JSON schema"),
        ("schema: {properties: {a: {pattern: '('}}}", "schema.properties.a.pattern: ", "no valid JSON schema"),
        ("schema: {properties: {a: {pattern: '(?=b)'}}}", "schema.properties.a.pattern: ", "no valid JSON schema"),
        ("schema: {$ref: 'http://127.0.0.1/x'}", "schema[\"$ref\"]: ", "another document"),
        ("schema: {$ref: 'other.json#/a'}", "schema[\"$ref\"]: ", "another document"),
        ("schema: {$ref: '#/$defs/a'}", "schema[\"$ref\"]: ", "a reference to nothing"),
        ("schema: {$defs: {a: {$ref: '#/$defs/a'}}}", "schema[\"$defs\"].a[\"$ref\"]: ", "leads back to itself"),
        ("schema: {items: {$ref: '#'}}", "schema.items[\"$ref\"]: ", "leads back to itself"),
        ("schema: {properties: {a: {$id: 'http://h/x'}}}", "schema.properties.a[\"$id\"]: ", "not taken here"),
        ("schema: {$schema: 'http://json-schema.org/draft-04/schema#'}", "schema[\"$schema\"]: ", "an old draft"),
        ("schema: {$schema: 'http://h/own'}", "schema", "no valid JSON schema"),
        ("schema: {description: \"${x}\", type: 5}", "schema.type: ", "no valid JSON schema"),
    ] {
        let found = told(&format!("vars: {{a: b}}\n{schema}"), &[]);
        assert!(found.len() == 1 && found[0].contains(at) && found[0].contains(told_of), "{schema}: {found:?}");
    }
    let other = "params: {script: x}\n        schema: {}";
    let bash = manifest("").replace("runner: ansible", "runner: bash").replace("params: {playbook: /x.yml}", other);
    let found = parse(&[Source { name: "m", text: &bash }], &Known::default()).expect_err("a fault");
    assert!(found.len() == 1 && found[0].path.ends_with(".schema"), "{found:?}");
}

#[test]
fn given_schemas_are_checked_and_used() {
    let given = |item, text| [GivenSchema { item, name: "s.json", text }];
    for (item, text, told_of) in [
        ("tuning", "{", "schema s.json: not JSON"),
        ("tuning", r#"{"type": "strin"}"#, "schema s.json at /type: no valid JSON schema"),
        ("tunin", "{}", "for an item 'tunin', and there is none; expected the name of an item or a hook; did you mean"),
    ] {
        let found = told("vars: {a: 1}", &given(item, text));
        assert!(found.len() == 1 && found[0].contains(told_of), "{item} {text}: {found:?}");
    }
    let long = format!("{{\"description\": \"{}\"}}", "x".repeat(SCHEMA_BYTES_MAX));
    assert!(told("", &given("tuning", &long))[0].contains("too long a schema"));
}

/// The value of an address or a secret is unknown at apply, but it is certainly a text.
#[test]
fn texts_with_variables_are_checked_where_their_value_is_known() {
    let schema = |of: &str| format!("schema: {{properties: {{a: {of}}}, additionalProperties: false}}");
    for (vars, of, faults) in [
        ("a: '${cluster.release}'", "{const: '1.2'}", 0),
        ("a: '${cluster.release}'", "{const: '1.3'}", 1),
        ("a: 'x${cluster.name}$$'", "{const: 'xc1$'}", 0),
        ("a: '${machine.name}'", "{pattern: '^w'}", 0),
        ("a: '${secret.db}'", "{minLength: 99}", 0),
        ("a: '${machine.internalIP}'", "{type: integer}", 1),
        ("a: ['${machine.name}']", "{contains: {const: w}}", 0),
        ("a: {b: '${machine.name}'}", "{anyOf: [{required: [c]}, {properties: {b: {const: w}}}]}", 0),
        ("a: {b: '${machine.name}'}", "{required: [c]}", 1),
        ("b: '${machine.name}'", "{}", 1),
    ] {
        let found = told(&format!("vars: {{{vars}}}\n{}", schema(of)), &[]);
        assert_eq!(found.len(), faults, "{vars} {of}: {found:?}");
    }
}

#[test]
fn costly_schemas_are_refused() {
    let refused = |text: &str, told_of: &str| {
        let found = told("vars: {a: 1}", &[GivenSchema { item: "tuning", name: "s.json", text }]);
        assert!(found.len() == 1 && found[0].contains(told_of), "{text:.80}: {found:?}");
    };
    let defs = |count: usize, of: &dyn Fn(usize) -> String| {
        let defs: Vec<String> = (1..=count).map(|n| format!("\"d{n}\": {}", of(n - 1))).collect();
        format!("{{\"$ref\": \"#/$defs/d{count}\", \"$defs\": {{\"d0\": {{}}, {}}}}}", defs.join(", "))
    };
    let twice = |n: usize| format!("{{\"allOf\": [{{\"$ref\": \"#/$defs/d{n}\"}}, {{\"$ref\": \"#/$defs/d{n}\"}}]}}");
    refused(&defs(40, &twice), "too large a schema, with its references resolved");
    let next = |n: usize| format!("{{\"$ref\": \"#/$defs/d{n}\"}}");
    refused(&defs(1_000, &next), "too large a schema, with its references resolved");
    refused(r#"{"properties": {"a": {"pattern": "((a{100}){100}){100}"}}}"#, "no valid JSON schema");
    // A schema within bounds, for more values than allowed.
    let many = format!("{{\"allOf\": [{}]}}", vec!["{\"items\": {\"type\": \"string\"}}"; 1_500].join(", "));
    let vars = format!("vars: {{a: [{}]}}", vec!["1"; 2_000].join(", "));
    let found = told(&vars, &[GivenSchema { item: "tuning", name: "s.json", text: &many }]);
    assert!(found.len() == 1 && found[0].contains("too large to be checked against s.json"), "{found:?}");
    // Many faults of one item.
    let every = r#"{"properties": {"a": {"items": {"type": "string"}}}}"#;
    let found = told(&vars, &[GivenSchema { item: "tuning", name: "s.json", text: every }]);
    assert_eq!(found.len(), FAULTS_PER_ITEM_MAX);
}
