//! The text of a manifest, as objects. Pure.

use std::fmt;

use serde_json::Value;

use crate::orchestrator::kubernetes::text::one_line;

/// Most objects of one manifest.
pub(super) const OBJECTS_MAX: usize = 500;
/// Longest name of an object, in bytes.
const NAME_MAX: usize = 253;
/// Fields of the metadata that the API server sets. It refuses an application with some of them.
const SERVER_FIELDS: [&str; 6] =
    ["managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink"];

/// An object of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    /// Such as `apps/v1`.
    pub(super) api_version: String,
    /// Such as `Deployment`.
    pub(super) kind: String,
    /// Its namespace, if its kind has one.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: String,
    /// All of it.
    pub(super) body: Value,
}

/// `Deployment kube-system/helm-controller`, where the manifest names a namespace.
impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = text(&self.body, "/metadata/namespace").unwrap_or("");
        let slash = if named.is_empty() { "" } else { "/" };
        f.write_str(&one_line(&format!("{} {named}{slash}{}", self.kind, self.name)))
    }
}

impl Object {
    /// Its API group; empty for the core group.
    pub(super) fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// The version of its API group.
    pub(super) fn version(&self) -> &str {
        self.api_version.split_once('/').map_or(self.api_version.as_str(), |(_, version)| version)
    }

    /// Group and kind that it defines. None: it is no definition of custom resources.
    pub(super) fn defines(&self) -> Option<(String, String)> {
        if self.group() != "apiextensions.k8s.io" || self.kind != "CustomResourceDefinition" {
            return None;
        }
        let group = text(&self.body, "/spec/group").unwrap_or_default();
        let kind = text(&self.body, "/spec/names/kind").unwrap_or_default();
        Some((group.to_owned(), kind.to_owned()))
    }

    /// Is it a Secret?
    pub(super) fn is_secret(&self) -> bool {
        self.api_version == "v1" && self.kind == "Secret"
    }

    /// Do others need it? They may come before it in the manifest.
    pub(super) fn goes_first(&self) -> bool {
        (self.api_version == "v1" && self.kind == "Namespace") || self.defines().is_some()
    }
}

fn text<'v>(value: &'v Value, pointer: &str) -> Option<&'v str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// The objects of a manifest, in order, those of lists one by one. `namespace` is for those that name none.
///
/// # Errors
/// What is wrong, in words without the text: it may be a secret.
pub(super) fn objects(manifest: &str, namespace: &str) -> Result<Vec<Object>, String> {
    // What kubectl reads: YAML 1.1 has octal numbers such as defaultMode: 0644.
    let options = serde_saphyr::options! { with_snippet: false, legacy_octal_numbers: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(manifest, options).map_err(|error| {
        let at = error.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
        format!("the manifest is not YAML{}", at.unwrap_or_default())
    })?;
    let mut objects = Vec::new();
    for (number, document) in documents.into_iter().enumerate().filter(|(_, document)| !document.is_null()) {
        add(&mut objects, document, namespace)
            .map_err(|why| format!("document {} of the manifest {why}", number + 1))?;
    }
    match objects.len() {
        0 => Err("the manifest has no objects".to_owned()),
        _ => Ok(objects),
    }
}

fn add(objects: &mut Vec<Object>, document: Value, namespace: &str) -> Result<(), String> {
    let kind = text(&document, "/kind").unwrap_or_default().to_owned();
    if kind.ends_with("List")
        && let Value::Object(mut list) = document
    {
        let Some(Value::Array(items)) = list.remove("items") else { return Err("is a list without items".to_owned()) };
        return items.into_iter().try_for_each(|item| add(objects, item, namespace));
    }
    if objects.len() == OBJECTS_MAX {
        return Err(format!("is one too many: at most {OBJECTS_MAX} are applied"));
    }
    objects.push(object(document, kind, namespace)?);
    Ok(())
}

fn object(mut body: Value, kind: String, namespace: &str) -> Result<Object, String> {
    let api_version = text(&body, "/apiVersion").unwrap_or_default().to_owned();
    if api_version.is_empty() || kind.is_empty() {
        return Err("has no apiVersion or no kind".to_owned());
    }
    let name = text(&body, "/metadata/name").unwrap_or_default().to_owned();
    if name.is_empty() || name.len() > NAME_MAX || matches!(name.as_str(), "." | "..") || name.contains(['/', '%']) {
        return Err(format!("({}) has no name that an object can have", one_line(&kind)));
    }
    let namespace = text(&body, "/metadata/namespace").unwrap_or(namespace).to_owned();
    if let Some(metadata) = body.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        SERVER_FIELDS.iter().for_each(|field| drop(metadata.remove(*field)));
    }
    Ok(Object { api_version, kind, namespace, name, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(manifest: &str) -> Vec<String> {
        let all = objects(manifest, "here").expect("objects");
        all.iter().map(|object| format!("{} {object} in {}", object.api_version, object.namespace)).collect()
    }

    #[test]
    fn documents_become_objects() {
        let text = "# nothing\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, namespace: there, uid: \
                    x}\nspec: {mode: 0644, on: yes}\n---\n---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  \
                    kind: Secret\n  metadata: {name: b}\n- apiVersion: rbac.authorization.k8s.io/v1\n  kind: \
                    ClusterRole\n  metadata: {name: \"system:c\", creationTimestamp: null}\n";
        assert_eq!(
            said(text),
            [
                "apps/v1 Deployment there/a in there",
                "v1 Secret b in here",
                "rbac.authorization.k8s.io/v1 ClusterRole system:c in here"
            ]
        );
        let all = objects(text, "here").expect("objects");
        assert_eq!(all[0].body["spec"], serde_json::json!({"mode": 420, "on": true}));
        assert_eq!(all[0].body["metadata"], serde_json::json!({"name": "a", "namespace": "there"}));
        assert_eq!(all[2].body["metadata"], serde_json::json!({"name": "system:c"}));
    }

    #[test]
    fn namespaces_and_definitions_go_first() {
        let text = "{apiVersion: example.com/v1, kind: Namespace, metadata: {name: a}}\n---\n{apiVersion: v1, kind: \
                    Namespace, metadata: {name: b}}\n---\n{apiVersion: apiextensions.k8s.io/v1, kind: \
                    CustomResourceDefinition, metadata: {name: cs.d.e}, spec: {group: d.e, names: {kind: C}}}";
        let first: Vec<bool> = objects(text, "here").expect("objects").iter().map(Object::goes_first).collect();
        assert_eq!(first, [false, true, true]);
        assert_eq!(objects(text, "here").expect("objects")[2].defines(), Some(("d.e".to_owned(), "C".to_owned())));
    }

    #[test]
    fn faults_are_said_without_text() {
        let one = "{apiVersion: v1, kind: Secret, metadata: {name: a}}";
        let many = vec![one; OBJECTS_MAX + 1].join("\n---\n");
        for (text, why) in [
            ("password: [hunter2", "the manifest is not YAML at line"),
            ("", "the manifest has no objects"),
            ("---\n", "the manifest has no objects"),
            ("hunter2", "document 1 of the manifest has no apiVersion or no kind"),
            ("{apiVersion: v1}", "has no apiVersion or no kind"),
            ("{apiVersion: v1, kind: Secret, metadata: {generateName: hunter2}}", "(Secret) has no name"),
            ("{apiVersion: v1, kind: Secret, metadata: {name: hunter2/b}}", "(Secret) has no name"),
            ("{apiVersion: v1, kind: List}", "is a list without items"),
            (&many, "document 501 of the manifest is one too many: at most 500 are applied"),
        ] {
            let said = objects(text, "here").expect_err(text);
            assert!(said.contains(why) && !said.contains("hunter2"), "{said}");
        }
    }
}
