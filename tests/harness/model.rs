//! The model: a small cluster whose production cores meet every order of events, where the simulator rolls dice. Clock,
//! network, disk and processes are the simulator's, and so are the invariants; what happens next is chosen by the
//! checker, which goes through all choices.
//!
//! Time stands still, but for backoffs. What the coordinator says arrives before anything else happens, unless a fault
//! lets it come late: machines do not see each other, so the order in which they hear changes nothing.

mod action;
mod cluster;
mod digest;
mod state;

use muster_proto::model::Counts;
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

pub use action::{Action, Fault};
pub use state::State;

/// What the checker goes through.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Machines.
    pub counts: Counts,
    /// Every machine has a prepare item too, beside its deploy item.
    pub prepare: bool,
    /// Control machines have a reconfigure item too.
    pub reconfigure: bool,
    /// What may go wrong.
    pub faults: &'static [Fault],
    /// Machines that nothing happens to: others of their type are in the same place.
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
    /// The property that did not hold, what was seen, and how it came to that.
    pub broken: Option<(&'static str, String)>,
    /// Was everything Ready after as many faults as may strike?
    pub ready_after_faults: bool,
}

impl Scenario {
    /// Goes through everything that can happen, or until a property does not hold.
    #[must_use]
    pub fn check(self) -> Outcome {
        let checker = self.checker().finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
        let mut outcome = Outcome { states: checker.unique_state_count(), broken: None, ready_after_faults: false };
        for (name, path) in checker.discoveries() {
            if self.property(name).expectation == Expectation::Sometimes {
                outcome.ready_after_faults = true;
                continue;
            }
            let seen = path.last_state().violation.as_ref().map(|violation| format!("{violation}, "));
            let steps: Vec<String> = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
            outcome.broken = Some((name, format!("{}after\n  {}", seen.unwrap_or_default(), steps.join("\n  "))));
        }
        outcome
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

impl Model for Scenario {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.planted(|| State::new(self))]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.faults(self, actions);
        state.moves(actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        self.planted(|| next.act(action)).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("1", |_, state: &State| state.keeps("1")),
            Property::always("2", |_, state: &State| state.keeps("2")),
            Property::always("3", |_, state: &State| state.keeps("3")),
            Property::always("5", |_, state: &State| state.keeps("5")),
            Property::always("6", |_, state: &State| state.keeps("6")),
            Property::always("7", |_, state: &State| state.keeps("7")),
            Property::always("10", |_, state: &State| state.keeps("10")),
            Property::always("11", |_, state: &State| state.keeps("11")),
            Property::always("old-store", |_, state: &State| state.keeps("old-store")),
            Property::always("every other invariant", |_, state: &State| state.keeps_others()),
            Property::eventually("Ready", |_, state: &State| state.is_ready()),
            Property::sometimes("Ready after every fault", |_, state: &State| state.is_ready() && !state.may_fault()),
        ]
    }
}
