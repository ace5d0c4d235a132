//! Real nodes: the shipped packages, installed with apt on machines with systemd; the coordinator as a container of the
//! shipped image. Two fleets of 3 + 3 run side by side and serve all tests in order, because a fleet for each test
//! would take too long. Therefore this has its own `main`: `make test-nodes`, or `make test-nodes ARGS="WORD…"` for the
//! tests with one of these words in their names.
//!
//! The evidence is what the items themselves wrote on the nodes, never the word of the programs under test alone.

mod backup;
mod canaries;
mod daytwo;
mod demo;
mod deployment;
mod drain;
mod faults;
mod hosted;
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
    env, iter,
    process::ExitCode,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use muster_tests::{
    fleet::programs::complain,
    nodes::{Nodes, Turn, node::Node},
};

/// What a test runs on.
#[derive(Clone, Copy)]
enum Body {
    /// The whole fleet, exclusively.
    Fleet(fn(&Nodes) -> Result<()>),
    /// Any node of the fleet. Other tests run beside it, each on its own node, and all share one coordinator.
    OneNode(fn(&Nodes, &Node) -> Result<()>),
}

/// A test and its name.
type Test = (&'static str, Body);

use Body::{Fleet, OneNode};

/// Fleets by the name of their Docker objects, each with its tests. The slower one starts first.
const FLEETS: &[(&str, &[Test])] = &[("muster-test", TOGETHER), ("muster-test-2", ONE_BY_ONE)];

/// Tests of single machines.
const ONE_BY_ONE: &[Test] = &[
    (
        "deployment::three_control_machines_and_three_workers",
        Fleet(deployment::three_control_machines_and_three_workers),
    ),
    ("deployment::an_idle_agent_is_small_and_listens_on_nothing", Fleet(deployment::an_idle_agent_is_small)),
    ("swarm::three_managers_and_three_workers", Fleet(swarm::three_managers_and_three_workers)),
    ("swarm::power_is_cut_in_the_middle_of_a_join", Fleet(swarm::power_cut_in_join_and_reinstalled)),
    ("swarm::a_foreign_swarm_is_not_left", Fleet(swarm::foreign_swarm)),
    ("faults::the_coordinator_is_killed_and_started", Fleet(faults::coordinator_killed)),
    // The longest first, so that they end at about the same time.
    ("faults::a_machine_does_not_come_back_from_its_reboot", OneNode(faults::reboot_overdue)),
    ("faults::the_network_is_cut_for_a_minute", OneNode(faults::network_cut)),
    ("mke::mke_is_installed_upgraded_and_backed_up", OneNode(mke::mke_is_installed_upgraded_and_backed_up)),
    ("faults::the_agent_is_wedged_in_the_middle_of_an_item", OneNode(faults::agent_wedged)),
    ("faults::the_disk_is_full", OneNode(faults::disk_full)),
    ("faults::a_node_is_reinstalled", OneNode(faults::reinstalled)),
    ("faults::power_is_cut_in_the_middle_of_a_reboot", OneNode(faults::power_cut_in_reboot)),
    ("faults::power_is_cut_in_the_middle_of_prepare", OneNode(faults::power_cut_in_prepare)),
    ("faults::power_is_cut_and_the_item_must_not_be_run_again", OneNode(faults::power_cut_holds)),
    ("units::an_item_dies_as_a_whole_at_its_time_limit", OneNode(units::dies_as_a_whole)),
    ("units::a_machine_reboots_once", OneNode(units::reboots)),
    ("units::the_ends_of_items_are_told_apart", OneNode(units::ends_are_told_apart)),
    ("units::what_did_not_happen_is_said", OneNode(units::says_what_did_not_happen)),
    (
        "versions::another_that_has_locked_dpkg_is_waited_for",
        OneNode(versions::another_that_has_locked_dpkg_is_waited_for),
    ),
    ("versions::packages_are_held_and_not_taken_back", OneNode(versions::packages_are_held_and_not_taken_back)),
    ("hosted::faults_of_a_coordinator_are_told", OneNode(hosted::faults_of_a_coordinator_are_told)),
    ("package::upgrade_removal_and_purge", OneNode(package::upgrade_removal_and_purge)),
    ("package::an_rpm_does_as_much", OneNode(package::rpm_does_as_much)),
    ("faults::a_package_does_not_exist", OneNode(faults::package_absent)),
    ("faults::the_agent_is_restarted_in_the_middle_of_an_item", OneNode(faults::agent_restarted)),
    ("faults::a_unit_fails", OneNode(faults::unit_fails)),
    ("faults::the_agent_is_killed_in_the_middle_of_an_item", OneNode(faults::agent_killed)),
    ("units::units_are_acted_upon", OneNode(units::acts_on_units)),
    ("units::the_journal_has_the_records_of_an_item", OneNode(units::journal_has_fields)),
    ("canaries::no_secret_is_found_where_it_should_not_be", Fleet(canaries::no_secret_is_found)),
    ("canaries::no_token_is_found_after_a_join_that_fails", Fleet(canaries::no_token_is_found_after_a_join_that_fails)),
    ("backup::managers_copy_the_swarm", Fleet(backup::managers_copy_the_swarm)),
    ("backup::managers_copy_the_swarm_before_and_in_an_update", Fleet(backup::an_update_backs_up_first)),
    ("package::the_coordinators_image_is_small_and_not_root", Fleet(package::image_is_small_and_not_root)),
];

/// Updates and removals of machines in a shared swarm.
const TOGETHER: &[Test] = &[
    ("drain::a_service_keeps_all_tasks_but_one", Fleet(drain::a_service_keeps_all_tasks_but_one)),
    ("update::machines_reboot_as_their_locks_allow", Fleet(update::machines_reboot_as_their_locks_allow)),
    ("update::two_workers_reboot_on_demand", Fleet(update::two_workers_reboot_on_demand)),
    ("daytwo::failed_worker_wants_person_at_once", Fleet(daytwo::failed_worker_wants_person_at_once)),
    ("daytwo::replaced_worker_serves_again", Fleet(daytwo::replaced_worker_serves_again)),
    ("daytwo::reinstalled_worker_keeps_its_labels", Fleet(daytwo::reinstalled_worker_keeps_its_labels)),
    ("daytwo::plain_containers_are_named", Fleet(daytwo::plain_containers_are_named)),
    ("removal::machines_leave_the_swarm_for_good", Fleet(removal::machines_leave_the_swarm_for_good)),
    ("hosted::coordinator_moves_to_another_machine", Fleet(hosted::coordinator_moves_to_another_machine)),
];

/// The test that prepares the fleet for the others.
const FIRST: &str = "deployment::three_control_machines_and_three_workers";
/// Tests that continue where another ended.
const GO_ON_FROM: &[(&str, &str)] = &[
    ("daytwo::replaced_worker_serves_again", "daytwo::failed_worker_wants_person_at_once"),
    ("daytwo::reinstalled_worker_keeps_its_labels", "daytwo::failed_worker_wants_person_at_once"),
    ("daytwo::plain_containers_are_named", "daytwo::failed_worker_wants_person_at_once"),
    ("deployment::an_idle_agent_is_small_and_listens_on_nothing", FIRST),
    ("swarm::three_managers_and_three_workers", FIRST),
    ("backup::managers_copy_the_swarm_before_and_in_an_update", "backup::managers_copy_the_swarm"),
    ("update::machines_reboot_as_their_locks_allow", "drain::a_service_keeps_all_tasks_but_one"),
    ("update::two_workers_reboot_on_demand", "drain::a_service_keeps_all_tasks_but_one"),
    ("update::two_workers_reboot_on_demand", "update::machines_reboot_as_their_locks_allow"),
];
/// So much of a failure is repeated at the end of the output, in characters.
const REPEATED_MAX: usize = 600;
/// A fleet stops after this many failures, and all tests stop after this time.
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
    let of_fleet = |tests: &'static [Test]| tests.iter().filter(|(name, _)| wanted(name)).collect::<Vec<&Test>>();
    let fleets: Vec<(&str, Vec<&Test>)> =
        FLEETS.iter().map(|(name, tests)| (*name, of_fleet(tests))).filter(|(_, tests)| !tests.is_empty()).collect();
    if fleets.is_empty() {
        complain(&format!("no test has one of these words in its name: {}", words.join(" ")));
        return ExitCode::FAILURE;
    }
    let began = Instant::now();
    let (passed, failures) = Turn::take().map_or_else(
        |error| {
            complain(&format!("no fleet of nodes can stand here: {error:#}"));
            (0, Vec::new())
        },
        |turn| run_all(&fleets, &turn, began),
    );
    // Once more, where everyone looks first.
    failures.iter().for_each(|failure| complain(failure));
    let failed = failures.len();
    let all: usize = fleets.iter().map(|(_, tests)| tests.len()).sum();
    let unrun = all - passed - failed;
    complain(&format!("nodes: {passed} passed; {failed} failed; {unrun} not run; {} s", began.elapsed().as_secs()));
    if passed == all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Number of tests passed, and the failures. The fleets start one after the other, because they share the built images;
/// then both run their tests.
fn run_all(fleets: &[(&str, Vec<&Test>)], turn: &Turn, began: Instant) -> (usize, Vec<String>) {
    thread::scope(|scope| {
        let mut runs = Vec::new();
        for (name, tests) in fleets {
            match Nodes::start(turn, name, 3, 3) {
                Ok(nodes) => {
                    complain(&format!("the fleet {name} stands after {} s", began.elapsed().as_secs()));
                    runs.push(scope.spawn(move || run_on(&nodes, tests, began)));
                }
                Err(error) => complain(&format!("the fleet {name} does not start: {error:#}")),
            }
        }
        let ends = runs.into_iter().filter_map(|run| run.join().ok());
        ends.fold((0, Vec::new()), |all, one| (all.0 + one.0, [all.1, one.1].concat()))
    })
}

fn run_on(nodes: &Nodes, tests: &[&Test], began: Instant) -> (usize, Vec<String>) {
    let run = Run {
        nodes,
        began,
        passed: AtomicUsize::new(0),
        failures: Mutex::new(Vec::new()),
        has_fleet: AtomicBool::new(true),
    };
    match supplies::make_repository(nodes) {
        Ok(()) => run.all(tests),
        Err(error) => complain(&format!("the operator's repository is not made: {error:#}")),
    }
    (run.passed.into_inner(), run.failures.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The tests of a fleet in progress.
struct Run<'a> {
    nodes: &'a Nodes,
    began: Instant,
    passed: AtomicUsize,
    /// The failed tests, each with the beginning of its error.
    failures: Mutex<Vec<String>>,
    /// The first test creates the others' preconditions.
    has_fleet: AtomicBool,
}

impl Run<'_> {
    /// Runs the tests in order; those that need one node run in parallel, one on each.
    fn all(&self, tests: &[&Test]) {
        let wants_one = |(_, body): &Test| matches!(body, OneNode(_));
        for beside in tests.chunk_by(|a, b| wants_one(a) && wants_one(b)) {
            let queue = Mutex::new(beside.iter());
            let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next().filter(|_| !self.is_enough());
            thread::scope(|scope| {
                for node in self.nodes.all().take(beside.len()) {
                    scope.spawn(|| iter::from_fn(next).for_each(|test| self.one(test, node)));
                }
            });
        }
    }

    fn is_enough(&self) -> bool {
        self.failures().len() >= FAILURES_MAX
            || !self.has_fleet.load(Ordering::Relaxed)
            || self.began.elapsed() > TESTS_MAX
    }

    fn failures(&self) -> MutexGuard<'_, Vec<String>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn one(&self, (name, body): &Test, node: &Node) {
        let began = Instant::now();
        let outcome = match body {
            Fleet(test) => test(self.nodes),
            OneNode(test) => test(self.nodes, node).with_context(|| format!("on {}", node.name)),
        };
        let took = began.elapsed().as_secs_f32();
        match outcome {
            Ok(()) => {
                self.passed.fetch_add(1, Ordering::Relaxed);
                complain(&format!("test {name} ... ok ({took:.1} s)"));
            }
            Err(error) => {
                let said: String = format!("{error:#}").chars().take(REPEATED_MAX).collect();
                self.failures().push(format!("failed: {name}: {said}"));
                self.has_fleet.fetch_and(*name != FIRST, Ordering::Relaxed);
                complain(&format!("test {name} ... FAILED ({took:.1} s)\n{error:#}\n{}", self.nodes.evidence()));
            }
        }
    }
}
