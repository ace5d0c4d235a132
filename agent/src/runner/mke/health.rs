//! Is MKE's controller on this machine well?

use std::time::Duration;

use reqwest::Client;
use tokio::time::{Instant, sleep};

use super::MkeError;
use crate::{exec_item::Report, link::chain};

/// From the end of MKE's run until its controller answers. MKE itself gives up after 20 minutes without progress.
pub(super) const DEADLINE: Duration = Duration::from_secs(20 * 60);
/// One question.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// Between two questions.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// Waits until `/_ping` answers 200. MKE signs its certificate itself, and nothing is told to whoever answers there: so
/// the certificate is not looked at.
pub(super) async fn wait(port: u16, report: &Report) -> Result<(), MkeError> {
    let client = Client::builder().timeout(ANSWER_DEADLINE).danger_accept_invalid_certs(true).build();
    let client = client.map_err(MkeError::Client)?;
    let url = format!("https://127.0.0.1:{port}/_ping");
    let until = Instant::now() + DEADLINE;
    report.line(&format!("waiting for {url}"));
    loop {
        let said = match client.get(&url).send().await {
            Ok(answer) if answer.status() == 200 => return Ok(()),
            Ok(answer) => format!("status {}", answer.status()),
            Err(error) => chain(&error),
        };
        if Instant::now() >= until {
            return Err(MkeError::Unhealthy { port, said });
        }
        sleep(ASK_EVERY).await;
    }
}
