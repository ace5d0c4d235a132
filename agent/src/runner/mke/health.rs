//! Health probe of MKE's controller on this machine.

use std::time::Duration;

use reqwest::Client;

use super::MkeError;
use crate::link::chain;

/// Timeout from the end of MKE's run to an answer of its controller. MKE itself gives up after 20 minutes without
/// progress.
pub(super) const DEADLINE: Duration = Duration::from_secs(20 * 60);
/// Timeout of one probe.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// Interval of probes.
pub(super) const ASK_EVERY: Duration = Duration::from_secs(2);

/// MKE's controller on this machine.
pub(super) struct Controller {
    client: Client,
    url: String,
}

impl Controller {
    /// The controller at this port. Its certificate is accepted unverified: MKE signs it itself, and the probe sends
    /// nothing confidential.
    pub(super) fn new(port: u16) -> Result<Self, MkeError> {
        let client = Client::builder().timeout(ANSWER_DEADLINE).danger_accept_invalid_certs(true).build();
        Ok(Self { client: client.map_err(MkeError::Client)?, url: format!("https://127.0.0.1:{port}/_ping") })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Probes it; the error is its answer.
    pub(super) async fn answer(&self) -> Result<(), String> {
        match self.client.get(&self.url).send().await {
            Ok(answer) if answer.status() == 200 => Ok(()),
            Ok(answer) => Err(format!("status {}", answer.status())),
            Err(error) => Err(chain(&error)),
        }
    }
}
