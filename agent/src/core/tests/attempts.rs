//! Attempts: selection of the next, recovery after a crash, retention.

use super::*;

#[test]
fn items_run_in_order_and_one_at_a_time() {
    let mut rig = Rig::new();
    let effects = rig.receive(assignment(1, 1, vec![item("a", "1"), item("b", "1")]));
    assert!(matches!(effects.first(), Some(Effect::Record(records)) if records.len() == 3), "{effects:?}");
    assert_eq!(started_key(&effects), Some(key("a", 1, 1)));
    assert_eq!(rig.core.wake_at(), None);
    let effects = rig.end(key("a", 1, 1), ItemState::Succeeded);
    assert!(matches!(effects.first(), Some(Effect::Record(records)) if records.len() == 2), "one sync: {effects:?}");
    assert_eq!(started_key(&effects), Some(key("b", 1, 1)));
    assert_eq!(started_key(&rig.end(key("b", 1, 1), ItemState::Succeeded)), None);
    // The same items under a new generation stay as they are.
    assert_eq!(started_key(&rig.receive(assignment(1, 2, vec![item("a", "1"), item("b", "1")]))), None);
    // A new version of one item: only that one runs.
    let effects = rig.receive(assignment(1, 3, vec![item("a", "1"), item("b", "2")]));
    assert_eq!(started_key(&effects), Some(key("b", 3, 1)));
    assert!(effects.contains(&Effect::Remove(key("b", 1, 1))), "{effects:?}");
}

#[test]
fn success_to_redo_runs_again_once() {
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![item("a", "1"), item("b", "1")]));
    rig.end(key("a", 1, 1), ItemState::Succeeded);
    rig.end(key("b", 1, 1), ItemState::Succeeded);
    let again = AssignedItem { redo_up_to: Generation(1), ..item("a", "1") };
    let effects = rig.receive(assignment(1, 2, vec![again.clone(), item("b", "1")]));
    assert_eq!(started_key(&effects), Some(key("a", 2, 1)));
    assert_eq!(started_key(&rig.end(key("a", 2, 1), ItemState::Succeeded)), None);
    assert_eq!(started_key(&rig.receive(assignment(1, 3, vec![again, item("b", "1")]))), None);
}

#[test]
fn a_failed_item_is_retried_after_its_backoff_and_then_waits_for_a_person() {
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![item("a", "1"), item("b", "1")]));
    for (attempt, wait_ms) in [(1, 1_000), (2, 2_000)] {
        assert_eq!(started_key(&rig.end(key("a", 1, attempt), FAILED)), None);
        let wake_at = rig.core.wake_at().expect("a retry");
        assert!((wait_ms..wait_ms * 5 / 4).contains(&(wake_at - rig.now.mono_ms)), "{wake_at}");
        rig.now.mono_ms = wake_at - 1;
        assert_eq!(rig.step(Input::Tick), []);
        rig.now.mono_ms = wake_at;
        let effects = rig.core.step(Input::Tick, rig.now);
        assert_eq!(started_key(&effects), Some(key("a", 1, attempt + 1)));
        assert!(effects.contains(&Effect::Remove(key("a", 1, attempt))), "{effects:?}");
    }
    rig.end(key("a", 1, 3), FAILED);
    assert_eq!(rig.core.wake_at(), None, "no attempt left, and b waits behind a");
    // The operator's retry clears three attempts: it starts at once and continues the count.
    let mut cleared = item("a", "1");
    cleared.cleared_attempts = 3;
    let effects = rig.receive(assignment(1, 2, vec![cleared.clone(), item("b", "1")]));
    assert_eq!(started_key(&effects), Some(key("a", 2, 4)));
    // A repeated retry has no effect.
    rig.end(key("a", 2, 4), ItemState::Failed { exit_code: 1, retryable: false });
    assert_eq!(started_key(&rig.receive(assignment(1, 3, vec![cleared]))), None);
    assert_eq!(rig.core.wake_at(), None);
}

#[test]
fn what_cannot_run_here_fails_at_once() {
    let with = |runner: &str, params: &[(&str, &str)]| {
        let mut item = item("a", "1");
        item.runner = runner.to_owned();
        item.params.extend(params.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        item.hash = item.computed_hash();
        item
    };
    for (item, begins) in [
        (with("mke", &[]), "RunnerNotSupported: "),
        (with("nonsense", &[]), "RunnerNotSupported: "),
        (with("bash", &[("to", "${cluster.controlNodeIP}")]), "param to: variable 'cluster.controlNodeIP'"),
        (with("bash", &[("to", "$x")]), "param to: a lone '$'"),
    ] {
        let mut rig = Rig::new();
        let effects = rig.receive(assignment(1, 1, vec![item]));
        assert_eq!(started_key(&effects), None, "{begins}");
        let status = rig.status("a").expect("a status");
        assert_eq!(status.state, ItemState::Failed { exit_code: -1, retryable: false });
        assert!(status.message.starts_with(begins), "{}", status.message);
        assert_eq!(rig.core.ledger().outbox.len(), 2, "started and finished");
    }
}

#[test]
fn recovery() {
    let rebooted = Some("the machine rebooted while it ran");
    let restarted = Some("its process ended without an outcome");
    let running = ItemState::Running;
    for (boot_id, found, expected, message) in [
        ("boot-1", Found::NotStarted, running.clone(), None),
        ("boot-2", Found::NotStarted, running.clone(), None),
        ("boot-1", Found::Running, running.clone(), None),
        ("boot-1", Found::Lost, ItemState::Indeterminate, restarted),
        ("boot-2", Found::Lost, ItemState::Indeterminate, rebooted),
        ("boot-1", Found::Exited(exit(ItemState::Succeeded)), ItemState::Succeeded, Some("said")),
        ("boot-2", Found::Exited(exit(FAILED)), FAILED, Some("said")),
    ] {
        let mut rig = Rig::new();
        rig.receive(assignment(1, 1, vec![item("a", "1")]));
        let mut rig = rig.restarted();
        assert_eq!(rig.started(boot_id), [Effect::Inspect(key("a", 1, 1))]);
        let effects = rig.step(Input::Inspected { key: key("a", 1, 1), found: found.clone() });
        let status = rig.status("a").expect("a slot");
        assert_eq!(status.state, expected, "{boot_id} {found:?}");
        if let Some(message) = message {
            assert_eq!(status.message, message);
        }
        match found {
            Found::NotStarted => assert_eq!(started_key(&effects), Some(key("a", 1, 1)), "the same attempt"),
            Found::Running => assert_eq!(effects, [Effect::Follow(key("a", 1, 1))]),
            Found::Lost | Found::Exited(_) => assert_eq!(started_key(&effects), None),
        }
    }
}

#[test]
fn a_start_that_failed_is_retried() {
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, vec![item("a", "1")]));
    rig.step(Input::StartFailed { key: key("a", 1, 1), message: "no\nspace".to_owned() });
    let status = rig.status("a").expect("a slot");
    assert_eq!(
        (status.state, status.message.as_str()),
        (ItemState::Failed { exit_code: -1, retryable: true }, "no space")
    );
    assert!(rig.core.wake_at().is_some());
    // Reports on other attempts than the running one have no effect.
    assert_eq!(rig.step(Input::StartFailed { key: key("a", 1, 1), message: String::new() }), []);
    assert_eq!(rig.end(key("a", 1, 1), ItemState::Succeeded), []);
}

#[test]
fn item_without_room_counts_no_attempt() {
    let mut rig = Rig::new();
    rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
    rig.receive(assignment(1, 1, vec![item("a", "1")]));
    let no_room = || Input::NoRoom { key: key("a", 1, 1), message: "cannot create x: No\nspace".to_owned() };
    for _ in 0..5 {
        assert_eq!(started_key(&rig.step(no_room())), None);
        let said = blocked_message(&rig).expect("a reason");
        assert!(said.starts_with("DiskFull: ") && said.ends_with("cannot create x: No space"), "{said}");
        assert_eq!(rig.core.summary(), format!("Deploy: {said}"));
        assert_eq!((rig.state("a"), rig.core.wake_at()), (Some(ItemState::Running), None));
        // It is still full; then the check reports free space.
        assert_eq!(started_key(&rig.step(Input::DiskFull(true))), None);
        assert_eq!(started_key(&rig.step(Input::DiskFull(false))), Some(key("a", 1, 1)), "the same attempt");
        assert_eq!((blocked_message(&rig), rig.core.summary().as_str()), (None, "Deploy: item a"));
    }
    rig.end(key("a", 1, 1), ItemState::Succeeded);
    assert_eq!(rig.core.ledger().last_seq, Seq(2), "one start and one end");
    assert_eq!(rig.step(no_room()), [], "of what does not run nothing is said");
}

#[test]
fn the_newest_attempt_is_found_for_its_output() {
    let mut rig = Rig::new();
    assert_eq!(rig.core.newest_attempt(None), None);
    rig.receive(assignment(1, 1, vec![item("b", "1"), item("a", "1")]));
    rig.end(key("b", 1, 1), ItemState::Succeeded);
    assert_eq!(rig.core.newest_attempt(None), Some(key("a", 1, 1)));
    assert_eq!(rig.core.newest_attempt(ItemName::new("b").ok().as_ref()), Some(key("b", 1, 1)));
    assert_eq!(rig.core.newest_attempt(ItemName::new("c").ok().as_ref()), None);
    // Removed from the assignment: its output stays readable.
    rig.receive(assignment(1, 2, vec![item("a", "1")]));
    assert_eq!(rig.core.kept_attempts(), [key("a", 1, 1), key("b", 1, 1)]);
}

#[test]
fn the_output_of_old_attempts_is_removed() {
    let items: Vec<_> = (0..300).map(|n| item(&format!("i{n}"), "1")).collect();
    let mut rig = Rig::new();
    rig.receive(assignment(1, 1, items));
    for n in 0..299 {
        let effects = rig.end(key(&format!("i{n}"), 1, 1), ItemState::Succeeded);
        let removed: Vec<_> = effects.into_iter().filter(|effect| matches!(effect, Effect::Remove(_))).collect();
        let expected =
            (n + 2_usize).checked_sub(ATTEMPTS_KEPT + 1).map(|old| Effect::Remove(key(&format!("i{old}"), 1, 1)));
        assert_eq!(removed, Vec::from_iter(expected), "at the end of i{n}");
    }
    assert_eq!(rig.core.kept_attempts().len(), ATTEMPTS_KEPT);
}
