//! Words that people bring from elsewhere to `muster-coordinator`, and what leads on from them.

use muster_proto::daemon::advice::Tips;

pub(crate) const TIPS: &Tips = &[
    (
        &["start", "serve", "server", "up", "daemon"],
        "`systemctl start muster-coordinator`; in the foreground `muster-coordinator run`",
    ),
    (&["stop", "restart", "down"], "`systemctl stop muster-coordinator`, or `restart`"),
    (&["status", "ping", "check"], "`muster-coordinator health`, `systemctl status muster-coordinator`"),
    (&["logs", "log"], "`journalctl -u muster-coordinator`"),
    (&["restore"], "stop the coordinator, put the copy in the place of its store, then `muster-coordinator recover`"),
    (
        &[
            "token",
            "apply",
            "get",
            "describe",
            "deploy",
            "plan",
            "update",
            "watch",
            "retry",
            "revoke",
            "replace",
            "remove",
            "secret",
            "delete",
            "maintenance",
            "manifest",
        ],
        "that is done with `musterctl`",
    ),
    (&["--key-file"], "leave it out: only `init`, `run` and `credentials` need the key"),
    (&["--state-dir"], "leave it out: this looks at no record"),
    (
        &[
            "init --port",
            "init -p",
            "init --host",
            "init --listen",
            "credentials --port",
            "credentials -p",
            "credentials --host",
            "credentials --listen",
        ],
        "`--address HOST:PORT` is how people and machines reach the coordinator",
    ),
    (
        &["health --port", "health --listen", "health --address", "backup --port", "backup --listen"],
        "leave it out: where the coordinator listens stands in its `--state-dir`",
    ),
    (&["--port", "-p", "--bind", "--host"], "`--listen ADDRESS:PORT`"),
];
