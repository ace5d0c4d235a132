//! Where the API server is: on machines that are updated themselves.

use std::net::Ipv4Addr;

use super::*;

/// The kubeconfig names a virtual address that no machine bears: the control machines answer for it.
#[test]
fn virtual_address_is_down_through_the_update() -> Result<()> {
    let address = Ipv4Addr::new(127, 0, 0, 9);
    let config = Config { names: vec![address.to_string()], ..Config::default() };
    let kubernetes = start_kubernetes(config, &MACHINES)?;
    let port = kubernetes.addresses().first().context("an API server")?.port();
    let kubeconfig = kubernetes.kubeconfig_for(&format!("https://{address}:{port}"), TOKEN);
    let mut fleet = Fleet::start("virtual-address", &[])?;
    let first = manifest(&fleet, 1, &[]);
    deploy(&mut fleet, &kubernetes, &kubeconfig, &MACHINES, &first)?;
    fleet.apply(&manifest(&fleet, 2, &[]))?;
    fleet.ctl(&["update", "e2e", "--yes"])?.exits(0)?;
    fleet.wait_ready(6)?;
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    let patched = |machine: &str| {
        let is_patch = |request: &LoggedRequest| request.resource == "nodes" && request.name == machine;
        changes(&kubernetes).into_iter().filter(is_patch).count()
    };
    for machine in MACHINES {
        ensure!(patched(machine) == 2, "{machine} was drained");
    }
    fleet.done()
}

/// The only control machine, and the API server on it: it goes down in the machine's first item, and comes back in the
/// second, which needs a permit of its own.
#[test]
fn one_control_machine_is_updated() -> Result<()> {
    let machines = ["control-1", "worker-1"];
    let kubernetes = start_kubernetes(Config::default(), &machines)?;
    let mut fleet = Fleet::start("one-control", &[])?;
    let manifest = |fleet: &Fleet, release: u32| {
        let (effects, dir) = (fleet.effects_log(), fleet.path(""));
        let item = |name: &str| {
            // In the first release there is nothing to stop.
            let body = match release {
                1 => ":".to_owned(),
                _ => format!("touch {dir}{name}; until [ -e {dir}{name}-done ]; do sleep 0.05; done"),
            };
            bash(name, "deploy", &effects, &body, &[])
        };
        let spec = ["kubernetes:", "  kubeconfig: ${secret.kubeconfig}"];
        let whole =
            cluster(1, 1, &[item("stop"), item("start")], &[bash("install", "deploy", &effects, ":", &[])], &spec);
        whole.replace("release: \"1.0\"", &format!("release: \"{release}.0\""))
    };
    let first = manifest(&fleet, 1);
    deploy(&mut fleet, &kubernetes, &kubernetes.kubeconfig(TOKEN)?, &machines, &first)?;
    fleet.apply(&manifest(&fleet, 2))?;
    let words = ["--config", "operator.toml", "update", "e2e", "--yes", "--accept-control-plane-downtime"];
    let mut update = fleet.start_ctl(&words, "update")?;
    let began = |name: &'static str| {
        let path = fleet.path(name);
        move || Ok(fs::exists(&path)?.then_some(()))
    };
    wait_for("the item that stops the API server", TIME_LIMIT, began("stop"))?;
    kubernetes.stop(true)?;
    fs::write(fleet.path("stop-done"), "")?;
    wait_for("the item that starts the API server", TIME_LIMIT, began("start"))?;
    kubernetes.start_again()?;
    fs::write(fleet.path("start-done"), "")?;
    ensure!(update.wait()?.success(), "{}", fleet.log("update"));
    fleet.wait_ready(2)?;
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    fleet.done()
}
