//! The kubeconfig is a file on the control machines, read by their agents.

use std::{os::unix::fs::PermissionsExt as _, path::Path};

use muster_proto::model::Reason;

use super::*;
use crate::canaries::places;

const FIRST: &str = "canary-3b1d-first-token-of-admin";
const SECOND: &str = "canary-77e0-second-token-of-admin";

/// Writes the file as kubeadm does: whole, for root alone.
fn write(path: &Path, kubeconfig: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, kubeconfig)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
    Ok(fs::rename(new, path)?)
}

/// The update begins with one token and ends with another. Neither is found anywhere.
#[test]
fn rotated_admin_conf_is_read_again() -> Result<()> {
    let kubernetes = start_kubernetes(Config::default(), &MACHINES)?;
    kubernetes.revoke_token(TOKEN);
    kubernetes.add_token(FIRST, USER, rights()?);
    let mut fleet = Fleet::start("admin-conf", &[])?;
    let outside = tempfile::tempdir()?;
    let path = outside.path().join("admin.conf");
    write(&path, &kubernetes.kubeconfig(FIRST)?)?;
    let of_release = |fleet: &Fleet, release: u32| {
        let in_file = format!("adminConf: {}", path.display());
        manifest(fleet, release, &[]).replace("kubeconfig: ${secret.kubeconfig}", &in_file)
    };
    fleet.apply(&of_release(&fleet, 1))?;
    let check =
        |fleet: &Fleet, code: i32, words: &[&str]| fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(code)?.says(words);
    check(&fleet, 4, &["no control machine is Ready yet"])?;
    let first = of_release(&fleet, 1);
    deploy_machines(&mut fleet, &kubernetes, &MACHINES, &first)?;
    check(&fleet, 0, &["version v1.36.2"])?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    check(&fleet, 4, &["cannot read", "can be changed by others than root"])?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;

    fleet.apply(&of_release(&fleet, 2))?;
    fleet.ctl(&["plan", "e2e"])?.exits(0)?;
    fleet.ctl(&["update", "e2e", "--yes", "--detach"])?.exits(0)?;
    wait_for("the first cordon", TIME_LIMIT, || Ok((!changes(&kubernetes).is_empty()).then_some(())))?;
    kubernetes.revoke_token(FIRST);
    kubernetes.add_token(SECOND, USER, rights()?);
    fleet.wait_machine("control-1", "the wait for other credentials", |machine| {
        let blocked = machine.status.blocked.as_ref().map(|since| &since.blocked);
        blocked
            .is_some_and(|blocked| blocked.reason == Reason::KubernetesUnavailable && blocked.message.contains("(401)"))
    })?;
    write(&path, &kubernetes.kubeconfig(SECOND)?)?;
    // Until the file is read again, watch says that the update needs a person.
    fleet.wait_rollout()?;
    fleet.wait_ready(6)?;
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    for token in [FIRST, SECOND] {
        let found = places(&fleet, token)?;
        ensure!(found.is_empty(), "{found:?}");
        for words in [&["machines"][..], &["machine", "control-1"], &["clusters"], &["audit"], &["secrets"]] {
            let text = fleet.ctl(&[&["get"], words, &["-o", "json"]].concat())?.ok()?;
            ensure!(!text.contains(token), "get {words:?}: {text}");
        }
    }
    fleet.done()
}
