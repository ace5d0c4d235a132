//! Peers without mutual TLS 1.3, over real sockets: the exact messages on both sides.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    process::Command,
    thread,
};

use anyhow::Result;
use muster_tests::fleet::{
    Fleet,
    manifest::{bash, cluster},
    programs,
};

/// The alert of a TLS 1.2 server to a client that requires 1.3: fatal, protocol_version.
const TLS12_ONLY: &[u8] = &[21, 3, 3, 0, 2, 2, 70];
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n";

/// A server that gives every client this answer. Returns its address.
fn somebody(answer: &'static [u8]) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // The client sends first; the server ignores its errors.
            let _ = stream.read(&mut [0; 4096]).and_then(|_| stream.write_all(answer));
        }
    });
    Ok(address)
}

#[test]
fn whoever_is_no_coordinator_is_told_from_one() -> Result<()> {
    let fleet = Fleet::start("no-coordinator", &[])?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
    let token = fleet.token("control", &[])?;
    let ours = fs::read_to_string(fleet.path("operator.toml"))?;
    for (name, answer) in [("plain", PLAIN_HTTP), ("tls12", TLS12_ONLY)] {
        let address = somebody(answer)?;
        let said = format!("{address} does not speak TLS 1.3, so it is no coordinator (is the port the right one?)");
        let config = format!("{name}.toml");
        fleet.write_secret(&config, &ours.replace(&fleet.address(), &address))?;
        let ran = fleet.ctl_as(&config, &["get", "machines"])?.exits(5)?;
        ran.says(&["error: no connection to the coordinator: ", &said, "Is `coordinator` in your config right?"])?;
        let ran = fleet.enroll_at("control-1", &token, &["--coordinator", &address])?.exits(5)?;
        ran.says(&[&said])?;
    }
    fleet.done()
}

/// curl as a client of the wrong kind: it gets an alert, or nothing; never information about the service.
#[test]
fn a_coordinator_speaks_tls13_only() -> Result<()> {
    let fleet = Fleet::start("tls13-only", &[])?;
    for (words, status) in [
        (["--http2-prior-knowledge", &format!("http://{}/", fleet.address())].as_slice(), None),
        (&["--insecure", "--tls-max", "1.2", &format!("https://{}/", fleet.address())], Some(35)),
    ] {
        let mut curl = Command::new("curl");
        let ran = programs::run(curl.args(["--silent", "--show-error", "--max-time", "20"]).args(words))?;
        assert!(ran.code.is_some_and(|code| code != 0) && status.is_none_or(|code| ran.code == Some(code)), "{ran:?}");
        assert!(!ran.out.contains("muster"), "{ran:?}");
    }
    fleet.ctl(&["get", "clusters"])?.exits(0)?;
    fleet.done()
}
