//! A TCP proxy between agents and coordinator. It keeps its own port, so that the coordinator may restart on another
//! port, and so that a test can cut the connection. A cut loses no bytes and closes no connection: bytes wait, as they
//! do when packets are lost.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
};

use anyhow::Result;

/// Bytes copied at a time.
const CHUNK_BYTES: usize = 64 * 1024;

#[derive(Debug, Default)]
struct Wire {
    state: Mutex<WireState>,
    mended: Condvar,
}

#[derive(Debug, Default)]
struct WireState {
    target: Option<u16>,
    cut: bool,
    /// Number of accepted connections.
    came: usize,
}

impl Wire {
    /// Waits until the connection is restored, and returns the target port.
    fn whole(&self) -> Option<u16> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.cut {
            state = self.mended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.target
    }

    fn change(&self, change: impl FnOnce(&mut WireState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.mended.notify_all();
    }
}

/// A TCP proxy (see the module). Its threads live as long as the test's process.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    wire: Arc<Wire>,
}

impl Proxy {
    /// Opens a proxy without a target: it closes every connection.
    ///
    /// # Errors
    /// Fails if all ports are in use.
    pub fn open() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let wire = Arc::new(Wire::default());
        let of_listener = Arc::clone(&wire);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                of_listener.change(|state| state.came += 1);
                let wire = Arc::clone(&of_listener);
                thread::spawn(move || carry(stream, &wire));
            }
        });
        Ok(Self { port, wire })
    }

    /// `HOST:PORT`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Sets the target port of new connections.
    pub fn lead_to(&self, port: u16) {
        self.wire.change(|state| state.target = Some(port));
    }

    /// Target port of new connections.
    #[must_use]
    pub fn leads_to(&self) -> Option<u16> {
        self.wire.state.lock().unwrap_or_else(PoisonError::into_inner).target
    }

    /// Number of connections accepted so far.
    #[must_use]
    pub fn came(&self) -> usize {
        self.wire.state.lock().unwrap_or_else(PoisonError::into_inner).came
    }

    /// Stops all traffic.
    pub fn cut(&self) {
        self.wire.change(|state| state.cut = true);
    }

    /// Resumes all traffic, including the bytes that waited.
    pub fn mend(&self) {
        self.wire.change(|state| state.cut = false);
    }
}

fn carry(near: TcpStream, wire: &Arc<Wire>) {
    let far = wire.whole().and_then(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
    let Some(far) = far else { return };
    let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { return };
    let back = Arc::clone(wire);
    thread::spawn(move || pump(far_too, near_too, &back));
    pump(near, far, wire);
}

fn pump(mut from: TcpStream, mut to: TcpStream, wire: &Wire) {
    let mut chunk = vec![0; CHUNK_BYTES];
    let _ = to.set_nodelay(true); // hand-over is measured through here
    loop {
        let read = from.read(&mut chunk).unwrap_or(0);
        wire.whole();
        if read == 0 || to.write_all(&chunk[..read]).is_err() {
            break;
        }
    }
    // The end of one direction closes both: our programs never half-close.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
