//! Targets of symbolic links. They are checked when everything is unpacked, and resolved as the kernel would: any form
//! of a link is allowed as long as it stays inside. Unpacking itself never writes through a link.

use std::{
    ffi::OsString,
    fs, io,
    path::{Component, Path, PathBuf},
};

/// The kernel's limit of links per path (MAXSYMLINKS).
const FOLLOWED_MAX: usize = 40;

/// One step of a path.
enum Step {
    Root,
    Up,
    Into(OsString),
}

/// The first link below `root` that leads outside, as a path relative to it.
pub(super) fn first_that_leads_out(root: &Path) -> io::Result<Option<PathBuf>> {
    let mut left = vec![PathBuf::new()];
    while let Some(inside) = left.pop() {
        for entry in fs::read_dir(root.join(&inside))? {
            let entry = entry?;
            let (kind, inside) = (entry.file_type()?, inside.join(entry.file_name()));
            if kind.is_dir() {
                left.push(inside);
            } else if kind.is_symlink() && leads_out(root, &inside) {
                return Ok(Some(inside));
            }
        }
    }
    Ok(None)
}

fn leads_out(root: &Path, link: &Path) -> bool {
    // Resolved path below the root, and the remaining steps, the next one last.
    let mut at = PathBuf::new();
    let mut left = steps(link);
    let mut followed = 0;
    while let Some(step) = left.pop() {
        match step {
            Step::Root => return true,
            Step::Up if at.pop() => {}
            Step::Up => return true,
            Step::Into(name) => {
                at.push(name);
                // A missing entry or a non-link counts as a directory.
                let Ok(target) = fs::read_link(root.join(&at)) else { continue };
                followed += 1;
                if followed > FOLLOWED_MAX {
                    return false;
                }
                at.pop();
                left.extend(steps(&target));
            }
        }
    }
    false
}

/// Steps of a path in reverse order.
fn steps(path: &Path) -> Vec<Step> {
    let step = |part: Component<'_>| match part {
        Component::Prefix(_) | Component::RootDir => Some(Step::Root),
        Component::CurDir => None,
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Into(name.to_owned())),
    };
    path.components().rev().filter_map(step).collect()
}
