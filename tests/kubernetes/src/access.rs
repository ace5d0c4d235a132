//! Bearer tokens, users, and role-based access control.

use anyhow::Result;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    call::Call,
    failure::Failure,
    kinds::Kind,
    objects::{default, list, set, text, uid},
    state::State,
    store::Store,
    times,
};

/// Validity of a service account's token unless a request names one, in seconds.
const TOKEN_SECONDS: u64 = 3600;

/// Rights that a token has.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    /// API groups; `""` is the core group, `"*"` every group.
    pub api_groups: Vec<String>,
    /// Resources such as `pods` or `pods/eviction`; `"*"` is every resource and subresource.
    pub resources: Vec<String>,
    /// Verbs such as `get`; `"*"` is every verb.
    pub verbs: Vec<String>,
    /// Names of objects; empty allows every name.
    pub resource_names: Vec<String>,
    /// Namespaces; empty allows every namespace and the cluster scope.
    pub namespaces: Vec<String>,
    /// Paths such as `/readyz`; a trailing `*` matches any rest.
    pub non_resource_urls: Vec<String>,
}

impl Rule {
    /// Rights on resources of one API group.
    pub fn on(group: &str, resources: &[&str], verbs: &[&str]) -> Self {
        Self { api_groups: vec![group.to_owned()], resources: owned(resources), verbs: owned(verbs), ..Self::default() }
    }

    /// Right to read paths that are no resources.
    pub fn paths(paths: &[&str]) -> Self {
        Self { non_resource_urls: owned(paths), verbs: owned(&["get"]), ..Self::default() }
    }

    /// Rights of the ClusterRoles in a YAML file, such as `kubectl apply` takes.
    pub fn of_cluster_roles(yaml: &str) -> Result<Vec<Self>> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml)?;
        let roles = documents.iter().filter(|document| document["kind"] == "ClusterRole");
        Ok(roles.flat_map(|role| list(role, "/rules")).map(Self::of_rule).collect())
    }

    fn of_rule(rule: &Value) -> Self {
        let texts = |pointer: &str| list(rule, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Self {
            api_groups: texts("/apiGroups"),
            resources: texts("/resources"),
            verbs: texts("/verbs"),
            resource_names: texts("/resourceNames"),
            namespaces: Vec::new(),
            non_resource_urls: texts("/nonResourceURLs"),
        }
    }

    /// Every right.
    pub fn everything() -> Self {
        Self { non_resource_urls: owned(&["*"]), ..Self::on("*", &["*"], &["*"]) }
    }

    /// The same rights within one namespace.
    #[must_use]
    pub fn within(mut self, namespace: &str) -> Self {
        self.namespaces.push(namespace.to_owned());
        self
    }

    fn allows(&self, action: &Action<'_>) -> bool {
        let names = &self.resource_names;
        let spaces = &self.namespaces;
        listed(&self.verbs, action.verb)
            && listed(&self.api_groups, action.group)
            && listed(&self.resources, &action.resource())
            && (names.is_empty() || names.iter().any(|name| name == action.name))
            && (spaces.is_empty() || spaces.iter().any(|space| space == action.namespace))
    }

    fn allows_path(&self, verb: &str, path: &str) -> bool {
        let matches = |allowed: &String| {
            allowed == path || allowed.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
        };
        listed(&self.verbs, verb) && self.non_resource_urls.iter().any(matches)
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn listed(allowed: &[String], wanted: &str) -> bool {
    allowed.iter().any(|entry| entry == "*" || entry == wanted)
}

/// A known bearer token.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) token: String,
    pub(super) user: String,
    pub(super) rules: Vec<Rule>,
}

/// Action of a request, for the access check.
#[derive(Clone, Debug)]
pub(super) struct Action<'a> {
    pub(super) verb: &'a str,
    pub(super) group: &'a str,
    pub(super) plural: &'a str,
    pub(super) subresource: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl Action<'_> {
    /// `pods` or `pods/eviction`.
    pub(super) fn resource(&self) -> String {
        if self.subresource.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}/{}", self.plural, self.subresource)
        }
    }
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) user: String,
    rules: Vec<Rule>,
}

/// Find the caller by the header `Authorization`. Without a header it is anonymous.
pub(super) fn authenticate(state: &State, authorization: Option<&str>) -> Result<Caller, Failure> {
    let public = Rule::paths(&["/healthz", "/livez", "/readyz", "/version", "/version/"]);
    let Some(header) = authorization else {
        return Ok(Caller { user: "system:anonymous".to_owned(), rules: vec![public] });
    };
    let token = header.strip_prefix("Bearer ").unwrap_or("");
    let known = state.tokens.iter().find(|known| known.token == token).ok_or_else(Failure::unauthorized)?;
    // The default roles system:public-info-viewer, system:discovery and system:basic-user of every cluster.
    let discovery = Rule::paths(&["/api", "/api/*", "/apis", "/apis/*", "/livez/*", "/readyz/*", "/openapi*"]);
    let basic = Rule::on("authorization.k8s.io", &["selfsubjectaccessreviews"], &["create"]);
    let own = known.rules.iter().cloned().chain(bound(&state.store, &known.user));
    Ok(Caller { user: known.user.clone(), rules: own.chain([public, discovery, basic]).collect() })
}

/// Rights that ClusterRoleBindings give to a service account.
fn bound(store: &Store, user: &str) -> Vec<Rule> {
    let is_it = |subject: &Value| {
        text(subject, "/kind") == "ServiceAccount"
            && user == account_user(text(subject, "/namespace"), text(subject, "/name"))
    };
    let bindings = store.all("clusterrolebindings.rbac.authorization.k8s.io");
    let its = bindings.iter().filter(|binding| list(binding, "/subjects").iter().any(is_it));
    let roles = its
        .filter_map(|binding| store.get("clusterroles.rbac.authorization.k8s.io", "", text(binding, "/roleRef/name")));
    roles.flat_map(|role| list(&role, "/rules").iter().map(Rule::of_rule).collect::<Vec<_>>()).collect()
}

fn account_user(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// Answer a TokenRequest: a token of a service account. It does not expire here.
pub(super) fn issue(state: &mut State, call: &Call, kind: &Kind) -> Result<Value, Failure> {
    let account = state.store.get(&kind.resource(), &call.namespace, &call.name);
    let account = account.ok_or_else(|| Failure::not_found(kind, &call.name))?;
    let token = uuid::Uuid::new_v4().simple().to_string();
    let user = account_user(&call.namespace, &call.name);
    state.tokens.push(Token { token: token.clone(), user, rules: Vec::new() });
    let mut answer = call.body.clone().filter(Value::is_object).unwrap_or_else(|| json!({}));
    let seconds = answer.pointer("/spec/expirationSeconds").and_then(Value::as_u64).unwrap_or(TOKEN_SECONDS);
    set(&mut answer, &["apiVersion"], "authentication.k8s.io/v1");
    set(&mut answer, &["kind"], "TokenRequest");
    let metadata = json!({
        "name": call.name,
        "namespace": call.namespace,
        "uid": uid(&account),
        "creationTimestamp": times::format(Timestamp::now()),
    });
    set(&mut answer, &["metadata"], metadata);
    set(&mut answer, &["spec", "audiences"], json!(["https://kubernetes.default.svc"]));
    set(&mut answer, &["spec", "expirationSeconds"], seconds);
    default(&mut answer, &["spec", "boundObjectRef"], Value::Null);
    set(&mut answer, &["status"], json!({"token": token, "expirationTimestamp": times::after_now(seconds)}));
    Ok(answer)
}

impl Caller {
    pub(super) fn may(&self, action: &Action<'_>) -> bool {
        self.rules.iter().any(|rule| rule.allows(action))
    }

    pub(super) fn may_read(&self, verb: &str, path: &str) -> bool {
        self.rules.iter().any(|rule| rule.allows_path(verb, path))
    }

    /// The answer for a caller without the right.
    pub(super) fn forbidden(&self, action: &Action<'_>, kind: &Kind) -> Failure {
        let subject = match action.name {
            "" => kind.resource(),
            name => format!("{} \"{name}\"", kind.resource()),
        };
        let scope = match action.namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace \"{namespace}\""),
        };
        let message = format!(
            "{subject} is forbidden: User \"{}\" cannot {} resource \"{}\" in API group \"{}\" {scope}",
            self.user,
            action.verb,
            action.resource(),
            action.group
        );
        Failure::new(403, Some("Forbidden"), message).with_details(super::failure::details(kind, action.name))
    }

    /// The same for a path that is no resource.
    pub(super) fn forbidden_path(&self, verb: &str, path: &str) -> Failure {
        let message = format!("forbidden: User \"{}\" cannot {verb} path \"{path}\"", self.user);
        Failure::new(403, Some("Forbidden"), message).with_details(json!({}))
    }
}
