//! A connection to the coordinator, with a deadline on every call.

use std::{future::Future, time::Duration};

use muster_proto::{
    resource::{Kind, Machine},
    suggestions::nearest,
    tls,
    wire::{GetRequest, Resource, fleet_client::FleetClient},
};
use tonic::{Response, Status, transport::Channel};

use crate::{
    config::Config,
    errors::{Exit, Failure, not_this_version},
};

/// Timeout of a call.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// Largest answer: 1,000 machines with 60 items each, and a message of up to 4 KiB at each.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A live connection.
pub struct Coordinator {
    fleet: FleetClient<Channel>,
    address: String,
}

impl Coordinator {
    /// Connects with the config's credentials.
    pub async fn connect(config: &Config) -> Result<Self, Failure> {
        let address = config.coordinator.clone();
        let tls = tls::client_config(&config.ca, Some(&config.identity())).map_err(|error| {
            Failure::bad_input("the credentials in the config cannot be used")
                .because(error)
                .next("Make new ones: muster-coordinator credentials --help")
        })?;
        let connection = tls::connect_again(&address, tls).await.map_err(|error| Failure::connect(&address, error))?;
        let fleet = FleetClient::new(connection.channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        Ok(Self { fleet, address })
    }

    /// A copy of the generated client, for one call.
    pub(crate) fn fleet(&self) -> FleetClient<Channel> {
        self.fleet.clone()
    }

    /// Address of the coordinator.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Return the call's answer, within [`CALL_DEADLINE`].
    pub(crate) async fn call<T>(&self, rpc: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Failure> {
        let answer = tokio::time::timeout(CALL_DEADLINE, rpc).await.unwrap_or_else(|_| {
            Err(Status::deadline_exceeded(format!("no answer within {} s", CALL_DEADLINE.as_secs())))
        });
        answer.map(Response::into_inner).map_err(|status| Failure::status(&self.address, &status))
    }

    /// Get documents of one kind. An unknown name or cluster is a failure that suggests the nearest one.
    pub async fn get(&self, kind: Kind, name: &str, cluster: &str) -> Result<Vec<Resource>, Failure> {
        if !cluster.is_empty() {
            self.has_cluster(kind, cluster).await?;
        }
        match self.call(self.fleet().get(request(kind, name, cluster))).await {
            Err(failure) if failure.exit == Exit::BadInput && !name.is_empty() => {
                Err(self.unknown(kind, name, cluster).await.unwrap_or(failure))
            }
            answer => Ok(answer?.items),
        }
    }

    /// Every chain of the audit record, as of one moment.
    pub(crate) async fn audit_chains(&self) -> Result<Vec<Resource>, Failure> {
        Ok(self.call(self.fleet().get(request(Kind::AuditChains, "", ""))).await?.items)
    }

    /// Check that the cluster exists, and that documents of this kind belong to clusters.
    pub(crate) async fn has_cluster(&self, kind: Kind, cluster: &str) -> Result<(), Failure> {
        // The audit record keeps actions on clusters that are gone.
        if kind == Kind::Audit {
            return Ok(());
        }
        if kind == Kind::Credentials {
            let what = format!("--cluster says nothing of {}: that is of the whole fleet", kind.word());
            return Err(Failure::bad_input(what).next(format!("musterctl get {}", kind.word())));
        }
        self.call_on(Kind::Clusters, cluster, self.fleet().get(request(Kind::Clusters, cluster, ""))).await.map(drop)
    }

    /// The failure for an unknown name, or for one outside this cluster. None: the name is known.
    async fn unknown(&self, kind: Kind, name: &str, cluster: &str) -> Option<Failure> {
        let known = self.names(kind).await;
        if !known.iter().any(|known| known == name) {
            return Some(unknown_name(kind, name, &known));
        }
        let what = format!("there is no {} named \"{name}\" in cluster \"{cluster}\"", kind.singular());
        let next = format!("It is in another: musterctl get {} {name}", kind.singular());
        (!cluster.is_empty()).then(|| Failure::bad_input(what).next(next))
    }

    /// Return the call's answer. If the machine or its item is unknown, the failure lists the known ones.
    pub(crate) async fn call_on_item<T>(
        &self,
        (machine, item): (&str, &str),
        rpc: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        let answer = self.call_on(Kind::Machines, machine, rpc).await;
        let Err(failure) = answer else { return answer };
        if failure.exit != Exit::BadInput || item.is_empty() {
            return Err(failure);
        }
        self.has_item(machine, item).await?;
        Err(failure)
    }

    /// Check that the machine has an item of this name, now or from before.
    pub(crate) async fn has_item(&self, machine: &str, item: &str) -> Result<(), Failure> {
        let found = self.get_one(Kind::Machines, machine).await?;
        let found: Machine = serde_json::from_slice(&found.json).map_err(not_this_version)?;
        let mut items: Vec<String> = found.status.items.into_iter().map(|item| item.name).collect();
        items.extend(found.status.state_item_statuses.into_keys());
        if items.iter().any(|known| known == item) {
            return Ok(());
        }
        items.sort();
        items.dedup();
        let failure = Failure::bad_input(format!("{machine} has no item named \"{item}\""));
        Err(match nearest(item, items.iter().map(String::as_str)) {
            Some(near) => failure.next(format!("Did you mean \"{near}\"?")),
            None if items.is_empty() => failure.next("It has been told to do nothing yet."),
            None => failure.next(format!("Its items: {}", items.join(", "))),
        })
    }

    /// The one document of this name.
    pub(crate) async fn get_one(&self, kind: Kind, name: &str) -> Result<Resource, Failure> {
        match self.get(kind, name, "").await?.into_iter().next() {
            Some(found) => Ok(found),
            None => Err(unknown_name(kind, name, &[])),
        }
    }

    /// Return the call's answer. If the name is unknown, the failure suggests the nearest one.
    pub(crate) async fn call_on<T>(
        &self,
        kind: Kind,
        name: &str,
        rpc: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        match self.call(rpc).await {
            Err(failure) if failure.exit == Exit::BadInput && !name.is_empty() => {
                let known = self.names(kind).await;
                let known_one = known.iter().any(|known| known == name);
                Err(if known_one { failure } else { unknown_name(kind, name, &known) })
            }
            answer => answer,
        }
    }

    /// Names of all documents of a kind. Empty on errors, because the names only improve a message.
    pub(crate) async fn names(&self, kind: Kind) -> Vec<String> {
        let answer = self.call(self.fleet().get(request(kind, "", ""))).await;
        answer.map(|answer| answer.items.into_iter().map(|item| item.name).collect()).unwrap_or_default()
    }
}

pub(crate) fn request(kind: Kind, name: &str, cluster: &str) -> GetRequest {
    GetRequest { kind: kind.word().to_owned(), name: name.to_owned(), cluster: cluster.to_owned() }
}

fn unknown_name(kind: Kind, name: &str, known: &[String]) -> Failure {
    let failure = Failure::bad_input(format!("there is no {} named \"{name}\"", kind.singular()));
    match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => failure.next(format!("Did you mean \"{near}\"?")),
        None => failure.next(format!("See: musterctl get {}", kind.word())),
    }
}
