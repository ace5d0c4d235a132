//! How a machine gets and keeps its identity. We choose the names in a certificate; from the machine we use only the
//! public key, after a proof of possession.

use std::{net::IpAddr, sync::Arc, time::Duration};

use aws_lc_rs::digest;
use muster_proto::{
    RENEW_PURPOSE,
    convert::as_line,
    model::{ItemHash, MachineId, MachineName, MachineSpec},
    wire::{Credentials, EnrollRequest, RenewExpiredRequest, RenewRequest, enrollment_server::Enrollment as Service},
};
use rcgen::{PublicKeyData, SubjectPublicKeyInfo};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::{
    authenticator::{Authenticator, TAKEN_BACK, why},
    authz::NOT_ACCEPTED,
    caller_of,
    failed_attempts::FailedAttempts,
    status::{TOKEN_REFUSED, revoked},
};
use crate::{
    core::{Enroll, Input, Refusal, Reply},
    engine::{EngineError, EngineHandle},
    pki::{Ca, Certificate, Peer, RequestError, Role, Token, Validity, public_key, signed_by},
};

/// The service.
pub(super) struct Enrollment {
    pub(super) engine: EngineHandle,
    pub(super) ca: Arc<Ca>,
    pub(super) authenticator: Arc<Authenticator>,
    /// Lifetime of an agent's certificate.
    pub(super) lifetime: Duration,
    pub(super) failed_attempts: FailedAttempts,
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

#[tonic::async_trait]
impl Service for Enrollment {
    async fn enroll(&self, request: Request<EnrollRequest>) -> Result<Response<Credentials>, Status> {
        let address = caller_of(&request)?.address.ip();
        let request = request.into_inner();
        let token = match self.good_token(&request.token) {
            Ok(token) => token,
            Err(detail) => return Err(self.wrong(address, detail).await),
        };
        let name =
            MachineName::new(request.name).map_err(|error| Status::invalid_argument(format!("name: {error}")))?;
        // Checked first, so that an invalid request leaves the token unused.
        let key = public_key(&request.csr_der)?;
        let enroll = Enroll {
            token_id: token.id.clone(),
            secret_sha256: ItemHash(*token.secret_sha256()),
            key_sha256: digest_of(&key),
            name: name.clone(),
            new_id: MachineId(Uuid::new_v4()),
            agent_version: as_line(&request.agent_version),
        };
        match self.engine.submit(Input::Enroll(enroll)).await {
            Ok(Reply::Enrolled { id, .. }) => {
                tracing::info!(machine = %name, %id, token = token.id, %address, "enrolled");
                self.credentials(id, &request.csr_der)
            }
            Ok(Reply::Ok | Reply::Done(_) | Reply::Token { .. } | Reply::Inputs { .. }) => {
                Err(Status::internal("no identity was given"))
            }
            Err(EngineError::Refused(Refusal::Token { detail })) => Err(self.wrong(address, &detail).await),
            Err(error) => Err(error.into()),
        }
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<Credentials>, Status> {
        let caller = caller_of(&request)?;
        let Some(Role::Agent(id)) = caller.peer().map(|peer| peer.role.clone()) else {
            return Err(Status::permission_denied("only an agent renews here"));
        };
        self.credentials(id, &request.get_ref().csr_der)
    }

    async fn renew_expired(&self, request: Request<RenewExpiredRequest>) -> Result<Response<Credentials>, Status> {
        let address = caller_of(&request)?.address;
        let request = request.into_inner();
        let id = match self.expired(&request) {
            Ok(id) => id,
            Err(Turned::Revoked(id)) => {
                self.authenticator.note(id, address, TAKEN_BACK);
                return Err(revoked());
            }
            Err(Turned::Away(reason)) => {
                let detail = format!("to renew an expired certificate: {reason}");
                self.failed_attempts.was_wrong(address.ip(), self.engine.now().mono_ms, &detail).await;
                return Err(Status::unauthenticated(NOT_ACCEPTED));
            }
        };
        tracing::info!(machine = %id, %address, "renews an expired certificate");
        self.credentials(id, &request.csr_der)
    }
}

/// Why the renewal of an expired certificate is refused.
enum Turned {
    /// The reason, for our log only.
    Away(String),
    /// The machine's identity was revoked; the machine has proved that it was its own.
    Revoked(MachineId),
}

/// SHA-256 of a public key.
fn digest_of(key: &SubjectPublicKeyInfo) -> ItemHash {
    let mut sum = [0; 32];
    sum.copy_from_slice(digest::digest(&digest::SHA256, key.der_bytes()).as_ref());
    ItemHash(sum)
}

impl Enrollment {
    /// Parse the token and check its secret. The core decides whether it is valid for this machine.
    fn good_token(&self, text: &str) -> Result<Token, &'static str> {
        let token = Token::parse(text).ok_or("not a token")?;
        let known = self.engine.facts().tokens.get(&token.id).map(|row| row.secret_sha256.0);
        // An unknown id takes as long as a known one.
        let right = token.opens(&known.unwrap_or_default()) && known.is_some();
        if right { Ok(token) } else { Err("unknown id or wrong secret") }
    }

    async fn wrong(&self, address: IpAddr, detail: &str) -> Status {
        self.failed_attempts.was_wrong(address, self.engine.now().mono_ms, &format!("a join token: {detail}")).await;
        Status::unauthenticated(TOKEN_REFUSED)
    }

    /// Owner of an expired certificate of ours, if the request is signed with its key.
    fn expired(&self, request: &RenewExpiredRequest) -> Result<MachineId, Turned> {
        let der = CertificateDer::from(request.certificate_der.as_slice());
        let certificate = self.authenticator.judge_expired(&der).map_err(|refusal| Turned::Away(why(&refusal)))?;
        let away = |reason: String| Err(Turned::Away(reason));
        let Role::Agent(id) = certificate.peer.role else { return away("not an agent's certificate".to_owned()) };
        let message = [RENEW_PURPOSE, &request.csr_der].concat();
        if !signed_by(&certificate.public_key, &message, &request.signature) {
            return away(format!("agent/{id}: not signed with the certificate's key"));
        }
        if self.authenticator.revoked(&certificate).is_some() {
            return Err(Turned::Revoked(id));
        }
        if self.engine.facts().by_id(id).is_none() {
            return away(format!("agent/{id}: no machine has this identity"));
        }
        Ok(id)
    }

    fn credentials(&self, id: MachineId, csr_der: &[u8]) -> Result<Response<Credentials>, Status> {
        let key = public_key(csr_der)?;
        let Some(MachineSpec { cluster_name, machine_type, .. }) =
            self.engine.facts().by_id(id).map(|row| row.spec.clone())
        else {
            let message = "UnknownMachine: no machine has this identity; `musterctl get machines` shows whom the \
                           coordinator knows";
            return Err(Status::failed_precondition(message));
        };
        let now_ms = self.engine.now().wall_ms;
        let certificate_pem = self.ca.sign(&Peer::agent(id), &key, Validity::from(now_ms, self.lifetime))?;
        let signed = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|error| super::status::internal(&error))?;
        let signed =
            Certificate::read(self.ca.trust_domain(), &signed).map_err(|error| super::status::internal(&error))?;
        Ok(Response::new(Credentials {
            machine_id: id.to_string(),
            certificate_pem,
            ca_pem: self.ca.pem().to_owned(),
            not_after_ms: signed.not_after_ms,
            server_time_ms: now_ms,
            cluster: cluster_name.to_string(),
            machine_type: machine_type.to_string(),
        }))
    }
}
