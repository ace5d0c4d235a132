//! Stored secrets: the value is sealed; keys stay outside.

use std::{collections::BTreeSet, fmt, str::FromStr};

use muster_proto::model::{ClusterName, InvalidName, SecretName};
use serde::{Deserialize, Serialize};

/// Id of a secret: one that clusters share, or a cluster's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SecretId {
    /// The owning cluster. None: shared by the clusters in its row.
    pub cluster: Option<ClusterName>,
    /// Its name in params.
    pub name: SecretName,
}

/// `edge-7/registry`, or `registry`.
impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cluster {
            Some(cluster) => write!(f, "{cluster}/{}", self.name),
            None => fmt::Display::fmt(&self.name, f),
        }
    }
}

impl SecretId {
    /// The command that creates it again, after `musterctl`.
    #[must_use]
    pub fn create_command(&self) -> String {
        match &self.cluster {
            Some(cluster) => format!("secret create {} --cluster {cluster}", self.name),
            None => format!("secret create {}", self.name),
        }
    }
}

impl FromStr for SecretId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let (cluster, name) = match text.split_once('/') {
            Some((cluster, name)) => (Some(ClusterName::new(cluster)?), name),
            None => (None, text),
        };
        Ok(Self { cluster, name: SecretName::new(name)? })
    }
}

/// A value that only the key file opens. As text it is hex.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sealed(pub Vec<u8>);

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({} bytes)", self.0.len())
    }
}

impl From<Sealed> for String {
    fn from(sealed: Sealed) -> String {
        sealed.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for Sealed {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
        bytes.filter(|_| text.len().is_multiple_of(2)).map(Self).ok_or("a sealed value is hex digits, two a byte")
    }
}

/// The newest version of a secret. Older ones are dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRow {
    /// Its id.
    pub id: SecretId,
    /// Rises with every creation of any secret, so that every version is unique.
    pub version: u64,
    /// Creation in Unix milliseconds.
    pub created_at_ms: u64,
    /// Its sealed value.
    pub sealed: Sealed,
    /// Clusters with items that may refer to it, if it is shared. Any other cluster is excluded, because applying a
    /// manifest there would reveal the value.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub clusters: BTreeSet<ClusterName>,
}

impl SecretRow {
    /// May items of this cluster refer to it?
    #[must_use]
    pub fn is_for(&self, cluster: &ClusterName) -> bool {
        match &self.id.cluster {
            Some(own) => own == cluster,
            None => self.clusters.contains(cluster),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_sealed_values_read_back() {
        for text in ["registry", "edge-7/registry"] {
            assert_eq!(text.parse::<SecretId>().map(|id| id.to_string()).as_deref(), Ok(text));
        }
        for bad in ["", "/a", "a/", "a/b/c", "A"] {
            assert!(bad.parse::<SecretId>().is_err(), "{bad}");
        }
        let sealed = Sealed(vec![0, 15, 255]);
        let text = String::from(sealed.clone());
        assert_eq!(text, "000fff");
        assert_eq!(Sealed::try_from(text), Ok(sealed));
        for bad in ["0", "0g", "é"] {
            assert!(Sealed::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
