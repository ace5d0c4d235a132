//! Simulator, invariants and process harness of Muster's proofs.
