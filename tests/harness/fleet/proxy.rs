//! What stands between agents and coordinator: a TCP proxy on a port of its own, so that a coordinator may come back
//! on another port, and so that a test can cut the wire. A cut loses nothing and closes nothing: bytes wait, as they
//! do when packets are lost.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
};

use anyhow::Result;

/// Carried at a time.
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
    /// Connections that came.
    came: usize,
}

impl Wire {
    /// Where it leads to, once it is whole.
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

/// See the module. Its threads live as long as the test's process.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    wire: Arc<Wire>,
}

impl Proxy {
    /// A new one that leads nowhere yet: who connects is hung up on.
    ///
    /// # Errors
    /// No free port.
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

    /// New connections lead to this port from now on.
    pub fn lead_to(&self, port: u16) {
        self.wire.change(|state| state.target = Some(port));
    }

    /// Where they lead.
    #[must_use]
    pub fn leads_to(&self) -> Option<u16> {
        self.wire.state.lock().unwrap_or_else(PoisonError::into_inner).target
    }

    /// How many connections have come so far.
    #[must_use]
    pub fn came(&self) -> usize {
        self.wire.state.lock().unwrap_or_else(PoisonError::into_inner).came
    }

    /// Nothing passes from now on.
    pub fn cut(&self) {
        self.wire.change(|state| state.cut = true);
    }

    /// All passes again, also what waited.
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
    // Either end is the end of both: neither of our programs half-closes.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
