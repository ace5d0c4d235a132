//! Network interfaces, their addresses, and the choice of the InternalIP.

use std::{collections::BTreeMap, net::IpAddr, path::Path};

use muster_proto::model::{Network, NetworkInterface};
use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    sys::socket::SockaddrStorage,
};

use super::AddressChoice;

/// Maximum of reported interfaces, by name.
const INTERFACES_MAX: usize = 64;
/// Maximum of reported addresses of one interface.
const ADDRESSES_MAX: usize = 32;

/// One interface as found.
#[derive(Debug, Default)]
pub(super) struct Interface {
    mac: String,
    /// Is it a real device rather than a virtual one?
    hardware: bool,
    addresses: Vec<(IpAddr, u8)>,
}

/// All interfaces, by name.
pub(super) fn read() -> BTreeMap<String, Interface> {
    let mut found: BTreeMap<String, Interface> = BTreeMap::new();
    for entry in getifaddrs().into_iter().flatten() {
        let interface = found.entry(entry.interface_name.clone()).or_default();
        if let Some(mac) = entry.address.as_ref().and_then(|address| address.as_link_addr()?.addr()) {
            interface.mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        }
        interface.addresses.extend(with_prefix(&entry));
    }
    for (name, interface) in &mut found {
        interface.hardware = Path::new("/sys/class/net").join(name).join("device").exists();
        // The kernel orders them by creation; this order is stable.
        interface.addresses.sort_by_key(|(address, prefix)| (address.is_ipv6(), *address, *prefix));
    }
    found
}

fn with_prefix(entry: &InterfaceAddress) -> Option<(IpAddr, u8)> {
    let address = ip(entry.address.as_ref()?)?;
    let ones = match ip(entry.netmask.as_ref()?)? {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    };
    Some((address, u8::try_from(ones).unwrap_or(u8::MAX)))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

/// Every address of this machine.
pub(super) fn own() -> Vec<IpAddr> {
    read().into_values().flat_map(|interface| interface.addresses).map(|(address, _)| address).collect()
}

/// Interfaces to report: real devices, and all with a global address. This omits the hundreds of pod interfaces on a
/// Kubernetes node, which come and go and are unrelated to the machine.
pub(super) fn to_report(found: &BTreeMap<String, Interface>) -> Vec<NetworkInterface> {
    let own = |interface: &Interface| interface.addresses.iter().any(|(address, _)| !is_link_local(*address));
    found
        .iter()
        .filter(|(name, interface)| *name != "lo" && (interface.hardware || own(interface)))
        .take(INTERFACES_MAX)
        .map(|(name, interface)| NetworkInterface {
            name: name.clone(),
            mac: interface.mac.clone(),
            addresses: interface
                .addresses
                .iter()
                .take(ADDRESSES_MAX)
                .map(|(address, prefix)| format!("{address}/{prefix}"))
                .collect(),
        })
        .collect()
}

/// The InternalIP. None = no address matches; an invalid network matches none.
pub(super) fn choose(found: &BTreeMap<String, Interface>, choice: &AddressChoice) -> Option<IpAddr> {
    if choice.interface.is_none() && choice.cidr.is_none() {
        return choice.reaches_coordinator.map(|address| address.to_canonical());
    }
    let network = match &choice.cidr {
        Some(text) => Some(Network::parse(text)?),
        None => None,
    };
    let fits = |address: IpAddr| match network {
        Some(network) => network.holds(address),
        None => !is_link_local(address),
    };
    let mut fitting: Vec<(IpAddr, u8)> = found
        .iter()
        .filter(|(name, _)| choice.interface.as_ref().is_none_or(|wanted| wanted == *name))
        .flat_map(|(_, interface)| interface.addresses.iter().copied())
        .filter(|(address, _)| fits(*address))
        .collect();
    // An address without a network is mostly a service's (keepalived) and may move to another machine. The sort is
    // stable: among equals the interface name decides.
    fitting.sort_by_key(|(address, prefix)| (address.is_ipv6(), *prefix == bits(*address)));
    fitting.first().map(|(address, _)| *address)
}

const fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> BTreeMap<String, Interface> {
        let interface = |hardware, addresses: &[(&str, u8)]| Interface {
            mac: "02:00:00:00:00:01".to_owned(),
            hardware,
            addresses: addresses.iter().map(|(text, prefix)| (text.parse().expect("an address"), *prefix)).collect(),
        };
        [
            ("bond0", interface(false, &[("10.0.0.7", 24), ("10.1.0.7", 16), ("fd00::7", 64), ("fe80::7", 64)])),
            ("cali1", interface(false, &[("fe80::1", 64)])),
            ("eth0", interface(true, &[])),
            ("lo", interface(false, &[("127.0.0.1", 8), ("::1", 128)])),
            ("six", interface(false, &[("fe80::8", 64), ("fd00::8", 64)])),
        ]
        .map(|(name, interface)| (name.to_owned(), interface))
        .into()
    }

    #[test]
    fn the_internal_ip_is_the_one_that_was_asked_for() {
        let check = |interface: Option<&str>, cidr: Option<&str>, expected: Option<&str>| {
            let choice = AddressChoice {
                interface: interface.map(str::to_owned),
                cidr: cidr.map(str::to_owned),
                reaches_coordinator: Some("192.0.2.1".parse().expect("an address")),
            };
            let chosen = choose(&machine(), &choice).map(|address| address.to_string());
            assert_eq!(chosen.as_deref(), expected, "{choice:?}");
        };
        check(None, None, Some("192.0.2.1"));
        check(Some("bond0"), None, Some("10.0.0.7"));
        check(Some("six"), None, Some("fd00::8"));
        check(Some("lo"), None, Some("127.0.0.1"));
        check(Some("eth0"), None, None);
        check(Some("missing"), None, None);
        check(None, Some("10.1.0.0/16"), Some("10.1.0.7"));
        check(None, Some("10.1.0.99/16"), Some("10.1.0.7"));
        check(None, Some("10.0.0.7/32"), Some("10.0.0.7"));
        check(None, Some("fd00::8/128"), Some("fd00::8"));
        check(None, Some("0.0.0.0/0"), Some("10.0.0.7"));
        check(None, Some("172.16.0.0/12"), None);
        check(Some("bond0"), Some("10.1.0.0/16"), Some("10.1.0.7"));
        check(Some("six"), Some("10.1.0.0/16"), None);
        for nonsense in ["10.0.0.0", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "x/8", ""] {
            check(None, Some(nonsense), None);
        }
    }

    /// A keepalived address moves to another machine.
    #[test]
    fn an_address_without_a_network_is_not_the_machines_own() {
        let mut machine = machine();
        let bond = &mut machine.get_mut("bond0").expect("there").addresses;
        bond.insert(0, ("10.0.0.5".parse().expect("an address"), 32));
        bond.insert(3, ("fd00::5".parse().expect("an address"), 128));
        for (cidr, expected) in [("10.0.0.0/24", "10.0.0.7"), ("fd00::/64", "fd00::7"), ("10.0.0.5/32", "10.0.0.5")] {
            let (interface, cidr) = (Some("bond0".to_owned()), Some(cidr.to_owned()));
            let choice = AddressChoice { interface, cidr, reaches_coordinator: None };
            assert_eq!(choose(&machine, &choice).map(|address| address.to_string()).as_deref(), Some(expected));
        }
    }

    #[test]
    fn an_ipv4_peer_of_a_dual_stack_socket_is_ipv4() {
        let mapped = AddressChoice { reaches_coordinator: "::ffff:10.0.0.7".parse().ok(), ..AddressChoice::default() };
        assert_eq!(choose(&machine(), &mapped).map(|address| address.to_string()).as_deref(), Some("10.0.0.7"));
    }

    #[test]
    fn interfaces_of_the_machine_are_reported_and_those_of_pods_are_not() {
        let reported = to_report(&machine());
        let names: Vec<_> = reported.iter().map(|interface| interface.name.as_str()).collect();
        assert_eq!(names, ["bond0", "eth0", "six"]);
        assert_eq!(reported[0].addresses, ["10.0.0.7/24", "10.1.0.7/16", "fd00::7/64", "fe80::7/64"]);
    }
}
