//! Tests of the manifest: the sample, the table of bad input, and random damage.

use std::fmt::Write as _;

use muster_proto::model::{
    ClusterName, Counts, ItemName, LcmType, MachineName, MachineType, OnInterrupt, PARAM_BYTES_MAX, Phase, RunnerKind,
    VARS_DEPTH_MAX,
};
use proptest::prelude::*;

use super::{
    backup::BACKUPS,
    cluster::CLUSTER,
    group::GROUP,
    hook::{HOOK, HOOKS},
    item::ITEM,
    machine::MACHINE,
    params::schema,
    *,
};

const SAMPLE: &str = include_str!("../../../tests/golden/manifests/edge-7.yaml");
const GOLDEN: &str = include_str!("../../../tests/golden/manifests/faults.txt");
const GOLDEN_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/manifests/faults.txt");
const PAGE: &str = include_str!("../../../docs/reference/manifest.md");
/// The example at the start of the tutorial and in musterctl's package.
const FIRST_FLEET: &str = include_str!("../../../docs/tutorial/first-fleet.yaml");
const TUTORIAL: &str = include_str!("../../../docs/tutorial/first-fleet.md");

/// A valid manifest; each row of the table below damages one place of it.
const BASE: &str = r#"apiVersion: muster/v1alpha1
kind: Cluster
metadata:
  name: c1
spec:
  lcmType: swarm
  release: "1"
  maxWorkerUpgradeCount: 2
  tokenTTL: 24h
  machines: {control: 1, worker: 2}
  machineTypes:
    control:
      - name: files
        runner: downloader
        version: "1"
        phase: prepare
        timeout: 30m
        params:
          url: http://mirror/x
          sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
          path: /x
      - name: script
        runner: bash
        version: "1"
        phase: deploy
        params: {script: "echo $X ${Y}", peer: "${machine.internalIP}"}
    worker:
      - name: restart
        runner: reboot
        version: "1"
        phase: deploy
---
apiVersion: muster/v1alpha1
kind: Machine
metadata: {name: w1}
spec:
  clusterName: c1
  type: control
  stateItemsOverwrites:
    script: {peer: "x"}
"#;

/// A secret forevery cluster, one of `c1` and one of another cluster.
fn known() -> Known {
    let secrets = ["c1/registry", "c1/db-password", "other/theirs"];
    Known { secrets: secrets.map(|id| id.parse().expect("an id")).into(), ..Known::default() }
}

fn read(text: &str) -> Result<Manifest, Vec<Fault>> {
    parse(&[Source { name: "m.yaml", text }], &known())
}

fn faults(text: &str) -> Vec<Fault> {
    read(text).expect_err("a fault")
}

/// `BASE` with one place changed.
fn damaged(old: &str, new: &str) -> String {
    assert_eq!(BASE.matches(old).count(), 1, "'{old}' stands once in BASE");
    BASE.replace(old, new)
}

fn cluster_name(text: &str) -> ClusterName {
    ClusterName::new(text).expect("a name")
}

#[test]
fn the_sample_parses() {
    let manifest = read(SAMPLE).expect("no fault");
    let (spec, annotations) = &manifest.clusters[&cluster_name("edge-7")];
    assert!(annotations.is_empty());
    assert_eq!((spec.lcm_type, spec.release.as_str(), spec.dedicated_control_plane), (LcmType::Swarm, "17.3.0", false));
    assert_eq!(
        (spec.max_worker_prepare_count, spec.max_worker_deploy_count, spec.max_worker_upgrade_count),
        (50, 50, 1)
    );
    assert_eq!(spec.machines, Some(Counts { control: 3, worker: 60 }));
    assert_eq!((spec.max_failures, spec.token_ttl_ms), (Counts { control: 1, worker: 2 }, 86_400_000));
    let control = spec.items(MachineType::Control);
    let names: Vec<&str> = control.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(names, ["engine", "images", "sysctl", "swarm", "reconfigure-managers"]);
    assert_eq!((control[1].timeout_ms, control[1].retries, control[1].runner), (1_800_000, 5, RunnerKind::Downloader));
    assert_eq!((control[2].on_interrupt, control[4].on_interrupt), (OnInterrupt::Rerun, OnInterrupt::Hold));
    assert_eq!((control[4].phase, control[4].retries), (Phase::Reconfigure, 3));
    assert!(control[2].params["script"].ends_with("sysctl -p /etc/sysctl.d/60-muster.conf\n"));
    let (machine, annotations) = &manifest.machines[&MachineName::new("edge-7-w12").expect("a name")];
    assert_eq!((machine.machine_type, machine.upgrade_index), (MachineType::Worker, 20));
    assert_eq!(machine.state_items_overwrites[&ItemName::new("sysctl").expect("a name")]["max_map_count"], "524288");
    assert_eq!(annotations["openstack.lcm.mirantis.com/instance_migration_mode"], "manual");
}

#[test]
fn the_base_of_the_table_parses() {
    read(BASE).expect("no fault");
}

/// One case of the golden file.
#[derive(Default)]
struct Case {
    cut: String,
    put: String,
    faults: String,
}

fn cases() -> Vec<Case> {
    let blocks = GOLDEN.split("\n\n").skip(1);
    let lines_of = |block: &str, mark: char| {
        block.lines().filter_map(|line| line.strip_prefix(mark)).fold(String::new(), |all, line| all + line + "\n")
    };
    blocks
        .map(|block| Case { cut: lines_of(block, '-'), put: lines_of(block, '+'), faults: lines_of(block, '>') })
        .collect()
}

#[test]
fn each_bad_input_has_its_place() {
    let (mut golden, mut wrong) = (GOLDEN.split("\n\n").next().expect("a head").to_owned() + "\n", String::new());
    let cases = cases();
    assert!(cases.len() >= 100, "{} cases", cases.len());
    for Case { cut, put, faults } in cases {
        let got = match read(&damaged(&cut, &put)) {
            Err(found) => found.iter().map(|fault| format!(" {fault}\n")).collect(),
            Ok(_) => String::new(),
        };
        if got.is_empty() || got != faults {
            let _ = write!(wrong, "{put}expected:\n{faults}got:\n{got}\n");
        }
        let _ = writeln!(golden);
        for (mark, text) in [('-', &cut), ('+', &put), ('>', &got)] {
            text.lines().for_each(|line| golden.extend([&mark.to_string(), line, "\n"]));
        }
    }
    if std::env::var("MUSTER_GOLDEN").is_ok_and(|value| value == "update") {
        std::fs::write(GOLDEN_PATH, golden).expect("the golden file can be written");
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn whole_texts_that_are_no_manifest() {
    let deep = format!("a: {}{}", "[".repeat(32), "]".repeat(32));
    let long = format!("{BASE}# {}", "x".repeat(TEXT_ALL_BYTES_MAX));
    let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
    for (text, place, problem) in [
        ("", "1:1", "empty"),
        ("  \n# nothing\n", "1:1", "empty"),
        ("---\n---\n", "1:1", "empty"),
        ("null", "1:1", "no value"),
        ("- a\n- b\n", "1:1", "this is a list"),
        ("hello", "1:1", "this is a text"),
        ("{a: b", "1:1", "not YAML"),
        ("a: b\n\tc: d", "2:1", "a tab where a line is indented"),
        ("a:\n\tc: d", "2:1", "a tab where a line is indented"),
        ("\u{a0}kind: b", "1:1", "unknown field, with a no-break blank (U+00A0) in it"),
        ("a:\n\u{a0}\u{a0}b: c\n  d: e", "2:1", "not YAML: a no-break blank (U+00A0)"),
        ("a:\n  b: c\n  -\u{3000}d", "3:4", "a blank of another width (U+3000)"),
        ("a:\n  b:\u{200b}c\n  d: e", "2:5", "an invisible character (U+200B)"),
        ("a:\n  b: c\n  \td: e", "3:3", "a tab where a line is indented"),
        ("a: b\n\n# c\n  \td: e\n", "4:3", "a tab where a line is indented"),
        ("a:\r\n\t- c: d\r\n", "2:1", "a tab where a line is indented"),
        ("a: |\n\tb", "2:1", "a tab where a line is indented"),
        ("a: b\nc: \"\n", "3:1", "not YAML: "),
        ("%YAML 1.1\n---\na: b\n", "1:1", "directive"),
        ("a\0b", "1:2", "NUL"),
        ("line\nä\0b", "2:2", "NUL"),
        ("a\r\nb\rä\0", "3:2", "NUL"),
        ("{[a]: b}", "1:2", "a list or map as key"),
        (bomb, "1:1", "unknown field"),
        (&deep, "1:35", "nested too deeply"),
        (&long, "1:1", "too long"),
    ] {
        let first = faults(text).swap_remove(0);
        let start: String = text.chars().take(40).collect();
        assert_eq!(format!("{}:{}", first.line, first.column), place, "{start:?}: {first}");
        assert!(first.problem.contains(problem), "{start:?}: {first}");
    }
    assert!(faults(bomb).iter().any(|fault| fault.problem.contains("alias") && (fault.line, fault.column) == (2, 8)));
    assert_eq!(parse(&[], &Known::default()).expect_err("a fault")[0].problem, "no manifest");
}

#[test]
fn broken_yaml_is_told_with_what_to_do() {
    let neighbours = "'key: value' indented as its neighbours";
    let blank = "'key: value' or '- value', a blank behind ':' and '-'; text of '|' is indented deeper than its key";
    for (text, place, expected) in [
        ("a: b\nc: \"d\ne: f\n", "3:1", "the \" of line 2 closed before here"),
        ("a: b\nc: 'd\ne: f\n", "3:1", "the ' of line 2 closed before here"),
        ("a:\n- b\n- \"c\n- d\n", "4:1", "the \" of line 3 closed before here"),
        ("a:\n  b: \"c\n  d: \"e\"\n", "3:3", "the \" of line 2 closed before here"),
        ("a: \"b\n---\nc: d\n", "2:1", "the \" of line 1 closed before here"),
        ("a: {b: c\nd:\n  e: f\n", "2:2", "the { of line 1 closed before here"),
        ("a:\n  b: [c, d\n  e: f\n", "3:4", "the [ of line 2 closed before here"),
        ("a:\n- {b: [c]\n- d\n", "3:1", "the { of line 2 closed before here"),
        ("a: [b}\n", "1:4", ""),
        ("a: b: c\n", "1:5", &format!("{neighbours}, a value with ': ' in quotes")),
        ("a:\n  b: c\n d: e\n", "3:2", neighbours),
        ("a: b\nc:d\ne: f\n", "2:1", blank),
        ("a:\n- b: |\n  c\n", "3:3", blank),
        ("a:\n- b\n-c\n", "3:1", blank),
        ("a:\n  - b\n  c: d\n", "3:3", "'- ' before each entry of a list, indented as its neighbours"),
        ("a: @b\n", "1:4", "a value that begins with such a character in quotes"),
        ("a: \"\\d\"\n", "1:4", "the value in single quotes, where '\\' is itself"),
    ] {
        let first = faults(text).swap_remove(0);
        assert_eq!(format!("{}:{}", first.line, first.column), place, "{text:?}: {first}");
        assert_eq!(first.expected, expected, "{text:?}: {first}");
    }
}

#[test]
fn limits_hold_at_their_edge() {
    let nested = |depth: usize| format!("a: {}{}", "[".repeat(depth - 1), "]".repeat(depth - 1));
    let too_deep = |text: &str| faults(text).iter().any(|fault| fault.problem.contains("deeply"));
    assert!(!too_deep(&nested(DEPTH_MAX)));
    assert!(too_deep(&nested(DEPTH_MAX + 1)));
    assert!(too_deep(&"- ".repeat(100_000)));

    let fits = |length: usize| read(&damaged("echo $X ${Y}", &"x".repeat(length)));
    assert!(fits(256 * 1024).is_ok());
    assert!(fits(256 * 1024 + 1).expect_err("a fault")[0].problem.contains("too long a value"));
    let two = |length: usize| {
        let half = "x".repeat(length);
        read(&damaged("script: \"echo $X ${Y}\"", &format!("script: {half}, more: {half}")))
    };
    assert!(two(250 * 1024).is_ok());
    assert!(two(256 * 1024).expect_err("a fault")[0].problem.contains("too long together"));

    let max_bytes = |bytes: u64| read(&damaged("path: /x", &format!("path: /x\n          max_bytes: \"{bytes}\"")));
    assert!(max_bytes(1 << 50).is_ok());
    assert!(max_bytes((1 << 50) + 1).expect_err("a fault")[0].problem.contains("not a number in its range"));

    let secrets: BTreeSet<SecretId> = (0..=12).map(|n| format!("c1/s{n}").parse().expect("an id")).collect();
    let known = Known { secrets, ..Known::default() };
    let referring = |count: usize| {
        let text: String = (0..count).map(|n| format!("${{secret.s{n}}}")).collect();
        parse(&[Source { name: "m", text: &damaged("${machine.internalIP}", &text) }], &known)
    };
    assert!(referring(12).is_ok());
    assert!(referring(13).expect_err("a fault")[0].problem.contains("too many secrets"));

    let many: String = (0..NODES_MAX).map(|_| "1,").collect();
    assert!(faults(&format!("[{many}]"))[0].problem.contains("too many keys and values"));
    let text = BASE.to_owned() + "#" + &"x".repeat(TEXT_ALL_BYTES_MAX - BASE.len() - 1);
    assert!(read(&text).is_ok());
}

#[test]
fn one_pass_finds_many_faults_up_to_a_limit() {
    let text = damaged("lcmType: swarm", "lcmType: x")
        .replace("phase: prepare", "phase: x")
        .replace("c1\n  type", "c2\n  type");
    let places: Vec<u32> = faults(&text).iter().map(|fault| fault.line).collect();
    assert_eq!(places, [6, 16, 37]);
    let unknown: String = (0..300).map(|n| format!("  x{n}: 1\n")).collect();
    let many = faults(&damaged("spec:\n  lcmType", &format!("spec:\n{unknown}  lcmType")));
    assert_eq!(many.len(), FAULTS_MAX + 1);
    assert_eq!(many[FAULTS_MAX].problem, "200 more faults are not shown");
}

#[test]
fn a_broken_document_hides_no_other_and_blames_no_other() {
    let text = BASE.replace("spec:\n  lcmType", "spec: [\n  lcmType").replace("type: control", "type: x");
    let found = faults(&text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].problem.contains("not YAML") && found[1].path == "spec.type", "{found:?}");
}

#[test]
fn documents_of_one_name_stand_once() {
    let (cluster, machine) = BASE.split_once("---\n").expect("two documents");
    for (first, second, expected) in
        [(cluster, cluster, "a second document for 'c1'"), (BASE, machine, "a second document for 'w1'")]
    {
        let sources = [Source { name: "a", text: first }, Source { name: "b", text: second }];
        let faults = parse(&sources, &Known::default()).expect_err("a fault");
        assert_eq!((faults[0].file.as_str(), faults[0].problem.as_str()), ("b", expected));
        assert!(faults[0].expected.contains("a:"), "{}", faults[0]);
    }
}

#[test]
fn a_machine_may_come_without_its_cluster() {
    let (cluster, machine) = BASE.split_once("---\n").expect("two documents");
    let clusters = read(cluster).expect("good").clusters.into_iter().map(|(name, (spec, _))| (name, spec)).collect();
    let known = Known { clusters, ..known() };
    let with = |text: &str| parse(&[Source { name: "m", text }], &known);
    assert_eq!(with(machine).expect("good").machines.len(), 1);
    let faults = with(&machine.replace("peer: \"x\"", "peer: \"${a}\"").replace("c1", "c9")).expect_err("faults");
    assert_eq!((faults[0].path.as_str(), faults[0].expected.as_str()), ("spec.clusterName", "c1"));
    let faults = with(&machine.replace("    script", "    scrip")).expect_err("a fault");
    assert_eq!(faults[0].nearest, "script");
    assert!(with(&machine.replace("peer: \"x\"", "peer: \"${secret.db-password}\"")).is_ok());
    let faults = with(&machine.replace("peer: \"x\"", "peer: \"${secret.db-pasword}\"")).expect_err("a fault");
    assert_eq!(
        (faults[0].problem.as_str(), faults[0].nearest.as_str()),
        ("unknown secret 'db-pasword'", "db-password")
    );
    // Order is irrelevant.
    assert!(read(&format!("{machine}---\n{cluster}")).is_ok());
}

/// Arguments are visible in the process list, names and paths in logs.
#[test]
fn secrets_are_refused_where_others_would_see_them() {
    let item = "runner: reboot\n        version: \"1\"\n        phase: deploy";
    let digest = "a".repeat(64);
    let of = |runner: &str, params: &str| {
        let params = params.replace('$', "${secret.db-password}").replace("DIGEST", &digest);
        damaged(
            item,
            &format!("runner: {runner}\n        version: \"1\"\n        phase: deploy\n        params: {params}"),
        )
    };
    for (runner, params) in [
        ("package", r#"{install: "x=$"}"#),
        ("package", r#"{remove: "$"}"#),
        ("service", r#"{unit: "$.service", action: start}"#),
        ("mke", r#"{action: install, image: x, version: "1", args: "--admin-password $"}"#),
        ("mke", r#"{action: backup, args: "--passphrase $"}"#),
        ("swarm-join", r#"{advertise: "$"}"#),
        ("ansible", r#"{playbook: "/srv/$.yml"}"#),
        ("downloader", r#"{url: "http://h/x", sha256: DIGEST, path: "/srv/$"}"#),
    ] {
        let found = faults(&of(runner, params));
        assert!(found[0].problem.starts_with("a secret in '"), "{runner} {params}: {found:?}");
        // Only this fault is reported, although the secret is missing.
        let found = faults(&of(runner, params).replace("db-password", "not-made"));
        assert!(found.len() == 1 && found[0].problem.starts_with("a secret in '"), "{runner} {params}: {found:?}");
    }
    for (runner, params) in [
        ("bash", r#"{script: "echo", dsn: "postgres://app:$@db"}"#),
        ("mke", r#"{action: install, image: x, version: "1", admin_user: "$", admin_password: "$"}"#),
        ("ansible", r#"{playbook: "/srv/x.yml", dsn: "$"}"#),
        ("downloader", r#"{url: "http://app:$@h/x", sha256: DIGEST, path: "/srv/x"}"#),
    ] {
        assert_eq!(read(&of(runner, params)).err(), None, "{runner} {params}");
    }
}

/// An item with `vars`, in place of the reboot.
fn playbook(more: &str) -> String {
    let head =
        "runner: ansible\n        version: \"1\"\n        phase: deploy\n        params: {playbook: /x.yml, tag: a}";
    damaged("runner: reboot\n        version: \"1\"\n        phase: deploy", &format!("{head}\n        {more}"))
}

#[test]
fn vars_are_yaml_as_it_is() {
    let vars =
        "vars: {isDedicatedMaster: false, _a: [22, -1, 0.5, ~], b: {\"x y\": \"010\", z: '${secret.db-password}'}}";
    let manifest = read(&playbook(&format!("{vars}\n        ignoreChanges: [tag, _a]"))).expect("good");
    let (spec, _) = manifest.clusters.values().next().expect("a cluster");
    let items = spec.machine_types.values().flatten();
    let item = items.into_iter().find(|item| item.runner == RunnerKind::Ansible).expect("a playbook");
    let expected = r#"{"_a":[22,-1,0.5,null],"b":{"x y":"010","z":"${secret.db-password}"},"isDedicatedMaster":false}"#;
    assert_eq!(item.params["_vars"], expected);
    assert_eq!(item.ignore_changes, ["_a".to_owned(), "tag".to_owned()].into());
    assert_eq!(muster_proto::variables::secrets_of(&item.params).len(), 1);
    let deep = format!("vars: {{a: {}1{}}}", "[".repeat(VARS_DEPTH_MAX - 1), "]".repeat(VARS_DEPTH_MAX - 1));
    assert_eq!(read(&playbook(&deep)).err(), None);
}

#[test]
fn vars_with_faults_are_refused() {
    let deep = format!("vars: {{a: {}1{}}}", "[".repeat(VARS_DEPTH_MAX), "]".repeat(VARS_DEPTH_MAX));
    let long = format!("vars: {{a: {}}}", "x".repeat(PARAM_BYTES_MAX));
    for (more, path) in [
        (deep.as_str(), "vars.a[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]"),
        (&long, ".vars"),
        ("vars: [a]", ".vars"),
        ("vars: {1a: x}", ".vars.1a"),
        ("vars: {a.b: x}", ".vars[\"a.b\"]"),
        ("vars: {__ansible_unsafe: x}", ".vars.__ansible_unsafe"),
        ("vars: {a: {__ansible_vault: x}}", ".vars.a.__ansible_vault"),
        ("vars: {tag: x}", ".vars.tag"),
        ("vars: {a: [yes]}", ".vars.a[0]"),
        ("vars: {a: 0644}", ".vars.a"),
        ("vars: {a: .inf}", ".vars.a"),
        ("vars: {a: 99999999999999999999}", ".vars.a"),
        ("vars: {a: {b: $x}}", ".vars.a.b"),
        ("vars: {a: '${secret.not-made}'}", ".vars.a"),
        ("ignoreChanges: [tog]", ".ignoreChanges[0]"),
        ("ignoreChanges: tag", ".ignoreChanges"),
    ] {
        let found = faults(&playbook(more));
        assert!(found.iter().any(|fault| fault.path.ends_with(path)), "{more:.80}: {found:?}");
    }
    let found =
        faults(&damaged("params: {script: \"echo $X ${Y}\"", "vars: {a: 1}\n        params: {script: \"echo\""));
    assert!(found.len() == 1 && found[0].path.ends_with(".vars"), "{found:?}");
}

#[test]
fn params_of_scripts_differ_without_case() {
    let with = |params: &str| damaged("script: \"echo $X ${Y}\"", &format!("script: \"echo\", {params}"));
    assert_eq!(read(&with("controlNodeIP: a, controlPlaneNodes: b, isDedicatedMaster: c")).err(), None);
    let found = faults(&with("peerIP: a, peerip: b"));
    assert!(found.len() == 1 && found[0].path.ends_with("params.peerip"), "{found:?}");
}

#[test]
fn first_line_without_program_is_refused() {
    let with = |line: &str| damaged("\"echo $X ${Y}\"", &format!("\"{line}\\necho\\n\""));
    for line in ["#!/bin/bash -e", "#!/usr/bin/env python3", "#!/usr/bin/env -S perl -w", "# {{ x }}"] {
        assert_eq!(read(&with(line)).err(), None, "{line}");
    }
    for line in ["#!bash", "#!", "#!/bin/bash\\r", "#!/usr/bin/env python3 -u"] {
        let found = faults(&with(line));
        assert!(found.len() == 1 && found[0].path.ends_with("params.script"), "{line}: {found:?}");
    }
}

#[test]
fn params_that_do_not_agree_are_refused() {
    let item = "runner: reboot\n        version: \"1\"\n        phase: deploy";
    let of = |runner: &str, params: &str| {
        let head = "version: \"1\"\n        phase: deploy\n        params:";
        damaged(item, &format!("runner: {runner}\n        {head} {params}"))
    };
    let (digest, file) = ("a".repeat(64), "url: \"http://h/x\", sha256: DIGEST, path: /x");
    for (runner, params, path) in [
        ("mke", "{action: install}", "params.version"),
        ("mke", "{action: upgrade, image: x}", "params.version"),
        ("ansible", "{playbook: site.yml}", "params.playbook"),
        ("package", "{install: \"docker.io, curl\"}", "params.install"),
        ("package", "{install: \"docker.io >= 20\"}", "params.install"),
        ("package", "{install: \" \"}", "params.install"),
        ("package", "{remove: curl=8.1}", "params.remove"),
        ("package", "{install: \"jq curl=8.1\", remove: \"vim curl\"}", "params.remove"),
        ("package", "{remove: vim, action: download}", "params.action"),
        ("mke", "{action: backup, admin_user: a}", "params.admin_password"),
        ("mke", "{action: backup, admin_password: a}", "params.admin_user"),
        ("ansible", "{playbook: /srv/site.yml, url: \"http://h/x.tar\", sha256: DIGEST}", "params.playbook"),
        ("ansible", "{playbook: ../site.yml, url: \"http://h/x.tar\", sha256: DIGEST}", "params.playbook"),
        ("ansible", "{playbook: ./site.yml, url: \"http://h/x.tar\", sha256: DIGEST}", "params.playbook"),
        ("ansible", "{url: \"http://h/x?of=y.tar\", sha256: DIGEST}", "params.url"),
        ("downloader", "{FILE, format: tar}", "params.format"),
        ("downloader", "{FILE, extract: /y}", "params.format"),
        ("downloader", "{url: \"http://h/x#y.tar\", sha256: DIGEST, path: /x.zip, extract: /y}", "params.format"),
    ] {
        let params = params.replace("FILE", file).replace("DIGEST", &digest);
        let found = faults(&of(runner, &params));
        assert!(found.len() == 1 && found[0].path.ends_with(path), "{runner} {params}: {found:?}");
    }
    let archive = "{playbook: site.yml, url: \"http://h/x.tar\", sha256: DIGEST}";
    for (runner, params) in [
        ("mke", "{action: backup}"),
        ("ansible", "{playbook: /srv/site.yml}"),
        ("ansible", archive),
        ("ansible", "{url: \"http://h/x http://h/y.tgz?of=z\", sha256: DIGEST}"),
        ("ansible", "{url: \"http://h/${cluster.release}\", sha256: DIGEST, playbook: roles/site.yml}"),
        ("downloader", "{FILE, extract: /y/, format: tar.gz}"),
        ("downloader", "{url: \"http://h/x\", sha256: DIGEST, path: /x.tar.zst, extract: /y}"),
        ("downloader", "{url: \"http://h/x.tar#y\", sha256: DIGEST, path: /x, extract: /y}"),
        ("downloader", "{url: \"http://h/x\", sha256: DIGEST, path: \"/x-${cluster.release}\", extract: /y}"),
        ("package", "{install: \"docker.io=20.10.24+dfsg1-1 linux-image-${machine.name}\", remove: vim}"),
    ] {
        let params = params.replace("FILE", file).replace("DIGEST", &digest);
        assert_eq!(read(&of(runner, &params)).err(), None, "{runner} {params}");
    }
    // The same rule for a machine's own params.
    let own = |params: &str| damaged("script: {peer: \"x\"}", &format!("files: {params}"));
    assert_eq!(read(&own("{extract: /y, format: tar}")).err(), None);
    let found = faults(&own("{extract: /y}"));
    assert!(found.len() == 1 && found[0].path == "spec.stateItemsOverwrites.files.format", "{found:?}");
}

/// The address at which a swarm's engines reach this one, and the one on which it listens.
#[test]
fn addresses_are_what_docker_takes() {
    let item = "runner: reboot\n        version: \"1\"\n        phase: deploy";
    let join = "runner: swarm-join\n        version: \"1\"\n        phase: deploy\n        params:";
    let with = |params: &str| {
        let both = damaged(item, &format!("{join} {params}"));
        read(&both.replace(
            "      - name: script\n",
            &format!("      - name: join\n        {join} {params}\n      - name: script\n"),
        ))
    };
    for address in [
        "${machine.internalIP}",
        "${machine.internalIP}:2377",
        "[${machine.internalIP}]:2377",
        "10.20.0.4",
        "10.20.0.4:2377",
        "fd00::4",
        "[fd00::4]:65535",
        "eth0",
        "eth0.100:2377",
    ] {
        for params in [format!("{{advertise: '{address}'}}"), format!("{{advertise: eth0, listen: '{address}'}}")] {
            assert_eq!(with(&params).err(), None, "{params}");
        }
    }
    for (address, listens) in [
        ("0.0.0.0:2377", true),
        ("[::]:2377", true),
        (":2377", true),
        ("tcp://10.20.0.4:2377", true),
        ("", false),
        ("http://10.20.0.4", false),
        ("my host", false),
        ("10.20.0.4:99999", false),
        ("10.20.0.4:0", false),
        ("10.20.0.4:", false),
        ("${machine.internalIP}:swarm", false),
        ("10.20.0.400", false),
        ("10.20.0.0/16", false),
        ("[10.20.0.4]", false),
        ("fd00::4:99999", false),
        ("control-1.example.com", false),
    ] {
        let found = with(&format!("{{advertise: '{address}'}}")).expect_err("a fault");
        assert!(found.iter().all(|fault| fault.path.ends_with("params.advertise")), "{address}: {found:?}");
        let listening = with(&format!("{{advertise: eth0, listen: '{address}'}}"));
        assert_eq!(listening.is_ok(), listens, "{address}: {listening:?}");
    }
}

/// Items of phase prepare run on machines that serve workloads.
#[test]
fn what_disturbs_workloads_is_refused_in_prepare() {
    let item = "runner: reboot\n        version: \"1\"\n        phase: deploy";
    let of = |runner: &str, phase: &str, params: &str| {
        damaged(
            item,
            &format!("runner: {runner}\n        version: \"1\"\n        phase: {phase}\n        params: {params}"),
        )
    };
    for (runner, params, what) in [
        ("reboot", "{when: required}", ""),
        ("vrouter-restart", "{}", ""),
        ("service", "{unit: x.service, action: stop}", " with 'action: stop'"),
        ("service", "{unit: x.service, action: restart}", " with 'action: restart'"),
        ("service", "{unit: x.service, action: reload}", " with 'action: reload'"),
        ("package", "{install: x, remove: y}", " with 'remove'"),
        ("mke", "{action: install, version: '3.7.1'}", " with 'action: install'"),
        ("mke", "{action: upgrade, version: '3.7.1'}", " with 'action: upgrade'"),
        ("swarm-backup", "{mode: consistent}", " with 'mode: consistent'"),
    ] {
        let found = faults(&of(runner, "prepare", params));
        let problem = format!("runner {runner}{what} in phase prepare");
        assert_eq!((found.len(), found[0].problem.as_str()), (1, problem.as_str()), "{found:?}");
        assert!(found[0].path.ends_with("worker[0].phase"), "{found:?}");
        assert!(read(&of(runner, "deploy", params)).is_ok(), "{runner} {params}");
    }
    for (runner, params) in [
        ("package", "{install: x}"),
        ("package", "{install: x, remove: y, action: download}"),
        ("service", "{unit: x.service, action: start}"),
        ("mke", "{action: backup}"),
        ("swarm-backup", "{mode: hot}"),
    ] {
        assert!(read(&of(runner, "prepare", params)).is_ok(), "{runner} {params}");
    }
    // The same rule for a machine's own params.
    let own = |action: &str| {
        of("service", "prepare", "{unit: x.service, action: start}")
            .replace("type: control", "type: worker")
            .replace("script: {peer: \"x\"}", &format!("restart: {{action: {action}}}"))
    };
    assert!(read(&own("enable")).is_ok());
    let found = faults(&own("stop"));
    assert_eq!((found.len(), found[0].path.as_str()), (1, "spec.stateItemsOverwrites.restart"), "{found:?}");
}

#[test]
fn an_item_of_mke_has_more_time() {
    let limit = |runner: &str| {
        let text = damaged("runner: reboot", &format!("runner: {runner}"));
        let manifest = read(&text).expect("no fault");
        manifest.clusters[&cluster_name("c1")].0.items(MachineType::Worker)[0].timeout_ms
    };
    let mke = "mke\n        params: {action: backup}";
    assert_eq!((limit("reboot"), limit(mke)), (30 * 60 * 1000, 2 * 60 * 60 * 1000));
}

#[test]
fn nearest_names_and_the_line_people_read() {
    for (old, new, nearest) in [
        ("lcmType: swarm", "lcmType: swarn", "swarm"),
        ("lcmType: swarm", "lcmType: kubernetes", ""),
        ("maxWorkerUpgradeCount", "maxworkersUpgradecount", "maxWorkerUpgradeCount"),
        ("runner: bash", "runner: bsh", "bash"),
        ("    worker:", "    workers:", "worker"),
        ("${machine.internalIP}", "${machine.internalip}", "machine.internalIP"),
    ] {
        let found = faults(&damaged(old, new));
        assert!(found.iter().any(|fault| fault.nearest == nearest), "{new}: {found:?}");
    }
    assert_eq!(
        faults(&damaged("runner: bash", "runner: bsh"))[0].to_string(),
        "m.yaml:23:17: spec.machineTypes.control[1].runner: unknown runner 'bsh'; expected one of: downloader, bash, \
         package, service, ansible, swarm-join, swarm-backup, mke, reboot, vrouter-restart; did you mean 'bash'?"
    );
}

#[test]
fn faults_repeat_no_secret_and_no_control_character() {
    let secret = "hunter2";
    for (old, new) in [
        ("http://mirror/x", "ftp://u:hunter2@mirror/x"),
        ("sha256: 9f86d081", "sha256: hunter2"),
        ("peer: \"${machine.internalIP}\"", "peer: \"$hunter2\""),
        ("name: c1\n", "name: c1\n  annotations: {a: [hunter2]}\n"),
        ("release: \"1\"", "release: \"hunter2\\e[31m\""),
        ("path: /x", "path: hunter2"),
    ] {
        let text: String = faults(&damaged(old, new)).iter().map(ToString::to_string).collect();
        assert!(!text.contains(secret), "{text}");
    }
    let evil = "\\e]0;x\\a\\u202e\\r\\n";
    for (old, new) in [
        ("kind: Cluster", format!("kind: \"{evil}\"")),
        ("  lcmType: swarm", format!("  \"{evil}\": swarm")),
        ("peer: \"$", format!("\"{evil}\": \"$")),
        ("clusterName: c1", format!("clusterName: \"{evil}\"")),
        ("    script: {", format!("    \"{evil}\": {{")),
    ] {
        for fault in faults(&damaged(old, &new)) {
            assert!(!fault.to_string().contains(|c: char| c.is_control() || c == '\u{202e}'), "{fault:?}");
        }
    }
    let named = parse(&[Source { name: "\u{1b}[31m", text: "" }], &Known::default()).expect_err("a fault");
    assert!(!named[0].to_string().contains('\u{1b}'));
}

/// The operators' page names every field that the parser accepts, in backticks.
#[test]
fn the_page_names_every_field() {
    let runners = RunnerKind::ALL.iter().flat_map(|runner| schema(*runner).params.iter().map(|param| param.name));
    let fields =
        [&DOCUMENT, &METADATA, &CLUSTER, &cluster::COUNTS, &ITEM, &MACHINE, &GROUP, &HOOKS, &HOOK, &BACKUPS, &KINDS];
    let fields = fields.iter().flat_map(|fields| fields.known.iter().chain(fields.later)).copied();
    let words = [RunnerKind::WORDS, Phase::WORDS, OnInterrupt::WORDS, MachineType::WORDS].concat();
    let variables = muster_proto::variables::EARLY.iter().chain(muster_proto::variables::LATE).copied();
    let missing: Vec<&str> = runners
        .chain(fields)
        .chain(words)
        .chain(variables)
        .filter(|name| !PAGE.contains(&format!("`{name}`")) && !PAGE.contains(&format!("`${{{name}}}`")))
        .collect();
    assert!(missing.is_empty(), "docs/reference/manifest.md lacks {missing:?}");
}

#[test]
fn tutorial_manifest_is_good() {
    assert!(TUTORIAL.contains(FIRST_FLEET), "docs/tutorial/first-fleet.md shows another manifest");
    read(FIRST_FLEET).unwrap_or_else(|faults| panic!("{faults:?}"));
}

/// The examples of the page are valid manifests.
#[test]
fn the_examples_of_the_page_parse() {
    let examples: Vec<&str> =
        PAGE.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```").map(|(text, _)| text)).collect();
    assert!(!examples.is_empty());
    for text in examples {
        read(text).unwrap_or_else(|faults| panic!("{faults:?}\n{text}"));
    }
}

/// A random change: at a position in thousandths of the text, cut a number of bytes and insert this piece.
fn damage() -> impl Strategy<Value = (usize, usize, &'static str)> {
    let pieces = [
        "",
        "\n",
        " ",
        "\t",
        ":",
        "- ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "#",
        "&a ",
        "*a",
        "!t ",
        "|",
        ">",
        "%",
        "---\n",
        "...",
        "\0",
        "\u{feff}",
        "ä",
        "\r",
        "? ",
        "${",
        "null",
        "-1",
        "1e9",
        "spec:",
        "  name: x\n",
        "\u{2028}",
        "<<: ",
        "@",
        "`",
    ];
    (0..1000usize, prop_oneof![4 => 0..4usize, 1 => 0..400usize], prop::sample::select(pieces.to_vec()))
}

fn apply(text: &str, damages: &[(usize, usize, &str)]) -> String {
    damages.iter().fold(text.to_owned(), |text, (place, cut, piece)| {
        let mut from = text.len() * place / 1000;
        while !text.is_char_boundary(from) {
            from -= 1;
        }
        let mut to = (from + cut).min(text.len());
        while !text.is_char_boundary(to) {
            to += 1;
        }
        format!("{}{piece}{}", &text[..from], &text[to..])
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// A damaged text either parses or has faults at existing positions.
    #[test]
    fn damage_never_panics(of_sample: bool, damages in prop::collection::vec(damage(), 1..8)) {
        let text = apply(if of_sample { SAMPLE } else { BASE }, &damages);
        if let Err(faults) = read(&text) {
            prop_assert!(!faults.is_empty());
            for fault in &faults {
                let line = usize::try_from(fault.line).expect("fits");
                let column = usize::try_from(fault.column).expect("fits");
                let lines: Vec<&str> = text.split('\n').flat_map(|line| line.split('\r')).collect();
                prop_assert!((1..=lines.len()).contains(&line), "{fault} of {} lines", lines.len());
                let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or_default();
                prop_assert!((1..=longest + 1).contains(&column), "{fault}");
                prop_assert!(!fault.to_string().contains(char::is_control), "{fault:?}");
            }
        }
    }

    /// Parsing arbitrary text never panics.
    #[test]
    fn noise_never_panics(text in "\\PC{0,200}", yaml in "[-a:{}\\[\\]&*!|>'\"%@`, \n\t#?0]{0,120}") {
        let _ = read(&text);
        let _ = read(&yaml);
    }
}
