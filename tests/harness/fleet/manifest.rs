//! Manifests of the end-to-end tests, as text: like those an operator writes.

use super::CLUSTER;

/// Logs start and end in effects.log, as the demo's items do. One printf a line, in append mode, keeps lines whole.
const EFFECT: &str = r#"set -eu
effect() {
  local us=${EPOCHREALTIME/[.,]/}
  printf '%s %s %s %s %s %s\n' "${us%???}" "$MUSTER_MACHINE" "$MUSTER_ITEM" "$1" "$MUSTER_ATTEMPT" "$MUSTER_PHASE" \
    >>"$MUSTER_PARAM_EFFECTS"
}
"#;

/// A bash item that runs this script between logging `start` and `end`. `effects`: path of effects.log; `more`: further
/// lines of the item, such as `retries: 1`.
#[must_use]
pub fn bash(name: &str, phase: &str, effects: &str, body: &str, more: &[&str]) -> String {
    let script = format!("{EFFECT}effect start\n{body}\neffect end\n").replace('\n', "\n            ");
    let more: String = more.iter().map(|line| format!("\n        {line}")).collect();
    format!(
        "
      - name: {name}
        runner: bash
        version: \"1\"
        phase: {phase}{more}
        params:
          effects: {effects}
          script: |
            {}",
        script.trim_end()
    )
}

/// A hook of an update on this machine, which logs `start` and `end` in effects.log.
#[must_use]
pub fn hook(name: &str, machine: &str, effects: &str) -> String {
    let script = format!("{EFFECT}effect start\neffect end\n").replace('\n', "\n          ");
    format!(
        "
    - name: {name}
      runner: bash
      machine: {machine}
      params:
        effects: {effects}
        script: |
          {}",
        script.trim_end()
    )
}

/// A downloader item in phase prepare.
#[must_use]
pub fn download(name: &str, url: &str, sha256: &str, path: &str) -> String {
    format!(
        "
      - name: {name}
        runner: downloader
        version: \"1\"
        phase: prepare
        params:
          url: {url}
          sha256: \"{sha256}\"
          path: {path}"
    )
}

/// An item of any runner. The params' values are double-quoted.
#[must_use]
pub fn other(name: &str, runner: &str, phase: &str, params: &[(&str, &str)], more: &[&str]) -> String {
    let params: String = params.iter().map(|(name, value)| format!("\n          {name}: \"{value}\"")).collect();
    let more: String = more.iter().map(|line| format!("\n        {line}")).collect();
    format!(
        "
      - name: {name}
        runner: {runner}
        version: \"1\"
        phase: {phase}{more}
        params:{params}"
    )
}

/// A cluster of this size. `more`: further lines of its spec.
#[must_use]
pub fn cluster(
    control: usize,
    workers: usize,
    control_items: &[String],
    worker_items: &[String],
    more: &[&str],
) -> String {
    named_cluster(CLUSTER, (control, workers), control_items, worker_items, more)
}

/// As [`cluster`], under another name. The counts are those of control machines and of workers.
#[must_use]
pub fn named_cluster(
    name: &str,
    (control, workers): (usize, usize),
    control_items: &[String],
    worker_items: &[String],
    more: &[&str],
) -> String {
    let more: String = more.iter().map(|line| format!("\n  {line}")).collect();
    let worker = if workers == 0 { String::new() } else { format!("\n    worker:{}", worker_items.concat()) };
    format!(
        "apiVersion: muster/v1alpha1
kind: Cluster
metadata:
  name: {name}
spec:
  lcmType: generic
  release: \"1.0\"
  machines: {{control: {control}, worker: {workers}}}{more}
  machineTypes:
    control:{}{worker}
",
        control_items.concat()
    )
}
