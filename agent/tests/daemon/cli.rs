//! The command line.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use crate::{
    coordinator::{Coordinator, Traits},
    machine::Machine,
};

#[tokio::test]
async fn mistakes_say_what_to_do() {
    let machine = Machine::new();
    let token = format!("a.b.{}", "0".repeat(64));
    let check = async |args: &[&str], stdin: &str, code: i32, says: &str| {
        let ended = machine.command_with(args, stdin).await;
        assert_eq!(ended.code, code, "{args:?}: {ended:?}");
        assert!(ended.stderr.contains(says), "{args:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains(stdin.trim()) || stdin.is_empty(), "the token is shown: {}", ended.stderr);
    };
    check(&["run"], "", 1, "run `muster-agent enroll").await;
    check(&["status"], "", 1, "run `muster-agent enroll").await;
    check(&["ledger", "reset", "--keep-identity"], "", 1, "run `muster-agent enroll").await;
    check(&["ledger", "reset"], "", 2, "--keep-identity").await;
    check(&["enroll"], "", 2, "--token-file").await;
    check(&["enroll", "--token-file", "-"], &token, 2, "--coordinator HOST:PORT").await;
    check(&["--config", "/does/not/exist", "run"], "", 2, "/does/not/exist").await;
    check(&["nonsense"], "", 2, "nonsense").await;
    let enroll = |address, file| ["enroll", "--coordinator", address, "--token-file", file];
    check(&enroll("127.0.0.1:1", "-"), "one.two", 2, "musterctl token create").await;
    check(&enroll("127.0.0.1:1", "/does/not/exist"), "", 2, "/does/not/exist").await;
    check(&enroll("127.0.0.1", "-"), &token, 2, "HOST:PORT").await;
    check(&enroll("127.0.0.1:1", "-"), &token, 5, "cannot reach 127.0.0.1:1").await;
    check(&[&enroll("127.0.0.1:1", "-")[..], &["--name", "Not_A_Label"]].concat(), &token, 2, "--name").await;
    check(&[&enroll("127.0.0.1:1", "-")[..], &["--token", "x"]].concat(), &token, 2, "--token").await;
}

#[tokio::test]
async fn a_ledger_is_reset_and_an_identity_kept() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let mut agent = machine.run();
    // Keep the session open: otherwise the agent reconnects, and that session would be mistaken for the next agent's.
    let session = coordinator.welcomed(1).await;
    let first = session.hello.ledger_id;
    let busy = machine.command_with(&["ledger", "reset", "--keep-identity"], "").await;
    assert_eq!((busy.code, busy.stderr.contains("stop it first")), (1, true), "{busy:?}");
    agent.kill().await.expect("killed");

    std::fs::write(machine.state().join("ledger.log"), "00000000 []\n").expect("damaged");
    let corrupt = machine.command_with(&["run"], "").await;
    assert_eq!((corrupt.code, corrupt.stderr.contains("LedgerCorrupt")), (1, true), "{corrupt:?}");
    assert!(corrupt.stderr.contains("ledger reset --keep-identity"), "{corrupt:?}");
    let reset = machine.command_with(&["ledger", "reset", "--keep-identity"], "").await;
    assert_eq!((reset.code, reset.stdout.contains("start the agent again")), (0, true), "{reset:?}");
    let _agent = machine.run();
    let hello = coordinator.welcomed(1).await.hello;
    assert_ne!(hello.ledger_id, first);
    assert_eq!(hello.name.as_str(), "worker-1");
}

/// Such variables are meant for other programs: the agent must start despite them.
#[tokio::test]
async fn unusable_proxy_of_the_environment_is_ignored() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let _agent = machine.run_with(&[("all_proxy", "socks5://u:hunter2@proxy:1080"), ("HTTPS_PROXY", "nonsense://")]);
    coordinator.welcomed(1).await;
    let log = fs::read_to_string(machine.path("log")).expect("a log");
    for name in ["all_proxy", "HTTPS_PROXY"] {
        assert_eq!(log.matches(&format!("{name} in the environment is ignored")).count(), 1, "{log}");
    }
    assert!(!log.contains("hunter2"), "{log}");
}

#[tokio::test]
async fn state_directory_of_others_is_refused() {
    let coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let (state, moved) = (machine.state(), machine.path("moved"));
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    let refused = async |command: String| {
        for words in [&["run"][..], &["ledger", "reset", "--keep-identity"], &["enroll", "--token-file", "-"]] {
            let words =
                if words[0] == "enroll" { [words, &["--coordinator", "127.0.0.1:1"]].concat() } else { words.to_vec() };
            let ended = machine.command_with(&words, &format!("a.b.{}", "0".repeat(64))).await;
            assert_eq!((ended.code, ended.stderr.contains(&command)), (1, true), "{command}: {ended:?}");
        }
    };
    mode(&state, 0o777);
    refused(format!("`chmod o-w {}`", state.display())).await;
    mode(&state, 0o700);
    let attempts = state.join("attempts");
    fs::create_dir(&attempts).expect("made");
    mode(&attempts, 0o777);
    refused(format!("`chmod o-w {}`", attempts.display())).await;
    fs::remove_dir(&attempts).expect("removed");
    // On another disk, through a link that only its owner can have created.
    fs::rename(&state, &moved).expect("moved");
    symlink(&moved, &state).expect("a link");
    let reset = machine.command_with(&["ledger", "reset", "--keep-identity"], "").await;
    assert_eq!(reset.code, 0, "{reset:?}");
    mode(&machine.path("."), 0o1777);
    refused(format!("`rm {}`", state.display())).await;
}

/// `muster-agent … | head -1`: the reader may stop early.
#[test]
fn nobody_has_to_read_all_of_an_answer() {
    for command in ["version", "completion"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut agent = std::process::Command::new(env!("CARGO_BIN_EXE_muster-agent"));
        let arguments: &[&str] = if command == "completion" { &[command, "bash"] } else { &[command] };
        assert_eq!(agent.args(arguments).stdout(writer).status().expect("started").code(), Some(0), "{command}");
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device without room");
        let lost = agent.stdout(full).output().expect("started");
        let error = String::from_utf8_lossy(&lost.stderr);
        assert!(error.contains("cannot write to stdout: No space left"), "{command}: {error}");
        assert_eq!(lost.status.code(), Some(1), "{command}");
    }
}
