//! Secrets on a machine: awaited, passed to the program as files, removed with it in all cases, and absent from
//! everything that the agent stores or prints.

use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use muster_proto::{
    model::{AssignedItem, ItemState},
    wire::agent_message::Body as FromAgent,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    coordinator::{Coordinator, Session, Traits, script},
    machine::Machine,
    session::until,
};

const VALUE: &str = "hunter2-canary-value";

/// A script that uses the secret `db`: it prints what it sees, and continues when the file `go` exists.
fn secretive(machine: &Machine) -> AssignedItem {
    let (seen, go) = (machine.path("seen"), machine.path("go"));
    let mut item = script(
        "a",
        &format!(
            "cat $MUSTER_SECRET_DB_FILE; echo dsn=$(cat $MUSTER_PARAM_DSN_FILE) >&2
             stat -c '%a %n' $MUSTER_SECRET_DB_FILE $MUSTER_PARAM_DSN_FILE > {seen}.new
             mv {seen}.new {seen}
             until [ -e {go} ]; do read -t 0.05 <> <(:); done
             echo \"{{\\\"dsn\\\": \\\"$(cat $MUSTER_PARAM_DSN_FILE)\\\"}}\" > $MUSTER_RESULT_FILE",
            seen = seen.display(),
            go = go.display()
        ),
    );
    item.params.insert("dsn".to_owned(), "u:${secret.db@7}@host".to_owned());
    item.hash = item.computed_hash();
    item
}

pub(crate) async fn blocked(session: &mut Session) -> (String, String) {
    let body = session.next(|body| if let FromAgent::Blocked(blocked) = body { Some(blocked) } else { None }).await;
    body.map(|blocked| (blocked.reason, blocked.message)).expect("a block")
}

/// Files below `dir` that contain the value, and processes that show it.
fn places(dir: &Path) -> Vec<PathBuf> {
    let holds = |path: &Path| {
        let bytes = fs::read(path).unwrap_or_default();
        bytes.windows(VALUE.len()).any(|window| window == VALUE.as_bytes())
    };
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("readable").flatten() {
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() && holds(&entry.path()) {
                found.push(entry.path());
            }
        }
    }
    for process in fs::read_dir("/proc").expect("/proc").flatten() {
        let shown = ["cmdline", "environ"].map(|name| process.path().join(name));
        found.extend(shown.into_iter().filter(|path| holds(path)));
    }
    found.sort();
    found
}

fn exec_item_pid(machine: &Machine) -> Pid {
    let attempt = machine.state().join("attempts/a.1.1");
    let wanted = [b"exec-item\0", attempt.as_os_str().as_bytes(), b"\0"].concat();
    let pid = fs::read_dir("/proc").expect("/proc").flatten().find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        fs::read(entry.path().join("cmdline")).ok()?.ends_with(&wanted).then(|| Pid::from_raw(pid))
    });
    pid.expect("an exec-item")
}

/// A machine with a running item that uses its secret. Two files then contain the value.
async fn running(coordinator: &mut Coordinator) -> (Machine, tokio::process::Child, Session) {
    *coordinator.calls.secret.lock().expect("whole") = Some(format!("{VALUE}\n").into_bytes());
    let machine = Machine::enrolled(coordinator).await;
    let agent = machine.run();
    let mut session = coordinator.welcomed(1).await;
    session.assign(1, 1, vec![secretive(&machine)]).await;
    assert_eq!(session.event().await, (1, ItemState::Running, 1));
    until(|| machine.path("seen").exists()).await;
    let run = machine.path("run/inputs/a.1.1");
    assert_eq!(places(&machine.path("")), [run.join("param/dsn"), run.join("secret/db")]);
    (machine, agent, session)
}

#[tokio::test]
async fn a_program_reads_its_secrets_from_files_that_go_with_it() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let (machine, _agent, mut session) = running(&mut coordinator).await;
    let seen = fs::read_to_string(machine.path("seen")).expect("seen");
    assert!(seen.lines().count() == 2 && seen.lines().all(|line| line.starts_with("600 ")), "{seen}");
    fs::write(machine.path("go"), "").expect("a file");
    let status = session.next(|body| if let FromAgent::Status(event) = body { event.status } else { None }).await;
    let status = status.expect("an event");
    assert_eq!(status.message, "exit status 0");
    assert_eq!(status.output_tail, "[redacted]\ndsn=u:[redacted]@host\n");
    assert_eq!(status.result_json, "{\"dsn\":\"u:[redacted]@host\"}");
    assert_eq!(places(&machine.path("")), Vec::<PathBuf>::new());
    assert_eq!(fs::read_dir(machine.path("run/inputs")).expect("there").count(), 0);
}

#[tokio::test]
async fn an_item_waits_for_its_secret_and_says_so() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let _agent = machine.run();
    let mut session = coordinator.welcomed(1).await;
    session.assign(1, 1, vec![secretive(&machine)]).await;
    let message = "item a needs secrets, which only the coordinator has: NotAssigned: a 1";
    assert_eq!(blocked(&mut session).await, ("WaitingForSecret".to_owned(), message.to_owned()));
    let status = machine.status().await;
    assert_eq!(
        (&status["blocked"]["reason"], &status["blocked"]["message"]),
        (&"WaitingForSecret".into(), &message.into())
    );
    assert_eq!(status["ledger"]["items"][0]["state"], "Waiting");
    let table = machine.command_with(&["status"], "").await.stdout;
    assert!(table.contains("blocked      WaitingForSecret since "), "{table}");
    fs::write(machine.path("go"), "").expect("a file");
    *coordinator.calls.secret.lock().expect("whole") = Some(VALUE.into());
    assert_eq!(session.event().await, (1, ItemState::Running, 1));
    assert_eq!(session.event().await, (2, ItemState::Succeeded, 1));
    assert!(machine.status().await["blocked"].is_null());
}

#[tokio::test]
async fn secrets_go_when_their_host_is_killed_and_when_the_agent_is_too() {
    for agent_dies in [false, true] {
        let mut coordinator = Coordinator::start(Traits::default()).await;
        let (machine, mut agent, mut session) = running(&mut coordinator).await;
        if agent_dies {
            agent.kill().await.expect("killed");
        }
        kill(exec_item_pid(&machine), Signal::SIGKILL).expect("killed");
        if agent_dies {
            assert_ne!(places(&machine.path("")), Vec::<PathBuf>::new(), "nobody was there to remove them");
            agent = machine.run();
            session = coordinator.welcomed(1).await;
        }
        while session.event().await.1 != ItemState::Indeterminate {}
        assert_eq!(places(&machine.path("")), Vec::<PathBuf>::new());
        drop(agent);
    }
}
