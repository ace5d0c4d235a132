//! Upper bound of a schema's cost: its nodes, with each `$ref` replaced by its target. Otherwise a few lines that refer
//! to each other twice would take hours.

use std::collections::BTreeMap;

use serde_json::Value;

use super::SchemaFault;

/// Nodes of a schema with its references resolved.
const NODES_MAX: usize = 10_000;
/// Deepest nesting of a schema with its references resolved.
const DEPTH_MAX: usize = 100;
/// Keywords that change the base of references, or depend on the evaluation path.
const MOVING: [&str; 6] = ["$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"];

/// Nodes and depth of a part.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    depth: usize,
}

struct Walk<'s> {
    root: &'s Value,
    /// Sizes of the targets of references; None: being computed.
    seen: BTreeMap<String, Option<Size>>,
}

/// Number of nodes of a schema, if it is within bounds.
pub(super) fn count(schema: &Value) -> Result<usize, SchemaFault> {
    let draft = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
    if draft.contains("draft-04") || draft.contains("draft-03") {
        return Err(fault("/$schema", "an old draft of JSON Schema", "draft 6, 7, 2019-09 or 2020-12"));
    }
    Walk { root: schema, seen: BTreeMap::new() }.size(schema, "", 0).map(|size| size.nodes)
}

/// A key escaped for a JSON pointer.
pub(super) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn fault(pointer: &str, problem: &str, expected: &str) -> SchemaFault {
    SchemaFault { pointer: pointer.to_owned(), problem: problem.to_owned(), expected: expected.to_owned() }
}

fn too_large(pointer: &str) -> SchemaFault {
    let expected = format!("at most {NODES_MAX} keys and values, nested at most {DEPTH_MAX} deep");
    fault(pointer, "too large a schema, with its references resolved", &expected)
}

impl Walk<'_> {
    fn size(&mut self, value: &Value, at: &str, depth: usize) -> Result<Size, SchemaFault> {
        let mut parts = Vec::new();
        match value {
            Value::Object(map) => {
                for (key, part) in map {
                    let here = format!("{at}/{}", escaped(key));
                    match part {
                        Value::String(target) if key == "$ref" => parts.push(self.target(target, &here, depth)?),
                        Value::Object(_) => parts.push(self.size(part, &here, depth + 1)?),
                        _ if MOVING.contains(&key.as_str()) && !(key == "$id" && at.is_empty()) => {
                            return Err(fault(&here, "a keyword that is not taken here", "'$ref' with '#/$defs/NAME'"));
                        }
                        _ => parts.push(self.size(part, &here, depth + 1)?),
                    }
                }
            }
            Value::Array(all) => {
                for (index, part) in all.iter().enumerate() {
                    parts.push(self.size(part, &format!("{at}/{index}"), depth + 1)?);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        let nodes = parts.iter().fold(1, |sum: usize, part| sum.saturating_add(part.nodes));
        let below = parts.iter().map(|part| part.depth).max().unwrap_or_default();
        if nodes > NODES_MAX || depth + below >= DEPTH_MAX {
            return Err(too_large(at));
        }
        Ok(Size { nodes, depth: below + 1 })
    }

    /// Size of a reference's target.
    fn target(&mut self, target: &str, at: &str, depth: usize) -> Result<Size, SchemaFault> {
        let expected = "'#/$defs/NAME': nothing is fetched for a schema";
        let pointer = target.strip_prefix('#').ok_or_else(|| fault(at, "a reference to another document", expected))?;
        match self.seen.get(pointer) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => return Err(fault(at, "a reference that leads back to itself", "one that comes to an end")),
            None => {}
        }
        let root = self.root;
        let found = root.pointer(pointer).filter(|_| !pointer.contains('%'));
        let found = found.ok_or_else(|| fault(at, "a reference to nothing", "'#/$defs/NAME' of this schema"))?;
        if depth >= DEPTH_MAX {
            return Err(too_large(at));
        }
        self.seen.insert(pointer.to_owned(), None);
        let size = self.size(found, pointer, depth + 1)?;
        self.seen.insert(pointer.to_owned(), Some(size));
        Ok(size)
    }
}
