//! The demo's manifest, and the artifact in it.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

use aws_lc_rs::digest::{Context, SHA256};
use musterctl::{errors::Failure, terminal};

use super::{
    CLUSTER, CONTROLLER, Wanted, hosts,
    layout::{ARTIFACT, Layout},
};

/// Bytes written at a time.
const BLOCK_BYTES: usize = 1024 * 1024;
/// Seed of the pseudo-random sequence: every run makes the same artifact.
const SEED: u64 = 0x6d75_7374_6572;

/// One deploy item: it records its start and end in effects.log. Each line is one printf in append mode, so lines stay
/// whole.
const SCRIPT: &str = r#"set -eu
effect() {
  local us=${EPOCHREALTIME/[.,]/}
  local line="${us%???} $MUSTER_MACHINE $MUSTER_ITEM $1 $MUSTER_ATTEMPT $MUSTER_PHASE"
  printf '%s\n' "$line${MUSTER_PARAM_RELEASE:+ $MUSTER_PARAM_RELEASE}" >>"$MUSTER_PARAM_EFFECTS"
}
effect start
echo "$MUSTER_ITEM on $MUSTER_MACHINE: as if at work for $MUSTER_PARAM_SECONDS s"
sleep "$MUSTER_PARAM_SECONDS"
effect end
"#;

/// Write all external inputs of a fleet into an empty directory: the artifact, and manifests with the artifact's URL.
pub(super) fn write_inputs(layout: &Layout, wanted: Wanted, base_url: &str) -> Result<(), Failure> {
    layout.make_dirs()?;
    let sha256 = write_artifact(layout, wanted.artifact_mib)?;
    if wanted.kubernetes {
        hosts::write(layout, &wanted.names())?;
    }
    let mut manifests = vec![(layout.manifest(), text(layout, wanted, base_url, &sha256))];
    if let Some(width) = wanted.update_width {
        manifests.push((layout.second_manifest(), second(layout, wanted, base_url, &sha256, width)));
    }
    for (path, text) in manifests {
        fs::write(&path, text)
            .map_err(|source| Failure::failed(format!("cannot write {}", path.display())).because(source))?;
        terminal::print(&format!("Written: {}", path.display()))?;
    }
    terminal::print(&format!("Written: {} ({} MiB of noise)", layout.artifact().display(), wanted.artifact_mib))
}

/// Write the artifact; return its SHA-256 as hex digits.
fn write_artifact(layout: &Layout, mib: u32) -> Result<String, Failure> {
    let path = layout.artifact();
    random_file(&path, mib).map_err(|source| {
        Failure::failed(format!("cannot write {} MiB to {}", mib, path.display()))
            .because(source)
            .next("A smaller artifact: --artifact-mib 1. Another place: --dir DIR")
    })
}

fn random_file(path: &Path, mib: u32) -> io::Result<String> {
    let mut file = File::create_new(path)?;
    let mut digest = Context::new(&SHA256);
    let mut state = SEED;
    let mut block = vec![0; BLOCK_BYTES];
    for _ in 0..mib {
        for word in block.chunks_exact_mut(8) {
            state = splitmix64(state);
            word.copy_from_slice(&state.to_le_bytes());
        }
        file.write_all(&block)?;
        digest.update(&block);
    }
    let mut hex = String::new();
    for byte in digest.finish().as_ref() {
        let _ = write!(hex, "{byte:02x}"); // writing to a String cannot fail
    }
    Ok(hex)
}

/// Sebastiano Vigna's SplitMix64: fast and incompressible.
const fn splitmix64(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Version of the second release's items: the seventh word of their lines in effects.log.
pub(super) const SECOND: &str = "2";

/// The manifest of the update: new versions of both scripts.
fn second(layout: &Layout, wanted: Wanted, base_url: &str, sha256: &str, width: u32) -> String {
    let mut settings = format!("  maxWorkerUpgradeCount: {width}\n  workloadControllers: [{CONTROLLER}]\n");
    if wanted.kubernetes {
        settings.push_str("  kubernetes:\n    kubeconfig: ${secret.kubeconfig}\n");
    }
    release(layout, wanted, (base_url, sha256), SECOND, &settings)
}

/// Text of the manifest.
fn text(layout: &Layout, wanted: Wanted, base_url: &str, sha256: &str) -> String {
    release(layout, wanted, (base_url, sha256), "1", "")
}

fn release(layout: &Layout, wanted: Wanted, (base_url, sha256): (&str, &str), version: &str, settings: &str) -> String {
    let seventh = if version == SECOND { format!("\n          release: \"{SECOND}\"") } else { String::new() };
    let seconds = wanted.seconds_per_item;
    let url = value(&format!("{base_url}{ARTIFACT}"));
    let path = layout.dir.display().to_string();
    let path = quoted(&format!("{}/machines/${{machine.name}}/{ARTIFACT}", path.replace('$', "$$")));
    let effects = value(&layout.effects().display().to_string());
    let script = SCRIPT.replace('\n', "\n            ");
    let script = script.trim_end();
    let bash = |name: &str| {
        format!(
            "
      - name: {name}
        runner: bash
        version: \"{version}\"
        phase: deploy
        params:{seventh}
          effects: {effects}
          seconds: \"{seconds}\"
          script: |
            {script}"
        )
    };
    let items = format!(
        "
      - name: artifact
        runner: downloader
        version: \"1\"
        phase: prepare
        params:
          url: {url}
          sha256: \"{sha256}\"
          path: {path}{}{}",
        bash("configure"),
        bash("launch")
    );
    format!(
        "# Written by `musterctl demo`: every machine downloads an artifact, then runs two scripts at its turn.
apiVersion: muster/v1alpha1
kind: Cluster
metadata:
  name: {CLUSTER}
spec:
  lcmType: generic
  release: \"{version}.0\"
{settings}  maxWorkerPrepareCount: 50
  maxWorkerDeployCount: 50
  machines: {{control: {}, worker: {}}}   # deploying begins by itself when they are all there
  machineTypes:
    control:{items}
    worker:{items}
",
        wanted.control, wanted.workers
    )
}

/// A param's literal text as a YAML scalar, with `$` escaped.
fn value(text: &str) -> String {
    quoted(&text.replace('$', "$$"))
}

/// A JSON string is a YAML scalar.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use muster_coordinator::manifest::{self, Source};
    use muster_proto::model::MachineType;

    use super::*;

    #[test]
    fn the_manifest_is_one() {
        let wanted = Wanted {
            control: 3,
            workers: 5,
            seconds_per_item: 0.5,
            artifact_mib: 1,
            update_width: None,
            kubernetes: false,
        };
        for dir in ["/tmp/demo", "/tmp/it's \"$HOME\" ${x}: # {a}"] {
            let text = text(&Layout::nowhere(dir), wanted, "http://127.0.0.1:1/", &"0".repeat(64));
            let source = Source { name: "manifest.yaml", text: &text };
            let manifest = manifest::parse(&[source], &manifest::Known::default()).expect("no faults");
            let (cluster, _) = manifest.clusters.values().next().expect("a cluster");
            for machine_type in [MachineType::Control, MachineType::Worker] {
                let items = cluster.items(machine_type);
                let names: Vec<&str> = items.iter().map(|item| item.name.as_str()).collect();
                assert_eq!(names, ["artifact", "configure", "launch"]);
                let effects =
                    items.last().and_then(|item| item.params.get("effects")).map(|path| path.replace("$$", "$"));
                assert_eq!(effects, Some(format!("{dir}/effects.log")));
            }
        }
    }

    #[test]
    fn the_script_writes_what_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let effects = dir.path().join("effects.log");
        let status = std::process::Command::new("bash")
            .args(["-c", SCRIPT])
            .env("MUSTER_MACHINE", "worker-1")
            .env("MUSTER_ITEM", "configure")
            .env("MUSTER_ATTEMPT", "1")
            .env("MUSTER_PHASE", "deploy")
            .env("MUSTER_PARAM_SECONDS", "0.01")
            .env("MUSTER_PARAM_EFFECTS", &effects)
            .status();
        assert!(status.expect("bash runs").success());
        let text = std::fs::read_to_string(&effects).expect("written");
        let found = super::super::effects::parse(&text).expect("lines");
        let starts: Vec<bool> = found.iter().map(|effect| effect.is_start).collect();
        assert_eq!(starts, [true, false]);
    }

    #[test]
    fn the_artifact_has_its_digest() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a");
        let digest = random_file(&path, 1).expect("written");
        let output = std::process::Command::new("sha256sum").arg(&path).output().expect("sha256sum runs");
        assert!(String::from_utf8_lossy(&output.stdout).starts_with(&digest));
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 1024 * 1024);
    }
}
