//! Does a greeting show that this store is older than the fleet, or does its machine only say so? A gap between two
//! numbers tells neither: what proves a number is the code that a coordinator of this fleet gave with it.

use muster_proto::{
    convert::Hello,
    model::{AuthCode, Epoch, MachineId, Seq},
    plant::planted,
};

use crate::{
    facts::{Draft, MachineRow},
    proof::{ProofKey, Told},
};

/// What a greeting claims beyond this store, in one sentence.
#[derive(Debug)]
pub(super) enum Beyond {
    /// A coordinator of this fleet has told it: this store is older than the fleet.
    Proven(String),
    /// Nothing proves it: this concerns the machine alone.
    Unproven(String),
}

/// One number of a greeting that this store does not have.
struct Claim {
    text: String,
    /// What must have been told, by a coordinator of which epoch, and the code that is shown for it.
    shown: Option<(Told, Epoch, AuthCode)>,
}

/// Looks at every number of a greeting.
pub(super) fn beyond(draft: &Draft<'_>, id: MachineId, hello: &Hello, key: &ProofKey) -> Option<Beyond> {
    let Some(row) = draft.by_id(id) else {
        // Its certificate proves it: a record holds whom its coordinator signed for.
        let stranger =
            || format!("a machine that calls itself {} has a certificate of ours and is not in it", hello.name);
        return (draft.meta.recovered_epoch == Epoch(0)).then(|| Beyond::Proven(stranger()));
    };
    let mut unproven = None;
    for claim in [epoch(draft, row, hello), list(row, hello), acked(row, hello)].into_iter().flatten() {
        if is_proven(draft, id, &claim, key) {
            return Some(Beyond::Proven(claim.text));
        }
        unproven.get_or_insert(Beyond::Unproven(claim.text));
    }
    unproven
}

/// Was its epoch told by a coordinator of this fleet?
pub(super) fn proves_epoch(id: MachineId, hello: &Hello, key: &ProofKey) -> bool {
    key.proves(id, &Told::Epoch(hello.epoch), hello.epoch_code)
}

fn is_proven(draft: &Draft<'_>, id: MachineId, claim: &Claim, key: &ProofKey) -> bool {
    // Planted: whatever a machine says is believed.
    if planted("believe-unproven") {
        return true;
    }
    let Some((told, epoch, code)) = claim.shown.filter(|_| !planted("doubt-proven")) else { return false };
    // What was told before this store was recovered was asked of every machine then: one that has kept it to itself
    // does not show it now to stop the others.
    let is_over = epoch < draft.meta.recovered_epoch && !draft.meta.recovering;
    !is_over && key.proves(id, &told, code)
}

fn epoch(draft: &Draft<'_>, row: &MachineRow, hello: &Hello) -> Option<Claim> {
    let (theirs, ours) = (hello.epoch, draft.meta.epoch);
    (theirs > ours).then(|| Claim {
        text: format!("{} has seen epoch {theirs}, this one is {ours}", row.name),
        shown: Some((Told::Epoch(theirs), theirs, hello.epoch_code)),
    })
}

fn list(row: &MachineRow, hello: &Hello) -> Option<Claim> {
    let (theirs, ours) = (hello.generation, row.assigned.generation);
    // A store that is older by just so much that the numbers meet has given another list under this one.
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
    Some(Claim { text, shown })
}

fn acked(row: &MachineRow, hello: &Hello) -> Option<Claim> {
    let theirs = hello.acked_seq;
    let ours = recorded(row, hello);
    let shown = hello.acked.map(|acked| {
        let told = Told::Acked { ledger: hello.ledger_id, epoch: acked.epoch, seq: theirs };
        (told, acked.epoch, acked.code)
    });
    (theirs > ours)
        .then(|| Claim { text: format!("{} had event {theirs} acknowledged, the store has {ours}", row.name), shown })
}

/// The newest event that this store has of the ledger that greets.
fn recorded(row: &MachineRow, hello: &Hello) -> Seq {
    row.ledger.filter(|(ledger, _)| *ledger == hello.ledger_id).map_or(Seq(0), |(_, seq)| seq)
}

/// Takes the numbers that nothing proves out of a greeting.
pub(super) fn leave_out_claims(row: &MachineRow, hello: &mut Hello) {
    hello.generation = hello.generation.min(row.assigned.generation);
    hello.acked_seq = hello.acked_seq.min(recorded(row, hello));
}
