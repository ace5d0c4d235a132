//! The model: a small cluster whose production cores meet every order of events, where the simulator picks one at
//! random. Clock, network, disk, processes and invariants are the simulator's. The checker chooses the next event, and
//! explores all choices.
//!
//! Time stands still, except for backoffs. A message of the coordinator arrives before anything else happens, unless a
//! fault delays it: machines do not see each other, so the order in which they receive messages changes nothing.

mod action;
mod cluster;
mod digest;
mod fault;
mod state;

use std::sync::atomic::{AtomicBool, Ordering};

use muster_proto::model::Counts;
use stateright::{Checker, HasDiscoveries, Model, Property};

pub use action::Action;
pub use fault::Fault;
pub use state::State;

/// What the checker explores.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Number of machines.
    pub counts: Counts,
    /// Workers have a prepare item too, beside their deploy item.
    pub prepare: bool,
    /// Control machines have a reconfigure item too.
    pub reconfigure: bool,
    /// The cluster is deployed, and an update that disturbs every machine has just started; an application controller
    /// guards all machines.
    pub update: bool,
    /// Most workers that may hold a slot at once.
    pub workers_at_once: u32,
    /// Faults that may occur.
    pub faults: &'static [Fault],
    /// Machines spared from faults, to keep the search short.
    pub spared: &'static [usize],
    /// Most faults in all.
    pub faults_max: u32,
    /// A seeded bug: only in a build with the feature `seeded-bugs`.
    pub seeded_bug: Option<&'static str>,
}

/// Result of exploring a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of distinct states reached.
    pub states: usize,
    /// The first broken invariant, if any, and the shortest path to it.
    pub broken: Option<Broken>,
    /// Was everything Ready after the largest number of faults?
    pub ready_after_faults: bool,
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The invariant.
    pub invariant: &'static str,
    /// What was observed, and the path to it.
    pub story: String,
}

/// The one property; the violation names the invariant.
const INVARIANTS: &str = "invariants";
/// Guards the other property against being vacuous.
const READY: &str = "Ready after every fault";

impl Scenario {
    /// Explores everything that can happen, or stops at the first broken invariant.
    #[must_use]
    pub fn check(self) -> Outcome {
        let search = Search { scenario: self, found: AtomicBool::new(false) };
        // Breadth first, so that the path to a broken invariant is the shortest.
        let checker = search.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let states = checker.unique_state_count();
        let mut discoveries = checker.discoveries();
        let broken = discoveries.remove(INVARIANTS).and_then(|path| {
            let violation = path.last_state().violation.clone()?;
            let steps: Vec<String> = path.into_actions().iter().map(|action| format!("  {action:?}")).collect();
            let story = format!("{violation}, after\n{}", steps.join("\n"));
            Some(Broken { invariant: violation.invariant, story })
        });
        Outcome { states, broken, ready_after_faults: discoveries.contains_key(READY) }
    }

    /// Runs production code, with the seeded bug if there is one.
    fn seeded_bug<T>(&self, run: impl FnOnce() -> T) -> T {
        #[cfg(feature = "seeded-bugs")]
        muster_proto::seeded_bug::set(self.seeded_bug);
        let result = run();
        #[cfg(feature = "seeded-bugs")]
        muster_proto::seeded_bug::set(None);
        result
    }
}

/// A scenario under exploration.
struct Search {
    scenario: Scenario,
    /// An invariant broke: the rest of the search is skipped.
    found: AtomicBool,
}

impl Model for Search {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.scenario)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.faults(&self.scenario, actions);
        state.moves(actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        self.scenario.seeded_bug(|| next.act(action)).then_some(next)
    }

    fn within_boundary(&self, state: &State) -> bool {
        !self.found.fetch_or(state.violation.is_some(), Ordering::Relaxed)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(INVARIANTS, |_, state: &State| state.violation.is_none()),
            Property::sometimes(READY, |_, state: &State| state.is_ready() && !state.may_fault()),
        ]
    }
}
