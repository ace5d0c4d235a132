//! Evidence of an update, from what the items and the toy controller wrote: every machine's workloads moved before its
//! items ran, and came back after.

use std::collections::BTreeMap;

use super::effects::Effect;

/// Steps of one machine, in their required order. The items run between the third and the fourth.
const STEPS: [&str; 5] = ["request-seen", "workloads-moved", "lock-inactive", "request-gone", "lock-active"];
/// Number of steps before the items run.
const STEPS_BEFORE_ITEMS: usize = 3;

/// A line of the toy controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Move {
    at_ms: u64,
    machine: String,
    step: usize,
}

/// Result of the check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Moves {
    /// Broken guarantees; empty on success.
    pub(super) violations: Vec<String>,
    /// Most workers whose workloads were away at the same time.
    pub(super) workers_at_once: usize,
    /// Time from the first request to the last lock.
    pub(super) makespan_ms: u64,
}

/// Parse `<unix ms> <machine> <step>`; None for any other line.
pub(super) fn parse(line: &str) -> Option<Move> {
    let [at_ms, machine, step] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let step = STEPS.iter().position(|known| *known == step)?;
    Some(Move { at_ms: at_ms.parse().ok()?, machine: machine.to_owned(), step })
}

/// Times of a machine's steps and items.
struct Story<'a> {
    machine: &'a str,
    steps: [u64; STEPS.len()],
    items: (u64, u64),
}

/// Check the lines: each machine's steps are in order, control machines go one by one and before all workers, and at
/// most `width` workers have their workloads away.
pub(super) fn examine(moves: &[Move], items: &[Effect], machines: &[String], width: u32) -> Moves {
    let mut found = Moves::default();
    let mut stories = Vec::new();
    for machine in machines {
        match story(machine, moves, items) {
            Ok(story) => stories.push(story),
            Err(what) => found.violations.push(format!("{machine}: {what}")),
        }
    }
    in_order(&stories, &mut found);
    one_by_one(&stories, &mut found);
    within(&stories, width, &mut found);
    let all = || stories.iter().flat_map(|story| story.steps);
    found.makespan_ms = all().max().unwrap_or(0).saturating_sub(all().min().unwrap_or(0));
    found
}

fn story<'a>(machine: &'a str, moves: &[Move], items: &[Effect]) -> Result<Story<'a>, String> {
    let mut steps: BTreeMap<usize, u64> = BTreeMap::new();
    for line in moves.iter().filter(|line| line.machine == machine) {
        if steps.insert(line.step, line.at_ms).is_some() {
            return Err(format!("{} twice", STEPS.get(line.step).unwrap_or(&"?")));
        }
    }
    let missing = STEPS.iter().enumerate().find(|(step, _)| !steps.contains_key(step));
    if let Some((_, name)) = missing {
        return Err(format!("no {name}"));
    }
    let ran = || items.iter().filter(|item| item.machine == machine).map(|item| item.at_ms);
    let (Some(first), Some(last)) = (ran().min(), ran().max()) else {
        return Err("no item of the update ran".to_owned());
    };
    let at = |step: usize| steps.get(&step).copied().unwrap_or(0);
    Ok(Story { machine, steps: [at(0), at(1), at(2), at(3), at(4)], items: (first, last) })
}

fn in_order(stories: &[Story<'_>], found: &mut Moves) {
    for story in stories {
        let (before, after) = story.steps.split_at(STEPS_BEFORE_ITEMS);
        let moments: Vec<u64> = before.iter().chain([&story.items.0, &story.items.1]).chain(after).copied().collect();
        if !moments.is_sorted() {
            found.violations.push(format!("{}: steps out of order: {moments:?}", story.machine));
        }
    }
}

/// Time in which a machine's node may be cordoned: from the end of its lock to the end of its request.
pub(super) fn away(moves: &[Move], machine: &str) -> Option<(u64, u64)> {
    let at = |step| Some(moves.iter().find(|line| line.machine == machine && line.step == step)?.at_ms);
    Some((at(STEPS_BEFORE_ITEMS - 1)?, at(STEPS_BEFORE_ITEMS)?))
}

/// Time from the departure of the workloads to the end of the request.
fn down(story: &Story<'_>) -> (u64, u64) {
    let [_, _, inactive, gone, _] = story.steps;
    (inactive, gone)
}

fn one_by_one(stories: &[Story<'_>], found: &mut Moves) {
    let is_control = |story: &&Story<'_>| story.machine.starts_with("control-");
    let mut controls: Vec<&Story<'_>> = stories.iter().filter(is_control).collect();
    controls.sort_by_key(|story| down(story));
    for pair in controls.windows(2) {
        if let [before, after] = pair
            && down(after).0 < down(before).1
        {
            found.violations.push(format!("{} was down before {} was given back", after.machine, before.machine));
        }
    }
    let end = controls.iter().map(|story| down(story).1).max().unwrap_or(0);
    for story in stories.iter().filter(|story| !is_control(story) && down(story).0 < end) {
        found.violations.push(format!("{} was down before the last control machine was given back", story.machine));
    }
}

fn within(stories: &[Story<'_>], width: u32, found: &mut Moves) {
    let workers: Vec<(u64, u64)> =
        stories.iter().filter(|story| story.machine.starts_with("worker-")).map(down).collect();
    // Number of workers that are down when one goes down, itself included.
    let together = |at: u64| workers.iter().filter(|(start, end)| *start <= at && at < *end).count();
    found.workers_at_once = workers.iter().map(|(start, _)| together(*start)).max().unwrap_or(0);
    if u32::try_from(found.workers_at_once).is_ok_and(|most| most > width) {
        let most = found.workers_at_once;
        found.violations.push(format!("{most} workers were without their workloads at once; at most {width} may be"));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::effects, *};

    const GOOD: &str = "\
1 control-1 request-seen
2 control-1 workloads-moved
3 control-1 lock-inactive
4 control-1 a start 1 deploy 2
5 control-1 a end 1 deploy 2
6 control-1 request-gone
7 control-1 lock-active
11 worker-1 request-seen
12 worker-1 workloads-moved
13 worker-1 lock-inactive
14 worker-1 a start 1 deploy 2
15 worker-1 a end 1 deploy 2
16 worker-1 request-gone
17 worker-1 lock-active
";

    fn found(text: &str, width: u32) -> Moves {
        let machines = ["control-1", "worker-1"].map(str::to_owned);
        let moves: Vec<Move> = text.lines().filter_map(parse).collect();
        examine(&moves, &effects::of_release(&effects::parse(text).expect("lines"), Some("2")), &machines, width)
    }

    #[test]
    fn a_good_update() {
        assert_eq!(found(GOOD, 1), Moves { violations: Vec::new(), workers_at_once: 1, makespan_ms: 16 });
    }

    #[test]
    fn every_broken_promise_is_found() {
        for (text, expected) in [
            (GOOD.replace("4 control-1 a", "2 control-1 a"), "control-1: steps out of order"),
            (GOOD.replace("5 control-1 a", "7 control-1 a"), "control-1: steps out of order"),
            (GOOD.replace("13 worker-1 lock-inactive\n", ""), "worker-1: no lock-inactive"),
            (format!("{GOOD}18 worker-1 lock-active\n"), "worker-1: lock-active twice"),
            (
                GOOD.replace("a start 1 deploy 2", "a start 1 deploy").replace("a end 1 deploy 2", "a end 1 deploy"),
                "control-1: no item",
            ),
            (
                GOOD.replace("6 control-1 request-gone", "14 control-1 request-gone")
                    .replace("7 control-1 ", "15 control-1 "),
                "worker-1 was down before",
            ),
        ] {
            let violations = found(&text, 1).violations;
            assert!(violations.iter().any(|said| said.starts_with(expected)), "{expected}: {violations:?}");
        }
        assert!(found(GOOD, 0).violations.iter().any(|said| said.starts_with("1 workers were without")));
    }
}
