//! Turns a listening socket into connections with an authenticated peer. Handshakes run concurrently, with deadlines,
//! in a room of their own; silent ones make way for newcomers (`room.rs`). The same applies to connections whose
//! certificate is missing or unknown. A connection is cut as soon as its certificate becomes invalid.

use std::{
    io,
    net::SocketAddr,
    os::fd::AsRawFd as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::Either;
use muster_proto::tls::ALPN;
use nix::sys::socket::{MsgFlags, recv};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::transport::server::Connected;

use super::{
    authenticator::{Authenticator, Caller, PeerStatus, TAKEN_BACK, why},
    failed_attempts::{FailedAttempts, origin},
    limiter::{Limiter, LimiterGuard},
    room::{Engaged, Line, Place, Room},
};
use crate::engine::EngineHandle;

/// Timeout for the start of a handshake. A client sends its first byte with the packet that completes the TCP
/// connection, or again if that was lost.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for a TLS handshake that has begun.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most concurrent handshakes: a fleet of a thousand machines reconnects at once.
const HANDSHAKES_MAX: usize = 1024;
/// Most connections of unknown peers, together: a whole fleet may enrol at once.
const STRANGERS_MAX: usize = 1024;
/// Most connections of one known peer, reserved for it whatever the others do. An agent has two for a moment when it
/// renews; an operator has several terminals.
const CONNECTIONS_OF_PEER_MAX: usize = 32;
/// Longest lifetime of a connection from an unknown peer. Enrolment takes a second.
const STRANGER_LIFE: Duration = Duration::from_secs(60);
/// Most connections that are ready and wait to be served.
const READY_MAX: usize = 64;
/// Grace period for open calls when the server ends.
const END_GRACE: Duration = Duration::from_secs(2);
/// Pause after `accept` failed for lack of a resource (file descriptors, memory).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection with its peer, after the handshake.
pub(super) struct Connection {
    stream: TlsStream<TcpStream>,
    caller: Caller,
    /// Completes when the connection must be cut.
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_cut: bool,
    _held: Either<Place, LimiterGuard>,
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl Connection {
    fn poll_cut(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.is_cut || self.cut.as_mut().poll(context).is_ready() {
            self.is_cut = true;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_cut(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_cut(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_cut(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Makes connections from accepted sockets.
pub(super) struct Acceptor {
    tls: TlsAcceptor,
    authenticator: Arc<Authenticator>,
    failed_attempts: Arc<FailedAttempts>,
    engine: EngineHandle,
    handshakes: Arc<Room>,
    strangers: Arc<Room>,
    limiter: Limiter,
    ready: mpsc::Sender<io::Result<Connection>>,
}

impl Acceptor {
    /// Accept from `listener` until the returned receiver is dropped.
    pub(super) fn spawn(
        listener: TcpListener,
        config: Arc<ServerConfig>,
        authenticator: Arc<Authenticator>,
        (failed_attempts, engine): (Arc<FailedAttempts>, EngineHandle),
    ) -> mpsc::Receiver<io::Result<Connection>> {
        let (ready, taken) = mpsc::channel(READY_MAX);
        let (tls, limiter) = (TlsAcceptor::from(config), Limiter::default());
        let (handshakes, strangers) = (Room::new(HANDSHAKES_MAX), Room::new(STRANGERS_MAX));
        let acceptor =
            Arc::new(Self { tls, authenticator, failed_attempts, engine, handshakes, strangers, limiter, ready });
        tokio::spawn(async move {
            let closed = acceptor.ready.clone();
            tokio::select! {
                () = acceptor.run(listener) => {}
                () = closed.closed() => {}
            }
        });
        taken
    }

    async fn run(self: Arc<Self>, listener: TcpListener) {
        loop {
            let (tcp, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // Convert an IPv4-mapped address, as a dual-stack socket reports it, to plain IPv4.
            let address = SocketAddr::new(address.ip().to_canonical(), address.port());
            let place = self.handshakes.enter(origin(address.ip()), Arc::default());
            // Checked now: a peer that has already sent bytes would otherwise count as silent while it waits its turn.
            let begun = has_spoken(&tcp).then(|| place.line.engage());
            let acceptor = Arc::clone(&self);
            tokio::spawn(async move {
                let made = tokio::select! {
                    made = acceptor.handshake(tcp, address, &place.line, begun) => made,
                    () = place.line.hung_up() => Err(io::Error::other("it made room for others")),
                };
                drop(place);
                match made {
                    // If the receiver is gone, the server is ending.
                    Ok(connection) => drop(acceptor.ready.send(Ok(connection)).await),
                    Err(error) => tracing::debug!(%address, %error, "no connection"),
                }
            });
        }
    }

    async fn handshake(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        line: &Arc<Line>,
        begun: Option<Engaged>,
    ) -> io::Result<Connection> {
        tcp.set_nodelay(true)?;
        let _begun = match begun {
            Some(begun) => begun,
            None => {
                // `peek`, because `readable` may report readiness falsely.
                tokio::time::timeout(FIRST_BYTE_TIMEOUT, tcp.peek(&mut [0])).await??;
                line.engage()
            }
        };
        let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.tls.accept(tcp)).await??;
        let (_, session) = stream.get_ref();
        if session.alpn_protocol() != Some(ALPN) {
            return Err(io::Error::other("the client did not ask for HTTP/2"));
        }
        let shown = session.peer_certificates().unwrap_or_default();
        let standing = self.authenticator.authenticator(shown).unwrap_or_else(|refusal| {
            let detail = format!("a certificate: {}", why(&refusal));
            match self.authenticator.machine_of(shown) {
                Some(id) => self.authenticator.note(id, address, &detail),
                None => {
                    self.failed_attempts.note(address.ip(), self.engine.now().mono_ms, &detail);
                }
            }
            PeerStatus::Refused
        });
        if let PeerStatus::Revoked(id) = standing {
            self.authenticator.note(id, address, TAKEN_BACK);
        }
        let caller = Caller::new(address, standing);
        let held = self.hold(&caller).ok_or_else(|| io::Error::other("too many connections of this peer"))?;
        Ok(Connection { stream, cut: self.cut(&caller), caller, is_cut: false, _held: held })
    }

    /// The resources that a connection holds while it lives. None: its peer has too many.
    fn hold(&self, caller: &Caller) -> Option<Either<Place, LimiterGuard>> {
        match &caller.standing {
            PeerStatus::Stranger | PeerStatus::Refused | PeerStatus::Revoked(_) => {
                let origin = origin(caller.address.ip());
                Some(Either::Left(self.strangers.enter(origin, Arc::clone(caller.line()))))
            }
            PeerStatus::Known(certificate) => {
                Some(Either::Right(self.limiter.take(certificate.peer.to_string(), CONNECTIONS_OF_PEER_MAX)?))
            }
        }
    }

    /// Completes when the connection of this caller must be cut.
    fn cut(&self, caller: &Caller) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (hung_up, ready) = (caller.hung_up(), self.ready.clone());
        let over = async move {
            tokio::select! {
                () = hung_up => {}
                () = ready.closed() => tokio::time::sleep(END_GRACE).await,
            }
        };
        let PeerStatus::Known(certificate) = &caller.standing else {
            return Box::pin(async move {
                tokio::select! {
                    () = over => {}
                    () = tokio::time::sleep(STRANGER_LIFE) => {}
                }
            });
        };
        let (bad, peer) = (self.authenticator.until_bad(certificate), certificate.peer.to_string());
        Box::pin(async move {
            tokio::select! {
                () = over => {}
                refusal = bad => tracing::warn!(peer, reason = why(&refusal), "cut a connection off"),
            }
        })
    }
}

/// Have bytes arrived on this connection?
fn has_spoken(tcp: &TcpStream) -> bool {
    recv(tcp.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT).is_ok_and(|bytes| bytes > 0)
}
