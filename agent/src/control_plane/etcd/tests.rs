//! Answers of a small web server, and of a real etcd (Debian's `etcd-server`).

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use muster_proto::model::EtcdClient;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio::time::{sleep, timeout};

use super::*;
use crate::exec_item::with_sources;

/// Longest wait for an etcd to start, or to notice that it is alone.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn probe(url: String) -> EtcdProbe {
    EtcdProbe { health: url, ca_file: None, client: None }
}

async fn asked(probe: &EtcdProbe) -> Result<EtcdHealth, String> {
    health(probe).await.map_err(|error| with_sources(&error))
}

/// URL of a server with this answer to every request.
fn serve(answer: impl Fn(&mut TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = BufReader::new(stream.try_clone().expect("a handle")).lines();
            while request.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            answer(&mut stream);
        }
    });
    format!("http://{address}/health")
}

/// The verdict on one answer.
async fn verdict(status: &'static str, body: &'static str) -> Result<EtcdHealth, String> {
    let url = serve(move |stream| {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(body.as_bytes()).expect("sent");
    });
    asked(&probe(url)).await
}

#[tokio::test]
async fn health_is_what_etcd_says() {
    assert_eq!(verdict("200 OK", r#"{"health":"true"}"#).await, Ok(EtcdHealth::Healthy));
    let no_leader = r#"{"health":"false","reason":"RAFT NO LEADER"}"#;
    let unhealthy = |reason: &str| Ok(EtcdHealth::Unhealthy(reason.to_owned()));
    assert_eq!(verdict("503 Service Unavailable", no_leader).await, unhealthy("RAFT NO LEADER"));
    assert_eq!(verdict("503 Service Unavailable", r#"{"health":"false"}"#).await, unhealthy(""));
    assert_eq!(verdict("200 OK", r#"{"health":"false","reason":"a\nb"}"#).await, unhealthy("a b"));
}

#[tokio::test]
async fn other_answers_leave_health_unknown() {
    for (status, body) in [
        ("404 Not Found", "404 page not found"),
        ("200 OK", "<html>"),
        ("200 OK", r#"{"health":true}"#),
        ("500 Internal Server Error", r#"{"health":"true"}"#),
        ("302 Found", ""),
    ] {
        let said = verdict(status, body).await.expect_err(body);
        assert!(said.contains("which is not etcd's health"), "{said}");
    }
    let long = serve(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{\"health\":\"true\",\"reason\":\"").expect("sent");
        // It stops reading before the end.
        let _ = stream.write_all(&vec![b'x'; BODY_BYTES_MAX]);
    });
    asked(&probe(long)).await.expect_err("too long");
}

#[tokio::test]
async fn other_machines_are_not_asked() {
    for url in [
        "http://192.0.2.1:2381/health",
        "http://[2001:db8::1]:2381/health",
        "http://localhost:2381/health",
        "http://user@127.0.0.1:2381/health",
        "file:///etc/passwd",
        "127.0.0.1:2381",
    ] {
        let said = asked(&probe(url.to_owned())).await.expect_err(url);
        assert!(said.contains("no address of this machine") || said.contains("is not http"), "{said}");
    }
    let own = facts::own_addresses();
    assert!(own.iter().any(IpAddr::is_loopback), "{own:?}");
}

/// Kills its process.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("reaped");
    }
}

/// Ports of this computer that are free now.
fn ports<const N: usize>() -> [u16; N] {
    let open = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    open.map(|listener| listener.local_addr().expect("an address").port())
}

/// Waits for an answer that fits.
async fn until(probe: &EtcdProbe, fits: impl Fn(&Result<EtcdHealth, String>) -> bool) {
    let mut last = None;
    let waits = async {
        loop {
            let said = asked(probe).await;
            if fits(&said) {
                return;
            }
            last = Some(said);
            sleep(Duration::from_millis(50)).await;
        }
    };
    let fitted = timeout(TIME_LIMIT, waits).await;
    assert!(fitted.is_ok(), "{last:?}");
}

#[tokio::test]
async fn real_etcd_without_majority_is_unhealthy() {
    let dir = tempfile::tempdir().expect("a directory");
    let [a, b, c, client, metrics] = ports();
    let peers = [a, b, c].map(|port| format!("http://127.0.0.1:{port}"));
    let cluster: Vec<String> = peers.iter().enumerate().map(|(n, peer)| format!("m{n}={peer}")).collect();
    let start = |number: usize| {
        let name = format!("m{number}");
        // The others' clients get ports of the system's choice.
        let [listen, health] = if number == 0 { [client, metrics] } else { [0, 0] };
        let mut command = Command::new("etcd");
        command.args(["--name", &name, "--data-dir"]).arg(dir.path().join(&name));
        command.args(["--listen-peer-urls", &peers[number], "--initial-advertise-peer-urls", &peers[number]]);
        command.args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"]);
        command.args(["--listen-client-urls", &format!("http://127.0.0.1:{listen}")]);
        command.args(["--advertise-client-urls", &format!("http://127.0.0.1:{client}")]);
        command.args(["--listen-metrics-urls", &format!("http://127.0.0.1:{health}")]);
        Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcd (tests/missing-tools)"))
    };
    let mut members = [0, 1, 2].map(start).into_iter().collect::<Vec<_>>();
    let probe = probe(format!("http://127.0.0.1:{metrics}/health"));
    until(&probe, |said| *said == Ok(EtcdHealth::Healthy)).await;
    members.truncate(1);
    until(&probe, |said| matches!(said, Ok(EtcdHealth::Unhealthy(_)))).await;
    members.clear();
    until(&probe, |said| matches!(said, Err(why) if why.starts_with("cannot ask http://127.0.0.1:"))).await;
}

/// A CA, and a certificate of it for server and client, as PEM files.
fn certificates(dir: &Path) -> EtcdClient {
    let ca_key = KeyPair::generate().expect("a key");
    let mut ca = CertificateParams::new(Vec::new()).expect("a CA");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_cert = ca.self_signed(&ca_key).expect("a certificate");
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a request");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let cert = params.signed_by(&key, &issuer).expect("a certificate");
    for (name, content) in [("ca.crt", ca_cert.pem()), ("etcd.crt", cert.pem()), ("etcd.key", key.serialize_pem())] {
        fs::write(dir.join(name), content).expect("written");
    }
    let path = |name: &str| dir.join(name).display().to_string();
    EtcdClient { certificate_file: path("etcd.crt"), key_file: path("etcd.key") }
}

#[tokio::test]
async fn real_etcd_wants_client_certificate() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = certificates(dir.path());
    let ca_file = dir.path().join("ca.crt").display().to_string();
    let [peer, client] = ports().map(|port| format!("//127.0.0.1:{port}"));
    let url = format!("https:{client}");
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(dir.path().join("data")).args(["--listen-peer-urls", &format!("http:{peer}")]);
    command.args(["--initial-advertise-peer-urls", &format!("http:{peer}")]);
    command.args(["--initial-cluster", &format!("default=http:{peer}")]);
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url, "--client-cert-auth"]);
    command.args(["--cert-file", &files.certificate_file, "--key-file", &files.key_file]);
    command.args(["--trusted-ca-file", &ca_file]).stdout(Stdio::null()).stderr(Stdio::null());
    let _etcd = Process(command.spawn().expect("etcd (tests/missing-tools)"));
    let good = EtcdProbe { ca_file: Some(ca_file), client: Some(files.clone()), ..probe(format!("{url}/health")) };
    until(&good, |said| *said == Ok(EtcdHealth::Healthy)).await;
    let without = |change: fn(&mut EtcdProbe)| {
        let mut changed = good.clone();
        change(&mut changed);
        changed
    };
    for bad in [
        without(|probe| probe.client = None),
        without(|probe| probe.ca_file = None),
        without(|probe| probe.ca_file = Some("/nowhere/ca.crt".to_owned())),
        without(|probe| probe.ca_file = Some("/dev/zero".to_owned())),
        EtcdProbe { client: Some(EtcdClient { key_file: files.certificate_file.clone(), ..files }), ..good.clone() },
    ] {
        asked(&bad).await.expect_err("unknown");
    }
}
