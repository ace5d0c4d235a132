//! Digest of a watcher's memory. Two states of the model are the same only if their pasts are, as far as an invariant
//! may still depend on them.

use std::hash::{Hash, Hasher};

use super::Watcher;

impl Hash for Watcher {
    fn hash<H: Hasher>(&self, to: &mut H) {
        (self.epoch, self.restored, self.recovering).hash(to);
        (&self.assigned, &self.accepted).hash(to);
        (&self.started, &self.succeeded, &self.rebooted, &self.hashes).hash(to);
        (&self.ledgers, &self.denied, &self.seen).hash(to);
    }
}
