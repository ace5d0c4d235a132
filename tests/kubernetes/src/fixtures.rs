//! Workloads, pods and budgets for tests.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    Kubernetes,
    controllers::{START_AFTER, UNREADY},
    objects::{set, uid},
    state::lock,
};

/// Promise of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Healthy pods that must stay.
    MinAvailable(i64),
    /// The same as a percentage.
    MinAvailablePercent(i64),
    /// Pods that may be away.
    MaxUnavailable(i64),
    /// The same as a percentage.
    MaxUnavailablePercent(i64),
}

/// Properties of a workload's pods.
#[derive(Clone, Debug, Default)]
pub struct PodTraits {
    /// Labels besides `app`.
    pub labels: Vec<(String, String)>,
    /// Annotations.
    pub annotations: Vec<(String, String)>,
    /// `priorityClassName`.
    pub priority_class: Option<String>,
    /// Priority.
    pub priority: Option<i64>,
    /// Has it an emptyDir volume?
    pub empty_dir: bool,
    /// Name of a claim. Pods of a StatefulSet get a claim each, with the pod's name appended.
    pub claim: Option<String>,
    /// Grace period in seconds; 30 if not given.
    pub grace: Option<i64>,
    /// Labels that its node needs.
    pub node_selector: Vec<(String, String)>,
    /// Finalizers of the pods.
    pub finalizers: Vec<String>,
    /// Do the pods tolerate a cordoned node?
    pub tolerates_cordon: bool,
    /// Milliseconds from the binding until the pod is ready.
    pub start_after: Option<u64>,
    /// Do the pods never become ready?
    pub never_ready: bool,
}

fn map(pairs: &[(String, String)]) -> Value {
    pairs
        .iter()
        .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

impl PodTraits {
    /// Metadata and spec of a pod with the label `app`.
    fn template(&self, app: &str) -> Value {
        let mut pod = json!({
            "metadata": {"labels": map(&self.labels), "annotations": map(&self.annotations)},
            "spec": {"containers": [{"name": "c", "image": "fake/img:1", "resources": {}}]},
        });
        set(&mut pod, &["metadata", "labels", "app"], app);
        if let Some(after) = self.start_after {
            set(&mut pod, &["metadata", "annotations", START_AFTER], after.to_string());
        }
        if self.never_ready {
            set(&mut pod, &["metadata", "annotations", UNREADY], "true");
        }
        if !self.finalizers.is_empty() {
            set(&mut pod, &["metadata", "finalizers"], self.finalizers.clone());
        }
        if !self.node_selector.is_empty() {
            set(&mut pod, &["spec", "nodeSelector"], map(&self.node_selector));
        }
        if let Some(class) = &self.priority_class {
            set(&mut pod, &["spec", "priorityClassName"], class.as_str());
        }
        if let Some(priority) = self.priority {
            set(&mut pod, &["spec", "priority"], priority);
        }
        if let Some(grace) = self.grace {
            set(&mut pod, &["spec", "terminationGracePeriodSeconds"], grace);
        }
        if self.tolerates_cordon {
            let toleration = json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"});
            set(&mut pod, &["spec", "tolerations"], json!([toleration]));
        }
        let mut volumes = Vec::new();
        if self.empty_dir {
            volumes.push(json!({"name": "scratch", "emptyDir": {}}));
        }
        if let Some(claim) = &self.claim {
            volumes.push(json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}}));
        }
        if !volumes.is_empty() {
            set(&mut pod, &["spec", "volumes"], volumes);
        }
        pod
    }
}

impl Kubernetes {
    /// Create a Deployment of pods with the label `app=NAME`.
    pub fn deployment(&self, namespace: &str, name: &str, replicas: i64) -> Result<()> {
        self.deployment_with(namespace, name, replicas, &PodTraits::default())
    }

    /// Create a Deployment of pods with these properties.
    pub fn deployment_with(&self, namespace: &str, name: &str, replicas: i64, traits: &PodTraits) -> Result<()> {
        let mut object = workload(name, &traits.template(name));
        set(&mut object, &["spec", "replicas"], replicas);
        self.put("deployments.apps", namespace, object)
    }

    /// Create a StatefulSet of pods with the label `app=NAME`.
    pub fn statefulset(&self, namespace: &str, name: &str, replicas: i64) -> Result<()> {
        self.statefulset_with(namespace, name, replicas, &PodTraits::default())
    }

    /// Create a StatefulSet of pods with these properties.
    pub fn statefulset_with(&self, namespace: &str, name: &str, replicas: i64, traits: &PodTraits) -> Result<()> {
        let own = PodTraits { claim: None, ..traits.clone() };
        let mut object = workload(name, &own.template(name));
        set(&mut object, &["spec", "replicas"], replicas);
        set(&mut object, &["spec", "serviceName"], name);
        if let Some(claim) = &traits.claim {
            set(&mut object, &["spec", "volumeClaimTemplates"], json!([{"metadata": {"name": claim}}]));
        }
        self.put("statefulsets.apps", namespace, object)
    }

    /// Create a DaemonSet with the update strategy `OnDelete`.
    pub fn daemonset(&self, namespace: &str, name: &str) -> Result<()> {
        self.daemonset_with(namespace, name, &PodTraits::default())
    }

    /// Create a DaemonSet of pods with these properties.
    pub fn daemonset_with(&self, namespace: &str, name: &str, traits: &PodTraits) -> Result<()> {
        let mut object = workload(name, &traits.template(name));
        set(&mut object, &["spec", "updateStrategy"], json!({"type": "OnDelete"}));
        self.put("daemonsets.apps", namespace, object)
    }

    /// Create a pod without a controller, on this node or wherever the scheduler puts it.
    pub fn bare_pod(&self, namespace: &str, name: &str, node: Option<&str>) -> Result<()> {
        self.bare_pod_with(namespace, name, name, node, &PodTraits::default())
    }

    /// Create a pod without a controller, with the label `app` and these properties.
    pub fn bare_pod_with(
        &self,
        namespace: &str,
        name: &str,
        app: &str,
        node: Option<&str>,
        traits: &PodTraits,
    ) -> Result<()> {
        let mut pod = traits.template(app);
        set(&mut pod, &["metadata", "name"], name);
        if let Some(node) = node {
            set(&mut pod, &["spec", "nodeName"], node);
        }
        self.put("pods", namespace, pod)
    }

    /// Create the mirror of a static pod of this node.
    pub fn mirror_pod(&self, namespace: &str, name: &str, node: &str) -> Result<()> {
        let owner = self.object("nodes", "", node).with_context(|| format!("there is no node {node}"))?;
        let mut pod = PodTraits::default().template(name);
        set(&mut pod, &["metadata", "name"], name);
        set(&mut pod, &["spec", "nodeName"], node);
        let annotations = [("hash", "abc"), ("mirror", "abc"), ("seen", "2026-11-27T00:00:00Z"), ("source", "file")];
        for (key, value) in annotations {
            set(&mut pod, &["metadata", "annotations", &format!("kubernetes.io/config.{key}")], value);
        }
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid(&owner), "controller": true});
        set(&mut pod, &["metadata", "ownerReferences"], json!([owner]));
        self.put("pods", namespace, pod)
    }

    /// Create a PodDisruptionBudget over the pods with the label `app=NAME`.
    pub fn budget(&self, namespace: &str, name: &str, allowance: Allowance) -> Result<()> {
        self.budget_over(namespace, name, name, allowance)
    }

    /// Create a PodDisruptionBudget over the pods with the label `app=APP`.
    pub fn budget_over(&self, namespace: &str, name: &str, app: &str, allowance: Allowance) -> Result<()> {
        let (field, value) = match allowance {
            Allowance::MinAvailable(pods) => ("minAvailable", Value::from(pods)),
            Allowance::MinAvailablePercent(percent) => ("minAvailable", Value::from(format!("{percent}%"))),
            Allowance::MaxUnavailable(pods) => ("maxUnavailable", Value::from(pods)),
            Allowance::MaxUnavailablePercent(percent) => ("maxUnavailable", Value::from(format!("{percent}%"))),
        };
        let mut object = json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": app}}}});
        set(&mut object, &["spec", field], value);
        self.put("poddisruptionbudgets.policy", namespace, object)
    }

    /// Create a claim that is bound to a volume of its own.
    pub fn claim(&self, namespace: &str, name: &str) -> Result<()> {
        let mut state = lock(&self.shared.state);
        super::controllers::create_claim(&mut state, namespace, name).map(drop)
    }
}

fn workload(name: &str, template: &Value) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    })
}
