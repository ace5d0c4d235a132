use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{AuthCode, ClusterName, Epoch, Generation, ItemName, ItemProgress, ListProof, status::ItemStatus};

/// Default number of attempts after the first.
pub const RETRIES_DEFAULT: u32 = 3;
/// Most `retries` a manifest may set.
pub const RETRIES_MAX: u32 = 100;
/// Default time limit of an item.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Default time limit of MKE items: MKE's commands take long, and an interrupted one leaves a cluster half done.
const TIMEOUT_DEFAULT_OF_MKE: Duration = Duration::from_secs(2 * 60 * 60);
/// Longest `timeout` a manifest may set.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Longest name of a param.
pub const PARAM_NAME_BYTES_MAX: usize = 63;
/// Longest value of a param.
pub const PARAM_BYTES_MAX: usize = 256 * 1024;

/// Is `text` a param's name, `[a-zA-Z][a-zA-Z0-9_]{0,62}`?
#[must_use]
pub fn is_param_name(text: &str) -> bool {
    text.len() <= PARAM_NAME_BYTES_MAX
        && text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Longest name of one of an item's `vars`.
pub const VAR_NAME_BYTES_MAX: usize = 128;
/// Deepest nesting of an item's `vars`; they themselves are one level.
pub const VARS_DEPTH_MAX: usize = 16;
/// Most names in an item's `ignoreChanges`.
pub const IGNORE_CHANGES_MAX: usize = 256;

/// Is `text` a name that Ansible accepts for a variable: letters, digits and `_`, with a digit only after the first
/// character? Names that begin with `__ansible` belong to Ansible.
#[must_use]
pub fn is_var_name(text: &str) -> bool {
    (1..=VAR_NAME_BYTES_MAX).contains(&text.len())
        && !text.starts_with("__ansible")
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// An unknown word; the message lists `known`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected one of: {}", known.join(", "))]
pub struct Unknown {
    /// All valid words.
    pub known: &'static [&'static str],
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $word)] $variant,)+ }

        impl $name {
            /// All values, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// Their words, in the same order.
            pub const WORDS: &'static [&'static str] = &[$($word,)+];

            /// The word used in manifests and on the command line.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl FromStr for $name {
            type Err = Unknown;
            fn from_str(text: &str) -> Result<Self, Unknown> {
                match text { $($word => Ok(Self::$variant),)+ _ => Err(Unknown { known: Self::WORDS }) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words!(
    /// Role of a machine in its cluster.
    MachineType {
        /// Runs the control plane; at most one of them is down at a time.
        Control = "control",
        /// Runs workloads.
        Worker = "worker",
        /// Known to Muster, but unmanaged.
        Unassigned = "unassigned",
    }
);

words!(
    /// When an item runs. The order is the order of a machine's life.
    Phase {
        /// Before the machine's turn: downloads. Never disruptive.
        Prepare = "prepare",
        /// At the machine's turn.
        Deploy = "deploy",
        /// After the set of control machines changed.
        Reconfigure = "reconfigure",
    }
);

words!(
    /// The code that carries out one kind of item.
    RunnerKind {
        /// Fetches a file, verifies its digest, may unpack it.
        Downloader = "downloader",
        /// Runs a script.
        Bash = "bash",
        /// Installs packages with apt or dnf.
        Package = "package",
        /// Starts, stops, restarts, enables or reloads a systemd unit.
        Service = "service",
        /// Runs a playbook against this machine.
        Ansible = "ansible",
        /// Initialises or joins the Docker Swarm.
        SwarmJoin = "swarm-join",
        /// Backs up the swarm's state.
        SwarmBackup = "swarm-backup",
        /// Installs, upgrades or backs up MKE.
        Mke = "mke",
        /// Reboots the machine.
        Reboot = "reboot",
        /// Restarts the Tungsten Fabric vRouter of this machine.
        VrouterRestart = "vrouter-restart",
    }
);

words!(
    /// What to do with an item whose process was lost before its outcome was recorded.
    OnInterrupt {
        /// It is safe to run again.
        Rerun = "rerun",
        /// A person decides: `retry`, `skip` or `accept`.
        Hold = "hold",
    }
);

pub(crate) use words;

impl RunnerKind {
    /// Time limit of one attempt unless the manifest says otherwise.
    #[must_use]
    pub const fn timeout_default(self) -> Duration {
        match self {
            Self::Mke => TIMEOUT_DEFAULT_OF_MKE,
            Self::Bash
            | Self::Ansible
            | Self::Downloader
            | Self::Package
            | Self::Service
            | Self::SwarmJoin
            | Self::SwarmBackup
            | Self::Reboot
            | Self::VrouterRestart => TIMEOUT_DEFAULT,
        }
    }

    /// Default handling of an interrupted item. Scripts and the like are held, because their partial effect is unknown;
    /// the other runners inspect the machine before they act.
    #[must_use]
    pub const fn on_interrupt_default(self) -> OnInterrupt {
        match self {
            Self::Bash | Self::Ansible | Self::Mke => OnInterrupt::Hold,
            Self::Downloader
            | Self::Package
            | Self::Service
            | Self::SwarmJoin
            | Self::SwarmBackup
            | Self::Reboot
            | Self::VrouterRestart => OnInterrupt::Rerun,
        }
    }
}

/// SHA-256 over the canonical form of an item (src/hash.rs). Same hash = already done.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ItemHash(pub [u8; 32]);

/// A hex digit; `?` for a value of more than four bits.
fn digit(four_bits: u8) -> u8 {
    b"0123456789abcdef".get(usize::from(four_bits)).copied().unwrap_or(b'?')
}

impl fmt::Display for ItemHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every list contains hashes, and every decision compares lists: format all bytes at once.
        let mut text = [0; 64];
        for (two, byte) in text.chunks_exact_mut(2).zip(self.0) {
            two.copy_from_slice(&[digit(byte >> 4), digit(byte & 0xf)]);
        }
        f.write_str(str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for ItemHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<ItemHash> for String {
    fn from(hash: ItemHash) -> String {
        hash.to_string()
    }
}

impl TryFrom<String> for ItemHash {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, &'static str> {
        let mut hash = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err("a hash has 64 hex digits");
        }
        for (byte, at) in hash.iter_mut().zip((0..64).step_by(2)) {
            *byte = text
                .get(at..at + 2)
                .and_then(|two| u8::from_str_radix(two, 16).ok())
                .ok_or("a hash has 64 hex digits")?;
        }
        Ok(Self(hash))
    }
}

/// One unit of desired machine state as a manifest states it: a template whose variables are still to be replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateItem {
    /// Its slot in the status; stays the same across versions.
    pub name: ItemName,
    /// Its runner.
    pub runner: RunnerKind,
    /// Free text; part of the hash.
    pub version: String,
    /// The runner's inputs.
    pub params: BTreeMap<String, String>,
    /// When it runs.
    pub phase: Phase,
    /// Time limit of one attempt, in milliseconds.
    #[serde(rename = "timeout", alias = "timeoutMs", with = "super::duration")]
    pub timeout_ms: u64,
    /// Attempts after the first.
    pub retries: u32,
    /// What to do when its process is lost.
    pub on_interrupt: OnInterrupt,
    /// `Some(false)`: harmless to workloads even on a machine that serves them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub disruptive: Option<bool>,
    /// Params and `vars` that its hash leaves out: a change of them alone does not run it again.
    #[serde(skip_serializing_if = "BTreeSet::is_empty", default)]
    pub ignore_changes: BTreeSet<String>,
}

/// One StateItem as one machine should have it. Late variables are still text in `params` (src/variables.rs).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedItem {
    /// Its slot in the status.
    pub name: ItemName,
    /// Its runner, as text: an agent may be older than the manifest and then reports `RunnerNotSupported`.
    pub runner: String,
    /// Free text; part of the hash.
    pub version: String,
    /// The runner's inputs.
    pub params: BTreeMap<String, String>,
    /// When it runs.
    pub phase: Phase,
    /// Same hash = already done.
    pub hash: ItemHash,
    /// Time limit of one attempt, in milliseconds.
    pub timeout_ms: u64,
    /// Attempts after the first.
    pub retries: u32,
    /// What to do when its process is lost.
    pub on_interrupt: OnInterrupt,
    /// Attempts up to this one were cleared by an operator's `retry` and are ignored.
    pub cleared_attempts: u32,
    /// Successes under lists up to this one are ignored: the item has been out of the list since, or an operator reruns
    /// it. 0: every success counts.
    #[serde(default, skip_serializing_if = "counts_all")]
    pub redo_up_to: Generation,
    /// Params and `vars` that its hash leaves out.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub ignore_changes: BTreeSet<String>,
    /// Permission to start it, if it needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<Permit>,
}

fn counts_all(redo_up_to: &Generation) -> bool {
    *redo_up_to == Generation::default()
}

/// Permission to start one disruptive item soon: its condition (workloads moved away) may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permit {
    /// Number from 1, unique among a machine's permits.
    pub number: u64,
    /// Time to start after receipt, by the agent's monotonic clock, in milliseconds.
    pub start_within_ms: u64,
}

impl AssignedItem {
    /// State of this item, given the recorded status of its slot. The only place that distinguishes "done", "give up"
    /// and "a person must decide"; agent and coordinator both use it.
    #[must_use]
    pub fn standing(&self, status: Option<&ItemStatus>) -> ItemProgress {
        ItemProgress::of(self.hash, self.retries, self.cleared_attempts, self.on_interrupt, self.redo_up_to, status)
    }
}

/// The StateItems a machine should have now, in the order they run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Epoch of the coordinator that sends it.
    pub epoch: Epoch,
    /// Rises with every change of the content.
    pub generation: Generation,
    /// The machine's cluster.
    pub cluster: ClusterName,
    /// In the order they run.
    pub items: Vec<AssignedItem>,
    /// Values of the late variables.
    pub variables: BTreeMap<String, String>,
    /// Digest of items and variables, as the coordinator records it.
    pub digest: ItemHash,
    /// Code over machine, epoch, generation and digest.
    pub code: AuthCode,
}

impl Assignment {
    /// The proof of its generation.
    #[must_use]
    pub const fn proof(&self) -> ListProof {
        ListProof { epoch: self.epoch, digest: self.digest, code: self.code }
    }

    /// The highest phase in the list, if it has items.
    #[must_use]
    pub fn max_phase(&self) -> Option<Phase> {
        self.items.iter().map(|item| item.phase).max()
    }
}
