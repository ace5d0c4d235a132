//! Words of kubectl and of LCM that musterctl does not have: whoever types one is told the word that does it here,
//! instead of the one that is spelt most like it.

use clap::{
    CommandFactory as _, Error,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};
use muster_proto::daemon::advice;

mod words;

use words::{COMMANDS, DELETE_SECRET, KINDS, OPTIONS};

use crate::{cli::Cli, get};

/// What clap found wrong, with our word for what was meant. `words` are the command line's, without the program.
pub(crate) fn explain(mut error: Error, words: &[String]) -> Error {
    advice::drop_far_guesses(&mut error);
    let out_of_place = advice::before_its_command(&error, &Cli::command(), words);
    let Some(tip) = out_of_place.or_else(|| tip(&error, words)).or_else(|| example(&error, words)) else {
        // No option takes what it does not know as a value, and no value of ours begins with `-`.
        if error.kind() == ErrorKind::UnknownArgument {
            error.remove(ContextKind::Suggested);
        }
        return error;
    };
    for guess in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue] {
        error.remove(guess);
    }
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    error
}

/// Of a command line that lacks something, the first example in the command's own help.
fn example(error: &Error, words: &[String]) -> Option<String> {
    use ErrorKind::{InvalidSubcommand, MissingRequiredArgument};
    let guessed = error.get(ContextKind::SuggestedSubcommand).is_some();
    if !matches!(error.kind(), MissingRequiredArgument | InvalidSubcommand) || guessed || subcommand(words).is_none() {
        return None;
    }
    let mut command = &Cli::command();
    for word in words {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    let (help, first) = (command.get_after_help(), command.get_subcommands().next());
    let help = help.or_else(|| first?.get_after_help())?.to_string();
    // The one that is most like what was typed; of several, the first.
    let lines = help.lines().map(str::trim).filter(|line| line.starts_with("musterctl "));
    let alike = |line: &&str| line.split(' ').filter(|word| words.iter().any(|typed| typed == word)).count();
    let line = lines.rev().max_by_key(alike)?;
    Some(format!("an example: `{}`", line.split("  ").next().unwrap_or(line)))
}

/// Of a value that is none, and of a word where none belongs.
fn misplaced(error: &Error, command: &str, arg: &str, words: &[String]) -> Option<String> {
    if let Some(tip) = advice::of_value(error) {
        return Some(tip.to_owned());
    }
    if command == "demo" && arg == "stop" {
        return Some("`musterctl demo --stop --dir DIR`".to_owned());
    }
    if command == "revoke" && !arg.starts_with('-') {
        return Some(match words.iter().any(|word| ["token", "tokens"].contains(&word.as_str())) {
            true => format!("`musterctl token revoke {arg}`"),
            false => "one at a time: `musterctl revoke MACHINE`".to_owned(),
        });
    }
    if command == "watch" && !arg.starts_with('-') {
        return Some("one cluster: `musterctl watch CLUSTER`; of machines: `musterctl get machines -w`".to_owned());
    }
    let idle = error.kind() == ErrorKind::TooManyValues;
    idle.then(|| format!("`{arg}` takes no value: say it, or leave it out"))
}

fn tip(error: &Error, words: &[String]) -> Option<String> {
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let invalid = said(ContextKind::InvalidSubcommand);
    // What follows it may be a name that is a word of ours too.
    let before = words.iter().position(|word| Some(word.as_str()) == invalid).unwrap_or(words.len());
    let command = subcommand(words.get(..before).unwrap_or(words)).unwrap_or_default();
    if let Some(word) = invalid {
        return command_tip(command, word, words.get(before + 1));
    }
    let arg = said(ContextKind::InvalidArg)?;
    if let Some(tip) = misplaced(error, command, arg, words) {
        return Some(tip);
    }
    if command == "apply" && !arg.starts_with('-') {
        return Some(format!("files are named with -f: `musterctl apply -f {arg}`"));
    }
    if command == "secret" && !arg.starts_with('-') && words.iter().any(|word| word == "list") {
        return Some(format!("`musterctl get secret {arg}`"));
    }
    if command == "secret" && !arg.starts_with('-') {
        return Some(match words.windows(2).any(|pair| pair == ["create", "generic"]) {
            true => format!("all are of one kind: `musterctl secret create {arg} --from-file FILE`"),
            false => "a value is never on a command line: `--from-file FILE`, or `--from-file -` for a pipe".to_owned(),
        });
    }
    if command == "remove" && !arg.starts_with('-') {
        let is = |kinds: &[&str]| words.iter().any(|word| kinds.contains(&word.as_str()));
        return Some(match () {
            () if is(&["cluster", "clusters"]) => {
                format!("`musterctl delete cluster {arg}`; `remove` is for one machine")
            }
            () if is(&["machine", "machines", "node", "nodes"]) => format!("`musterctl remove {arg}`"),
            () => "one machine at a time: `musterctl remove MACHINE`".to_owned(),
        });
    }
    if command == "logs" && arg == "-n" {
        return of(OPTIONS, "--tail").map(str::to_owned);
    }
    if command == "delete" && matches!(arg, "-f" | "--filename") {
        return Some(
            "what a manifest made is taken away by name: `musterctl remove MACHINE`, then `musterctl delete \
                     cluster NAME`"
                .to_owned(),
        );
    }
    let Some(word) = said(ContextKind::InvalidValue) else {
        let unknown = error.kind() == ErrorKind::UnknownArgument;
        let tip = || named_without_option(command, arg, words).or_else(|| option_tip(command, arg));
        return unknown.then(tip).flatten();
    };
    if arg != "<KIND>" {
        return None;
    }
    let (kind, name) = word.split_once('/').unwrap_or((word, ""));
    match of(KINDS, &kind.to_lowercase()) {
        Some(known) => Some(known.to_owned()),
        None if !name.is_empty() => {
            Some(format!("kind and name are two words here: `musterctl {command} {kind} {name}`"))
        }
        None if error.get(ContextKind::SuggestedValue).is_some() => None,
        None if command == "describe" && get::is_kind(kind) => {
            Some(format!("a list has all there is of it: `musterctl get {}`", kind.to_lowercase()))
        }
        None if get::is_kind(kind) => Some("only machines and clusters have annotations".to_owned()),
        None => Some(format!("the kind comes first, and then a name: `musterctl {command} machine {word}`")),
    }
}

/// Of `--cluster` where the cluster is what the command is about.
fn named_without_option(command: &str, arg: &str, words: &[String]) -> Option<String> {
    let option = arg.split('=').next().filter(|option| *option == "--cluster")?;
    let at = words.iter().position(|word| word.split('=').next() == Some(option))?;
    let given = words.get(at)?.split_once('=').map(|(_, name)| name).or_else(|| words.get(at + 1).map(String::as_str));
    let name = given.filter(|name| !name.starts_with('-')).unwrap_or("CLUSTER");
    let of_cluster = words.iter().any(|word| word == "cluster");
    let cli = Cli::command();
    let own = cli
        .find_subcommand(command)?
        .get_positionals()
        .any(|arg| ["cluster", "rollout"].contains(&arg.get_id().as_str()));
    let kind = if own { "" } else { "cluster " };
    (own || of_cluster).then(|| format!("a cluster is named without an option: `musterctl {command} {kind}{name}`"))
}

/// Of an option that `command` does not have.
fn option_tip(command: &str, arg: &str) -> Option<String> {
    let option = arg.split('=').next().unwrap_or_default();
    of(OPTIONS, &format!("{command} {option}")).or_else(|| of(OPTIONS, option)).map(str::to_owned)
}

/// Of a word that is no subcommand of `command` (empty: of musterctl), and the word after it.
fn command_tip(command: &str, word: &str, next: Option<&String>) -> Option<String> {
    let own = format!("{command} {word}");
    let name = next.filter(|name| !name.starts_with('-') && DELETE_SECRET.contains(&own.as_str()));
    if let Some(name) = name {
        return Some(delete_secret(name));
    }
    if command == "delete" && of(COMMANDS, &own).is_none() {
        let (kind, name) = word.split_once('/').unwrap_or_default();
        return Some(match kind {
            "cluster" | "clusters" => format!("`musterctl delete cluster {name}`"),
            "machine" | "machines" => format!("`musterctl remove {name}`"),
            _ => format!("`musterctl remove {word}` for a machine, `musterctl delete cluster {word}` for a cluster"),
        });
    }
    let both = next.and_then(|next| of(COMMANDS, &format!("{word} {next}")));
    let either = both.or_else(|| of(COMMANDS, word)).filter(|_| command.is_empty());
    of(COMMANDS, &own).or(either).map(str::to_owned)
}

fn delete_secret(name: &str) -> String {
    match name.contains('/') {
        true => format!("`musterctl secret delete {name}`"),
        false => {
            format!(
                "`musterctl secret delete {name}`, of a secret of one cluster `musterctl secret delete CLUSTER/{name}`"
            )
        }
    }
}

fn of(table: &[(&[&str], &'static str)], word: &str) -> Option<&'static str> {
    table.iter().find(|(words, _)| words.contains(&word)).map(|(_, tip)| *tip)
}

/// The first of the words that is a subcommand of ours.
fn subcommand(words: &[String]) -> Option<&str> {
    let cli = Cli::command();
    words.iter().map(String::as_str).find(|word| cli.find_subcommand(word).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let parsed = Cli::command().try_get_matches_from(std::iter::once("musterctl".to_owned()).chain(words.clone()));
        let error = parsed.expect_err(line);
        explain(error, &words).to_string()
    }

    fn lead(lines: &[(&str, &str)]) {
        for (line, tip) in lines {
            let said = said(line);
            assert!(said.contains(tip) && said.matches("tip:").count() == 1, "{line}: {said}");
        }
    }

    #[test]
    fn kubectls_words_lead_to_ours() {
        lead(&[
            ("get nodes", "musterctl get machines"),
            ("get node worker-1", "musterctl get machines"),
            ("get node/worker-1", "musterctl get machines"),
            ("describe node worker-1", "musterctl get machines"),
            ("get pods", "`musterctl describe machine MACHINE`"),
            ("get machines -n edge-7", "--cluster NAME"),
            ("get machines --all-namespaces", "--cluster NAME"),
            ("logs worker-1 -c images", "musterctl logs MACHINE ITEM"),
            ("logs worker-1 --tail=5", "tail -n 20"),
            ("delete machine worker-1", "musterctl remove MACHINE"),
            ("--config c delete node worker-1", "musterctl remove MACHINE"),
            ("cordon worker-1", "musterctl maintenance enter MACHINE"),
            ("drain worker-1 --ignore-daemonsets", "musterctl maintenance enter MACHINE"),
            ("uncordon worker-1", "musterctl maintenance leave MACHINE"),
            ("rollout status edge-7", "musterctl watch CLUSTER"),
            ("machines", "musterctl get machines"),
            ("rollout status demo", "musterctl watch CLUSTER"),
            ("rollout restart cluster/demo", "musterctl watch CLUSTER"),
            ("edit cluster demo", "musterctl apply -f FILE"),
            ("apply manifest.yaml", "musterctl apply -f manifest.yaml"),
            ("apply -k manifests", "`-f FILE`"),
            ("apply -f edge-7.yaml --force", "leave it out"),
            ("describe token 821da62ffe70", "`musterctl get token`"),
            ("secret create generic db --from-file pw", "`musterctl secret create db --from-file FILE`"),
            ("get audit --since 1h", "`musterctl get audit | grep"),
            ("describe worker-1", "`musterctl describe machine worker-1`"),
            ("annotate machine/worker-1 a=b", "`musterctl annotate machine worker-1`"),
            ("annotate token x a=b", "only machines and clusters have annotations"),
            ("delete -f edge-7.yaml", "`musterctl remove MACHINE`"),
            ("delete worker-1", "`musterctl remove worker-1`"),
            ("update edge-7 --dry-run", "`musterctl plan CLUSTER`"),
            ("secret create db hunter2", "`--from-file FILE`"),
            ("logs worker-1 -n 5", "tail -n 20"),
            ("token delete abc", "`musterctl token revoke ID`"),
            ("create token --cluster edge-7", "`musterctl token create"),
            ("create cluster edge-7", "musterctl apply -f FILE"),
            ("secret get edge-7/db", "`musterctl get secrets`"),
        ]);
    }

    #[test]
    fn other_words_lead_to_the_right_ones() {
        lead(&[
            ("update", "an example: `musterctl update edge-7`"),
            ("demo --stop", "an example: `musterctl demo --stop --dir /tmp/fleet`"),
            (
                "secret rm",
                "`musterctl secret delete NAME`, of a secret of one cluster `musterctl secret delete CLUSTER/NAME`",
            ),
            ("secret rm edge-7/db", "`musterctl secret delete edge-7/db`"),
            ("secret rm db", "`musterctl secret delete db`, of a secret of one cluster"),
            ("delete secret db", "`musterctl secret delete CLUSTER/db`"),
            ("token create -c edge-7 -t worker", "`--cluster NAME`, and of a new token `--type worker`"),
            ("token create --cluster edge-7 -t worker", "`--type worker`"),
            ("get machines -c edge-7", "`--cluster NAME`"),
            ("start edge-7", "`musterctl deploy CLUSTER`"),
            ("auth can-i", "`musterctl version`"),
            ("cluster-info", "`musterctl version`"),
            ("info", "`musterctl version`"),
            ("inspect worker-1", "`musterctl describe machine MACHINE`"),
            ("debug worker-1", "`musterctl logs MACHINE`"),
            ("ps", "`musterctl get machines`"),
            ("delete clusters", "an example: `musterctl delete cluster egde-7`"),
            ("apply -f edge-7.yaml --dry-run=client", "`--dry-run` takes no value"),
            ("get machines --watch=true", "`--watch` takes no value"),
            (
                "demo --inputs-for http://h/",
                "an example: `musterctl demo --inputs-for http://10.0.0.1:8000/ --dir /tmp/fleet`",
            ),
            ("locks list", "`musterctl get locks`"),
            ("rm worker-1", "`musterctl remove MACHINE`"),
            ("validate edge-7.yaml", "`musterctl apply -f FILE --dry-run`"),
            ("deploy -f edge-7.yaml", "`musterctl apply -f FILE`"),
            ("demo stop", "`musterctl demo --stop --dir DIR`"),
            ("watch machine worker-1", "`musterctl get machines -w`"),
            ("token create --cluster edge-7 --type worker --uses two", "a whole number"),
            ("remove worker-1 --force", "`--policy forced`"),
            ("remove cluster edge-7", "`musterctl delete cluster edge-7`"),
            ("remove machine worker-1", "`musterctl remove worker-1`"),
            ("update edge-7 --machine worker-1", "`musterctl reboot CLUSTER --machine MACHINE`"),
            ("maintenance exit worker-1", "`musterctl maintenance leave MACHINE`"),
            ("maintenance worker-1", "an example: `musterctl maintenance enter worker-3`"),
            (
                "secret create db",
                "`musterctl secret create registry-password --clusters edge-7,edge-8 --from-file password.txt`",
            ),
            ("token create", "an example: `musterctl token create --cluster edge-7 --type worker --out worker.token`"),
            ("locks release nova", "an example: `musterctl locks release nova --cluster edge-7`"),
            ("logs", "an example: `musterctl logs worker-3`"),
            ("revoke --machine worker-1", "named without an option"),
            ("restore store", "`muster-coordinator --help`"),
            ("rename worker-1 worker-2", "a machine keeps its name"),
            ("release nova", "`musterctl locks release"),
            ("health", "`musterctl version`"),
            ("token create --cluster edge-7 --type worker --count 3", "`--uses N`"),
            ("secret list db", "`musterctl get secret db`"),
            ("artifacts serve --dir . --listen 20555", "an IP address and a port"),
        ]);
    }

    #[test]
    fn what_stands_in_the_wrong_place_leads_to_the_right_one() {
        lead(&[
            ("watch --cluster edge-7", "`musterctl watch edge-7`"),
            ("pause --cluster edge-7", "`musterctl pause edge-7`"),
            ("update --cluster=edge-7 --yes", "`musterctl update edge-7`"),
            ("describe cluster --cluster edge-7", "`musterctl describe cluster edge-7`"),
            ("logs worker-1 --cluster edge-7", "leave it out"),
            ("--cluster edge-7 get machines", "it comes after the command: `musterctl get … --cluster`"),
            ("--yes update edge-7", "it comes after the command: `musterctl update … --yes`"),
            ("-o json get machines", "it comes after the command: `musterctl get … -o`"),
            ("--dry-run apply -f edge-7.yaml", "it comes after the command: `musterctl apply … --dry-run`"),
            ("get plan", "`musterctl plan CLUSTER`"),
            ("update edge-7 --dry-run", "only `apply` has it"),
            ("token show 4f2a", "`musterctl get tokens`"),
            ("maintenance list", "`musterctl get machines`"),
            ("secret set db", "`musterctl secret create NAME --from-file FILE`"),
            ("remove worker-1 --dry-run", "it asks before it does anything"),
            ("update edge-7 --to 2.0", "the release stands in the manifest"),
            ("secret create db --from-literal x", "`--from-file FILE`"),
            ("describe machine worker-1 -o json", "`musterctl get KIND NAME -o json`"),
            ("delete cluster/edge-7", "tip: `musterctl delete cluster edge-7`"),
            ("delete machine/worker-1", "tip: `musterctl remove worker-1`"),
            ("wait edge-7", "`musterctl watch CLUSTER`"),
            ("rollback edge-7", "`musterctl abort CLUSTER`"),
            ("revoke token 4f2a", "`musterctl token revoke 4f2a`"),
            ("revoke worker-1 worker-2", "one at a time"),
        ]);
    }

    #[test]
    fn what_is_only_misspelt_gets_the_nearest_word() {
        for (line, near) in
            [("get machnies", "machines"), ("wacth edge-7", "watch"), ("get machines --clustr x", "--cluster")]
        {
            let said = said(line);
            assert!(said.contains(near) && !said.contains("-- -"), "{line}: {said}");
        }
        for line in ["plan edge-7 -x", "update edge-7 --yes --yes", "expose edge-7", "manifest edge-7"] {
            assert!(!said(line).contains("tip:") && !said(line).contains("\n\n\n"), "{}", said(line));
        }
        for line in ["version --wait -1", "token create --uses -1"] {
            let said = said(line);
            assert!(said.contains("invalid value '-1' for") && said.contains("-1 is not in"), "{said}");
        }
    }

    #[test]
    fn the_words_that_tips_name_are_ours() {
        for tip in [COMMANDS, KINDS, OPTIONS].into_iter().flatten().map(|(_, tip)| tip) {
            for line in tip.split('`').filter_map(|piece| piece.strip_prefix("musterctl ")) {
                let name = line.split(' ').next().unwrap_or_default();
                assert!(Cli::command().find_subcommand(name).is_some(), "{line}");
            }
        }
        for (words, _) in COMMANDS {
            let clash = words.iter().find(|word| Cli::command().find_subcommand(word).is_some());
            assert_eq!(clash, None);
        }
    }
}
