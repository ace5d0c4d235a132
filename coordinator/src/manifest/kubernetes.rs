//! `kubernetes`: the Kubernetes cluster on a cluster's machines.

use muster_proto::{
    model::{
        EVICTIONS_AT_ONCE_MAX, KubeconfigSource, KubernetesDrain, KubernetesSpec, SecretName, Unknown, UnmanagedPods,
    },
    variables::SECRET_PREFIX,
};

use super::{
    addons, etcd,
    fault::{Faults, shown},
    maintenance, on_delete,
    params::{self, Secrets},
    read::{Fields, Map, Spot},
};

/// Fields of `kubernetes`.
pub(super) const KUBERNETES: Fields = Fields {
    known: &["kubeconfig", "adminConf", "drain", "etcd", "maintenance", "onDelete", "helmController", "addons"],
    later: &[],
    elsewhere: &[],
};
/// Fields of `kubernetes.drain`.
const DRAIN: Fields = Fields {
    known: &["unmanagedPods", "keepLocalStorage", "waitForVolumes", "evictionsAtOnce"],
    later: &[],
    elsewhere: &[],
};

/// Parse `kubernetes`.
pub(super) fn read(spot: &Spot<'_>, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<KubernetesSpec> {
    let map = spot.map(faults, &KUBERNETES)?;
    let source = source(spot, &map, secrets, faults);
    let drain = map.or("drain", KubernetesDrain::default(), |spot| drain(&spot, faults));
    let etcd = map.or("etcd", None, |spot| etcd::read(&spot, faults));
    let maintenance = map.or("maintenance", None, |spot| maintenance::read(&spot, faults).map(Some));
    let on_delete = map.or("onDelete", Vec::new(), |spot| on_delete::read(&spot, faults));
    let helm_controller =
        map.or("helmController", None, |spot| addons::helm_controller(&spot, secrets, faults).map(Some));
    let addons = map.or("addons", Vec::new(), |spot| addons::read(&spot, secrets, faults));
    let (drain, etcd, maintenance, on_delete) = (drain?, etcd?, maintenance?, on_delete?);
    let (helm_controller, addons) = (helm_controller?, addons?);
    Some(KubernetesSpec { source: source?, drain, etcd, maintenance, on_delete, helm_controller, addons })
}

/// `kubeconfig` or `adminConf`.
fn source(spot: &Spot<'_>, map: &Map<'_>, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<KubeconfigSource> {
    match (map.get("kubeconfig"), map.get("adminConf")) {
        (Some(kubeconfig), None) => secret(&kubeconfig, "a kubeconfig", secrets, faults).map(KubeconfigSource::Secret),
        (None, Some(file)) => admin_conf(&file, faults).map(KubeconfigSource::AdminConf),
        (None, None) => {
            let expected = "'kubeconfig', a secret, or 'adminConf', a file on the control machines";
            spot.lacks(faults, "kubeconfig", expected);
            None
        }
        (Some(_), Some(file)) => {
            file.fault(faults, "beside 'kubeconfig'", "one of both");
            None
        }
    }
}

/// The path of a file.
fn admin_conf(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    if etcd::is_path_of_file(text) && !text.contains('$') {
        return Some(text.to_owned());
    }
    let problem = format!("'{}' is not the path of a file", shown(text));
    spot.fault(faults, problem, "an absolute path without '..', such as /etc/kubernetes/admin.conf");
    None
}

/// `${secret.NAME}`, and nothing else: a kubeconfig has credentials, and a manifest may. `what` it is.
pub(super) fn secret(spot: &Spot<'_>, what: &str, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<SecretName> {
    let text = spot.text(faults)?;
    let name = text.strip_prefix("${").and_then(|rest| rest.strip_prefix(SECRET_PREFIX)?.strip_suffix('}'));
    let Some(name) = name.and_then(|name| SecretName::new(name).ok()) else {
        let problem = format!("'{}' is not a secret", shown(text));
        let expected =
            format!("${{secret.NAME}}, whose value is {what} (`musterctl secret create NAME --from-file FILE`)");
        spot.fault(faults, problem, expected);
        return None;
    };
    params::variables(spot, text, secrets, faults).then_some(name)
}

fn drain(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<KubernetesDrain> {
    let map = spot.map(faults, &DRAIN)?;
    let default = KubernetesDrain::default();
    let unmanaged = map.or("unmanagedPods", default.unmanaged_pods, |spot| unmanaged_pods(&spot, faults));
    let local = map.or("keepLocalStorage", default.keep_local_storage, |spot| spot.boolean(faults));
    let volumes = map.or("waitForVolumes", default.wait_for_volumes, |spot| spot.boolean(faults));
    let at_once =
        map.or("evictionsAtOnce", default.evictions_at_once, |spot| spot.number(faults, 1..=EVICTIONS_AT_ONCE_MAX));
    Some(KubernetesDrain {
        unmanaged_pods: unmanaged?,
        keep_local_storage: local?,
        wait_for_volumes: volumes?,
        evictions_at_once: at_once?,
    })
}

fn unmanaged_pods(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<UnmanagedPods> {
    let text = spot.text(faults)?;
    match text.parse::<UnmanagedPods>() {
        Ok(word) => Some(word),
        Err(Unknown { known }) => {
            spot.unknown(faults, &format!("unknown word '{}'", shown(text)), known);
            None
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use muster_proto::model::ClusterName;

    use crate::manifest::{Fault, Known, Source, parse};

    use super::*;

    /// The section of a manifest, which is its line 8 and what follows.
    pub(in crate::manifest) fn read_kubernetes(kubernetes: &str) -> Result<KubernetesSpec, Vec<Fault>> {
        let text = format!(
            "apiVersion: muster/v1alpha1\nkind: Cluster\nmetadata: {{name: c1}}\nspec:\n  lcmType: generic\n  release: \
             \"1\"\n  machineTypes: {{control: [{{name: a, runner: reboot, version: \"1\", phase: deploy}}]}}\n  \
             kubernetes: {kubernetes}\n"
        );
        let known = Known { secrets: ["c1/k".parse().expect("an id")].into(), ..Known::default() };
        let manifest = parse(&[Source { name: "m.yaml", text: &text }], &known)?;
        let (spec, _) = &manifest.clusters[&ClusterName::new("c1").expect("a name")];
        Ok(spec.kubernetes.clone().expect("set"))
    }

    /// The same with a kubeconfig, and this on line 10.
    pub(in crate::manifest) fn read_beside_kubeconfig(line: &str) -> Result<KubernetesSpec, Vec<Fault>> {
        read_kubernetes(&format!("\n    kubeconfig: ${{secret.k}}\n    {line}"))
    }

    fn read(kubernetes: &str) -> Result<KubeconfigSource, Vec<Fault>> {
        Ok(read_kubernetes(kubernetes)?.source)
    }

    #[test]
    fn kubeconfig_has_exactly_one_source() {
        let path = "/etc/kubernetes/admin.conf";
        let admin_conf = read(&format!("{{adminConf: {path}}}"));
        assert_eq!(admin_conf, Ok(KubeconfigSource::AdminConf(path.to_owned())));
        let name = SecretName::new("k").expect("a name");
        assert_eq!(read("{kubeconfig: \"${secret.k}\"}"), Ok(KubeconfigSource::Secret(name)));
        for (kubernetes, at, problem) in [
            ("{}", "kubeconfig", "missing"),
            ("{kubeconfig: \"${secret.k}\", adminConf: /a}", "adminConf", "beside 'kubeconfig'"),
            ("{adminConf: admin.conf}", "adminConf", "is not the path of a file"),
            ("{adminConf: /etc/}", "adminConf", "is not the path of a file"),
            ("{adminConf: /a/../b}", "adminConf", "is not the path of a file"),
            ("{adminConf: \"${secret.k}\"}", "adminConf", "is not the path of a file"),
        ] {
            let found = read(kubernetes).expect_err(kubernetes);
            assert_eq!((found.len(), found[0].line), (1, 8), "{found:?}");
            assert_eq!(found[0].path, format!("spec.kubernetes.{at}"));
            assert!(found[0].problem.contains(problem), "{found:?}");
        }
    }
}
