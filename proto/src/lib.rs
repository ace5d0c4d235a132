//! Domain types and wire format of Muster: the model, the gRPC messages generated from `muster/v1/*.proto`, and the
//! checked conversion between them. Agent, coordinator and musterctl build on this crate; it depends on no other crate
//! of ours.

pub mod address;
pub mod convert;
pub mod daemon;
pub mod hash;
pub mod json;
pub mod listing;
pub mod model;
pub mod printable;
pub mod process;
pub mod resource;
pub mod script;
pub mod seeded_bug;
pub mod suggestions;
pub mod tls;
pub mod variables;

/// Trait of every wire message; its encoded length bounds queues.
pub use prost::Message;

/// Generated messages and services. Only `convert`, the link, the servers and musterctl use them.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, reason = "generated code")]
pub mod wire {
    tonic::include_proto!("muster.v1");
}

/// The services as a `FileDescriptorSet`, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
/// Largest message on the agent link, in either direction (reliability.md, "wire").
pub const LINK_MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Largest `Apply` request: manifests of up to 4 MiB and their file names.
pub const APPLY_MESSAGE_BYTES_MAX: usize = 5 * 1024 * 1024;
/// Longest JSON schema that `vars` are checked against.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Largest total size of one machine's items on the wire; checked when a manifest is applied.
pub const MACHINE_ITEMS_BYTES_MAX: usize = 512 * 1024;
/// Longest output kept with an item's status.
pub const OUTPUT_TAIL_BYTES_MAX: usize = 8 * 1024;
/// Prefix of the message that the key of an expired certificate signs to renew it. It makes the signature worthless
/// elsewhere.
pub const RENEW_PURPOSE: &[u8] = b"muster-renew-v1";
/// Metadata of a refusal: the record says that the agent's identity was revoked, permanently. The text beside it is for
/// people and the same forevery agent.
pub const IDENTITY_REVOKED: &str = "muster-identity-revoked";
/// Version of this build, as shown by `version` and reported by agents.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
