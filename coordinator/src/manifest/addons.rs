//! `kubernetes.helmController` and `kubernetes.addons`: what is applied in the cluster once its machines are there.

use muster_proto::model::{Addon, AddonDeployment, AddonManifest, HELM_CONTROLLER, HelmController, is_label};

use super::{
    fault::{Faults, shown},
    kubernetes,
    on_delete::namespace,
    params::Secrets,
    read::{Fields, Spot},
    shape::{is_sha256, is_url},
};

/// Fields of `helmController`.
const HELM: Fields = Fields { known: &["version", "manifest", "namespace", "deployment"], later: &[], elsewhere: &[] };
/// Fields of an entry of `addons`.
const ADDON: Fields = Fields { known: &["name", "manifest", "available", "version"], later: &[], elsewhere: &[] };
/// Fields of `manifest`.
const MANIFEST: Fields = Fields { known: &["url", "sha256", "secret"], later: &[], elsewhere: &[] };
/// Fields of an entry of `available`.
const DEPLOYMENT: Fields = Fields { known: &["namespace", "deployment"], later: &[], elsewhere: &[] };
/// Most entries of `addons`.
const ADDONS_MAX: usize = 32;
/// Most entries of `available`.
const AVAILABLE_MAX: usize = 8;
/// Longest version: that of an image's tag, in bytes.
const VERSION_BYTES_MAX: usize = 128;
/// Longest URL, in bytes.
const URL_BYTES_MAX: usize = 2_048;
/// Longest name of a Deployment: a DNS name, in bytes.
const DEPLOYMENT_BYTES_MAX: usize = 253;
/// Namespace of the Helm controller by default.
const HELM_NAMESPACE: &str = "kube-system";

/// Parse `kubernetes.helmController`.
pub(super) fn helm_controller(
    spot: &Spot<'_>,
    secrets: Secrets<'_>,
    faults: &mut Faults<'_>,
) -> Option<HelmController> {
    let map = spot.map(faults, &HELM)?;
    let version = map.required(faults, "version").and_then(|spot| version(&spot, faults));
    let manifest = map.required(faults, "manifest").and_then(|spot| manifest(&spot, secrets, faults));
    let namespace = map.or("namespace", HELM_NAMESPACE.to_owned(), |spot| namespace(&spot, faults));
    let deployment = map.or("deployment", HELM_CONTROLLER.to_owned(), |spot| deployment_name(&spot, faults));
    Some(HelmController { version: version?, manifest: manifest?, namespace: namespace?, deployment: deployment? })
}

/// Parse `kubernetes.addons`.
pub(super) fn read(spot: &Spot<'_>, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<Vec<Addon>> {
    let entries = spot.list(faults)?;
    if entries.len() > ADDONS_MAX {
        spot.fault(faults, "too many add-ons", format!("at most {ADDONS_MAX}"));
        return None;
    }
    let mut addons: Vec<Addon> = Vec::new();
    for entry in entries {
        let addon = addon(&entry, secrets, faults)?;
        if addons.iter().any(|known| known.name == addon.name) {
            let problem = format!("'{}' is there already", shown(&addon.name));
            entry.child("name").fault(faults, problem, "each add-on once");
            return None;
        }
        addons.push(addon);
    }
    Some(addons)
}

fn addon(spot: &Spot<'_>, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<Addon> {
    let map = spot.map(faults, &ADDON)?;
    let name = map.required(faults, "name").and_then(|spot| addon_name(&spot, faults));
    let manifest = map.required(faults, "manifest").and_then(|spot| manifest(&spot, secrets, faults));
    let available = map.required(faults, "available").and_then(|spot| available(&spot, faults));
    let version = map.or("version", None, |spot| version(&spot, faults).map(Some));
    Some(Addon { name: name?, manifest: manifest?, available: available?, version: version? })
}

fn addon_name(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    if !is_label(text) {
        let problem = format!("'{}' is not the name of an add-on", shown(text));
        spot.fault(faults, problem, "1 to 63 of a-z, 0-9 and '-', a letter or digit first and last");
        return None;
    }
    if text == HELM_CONTROLLER {
        let problem = format!("'{HELM_CONTROLLER}' is the add-on of helmController");
        spot.fault(faults, problem, "another name, or 'helmController' instead of this entry");
        return None;
    }
    Some(text.to_owned())
}

fn manifest(spot: &Spot<'_>, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<AddonManifest> {
    let map = spot.map(faults, &MANIFEST)?;
    match (map.get("url"), map.get("secret")) {
        (Some(at), None) => {
            let sha256 = map.required(faults, "sha256").and_then(|spot| sha256(&spot, faults));
            Some(AddonManifest::Url { url: url(&at, faults)?, sha256: sha256? })
        }
        (None, Some(secret)) => {
            if let Some(sum) = map.get("sha256") {
                sum.fault(faults, "beside 'secret'", "'sha256' is for 'url'");
                return None;
            }
            kubernetes::secret(&secret, "a manifest", secrets, faults).map(|secret| AddonManifest::Secret { secret })
        }
        (None, None) => {
            spot.lacks(faults, "url", "'url' and 'sha256', or 'secret'");
            None
        }
        (Some(_), Some(secret)) => {
            secret.fault(faults, "beside 'url'", "one of both");
            None
        }
    }
}

fn url(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    if text.len() > URL_BYTES_MAX || !is_url(text) || text.contains('$') {
        spot.fault(faults, "not an http or https URL", "http://… or https://…, without variables");
        return None;
    }
    // Everybody who may read the cluster reads its spec.
    if text.parse::<http::Uri>().is_ok_and(|uri| uri.authority().is_some_and(|at| at.as_str().contains('@'))) {
        spot.fault(faults, "a URL with credentials", "a URL without; a manifest that needs some is kept as a secret");
        return None;
    }
    Some(text.to_owned())
}

fn sha256(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    if is_sha256(text) {
        return Some(text.to_ascii_lowercase());
    }
    spot.fault(faults, "not a SHA-256 digest", "64 hex digits");
    None
}

fn version(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    let of_tag = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '+');
    if !text.is_empty() && text.len() <= VERSION_BYTES_MAX && text.chars().all(of_tag) {
        return Some(text.to_owned());
    }
    let problem = format!("'{}' is not a version", shown(text));
    spot.fault(faults, problem, "the tag of an image, such as v1.2.3");
    None
}

fn available(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<Vec<AddonDeployment>> {
    let entries = spot.list(faults)?;
    if entries.is_empty() || entries.len() > AVAILABLE_MAX {
        spot.fault(faults, format!("{} Deployments", entries.len()), format!("between 1 and {AVAILABLE_MAX}"));
        return None;
    }
    entries.iter().map(|spot| deployment(spot, faults)).collect()
}

fn deployment(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<AddonDeployment> {
    let map = spot.map(faults, &DEPLOYMENT)?;
    let namespace = map.required(faults, "namespace").and_then(|spot| namespace(&spot, faults));
    let deployment = map.required(faults, "deployment").and_then(|spot| deployment_name(&spot, faults));
    Some(AddonDeployment { namespace: namespace?, deployment: deployment? })
}

fn deployment_name(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if !text.is_empty() && text.len() <= DEPLOYMENT_BYTES_MAX && text.chars().all(of_name) {
        return Some(text.to_owned());
    }
    let problem = format!("'{}' is not the name of a Deployment", shown(text));
    spot.fault(faults, problem, "lower-case letters, digits, '-' and '.'");
    None
}

#[cfg(test)]
mod tests {
    use muster_proto::model::{KubernetesSpec, SecretName};

    use super::*;
    use crate::manifest::{Fault, kubernetes::tests::read_beside_kubeconfig};

    const SUM: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn read(line: &str) -> Result<KubernetesSpec, Vec<Fault>> {
        read_beside_kubeconfig(line)
    }

    fn in_namespace(namespace: &str, deployment: &str) -> AddonDeployment {
        AddonDeployment { namespace: namespace.to_owned(), deployment: deployment.to_owned() }
    }

    #[test]
    fn helm_controller_comes_first() {
        let sum = SUM.to_uppercase();
        let spec = read(&format!(
            "helmController: {{version: v1.0.1, manifest: {{url: https://example.com/h.yaml, sha256: {sum}}}}}\n    \
             addons: [{{name: dns, manifest: {{secret: \"${{secret.k}}\"}}, available: [{{namespace: kube-system, \
             deployment: coredns}}]}}]"
        ));
        let all = spec.expect("valid").all_addons();
        let url = AddonManifest::Url { url: "https://example.com/h.yaml".to_owned(), sha256: SUM.to_owned() };
        let secret = AddonManifest::Secret { secret: SecretName::new("k").expect("a name") };
        let helm = Addon {
            name: HELM_CONTROLLER.to_owned(),
            manifest: url,
            available: vec![in_namespace("kube-system", "helm-controller")],
            version: Some("v1.0.1".to_owned()),
        };
        let dns = Addon {
            name: "dns".to_owned(),
            manifest: secret,
            available: vec![in_namespace("kube-system", "coredns")],
            version: None,
        };
        assert_eq!(all, [helm, dns]);
        let elsewhere = read(&format!(
            "helmController: {{version: \"1\", namespace: flux-system, deployment: helm, manifest: {{url: \
             \"http://h/m\", sha256: {SUM}}}}}"
        ));
        let all = elsewhere.expect("valid").all_addons();
        assert_eq!(all.first().expect("one").available, [in_namespace("flux-system", "helm")]);
    }

    #[test]
    fn faulty_helm_controller_is_named() {
        let url = "url: \"https://h/m\"";
        let good = format!("{{{url}, sha256: {SUM}}}");
        for (text, at, problem) in [
            (format!("{{manifest: {good}}}"), ".version", "missing"),
            ("{version: \"1\"}".to_owned(), ".manifest", "missing"),
            (format!("{{version: \"1 2\", manifest: {good}}}"), ".version", "is not a version"),
            (format!("{{version: v1, manifest: {good}, namespace: A}}"), ".namespace", "is not a namespace"),
            (format!("{{version: v1, manifest: {good}, deployment: a/b}}"), ".deployment", "the name of a Deployment"),
            ("{version: v1, manifest: {}}".to_owned(), ".manifest.url", "missing"),
            (format!("{{version: v1, manifest: {{{url}}}}}"), ".manifest.sha256", "missing"),
            (format!("{{version: v1, manifest: {{{url}, sha256: abc}}}}"), ".manifest.sha256", "not a SHA-256"),
            (
                format!("{{version: v1, manifest: {{url: \"ftp://h/m\", sha256: {SUM}}}}}"),
                ".manifest.url",
                "not an http or https URL",
            ),
            (
                format!("{{version: v1, manifest: {{url: \"https://a:b@h/m\", sha256: {SUM}}}}}"),
                ".manifest.url",
                "a URL with credentials",
            ),
            (
                format!("{{version: v1, manifest: {{{url}, sha256: {SUM}, secret: \"${{secret.k}}\"}}}}"),
                ".manifest.secret",
                "beside 'url'",
            ),
            (
                format!("{{version: v1, manifest: {{sha256: {SUM}, secret: \"${{secret.k}}\"}}}}"),
                ".manifest.sha256",
                "beside 'secret'",
            ),
            ("{version: v1, manifest: {secret: k}}".to_owned(), ".manifest.secret", "is not a secret"),
            (
                "{version: v1, manifest: {secret: \"${secret.other}\"}}".to_owned(),
                ".manifest.secret",
                "unknown secret 'other'",
            ),
        ] {
            let found = read(&format!("helmController: {text}")).expect_err(&text);
            let at = format!("spec.kubernetes.helmController{at}");
            assert!(found.iter().any(|fault| fault.path == at && fault.problem.contains(problem)), "{text}: {found:?}");
        }
    }

    #[test]
    fn faulty_addons_are_named() {
        let rest = "manifest: {secret: \"${secret.k}\"}, available: [{namespace: a, deployment: b}]";
        let deployments = |count| vec!["{namespace: a, deployment: b}"; count].join(", ");
        let available = |count| {
            let all = deployments(count);
            format!("[{{name: a, manifest: {{secret: \"${{secret.k}}\"}}, available: [{all}]}}]")
        };
        let many: Vec<String> = (0..=ADDONS_MAX).map(|n| format!("{{name: a{n}, {rest}}}")).collect();
        for (text, at, problem) in [
            (format!("[{{name: a, {rest}}}, {{name: a, {rest}}}]"), "[1].name", "'a' is there already"),
            (format!("[{{name: A, {rest}}}]"), "[0].name", "is not the name of an add-on"),
            (format!("[{{name: helm-controller, {rest}}}]"), "[0].name", "is the add-on of helmController"),
            (format!("[{{name: a, {rest}, color: red}}]"), "[0].color", "unknown field"),
            (available(0), "[0].available", "0 Deployments"),
            (available(AVAILABLE_MAX + 1), "[0].available", "9 Deployments"),
            (format!("[{}]", many.join(", ")), "", "too many add-ons"),
        ] {
            let found = read(&format!("addons: {text}")).expect_err(&text);
            let at = format!("spec.kubernetes.addons{at}");
            assert!(found.iter().any(|fault| fault.path == at && fault.problem.contains(problem)), "{text}: {found:?}");
        }
    }
}
