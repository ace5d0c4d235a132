//! Everyday commands that no other test uses: a deployment started by hand, step by step.

use std::{fs, process::Command};

use anyhow::{Result, ensure};
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    manifest::{bash, cluster},
    programs, wait_for,
};
use nix::sys::signal::Signal;

const MODE: &str = "openstack.lcm.mirantis.com/instance_migration_mode";

/// One control machine; the manifest leaves the number of machines open. Its item ends when `go` exists.
fn manifest(fleet: &Fleet) -> Result<String> {
    let body = format!("echo first words\nuntil test -e {}; do sleep 0.05; done\necho last words", fleet.path("go"));
    let whole = cluster(1, 0, &[bash("work", "deploy", &fleet.effects_log(), &body, &[])], &[], &[]);
    let silent = whole.replace("  machines: {control: 1, worker: 0}\n", "");
    ensure!(whole != silent, "how many machines stands elsewhere now:\n{whole}");
    Ok(silent)
}

#[test]
fn a_deployment_by_hand() -> Result<()> {
    let mut fleet = Fleet::start("everyday", &[])?;
    fs::write(fleet.path("manifest.yaml"), manifest(&fleet)?)?;
    fleet.ctl(&["apply", "-f", "manifest.yaml", "--dry-run"])?.exits(0)?.says(&["dry run: nothing was changed"])?;
    assert_eq!(fleet.ctl(&["get", "lcmclusters", "-o", "name"])?.ok()?, "", "it was a dry run");
    fleet.ctl(&["apply", "-f", "manifest.yaml"])?.exits(0)?;
    assert_eq!(fleet.ctl(&["get", "lcmclusters", "-o", "name"])?.ok()?, "cluster/e2e\n");

    fleet.add_machines(1, 0)?;
    fleet.ctl(&["token", "list"])?.exits(0)?.says(&["e2e", "control", "UsedUp"])?;
    fleet.wait_machine("control-1", "it has reported", |machine| machine.status.host_info.is_some())?;
    for words in
        [&["get", "machine/control-1"][..], &["describe", "machine/control-1"], &["get", "machine", "control-1"]]
    {
        fleet.ctl(words)?.exits(0)?.says(&["control-1"])?;
    }
    fleet.ctl(&["get", "machine/control-1", "control-2"])?.exits(2)?.says(&["two names"])?;
    fleet.ctl(&["describe", "machine"])?.exits(2)?.says(&["musterctl describe KIND NAME"])?;
    fleet.ctl(&["plan", "control-1"])?.exits(2)?.says(&["no cluster named \"control-1\""])?;
    fleet.ctl(&["revoke", "admin"])?.exits(2)?.says(&["no machine named \"admin\""])?;
    fleet.ctl(&["get", "nodes"])?.exits(0)?.says(&["control-1"])?;
    fleet.ctl(&["drain", "control-1"])?.exits(2)?.says(&["musterctl maintenance enter MACHINE"])?;
    fleet.ctl(&["watch", "e2e"])?.exits(4)?.says(&["needs a person", "DeployNotStarted", "musterctl deploy e2e"])?;
    fleet.ctl(&["deploy", "e2e"])?.exits(0)?;

    wait_for("the item", TIME_LIMIT, || Ok((!fleet.effects()?.is_empty()).then_some(())))?;
    let words = ["--config", "operator.toml", "logs", "control-1", "work", "-f"];
    let mut following = fleet.start_ctl(&words, "follow")?;
    wait_for("the first words", TIME_LIMIT, || Ok(fleet.log("follow").contains("first words").then_some(())))?;
    assert!(following.try_wait()?.is_none(), "the item is not at its end: {}", fleet.log("follow"));
    fs::write(fleet.path("go"), "")?;
    let status = wait_for("the end of logs -f", TIME_LIMIT, || Ok(following.try_wait()?))?;
    assert!(status.success() && fleet.log("follow").ends_with("last words\n"), "{status}: {}", fleet.log("follow"));
    fleet.wait_ready(1)?;

    fleet.ctl(&["annotate", "machine", "control-1", &format!("{MODE}=manual")])?.exits(0)?;
    let annotated = || Ok::<_, anyhow::Error>(fleet.machines()?["control-1"].metadata.annotations.get(MODE).cloned());
    assert_eq!(annotated()?.as_deref(), Some("manual"));
    fleet.ctl(&["annotate", "machine", "control-1", &format!("{MODE}-")])?.exits(0)?;
    assert_eq!(annotated()?, None);
    what_nobody_has(&mut fleet)?;
    a_watch_begins_as_a_list(&mut fleet)?;
    let taken = fleet.address();
    let serve = fleet.ctl(&["artifacts", "serve", "--dir", ".", "--listen", &taken])?.exits(1)?;
    serve.says(&["cannot listen on", "a port where no other program listens"])?;
    fleet.done()
}

/// Unknown clusters and items: the command lists or suggests existing ones, with status 2.
fn what_nobody_has(fleet: &mut Fleet) -> Result<()> {
    fs::write(fleet.path("other.yaml"), manifest(fleet)?.replace("name: e2e", "name: other"))?;
    fleet.ctl(&["apply", "-f", "other.yaml"])?.exits(0)?;
    for (words, says) in [
        (&["get", "machines", "--cluster", "e2ee"][..], &["no cluster named \"e2ee\"", "Did you mean \"e2e\"?"][..]),
        (&["get", "tokens", "-w", "--cluster", "e2ee"], &["no cluster named \"e2ee\""]),
        (&["get", "machine", "control-1", "--cluster", "nope"], &["no cluster named \"nope\"", "get clusters"]),
        (&["get", "machine", "control-1", "--cluster", "other"], &["in cluster \"other\"", "get machine control-1"]),
        (&["get", "credentials", "--cluster", "e2e"], &["--cluster says nothing of credentials"]),
        (&["get", "machines", "--cluster", ""], &["--cluster"]),
        (&["retry", "control-1", "wrok"], &["control-1 has no item named \"wrok\"", "Did you mean \"work\"?"]),
        (&["skip", "control-1", "nope"], &["Its items: work"]),
        (&["retry", "e2e", "control-1"], &["no machine named \"e2e\""]),
        (&["accept", "control-2", "work"], &["no machine named \"control-2\""]),
        (&["skip", "work", "control-1"], &["no machine named \"work\""]),
        (&["logs", "machine", "control-1"], &["no machine named \"machine\""]),
        (&["pause", "control-1"], &["no rollout and no cluster named"]),
        (&["pause", "nope"], &["no rollout and no cluster named", "musterctl get clusters"]),
        (&["revoke", "operator/nope"], &["no credential named", "See: musterctl get credentials"]),
        (&["secret", "create", "Bad", "--from-file", "other.yaml"], &["secret: \"Bad\" is no name"]),
        (&["logs", "control-1", "nope"], &["Its items: work"]),
        (&["token", "revoke", "worker.token"], &["no token named \"worker.token\"", "See: musterctl get tokens"]),
        (&["token", "revoke", "abc.hunter2.00"], &["a whole token", "musterctl token revoke abc"]),
    ] {
        fleet.ctl(words)?.exits(2)?.says(says)?;
    }
    fleet.ctl(&["token", "ls"])?.exits(0)?;
    let none = fleet.ctl(&["get", "machines", "--cluster", "other"])?.exits(0)?;
    none.says(&["No machines found in cluster other"])?;
    Ok(())
}

/// The file, the archive of a published module and the manifest report the same fault.
#[test]
fn apply_checks_vars_by_module_schema() -> Result<()> {
    let fleet = Fleet::start("schema", &[])?;
    let playbook = |vars: &str| {
        let script = "runner: bash, version: '1', phase: prepare, params: {script: \"true\"}";
        let head = "apiVersion: muster/v1alpha1\nkind: Cluster\nmetadata: {name: e2e}\nspec:\n  lcmType: generic\n";
        let first = format!("  release: '1'\n  machineTypes:\n    control:\n      - {{name: first, {script}}}\n");
        let tuning = "      - name: tuning\n        runner: ansible\n        version: '1'\n        phase: deploy\n";
        format!("{head}{first}{tuning}        params: {{playbook: /x.yml}}\n        {vars}\n")
    };
    let schema = r#"{"properties": {"ports": {"items": {"type": "integer"}}}}"#;
    fs::create_dir(fleet.path("module"))?;
    fs::write(fleet.path("module/schema.json"), schema)?;
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(fleet.path("")).args(["-czf"]).arg(fleet.path("module.tar.gz")).arg("module");
    programs::run(&mut tar)?.exits(0)?;
    fs::write(fleet.path("bad.yaml"), playbook("vars: {ports: [22, ssh]}"))?;
    fs::write(fleet.path("inline.yaml"), playbook(&format!("vars: {{ports: [22, ssh]}}\n        schema: {schema}")))?;
    fs::write(fleet.path("good.yaml"), playbook("vars: {ports: [22]}"))?;
    let place = ":15:28: spec.machineTypes.control[1].vars.ports[1]: not what ";
    for (file, more) in [
        ("bad.yaml", &["--schema", "tuning=module/schema.json"][..]),
        ("bad.yaml", &["--schema", "tuning=module.tar.gz"]),
        ("inline.yaml", &[]),
    ] {
        let refused = fleet.ctl(&[&["apply", "-f", file][..], more].concat())?.exits(2)?;
        refused.says(&[file, place, "expected a value of type integer", "1 fault; nothing was changed"])?;
    }
    let mistyped = fleet.ctl(&["apply", "-f", "good.yaml", "--schema", "tunin=module.tar.gz"])?.exits(2)?;
    mistyped.says(&["for an item 'tunin'", "did you mean \"tuning\"?"])?;
    fleet.ctl(&["apply", "-f", "good.yaml", "--schema", "tuning=module.tar.gz"])?.exits(0)?;
    fleet.done()
}

/// On SIGHUP both log that they do not reload, and continue.
#[test]
fn hangup_ends_no_daemon() -> Result<()> {
    if fs::File::open("/dev/tty").is_ok() {
        return Ok(()); // there it says that the terminal is closed
    }
    let mut fleet = Fleet::start("hangup", &[])?;
    fleet.apply(&cluster(1, 0, &[bash("work", "deploy", &fleet.effects_log(), ":", &[])], &[], &[]))?;
    fleet.add_machines(1, 0)?;
    fleet.wait_ready(1)?;
    let (agent, coordinator) = (fleet.agent_pid("control-1")?, fleet.coordinator_pid()?);
    fleet.signal_agent("control-1", Signal::SIGHUP)?;
    fleet.signal_coordinator(Signal::SIGHUP)?;
    for process in ["control-1", "coordinator"] {
        let said = || Ok(fleet.log(process).contains("SIGHUP: refused").then_some(()));
        wait_for(&format!("{process} says it"), TIME_LIMIT, said)?;
    }
    fleet.wait_machine("control-1", "connected", |machine| machine.status.connected)?;
    assert_eq!((fleet.agent_pid("control-1")?, fleet.coordinator_pid()?), (agent, coordinator));
    fleet.done()
}

/// The tenth line of the audit comes after the ninth.
fn a_watch_begins_as_a_list(fleet: &mut Fleet) -> Result<()> {
    for at in 1..=10 {
        fleet.ctl(&["annotate", "machine", "control-1", &format!("example.com/at-{at}=1")])?.exits(0)?;
    }
    let listed = fleet.ctl(&["get", "audit", "-o", "name"])?.ok()?;
    assert!(listed.contains("audit/9\naudit/10\n"), "{listed}");
    let mut watch = fleet.start_ctl(&["--config", "operator.toml", "get", "audit", "-w", "-o", "name"], "audit")?;
    let lines = listed.lines().count();
    let shown = || Ok((fleet.log("audit").lines().count() >= lines).then(|| fleet.log("audit")));
    let shown = wait_for("the whole audit", TIME_LIMIT, shown)?;
    watch.kill()?;
    watch.wait()?;
    assert_eq!(shown, listed);
    Ok(())
}
