//! Add-ons: when and in which order they are applied, what holds them, and what an update does about them.

use muster_proto::model::{
    Addon, AddonDeployment, AddonManifest, Blocked, Deadline, HelmController, KubeconfigSource, KubernetesDrain,
    KubernetesSpec, SecretName,
};

use super::*;
use crate::{
    core::KubernetesQuestion,
    facts::{
        AddonRow, ClusterStage, Sealed, SecretId,
        kubernetes::{
            KubernetesReply,
            addons::{AddonToApply, DeploymentState},
        },
    },
    plan::{blocked as plan_blocked, snapshot::ClusterSnapshot},
};

const MINUTE: u64 = 60;

fn deployment(name: &str) -> AddonDeployment {
    AddonDeployment { namespace: "kube-system".to_owned(), deployment: name.to_owned() }
}

fn at(sum: &str) -> AddonManifest {
    AddonManifest::Url { url: format!("https://example.com/{sum}"), sha256: sum.to_owned() }
}

fn helm(version: &str) -> HelmController {
    let AddonDeployment { namespace, deployment } = deployment("helm-controller");
    HelmController { version: version.to_owned(), manifest: at(&format!("helm-{version}")), namespace, deployment }
}

fn dns() -> Addon {
    Addon { name: "dns".to_owned(), manifest: at("dns"), available: vec![deployment("coredns")], version: None }
}

fn state(version: &str, ready: i64) -> DeploymentState {
    let message = if ready == 1 { "" } else { "Deployment does not have minimum availability." };
    let message = message.to_owned();
    DeploymentState { version: Some(version.to_owned()), wanted: 1, ready, available: ready == 1, message }
}

/// The manifests of all add-ons here.
fn published(kubernetes: &mut Kubernetes) {
    for version in ["1.0", "2.0"] {
        kubernetes.publish(&format!("helm-{version}"), "helm-controller", state(version, 1));
    }
    kubernetes.publish("dns", "coredns", state("1", 1));
}

impl Kubernetes {
    /// A manifest with this sum brings this Deployment.
    fn publish(&mut self, sum: &str, name: &str, state: DeploymentState) {
        self.manifests.insert(format!("sha256:{sum}"), (deployment(name), state));
    }

    pub(super) fn apply(&mut self, addon: &AddonToApply) -> Result<KubernetesReply, KubernetesFailure> {
        self.log.push(format!("apply {} {}", addon.name, addon.content));
        if let Some(failure) = &self.refused {
            return Err(failure.clone());
        }
        let (name, state) = self.manifests.get(&addon.content).expect("a manifest").clone();
        self.deployments.insert(name, state);
        Ok(KubernetesReply::Applied(1))
    }

    fn helm(&mut self) -> &mut DeploymentState {
        self.deployments.get_mut(&deployment("helm-controller")).expect("a Deployment")
    }

    fn applied(&self) -> Vec<&str> {
        self.log.iter().filter_map(|line| line.strip_prefix("apply ")).collect()
    }
}

/// What the cluster as a whole waits for.
fn waits(fleet: &Fleet) -> Option<Blocked> {
    fleet.look("control-1", |snapshot, _| plan_blocked::of_cluster(snapshot))
}

fn reason_of(fleet: &Fleet) -> String {
    waits(fleet).map(|blocked| blocked.reason.to_string()).unwrap_or_default()
}

fn says(fleet: &Fleet) -> String {
    waits(fleet).map(|blocked| blocked.message).unwrap_or_default()
}

fn recorded(fleet: &Fleet, name: &str) -> Option<AddonRow> {
    fleet.core.facts().clusters[&cluster()].addons.get(name).cloned()
}

/// Both add-ons in the manifest of this fleet.
fn both(spec: &mut KubernetesSpec) {
    spec.helm_controller = Some(helm("1.0"));
    spec.addons = vec![dns()];
}

/// A deployed cluster with both add-ons installed.
fn installed() -> (Fleet, Kubernetes) {
    let mut fleet = at_rest_with(both);
    let mut kubernetes = Kubernetes::of(&fleet);
    published(&mut kubernetes);
    fleet.live(&mut kubernetes, 12);
    assert_eq!(kubernetes.applied(), ["helm-controller sha256:helm-1.0", "dns sha256:dns"]);
    assert_eq!(reason_of(&fleet), "");
    kubernetes.log.clear();
    (fleet, kubernetes)
}

/// A manifest with this section.
fn change(fleet: &mut Fleet, change: impl FnOnce(&mut KubernetesSpec)) {
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    change(spec.kubernetes.as_mut().expect("set"));
    fleet.ask(apply(spec, &[])).expect("applies");
}

/// The update up to the stage of the add-ons: it changes no machine.
fn started(fleet: Fleet, kubernetes: &mut Kubernetes) -> Fleet {
    let mut fleet = fleet.started();
    fleet.drive(kubernetes);
    fleet
}

fn stage(fleet: &Fleet) -> Option<bool> {
    let rollouts = fleet.core.facts().rollouts.values();
    let update = rollouts.filter_map(|row| row.update.as_ref()).next_back().expect("an update");
    update.stages.get(&ClusterStage::AddonsVerified).map(|stage| stage.succeeded)
}

fn is_open(fleet: &Fleet) -> bool {
    fleet.core.facts().open_rollout(&cluster()).is_some()
}

#[test]
fn first_worker_brings_addons() {
    let mut fleet = Fleet::of(1, 2);
    let name = SecretName::new("kubeconfig").expect("a label");
    let id = SecretId { cluster: Some(cluster()), name: name.clone() };
    let create = Request::CreateSecret { id, version: 1, sealed: Sealed(vec![1]), clusters: [].into() };
    fleet.ask(create).expect("made");
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.kubernetes = Some(KubernetesSpec {
        source: KubeconfigSource::Secret(name),
        drain: KubernetesDrain::default(),
        etcd: None,
        maintenance: None,
        on_delete: Vec::new(),
        helm_controller: Some(helm("1.0")),
        addons: Vec::new(),
    });
    fleet.ask(apply(spec, &[])).expect("applies");
    let mut fleet = fleet.reported().prepared();
    let mut kubernetes = Kubernetes::of(&fleet);
    published(&mut kubernetes);
    fleet.finish_all(Control);
    let about_addons = |fleet: &Fleet| {
        let asks = fleet.kubernetes.iter().map(|question| &question.op);
        asks.filter(|op| matches!(op, KubernetesOp::Addons { .. } | KubernetesOp::Apply { .. })).count()
    };
    fleet.pass(20_000, &[]);
    assert_eq!((fleet.state("control-1"), about_addons(&fleet)), ("Ready", 0), "no worker is Ready");
    fleet.finish("worker-1");
    assert_eq!((fleet.state("worker-1"), about_addons(&fleet)), ("Ready", 1));
    assert_eq!(reason_of(&fleet), "AddonInstalling", "the open deployment does not hide it");
    fleet.live(&mut kubernetes, 6);
    assert_eq!(kubernetes.applied(), ["helm-controller sha256:helm-1.0"]);
    let row = recorded(&fleet, "helm-controller").expect("recorded");
    assert!(row.installed && row.applications == 1 && row.version.as_deref() == Some("1.0"), "{row:?}");
    assert_ne!(fleet.state("worker-2"), "Ready", "the deployment is still under way");
}

#[test]
fn next_addon_waits_for_first() {
    let mut fleet = at_rest_with(both);
    let mut kubernetes = Kubernetes::of(&fleet);
    published(&mut kubernetes);
    kubernetes.publish("helm-1.0", "helm-controller", state("1.0", 0));
    fleet.live(&mut kubernetes, 14 * MINUTE);
    assert_eq!(kubernetes.applied(), ["helm-controller sha256:helm-1.0"]);
    assert_eq!(reason_of(&fleet), "AddonInstalling");
    let text = "add-on helm-controller 1.0: Deployment kube-system/helm-controller is not available, 0 of 1 replicas \
                are ready: Deployment does not have minimum availability.";
    assert_eq!(says(&fleet), text);
    fleet.live(&mut kubernetes, 2 * MINUTE);
    assert_eq!((reason_of(&fleet).as_str(), says(&fleet).as_str()), ("AddonNotAvailable", text));
    let answered = kubernetes.answered;
    fleet.live(&mut kubernetes, 5 * MINUTE);
    let looks = kubernetes.answered - answered;
    assert!((5..=12).contains(&looks), "{looks} looks in five minutes");
    *kubernetes.helm() = state("v1.0", 1);
    fleet.live(&mut kubernetes, MINUTE);
    assert_eq!(reason_of(&fleet), "");
    assert_eq!(kubernetes.applied(), ["helm-controller sha256:helm-1.0", "dns sha256:dns"]);
}

#[test]
fn refused_application_is_tried_again() {
    let mut fleet = at_rest_with(both);
    let mut kubernetes = Kubernetes::of(&fleet);
    published(&mut kubernetes);
    let words = "https://example.com/m has the SHA-256 1, and the manifest says 2";
    kubernetes.refused = Some(KubernetesFailure::Other(words.to_owned()));
    fleet.live(&mut kubernetes, 25);
    assert_eq!(kubernetes.applied().len(), 1);
    assert_eq!(reason_of(&fleet), "AddonNotApplied");
    assert_eq!(says(&fleet), format!("add-on helm-controller 1.0 is not applied: {words}"));
    fleet.live(&mut kubernetes, 10 * MINUTE);
    assert!((15..=21).contains(&kubernetes.applied().len()), "{}", kubernetes.applied().len());
    assert_eq!(reason_of(&fleet), "AddonNotApplied");
    fleet.live(&mut kubernetes, 5 * MINUTE);
    assert_eq!(reason_of(&fleet), "AddonNotAvailable");
    let of_webhook = "admission webhook \"w\" denied the request";
    kubernetes.refused = Some(KubernetesFailure::Forbidden(of_webhook.to_owned()));
    fleet.live(&mut kubernetes, MINUTE);
    let clears_when = waits(&fleet).expect("waits").clears_when;
    assert!(!clears_when.contains("rbac"), "{clears_when}");
    let of_rbac = "deployments.apps \"d\" is forbidden: User \"m\" cannot patch resource \"deployments\" in API group";
    kubernetes.refused = Some(KubernetesFailure::Forbidden(of_rbac.to_owned()));
    fleet.live(&mut kubernetes, MINUTE);
    let clears_when = waits(&fleet).expect("waits").clears_when;
    assert!(clears_when.contains("musterctl kubernetes rbac --with-addons"), "{clears_when}");
    kubernetes.refused = None;
    fleet.live(&mut kubernetes, MINUTE);
    assert_eq!(reason_of(&fleet), "");
}

#[test]
fn secret_with_manifest_is_awaited() {
    let name = SecretName::new("dns").expect("a label");
    let manifest = AddonManifest::Secret { secret: name.clone() };
    let mut fleet = at_rest_with(|spec| spec.addons = vec![Addon { manifest, ..dns() }]);
    let mut kubernetes = Kubernetes::of(&fleet);
    fleet.live(&mut kubernetes, 20);
    assert_eq!((kubernetes.applied().len(), reason_of(&fleet).as_str()), (0, "AddonNotApplied"));
    assert!(says(&fleet).contains("there is no secret dns with its manifest"), "{}", says(&fleet));
    let id = SecretId { cluster: Some(cluster()), name };
    let version = fleet.core.facts().meta.secret_seq + 1;
    let content = format!("secret:edge-7/dns@{version}");
    kubernetes.manifests.insert(content.clone(), (deployment("coredns"), state("1", 1)));
    let create = |id, version| Request::CreateSecret { id, version, sealed: Sealed(vec![1]), clusters: [].into() };
    fleet.ask(create(id.clone(), version)).expect("made");
    fleet.live(&mut kubernetes, 10);
    assert_eq!((kubernetes.applied(), reason_of(&fleet).as_str()), (vec![format!("dns {content}").as_str()], ""));
    fleet.ask(create(id, version + 1)).expect("made");
    fleet.live(&mut kubernetes, 10 * MINUTE);
    assert_eq!(kubernetes.applied().len(), 1, "a new value waits for an update");
    assert!(fleet.look("control-1", |snapshot, _| crate::plan::addons::has_work(snapshot)));
}

/// An application whose answer is lost is repeated; one that is recorded is not.
#[test]
fn restart_applies_nothing_twice() {
    let mut fleet = at_rest_with(|spec| spec.helm_controller = Some(helm("1.0")));
    let mut kubernetes = Kubernetes::of(&fleet);
    published(&mut kubernetes);
    kubernetes.publish("helm-1.0", "helm-controller", state("1.0", 0));
    while kubernetes.applied().is_empty() {
        let question = fleet.kubernetes.first().cloned();
        if question.is_some_and(|question| matches!(question.op, KubernetesOp::Apply { .. })) {
            let KubernetesOp::Apply { addon, .. } = fleet.kubernetes.remove(0).op else { unreachable!() };
            kubernetes.apply(&addon).expect("applied");
        } else if !fleet.answer_kubernetes(&mut kubernetes) {
            fleet.pass(1_000, &[]);
        }
    }
    let again = |fleet: &mut Fleet| {
        fleet.kubernetes.clear();
        fleet.restart();
        fleet.all_report();
    };
    again(&mut fleet);
    fleet.live(&mut kubernetes, 20);
    assert_eq!(kubernetes.applied().len(), 2, "the answer was lost");
    again(&mut fleet);
    fleet.live(&mut kubernetes, 20);
    assert_eq!((kubernetes.applied().len(), reason_of(&fleet).as_str()), (2, "AddonInstalling"));
    *kubernetes.helm() = state("1.0", 1);
    fleet.live(&mut kubernetes, 10);
    again(&mut fleet);
    fleet.live(&mut kubernetes, 10 * MINUTE);
    assert_eq!((kubernetes.applied().len(), reason_of(&fleet).as_str()), (2, ""));
}

#[test]
fn wrong_version_is_mended_by_update() {
    let (mut fleet, mut kubernetes) = installed();
    let answered = kubernetes.answered;
    *kubernetes.helm() = state("0.9", 1);
    fleet.live(&mut kubernetes, 6 * MINUTE);
    assert_eq!(reason_of(&fleet), "AddonDiffers");
    let text = "add-on helm-controller 1.0: Deployment kube-system/helm-controller is of version 0.9, not 1.0";
    assert_eq!(says(&fleet), text);
    fleet.live(&mut kubernetes, 20 * MINUTE);
    let looks = kubernetes.answered - answered;
    assert!((4..=7).contains(&looks), "{looks} looks in 26 minutes");
    assert!(kubernetes.applied().is_empty(), "it is mended by an update alone");
    let mut fleet = started(fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 20);
    assert_eq!(kubernetes.applied(), ["helm-controller sha256:helm-1.0"], "the other one is as it should be");
    assert_eq!((stage(&fleet), is_open(&fleet), reason_of(&fleet).as_str()), (Some(true), false, ""));
    assert_eq!(reason(fleet.ask(update())), "NothingToDo");
}

#[test]
fn update_applies_new_version_after_workers() {
    let (mut fleet, mut kubernetes) = installed();
    change(&mut fleet, |spec| spec.helm_controller = Some(helm("2.0")));
    fleet.live(&mut kubernetes, 10 * MINUTE);
    assert!(kubernetes.applied().is_empty(), "a manifest alone changes nothing");
    kubernetes.deployments.clear();
    kubernetes.log.clear();
    let (mut fleet, mut kubernetes) = {
        release(&mut fleet, &["install"], 2);
        let mut fleet = fleet.started();
        fleet.drive(&mut kubernetes);
        for control in ["control-1", "control-2", "control-3"] {
            fleet.complete_in(&mut kubernetes, control);
        }
        fleet.complete_in(&mut kubernetes, "worker-1");
        fleet.live(&mut kubernetes, 20);
        (fleet, kubernetes)
    };
    assert!(kubernetes.applied().is_empty(), "not before the last worker: {:?}", kubernetes.log);
    assert_eq!(stage(&fleet), None);
    fleet.complete_in(&mut kubernetes, "worker-2");
    fleet.live(&mut kubernetes, 20);
    assert_eq!(kubernetes.applied(), ["helm-controller sha256:helm-2.0", "dns sha256:dns"], "both were gone");
    assert_eq!((stage(&fleet), is_open(&fleet)), (Some(true), false), "{}", says(&fleet));
}

#[test]
fn unavailable_addon_pauses_update() {
    let (mut fleet, mut kubernetes) = installed();
    kubernetes.publish("helm-2.0", "helm-controller", state("2.0", 0));
    change(&mut fleet, |spec| spec.helm_controller = Some(helm("2.0")));
    let mut fleet = started(fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 14 * MINUTE);
    assert_eq!((fleet.is_paused(), reason_of(&fleet).as_str()), (false, "AddonInstalling"));
    fleet.live(&mut kubernetes, 2 * MINUTE);
    assert!(fleet.is_paused());
    assert!(says(&fleet).contains("0 of 1 replicas are ready"), "{}", says(&fleet));
    let stuck = fleet.look("control-1", |snapshot, _| crate::plan::update::overdue_stage(snapshot));
    assert_eq!(stuck.map(|(stage, _)| stage), Some(ClusterStage::AddonsVerified));
    let lines = audited(&fleet);
    let paused = lines.iter().find(|line| line.contains("paused, for")).expect("audited");
    assert!(paused.contains("0 of 1 replicas are ready"), "{paused}");
    assert_eq!(kubernetes.applied(), ["helm-controller sha256:helm-2.0"], "once");
    fleet.ask(Request::Resume { rollout: fleet.rollout() }).expect("goes on");
    fleet.live(&mut kubernetes, 10);
    assert_eq!(kubernetes.applied().len(), 2, "an operator's word applies it again");
    assert!(!fleet.is_paused(), "and gives it its time");
    *kubernetes.helm() = state("2.0", 1);
    fleet.live(&mut kubernetes, 10);
    assert_eq!((stage(&fleet), is_open(&fleet)), (Some(true), false), "{}", says(&fleet));
}

#[test]
fn late_addon_fails_update_where_wanted() {
    let (mut fleet, mut kubernetes) = installed();
    kubernetes.publish("helm-2.0", "helm-controller", state("2.0", 0));
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    spec.update_deadlines.addons = Deadline { after_ms: 60_000, outcome: DeadlineOutcome::Fail };
    spec.kubernetes.as_mut().expect("set").helm_controller = Some(helm("2.0"));
    fleet.ask(apply(spec, &[])).expect("applies");
    let mut fleet = started(fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 2 * MINUTE);
    assert!(!is_open(&fleet));
    let aborted = fleet.core.facts().rollouts.values().filter_map(|row| row.update.as_ref()).next_back();
    assert_eq!(aborted.map(|update| update.desired), Some(DesiredState::Abort));
    let lines = audited(&fleet);
    let aborted = lines.iter().find(|line| line.contains("aborted, for")).expect("audited");
    assert!(aborted.contains("leaves add-ons unverified: add-on helm-controller 2.0: Deployment"), "{aborted}");
    assert!(aborted.contains("add-on dns was not verified"), "{aborted}");
    fleet.live(&mut kubernetes, 6 * MINUTE);
    assert_eq!(reason_of(&fleet), "AddonDiffers", "it was installed once: the next update applies it again");
    assert_eq!(kubernetes.applied().len(), 1);
}

#[test]
fn running_update_keeps_addons() {
    let (mut fleet, mut kubernetes) = installed();
    *kubernetes.helm() = state("1.0", 0);
    kubernetes.publish("helm-1.0", "helm-controller", state("1.0", 0));
    release(&mut fleet, &[], 2);
    let mut fleet = started(fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 5);
    assert_eq!(stage(&fleet), Some(false));
    change(&mut fleet, |spec| spec.helm_controller = Some(helm("2.0")));
    fleet.live(&mut kubernetes, 10);
    assert_eq!((stage(&fleet), kubernetes.applied().len()), (Some(false), 1));
    *kubernetes.helm() = state("1.0", 1);
    fleet.live(&mut kubernetes, 10);
    assert_eq!(stage(&fleet), Some(true), "{}", says(&fleet));
    assert_eq!(kubernetes.applied(), ["helm-controller sha256:helm-1.0"]);
    let mut fleet = started(fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 20);
    assert_eq!(kubernetes.applied().last(), Some(&"helm-controller sha256:helm-2.0"));
    assert_eq!((stage(&fleet), is_open(&fleet)), (Some(true), false), "{}", says(&fleet));
}

#[test]
fn silent_api_server_holds_addons() {
    let mut fleet = at_rest_with(both);
    let mut kubernetes = Kubernetes::of(&fleet);
    published(&mut kubernetes);
    kubernetes.broken = Some(KubernetesFailure::Unreachable("connection refused".to_owned()));
    fleet.live(&mut kubernetes, MINUTE);
    assert_eq!(reason_of(&fleet), "AddonNotApplied");
    assert!(says(&fleet).contains("connection refused"), "{}", says(&fleet));
    kubernetes.broken = None;
    fleet.live(&mut kubernetes, 12);
    assert_eq!((kubernetes.applied().len(), reason_of(&fleet).as_str()), (2, ""));
    kubernetes.cluster_uid = "another";
    *kubernetes.helm() = state("0.9", 1);
    fleet.live(&mut kubernetes, 12 * MINUTE);
    assert_eq!(reason_of(&fleet), "KubernetesUnavailable", "what another cluster says is not believed");
    let helm = |fleet: &Fleet| {
        let state = documents::cluster_states(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now()).remove(0);
        (state.status.actual_value, state.status.message)
    };
    let (actual, message) = helm(&fleet);
    assert!(actual == "false" && message.starts_with("cannot be looked at: it belongs to another"), "{message}");
    let refused = fleet.ask(update()).expect_err("nothing to do");
    let refused = format!("{refused:?}");
    assert!(refused.contains("its add-ons were looked at") && refused.contains("cannot be since"), "{refused}");
    fleet.kubernetes.clear();
    fleet.restart();
    assert_eq!(helm(&fleet), ("false".to_owned(), "not looked at yet".to_owned()));
}

/// A Deployment that is deleted before it was ever available is applied again; one that is there is left alone.
#[test]
fn absent_deployment_is_installed_again() {
    let mut fleet = at_rest_with(|spec| spec.helm_controller = Some(helm("1.0")));
    let mut kubernetes = Kubernetes::of(&fleet);
    published(&mut kubernetes);
    kubernetes.publish("helm-1.0", "helm-controller", state("1.0", 0));
    fleet.live(&mut kubernetes, 2 * MINUTE);
    assert_eq!(kubernetes.applied().len(), 1);
    kubernetes.deployments.clear();
    fleet.live(&mut kubernetes, 35);
    assert_eq!(kubernetes.applied().len(), 2);
    fleet.live(&mut kubernetes, 2 * MINUTE);
    assert_eq!(kubernetes.applied().len(), 2, "it is there");
    assert!(fleet.look("control-1", |snapshot, _| crate::plan::addons::has_work(snapshot)));
    for _ in 0..16 {
        kubernetes.deployments.clear();
        fleet.live(&mut kubernetes, MINUTE);
    }
    assert_eq!(reason_of(&fleet), "AddonNotAvailable", "no application gives it more time");
    let mut fleet = started(fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 20);
    assert_eq!((stage(&fleet), is_open(&fleet)), (Some(false), true), "{}", says(&fleet));
}

/// The first open application, taken from the questions.
fn application(fleet: &mut Fleet, kubernetes: &mut Kubernetes) -> KubernetesQuestion {
    loop {
        let is_apply = |question: &KubernetesQuestion| matches!(question.op, KubernetesOp::Apply { .. });
        if fleet.kubernetes.first().is_some_and(is_apply) {
            return fleet.kubernetes.remove(0);
        }
        if !fleet.answer_kubernetes(kubernetes) {
            fleet.pass(1_000, &[]);
        }
    }
}

#[test]
fn late_answer_of_former_addon_is_dropped() {
    let mut fleet = at_rest_with(both);
    let mut kubernetes = Kubernetes::of(&fleet);
    published(&mut kubernetes);
    let asked = application(&mut fleet, &mut kubernetes);
    change(&mut fleet, |spec| spec.helm_controller = None);
    let KubernetesQuestion { number, about, .. } = asked;
    fleet.step(Input::KubernetesAnswered { about, number, result: Ok(KubernetesReply::Applied(1)) }).expect("taken");
    assert_eq!(recorded(&fleet, "helm-controller"), None);
}

#[test]
fn addon_that_returns_is_installed_again() {
    let (mut fleet, mut kubernetes) = installed();
    change(&mut fleet, |spec| spec.addons.clear());
    assert_eq!(recorded(&fleet, "dns"), None);
    change(&mut fleet, |spec| spec.addons = vec![dns()]);
    fleet.live(&mut kubernetes, 20);
    assert_eq!(kubernetes.applied(), ["dns sha256:dns"]);
}

#[test]
fn unapplied_content_is_shown() {
    let (mut fleet, mut kubernetes) = installed();
    change(&mut fleet, |spec| spec.helm_controller = Some(helm("2.0")));
    fleet.live(&mut kubernetes, 10);
    let text = "add-on helm-controller 2.0: its manifest in force was never applied";
    assert_eq!((reason_of(&fleet).as_str(), says(&fleet).as_str()), ("AddonDiffers", text));
    release(&mut fleet, &["install"], 2);
    let mut fleet = started(fleet, &mut kubernetes);
    let rollout = fleet.rollout();
    let said = fleet.ask(Request::Abort { rollout: rollout.clone() }).expect("aborts");
    let Reply::Done(lines) = said else { panic!("{said:?}") };
    let wanted = format!("{rollout} leaves add-ons unverified: {text}");
    assert!(lines.contains(&wanted), "{lines:?}");
}

/// An operator's pause leaves the reason in the text.
#[test]
fn paused_update_says_why() {
    let (mut fleet, mut kubernetes) = installed();
    release(&mut fleet, &[], 2);
    kubernetes.publish("helm-1.0", "helm-controller", state("1.0", 0));
    *kubernetes.helm() = state("1.0", 0);
    let mut fleet = started(fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 10);
    fleet.ask(Request::Pause { rollout: fleet.rollout() }).expect("pauses");
    for _ in 0..3 {
        assert!(says(&fleet).contains("0 of 1 replicas are ready"), "{}", says(&fleet));
        fleet.live(&mut kubernetes, 30);
    }
}

/// After the wall clock stepped back things settle all the same, and the API server is not asked without pause.
#[test]
fn wall_clock_may_step_back() {
    let (mut fleet, mut kubernetes) = installed();
    *kubernetes.helm() = state("0.9", 1);
    kubernetes.publish("helm-1.0", "helm-controller", state("1.0", 0));
    release(&mut fleet, &[], 2);
    let mut fleet = started(fleet, &mut kubernetes);
    fleet.live(&mut kubernetes, 3);
    assert_eq!(stage(&fleet), Some(false));
    fleet.clock_ms -= 3_600_000;
    let answered = kubernetes.answered;
    fleet.live(&mut kubernetes, MINUTE);
    assert!(kubernetes.answered - answered <= 35, "{} questions in a minute", kubernetes.answered - answered);
    assert_eq!(kubernetes.applied().len(), 1, "once in a stage");
    *kubernetes.helm() = state("1.0", 1);
    fleet.live(&mut kubernetes, 20);
    assert_eq!((stage(&fleet), is_open(&fleet)), (Some(true), false), "{}", says(&fleet));
}

#[test]
fn states_tell_of_each_addon() {
    let states = |fleet: &Fleet| -> Vec<(String, String, String, u32, String)> {
        let states = documents::cluster_states(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now());
        let told = states.into_iter().map(|state| {
            let (spec, status) = (state.spec, state.status);
            (spec.kind, spec.arg, status.actual_value, status.attempt, status.message)
        });
        told.collect()
    };
    let told = |kind: &str, arg: &str, actual: &str, attempt: u32, message: &str| {
        (kind.to_owned(), arg.to_owned(), actual.to_owned(), attempt, message.to_owned())
    };
    let mut fleet = at_rest_with(both);
    let mut kubernetes = Kubernetes::of(&fleet);
    published(&mut kubernetes);
    kubernetes.publish("helm-1.0", "helm-controller", state("1.0", 0));
    fleet.live(&mut kubernetes, 10);
    let message = says(&fleet);
    let deployed = |fleet: &Fleet| {
        let found = documents::clusters(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now()).remove(0);
        serde_json::to_value(found).expect("JSON")["status"]["helmControllerDeployed"].as_bool()
    };
    assert_eq!(deployed(&fleet), Some(false));
    assert_eq!(
        states(&fleet),
        [
            told("helm-deployed", "edge-7", "false", 1, &message),
            told("addon-dns", "dns", "false", 0, "waits for add-on helm-controller")
        ]
    );
    *kubernetes.helm() = state("1.0", 1);
    fleet.live(&mut kubernetes, 10);
    assert_eq!(
        states(&fleet),
        [told("helm-deployed", "edge-7", "true", 1, ""), told("addon-dns", "dns", "true", 1, "")]
    );
    assert_eq!(deployed(&fleet), Some(true));
    let lines: Vec<String> = audited(&fleet);
    for line in ["add-on helm-controller 1.0 is applied (1 objects)", "add-on helm-controller 1.0 is available"] {
        assert!(lines.iter().any(|known| known.contains(line)), "{lines:?}");
    }
}

/// Audit lines about the cluster.
fn audited(fleet: &Fleet) -> Vec<String> {
    fleet.core.facts().audit_lines().into_iter().map(|row| row.message.clone()).collect()
}

/// The snapshot of a cluster without add-ons asks nothing.
#[test]
fn cluster_without_addons_asks_nothing() {
    let mut fleet = at_rest_with(|_| {});
    let mut kubernetes = Kubernetes::of(&fleet);
    fleet.live(&mut kubernetes, 10 * MINUTE);
    let facts = fleet.core.facts();
    let snapshot = ClusterSnapshot::of(facts, &cluster(), fleet.core.limits(), fleet.now()).expect("the cluster");
    assert_eq!(crate::plan::addons::question(&snapshot), None);
    assert_eq!(facts.live.addons.len(), 0);
}
