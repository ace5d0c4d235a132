//! The operator's machine: musterctl with the coordinator's credentials, and a server of artifacts.

use anyhow::{Context as _, Result};

use super::{
    Nodes,
    docker::{docker, docker_with},
};
use crate::fleet::programs::Ran;

/// The operator's directory of artifacts.
const ARTIFACTS_DIR: &str = "/srv/artifacts";
/// Credentials of the toy controller.
const CONTROLLER: &str = "/etc/muster/toy.toml";
/// The operator's credentials, as `muster-coordinator init` wrote them.
pub(super) const CREDENTIALS: &str = "/etc/muster/operator.toml";

/// Name of a fleet's operator container.
pub(super) fn container(fleet: &str) -> String {
    format!("{fleet}-operator")
}

impl Nodes {
    pub(super) fn start_operator(&self) -> Result<()> {
        let name = self.operator();
        let label = format!("--label={}", self.name);
        let keys = format!("--volume={}-keys:/etc/muster:ro", self.name);
        let config = format!("--env=MUSTER_CONFIG={CREDENTIALS}");
        let network = ["--network", &self.name, "--network-alias", "operator"];
        let run = ["run", "--detach", "--name", &name, "--hostname", "operator", &label, &keys, &config];
        docker(&[&run[..], &network, &[&self.image, "sleep", "infinity"]].concat())?.ok()?;
        docker(&["cp", &self.package("musterctl")?, &format!("{name}:/var/tmp/musterctl.deb")])?.ok()?;
        let install = format!("apt-get -qq install --yes /var/tmp/musterctl.deb && mkdir {ARTIFACTS_DIR}");
        docker(&["exec", &name, "sh", "-c", &install])?.ok()?;
        let serve = ["musterctl", "artifacts", "serve", "--dir", ARTIFACTS_DIR, "--listen", "0.0.0.0:8080"];
        docker(&[&["exec", "--detach", &name], &serve[..]].concat())?.ok()?;
        // Any answer proves that the server listens.
        let listens = "curl --silent --output /dev/null --retry 100 --retry-delay 1 --retry-connrefused localhost:8080";
        docker(&["exec", &name, "sh", "-c", listens])?.ok()?;
        Ok(())
    }

    pub(super) fn operator(&self) -> String {
        container(&self.name)
    }

    /// Runs a shell script on the operator's machine, in the directory of artifacts, with this standard input. Returns
    /// its stdout.
    ///
    /// # Errors
    /// Fails if the script does.
    pub fn operate(&self, script: &str, input: &str) -> Result<String> {
        let shell = ["exec", "--interactive", "--workdir", ARTIFACTS_DIR, &self.operator(), "sh", "-euc", script];
        docker_with(&shell, input)?.ok()
    }

    /// Runs a line of shell on the operator's machine, and returns its stdout. For frequent polls: it costs a fraction.
    ///
    /// # Errors
    /// Fails if the line does.
    pub fn look(&self, line: &str) -> Result<String> {
        self.shells.run(&["sh", "-c", line])?.ok()
    }

    /// Creates an artifact of that content. Returns its SHA-256.
    ///
    /// # Errors
    /// Fails if the shell does.
    pub fn artifact(&self, name: &str, content: &str) -> Result<String> {
        self.operate(&format!("cat >{name}"), content)?;
        self.sha256(name)
    }

    /// SHA-256 of an artifact.
    ///
    /// # Errors
    /// Fails for an unknown artifact.
    pub fn sha256(&self, name: &str) -> Result<String> {
        let said = self.operate(&format!("sha256sum {name}"), "")?;
        Ok(said.split(' ').next().context("a digest")?.to_owned())
    }

    /// Starts the toy controller beside the operator, a process with credentials of its own. It guards these machines,
    /// and logs its actions to that file.
    ///
    /// # Errors
    /// Fails on missing credentials, or if Docker does.
    pub fn start_controller(&self, cluster: &str, machines: &[String], moves: &str, more: &[&str]) -> Result<()> {
        let coordinator = format!("{}-coordinator", self.name);
        let credentials = ["credentials", "--role", "controller", "--name", "toy", "--out", CONTROLLER];
        docker(&[&["exec", &coordinator, "/usr/bin/muster-coordinator"], &credentials[..]].concat())?.ok()?;
        let operator = self.operator();
        let run = ["exec", "--detach", &operator, "musterctl", "demo", "toy-controller", "--config", CONTROLLER];
        let what = ["--cluster", cluster, "--machines", &machines.join(","), "--effects", moves];
        docker(&[&run[..], &what, more].concat())?.ok()?;
        Ok(())
    }

    /// Creates a secret with that value, for these clusters.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn secret(&self, name: &str, clusters: &str, value: &str) -> Result<Ran> {
        let create = ["musterctl", "secret", "create", name, "--clusters", clusters, "--from-file", "-"];
        docker_with(&[&["exec", "--interactive", &self.operator()], &create[..]].concat(), value)
    }
}
