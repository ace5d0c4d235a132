//! Authentication codes over the numbers that agents are told: epochs, generations, acknowledged events. An agent
//! presents a number with its code. This distinguishes a machine that invents numbers from one that has met a newer
//! store. PURE.

use std::{fmt, sync::Arc};

use aws_lc_rs::hmac;
use muster_proto::model::{AuthCode, Epoch, Generation, ItemHash, LedgerId, LedgerOrdinal, MachineId, Seq};

/// Length of the key.
pub const PROOF_KEY_BYTES: usize = 32;

/// A number that one machine was told.
#[derive(Clone, Copy, Debug)]
pub enum Told {
    /// The epoch of the coordinator that welcomed it.
    Epoch(Epoch),
    /// A list that it was given.
    List {
        /// Epoch of the coordinator that sent it.
        epoch: Epoch,
        /// Its number.
        generation: Generation,
        /// Digest of its content.
        digest: ItemHash,
    },
    /// An event that was acknowledged.
    Acked {
        /// The ledger that numbers it.
        ledger: LedgerId,
        /// Ordinal among the machine's ledgers.
        ordinal: LedgerOrdinal,
        /// Epoch of the coordinator that acknowledged it.
        epoch: Epoch,
        /// Its number.
        seq: Seq,
    },
}

/// The key of the codes. Every coordinator of a fleet has the same one ([`crate::pki::Ca::proof_key`]).
#[derive(Clone)]
pub struct ProofKey(Arc<hmac::Key>);

impl fmt::Debug for ProofKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProofKey")
    }
}

impl ProofKey {
    /// Create the key from its bytes.
    #[must_use]
    pub fn new(bytes: &[u8; PROOF_KEY_BYTES]) -> Self {
        Self(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    /// The code for what `machine` is told.
    #[must_use]
    pub fn code(&self, machine: MachineId, told: &Told) -> AuthCode {
        let mut code = [0; 32];
        code.copy_from_slice(hmac::sign(&self.0, &message(machine, told)).as_ref());
        AuthCode::new(code)
    }

    /// Was `machine` told this by a coordinator with this key?
    #[must_use]
    pub fn proves(&self, machine: MachineId, told: &Told, code: AuthCode) -> bool {
        hmac::verify(&self.0, &message(machine, told), code.bytes()).is_ok()
    }
}

/// The first byte is a type, and every part has a fixed length: different messages always have different bytes.
fn message(machine: MachineId, told: &Told) -> Vec<u8> {
    let machine = machine.0.into_bytes();
    match told {
        Told::Epoch(epoch) => [&[1][..], &machine, &epoch.0.to_be_bytes()].concat(),
        Told::List { epoch, generation, digest } => {
            [&[2][..], &machine, &epoch.0.to_be_bytes(), &generation.0.to_be_bytes(), &digest.0].concat()
        }
        Told::Acked { ledger, ordinal, epoch, seq } => [
            &[3][..],
            &machine,
            ledger.0.as_bytes(),
            &ordinal.0.to_be_bytes(),
            &epoch.0.to_be_bytes(),
            &seq.0.to_be_bytes(),
        ]
        .concat(),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn code_proves_one_number_of_one_machine() {
        let (key, other_key) = (ProofKey::new(&[1; 32]), ProofKey::new(&[2; 32]));
        let (machine, other) = (MachineId(Uuid::from_u128(1)), MachineId(Uuid::from_u128(2)));
        let list = |epoch, generation, digest| Told::List {
            epoch: Epoch(epoch),
            generation: Generation(generation),
            digest: ItemHash([digest; 32]),
        };
        let acked = |ledger, ordinal, epoch, seq| Told::Acked {
            ledger: LedgerId(Uuid::from_u128(ledger)),
            ordinal: LedgerOrdinal(ordinal),
            epoch: Epoch(epoch),
            seq: Seq(seq),
        };
        let all = [
            Told::Epoch(Epoch(5)),
            Told::Epoch(Epoch(6)),
            list(5, 1, 1),
            list(6, 1, 1),
            list(5, 2, 1),
            list(5, 1, 2),
            acked(1, 1, 5, 1),
            acked(2, 1, 5, 1),
            acked(1, 2, 5, 1),
            acked(1, 1, 6, 1),
            acked(1, 1, 5, 2),
        ];
        for (at, told) in all.iter().enumerate() {
            let code = key.code(machine, told);
            for (other_at, shown) in all.iter().enumerate() {
                assert_eq!(key.proves(machine, shown, code), at == other_at, "{told:?} {shown:?}");
            }
            assert!(!key.proves(other, told, code) && !other_key.proves(machine, told, code), "{told:?}");
            assert!(!key.proves(machine, told, AuthCode::NONE), "{told:?}");
        }
    }
}
