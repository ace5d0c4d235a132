use serde::{Deserialize, Serialize};

use super::Document;

/// A secret as shown to people; its value is left out.
pub type Secret = Document<SecretSpec, SecretStatus>;

/// Which items may refer to a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretSpec {
    /// Only items of this cluster; none = it is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Only items of these clusters, if it is shared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
}

/// Known data of a secret besides its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretStatus {
    /// Rises with every creation of any secret.
    pub version: u64,
    /// The items that refer to it, `cluster/item`.
    pub used_by: Vec<String>,
}
