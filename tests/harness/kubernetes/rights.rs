//! The coordinator's account with the shipped rights and no other, under names of the run.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::{CLUSTER_LIMIT, LOOK_EVERY, RUN_LABEL, admin, client::Client, cluster::ClusterUnderTest, name, text};
use crate::fleet::look_every;

/// What operators apply.
const SHIPPED: &str = include_str!("../../../packaging/kubernetes/rbac.yaml");
/// What they apply besides for the maintenance handshake.
const MAINTENANCE: &str = include_str!("../../../packaging/kubernetes/rbac-maintenance.yaml");
/// The shipped namespace.
const NAMESPACE: &str = "muster";
/// The shipped account.
const ACCOUNT: &str = "coordinator";
/// Validity of its token: longer than any run.
const TOKEN_SECONDS: u64 = 4 * 3600;
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Make the account, and a token of it that works.
pub(super) fn token(cluster: &ClusterUnderTest) -> Result<String> {
    give(cluster, SHIPPED)?;
    let token = token_of(cluster, cluster.run(), ACCOUNT)?;
    let client = Client::new(&admin::with_token(cluster.kubeconfig(), &token))?;
    wait(&client, &json!({"verb": "list", "resource": "nodes"}))?;
    Ok(token)
}

/// Give the account the rights of the maintenance handshake, and wait until it has them.
pub(super) fn add_maintenance(cluster: &ClusterUnderTest) -> Result<()> {
    give(cluster, MAINTENANCE)?;
    let client = Client::new(&admin::with_token(cluster.kubeconfig(), cluster.token()))?;
    wait(&client, &json!({"verb": "create", "group": "lcm.mirantis.com", "resource": "nodemaintenancerequests"}))
}

fn give(cluster: &ClusterUnderTest, shipped: &str) -> Result<()> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(shipped).context("a file of packaging/kubernetes")?;
    for document in documents.iter().filter(|document| !document.is_null()) {
        let (collection, object) = of_run(document, cluster.run())?;
        cluster.create(&collection, &object)?;
    }
    Ok(())
}

/// A token of a service account.
pub(super) fn token_of(cluster: &ClusterUnderTest, namespace: &str, account: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": TOKEN_SECONDS},
    });
    let made = cluster.client().post(&path, &request)?.object("the account's token")?;
    let token = text(&made, "/status/token");
    ensure!(!token.is_empty(), "the API server made a token without a value");
    Ok(token.to_owned())
}

/// Where a shipped object goes, and the object under the run's names.
fn of_run(document: &Value, run: &str) -> Result<(String, Value)> {
    let mut object = document.clone();
    let kind = text(document, "/kind").to_owned();
    object["metadata"]["labels"] = json!({RUN_LABEL: run});
    let collection = match kind.as_str() {
        "Namespace" if name(document) == NAMESPACE => {
            object["metadata"]["name"] = run.into();
            "/api/v1/namespaces".to_owned()
        }
        "ServiceAccount" | "Secret" if text(document, "/metadata/namespace") == NAMESPACE => {
            object["metadata"]["namespace"] = run.into();
            format!("/api/v1/namespaces/{run}/{}s", kind.to_lowercase())
        }
        "ClusterRole" | "ClusterRoleBinding" => {
            object["metadata"]["name"] = format!("{run}-{}", name(document)).into();
            if kind == "ClusterRoleBinding" {
                object["roleRef"]["name"] = format!("{run}-{}", text(document, "/roleRef/name")).into();
                for subject in object["subjects"].as_array_mut().context("a binding without subjects")? {
                    subject["namespace"] = run.into();
                }
            }
            format!("/apis/rbac.authorization.k8s.io/v1/{}s", kind.to_lowercase())
        }
        _ => bail!("packaging/kubernetes has a {kind} that the suite cannot place: teach it to"),
    };
    Ok((collection, object))
}

/// Wait until a token is accepted and has this right: the API server learns of a binding a moment later.
pub(super) fn wait(client: &Client, right: &Value) -> Result<()> {
    let spec = json!({"resourceAttributes": right});
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec});
    look_every(LOOK_EVERY, &format!("the right of an account: {right}"), CLUSTER_LIMIT, || {
        let answer = client.post(REVIEWS, &review)?;
        let allowed = answer.body.pointer("/status/allowed").and_then(Value::as_bool) == Some(true);
        Ok((answer.status == 201 && allowed).then_some(()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are the run's, and rules are as shipped.
    #[test]
    fn shipped_rights_are_kept() -> Result<()> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(SHIPPED)?;
        let placed: Vec<_> = documents.iter().map(|document| of_run(document, "r")).collect::<Result<_>>()?;
        let paths: Vec<String> = placed.iter().map(|(path, object)| format!("{path}/{}", name(object))).collect();
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        assert_eq!(
            paths,
            [
                "/api/v1/namespaces/r".to_owned(),
                "/api/v1/namespaces/r/serviceaccounts/coordinator".to_owned(),
                "/api/v1/namespaces/r/secrets/coordinator".to_owned(),
                format!("{rbac}/clusterroles/r-muster-coordinator"),
                format!("{rbac}/clusterrolebindings/r-muster-coordinator"),
            ]
        );
        for ((_, object), document) in placed.iter().zip(&documents) {
            assert_eq!((&object["rules"], &object["kind"]), (&document["rules"], &document["kind"]));
        }
        let binding = &placed[4].1;
        assert_eq!(binding["roleRef"]["name"], "r-muster-coordinator");
        assert_eq!(binding["subjects"][0]["namespace"], "r");
        Ok(())
    }
}
