use std::collections::BTreeSet;

use crate::{
    convert::{ITEMS_MAX, WireError, code, count, hash, phase, wire_phase, word},
    model::{
        AckProof, AuthCode, Epoch, Generation, HostFacts, ItemName, ItemStatus, LedgerId, LedgerOrdinal, ListProof,
        MachineName, Phase, Seq,
    },
    wire,
};

/// First message of an agent: the contents of its ledger and the facts of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Name of the machine, as enrolled.
    pub name: MachineName,
    /// Ledger that the following events come from.
    pub ledger_id: LedgerId,
    /// Version of the agent binary.
    pub agent_version: String,
    /// Highest epoch seen so far.
    pub epoch: Epoch,
    /// Highest generation accepted so far.
    pub generation: Generation,
    /// Highest event acknowledged so far.
    pub acked_seq: Seq,
    /// Highest phase in the accepted assignment.
    pub max_phase: Option<Phase>,
    /// Status of every item slot.
    pub statuses: Vec<ItemStatus>,
    /// Facts of the machine.
    pub facts: HostFacts,
    /// An item of the accepted assignment runs or is due: the agent continues by itself.
    pub busy: bool,
    /// Proof of the epoch.
    pub epoch_code: AuthCode,
    /// Proof of the generation, once an assignment was accepted.
    pub list: Option<ListProof>,
    /// Proof of the highest acknowledged event, if there is one.
    pub acked: Option<AckProof>,
}

impl From<&Hello> for wire::Hello {
    fn from(hello: &Hello) -> Self {
        Self {
            name: hello.name.to_string(),
            ledger_id: hello.ledger_id.to_string(),
            agent_version: hello.agent_version.clone(),
            epoch: hello.epoch.0,
            generation: hello.generation.0,
            acked_seq: hello.acked_seq.0,
            max_phase: wire_phase(hello.max_phase),
            statuses: hello.statuses.iter().map(Into::into).collect(),
            facts: Some((&hello.facts).into()),
            busy: hello.busy,
            epoch_code: hello.epoch_code.bytes().to_vec(),
            list: hello.list.map(|list| wire::ListProof {
                epoch: list.epoch.0,
                digest: list.digest.0.to_vec(),
                code: list.code.bytes().to_vec(),
            }),
            acked: hello.acked.map(Into::into),
        }
    }
}

impl TryFrom<wire::Hello> for Hello {
    type Error = WireError;

    fn try_from(wire: wire::Hello) -> Result<Self, WireError> {
        if wire.statuses.len() > ITEMS_MAX {
            return Err(WireError::new("hello.statuses", "too many"));
        }
        let max_phase = phase("hello.max_phase", wire.max_phase)?;
        if wire.generation == 0 && max_phase.is_some() {
            return Err(WireError::new("hello.max_phase", "without an assignment there is none"));
        }
        let statuses: Vec<ItemStatus> = wire.statuses.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
        let names: BTreeSet<&ItemName> = statuses.iter().map(|status| &status.name).collect();
        if names.len() < statuses.len() {
            return Err(WireError::new("hello.statuses", "a name twice"));
        }
        Ok(Self {
            name: MachineName::new(wire.name).map_err(|_| WireError::new("hello.name", "not a DNS-1123 label"))?,
            ledger_id: wire.ledger_id.parse().map_err(|_| WireError::new("hello.ledger_id", "not a UUID"))?,
            agent_version: word("hello.agent_version", wire.agent_version)?,
            epoch: Epoch(count("hello.epoch", wire.epoch)?),
            generation: Generation(count("hello.generation", wire.generation)?),
            acked_seq: Seq(count("hello.acked_seq", wire.acked_seq)?),
            max_phase,
            statuses,
            facts: HostFacts::try_from(wire.facts.ok_or(WireError::new("hello.facts", "missing"))?)?,
            busy: wire.busy,
            epoch_code: code("hello.epoch_code", &wire.epoch_code)?,
            list: wire.list.map(TryInto::try_into).transpose()?,
            acked: wire.acked.map(TryInto::try_into).transpose()?,
        })
    }
}

impl TryFrom<wire::ListProof> for ListProof {
    type Error = WireError;

    fn try_from(wire: wire::ListProof) -> Result<Self, WireError> {
        Ok(Self {
            epoch: Epoch(count("hello.list.epoch", wire.epoch)?),
            digest: hash("hello.list.digest", &wire.digest)?,
            code: code("hello.list.code", &wire.code)?,
        })
    }
}

impl TryFrom<wire::AckProof> for AckProof {
    type Error = WireError;

    fn try_from(wire: wire::AckProof) -> Result<Self, WireError> {
        Ok(Self {
            epoch: Epoch(count("ack_proof.epoch", wire.epoch)?),
            ordinal: LedgerOrdinal(count("ack_proof.ordinal", wire.ordinal)?),
            code: code("ack_proof.code", &wire.code)?,
        })
    }
}

impl From<AckProof> for wire::AckProof {
    fn from(proof: AckProof) -> Self {
        Self { epoch: proof.epoch.0, code: proof.code.bytes().to_vec(), ordinal: proof.ordinal.0 }
    }
}

#[cfg(test)]
mod tests;
