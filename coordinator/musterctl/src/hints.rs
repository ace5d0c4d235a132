//! Commands of kubectl that differ here: each is refused with a hint at the right command.

use clap::{
    Error,
    error::{ContextKind, ContextValue},
};

/// Last words of a command line, and the command to use instead.
const HINTS: &[(&[&str], &str)] = &[
    (&["cordon", "drain"], "maintenance enter MACHINE"),
    (&["uncordon"], "maintenance leave MACHINE"),
    (&["delete machine", "delete machines", "delete node", "delete nodes", "delete no"], "remove MACHINE"),
    (&["delete secret", "delete secrets"], "secret delete NAME"),
    (&["delete token", "delete tokens"], "token revoke ID"),
    (&["delete rollout", "delete rollouts"], "abort CLUSTER"),
    (&["create", "edit", "patch", "set", "scale", "run"], "apply -f FILE"),
    (&["diff"], "plan CLUSTER"),
    (&["rollout", "wait", "events"], "watch CLUSTER"),
    (&["exec", "attach", "debug"], "logs MACHINE"),
    (&["top", "status"], "describe machine MACHINE"),
    (&["label"], "annotate machine MACHINE KEY=VALUE"),
    (&["auth", "cluster-info", "config"], "version"),
    (&["explain", "api-resources"], "get --help"),
    (&["list", "ls"], "get machines"),
];

/// Add the right command to clap's error. `words` is the command line after the program.
pub(crate) fn explain(mut error: Error, words: &[String]) -> Error {
    if let Some(command) = instead(&error, words) {
        let tip = format!("`musterctl {command}`");
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn instead(error: &Error, words: &[String]) -> Option<&'static str> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let up_to_it = words.get(..=words.iter().position(|word| word == unknown)?)?;
    let line = format!(" {}", up_to_it.join(" "));
    let ends_with = |hint: &&str| line.ends_with(&format!(" {hint}"));
    HINTS.iter().find(|(known, _)| known.iter().any(ends_with)).map(|(_, command)| *command)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    fn refusal(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let parsed = Cli::command().try_get_matches_from(["musterctl"].into_iter().chain(line.split(' ')));
        explain(parsed.expect_err(line), &words).to_string()
    }

    #[test]
    fn kubectl_words_name_our_command() {
        for (line, command) in [
            ("cordon worker-1", "maintenance enter MACHINE"),
            ("-n x drain worker-1 --ignore-daemonsets", "maintenance enter MACHINE"),
            ("uncordon worker-1", "maintenance leave MACHINE"),
            ("--config c delete node worker-1", "remove MACHINE"),
            ("delete secret db", "secret delete NAME"),
            ("rollout status edge-7", "watch CLUSTER"),
            ("edit cluster edge-7", "apply -f FILE"),
        ] {
            let said = refusal(line);
            assert!(said.contains(&format!("tip: `musterctl {command}`")), "{line}: {said}");
            assert_eq!(said.matches("tip:").count(), 1, "{line}: {said}");
        }
        assert!(refusal("wacth edge-7").contains("'watch'"), "clap's own suggestion stays");
    }

    #[test]
    fn every_hint_is_a_command_of_ours() {
        for (words, command) in HINTS {
            let name = command.split(' ').next().unwrap_or_default();
            assert!(Cli::command().find_subcommand(name).is_some(), "{command}");
            let clash = words.iter().find(|word| Cli::command().find_subcommand(word).is_some());
            assert_eq!(clash, None);
        }
    }
}
