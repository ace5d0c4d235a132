//! Does a Hello prove that this store is older than the fleet, or is it only a claim? A gap between two numbers proves
//! neither. A number is proven by the code that a coordinator of this fleet issued with it.

use std::sync::Arc;

use muster_proto::{
    convert::Hello,
    model::{AuthCode, Epoch, LedgerOrdinal, MachineId, Seq},
    seeded_bug::seeded_bug,
};

use crate::{
    facts::{MachineRow, Transaction, UnprovenClaim},
    proof::{ProofKey, Told},
};

/// What a Hello claims beyond this store.
#[derive(Debug, Default)]
pub(super) struct Beyond {
    /// The first number that a coordinator of this fleet issued, in one sentence: this store is older than the fleet.
    pub(super) proven: Option<String>,
    /// Is a newer epoch among the proven numbers? A recovery cannot adopt that: another coordinator has run since.
    pub(super) proves_epoch: bool,
    /// The first unproven number. It concerns this machine alone.
    pub(super) unproven: Option<UnprovenClaim>,
}

/// One number in a Hello that this store lacks.
struct Claim {
    number: Number,
    text: String,
    /// What a coordinator issued, its epoch, and the presented code.
    shown: Option<(Told, Epoch, AuthCode)>,
    /// It belongs to a ledger that, by this store, another ledger of this machine replaced.
    of_former_ledger: bool,
}

/// The numbers of a Hello.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Number {
    Epoch,
    Generation,
    Acked,
}

/// Checks every number of a Hello by itself, and takes the unproven ones out of it.
pub(super) fn beyond(tx: &Transaction<'_>, id: MachineId, hello: &mut Hello, key: &ProofKey) -> Beyond {
    let mut beyond = Beyond::default();
    let Some(row) = tx.by_id(id) else {
        // Its certificate proves it: a record contains every machine for which its coordinator signed a certificate.
        let stranger =
            || format!("a machine that calls itself {} has a certificate of ours and is not in it", hello.name);
        beyond.proven = (tx.meta.recovered_epoch == Epoch(0)).then(stranger);
        return beyond;
    };
    let row = Arc::clone(row);
    for claim in [epoch(tx, &row, hello), list(&row, hello), acked(&row, hello)].into_iter().flatten() {
        let number = claim.number;
        match weigh(tx, id, claim, key) {
            Ok(evidence) => {
                beyond.proves_epoch |= number == Number::Epoch;
                beyond.proven.get_or_insert(evidence);
            }
            Err(claim) => {
                leave_out(tx, &row, hello, number);
                beyond.unproven.get_or_insert(claim);
            }
        }
    }
    beyond
}

/// The sentence of a proven claim.
fn weigh(tx: &Transaction<'_>, id: MachineId, claim: Claim, key: &ProofKey) -> Result<String, UnprovenClaim> {
    // Seeded bug: believe every claim of a machine.
    if seeded_bug("believe-unproven") {
        return Ok(claim.text);
    }
    let told = claim.shown.filter(|(told, _, code)| key.proves(id, told, *code) && !seeded_bug("doubt-proven"));
    // The recovery asked every machine for what was issued before it. If a machine withheld it then, it cannot stop the
    // others now.
    let is_over = |epoch: Epoch| epoch < tx.meta.recovered_epoch && !tx.meta.recovering;
    match told {
        // Seeded bug: accept a former ledger of a machine as proof that the store is old.
        Some(_) if claim.of_former_ledger && !seeded_bug("ignore-ledger-ordinal") => {
            Err(UnprovenClaim::FormerLedger(claim.text))
        }
        Some((_, epoch, _)) if !is_over(epoch) => Ok(claim.text),
        Some(_) | None => Err(UnprovenClaim::NoCode(claim.text)),
    }
}

fn epoch(tx: &Transaction<'_>, row: &MachineRow, hello: &Hello) -> Option<Claim> {
    let (theirs, ours) = (hello.epoch, tx.meta.epoch);
    (theirs > ours).then(|| Claim {
        number: Number::Epoch,
        text: format!("{} has seen epoch {theirs}, this one is {ours}", row.name),
        shown: Some((Told::Epoch(theirs), theirs, hello.epoch_code)),
        of_former_ledger: false,
    })
}

fn list(row: &MachineRow, hello: &Hello) -> Option<Claim> {
    let (theirs, ours) = (hello.generation, row.assigned.generation);
    // If an older store has reached the same number, it has given out another list under it.
    let differs = || row.assigned.digest.is_some_and(|ours| hello.list.is_some_and(|list| list.digest != ours));
    let text = if theirs > ours {
        format!("{} has generation {theirs}, the store has {ours}", row.name)
    } else if theirs == ours && differs() {
        format!("{} was given another list under generation {ours}", row.name)
    } else {
        return None;
    };
    let shown = hello.list.map(|list| {
        let told = Told::List { epoch: list.epoch, generation: theirs, digest: list.digest };
        (told, list.epoch, list.code)
    });
    Some(Claim { number: Number::Generation, text, shown, of_former_ledger: false })
}

fn acked(row: &MachineRow, hello: &Hello) -> Option<Claim> {
    let theirs = hello.acked_seq;
    let ours = recorded(row, hello);
    let of_former_ledger = hello.acked.is_some_and(|acked| acked.ordinal < row.ledger_ordinal);
    let text = || match of_former_ledger {
        true => format!("{} had event {theirs} of ledger {} acknowledged", row.name, hello.ledger_id),
        false => format!("{} had event {theirs} acknowledged, the store has {ours}", row.name),
    };
    let number = Number::Acked;
    (theirs > ours).then(|| Claim { number, text: text(), shown: shown_ack(hello), of_former_ledger })
}

fn shown_ack(hello: &Hello) -> Option<(Told, Epoch, AuthCode)> {
    let acked = hello.acked?;
    let (ledger, ordinal, epoch) = (hello.ledger_id, acked.ordinal, acked.epoch);
    Some((Told::Acked { ledger, ordinal, epoch, seq: hello.acked_seq }, epoch, acked.code))
}

/// Ordinal under which an event of its ledger was provably acknowledged. 0: unproven.
pub(super) fn proven_ordinal(id: MachineId, hello: &Hello, key: &ProofKey) -> LedgerOrdinal {
    let proven = shown_ack(hello).filter(|(told, _, code)| key.proves(id, told, *code));
    proven.and(hello.acked).map_or(LedgerOrdinal(0), |acked| acked.ordinal)
}

/// The newest event that this store has of the agent's ledger.
fn recorded(row: &MachineRow, hello: &Hello) -> Seq {
    row.ledger.filter(|(ledger, _)| *ledger == hello.ledger_id).map_or(Seq(0), |(_, seq)| seq)
}

/// Takes an unproven number out of a Hello.
fn leave_out(tx: &Transaction<'_>, row: &MachineRow, hello: &mut Hello, number: Number) {
    match number {
        Number::Epoch => hello.epoch = hello.epoch.min(tx.meta.epoch),
        Number::Generation => hello.generation = hello.generation.min(row.assigned.generation),
        Number::Acked => hello.acked_seq = hello.acked_seq.min(recorded(row, hello)),
    }
}
