//! `musterctl drain-force`: an operator's word that one pod is deleted from the Kubernetes node of a machine.

use muster_proto::{printable::printable, resource::Kind, wire::DrainForceRequest};

use crate::{commands::actions::show, config::Context, errors::Failure, name, prompt::ask};

/// Delete a pod that cannot be evicted from the Kubernetes node of a machine
///
/// The last resort. Muster evicts pods within their disruption budgets and never deletes one by itself. A pod that can
/// never be evicted keeps its machine (KubernetesUndrainable). With this word Muster deletes this one pod, with its
/// grace period and whatever its budget says, once the machine's node is cordoned for its turn. A machine that was
/// deferred because of it has its turn again. The word is for the pod that runs now: another pod of that name is not
/// deleted. It ends with the machine's turn. Recorded in the audit.
///
/// The account needs a right of its own for it: `musterctl kubernetes rbac --with-delete`.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  musterctl describe machine worker-3                  what keeps it
  musterctl drain-force worker-3 --pod shop/db-0")]
pub(crate) struct Args {
    /// Name of the machine
    #[arg(value_parser = name::machine)]
    machine: String,
    /// The pod
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = pod)]
    pod: (String, String),
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Parse `shop/db-0`, or `shop/pod/db-0`.
fn pod(text: &str) -> Result<(String, String), String> {
    match text.split('/').collect::<Vec<_>>().as_slice() {
        [namespace, name] | [namespace, "pod" | "pods", name] if !namespace.is_empty() && !name.is_empty() => {
            Ok(((*namespace).to_owned(), (*name).to_owned()))
        }
        _ => Err("expected NAMESPACE/NAME, as `musterctl describe machine` names the pod".to_owned()),
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let Args { machine, pod: (namespace, pod), yes } = args;
    let question = format!(
        "Delete pod {namespace}/{pod} once the Kubernetes node of {machine} is cordoned? Its disruption budget does \
         not protect it then, and data of its emptyDir volumes is lost."
    );
    if !yes && !ask(&printable(&question))? {
        return Ok(());
    }
    let request = DrainForceRequest { machine: machine.clone(), namespace, pod };
    show(&coordinator.call_on(Kind::Machines, &machine, coordinator.fleet().drain_force(request)).await?)
}

#[cfg(test)]
mod tests {
    use super::pod;

    #[test]
    fn pod_needs_namespace_and_name() {
        let db = Ok(("shop".to_owned(), "db-0".to_owned()));
        assert_eq!((pod("shop/db-0"), pod("shop/pod/db-0")), (db.clone(), db));
        for text in ["db-0", "shop/", "/db-0", "a/b/c", ""] {
            assert!(pod(text).is_err(), "{text}");
        }
    }
}
