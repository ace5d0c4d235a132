//! Add-ons: installed when the first worker is Ready, verified by updates, and named where they never come.

use std::{process::Command, time::Duration};

use muster_proto::resource::{Cluster, ClusterState};
use muster_tests::fleet::programs;

use super::*;

const ADDONS: [&str; 3] = ["control-1", "worker-1", "worker-2"];
const DEPLOYMENTS: &str = "deployments.apps";
const HELM: &str = "helm-controller";
/// Time for an update of these machines.
const UPDATE_MAX: Duration = Duration::from_secs(120);

/// The rights of packaging/kubernetes/rbac.yaml, and rbac-addons.yaml's binding to cluster-admin.
fn rights_with_addons() -> Result<Vec<Rule>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kubernetes/rbac-addons.yaml");
    ensure!(fs::read_to_string(path)?.contains("\n  name: cluster-admin\n"), "it binds to another role");
    Ok([rights()?, vec![Rule::everything()]].concat())
}

/// What a release of the Helm controller consists of.
fn helm_manifest(version: &str) -> String {
    include_str!("addons/helm-controller.yaml").replace("VERSION", version)
}

/// A fleet whose add-ons come from a file server and from a secret.
struct Site {
    fleet: Fleet,
    kubernetes: Kubernetes,
    /// URL of the file server, with a slash at its end.
    files: String,
}

impl Site {
    /// The machines are not enrolled yet.
    fn start(name: &str) -> Result<Self> {
        let kubernetes = start_nodes(Config::default(), &ADDONS)?;
        kubernetes.revoke_token(TOKEN);
        kubernetes.add_token(TOKEN, USER, rights_with_addons()?);
        let mut fleet = Fleet::start(name, &[])?;
        fleet.set_time_limit(UPDATE_MAX);
        fs::create_dir(fleet.path("manifests"))?;
        let (dir, url_file) = (fleet.path("manifests"), fleet.path("manifests.url"));
        drop(fleet.start_ctl(&["artifacts", "serve", "--dir", &dir, "--url-file", &url_file], "manifests")?);
        let files = wait_for("the file server's URL", TIME_LIMIT, || Ok(fs::read_to_string(&url_file).ok()))?;
        let site = Self { fleet, kubernetes, files };
        site.secret("kubeconfig", &site.kubernetes.kubeconfig(TOKEN)?)?;
        site.secret("mirror", include_str!("addons/mirror.yaml"))?;
        Ok(site)
    }

    fn secret(&self, name: &str, text: &str) -> Result<()> {
        self.fleet.write_secret(name, text)?;
        self.fleet.ctl(&["secret", "create", name, "--cluster", "e2e", "--from-file", name])?.exits(0)?;
        Ok(())
    }

    /// Puts the manifest of a version on the file server, and returns its sum.
    fn publish(&self, version: &str) -> Result<String> {
        let file = self.fleet.path(&format!("manifests/helm-{version}.yaml"));
        fs::write(&file, helm_manifest(version))?;
        let sum = programs::run(Command::new("sha256sum").arg(&file))?.ok()?;
        Ok(sum.split(' ').next().context("a digest")?.to_owned())
    }

    /// Applies the manifest of a release with this Helm controller.
    fn apply(&self, release: u32, helm: &str, more: &[&str]) -> Result<()> {
        let (sum, files) = (self.publish(helm)?, &self.files);
        let helm = format!(
            "  helmController: {{version: {helm}, manifest: {{url: \"{files}helm-{helm}.yaml\", sha256: {sum}}}}}"
        );
        let item = bash("install", "deploy", &self.fleet.effects_log(), "sleep 0.1", &[]);
        let items = [item.replace("version: \"1\"", &format!("version: \"{release}\""))];
        let mirror = "name: mirror, version: v1, manifest: {secret: \"${secret.mirror}\"}";
        let addons = format!("  addons: [{{{mirror}, available: [{{namespace: shop, deployment: mirror}}]}}]");
        let spec = ["kubernetes:", "  kubeconfig: ${secret.kubeconfig}", &helm, &addons];
        let whole = cluster(1, 2, &items, &items, &[&spec[..], more].concat());
        self.fleet.apply(&whole.replace("release: \"1.0\"", &format!("release: \"{release}.0\"")))
    }

    fn enroll(&mut self, machines: &[&str]) -> Result<()> {
        for machine in machines {
            let machine_type = machine.split('-').next().context("a type")?;
            let token = self.fleet.token(machine_type, &[])?;
            self.fleet.enroll(machine, &token, &[])?.ok()?;
            let number = ADDONS.iter().position(|known| known == machine).context("a machine")?;
            self.fleet.start_agent_as_host(machine, &boot_id(number))?;
        }
        Ok(())
    }

    /// The machines deployed, and both add-ons installed.
    fn deployed(name: &str) -> Result<Self> {
        let mut site = Self::start(name)?;
        site.apply(1, "v1.0", &[])?;
        site.enroll(&ADDONS)?;
        site.fleet.wait_ready(ADDONS.len())?;
        site.wait_settled()?;
        Ok(site)
    }

    fn states(&self) -> Result<BTreeMap<String, ClusterState>> {
        let json = self.fleet.ctl(&["get", "clusterstates", "-o", "json"])?.ok()?;
        let mut list: BTreeMap<String, Vec<ClusterState>> = serde_json::from_str(&json)?;
        let states = list.remove("items").context("no items")?;
        Ok(states.into_iter().map(|state| (state.spec.kind.clone(), state)).collect())
    }

    /// Waits until both add-ons are as they should be.
    fn wait_settled(&self) -> Result<()> {
        wait_for("both add-ons", TIME_LIMIT, || {
            let states = self.states()?;
            let settled = states.values().filter(|state| state.status.actual_value == "true").count();
            Ok((settled == 2).then_some(()))
        })
    }

    fn image(&self) -> Result<String> {
        let object = self.kubernetes.object(DEPLOYMENTS, "kube-system", HELM).context("the Deployment")?;
        let image = object["spec"]["template"]["spec"]["containers"][0]["image"].as_str();
        Ok(image.context("an image")?.to_owned())
    }

    /// Objects that Muster applied, in order.
    fn applied(&self) -> Vec<String> {
        let requests = changes(&self.kubernetes);
        let applied = requests.iter().filter(|request| request.query.contains("fieldManager=muster"));
        applied.map(|request| format!("{}/{}", request.resource, request.name)).collect()
    }

    fn blocked(&self) -> Result<Option<(Reason, String)>> {
        let json = self.fleet.ctl(&["get", "clusters", "-o", "json"])?.ok()?;
        let mut list: BTreeMap<String, Vec<Cluster>> = serde_json::from_str(&json)?;
        let cluster = list.remove("items").and_then(|mut clusters| clusters.pop()).context("the cluster")?;
        Ok(cluster.status.blocked.map(|since| (since.blocked.reason, since.blocked.message)))
    }
}

/// Nothing is asked of the API server before the first worker is Ready; then everything comes in its order.
#[test]
fn helm_controller_comes_with_first_worker() -> Result<()> {
    let mut site = Site::start("addons")?;
    site.apply(1, "v1.0", &[])?;
    site.fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(0)?.says(&["may apply whatever the manifests"])?;
    site.kubernetes.clear_requests();
    site.enroll(&ADDONS[..1])?;
    site.fleet.wait_machine("control-1", "reported", |machine| machine.status.host_info.is_some())?;
    site.fleet.ctl(&["deploy", "e2e"])?.exits(0)?;
    site.fleet.wait_ready(1)?;
    let requests = site.kubernetes.requests();
    let of_addon = |request: &&LoggedRequest| request.resource == "deployments" || request.verb == "patch";
    let early: Vec<&LoggedRequest> = requests.iter().filter(of_addon).collect();
    ensure!(early.is_empty(), "no worker is Ready: {early:?}");
    let states = site.states()?;
    ensure!(states["helm-deployed"].status.message.contains("the first worker machine"), "{states:?}");
    site.enroll(&ADDONS[1..2])?;
    site.fleet.wait_ready(2)?;
    site.wait_settled()?;
    let expected = [
        "customresourcedefinitions/helmreleases.helm.example.com",
        "namespaces/charts",
        "helmreleases/first",
        "serviceaccounts/helm-controller",
        "clusterrolebindings/system:helm",
        "deployments/helm-controller",
        "deployments/mirror",
    ];
    let mut applied = site.applied();
    // A custom resource is sent again until its definition is served.
    applied.dedup();
    ensure!(applied == expected, "{applied:?}");
    ensure!(site.image()?.ends_with(":v1.0"));
    let states = site.states()?;
    let helm = &states["helm-deployed"];
    ensure!((helm.spec.arg.as_str(), helm.status.attempt) == ("e2e", 1) && helm.status.message.is_empty(), "{helm:?}");
    ensure!(states["addon-mirror"].status.actual_value == "true", "{states:?}");
    site.enroll(&ADDONS[2..])?;
    site.fleet.wait_ready(3)?;
    site.kubernetes.clear_requests();
    site.fleet.kill_coordinator()?;
    site.fleet.start_coordinator()?;
    site.wait_settled()?;
    ensure!(site.applied().is_empty(), "a restart applies nothing again: {:?}", site.applied());
    site.fleet.done()
}

/// Somebody sets another version. It is shown after the next look, and mended by the next update alone.
#[test]
fn changed_version_is_mended_by_update() -> Result<()> {
    let mut site = Site::deployed("addons-version")?;
    site.kubernetes.modify(DEPLOYMENTS, "kube-system", HELM, |object| {
        object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("example.com/helm-controller:v0.9");
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
        object["metadata"]["generation"] = json!(generation + 1);
    })?;
    // A start looks at once, where a coordinator at rest looks every five minutes.
    site.fleet.kill_coordinator()?;
    site.fleet.start_coordinator()?;
    let why = wait_for("the difference", TIME_LIMIT, || {
        Ok(site.blocked()?.filter(|(reason, _)| *reason == Reason::AddonDiffers))
    })?;
    ensure!(why.1.contains("kube-system/helm-controller is of version v0.9, not v1.0"), "{why:?}");
    let states = site.states()?;
    ensure!(states["helm-deployed"].status.actual_value == "false", "{states:?}");
    site.kubernetes.clear_requests();
    site.fleet.ctl(&["plan", "e2e"])?.exits(0)?.says(&["add-ons", "helm-controller"])?;
    site.fleet.ctl(&["update", "e2e", "--yes"])?.exits(0)?;
    ensure!(site.image()?.ends_with(":v1.0"), "{}", site.image()?);
    ensure!(!site.applied().contains(&"deployments/mirror".to_owned()), "{:?}", site.applied());
    site.wait_settled()?;
    ensure!(site.blocked()?.is_none(), "{:?}", site.blocked()?);
    site.fleet.done()
}

/// A release with a version whose image no registry has: the update goes through its machines, then stops with the
/// reason. It ends after the image is there.
#[test]
fn missing_image_stops_update() -> Result<()> {
    let site = Site::deployed("addons-image")?;
    let image = "example.com/helm-controller:v2.0";
    site.kubernetes.set_missing_image(image, true);
    site.apply(2, "v2.0", &["updateDeadlines: {addons: {after: 5s}}"])?;
    let words = ["Add-ons verified", "helm-controller v2.0", "is not available", "an older template are left: 1"];
    site.fleet.ctl(&["update", "e2e", "--yes", "--accept-control-plane-downtime"])?.exits(4)?.says(&words[1..])?;
    site.fleet.ctl(&["get", "audit"])?.exits(0)?.says(&words[..1])?;
    ensure!(site.fleet.are_at("2.0"), "the machines are done");
    site.kubernetes.set_missing_image(image, false);
    site.fleet.ctl(&["resume", "e2e"])?.exits(0)?;
    site.fleet.ctl(&["watch", "e2e"])?.exits(0)?;
    ensure!(site.image()? == image, "{}", site.image()?);
    site.wait_settled()?;
    site.fleet.done()
}

/// In a deployment the machines do not wait for an add-on that never comes; `watch` names it.
#[test]
fn missing_image_is_named_in_deployment() -> Result<()> {
    let mut site = Site::start("addons-never")?;
    site.kubernetes.set_missing_image("example.com/helm-controller:v1.0", true);
    site.apply(1, "v1.0", &["updateDeadlines: {addons: {after: 3s}}"])?;
    site.enroll(&ADDONS)?;
    site.fleet.wait_ready(ADDONS.len())?;
    site.fleet.ctl(&["watch", "e2e"])?.exits(4)?.says(&["AddonNotAvailable", "helm-controller", "0 of 1 replicas"])?;
    ensure!(site.kubernetes.object(DEPLOYMENTS, "shop", "mirror").is_none(), "the next one waits");
    // Its replacement is no mending of an installed add-on: it comes at once.
    site.apply(1, "v1.1", &[])?;
    site.fleet.ctl(&["watch", "e2e"])?.exits(0)?;
    site.wait_settled()?;
    ensure!(site.image()?.ends_with(":v1.1"));
    site.fleet.done()
}
