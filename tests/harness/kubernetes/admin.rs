//! The administrator's kubeconfig. The coordinator's parser reads it, after the files that it names are embedded: the
//! suite runs where they are.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use muster_coordinator::orchestrator::kubernetes::kubeconfig::{Credentials, Kubeconfig, Secret};
use serde_json::{Value, json};

/// A list, the field of its entries, a field that names a file, and the field that holds its content.
const FILES: [(&str, &str, &str, &str); 3] = [
    ("clusters", "cluster", "certificate-authority", "certificate-authority-data"),
    ("users", "user", "client-certificate", "client-certificate-data"),
    ("users", "user", "client-key", "client-key-data"),
];

/// Read a kubeconfig. A server that does not prove itself, exec plugins and proxies are refused.
pub(super) fn read(path: &Path) -> Result<Kubeconfig> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read the kubeconfig {shown}"))?;
    parse(&text, path.parent().unwrap_or(Path::new("."))).with_context(|| format!("cannot use the kubeconfig {shown}"))
}

fn parse(text: &str, directory: &Path) -> Result<Kubeconfig> {
    // The parser's own words may quote secrets.
    let mut file: Value = serde_saphyr::from_str(text).ok().context("it is not YAML")?;
    for (entries, entry, names, holds) in FILES {
        let entries = file.get_mut(entries).and_then(Value::as_array_mut).into_iter().flatten();
        for fields in entries.filter_map(|one| one.get_mut(entry)?.as_object_mut()) {
            let Some(name) = fields.get(names).and_then(Value::as_str).filter(|name| !name.is_empty()) else {
                continue;
            };
            // An entry of another context may name a file that is not there: the parser speaks of the current one.
            let Ok(content) = fs::read(directory.join(name)) else { continue };
            fields.insert(holds.to_owned(), BASE64_STANDARD.encode(content).into());
            fields.remove(names);
        }
    }
    let kubeconfig = Kubeconfig::parse(&file.to_string())?;
    ensure!(
        kubeconfig.server.path.is_empty(),
        "its server has a path: that is a proxy, and Muster must reach the API server itself"
    );
    Ok(kubeconfig)
}

/// The same API server with a bearer token.
pub(super) fn with_token(kubeconfig: &Kubeconfig, token: &str) -> Kubeconfig {
    Kubeconfig { credentials: Credentials::Token(Secret::new(token.to_owned())), ..kubeconfig.clone() }
}

/// The name that the API server's certificate must bear.
pub(super) fn certificate_name(kubeconfig: &Kubeconfig) -> &str {
    kubeconfig.tls_server_name.as_deref().unwrap_or(&kubeconfig.server.host)
}

/// The text of a kubeconfig for an API server at this address with this certificate name.
pub(super) fn text(address: &str, certificate_name: &str, ca: &str, token: &str) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://{address}"),
            "tls-server-name": certificate_name,
            "certificate-authority-data": BASE64_STANDARD.encode(ca),
        }}],
        "users": [{"name": "test", "user": {"token": token}}],
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority() -> Result<String> {
        let key = rcgen::KeyPair::generate()?;
        Ok(rcgen::CertificateParams::new(vec!["a".to_owned()])?.self_signed(&key)?.pem())
    }

    fn config(cluster: &str) -> String {
        format!(
            "current-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
             clusters: [{{name: a, cluster: {{{cluster}}}}}]\nusers: [{{name: a, user: {{token: t}}}}]\n"
        )
    }

    #[test]
    fn named_files_are_embedded() -> Result<()> {
        let directory = tempfile::tempdir()?;
        fs::write(directory.path().join("ca.crt"), authority()?)?;
        let named = config("server: 'https://10.0.0.1:6443', certificate-authority: ca.crt");
        let read = parse(&named, directory.path())?;
        assert_eq!(
            (read.ca, certificate_name(&parse(&named, directory.path())?)),
            (authority_of(&directory)?, "10.0.0.1")
        );
        let missing = config("server: 'https://10.0.0.1:6443', certificate-authority: other.crt");
        assert!(format!("{:#}", parse(&missing, directory.path()).unwrap_err()).contains("names a file"));
        Ok(())
    }

    fn authority_of(directory: &tempfile::TempDir) -> Result<String> {
        Ok(fs::read_to_string(directory.path().join("ca.crt"))?)
    }

    #[test]
    fn insecure_and_proxied_servers_are_refused() -> Result<()> {
        let data = BASE64_STANDARD.encode(authority()?);
        let refused = |cluster: &str| format!("{:#}", parse(&config(cluster), Path::new(".")).unwrap_err());
        assert!(refused("server: 'https://a', insecure-skip-tls-verify: true").contains("insecure-skip-tls-verify"));
        let proxied = format!("server: 'https://a/k8s/c-1', certificate-authority-data: {data}");
        assert!(refused(&proxied).contains("has a path"));
        Ok(())
    }

    #[test]
    fn written_kubeconfig_is_read_again() -> Result<()> {
        let authority = authority()?;
        let read = Kubeconfig::parse(&text("127.0.0.1:1234", "kubernetes", &authority, "secret"))?;
        assert_eq!((read.server.port, certificate_name(&read), &read.ca), (1234, "kubernetes", &authority));
        Ok(())
    }
}
