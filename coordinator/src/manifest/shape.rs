//! Formats of single values of params.

use core::net::IpAddr;

use muster_proto::{model::package_and_version, script::interpreter};

use super::{fault::Faults, read::Spot};

/// Types of systemd units that can be managed.
const UNIT_SUFFIXES: &[&str] = &["service", "socket", "timer", "target", "path", "mount", "automount", "swap"];

/// Longest name of a network interface (Linux's IFNAMSIZ, less the NUL).
pub(super) const INTERFACE_BYTES_MAX: usize = 15;

/// Format of a param's value.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    /// Any non-empty text.
    Text,
    /// A script with a valid first line.
    Script,
    /// `true` or `false`, as text.
    Flag,
    /// One of these.
    Word(&'static [&'static str]),
    /// http or https URLs, separated by blanks: mirrors.
    Urls,
    /// The URL of one http or https proxy, or `none`.
    Proxy,
    /// 64 hex digits.
    Sha256,
    /// An absolute path without `..`.
    Path,
    /// A path of a file, as opposed to a directory.
    File,
    /// Permissions in octal, `0644`.
    Mode,
    /// A number from 1 to this maximum.
    Count(u64),
    /// A systemd unit with its suffix, `docker.service`.
    Unit,
    /// Names of packages, separated by blanks.
    Packages,
    /// Names of packages, or `NAME=VERSION`.
    Versions,
    /// Address at which other Docker Engines reach this one.
    Advertised,
    /// Address on which a Docker Engine listens for others.
    Listening,
}

/// Check the format of a value. Messages leave the value out: it may hold a password.
pub(super) fn check(value: &Spot<'_>, text: &str, shape: Shape, faults: &mut Faults<'_>) {
    let (good, problem, expected) = match shape {
        Shape::Text => (!text.trim().is_empty(), "an empty value", "text"),
        Shape::Script => match interpreter(text) {
            Err(error) => return value.fault(faults, error.to_string(), error.cure()),
            Ok(_) => (!text.trim().is_empty(), "an empty value", "text"),
        },
        Shape::Flag => (matches!(text, "true" | "false"), "neither true nor false", "\"true\" or \"false\", in quotes"),
        Shape::Word(words) => {
            if !words.contains(&text) {
                value.unknown(faults, "an unknown word", words);
            }
            return;
        }
        Shape::Urls if have_commas_between(text) => {
            (false, "URLs parted by a comma", "blanks between mirrors, and no commas")
        }
        Shape::Urls => (are_urls(text), "not an http or https URL", "http://… or https://…, mirrors after blanks"),
        Shape::Proxy => {
            let expected = "http://[USER:PASSWORD@]HOST[:PORT], the like with https, or none";
            (text == "none" || is_proxy(text), "not a proxy", expected)
        }
        Shape::Sha256 => (is_sha256(text), "not a SHA-256 digest", "64 hex digits"),
        Shape::Path if text == "/" => (false, "the whole file system", "a directory below '/'"),
        Shape::Path => (is_path(text), "not an absolute path", "a path that begins with '/', without '..'"),
        Shape::File if is_path(text) && text.ends_with('/') => {
            (false, "a path that ends in '/': here a file is named", "the file's own name at its end")
        }
        Shape::File => (is_path(text), "not an absolute path", "a path that begins with '/', without '..'"),
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
        Shape::Advertised => {
            let expected = "an IP address or a network interface's name, if need be with a port: \
                            ${machine.internalIP}, 10.20.0.4:2377, eth1";
            (is_address(text, false), "not an address that Docker can advertise", expected)
        }
        Shape::Listening => {
            let expected = "an IP address or a network interface's name, if need be with a port: 0.0.0.0:2377, eth1";
            (is_address(text, true), "not an address that Docker can listen on", expected)
        }
    };
    if !good {
        value.fault(faults, problem, expected);
    }
}

/// Are the mirrors separated by commas, as in other tools? A comma may occur in a URL, but hardly before the next one.
fn have_commas_between(text: &str) -> bool {
    let begins_another = |word: &str| {
        let before_query = word.split('?').next().unwrap_or_default();
        [",http://", ",https://"].iter().any(|begin| before_query.contains(begin))
    };
    text.split_ascii_whitespace().rev().skip(1).any(|word| word.ends_with(','))
        || text.split_ascii_whitespace().any(begins_another)
}

fn are_urls(text: &str) -> bool {
    some_and_all(text, is_url)
}

pub(super) fn is_url(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    })
}

/// A proxy with a variable is checked on the machine.
fn is_proxy(text: &str) -> bool {
    text.contains("${") || (is_url(text) && text.parse::<http::Uri>().is_ok_and(|uri| matches!(uri.path(), "" | "/")))
}

/// The agent checks again, with the values of variables, also the number of packages.
fn are_packages(text: &str, versions: bool) -> bool {
    some_and_all(text, |word| package_and_version(word).is_some_and(|(_, version)| versions || version.is_none()))
}

/// A text with variables replaced by a letter, to check its form: their values are still unknown.
fn filled(text: &str) -> String {
    let mut pieces = text.split("${");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        plain.push('x');
        plain.push_str(piece.split_once('}').map_or(piece, |(_, after)| after));
    }
    plain
}

/// Is there at least one word, and is each valid?
fn some_and_all(text: &str, is_right: impl Fn(&str) -> bool) -> bool {
    let plain = filled(text);
    let mut words = plain.split_ascii_whitespace().peekable();
    words.peek().is_some() && words.all(is_right)
}

pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

pub(super) fn is_path(text: &str) -> bool {
    text.len() > 1
        && text.starts_with('/')
        && !text.split('/').any(|part| part == "..")
        && !text.contains(char::is_control)
}

/// Does Docker accept this as an address, `<ip|interface>[:port]` as in its manual? Host names are invalid. A listening
/// address may also be a wildcard or the default one, and may begin with `tcp://`.
fn is_address(text: &str, listens: bool) -> bool {
    let plain = filled(text);
    let address = plain.strip_prefix("tcp://").filter(|_| listens).unwrap_or(&plain);
    let is_host = |host: &str| match host.parse::<IpAddr>() {
        Ok(ip) => listens || !ip.is_unspecified(),
        // A host of digits and dots is a mistyped address.
        Err(_) => {
            let digits = host.contains('.') && host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            is_interface(host) && !digits && !host.contains([':', '[', ']'])
        }
    };
    let is_port = |port: &str| is_count(port, u64::from(u16::MAX));
    let host_and_port = match address.strip_prefix('[') {
        Some(rest) => rest.split_once("]:"),
        None => address.split_once(':'),
    };
    let listens_on = |host: &str| listens && host.is_empty();
    is_host(address) || host_and_port.is_some_and(|(host, port)| (is_host(host) || listens_on(host)) && is_port(port))
}

pub(super) fn is_interface(text: &str) -> bool {
    (1..=INTERFACE_BYTES_MAX).contains(&text.len()) && !text.contains(|c: char| c == '/' || c.is_whitespace())
}

/// A variable may stand for anything; the agent checks the whole name again.
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
