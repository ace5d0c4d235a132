//! The downloader inside exec-item: interrupted, resumed, and on a machine without CA certificates. The unit tests of
//! runner/downloader and runner/archive cover bad servers and archives.

use std::{
    fs,
    net::TcpStream,
    sync::{Arc, Condvar, Mutex},
};

use muster_agent::attempt::{Found, Progress, Request};
use muster_proto::model::ItemState;
use nix::sys::signal::{Signal, kill};

use crate::{
    site::{Site, exec_item_pid, failed, until},
    web::{Asked, Web, send_cut, send_file},
};

const BODY_BYTES: usize = 3_000_000;
const SHA256: &str = "07c18a460aaa7e931a8bc1fedabf1f22ff7f699c7383375470b65e6a781b4655";

fn body() -> Vec<u8> {
    vec![b'm'; BODY_BYTES]
}

fn wanting(site: &Site, url: &str) -> Request {
    let path = site.path("file").display().to_string();
    site.request("downloader", &[("url", url), ("sha256", SHA256), ("path", &path)])
}

/// Serves a first part, then waits until it is released; serves ranges completely.
fn halting(at: usize) -> (Web, Arc<(Mutex<bool>, Condvar)>) {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let closed = Arc::clone(&gate);
    let web = Web::new(move |asked: &Asked, stream: &mut TcpStream| {
        if asked.from().is_some() {
            return send_file(stream, asked, &body());
        }
        send_cut(stream, &body(), at);
        let open = closed.0.lock().expect("not poisoned");
        drop(closed.1.wait_while(open, |open| !*open).expect("not poisoned"));
    });
    (web, gate)
}

#[tokio::test]
async fn a_download_is_an_attempt_like_any_other() {
    let site = Site::new();
    let web = Web::file(body());
    let request = wanting(&site, &web.url("/file"));
    let exit = site.run(&request).await;
    assert_eq!(exit.state, ItemState::Succeeded, "{exit:?}");
    assert!(exit.message.starts_with("downloaded 3000000 bytes in "), "{}", exit.message);
    assert!(exit.output_tail.starts_with(&format!("GET {} from byte 0\n", web.url("/file"))), "{}", exit.output_tail);
    let progress = site.attempts.progress(&request.key).expect("progress");
    assert!(matches!(progress, Progress { done_bytes: 3_000_000, total_bytes: 3_000_000, .. }));
}

#[tokio::test]
async fn a_killed_download_is_resumed_by_the_next_attempt() {
    let site = Site::new();
    let (web, _gate) = halting(2_000_000);
    let mut request = wanting(&site, &web.url("/file"));
    site.start(&request).await;
    let part = site.path("file.muster-part");
    until("the first part is here", || (fs::metadata(&part).ok()?.len() == 2_000_000).then_some(())).await;
    kill(exec_item_pid(&site.attempt()), Signal::SIGKILL).expect("kill");
    assert_eq!(site.ended(&request).await, Found::Lost);
    request.key.attempt += 1;
    let exit = site.run(&request).await;
    assert!(exit.message.ends_with(", 2000000 of them kept from before"), "{}", exit.message);
    assert_eq!(web.asked().iter().map(Asked::from).collect::<Vec<_>>(), [None, Some(2_000_000)]);
    assert!(fs::read(site.path("file")).expect("the file") == body());
}

#[tokio::test]
async fn a_download_ends_at_its_time_limit_and_on_cancel() {
    for cancel in [false, true] {
        let site = Site::new();
        let (web, _gate) = halting(2_000_000);
        let mut request = wanting(&site, &web.url("/file"));
        request.timeout_ms = if cancel { 60_000 } else { 1000 };
        site.start(&request).await;
        let part = site.path("file.muster-part");
        if cancel {
            until("the first part is here", || (fs::metadata(&part).ok()?.len() == 2_000_000).then_some(())).await;
            kill(exec_item_pid(&site.attempt()), Signal::SIGTERM).expect("cancelled");
        }
        let Found::Exited(exit) = site.ended(&request).await else { panic!("recorded") };
        let message = if cancel { "cancelled" } else { "timed out after 1 s" };
        assert_eq!((exit.state, exit.message.as_str()), (failed(-1), message));
        assert!(!site.path("file").exists());
    }
}

#[tokio::test]
async fn a_machine_without_ca_certificates_can_do_http_and_says_why_not_https() {
    for (scheme, expected) in [("http", "downloaded 3000000 bytes"), ("https", "this machine has no CA certificates")] {
        let site = Site::new();
        let web = Web::file(body());
        let request = wanting(&site, &format!("{scheme}://{}/file", web.authority()));
        let without = [("SSL_CERT_FILE", "/nowhere"), ("SSL_CERT_DIR", "/nowhere")];
        let exit = site.run_in(&request, &without).await;
        assert!(exit.message.contains(expected), "{}", exit.message);
    }
}
