//! Cache of answers that are the same for every machine of a cluster.

use std::cell::OnceCell;

use muster_proto::model::Blocked;

use crate::plan::update::groups::Groups;

/// Answers shared by all machines, computed when the first of a thousand asks.
#[derive(Debug, Default)]
pub(in crate::plan) struct Cache {
    pub(in crate::plan) groups: OnceCell<Groups>,
    pub(in crate::plan) nobody_is_gone: OnceCell<Result<(), Blocked>>,
    /// Workers with a slot that need a person.
    pub(in crate::plan) stopped_workers: OnceCell<Option<String>>,
    pub(in crate::plan) before_update: OnceCell<Result<(), Blocked>>,
}
