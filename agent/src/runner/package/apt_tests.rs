//! The machine's own apt and dpkg in a separate root, with a repository of tiny packages. The tests need root on
//! Debian.

use std::{fs, io::Read, ops::Deref, path::PathBuf};

use super::*;
use crate::runner::package::{
    manager::Manager,
    plan::Wanted,
    trial::{Trial, budget, wants},
};

/// An empty root, and a repository.
struct Machine {
    trial: Trial,
    apt: Apt,
}

impl Deref for Machine {
    type Target = Trial;

    fn deref(&self) -> &Trial {
        &self.trial
    }
}

impl Machine {
    /// With a repository of these packages, `NAME VERSION`, each with additional lines of its control file.
    fn new(packages: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("root");
        for path in [
            "var/lib/dpkg/info",
            "var/lib/dpkg/updates",
            "var/lib/dpkg/triggers",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives/partial",
            "var/log/apt",
            "etc/apt/apt.conf.d",
            "etc/apt/preferences.d",
            "etc/apt/trusted.gpg.d",
            "etc/apt/sources.list.d",
        ] {
            fs::create_dir_all(root.join(path)).expect("a directory");
        }
        fs::write(root.join("var/lib/dpkg/status"), "").expect("a file");
        fs::write(root.join("var/lib/dpkg/available"), "").expect("a file");
        let repository = dir.path().join("repository");
        let sources = format!("deb [trusted=yes] file:{} ./\n", repository.display());
        fs::write(root.join("etc/apt/sources.list"), sources).expect("a file");
        let apt = || Apt::in_root(&root, budget());
        let machine = Self { trial: Trial { dir, manager: Manager::Apt(apt()) }, apt: apt() };
        fs::create_dir_all(&repository).expect("a directory");
        let mut index = String::new();
        for (package, more) in packages {
            index += &machine.package(&repository, package, more);
        }
        fs::write(repository.join("Packages"), index).expect("an index");
        machine
    }

    /// Builds a package and returns its entry in the index.
    fn package(&self, repository: &Path, package: &str, more: &str) -> String {
        let (name, version) = package.split_once(' ').expect("NAME VERSION");
        let tree = self.dir.path().join(format!("build/{name}-{version}"));
        fs::create_dir_all(tree.join("DEBIAN")).expect("a directory");
        fs::create_dir_all(tree.join("opt")).expect("a directory");
        fs::write(tree.join(format!("opt/{name}")), version).expect("a file");
        let control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: a <a@b.example>\n{more}\
             Description: tiny\n"
        );
        fs::write(tree.join("DEBIAN/control"), &control).expect("a file");
        let deb = repository.join(format!("{name}_{version}_all.deb"));
        output_of(Command::new("dpkg-deb").arg("--build").args([&tree, &deb])).expect("a package");
        let sum = output_of(Command::new("sha256sum").arg(&deb)).expect("a digest");
        let sum = sum.split(' ').next().expect("a digest");
        let size = deb.metadata().expect("a file").len();
        let file = deb.file_name().expect("a name").to_string_lossy();
        format!("{control}Filename: ./{file}\nSize: {size}\nSHA256: {sum}\n\n")
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }
}

#[test]
fn packages_come_change_hold_and_go() {
    let machine = Machine::new(&[("tool 1.0", ""), ("tool 1.1", ""), ("lib 2", ""), ("user 1", "Depends: lib\n")]);
    let update = |wanted| Wanted { update: true, ..wanted };
    assert!(machine.refused(&wants("tool")).starts_with("PackageNotFound: "), "no index yet");
    assert_eq!(machine.done(&update(wants("tool=1.0"))), "installed tool 1.0");
    assert_eq!(machine.file("tool").as_deref(), Some("1.0"));
    assert_eq!(machine.done(&wants("tool=1.0")), "already as wanted");
    assert_eq!(machine.done(&wants("tool")), "already as wanted", "what is there will do");
    // Its dependency is installed with it and is protected from removal.
    assert_eq!(machine.done(&wants("user")), "installed user 1");
    assert_eq!(machine.file("lib").as_deref(), Some("2"));
    // Download now and install later, with the repository gone.
    let download = Wanted { download_only: true, ..wants("tool=1.1") };
    assert_eq!(machine.done(&download), "downloaded tool 1.1");
    assert_eq!(machine.file("tool").as_deref(), Some("1.0"));
    let hold = Wanted { hold: Some(true), ..wants("tool=1.1") };
    assert_eq!(machine.done(&hold), "installed tool 1.1; held tool");
    assert_eq!(machine.done(&hold), "already as wanted");
    // Newer than wanted; then held by another item.
    assert!(machine.refused(&wants("tool=1.0")).starts_with("DowngradeRefused: tool 1.1 is installed"));
    let back = Wanted { allow_downgrade: true, ..wants("tool=1.0") };
    assert!(machine.refused(&back).starts_with("Held: tool"));
    // The holding item changes it, and it stays held.
    assert_eq!(machine.done(&Wanted { hold: Some(true), ..back.clone() }), "installed tool 1.0");
    assert!(machine.refused(&wants("tool=1.1")).starts_with("Held: tool"));
    assert_eq!(machine.done(&hold), "installed tool 1.1");
    assert_eq!(machine.done(&Wanted { hold: Some(false), ..back }), "installed tool 1.0; released tool");
    assert_eq!(machine.file("tool").as_deref(), Some("1.0"));
    assert_eq!(machine.refused(&wants("tool=9")), "VersionNotFound: tool 9 cannot be had here; there are: 1.1, 1.0");
    assert!(machine.refused(&wants("tol")).starts_with("PackageNotFound: no repository of this machine has tol"));
    let remove = Wanted { remove: vec!["user".to_owned(), "never".to_owned()], ..Wanted::default() };
    assert_eq!(machine.done(&remove), "removed user");
    assert_eq!((machine.done(&remove).as_str(), machine.file("user")), ("already as wanted", None));
}

#[test]
fn nothing_is_taken_away_that_is_not_named() {
    let machine = Machine::new(&[("old 1", ""), ("new 1", "Conflicts: old\n")]);
    machine.done(&Wanted { update: true, ..wants("old") });
    let error = machine.refused(&wants("new"));
    assert!(error.starts_with("RemovalRefused: old would be removed too"), "{error}");
    assert_eq!((machine.file("old").as_deref(), machine.file("new")), (Some("1"), None));
    let instead = Wanted { remove: vec!["old".to_owned()], ..wants("new") };
    let download = Wanted { download_only: true, ..instead.clone() };
    assert_eq!(machine.done(&download), "downloaded new 1");
    assert_eq!(machine.done(&instead), "installed new 1; removed old");
}

#[test]
fn what_needs_a_package_that_goes_does_not_go_with_it() {
    let machine = Machine::new(&[("lib 1", ""), ("user 1", "Depends: lib\n")]);
    machine.done(&Wanted { update: true, ..wants("user") });
    let remove = |names: &[&str]| {
        let remove = names.iter().map(|name| (*name).to_owned()).collect();
        Wanted { remove, ..Wanted::default() }
    };
    assert!(machine.refused(&remove(&["lib"])).starts_with("RemovalRefused: user would be removed too"));
    assert_eq!((machine.file("lib").as_deref(), machine.file("user").as_deref()), (Some("1"), Some("1")));
    assert_eq!(machine.done(&remove(&["lib", "user"])), "removed lib, user");
    assert_eq!((machine.file("lib"), machine.file("user")), (None, None));
}

#[test]
fn nothing_goes_before_what_comes_instead_is_there() {
    let machine = Machine::new(&[("old 1", ""), ("new 1", "Conflicts: old\n")]);
    machine.done(&Wanted { update: true, ..wants("old") });
    fs::remove_file(machine.dir.path().join("repository/new_1_all.deb")).expect("removed");
    machine.refused(&Wanted { remove: vec!["old".to_owned()], ..wants("new") });
    assert_eq!(machine.file("old").as_deref(), Some("1"));
}

#[test]
fn a_download_leaves_the_machine_as_it_is() {
    let machine = Machine::new(&[("tool 1.0", ""), ("other 1", "")]);
    machine.done(&Wanted { update: true, ..wants("other") });
    let deb = machine.dir.path().join("repository/tool_1.0_all.deb");
    output_of(machine.apt.dpkg("dpkg").arg("--unpack").arg(&deb)).expect("unpacked");
    let download = |name| Wanted { download_only: true, ..wants(name) };
    machine.bring_about(&download("tool=1.0")).0.expect("downloaded");
    // Unrelated errors are reported unchanged.
    assert_eq!(machine.refused(&download("tool=9")), "VersionNotFound: tool 9 cannot be had here; there are: 1.0");
    assert_eq!(machine.apt.unfinished().expect("readable"), ["tool"], "it was configured");
    // While this file exists, apt refuses to work.
    let status = fs::read_to_string(machine.root().join("var/lib/dpkg/status")).expect("a record");
    fs::write(machine.root().join(UPDATES).join("0001"), status).expect("written");
    let error = machine.refused(&download("tool=1.0"));
    assert!(
        error.starts_with(
            "HalfInstalled: an earlier run left tool, /var/lib/dpkg/updates half-installed, which a download"
        ),
        "{error}"
    );
}

#[test]
fn a_record_and_triggers_that_dpkg_did_not_finish_are_finished_first() {
    let machine = Machine::new(&[("tool 1.0", ""), ("other 1", "")]);
    machine.done(&Wanted { update: true, ..wants("tool") });
    let record = machine.root().join("var/lib/dpkg/status");
    let status = fs::read_to_string(&record).expect("a record");
    let pending = status.replace("install ok installed", "install ok triggers-pending") + "Triggers-Pending: x\n";
    fs::write(&record, pending.replace("\n\nTriggers", "\nTriggers")).expect("written");
    assert_eq!(machine.apt.look("tool").expect("a look").installed.as_deref(), Some("1.0"));
    fs::write(machine.root().join(UPDATES).join("0001"), status).expect("written");
    fs::write(machine.root().join(UPDATES).join("tmp.i"), "").expect("written");
    assert_eq!(machine.apt.unfinished().expect("readable"), ["/var/lib/dpkg/updates"]);
    let (done, text) = machine.bring_about(&wants("other"));
    assert_eq!(done.as_deref(), Ok("installed other 1"), "{text}");
    fs::write(
        &record,
        fs::read_to_string(&record).expect("a record").replace(
            "Package: tool\nStatus: install ok installed\n",
            "Package: tool\nStatus: install ok triggers-pending\nTriggers-Pending: x\n",
        ),
    )
    .expect("written");
    assert_eq!(machine.apt.unfinished().expect("readable"), ["tool"]);
    assert_eq!(machine.done(&wants("tool=1.0")), "already as wanted");
    assert_eq!(machine.apt.unfinished().expect("readable"), [""; 0]);
}

#[test]
fn a_run_that_was_cut_off_is_finished_first() {
    let machine = Machine::new(&[("tool 1.0", ""), ("other 1", "")]);
    machine.done(&Wanted { update: true, ..wants("other") });
    // State after a power cut: unpacked but still unconfigured.
    let deb = machine.dir.path().join("repository/tool_1.0_all.deb");
    output_of(machine.apt.dpkg("dpkg").arg("--unpack").arg(&deb)).expect("unpacked");
    assert_eq!(machine.apt.unfinished().expect("readable"), ["tool"]);
    let (done, text) = machine.bring_about(&wants("tool=1.0"));
    assert_eq!(done.as_deref(), Ok("already as wanted"), "{text}");
    assert!(text.contains("an earlier run was interrupted"), "{text}");
    assert_eq!(machine.apt.unfinished().expect("readable"), [""; 0]);
}

#[test]
fn dead_repository_stops_only_its_packages() {
    let machine = Machine::new(&[("tool 1.0", "")]);
    let dead = "deb [trusted=yes] http://127.0.0.1:9/third ./\n";
    fs::write(machine.root().join("etc/apt/sources.list.d/dead.list"), dead).expect("written");
    let update = |wanted| Wanted { update: true, ..wanted };
    let said = machine.done(&update(wants("tool")));
    assert!(said.starts_with("installed tool 1.0; not every repository answered: apt-get ended with "), "{said}");
    assert!(said.contains("127.0.0.1:9/third"), "{said}");
    let (done, text) = machine.bring_about(&update(wants("third")));
    let error = done.expect_err("it is not there");
    assert!(error.starts_with("PackageNotFound: ") && error.contains("127.0.0.1:9/third"), "{error}\n{text}");
}

#[test]
fn virtual_package_is_named_with_its_providers() {
    let machine = Machine::new(&[("one 1", "Provides: virtual\n"), ("other 1", "Provides: virtual\n")]);
    let error = machine.refused(&Wanted { update: true, ..wants("virtual") });
    let expected = "VirtualPackage: no package is called virtual; name one that provides it: one, other";
    assert_eq!(error, expected);
    assert_eq!(machine.done(&wants("other")), "installed other 1");
}

#[test]
fn another_apt_is_waited_for_and_named() {
    let machine = Machine::new(&[("tool 1.0", "")]);
    machine.done(&Wanted { update: true, ..wants("tool") });
    let lock = machine.root().join("var/lib/dpkg/lock-frontend");
    let script = "import fcntl, sys\nf = open(sys.argv[1], 'w')\nfcntl.lockf(f, fcntl.LOCK_EX)\n\
                  print('held', flush=True)\nsys.stdin.read()";
    let mut holder = Command::new("python3")
        .args(["-c", script])
        .arg(&lock)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("spawned");
    // Keep it open: a holder with a closed pipe would end and release its lock.
    let mut said = holder.stdout.take().expect("a pipe");
    said.read_exact(&mut [0; 4]).expect("held");
    let remove = Wanted { remove: vec!["tool".to_owned()], ..Wanted::default() };
    let (done, text) = machine.bring_about(&remove);
    let expected = format!("PackagesLocked: python3 (process {}) has held {} for 0 s", holder.id(), lock.display());
    assert_eq!(done, Err(expected));
    assert!(text.contains("waiting for python3"), "{text}");
    // Released: the work continues.
    drop(holder.stdin.take());
    holder.wait().expect("an end");
    assert_eq!(machine.done(&remove), "removed tool");
}

#[test]
fn what_apt_and_dpkg_print_is_read() {
    assert_eq!(status_of("hold installed 1.2-3\n"), (Some("1.2-3".to_owned()), true));
    assert_eq!(status_of("install triggers-awaited 1\n"), (Some("1".to_owned()), false));
    assert_eq!(status_of("install half-configured 1\n"), (None, false));
    assert_eq!(status_of("deinstall config-files 1\n"), (None, false));
    let names = ["tool", "lib:i386", "own:amd64"].map(str::to_owned);
    let named = |name| is_named(&names, name, "amd64");
    assert_eq!(
        ["tool", "tool:i386", "lib", "lib:i386", "own", "own:i386"].map(named),
        [true, false, false, true, true, false]
    );
    assert_eq!(status_of(""), (None, false));
    assert_eq!(candidate_of("tool:\n  Installed: (none)\n  Candidate: 1:2.0\n"), Some("1:2.0".to_owned()));
    assert_eq!(candidate_of("tool:\n  Installed: (none)\n  Candidate: (none)\n"), None);
    assert_eq!(versions_of(" tool | 2 | file:/r ./ Packages\n tool | 1 | x\n tool | 1 | y\n"), ["2", "1"]);
}
