//! Supplies for the machines: a Debian repository with tiny packages, and a playbook. The operator's machine creates
//! and serves them, so that no node needs another network.

use anyhow::Result;
use muster_tests::{
    fleet::manifest::other,
    nodes::{ARTIFACTS, Nodes},
};

use crate::site::item;

/// A package of the repository, in versions 1.0 and 1.1; its program prints its version.
pub(crate) const PACKAGE: &str = "site-tool";
/// The file that the playbook writes its variable `greeting` to.
pub(crate) const GREETING_FILE: &str = "/etc/site-greeting";

const MAKE_REPOSITORY: &str = r#"rm -rf repository.part; mkdir repository.part; cd repository.part
for version in 1.0 1.1; do
    tree=/var/tmp/site-tool-$version
    mkdir -p "$tree/DEBIAN" "$tree/usr/bin"
    printf 'Package: site-tool\nVersion: %s\nArchitecture: all\nMaintainer: site <site@example>\nDescription: tiny\n' \
        "$version" >"$tree/DEBIAN/control"
    printf '#!/bin/sh\necho %s\n' "$version" >"$tree/usr/bin/site-tool"
    chmod 755 "$tree/usr/bin/site-tool"
    deb=site-tool_${version}_all.deb
    dpkg-deb --root-owner-group --build "$tree" "$deb" >/dev/null
    cat "$tree/DEBIAN/control" >>Packages
    sum=$(sha256sum <"$deb" | cut -c 1-64)
    printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "$deb" "$(stat -c %s "$deb")" "$sum" >>Packages
done
cd .. && mv repository.part repository"#;

const PLAYBOOK: &str = r#"- hosts: all
  gather_facts: false
  tasks:
    - name: greet
      ansible.builtin.copy:
        content: "{{ greeting }}\n"
        dest: /etc/site-greeting
        mode: "0644"
"#;

/// Creates the repository, unless it exists.
pub(crate) fn make_repository(fleet: &Nodes) -> Result<()> {
    fleet.operate(&format!("test ! -e repository || exit 0\n{MAKE_REPOSITORY}"), "").map(drop)
}

/// A bash item `sources` that makes the repository the node's only one.
pub(crate) fn sources() -> String {
    let body = format!("echo 'deb [trusted=yes] {ARTIFACTS}repository ./' >/etc/apt/sources.list");
    item("sources", "prepare", &body, &[])
}

/// An item `play` in phase deploy that runs the playbook from an archive.
pub(crate) fn play(fleet: &Nodes, greeting: &str) -> Result<String> {
    fleet.operate("cat >site.yml && tar -cf site.tar site.yml", PLAYBOOK)?;
    let sha256 = fleet.sha256("site.tar")?;
    let url = format!("{ARTIFACTS}site.tar");
    Ok(other("play", "ansible", "deploy", &[("url", &url), ("sha256", &sha256), ("greeting", greeting)], &[]))
}
