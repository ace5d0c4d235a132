//! Reboots the machine through logind, or finds that no reboot is required. It never reports a successful reboot: the
//! machine goes down during it, and the agent's core decides by the boot id.

use std::{path::Path, thread};

use muster_proto::model::ItemState;
use zbus_systemd::login1::ManagerProxy;

use super::{BuiltinWork, Outcome, Refused};
use crate::{
    attempt::Request,
    exec_item::{Report, with_sources},
    facts,
    host::INVOCATION,
    systemd::{SystemdError, answer, bus},
};

/// Error in requesting the shutdown.
#[derive(Debug, thiserror::Error)]
enum RebootError {
    #[error("cannot start the runtime")]
    Runtime(#[source] std::io::Error),
    #[error(transparent)]
    Systemd(#[from] SystemdError),
}

/// Checks the params and returns the work.
pub(super) fn prepare(request: &Request) -> Result<BuiltinWork, Refused> {
    let only_if_required = match request.params.get("when").map(String::as_str) {
        None | Some("always") => false,
        Some("required") => true,
        Some(_) => return Err(Refused::param("when", "expected one of: always, required")),
    };
    // Protects a laptop from a reboot by a demo.
    if std::env::var_os(INVOCATION).is_none() {
        return Err(Refused::NotAService);
    }
    let wall = format!(
        "Muster reboots this machine: item {}, generation {}, cluster {}",
        request.key.item, request.key.generation, request.cluster
    );
    Ok(Box::new(move |report| work(&wall, only_if_required, report)))
}

fn work(wall: &str, only_if_required: bool, report: &Report) -> Outcome {
    let reason = match facts::reboot_required(Path::new("/")) {
        (true, reason) => format!("the host wants it: {reason}"),
        // Only a marker requires a reboot.
        (false, _) if only_if_required => {
            let message = "no reboot is required".to_owned();
            report.line(&message);
            return Outcome { state: ItemState::Succeeded, message, result_json: None };
        }
        (false, _) => "the item wants it".to_owned(),
    };
    report.line(&format!("going down ({reason})"));
    match ask(wall) {
        // The machine goes down, or the item's time limit ends this.
        Ok(()) => loop {
            thread::park();
        },
        Err(error) => Outcome::failed(with_sources(&error), true),
    }
}

fn ask(wall: &str) -> Result<(), RebootError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(RebootError::Runtime)?;
    runtime.block_on(async {
        let bus = bus().await?;
        let logind = answer("answer for logind", ManagerProxy::new(&bus)).await?;
        answer("take a message to who is logged in", logind.set_wall_message(wall.to_owned(), true)).await?;
        match answer("reboot the machine", logind.reboot(false)).await {
            Err(error) if !may_be_under_way(&error) => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    })
}

/// May the request have arrived? The bus goes down with the machine, and its answer is lost. If that counted as a
/// refusal, a retry would reboot the machine twice.
fn may_be_under_way(error: &SystemdError) -> bool {
    match error {
        SystemdError::Refused { source, .. } => matches!(**source, zbus::Error::InputOutput(_)),
        SystemdError::Closed { .. } | SystemdError::Silent { .. } => true,
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io};

    use muster_proto::model::{ClusterName, Generation, ItemHash, ItemName, MachineId, MachineName, Phase};

    use super::*;
    use crate::attempt::AttemptKey;

    #[test]
    fn a_bus_that_breaks_off_is_no_refusal() {
        let error = |source| SystemdError::Refused { what: "reboot".to_owned(), source: Box::new(source) };
        assert!(may_be_under_way(&error(io::Error::other("failed to read from socket").into())));
        assert!(may_be_under_way(&SystemdError::Silent { what: "reboot".to_owned() }));
        assert!(!may_be_under_way(&error(zbus::Error::Unsupported)));
    }

    #[test]
    fn nothing_but_a_service_of_systemd_reboots_its_machine() {
        let request = |when: &str| Request {
            key: AttemptKey { item: ItemName::new("a").expect("a label"), generation: Generation(1), attempt: 1 },
            hash: ItemHash([0; 32]),
            machine: MachineName::new("w").expect("a label"),
            machine_id: MachineId(uuid::Uuid::nil()),
            cluster: ClusterName::new("c").expect("a label"),
            runner: "reboot".to_owned(),
            version: "1".to_owned(),
            phase: Phase::Deploy,
            params: BTreeMap::from([("when".to_owned(), when.to_owned())]),
            secret_params: BTreeMap::new(),
            timeout_ms: 1_000,
        };
        assert!(matches!(prepare(&request("now")).err(), Some(Refused::Param { .. })));
        if std::env::var_os(INVOCATION).is_none() {
            assert!(matches!(prepare(&request("always")).err(), Some(Refused::NotAService)));
        }
    }
}
