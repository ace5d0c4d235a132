//! A machine's reported InternalIP and hostname, in the form that is recorded.

use core::net::IpAddr;

use muster_proto::model::{HostFacts, MachineSpec, Network, own_label};

use super::MachineRow;

impl MachineRow {
    /// The facts of a Hello, in the form that is recorded. An agent that has just started has yet to learn by which
    /// interface and network its InternalIP is chosen. It first reports the address that reaches the coordinator, and
    /// corrects it after the welcome. Until then the machine keeps its former address, which keeps items with another
    /// one from running meanwhile.
    #[must_use]
    pub fn as_greeted(&self, facts: &HostFacts) -> HostFacts {
        let internal_ip = match &facts.internal_ip {
            Some(told) if !is_chosen(&self.spec, facts, told) => self.internal_ip().map(str::to_owned),
            told => told.clone(),
        };
        self.with_own_hostname(HostFacts { internal_ip, ..facts.clone() })
    }

    /// The facts with the machine's own hostname. A machine is called `localhost` for some seconds when a lease or a
    /// name server is lost. It then keeps its former name, or every item that uses the name would run again.
    #[must_use]
    pub fn with_own_hostname(&self, facts: HostFacts) -> HostFacts {
        if own_label(&facts.hostname).is_some() {
            return facts;
        }
        let known = self.host.as_ref().map(|host| host.hostname.clone());
        HostFacts { hostname: known.unwrap_or_default(), ..facts }
    }
}

/// Can this be the address that the document asks for? Facts about an unreported interface, such as the loopback, are
/// unknown.
fn is_chosen(spec: &MachineSpec, facts: &HostFacts, told: &str) -> bool {
    if spec.interface.is_none() && spec.cidr.is_none() {
        return true;
    }
    let Ok(address) = told.parse::<IpAddr>() else { return false };
    let of = |with_prefix: &String| with_prefix.split('/').next() == Some(told);
    let in_network = spec.cidr.as_deref().and_then(Network::parse).is_none_or(|network| network.holds(address));
    let on_interface = spec.interface.as_ref().is_none_or(|wanted| {
        let mut others = facts.interfaces.iter().filter(|interface| interface.name != *wanted);
        let named = facts.interfaces.iter().find(|interface| interface.name == *wanted);
        named.map_or_else(
            || !others.any(|interface| interface.addresses.iter().any(of)),
            |interface| interface.addresses.iter().any(of),
        )
    });
    in_network && on_interface
}

#[cfg(test)]
mod tests {
    use muster_proto::model::{MachineType, NetworkInterface};

    use super::*;
    use crate::core::tests::machine_spec;

    #[test]
    fn an_address_that_was_not_asked_for_is_not_taken() {
        let interface = |name: &str, address: &str| NetworkInterface {
            name: name.to_owned(),
            addresses: vec![address.to_owned()],
            ..NetworkInterface::default()
        };
        let facts = HostFacts {
            internal_ip: Some("10.0.0.7".to_owned()),
            interfaces: vec![interface("eth0", "10.0.0.7/24"), interface("eth1", "10.1.0.7/24")],
            ..HostFacts::default()
        };
        for (interface, cidr, taken) in [
            (None, None, true),
            (Some("eth0"), None, true),
            (Some("eth1"), None, false),
            (Some("eth9"), None, false),
            (None, Some("10.0.0.0/16"), true),
            (None, Some("10.1.0.0/16"), false),
            (None, Some("fd00::/8"), false),
            (Some("eth0"), Some("10.1.0.0/16"), false),
        ] {
            let spec = MachineSpec {
                interface: interface.map(str::to_owned),
                cidr: cidr.map(str::to_owned),
                ..machine_spec(MachineType::Worker)
            };
            assert_eq!(is_chosen(&spec, &facts, "10.0.0.7"), taken, "{interface:?} {cidr:?}");
        }
    }
}
