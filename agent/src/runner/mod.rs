//! The runners: the code that brings about one sort of item. They run inside exec-item, never inside the agent.

use muster_proto::model::RunnerKind;

/// Does this agent have the runner of this name?
#[must_use]
pub fn supported(name: &str) -> bool {
    matches!(name.parse(), Ok(RunnerKind::Bash | RunnerKind::Downloader))
}
