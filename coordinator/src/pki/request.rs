//! Certificate requests of agents. Only the public key of a request is used, and only if it signed the request; we
//! choose the names in the certificate.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SubjectPublicKeyInfo};
use x509_parser::{
    certification_request::X509CertificationRequest, prelude::FromDer, x509::SubjectPublicKeyInfo as ParsedPublicKey,
};

/// Longest request that is parsed. One with a P-256 key has about 300 bytes.
const REQUEST_BYTES_MAX: usize = 4096;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is malformed.
    #[error("csr_der: not a certificate request of at most {REQUEST_BYTES_MAX} bytes")]
    Parse,
    /// It has another type of key.
    #[error("csr_der: the key is not ECDSA P-256")]
    Algorithm,
    /// The sender lacks the key.
    #[error("csr_der: not signed by its own key")]
    Signature,
}

/// The public key of a request (PKCS #10, DER).
///
/// # Errors
/// [`RequestError`].
pub fn public_key(request_der: &[u8]) -> Result<SubjectPublicKeyInfo, RequestError> {
    if request_der.len() > REQUEST_BYTES_MAX {
        return Err(RequestError::Parse);
    }
    let (rest, request) = X509CertificationRequest::from_der(request_der).map_err(|_| RequestError::Parse)?;
    if !rest.is_empty() {
        return Err(RequestError::Parse);
    }
    let info = &request.certification_request_info;
    let key = SubjectPublicKeyInfo::from_der(info.subject_pki.raw).map_err(|_| RequestError::Algorithm)?;
    if key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
        return Err(RequestError::Algorithm);
    }
    if !signed_by(info.subject_pki.raw, info.raw, &request.signature_value.data) {
        return Err(RequestError::Signature);
    }
    Ok(key)
}

/// Is `signature` (ECDSA P-256 with SHA-256, ASN.1) over `message` made with this public key (SubjectPublicKeyInfo)?
#[must_use]
pub fn signed_by(public_key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let Ok((_, parsed)) = ParsedPublicKey::from_der(public_key) else { return false };
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &*parsed.subject_public_key.data).verify(message, signature).is_ok()
}
