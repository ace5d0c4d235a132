//! Known values are used as secret and as join token. The test searches for them in every file of a fleet and in every
//! process's arguments and environment, also after failures.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use muster_tests::fleet::{
    CLUSTER, Fleet, TIME_LIMIT,
    manifest::{bash, cluster},
    wait_for,
};

const CANARY: &str = "canary-9f2c-of-the-database";

/// A bash item with further params.
fn with_params(item: &str, params: &str) -> String {
    item.replacen("        params:", &format!("        params:\n          {params}"), 1)
}

/// Files of the fleet, and of `/proc`, that contain the value.
pub(crate) fn places(fleet: &Fleet, value: &str) -> Result<Vec<PathBuf>> {
    let holds = |path: &Path| {
        // Deleted since the listing, or of a process that has ended: contains nothing.
        fs::read(path).is_ok_and(|bytes| bytes.windows(value.len()).any(|part| part == value.as_bytes()))
    };
    let mut found = Vec::new();
    let mut dirs = vec![fleet.dir().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() && holds(&entry.path()) {
                found.push(entry.path());
            }
        }
    }
    for process in fs::read_dir("/proc")? {
        let shown = ["cmdline", "environ"].map(|name| process.as_ref().map(|process| process.path().join(name)));
        found.extend(shown.into_iter().flatten().filter(|path| holds(path)));
    }
    found.sort();
    Ok(found)
}

#[test]
fn no_secret_is_found_where_it_should_not_be() -> Result<()> {
    let mut fleet = Fleet::start("canaries", &[])?;
    let effects = fleet.effects_log();
    let outside = tempfile::tempdir()?;
    let file = outside.path().join("secret").display().to_string();
    fs::write(&file, format!("{CANARY}\n"))?;
    let create = ["secret", "create", "sql", "--from-file", &file];
    fleet.ctl(&create)?.exits(4)?.says(&["ForNoCluster", "--clusters A,B"])?;
    fleet.ctl(&[&create[..], &["--clusters", CLUSTER]].concat())?.exits(0)?.says(&["secret sql created"])?;

    let tell = "cat \"$MUSTER_SECRET_SQL_FILE\" \"$MUSTER_PARAM_DSN_FILE\"; set -x; cat \"$MUSTER_PARAM_DSN_FILE\" >&2";
    let waits = format!("{tell}\nuntil test -e {}; do read -t 0.05 <> <(:) || :; done", fleet.path("go"));
    let dsn = "dsn: 'postgres://app:${secret.sql}@sql'";
    let good = with_params(&bash("good", "deploy", &effects, &waits, &[]), dsn);
    let bad = with_params(&bash("bad", "deploy", &effects, &format!("{tell}\nexit 9"), &["retries: 0"]), dsn);
    let fetch = "
      - name: fetch
        runner: downloader
        version: \"1\"
        phase: deploy
        retries: 0
        params:
          url: 'http://app:${secret.sql}@127.0.0.1:9/x?key=${secret.sql}'
          sha256: \"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"
          path: /tmp/muster-e2e-canaries-never";
    let misspelt = cluster(1, 0, &[good.replace("secret.sql", "secret.slq")], &[], &[]);
    fs::write(fleet.path("misspelt.yaml"), misspelt)?;
    fleet.ctl(&["apply", "-f", "misspelt.yaml"])?.exits(2)?.says(&["unknown secret 'slq'", "did you mean \"sql\"?"])?;
    fleet.apply(&cluster(1, 0, &[good, bad, fetch.to_owned()], &[], &[]))?;
    fleet.add_machines(1, 0)?;

    // While the item runs: in the two files that are meant to hold it.
    let inputs = |path: &PathBuf| path.parent().and_then(Path::parent).is_some_and(|dir| dir.ends_with("inputs"));
    wait_for("the program", TIME_LIMIT, || Ok((!fleet.effects()?.is_empty()).then_some(())))?;
    let found = places(&fleet, CANARY)?;
    ensure!(found.len() == 2 && found.iter().all(inputs), "{found:?}");
    fs::write(fleet.path("go"), "")?;

    // After two failures: nowhere.
    for (item, failure) in [("bad", "exit status 9"), ("fetch", "no mirror delivered")] {
        let failed = |machine: &muster_proto::resource::Machine| {
            let status = machine.status.state_item_statuses.get(item);
            status.is_some_and(|status| status.state == "Failed" && status.message.contains(failure))
        };
        let machine = fleet.wait_machine("control-1", item, failed)?;
        let tail = &machine.status.state_item_statuses.get(item).context("a status")?.output_tail;
        ensure!(item == "fetch" || tail.contains("postgres://app:[redacted]@sql"), "{tail}");
        fleet.ctl(&["logs", "control-1", item])?.exits(0)?;
        fleet.ctl(&["skip", "control-1", item])?.exits(0)?;
    }
    fleet.wait_ready(1)?;
    let found = places(&fleet, CANARY)?;
    ensure!(found.is_empty(), "{found:?}");
    for words in [&["secrets"][..], &["machines"], &["machine", "control-1"], &["clusters"], &["audit"]] {
        let text = fleet.ctl(&[&["get"], words, &["-o", "json"]].concat())?.ok()?;
        ensure!(!text.contains(CANARY), "get {words:?}: {text}");
    }
    fleet.ctl(&["get", "secrets"])?.exits(0)?.says(&["sql", "e2e/bad, e2e/fetch, e2e/good"])?;

    // The join token: only in this test's own file.
    let token = fs::read_dir(fleet.path("tokens"))?.next().context("a token")??.path();
    let text = fs::read_to_string(&token)?;
    let secret = text.split('.').nth(1).context("a token's secret")?;
    let found = places(&fleet, secret)?;
    ensure!(found == [token], "{found:?}");

    fleet.ctl(&["secret", "delete", "sql"])?.exits(4)?.says(&["SecretInUse"])?;
    fleet.ctl(&["secret", "delete", "sql", "--in-use"])?.exits(0)?;
    fleet.done()
}
