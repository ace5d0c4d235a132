//! From a listening socket to connections whose peer is known. Handshakes run beside each other, with deadlines and in
//! a room of their own, from which those that say nothing make way for whoever comes (`room.rs`); so are connections
//! that show no certificate we know. A connection is cut the moment its certificate is no longer good.

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
    guesses::{Guesses, origin},
    judge::{Caller, Judge, Standing, TAKEN_BACK, why},
    room::{Engaged, Line, Place, Room},
    seats::{Seat, Seats},
};
use crate::engine::EngineHandle;

/// Time until a handshake begins. A client sends its first byte with what completes the TCP connection, or once more
/// when that was lost.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a TLS handshake that has begun.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes at once: a fleet of a thousand machines comes back in one moment.
const HANDSHAKES_MAX: usize = 1024;
/// Connections of peers that are not known, together: a whole fleet may enrol at once.
const STRANGERS_MAX: usize = 1024;
/// Connections of one known peer, which has this room for itself, whoever else comes. An agent has two for a moment
/// when it renews; an operator has some terminals.
const CONNECTIONS_OF_PEER_MAX: usize = 32;
/// Longest life of a connection whose peer is not known. To enrol takes a second.
const STRANGER_LIFE: Duration = Duration::from_secs(60);
/// Connections that are ready and wait to be served.
const READY_MAX: usize = 64;
/// Time for open calls when the server ends.
const END_GRACE: Duration = Duration::from_secs(2);
/// Pause after `accept` failed for want of something (file descriptors, memory).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection whose peer is known as well as it will be.
pub(super) struct Connection {
    stream: TlsStream<TcpStream>,
    caller: Caller,
    /// Ends when the connection must.
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_cut: bool,
    _held: Either<Place, Seat>,
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

/// Makes connections of what the socket brings.
pub(super) struct Acceptor {
    tls: TlsAcceptor,
    judge: Arc<Judge>,
    guesses: Arc<Guesses>,
    engine: EngineHandle,
    handshakes: Arc<Room>,
    strangers: Arc<Room>,
    seats: Seats,
    ready: mpsc::Sender<io::Result<Connection>>,
}

impl Acceptor {
    /// Accepts from `listener` for as long as somebody takes what it returns.
    pub(super) fn spawn(
        listener: TcpListener,
        config: Arc<ServerConfig>,
        judge: Arc<Judge>,
        (guesses, engine): (Arc<Guesses>, EngineHandle),
    ) -> mpsc::Receiver<io::Result<Connection>> {
        let (ready, taken) = mpsc::channel(READY_MAX);
        let (tls, seats) = (TlsAcceptor::from(config), Seats::default());
        let (handshakes, strangers) = (Room::new(HANDSHAKES_MAX), Room::new(STRANGERS_MAX));
        let acceptor = Arc::new(Self { tls, judge, guesses, engine, handshakes, strangers, seats, ready });
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
            // An IPv4 address as such, though a socket for both families says it as IPv6.
            let address = SocketAddr::new(address.ip().to_canonical(), address.port());
            let place = self.handshakes.enter(origin(address.ip()), Arc::default());
            // Looked at now: in a crowd whoever has spoken is not to be taken for a silent one until his turn comes.
            let begun = has_spoken(&tcp).then(|| place.line.engage());
            let acceptor = Arc::clone(&self);
            tokio::spawn(async move {
                let made = tokio::select! {
                    made = acceptor.handshake(tcp, address, &place.line, begun) => made,
                    () = place.line.hung_up() => Err(io::Error::other("it made room for others")),
                };
                drop(place);
                match made {
                    // If nobody takes it any more, the server is ending.
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
                // Not `readable`, which may say so of a socket that is not.
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
        let standing = self.judge.judge(shown).unwrap_or_else(|refusal| {
            let detail = format!("a certificate: {}", why(&refusal));
            match self.judge.machine_of(shown) {
                Some(id) => self.judge.note(id, address, &detail),
                None => {
                    self.guesses.note(address.ip(), self.engine.now().mono_ms, &detail);
                }
            }
            Standing::Refused
        });
        if let Standing::Revoked(id) = standing {
            self.judge.note(id, address, TAKEN_BACK);
        }
        let caller = Caller::new(address, standing);
        let held = self.hold(&caller).ok_or_else(|| io::Error::other("too many connections of this peer"))?;
        Ok(Connection { stream, cut: self.cut(&caller), caller, is_cut: false, _held: held })
    }

    /// What a connection takes as long as it lives. None: its peer has too many.
    fn hold(&self, caller: &Caller) -> Option<Either<Place, Seat>> {
        match &caller.standing {
            Standing::Stranger | Standing::Refused | Standing::Revoked(_) => {
                let origin = origin(caller.address.ip());
                Some(Either::Left(self.strangers.enter(origin, Arc::clone(caller.line()))))
            }
            Standing::Known(certificate) => {
                Some(Either::Right(self.seats.take(certificate.peer.to_string(), CONNECTIONS_OF_PEER_MAX)?))
            }
        }
    }

    /// Ends when the connection of this caller must.
    fn cut(&self, caller: &Caller) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (hung_up, ready) = (caller.hung_up(), self.ready.clone());
        let over = async move {
            tokio::select! {
                () = hung_up => {}
                () = ready.closed() => tokio::time::sleep(END_GRACE).await,
            }
        };
        let Standing::Known(certificate) = &caller.standing else {
            return Box::pin(async move {
                tokio::select! {
                    () = over => {}
                    () = tokio::time::sleep(STRANGER_LIFE) => {}
                }
            });
        };
        let (bad, peer) = (self.judge.until_bad(certificate), certificate.peer.to_string());
        Box::pin(async move {
            tokio::select! {
                () = over => {}
                refusal = bad => tracing::warn!(peer, reason = why(&refusal), "cut a connection off"),
            }
        })
    }
}

/// Has something come on this connection?
fn has_spoken(tcp: &TcpStream) -> bool {
    recv(tcp.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT).is_ok_and(|bytes| bytes > 0)
}
