//! Applying a manifest: what changes, what stays, and what is refused as a whole.

use std::collections::BTreeMap;

use muster_proto::model::{
    ClusterName, ClusterSpec, Counts, KubeconfigSource, KubernetesDrain, KubernetesSpec, MachineSpec,
    MachineType::{Control, Unassigned, Worker},
    Phase, RunnerKind, Scope, StateItem,
};

use super::{
    done,
    fleet::{Fleet, apply, cluster, item, item_name, machine, machine_spec, spec},
    reason,
    updates::deployed,
};
use crate::core::{Effect, Refusal, Request, update::Options};

fn own_images(param: &str) -> MachineSpec {
    let mut own = machine_spec(Worker);
    own.state_items_overwrites.insert(item_name("images"), [(param.to_owned(), "own".to_owned())].into());
    own
}

#[test]
fn the_same_manifest_again_changes_nothing_and_says_so() {
    let mut fleet = Fleet::of(1, 1);
    let declared = [("worker-1", machine_spec(Worker))];
    assert_eq!(done(fleet.ask(apply(spec(1, 1), &declared))), "cluster edge-7 unchanged\nmachine worker-1 configured");
    let again = done(fleet.ask(apply(spec(1, 1), &declared)));
    assert_eq!(again, "cluster edge-7 unchanged\nmachine worker-1 unchanged");
}

#[test]
fn a_deployed_cluster_keeps_what_it_has() {
    let mut fleet = Fleet::of(1, 1).reported().prepared();
    fleet.finish_all(Control);
    fleet.finish_all(Worker);
    let mut edited = spec(1, 1);
    for items in edited.machine_types.values_mut() {
        items[0].version.push('2');
    }
    let before: Vec<_> = ["control-1", "worker-1"].map(|name| fleet.row(name).clone()).into();
    let said = "cluster edge-7 configured; its 2 deployed machines keep what they have until an update is started: \
                `musterctl plan edge-7` shows it, `musterctl update edge-7` starts it";
    assert_eq!(done(fleet.ask(apply(edited, &[]))), said);
    assert_eq!(before, ["control-1", "worker-1"].map(|name| fleet.row(name).clone()));
    assert!(fleet.effects.is_empty(), "nobody is told anything");
    fleet.enroll("worker-2", Worker).expect("let in");
    fleet.connect("worker-2");
    let list = fleet.agents["worker-2"].assignment.as_ref().expect("a list");
    assert_eq!(list.items[0].version, "12", "a newcomer gets the newest");
}

#[test]
fn a_dry_run_says_the_same_and_changes_nothing() {
    let mut fleet = Fleet::of(1, 1);
    let mut edited = spec(1, 1);
    edited.max_worker_deploy_count = 7;
    let Request::Apply { clusters, machines, .. } = apply(edited.clone(), &[("worker-9", machine_spec(Worker))]) else {
        unreachable!()
    };
    let before = fleet.core.facts().clone();
    let dry = done(fleet.ask(Request::Apply { clusters, machines, dry_run: true }));
    assert!(before.same_record(fleet.core.facts()));
    assert_eq!(dry, done(fleet.ask(apply(edited, &[("worker-9", machine_spec(Worker))]))));
}

#[test]
fn more_machines_than_the_cluster_waits_for_are_told() {
    let declared = [("worker-1", machine_spec(Worker)), ("worker-2", machine_spec(Worker))];
    let mut fleet = Fleet::applied(spec(1, 2));
    let said = done(fleet.ask(apply(spec(1, 1), &declared)));
    let line = "cluster edge-7: the manifest declares 2 worker machines, and `machines` waits for 1: deploying may \
                start before the others are there";
    assert!(said.lines().any(|said| said == line), "{said}");
    let said = done(fleet.ask(apply(spec(1, 2), &declared)));
    assert!(!said.contains("waits for"), "{said}");
    let said = done(deployed(3, 1).ask(apply(spec(1, 1), &declared)));
    assert!(!said.contains("waits for"), "one that is deployed grows: {said}");
}

#[test]
fn a_live_machine_keeps_its_role() {
    let mut fleet = Fleet::of(1, 1);
    let before = fleet.core.facts().clone();
    let mut edited = spec(1, 1);
    edited.max_worker_deploy_count = 7;
    assert_eq!(reason(fleet.ask(apply(edited, &[("worker-1", machine_spec(Control))]))), "RoleChange");
    assert!(before.same_record(fleet.core.facts()), "refused as a whole");
    let aside = fleet.ask(apply(spec(1, 1), &[("worker-1", machine_spec(Unassigned))]));
    let Err(Refusal::State { message, .. }) = aside else { panic!("{aside:?}") };
    assert!(
        message.ends_with("`musterctl replace worker-1`, then apply again (no machine enrols as that)"),
        "{message}"
    );
    fleet.ask(Request::ReplaceMachine { machine: machine("worker-1"), machine_is_off: false }).expect("given up");
    fleet.ask(apply(spec(1, 1), &[("worker-1", machine_spec(Control))])).expect("another machine is to come");
    assert_eq!(reason(fleet.enroll("worker-1", Worker)), "OtherRole");
    fleet.enroll("worker-1", Control).expect("with a token of the new role");
    let elsewhere = ClusterName::new("edge-8").expect("a label");
    let stray = MachineSpec { cluster_name: elsewhere, ..machine_spec(Worker) };
    assert_eq!(reason(fleet.ask(apply(spec(1, 1), &[("worker-9", stray)]))), "NotFound");
}

#[test]
fn the_audit_record_says_what_an_apply_changed_and_no_more() {
    let mut fleet = Fleet::of(1, 1);
    let lines = |fleet: &Fleet| {
        fleet.core.facts().audit_lines().into_iter().map(|line| line.message.clone()).collect::<Vec<_>>()
    };
    let before = lines(&fleet).len();
    fleet.ask(apply(spec(1, 1), &[])).expect("applies");
    assert_eq!(lines(&fleet).len(), before, "nothing was changed");
    let names: Vec<String> = (0..1_000).map(|n| format!("rack-{n:04}")).collect();
    let declared: Vec<_> = names.iter().map(|name| (name.as_str(), machine_spec(Worker))).collect();
    fleet.ask(apply(spec(1, 1), &declared)).expect("applies");
    let line = lines(&fleet).pop().expect("a line");
    assert!(line.starts_with("machine rack-0000 created; ") && line.len() < 4_200, "{}", line.len());
    assert!(line.ends_with(" more"), "{line}");
}

/// The parser sees only the manifest. The core must detect a recorded Machine that overrides an item which the new
/// Cluster no longer has.
#[test]
fn a_cluster_that_recorded_overrides_do_not_fit_is_refused() {
    let mut fleet = Fleet::of(1, 1);
    fleet.ask(apply(spec(1, 1), &[("worker-1", own_images("script"))])).expect("applies");
    let mut without = spec(1, 1);
    without.machine_types.get_mut(&Worker).expect("items").retain(|item| item.name != item_name("images"));
    let before = fleet.core.facts().clone();
    for dry_run in [false, true] {
        let Request::Apply { clusters, machines, .. } = apply(without.clone(), &[]) else { unreachable!() };
        let refused = fleet.ask(Request::Apply { clusters, machines, dry_run });
        let text = refused.as_ref().expect_err("refused").to_string();
        assert_eq!(reason(refused), "OverrideWithoutItem");
        assert!(text.contains("worker-1") && text.contains("images"), "{text}");
    }
    assert!(before.same_record(fleet.core.facts()), "refused as a whole");
    let both = [("worker-1", machine_spec(Worker))];
    fleet.ask(apply(without, &both)).expect("the Machine document of the same manifest counts");
}

#[test]
fn a_machine_whose_overrides_do_not_fit_the_recorded_cluster_is_refused() {
    let mut fleet = Fleet::of(1, 1);
    let Request::Apply { mut machines, .. } = apply(spec(1, 1), &[("worker-1", own_images("script"))]) else {
        unreachable!()
    };
    let own = &mut machines.values_mut().next().expect("one").0.state_items_overwrites;
    own.insert(item_name("nothing"), BTreeMap::new());
    let alone = Request::Apply { clusters: BTreeMap::new(), machines, dry_run: false };
    assert_eq!(reason(fleet.ask(alone)), "OverrideWithoutItem");
}

#[test]
fn what_an_apply_means_for_whom_is_said() {
    let mut fleet = Fleet::of(1, 2).reported().prepared();
    fleet.finish("control-1");
    // Both workers are in the middle of it: they get the fix at once.
    let mut mended = spec(1, 2);
    let worker = mended.machine_types.get_mut(&Worker).expect("items");
    worker[1].params.insert("script".to_owned(), "echo ${machine.name}".to_owned());
    let said = done(fleet.ask(apply(mended, &[])));
    for words in ["its deployed machine keeps what it has until an update", "the 2 that are not deployed yet go by it"]
    {
        assert!(said.contains(words), "{said}");
    }
    assert!(said.contains("item install has ${machine. in its script, where variables are not"), "{said}");
    let mut fleet = deployed(1, 1);
    let more = ClusterSpec { machines: Some(Counts { control: 3, worker: 1 }), ..spec(1, 1) };
    let said = done(fleet.ask(apply(more, &[])));
    assert_eq!(
        said,
        "cluster edge-7 configured; 2 control machines more may enrol: `musterctl token create --cluster edge-7 \
         --type …`"
    );
}

/// Without a Kubernetes there is nothing to renew, which is said once for all machine types.
#[test]
fn item_for_vrouters_without_kubernetes_is_told() {
    let mut fleet = Fleet::of(1, 1).reported();
    let mut vrouters = spec(1, 1);
    for items in vrouters.machine_types.values_mut() {
        let vrouter = item("vrouters", Phase::Deploy);
        items.push(StateItem { runner: RunnerKind::VrouterRestart, params: BTreeMap::new(), ..vrouter });
    }
    let line =
        "cluster edge-7: item vrouters does nothing: vrouter-restart renews pods, and spec.kubernetes is not set";
    let said = done(fleet.ask(apply(vrouters.clone(), &[])));
    assert_eq!(said.lines().filter(|said| *said == line).count(), 1, "{said}");
    let source = KubeconfigSource::AdminConf("/etc/kubernetes/admin.conf".to_owned());
    vrouters.kubernetes = Some(KubernetesSpec {
        source,
        drain: KubernetesDrain::default(),
        etcd: None,
        maintenance: None,
        on_delete: Vec::new(),
        helm_controller: None,
        addons: Vec::new(),
    });
    let said = done(fleet.ask(apply(vrouters, &[])));
    assert!(!said.contains("does nothing"), "{said}");
    let items = &fleet.agents["control-1"].assignment.as_ref().expect("a list").items;
    let names: Vec<&str> = items.iter().map(|item| item.name.as_str()).collect();
    assert!(names.contains(&"images") && !names.contains(&"vrouters"), "{names:?}");
}

#[test]
fn who_is_to_look_elsewhere_for_its_address_is_told_at_once() {
    let mut fleet = Fleet::of(1, 0).reported();
    let elsewhere = MachineSpec { cidr: Some("10.9.0.0/16".to_owned()), ..machine_spec(Control) };
    let closed = |fleet: &Fleet| fleet.effects.iter().any(|effect| matches!(effect, Effect::Close { .. }));
    fleet.ask(apply(spec(1, 0), &[("control-1", machine_spec(Control))])).expect("applied");
    assert!(!closed(&fleet), "nothing of its address has changed");
    fleet.ask(apply(spec(1, 0), &[("control-1", elsewhere.clone())])).expect("applied");
    assert!(closed(&fleet), "it is welcomed anew, and that says where to look");
    fleet.ask(apply(spec(1, 0), &[("control-1", elsewhere)])).expect("applied");
    assert!(!closed(&fleet), "it is not connected, and nothing is new");
}

#[test]
fn what_is_new_for_workers_only_asks_nothing_of_a_control_machine() {
    let mut fleet = Fleet::of(1, 1).reported().prepared();
    fleet.finish("control-1");
    let mut mended = spec(1, 1);
    mended.machine_types.get_mut(&Worker).expect("items")[1].params.insert("a".to_owned(), "b".to_owned());
    fleet.ask(apply(mended, &[])).expect("applies");
    let mut fleet = fleet.prepared();
    fleet.finish("worker-1");
    assert_eq!(fleet.state("worker-1"), "Ready");
    let options = Options::of(Scope::Drain);
    assert_eq!(reason(fleet.ask(Request::Update { cluster: cluster(), options })), "NothingToDo");
}
