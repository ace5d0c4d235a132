//! An attacker: a client that uses the wire protocol directly, without musterctl and agents, at any rate.

use std::{fs, future::Future, sync::Arc};

use anyhow::{Context as _, Result};
use muster_coordinator::setup::Credentials;
use muster_proto::{
    tls,
    wire::{EnrollRequest, enrollment_client::EnrollmentClient, fleet_client::FleetClient},
};
use rcgen::{CertificateParams, KeyPair};
use tokio::runtime::{Builder, Runtime};
use tonic::{Status, transport::Channel};

use super::Fleet;

/// A client and the runtime of its thread.
pub struct Raw {
    runtime: Runtime,
    channel: Channel,
}

impl Fleet {
    /// A client with the credentials in this file.
    ///
    /// # Errors
    /// Fails on missing credentials, or on a connection error.
    pub fn raw_operator(&self, config: &str) -> Result<Raw> {
        let credentials: Credentials = toml::from_str(&fs::read_to_string(self.path(config))?)?;
        let Credentials { ca, certificate, key, .. } = credentials;
        let identity = tls::Identity { certificate_pem: certificate, key_pem: key };
        Raw::connect(&self.address(), tls::client_config(&ca, Some(&identity))?)
    }

    /// A client without credentials.
    ///
    /// # Errors
    /// Fails on a connection error.
    pub fn raw_stranger(&self) -> Result<Raw> {
        let credentials: Credentials = toml::from_str(&fs::read_to_string(self.path("operator.toml"))?)?;
        Raw::connect(&self.address(), tls::client_config(&credentials.ca, None)?)
    }
}

impl Raw {
    fn connect(address: &str, config: Arc<rustls::ClientConfig>) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let channel = runtime.block_on(tls::connect(address, config))?.channel;
        Ok(Self { runtime, channel })
    }

    /// Calls a method of the Fleet service.
    ///
    /// # Errors
    /// Returns the coordinator's status.
    pub fn call<T, F>(&self, call: impl FnOnce(FleetClient<Channel>) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let client = FleetClient::new(self.channel.clone());
        self.runtime.block_on(call(client)).map(tonic::Response::into_inner)
    }

    /// Requests an identity under each of these names, with the token in this file. Returns each answer.
    ///
    /// # Errors
    /// Fails on a missing token, or if the key generation does.
    pub fn enroll_all(
        &self,
        token_file: &str,
        names: impl IntoIterator<Item = String>,
    ) -> Result<Vec<Result<(), Status>>> {
        let token = fs::read_to_string(token_file)?.trim().to_owned();
        let key = KeyPair::generate().context("a key")?;
        let csr_der = CertificateParams::default().serialize_request(&key).context("a request")?.der().to_vec();
        let mut client = EnrollmentClient::new(self.channel.clone());
        self.runtime.block_on(async {
            let mut answers = Vec::new();
            for name in names {
                let (token, csr_der) = (token.clone(), csr_der.clone());
                let request = EnrollRequest { token, name, csr_der, agent_version: String::new() };
                answers.push(client.enroll(request).await.map(drop));
            }
            Ok(answers)
        })
    }
}
