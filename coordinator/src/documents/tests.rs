//! Output of `musterctl get clusters|machines -o json`: scripts rely on every name in it. The documents are in
//! `tests/golden/documents/*.json`; `MUSTER_GOLDEN=update` rewrites them.

use std::{fs, path::PathBuf};

use muster_proto::{
    convert::Hello,
    model::{Disk, HostFacts, ItemState, ItemStatus, LockState, MachineName, MachineType, NetworkInterface, Seq},
    resource::Cluster,
};
use serde::Serialize;
use serde_json::json;

use crate::{
    core::{
        Request,
        tests::{Fleet, update_reboots::reboot, updates},
    },
    documents,
};

fn check(kind: &str, documents: &[impl Serialize]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/golden/documents/{kind}.json"));
    let mut text = serde_json::to_string_pretty(&json!({ "items": documents })).expect("JSON");
    text.push('\n');
    if std::env::var("MUSTER_GOLDEN").is_ok_and(|value| value == "update") {
        fs::write(&path, &text).expect("the golden file can be written");
    }
    let golden = fs::read_to_string(&path).expect("a golden file");
    assert!(text == golden, "{} differs; it is now:\n{text}", path.display());
}

fn host(hostname: &str) -> HostFacts {
    HostFacts {
        hostname: hostname.to_owned(),
        internal_ip: Some("10.0.0.7".to_owned()),
        interfaces: vec![NetworkInterface {
            name: "eth0".to_owned(),
            mac: "52:54:00:00:00:01".to_owned(),
            addresses: vec!["10.0.0.7/24".to_owned()],
        }],
        os: "Debian GNU/Linux 12 (bookworm)".to_owned(),
        kernel_version: "6.1.0".to_owned(),
        architecture: "x86_64".to_owned(),
        boot_time_ms: 1_772_000_000_000,
        boot_id: "1f2e".to_owned(),
        timezone: "Europe/Zurich".to_owned(),
        cpu_model: "Xeon".to_owned(),
        cpu_count: 8,
        memory_bytes: 64 << 30,
        disks: vec![Disk { name: "/dev/sda1".to_owned(), size_bytes: 1 << 40, mount_point: "/".to_owned() }],
        reboot_required: true,
        reboot_reason: "linux-image".to_owned(),
        containers: Vec::new(),
    }
}

/// The control machine is Ready, the worker at work.
#[test]
fn field_names_are_lcms() {
    let mut fleet = Fleet::of(1, 1);
    for name in ["control-1", "worker-1"] {
        let hello = Hello { facts: host(name), ..fleet.greeting(name) };
        fleet.hello(name, hello).expect("greeted");
    }
    let mut fleet = fleet.prepared();
    fleet.finish_all(MachineType::Control);
    fleet.accept("worker-1");
    fleet.event("worker-1", "install", ItemState::Running);
    let (facts, limits, now) = (fleet.core.facts(), fleet.core.limits(), fleet.now());
    check("clusters", &documents::clusters(facts, |_| true, limits, now));
    check("machines", &documents::machines(facts, |_| true, limits, now));
}

/// Output of items is shown only with a single machine: all of it together would be too large.
#[test]
fn a_list_of_machines_is_without_what_their_items_have_said() {
    let mut fleet = Fleet::of(1, 1).reported();
    fleet.accept("worker-1");
    fleet.event("worker-1", "images", ItemState::Running);
    let running = fleet.agents["worker-1"].statuses["images"].clone();
    let failed = ItemStatus {
        state: ItemState::Failed { exit_code: 3, retryable: false },
        message: "exit status 3".to_owned(),
        output_tail: "no space left\n".to_owned(),
        result_json: Some("{\"free\":0}".to_owned()),
        finished_at_ms: Some(running.started_at_ms),
        ..running
    };
    fleet.event_at("worker-1", Seq(2), failed).expect("the next event");
    let (facts, limits, now) = (fleet.core.facts(), fleet.core.limits(), fleet.now());
    let all = documents::machines(facts, |_| true, limits, now);
    let listed = &all[1].status.state_item_statuses["images"];
    assert_eq!((listed.message.as_str(), listed.output_tail.as_str()), ("exit status 3", ""));
    assert_eq!(listed.result, None);

    let mut one = documents::machine_named(facts, "worker-1", |_| true, limits, now).expect("a machine");
    let shown = one.status.state_item_statuses.get_mut("images").expect("a status");
    assert_eq!(std::mem::take(&mut shown.output_tail), "no space left\n");
    assert_eq!(shown.result.take(), Some(json!({ "free": 0 })));
    assert_eq!(one, all[1], "nothing else is different");
    assert_eq!(documents::machine_named(facts, "worker-1", |_| false, limits, now), None);
    assert_eq!(documents::machine_named(facts, "worker-9", |_| true, limits, now), None);
}

/// The one cluster of a fleet.
fn cluster(fleet: &Fleet) -> Cluster {
    let all = documents::clusters(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now());
    all.into_iter().next().expect("a cluster")
}

#[test]
fn a_cluster_says_where_it_is_what_is_due_and_who_is_in_trouble() {
    let mut fleet = updates::deployed(3, 2);
    let status = cluster(&fleet).status;
    assert_eq!((status.releases, status.update_due), (vec!["1".to_owned()], false));
    updates::pace(&mut fleet, 1);
    assert!(!cluster(&fleet).status.update_due, "it asks nothing of machines");
    assert!(fleet.ask(updates::update()).is_err_and(|refusal| format!("{refusal:?}").contains("NothingToDo")));
    updates::release(&mut fleet, &["install"], 1);
    assert!(cluster(&fleet).status.update_due);
    let mut fleet = fleet.started();
    assert!(!cluster(&fleet).status.update_due, "it is under way");
    fleet.upgrade("control-1");
    fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
    fleet.lock("ceph", Some("control-2"), LockState::Active);
    fleet.lock("ceph", None, LockState::Active);
    let status = cluster(&fleet).status;
    assert_eq!((status.release, status.releases, status.update_due), (None, vec!["1".into(), "1.1".into()], true));
    fleet.disconnect("worker-2");
    fleet.pass(60_000, &["worker-2"]);
    let status = cluster(&fleet).status;
    assert_eq!((status.ready_nodes, status.lost_nodes), (5, vec!["worker-2".to_owned()]));
    fleet.connect("worker-2");
    fleet.ask(reboot(&["worker-1"])).expect("starts");
    let all = documents::rollouts(fleet.core.facts(), |_| true, fleet.core.limits(), fleet.now());
    let names: Vec<&str> = all.iter().map(|rollout| rollout.metadata.name.as_str()).collect();
    assert_eq!(names, ["edge-7-deploy-1", "edge-7-update-2", "edge-7-reboot-3"], "by start");
    let machine = MachineName::new("worker-2").expect("a label");
    fleet.ask(Request::RevokeMachine { machine, machine_is_off: true }).expect("revoked");
    assert_eq!(cluster(&fleet).status.revoked_nodes, ["worker-2"]);
}
