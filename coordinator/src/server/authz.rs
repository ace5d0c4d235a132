//! Which caller may call which method: one table, with everything else denied. It runs before every service. Each
//! service itself decides on the objects (which machine, which cluster).

use std::{
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::future::Either;
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use super::{
    authenticator::{Authenticator, Caller, PeerStatus},
    failed_attempts::FailedAttempts,
    status::revoked,
};
use crate::{engine::EngineHandle, pki::Role};

/// Kind of caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// A caller without a certificate.
    Nobody,
    Agent,
    Viewer,
    Operator,
    Controller,
}

use Sort::{Agent, Controller, Nobody, Operator, Viewer};

/// Every method, with the callers that may use it.
const TABLE: &[(&str, &[Sort])] = &[
    ("/muster.v1.Enrollment/Enroll", &[Nobody]),
    ("/muster.v1.Enrollment/RenewExpired", &[Nobody]),
    ("/muster.v1.Enrollment/Renew", &[Agent]),
    ("/muster.v1.AgentLink/Connect", &[Agent]),
    ("/muster.v1.AgentLink/FetchSecrets", &[Agent]),
    ("/muster.v1.Fleet/Version", &[Viewer, Operator, Controller]),
    ("/muster.v1.Fleet/Get", &[Viewer, Operator]),
    ("/muster.v1.Fleet/Watch", &[Viewer, Operator]),
    ("/muster.v1.Fleet/Plan", &[Viewer, Operator]),
    ("/muster.v1.Fleet/Logs", &[Viewer, Operator]),
    ("/muster.v1.Fleet/CheckKubernetes", &[Operator]),
    ("/muster.v1.Fleet/Apply", &[Operator]),
    ("/muster.v1.Fleet/Deploy", &[Operator]),
    ("/muster.v1.Fleet/Update", &[Operator]),
    ("/muster.v1.Fleet/Reboot", &[Operator]),
    ("/muster.v1.Fleet/EnterMaintenance", &[Operator]),
    ("/muster.v1.Fleet/LeaveMaintenance", &[Operator]),
    ("/muster.v1.Fleet/Remove", &[Operator]),
    ("/muster.v1.Fleet/AbortRemoval", &[Operator]),
    ("/muster.v1.Fleet/Pause", &[Operator]),
    ("/muster.v1.Fleet/Resume", &[Operator]),
    ("/muster.v1.Fleet/Abort", &[Operator]),
    ("/muster.v1.Fleet/Retry", &[Operator]),
    ("/muster.v1.Fleet/DrainForce", &[Operator]),
    ("/muster.v1.Fleet/Skip", &[Operator]),
    ("/muster.v1.Fleet/Accept", &[Operator]),
    ("/muster.v1.Fleet/Rerun", &[Operator]),
    ("/muster.v1.Fleet/Annotate", &[Operator]),
    ("/muster.v1.Fleet/CreateToken", &[Operator]),
    ("/muster.v1.Fleet/RevokeToken", &[Operator]),
    ("/muster.v1.Fleet/RevokeCredentials", &[Operator]),
    ("/muster.v1.Fleet/RevokeMachine", &[Operator]),
    ("/muster.v1.Fleet/ReplaceMachine", &[Operator]),
    ("/muster.v1.Maintenance/Register", &[Controller]),
    ("/muster.v1.Maintenance/Release", &[Controller]),
    ("/muster.v1.Maintenance/SetLock", &[Controller]),
    ("/muster.v1.Maintenance/ListLocks", &[Controller]),
    ("/muster.v1.Maintenance/WatchRequests", &[Controller]),
    ("/muster.v1.Maintenance/RenewCertificate", &[Controller]),
    ("/muster.v1.Fleet/CreateSecret", &[Operator]),
    ("/muster.v1.Fleet/ShareSecret", &[Operator]),
    ("/muster.v1.Fleet/DeleteSecret", &[Operator]),
    ("/muster.v1.Fleet/ReleaseLocks", &[Operator]),
    ("/muster.v1.Fleet/DeleteCluster", &[Operator]),
    (HEALTH, KNOWN),
    (REFLECTION, KNOWN),
];

/// Method of health probes for gRPC servers. `Watch` is unimplemented: gRPC clients take that for healthy.
const HEALTH: &str = "/grpc.health.v1.Health/Check";
/// Method of tools such as grpcurl, which discover the services.
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// Every caller with a certificate of ours.
const KNOWN: &[Sort] = &[Agent, Viewer, Operator, Controller];

/// Answer to a caller with an unacceptable certificate. Only our log has the reason.
pub(super) const NOT_ACCEPTED: &str =
    "these credentials are not accepted: they were revoked, or this coordinator's record does not have them";
/// Answer to a known caller for a method outside the table.
const NO_METHOD: &str = "this coordinator has no such method; it may be older than the caller";
/// Answer to a caller without a certificate.
const NO_CREDENTIALS: &str = "this takes credentials; none were shown";

fn sort(standing: &PeerStatus) -> Option<Sort> {
    match standing {
        PeerStatus::Stranger => Some(Nobody),
        PeerStatus::Refused | PeerStatus::Revoked(_) => None,
        PeerStatus::Known(certificate) => match &certificate.peer.role {
            Role::Agent(_) => Some(Agent),
            Role::Operator(_) => Some(Operator),
            Role::Viewer(_) => Some(Viewer),
            Role::Controller(_) => Some(Controller),
            Role::Coordinator => None,
        },
    }
}

/// Check that a caller of this kind may call this method.
fn decide(sort: Option<Sort>, method: &str) -> Result<(), Status> {
    let sort = sort.ok_or_else(|| Status::unauthenticated(NOT_ACCEPTED))?;
    let known = TABLE.iter().find(|(name, _)| *name == method).map(|(_, sorts)| *sorts);
    let sorts = known.unwrap_or_default();
    match sort {
        _ if sorts.contains(&sort) => Ok(()),
        Nobody => Err(Status::unauthenticated(NO_CREDENTIALS)),
        _ if known.is_none() => Err(Status::unimplemented(NO_METHOD)),
        Agent | Viewer | Operator | Controller => Err(Status::permission_denied(not_allowed(sort, sorts))),
    }
}

/// Answer to a known caller that lacks permission: it names the credentials that have it.
fn not_allowed(sort: Sort, sorts: &[Sort]) -> String {
    let word = |sort: &Sort| match sort {
        Nobody => "nobody",
        Agent => "an agent",
        Viewer => "a viewer",
        Operator => "an operator",
        Controller => "a controller",
    };
    let who: Vec<&str> = sorts.iter().filter(|sort| **sort != Nobody).map(word).collect();
    let needed = if who.is_empty() { String::new() } else { format!(": it takes those of {}", who.join(" or ")) };
    format!("the credentials of {} do not allow this{needed}", word(&sort))
}

/// Check that the caller is still valid and may call this. A denial by the table carries an address and a text for the
/// log.
fn judge_request<B>(
    authenticator: &Authenticator,
    request: &http::Request<B>,
) -> Result<(), (Status, Option<(IpAddr, String)>)> {
    let refused = || (Status::unauthenticated(NOT_ACCEPTED), None);
    // Connections attach the caller: a missing one means a foreign connection.
    let caller = request.extensions().get::<Caller>().ok_or_else(refused)?;
    match &caller.standing {
        PeerStatus::Known(certificate) => authenticator.still_good(certificate).map_err(|_| refused())?,
        PeerStatus::Revoked(_) => return Err((revoked(), None)),
        PeerStatus::Stranger | PeerStatus::Refused => {}
    }
    decide(sort(&caller.standing), request.uri().path()).map_err(|status| {
        let peer = caller.peer().map_or_else(|| "nobody we know".to_owned(), ToString::to_string);
        let detail = format!("{peer} may not call {}", in_table(request.uri().path()));
        (status, Some((caller.address.ip(), detail)))
    })
}

/// The method as it may appear in our log, which must be free of callers' text.
fn in_table(method: &str) -> &'static str {
    TABLE.iter().find(|(name, _)| *name == method).map_or("an unknown method", |(name, _)| *name)
}

/// Layer that puts the table before a service.
#[derive(Clone)]
pub(super) struct Authorize {
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) failed_attempts: Arc<FailedAttempts>,
    pub(super) engine: EngineHandle,
}

impl<S> Layer<S> for Authorize {
    type Service = Authorized<S>;

    fn layer(&self, inner: S) -> Authorized<S> {
        Authorized { authorize: self.clone(), inner }
    }
}

/// A service behind the table.
#[derive(Clone)]
pub(super) struct Authorized<S> {
    authorize: Authorize,
    inner: S,
}

impl<S, B> Service<http::Request<B>> for Authorized<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>>,
    S::Error: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Either<Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let Authorize { authenticator, failed_attempts, engine } = &self.authorize;
        let Err((status, denied)) = judge_request(authenticator, &request) else {
            return Either::Right(self.inner.call(request));
        };
        // Dropped before the wait.
        drop(request);
        let (failed_attempts, now_mono_ms) = (Arc::clone(failed_attempts), engine.now().mono_ms);
        Either::Left(Box::pin(async move {
            if let Some((address, detail)) = denied {
                failed_attempts.was_wrong(address, now_mono_ms, &detail).await;
            }
            Ok(status.into_http())
        }))
    }
}

/// Every method of the table; the tests check that it is complete.
#[cfg(test)]
pub(super) fn methods() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(method, _)| *method)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every method of every service, from the protos.
    fn methods_of_protos() -> Vec<String> {
        let mut methods = vec![HEALTH.to_owned(), REFLECTION.to_owned()];
        for proto in [
            include_str!("../../../proto/muster/v1/enrollment.proto"),
            include_str!("../../../proto/muster/v1/agent_link.proto"),
            include_str!("../../../proto/muster/v1/fleet.proto"),
            include_str!("../../../proto/muster/v1/maintenance.proto"),
        ] {
            let mut service = "";
            for line in proto.lines().map(str::trim) {
                if let Some(rest) = line.strip_prefix("service ") {
                    service = rest.split_whitespace().next().expect("a name");
                } else if let Some(rest) = line.strip_prefix("rpc ") {
                    let name = rest.split('(').next().expect("a name").trim();
                    methods.push(format!("/muster.v1.{service}/{name}"));
                }
            }
        }
        methods
    }

    #[test]
    fn the_table_has_every_method_once() {
        let methods = methods_of_protos();
        assert!(methods.len() >= 30, "{methods:?}");
        let named: BTreeSet<_> = TABLE.iter().map(|(method, _)| (*method).to_owned()).collect();
        assert_eq!(named.len(), TABLE.len(), "a method twice");
        assert_eq!(named, methods.into_iter().collect());
    }

    #[test]
    fn only_methods_that_there_are_get_into_the_log() {
        assert_eq!(in_table("/muster.v1.Fleet/Apply"), "/muster.v1.Fleet/Apply");
        assert_eq!(in_table(&"x".repeat(10_000)), "an unknown method");
    }

    /// The rules of reliability.md, stated a second time in another form.
    #[test]
    fn every_method_for_every_sort_of_caller() {
        let reads = ["Get", "Watch", "Plan", "Logs"];
        for method in methods_of_protos() {
            if [HEALTH, REFLECTION].contains(&method.as_str()) {
                for sort in [Agent, Viewer, Operator, Controller] {
                    assert!(decide(Some(sort), &method).is_ok(), "{sort:?} {method}");
                }
                assert!(decide(Some(Nobody), &method).is_err() && decide(None, &method).is_err(), "{method}");
                continue;
            }
            let (service, name) = method.trim_start_matches("/muster.v1.").split_once('/').expect("a method");
            for sort in [None, Some(Nobody), Some(Agent), Some(Viewer), Some(Operator), Some(Controller)] {
                let expected = match (sort, service) {
                    (Some(Nobody), "Enrollment") => name != "Renew",
                    (Some(Agent), "Enrollment") => name == "Renew",
                    (Some(Agent), "AgentLink") => true,
                    (Some(Operator), "Fleet") => true,
                    (Some(Viewer), "Fleet") => name == "Version" || reads.contains(&name),
                    (Some(Controller), "Fleet") => name == "Version",
                    (Some(Controller), "Maintenance") => true,
                    _ => false,
                };
                assert_eq!(decide(sort, &method).is_ok(), expected, "{sort:?} {method}");
            }
        }
    }

    #[test]
    fn who_may_not_is_told_who_may() {
        let message = |method| decide(Some(Viewer), method).expect_err("denied").message().to_owned();
        let deploy = "the credentials of a viewer do not allow this: it takes those of an operator";
        assert_eq!(message("/muster.v1.Fleet/Deploy"), deploy);
        assert_eq!(message("/muster.v1.Enrollment/Enroll"), "the credentials of a viewer do not allow this");
    }

    #[test]
    fn what_is_not_in_the_table_is_denied() {
        for method in ["", "/", "/muster.v1.Fleet/Drop", "/muster.v1.Fleet/Get/", "/muster.v1.fleet/get", "*"] {
            for sort in [None, Some(Nobody), Some(Agent), Some(Viewer), Some(Operator), Some(Controller)] {
                let code = decide(sort, method).expect_err("denied").code();
                let expected = match sort {
                    None | Some(Nobody) => tonic::Code::Unauthenticated,
                    Some(_) => tonic::Code::Unimplemented,
                };
                assert_eq!(code, expected, "{sort:?} {method}");
            }
        }
    }

    #[test]
    fn a_refused_caller_gets_one_answer() {
        let answers: BTreeSet<_> = methods_of_protos()
            .iter()
            .map(|method| decide(None, method).expect_err("refused"))
            .map(|status| format!("{:?} {}", status.code(), status.message()))
            .collect();
        assert_eq!(answers.len(), 1, "{answers:?}");
        assert_eq!(decide(Some(Nobody), "/muster.v1.Fleet/Get").expect_err("no").code(), tonic::Code::Unauthenticated);
        assert_eq!(decide(Some(Agent), "/muster.v1.Fleet/Get").expect_err("no").code(), tonic::Code::PermissionDenied);
    }
}
