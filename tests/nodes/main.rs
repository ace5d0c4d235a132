//! Real nodes: the packages that are shipped, installed with apt on machines with systemd; the coordinator as a
//! container of the image that is shipped. One fleet of 3 + 3 serves all tests, in the order of [`TESTS`]: to make it
//! takes most of the time. So this has a `main` of its own: `make test-nodes`, or `make test-nodes ARGS="WORD…"` for
//! those tests that have a word in their name.
//!
//! What happened is read from what the items themselves wrote on the nodes, never from the programs under test alone.

mod backup;
mod canaries;
mod demo;
mod deployment;
mod drain;
mod faults;
mod mke;
mod package;
mod places;
mod removal;
mod site;
mod supplies;
mod swarm;
mod units;
mod update;
mod versions;

use std::{
    env,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;
use muster_tests::{fleet::programs::complain, nodes::Nodes};

/// A test and its name.
type Test = (&'static str, fn(&Nodes) -> Result<()>);

const TESTS: &[Test] = &[
    ("deployment::three_control_machines_and_three_workers", deployment::three_control_machines_and_three_workers),
    ("deployment::an_idle_agent_is_small_and_listens_on_nothing", deployment::an_idle_agent_is_small),
    ("swarm::three_managers_and_three_workers", swarm::three_managers_and_three_workers),
    ("swarm::power_is_cut_in_the_middle_of_a_join", swarm::power_cut_in_join_and_reinstalled),
    ("swarm::a_foreign_swarm_is_not_left", swarm::foreign_swarm),
    ("faults::the_agent_is_killed_in_the_middle_of_an_item", faults::agent_killed),
    ("faults::the_agent_is_restarted_in_the_middle_of_an_item", faults::agent_restarted),
    ("faults::the_agent_is_wedged_in_the_middle_of_an_item", faults::agent_wedged),
    ("faults::power_is_cut_in_the_middle_of_prepare", faults::power_cut_in_prepare),
    ("faults::power_is_cut_and_the_item_must_not_be_run_again", faults::power_cut_holds),
    ("faults::power_is_cut_in_the_middle_of_a_reboot", faults::power_cut_in_reboot),
    ("faults::a_machine_does_not_come_back_from_its_reboot", faults::reboot_overdue),
    ("faults::a_unit_fails", faults::unit_fails),
    ("faults::a_package_does_not_exist", faults::package_absent),
    ("faults::the_coordinator_is_killed_and_started", faults::coordinator_killed),
    ("faults::the_network_is_cut_for_a_minute", faults::network_cut),
    ("faults::a_node_is_reinstalled", faults::reinstalled),
    ("faults::the_disk_is_full", faults::disk_full),
    ("units::an_item_dies_as_a_whole_at_its_time_limit", units::dies_as_a_whole),
    ("units::the_ends_of_items_are_told_apart", units::ends_are_told_apart),
    ("units::the_journal_has_the_records_of_an_item", units::journal_has_fields),
    ("units::units_are_acted_upon", units::acts_on_units),
    ("units::what_did_not_happen_is_said", units::says_what_did_not_happen),
    ("units::a_machine_reboots_once", units::reboots),
    ("versions::packages_are_held_and_not_taken_back", versions::packages_are_held_and_not_taken_back),
    ("versions::another_that_has_locked_dpkg_is_waited_for", versions::another_that_has_locked_dpkg_is_waited_for),
    ("canaries::no_secret_is_found_where_it_should_not_be", canaries::no_secret_is_found),
    ("canaries::no_token_is_found_after_a_join_that_fails", canaries::no_token_is_found_after_a_join_that_fails),
    ("backup::managers_copy_the_swarm", backup::managers_copy_the_swarm),
    ("backup::managers_copy_the_swarm_before_and_in_an_update", backup::an_update_backs_up_first),
    ("mke::mke_is_installed_upgraded_and_backed_up", mke::mke_is_installed_upgraded_and_backed_up),
    ("drain::a_service_keeps_all_tasks_but_one", drain::a_service_keeps_all_tasks_but_one),
    ("update::machines_reboot_as_their_locks_allow", update::machines_reboot_as_their_locks_allow),
    ("update::two_workers_reboot_on_demand", update::two_workers_reboot_on_demand),
    ("removal::machines_leave_the_swarm_for_good", removal::machines_leave_the_swarm_for_good),
    ("package::upgrade_removal_and_purge", package::upgrade_removal_and_purge),
    ("package::the_coordinators_image_is_small_and_not_root", package::image_is_small_and_not_root),
];

/// The one that makes the fleet what others find.
const FIRST: &str = "deployment::three_control_machines_and_three_workers";
/// These begin where another ended.
const GO_ON_FROM: &[(&str, &str)] = &[
    ("deployment::an_idle_agent_is_small_and_listens_on_nothing", FIRST),
    ("swarm::three_managers_and_three_workers", FIRST),
    ("backup::managers_copy_the_swarm_before_and_in_an_update", "backup::managers_copy_the_swarm"),
    ("update::machines_reboot_as_their_locks_allow", "drain::a_service_keeps_all_tasks_but_one"),
    ("update::two_workers_reboot_on_demand", "drain::a_service_keeps_all_tasks_but_one"),
    ("update::two_workers_reboot_on_demand", "update::machines_reboot_as_their_locks_allow"),
];
/// Of everything that Docker has of the fleet.
const FLEET: &str = "muster-test";
/// After so many failures the fleet is not worth more time, and after that long nobody waits any more.
const FAILURES_MAX: usize = 3;
const TESTS_MAX: Duration = Duration::from_secs(45 * 60);

fn main() -> ExitCode {
    if env::args().any(|word| word == "--demo") {
        return match demo::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&format!("{error:#}"));
                ExitCode::FAILURE
            }
        };
    }
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let named = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let wanted = |name: &str| named(name) || GO_ON_FROM.iter().any(|(next, first)| *first == name && named(next));
    let tests: Vec<&Test> = TESTS.iter().filter(|(name, _)| wanted(name)).collect();
    if tests.is_empty() {
        complain(&format!("no test has one of these words in its name: {}", words.join(" ")));
        return ExitCode::FAILURE;
    }
    let began = Instant::now();
    let nodes = match Nodes::start(FLEET, 3, 3) {
        Ok(nodes) => nodes,
        Err(error) => {
            complain(&format!("the fleet of nodes does not start: {error:#}"));
            return ExitCode::FAILURE;
        }
    };
    complain(&format!("the fleet of nodes stands after {} s", began.elapsed().as_secs()));
    let (passed, failed) = run(&tests, &nodes, began);
    let unrun = tests.len() - passed - failed;
    complain(&format!("nodes: {passed} passed; {failed} failed; {unrun} not run; {} s", began.elapsed().as_secs()));
    if passed == tests.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many passed, and failed, before it was enough.
fn run(tests: &[&Test], nodes: &Nodes, began: Instant) -> (usize, usize) {
    let (mut passed, mut failed) = (0, 0);
    for test in tests {
        if passes(test, nodes) {
            passed += 1;
            continue;
        }
        failed += 1;
        if failed == FAILURES_MAX || test.0 == FIRST || began.elapsed() > TESTS_MAX {
            break;
        }
    }
    (passed, failed)
}

fn passes((name, test): &Test, nodes: &Nodes) -> bool {
    let began = Instant::now();
    let outcome = test(nodes);
    let word = if outcome.is_ok() { "ok" } else { "FAILED" };
    complain(&format!("test {name} ... {word} ({:.1} s)", began.elapsed().as_secs_f32()));
    if let Err(error) = &outcome {
        complain(&format!("{error:#}\n{}", nodes.evidence()));
    }
    outcome.is_ok()
}
