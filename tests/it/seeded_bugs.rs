//! Seeded bugs: each must be found, and by the invariant named for it. A checker that never caught a bug proves
//! nothing. Built with the feature `seeded-bugs`, which no shipped binary has.

use muster_proto::{model::Counts, seeded_bug};
use muster_tests::{
    invariants::Violation,
    model::{Broken, Fault, Scenario},
    sim,
};

/// Number of seeds searched for a bug.
const SEEDS_MAX: u64 = 12_000;

/// Seeds a bug, and searches for it. Returns the seed that finds it, and the violation. The search starts at the seed
/// that found it last, because a rare bug takes minutes to find. If that seed no longer finds it, all others are
/// searched too.
fn found(name: &'static str, last: u64) -> Option<(u64, Violation)> {
    (last..SEEDS_MAX).chain(0..last).find_map(|seed| {
        seeded_bug::set(Some(name));
        let lived = sim::run(seed);
        seeded_bug::set(None);
        // A world that did not come to rest was only checked in part. A seed that fails without the bug too (this
        // searches more seeds than any other test, 12,000) proves nothing about it.
        let violation = lived.err().filter(|violation| violation.invariant != "rest")?;
        sim::run(seed).is_ok().then_some((seed, violation))
    })
}

macro_rules! seeded_bugs {
    ($($test:ident: $name:literal by $($invariant:literal)|+ $(, last at $seed:literal)?;)+) => {
        $(#[test]
        fn $test() {
            let last: &[u64] = &[$($seed)?];
            let found = found($name, last.first().copied().unwrap_or_default());
            let (seed, violation) = found.expect("the seeded bug is found");
            println!("seed {seed}: {violation}");
            assert!([$($invariant),+].contains(&violation.invariant), "seed {seed}, found by another: {violation}");
        })+
    };
}

seeded_bugs! {
    two_controls: "two-controls" by "1";
    grant_51: "grant-51" by "2";
    workers_first: "workers-first" by "3";
    any_group: "any-group" by "group";
    ignore_group_limit: "ignore-group-limit" by "group";
    reboot_in_drain: "reboot-in-drain" by "scope";
    ignore_budget: "ignore-budget" by "budget";
    no_gathering: "no-gathering" by "1" | "6" | "10" | "reason";
    failed_lock_is_back: "failed-lock-is-back" by "9", last at 117;
    no_settle_after_change: "no-settle-after-change" by "9", last at 1148;
    trust_old_store: "trust-old-store" by "old-store";
    believe_unproven: "believe-unproven" by "liar";
    ignore_ledger_ordinal: "ignore-ledger-ordinal" by "liar", last at 128;
    doubt_proven: "doubt-proven" by "proof";
    recover_doubts_nobody: "recover-doubts-nobody" by "service" | "9" | "5" | "1" | "10", last at 631;
    free_slot_when_lost: "free-slot-when-lost" by "5";
    free_slot_when_held: "free-slot-when-held" by "5";
    assign_without_slot: "assign-without-slot" by "5" | "1" | "4" | "scope";
    same_epoch: "same-epoch" by "6";
    ack_before_commit: "ack-before-commit" by "11";
    drop_failed_status: "drop-failed-status" by "11";
    ignore_quorum: "ignore-quorum" by "1";
    quorum_once: "quorum-once" by "1", last at 1334;
    count_undeployed_control: "count-undeployed-control" by "1", last at 110;
    forget_replaced_control: "forget-replaced-control" by "set";
    quorum_for_harmless: "quorum-for-harmless" by "reason";
    ignore_locks: "ignore-locks" by "4";
    ignore_cluster_locks: "ignore-cluster-locks" by "4", last at 1075;
    reconfigure_unasked: "reconfigure-unasked" by "4";
    request_over_inactive_lock: "request-over-inactive-lock" by "4" | "9";
    no_settle_time: "no-settle-time" by "4";
    ignore_silent_controller: "ignore-silent-controller" by "4", last at 463;
    agent_ignore_permit_expiry: "agent-ignore-permit-expiry" by "4", last at 87;
    agent_permit_for_all_attempts: "agent-permit-for-all-attempts" by "4";
    late_permit: "late-permit" by "4";
    ignore_swarm_tasks: "ignore-swarm-tasks" by "4";
    quiet_past_deadline: "quiet-past-deadline" by "idempotent";
    ignore_hooks_before: "ignore-hooks-before" by "hooks";
    go_on_after_failed_hook: "go-on-after-failed-hook" by "hooks";
    skip_hooks_after: "skip-hooks-after" by "hooks";
    no_backup: "no-backup" by "backup";
    copy_outside_swarm: "copy-outside-swarm" by "backup", last at 385;
    consistent_copy_of_two: "consistent-copy-of-two" by "backup";
    no_stage_deadline: "no-stage-deadline" by "stuck";
    drain_degraded_service: "drain-degraded-service" by "service";
    forget_drain_of_revoked: "forget-drain-of-revoked" by "service", last at 10056;
    activate_operators_drain: "activate-operators-drain" by "9";
    give_back_after_failure: "give-back-after-failure" by "9";
    leave_by_itself: "leave-by-itself" by "9", last at 130;
    give_back_unreachable: "give-back-unreachable" by "9";
    run_in_maintenance: "run-in-maintenance" by "maintenance" | "removal", last at 2429;
    depart_in_service: "depart-in-service" by "removal" | "4";
    drop_before_forgotten: "drop-before-forgotten" by "removal";
    depart_unheard: "depart-unheard" by "removal", last at 118;
    demote_without_quorum: "demote-without-quorum" by "quorum", last at 3927;
    ignore_swarm_quorum: "ignore-swarm-quorum" by "quorum";
    majority_for_copy: "majority-for-copy" by "quorum", last at 1933;
    float_secrets: "float-secrets" by "secret" | "5";
    free_slot_before_accepted: "free-slot-before-accepted" by "10" | "9", last at 133;
    serve_foreign_secrets: "serve-foreign-secrets" by "secret";
    init_twice: "init-twice" by "quorum";
    init_unrecorded: "init-unrecorded" by "swarm-init";
    join_without_quorum: "join-without-quorum" by "quorum", last at 2344;
    agent_start_without_secrets: "agent-start-without-secrets" by "inputs";
    agent_start_before_record: "agent-start-before-record" by "7";
    agent_send_before_record: "agent-send-before-record" by "11";
    agent_accept_older_generation: "agent-accept-older-generation" by "6" | "codec";
    agent_accept_older_epoch: "agent-accept-older-epoch" by "6";
    agent_accept_reused_generation: "agent-accept-reused-generation" by "6" | "codec";
    agent_forget_epoch: "agent-forget-epoch" by "6";
    agent_answer_older_epoch: "agent-answer-older-epoch" by "6";
    keep_dropped_done: "keep-dropped-done" by "again";
    agent_rerun_done: "agent-rerun-done" by "7";
    agent_restart_lost: "agent-restart-lost" by "7";
    agent_trust_old_ledger: "agent-trust-old-ledger" by "7" | "5";
    agent_two_at_once: "agent-two-at-once" by "one-at-a-time", last at 22;
    agent_indeterminate_is_success: "agent-indeterminate-is-success" by "7";
    agent_drop_oldest_event: "agent-drop-oldest-event" by "11";
    agent_reboot_twice: "agent-reboot-twice" by "reboot" | "10";
    agent_trust_unchanged_boot: "agent-trust-unchanged-boot" by "reboot";
    agent_forget_on_ack_of_later: "agent-forget-on-ack-of-later" by "11";
}

/// Number of seeds searched for a bug of the Kubernetes drain.
const SEEDS_WITH_KUBERNETES_MAX: u64 = 3_000;

/// As [`found`], in runs with a Kubernetes.
fn found_with_kubernetes(name: &'static str, last: u64) -> Option<(u64, Violation)> {
    (last..SEEDS_WITH_KUBERNETES_MAX).chain(0..last).find_map(|seed| {
        seeded_bug::set(Some(name));
        let lived = sim::run_with_kubernetes(seed);
        seeded_bug::set(None);
        let violation = lived.err().filter(|violation| violation.invariant != "rest")?;
        sim::run_with_kubernetes(seed).is_ok().then_some((seed, violation))
    })
}

macro_rules! kubernetes_bugs {
    ($($test:ident: $name:literal by $($invariant:literal)|+, last at $seed:literal;)+) => {
        mod kubernetes {
            use super::*;

            $(#[test]
            fn $test() {
                let (seed, violation) = found_with_kubernetes($name, $seed).expect("the seeded bug is found");
                println!("seed {seed}: {violation}");
                assert!([$($invariant),+].contains(&violation.invariant), "seed {seed}, found by another: {violation}");
            })+
        }
    };
}

kubernetes_bugs! {
    accepted_is_gone: "accepted-is-gone" by "pods", last at 11;
    annotate_foreign: "annotate-foreign" by "annotation", last at 68;
    answer_before_request_object: "answer-before-request-object" by "consent", last at 349;
    believe_controller_that_cannot_see: "believe-controller-that-cannot-see" by "consent", last at 1518;
    best_of_two_objects: "best-of-two-objects" by "consent", last at 513;
    believe_another_cluster: "believe-another-cluster" by "node" | "pods" | "undrainable", last at 38;
    cordon_against_operator: "cordon-against-operator" by "cordon", last at 2066;
    cordon_over_shared_budget: "cordon-over-shared-budget" by "shared", last at 40;
    cordon_undrainable: "cordon-undrainable" by "shared" | "undrainable", last at 40;
    delete_node_without_uid: "delete-node-without-uid" by "node", last at 0;
    delete_request_without_uid: "delete-request-without-uid" by "request", last at 117;
    delete_without_word: "delete-without-word" by "forced", last at 0;
    evict_daemon_set_pods: "evict-daemon-set-pods" by "eviction", last at 1;
    evict_finished_pods: "evict-finished-pods" by "eviction", last at 0;
    evict_mirror_pods: "evict-mirror-pods" by "eviction", last at 0;
    evict_skipped_pods: "evict-skipped-pods" by "eviction", last at 32;
    evict_without_uid: "evict-without-uid" by "shared" | "eviction", last at 324;
    evict_before_cordon: "evict-before-cordon" by "eviction", last at 9;
    evicted_is_back: "evicted-is-back" by "shared", last at 32;
    forget_owed_cordon: "forget-owed-cordon" by "cordon", last at 110;
    ignore_api_servers: "ignore-api-servers" by "controls", last at 387;
    ignore_boot_id: "ignore-boot-id" by "back" | "node", last at 1;
    ignore_keep_cordoned: "ignore-keep-cordoned" by "cordon", last at 85;
    ignore_silent_object_controller: "ignore-silent-object-controller" by "consent", last at 219;
    ignore_unknown_cordons: "ignore-unknown-cordons" by "cordon", last at 983;
    ignore_volumes: "ignore-volumes" by "pods", last at 15;
    keep_scale_down_disabled: "keep-scale-down-disabled" by "cordon", last at 0;
    leave_annotations: "leave-annotations" by "annotation", last at 7;
    leave_request_objects: "leave-request-objects" by "request" | "10", last at 19;
    leave_cordoned: "leave-cordoned" by "cordon", last at 1;
    list_before_cordon: "list-before-cordon" by "pods", last at 202;
    native_lock_by_object: "native-lock-by-object" by "4", last at 75;
    no_settle_after_cordon: "no-settle-after-cordon" by "cordon", last at 350;
    no_preflight: "no-preflight" by "undrainable", last at 22;
    owed_before_ready: "owed-before-ready" by "back", last at 31;
    remove_foreign_request: "remove-foreign-request" by "request", last at 19;
    remove_request_early: "remove-request-early" by "request", last at 7;
    swarm_before_kubernetes: "swarm-before-kubernetes" by "order", last at 36;
    uncordon_before_ready: "uncordon-before-ready" by "back", last at 1;
}

/// Small clusters that are explored completely.
const DEPLOYMENT: Scenario = Scenario {
    counts: Counts { control: 2, worker: 2 },
    prepare: false,
    reconfigure: true,
    update: false,
    workers_at_once: 1,
    faults: &[],
    spared: &[],
    faults_max: 0,
    seeded_bug: None,
};
const UPDATE: Scenario = Scenario { reconfigure: false, update: true, ..DEPLOYMENT };

/// Seeds a bug in such a cluster, with these faults, each once.
fn found_by_the_model(seeded_bug: &'static str, scenario: Scenario, faults: &'static [Fault]) -> Option<Broken> {
    let (spared, faults_max): (&[usize], u32) = match faults {
        [] => (&[], 0),
        // It is two faults: a copy, and its restore.
        [Fault::OldStore] => (&[], 2),
        [_] => (&[], 1),
        // Every order of two is too much: they affect the first machine only.
        _ => (&[1, 2, 3], 2),
    };
    Scenario { faults, spared, faults_max, seeded_bug: Some(seeded_bug), ..scenario }.check().broken
}

macro_rules! found_by_the_model {
    ($($test:ident: $name:literal in $scenario:ident with $faults:expr, by $($invariant:literal)|+;)+) => {
        mod model {
            use super::*;

            $(#[test]
            fn $test() {
                let broken = found_by_the_model($name, $scenario, &$faults).expect("the seeded bug is found");
                println!("{}", broken.story);
                assert!([$($invariant),+].contains(&broken.invariant), "found by another: {}", broken.story);
            })+
        }
    };
}

// Bugs that the model must find too, and the faults needed for them.
found_by_the_model! {
    two_controls: "two-controls" in DEPLOYMENT with [], by "1";
    grant_51: "grant-51" in DEPLOYMENT with [], by "2";
    workers_first: "workers-first" in DEPLOYMENT with [], by "3";
    free_slot_when_lost: "free-slot-when-lost" in DEPLOYMENT with [Fault::Silence], by "5";
    same_epoch: "same-epoch" in DEPLOYMENT with [Fault::CoordinatorCrash], by "6";
    agent_forget_epoch: "agent-forget-epoch" in DEPLOYMENT with [], by "6";
    agent_start_before_record: "agent-start-before-record" in DEPLOYMENT with [Fault::AgentCrash], by "7";
    agent_rerun_done: "agent-rerun-done" in DEPLOYMENT with [], by "7";
    agent_restart_lost: "agent-restart-lost" in DEPLOYMENT with [Fault::PowerCut], by "7";
    agent_indeterminate_is_success: "agent-indeterminate-is-success" in DEPLOYMENT with [Fault::PowerCut], by "7";
    ack_before_commit: "ack-before-commit" in DEPLOYMENT with [], by "11";
    agent_forget_on_ack_of_later: "agent-forget-on-ack-of-later" in DEPLOYMENT with [Fault::Late, Fault::Cut], by "11";
    agent_send_before_record: "agent-send-before-record" in DEPLOYMENT with [Fault::AgentCrash], by "11";
    trust_old_store: "trust-old-store" in DEPLOYMENT with [Fault::OldStore], by "old-store";
    no_gathering: "no-gathering" in DEPLOYMENT with [Fault::OldStore], by "1";
    ignore_quorum: "ignore-quorum" in UPDATE with [Fault::Cut], by "1";
    ignore_locks: "ignore-locks" in UPDATE with [], by "4";
    ignore_cluster_locks: "ignore-cluster-locks" in UPDATE with [], by "4";
    agent_ignore_permit_expiry: "agent-ignore-permit-expiry" in UPDATE with [Fault::Failure, Fault::Silence], by "4";
    agent_permit_for_all_attempts: "agent-permit-for-all-attempts" in UPDATE with [Fault::Failure], by "4";
}
