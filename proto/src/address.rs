//! Where a coordinator is reached, as people write it: `HOST:PORT`, an IPv6 address in brackets. One rule for whoever
//! takes an address.

use std::net::{IpAddr, Ipv6Addr};

/// What is wrong with an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressFault {
    /// Something with `://`.
    #[error("it is a URL; an address is expected, HOST:PORT")]
    Url,
    /// A host alone.
    #[error("its port is missing (expected HOST:PORT, as in {0}:7443)")]
    NoPort(String),
    /// What should be the port.
    #[error("\"{0}\" is no port, which is a number from 1 to 65535 (expected HOST:PORT)")]
    Port(String),
    /// An IPv6 address, whose end could be a port.
    #[error("an IPv6 address stands in brackets, its port behind them (expected HOST:PORT, as in [2001:db8::7]:7443)")]
    Brackets,
    /// What should be the host.
    #[error("\"{0}\" is no host: a name, an IPv4 address, or an IPv6 address in brackets (expected HOST:PORT)")]
    Host(String),
}

/// The two parts of an address: the host as it was written, and the port.
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

/// The IP address that a host is written as, if it is no name.
#[must_use]
pub fn ip_of(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
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
    }
}
