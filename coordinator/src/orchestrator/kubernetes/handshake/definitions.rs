//! The definitions of the custom resources, as Rockoon's chart has them without the descriptions
//! (`charts/rockoon/templates/resources_shared/_25-node-maintenances-crd.yaml.tpl` at 1390883a).

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    super::{
        client::post,
        text::one_line,
        transport::{Call, Session},
    },
    VERSION,
};
use crate::facts::kubernetes::{KubernetesFailure, check::Definitions};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUP: &str = "lcm.mirantis.com";

/// A custom resource. All are cluster-scoped.
struct Kind {
    kind: &'static str,
    /// String fields of `spec`, with the required ones first.
    spec: &'static [&'static str],
    /// Number of required fields.
    required: usize,
    /// Is it a lock, with a status?
    lock: bool,
}

const KINDS: [Kind; 6] = [
    Kind { kind: "ClusterMaintenanceRequest", spec: &["scope", "release"], required: 0, lock: false },
    Kind { kind: "NodeMaintenanceRequest", spec: &["nodeName", "scope", "release"], required: 1, lock: false },
    Kind { kind: "ClusterWorkloadLock", spec: &["controllerName"], required: 1, lock: true },
    Kind { kind: "NodeWorkloadLock", spec: &["controllerName", "nodeName"], required: 2, lock: true },
    Kind { kind: "NodeDeletionRequest", spec: &["nodeName"], required: 1, lock: false },
    Kind { kind: "NodeDisableNotification", spec: &["nodeName"], required: 1, lock: false },
];

/// Create the definitions that the API server lacks. One that exists belongs to whoever made it, and is only looked at.
pub(crate) async fn define(session: &mut Session<'_>) -> Result<(), KubernetesFailure> {
    for kind in &KINDS {
        if let Some(found) = kind.find(session).await? {
            kind.suits(&found).map_err(KubernetesFailure::Other)?;
            continue;
        }
        let created = session.send(post(DEFINITIONS, &kind.definition())).await?;
        // Another controller may create it at the same moment.
        if created.status != 409 {
            created.object::<Value>()?;
        }
    }
    Ok(())
}

/// Look at all definitions, and create none.
pub(crate) async fn look(session: &mut Session<'_>) -> Result<Definitions, KubernetesFailure> {
    let mut definitions = Definitions::default();
    for kind in &KINDS {
        match kind.find(session).await?.map(|found| kind.suits(&found)) {
            None => definitions.absent.push(kind.name()),
            Some(Err(why)) => definitions.unusable.push(why),
            Some(Ok(())) => definitions.usable += 1,
        }
    }
    Ok(definitions)
}

impl Kind {
    fn plural(&self) -> String {
        format!("{}s", self.kind.to_lowercase())
    }

    fn name(&self) -> String {
        format!("{}.{GROUP}", self.plural())
    }

    /// Its definition, as it is there.
    async fn find(&self, session: &mut Session<'_>) -> Result<Option<Definition>, KubernetesFailure> {
        let answer = session.send(Call::get(format!("{DEFINITIONS}/{}", self.name()))).await?;
        if answer.status == 404 { Ok(None) } else { answer.object().map(Some) }
    }

    /// Has this definition, which somebody else made, every field that Muster writes?
    ///
    /// # Errors
    /// What it lacks, as a sentence.
    fn suits(&self, found: &Definition) -> Result<(), String> {
        let (name, wanted) = (self.name(), VERSION.rsplit('/').next().unwrap_or_default());
        let fault = |what: String| Err(format!("the custom resource definition {name} {what}"));
        let Some(version) = found.spec.versions.iter().find(|version| version.served && version.name == wanted) else {
            return fault(format!("serves no version {wanted}"));
        };
        let properties = version.schema.pointer("/openAPIV3Schema/properties/spec/properties");
        // Muster sets no release.
        let mut written = self.spec.iter().filter(|field| **field != "release");
        let lacks = |field: &&&str| properties.is_none_or(|known| known.get(**field).is_none());
        match written.find(lacks) {
            Some(field) => fault(format!("is too old: it has no spec.{}", one_line(field))),
            None => Ok(()),
        }
    }

    fn definition(&self) -> Value {
        let (group, version) = VERSION.split_once('/').unwrap_or_default();
        let plural = self.plural();
        let singular = self.kind.to_lowercase();
        let mut of_version = json!({
            "name": version,
            "served": true,
            "storage": true,
            "schema": { "openAPIV3Schema": self.schema() },
        });
        if let (true, Some(fields)) = (self.lock, of_version.as_object_mut()) {
            fields.insert("subresources".to_owned(), json!({ "status": {} }));
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": self.name() },
            "spec": {
                "group": group,
                "scope": "Cluster",
                "names": {
                    "kind": self.kind,
                    "listKind": format!("{}List", self.kind),
                    "plural": plural,
                    "singular": singular,
                },
                "versions": [of_version],
            },
        })
    }

    fn schema(&self) -> Value {
        let field = |name: &&str| {
            let schema = match *name {
                "scope" => json!({ "type": "string", "enum": ["os", "drain"] }),
                _ => json!({ "type": "string" }),
            };
            ((*name).to_owned(), schema)
        };
        let mut fields: Map<String, Value> = self.spec.iter().map(field).collect();
        if self.kind == "NodeWorkloadLock" {
            fields.insert("nodeDeletionRequestSupported".to_owned(), json!({ "type": "boolean" }));
        }
        let mut spec = json!({ "type": "object", "properties": fields });
        let required = self.spec.get(..self.required).unwrap_or_default();
        if let (false, Some(spec)) = (required.is_empty(), spec.as_object_mut()) {
            spec.insert("required".to_owned(), json!(required));
        }
        let mut properties = json!({
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": spec,
        });
        if let (true, Some(properties)) = (self.lock, properties.as_object_mut()) {
            properties.insert("status".to_owned(), status());
        }
        json!({ "type": "object", "properties": properties })
    }
}

/// The schema of a lock's status.
fn status() -> Value {
    json!({
        "type": "object",
        "required": ["state"],
        "properties": {
            "state": { "type": "string", "enum": ["inactive", "active", "failed"] },
            "errorMessage": { "type": "string" },
            "release": { "type": "string" },
            "inactivationProgress": {
                "type": "object",
                "properties": {
                    "percentage": { "type": "integer", "maximum": 100 },
                    "description": { "type": "string" },
                },
            },
            "statusObjectReference": {
                "type": "object",
                "x-kubernetes-map-type": "atomic",
                "properties": {
                    "apiVersion": { "type": "string" },
                    "fieldPath": { "type": "string" },
                    "kind": { "type": "string" },
                    "name": { "type": "string" },
                    "namespace": { "type": "string" },
                    "resourceVersion": { "type": "string" },
                    "uid": { "type": "string" },
                },
            },
        },
    })
}

/// A CustomResourceDefinition, as far as it is looked at.
#[derive(Debug, Deserialize)]
struct Definition {
    spec: DefinitionSpec,
}

#[derive(Debug, Deserialize)]
struct DefinitionSpec {
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Debug, Deserialize)]
struct Version {
    name: String,
    served: bool,
    #[serde(default)]
    schema: Value,
}
