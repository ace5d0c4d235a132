//! Kinds of documents, by the words that operators and the Fleet service use for them.

/// Whether locks or requests are those of machines or of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Of {
    /// All.
    All,
    /// Those of machines.
    Nodes,
    /// Those of whole clusters.
    Clusters,
}

impl Of {
    /// Does it include a lock or request of this machine, or of the cluster (None)?
    #[must_use]
    pub const fn has(self, node: Option<&str>) -> bool {
        match self {
            Self::All => true,
            Self::Nodes => node.is_some(),
            Self::Clusters => node.is_none(),
        }
    }
}

/// A kind of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Clusters.
    Clusters,
    /// Machines.
    Machines,
    /// Rollouts.
    Rollouts,
    /// Workload locks of application controllers.
    Locks(Of),
    /// Maintenance requests.
    Requests(Of),
    /// States of the child cluster that updates change.
    ClusterStates,
    /// Join tokens.
    Tokens,
    /// Credentials of people and programs.
    Credentials,
    /// Secrets; their values are left out.
    Secrets,
    /// Lines of the audit record.
    Audit,
    /// Chains of the audit record, each with its lines.
    AuditChains,
}

impl Kind {
    /// All kinds, in the order in which they are listed.
    pub const ALL: [Self; 15] = [
        Self::Clusters,
        Self::Machines,
        Self::Rollouts,
        Self::Locks(Of::All),
        Self::Locks(Of::Nodes),
        Self::Locks(Of::Clusters),
        Self::Requests(Of::All),
        Self::Requests(Of::Nodes),
        Self::Requests(Of::Clusters),
        Self::ClusterStates,
        Self::Tokens,
        Self::Credentials,
        Self::Secrets,
        Self::Audit,
        Self::AuditChains,
    ];

    /// Its name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Clusters => "clusters",
            Self::Machines => "machines",
            Self::Rollouts => "rollouts",
            Self::Locks(Of::All) => "locks",
            Self::Locks(Of::Nodes) => "nodeworkloadlocks",
            Self::Locks(Of::Clusters) => "clusterworkloadlocks",
            Self::Requests(Of::All) => "requests",
            Self::Requests(Of::Nodes) => "nodemaintenancerequests",
            Self::Requests(Of::Clusters) => "clustermaintenancerequests",
            Self::ClusterStates => "clusterstates",
            Self::Tokens => "tokens",
            Self::Credentials => "credentials",
            Self::Secrets => "secrets",
            Self::Audit => "audit",
            Self::AuditChains => "auditchains",
        }
    }

    /// The name of one document of this kind.
    #[must_use]
    pub fn singular(self) -> &'static str {
        self.word().strip_suffix('s').unwrap_or(self.word())
    }

    /// The kind of this name.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}
