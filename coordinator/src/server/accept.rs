//! From a listening socket to connections whose peer is known. Handshakes run beside each other, with a deadline and a
//! limit; a connection is cut the moment its certificate is no longer good.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use muster_proto::tls::ALPN;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::transport::server::Connected;

use super::{
    guesses::{Guesses, origin},
    judge::{Caller, Judge, Standing, why},
    seats::{Seat, Seats},
};
use crate::engine::EngineHandle;

/// Time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes at once; who comes then waits in the kernel's queue.
const HANDSHAKES_MAX: usize = 512;
/// Of those, such as come from one address: whoever says nothing cannot keep the others waiting. Those above it are
/// hung up on, and an agent comes again.
const HANDSHAKES_PER_ADDRESS_MAX: usize = 128;
/// Connections of peers that are not known, together: a whole fleet may enrol at once.
const STRANGERS_MAX: usize = 1024;
/// Of those, such as come from one address: whoever opens many cannot keep the others out. Many machines may stand
/// behind one address.
const STRANGERS_PER_ADDRESS_MAX: usize = 256;
/// Connections of one known peer. An agent has two for a moment when it renews; an operator has some terminals.
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
    _seats: (Seat, Option<Seat>),
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
        let acceptor = Arc::new(Self { tls, judge, guesses, engine, seats, ready });
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
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        // The semaphore is never closed, so this ends only with the task.
        while let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await {
            let (tcp, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let from = format!("handshake from {}", origin(address.ip()));
            let Some(seat) = self.seats.take(from, HANDSHAKES_PER_ADDRESS_MAX) else {
                tracing::debug!(%address, "hung up: too many handshakes of this address");
                continue;
            };
            let acceptor = Arc::clone(&self);
            tokio::spawn(async move {
                let made = acceptor.handshake(tcp, address).await;
                drop((permit, seat));
                match made {
                    // If nobody takes it any more, the server is ending.
                    Ok(connection) => drop(acceptor.ready.send(Ok(connection)).await),
                    Err(error) => tracing::debug!(%address, %error, "no connection"),
                }
            });
        }
    }

    async fn handshake(&self, tcp: TcpStream, address: SocketAddr) -> io::Result<Connection> {
        tcp.set_nodelay(true)?;
        let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.tls.accept(tcp)).await??;
        let (_, session) = stream.get_ref();
        if session.alpn_protocol() != Some(ALPN) {
            return Err(io::Error::other("the client did not ask for HTTP/2"));
        }
        let standing = self.judge.judge(session.peer_certificates().unwrap_or_default()).unwrap_or_else(|refusal| {
            let detail = format!("a certificate: {}", why(&refusal));
            self.guesses.note(address.ip(), self.engine.now().mono_ms, &detail);
            Standing::Refused
        });
        let seats = self.seats_of(&standing, address).ok_or_else(|| io::Error::other("too many connections"))?;
        let caller = Caller::new(address, standing);
        Ok(Connection { stream, cut: self.cut(&caller), caller, is_cut: false, _seats: seats })
    }

    /// What a connection takes as long as it lives. None: there are too many of its kind.
    fn seats_of(&self, standing: &Standing, address: SocketAddr) -> Option<(Seat, Option<Seat>)> {
        match standing {
            Standing::Stranger | Standing::Refused => {
                let own = self.seats.take(format!("from {}", origin(address.ip())), STRANGERS_PER_ADDRESS_MAX)?;
                Some((own, Some(self.seats.take("stranger".to_owned(), STRANGERS_MAX)?)))
            }
            Standing::Known(certificate) => {
                Some((self.seats.take(certificate.peer.to_string(), CONNECTIONS_OF_PEER_MAX)?, None))
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
