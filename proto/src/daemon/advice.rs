//! What the daemons' command lines say besides what is wrong: what helps.

use std::{error::Error, io, net::AddrParseError, num::ParseIntError};

use clap::{
    Command,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::likeness::is_slip;

/// Words, of other programs or of musterctl, and what leads on from them; of an option that is not there and has to be,
/// `without --option`; of one of a certain command, `command --option`.
pub type Tips = [(&'static [&'static str], &'static str)];

/// Leads from what clap refuses to what was meant, and keeps clap from guessing where it would lead astray. `words` are
/// the command line's, without the program.
#[must_use]
pub fn explain(mut error: clap::Error, program: &Command, words: &[String], tips: &Tips) -> clap::Error {
    drop_far_guesses(&mut error);
    if let Some(tip) = before_its_command(&error, program, words) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        return error;
    }
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
    if let Some(tip) = of_value(&error) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        return error;
    }
    let missing = matches!(error.kind(), ErrorKind::MissingRequiredArgument).then(|| lacking(&error)).flatten();
    let missing = missing.map(|option| format!("without {option}"));
    let command = words.iter().find(|word| program.find_subcommand(word).is_some());
    let of = |word: &str| tips.iter().find(|(words, _)| words.contains(&word));
    let own = |word: &str| command.and_then(|command| of(&format!("{command} {word}")));
    let tip = word.or(missing).and_then(|word| own(&word).or_else(|| of(&word)));
    if let Some((_, tip)) = tip {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*tip).into()]));
    }
    error
}

/// clap takes words for alike that nobody mistypes for each other, `auth` for `watch`; and whoever follows a guess may
/// remove what he wanted to rename. Of its guesses those stay that a slip of the fingers leads to.
pub fn drop_far_guesses(error: &mut clap::Error) {
    for (typed, guessed) in [
        (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
    ] {
        let Some(ContextValue::String(typed)) = error.get(typed) else { continue };
        let guesses = match error.get(guessed) {
            Some(ContextValue::Strings(guesses)) => guesses.clone(),
            Some(ContextValue::String(guess)) => vec![guess.clone()],
            _ => continue,
        };
        let near: Vec<String> = guesses.iter().filter(|guess| is_slip(typed, guess)).cloned().collect();
        if near.len() < guesses.len() {
            // The usage is that of the guess.
            for kind in [guessed, ContextKind::Suggested, ContextKind::Usage] {
                error.remove(kind);
            }
        }
        if near.len() < guesses.len() && !near.is_empty() {
            error.insert(guessed, ContextValue::Strings(near));
        }
    }
}

/// Of an option that stands before the command it belongs to, as other programs have it.
#[must_use]
pub fn before_its_command(error: &clap::Error, program: &Command, words: &[String]) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    let option = option.split('=').next().filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    let at = words.iter().position(|word| word.split('=').next() == Some(option))?;
    let commands = || words.iter().enumerate().filter(|(_, word)| program.find_subcommand(word).is_some());
    let (_, name) = commands().next().filter(|(first, _)| *first > at)?;
    let command = program.find_subcommand(name)?;
    let its_own = std::iter::once(command).chain(command.get_subcommands()).any(|command| has(command, option));
    its_own.then(|| format!("it comes after the command: `{} {name} … {option}`", program.get_name()))
}

fn has(command: &Command, option: &str) -> bool {
    command.get_arguments().any(|arg| match option.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| option.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4]))),
    })
}

/// What is expected in the place of a value whose own error says only what is wrong with its characters.
#[must_use]
pub fn of_value(error: &clap::Error) -> Option<&'static str> {
    let cause = error.source()?;
    if cause.is::<ParseIntError>() {
        return Some("a whole number");
    }
    cause.is::<AddrParseError>().then_some("an IP address and a port: 127.0.0.1:8080, [::1]:8080")
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
        io::ErrorKind::AlreadyExists => Some("Name one that is not there yet, or take away what is there."),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use clap::{Arg, value_parser};

    use super::*;

    #[test]
    fn words_of_others_lead_on() {
        const TIPS: &Tips = &[
            (&["serve"], "`daemon run`"),
            (&["--port"], "`--listen`"),
            (&["without --token-file"], "`token create`"),
            (&["enroll --port"], "`--at`"),
        ];
        let said = |line: &str| {
            let run = Command::new("run").arg(Arg::new("port-file").long("port-file"));
            let enroll = Command::new("enroll").arg(Arg::new("token").long("token-file").required(true));
            let daemon = Command::new("daemon");
            let daemon = daemon.subcommands([run, enroll, Command::new("recover")]);
            let words: Vec<String> = line.split(' ').skip(1).map(str::to_owned).collect();
            let error = daemon.clone().try_get_matches_from(line.split(' ')).expect_err(line);
            explain(error, &daemon, &words, TIPS).to_string()
        };
        for (line, tip) in [
            ("daemon serve", "tip: `daemon run`"),
            ("daemon run --port 1", "tip: `--listen`"),
            ("daemon enroll", "tip: `token create`"),
            ("daemon enroll --port 1", "tip: `--at`"),
            ("daemon --port-file x run", "tip: it comes after the command: `daemon run … --port-file`"),
            ("daemon --token-file=x enroll", "tip: it comes after the command: `daemon enroll … --token-file`"),
        ] {
            assert!(said(line).contains(tip) && !said(line).contains("similar"), "{}", said(line));
        }
        assert!(said("daemon recovr").contains("'recover'"), "{}", said("daemon recovr"));
        assert!(!said("daemon restore").contains("similar"), "{}", said("daemon restore"));
        assert!(!said("daemon run --port=1").contains("similar"), "{}", said("daemon run --port=1"));
    }

    #[test]
    fn a_value_says_what_it_may_be() {
        let number = Arg::new("epoch").long("epoch").value_parser(value_parser!(u64));
        let address = Arg::new("listen").long("listen").value_parser(value_parser!(SocketAddr));
        let command = Command::new("run").args([number, address]);
        let said = |line: &str| {
            let parsed = command.clone().try_get_matches_from(line.split(' '));
            explain(parsed.expect_err(line), &command, &[], &[]).to_string()
        };
        assert!(said("run --epoch x").contains("tip: a whole number"), "{}", said("run --epoch x"));
        assert!(said("run --listen 80").contains("127.0.0.1:8080"), "{}", said("run --listen 80"));
    }

    #[test]
    fn a_full_disk_is_not_the_end() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(against(&full).is_some_and(|advice| advice.starts_with("Make room")));
        let told = io::Error::new(io::ErrorKind::StorageFull, "full: make room there");
        assert_eq!((against(&io::Error::other("odd")), against(&told)), (None, None));
    }
}
