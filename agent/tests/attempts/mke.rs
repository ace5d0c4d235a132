//! The runner `mke` on a separate Docker Engine, with a stand-in for MKE's image, because MKE requires a licence. The
//! stand-in prints its arguments and ends; the test itself performs MKE's further actions. If Docker is not running,
//! the test is skipped with a note.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
};

use muster_agent::attempt::{Exit, Found, Request};
use muster_proto::model::ItemState;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustls::{ServerConfig, crypto::aws_lc_rs, pki_types::PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use crate::site::{Site, failed, until};

const SOCKET: &str = "/var/run/docker.sock";
/// Prints its arguments and exits with N for `--exit-N`. As `serve` it keeps running, like ucp-proxy.
const STAND_IN: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **args) {
    int code = 0;
    if (count > 1 && !strcmp(args[1], "serve")) { pause(); return 0; }
    fprintf(stderr, "stand-in:");
    for (int i = 1; i < count; i++) { fprintf(stderr, " %s", args[i]); sscanf(args[i], "--exit-%d", &code); }
    fprintf(stderr, getenv("UCP_ADMIN_USER") && getenv("UCP_ADMIN_PASSWORD") ? ", as admin\n" : "\n");
    return code;
}
"#;

/// A Docker Engine that has only the stand-in; its containers are removed with it.
struct Engine {
    dir: tempfile::TempDir,
    daemon: Child,
}

impl Engine {
    async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        fs::write(path("daemon.json"), "{}").expect("a file");
        let log = fs::File::create(path("log")).expect("a file");
        // In a separate network namespace, because it would remove the bridge of an engine that already runs here.
        let alone = "ip link set lo up && exec dockerd \"$@\"";
        let daemon = Command::new("unshare")
            .args(["--net", "sh", "-c", alone, "dockerd"])
            .arg(format!("--config-file={}", path("daemon.json").display()))
            .arg(format!("--data-root={}", path("data").display()))
            .arg(format!("--exec-root={}", path("exec").display()))
            .arg(format!("--pidfile={}", path("pid").display()))
            .arg(format!("--host=unix://{}", path("socket").display()))
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false", "--storage-driver=vfs"])
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("dockerd: apt-get install docker.io");
        let engine = Self { dir, daemon };
        until("the engine answers", || engine.docker().arg("info").output().ok()?.status.success().then_some(())).await;
        engine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn docker(&self) -> Command {
        let mut docker = Command::new("docker");
        docker.arg("--host").arg(format!("unix://{}", self.path("socket").display())).stdin(Stdio::null());
        docker
    }

    fn run(&self, args: &[&str]) {
        let output = self.docker().args(args).output().expect("docker");
        assert!(output.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Creates images of these names, all with the stand-in.
    fn have_images(&self, names: &[&str]) {
        let source = self.path("ucp.c");
        fs::write(&source, STAND_IN).expect("a file");
        let mut compiler = Command::new("cc");
        let built = compiler.args(["-static", "-Os", "-o"]).arg(self.path("ucp")).arg(source).status().expect("cc");
        assert!(built.success());
        let tar = Command::new("tar").arg("--create").arg("--directory").arg(self.dir.path()).arg("ucp").output();
        for name in names {
            let mut import = self.docker();
            import.args(["import", "--change", r#"ENTRYPOINT ["/ucp"]"#, "-", name]).stdin(Stdio::piped());
            let mut import = import.stdout(Stdio::null()).spawn().expect("docker");
            let bytes = &tar.as_ref().expect("tar").stdout;
            import.stdin.take().expect("a pipe").write_all(bytes).expect("taken");
            assert!(import.wait().expect("an end").success());
        }
    }

    /// Acts as MKE at the end of an installation or an upgrade.
    fn proxy_comes(&self, version: &str) {
        let image = format!("mirantis/ucp-proxy:{version}");
        self.run(&["run", "--detach", "--name", "ucp-proxy", "--network", "none", &image, "serve"]);
    }

    fn proxy_goes(&self) {
        self.run(&["rm", "--force", "ucp-proxy"]);
    }

    /// Begins an attempt that uses this Docker Engine.
    async fn begin(&self, site: &Site, request: &Request) {
        site.attempts.create(request, &[]).expect("create");
        let join = format!("mount --bind \"$0\" {SOCKET} && exec \"$@\"");
        let mut exec_item = Command::new("unshare");
        exec_item.args(["--mount", "sh", "-c", &join]).arg(self.path("socket"));
        exec_item.args([env!("CARGO_BIN_EXE_muster-agent"), "exec-item"]).arg(site.attempt());
        let mut exec_item = exec_item.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("spawned");
        std::thread::spawn(move || exec_item.wait());
        let begun = || site.attempts.inspect(&request.key).is_ok_and(|found| found != Found::NotStarted).then_some(());
        until("it is begun", begun).await;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.docker().args(["swarm", "leave", "--force"]).output();
        let all = self.docker().args(["ps", "--all", "--quiet"]).output();
        let all = all.map(|all| String::from_utf8_lossy(&all.stdout).into_owned()).unwrap_or_default();
        let _ = self.docker().args(["rm", "--force"]).args(all.split_whitespace()).output();
        let _ = kill(Pid::from_raw(self.daemon.id().cast_signed()), Signal::SIGTERM);
        let _ = self.daemon.wait();
    }
}

/// MKE's controller: answers every request with the set status.
struct Controller {
    port: u16,
    status: Arc<AtomicU16>,
    answered: Arc<AtomicUsize>,
}

impl Controller {
    async fn start() -> Self {
        let identity = rcgen::generate_simple_self_signed(vec!["stand-in".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(identity.signing_key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![identity.cert.der().clone()], key)
            .expect("a certificate");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (status, answered) = (Arc::new(AtomicU16::new(503)), Arc::new(AtomicUsize::new(0)));
        let (now, count) = (Arc::clone(&status), Arc::clone(&answered));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let _ = stream.read(&mut [0; 4096]).await;
                let answer = format!(
                    "HTTP/1.1 {} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
                    now.load(Ordering::SeqCst)
                );
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { port, status, answered }
    }

    fn is_well(&self, is_well: bool) {
        self.status.store(if is_well { 200 } else { 503 }, Ordering::SeqCst);
    }

    /// Waits for two more requests: the earlier answers have been processed by then.
    async fn is_asked(&self) {
        let wanted = self.answered.load(Ordering::SeqCst) + 2;
        until("the controller is asked", || (self.answered.load(Ordering::SeqCst) >= wanted).then_some(())).await;
    }
}

fn request(site: &Site, controller: &Controller, action: &str, version: &str, args: &str) -> Request {
    let port = controller.port.to_string();
    let params = [("action", action), ("version", version), ("args", args), ("port", &port)];
    let admin = [("admin_user", "admin"), ("admin_password", "hunter2-canary")];
    site.request("mke", &[&params[..], &admin].concat())
}

async fn ended(site: &Site, request: &Request) -> Exit {
    match site.ended(request).await {
        Found::Exited(exit) => exit,
        other => panic!("{other:?}"),
    }
}

fn is_running(site: &Site, request: &Request) -> bool {
    site.attempts.inspect(&request.key).expect("readable") == Found::Running
}

#[tokio::test]
async fn mke_is_there_when_its_proxy_and_its_controller_say_so() {
    if !Path::new(SOCKET).exists() {
        // Bypass the capture of passing tests' output: this one was skipped.
        writeln!(std::io::stderr(), "NOT TESTED: the runner mke, for no Docker Engine runs here (no {SOCKET})").ok();
        return;
    }
    let (engine, controller) = (Engine::start().await, Controller::start().await);
    engine.have_images(&["mirantis/ucp:1", "mirantis/ucp:2", "mirantis/ucp-proxy:1", "mirantis/ucp-proxy:2"]);

    // Installed; its run ends successfully before MKE is ready.
    let site = Site::new();
    let install = request(&site, &controller, "install", "1", "--san a.example");
    engine.begin(&site, &install).await;
    controller.is_asked().await;
    engine.proxy_comes("1");
    controller.is_asked().await;
    assert!(is_running(&site, &install), "its controller is not well yet");
    controller.is_well(true);
    let exit = ended(&site, &install).await;
    assert_eq!((&exit.state, exit.message.as_str()), (&ItemState::Succeeded, "MKE 1 runs and is healthy"), "{exit:?}");
    assert!(exit.output_tail.contains("stand-in: install --san a.example, as admin\n"), "{}", exit.output_tail);

    // Again, with the same credentials: it is found and skipped.
    let site = Site::new();
    let install = request(&site, &controller, "install", "1", "");
    engine.begin(&site, &install).await;
    let exit = ended(&site, &install).await;
    assert_eq!(exit.state, ItemState::Succeeded, "{exit:?}");
    assert!(exit.output_tail.starts_with("MKE runs here already\n"), "{}", exit.output_tail);
    assert!(!exit.output_tail.contains("stand-in"), "{}", exit.output_tail);

    // Upgraded: the run ends successfully, and the old controller still answers.
    engine.run(&["swarm", "init", "--advertise-addr=127.0.0.1:2377", "--listen-addr=127.0.0.1:2377"]);
    let site = Site::new();
    let upgrade = request(&site, &controller, "upgrade", "2", "");
    engine.begin(&site, &upgrade).await;
    controller.is_asked().await;
    assert!(is_running(&site, &upgrade), "it is the old one that is well");
    engine.proxy_goes();
    engine.proxy_comes("2");
    let exit = ended(&site, &upgrade).await;
    assert_eq!((&exit.state, exit.message.as_str()), (&ItemState::Succeeded, "MKE 2 runs and is healthy"), "{exit:?}");
    assert!(exit.output_tail.contains("--manual-worker-upgrade, as admin\n"), "{}", exit.output_tail);

    // A failed run ends the item at once.
    let site = Site::new();
    let back = request(&site, &controller, "upgrade", "1", "--exit-7");
    engine.begin(&site, &back).await;
    let exit = ended(&site, &back).await;
    assert_eq!(exit.state, failed(7), "{exit:?}");
    assert!(exit.message.starts_with("MkeFailed: `upgrade` ended with status 7"), "{}", exit.message);

    // A manager that joined: MKE installs itself, and a second installation would fail.
    engine.proxy_goes();
    engine.run(&["service", "create", "--detach", "--name", "ucp-agent", "mirantis/ucp:2", "serve"]);
    let site = Site::new();
    let install = request(&site, &controller, "install", "2", "");
    engine.begin(&site, &install).await;
    controller.is_asked().await;
    assert!(is_running(&site, &install), "MKE is not here yet");
    engine.proxy_comes("2");
    let exit = ended(&site, &install).await;
    assert_eq!((&exit.state, exit.message.as_str()), (&ItemState::Succeeded, "MKE 2 runs and is healthy"), "{exit:?}");
    assert!(exit.output_tail.starts_with("MKE is installed in this swarm already\n"), "{}", exit.output_tail);
    assert!(!exit.output_tail.contains("stand-in"), "{}", exit.output_tail);
}
