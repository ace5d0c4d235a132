//! The model: a small cluster whose production cores meet every order of events, where the simulator rolls dice. Clock,
//! network, disk and processes are the simulator's, and so are the invariants; what happens next is chosen by the
//! checker, which goes through all choices.
//!
//! Time stands still, but for backoffs. What the coordinator says arrives before anything else happens, unless a fault
//! lets it come late: machines do not see each other, so the order in which they hear changes nothing.

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

/// What the checker goes through.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Machines.
    pub counts: Counts,
    /// Workers have a prepare item too, beside their deploy item.
    pub prepare: bool,
    /// Control machines have a reconfigure item too.
    pub reconfigure: bool,
    /// The cluster is deployed, and an update that disturbs every machine has just been started; an application
    /// controller guards all of them.
    pub update: bool,
    /// So many workers may hold a slot at once.
    pub workers_at_once: u32,
    /// What may go wrong.
    pub faults: &'static [Fault],
    /// Machines that nothing happens to, for a search that would be too long.
    pub spared: &'static [usize],
    /// How often, in all.
    pub faults_max: u32,
    /// A bug that is planted: only in a build with the feature `plants`.
    pub plant: Option<&'static str>,
}

/// What came of going through everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Different states that were reached.
    pub states: usize,
    /// What did not hold, if anything, and the shortest way to it.
    pub broken: Option<Broken>,
    /// Was everything Ready after as many faults as may strike?
    pub ready_after_faults: bool,
}

/// What did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The invariant.
    pub invariant: &'static str,
    /// What was seen, and how it came to that.
    pub story: String,
}

/// The one property; which invariant it was, the violation says.
const INVARIANTS: &str = "invariants";
/// What makes the other worth something.
const READY: &str = "Ready after every fault";

impl Scenario {
    /// Goes through everything that can happen, or until something does not hold.
    #[must_use]
    pub fn check(self) -> Outcome {
        let search = Search { scenario: self, found: AtomicBool::new(false) };
        // Breadth first: the way to what does not hold is the shortest there is.
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

    /// Runs production code, with the planted bug if there is one.
    fn planted<T>(&self, run: impl FnOnce() -> T) -> T {
        #[cfg(feature = "plants")]
        muster_proto::plant::set(self.plant);
        let result = run();
        #[cfg(feature = "plants")]
        muster_proto::plant::set(None);
        result
    }
}

/// A scenario that is being gone through.
struct Search {
    scenario: Scenario,
    /// Something did not hold: the rest is of no interest.
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
        self.scenario.planted(|| next.act(action)).then_some(next)
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
