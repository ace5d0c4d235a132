//! exec-item: claims, outcomes, time limit, cancel, the end of the whole tree, and the state after its death.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use muster_agent::{
    attempt::{AttemptError, Attempts, Found},
    host::Host,
    proxy::Proxies,
};
use muster_proto::model::ItemState;
use nix::sys::signal::{Signal, kill};

use crate::site::{DEADLINE, Site, exec_item_pid, failed, is_gone, key, until};

#[tokio::test]
async fn outcomes_are_told_apart() {
    for (script, state, message) in [
        ("exit 0", ItemState::Succeeded, "exit status 0"),
        ("exit 3", failed(3), "exit status 3"),
        ("kill -SEGV $$", failed(-1), "killed by SIGSEGV"),
        ("kill -KILL $$", failed(-1), "killed by SIGKILL"),
        ("echo no room >&2; exit 4", failed(4), "exit status 4; last output: no room"),
        ("echo done; exit 0", ItemState::Succeeded, "exit status 0"),
    ] {
        let site = Site::new();
        let exit = site.run(&site.script(script)).await;
        assert_eq!((exit.state, exit.message.as_str()), (state, message), "{script}");
        assert!(exit.finished_at_ms >= exit.started_at_ms && exit.started_at_ms > 1_500_000_000_000);
    }
}

#[tokio::test]
async fn eight_racing_exec_items_make_one_run() {
    let site = Site::new();
    let request = site.script("echo ran >> $SITE/effects");
    site.attempts.create(&request, &[]).expect("create");
    let race = || {
        Command::new(env!("CARGO_BIN_EXE_muster-agent"))
            .arg("exec-item")
            .arg(site.attempt())
            .stdout(Stdio::null())
            .spawn()
    };
    let racers: Vec<_> = (0..8).map(|_| race().expect("spawn")).collect();
    let codes: Vec<_> = racers.into_iter().map(|mut racer| racer.wait().expect("wait").code()).collect();
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == Some(3)).count(), 7, "{codes:?}");
    assert_eq!(fs::read_to_string(site.path("effects")).expect("effects"), "ran\n");
}

#[tokio::test]
async fn what_was_claimed_is_never_started_again() {
    let site = Site::new();
    let request = site.script("echo ran >> $SITE/effects");
    assert_eq!(site.attempts.inspect(&request.key).expect("inspect"), Found::NotStarted);
    let first = site.run(&request).await;
    let mut other = site.script("echo other >> $SITE/effects");
    other.timeout_ms = 1;
    let again = site.run(&other).await;
    assert_eq!(first, again);
    assert_eq!(fs::read_to_string(site.path("effects")).expect("effects"), "ran\n");
}

#[tokio::test]
async fn an_exec_item_that_was_killed_leaves_it_lost_and_no_program() {
    let site = Site::new();
    let request = site.script("echo $$ > $SITE/pid; exec sleep 1000");
    site.start(&request).await;
    let program = site.told_pid("pid").await;
    assert_eq!(site.attempts.inspect(&request.key).expect("inspect"), Found::Running);
    kill(exec_item_pid(&site.attempt()), Signal::SIGKILL).expect("kill");
    assert_eq!(site.ended(&request).await, Found::Lost);
    until("the program is gone", || is_gone(program).then_some(())).await;
    site.attempts.start(&request.key).await.expect("refused, quietly");
    assert_eq!(site.attempts.inspect(&request.key).expect("inspect"), Found::Lost);
}

/// Proxies may contain a password.
#[tokio::test]
async fn proxies_of_a_killed_exec_item_are_removed() {
    let site = Site::new();
    let proxies = Proxies::of("http://u:hunter2@proxy:3128", "").expect("a proxy");
    let attempts = site.attempts.clone().with_proxies(proxies);
    let request = site.script("echo $$ > $SITE/pid; exec sleep 1000");
    attempts.create(&request, &[]).expect("create");
    attempts.start(&request.key).await.expect("start");
    site.told_pid("pid").await;
    let file = site.attempt().join("proxies.json");
    assert!(fs::read_to_string(&file).expect("there").contains("hunter2"));
    fs::write(file.with_extension("new"), "hunter2").expect("as a crash leaves it");
    kill(exec_item_pid(&site.attempt()), Signal::SIGKILL).expect("kill");
    assert_eq!(site.ended(&request).await, Found::Lost);
    assert_eq!(
        attempts.with_inputs().expect("listed"),
        std::slice::from_ref(&request.key),
        "a restarted agent finds them"
    );
    attempts.forget_inputs(&request.key).expect("removed");
    assert!(!file.exists() && !file.with_extension("new").exists());
    assert_eq!(attempts.with_inputs().expect("listed"), []);
    attempts.forget_inputs(&request.key).expect("gone is as good");
}

#[tokio::test]
async fn an_exec_item_that_fails_says_why_nobody_knows_the_outcome() {
    let site = Site::new();
    let request = site.script(
        "until [ -e $SITE/go ]; do sleep 0.01; done
         mkdir $SITE/attempts/it.3.2/exit; exit 3",
    );
    site.start(&request).await;
    let exec_item = exec_item_pid(&site.attempt());
    fs::write(site.path("go"), "").expect("go");
    until("exec-item has tried to write it", || is_gone(exec_item).then_some(())).await;
    assert!(site.attempts.ended(&request.key).await.is_err(), "an outcome that is a directory");
    fs::remove_dir(site.attempt().join("exit")).expect("removed");
    let found = site.ended(&request).await;
    assert_eq!(found, Found::Lost);
    let Found::Exited(exit) = site.attempts.explain(&request.key, found).await else { panic!("nothing is known") };
    assert_eq!(exit.state, ItemState::Indeterminate);
    let (said, file) = ("its process ended without an outcome: cannot write ", site.attempt().join("exit"));
    assert!(exit.message.starts_with(&format!("{said}{}: Is a directory", file.display())), "{}", exit.message);
}

#[tokio::test]
async fn the_time_limit_ends_the_whole_tree() {
    let site = Site::new();
    // A daemon that forks twice, opens its own session and ignores TERM, and a main program that also ignores TERM.
    let mut request = site.script(
        "trap '' TERM
         (setsid bash -c 'trap \"\" TERM; echo $$ > $SITE/daemon; while :; do sleep 1; done' &) &
         while ! [ -s $SITE/daemon ]; do sleep 0.01; done
         echo $$ > $SITE/main; while :; do sleep 1; done",
    );
    request.params.entry("script".to_owned()).and_modify(|script| *script = format!("export SITE; {script}"));
    request.timeout_ms = 4500;
    let began = Instant::now();
    site.start(&request).await;
    let (daemon, main) = (site.told_pid("daemon").await, site.told_pid("main").await);
    let Found::Exited(exit) = site.ended(&request).await else { panic!("recorded") };
    assert_eq!((exit.state, exit.message.as_str()), (failed(-1), "timed out after 4500 ms"));
    assert!(is_gone(daemon) && is_gone(main));
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(14_500), "{took:?}");
}

#[tokio::test]
async fn cancel_asks_first() {
    let site = Site::new();
    let request = site.script("trap 'echo cleaned up; exit 9' TERM; echo $$ > $SITE/pid; while :; do sleep 0.01; done");
    site.start(&request).await;
    site.told_pid("pid").await;
    let began = Instant::now();
    kill(exec_item_pid(&site.attempt()), Signal::SIGTERM).expect("cancelled");
    let Found::Exited(exit) = site.ended(&request).await else { panic!("recorded") };
    assert!(exit.state == failed(-1) && exit.message.starts_with("cancelled; last output: "), "{exit:?}");
    // bash may also report that its sleep was terminated, depending on which of the two received the signal first.
    assert!(exit.output_tail.ends_with("cleaned up\n"), "{}", exit.output_tail);
    assert!(began.elapsed() < Duration::from_secs(10), "no need for KILL");
}

#[tokio::test]
async fn what_the_program_leaves_behind_is_ended_and_said() {
    let site = Site::new();
    let exit = site.run(&site.script("setsid sleep 1000 & echo $! > $SITE/pid; exit 0")).await;
    assert_eq!(exit.state, ItemState::Succeeded);
    assert_eq!(exit.message, "exit status 0; 1 process(es) it left behind were ended (sleep): a daemon needs a unit");
    assert!(is_gone(site.told_pid("pid").await));
}

#[tokio::test]
async fn daemon_of_hosted_work_is_ended_and_said() {
    let site = Site::new();
    let playbook = site.path("play.yaml");
    let command = format!("sh -c 'setsid sleep 1000 >/dev/null 2>&1 & echo $! >{}'", site.path("pid").display());
    fs::write(&playbook, format!("- hosts: all\n  tasks: [{{ansible.builtin.command: {{cmd: \"{command}\"}}}}]\n"))
        .expect("written");
    let exit = site.run(&site.request("ansible", &[("playbook", &playbook.display().to_string())])).await;
    assert_eq!(exit.state, ItemState::Succeeded, "{exit:?}");
    assert!(
        exit.message.ends_with("; 1 process(es) it left behind were ended (sleep): a daemon needs a unit"),
        "{exit:?}"
    );
    assert!(is_gone(site.told_pid("pid").await));
}

#[tokio::test]
async fn a_helper_that_ends_by_itself_is_waited_for() {
    let site = Site::new();
    let exit = site.run(&site.script("exec > >(sleep 0.05; cat); echo through the helper")).await;
    assert_eq!((exit.message.as_str(), exit.output_tail.as_str()), ("exit status 0", "through the helper\n"));
}

#[tokio::test]
async fn the_record_is_for_root_only() {
    let site = Site::new();
    site.run(&site.script("umask; touch made")).await;
    let mode = |name: &str| fs::metadata(site.attempt().join(name)).expect(name).permissions().mode() & 0o777;
    assert_eq!(mode(""), 0o700);
    for name in ["request.json", "script", "exit", "output.log", "lock", "claim"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
}

#[tokio::test]
async fn space_is_set_aside_for_the_outcome_and_given_back() {
    let site = Site::new();
    let request = site.script("until [ -e $SITE/go ]; do sleep 0.01; done");
    site.start(&request).await;
    let dir = site.attempt();
    let reserved = fs::metadata(dir.join("reserve")).expect("set aside");
    assert_eq!(reserved.len(), 0);
    assert!(reserved.blocks() * 512 >= 160 * 1024, "{} blocks", reserved.blocks());
    fs::write(site.path("go"), "").expect("goes on");
    assert!(matches!(site.attempts.ended(&request.key).await, Ok(Found::Exited(_))));
    // exec-item releases it after the last waiter is gone.
    let taken = || fs::metadata(dir.join("exit")).expect("the outcome").blocks() * 512;
    until("the rest is given back", || (taken() <= 4096).then_some(())).await;
    assert!(!dir.join("reserve").exists());
}

#[tokio::test]
async fn what_it_leaves_in_its_directory_goes_with_it() {
    let site = Site::new();
    // Only root with all capabilities can empty these; the agent's unit lacks them.
    let exit = site.run(&site.script("mkdir -p a/b; touch a/b/c; chmod 0555 a/b; chown -R 1000 a; pwd")).await;
    assert!(exit.output_tail.ends_with("/work\n"), "{}", exit.output_tail);
    assert_eq!((exit.message.as_str(), site.attempt().join("work").exists()), ("exit status 0", false));
    // The outcome is recorded even if the cleanup fails.
    let site = Site::new();
    let exit = site.run(&site.script("mount -t tmpfs none . && cd / && exit 4")).await;
    let work = site.attempt().join("work").display().to_string();
    let unmounted = Command::new("umount").arg(&work).status().expect("umount").success();
    if unmounted {
        let said = format!("could not be removed: {work} is mounted there: unmount it first");
        assert!(
            exit.message.starts_with("exit status 4; what it left in ") && exit.message.ends_with(&said),
            "{exit:?}"
        );
    }
}

#[tokio::test]
async fn what_is_barred_never_begins() {
    let site = Site::new();
    let request = site.script("echo ran >> $SITE/effects");
    assert!(site.attempts.bar(&request.key).expect("barred"), "there is nothing to begin with");
    site.attempts.create(&request, &[]).expect("create");
    assert!(site.attempts.bar(&request.key).expect("barred"));
    // A late exec-item.
    let mut late = Command::new(env!("CARGO_BIN_EXE_muster-agent"));
    let late = late.arg("exec-item").arg(site.attempt()).stdout(Stdio::null()).status().expect("run");
    assert_eq!((late.code(), site.path("effects").exists()), (Some(3), false));
    let site = Site::new();
    let request = site.script("echo ran >> $SITE/effects");
    site.start(&request).await;
    assert!(!site.attempts.bar(&request.key).expect("answered"), "it has begun");
}

#[tokio::test]
async fn what_cannot_begin_says_why_and_may_begin_later() {
    let site = Site::new();
    let request = site.script("exit 0");
    site.attempts.create(&request, &[]).expect("create");
    fs::write(site.attempt().join("request.json"), "{").expect("damage");
    let error = site.attempts.start(&request.key).await.expect_err("damaged");
    assert!(matches!(&error, AttemptError::NotClaimed { .. }), "{error:?}");
    assert!(error.to_string().contains("request.json is not what muster-agent writes there: EOF"), "{error}");
    assert_eq!(site.attempts.inspect(&request.key).expect("inspect"), Found::NotStarted);
    assert_eq!(site.run(&request).await.state, ItemState::Succeeded);
}

#[tokio::test]
async fn attempts_are_listed_and_removed() {
    let site = Site::new();
    let mut request = site.script("exit 0");
    for item in ["b", "a"] {
        request.key = key(item);
        site.attempts.create(&request, &[]).expect("create");
    }
    fs::create_dir(site.path("attempts/lost+found")).expect("a stranger");
    assert_eq!(site.attempts.list().expect("list"), [key("a"), key("b")]);
    site.attempts.remove(&key("a")).expect("remove");
    site.attempts.remove(&key("a")).expect("gone is as good");
    assert_eq!(site.attempts.list().expect("list"), [key("b")]);
}

#[tokio::test]
async fn the_agent_may_go_away_meanwhile() {
    let site = Site::new();
    let request = site.script("echo $$ > $SITE/pid; read line < $SITE/go; echo got $line");
    nix::unistd::mkfifo(&site.path("go"), nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    site.start(&request).await;
    site.told_pid("pid").await;
    // Another instance knows only the directory, like a restarted agent.
    let program = env!("CARGO_BIN_EXE_muster-agent").into();
    let restarted = muster_agent::attempt::Attempts::open(&site.path(""), program, muster_agent::host::Host::Processes)
        .expect("open");
    assert_eq!(restarted.inspect(&request.key).expect("inspect"), Found::Running);
    let ended = async { tokio::time::timeout(DEADLINE, restarted.ended(&request.key)).await };
    let go = async { fs::write(site.path("go"), "on\n") };
    let (ended, went) = tokio::join!(ended, go);
    went.expect("go");
    let Found::Exited(exit) = ended.expect("in time").expect("readable") else { panic!("recorded") };
    assert_eq!(exit.output_tail, "got on\n");
}

/// A cgroup with little memory, removed on drop.
struct Scarce(PathBuf);

impl Scarce {
    /// Creates one, for either version of cgroups. Needs root.
    fn new(bytes: u64) -> Self {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (root, limit) =
            if v1.is_dir() { (v1, "memory.limit_in_bytes") } else { (Path::new("/sys/fs/cgroup"), "memory.max") };
        if !v1.is_dir() {
            fs::write(root.join("cgroup.subtree_control"), "+memory").expect("the memory controller");
        }
        let dir = root.join(format!("muster-test-{}", std::process::id()));
        fs::create_dir(&dir).expect("a cgroup");
        fs::write(dir.join(limit), bytes.to_string()).expect("a limit");
        // Disables swap, if there is any.
        for (swap, bytes) in [("memory.swap.max", 0), ("memory.memsw.limit_in_bytes", bytes)] {
            let _ = fs::write(dir.join(swap), bytes.to_string());
        }
        Self(dir)
    }

    /// File that counts its OOM kills.
    fn events(&self) -> PathBuf {
        let v1 = self.0.join("memory.oom_control");
        if v1.exists() { v1 } else { self.0.join("memory.events") }
    }
}

impl Drop for Scarce {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[tokio::test]
async fn an_item_that_eats_the_memory_does_not_take_its_host_with_it() {
    let site = Site::new();
    let scarce = Scarce::new(64 * 1024 * 1024);
    // Each of them is smaller than exec-item, which by size alone would be killed first.
    let hog = "x=$(head -c 200000 /dev/zero | tr '\\0' x); sleep 1000";
    let events = scarce.events();
    let script = format!("until grep -q '^oom_kill [1-9]' {}; do ({hog}) & sleep 0.01; done; exit 3", events.display());
    let request = site.script(&script);
    site.attempts.create(&request, &[]).expect("create");
    let join = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", scarce.0.display());
    let mut exec_item = Command::new("sh");
    exec_item.args(["-c", &join, "-", env!("CARGO_BIN_EXE_muster-agent"), "exec-item"]).arg(site.attempt());
    let ended = exec_item.stdout(Stdio::null()).spawn().expect("spawned");
    let ended = tokio::time::timeout(DEADLINE, tokio::task::spawn_blocking(|| ended.wait_with_output()));
    let ended = ended.await.expect("in time").expect("waited").expect("an end").status;
    assert!(ended.success(), "exec-item: {ended}");
    let Found::Exited(exit) = site.ended(&request).await else { panic!("recorded") };
    assert!(exit.message.contains("out of memory: the kernel killed "), "{exit:?}");
}

/// In exec-item's own mount namespace, a file system that is too small for the reserve covers the attempt's directory.
/// The agent sees that the attempt never began.
#[tokio::test]
async fn attempt_without_room_has_not_begun() {
    let site = Site::new();
    let mounts = Command::new("unshare").args(["--mount", "true"]).status();
    if !mounts.is_ok_and(|status| status.success()) {
        return; // only where mounts are allowed: root, in a container that lets it
    }
    let stand_in = site.path("agent-on-a-full-disk");
    let script = format!(
        "#!/bin/sh\nexec unshare --mount sh -ec 'cp -a \"$2\" {copy}; mount -t tmpfs -o size=64k none \"$2\"; \
         cp -a {copy}/. \"$2\"; exec {agent} \"$1\" \"$2\"' sh \"$1\" \"$2\"\n",
        copy = site.path("copy").display(),
        agent = env!("CARGO_BIN_EXE_muster-agent"),
    );
    fs::write(&stand_in, script).expect("written");
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).expect("executable");
    let attempts = Attempts::open(&site.path("."), stand_in, Host::Processes).expect("attempts");
    let request = site.script("echo never");
    attempts.create(&request, &[]).expect("create");
    let error = attempts.start(&request.key).await.expect_err("no room");
    assert!(error.is_full() && matches!(error, AttemptError::NoRoom { .. }), "{error}");
    assert!(error.to_string().contains("No space left on device"), "{error}");
    assert_eq!(attempts.inspect(&request.key).expect("a record"), Found::NotStarted);
    // There is space again: the same attempt runs.
    assert!(matches!(site.run(&request).await.state, ItemState::Succeeded));
}
