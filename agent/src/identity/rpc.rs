//! The three calls of the Enrollment service.

use std::{error::Error as _, future::Future, sync::Arc, time::Duration};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use muster_proto::{
    IDENTITY_REVOKED, RENEW_PURPOSE,
    address::Addresses,
    model::{ClusterName, MachineName, MachineType},
    tls,
    wire::{Credentials, EnrollRequest, RenewExpiredRequest, RenewRequest, enrollment_client::EnrollmentClient},
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};

use crate::identity::{EnrolmentKey, Identity, IdentityError, JoinToken};

/// Timeout of one answer.
pub const RPC_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum of tries for an enrolment whose connection broke before the answer. A retry with the same key gets the same
/// answer.
const ENROL_TRIES_MAX: u32 = 4;
/// Delay before a retry.
const ENROL_AGAIN_AFTER: Duration = Duration::from_millis(300);

/// A key and the certificate request with its public half.
struct Fresh {
    key_pem: String,
    csr_der: Vec<u8>,
}

impl Fresh {
    fn generate() -> Result<Self, IdentityError> {
        Self::with(&KeyPair::generate().map_err(|_| IdentityError::Crypto { what: "key" })?)
    }

    fn with(key: &KeyPair) -> Result<Self, IdentityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new(); // the coordinator names the machine, we do not
        let csr = params.serialize_request(key).map_err(|_| IdentityError::Crypto { what: "request" })?;
        Ok(Self { key_pem: key.serialize_pem(), csr_der: csr.der().to_vec() })
    }
}

/// Was this address silent, so that the next one is tried?
const fn is_unheard(outcome: &Result<Credentials, IdentityError>) -> bool {
    matches!(outcome, Err(IdentityError::Connect(_) | IdentityError::Broken(_) | IdentityError::Silent))
}

/// Enrols this machine: checks the CA against the token's digest, and only then sends the token. Repeated with the same
/// key, token and name, it returns the same identity until that is in use.
///
/// # Errors
/// [`IdentityError`], which says what to do.
pub async fn enroll(
    coordinators: &Addresses,
    token: &JoinToken,
    name: MachineName,
    key: &EnrolmentKey,
) -> Result<Identity, IdentityError> {
    let fresh = Fresh::with(key.pair())?;
    let config = tls::pinned_config(token.ca_spki_sha256())?;
    let request = EnrollRequest {
        token: token.text().to_owned(),
        name: name.to_string(),
        csr_der: fresh.csr_der,
        agent_version: muster_proto::VERSION.to_owned(),
    };
    let ask = async |address: &str| {
        let mut tries = 1;
        loop {
            let connection = tls::connect_again(address, Arc::clone(&config)).await?;
            match answered(EnrollmentClient::new(connection.channel).enroll(request.clone())).await {
                Err(IdentityError::Broken(_)) if tries < ENROL_TRIES_MAX => tries += 1,
                answer => return answer,
            }
            tokio::time::sleep(tls::spread(ENROL_AGAIN_AFTER)).await;
        }
    };
    let (mut outcome, mut asked) = (Err(IdentityError::Silent), "");
    for address in coordinators.iter() {
        (outcome, asked) = (ask(address).await, address);
        if !is_unheard(&outcome) {
            break;
        }
    }
    let credentials = outcome?;
    let ours = |ca| tls::spki_sha256(&ca) == Some(token.ca_spki_sha256());
    if !tls::certificates("the CA certificate", &credentials.ca_pem)?.into_iter().any(ours) {
        return Err(IdentityError::Answer("its CA is not the token's"));
    }
    identity(coordinators.led_by(asked), name, fresh.key_pem, credentials)
}

impl Identity {
    /// Requests a new key and certificate with the valid ones, from the coordinator of the last session.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub async fn renew(&self) -> Result<Self, IdentityError> {
        let fresh = Fresh::generate()?;
        let connection = tls::connect(self.coordinators.first(), self.tls()?).await?;
        let mut client = EnrollmentClient::new(connection.channel);
        let credentials = answered(client.renew(RenewRequest { csr_der: fresh.csr_der })).await?;
        self.renewed(fresh.key_pem, credentials)
    }

    /// Requests a new key and certificate with an expired certificate: its key signs the request.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub async fn renew_expired(&self) -> Result<Self, IdentityError> {
        let fresh = Fresh::generate()?;
        let signature = sign(&self.key_pem, &fresh.csr_der)?;
        let certificate_der = tls::certificates("the certificate", &self.certificate_pem)?
            .first()
            .map(|leaf| leaf.to_vec())
            .ok_or(IdentityError::Crypto { what: "renewal without a certificate" })?;
        let config = tls::client_config(&self.ca_pem, None)?;
        let request = RenewExpiredRequest { csr_der: fresh.csr_der, certificate_der, signature };
        let mut outcome = Err(IdentityError::Silent);
        for address in self.coordinators.iter() {
            outcome = match tls::connect(address, Arc::clone(&config)).await {
                Ok(connection) => {
                    let mut client = EnrollmentClient::new(connection.channel);
                    answered(client.renew_expired(request.clone())).await
                }
                Err(error) => Err(error.into()),
            };
            if !is_unheard(&outcome) {
                break;
            }
        }
        let credentials = outcome?;
        self.renewed(fresh.key_pem, credentials)
    }

    fn renewed(&self, key_pem: String, credentials: Credentials) -> Result<Self, IdentityError> {
        let renewed = identity(self.coordinators.clone(), self.name.clone(), key_pem, credentials)?;
        if renewed.machine_id != self.machine_id {
            return Err(IdentityError::Answer("it is for another machine"));
        }
        Ok(renewed)
    }
}

fn sign(key_pem: &str, csr_der: &[u8]) -> Result<Vec<u8>, IdentityError> {
    let crypto = |_| IdentityError::Crypto { what: "signature" };
    let key = PrivatePkcs8KeyDer::from_pem_slice(key_pem.as_bytes())
        .map_err(|_| IdentityError::Crypto { what: "signature: the key is no PKCS#8" })?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key.secret_pkcs8_der())
        .map_err(|_| IdentityError::Crypto { what: "signature: the key is not of P-256" })?;
    let signed = [RENEW_PURPOSE, csr_der].concat();
    Ok(key.sign(&SystemRandom::new(), &signed).map_err(crypto)?.as_ref().to_vec())
}

async fn answered(
    call: impl Future<Output = Result<tonic::Response<Credentials>, tonic::Status>>,
) -> Result<Credentials, IdentityError> {
    match tokio::time::timeout(RPC_TIMEOUT, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) if status.metadata().contains_key(IDENTITY_REVOKED) => Err(IdentityError::Revoked),
        // A status with a local cause is a connection error.
        Ok(Err(status)) if status.source().is_some() => Err(IdentityError::Broken(status)),
        Ok(Err(status)) => Err(IdentityError::Refused { message: status.message().to_owned(), code: status.code() }),
        Err(_) => Err(IdentityError::Silent),
    }
}

/// Validates an answer and builds the identity.
fn identity(
    coordinators: Addresses,
    name: MachineName,
    key_pem: String,
    answer: Credentials,
) -> Result<Identity, IdentityError> {
    if answer.not_after_ms <= answer.server_time_ms {
        return Err(IdentityError::Answer("the certificate has run out"));
    }
    let identity = Identity {
        coordinators,
        name,
        machine_id: answer.machine_id.parse().map_err(|_| IdentityError::Answer("the machine id is no UUID"))?,
        cluster: ClusterName::new(answer.cluster)
            .map_err(|_| IdentityError::Answer("the cluster's name is no DNS-1123 label"))?,
        machine_type: answer
            .machine_type
            .parse::<MachineType>()
            .map_err(|_| IdentityError::Answer("the machine type is unknown"))?,
        issued_at_ms: answer.server_time_ms,
        not_after_ms: answer.not_after_ms,
        ca_pem: answer.ca_pem,
        certificate_pem: answer.certificate_pem,
        key_pem,
    };
    identity.tls()?; // the key must be the certificate's
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
    use rcgen::PublicKeyData;

    use super::*;

    #[test]
    fn a_renewal_is_signed_with_its_context() {
        let fresh = Fresh::generate().expect("a key");
        let key = KeyPair::from_pem(&fresh.key_pem).expect("the same key");
        let signature = sign(&fresh.key_pem, b"request").expect("signed");
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key.der_bytes());
        assert!(public.verify(b"muster-renew-v1request", &signature).is_ok());
        assert!(public.verify(b"request", &signature).is_err());
        assert!(sign("not a key", b"request").is_err());
    }
}
