//! Answers a coordinator's questions about this control machine's part of a Kubernetes control plane: the closed set of
//! `ControlPlaneOp`, all read-only, in parallel with a running item. The core checks whether the caller is authorized.

mod admin_conf;
mod etcd;
mod file;

use std::{path::Path, sync::Arc, time::Duration};

use muster_proto::{
    convert::as_line,
    model::{ControlPlaneAnswer, ControlPlaneCall, ControlPlaneOp, ControlPlaneReply},
};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use crate::exec_item::with_sources;

/// Timeout of a question.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum of questions at once.
const CALLS_MAX: usize = 4;

/// Handler of questions.
#[derive(Clone, Debug)]
pub struct ControlPlane {
    free: Arc<Semaphore>,
}

impl Default for ControlPlane {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(CALLS_MAX)) }
    }
}

impl ControlPlane {
    /// Answers a question. There is always an answer, at the latest at the deadline.
    pub async fn answer(&self, call: ControlPlaneCall) -> ControlPlaneAnswer {
        let result = match self.free.try_acquire() {
            Err(_) => Err("the agent answers too many questions at once; it is asked again".to_owned()),
            Ok(_free) => timeout(ANSWER_DEADLINE, perform(call.op))
                .await
                .unwrap_or_else(|_| Err(format!("no answer within {} s", ANSWER_DEADLINE.as_secs()))),
        };
        ControlPlaneAnswer { id: call.id, result: result.map_err(|failure| as_line(&failure)) }
    }
}

async fn perform(op: ControlPlaneOp) -> Result<ControlPlaneReply, String> {
    match op {
        ControlPlaneOp::EtcdHealth(probe) => {
            etcd::health(&probe).await.map(ControlPlaneReply::EtcdHealth).map_err(|error| with_sources(&error))
        }
        ControlPlaneOp::AdminConf { path } => {
            let read = spawn_blocking(move || admin_conf::read(Path::new(&path)));
            let read = read.await.map_err(|_| "the agent is stopping".to_owned())?;
            read.map(ControlPlaneReply::AdminConf).map_err(|error| with_sources(&error))
        }
    }
}
