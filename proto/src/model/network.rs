//! Networks, as a Machine document names the one that contains its InternalIP.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Address and bits of the prefix.
    V4(Ipv4Addr, u32),
    /// Address and bits of the prefix.
    V6(Ipv6Addr, u32),
}

impl Network {
    /// Parse `10.20.0.0/16`. None: the text is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let prefix: u32 = prefix.parse().ok()?;
        match address.parse().ok()? {
            IpAddr::V4(address) => (prefix <= 32).then_some(Self::V4(address, prefix)),
            IpAddr::V6(address) => (prefix <= 128).then_some(Self::V6(address, prefix)),
        }
    }

    /// Does this network contain the address?
    #[must_use]
    pub const fn holds(self, address: IpAddr) -> bool {
        match (self, address) {
            (Self::V4(network, prefix), IpAddr::V4(address)) => {
                (network.to_bits() ^ address.to_bits()).leading_zeros() >= prefix
            }
            (Self::V6(network, prefix), IpAddr::V6(address)) => {
                (network.to_bits() ^ address.to_bits()).leading_zeros() >= prefix
            }
            (Self::V4(..), IpAddr::V6(_)) | (Self::V6(..), IpAddr::V4(_)) => false,
        }
    }
}
