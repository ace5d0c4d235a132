//! The socket for agents and operators. `[::]` means every address of this machine, of both families.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt::Ipv6V6Only},
};
use tokio::net::{TcpListener, TcpSocket};

/// Most connections that wait in the kernel to be accepted: a whole fleet may reconnect at once, and a dropped first
/// packet costs a second. The system may have a lower limit (net.core.somaxconn).
const BACKLOG: u32 = 4096;

/// Listen on `ADDRESS:PORT`: the first usable address of that name.
///
/// # Errors
/// The system's error for the last one.
pub async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut outcome = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in tokio::net::lookup_host(address).await? {
        outcome = match listen_on(address) {
            // The kernel lacks IPv6: use all its IPv4 addresses.
            Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && is_without_ipv6(&error) => {
                listen_on(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()))
            }
            outcome => outcome,
        };
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn is_without_ipv6(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32)
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        let socket = TcpSocket::new_v6()?;
        // Override the system's default (net.ipv6.bindv6only).
        setsockopt(&socket, Ipv6V6Only, &false)?;
        socket
    };
    // Let a restart bind while the kernel still keeps old connections.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn all_addresses_are_of_both_families() {
        let listener = listen("[::]:0").await.expect("listens");
        let bound = listener.local_addr().expect("an address");
        let ipv4 = SocketAddr::from((Ipv4Addr::LOCALHOST, bound.port()));
        TcpStream::connect(ipv4).await.expect("by IPv4");
        let ipv6 = SocketAddr::from((Ipv6Addr::LOCALHOST, bound.port()));
        // A machine may support IPv6 but lack such an address, as many containers do.
        if bound.is_ipv6()
            && let Err(error) = TcpStream::connect(ipv6).await
        {
            assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable, "{error}");
        }
    }

    #[tokio::test]
    async fn what_is_no_address_of_ours_is_said() {
        let error = listen("192.0.2.1:0").await.expect_err("it is nobody's");
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
