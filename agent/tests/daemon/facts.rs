//! Facts about the machine, as the coordinator receives them.

use muster_proto::{model::HostFacts, wire::agent_message::Body as FromAgent};
use tokio::time::timeout;

use crate::{
    coordinator::{Coordinator, Session, Traits},
    machine::{Machine, rename},
};

async fn facts(session: &mut Session) -> HostFacts {
    let facts = session.next(|body| if let FromAgent::Facts(facts) = body { Some(facts) } else { None }).await;
    HostFacts::try_from(facts.expect("facts")).expect("sound ones")
}

/// A renamed machine whose document defines its address in the cluster.
#[tokio::test]
async fn what_changed_is_told_and_nothing_else_is() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let agent = machine.run_as("before");
    let mut session = coordinator.session().await;
    assert_eq!(session.hello.facts.hostname, "before");
    rename(&agent, "after").await;
    session.welcome_to(1, "lo", "127.0.0.0/8").await;
    let told = facts(&mut session).await;
    let expected = HostFacts {
        hostname: "after".to_owned(),
        internal_ip: Some("127.0.0.1".to_owned()),
        ..session.hello.facts.clone()
    };
    assert_eq!(told, expected);

    // The next session sends them from the start; a choice that matches no address yields none.
    session.end(tonic::Status::aborted("SessionReplaced: for the test")).await;
    let mut session = coordinator.session().await;
    assert_eq!(session.hello.facts, told, "the choice is kept");
    session.welcome_to(1, "lo", "192.0.2.0/24").await;
    assert_eq!(facts(&mut session).await, HostFacts { internal_ip: None, ..told.clone() });
    session.end(tonic::Status::aborted("SessionReplaced: for the test")).await;

    // Only changed facts are sent again, also during a session.
    let mut session = coordinator.session().await;
    session.welcome_to(1, "lo", "192.0.2.0/24").await;
    let mut told = session.hello.facts.clone();
    nothing_is_told_twice(&mut session, &mut told).await;
    rename(&agent, "again").await;
    while told.hostname != "again" {
        let new = facts(&mut session).await;
        assert_ne!(new, told, "told twice");
        told = new;
    }
    nothing_is_told_twice(&mut session, &mut told).await;
}

/// Checks five heartbeats, with about twenty readings of facts. This computer's addresses may change meanwhile.
async fn nothing_is_told_twice(session: &mut Session, told: &mut HostFacts) {
    let mut beats = 0;
    let beaten = session.next(|body| match body {
        FromAgent::Heartbeat(_) => {
            beats += 1;
            (beats == 5).then_some(())
        }
        FromAgent::Facts(facts) => {
            let new = HostFacts::try_from(facts).expect("sound ones");
            assert_ne!(new, *told, "told twice");
            *told = new;
            None
        }
        _ => None,
    });
    timeout(crate::coordinator::DEADLINE, beaten).await.expect("in time").expect("the session goes on");
}
