use crate::{
    OUTPUT_TAIL_BYTES_MAX,
    convert::{ATTEMPT_MAX, RESULT_BYTES_MAX, WireError, counted, hash, line, text},
    model::{Generation, ItemName, ItemState, ItemStatus},
    wire,
};

impl From<&ItemStatus> for wire::ItemStatus {
    fn from(status: &ItemStatus) -> Self {
        let (state, exit_code, retryable) = match status.state {
            ItemState::Running => (wire::ItemState::Running, 0, false),
            ItemState::Succeeded => (wire::ItemState::Succeeded, 0, false),
            ItemState::Failed { exit_code, retryable } => (wire::ItemState::Failed, exit_code, retryable),
            ItemState::Indeterminate => (wire::ItemState::Indeterminate, 0, false),
        };
        Self {
            name: status.name.to_string(),
            hash: status.hash.0.to_vec(),
            state: state.into(),
            attempt: status.attempt,
            generation: status.generation.0,
            exit_code,
            retryable,
            message: status.message.clone(),
            output_tail: status.output_tail.clone(),
            result_json: status.result_json.clone().unwrap_or_default(),
            started_at_ms: status.started_at_ms,
            finished_at_ms: status.finished_at_ms.unwrap_or_default(),
        }
    }
}

impl TryFrom<wire::ItemStatus> for ItemStatus {
    type Error = WireError;

    fn try_from(wire: wire::ItemStatus) -> Result<Self, WireError> {
        let state = match wire::ItemState::try_from(wire.state) {
            Ok(wire::ItemState::Running) => ItemState::Running,
            Ok(wire::ItemState::Succeeded) => ItemState::Succeeded,
            Ok(wire::ItemState::Failed) => ItemState::Failed { exit_code: wire.exit_code, retryable: wire.retryable },
            Ok(wire::ItemState::Indeterminate) => ItemState::Indeterminate,
            Ok(wire::ItemState::Unspecified) | Err(_) => return Err(WireError::new("status.state", "unknown")),
        };
        let failed = matches!(state, ItemState::Failed { .. });
        if failed != (wire.exit_code != 0) {
            return Err(WireError::new("status.exit_code", "does not fit the state"));
        }
        if wire.retryable && !failed {
            return Err(WireError::new("status.retryable", "does not fit the state"));
        }
        if wire.attempt == 0 {
            return Err(WireError::new("status.attempt", "counts from 1"));
        }
        if wire.attempt > ATTEMPT_MAX {
            return Err(WireError::new("status.attempt", "nobody can have tried so often"));
        }
        if (state == ItemState::Running) != (wire.finished_at_ms == 0) {
            return Err(WireError::new("status.finished_at_ms", "does not fit the state"));
        }
        let result_json = text("status.result_json", wire.result_json, RESULT_BYTES_MAX)?;
        if !result_json.is_empty() && serde_json::from_str::<serde_json::Value>(&result_json).is_err() {
            return Err(WireError::new("status.result_json", "not JSON"));
        }
        Ok(Self {
            name: ItemName::new(wire.name).map_err(|_| WireError::new("status.name", "not a DNS-1123 label"))?,
            hash: hash("status.hash", &wire.hash)?,
            state,
            attempt: wire.attempt,
            generation: Generation(counted("status.generation", wire.generation)?),
            message: line("status.message", wire.message)?,
            output_tail: text("status.output_tail", wire.output_tail, OUTPUT_TAIL_BYTES_MAX)?,
            result_json: Some(result_json).filter(|json| !json.is_empty()),
            started_at_ms: wire.started_at_ms,
            finished_at_ms: Some(wire.finished_at_ms).filter(|ms| *ms != 0),
        })
    }
}

#[cfg(test)]
mod tests;
