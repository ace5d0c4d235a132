//! Is a directory in use? It is, if a process works in it, has one of its files open or mapped, or sees it mounted,
//! also in a container. A non-root agent sees its own processes only.

use std::{
    fmt, fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use crate::mounts::{Mounts, Place};

/// Suffix that the kernel adds to the path of a deleted file.
const DELETED: &[u8] = b" (deleted)";

/// A process that uses a directory, and how.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::runner) struct User {
    pid: u32,
    name: String,
    how: &'static str,
    path: PathBuf,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, name, how, path } = self;
        write!(f, "process {name} (pid {pid}) {how} {}", path.display())
    }
}

/// The first user found.
pub(super) fn user_of(dir: &Path) -> io::Result<Option<User>> {
    let own = Mounts::of("self")?;
    let Some(place) = own.place_of(&fs::canonicalize(dir)?) else { return Ok(None) };
    let own_namespace = namespace("self");
    let mut seen = Vec::new();
    for pid in pids()? {
        let process = pid.to_string();
        let Some(of) = namespace(&process) else { continue };
        let found = if Some(of) == own_namespace {
            used_by(&process, &own, &place)
        } else {
            // The process may have ended meanwhile.
            Mounts::of(&process).ok().and_then(|mounts| {
                used_by(&process, &mounts, &place).or_else(|| {
                    let new = !seen.contains(&of);
                    seen.push(of);
                    new.then(|| mounts.point_of(&place)).flatten().map(|point| ("sees it mounted at", point.to_owned()))
                })
            })
        };
        if let Some((how, path)) = found {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
            return Ok(Some(User { pid, name, how, path }));
        }
    }
    let mounted = own.point_of(&place).map(Path::to_owned);
    Ok(mounted.map(|path| User { pid: 1, name: "init".to_owned(), how: "sees it mounted at", path }))
}

fn pids() -> io::Result<Vec<u32>> {
    let mut pids: Vec<u32> =
        fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids)
}

/// Id of the process's mount namespace.
fn namespace(process: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{process}/ns/mnt")).ok().map(|found| found.ino())
}

fn used_by(process: &str, mounts: &Mounts, place: &Place) -> Option<(&'static str, PathBuf)> {
    let within = |path: &PathBuf| mounts.place_of(path).is_some_and(|found| found.is_within(place));
    let links = |(how, paths): (&'static str, Vec<PathBuf>)| Some((how, paths.into_iter().find(within)?));
    let proc = |name: &str| PathBuf::from(format!("/proc/{process}/{name}"));
    let link = |name: &str| fs::read_link(proc(name)).into_iter().collect::<Vec<_>>();
    let open = fs::read_dir(proc("fd")).into_iter().flatten().flatten();
    let open = open
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|path| !is_deleted(path.as_os_str().as_bytes()));
    links(("works in", link("cwd")))
        .or_else(|| links(("has as its root", link("root"))))
        .or_else(|| links(("has open", open.collect())))
        .or_else(|| links(("runs", mapped(&fs::read(proc("maps")).unwrap_or_default()))))
}

fn is_deleted(path: &[u8]) -> bool {
    path.ends_with(DELETED)
}

/// Files in the lines of `/proc/PID/maps`: programs and libraries.
fn mapped(maps: &[u8]) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = maps
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.iter().position(|byte| *byte == b'/').and_then(|at| line.get(at..)))
        .filter(|path| !is_deleted(path))
        .map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path)))
        .collect();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::Read,
        process::{Command, Stdio},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    const SEEN_MAX: Duration = Duration::from_secs(10);

    #[test]
    fn mapped_files_are_read_from_maps() {
        let maps = b"55d0-55d1 r--p 00000000 fd:00 131 /opt/app/bin/my app\n\
            55d1-55d2 r-xp 00001000 fd:00 131 /opt/app/bin/my app\n\
            7f00-7f01 rw-p 00000000 00:00 0 \n\
            7f01-7f02 r--p 00000000 fd:00 132 /opt/app/lib/old.so (deleted)\n\
            7ffd-7ffe rw-p 00000000 00:00 0 [stack]\n";
        assert_eq!(mapped(maps), [PathBuf::from("/opt/app/bin/my app")]);
    }

    /// What is told at last, at once if it is as expected: the kernel lets `spawn` return a moment before it shows name
    /// and program of the new process.
    fn seen_soon(user: impl Fn() -> Option<String>, expected: &str) -> Option<String> {
        let begun = Instant::now();
        loop {
            let told = user();
            if told.as_deref() == Some(expected) || begun.elapsed() > SEEN_MAX {
                return told;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn directory_in_use_names_process() {
        let dir = tempfile::tempdir().expect("a directory");
        let app = dir.path().join("app");
        fs::create_dir(&app).expect("a directory");
        fs::write(app.join("f"), "").expect("a file");
        let user = || user_of(&app).expect("/proc").map(|user| user.to_string());
        assert_eq!(user(), None);
        let open = File::open(app.join("f")).expect("open");
        let expected = format!("(pid {}) has open {}", std::process::id(), app.join("f").display());
        assert!(user().is_some_and(|user| user.contains(&expected)), "{:?}", user());
        fs::remove_file(app.join("f")).expect("removed");
        assert_eq!(user(), None, "what is deleted is nobody's loss");
        drop(open);
        let mut child = Command::new("sleep").arg("60").current_dir(&app).spawn().expect("started");
        let expected = format!("process sleep (pid {}) works in {}", child.id(), app.display());
        let told = seen_soon(user, &expected);
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert_eq!(told, Some(expected));
        // A separate process makes the copy: executing a program fails while it is open for writing.
        assert!(Command::new("cp").arg("/bin/sleep").arg(&app).status().expect("cp").success());
        let mut child = Command::new(app.join("sleep")).arg("60").spawn().expect("started");
        let expected = format!("process sleep (pid {}) runs {}", child.id(), app.join("sleep").display());
        let told = seen_soon(user, &expected);
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert_eq!(told, Some(expected));
    }

    #[test]
    fn root_of_a_process_is_in_use() {
        // Only root can change it.
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let script = "import os, sys; os.chroot(sys.argv[1]); print('ready', flush=True); sys.stdin.read()";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut ready = [0; 6];
        child.stdout.as_mut().expect("piped").read_exact(&mut ready).expect("ready");
        let told = user_of(dir.path()).expect("/proc").map(|user| user.to_string());
        child.kill().expect("killed");
        child.wait().expect("ended");
        let expected = format!("(pid {}) has as its root {}", child.id(), dir.path().display());
        assert!(told.as_ref().is_some_and(|told| told.ends_with(&expected)), "{told:?}");
    }
}
