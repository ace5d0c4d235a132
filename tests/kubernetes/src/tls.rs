//! The certificate authority and the servers' certificate.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio_rustls::TlsAcceptor;

/// Certificates of the servers.
pub(super) struct Identity {
    pub(super) ca_pem: String,
    pub(super) acceptor: TlsAcceptor,
}

/// Make a certificate authority and a certificate for these names and addresses.
pub(super) fn make(names: &[String]) -> Result<Identity> {
    let ca_key = KeyPair::generate().context("cannot make the key of the certificate authority")?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    ca.distinguished_name.push(DnType::CommonName, "kubernetes");
    let ca_pem = ca.self_signed(&ca_key).context("cannot sign the certificate authority")?.pem();
    let issuer = Issuer::new(ca, ca_key);

    let key = KeyPair::generate().context("cannot make the servers' key")?;
    let mut params = CertificateParams::new(names.to_vec()).context("a name of the API server is invalid")?;
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer).context("cannot sign the servers' certificate")?;

    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Identity { ca_pem, acceptor: TlsAcceptor::from(Arc::new(config)) })
}
