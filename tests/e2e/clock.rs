//! A clock that is a year off, on either side: agent, musterctl and enrolment distinguish it from wrong credentials,
//! and say what to do. The clock of a single process cannot be changed, so another coordinator stands in. It has the
//! real one's CA, and a certificate as the real one would issue it a year ago or in a year. A client sees no more of a
//! clock.

use std::{
    fs,
    net::TcpListener,
    sync::Arc,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use muster_coordinator::{
    pki::{Ca, SERVER_LIFETIME, StateKey, Validity},
    store::{EmbeddedStore, Store as _},
};
use muster_proto::tls;
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    manifest::{bash, cluster},
    wait_for,
};
use rustls::{ServerConfig, ServerConnection, server::ResolvesServerCert, sign::CertifiedKey};

const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;

#[derive(Debug)]
struct Only(Arc<CertifiedKey>);

impl ResolvesServerCert for Only {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// The coordinator's CA, read from the store while the coordinator is stopped.
fn ca(fleet: &Fleet) -> Result<Ca> {
    let rows = EmbeddedStore::open(&fleet.store())?.load()?;
    Ok(Ca::load(&rows, &StateKey::read(fleet.path("coordinator.key").as_ref())?)?)
}

/// Starts a coordinator with the clock at `now_ms`, which completes only handshakes. Returns its port.
fn coordinator_at(ca: &Ca, now_ms: u64) -> Result<u16> {
    let key = Arc::new(ca.server_key(Validity::from(now_ms, SERVER_LIFETIME))?);
    let config = ServerConfig::builder_with_provider(tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Only(key)));
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let Ok(mut connection) = ServerConnection::new(Arc::clone(&config)) else { return };
            // A client that rejects the certificate hangs up, as intended.
            while connection.is_handshaking() && connection.complete_io(&mut stream).is_ok() {}
        }
    });
    Ok(port)
}

/// Validity of the certificate, if the agent reports that it does not match its clock.
fn certificate_times(fleet: &Fleet) -> Result<Option<String>> {
    let report: serde_json::Value = serde_json::from_slice(&fs::read(fleet.agent_dir("control-1").join("link.json"))?)?;
    let error = report["error"].as_str().filter(|error| error.contains("ClockSkew"));
    Ok(error.and_then(|error| error.split_once("valid from")).map(|(_, times)| times.to_owned()))
}

#[test]
fn a_clock_that_is_a_year_off() -> Result<()> {
    let mut fleet = Fleet::start("clock", &[])?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 1, &items, &items, &[]))?;
    fleet.add_machines(1, 0)?;
    let token = fleet.token("worker", &[])?;
    fleet.wait_machine("control-1", "at work, or through", |machine| machine.status.connected)?;
    let config = fs::read_to_string(fleet.path("operator.toml"))?;
    let real = fleet.address();
    fleet.stop_coordinator()?;
    let ca = ca(&fleet)?;
    let now_ms = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
    let mut told_before = None;
    for (side, its_now_ms) in [("behind", now_ms - YEAR_MS), ("ahead", now_ms + YEAR_MS)] {
        let port = coordinator_at(&ca, its_now_ms)?;
        let wrong = ["ClockSkew", "one of the two has a wrong clock: set it", "the CA is the right one"];
        // The connected agent; it keeps trying.
        fleet.proxy("control-1")?.lead_to(port);
        let told = wait_for("ClockSkew", TIME_LIMIT, || {
            Ok(certificate_times(&fleet)?.filter(|told| told_before.as_ref() != Some(told)))
        });
        told_before = Some(told.context(side)?);
        fleet.agent_status("control-1")?.exits(0)?.says(&wrong)?;
        // An operator.
        let name = format!("{side}.toml");
        fleet.write_secret(&name, &config.replace(&real, &format!("127.0.0.1:{port}")))?;
        let ran = fleet.ctl_as(&name, &["get", "machines"])?.exits(1)?;
        ran.says(&wrong)?.says(&["this machine's or the coordinator's? Set it (timedatectl)"])?;
        // A machine that enrols: the token's secret was not sent, so the token stays valid.
        let address = format!("127.0.0.1:{port}");
        let ran = fleet.enroll_at("worker-1", &token, &["--coordinator", &address])?.exits(5)?;
        ran.says(&wrong)?;
    }
    let log = fleet.log("control-1");
    assert!(log.contains("ClockSkew") && !log.contains("panicked"), "{log}");

    // The clock is right again: all clients reconnect by themselves.
    drop(ca);
    fleet.start_coordinator()?;
    fleet.enroll("worker-1", &token, &[])?.ok()?;
    fleet.start_agent("worker-1")?;
    fleet.wait_ready(2)?;
    fleet.done()
}
