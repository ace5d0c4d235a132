use std::fmt;

use crate::{
    convert::{WireError, counted, line, text},
    model::{
        AdminConf, ControlPlaneAnswer, ControlPlaneCall, ControlPlaneOp, ControlPlaneReply, Epoch, EtcdClient,
        EtcdHealth, EtcdProbe, KUBECONFIG_BYTES_MAX, PROBE_TEXT_BYTES_MAX,
    },
    wire::{self, control_plane_answer::Result as WireResult, control_plane_call::Op},
};

/// The generated implementation would print the content.
impl fmt::Debug for wire::AdminConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminConf").finish_non_exhaustive()
    }
}

/// A URL or a path.
fn name(field: &'static str, value: String) -> Result<String, WireError> {
    line(field, text(field, value, PROBE_TEXT_BYTES_MAX)?)
}

fn file(field: &'static str, value: String) -> Result<Option<String>, WireError> {
    Ok(Some(name(field, value)?).filter(|path| !path.is_empty()))
}

impl From<&ControlPlaneCall> for wire::ControlPlaneCall {
    fn from(call: &ControlPlaneCall) -> Self {
        let op = match &call.op {
            ControlPlaneOp::EtcdHealth(probe) => Op::EtcdHealth(probe.into()),
            ControlPlaneOp::AdminConf { path } => Op::AdminConf(wire::AdminConfOp { path: path.clone() }),
        };
        Self { id: call.id, epoch: call.epoch.0, op: Some(op) }
    }
}

impl TryFrom<wire::ControlPlaneCall> for ControlPlaneCall {
    type Error = WireError;

    fn try_from(wire: wire::ControlPlaneCall) -> Result<Self, WireError> {
        let op = match wire.op.ok_or(WireError::new("control_plane_call.op", "missing or unknown"))? {
            Op::EtcdHealth(probe) => ControlPlaneOp::EtcdHealth(probe.try_into()?),
            Op::AdminConf(op) => {
                ControlPlaneOp::AdminConf { path: name("control_plane_call.admin_conf.path", op.path)? }
            }
        };
        Ok(Self { id: wire.id, epoch: Epoch(counted("control_plane_call.epoch", wire.epoch)?), op })
    }
}

impl From<&EtcdProbe> for wire::EtcdHealthOp {
    fn from(probe: &EtcdProbe) -> Self {
        let client = probe.client.clone();
        let (certificate_file, key_file) =
            client.map(|client| (client.certificate_file, client.key_file)).unwrap_or_default();
        let ca_file = probe.ca_file.clone().unwrap_or_default();
        Self { url: probe.health.clone(), ca_file, certificate_file, key_file }
    }
}

impl TryFrom<wire::EtcdHealthOp> for EtcdProbe {
    type Error = WireError;

    fn try_from(wire: wire::EtcdHealthOp) -> Result<Self, WireError> {
        let certificate_file = file("control_plane_call.etcd_health.certificate_file", wire.certificate_file)?;
        let key_file = file("control_plane_call.etcd_health.key_file", wire.key_file)?;
        let client = match (certificate_file, key_file) {
            (Some(certificate_file), Some(key_file)) => Some(EtcdClient { certificate_file, key_file }),
            (None, None) => None,
            _ => return Err(WireError::new("control_plane_call.etcd_health", "a certificate without its key")),
        };
        Ok(Self {
            health: name("control_plane_call.etcd_health.url", wire.url)?,
            ca_file: file("control_plane_call.etcd_health.ca_file", wire.ca_file)?,
            client,
        })
    }
}

impl From<&ControlPlaneAnswer> for wire::ControlPlaneAnswer {
    fn from(answer: &ControlPlaneAnswer) -> Self {
        let result = match &answer.result {
            Err(failure) => WireResult::Failure(failure.clone()),
            Ok(ControlPlaneReply::EtcdHealth(EtcdHealth::Healthy)) => {
                WireResult::EtcdHealth(wire::EtcdHealth { healthy: true, reason: String::new() })
            }
            Ok(ControlPlaneReply::EtcdHealth(EtcdHealth::Unhealthy(reason))) => {
                WireResult::EtcdHealth(wire::EtcdHealth { healthy: false, reason: reason.clone() })
            }
            Ok(ControlPlaneReply::AdminConf(AdminConf(content))) => {
                WireResult::AdminConf(wire::AdminConf { content: content.clone() })
            }
        };
        Self { id: answer.id, result: Some(result) }
    }
}

impl TryFrom<wire::ControlPlaneAnswer> for ControlPlaneAnswer {
    type Error = WireError;

    fn try_from(wire: wire::ControlPlaneAnswer) -> Result<Self, WireError> {
        let result = match wire.result.ok_or(WireError::new("control_plane_answer.result", "missing or unknown"))? {
            WireResult::Failure(failure) => Err(line("control_plane_answer.failure", failure)?),
            WireResult::EtcdHealth(wire::EtcdHealth { healthy: true, .. }) => {
                Ok(ControlPlaneReply::EtcdHealth(EtcdHealth::Healthy))
            }
            WireResult::EtcdHealth(wire::EtcdHealth { healthy: false, reason }) => {
                let reason = line("control_plane_answer.etcd_health.reason", reason)?;
                Ok(ControlPlaneReply::EtcdHealth(EtcdHealth::Unhealthy(reason)))
            }
            WireResult::AdminConf(wire::AdminConf { content }) if content.len() > KUBECONFIG_BYTES_MAX => {
                return Err(WireError::new("control_plane_answer.admin_conf.content", "too long"));
            }
            WireResult::AdminConf(wire::AdminConf { content }) => Ok(ControlPlaneReply::AdminConf(AdminConf(content))),
        };
        Ok(Self { id: wire.id, result })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> EtcdProbe {
        let client = EtcdClient { certificate_file: "/c.crt".to_owned(), key_file: "/c.key".to_owned() };
        let health = "https://127.0.0.1:2379/health".to_owned();
        EtcdProbe { health, ca_file: Some("/ca.crt".to_owned()), client: Some(client) }
    }

    #[test]
    fn control_plane_calls_come_back_as_they_went() {
        let plain = EtcdProbe { health: "http://127.0.0.1:2381/health".to_owned(), ca_file: None, client: None };
        let path = "/etc/kubernetes/admin.conf".to_owned();
        let of_etcd = [probe(), plain].map(ControlPlaneOp::EtcdHealth);
        for op in of_etcd.into_iter().chain([ControlPlaneOp::AdminConf { path }]) {
            let call = ControlPlaneCall { id: 7, epoch: Epoch(3), op };
            assert_eq!(ControlPlaneCall::try_from(wire::ControlPlaneCall::from(&call)), Ok(call));
        }
        for result in [
            Err("nobody listens".to_owned()),
            Ok(ControlPlaneReply::EtcdHealth(EtcdHealth::Healthy)),
            Ok(ControlPlaneReply::EtcdHealth(EtcdHealth::Unhealthy("RAFT NO LEADER".to_owned()))),
            Ok(ControlPlaneReply::AdminConf(AdminConf(b"token: x".to_vec()))),
        ] {
            let answer = ControlPlaneAnswer { id: 9, result };
            assert_eq!(ControlPlaneAnswer::try_from(wire::ControlPlaneAnswer::from(&answer)), Ok(answer));
        }
    }

    #[test]
    fn malformed_control_plane_messages_are_refused() {
        let good = wire::EtcdHealthOp::from(&probe());
        let bad = [
            wire::EtcdHealthOp { url: "x".repeat(PROBE_TEXT_BYTES_MAX + 1), ..good.clone() },
            wire::EtcdHealthOp { ca_file: "/a\n".to_owned(), ..good.clone() },
            wire::EtcdHealthOp { key_file: String::new(), ..good },
        ];
        for probe in bad {
            assert!(EtcdProbe::try_from(probe.clone()).is_err(), "{probe:?}");
        }
        let op = Some(Op::EtcdHealth(wire::EtcdHealthOp::from(&probe())));
        assert!(ControlPlaneCall::try_from(wire::ControlPlaneCall { id: 1, epoch: 0, op }).is_err());
        assert!(ControlPlaneCall::try_from(wire::ControlPlaneCall { id: 1, epoch: 1, op: None }).is_err());
        assert!(ControlPlaneAnswer::try_from(wire::ControlPlaneAnswer { id: 1, result: None }).is_err());
        let long = wire::EtcdHealth { healthy: false, reason: "x".repeat(5_000) };
        let answer = wire::ControlPlaneAnswer { id: 1, result: Some(WireResult::EtcdHealth(long)) };
        assert!(ControlPlaneAnswer::try_from(answer).is_err());
        let content = vec![b'x'; KUBECONFIG_BYTES_MAX + 1];
        let result = Some(WireResult::AdminConf(wire::AdminConf { content }));
        assert!(ControlPlaneAnswer::try_from(wire::ControlPlaneAnswer { id: 1, result }).is_err());
    }

    #[test]
    fn kubeconfig_is_not_shown() {
        let conf = AdminConf(b"canary".to_vec());
        let answer = ControlPlaneAnswer { id: 1, result: Ok(ControlPlaneReply::AdminConf(conf)) };
        let shown = format!("{answer:?} {:#?}", wire::ControlPlaneAnswer::from(&answer));
        assert!(shown.contains("6 bytes") && !shown.contains("canary") && !shown.contains("99"), "{shown}");
    }
}
