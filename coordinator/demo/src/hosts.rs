//! Hosts of their own for the agents, as far as hostname and boot id tell: by these marks a Kubernetes node is a
//! machine's. A process gets them in namespaces of its own.

use std::{fs, path::Path};

use musterctl::errors::Failure;

use super::layout::Layout;

/// `as-host NAME COMMAND…`. Only root may make such namespaces; others become root of a user namespace first. There the
/// directories of the real root belong to nobody, whom the agent would not trust: so it runs as nobody itself.
const AS_HOST: &str = r#"# sh as-host NAME COMMAND...
# Run a command on a host of its own, as far as hostname and boot id tell.
set -eu
boot_id=$(dirname "$0")/boot-ids/$1
root= nobody=
if test "$(id -u)" != 0; then
  root="--user --map-root-user" nobody="unshare --user --map-user=65534 --map-group=65534"
fi
name=$1
shift
exec unshare $root --uts --mount sh -euc '
hostname "$0"
mount --bind "$1" /proc/sys/kernel/random/boot_id
shift
exec "$@"
' "$name" "$boot_id" $nobody "$@"
"#;

/// Write the script and the boot ids.
pub(super) fn write(layout: &Layout, machines: &[String]) -> Result<(), Failure> {
    let boot_ids = (1..).zip(machines).map(|(number, machine)| {
        // A boot id has the form of a random UUID.
        (layout.boot_ids().join(machine), format!("00000000-0000-4000-8000-{number:012}\n"))
    });
    let cannot = |path: &Path, source| Failure::failed(format!("cannot write {}", path.display())).because(source);
    let dir = layout.boot_ids();
    fs::create_dir(&dir).map_err(|source| cannot(&dir, source))?;
    for (path, text) in [(layout.as_host(), AS_HOST.to_owned())].into_iter().chain(boot_ids) {
        fs::write(&path, text).map_err(|source| cannot(&path, source))?;
    }
    Ok(())
}
