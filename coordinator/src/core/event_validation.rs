//! Allowed order of statuses: an agent's ledger has a start before every outcome, and one attempt at a time. An event
//! that violates this comes from a broken or lying agent and is rejected.

use muster_proto::model::{Generation, ItemState, ItemStatus};

/// Why `new` contradicts the item's earlier events in the same ledger; None if it is possible. A success under a list
/// up to `redo_up_to` is ignored.
pub(super) fn impossible(known: Option<&ItemStatus>, redo_up_to: Generation, new: &ItemStatus) -> Option<String> {
    let begins = new.state == ItemState::Running;
    let Some(known) = known else {
        return (!begins).then(|| "it ended, and was never said to have begun".to_owned());
    };
    let runs = known.state == ItemState::Running;
    let is_done = known.state == ItemState::Succeeded && known.generation > redo_up_to;
    let same_attempt = (known.hash, known.generation, known.attempt) == (new.hash, new.generation, new.attempt);
    let later = (new.generation, new.attempt) > (known.generation, known.attempt);
    let (attempt, generation) = (known.attempt, known.generation);
    let problem = match (begins, runs) {
        (false, true) if same_attempt => return None,
        (false, true) => format!("it ended, but attempt {attempt} of generation {generation} is the one that runs"),
        (false, false) => format!("it ended, but nothing runs: attempt {attempt} ended before"),
        (true, true) => format!("it began again, and attempt {attempt} has not ended"),
        (true, false) if known.hash == new.hash && is_done => {
            format!("it began again after attempt {attempt} succeeded")
        }
        (true, false) if !later => {
            format!("it began again as an attempt before attempt {attempt} of generation {generation}")
        }
        (true, false) => return None,
    };
    Some(problem)
}

#[cfg(test)]
mod tests {
    use ItemState::{Indeterminate, Running, Succeeded};
    use muster_proto::model::{ItemHash, ItemName};

    use super::*;

    const FAILED: ItemState = ItemState::Failed { exit_code: 1, retryable: true };

    fn status(state: ItemState, hash: u8, generation: u64, attempt: u32) -> ItemStatus {
        ItemStatus {
            name: ItemName::new("a").expect("a label"),
            hash: ItemHash([hash; 32]),
            state,
            attempt,
            generation: Generation(generation),
            message: String::new(),
            output_tail: String::new(),
            result_json: None,
            started_at_ms: 0,
            finished_at_ms: None,
        }
    }

    #[test]
    fn what_may_follow() {
        let check =
            |known: Option<(ItemState, u8, u64, u32)>, new: (ItemState, u8, u64, u32), expected: Option<&str>| {
                let known = known.map(|(state, hash, generation, attempt)| status(state, hash, generation, attempt));
                let new = status(new.0, new.1, new.2, new.3);
                let problem = impossible(known.as_ref(), Generation(0), &new);
                let as_expected = match (&problem, expected) {
                    (None, None) => true,
                    (Some(problem), Some(part)) => problem.contains(part),
                    _ => false,
                };
                assert!(as_expected, "{problem:?}, not {expected:?}: {known:?} -> {new:?}");
            };
        check(None, (Running, 1, 1, 1), None);
        // A status that was dropped to make room is unknown.
        check(None, (Running, 1, 3, 4), None);
        for end in [Succeeded, FAILED, Indeterminate] {
            check(None, (end.clone(), 1, 1, 1), Some("never said to have begun"));
            check(Some((Running, 1, 1, 1)), (end.clone(), 1, 1, 1), None);
            check(Some((Running, 1, 1, 1)), (end.clone(), 1, 1, 2), Some("attempt 1 of generation 1 is the one"));
            check(Some((Running, 1, 1, 1)), (end.clone(), 1, 2, 1), Some("is the one that runs"));
            check(Some((Running, 1, 1, 1)), (end.clone(), 2, 1, 1), Some("is the one that runs"));
            for before in [Succeeded, FAILED, Indeterminate] {
                check(Some((before, 1, 1, 1)), (end.clone(), 1, 1, 1), Some("nothing runs"));
            }
            // Other content, later: also A, B, A.
            check(Some((end.clone(), 1, 1, 3)), (Running, 2, 2, 1), None);
            check(Some((end.clone(), 1, 2, 1)), (Running, 2, 1, 1), Some("before attempt 1 of generation 2"));
        }
        for before in [FAILED, Indeterminate] {
            check(Some((before.clone(), 1, 1, 1)), (Running, 1, 1, 2), None);
            check(Some((before.clone(), 1, 1, 1)), (Running, 1, 2, 2), None);
            check(Some((before.clone(), 1, 1, 2)), (Running, 1, 1, 2), Some("before attempt 2"));
            check(Some((before, 1, 1, 2)), (Running, 1, 1, 1), Some("before attempt 2"));
        }
        check(Some((Succeeded, 1, 1, 1)), (Running, 1, 2, 2), Some("after attempt 1 succeeded"));
        check(Some((Running, 1, 1, 1)), (Running, 1, 1, 2), Some("has not ended"));
        check(Some((Running, 1, 1, 1)), (Running, 2, 2, 1), Some("has not ended"));
    }

    #[test]
    fn success_to_redo_may_be_followed() {
        let known = status(Succeeded, 1, 2, 2);
        let problem = |redo_up_to, generation, attempt| {
            impossible(Some(&known), Generation(redo_up_to), &status(Running, 1, generation, attempt))
        };
        assert_eq!(problem(2, 3, 1), None);
        assert!(problem(1, 3, 1).is_some_and(|problem| problem.contains("after attempt 2 succeeded")));
        assert!(problem(2, 2, 1).is_some_and(|problem| problem.contains("before attempt 2")));
    }
}
