//! What the daemons' command lines say besides what is wrong: what helps.

use std::{error::Error, io};

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Words, of other programs or of musterctl, and what leads on from them.
pub type Tips = [(&'static [&'static str], &'static str)];

/// Leads from what clap refuses to what was meant, and keeps clap from guessing where it would lead astray.
#[must_use]
pub fn explain(mut error: clap::Error, tips: &Tips) -> clap::Error {
    let said = |error: &clap::Error, kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    let word = said(&error, ContextKind::InvalidSubcommand).or_else(|| match error.kind() {
        ErrorKind::UnknownArgument => said(&error, ContextKind::InvalidArg),
        _ => None,
    });
    // No option takes what it does not know as a value, and no file begins with `-`.
    if error.kind() == ErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
    }
    let missing = matches!(error.kind(), ErrorKind::MissingRequiredArgument).then(|| lacking(&error)).flatten();
    let tip = word.or(missing).and_then(|word| tips.iter().find(|(words, _)| words.contains(&word.as_str())));
    if let Some((_, tip)) = tip {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]));
    }
    error
}

/// The first option that is not there and has to be, without its value.
fn lacking(error: &clap::Error) -> Option<String> {
    let ContextValue::Strings(options) = error.get(ContextKind::InvalidArg)? else { return None };
    options.first()?.split(' ').next().map(str::to_owned)
}

/// What helps against a fault of a file, where what is said of it leaves that to the reader.
#[must_use]
pub fn against(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let causes: Vec<_> = std::iter::successors(Some(error), |&error| error.source()).collect();
    let says = |what: &str| causes.iter().any(|error| error.to_string().to_lowercase().contains(what));
    match causes.iter().rev().find_map(|error| error.downcast_ref::<io::Error>())?.kind() {
        _ if says("make room") || says("as root") || says("--") => None,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some("Make room on that disk, then try again."),
        io::ErrorKind::PermissionDenied => Some("Run this as root, or as the user whose file it is."),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            Some("Is that the right path, and is there what it names?")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn words_of_others_lead_on() {
        const TIPS: &Tips =
            &[(&["serve"], "`daemon run`"), (&["--port"], "`--listen`"), (&["--token-file"], "`token create`")];
        let said = |line: &str| {
            let run = Command::new("run").arg(Arg::new("port-file").long("port-file"));
            let enroll = Command::new("enroll").arg(Arg::new("token").long("token-file").required(true));
            let daemon = Command::new("daemon").subcommands([run, enroll, Command::new("recover")]);
            explain(daemon.try_get_matches_from(line.split(' ')).expect_err(line), TIPS).to_string()
        };
        for (line, tip) in [
            ("daemon serve", "tip: `daemon run`"),
            ("daemon run --port 1", "tip: `--listen`"),
            ("daemon enroll", "tip: `token create`"),
        ] {
            assert!(said(line).contains(tip) && !said(line).contains("similar"), "{}", said(line));
        }
        assert!(said("daemon recovr").contains("'recover'"), "{}", said("daemon recovr"));
    }

    #[test]
    fn a_full_disk_is_not_the_end() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(against(&full).is_some_and(|advice| advice.starts_with("Make room")));
        let told = io::Error::new(io::ErrorKind::StorageFull, "full: make room there");
        assert_eq!((against(&io::Error::other("odd")), against(&told)), (None, None));
    }
}
