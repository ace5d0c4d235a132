//! The etcd members of control machines, each asked for its own health by its machine's agent.

use std::time::Duration;

use futures_util::future::join_all;
use muster_proto::model::{ControlPlaneOp, ControlPlaneReply, Epoch, EtcdHealth};

use crate::{
    facts::kubernetes::{ControlServer, ControlState, EtcdState},
    server::Sessions,
};

/// Time for an agent's answer. The agent itself gives up after 5 s.
const ANSWER_MAX: Duration = Duration::from_secs(8);

/// The members of these machines, in their order. None: it is not asked.
pub(super) async fn states(sessions: &Sessions, epoch: Epoch, servers: &[ControlServer]) -> Vec<Option<EtcdState>> {
    join_all(servers.iter().map(|server| async {
        let question = server.etcd.as_ref()?;
        let op = ControlPlaneOp::EtcdHealth(question.probe.clone());
        Some(match sessions.call_control_plane((question.agent, epoch), op, ANSWER_MAX).await {
            Ok(ControlPlaneReply::EtcdHealth(EtcdHealth::Healthy)) => EtcdState::Healthy,
            Ok(ControlPlaneReply::EtcdHealth(EtcdHealth::Unhealthy(reason))) => EtcdState::Unhealthy(reason),
            Ok(ControlPlaneReply::AdminConf(_)) => EtcdState::Unknown("its agent answered another question".to_owned()),
            Err(why) => EtcdState::Unknown(why),
        })
    }))
    .await
}

/// Adds them to what the API servers said.
pub(super) fn add(machines: &mut [ControlState], states: Vec<Option<EtcdState>>) {
    for (machine, etcd) in machines.iter_mut().zip(states) {
        machine.etcd = etcd;
    }
}
