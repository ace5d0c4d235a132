//! Plan of package changes, from the wanted and the current state. PURE: it runs nothing.

use std::collections::BTreeMap;

/// Maximum of versions or providers in a message.
const VERSIONS_SHOWN_MAX: usize = 5;

/// A package in an item: `NAME` or `NAME=VERSION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) name: String,
    /// None: any installed version, or else the newest.
    pub(super) version: Option<String>,
}

/// Wanted state of a machine's packages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) install: Vec<Want>,
    pub(super) remove: Vec<String>,
    /// Download the index first.
    pub(super) update: bool,
    /// Hold or release the packages; None: leave the hold unchanged.
    pub(super) hold: Option<bool>,
    pub(super) allow_downgrade: bool,
    /// Download the packages and leave the machine unchanged.
    pub(super) download_only: bool,
}

/// State of one package in its package manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The completely installed version.
    pub(super) installed: Option<String>,
    /// It is held: protected from changes by others.
    pub(super) held: bool,
    /// Version that is installed by default.
    pub(super) candidate: Option<String>,
    /// Every available version, newest first.
    pub(super) available: Vec<String>,
    /// Available versions that are older than the installed one.
    pub(super) older: Vec<String>,
    /// Packages that provide this name, if it is purely virtual.
    pub(super) providers: Vec<String>,
}

/// All changes, each list in the order of the params.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Names with exact versions.
    pub(super) install: Vec<(String, String)>,
    pub(super) remove: Vec<String>,
    pub(super) hold: Vec<String>,
    pub(super) release: Vec<String>,
    /// Some of the changed packages are held, and the item is their holder.
    pub(super) change_held: bool,
}

/// Reason why the wanted state is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Obstacle {
    #[error(
        "PackageNotFound: no repository of this machine has {0}; is its name right, and its index fresh (`update`)?"
    )]
    Missing(String),
    #[error("VirtualPackage: no package is called {name}; name one that provides it: {providers}")]
    Virtual { name: String, providers: String },
    #[error("VersionNotFound: {name} {version} cannot be had here; there are: {available}")]
    NoVersion { name: String, version: String, available: String },
    #[error(
        "DowngradeRefused: {name} {installed} is installed, which is newer than {wanted}; `allow_downgrade: \"true\"` \
         lets it go back"
    )]
    Downgrade { name: String, installed: String, wanted: String },
    #[error(
        "Held: {0} is on hold, but not by this item; release it (`apt-mark unhold`, `dnf versionlock delete`), or \
         say `hold: \"true\"`"
    )]
    Held(String),
}

impl Obstacle {
    /// Can a fresh index of the repositories resolve it?
    pub(super) const fn is_of_index(&self) -> bool {
        match self {
            Self::Missing(_) | Self::Virtual { .. } | Self::NoVersion { .. } => true,
            Self::Downgrade { .. } | Self::Held(_) => false,
        }
    }
}

/// Makes the plan.
pub(super) fn plan(wanted: &Wanted, seen: &BTreeMap<String, Seen>) -> Result<Plan, Obstacle> {
    let mut plan = Plan::default();
    let unseen = Seen::default();
    let of = |name: &str| seen.get(name).unwrap_or(&unseen);
    for want in &wanted.install {
        let seen = of(&want.name);
        if let Some(version) = version_to_install(want, seen, wanted.allow_downgrade)? {
            change(&mut plan, &want.name, seen, wanted.hold)?;
            plan.install.push((want.name.clone(), version));
        }
        match wanted.hold {
            _ if wanted.download_only => {}
            Some(true) if !seen.held => plan.hold.push(want.name.clone()),
            Some(false) if seen.held => plan.release.push(want.name.clone()),
            Some(_) | None => {}
        }
    }
    for name in wanted.remove.iter().filter(|name| of(name).installed.is_some()) {
        change(&mut plan, name, of(name), wanted.hold)?;
        plan.remove.push(name.clone());
    }
    if wanted.download_only && plan.install.is_empty() {
        // A download needs packages to install; removals alone are skipped.
        return Ok(Plan::default());
    }
    Ok(plan)
}

/// Version to install. None: the installed one is sufficient.
fn version_to_install(want: &Want, seen: &Seen, allow_downgrade: bool) -> Result<Option<String>, Obstacle> {
    match (&want.version, &seen.installed) {
        (None, Some(_)) => Ok(None),
        (None, None) => seen.candidate.clone().map(Some).ok_or_else(|| missing(&want.name, seen)),
        (Some(version), Some(installed)) if version == installed => Ok(None),
        (Some(_), _) if seen.available.is_empty() => Err(missing(&want.name, seen)),
        (Some(version), _) if !seen.available.contains(version) => {
            let shown = seen.available.iter().take(VERSIONS_SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
            Err(Obstacle::NoVersion { name: want.name.clone(), version: version.clone(), available: shown })
        }
        (Some(version), Some(installed)) if seen.older.contains(version) && !allow_downgrade => {
            Err(Obstacle::Downgrade { name: want.name.clone(), installed: installed.clone(), wanted: version.clone() })
        }
        (Some(version), _) => Ok(Some(version.clone())),
    }
}

/// The choice of a provider would depend on the order of the repositories, so a person must name one.
fn missing(name: &str, seen: &Seen) -> Obstacle {
    match seen.providers.as_slice() {
        [] => Obstacle::Missing(name.to_owned()),
        providers => {
            let shown = providers.iter().take(VERSIONS_SHOWN_MAX).cloned().collect::<Vec<_>>();
            Obstacle::Virtual { name: name.to_owned(), providers: shown.join(", ") }
        }
    }
}

/// Checks a change of a held package: allowed if the item sets `hold`, true or false, and thus knows of the hold.
fn change(plan: &mut Plan, name: &str, seen: &Seen, hold: Option<bool>) -> Result<(), Obstacle> {
    match (seen.held && seen.installed.is_some(), hold) {
        (false, _) => {}
        (true, Some(_)) => plan.change_held = true,
        (true, None) => return Err(Obstacle::Held(name.to_owned())),
    }
    Ok(())
}

impl Plan {
    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Summary in one line, for people.
    pub(super) fn summary(&self, download_only: bool) -> String {
        let versions = self.install.iter().map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>();
        if download_only {
            let nothing = versions.is_empty();
            return if nothing {
                "nothing to download".to_owned()
            } else {
                format!("downloaded {}", versions.join(", "))
            };
        }
        let parts = [
            ("installed", versions),
            ("removed", self.remove.clone()),
            ("held", self.hold.clone()),
            ("released", self.release.clone()),
        ];
        let said = parts.into_iter().filter(|(_, names)| !names.is_empty());
        let said = said.map(|(what, names)| format!("{what} {}", names.join(", "))).collect::<Vec<_>>();
        if said.is_empty() { "already as wanted".to_owned() } else { said.join("; ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Want {
        let (name, version) = text.split_once('=').map_or((text, None), |(name, version)| (name, Some(version)));
        Want { name: name.to_owned(), version: version.map(str::to_owned) }
    }

    fn seen(installed: Option<&str>, held: bool) -> Seen {
        let available: Vec<String> = ["3", "2", "1"].map(str::to_owned).into();
        let older = available.iter().filter(|version| Some(version.as_str()) < installed).cloned().collect();
        Seen {
            installed: installed.map(str::to_owned),
            held,
            candidate: Some("3".to_owned()),
            available,
            older,
            providers: Vec::new(),
        }
    }

    #[test]
    fn packages_are_changed_only_as_far_as_they_must() {
        let install = |version: &str| Ok(vec![("a".to_owned(), version.to_owned())]);
        let nothing = || Ok(Vec::new());
        let obstacle = |text: &str| Err(text.to_owned());
        let (none, yes, no) = (None, Some(true), Some(false));
        for (want, installed, held, hold, downgrade, expected) in [
            ("a", None, false, none, false, install("3")),
            ("a", Some("1"), false, none, false, nothing()),
            ("a", Some("1"), true, none, false, nothing()),
            ("a=2", None, false, none, false, install("2")),
            ("a=2", Some("2"), false, none, false, nothing()),
            ("a=2", Some("1"), false, none, false, install("2")),
            ("a=2", Some("3"), false, none, false, obstacle("DowngradeRefused")),
            ("a=2", Some("3"), false, none, true, install("2")),
            ("a=4", Some("3"), false, none, true, obstacle("VersionNotFound")),
            ("a=2", Some("1"), true, none, false, obstacle("Held")),
            ("a=2", Some("1"), true, yes, false, install("2")),
            ("a=2", Some("1"), true, no, false, install("2")),
            ("b", None, false, none, false, obstacle("PackageNotFound")),
            ("b=1", None, false, none, false, obstacle("PackageNotFound")),
        ] {
            let wanted = Wanted { install: vec![wanted(want)], hold, allow_downgrade: downgrade, ..Wanted::default() };
            let seen = BTreeMap::from([("a".to_owned(), seen(installed, held))]);
            let found = plan(&wanted, &seen).map(|plan| plan.install);
            let found = found.map_err(|obstacle| obstacle.to_string().split(':').next().unwrap_or_default().to_owned());
            assert_eq!(found, expected, "{want} on {installed:?}, held {held}, hold {hold:?}");
        }
    }

    #[test]
    fn a_download_says_no_more_than_it_does() {
        for (install, remove, hold, expected) in [
            ("a=2", "b", Some(true), "downloaded a 2"),
            ("a=3", "b", Some(true), "nothing to download"),
            ("a=3", "", Some(false), "nothing to download"),
        ] {
            let wanted = Wanted {
                install: vec![wanted(install)],
                remove: remove.split_terminator(' ').map(str::to_owned).collect(),
                hold,
                allow_downgrade: true,
                download_only: true,
                ..Wanted::default()
            };
            let seen = ["a", "b"].map(|name| (name.to_owned(), seen(Some("3"), hold == Some(false))));
            let plan = plan(&wanted, &seen.into()).expect("a plan");
            assert_eq!(plan.summary(true), expected, "{wanted:?}");
            assert_eq!((plan.hold.len(), plan.release.len()), (0, 0), "{wanted:?}");
            assert_eq!(plan.is_nothing(), expected == "nothing to download", "{wanted:?}");
        }
    }

    #[test]
    fn holds_and_removals_are_done_once() {
        for (installed, held, hold, expected) in [
            (Some("3"), false, Some(true), "held a"),
            (Some("3"), true, Some(true), "already as wanted"),
            (Some("3"), true, Some(false), "released a"),
            (Some("3"), true, None, "already as wanted"),
            (None, false, Some(true), "installed a 3; held a"),
        ] {
            let wanted = Wanted { install: vec![wanted("a")], hold, ..Wanted::default() };
            let plan = plan(&wanted, &BTreeMap::from([("a".to_owned(), seen(installed, held))])).expect("a plan");
            assert_eq!(plan.summary(false), expected);
            assert_eq!(plan.is_nothing(), expected == "already as wanted");
        }
        for (installed, held, expected) in [
            (Some("1"), false, Ok("removed a".to_owned())),
            (None, false, Ok("already as wanted".to_owned())),
            (Some("1"), true, Err(Obstacle::Held("a".to_owned()))),
        ] {
            let wanted = Wanted { remove: vec!["a".to_owned()], ..Wanted::default() };
            let plan = plan(&wanted, &BTreeMap::from([("a".to_owned(), seen(installed, held))]));
            assert_eq!(plan.map(|plan| plan.summary(false)), expected);
        }
    }
}
