//! Golden tables and pages. The documents are in `tests/documents.rs`; their expected text is here.

mod documents;
mod handshakes;

use jiff::{SignedDuration, Timestamp};
use muster_proto::{
    model::{Blocked, Reason},
    resource::{BlockedSince, HookStatus, MaintenanceStatus, Of, StuckStage, Waiting},
};

use self::documents::{audit, cluster, lock, machine, request, rollout, secret, token};
use super::{machines::note, *};

fn now() -> Timestamp {
    "2026-03-01T12:05:00Z".parse().expect("a moment")
}

fn check(kind: Kind, wide: bool, documents: &[Vec<u8>], expected: &[&str]) {
    let look = Look { wide, now: now() };
    let table = table(kind, documents.iter().map(Vec::as_slice), look).expect("documents of this kind");
    assert_eq!(table.lines(), expected);
}

fn json(document: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("a document")
}

fn machines() -> Vec<Vec<u8>> {
    ["control-1", "worker-1", "worker-2", "worker-3", "worker-4", "worker-5"].map(|name| json(&machine(name))).into()
}

#[test]
fn machines_say_what_is_wrong() {
    check(
        Kind::Machines,
        false,
        &machines(),
        &[
            "NAME        CLUSTERNAME   TYPE      STATE     NOTE",
            "control-1   edge-7        control   Ready",
            "worker-1    edge-7        worker    Prepare   item images, attempt 2, 60s, 45 MiB of 64 MiB at 30 MiB/s",
            "worker-2    edge-7        worker    Prepare   WaitingForTurn: control machines go first",
            "worker-3    edge-7        worker    Deploy    Failed: item api: exit status 3 (attempt 4)",
            "worker-4    edge-7        worker    Deploy    Lost: not heard of for 4m; Indeterminate: item api: it was \
             started and no…",
            "worker-5    edge-7        worker    Deploy    Retrying: item api: exit status 1 (attempt 2)",
        ],
    );
}

#[test]
fn wide_machines_have_lcms_columns() {
    check(
        Kind::Machines,
        true,
        &machines()[..2],
        &[
            "NAME        CLUSTERNAME   TYPE      STATE     RELEASE   INTERNALIP   HOSTNAME   AGENTVERSION   NOTE",
            "control-1   edge-7        control   Ready     -         10.0.0.1     node-1     0.1.0",
            "worker-1    edge-7        worker    Prepare   -         10.0.0.1     node-1     0.1.0          item \
             images, attempt 2, 60s, 45 MiB of 64 MiB at 30 MiB/s",
        ],
    );
}

#[test]
fn locks_and_requests() {
    let requests = [request(None, false, "17.3.0"), request(Some("worker-1"), true, "")].map(|request| json(&request));
    let locks = [lock(None, ""), lock(Some("worker-1"), "17.3.0")].map(|lock| json(&lock));
    check(
        Kind::Requests(Of::All),
        false,
        &requests,
        &[
            "NAME       CLUSTERNAME   KIND                        SCOPE   STATE     AGE   MESSAGE",
            "edge-7     edge-7        ClusterMaintenanceRequest   os      granted   5m",
            "worker-1   edge-7        NodeMaintenanceRequest      os      granted   5m",
        ],
    );
    check(
        Kind::Requests(Of::All),
        true,
        &requests,
        &[
            "NAME       CLUSTERNAME   KIND                        SCOPE   RELEASE   REMOVAL   UID   STATE     \
             AGE   MESSAGE",
            "edge-7     edge-7        ClusterMaintenanceRequest   os      17.3.0    -         -     granted   5m",
            "worker-1   edge-7        NodeMaintenanceRequest      os      -         yes       -     granted   5m",
        ],
    );
    check(
        Kind::Locks(Of::All),
        false,
        &locks,
        &[
            "NAME            CLUSTERNAME   KIND                  HOLDER   NODE       STATE    SINCE   \
             PROGRESS   MESSAGE",
            "ceph-edge-7     edge-7        ClusterWorkloadLock   ceph     -          active   5m      \
             40%        moving",
            "ceph-worker-1   edge-7        NodeWorkloadLock      ceph     worker-1   active   5m      \
             40%        moving",
        ],
    );
    check(
        Kind::Locks(Of::All),
        true,
        &locks,
        &[
            "NAME            CLUSTERNAME   KIND                  HOLDER   NODE       STATE    SINCE   PROGRESS   \
             RELEASE   UID   MESSAGE",
            "ceph-edge-7     edge-7        ClusterWorkloadLock   ceph     -          active   5m      40%        \
             -         -     moving",
            "ceph-worker-1   edge-7        NodeWorkloadLock      ceph     worker-1   active   5m      40%        \
             17.3.0    -     moving",
        ],
    );
}

#[test]
fn clusters_rollouts_tokens_secrets_audit() {
    check(
        Kind::Clusters,
        false,
        &[json(&cluster())],
        &[
            "NAME     READY   RELEASE   ROLLOUT           NOTE                      AGE",
            "edge-7   1/6     -         edge-7-deploy-1   prepare 4/6, deploy 1/6   2d",
        ],
    );
    check(
        Kind::Rollouts,
        false,
        &[json(&rollout("Blocked")), json(&rollout("Ready"))],
        &include_str!("tests/rollouts.txt").lines().collect::<Vec<_>>(),
    );
    check(
        Kind::Tokens,
        false,
        &[json(&token(60, None)), json(&token(1, Some("worker-1")))],
        &[
            "NAME     CLUSTERNAME   TYPE     MACHINE    STATE   USED   EXPIRES   AGE",
            "k3x9qa   edge-7        worker   any        Valid   1/60   in 24h    2d",
            "k3x9qa   edge-7        worker   worker-1   Valid   1/1    in 24h    2d",
        ],
    );
    check(
        Kind::Secrets,
        false,
        &[json(&secret("registry", None, &[])), json(&secret("edge-7/db", Some("edge-7"), &["a", "b", "c", "d"]))],
        &[
            "NAME        CLUSTERNAME     VERSION   USED BY              AGE",
            "registry    edge-7,edge-8   7         -                    2d",
            "edge-7/db   edge-7          7         a, b, c and 1 more   2d",
        ],
    );
    check(
        Kind::Audit,
        false,
        &[json(&audit())],
        &[
            "TIME                   ACTOR           ACTION   OBJECT             MESSAGE",
            "2026-03-01 12:00:00Z   operator/anna   retry    machine/worker-3   item api^J^[[31m (3 times)",
        ],
    );
}

#[test]
fn a_cluster_says_who_is_in_trouble_and_what_is_due() {
    let mut cluster = cluster();
    cluster.status.rollout = None;
    cluster.status.phases.clear();
    cluster.status.releases = vec!["1.2".into(), "17.2".into()];
    cluster.status.update_due = true;
    cluster.status.lost_nodes = vec!["worker-4".into()];
    cluster.status.failed_nodes = ["a", "b", "c", "d"].map(str::to_owned).into();
    let note = "1 Lost: worker-4; 4 Failed: a, b, c, …; update due: 1.2, 17.2 -> 17.3.0";
    let lines = [
        format!("NAME     READY   RELEASE     ROLLOUT   {:71}   AGE", "NOTE"),
        format!("edge-7   1/6     1.2, 17.2   -         {note}   2d"),
    ];
    let lines = lines.each_ref().map(String::as_str);
    check(Kind::Clusters, false, &[json(&cluster)], &lines);
    let page = describe_cluster(&cluster, &[], now()).join("\n");
    for said in ["In trouble:         1 Lost: worker-4", "1.2, 17.2 -> 17.3.0 (`musterctl plan edge-7` shows"] {
        assert!(page.contains(said), "{page}");
    }
    cluster.status.requested_nodes = 7;
    assert_eq!(clusters::missing(&cluster).as_deref(), Some("6 of 7 machines are there"));
    assert!(ready_line(&cluster).starts_with("1 of 6 machines Ready; 6 of 7 machines are there; 1 Lost"));
    cluster.status.requested_nodes = 6;
    assert_eq!(ready_line(&cluster), "1 of 6 machines Ready; 1 Lost: worker-4; 4 Failed: a, b, c, …");
    (cluster.status.lost_nodes, cluster.status.failed_nodes) = (Vec::new(), Vec::new());
    cluster.status.needs_operator = true;
    let row = super::clusters::row(&cluster, Look { wide: false, now: now() });
    assert!(row.iter().any(|cell| cell.starts_with("needs a person: musterctl watch edge-7")), "{row:?}");
    cluster.status.needs_operator = false;
    let blocked = Blocked { reason: Reason::StoreOlderThanFleet, message: "old".into(), clears_when: "new".into() };
    cluster.status.blocked = Some(BlockedSince { blocked, since: now() });
    let row = super::clusters::row(&cluster, Look { wide: false, now: now() });
    assert!(row.iter().any(|cell| cell.contains("old; needs a person: musterctl watch edge-7")), "{row:?}");
}

#[test]
fn rollouts_stand_in_the_order_in_which_they_began() {
    let rollout = |name: &str, begun: &str| {
        let mut rollout = documents::update("Ready", false, false);
        rollout.metadata.name = name.to_owned();
        rollout.metadata.creation_timestamp = begun.parse().expect("a moment");
        rollout.spec.kind = "update".into();
        json(&rollout)
    };
    let all = [rollout("edge-7-reboot-3", "2026-03-01T12:03:00Z"), rollout("edge-7-update-2", "2026-03-01T12:02:00Z")];
    let lines = [
        "NAME              CLUSTERNAME   KIND     STATE   READY   NOTE       AGE",
        "edge-7-update-2   edge-7        update   Ready   1/6     took 2m    3m",
        "edge-7-reboot-3   edge-7        update   Ready   1/6     took 60s   2m",
    ];
    check(Kind::Rollouts, false, &all, &lines);
    let look = Look { wide: true, now: now() };
    let table = table(Kind::Rollouts, all.iter().map(Vec::as_slice), look).expect("rollouts").lines();
    for said in ["RELEASE   SCOPE   FAILURES   STARTEDBY", "2.0       drain   2          muster"] {
        assert!(table.join("\n").contains(said), "{table:?}");
    }
}

#[test]
fn a_machines_page() {
    let lines = describe_machine(&machine("worker-3"), now());
    assert_eq!(lines.join("\n"), include_str!("tests/describe-machine.txt").trim_end());
}

#[test]
fn two_agents_of_one_machine_are_said_before_anything_else() {
    let mut machine = machine("control-1");
    machine.status.two_agents = true;
    for said in [describe_machine(&machine, now()).join("\n"), super::machines::note(&machine, now())] {
        assert!(said.contains("TwoAgents: another machine has its identity too"), "{said}");
    }
}

#[test]
fn a_clusters_page() {
    let lines = describe_cluster(&cluster(), &[machine("control-1"), machine("worker-3")], now());
    assert_eq!(lines.join("\n"), include_str!("tests/describe-cluster.txt").trim_end());
}

#[test]
fn the_tables_of_a_page_fit_a_terminal() {
    let mut failed = machine("worker-3");
    let api = failed.status.state_item_statuses.get_mut("api").expect("an item");
    api.message = "a word of it ".repeat(20);
    for page in [describe_machine(&failed, now()), describe_cluster(&cluster(), &[failed.clone()], now())] {
        let tables = page.iter().filter(|line| line.starts_with("  "));
        let longest = tables.max_by_key(|line| line.chars().count()).expect("a table");
        assert!(longest.chars().count() <= 120 && page.join("\n").contains("a word of it"), "{longest}");
    }
}

#[test]
fn a_plan() {
    let lines = plan_lines(&documents::plan());
    assert_eq!(
        lines,
        [
            "Cluster edge-7 starts nothing now: WaitingForMachines: 5 of 6 machines have reported",
            "Clears when: the last declared machine reports",
            "",
            "Wave 1: prepare of worker, 2 machines, at most 50 at once",
            "  MACHINE    STATE     ITEMS            WHY NOT NOW",
            "  worker-1   Prepare   all done",
            "  worker-2   Pending   images, sysctl   WaitingForMachines: 5 of 6",
        ]
    );
}

#[test]
fn a_fleet_in_motion() {
    let mut fleet = Fleet { cluster: Some(cluster()), ..Fleet::default() };
    assert_eq!(fleet.verdict(now()), Verdict::Going, "no rollout yet");
    for name in ["control-1", "worker-1", "worker-2", "worker-3"] {
        fleet.machines.insert(name.to_owned(), machine(name));
    }
    fleet.rollouts.insert("edge-7-deploy-1".into(), rollout("Blocked"));
    assert_eq!(
        fleet.busy_lines(now()),
        [
            "worker-3   Deploy       Failed: item api: exit status 3 (attempt 4)",
            "worker-1   Prepare      item images, attempt 2, 60s, 45 MiB of 64 MiB at 30 MiB/s",
        ]
    );
    assert_eq!(
        fleet.blocked_lines(now()),
        [
            "FailureBudget for 60s: 2 workers failed, 2 are allowed. Clears when musterctl retry or skip",
            "WaitingForTurn (worker-2): control machines go first",
        ]
    );
    assert_eq!(fleet.verdict(now()), Verdict::Going, "worker-1 is still busy");
    fleet.machines.remove("worker-1");
    assert_eq!(
        fleet.verdict(now()),
        Verdict::NeedsPerson(vec![
            "worker-3: item api failed: exit status 3. Look: musterctl logs worker-3 api; then: musterctl retry \
             worker-3 api, or musterctl skip worker-3 api; a wrong item: musterctl apply a mended manifest, and it \
             runs anew"
                .to_owned()
        ])
    );
    fleet.rollouts.insert("edge-7-deploy-1".into(), rollout("Ready"));
    let (all, then) = ("all 6 machines are Ready, after 4m", "all 6 machines were Ready, after 4m");
    let look = "(why: musterctl get machines --cluster edge-7)";
    let ended =
        |others: &str| Verdict::Ended(format!("edge-7-deploy-1 has ended: {then}; not Ready by now: {others} {look}"));
    let Verdict::NeedsPerson(said) = fleet.verdict(now()) else { panic!("worker-3 waits for one all the same") };
    assert!(matches!(said.as_slice(), [one] if one.starts_with("worker-3: item api failed")), "{said:?}");
    fleet.machines.remove("worker-3");
    assert_eq!(fleet.verdict(now()), ended("worker-2 (WaitingForTurn)"));
    fleet.machines.insert("worker-5".to_owned(), machine("worker-5"));
    assert_eq!(fleet.verdict(now()), Verdict::Going, "worker-5 came since, and nothing holds it up");
    fleet.machines.retain(|_, machine| machine.status.state == "Ready");
    assert_eq!(fleet.verdict(now()), Verdict::Ended(all.to_owned()));
    fleet.machines.insert("worker-4".to_owned(), machine("worker-4"));
    let gone = fleet.machines.get_mut("worker-4").expect("there");
    gone.status.items.clear();
    assert_eq!(fleet.verdict(now()), ended("worker-4 (Lost)"));
    let gone = fleet.machines.get_mut("worker-4").expect("there");
    (gone.status.lost, gone.status.state) = (false, "Ready".to_owned());
    let blocked = Blocked { reason: Reason::Revoked, message: "it was".into(), clears_when: "never".into() };
    gone.status.blocked = Some(BlockedSince { blocked, since: now() });
    assert_eq!(fleet.verdict(now()), ended("worker-4 (Revoked)"), "it was Ready, and nobody hears of it any more");
    let status = &mut fleet.cluster.as_mut().expect("a cluster").status;
    let before = status.blocked.take();
    let blocked = Blocked { reason: Reason::RecoveryOpen, message: "a copy".into(), clears_when: "it is not".into() };
    status.blocked = Some(BlockedSince { blocked, since: now() });
    let Verdict::NeedsPerson(said) = fleet.verdict(now()) else { panic!("whatever was done before, nothing is now") };
    assert_eq!(said.last().map(String::as_str), Some("edge-7: RecoveryOpen: a copy. Clears when it is not"));
    fleet.cluster.as_mut().expect("a cluster").status.blocked = before;
    fleet.cluster.as_mut().expect("a cluster").status.rollout = Some("edge-7-deploy-2".into());
    assert_eq!(fleet.verdict(now()), Verdict::Going, "another is under way, and was not heard of yet");
}

#[test]
fn another_pod_that_holds_a_drain_is_a_change() {
    let held = |message: &str| {
        let blocked =
            Blocked { reason: Reason::KubernetesDraining, message: message.into(), clears_when: "soon".into() };
        let mut machine = machine("worker-2");
        machine.status.blocked = Some(BlockedSince { blocked, since: now() });
        machine
    };
    let changes = |was: &str, is: &str| machine_troubles(Some(&held(was)), &held(is), now());
    let refused = "Error: pod shop/db-0 cannot be evicted: budget shop/db needs 2 healthy pods and has 2";
    let shown = format!("worker-2: KubernetesDraining: {refused}");
    assert_eq!(changes("its Kubernetes node is about to be cordoned", refused), [shown.as_str()]);
    assert_eq!(changes("Error: waiting for pods to leave - shop/db-0", refused), [shown.as_str()]);
    assert!(changes(&refused.replace("has 2", "has 1"), refused).is_empty(), "it is still that pod");
    assert!(changes(refused, "the pods on its Kubernetes node are being looked at").is_empty());
}

#[test]
fn watching_ends_where_only_a_person_helps() {
    let wait = |reason: &str, clears_when: &str| {
        let blocked =
            Blocked { reason: Reason::named(reason), message: "it is so".into(), clears_when: clears_when.into() };
        Some(BlockedSince { blocked, since: now() })
    };
    let mut fleet = Fleet { cluster: Some(cluster()), ..Fleet::default() };
    let set = |fleet: &mut Fleet, reason| {
        fleet.cluster.as_mut().expect("a cluster").status.blocked = wait(reason, "`musterctl deploy edge-7` starts");
        let mut machine = machine("worker-2");
        machine.status.blocked = wait(reason, "`musterctl deploy edge-7` starts");
        fleet.machines.insert("worker-2".into(), machine);
    };
    set(&mut fleet, "WaitingForMachines");
    assert_eq!(fleet.verdict(now()), Verdict::Going, "they enrol");
    set(&mut fleet, "DeployNotStarted");
    let said = ["edge-7: DeployNotStarted: it is so. Clears when `musterctl deploy edge-7` starts".to_owned()];
    assert_eq!(
        fleet.verdict(now()),
        Verdict::NeedsPerson(said.to_vec()),
        "there is no rollout, and nobody else starts one"
    );

    let mut fleet = Fleet { cluster: Some(cluster()), ..Fleet::default() };
    fleet.rollouts.insert("edge-7-deploy-1".into(), rollout("InProgress"));
    let mut overdue = machine("worker-2");
    overdue.status.blocked = wait("RebootOverdue", "it comes back");
    fleet.machines.insert("worker-1".into(), machine("worker-1"));
    fleet.machines.insert("worker-2".into(), overdue);
    assert_eq!(fleet.verdict(now()), Verdict::Going, "worker-1 is still busy");
    fleet.machines.remove("worker-1");
    for reason in ["RebootOverdue", "ControlNotHeard", "EventRefused"] {
        let machine = fleet.machines.get_mut("worker-2").expect("there");
        machine.status.blocked = wait(reason, "it comes back");
        let said = [format!("worker-2: {reason}: it is so. Clears when it comes back")];
        assert_eq!(fleet.verdict(now()), Verdict::NeedsPerson(said.to_vec()));
    }
    // The whole cluster is blocked, whatever the state of its machines.
    fleet.machines.insert("worker-1".into(), machine("worker-1"));
    fleet.cluster.as_mut().expect("a cluster").status.blocked = wait("Gathering", "they report");
    assert_eq!(fleet.verdict(now()), Verdict::Going);
    fleet.cluster.as_mut().expect("a cluster").status.blocked = wait("ControlsAtWork", "one is revoked");
    let said = "edge-7: ControlsAtWork: it is so. Clears when one is revoked".to_owned();
    assert!(matches!(fleet.verdict(now()), Verdict::NeedsPerson(lines) if lines.first() == Some(&said)));
}

#[test]
fn changes_are_told_once() {
    let (before, after) = (machine("worker-2"), machine("worker-3"));
    assert_eq!(machine_move(None, &before).as_deref(), Some("worker-2: Prepare"));
    let mut after = after;
    after.metadata.name = "worker-2".into();
    assert_eq!(machine_move(Some(&before), &after).as_deref(), Some("worker-2: Prepare -> Deploy"));
    assert_eq!(
        machine_troubles(Some(&before), &after, now()),
        [
            "worker-2: item api Failed, attempt 4: exit status 3",
            "worker-2: Failed: item api: exit status 3 (attempt 4)",
        ]
    );
    assert_eq!(machine_move(Some(&after), &after), None);
    assert!(machine_troubles(Some(&after), &after, now()).is_empty());
    assert!(rollout_changes(Some(&rollout("Ready")), &rollout("Ready")).is_empty());
    assert!(cluster_changes(Some(&cluster()), &cluster(), now()).is_empty());
    assert_eq!(rollout_changes(Some(&rollout("Blocked")), &rollout("Ready")), ["rollout edge-7-deploy-1: Ready"]);
    let mut waits = cluster();
    waits.status.blocked = rollout("Blocked").status.blocked;
    let told = ["cluster edge-7: FailureBudget: 2 workers failed, 2 are allowed"];
    assert_eq!(cluster_changes(Some(&cluster()), &waits, now()), told);
    assert!(cluster_changes(Some(&waits), &waits, now()).is_empty());
    assert_eq!(cluster_changes(Some(&waits), &cluster(), now()), ["cluster edge-7: no longer FailureBudget"]);
    let mut stuck = cluster();
    let stage = "Cluster workload locks are inactive".to_owned();
    let late = StuckStage { stage, since: now() - SignedDuration::from_hours(3), machine: None };
    stuck.status.lcm_operation_stuck = Some(late.clone());
    let told = ["cluster edge-7: Stuck at \"Cluster workload locks are inactive\" for 3h"];
    assert_eq!(cluster_changes(Some(&cluster()), &stuck, now()), told);
    assert!(cluster_changes(Some(&stuck), &stuck, now()).is_empty());
    let page = describe_cluster(&stuck, &[], now()).join("\n");
    assert!(page.contains("at \"Cluster workload locks are inactive\" since"), "{page}");
    stuck.status.lcm_operation_stuck = Some(StuckStage { machine: Some("worker-3".into()), ..late });
    assert!(cluster_changes(Some(&cluster()), &stuck, now()).is_empty(), "told with the machine");
    let look = Look { wide: true, now: now() };
    let table = table(Kind::Clusters, [json(&stuck).as_slice()], look).expect("a table").lines().join("\n");
    assert!(table.contains("worker-3 is stuck at \"Cluster"), "{table}");
}

#[test]
fn an_update_says_whom_it_waits_for_and_warns_of_a_long_pause() {
    let mut fleet = Fleet { cluster: Some(cluster()), ..Fleet::default() };
    let update = |needs_operator, paused_too_long| documents::update("Blocked", needs_operator, paused_too_long);
    fleet.rollouts.insert("edge-7-deploy-1".into(), update(false, false));
    assert_eq!(fleet.verdict(now()), Verdict::Going);
    fleet.rollouts.insert("edge-7-deploy-1".into(), update(true, false));
    let lines = ["worker-3: Deferred: toy: never. Clears when `musterctl retry worker-3`".to_owned()];
    assert_eq!(fleet.verdict(now()), Verdict::NeedsPerson(lines.to_vec()), "worker-4 merely waits for its turn");
    let mut many = update(true, false);
    let part = many.status.update.as_mut().expect("an update");
    let same = part.waiting.iter().find(|wait| wait.machine == "worker-3").expect("it waits").clone();
    part.waiting.extend(["worker-5", "worker-6"].map(|machine| Waiting { machine: machine.into(), ..same.clone() }));
    fleet.rollouts.insert("edge-7-deploy-1".into(), many);
    let line = "worker-3, worker-5, worker-6: Deferred: toy: never. Clears when `musterctl retry worker-3`".to_owned();
    assert_eq!(fleet.verdict(now()), Verdict::NeedsPerson(vec![line]), "what they wait for is said once");
    fleet.rollouts.insert("edge-7-deploy-1".into(), documents::update("Aborted", false, false));
    let said = "the update was aborted: 1 of 6 machines is at release 2.0, the rest is as it was; `musterctl update \
                edge-7` takes it up again"
        .to_owned();
    assert_eq!(fleet.verdict(now()), Verdict::Aborted(said));
    let warned = rollout_changes(Some(&update(false, false)), &update(false, true));
    assert_eq!(warned, ["rollout edge-7-deploy-1: paused for over a day; a cluster between two releases is a risk"]);
    let page = describe_rollout(&update(true, true), now()).join("\n");
    for said in ["Requested cluster maintenance", "is a risk", "To release", "Deferred: toy: never"] {
        assert!(page.contains(said), "{said}: {page}");
    }
    let mut reconfigured = update(true, true);
    reconfigured.spec.kind = "reconfigure".into();
    let page = describe_rollout(&reconfigured, now()).join("\n");
    assert!(!page.contains("To release") && page.contains("Scope"), "machines stay at the release they have: {page}");
}

#[test]
fn the_end_of_a_rollout_is_told_in_its_own_words() {
    let said = |kind: &str, state: &str, (ready, machines), named: &[&str]| {
        let mut rollout = documents::update(state, false, false);
        rollout.spec.kind = kind.to_owned();
        rollout.status.finished_at = Some("2026-03-01T12:04:00Z".parse().expect("a moment"));
        (rollout.status.ready, rollout.status.machines) = (ready, machines);
        let update = rollout.status.update.as_mut().expect("an update");
        update.machines.retain(|machine| named.contains(&machine.machine.as_str()));
        let mut fleet = Fleet { cluster: Some(cluster()), ..Fleet::default() };
        fleet.rollouts.insert(rollout.metadata.name.clone(), rollout);
        match fleet.verdict(now()) {
            Verdict::Ended(said) | Verdict::Aborted(said) => said,
            other => panic!("{other:?}"),
        }
    };
    for (kind, state, counts, named, expected) in [
        ("update", "Ready", (6, 6), &[][..], "all 6 machines are Ready at release 2.0, after 4m"),
        ("reboot", "Ready", (6, 6), &[], "all 6 machines are through the reboot, after 4m"),
        (
            "reboot",
            "Aborted",
            (2, 6),
            &[],
            "the reboot was aborted: 2 of 6 machines are through it, the rest is as it was",
        ),
        ("maintenance", "Ready", (1, 1), &["worker-3"], "worker-3 is back in service, after 4m"),
        ("maintenance", "Aborted", (0, 1), &[], "the maintenance was aborted; what it had taken is given back"),
        ("removal", "Ready", (0, 0), &[], "the removal has ended, after 4m"),
        (
            "update",
            "Aborted",
            (0, 6),
            &[],
            "the update was aborted: none of 6 machines is at release 2.0, the rest is as it was; `musterctl update \
             edge-7` takes it up again",
        ),
    ] {
        assert_eq!(said(kind, state, counts, named), expected);
    }
}

#[test]
fn a_hook_that_is_not_run_any_more_is_told() {
    let with = |state: &str| {
        let mut update = documents::update("Aborting", false, false);
        let hook = |machine: &str, state: &str| HookStatus {
            name: "smoke".into(),
            machine: machine.into(),
            when: "after".into(),
            state: state.into(),
        };
        let details = update.status.update.as_mut().expect("an update");
        details.hooks = vec![hook("worker-1", "done"), hook("worker-2", state), hook("worker-3", state)];
        update
    };
    let line = "rollout edge-7-deploy-1: hook smoke is not run any more (2 machines, worker-2 first); do by hand what \
                it is for";
    assert_eq!(rollout_changes(Some(&with("waiting")), &with("not run")), [line]);
    assert!(rollout_changes(Some(&with("not run")), &with("not run")).is_empty());
    assert!(rollout_changes(None, &with("not run")).iter().all(|line| !line.contains("smoke")), "told in the page");
}

#[test]
fn an_update_says_what_it_has_backed_up() {
    let before = documents::update("InProgress", false, false);
    let mut after = before.clone();
    let made = muster_proto::resource::BackupStatus {
        machine: "control-1".into(),
        item: "muster-backup-swarm".into(),
        path: "/srv/backup/swarm/x.tar".into(),
        bytes: 42,
        sha256: "abcd".into(),
        message: "hot copy; 42 bytes, in /srv/backup/swarm/x.tar".into(),
        taken_at: now(),
    };
    after.status.update.as_mut().expect("an update").backups.push(made);
    let said =
        "rollout edge-7-deploy-1: muster-backup-swarm on control-1: hot copy; 42 bytes, in /srv/backup/swarm/x.tar";
    assert_eq!(rollout_changes(Some(&before), &after), [said]);
    assert!(rollout_changes(Some(&after), &after).is_empty());
    let page = describe_rollout(&after, now()).join("\n");
    assert!(page.contains("control-1   42      abcd      hot copy; 42 bytes"), "{page}");
}

#[test]
fn one_that_is_ready_and_away_says_so_before_it_is_lost() {
    let mut ready = machine("control-1");
    (ready.status.blocked, ready.status.activity) = (None, None);
    ready.status.connected = true;
    assert_eq!(note(&ready, now()), "");
    ready.status.connected = false;
    assert_eq!(note(&ready, now()), "Disconnected: it has no connection to the coordinator now");
    ready.status.host_info = None;
    assert_eq!(note(&ready, now()), "", "it has never been here");
}

#[test]
fn a_machine_in_maintenance_says_since_when_and_what_brings_it_back() {
    let mut fleet = Fleet { cluster: Some(cluster()), ..Fleet::default() };
    fleet.rollouts.insert("edge-7-deploy-1".into(), documents::update("InMaintenance", false, false));
    let mut out = machine("control-1");
    let since = "2026-03-01T09:05:00Z".parse().expect("a moment");
    out.status.maintenance = Some(MaintenanceStatus { since: Some(since), leaving: false });
    let blocked =
        Blocked { reason: Reason::InMaintenance, message: "out of service".into(), clears_when: "leave".into() };
    out.status.blocked = Some(BlockedSince { blocked, since });
    assert_eq!(note(&out, now()), "InMaintenance for 3h: out of service");
    let page = describe_machine(&out, now()).join("\n");
    assert!(page.contains("out of service since 2026-03-01") && page.contains("(3h ago)"), "{page}");
    fleet.machines.insert("control-1".into(), out.clone());
    let line = "control-1: in maintenance for 3h; `musterctl maintenance leave control-1` brings it back";
    assert_eq!(fleet.verdict(now()), Verdict::InMaintenance(vec![line.to_owned()]));
    out.status.maintenance = Some(MaintenanceStatus { since: Some(since), leaving: true });
    assert_eq!(note(&out, now()), "InMaintenance: out of service");
    fleet.machines.insert("control-1".into(), out);
    assert_eq!(fleet.verdict(now()), Verdict::InMaintenance(Vec::new()), "it is on its way back");
}
