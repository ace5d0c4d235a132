//! The runs of a seed, each from beginning to end.

use muster_proto::model::Counts;

use super::{Plan, World, coverage::Reached};
use crate::{invariants::Violation, rng::Rng};

/// Mark of the random numbers of a run with a Kubernetes.
const KUBERNETES: u64 = 0x6b38_7300;

/// Runs one seed. If it has an update, runs it a second time with an operator who targets a stage of the update, and a
/// third time with a Kubernetes as well.
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
        reached.add(&run_with_kubernetes(seed)?);
    }
    Ok(reached)
}

/// Runs a seed's update with a Kubernetes, and with an operator who targets a stage of the update.
///
/// # Errors
/// The first [`Violation`].
pub fn run_with_kubernetes(seed: u64) -> Result<Reached, Violation> {
    let mut rng = Rng::new(seed);
    let plan = Plan::of(&mut rng);
    let mut dice = Rng::new(seed ^ KUBERNETES);
    let worker = plan.counts.worker.max(u32::try_from(dice.between(1, 4)).unwrap_or(1));
    let plan = Plan { counts: Counts { worker, ..plan.counts }, update: true, ..plan };
    let mut world = World::with_kubernetes(rng, plan, Rng::new(dice.next()))?;
    world.second_life = Some(dice);
    world.live()
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
