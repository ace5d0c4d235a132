//! A kubeconfig as it is written: only the fields that are used or refused.

use serde::{Deserialize, de::IgnoredAny};

use super::{KubeconfigError, Secret, missing, shown};

/// The whole file.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct File {
    current_context: Option<String>,
    contexts: Option<Vec<NamedContext>>,
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Option<ContextEntry>,
}

/// Names a cluster and a user.
#[derive(Deserialize)]
pub(super) struct ContextEntry {
    cluster: Option<String>,
    user: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Option<ClusterEntry>,
}

/// Where an API server is.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ClusterEntry {
    pub(super) server: Option<String>,
    pub(super) tls_server_name: Option<String>,
    pub(super) certificate_authority_data: Option<String>,
    certificate_authority: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<UserEntry>,
}

/// Credentials.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct UserEntry {
    pub(super) token: Option<Secret>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key_data: Option<Secret>,
    client_certificate: Option<String>,
    client_key: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    exec: Option<IgnoredAny>,
    auth_provider: Option<IgnoredAny>,
    username: Option<String>,
    password: Option<Secret>,
    #[serde(rename = "as")]
    impersonate: Option<String>,
    as_uid: Option<String>,
    as_groups: Option<Vec<String>>,
    as_user_extra: Option<IgnoredAny>,
}

/// The only entry of a name.
fn only<'a, T>(
    mut entries: impl Iterator<Item = (&'a str, Option<&'a T>)>,
    kind: &'static str,
    name: &str,
    named_by: String,
) -> Result<&'a T, KubeconfigError> {
    let absent = || KubeconfigError::NoEntry { kind, name: shown(name), named_by };
    let found = entries.by_ref().find(|(entry, _)| *entry == name).and_then(|(_, entry)| entry).ok_or_else(absent)?;
    match entries.any(|(entry, _)| entry == name) {
        true => Err(KubeconfigError::TwoEntries { kind, name: shown(name) }),
        false => Ok(found),
    }
}

impl File {
    /// Read YAML. Errors give the place alone: snippets and values of the text may be secrets.
    pub(super) fn read(text: &str) -> Result<Self, KubeconfigError> {
        let options = serde_saphyr::options! { with_snippet: false };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let place = error.location().map(|at| format!(", line {} column {}", at.line(), at.column()));
            KubeconfigError::Unreadable(place.unwrap_or_default())
        })
    }

    /// The context that `current-context` names.
    pub(super) fn current_context(&self) -> Result<Context<'_>, KubeconfigError> {
        let advice = "set it with `kubectl config use-context NAME`";
        let name = self.current_context.as_deref().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| missing("current-context".to_owned(), advice))?;
        let entries = self.contexts.iter().flatten().map(|entry| (entry.name.as_str(), entry.context.as_ref()));
        Ok(Context { name, entry: only(entries, "context", name, "current-context".to_owned())? })
    }

    /// The context's cluster, and its path in the file.
    pub(super) fn cluster(&self, context: Context<'_>) -> Result<(&ClusterEntry, String), KubeconfigError> {
        let (name, named_by) = context.names("cluster", context.entry.cluster.as_deref())?;
        let entries = self.clusters.iter().flatten().map(|entry| (entry.name.as_str(), entry.cluster.as_ref()));
        Ok((only(entries, "cluster", name, named_by)?, format!("clusters[{}].cluster", shown(name))))
    }

    /// The context's user, and its path in the file.
    pub(super) fn user(&self, context: Context<'_>) -> Result<(&UserEntry, String), KubeconfigError> {
        let (name, named_by) = context.names("user", context.entry.user.as_deref())?;
        let entries = self.users.iter().flatten().map(|entry| (entry.name.as_str(), entry.user.as_ref()));
        Ok((only(entries, "user", name, named_by)?, format!("users[{}].user", shown(name))))
    }
}

/// A context and its name.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    name: &'a str,
    entry: &'a ContextEntry,
}

impl<'a> Context<'a> {
    /// The name in one of its fields, and the field's path.
    fn names(&self, field: &str, name: Option<&'a str>) -> Result<(&'a str, String), KubeconfigError> {
        let path = format!("contexts[{}].context.{field}", shown(self.name));
        match name {
            Some(name) if !name.is_empty() => Ok((name, path)),
            Some(_) | None => Err(missing(path, "set it to the name of an entry of this file")),
        }
    }
}

impl ClusterEntry {
    /// Refuse what leads elsewhere or weakens TLS.
    pub(super) fn refuse_unsupported(&self, at: &str) -> Result<(), KubeconfigError> {
        if self.insecure_skip_tls_verify == Some(true) {
            let advice = "remove it, and embed the API server's CA as certificate-authority-data";
            return Err(unsupported(at, "insecure-skip-tls-verify", advice));
        }
        if is_set(self.proxy_url.as_deref()) {
            let advice = "remove it; the coordinator must reach the API server directly";
            return Err(unsupported(at, "proxy-url", advice));
        }
        refuse_file(self.certificate_authority.as_deref(), at, "certificate-authority", "certificate-authority-data")
    }
}

impl UserEntry {
    /// Refuse what runs programs, reads files or acts as somebody else.
    pub(super) fn refuse_unsupported(&self, at: &str) -> Result<(), KubeconfigError> {
        let token = "give Muster a service account's token or a client certificate instead";
        let impersonation = "remove it, and give Muster's own user the rights it needs";
        let password = self.password.as_ref().map(Secret::reveal);
        let refused = [
            (self.exec.is_some(), "exec", token),
            (self.auth_provider.is_some(), "auth-provider", token),
            (is_set(self.username.as_deref()), "username", token),
            (is_set(password), "password", token),
            (is_set(self.impersonate.as_deref()), "as", impersonation),
            (is_set(self.as_uid.as_deref()), "as-uid", impersonation),
            (self.as_groups.as_ref().is_some_and(|groups| !groups.is_empty()), "as-groups", impersonation),
            (self.as_user_extra.is_some(), "as-user-extra", impersonation),
        ];
        if let Some((_, field, advice)) = refused.into_iter().find(|(is_present, _, _)| *is_present) {
            return Err(unsupported(at, field, advice));
        }
        refuse_file(self.token_file.as_deref(), at, "tokenFile", "token")?;
        refuse_file(self.client_certificate.as_deref(), at, "client-certificate", "client-certificate-data")?;
        refuse_file(self.client_key.as_deref(), at, "client-key", "client-key-data")
    }
}

fn is_set(value: Option<&str>) -> bool {
    value.is_some_and(|value| !value.is_empty())
}

fn unsupported(at: &str, field: &str, advice: &'static str) -> KubeconfigError {
    KubeconfigError::Unsupported { field: format!("{at}.{field}"), advice }
}

fn refuse_file(value: Option<&str>, at: &str, field: &str, embedded: &'static str) -> Result<(), KubeconfigError> {
    match is_set(value) {
        true => Err(KubeconfigError::NamesFile { field: format!("{at}.{field}"), embedded }),
        false => Ok(()),
    }
}
