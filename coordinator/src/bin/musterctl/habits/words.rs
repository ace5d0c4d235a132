//! The words, and what leads on from each.

/// Subcommands; of two words, where another word beside it says what is meant.
pub(super) const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["cordon", "drain"],
        "`musterctl maintenance enter MACHINE` takes a machine out of service, its workloads moved away first",
    ),
    (&["uncordon"], "`musterctl maintenance leave MACHINE` brings a machine back into service"),
    (&["wait"], "`musterctl watch CLUSTER` ends when the rollout does, with status 4 if a person must decide"),
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
    (&["stop", "cancel", "kill"], "`musterctl pause CLUSTER` and `musterctl abort CLUSTER` steer what is under way"),
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
        &["machines", "machine", "nodes", "node", "clusters", "cluster", "rollouts", "tokens"],
        "lists come from `get`, as in `musterctl get machines`",
    ),
    (
        &["rm", "destroy", "decommission"],
        "`musterctl remove MACHINE`, `musterctl delete cluster NAME`, `musterctl secret delete NAME`",
    ),
    (&["validate", "check", "lint"], "`musterctl apply -f FILE --dry-run` says what is wrong with a manifest"),
    (
        &["undo", "rollback"],
        "`musterctl abort CLUSTER` ends what is under way; what was: `musterctl apply` the manifest of then",
    ),
    (&["run"], "what runs stands in a manifest: `musterctl apply -f FILE`, then `musterctl deploy CLUSTER`"),
    (&["tail", "follow"], "`musterctl logs MACHINE` for an item's output, `musterctl watch CLUSTER` for what happens"),
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
        &["enroll", "join", "add"],
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
    (
        &["token show", "token get", "token describe"],
        "`musterctl get tokens`; a token itself is shown once, when it is made",
    ),
    (
        &["maintenance list", "maintenance ls", "maintenance status", "maintenance get", "maintenance show"],
        "`musterctl get machines` says which are in maintenance, `musterctl describe machine MACHINE` all of one",
    ),
    (
        &["secret set", "secret put", "secret add"],
        "`musterctl secret create NAME --from-file FILE`, also of a new value",
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
pub(super) const DELETE_SECRET: &[&str] = &["delete secret", "delete secrets", "secret rm", "secret remove"];

/// Kinds of documents.
pub(super) const KINDS: &[(&[&str], &str)] = &[
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
pub(super) const OPTIONS: &[(&[&str], &str)] = &[
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
    (&["remove --dry-run", "delete --dry-run"], "it asks before it does anything: leave it out"),
    (
        &["update --to", "update --release", "update --version"],
        "the release stands in the manifest: `musterctl apply -f FILE`, then `musterctl update CLUSTER`",
    ),
    (&["apply --file"], "`-f FILE`"),
    (&["token --expires", "token --expiry", "token --expire"], "`--ttl 24h`"),
    (&["token --role"], "a machine has a type: `--type worker`; an operator: `muster-coordinator credentials --help`"),
    (&["get --type", "get --state", "get --status"], "there is no filter but `--cluster`: choose with `-o json | jq`"),
    (
        &["secret --from-literal", "secret --value"],
        "a value is never on a command line: `--from-file FILE`, or `--from-file -` for a pipe",
    ),
    (&["describe -o", "describe --output"], "that is of `get`: `musterctl get KIND NAME -o json`"),
    (&["--dry-run"], "only `apply` has it; what an update would do: `musterctl plan CLUSTER`"),
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
        &["-v", "--verbose", "--debug"],
        "`musterctl describe` has everything; the coordinator's log: journalctl -u muster-coordinator",
    ),
];
