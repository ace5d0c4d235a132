//! Silent connections, held open by the hundred and reopened as soon as they are closed: from several addresses, and
//! from the operator's own, as behind one NAT. Real clients must get through meanwhile.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use muster_proto::tls::{self, SERVER_NAME};
use muster_tests::fleet::{
    Fleet, TIME_LIMIT, alone,
    manifest::{bash, cluster},
    pause,
    programs::complain,
    wait_for,
};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket},
};
use rustls::{ClientConfig, ClientConnection};

/// Calls of musterctl during each flood.
const CALLS: usize = 12;
/// Time limits of a call: on an idle computer, and beside other tests.
const CALL_MAX: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// The operator's own address.
const OWN: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Stage at which a silent connection falls silent.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// The TCP connection is open.
    Tcp,
    /// The first byte of a ClientHello was sent.
    FirstByte,
    /// TLS is established; the client certificate is missing.
    Tls,
}

/// Silent connections from one address. Drop ends them.
struct Flood {
    over: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn begin(from: Ipv4Addr, port: u16, until: Until, count: usize, tls: &Arc<ClientConfig>) -> Self {
        let (over, made, tls) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default(), Arc::clone(tls));
        let (ends, counts) = (Arc::clone(&over), Arc::clone(&made));
        let thread = thread::spawn(move || {
            let mut open: Vec<Option<TcpStream>> = (0..count).map(|_| None).collect();
            while !ends.load(Ordering::Relaxed) {
                for place in &mut open {
                    if place.as_mut().is_none_or(is_cut) && !ends.load(Ordering::Relaxed) {
                        *place = silent(from, port, until, &tls).ok();
                        counts.fetch_add(1, Ordering::Relaxed);
                    }
                }
                pause(Duration::from_millis(10));
            }
        });
        Self { over, made, thread: Some(thread) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn silent(from: Ipv4Addr, port: u16, until: Until, tls: &Arc<ClientConfig>) -> io::Result<TcpStream> {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrIn::from(SocketAddrV4::new(from, 0)))?;
    connect(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrIn::from(SocketAddrV4::new(OWN, port)))?;
    let mut stream = TcpStream::from(fd);
    match until {
        Until::Tcp => {}
        Until::FirstByte => stream.write_all(&[22])?,
        Until::Tls => {
            stream.set_read_timeout(Some(TIME_LIMIT))?;
            let name = SERVER_NAME.try_into().map_err(io::Error::other)?;
            let mut client = ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
            while client.is_handshaking() {
                client.complete_io(&mut stream)?;
            }
        }
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn is_cut(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 512]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

#[test]
fn silent_connections_keep_nobody_out() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let mut fleet = Fleet::start("floods", &[])?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 4, &items, &items, &[]))?;
    fleet.add_machines(1, 0)?;
    let token = fleet.token("worker", &["--uses", "4"])?;
    let port = fleet.coordinator_port().context("it runs")?;
    // Connect directly: the proxy is not under test here.
    let config = std::fs::read_to_string(fleet.path("operator.toml"))?;
    fleet.write_secret("direct.toml", &config.replace(&fleet.address(), &format!("127.0.0.1:{port}")))?;
    let ca = config.split("\"\"\"").nth(1).context("the CA in the config")?.to_owned();
    let tls = tls::client_config(&ca, None)?;
    let others = |count: u8| (2..2 + count).map(|last| Ipv4Addr::new(127, 0, 0, last)).collect::<Vec<_>>();
    let own = || vec![OWN];
    let mut wrong = Vec::new();
    for (worker, what, floods) in [
        ("worker-1", "silent TCP, 8 addresses", vec![(others(8), Until::Tcp, 200)]),
        ("worker-2", "a first byte, 8 addresses", vec![(others(8), Until::FirstByte, 200)]),
        ("worker-3", "silent TLS, 4 addresses", vec![(others(4), Until::Tls, 258)]),
        ("worker-4", "its own address", vec![(own(), Until::Tcp, 300), (own(), Until::Tls, 300)]),
    ] {
        let mut sources = Vec::new();
        for (addresses, until, count) in floods {
            sources.extend(addresses.iter().map(|from| (Flood::begin(*from, port, until, count, &tls), count)));
        }
        wait_for("the flood at its height", TIME_LIMIT, || {
            Ok(sources.iter().all(|(flood, count)| flood.made.load(Ordering::Relaxed) >= *count).then_some(()))
        })?;
        let began = Instant::now();
        let ran = fleet.enroll_at(worker, &token, &["--coordinator", &format!("127.0.0.1:{port}")])?;
        let (enrolled, mut longest) = (began.elapsed(), Duration::ZERO);
        let mut failed: Vec<String> = (ran.code != Some(0)).then_some(ran.err).into_iter().collect();
        for _ in 0..CALLS {
            let began = Instant::now();
            let ran = fleet.ctl_as("direct.toml", &["get", "clusters"])?;
            longest = longest.max(began.elapsed());
            failed.extend((ran.code != Some(0)).then_some(ran.err));
        }
        let text = format!(
            "{what}: enrolled in {} ms, the longest of {CALLS} calls took {} ms, {} failed {failed:?}",
            enrolled.as_millis(),
            longest.as_millis(),
            failed.len()
        );
        complain(&text);
        if !failed.is_empty() || longest.max(enrolled) > CALL_MAX[usize::from(!alone())] {
            wrong.push(text);
        }
        drop(sources);
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(fleet.machines()?["control-1"].status.connected, "a session lives through all of it");
    fleet.done()
}
