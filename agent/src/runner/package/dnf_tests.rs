//! The machine's own dnf and rpm in a separate root, with a repository of tiny packages. The tests need root, dnf,
//! createrepo_c and rpmbuild.

use std::fs;

use super::*;
use crate::runner::package::{
    manager::Manager,
    trial::{Trial, budget, make_dirs, removes, wants},
};

/// A machine with a repository of these packages, `NAME VERSION`, each with additional lines of its spec.
fn machine(packages: &[(&str, &str)]) -> Trial {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("root");
    make_dirs(&root, &["etc/yum.repos.d", "etc/dnf/plugins", "var/log", "var/cache/dnf", "var/lib/dnf"]);
    let repository = dir.path().join("repository");
    fs::create_dir_all(&repository).expect("a directory");
    for (package, more) in packages {
        build(dir.path(), package, more);
    }
    output_of(Command::new("createrepo_c").arg(&repository)).expect("an index");
    let source = format!("[site]\nname=site\nbaseurl=file://{}\ngpgcheck=0\n", repository.display());
    fs::write(root.join("etc/yum.repos.d/site.repo"), source).expect("a file");
    fs::write(root.join("etc/dnf/dnf.conf"), "[main]\n").expect("a file");
    let plugins = root.join("etc/dnf/plugins");
    let list = plugins.join("versionlock.list");
    fs::write(&list, "").expect("a file");
    let settings = format!("[main]\nenabled = 1\nlocklist = {}\n", list.display());
    fs::write(plugins.join("versionlock.conf"), settings).expect("a file");
    Trial { dir, manager: Manager::Dnf(Dnf::in_root(&root, budget())) }
}

fn build(dir: &Path, package: &str, more: &str) {
    let (name, version) = package.split_once(' ').expect("NAME VERSION");
    let spec = dir.join(format!("{name}.spec"));
    let text = format!(
        "Name: {name}\nVersion: {version}\nRelease: 1\nSummary: tiny\nLicense: none\nBuildArch: noarch\n{more}\
         %description\ntiny\n%install\nmkdir -p %{{buildroot}}/opt; printf %s {version} >%{{buildroot}}/opt/{name}\n\
         %files\n/opt/{name}\n"
    );
    fs::write(&spec, text).expect("a file");
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["-bb", "--quiet", "--define"]).arg(format!("_topdir {}/build", dir.display()));
    rpmbuild.arg("--define").arg(format!("_rpmdir {}/repository", dir.display()));
    output_of(rpmbuild.arg(spec)).expect("a package");
}

#[test]
fn packages_come_change_hold_and_go() {
    let machine =
        machine(&[("tool 1.0", ""), ("tool 1.1", ""), ("lib 2", "Epoch: 1\n"), ("user 1", "Requires: lib\n")]);
    let refused = machine.refused(&wants("tol"));
    assert!(refused.starts_with("PackageNotFound: no repository of this machine has tol"), "{refused}");
    assert_eq!(machine.done(&Wanted { update: true, ..wants("tool=1.0-1") }), "installed tool 1.0-1");
    assert_eq!(machine.file("tool").as_deref(), Some("1.0"));
    assert_eq!(machine.done(&wants("tool=1.0-1")), "already as wanted");
    assert_eq!(machine.done(&wants("tool.noarch")), "already as wanted", "what is there will do");
    // Its dependency is installed with it and is protected from removal.
    assert_eq!(machine.done(&wants("user")), "installed user 1-1");
    assert_eq!(machine.done(&wants("lib=1:2-1")), "already as wanted");
    let needed = machine.refused(&removes(&["lib"]));
    assert!(needed.starts_with("RemovalRefused: user-1-1.noarch would be removed too"), "{needed}");
    // Download now and install later.
    let download = Wanted { download_only: true, ..wants("tool=1.1-1") };
    assert_eq!(machine.done(&download), "downloaded tool 1.1-1");
    assert_eq!(machine.file("tool").as_deref(), Some("1.0"));
    let hold = Wanted { hold: Some(true), ..wants("tool=1.1-1") };
    assert_eq!(machine.done(&hold), "installed tool 1.1-1; held tool");
    assert_eq!(machine.done(&hold), "already as wanted");
    // Newer than wanted; then held by another item.
    assert!(machine.refused(&wants("tool=1.0-1")).starts_with("DowngradeRefused: tool 1.1-1 is installed"));
    let back = Wanted { allow_downgrade: true, ..wants("tool=1.0-1") };
    assert!(machine.refused(&back).starts_with("Held: tool"));
    // The holding item changes it, and it stays held.
    assert_eq!(machine.done(&Wanted { hold: Some(true), ..back.clone() }), "installed tool 1.0-1");
    assert!(machine.refused(&wants("tool=1.1-1")).starts_with("Held: tool"));
    assert_eq!(machine.done(&Wanted { hold: Some(false), ..back }), "released tool");
    assert_eq!(machine.done(&wants("tool=1.1-1")), "installed tool 1.1-1");
    let refused = machine.refused(&wants("tool=9-1"));
    assert_eq!(refused, "VersionNotFound: tool 9-1 cannot be had here; there are: 1.1-1, 1.0-1");
    assert_eq!(machine.done(&removes(&["user", "never"])), "removed user");
    let again = machine.done(&removes(&["user", "never"]));
    assert_eq!((again.as_str(), machine.file("user")), ("already as wanted", None));
    assert_eq!(machine.file("lib").as_deref(), Some("2"), "nothing goes that the item does not name");
}

#[test]
fn dead_repository_stops_only_its_packages() {
    let machine = machine(&[("tool 1.0", "")]);
    let dead = "[third]\nname=third\nbaseurl=http://127.0.0.1:9/third\ngpgcheck=0\nretries=1\n";
    fs::write(machine.dir.path().join("root/etc/yum.repos.d/third.repo"), dead).expect("written");
    let update = |wanted| Wanted { update: true, ..wanted };
    let said = machine.done(&update(wants("tool")));
    assert!(said.starts_with("installed tool 1.0-1; not every repository answered: dnf ended with "), "{said}");
    assert!(said.contains("'third'"), "{said}");
    let (done, text) = machine.bring_about(&update(wants("other")));
    let error = done.expect_err("it is not there");
    assert!(error.starts_with("PackageNotFound: ") && error.contains("'third'"), "{error}\n{text}");
}

#[test]
fn virtual_package_is_named_with_its_providers() {
    let machine = machine(&[("one 1", "Provides: virtual\n"), ("other 1", "Provides: virtual\n")]);
    let error = machine.refused(&wants("virtual"));
    let expected = "VirtualPackage: no package is called virtual; name one that provides it: one, other";
    assert_eq!(error, expected);
}

#[test]
fn nothing_is_taken_away_that_is_not_named() {
    let machine = machine(&[("old 1", ""), ("new 1", "Conflicts: old\n")]);
    machine.done(&wants("old"));
    let error = machine.refused(&wants("new"));
    assert!(error.contains("dnf ended with exit status: 1: Problem: "), "{error}");
    assert!(error.contains("package new-1-1") && error.contains("conflicts with old"), "{error}");
    assert_eq!((machine.file("old").as_deref(), machine.file("new")), (Some("1"), None));
    let instead = Wanted { remove: vec!["old".to_owned()], ..wants("new") };
    let download = Wanted { download_only: true, ..instead.clone() };
    assert_eq!(machine.done(&download), "downloaded new 1-1");
    // The replacement fails to download: then the old package stays.
    let (rpm, away) =
        (machine.dir.path().join("repository/noarch/new-1-1.noarch.rpm"), machine.dir.path().join("away"));
    fs::rename(&rpm, &away).expect("moved");
    machine.refused(&instead);
    assert_eq!(machine.file("old").as_deref(), Some("1"));
    fs::rename(&away, &rpm).expect("moved");
    assert_eq!(machine.done(&instead), "installed new 1-1; removed old");
}

#[test]
fn what_a_package_replaces_goes_only_if_it_is_named() {
    let machine = machine(&[
        ("data 1", ""),
        ("common 1", "Obsoletes: data\n"),
        ("tool 1", "Requires: data\n"),
        ("tool 2", "Requires: common\n"),
    ]);
    machine.done(&wants("data=1-1 tool=1-1"));
    let next = wants("tool=2-1");
    assert_eq!(
        machine.refused(&next),
        "RemovalRefused: data would be removed too; name it in `remove`, or leave what it needs or conflicts with"
    );
    assert_eq!((machine.file("data").as_deref(), machine.file("tool").as_deref()), (Some("1"), Some("1")));
    // It goes in the same transaction: the old tool needs it before, and the new one has another dependency after.
    let named = Wanted { remove: vec!["data".to_owned()], ..next };
    assert_eq!(machine.done(&named), "installed tool 2-1; removed data");
    assert_eq!((machine.file("data"), machine.file("common").as_deref()), (None, Some("1")));
}

#[test]
fn what_a_cut_off_transaction_left_is_finished() {
    let machine = machine(&[("tool 1", ""), ("tool 2", "")]);
    machine.done(&wants("tool=1-1"));
    let root = machine.dir.path().join("root");
    let rpm = || {
        let mut rpm = Command::new("rpm");
        rpm.arg("--root").arg(&root);
        rpm
    };
    let new = machine.dir.path().join("repository/noarch/tool-2-1.noarch.rpm");
    output_of(rpm().args(["--install", "--force"]).arg(new)).expect("beside the old one");
    let versions = || output_of(rpm().args(["--query", "tool"])).expect("installed").lines().count();
    assert_eq!((versions(), machine.manager.unfinished().expect("an answer")), (2, vec!["tool.noarch".to_owned()]));
    assert_eq!(machine.done(&wants("tool=2-1")), "already as wanted");
    assert_eq!((versions(), machine.file("tool").as_deref()), (1, Some("2")));
}

#[test]
fn who_has_one_of_its_locks_is_told() {
    let machine = machine(&[("tool 1", "")]);
    let mut holder = Command::new("sleep").arg("1000").spawn().expect("a process");
    let item = Wanted { update: true, ..wants("tool") };
    for (lock, path) in [("metadata", "var/cache/dnf/metadata_lock.pid"), ("RPMDB", "var/lib/dnf/rpmdb_lock.pid")] {
        let path = machine.dir.path().join("root").join(path);
        fs::write(&path, holder.id().to_string()).expect("a file");
        let refused = machine.refused(&item);
        let expected = format!("PackagesLocked: sleep (process {}) has held dnf's lock `{lock}` for ", holder.id());
        assert!(refused.starts_with(&expected), "{refused}");
        fs::remove_file(&path).expect("gone");
    }
    holder.kill().and_then(|()| holder.wait()).expect("ended");
    assert_eq!(machine.done(&item), "installed tool 1-1");
}

#[test]
fn what_dnf_prints_is_read() {
    let offered = "tool noarch 9-1\n\ntool noarch 10-1\ntool i686 11-1\ntool-more noarch 12-1\n";
    let all = seen("tool", Some("1:9-1".to_owned()), offered, "");
    assert_eq!(all.available, ["11-1", "10-1", "9-1"]);
    assert_eq!(all.older, all.available, "an epoch outweighs what follows");
    let one = seen("tool.noarch", Some("9-1".to_owned()), offered, "tool-more-0:12-1.*\n!tool-0:1-1.*\n");
    assert_eq!((one.candidate.as_deref(), one.held, one.older.len()), (Some("10-1"), false, 0));
    assert!(seen("tool", None, "", "tool-0:9-1.*\n").held);
    assert_eq!(exact("tool.noarch", "1:9-1"), "tool-1:9-1.noarch");
    assert_eq!(exact("python3.11", "3.11.2-1"), "python3.11-3.11.2-1");
}
