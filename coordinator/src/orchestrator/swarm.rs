//! A cluster's Docker Swarm, reached through the agents of its managers. It gets the inputs with which a machine joins;
//! `plan::swarm::joining` defines the questions and their order. Tokens are passed on and never stored. It also asks
//! the engine's questions about nodes that an update drains.

use std::time::Duration;

use muster_proto::{
    json::json,
    model::{ItemInput, MachineId, SWARM_JOIN_INPUT, SWARM_TOKEN_INPUT, SecretName, SwarmJoin, SwarmWay},
};

use crate::{
    core::{Input, SwarmQuestion},
    engine::EngineHandle,
    plan::swarm::{
        Entry,
        joining::{Joining, Next, Refused, Token},
    },
    server::{Asker, Sessions},
};

/// Get the inputs with which a machine joins the swarm, as the record says.
///
/// # Errors
/// [`Refused`]: the machine asks again later.
pub async fn enter(
    sessions: &Sessions,
    engine: &EngineHandle,
    machine: MachineId,
    entry: Entry,
) -> Result<(SwarmJoin, Option<Token>), Refused> {
    let Entry::Join { manager, managers, others } = entry else {
        return Ok((SwarmJoin { manager: true, way: SwarmWay::Init }, None));
    };
    let epoch = engine.facts().meta.epoch;
    let (mut joining, mut next) = Joining::begin(machine, manager, managers, others, engine.now().mono_ms);
    loop {
        match next {
            Next::Ask { machine: asked, op, timeout_ms } => {
                let (asker, time_limit) = (Asker::Machine(machine), Duration::from_millis(timeout_ms));
                let answer = sessions.call_swarm((asked, epoch), op, asker, time_limit).await;
                next = joining.answered(answer, engine.now().mono_ms);
            }
            Next::Record(entry) => {
                let node = entry.node.clone();
                let kept = engine.submit(Input::NodeLeftBehind { id: machine, entry }).await;
                kept.map_err(|error| Refused::Unrecorded { node, why: error.to_string() })?;
                next = joining.recorded(engine.now().mono_ms);
            }
            Next::Give { join, token } => return Ok((join, token)),
            Next::Refuse(refused) => return Err(refused),
        }
    }
}

/// Ask the engine's questions and return the answers, until the coordinator ends.
pub async fn ask(engine: EngineHandle, sessions: Sessions) {
    let Some(mut questions) = sessions.questions() else {
        tracing::error!("somebody else asks the swarms already: no drain goes on");
        return;
    };
    let epoch = engine.facts().meta.epoch;
    while let Some(question) = questions.recv().await {
        let (engine, sessions) = (engine.clone(), sessions.clone());
        tokio::spawn(async move {
            let SwarmQuestion { number, about, agent, op, timeout_ms } = question;
            let time_limit = Duration::from_millis(timeout_ms);
            let result = sessions.call_swarm((agent, epoch), op, Asker::Engine, time_limit).await;
            // The engine may have ended.
            drop(engine.notify(Input::SwarmAnswered { about, number, result }).await);
        });
    }
}

/// Inputs of the machine's swarm-join: how to join, and the token, which is secret.
#[must_use]
pub fn inputs(join: &SwarmJoin, token: Option<Token>) -> Vec<ItemInput> {
    let way = (SWARM_JOIN_INPUT, json(join), false);
    let token = token.map(|token| (SWARM_TOKEN_INPUT, token.into_bytes(), true));
    let input = |(name, value, secret)| Some(ItemInput { name: SecretName::new(name).ok()?, value, secret });
    [Some(way), token].into_iter().flatten().filter_map(input).collect()
}
