//! Muster's agent as a library: the pure core, ledger, runners, link.
