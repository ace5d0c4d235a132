//! Add-ons: a look at their Deployments, and their manifests, applied object by object.

mod fetch;
mod manifest;

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use muster_proto::model::AddonDeployment;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    facts::kubernetes::{
        KubernetesFailure, KubernetesOp,
        addons::{AddonText, AddonToApply, DeploymentState, DeploymentStates, ManifestText},
    },
    orchestrator::kubernetes::{
        client::{segment, with_body},
        objects::{Condition, Meta, PodTemplate, nullable},
        text::one_line,
        transport::{Call, Session},
    },
    pki::Vault,
};
use manifest::{Object, objects};

/// Media type of a server-side apply. Its body may be JSON, which is YAML.
const APPLY: &str = "application/apply-patch+yaml";
/// Time for the application of a manifest: an operation has 60 s, 20 of which may be spent on fetching it.
const APPLY_MAX: Duration = Duration::from_secs(35);
/// Pause before an object that the API server cannot take yet is sent again.
const AGAIN: Duration = Duration::from_millis(500);
/// The label with the version of an application.
const VERSION_LABEL: &str = "app.kubernetes.io/version";
/// Bytes that are escaped in a name: those of RBAC may have a colon.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b':');

/// The operation with its manifest read.
///
/// # Errors
/// It cannot be read: the URL, the sum, or the secret.
pub(super) async fn prepared(op: KubernetesOp, vault: &Vault) -> Result<KubernetesOp, KubernetesFailure> {
    let KubernetesOp::Apply { cluster_uid, addon } = op else { return Ok(op) };
    let AddonToApply { text, .. } = &*addon;
    let (text, is_secret) = match text.clone() {
        AddonText::Url { url, sha256 } => (fetch::fetch(&url, &sha256).await.map_err(KubernetesFailure::Other)?, false),
        AddonText::Secret(row) => {
            let other = |why: String| KubernetesFailure::Other(format!("secret {}: {why}", row.id));
            let value = vault.open(&row).map_err(|error| other(error.to_string()))?;
            let text = String::from_utf8(value);
            let text = text.map_err(|_| other("it is not text, so it is no manifest".to_owned()))?;
            (ManifestText(text.into()), true)
        }
        AddonText::Read { text, is_secret } => (text, is_secret),
    };
    let text = AddonText::Read { text, is_secret };
    Ok(KubernetesOp::Apply { cluster_uid, addon: Box::new(AddonToApply { text, ..*addon }) })
}

/// A Deployment.
#[derive(Debug, Deserialize)]
struct DeploymentObject {
    metadata: Meta,
    #[serde(default)]
    spec: DeploymentSpec,
    #[serde(default)]
    status: DeploymentStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DeploymentSpec {
    replicas: Option<i64>,
    template: PodTemplate,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeploymentStatus {
    observed_generation: Option<i64>,
    replicas: i64,
    updated_replicas: i64,
    available_replicas: i64,
    ready_replicas: i64,
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<Condition>,
}

/// These Deployments.
pub(super) async fn look(
    session: &mut Session<'_>,
    deployments: &[AddonDeployment],
) -> Result<DeploymentStates, KubernetesFailure> {
    let mut states = BTreeMap::new();
    for name in deployments {
        let AddonDeployment { namespace, deployment } = name;
        let path = format!("/apis/apps/v1/namespaces/{}/deployments/{}", segment(namespace)?, segment(deployment)?);
        let answer = session.send(Call::get(path)).await?;
        let found = if answer.status == 404 { None } else { Some(state(answer.object()?)) };
        states.insert(name.clone(), found);
    }
    Ok(states)
}

/// A Deployment is available by the rule of `kubectl rollout status`: its condition Available stays True while replicas
/// of an older template serve and none of the newest is ready.
fn state(object: DeploymentObject) -> DeploymentState {
    let DeploymentObject { metadata, spec, status } = object;
    let wanted = spec.replicas.unwrap_or(1);
    let message = against(&metadata, wanted, &status);
    let available = message.is_none();
    let message = message.unwrap_or_default();
    let image = spec.template.spec.containers.first().map(|container| container.image.as_str());
    let label = metadata.labels.get(VERSION_LABEL).map(String::as_str);
    let version = image.and_then(tag).or(label).map(one_line);
    DeploymentState { version, wanted, ready: status.ready_replicas, available, message }
}

/// Why a Deployment with so many wanted replicas is not available. None: it is.
fn against(metadata: &Meta, wanted: i64, status: &DeploymentStatus) -> Option<String> {
    let DeploymentStatus { replicas, updated_replicas: updated, available_replicas: available, .. } = *status;
    let condition = |kind: &str, value: &str| {
        let said = status.conditions.iter().find(|condition| condition.kind == kind && condition.status == value);
        said.map(|condition| one_line(&condition.message))
    };
    if status.observed_generation < metadata.generation {
        return Some("its controller has not seen its newest spec".to_owned());
    }
    if wanted == 0 {
        return Some("it is scaled to 0".to_owned());
    }
    let fault = if updated != wanted {
        format!("{updated} of {wanted} replicas are of its newest template")
    } else if replicas != updated {
        format!("replicas of an older template are left: {}", replicas.saturating_sub(updated))
    } else if available < wanted {
        format!("{available} of {wanted} replicas are available")
    } else {
        return condition("Progressing", "False");
    };
    let said = condition("Progressing", "False").or_else(|| condition("ReplicaFailure", "True"));
    said.or_else(|| condition("Available", "False")).or(Some(fault))
}

/// The tag of an image: what follows the last colon of its last part, without a digest.
fn tag(image: &str) -> Option<&str> {
    let name = image.split('@').next().unwrap_or(image);
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split_once(':').map(|(_, tag)| tag).filter(|tag| !tag.is_empty())
}

/// A resource of an API group's version, as discovery shows it.
#[derive(Clone, Debug, Deserialize)]
struct Resource {
    name: String,
    kind: String,
    #[serde(default)]
    namespaced: bool,
}

#[derive(Debug, Deserialize)]
struct ResourceList {
    #[serde(default, deserialize_with = "nullable")]
    resources: Vec<Resource>,
}

/// Apply every object of the manifest in order, Namespaces and definitions of custom resources first.
///
/// # Errors
/// The object, and what the API server says against it. Those before it are applied.
pub(super) async fn apply(session: &mut Session<'_>, addon: &AddonToApply) -> Result<usize, KubernetesFailure> {
    let AddonText::Read { text: ManifestText(text), is_secret } = &addon.text else {
        return Err(KubernetesFailure::Other("the manifest was not read".to_owned()));
    };
    let objects = objects(text, &addon.namespace).map_err(KubernetesFailure::Other)?;
    let count = objects.len();
    let defined: Vec<(String, String)> = objects.iter().filter_map(Object::defines).collect();
    let (resources, deadline) = (BTreeMap::new(), Instant::now() + APPLY_MAX);
    let mut applying = Applying { session, resources, defined, deadline, is_secret: *is_secret };
    let (first, rest): (Vec<Object>, Vec<Object>) = objects.into_iter().partition(Object::goes_first);
    for object in &first {
        applying.put(object).await.map_err(|failure| about(failure, object))?;
    }
    for definition in first.iter().filter(|object| object.defines().is_some()) {
        applying.established(definition).await.map_err(|failure| about(failure, definition))?;
    }
    for object in &rest {
        applying.put(object).await.map_err(|failure| about(failure, object))?;
    }
    Ok(count)
}

/// The failure, with the object that it is about.
fn about(failure: KubernetesFailure, object: &Object) -> KubernetesFailure {
    match failure {
        KubernetesFailure::Unauthorized(_) => failure,
        _ => failure.with_words(|text| one_line(&format!("{object}: {text}"))),
    }
}

/// The application of one manifest.
struct Applying<'s, 'a> {
    session: &'s mut Session<'a>,
    /// What discovery said, by `apiVersion`.
    resources: BTreeMap<String, Vec<Resource>>,
    /// Group and kind of what the manifest itself defines: it is served a moment later.
    defined: Vec<(String, String)>,
    deadline: Instant,
    /// Is the manifest the value of a secret? Then nothing of it may be shown.
    is_secret: bool,
}

/// Why an object was not applied.
enum Refused {
    /// Its kind is not served.
    NotServed,
    /// Anything else.
    Failed(KubernetesFailure),
}

impl From<KubernetesFailure> for Refused {
    fn from(failure: KubernetesFailure) -> Self {
        Self::Failed(failure)
    }
}

impl Applying<'_, '_> {
    async fn put(&mut self, object: &Object) -> Result<(), KubernetesFailure> {
        loop {
            let failure = match self.try_put(object).await {
                Ok(()) => return Ok(()),
                Err(Refused::NotServed) => {
                    self.resources.remove(&object.api_version);
                    let is_defined = self.defined.contains(&(object.group().to_owned(), object.kind.clone()));
                    let words = format!("the cluster does not serve its kind in {}", object.api_version);
                    let failure = KubernetesFailure::Other(words);
                    if !is_defined {
                        return Err(failure);
                    }
                    failure
                }
                Err(Refused::Failed(failure @ KubernetesFailure::Busy { .. })) => failure,
                Err(Refused::Failed(failure)) => return Err(failure),
            };
            self.pause(failure).await?;
        }
    }

    /// Waits a moment, or gives up with this failure.
    async fn pause(&self, failure: KubernetesFailure) -> Result<(), KubernetesFailure> {
        let after = match &failure {
            KubernetesFailure::Busy { after, .. } => (*after).max(AGAIN),
            _ => AGAIN,
        };
        if Instant::now() + after > self.deadline {
            return Err(failure);
        }
        sleep(after).await;
        Ok(())
    }

    async fn try_put(&mut self, object: &Object) -> Result<(), Refused> {
        let path = format!("{}?fieldManager=muster&force=true", self.path(object).await?);
        let answer = self.session.send(with_body(Method::PATCH, path, APPLY, &object.body)).await?;
        if answer.is_unserved() {
            return Err(Refused::NotServed);
        }
        // The API server's words may quote the object.
        if (self.is_secret || object.is_secret()) && !answer.is_success() {
            return Err(Refused::Failed(answer.failure_in_outline()));
        }
        answer.object::<Value>()?;
        Ok(())
    }

    /// The object's path.
    async fn path(&mut self, object: &Object) -> Result<String, Refused> {
        let group_version = match object.group() {
            "" => format!("/api/{}", segment(&object.api_version)?),
            group => format!("/apis/{}/{}", segment(group)?, segment(object.version())?),
        };
        if !self.resources.contains_key(&object.api_version) {
            let answer = self.session.send(Call::get(group_version.clone())).await?;
            if answer.status == 404 {
                return Err(Refused::NotServed);
            }
            let found: ResourceList = answer.object()?;
            self.resources.insert(object.api_version.clone(), found.resources);
        }
        let known = self.resources.get(&object.api_version).into_iter().flatten();
        let mut of_kind = known.filter(|resource| resource.kind == object.kind && !resource.name.contains('/'));
        let Some(Resource { name: plural, namespaced, .. }) = of_kind.next() else { return Err(Refused::NotServed) };
        let name = utf8_percent_encode(&object.name, ESCAPED);
        let plural = segment(plural)?;
        Ok(match namespaced {
            true => format!("{group_version}/namespaces/{}/{plural}/{name}", segment(&object.namespace)?),
            false => format!("{group_version}/{plural}/{name}"),
        })
    }

    /// Waits until the kinds of a definition are served.
    async fn established(&mut self, definition: &Object) -> Result<(), KubernetesFailure> {
        let name = segment(&definition.name)?;
        let path = format!("/apis/{}/customresourcedefinitions/{name}", definition.api_version);
        loop {
            let found: Definition = self.session.send(Call::get(path.clone())).await?.object()?;
            let established = |condition: &Condition| condition.kind == "Established" && condition.status == "True";
            if found.status.conditions.iter().any(established) {
                return Ok(());
            }
            let rejected = found.status.conditions.iter().find(|condition| condition.status == "False");
            let rejected = rejected.filter(|_| !self.is_secret);
            let words = rejected.map_or("it is not established", |condition| condition.message.as_str());
            self.pause(KubernetesFailure::Other(one_line(words))).await?;
        }
    }
}

/// A CustomResourceDefinition.
#[derive(Debug, Deserialize)]
struct Definition {
    #[serde(default, deserialize_with = "nullable")]
    status: DefinitionStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DefinitionStatus {
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests;
