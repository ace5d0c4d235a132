use crate::{
    convert::{ATTEMPT_MAX, ITEMS_MAX, WireError, code, counted, hash, line, phase, text, wire_phase, word},
    model::{
        AssignedItem, Assignment, ClusterName, Epoch, Generation, IGNORE_CHANGES_MAX, ItemName, OnInterrupt,
        PARAM_BYTES_MAX, Permit, RETRIES_MAX, TIMEOUT_MAX, is_param_name, is_var_name,
    },
    variables::VARS_PARAM,
    wire,
};

/// Most late variables an assignment carries. Two exist today.
const VARIABLES_MAX: usize = 64;

impl From<&Assignment> for wire::Assignment {
    fn from(assignment: &Assignment) -> Self {
        Self {
            epoch: assignment.epoch.0,
            generation: assignment.generation.0,
            cluster: assignment.cluster.to_string(),
            items: assignment.items.iter().map(Into::into).collect(),
            variables: assignment.variables.clone(),
            digest: assignment.digest.0.to_vec(),
            code: assignment.code.bytes().to_vec(),
        }
    }
}

impl From<&AssignedItem> for wire::AssignedItem {
    fn from(item: &AssignedItem) -> Self {
        let on_interrupt = match item.on_interrupt {
            OnInterrupt::Rerun => wire::OnInterrupt::Rerun,
            OnInterrupt::Hold => wire::OnInterrupt::Hold,
        };
        Self {
            name: item.name.to_string(),
            runner: item.runner.clone(),
            version: item.version.clone(),
            params: item.params.clone(),
            phase: wire_phase(Some(item.phase)),
            hash: item.hash.0.to_vec(),
            timeout_ms: item.timeout_ms,
            retries: item.retries,
            on_interrupt: on_interrupt.into(),
            cleared_attempts: item.cleared_attempts,
            redo_up_to: item.redo_up_to.0,
            ignore_changes: item.ignore_changes.iter().cloned().collect(),
            permit: item.permit.map_or(0, |permit| permit.number),
            start_within_ms: item.permit.map_or(0, |permit| permit.start_within_ms),
        }
    }
}

impl TryFrom<wire::Assignment> for Assignment {
    type Error = WireError;

    fn try_from(wire: wire::Assignment) -> Result<Self, WireError> {
        if wire.items.len() > ITEMS_MAX {
            return Err(WireError::new("assignment.items", "too many"));
        }
        let items: Vec<AssignedItem> = wire.items.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
        let mut names: Vec<_> = items.iter().map(|item| &item.name).collect();
        names.sort_unstable();
        if names.windows(2).any(|two| two.first() == two.last()) {
            return Err(WireError::new("assignment.items", "a name twice"));
        }
        if !items.is_sorted_by_key(|item| item.phase) {
            return Err(WireError::new("assignment.items", "phases out of order"));
        }
        if wire.variables.len() > VARIABLES_MAX {
            return Err(WireError::new("assignment.variables", "too many"));
        }
        for (name, value) in &wire.variables {
            word("assignment.variables", name.clone())?;
            line("assignment.variables", value.clone())?;
        }
        let epoch = Epoch(counted("assignment.epoch", wire.epoch)?);
        let generation = Generation(counted("assignment.generation", wire.generation)?);
        // The item's own success would be ignored, and it would run again forever.
        if items.iter().any(|item| item.redo_up_to >= generation) {
            return Err(WireError::new("item.redo_up_to", "not a list before this one"));
        }
        Ok(Self {
            epoch,
            generation,
            cluster: ClusterName::new(wire.cluster)
                .map_err(|_| WireError::new("assignment.cluster", "not a DNS-1123 label"))?,
            items,
            variables: wire.variables,
            digest: hash("assignment.digest", &wire.digest)?,
            code: code("assignment.code", &wire.code)?,
        })
    }
}

impl TryFrom<wire::AssignedItem> for AssignedItem {
    type Error = WireError;

    fn try_from(wire: wire::AssignedItem) -> Result<Self, WireError> {
        for (name, value) in &wire.params {
            if !is_param_name(name) && name != VARS_PARAM {
                return Err(WireError::new("item.params", "a name is [a-zA-Z][a-zA-Z0-9_]{0,62}"));
            }
            text("item.params", value.clone(), PARAM_BYTES_MAX)?;
        }
        if wire.ignore_changes.len() > IGNORE_CHANGES_MAX {
            return Err(WireError::new("item.ignore_changes", "too many"));
        }
        if !wire.ignore_changes.iter().all(|name| is_param_name(name) || is_var_name(name)) {
            return Err(WireError::new("item.ignore_changes", "not the name of a param or of one of `vars`"));
        }
        if wire.timeout_ms == 0 {
            return Err(WireError::new("item.timeout_ms", "missing"));
        }
        if u128::from(wire.timeout_ms) > TIMEOUT_MAX.as_millis() {
            return Err(WireError::new("item.timeout_ms", "longer than any item may take"));
        }
        if wire.retries > RETRIES_MAX {
            return Err(WireError::new("item.retries", "more than a manifest may ask for"));
        }
        if wire.cleared_attempts > ATTEMPT_MAX {
            return Err(WireError::new("item.cleared_attempts", "nobody can have tried so often"));
        }
        // The agent would ask again forever for a permit that expires on receipt.
        if (wire.permit == 0) != (wire.start_within_ms == 0) {
            return Err(WireError::new("item.start_within_ms", "does not fit the permit"));
        }
        Ok(Self {
            name: ItemName::new(wire.name).map_err(|_| WireError::new("item.name", "not a DNS-1123 label"))?,
            runner: word("item.runner", wire.runner)?,
            version: word("item.version", wire.version)?,
            params: wire.params,
            phase: phase("item.phase", wire.phase)?.ok_or(WireError::new("item.phase", "missing"))?,
            hash: hash("item.hash", &wire.hash)?,
            timeout_ms: wire.timeout_ms,
            retries: wire.retries,
            on_interrupt: match wire::OnInterrupt::try_from(wire.on_interrupt) {
                Ok(wire::OnInterrupt::Rerun) => OnInterrupt::Rerun,
                Ok(wire::OnInterrupt::Hold) => OnInterrupt::Hold,
                Ok(wire::OnInterrupt::Unspecified) | Err(_) => {
                    return Err(WireError::new("item.on_interrupt", "unknown"));
                }
            },
            cleared_attempts: wire.cleared_attempts,
            redo_up_to: Generation(wire.redo_up_to),
            ignore_changes: wire.ignore_changes.into_iter().collect(),
            permit: (wire.permit != 0).then_some(Permit { number: wire.permit, start_within_ms: wire.start_within_ms }),
        })
    }
}

#[cfg(test)]
mod tests;
