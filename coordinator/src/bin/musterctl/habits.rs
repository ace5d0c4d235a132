//! Words of kubectl and of LCM that musterctl does not have: whoever types one is told the word that does it here,
//! instead of the one that is spelt most like it.

use clap::{
    CommandFactory as _, Error,
    builder::StyledStr,
    error::{ContextKind, ContextValue, ErrorKind},
};
use muster_proto::daemon::advice;

use crate::{cli::Cli, get};

/// Subcommands; of two words, where another word beside it says what is meant.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["cordon", "drain"],
        "`musterctl maintenance enter MACHINE` takes a machine out of service, its workloads moved away first",
    ),
    (&["uncordon"], "`musterctl maintenance leave MACHINE` brings a machine back into service"),
    (&["rollout"], "`musterctl watch CLUSTER` follows a rollout to its end; `musterctl get rollouts` lists them all"),
    (&["start"], "`musterctl deploy CLUSTER` starts a deployment, `musterctl update CLUSTER` an update"),
    (&["auth", "whoami"], "`musterctl version` shows whose credentials these are"),
    (&["info", "cluster-info"], "`musterctl version` shows the coordinator, `musterctl get clusters` its clusters"),
    (&["inspect"], "`musterctl describe machine MACHINE` has all there is of a machine"),
    (
        &["debug"],
        "`musterctl describe machine MACHINE` says what a machine waits for, `musterctl logs MACHINE` has its output",
    ),
    (&["ps"], "`musterctl get machines` says what every machine does"),
    (&["status", "top", "events"], "`musterctl get clusters`, `musterctl get machines`, `musterctl watch CLUSTER`"),
    (&["create", "edit", "patch", "set"], "what a cluster is to be stands in its manifest: `musterctl apply -f FILE`"),
    (
        &["diff"],
        "`musterctl apply -f FILE --dry-run` checks a manifest; `musterctl plan CLUSTER` says what would be done",
    ),
    (&["upgrade"], "`musterctl update CLUSTER`, and before it `musterctl plan CLUSTER`"),
    (
        &["stop", "cancel", "rollback"],
        "`musterctl pause CLUSTER` and `musterctl abort CLUSTER` steer what is under way",
    ),
    (
        &["restart"],
        "`musterctl reboot CLUSTER --machine MACHINE` reboots; `musterctl retry MACHINE` runs failed items again",
    ),
    (
        &["exec", "ssh", "attach"],
        "Muster opens no shell on machines; `musterctl logs MACHINE` shows what its items printed",
    ),
    (&["list", "ls", "show"], "`musterctl get machines`; all kinds: `musterctl get --help`"),
    (
        &["machines", "machine", "nodes", "node", "clusters", "cluster", "rollouts", "tokens", "audit"],
        "lists come from `get`, as in `musterctl get machines`",
    ),
    (&["rm", "destroy"], "`musterctl remove MACHINE`, `musterctl delete cluster NAME`, `musterctl secret delete NAME`"),
    (&["validate", "check", "lint"], "`musterctl apply -f FILE --dry-run` says what is wrong with a manifest"),
    (&["undo"], "`musterctl abort CLUSTER` ends what is under way; what was: `musterctl apply` the manifest of then"),
    (&["history"], "`musterctl get rollouts`; what operators changed: `musterctl get audit`"),
    (&["api-resources"], "`musterctl get --help` lists the kinds"),
    (
        &["ping", "health"],
        "`musterctl version` asks the coordinator; on its machine `muster-coordinator health` looks at it",
    ),
    (&["down"], "the demo's fleet: `musterctl demo --stop --dir DIR`; a machine: `musterctl remove MACHINE`"),
    (&["explain"], "docs/MANIFEST.md has every field; `musterctl apply -f FILE --dry-run` says what is wrong with one"),
    (&["scale"], "how many machines there are stands in the manifest (spec.machines): `musterctl apply -f FILE`"),
    (&["release", "unlock"], "`musterctl locks release CONTROLLER --cluster CLUSTER`"),
    (&["rename", "mv"], "a machine keeps its name: `musterctl remove MACHINE`, and it enrols anew under another"),
    (&["label"], "`musterctl annotate machine MACHINE KEY=VALUE`"),
    (
        &["enroll", "join"],
        "a machine joins by `muster-agent enroll`, run on it; its token: `musterctl token create --help`",
    ),
    (
        &["init", "backup", "recover", "restore", "credentials"],
        "that is done on the coordinator's machine: `muster-coordinator --help`",
    ),
    (
        &["login", "config"],
        "the config is `--config FILE`, $MUSTER_CONFIG or ~/.config/muster/config.toml; `musterctl version` tries it",
    ),
    (
        &["delete machine", "delete machines", "delete node", "delete nodes"],
        "`musterctl remove MACHINE` takes a machine out of its cluster for good",
    ),
    (
        &["maintenance exit", "maintenance end", "maintenance stop", "maintenance off", "maintenance out"],
        "`musterctl maintenance leave MACHINE` brings a machine back into service",
    ),
    (
        &["delete token", "delete tokens", "token delete", "token rm", "token remove"],
        "`musterctl token revoke ID` makes a token worthless",
    ),
    (&["create token"], "`musterctl token create --cluster CLUSTER --type worker`"),
    (&["create secret"], "`musterctl secret create NAME --from-file FILE`"),
    (
        DELETE_SECRET,
        "`musterctl secret delete NAME`, of a secret of one cluster `musterctl secret delete CLUSTER/NAME`",
    ),
    (
        &["secret get", "secret show", "secret ls", "secret describe"],
        "nobody is shown a secret's value; which there are: `musterctl get secrets`",
    ),
    (&["locks list", "locks ls", "locks get", "locks show"], "`musterctl get locks`"),
    (&["delete lock", "delete locks"], "`musterctl locks release CONTROLLER --cluster CLUSTER`"),
    (&["delete rollout", "delete rollouts"], "`musterctl abort CLUSTER` ends the one that is open"),
    (&["delete credential", "delete credentials"], "`musterctl revoke ROLE/NAME`"),
];

/// Where a secret's name comes next.
const DELETE_SECRET: &[&str] = &["delete secret", "delete secrets", "secret rm", "secret remove"];

/// Kinds of documents.
const KINDS: &[(&[&str], &str)] = &[
    (
        &["node", "nodes", "no", "host", "hosts", "server", "servers", "baremetalhosts", "bmh"],
        "what joins a fleet is a machine: `musterctl get machines`",
    ),
    (
        &["namespace", "namespaces", "ns", "project", "projects"],
        "machines belong to clusters: `musterctl get clusters`",
    ),
    (
        &["update", "updates", "upgrade", "upgrades", "deployment", "deployments", "deploy", "reboots"],
        "deployments, updates and reboots are rollouts: `musterctl get rollouts`",
    ),
    (
        &["event", "events", "ev", "history"],
        "`musterctl get audit` has what operators changed, `musterctl watch CLUSTER` what happens",
    ),
    (
        &["item", "items", "stateitem", "stateitems", "stages", "pods", "pod", "po"],
        "`musterctl describe machine MACHINE` has its items and stages",
    ),
    (&["log", "logs"], "`musterctl logs MACHINE [ITEM]`"),
    (&["plan", "plans"], "`musterctl plan CLUSTER`"),
    (&["agent", "agents"], "every machine has one: `musterctl get machines -o wide`"),
    (
        &["manifest", "manifests", "config", "spec"],
        "a cluster's spec is in its document: `musterctl get cluster NAME -o yaml`",
    ),
    (
        &["user", "users", "operators", "certificates"],
        "people and programs have credentials: `musterctl get credentials`",
    ),
    (&["controllers", "workloads"], "application controllers are known by their locks: `musterctl get locks`"),
    (&["all"], "one kind at a time: `musterctl get clusters`, `musterctl get machines`, `musterctl get rollouts`"),
];

/// Options; of two words, where the subcommand says what is meant.
const OPTIONS: &[(&[&str], &str)] = &[
    (&["remove --force"], "`--policy forced`, for a machine that is dead: it is not asked, and is revoked"),
    (
        &["apply --force", "apply --force-conflicts", "apply --overwrite", "apply --prune", "apply --server-side"],
        "leave it out: the file says all of what its clusters are to be; `--dry-run` says what would change",
    ),
    (
        &["update --machine", "update --machines"],
        "an update is of a whole cluster, in the order of its update groups; a reboot can be of one machine: \
         `musterctl reboot CLUSTER --machine MACHINE`",
    ),
    (&["deploy -f", "update -f", "deploy --filename"], "a manifest is applied first: `musterctl apply -f FILE`"),
    (&["--dry-run"], "`musterctl plan CLUSTER` shows what an update would do, and changes nothing"),
    (&["--machine", "--machines"], "a machine is named without an option, as in `musterctl describe machine worker-3`"),
    (&["--count", "--max-uses"], "`--uses N` is how many machines may join with a token"),
    (&["--cluster"], "the cluster is known here: leave it out"),
    (&["-k", "--kustomize", "-R", "--recursive"], "manifests are files: `-f FILE`, once for each"),
    (&["--yes"], "it asks nothing: leave it out"),
    (
        &["-n", "--namespace", "-A", "--all-namespaces"],
        "names are of the whole fleet: leave it out; of one cluster only: `--cluster NAME`, where --help has it",
    ),
    (&["-l", "--selector", "--field-selector"], "there is no selector: choose with `-o json | jq`"),
    (&["--sort-by"], "tables are sorted by name; another order: `-o wide | sort`, `-o json | jq`"),
    (&["--no-headers"], "names alone: `-o name`"),
    (&["token -c", "token -t"], "these are written out: `--cluster NAME`, and of a new token `--type worker`"),
    (&["logs -c", "--container"], "the item is the second word: `musterctl logs MACHINE ITEM`"),
    (&["-c"], "a cluster is written out: `--cluster NAME`, where --help has it"),
    (&["--tail"], "the last lines: `musterctl logs MACHINE ITEM | tail -n 20`"),
    (
        &["-p", "--previous"],
        "the newest attempts are in one output; `musterctl describe machine MACHINE` has how each ended",
    ),
    (&["get --since"], "every line of the audit has its time: `musterctl get audit | grep 2026-11-25`"),
    (
        &["--since", "--timestamps"],
        "output is kept as the item wrote it; when it ran: `musterctl describe machine MACHINE`",
    ),
    (
        &["--context", "--kubeconfig", "--server", "-s", "--token"],
        "where the coordinator is and who you are stands in a file: `--config FILE` or $MUSTER_CONFIG",
    ),
    (&["--force", "--grace-period", "--ignore-daemonsets", "--now"], "--help has what this command can leave out"),
    (&["-y", "--assume-yes"], "`--yes`, where there is a question"),
    (
        &["-v", "--verbose"],
        "`musterctl describe` has everything; the coordinator's log: journalctl -u muster-coordinator",
    ),
];

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
fn misplaced(error: &Error, command: &str, arg: &str) -> Option<String> {
    if let Some(tip) = advice::of_value(error) {
        return Some(tip.to_owned());
    }
    if command == "demo" && arg == "stop" {
        return Some("`musterctl demo --stop --dir DIR`".to_owned());
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
    if let Some(tip) = misplaced(error, command, arg) {
        return Some(tip);
    }
    if command == "apply" && !arg.starts_with('-') {
        return Some(format!("files are named with -f: `musterctl apply -f {arg}`"));
    }
    if command == "secret" && !arg.starts_with('-') && words.iter().any(|word| word == "list") {
        return Some(format!("`musterctl get secret {arg}`"));
    }
    if command == "secret" && !arg.starts_with('-') {
        return Some(
            "a value is never on a command line: `--from-file FILE`, or `--from-file -` for a pipe".to_owned(),
        );
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
        return Some(format!(
            "`musterctl remove {word}` for a machine, `musterctl delete cluster {word}` for a cluster"
        ));
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
            ("secret create db", "an example: `musterctl secret create registry-password --from-file password.txt`"),
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
