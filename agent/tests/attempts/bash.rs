//! The bash runner: what a script sees, and what stays hidden from it.

use muster_agent::attempt::Found;
use muster_proto::model::{ItemInput, ItemState, SecretName};

use crate::site::{HOPELESS, Site, failed};

#[tokio::test]
async fn the_environment_is_clean() {
    let site = Site::new();
    let mut request = site.script("env | cut -d= -f1 | sort | tr '\\n' ' '");
    request.params.insert("node_ip".to_owned(), "10.0.0.7".to_owned());
    let exit = site.run_in(&request, &[("AGENT_ONLY", "secret"), ("BASH_ENV", "/dev/stdin")]).await;
    // PWD, SHLVL and _ come from bash itself.
    let expected = "HOME LANG MUSTER_ATTEMPT MUSTER_CLUSTER MUSTER_GENERATION MUSTER_ITEM MUSTER_MACHINE \
                    MUSTER_PARAM_NODE_IP MUSTER_PHASE MUSTER_RESULT_FILE MUSTER_VERSION PATH PWD SHLVL _ ";
    assert_eq!(exit.output_tail, expected);
}

#[tokio::test]
async fn a_script_knows_where_it_runs() {
    let site = Site::new();
    let exit = site
        .run(&site.script(
            "echo $MUSTER_MACHINE $MUSTER_CLUSTER $MUSTER_ITEM $MUSTER_GENERATION $MUSTER_ATTEMPT $MUSTER_PHASE \
             $MUSTER_VERSION; [ \"$PWD\" -ef \"$(dirname $MUSTER_RESULT_FILE)/work\" ] && echo at home",
        ))
        .await;
    assert_eq!(exit.output_tail, "worker-1 edge it 3 2 deploy 1.10\nat home\n");
}

#[tokio::test]
async fn signals_pipes_and_files_are_as_for_any_program() {
    let site = Site::new();
    let script = "grep SigBlk /proc/self/status; ls /proc/self/fd | wc -l; read line || echo no input
                  [ $(ps -o sid= $$) = $$ ] && echo own session; yes | head -1; echo ${PIPESTATUS[0]}";
    let exit = site.run(&site.script(script)).await;
    // 0, 1, 2 and the directory that ls itself reads.
    let expected = "SigBlk:\t0000000000000000\n4\nno input\nown session\ny\n141\n";
    assert_eq!(exit.output_tail, expected);
}

#[tokio::test]
async fn params_are_data_never_code() {
    let big = "x".repeat(64 * 1024);
    for value in
        ["$(touch $SITE/owned) `touch $SITE/owned`; touch $SITE/owned", "two\nlines\n", "{{ x }} ${y} '\"\\", &big, ""]
    {
        let site = Site::new();
        let mut request = site.script("printf %s \"$MUSTER_PARAM_X\" | cmp - $SITE/wanted");
        request.params.insert("x".to_owned(), value.to_owned());
        std::fs::write(site.path("wanted"), value).expect("wanted");
        let exit = site.run(&request).await;
        assert_eq!((&exit.state, exit.output_tail.as_str()), (&ItemState::Succeeded, ""), "{exit:?}");
        assert!(!site.path("owned").exists());
    }
}

#[tokio::test]
async fn a_script_is_never_templated() {
    let site = Site::new();
    let script = "# ${machine.name} {{ x }} %s $MUSTER_PARAM_X\ntail -n 3 $0";
    let mut request = site.script(&format!("{script}\nexit 0"));
    request.params.insert("x".to_owned(), "surprise".to_owned());
    assert_eq!(site.run(&request).await.output_tail, format!("{script}\nexit 0"));
}

#[tokio::test]
async fn first_line_of_script_is_honoured() {
    for (script, state, output) in [
        ("#!/bin/bash -e\nfalse\necho went on", failed(1), ""),
        ("#!/bin/bash\nfalse\necho went on", ItemState::Succeeded, "went on\n"),
        ("#!/bin/sh\necho \"$0\" | grep -c /script$; [ -z \"$BASH\" ]", ItemState::Succeeded, "1\n"),
        ("#!/usr/bin/env python3\nimport os\nprint(os.environ['MUSTER_ITEM'])", ItemState::Succeeded, "it\n"),
        ("#!/usr/bin/env -S python3 -c print(7)\n", ItemState::Succeeded, "7\n"),
    ] {
        let site = Site::new();
        let exit = site.run(&site.request("bash", &[("script", script)])).await;
        assert_eq!((&exit.state, exit.output_tail.as_str()), (&state, output), "{script}: {}", exit.message);
    }
    let site = Site::new();
    let exit = site.run(&site.request("bash", &[("script", "#!/no/such -e\n")])).await;
    assert!(exit.message.contains("cannot execute /no/such: "), "{}", exit.message);
}

#[tokio::test]
async fn bad_params_are_refused_before_anything_runs() {
    let too_big = "x".repeat(128 * 1024);
    let many: Vec<_> = (0..20).map(|i| (format!("p{i}"), "x".repeat(100 * 1024))).collect();
    let many: Vec<_> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let script = ("script", "exit 0");
    for (runner, params, expected) in [
        ("bash", &[][..], "param `script` is missing"),
        ("bash", &[script, ("x", "a\0b")], "param `x`: holds a NUL byte"),
        ("bash", &[("script", "a\0b")], "param `script`: holds a NUL byte"),
        ("bash", &[("script", "#!bash")], "param `script`: '#!' in its first line, and no absolute path behind it"),
        ("bash", &[script, ("x", &too_big)], "param `x`: 131072 bytes; a script takes at most 128 KiB per param"),
        ("bash", &[&[script][..], &many].concat(), "param `script`: its params have 2048"),
        ("vrouter-restart", &[script], "RunnerNotSupported: this agent has no runner `vrouter-restart`"),
        ("no-such", &[], "RunnerNotSupported: this agent has no runner `no-such`"),
    ] {
        let site = Site::new();
        let exit = site.run(&site.request(runner, params)).await;
        assert_eq!(exit.state, HOPELESS, "{exit:?}");
        assert!(exit.message.starts_with(expected), "{}", exit.message);
    }
}

#[tokio::test]
async fn a_param_does_not_pose_as_the_file_of_another() {
    let site = Site::new();
    let mut request = site.script("exit 0");
    request.secret_params.insert("dsn".to_owned(), "${secret.db@1}".to_owned());
    request.params.insert("dsn_file".to_owned(), "x".to_owned());
    let name = SecretName::new("db").expect("a label");
    site.attempts.create(&request, &[ItemInput { name, value: b"hunter2".to_vec(), secret: true }]).expect("create");
    site.attempts.start(&request.key).await.expect("start");
    let Found::Exited(exit) = site.ended(&request).await else { panic!("recorded") };
    assert_eq!(exit.state, HOPELESS);
    assert!(exit.message.starts_with("param `dsn_file`: its variable would be the one"), "{}", exit.message);
}

#[tokio::test]
async fn a_result_is_json_of_at_most_16_kib() {
    let note = |note: &str| format!("exit status 0; its result was ignored: {note}");
    for (script, result, message) in [
        ("true", None, "exit status 0".to_owned()),
        ("echo '{\"nodes\": 3}' > $MUSTER_RESULT_FILE", Some("{\"nodes\": 3}\n"), "exit status 0".to_owned()),
        ("echo '{' > $MUSTER_RESULT_FILE", None, note("not JSON: EOF while parsing an object at line 2 column 0")),
        ("echo '1 2' > $MUSTER_RESULT_FILE", None, note("not JSON: trailing characters at line 1 column 3")),
        ("printf '\"\\xff\"' > $MUSTER_RESULT_FILE", None, note("not UTF-8")),
        ("mkdir $MUSTER_RESULT_FILE", None, note("not a file")),
        ("ln -s /dev/zero $MUSTER_RESULT_FILE", None, note("not a file")),
        ("yes | head -c 16385 > $MUSTER_RESULT_FILE", None, note("16385 bytes, at most 16384")),
    ] {
        let site = Site::new();
        let exit = site.run(&site.script(script)).await;
        assert_eq!((exit.result_json.as_deref(), &exit.message), (result, &message), "{script}");
    }
}

#[tokio::test]
async fn the_tail_is_the_end_of_both_streams() {
    let site = Site::new();
    let exit = site.run(&site.script("echo to out; echo to err >&2; printf '\\xff\\n'; exit 1")).await;
    assert_eq!((exit.state, exit.output_tail.as_str()), (failed(1), "to out\nto err\n\u{fffd}\n"));
}

/// Prints a secret in the encodings of common programs, each on its own line after a name.
const LEAKS: &str = r#"
file=$MUSTER_SECRET_DB_FILE; secret=$(cat "$file")
line() { printf '%s: ' "$1"; shift; "$@"; echo; }
line plain cat "$file"
line base64 base64 --wrap 0 "$file"
line wrapped base64 --wrap 20 "$file"
line basic sh -c 'printf "user:%s" "$0" | base64 --wrap 0' "$secret"
line shell printf '%q' "$secret"
PS4='traced: '; set -x; : "$secret"; set +x; echo
line python python3 - "$file" <<'END'
import base64, json, shlex, sys, urllib.parse
secret = open(sys.argv[1]).read()
inner = json.dumps({"secret": secret})
for form in [json.dumps(secret), json.dumps(inner), json.dumps(secret, ensure_ascii=False), shlex.quote(secret),
             repr(secret), ascii(secret), repr(secret.encode()), urllib.parse.quote(secret),
             urllib.parse.quote_plus(secret), base64.urlsafe_b64encode(secret.encode()).decode()]:
    print("=", form)
END
"#;

#[tokio::test]
async fn a_secret_is_hidden_as_programs_print_it() {
    let site = Site::new();
    let mut request = site.script(LEAKS);
    request.secret_params.insert("dsn".to_owned(), "${secret.db@1}".to_owned());
    let name = SecretName::new("db").expect("a label");
    let value = "it's \"p\\w\" /é&<🔑 1+1 ~canary~".as_bytes().to_vec();
    site.attempts.create(&request, &[ItemInput { name, value, secret: true }]).expect("create");
    site.attempts.start(&request.key).await.expect("start");
    let Found::Exited(exit) = site.ended(&request).await else { panic!("recorded") };
    assert_eq!(exit.state, ItemState::Succeeded, "{exit:?}");
    let lines: Vec<&str> = exit.output_tail.lines().filter(|line| line.contains(['=', ':'])).collect();
    assert_eq!(lines.len(), 17, "{}", exit.output_tail);
    for line in lines.into_iter().filter(|line| !line.starts_with("traced: set") && *line != "python: ") {
        let (_, shown) = line.split_once([':', '=']).expect("a name");
        let around = shown.replacen("[redacted]", "", 1);
        assert!(
            shown.contains("[redacted]") && around.len() < 40 && !around.contains("canary"),
            "{line}\n{}",
            exit.output_tail
        );
    }
}
