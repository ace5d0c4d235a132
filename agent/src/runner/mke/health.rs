//! Is MKE's controller on this machine well?

use std::time::Duration;

use reqwest::Client;

use super::MkeError;
use crate::link::chain;

/// From the end of MKE's run until its controller answers. MKE itself gives up after 20 minutes without progress.
pub(super) const DEADLINE: Duration = Duration::from_secs(20 * 60);
/// One question.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// Between two questions.
pub(super) const ASK_EVERY: Duration = Duration::from_secs(2);

/// MKE's controller here.
pub(super) struct Controller {
    client: Client,
    url: String,
}

impl Controller {
    /// The one behind this port. MKE signs its certificate itself, and nothing is told to whoever answers there: so the
    /// certificate is not looked at.
    pub(super) fn new(port: u16) -> Result<Self, MkeError> {
        let client = Client::builder().timeout(ANSWER_DEADLINE).danger_accept_invalid_certs(true).build();
        Ok(Self { client: client.map_err(MkeError::Client)?, url: format!("https://127.0.0.1:{port}/_ping") })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Asks whether it is well; if not, says what it said.
    pub(super) async fn answer(&self) -> Result<(), String> {
        match self.client.get(&self.url).send().await {
            Ok(answer) if answer.status() == 200 => Ok(()),
            Ok(answer) => Err(format!("status {}", answer.status())),
            Err(error) => Err(chain(&error)),
        }
    }
}
