//! `kubernetes`: the Kubernetes cluster on a cluster's machines.

use muster_proto::{
    model::{EVICTIONS_AT_ONCE_MAX, KubernetesDrain, KubernetesSpec, SecretName, Unknown, UnmanagedPods},
    variables::SECRET_PREFIX,
};

use super::{
    etcd,
    fault::{Faults, shown},
    params::{self, Secrets},
    read::{Fields, Spot},
};

/// Fields of `kubernetes`.
pub(super) const KUBERNETES: Fields =
    Fields { known: &["kubeconfig", "drain", "etcd"], later: &["adminConf", "maintenance"] };
/// Fields of `kubernetes.drain`.
const DRAIN: Fields =
    Fields { known: &["unmanagedPods", "keepLocalStorage", "waitForVolumes", "evictionsAtOnce"], later: &[] };

/// Parse `kubernetes`.
pub(super) fn read(spot: &Spot<'_>, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<KubernetesSpec> {
    let map = spot.map(faults, &KUBERNETES)?;
    let kubeconfig = map.required(faults, "kubeconfig").and_then(|spot| secret(&spot, secrets, faults));
    let drain = map.or("drain", KubernetesDrain::default(), |spot| drain(&spot, faults));
    let etcd = map.or("etcd", None, |spot| etcd::read(&spot, faults));
    Some(KubernetesSpec { kubeconfig: kubeconfig?, drain: drain?, etcd: etcd? })
}

/// `${secret.NAME}`, and nothing else: a kubeconfig has credentials.
fn secret(spot: &Spot<'_>, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<SecretName> {
    let text = spot.text(faults)?;
    let name = text.strip_prefix("${").and_then(|rest| rest.strip_prefix(SECRET_PREFIX)?.strip_suffix('}'));
    let Some(name) = name.and_then(|name| SecretName::new(name).ok()) else {
        let problem = format!("'{}' is not a secret", shown(text));
        let expected = "${secret.NAME}, whose value is a kubeconfig (`musterctl secret create NAME --from-file FILE`)";
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
