//! Planted bugs: each must be found, and by the invariant named for it. A checker that never caught a bug proves
//! nothing. Built with the feature `plants`, which no shipped binary has.

use muster_proto::{model::Counts, plant};
use muster_tests::{
    invariants::Violation,
    model::{Fault, Scenario},
    sim,
};

/// Seeds a plant may hide in.
const SEEDS_MAX: u64 = 2_000;

/// Plants a bug, and looks for it: the first seed that finds it, and by what.
fn found(name: &'static str) -> Option<(u64, Violation)> {
    (0..SEEDS_MAX).find_map(|seed| {
        plant::set(Some(name));
        let lived = sim::run(seed);
        plant::set(None);
        lived.err().map(|violation| (seed, violation))
    })
}

macro_rules! plants {
    ($($test:ident: $name:literal by $($invariant:literal)|+;)+) => {
        $(#[test]
        fn $test() {
            let (seed, violation) = found($name).expect("the planted bug is found");
            println!("seed {seed}: {violation}");
            assert!([$($invariant),+].contains(&violation.invariant), "seed {seed}, found by another: {violation}");
        })+
    };
}

plants! {
    two_controls: "two-controls" by "1";
    grant_51: "grant-51" by "2";
    workers_first: "workers-first" by "3";
    any_group: "any-group" by "group";
    ignore_group_limit: "ignore-group-limit" by "group";
    reboot_in_drain: "reboot-in-drain" by "scope";
    ignore_budget: "ignore-budget" by "budget";
    no_gathering: "no-gathering" by "1" | "6" | "10" | "reason";
    trust_old_store: "trust-old-store" by "old-store";
    free_slot_when_lost: "free-slot-when-lost" by "5";
    free_slot_when_held: "free-slot-when-held" by "5";
    assign_without_slot: "assign-without-slot" by "5" | "1";
    same_epoch: "same-epoch" by "6";
    ack_before_commit: "ack-before-commit" by "11";
    drop_failed_status: "drop-failed-status" by "11";
    ignore_quorum: "ignore-quorum" by "1";
    ignore_locks: "ignore-locks" by "4";
    ignore_cluster_locks: "ignore-cluster-locks" by "4";
    request_over_inactive_lock: "request-over-inactive-lock" by "4";
    no_settle_time: "no-settle-time" by "4";
    agent_ignore_permit_expiry: "agent-ignore-permit-expiry" by "4";
    agent_permit_for_all_attempts: "agent-permit-for-all-attempts" by "4";
    give_back_after_failure: "give-back-after-failure" by "9";
    serve_foreign_secrets: "serve-foreign-secrets" by "secret";
    init_twice: "init-twice" by "quorum";
    init_unrecorded: "init-unrecorded" by "swarm-init";
    join_without_quorum: "join-without-quorum" by "quorum";
    agent_start_without_secrets: "agent-start-without-secrets" by "inputs";
    agent_start_before_record: "agent-start-before-record" by "7";
    agent_send_before_record: "agent-send-before-record" by "11";
    agent_accept_older_generation: "agent-accept-older-generation" by "6";
    agent_accept_older_epoch: "agent-accept-older-epoch" by "6";
    agent_accept_reused_generation: "agent-accept-reused-generation" by "6";
    agent_forget_epoch: "agent-forget-epoch" by "6";
    agent_answer_older_epoch: "agent-answer-older-epoch" by "6";
    agent_rerun_done: "agent-rerun-done" by "7";
    agent_restart_lost: "agent-restart-lost" by "7";
    agent_two_at_once: "agent-two-at-once" by "one-at-a-time";
    agent_indeterminate_is_success: "agent-indeterminate-is-success" by "7";
    agent_drop_oldest_event: "agent-drop-oldest-event" by "11";
    agent_reboot_twice: "agent-reboot-twice" by "reboot";
    agent_trust_unchanged_boot: "agent-trust-unchanged-boot" by "reboot";
    agent_forget_on_ack_of_later: "agent-forget-on-ack-of-later" by "11";
}

/// Bugs that the model must find too, with this to go wrong.
#[test]
fn found_by_the_model() {
    let plants: &[(&'static str, &[&str], &'static [Fault])] = &[
        ("two-controls", &["1"], &[]),
        ("grant-51", &["2"], &[]),
        ("workers-first", &["3"], &[]),
        ("assign-without-slot", &["5", "1"], &[]),
        ("agent-forget-epoch", &["6"], &[]),
        ("same-epoch", &["6"], &[Fault::CoordinatorCrash]),
        ("agent-start-before-record", &["7"], &[Fault::AgentCrash]),
        ("agent-restart-lost", &["7"], &[Fault::PowerCut]),
        ("ack-before-commit", &["11"], &[]),
        ("agent-forget-on-ack-of-later", &["11"], &[Fault::Late]),
        ("trust-old-store", &["old-store"], &[Fault::OldStore]),
        ("no-gathering", &["1", "6", "10"], &[Fault::OldStore]),
    ];
    let mut missed = Vec::new();
    for (plant, invariants, faults) in plants {
        let counts = Counts { control: 2, worker: 2 };
        let faults_max = if *faults == [Fault::OldStore] { 2 } else { 1 };
        let scenario = Scenario {
            prepare: false,
            reconfigure: false,
            counts,
            faults,
            spared: &[],
            faults_max,
            plant: Some(plant),
        };
        match scenario.check().broken {
            Some((property, seen)) if invariants.contains(&property) => println!("{plant}: {property}: {seen}"),
            other => missed.push(format!("{plant}: {other:?}")),
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
