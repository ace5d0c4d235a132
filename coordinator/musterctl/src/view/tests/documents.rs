//! Documents of every kind, small but complete.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_proto::{
    model::{
        Backups, Blocked, ClusterName, ClusterSpec, Counts, HostFacts, ItemHash, LcmType, LockState, MachineSpec,
        MachineType, NetworkInterface, Phase, Reason, Scope, UpdateHooks,
    },
    resource::{
        Activity, Address, Audit, AuditSpec, AuditStatus, BlockedSince, Bytes, Cluster, ClusterStatus, HostInfo,
        ItemPlan, Lock, LockSpec, LockStatus, Machine, MachineProgress, MachineStatus, Metadata, PhaseProgress, Plan,
        PlannedMachine, Request, RequestSpec, RequestStatus, Rollout, RolloutSpec, RolloutStatus, Secret, SecretSpec,
        SecretStatus, StageStatus, StateItemStatus, Token, TokenSpec, TokenStatus, UpdateStatus, Waiting, Wave,
    },
};

pub(super) fn at(text: &str) -> Timestamp {
    text.parse().expect("a moment")
}

fn blocked(reason: &str, message: &str, clears_when: &str) -> Blocked {
    Blocked { reason: Reason::named(reason), message: message.into(), clears_when: clears_when.into() }
}

pub(super) fn metadata(name: &str, created: &str) -> Metadata {
    Metadata { name: name.into(), creation_timestamp: at(created), annotations: BTreeMap::new() }
}

fn item(name: &str, phase: Phase, runner: &str, standing: &str) -> ItemPlan {
    ItemPlan { name: name.into(), phase, runner: runner.into(), version: "1".into(), standing: standing.into() }
}

fn status(state: &str, exit_code: Option<i32>, message: &str, attempt: u32) -> StateItemStatus {
    StateItemStatus {
        hash: ItemHash([7; 32]),
        state: state.into(),
        exit_code,
        message: message.into(),
        result: None,
        attempt,
        started_at: at("2026-03-01T12:00:00Z"),
        finished_at: exit_code.map(|_| at("2026-03-01T12:00:01.25Z")),
        output_tail: String::new(),
    }
}

fn base(name: &str, machine_type: MachineType, state: &str) -> Machine {
    let host = HostFacts {
        hostname: "node-1".into(),
        internal_ip: Some("10.0.0.1".into()),
        interfaces: vec![NetworkInterface {
            name: "eth0".into(),
            mac: "52:54:00:00:00:01".into(),
            addresses: vec!["10.0.0.1/24".into()],
        }],
        os: "Debian GNU/Linux 12 (bookworm)".into(),
        kernel_version: "6.1.0".into(),
        architecture: "x86_64".into(),
        boot_time_ms: 1_772_000_000_000,
        boot_id: "1f2e".into(),
        timezone: "Europe/Zurich".into(),
        cpu_model: "Xeon".into(),
        cpu_count: 8,
        memory_bytes: 64 << 30,
        disks: Vec::new(),
        reboot_required: true,
        reboot_reason: "linux-image".into(),
        containers: Vec::new(),
    };
    Machine {
        metadata: metadata(name, "2026-02-27T12:00:00Z"),
        spec: MachineSpec {
            cluster_name: ClusterName::new("edge-7").expect("a label"),
            machine_type,
            state_items_overwrites: BTreeMap::new(),
            interface: None,
            cidr: None,
            upgrade_index: 0,
            update_group: None,
            reboot_required: false,
        },
        status: MachineStatus {
            state: state.into(),
            addresses: [("InternalIP", "10.0.0.1"), ("Hostname", "node-1")]
                .map(|(kind, address)| Address { kind: kind.into(), address: address.into() })
                .into(),
            agent_version: Some("0.1.0".into()),
            machine_id: Some("6a0b".into()),
            join_token: Some("k3v9".into()),
            connected: true,
            two_agents: false,
            lost: false,
            failed: false,
            indeterminate: false,
            last_seen: Some(at("2026-03-01T12:04:58Z")),
            generation: 2,
            slot_since: None,
            release: None,
            blocked: None,
            activity: None,
            items: vec![
                item("images", Phase::Prepare, "downloader", "done"),
                item("api", Phase::Deploy, "bash", "due"),
            ],
            state_item_statuses: BTreeMap::from([("images".to_owned(), status("Succeeded", Some(0), "64 MiB", 1))]),
            stages: Vec::new(),
            lcm_operation_stuck: None,
            reboot: None,
            maintenance: None,
            forced_pods: Vec::new(),
            prepare_deletion_phase: None,
            host_info: Some(HostInfo::from(&host)),
        },
    }
}

/// `control-1` is Ready; `worker-1` downloads, 2 waits, 3 failed, 4 is lost and indeterminate, 5 retries.
pub(super) fn machine(name: &str) -> Machine {
    let mut machine = match name {
        "control-1" => base(name, MachineType::Control, "Ready"),
        "worker-1" | "worker-2" => base(name, MachineType::Worker, "Prepare"),
        _ => base(name, MachineType::Worker, "Deploy"),
    };
    let all = &mut machine.status;
    let mut api = |standing: &str, api: StateItemStatus| {
        all.items[1].standing = standing.into();
        all.state_item_statuses.insert("api".into(), api);
    };
    match name {
        "worker-1" => {
            let progress = Some(Bytes { done: 45 << 20, total: 64 << 20, per_second: 30 << 20 });
            let started_at = at("2026-03-01T12:04:00Z");
            all.activity = Some(Activity { item: "images".into(), attempt: 2, started_at, progress, task: None });
        }
        "worker-2" => {
            let wait = blocked("WaitingForTurn", "control machines go first", "the last control machine is Ready");
            all.blocked = Some(BlockedSince { blocked: wait, since: at("2026-03-01T12:00:00Z") });
        }
        "worker-3" => {
            let mut failed = status("Failed", Some(3), "", 4);
            failed.output_tail = "unpacking\nerror: \x1b[31mno space\x1b[0m\n".into();
            api("failed", failed);
            all.failed = true;
            all.slot_since = Some(at("2026-03-01T12:00:00Z"));
            let wait = blocked("Failed", "item api failed for good", "musterctl retry or skip");
            all.blocked = Some(BlockedSince { blocked: wait, since: at("2026-03-01T12:01:00Z") });
            let done = Some(at("2026-03-01T12:00:00Z"));
            let stage = |name: &str, status: &str, finished_at| StageStatus {
                name: name.into(),
                status: status.into(),
                started_at: Some(at("2026-03-01T11:58:00Z")),
                finished_at,
            };
            all.stages =
                vec![stage("Prepare phase done", "Success", done), stage("Deploy phase done", "InProgress", None)];
        }
        "worker-4" => {
            api("held", status("Indeterminate", None, "it was started and nobody knows what became of it", 1));
            all.indeterminate = true;
            all.lost = true;
            all.last_seen = Some(at("2026-03-01T12:01:00Z"));
        }
        "worker-5" => api("retrying", status("Failed", Some(1), "", 2)),
        _ => {}
    }
    machine
}

pub(super) fn cluster() -> Cluster {
    let phase = |phase, done, running, failed| PhaseProgress { phase, total: 6, done, running, failed };
    Cluster {
        metadata: metadata("edge-7", "2026-02-27T12:05:00Z"),
        spec: ClusterSpec {
            lcm_type: LcmType::Generic,
            release: "17.3.0".into(),
            dedicated_control_plane: true,
            max_worker_prepare_count: 50,
            max_worker_deploy_count: 50,
            max_worker_upgrade_count: 1,
            nodes_reboot_required: false,
            token_ttl_ms: 86_400_000,
            machines: Some(Counts { control: 1, worker: 5 }),
            max_failures: Counts { control: 1, worker: 2 },
            workload_controllers: Vec::new(),
            update_deadlines: muster_proto::model::UpdateDeadlines::default(),
            update_groups: Vec::new(),
            update_hooks: UpdateHooks::default(),
            backups: Backups::default(),
            kubernetes: None,
            machine_types: BTreeMap::new(),
        },
        status: ClusterStatus {
            requested_nodes: 6,
            nodes: 6,
            ready_nodes: 1,
            release: None,
            releases: Vec::new(),
            update_due: false,
            needs_operator: false,
            lost_nodes: Vec::new(),
            revoked_nodes: Vec::new(),
            failed_nodes: Vec::new(),
            indeterminate_nodes: Vec::new(),
            lcm_operation_stuck: None,
            helm_controller_deployed: None,
            rollout: Some("edge-7-deploy-1".into()),
            phases: vec![phase(Phase::Prepare, 4, 2, 0), phase(Phase::Deploy, 1, 2, 1)],
            blocked: None,
        },
    }
}

pub(super) fn rollout(state: &str) -> Rollout {
    let wait = blocked("FailureBudget", "2 workers failed, 2 are allowed", "musterctl retry or skip");
    let since = at("2026-03-01T12:04:00Z");
    Rollout {
        metadata: metadata("edge-7-deploy-1", "2026-03-01T12:00:00Z"),
        spec: RolloutSpec { kind: "deploy".into(), cluster_name: "edge-7".into(), started_by: "muster".into() },
        status: RolloutStatus {
            state: state.into(),
            finished_at: (state == "Ready").then_some(since),
            machines: 6,
            ready: 1,
            failures: Counts { control: 0, worker: 2 },
            update: None,
            blocked: (state == "Blocked").then_some(BlockedSince { blocked: wait, since }),
        },
    }
}

pub(super) fn token(uses: u32, machine: Option<&str>) -> Token {
    Token {
        metadata: metadata("k3x9qa", "2026-02-27T12:05:00Z"),
        spec: TokenSpec {
            cluster_name: "edge-7".into(),
            machine_type: MachineType::Worker,
            machine: machine.map(str::to_owned),
            uses,
        },
        status: TokenStatus { state: "Valid".into(), used: 1, expires_at: at("2026-03-02T12:05:00Z") },
    }
}

pub(super) fn secret(name: &str, cluster: Option<&str>, used_by: &[&str]) -> Secret {
    let shared = if cluster.is_some() { [].as_slice() } else { &["edge-7", "edge-8"] };
    Secret {
        metadata: metadata(name, "2026-02-27T12:05:00Z"),
        spec: SecretSpec {
            cluster_name: cluster.map(str::to_owned),
            clusters: shared.iter().map(ToString::to_string).collect(),
        },
        status: SecretStatus { version: 7, used_by: used_by.iter().map(|user| (*user).to_owned()).collect() },
    }
}

pub(super) fn audit() -> Audit {
    Audit {
        metadata: metadata("17", "2026-03-01T12:00:00Z"),
        spec: AuditSpec {
            actor: "operator/anna".into(),
            action: "retry".into(),
            object: "machine/worker-3".into(),
            message: "item api\n\x1b[31m".into(),
            cluster_name: Some("edge-7".into()),
            times: 3,
            last_ms: 1_772_366_401_000,
        },
        status: AuditStatus {
            chain: "edge-7".into(),
            number: 17,
            previous: ItemHash::default(),
            hash: ItemHash::default(),
        },
    }
}

pub(super) fn plan() -> Plan {
    let machine = |name: &str, state: &str, items: &[&str], wait: Option<Blocked>| PlannedMachine {
        name: name.into(),
        state: state.into(),
        items: items.iter().map(|item| (*item).to_owned()).collect(),
        blocked: wait,
    };
    let waits = |message: &str| blocked("WaitingForMachines", message, "the last declared machine reports");
    Plan {
        rollout: None,
        update: None,
        cluster: "edge-7".into(),
        blocked: Some(waits("5 of 6 machines have reported")),
        waves: vec![Wave {
            number: 1,
            phase: Phase::Prepare,
            machine_type: MachineType::Worker,
            at_once: 50,
            machines: vec![
                machine("worker-1", "Prepare", &[], None),
                machine("worker-2", "Pending", &["images", "sysctl"], Some(waits("5 of 6"))),
            ],
        }],
    }
}

/// An update with worker-3 deferred and worker-4 still to come.
pub(super) fn update(state: &str, needs_operator: bool, paused_too_long: bool) -> Rollout {
    let since = at("2026-02-27T12:00:00Z");
    let waits = |machine: &str, reason: &str, message: &str| Waiting {
        machine: machine.into(),
        reason: Reason::named(reason),
        message: message.into(),
        clears_when: format!("`musterctl retry {machine}`"),
    };
    let progress = |machine: &str, progress: &str, item: Option<&str>| MachineProgress {
        machine: machine.into(),
        progress: progress.into(),
        item: item.map(str::to_owned),
    };
    let stage = StageStatus {
        name: "Requested cluster maintenance".into(),
        status: "Success".into(),
        started_at: Some(since),
        finished_at: Some(since),
    };
    let mut rollout = rollout(state);
    rollout.spec.kind = "update".into();
    rollout.status.update = Some(UpdateStatus {
        groups: Vec::new(),
        hooks: Vec::new(),
        backups: Vec::new(),
        skip_backup: false,
        scope: Scope::Drain,
        release: "2.0".into(),
        stages: vec![stage],
        needs_operator,
        machines: vec![
            progress("control-1", "done", None),
            progress("worker-2", "under way", Some("install")),
            progress("worker-3", "waiting", None),
            progress("worker-4", "waiting", None),
        ],
        waiting: vec![waits("worker-3", "Deferred", "toy: never"), waits("worker-4", "WaitingForTurn", "its turn")],
        paused_since: paused_too_long.then_some(since),
        paused_too_long,
    });
    rollout
}

/// A request for a machine, or (None) for the cluster.
pub(super) fn request(machine: Option<&str>, removal: bool, release: &str) -> Request {
    let name = machine.unwrap_or("edge-7");
    Request {
        metadata: metadata(name, "2026-03-01T12:00:00Z"),
        spec: RequestSpec {
            cluster_name: "edge-7".into(),
            kind: if machine.is_some() { "NodeMaintenanceRequest" } else { "ClusterMaintenanceRequest" }.into(),
            node_name: machine.map(Into::into),
            uid: None,
            scope: Scope::Os,
            removal,
            release: release.into(),
        },
        status: RequestStatus { state: "granted".into(), message: String::new() },
    }
}

/// The lock of `ceph` on a machine, or (None) on the cluster.
pub(super) fn lock(machine: Option<&str>, release: &str) -> Lock {
    let name = machine.unwrap_or("edge-7");
    Lock {
        metadata: metadata(&format!("ceph-{name}"), "2026-03-01T12:00:00Z"),
        spec: LockSpec {
            cluster_name: "edge-7".into(),
            kind: if machine.is_some() { "NodeWorkloadLock" } else { "ClusterWorkloadLock" }.into(),
            controller_name: "ceph".into(),
            node_name: machine.map(Into::into),
            uid: None,
        },
        status: LockStatus {
            state: LockState::Active,
            since: at("2026-03-01T12:00:00Z"),
            error_message: String::new(),
            percentage: 40,
            description: "moving".into(),
            release: release.into(),
            connected: true,
        },
    }
}
