//! Items that refer to secrets.

use super::*;

const NO_SESSION: &str = "WaitingForSecret: item a needs secrets, which only the coordinator has: there is no session \
                          with the coordinator";

#[test]
fn an_item_with_secrets_is_started_when_they_have_come_and_recorded_without_them() {
    let mut rig = Rig::new();
    let effects = rig.receive(assignment(1, 1, vec![with_secret("a", "1"), item("b", "1")]));
    assert_eq!((fetched_key(&effects), started_key(&effects)), (None, None), "no session");
    assert_eq!((blocked_message(&rig).as_deref(), rig.core.wake_at()), (Some(NO_SESSION), None));
    let effects = rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
    assert_eq!((fetched_key(&effects), started_key(&effects)), (Some(key("a", 1, 1)), None));
    assert_eq!((rig.state("a"), blocked_message(&rig)), (None, None), "nothing is recorded yet, nothing is wrong");
    let effects = rig.step(fetched(key("a", 1, 1), 1, Ok(())));
    let request = request(&effects).expect("started");
    assert_eq!(request.secret_params, [("dsn".to_owned(), "$$u:${secret.db@3}@10.0.0.7".to_owned())].into());
    assert!(!request.params.contains_key("dsn"), "{request:?}");
    assert_eq!(rig.state("a"), Some(ItemState::Running));
    let effects = rig.end(key("a", 1, 1), ItemState::Succeeded);
    assert_eq!((fetched_key(&effects), started_key(&effects)), (None, Some(key("b", 1, 1))));
}

#[test]
fn a_refused_or_lost_fetch_is_asked_again_with_backoff_and_said() {
    let mut rig = Rig::new();
    rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
    let mut asked = rig.receive(assignment(1, 1, vec![with_secret("a", "1")]));
    for (failures, why) in [(1, "NotAssigned: not now"), (2, "it did not answer for 45 s"), (3, "NotAssigned: not now")]
    {
        assert_eq!(fetched_key(&asked), Some(key("a", 1, 1)), "{failures}");
        let effects = if why.starts_with("it") {
            rig.now.mono_ms += FETCH_DEADLINE_MS;
            rig.step(Input::Tick)
        } else {
            rig.step(fetched(key("a", 1, 1), 1, Err(why)))
        };
        assert_eq!((fetched_key(&effects), started_key(&effects)), (None, None));
        let expected = format!("WaitingForSecret: item a needs secrets, which only the coordinator has: {why}");
        assert_eq!(blocked_message(&rig), Some(expected));
        let wait_ms = rig.core.wake_at().expect("a wait") - rig.now.mono_ms;
        let least_ms = BACKOFF_MS_MIN << (failures - 1);
        assert!((least_ms..least_ms * 5 / 4).contains(&wait_ms), "{failures}: {wait_ms}");
        rig.now.mono_ms += wait_ms;
        asked = rig.step(Input::Tick);
    }
    // An answer to the first request is equally valid.
    assert_eq!(started_key(&rig.step(fetched(key("a", 1, 1), 1, Ok(())))), Some(key("a", 1, 1)));
    assert_eq!(blocked_message(&rig), None);
}

#[test]
fn secrets_that_nobody_waits_for_any_more_start_nothing() {
    for (change, next) in [
        (Input::Received(assignment(1, 2, vec![])), None),
        (Input::Received(assignment(1, 2, vec![with_secret("a", "2")])), Some(key("a", 2, 1))),
        (Input::DiskFull(true), None),
        (Input::LinkDown, None),
    ] {
        let mut rig = Rig::new();
        rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
        rig.receive(assignment(1, 1, vec![with_secret("a", "1")]));
        assert_eq!(fetched_key(&rig.step(change.clone())), next, "{change:?}");
        let effects = rig.step(fetched(key("a", 1, 1), 1, Ok(())));
        // The values stay valid if the session ended meanwhile.
        let expected = matches!(change, Input::LinkDown).then(|| key("a", 1, 1));
        assert_eq!(started_key(&effects), expected, "{change:?}");
    }
}

#[test]
fn an_attempt_that_was_recorded_but_not_begun_gets_its_secrets_again() {
    let mut rig = Rig::new();
    rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE });
    rig.receive(assignment(1, 1, vec![with_secret("a", "1")]));
    rig.step(fetched(key("a", 1, 1), 1, Ok(())));
    let mut rig = rig.restarted();
    assert_eq!(rig.started("boot-1"), [Effect::Inspect(key("a", 1, 1))]);
    let effects = rig.step(Input::Inspected { key: key("a", 1, 1), found: Found::NotStarted });
    assert_eq!((fetched_key(&effects), blocked_message(&rig).as_deref()), (None, Some(NO_SESSION)));
    assert_eq!(fetched_key(&rig.step(Input::LinkUp { epoch: Epoch(1), code: AuthCode::NONE })), Some(key("a", 1, 1)));
    // The same item under a new generation: requested under that one.
    let effects = rig.receive(assignment(1, 2, vec![with_secret("a", "1")]));
    let asked = Effect::Fetch { key: key("a", 1, 1), generation: Generation(2) };
    assert!(effects.contains(&asked), "{effects:?}");
    assert_eq!(started_key(&rig.step(fetched(key("a", 1, 1), 1, Ok(())))), None, "an answer under the old one");
    assert_eq!(started_key(&rig.step(fetched(key("a", 1, 1), 2, Ok(())))), Some(key("a", 1, 1)));
    // Removed from the list while it waits: recorded as never started.
    let mut rig = rig.restarted();
    rig.started("boot-1");
    rig.step(Input::Inspected { key: key("a", 1, 1), found: Found::NotStarted });
    rig.receive(assignment(1, 3, vec![]));
    assert!(matches!(rig.state("a"), Some(ItemState::Failed { .. })), "{:?}", rig.state("a"));
    assert_eq!(blocked_message(&rig), None);
}
