//! Words that people bring from elsewhere to `muster-agent`, and what leads on from them.

use muster_proto::daemon::advice::Tips;

pub(crate) const TIPS: &Tips = &[
    (&["start", "up", "daemon"], "`systemctl start muster-agent`; in the foreground `muster-agent run`"),
    (&["stop", "restart", "down"], "`systemctl stop muster-agent`, or `restart`"),
    (
        &["leave", "remove", "unenroll", "unenrol", "reset"],
        "`musterctl remove MACHINE` takes a machine out of the fleet; `muster-agent ledger reset --keep-identity` \
         begins its record anew",
    ),
    (&["logs", "log"], "`journalctl -u muster-agent`; what an item said: `musterctl logs MACHINE ITEM`"),
    (
        &["get", "describe", "apply", "deploy", "plan", "update", "retry", "watch", "token", "maintenance", "replace"],
        "that is done with `musterctl`, where an operator has credentials",
    ),
    (&["exec", "ssh"], "Muster opens no shell; what an item printed: `musterctl logs MACHINE ITEM`"),
    (&["show", "items", "ps"], "`muster-agent status` shows what is recorded"),
    (&["--token"], "`--token-file FILE`, or `-` and the token on stdin: whoever is on a machine can read arguments"),
    (
        &["--token-file", "--name"],
        "enrol first: `muster-agent enroll --coordinator HOST:PORT --token-file FILE`; then `muster-agent run`",
    ),
    (
        &["without --token-file"],
        "`musterctl token create --cluster C --type worker --out FILE` makes a token; bring it here",
    ),
    (
        &["--coordinator"],
        "the address is in identity.json of the state directory since it enrolled, and may be changed there while the \
         agent is stopped",
    ),
];
