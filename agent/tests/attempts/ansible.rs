//! The ansible runner, with the machine's own ansible-core.

use std::{fs, process::Command};

use muster_agent::attempt::{Exit, Found, Request};
use muster_proto::model::{ItemHash, ItemInput, ItemState, SecretName};
use nix::sys::signal::{Signal, kill};

use crate::{
    site::{HOPELESS, Site, exec_item_pid, failed, until},
    web::Web,
};

const PLAYBOOK: &str = r#"
- hosts: all
  gather_facts: false
  tasks:
    - name: say it
      ansible.builtin.copy: {content: "{{ greeting }}", dest: "{{ target }}", mode: "0600"}
    - name: may fail
      ansible.builtin.command: "false"
      ignore_errors: true
    - name: break it
      ansible.builtin.command: sh -c 'echo "out of {{ greeting }}" >&2; exit 3'
      when: breaks is defined
"#;

fn playbook(site: &Site, params: &[(&str, &str)]) -> Request {
    let (path, target) = (site.path("site.yml"), site.path("target"));
    fs::write(&path, PLAYBOOK).expect("a playbook");
    let (path, target) = (path.display().to_string(), target.display().to_string());
    site.request("ansible", &[&[("playbook", path.as_str()), ("target", target.as_str())], params].concat())
}

fn assert_failed(exit: &Exit, message: &str) {
    assert_eq!((&exit.state, exit.message.as_str()), (&failed(2), message), "{}", exit.output_tail);
}

#[tokio::test]
async fn a_playbook_gets_its_params_as_data() {
    let site = Site::new();
    let greeting = "{{ 7 * 7 }} {% raw %} '\" $(id) ü\nline";
    let exit = site.run(&playbook(&site, &[("greeting", greeting)])).await;
    assert_eq!(exit.state, ItemState::Succeeded, "{} {}", exit.message, exit.output_tail);
    assert_eq!(fs::read_to_string(site.path("target")).expect("written"), greeting);
    assert_eq!(exit.message, "2 tasks ok, 2 changed something");
    let result: serde_json::Value = serde_json::from_str(&exit.result_json.expect("a result")).expect("JSON");
    assert_eq!((&result["failures"], &result["ignored"]), (&0.into(), &1.into()));
    // Again: only the task that always reports a change does so.
    fs::remove_dir_all(site.attempt()).expect("removed");
    assert_eq!(site.run(&playbook(&site, &[("greeting", greeting)])).await.message, "2 tasks ok, 1 changed something");
}

#[tokio::test]
async fn the_task_that_failed_is_named() {
    let site = Site::new();
    let exit = site.run(&playbook(&site, &[("greeting", "luck"), ("breaks", "yes")])).await;
    assert_failed(&exit, "task \"break it\" failed: non-zero return code: out of luck");
}

#[tokio::test]
async fn a_task_that_fails_with_what_is_no_text_is_named() {
    let site = Site::new();
    let breaks =
        r#"    - {name: break it, command: "printf 'disk \\377 broken' >&2; false"}"#.replace("command", "shell");
    let exit = play(&site, &format!("- hosts: localhost\n  tasks:\n{breaks}\n")).await;
    assert_failed(&exit, "task \"break it\" failed: non-zero return code: disk ? broken");
}

/// Runs a playbook with this text.
async fn play(site: &Site, playbook: &str) -> Exit {
    let path = site.path("site.yml");
    fs::write(&path, playbook).expect("a playbook");
    site.run(&site.request("ansible", &[("playbook", &path.display().to_string())])).await
}

#[tokio::test]
async fn a_playbook_for_other_machines_has_not_run() {
    let site = Site::new();
    let exit = play(&site, "- hosts: webservers\n  tasks:\n    - debug: {msg: hello}\n").await;
    assert_eq!(exit.state, ItemState::Failed { exit_code: -1, retryable: false }, "{}", exit.output_tail);
    assert!(exit.message.starts_with("NoHostsMatched: "), "{}", exit.message);
    assert!(exit.message.ends_with("write `hosts: all` or `hosts: localhost`"), "{}", exit.message);
    // A single play for other hosts is fine.
    fs::remove_dir_all(site.attempt()).expect("removed");
    let some =
        "- hosts: webservers\n  tasks: []\n- hosts: all\n  gather_facts: false\n  tasks:\n    - debug: {msg: hello}\n";
    assert_eq!(play(&site, some).await.message, "1 tasks ok, 0 changed something");
}

#[tokio::test]
async fn arguments_and_results_are_in_no_file_on_a_disk() {
    let site = Site::new();
    let options = "- hosts: all\n  gather_facts: false\n  tasks:\n    - debug:\n        msg: \"{{ \
                   lookup('config', 'DEFAULT_LOG_PATH') }} {{ lookup('config', 'system_tmpdirs', plugin_type='shell', \
                   plugin_name='sh') }} {{ lookup('config', 'pipelining', plugin_type='connection', \
                   plugin_name='local') }}\"\n";
    let exit = play(&site, options).await;
    assert!(exit.output_tail.contains("/dev/null ['/dev/shm'] True"), "{}", exit.output_tail);
}

#[tokio::test]
async fn a_secret_is_in_no_message_and_no_file_that_stays() {
    let site = Site::new();
    let mut request = playbook(&site, &[("breaks", "yes")]);
    request.secret_params.insert("greeting".to_owned(), "a ${secret.db@1}".to_owned());
    let name = SecretName::new("db").expect("a label");
    let inputs = [ItemInput { name, value: b"hunter2-canary\n".to_vec(), secret: true }];
    site.attempts.create(&request, &inputs).expect("create");
    site.attempts.start(&request.key).await.expect("start");
    let muster_agent::attempt::Found::Exited(exit) = site.ended(&request).await else { panic!("no exit") };
    assert_failed(&exit, "task \"break it\" failed: non-zero return code: out of a [redacted]");
    assert!(!exit.output_tail.contains("hunter2"), "{}", exit.output_tail);
    assert_eq!(fs::read_to_string(site.path("target")).expect("written"), "a hunter2-canary");
    fs::remove_file(site.path("target")).expect("removed");
    let found = Command::new("grep").args(["-rl", "hunter2"]).arg(site.path("")).output().expect("grep");
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

#[tokio::test]
async fn modules_do_not_log_their_arguments_on_the_machine() {
    let site = Site::new();
    fs::create_dir(site.path("library")).expect("a directory");
    // Ansible passes the arguments of this kind of module, and its restrictions, in a file.
    let module = "#!/bin/sh\n# WANT_JSON\ncp \"$1\" \"$(sed 's/.*\"to\": \"\\([^\"]*\\)\".*/\\1/' \"$1\")\"\n\
                  echo '{\"changed\": false}'\n";
    fs::write(site.path("library/keep_arguments"), module).expect("a module");
    let (path, to) = (site.path("site.yml"), site.path("arguments").display().to_string());
    fs::write(&path, "- hosts: all\n  gather_facts: false\n  tasks:\n    - keep_arguments: {to: '{{ to }}'}\n")
        .expect("a playbook");
    let path = path.display().to_string();
    let exit = site.run(&site.request("ansible", &[("playbook", &path), ("to", &to)])).await;
    assert_eq!(exit.state, ItemState::Succeeded, "{} {}", exit.message, exit.output_tail);
    let arguments: serde_json::Value =
        serde_json::from_slice(&fs::read(&to).expect("arguments")).expect("a module's arguments are JSON");
    assert_eq!(arguments["_ansible_no_log"], true, "{arguments}");
}

#[tokio::test]
async fn a_playbook_may_come_in_an_archive_that_is_what_its_digest_says() {
    let site = Site::new();
    let role = site.path("tree/roles/greeter/tasks");
    fs::create_dir_all(&role).expect("directories");
    let task = "- ansible.builtin.copy: {content: from a role, dest: '{{ target }}', mode: '0600'}\n";
    fs::write(role.join("main.yml"), task).expect("a role");
    fs::write(site.path("tree/site.yml"), "- hosts: all\n  gather_facts: false\n  roles: [greeter]\n")
        .expect("written");
    let archive = site.path("a.tar.gz");
    let packed = Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(site.path("tree")).arg(".").status();
    assert!(packed.expect("tar").success());
    let sum = Command::new("sha256sum").arg(&archive).output().expect("sha256sum").stdout;
    let sum = String::from_utf8_lossy(&sum[..64]).into_owned();
    let web = Web::file(fs::read(&archive).expect("read"));
    let (url, target) = (web.url("/a.tar.gz"), site.path("target").display().to_string());
    let exit = site.run(&site.request("ansible", &[("url", &url), ("sha256", &sum), ("target", &target)])).await;
    assert_eq!(exit.message, "1 tasks ok, 1 changed something", "{}", exit.output_tail);
    assert_eq!(fs::read_to_string(&target).expect("written"), "from a role");

    let site = Site::new();
    let wrong = sum.replace(|digit: char| digit.is_ascii_digit(), "a");
    let exit = site.run(&site.request("ansible", &[("url", &url), ("sha256", &wrong), ("target", &target)])).await;
    assert!(exit.message.contains("sha256 is "), "{}", exit.message);
}

#[tokio::test]
async fn what_is_no_playbook_is_said() {
    let site = Site::new();
    let path = site.path("site.yml");
    fs::write(&path, "- hosts: all\n  tasks:\n    - no_such_module: {}\n").expect("written");
    let path = path.display().to_string();
    let exit = site.run(&site.request("ansible", &[("playbook", &path)])).await;
    assert!(exit.message.contains("ERROR! couldn't resolve module/action 'no_such_module'"), "{}", exit.message);
    for (params, message) in [
        (&[("playbook", "/nowhere/site.yml")][..], "PlaybookNotFound: there is no /nowhere/site.yml"),
        (&[("playbook", "site.yml")], "param `playbook`: is not an absolute path without `..`"),
        (&[("x", "1")], "param `playbook` is missing"),
        (
            &[("url", "http://x/a.tar"), ("playbook", "../a.yml")],
            "param `playbook`: is not a path inside the archive, without `..`",
        ),
        (&[("url", "http://x/a.tar")], "param `sha256` is missing"),
    ] {
        let site = Site::new();
        let exit = site.run(&site.request("ansible", params)).await;
        assert_eq!((exit.message.as_str(), exit.state), (message, HOPELESS));
    }
}

/// Settings that notify handlers, in a playbook whose tasks fail while these files exist. A handler writes a line per
/// run.
fn hardening(site: &Site, between: &str) -> Request {
    let text = format!(
        r#"
- hosts: all
  gather_facts: false
  pre_tasks:
    - {{name: first, ansible.builtin.debug: {{msg: first}}}}
  tasks:
    - name: settings
      ansible.builtin.copy: {{content: x, dest: "{{{{ site }}}}/settings"}}
      notify: [restart it, "tell {{{{ whom }}}}"]
{between}
    - {{name: breaks, ansible.builtin.shell: "! test -e {{{{ site }}}}/broken"}}
  handlers:
    - {{name: restart it, ansible.builtin.shell: "! test -e {{{{ site }}}}/stuck && echo r >> {{{{ site }}}}/ran"}}
    - {{name: "tell {{{{ whom }}}}", ansible.builtin.shell: "echo t >> {{{{ site }}}}/ran"}}
    - {{name: not notified, ansible.builtin.shell: "echo n >> {{{{ site }}}}/ran"}}
"#
    );
    let path = site.path("site.yml");
    fs::write(&path, text).expect("a playbook");
    let (path, dir) = (path.display().to_string(), site.path("").display().to_string());
    site.request("ansible", &[("playbook", &path), ("site", dir.trim_end_matches('/')), ("whom", "them")])
}

/// Replaces everything that the playbook does before it may fail.
fn instead_of_settings(site: &Site, tasks: &str) {
    let text = fs::read_to_string(site.path("site.yml")).expect("a playbook");
    let settings = text.find("    - name: settings").expect("there");
    let breaks = text.find("    - {name: breaks").expect("there");
    fs::write(site.path("site.yml"), [&text[..settings], tasks, &text[breaks..]].concat()).expect("a playbook");
}

fn ran(site: &Site) -> String {
    fs::read_to_string(site.path("ran")).unwrap_or_default().replace('\n', "")
}

/// Selects the next attempt of the same item.
fn again(request: &mut Request) {
    request.key.attempt += 1;
}

#[tokio::test]
async fn handlers_run_though_a_later_task_fails() {
    let site = Site::new();
    let mut request = hardening(&site, "");
    fs::write(site.path("broken"), "").expect("written");
    assert_failed(&site.run(&request).await, "task \"breaks\" failed: non-zero return code");
    assert_eq!(ran(&site), "rt");
    fs::remove_file(site.path("broken")).expect("removed");
    again(&mut request);
    let exit = site.run(&request).await;
    assert_eq!((exit.state, ran(&site).as_str()), (ItemState::Succeeded, "rt"), "{}", exit.message);
}

#[tokio::test]
async fn failed_handlers_run_in_the_next_attempt() {
    let site = Site::new();
    let mut request = hardening(&site, "");
    fs::write(site.path("stuck"), "").expect("written");
    for _ in 0..2 {
        let exit = site.run(&request).await;
        let (what, left) = ("task \"restart it\" failed: non-zero return code", "restart it, tell {{ whom }}");
        assert_failed(&exit, &format!("{what}; notified handlers did not run: {left}"));
        again(&mut request);
    }
    fs::remove_file(site.path("stuck")).expect("removed");
    let exit = site.run(&request).await;
    assert_eq!((exit.state, ran(&site).as_str()), (ItemState::Succeeded, "rt"), "{}", exit.message);
    again(&mut request);
    let exit = site.run(&request).await;
    assert_eq!((exit.state, ran(&site).as_str()), (ItemState::Succeeded, "rt"), "{}", exit.message);
}

#[tokio::test]
async fn handlers_of_a_killed_playbook_run_in_the_next_attempt() {
    let waits = "until test -e {{ site }}/go; do touch {{ site }}/waits; sleep 0.1; done";
    let slow = |first: &str| format!("    - name: slow\n      ansible.builtin.shell: \"{first}{waits}\"\n");
    // In the middle, the task has made its change before Ansible knows of it.
    let within = "      args: {creates: \"{{ site }}/x\"}\n      \
                  notify: [\"restart {{ 'it' }}\", \"te{{ 'll' }} {{ whom }}\"]\n";
    for in_the_middle in [false, true] {
        let site = Site::new();
        let mut request = hardening(&site, &slow(""));
        if in_the_middle {
            instead_of_settings(&site, &(slow("touch {{ site }}/x; ") + within));
        }
        site.start(&request).await;
        until("the playbook waits", || site.path("waits").exists().then_some(())).await;
        let task = site.attempts.progress(&request.key).and_then(|progress| progress.task);
        assert_eq!(task.as_deref(), Some("slow"), "what runs is shown");
        kill(exec_item_pid(&site.attempt()), Signal::SIGKILL).expect("killed");
        let found = site.ended(&request).await;
        let Found::Exited(exit) = site.attempts.explain(&request.key, found).await else { panic!("not explained") };
        let left = "its process ended without an outcome: notified handlers did not run: restart it, tell {{ whom }}";
        assert_eq!((exit.state, exit.message.as_str()), (ItemState::Indeterminate, left));
        assert_eq!(ran(&site), "");
        fs::write(site.path("go"), "").expect("written");
        again(&mut request);
        let exit = site.run(&request).await;
        assert_eq!((exit.state, ran(&site).as_str()), (ItemState::Succeeded, "rt"), "{}", exit.message);
    }
}

#[tokio::test]
async fn a_handler_that_nothing_reaches_keeps_the_item_open() {
    let site = Site::new();
    let mut request = hardening(&site, "    - {ansible.builtin.meta: end_play, when: not whom is search('never')}");
    let exit = site.run(&request).await;
    assert_eq!((exit.state, ran(&site).as_str()), (failed(-1), ""), "{}", exit.message);
    assert!(
        exit.message.starts_with("notified handlers did not run: restart it, tell {{ whom }} ("),
        "{}",
        exit.message
    );
    // The playbook after the removal of the failing and the notifying task: the handlers still run.
    instead_of_settings(&site, "");
    again(&mut request);
    let exit = site.run(&request).await;
    assert_eq!((exit.state, ran(&site).as_str()), (ItemState::Succeeded, "rt"), "{}", exit.message);
}

fn rename_handler(site: &Site) {
    let text = fs::read_to_string(site.path("site.yml")).expect("a playbook");
    let text = text.replace("{name: restart it,", "{name: start it,").replace("[restart it,", "[start it,");
    fs::write(site.path("site.yml"), text).expect("a playbook");
    fs::remove_file(site.path("stuck")).expect("removed");
}

#[tokio::test]
async fn handlers_of_an_earlier_content_are_not_lost() {
    let site = Site::new();
    let mut request = hardening(&site, "");
    fs::write(site.path("stuck"), "").expect("written");
    assert_eq!(site.run(&request).await.state, failed(2));
    rename_handler(&site);
    // The obsolete restart is unknown to the same item, which reports what to do.
    again(&mut request);
    let exit = site.run(&request).await;
    assert_eq!((exit.state, ran(&site).as_str()), (failed(-1), "t"), "{}", exit.message);
    let left = "notified handlers did not run: restart it (";
    let next = "no handler of that name any more: restart it; put it back, or give the item another version";
    assert!(exit.message.starts_with(left) && exit.message.contains(next), "{}", exit.message);
    // Another archive under the same version is different content.
    request.hash = ItemHash([1; 32]);
    again(&mut request);
    let exit = site.run(&request).await;
    let gone = "; it has no handlers that an earlier version notified: restart it";
    assert_eq!((exit.state, ran(&site).as_str()), (ItemState::Succeeded, "t"), "{}", exit.message);
    assert!(exit.message.ends_with(gone), "{}", exit.message);
}

#[tokio::test]
async fn vars_come_as_they_were_written() {
    let site = Site::new();
    let text = r#"
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.assert:
        that:
          - not isDedicatedMaster and none_at_all is none
          - values is mapping and values.sysctl['vm.swappiness'] == 10
          - ports == [22, 2222] and ratio == 0.5
          - nested[0].text == '{' ~ '{ 7 * 7 }' ~ '} 1'
          - values['a b'] == ''
          - controlNodeIP == '10.0.0.7'
          - level == 'of the machine'
"#;
    let path = site.path("site.yml");
    fs::write(&path, text).expect("a playbook");
    let vars = r#"{"isDedicatedMaster":false,"none_at_all":null,"ports":[22,2222],"ratio":0.5,
                   "values":{"sysctl":{"vm.swappiness":10},"a b":""},"nested":[{"text":"{{ 7 * 7 }} 1"}],
                   "level":"of the cluster"}"#;
    let path = path.display().to_string();
    let params = [("playbook", path.as_str()), ("_vars", vars), ("controlNodeIP", "10.0.0.7")];
    // A machine's own param overrides a variable.
    let exit = site.run(&site.request("ansible", &[&params[..], &[("level", "of the machine")]].concat())).await;
    assert_eq!(exit.state, ItemState::Succeeded, "{} {}", exit.message, exit.output_tail);
}
