//! Forgetting a cluster: one that was applied by mistake, or whose machines have all left it. Only where no agent is
//! left that could be at work for it; what operators did to it stays in the audit.

use muster_proto::model::{ClusterName, MachineName, Now};

use super::{Refusal, Reply, operators};
use crate::{facts::Draft, plan::safety::some_names};

pub(super) fn cluster(draft: &mut Draft<'_>, actor: &str, name: &ClusterName, now: Now) -> Result<Reply, Refusal> {
    operators::known_cluster(draft, name)?;
    let live: Vec<&MachineName> =
        draft.machines_of(name).filter(|machine| machine.may_live()).map(|machine| &machine.name).collect();
    if let Some(first) = live.first() {
        let message = format!(
            "cluster {name} has machines: {}; `musterctl remove {first}` and so on (`--policy forced` for one that is \
             dead), or, once they are switched off, `musterctl revoke {first} --machine-is-off` and so on; then delete \
             it again",
            some_names(live.iter().map(|name| name.as_str()))
        );
        return Err(Refusal::State { reason: "MachinesLeft", message });
    }
    let machines: Vec<MachineName> = draft.machines_of(name).map(|machine| machine.name.clone()).collect();
    machines.iter().for_each(|machine| draft.drop_machine(machine));
    let (tokens, secrets) = draft.drop_cluster(name);
    let gone: Vec<String> = [(machines.len(), "machine"), (tokens, "join token"), (secrets, "secret")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }))
        .collect();
    let with = if gone.is_empty() { String::new() } else { format!(" with {} of its own", gone.join(", ")) };
    let line = format!("cluster {name} deleted{with}; `get audit` keeps what was done to it");
    operators::audited(draft, actor, "delete", &format!("cluster/{name}"), vec![line], now)
}
