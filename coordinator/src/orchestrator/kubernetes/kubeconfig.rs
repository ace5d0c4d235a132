//! A kubeconfig's current context: where the API server is, how it proves itself, and the credentials for it.
//!
//! A kubeconfig comes from an operator's secret or from a control machine's `admin.conf`. It is read on another host
//! than the one it was written for, so it must hold everything itself: no files, no programs, no proxies.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Uri;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::orchestrator::kubernetes::text::one_line;

mod file;

use file::{ClusterEntry, File, UserEntry};

/// Largest kubeconfig that is read, in bytes.
pub const MAX_KUBECONFIG: usize = 256 * 1024;
/// Port of an `https://` address that names none.
const HTTPS_PORT: u16 = 443;

/// What is needed to talk to one API server.
#[derive(Clone, Debug)]
pub struct Kubeconfig {
    /// Where it listens.
    pub server: Server,
    /// Name that its certificate must bear. None: the server's host.
    pub tls_server_name: Option<String>,
    /// Certificates that its certificate must descend from, as PEM.
    pub ca: String,
    /// How Muster proves itself to it.
    pub credentials: Credentials,
}

/// Address of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// A DNS name or an IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Prefix of all paths, such as `/k8s/clusters/c-1`; empty, or without a slash at its end.
    pub path: String,
}

/// Credentials for an API server.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// Sent as a bearer token.
    Token(Secret),
    /// Shown in the TLS handshake.
    ClientCertificate {
        /// The certificate and its intermediates, as PEM.
        certificate: String,
        /// Its private key, as PEM.
        key: Secret,
    },
}

/// Text that no log shows, and that is overwritten when it is dropped.
#[derive(Clone, Deserialize)]
#[serde(from = "String")]
pub struct Secret(Zeroizing<String>);

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl Secret {
    /// A secret of this text.
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text. Keep it out of messages.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Why a kubeconfig cannot be used: one sentence that names the field and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigError {
    /// It exceeds [`MAX_KUBECONFIG`].
    #[error(
        "the kubeconfig has {0} bytes, but at most {MAX_KUBECONFIG} are read: leave only its current context in it"
    )]
    TooLarge(usize),
    /// It is not YAML, or a field has the wrong type. The parser's own words may quote secrets, so they are left out.
    #[error("cannot read the kubeconfig{0}: check it with `kubectl config view --kubeconfig FILE`")]
    Unreadable(String),
    /// A field that must be there is absent or empty.
    #[error("the kubeconfig has no {field}: {advice}")]
    Missing {
        /// Its path.
        field: String,
        /// What to do.
        advice: &'static str,
    },
    /// An entry that another one names is absent.
    #[error("the kubeconfig has no {kind} '{name}', which its {named_by} names: add it or correct the name")]
    NoEntry {
        /// `context`, `cluster` or `user`.
        kind: &'static str,
        /// The entry's name.
        name: String,
        /// The field that names it.
        named_by: String,
    },
    /// Two entries share the name that is looked up.
    #[error("the kubeconfig has more than one {kind} '{name}': leave one of them")]
    TwoEntries {
        /// `context`, `cluster` or `user`.
        kind: &'static str,
        /// The entries' name.
        name: String,
    },
    /// A field names a file, which this host does not have.
    #[error(
        "{field} names a file, which the coordinator cannot read: embed its content as {embedded}, as \
         `kubectl config view --raw --flatten` does, and remove {field}"
    )]
    NamesFile {
        /// Its path.
        field: String,
        /// The field to embed it in.
        embedded: &'static str,
    },
    /// A field asks for something that Muster does not do.
    #[error("{field} is not supported: {advice}")]
    Unsupported {
        /// Its path.
        field: String,
        /// What to do.
        advice: &'static str,
    },
    /// A field has a value that cannot be used. The value is left out: it may be a secret.
    #[error("{field} is invalid: {problem}")]
    Invalid {
        /// Its path.
        field: String,
        /// What it must be.
        problem: &'static str,
    },
}

impl Kubeconfig {
    /// Read the current context of a kubeconfig, from YAML or JSON.
    ///
    /// # Errors
    ///
    /// It cannot be read, is incomplete, or asks for something that is refused; see [`KubeconfigError`].
    pub fn parse(text: &str) -> Result<Self, KubeconfigError> {
        if text.len() > MAX_KUBECONFIG {
            return Err(KubeconfigError::TooLarge(text.len()));
        }
        let file = File::read(text)?;
        let context = file.current_context()?;
        let (cluster, at) = file.cluster(context)?;
        cluster.refuse_unsupported(&at)?;
        let server = Server::parse(cluster.server.as_deref().unwrap_or_default(), &format!("{at}.server"))?;
        let tls_server_name = cluster.tls_server_name.clone().filter(|name| !name.is_empty());
        check_server_name(tls_server_name.as_deref().unwrap_or(&server.host), &at, tls_server_name.is_some())?;
        let ca = certificate_authority(cluster, &at)?;
        let (user, at) = file.user(context)?;
        user.refuse_unsupported(&at)?;
        Ok(Self { server, tls_server_name, ca, credentials: credentials(user, &at)? })
    }
}

impl Server {
    fn parse(text: &str, field: &str) -> Result<Self, KubeconfigError> {
        let invalid = |problem| KubeconfigError::Invalid { field: field.to_owned(), problem };
        if text.is_empty() {
            return Err(missing(field.to_owned(), "set it to the API server's address, such as https://10.0.0.1:6443"));
        }
        let uri: Uri = text.parse().map_err(|_| invalid("write it as https://HOST:PORT"))?;
        if uri.scheme_str() != Some("https") {
            return Err(invalid("it must start with https://, for credentials are sent to it"));
        }
        let authority = uri.authority().ok_or_else(|| invalid("write it as https://HOST:PORT"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("remove the user name and password from it, and use a token or a client certificate"));
        }
        if uri.query().is_some() {
            return Err(invalid("remove the query (from '?' on)"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => HTTPS_PORT,
            Some(_) => {
                authority.port_u16().filter(|port| *port != 0).ok_or_else(|| invalid("its port must be 1 to 65535"))?
            }
            None => return Err(invalid("write it as https://HOST:PORT")),
        };
        if host.is_empty() {
            return Err(invalid("write it as https://HOST:PORT"));
        }
        Ok(Self { host, port, path: uri.path().trim_end_matches('/').to_owned() })
    }
}

fn missing(field: String, advice: &'static str) -> KubeconfigError {
    KubeconfigError::Missing { field, advice }
}

/// Check that a certificate can bear the name at all.
fn check_server_name(name: &str, at: &str, is_given: bool) -> Result<(), KubeconfigError> {
    let field = format!("{at}.{}", if is_given { "tls-server-name" } else { "server" });
    match ServerName::try_from(name) {
        Ok(_) => Ok(()),
        Err(_) => Err(KubeconfigError::Invalid { field, problem: "its host must be a DNS name or an IP address" }),
    }
}

fn certificate_authority(cluster: &ClusterEntry, at: &str) -> Result<String, KubeconfigError> {
    let field = format!("{at}.certificate-authority-data");
    let Some(data) = cluster.certificate_authority_data.as_deref().filter(|data| !data.is_empty()) else {
        return Err(missing(
            field,
            "set it to the CA that issued the API server's certificate; the host's CAs are not used",
        ));
    };
    certificates(data, field)
}

fn credentials(user: &UserEntry, at: &str) -> Result<Credentials, KubeconfigError> {
    let token = user.token.as_ref().map(|token| token.reveal().trim()).filter(|token| !token.is_empty());
    let certificate = user.client_certificate_data.as_deref().filter(|data| !data.is_empty());
    let key = user.client_key_data.as_ref().filter(|data| !data.reveal().is_empty());
    match (token, certificate, key) {
        (Some(_), Some(_), _) => Err(KubeconfigError::Unsupported {
            field: format!("{at}.token beside client-certificate-data"),
            advice: "remove one of them, so that it is clear as whom Muster acts",
        }),
        (Some(token), None, _) if token.chars().all(|c| c.is_ascii_graphic()) => {
            Ok(Credentials::Token(Secret::new(token.to_owned())))
        }
        (Some(_), None, _) => Err(KubeconfigError::Invalid {
            field: format!("{at}.token"),
            problem: "it must consist of printable ASCII characters without spaces",
        }),
        (None, Some(certificate), Some(key)) => Ok(Credentials::ClientCertificate {
            certificate: certificates(certificate, format!("{at}.client-certificate-data"))?,
            key: private_key(key, format!("{at}.client-key-data"))?,
        }),
        (None, Some(_), None) => Err(missing(format!("{at}.client-key-data"), "embed the client certificate's key")),
        (None, None, Some(_)) => {
            Err(missing(format!("{at}.client-certificate-data"), "embed the client key's certificate"))
        }
        (None, None, None) => Err(missing(
            format!("{at}.token or {at}.client-certificate-data"),
            "give Muster a service account's token or a client certificate",
        )),
    }
}

/// The PEM text in base64 `data`, if it holds at least one certificate.
fn certificates(data: &str, field: String) -> Result<String, KubeconfigError> {
    let problem = "it must be base64 of one or more certificates in PEM";
    let pem = decode(data).ok_or(KubeconfigError::Invalid { field: field.clone(), problem })?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok((*pem).clone()),
        Ok(_) | Err(_) => Err(KubeconfigError::Invalid { field, problem }),
    }
}

fn private_key(data: &Secret, field: String) -> Result<Secret, KubeconfigError> {
    let problem = "it must be base64 of an unencrypted private key in PEM";
    match decode(data.reveal()) {
        Some(pem) if PrivateKeyDer::from_pem_slice(pem.as_bytes()).is_ok() => Ok(Secret(pem)),
        Some(_) | None => Err(KubeconfigError::Invalid { field, problem }),
    }
}

/// Decode base64 that may be broken into lines.
fn decode(data: &str) -> Option<Zeroizing<String>> {
    let data: Zeroizing<String> = Zeroizing::new(data.chars().filter(|c| !c.is_ascii_whitespace()).collect());
    String::from_utf8(STANDARD.decode(data.as_bytes()).ok()?).ok().map(Zeroizing::new)
}

/// An entry's name, fit for a message.
fn shown(name: &str) -> String {
    one_line(name)
}

#[cfg(test)]
mod tests;
