//! The params of each runner: one table, the references they may contain, and their consistency rules.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    model::{ClusterName, PARAM_BYTES_MAX, RunnerKind, is_param_name, package_and_version},
    variables::{self, SECRET_PREFIX, VERBATIM_PARAM, VariableError},
};

use super::{
    fault::{Faults, NO_TEMPLATES, Position, shown},
    read::{Free, Spot, one_of},
    schema::Schemas,
    shape::{Shape, check, is_path},
    tree::join,
};
use crate::facts::SecretId;

/// Known archive formats.
const FORMATS: &[&str] = &["tar", "tar.gz", "tar.zst"];
/// File name suffixes of archives (the agent's runner/archive.rs).
const ARCHIVES: [&str; 4] = [".tar", ".tar.gz", ".tgz", ".tar.zst"];
/// Largest `max_bytes` of a download: 1 PiB.
const FILE_BYTES_MOST: u64 = 1 << 50;

/// Params of a runner.
pub(super) struct Schema {
    pub(super) params: &'static [Param],
    /// Does it also accept params of other names?
    pub(super) free: bool,
    /// At least one of these is required.
    one_of: &'static [&'static str],
    /// The first requires the second.
    together: &'static [(&'static str, &'static str)],
}

/// One param.
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) required: bool,
    pub(super) shape: Shape,
    /// May it refer to secrets? Forbidden for arguments of programs, names and paths: other users of the machine, and
    /// its logs, see those.
    secret: bool,
}

impl Param {
    const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }
}

const fn must(name: &'static str, shape: Shape) -> Param {
    Param { name, required: true, shape, secret: false }
}

const fn may(name: &'static str, shape: Shape) -> Param {
    Param { name, required: false, shape, secret: false }
}

const fn only(params: &'static [Param]) -> Schema {
    Schema { params, free: false, one_of: &[], together: &[] }
}

const DOWNLOADER: Schema = only(&[
    must("url", Shape::Urls).secret(),
    must("sha256", Shape::Sha256),
    must("path", Shape::File),
    may("mode", Shape::Mode),
    may("max_bytes", Shape::Count(FILE_BYTES_MOST)),
    may("extract", Shape::Path),
    may("format", Shape::Word(FORMATS)),
    may("owners", Shape::Word(&["archive", "root"])),
    may("proxy", Shape::Proxy).secret(),
    may("no_proxy", Shape::Text),
]);
const BASH: Schema = Schema { free: true, ..only(&[must(VERBATIM_PARAM, Shape::Script)]) };
const PACKAGE: Schema = Schema {
    one_of: &["install", "remove"],
    ..only(&[
        may("install", Shape::Versions),
        may("remove", Shape::Packages),
        may("action", Shape::Word(&["download", "install"])),
        may("update", Shape::Flag),
        may("hold", Shape::Flag),
        may("allow_downgrade", Shape::Flag),
    ])
};
const SERVICE: Schema = only(&[
    must("unit", Shape::Unit),
    must("action", Shape::Word(&["start", "stop", "restart", "reload", "enable", "disable"])),
]);
const ANSIBLE: Schema = Schema {
    free: true,
    one_of: &["playbook", "url"],
    together: &[("url", "sha256"), ("sha256", "url")],
    ..only(&[may("playbook", Shape::Text), may("url", Shape::Urls).secret(), may("sha256", Shape::Sha256)])
};
const SWARM_JOIN: Schema = only(&[must("advertise", Shape::Advertised), may("listen", Shape::Listening)]);
const SWARM_BACKUP: Schema = only(&[
    must("mode", Shape::Word(&["hot", "consistent"])),
    may("path", Shape::Path),
    may("keep", Shape::Count(100)),
]);
const MKE_PARAMS: &[Param] = &[
    must("action", Shape::Word(&["install", "upgrade", "backup"])),
    may("image", Shape::Text),
    may("version", Shape::Text),
    may("args", Shape::Text),
    may("admin_user", Shape::Text).secret(),
    may("admin_password", Shape::Text).secret(),
    may("port", Shape::Count(65_535)),
    may("path", Shape::Path),
    may("keep", Shape::Count(100)),
];
const MKE: Schema =
    Schema { together: &[("admin_user", "admin_password"), ("admin_password", "admin_user")], ..only(MKE_PARAMS) };
const REBOOT: Schema = only(&[may("when", Shape::Word(&["always", "required"]))]);
const VROUTER_RESTART: Schema = only(&[]);

/// The params of a runner.
pub(super) const fn schema(runner: RunnerKind) -> &'static Schema {
    match runner {
        RunnerKind::Downloader => &DOWNLOADER,
        RunnerKind::Bash => &BASH,
        RunnerKind::Package => &PACKAGE,
        RunnerKind::Service => &SERVICE,
        RunnerKind::Ansible => &ANSIBLE,
        RunnerKind::SwarmJoin => &SWARM_JOIN,
        RunnerKind::SwarmBackup => &SWARM_BACKUP,
        RunnerKind::Mke => &MKE,
        RunnerKind::Reboot => &REBOOT,
        RunnerKind::VrouterRestart => &VROUTER_RESTART,
    }
}

/// Parse the params of a map, each by itself. `runner`: `None` if unknown. `own`: the param that only Muster sets.
pub(super) fn read(
    spot: &Spot<'_>,
    runner: Option<RunnerKind>,
    own: Option<&str>,
    secrets: Secrets<'_>,
    faults: &mut Faults<'_>,
) -> Option<BTreeMap<String, String>> {
    let before = faults.count();
    let mut params = BTreeMap::new();
    for Free { key, key_at, value } in spot.free(faults)? {
        if own == Some(key) {
            value.fault(faults, "a param that the update sets itself", "it left out");
            continue;
        }
        let known = runner.map(schema).and_then(|schema| schema.params.iter().find(|param| param.name == key));
        if known.is_none() {
            name(key, key_at, &value.path, (runner, own), faults);
        }
        if runner == Some(RunnerKind::Bash)
            && let Some(other) = params.keys().find(|known: &&String| known.eq_ignore_ascii_case(key))
        {
            let problem = format!("as '{other}' it is $MUSTER_PARAM_{}", key.to_ascii_uppercase());
            faults.add(key_at, &value.path, problem, "names that differ in more than upper and lower case");
        }
        if let Some(text) = value.text(faults)
            && size(&value, text, faults)
            // Checked before the secret is looked up: a user should not create a secret only to see it refused here.
            && known.is_none_or(|param| hides_secrets(&value, text, param, faults))
            && known.is_none_or(|param| is_no_template(&value, text, param.shape, faults))
            && (key == VERBATIM_PARAM || variables(&value, text, secrets, faults))
        {
            if let Some(param) = known {
                check(&value, text, param.shape, faults);
            }
            params.insert(key.to_owned(), text.to_owned());
        }
    }
    (faults.count() == before).then_some(params)
}

/// Check that these params are sufficient for the runner. `at` and `path` are those of the params.
pub(super) fn complete(
    at: Position,
    path: &str,
    runner: RunnerKind,
    has: impl Fn(&str) -> bool,
    faults: &mut Faults<'_>,
) {
    let schema = schema(runner);
    for Param { name, .. } in schema.params.iter().filter(|param| param.required && !has(param.name)) {
        faults.add(at, &join(path, name), "missing", format!("a param '{name}' for runner {runner}"));
    }
    if !schema.one_of.is_empty() && !schema.one_of.iter().any(|name| has(name)) {
        let expected = format!("for runner {runner} at least {}", one_of(schema.one_of));
        faults.add(at, path, "missing params", expected);
    }
    for (first, second) in schema.together.iter().filter(|(first, second)| has(first) && !has(second)) {
        faults.add(at, &join(path, second), "missing", format!("'{first}' and '{second}' together"));
    }
}

/// Conflicting params: the one to change, the problem, and the expected form.
pub(super) type Quarrel = (&'static str, &'static str, &'static str);

/// Check that the params of an item are consistent. `at`: the position of one of them, `path`: that of all.
pub(super) fn agree(
    at: impl Fn(&str) -> Position,
    path: &str,
    runner: RunnerKind,
    params: &BTreeMap<String, String>,
    faults: &mut Faults<'_>,
) {
    if let Some((name, problem, expected)) = quarrel(runner, params) {
        faults.add(at(name), &join(path, name), problem, expected);
    }
}

/// The first conflict among the params of an item.
pub(super) fn quarrel(runner: RunnerKind, params: &BTreeMap<String, String>) -> Option<Quarrel> {
    let of = |name: &str| params.get(name).map(String::as_str);
    match runner {
        RunnerKind::Downloader => of_download(of),
        RunnerKind::Package => of_packages(of),
        RunnerKind::Ansible => of_playbook(of),
        RunnerKind::Mke => {
            let versionless = of("action").is_some_and(|action| action != "backup") && of("version").is_none();
            versionless.then_some(("version", "missing", "the version of MKE, for any action but backup"))
        }
        RunnerKind::Bash
        | RunnerKind::Service
        | RunnerKind::SwarmJoin
        | RunnerKind::SwarmBackup
        | RunnerKind::Reboot
        | RunnerKind::VrouterRestart => None,
    }
}

fn of_download<'p>(of: impl Fn(&str) -> Option<&'p str>) -> Option<Quarrel> {
    if of("extract").is_none() && of("owners").is_some() {
        let expected = "'extract', the directory to unpack into, beside it, or it left out";
        return Some(("owners", "nothing is unpacked without 'extract'", expected));
    }
    match (of("extract"), of("format")) {
        (None, Some(_)) => {
            let expected = "'extract', the directory to unpack into, beside it, or it left out";
            Some(("format", "nothing is unpacked without 'extract'", expected))
        }
        (Some(_), None) if !says_format(of("path")?) && !is_named_as_archive(of("url")?) => {
            let expected = "one of: tar, tar.gz, tar.zst, as neither 'path' nor 'url' ends like an archive";
            Some(("format", "missing", expected))
        }
        _ => None,
    }
}

fn of_packages<'p>(of: impl Fn(&str) -> Option<&'p str>) -> Option<Quarrel> {
    let names = |param| of(param).unwrap_or_default().split_ascii_whitespace().filter_map(package_and_version);
    if names("install").any(|(name, _)| names("remove").any(|(gone, _)| gone == name)) {
        return Some(("remove", "a package that 'install' names too", "each in one of the two"));
    }
    let idle = of("install").is_none() && of("action") == Some("download");
    let expected = "it left out, or 'install' with the packages to fetch";
    idle.then_some(("action", "a download of packages to remove does nothing", expected))
}

fn of_playbook<'p>(of: impl Fn(&str) -> Option<&'p str>) -> Option<Quarrel> {
    let Some(urls) = of("url") else {
        let expected = "one that begins with '/', or 'url' and 'sha256' of an archive that has it";
        let wrong = of("playbook").is_some_and(|playbook| !is_path(playbook));
        return wrong.then_some(("playbook", "not an absolute path", expected));
    };
    if of("playbook").is_some_and(|playbook| !is_inside(playbook)) {
        let expected = "its path in the archive such as site.yml, without '..', or 'url' and 'sha256' left out";
        return Some(("playbook", "not a path in the archive of 'url'", expected));
    }
    let expected = "a name that ends in .tar, .tar.gz, .tgz or .tar.zst";
    (!is_named_as_archive(urls)).then_some(("url", "not the name of an archive", expected))
}

/// Does the path of one of the mirrors end with an archive suffix?
fn is_named_as_archive(urls: &str) -> bool {
    let path_of = |url: &str| says_format(url.split(['?', '#']).next().unwrap_or_default());
    urls.split_ascii_whitespace().any(path_of)
}

/// Does the name end with an archive suffix? A variable at the end may.
fn says_format(name: &str) -> bool {
    name.ends_with('}') || ARCHIVES.iter().any(|end| name.ends_with(end))
}

/// Is it a path within an archive? The agent rejects one that begins with `./`.
fn is_inside(path: &str) -> bool {
    !path.starts_with('/') && !path.split('/').any(|part| part == "..") && path.split('/').next() != Some(".")
}

/// Check the name of a param outside the table.
fn name(
    key: &str,
    at: Position,
    path: &str,
    (runner, own): (Option<RunnerKind>, Option<&str>),
    faults: &mut Faults<'_>,
) {
    if !is_param_name(key) {
        return faults.add(at, path, "not a param's name", "a letter, then up to 62 letters, digits and '_'");
    }
    let Some(runner) = runner else { return };
    let schema = schema(runner);
    if !schema.free {
        let names = schema.params.iter().map(|param| param.name);
        let known: Vec<&str> = names.filter(|name| own != Some(*name)).collect();
        let expected = if known.is_empty() { "no params".to_owned() } else { one_of(&known) };
        faults.add_near(at, path, format!("unknown param for runner {runner}"), expected, (key, known));
    }
}

fn size(value: &Spot<'_>, text: &str, faults: &mut Faults<'_>) -> bool {
    let fits = text.len() <= PARAM_BYTES_MAX;
    if !fits {
        value.fault(faults, "too long a value", format!("at most {} KiB", PARAM_BYTES_MAX / 1024));
    }
    fits
}

/// What the items of one cluster can refer to: its secrets, its variables, and the schemas of their `vars`.
#[derive(Clone, Copy)]
pub(super) struct Secrets<'a> {
    pub(super) known: &'a BTreeSet<SecretId>,
    /// None: its name has faults, so the secrets of every cluster count.
    pub(super) cluster: Option<&'a ClusterName>,
    /// The cluster's release. None: it has faults, or is still to be parsed.
    pub(super) release: Option<&'a str>,
    /// Schemas that the operator gave for `vars`.
    pub(super) schemas: &'a Schemas<'a>,
}

impl<'a> Secrets<'a> {
    fn names(self) -> impl Iterator<Item = &'a str> {
        let reached = move |id: &&SecretId| self.cluster.is_none() || id.cluster.as_ref() == self.cluster;
        self.known.iter().filter(reached).map(|id| id.name.as_str())
    }
}

/// Check that all `${…}` of a value are known.
pub(super) fn variables(value: &Spot<'_>, text: &str, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> bool {
    match variables::names(text) {
        Ok(names) => {
            let mut named = names.iter().filter_map(|name| name.strip_prefix(SECRET_PREFIX));
            let missing = named.find(|name| !secrets.names().any(|known| known == *name));
            if let Some(missing) = missing {
                let problem = format!("unknown secret '{}'", shown(missing));
                let (name, cluster) = (shown(missing), secrets.cluster.map_or("C", ClusterName::as_str));
                let expected = format!(
                    "a secret of cluster {cluster}; `musterctl secret create {name} --cluster {cluster} --from-file \
                     FILE` makes one, `musterctl secret share {name} --clusters {cluster}` shares one that others have"
                );
                faults.add_near(value.at(), &value.path, problem, expected, (missing, secrets.names()));
            }
            missing.is_none()
        }
        Err(VariableError::Unknown(name)) if name.starts_with('{') => {
            value.fault(faults, "a template ('${{ … }}')", NO_TEMPLATES);
            false
        }
        Err(VariableError::Unknown(name)) if name.starts_with(SECRET_PREFIX) => {
            let named = name.strip_prefix(SECRET_PREFIX).unwrap_or_default();
            let expected = "1 to 63 of a-z, 0-9 and '-', a letter or digit first and last (`musterctl get secrets`)";
            value.fault(faults, format!("'{}' is no secret's name", shown(named)), expected);
            false
        }
        Err(VariableError::Unknown(name)) => {
            let problem = format!("unknown variable '${{{}}}'", shown(&name));
            // A name without a dot is a shell variable, perhaps intended for the shell.
            let literal = format!("; '$${{{}}}' is that text itself", shown(&name));
            let expected = format!("{}{}", known_variables(), if name.contains('.') { "" } else { &literal });
            let known = variables::EARLY.iter().chain(variables::LATE).copied();
            faults.add_near(value.at(), &value.path, problem, expected, (&name, known));
            false
        }
        Err(lone @ VariableError::LoneDollar) => {
            value.fault(faults, lone.to_string(), format!("${{NAME}} with {}", known_variables()));
            false
        }
        Err(other) => {
            value.fault(faults, other.to_string(), "");
            false
        }
    }
}

fn known_variables() -> String {
    let names: Vec<&str> = variables::EARLY.iter().chain(variables::LATE).copied().chain(["secret.NAME"]).collect();
    one_of(&names)
}

/// Reject templates of other tools. Free text may contain the same syntax: a script, or a format for Docker.
fn is_no_template(value: &Spot<'_>, text: &str, shape: Shape, faults: &mut Faults<'_>) -> bool {
    let none = matches!(shape, Shape::Text | Shape::Script) || !text.contains("{{");
    if !none {
        value.fault(faults, "a template ('{{ … }}')", NO_TEMPLATES);
    }
    none
}

/// Reject secrets in visible params. Scripts are exempt: they read the values of other params.
fn hides_secrets(value: &Spot<'_>, text: &str, param: &Param, faults: &mut Faults<'_>) -> bool {
    let hides = param.secret || param.name == VERBATIM_PARAM || !variables::has_secret(param.name, text);
    if !hides {
        let problem = format!("a secret in '{}', which is no secret on the machine", param.name);
        value.fault(faults, problem, "a value without secrets: it becomes an argument, a name or a path");
    }
    hides
}
