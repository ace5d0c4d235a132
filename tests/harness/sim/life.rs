//! The runs of a seed, each from beginning to end.

use super::{Plan, World, coverage::Reached};
use crate::{invariants::Violation, rng::Rng};

/// Runs one seed. If it has an update, runs it a second time with an operator who targets a stage of the update.
///
/// # Errors
/// The first [`Violation`].
pub fn run(seed: u64) -> Result<Reached, Violation> {
    let mut rng = Rng::new(seed);
    let plan = Plan::of(&mut rng);
    let mut reached = run_plan(rng.clone(), plan)?;
    if plan.update {
        let mut world = World::new(rng, plan)?;
        world.second_life = Some(Rng::new(!seed));
        reached.add(&world.live()?);
    }
    Ok(reached)
}

/// Runs one plan.
///
/// # Errors
/// The first [`Violation`].
pub fn run_plan(rng: Rng, plan: Plan) -> Result<Reached, Violation> {
    World::new(rng, plan)?.live()
}

impl World {
    fn live(mut self) -> Result<Reached, Violation> {
        if self.plan.update {
            self.begin_update()?;
        }
        self.live_through_chaos()?;
        self.calm_down()?;
        self.resolve_everything()?;
        Ok(self.reached)
    }
}
