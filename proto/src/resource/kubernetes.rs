//! What a check of a cluster's Kubernetes found: the output of `musterctl kubernetes check`.

use serde::{Deserialize, Serialize};

/// The findings of a check: the answer of `CheckKubernetes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesCheck {
    /// The cluster.
    pub cluster: String,
    /// The sections, in their order.
    pub sections: Vec<CheckSection>,
}

impl KubernetesCheck {
    /// Number of findings that stand in the way of an update.
    #[must_use]
    pub fn problems(&self) -> usize {
        let lines = self.sections.iter().flat_map(|section| &section.lines);
        lines.filter(|line| line.kind == LineKind::Problem).count()
    }
}

/// Findings of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckSection {
    /// What they are about.
    pub title: String,
    /// The findings.
    pub lines: Vec<CheckLine>,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckLine {
    /// Does it stand in the way?
    pub kind: LineKind,
    /// The finding.
    pub text: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Weight of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LineKind {
    /// As it should be.
    Ok,
    /// Worth knowing; it does not stand in the way.
    Note,
    /// It stands in the way of an update.
    Problem,
}
