//! `kubernetes.etcd`: how the etcd members of control machines are asked for their health.

use core::net::IpAddr;
use std::collections::BTreeMap;

use http::Uri;
use muster_proto::{
    model::{EtcdClient, EtcdProbe, PROBE_VARIABLES},
    variables::{self, replace_late},
};

use super::{
    fault::{Faults, shown},
    read::{Fields, Spot, one_of},
};

/// Fields of `kubernetes.etcd`.
const ETCD: Fields = Fields { known: &["health", "caFile", "certificateFile", "keyFile"], later: &[], elsewhere: &[] };
/// The word for a cluster whose etcd is not asked.
const NONE: &str = "none";
const URL: &str = "`none`, or http:// or https:// with a loopback address or ${machine.internalIP}, and a path";
/// Stands for the machine's own address while a URL is checked. No machine has it.
const OWN_ADDRESS: &str = "192.0.2.1";

/// Parse `kubernetes.etcd`. Inner None: it is not asked.
pub(super) fn read(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<Option<EtcdProbe>> {
    let map = spot.map(faults, &ETCD)?;
    let health = map.required(faults, "health").and_then(|spot| health(&spot, faults));
    let files = ["caFile", "certificateFile", "keyFile"].map(|name| map.or(name, None, |spot| file(&spot, faults)));
    let [Some(ca_file), Some(certificate_file), Some(key_file)] = files else { return None };
    let health = health?;
    let given = ["caFile", "certificateFile", "keyFile"].into_iter().find_map(|name| map.get(name));
    let scheme = health.as_ref().map(|health| health.starts_with("https://"));
    match (scheme, given) {
        (None, Some(file)) => fault(&file, faults, "etcd is not asked ('health' is none)", "no file"),
        (Some(false), Some(file)) => {
            fault(&file, faults, "nothing is encrypted ('health' is http)", "https, or no file")
        }
        (_, None) | (Some(true), _) => Some(()),
    }?;
    let Some(health) = health else { return Some(None) };
    if scheme == Some(true) && ca_file.is_none() {
        spot.lacks(faults, "caFile", "the file with the CA of etcd's certificate, with https");
        return None;
    }
    let client = match (certificate_file, key_file) {
        (Some(certificate_file), Some(key_file)) => Some(EtcdClient { certificate_file, key_file }),
        (None, None) => None,
        (Some(_), None) => {
            spot.lacks(faults, "keyFile", "the key of certificateFile");
            return None;
        }
        (None, Some(_)) => {
            spot.lacks(faults, "certificateFile", "the certificate of keyFile");
            return None;
        }
    };
    Some(Some(EtcdProbe { health, ca_file, client }))
}

fn fault<T>(spot: &Spot<'_>, faults: &mut Faults<'_>, problem: &str, expected: &str) -> Option<T> {
    spot.fault(faults, problem, expected);
    None
}

/// A URL that leads to the machine itself. Inner None: `none`.
fn health(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<Option<String>> {
    let text = spot.line(faults)?;
    if text == NONE {
        return Some(None);
    }
    let sample = sample(spot, text, faults)?;
    if leads_to_itself(&sample) {
        return Some(Some(text.to_owned()));
    }
    fault(spot, faults, &format!("'{}' leads to no address of the machine itself", shown(text)), URL)
}

fn leads_to_itself(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let is_plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@')) && !url.contains('#');
    let host = uri.host().map(|host| host.trim_start_matches('[').trim_end_matches(']'));
    let address = host.and_then(|host| host.parse::<IpAddr>().ok());
    is_http && is_plain && address.is_some_and(|address| address.is_loopback() || address.to_string() == OWN_ADDRESS)
}

/// An absolute path.
fn file(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<Option<String>> {
    let text = spot.line(faults)?;
    let sample = sample(spot, text, faults)?;
    if is_path_of_file(&sample) {
        return Some(Some(text.to_owned()));
    }
    fault(spot, faults, &format!("'{}' is not the path of a file", shown(text)), "an absolute path without '..'")
}

/// Is it absolute, without a way up?
pub(super) fn is_path_of_file(text: &str) -> bool {
    text.starts_with('/') && !text.ends_with('/') && !text.split('/').any(|part| part == "..")
}

/// The text with values for its variables.
fn sample(spot: &Spot<'_>, text: &str, faults: &mut Faults<'_>) -> Option<String> {
    let names = match variables::names(text) {
        Ok(names) => names,
        Err(error) => return fault(spot, faults, &error.to_string(), "text, with ${NAME} for a variable"),
    };
    if let Some(other) = names.into_iter().find(|name| !PROBE_VARIABLES.contains(name)) {
        return fault(
            spot,
            faults,
            &format!("variable '{}' has no value here", shown(other)),
            &one_of(&PROBE_VARIABLES),
        );
    }
    let value = |name: &str| if name == "machine.internalIP" { OWN_ADDRESS } else { "m" };
    let values = BTreeMap::from(PROBE_VARIABLES.map(|name| (name.to_owned(), value(name).to_owned())));
    replace_late(text, &values).ok()
}

#[cfg(test)]
mod tests {
    use crate::manifest::{Fault, kubernetes::tests::read_beside_kubeconfig};

    use super::*;

    fn read(etcd: &str) -> Result<Option<EtcdProbe>, Vec<Fault>> {
        Ok(read_beside_kubeconfig(&format!("etcd: {etcd}"))?.etcd)
    }

    #[test]
    fn etcd_settings_are_read() {
        assert_eq!(read("{health: none}"), Ok(None));
        for url in [
            "http://127.0.0.1:2381/health",
            "http://[::1]:2381/health",
            "http://${machine.internalIP}:2381/health?exclude=NOSPACE",
            "http://127.0.0.1/${machine.hostname}/health",
        ] {
            let probe = EtcdProbe { health: url.to_owned(), ca_file: None, client: None };
            assert_eq!(read(&format!("{{health: \"{url}\"}}")), Ok(Some(probe)));
        }
        let path = |name: &str| format!("/etc/ssl/etcd/{name}-${{machine.name}}.pem");
        let client = EtcdClient { certificate_file: path("admin"), key_file: path("key") };
        let health = "https://127.0.0.1:2379/health".to_owned();
        let probe = EtcdProbe { health: health.clone(), ca_file: Some("/ca.pem".to_owned()), client: Some(client) };
        let files = format!("certificateFile: \"{}\", keyFile: \"{}\"", path("admin"), path("key"));
        assert_eq!(read(&format!("{{health: \"{health}\", caFile: /ca.pem, {files}}}")), Ok(Some(probe)));
    }

    #[test]
    fn faulty_etcd_settings_are_named() {
        let tls = "health: \"https://127.0.0.1:2379\"";
        for (etcd, path, problem) in [
            ("{}".to_owned(), "", "missing"),
            ("{health: http}".to_owned(), ".health", "leads to no address of the machine"),
            ("{health: \"http://10.0.0.1:2381\"}".to_owned(), ".health", "leads to no address of the machine"),
            ("{health: \"http://localhost:2381\"}".to_owned(), ".health", "leads to no address of the machine"),
            ("{health: \"http://u@127.0.0.1\"}".to_owned(), ".health", "leads to no address of the machine"),
            ("{health: \"http://127.0.0.1/${secret.k}\"}".to_owned(), ".health", "'secret.k' has no value here"),
            ("{health: \"http://127.0.0.1/${machine.nam}\"}".to_owned(), ".health", "unknown variable"),
            ("{health: none, caFile: /ca}".to_owned(), ".caFile", "etcd is not asked"),
            ("{health: \"http://127.0.0.1\", keyFile: /k}".to_owned(), ".keyFile", "nothing is encrypted"),
            (format!("{{{tls}}}"), ".caFile", "missing"),
            (format!("{{{tls}, caFile: ca}}"), ".caFile", "is not the path of a file"),
            (format!("{{{tls}, caFile: /a/../ca}}"), ".caFile", "is not the path of a file"),
            (format!("{{{tls}, caFile: /ca, keyFile: /k}}"), ".certificateFile", "missing"),
            (format!("{{{tls}, caFile: /ca, certificateFile: /c}}"), ".keyFile", "missing"),
            (format!("{{{tls}, ca: /ca}}"), ".ca", "unknown field"),
        ] {
            let found = read(&etcd).expect_err(&etcd);
            let at = format!("spec.kubernetes.etcd{path}");
            let named = |fault: &Fault| fault.path.starts_with(&at) && fault.problem.contains(problem);
            assert!(found.iter().any(named), "{etcd}: {found:?}");
            assert!(found.iter().all(|fault| fault.line == 10), "{found:?}");
        }
    }
}
