//! Rows of the store and changes in a batch: bytes under a table and a key. Only the facts (`facts.rs`) interpret the
//! bytes. PURE: the core imports this file.

/// A table of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Single values of the coordinator: its epoch, the record's format.
    Meta,
    /// The certificate authority. Written once by `init`, read by `pki.rs`; outside the facts.
    Pki,
    /// Clusters, by name.
    Clusters,
    /// Versions of cluster specs, by `<cluster>/<version>`.
    Specs,
    /// Machines, by name.
    Machines,
    /// The newest attempt at each item, by `<machine>/<item>`.
    Statuses,
    /// Machine identities that are refused, by id.
    Denied,
    /// Credentials of people and programs, by role and name; their keys are left out.
    Credentials,
    /// Rollouts, by name.
    Rollouts,
    /// Workload locks, by `<cluster>/<controller>/<machine>`; the machine is left out for the cluster's own.
    Locks,
    /// Join tokens, by id; only a digest of the secret is stored.
    Tokens,
    /// Secrets, by `<cluster>/<name>` or `<name>`; their values are sealed with the key file.
    Secrets,
    /// The audit record, by number.
    Audit,
}

impl Table {
    /// Every table.
    pub const ALL: &'static [Self] = &[
        Self::Meta,
        Self::Pki,
        Self::Clusters,
        Self::Specs,
        Self::Machines,
        Self::Statuses,
        Self::Denied,
        Self::Credentials,
        Self::Rollouts,
        Self::Locks,
        Self::Tokens,
        Self::Secrets,
        Self::Audit,
    ];

    /// Its name on disk and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Pki => "pki",
            Self::Clusters => "clusters",
            Self::Specs => "specs",
            Self::Machines => "machines",
            Self::Statuses => "statuses",
            Self::Denied => "denied",
            Self::Credentials => "credentials",
            Self::Rollouts => "rollouts",
            Self::Locks => "locks",
            Self::Tokens => "tokens",
            Self::Secrets => "secrets",
            Self::Audit => "audit",
        }
    }
}

/// One row: its table, its key, its value.
pub type Row = (Table, String, Vec<u8>);

/// One change of a batch. A batch becomes durable as a whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Set the row to this value.
    Put {
        /// Its table.
        table: Table,
        /// Its key.
        key: String,
        /// The new value.
        value: Vec<u8>,
    },
    /// Delete the row, if it exists.
    Delete {
        /// Its table.
        table: Table,
        /// Its key.
        key: String,
    },
}
