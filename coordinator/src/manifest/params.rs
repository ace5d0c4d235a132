//! What params each runner takes: one table, and the checks of single values.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    model::{ClusterName, PARAM_BYTES_MAX, RunnerKind, is_param_name, package_and_version},
    variables::{self, SECRET_PREFIX, VERBATIM_PARAM, VariableError},
};

use super::{
    fault::{Faults, Position, shown},
    read::{Free, Spot, one_of},
    tree::join,
};
use crate::facts::SecretId;

/// Types of units that can be acted upon.
const UNIT_SUFFIXES: &[&str] = &["service", "socket", "timer", "target", "path", "mount", "automount", "swap"];

/// Largest `max_bytes` of a download: 1 PiB.
const FILE_BYTES_MOST: u64 = 1 << 50;

/// What a runner takes.
pub(super) struct Schema {
    pub(super) params: &'static [Param],
    /// Does it take params of any other name as well?
    pub(super) free: bool,
    /// At least one of these must be there.
    one_of: &'static [&'static str],
    /// If the first is there, so must be the second.
    together: &'static [(&'static str, &'static str)],
}

/// One param.
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) required: bool,
    pub(super) shape: Shape,
    /// May it refer to secrets? Not what becomes an argument of a program, a name or a path: others on the machine, and
    /// its logs, see that.
    secret: bool,
}

impl Param {
    const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }
}

/// What a param's value looks like.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    /// Any text but an empty one.
    Text,
    /// `true` or `false`, as text.
    Flag,
    /// One of these.
    Word(&'static [&'static str]),
    /// http or https URLs, parted by blanks: mirrors.
    Urls,
    /// 64 hex digits.
    Sha256,
    /// An absolute path without `..`.
    Path,
    /// Permissions in octal, `0644`.
    Mode,
    /// A number from 1 to this.
    Count(u64),
    /// A systemd unit with its suffix, `docker.service`.
    Unit,
    /// Names of packages, parted by blanks.
    Packages,
    /// Such names, or `NAME=VERSION`.
    Versions,
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
    must("path", Shape::Path),
    may("mode", Shape::Mode),
    may("max_bytes", Shape::Count(FILE_BYTES_MOST)),
    may("extract", Shape::Path),
    may("format", Shape::Word(&["tar", "tar.gz", "tar.zst"])),
]);
const BASH: Schema = Schema { free: true, ..only(&[must(VERBATIM_PARAM, Shape::Text)]) };
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
const SWARM_JOIN: Schema = only(&[must("advertise", Shape::Text), may("listen", Shape::Text)]);
const SWARM_BACKUP: Schema = only(&[
    must("mode", Shape::Word(&["hot", "consistent"])),
    may("path", Shape::Path),
    may("keep", Shape::Count(100)),
]);
const MKE: Schema = only(&[
    must("action", Shape::Word(&["install", "upgrade", "backup"])),
    may("image", Shape::Text),
    may("version", Shape::Text),
    may("args", Shape::Text),
    may("admin_user", Shape::Text).secret(),
    may("admin_password", Shape::Text).secret(),
    may("port", Shape::Count(65_535)),
    may("path", Shape::Path),
    may("keep", Shape::Count(100)),
]);
const REBOOT: Schema = only(&[may("when", Shape::Word(&["always", "required"]))]);
const VROUTER_RESTART: Schema = only(&[]);

/// What a runner takes.
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

/// The params of a map, each checked by itself. `runner`: `None` if it is not known.
pub(super) fn read(
    spot: &Spot<'_>,
    runner: Option<RunnerKind>,
    secrets: Secrets<'_>,
    faults: &mut Faults<'_>,
) -> Option<BTreeMap<String, String>> {
    let before = faults.count();
    let mut params = BTreeMap::new();
    for Free { key, key_at, value } in spot.free(faults)? {
        let known = runner.map(schema).and_then(|schema| schema.params.iter().find(|param| param.name == key));
        if known.is_none() {
            name(key, key_at, &value.path, runner, faults);
        }
        if let Some(text) = value.text(faults)
            && size(&value, text, faults)
            // Before the secret is looked for: nobody is to make one that may not stand there.
            && known.is_none_or(|param| hides_secrets(&value, text, param, faults))
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

/// Are these, together, what the runner needs? `at` and `path` are those of the params.
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
    for (_, second) in schema.together.iter().filter(|(first, second)| has(first) && !has(second)) {
        faults.add(at, &join(path, second), "missing", "'url' and 'sha256' together");
    }
}

/// Do the params of an item agree with each other? `at` and `path` are those of the params.
pub(super) fn agree(
    at: Position,
    path: &str,
    runner: RunnerKind,
    params: &BTreeMap<String, String>,
    faults: &mut Faults<'_>,
) {
    let of = |name: &str| params.get(name).map(String::as_str);
    if runner == RunnerKind::Mke && of("action").is_some_and(|action| action != "backup") && of("version").is_none() {
        faults.add(at, &join(path, "version"), "missing", "the version of MKE, for any action but backup".to_owned());
    }
    let names = |param| of(param).unwrap_or_default().split_ascii_whitespace().filter_map(package_and_version);
    if runner == RunnerKind::Package && names("install").any(|(name, _)| names("remove").any(|(gone, _)| gone == name))
    {
        faults.add(at, &join(path, "remove"), "a package that 'install' names too", "each in one of the two");
    }
    let playbook = of("playbook").filter(|_| runner == RunnerKind::Ansible && of("url").is_none());
    if playbook.is_some_and(|playbook| !is_path(playbook)) {
        let expected = "one that begins with '/', or 'url' and 'sha256' of an archive that has it".to_owned();
        faults.add(at, &join(path, "playbook"), "not an absolute path", expected);
    }
}

/// A param that is not in the table.
fn name(key: &str, at: Position, path: &str, runner: Option<RunnerKind>, faults: &mut Faults<'_>) {
    if !is_param_name(key) {
        return faults.add(at, path, "not a param's name", "a lower-case letter, then up to 62 of a-z, 0-9 and '_'");
    }
    let Some(runner) = runner else { return };
    let schema = schema(runner);
    if !schema.free {
        let known: Vec<&str> = schema.params.iter().map(|param| param.name).collect();
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

/// The secrets that the items of one cluster can refer to.
#[derive(Clone, Copy)]
pub(super) struct Secrets<'a> {
    pub(super) known: &'a BTreeSet<SecretId>,
    /// None: its name has faults, so every cluster's secrets may be meant.
    pub(super) cluster: Option<&'a ClusterName>,
}

impl<'a> Secrets<'a> {
    fn names(self) -> impl Iterator<Item = &'a str> {
        let reached =
            move |id: &&SecretId| id.cluster.is_none() || self.cluster.is_none() || id.cluster.as_ref() == self.cluster;
        self.known.iter().filter(reached).map(|id| id.name.as_str())
    }
}

/// Are the `${…}` of a value all known?
fn variables(value: &Spot<'_>, text: &str, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> bool {
    match variables::names(text) {
        Ok(names) => {
            let mut named = names.iter().filter_map(|name| name.strip_prefix(SECRET_PREFIX));
            let missing = named.find(|name| !secrets.names().any(|known| known == *name));
            if let Some(missing) = missing {
                let problem = format!("unknown secret '{}'", shown(missing));
                let expected =
                    format!("a secret; `musterctl secret create {} --from-file FILE` makes one", shown(missing));
                faults.add_near(value.at(), &value.path, problem, expected, (missing, secrets.names()));
            }
            missing.is_none()
        }
        Err(VariableError::Unknown(name)) => {
            let known = || variables::EARLY.iter().chain(variables::LATE).copied();
            let expected = format!("{}, secret.NAME", one_of(&known().collect::<Vec<_>>()));
            let problem = format!("unknown variable '${{{}}}'", shown(&name));
            faults.add_near(value.at(), &value.path, problem, expected, (&name, known()));
            false
        }
        Err(other) => {
            value.fault(faults, other.to_string(), "");
            false
        }
    }
}

/// Is nothing said here that others would see? A script is taken as it is: it reads what other params hold.
fn hides_secrets(value: &Spot<'_>, text: &str, param: &Param, faults: &mut Faults<'_>) -> bool {
    let hides = param.secret || param.name == VERBATIM_PARAM || !variables::has_secret(text);
    if !hides {
        let problem = format!("a secret in '{}', which is no secret on the machine", param.name);
        value.fault(faults, problem, "a value without secrets: it becomes an argument, a name or a path");
    }
    hides
}

/// The shape of a value. The value itself is never repeated: it may hold a password.
fn check(value: &Spot<'_>, text: &str, shape: Shape, faults: &mut Faults<'_>) {
    let (good, problem, expected) = match shape {
        Shape::Text => (!text.trim().is_empty(), "an empty value", "text"),
        Shape::Flag => (matches!(text, "true" | "false"), "neither true nor false", "\"true\" or \"false\", in quotes"),
        Shape::Word(words) => {
            if !words.contains(&text) {
                value.unknown(faults, "an unknown word", words);
            }
            return;
        }
        Shape::Urls => (are_urls(text), "not an http or https URL", "http://… or https://…, mirrors after blanks"),
        Shape::Sha256 => (is_sha256(text), "not a SHA-256 digest", "64 hex digits"),
        Shape::Path => (is_path(text), "not an absolute path", "a path that begins with '/', without '..'"),
        Shape::Mode => (is_mode(text), "not a file's mode", "octal permissions such as \"0644\""),
        Shape::Count(most) => {
            if !is_count(text, most) {
                value.fault(faults, "not a number in its range", format!("a number from 1 to {most}, in quotes"));
            }
            return;
        }
        Shape::Unit => (is_unit(text), "not a unit's name", "one with its suffix, such as docker.service"),
        Shape::Packages => (are_packages(text, false), "not names of packages", "names, parted by blanks"),
        Shape::Versions => {
            let expected = "NAME or NAME=VERSION of each, parted by blanks";
            (are_packages(text, true), "not names of packages", expected)
        }
    };
    if !good {
        value.fault(faults, problem, expected);
    }
}

fn are_urls(text: &str) -> bool {
    let is_url = |url: &str| {
        url.parse::<http::Uri>().is_ok_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
        })
    };
    some_and_all(text, is_url)
}

/// How many there may be, and what those that variables stand for are, the agent looks at again.
fn are_packages(text: &str, versions: bool) -> bool {
    some_and_all(text, |word| package_and_version(word).is_some_and(|(_, version)| versions || version.is_none()))
}

/// Is there a word, and is each right? The variables are known by now, their values are not: any letter shows the form.
fn some_and_all(text: &str, is_right: impl Fn(&str) -> bool) -> bool {
    let mut pieces = text.split("${");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        plain.push('x');
        plain.push_str(piece.split_once('}').map_or(piece, |(_, after)| after));
    }
    let mut words = plain.split_ascii_whitespace().peekable();
    words.peek().is_some() && words.all(is_right)
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_path(text: &str) -> bool {
    text.len() > 1
        && text.starts_with('/')
        && !text.split('/').any(|part| part == "..")
        && !text.contains(char::is_control)
}

/// A variable in it may stand for anything; the agent looks at the whole name again.
fn is_unit(text: &str) -> bool {
    let stem_and_suffix = text.rsplit_once('.');
    stem_and_suffix.is_some_and(|(stem, suffix)| !stem.is_empty() && UNIT_SUFFIXES.contains(&suffix))
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b":-_.\\@${}".contains(&b))
}

fn is_mode(text: &str) -> bool {
    let digits = text.strip_prefix('0').unwrap_or(text);
    digits.len() == 3 && digits.bytes().all(|b| (b'0'..=b'7').contains(&b))
}

fn is_count(text: &str, most: u64) -> bool {
    !text.starts_with(['0', '+']) && text.parse::<u64>().is_ok_and(|number| (1..=most).contains(&number))
}
