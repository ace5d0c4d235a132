//! Addresses of a coordinator as people write them: `HOST:PORT`, with an IPv6 address in brackets. Every program that
//! takes an address uses these rules.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use serde::{Deserialize, Serialize};

/// Most addresses of one coordinator that an agent keeps. This leaves some room beyond those of a complete relocation.
pub const ADDRESSES_MAX: usize = 6;

/// Why an address is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressFault {
    /// A URL: the text contains `://`.
    #[error("it is a URL; an address is expected, HOST:PORT")]
    Url,
    /// A host whose port is missing.
    #[error("its port is missing (expected HOST:PORT, as in {0}:7443)")]
    NoPort(String),
    /// An invalid port.
    #[error("\"{0}\" is no port, which is a number from 1 to 65535 (expected HOST:PORT)")]
    Port(String),
    /// An unbracketed IPv6 address: its last group could be a port.
    #[error("an IPv6 address stands in brackets, its port behind them (expected HOST:PORT, as in [2001:db8::7]:7443)")]
    Brackets,
    /// An invalid host.
    #[error("\"{0}\" is no host: a name, an IPv4 address, or an IPv6 address in brackets (expected HOST:PORT)")]
    Host(String),
}

/// Split an address into its host, as written, and its port.
///
/// # Errors
/// [`AddressFault`].
pub fn host_and_port(address: &str) -> Result<(&str, u16), AddressFault> {
    if address.contains("://") {
        return Err(AddressFault::Url);
    }
    if address.parse::<Ipv6Addr>().is_ok() {
        return Err(AddressFault::Brackets);
    }
    let no_port = || AddressFault::NoPort(address.to_owned());
    let (host, port) = address.rsplit_once(':').filter(|_| !address.ends_with(']')).ok_or_else(no_port)?;
    let port = match port.parse() {
        Ok(0) | Err(_) => return Err(AddressFault::Port(port.to_owned())),
        Ok(port) => port,
    };
    if is_host(host) { Ok((host, port)) } else { Err(AddressFault::Host(host.to_owned())) }
}

fn is_host(host: &str) -> bool {
    if let Some(bracketed) = host.strip_prefix('[') {
        return bracketed.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    }
    !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

/// The IP address in `host`. None: `host` is a name.
#[must_use]
pub fn ip_of(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Does this address always lead to the machine that uses it?
#[must_use]
pub fn is_loopback(address: &str) -> bool {
    let host = host_and_port(address).map_or("", |(host, _)| host);
    host == "localhost" || ip_of(host).is_some_and(|ip| ip.is_loopback())
}

/// One or more addresses of one coordinator, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Addresses(Vec<String>);

/// Why a list of addresses is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressesFault {
    /// One address is invalid.
    #[error("{address}: {fault}")]
    Address {
        /// The address as given.
        address: String,
        /// Why it is invalid.
        fault: AddressFault,
    },
    /// The list is empty.
    #[error("no address is given (expected HOST:PORT, several with commas between them)")]
    None,
    /// The list is longer than [`ADDRESSES_MAX`].
    #[error("{0} addresses are too many: at most {ADDRESSES_MAX}")]
    TooMany(usize),
}

impl Addresses {
    /// Parse a comma-separated list.
    ///
    /// # Errors
    /// [`AddressesFault`].
    pub fn parse(text: &str) -> Result<Self, AddressesFault> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        words.map(str::to_owned).collect::<Vec<_>>().try_into()
    }

    /// The address to try first.
    #[must_use]
    pub fn first(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// The addresses in the order in which they are tried.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The same addresses with `first` moved to the front, if it is among them.
    #[must_use]
    pub fn led_by(&self, first: &str) -> Self {
        let (mut led, rest): (Vec<_>, Vec<_>) = self.0.iter().cloned().partition(|address| address == first);
        led.extend(rest);
        Self(led)
    }

    /// The list that an agent keeps after it hears of `others`: its current address, then those of `others`, then the
    /// ones it knew before, up to [`ADDRESSES_MAX`].
    #[must_use]
    pub fn joined_by(&self, others: &Self) -> Self {
        let mut joined: Vec<String> = Vec::new();
        for address in self.0.iter().take(1).chain(&others.0).chain(&self.0) {
            if joined.len() < ADDRESSES_MAX && !joined.contains(address) {
                joined.push(address.clone());
            }
        }
        Self(joined)
    }
}

impl TryFrom<Vec<String>> for Addresses {
    type Error = AddressesFault;

    fn try_from(addresses: Vec<String>) -> Result<Self, AddressesFault> {
        for address in &addresses {
            host_and_port(address).map_err(|fault| AddressesFault::Address { address: address.clone(), fault })?;
        }
        match addresses.len() {
            0 => Err(AddressesFault::None),
            count if count > ADDRESSES_MAX => Err(AddressesFault::TooMany(count)),
            _ => Ok(Self(addresses)),
        }
    }
}

impl From<Addresses> for Vec<String> {
    fn from(addresses: Addresses) -> Self {
        addresses.0
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for (address, expected) in [
            ("host:7443", ("host", 7443)),
            ("a-b.example:1", ("a-b.example", 1)),
            ("10.0.0.7:65535", ("10.0.0.7", 65535)),
            ("[2001:db8::7]:7443", ("[2001:db8::7]", 7443)),
        ] {
            assert_eq!(host_and_port(address), Ok(expected));
        }
        for (address, said) in [
            ("host", "as in host:7443"),
            ("[::1]", "as in [::1]:7443"),
            ("host:99999", "\"99999\" is no port"),
            ("host:0", "\"0\" is no port"),
            ("host:7443/", "\"7443/\" is no port"),
            ("https://host:7443", "it is a URL"),
            ("2001:db8::7", "stands in brackets"),
            ("::1:7443", "stands in brackets"),
            (":7443", "\"\" is no host"),
            ("[host]:7443", "\"[host]\" is no host"),
            ("a b:7443", "\"a b\" is no host"),
        ] {
            let fault = host_and_port(address).expect_err(address).to_string();
            assert!(fault.contains(said), "{address}: {fault}");
        }
        assert_eq!(ip_of("[::1]"), Some(IpAddr::V6(Ipv6Addr::LOCALHOST)));
        assert_eq!(ip_of("localhost"), None);
        for (address, expected) in [("localhost:1", true), ("127.0.1.1:1", true), ("[::1]:1", true), ("host:1", false)]
        {
            assert_eq!(is_loopback(address), expected, "{address}");
        }
    }

    #[test]
    fn what_is_learned_comes_behind_what_works() {
        let addresses = |text: &str| Addresses::parse(text).expect(text);
        let ours = addresses("a:1,b:1, c:1");
        assert_eq!(ours.joined_by(&addresses("n:1,b:1")).to_string(), "a:1, n:1, b:1, c:1");
        assert_eq!(ours.joined_by(&ours), ours);
        let many = addresses("p:1,q:1,r:1,s:1");
        assert_eq!(ours.joined_by(&many).to_string(), "a:1, p:1, q:1, r:1, s:1, b:1", "the oldest make room");
        assert_eq!(ours.led_by("c:1").to_string(), "c:1, a:1, b:1");
        assert_eq!(ours.led_by("x:1"), ours);
        assert_eq!(Addresses::parse(" , "), Err(AddressesFault::None));
        assert_eq!(Addresses::parse(&"a:1,".repeat(7)), Err(AddressesFault::TooMany(7)));
        let fault = Addresses::parse("a:1,b").expect_err("no port").to_string();
        assert!(fault.starts_with("b: its port is missing"), "{fault}");
    }
}
