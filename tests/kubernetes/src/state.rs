//! The state that the API servers and the controllers share.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    access::Token,
    controllers::Controller,
    faults::Fault,
    kinds::{self, Kind},
    request_log::LoggedRequest,
    store::Store,
};

/// Everything that survives a restart of an API server.
#[derive(Debug)]
pub(super) struct State {
    pub(super) store: Store,
    pub(super) kinds: Vec<Arc<Kind>>,
    /// Resources of definitions that nobody has read since: the first read is refused.
    pub(super) initializing: BTreeSet<String>,
    pub(super) tokens: Vec<Token>,
    pub(super) faults: Vec<Fault>,
    pub(super) log: Vec<LoggedRequest>,
    pub(super) paused: BTreeSet<Controller>,
    /// Servers with a `/readyz` that answers 500.
    pub(super) unready: BTreeSet<usize>,
    /// Images that no registry has: containers of these do not start.
    pub(super) missing_images: BTreeSet<String>,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            store: Store::new(),
            kinds: kinds::built_in().into_iter().map(Arc::new).collect(),
            initializing: BTreeSet::new(),
            tokens: Vec::new(),
            faults: Vec::new(),
            log: Vec::new(),
            paused: BTreeSet::new(),
            unready: BTreeSet::new(),
            missing_images: BTreeSet::new(),
        }
    }

    /// Serve a kind, in the place of one of its name and version.
    pub(super) fn serve(&mut self, kind: Kind) {
        self.kinds.retain(|known| (known.resource(), &known.version) != (kind.resource(), &kind.version));
        self.kinds.push(Arc::new(kind));
    }

    /// Serve a resource no more, in any version.
    pub(super) fn withdraw(&mut self, resource: &str) {
        self.kinds.retain(|known| known.resource() != resource);
        self.initializing.remove(resource);
    }

    /// The kind of a resource such as `pods` or `poddisruptionbudgets.policy`.
    pub(super) fn kind(&self, resource: &str) -> Option<Arc<Kind>> {
        self.kinds.iter().find(|kind| kind.resource() == resource).cloned()
    }
}

/// Lock the state. A test that panicked while it held the lock must not hide its own message.
pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
