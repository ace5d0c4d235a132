//! Quotas of a call, by method: bytes of its request, concurrent calls, and time. They apply to every service, after
//! the table of `authz.rs`: authorized callers must not exhaust memory either.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http_body_util::{BodyExt, LengthLimitError, Limited};
use muster_proto::APPLY_MESSAGE_BYTES_MAX;
use tokio::{sync::oneshot, time::Instant};
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use super::{
    authenticator::{Caller, PeerStatus},
    authz::NOT_ACCEPTED,
    limiter::{Limiter, LimiterGuard},
    room::Engaged,
};

/// Largest request of the Enrollment service: a token, a certificate request, an old certificate; about 4 KiB together.
/// A thousand strangers may send one at a time.
pub(super) const ENROLLMENT_MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Largest request that names machines: ten thousand of them.
pub(super) const NAMES_MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Largest request with annotations: the maximum of a machine.
const ANNOTATIONS_MESSAGE_BYTES_MAX: usize = 512 * 1024;
/// Largest request with a secret: its value has up to 64 KiB.
const SECRET_MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// Largest request of all other methods: a few words.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Length of gRPC's message prefix.
const PREFIX_BYTES: usize = 5;

/// Timeout until a call is answered, or its stream of answers begins. It covers sending the request, waiting for a
/// turn, and processing. Our longest wait is that for a swarm's token, less than 40 s.
const CALL_MAX: Duration = Duration::from_secs(60);
/// Timeout for reading an answer. A slower reader is cut off: unread answers occupy our memory.
const READING_MAX: Duration = Duration::from_secs(120);

/// Longest wait for a place of a caller that has as many calls under way as it may have: two programs that share
/// credentials take turns. It waits before its request is read, so that it holds no memory.
const TURN_WAIT_MAX: Duration = Duration::from_secs(3);

/// Quotas for calls of one kind.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Name of the calls that are counted together.
    sort: &'static str,
    /// Largest request in bytes. None: the stream is unlimited, but each of its messages is bounded.
    request_bytes: Option<usize>,
    /// Concurrent calls of one peer; of one connection, if the peer is unknown.
    of_peer: usize,
    /// Concurrent calls of all peers.
    of_all: usize,
}

/// Default for methods outside [`EXCEPTIONS`]. A peer may have as many connections, and musterctl makes one call on
/// each.
const USUAL: Bounds = Bounds { sort: "calls", request_bytes: Some(MESSAGE_BYTES_MAX), of_peer: 32, of_all: usize::MAX };
/// Their answers are as large as the fleet, and stay in memory until they are read.
const READS: Bounds = Bounds { sort: "reads", of_peer: 8, of_all: 64, ..USUAL };
/// Each lists a whole Kubernetes cluster.
const CHECKS: Bounds = Bounds { sort: "checks", of_peer: 2, of_all: 4, ..USUAL };
/// The largest requests.
const MANIFESTS: Bounds =
    Bounds { sort: "manifests", request_bytes: Some(APPLY_MESSAGE_BYTES_MAX), of_peer: 2, of_all: 8 };
/// Requests with endless answers; their streams are counted in `watches.rs` and `log_relay.rs`.
const OPENINGS: Bounds = Bounds { sort: "streams being opened", of_peer: 64, ..USUAL };
/// Streams of agents before their Hello; a machine has one, and a second when it renews.
const GREETINGS: Bounds = Bounds { sort: "greetings", request_bytes: None, of_peer: 4, of_all: usize::MAX };
/// Calls of strangers, one per connection.
const ENROLMENTS: Bounds =
    Bounds { sort: "enrolments", request_bytes: Some(ENROLLMENT_MESSAGE_BYTES_MAX), of_peer: 2, of_all: usize::MAX };
/// A controller has one certificate to renew, and each renewal costs signatures.
const RENEWALS: Bounds = Bounds { sort: "renewals", of_peer: 2, ..USUAL };
/// A controller may answer for many machines at once.
const LOCKS: Bounds = Bounds { sort: "words about locks", of_peer: 64, ..USUAL };

const fn with(request_bytes: usize, bounds: Bounds) -> Bounds {
    Bounds { request_bytes: Some(request_bytes), ..bounds }
}

/// Methods with quotas other than the default.
const EXCEPTIONS: &[(&str, Bounds)] = &[
    ("/muster.v1.Enrollment/Enroll", ENROLMENTS),
    ("/muster.v1.Enrollment/RenewExpired", ENROLMENTS),
    ("/muster.v1.Enrollment/Renew", ENROLMENTS),
    ("/muster.v1.AgentLink/Connect", GREETINGS),
    ("/muster.v1.Fleet/Get", READS),
    ("/muster.v1.Fleet/Plan", READS),
    ("/muster.v1.Fleet/CheckKubernetes", CHECKS),
    ("/muster.v1.Fleet/Watch", OPENINGS),
    ("/muster.v1.Fleet/Logs", OPENINGS),
    ("/muster.v1.Fleet/Apply", MANIFESTS),
    ("/muster.v1.Fleet/Reboot", with(NAMES_MESSAGE_BYTES_MAX, USUAL)),
    ("/muster.v1.Fleet/Annotate", with(ANNOTATIONS_MESSAGE_BYTES_MAX, USUAL)),
    ("/muster.v1.Fleet/CreateSecret", with(SECRET_MESSAGE_BYTES_MAX, USUAL)),
    ("/muster.v1.Maintenance/WatchRequests", OPENINGS),
    ("/muster.v1.Maintenance/Register", with(NAMES_MESSAGE_BYTES_MAX, USUAL)),
    ("/muster.v1.Maintenance/Release", LOCKS),
    ("/muster.v1.Maintenance/SetLock", LOCKS),
    ("/muster.v1.Maintenance/RenewCertificate", with(ENROLLMENT_MESSAGE_BYTES_MAX, RENEWALS)),
];

/// Methods with streamed answers. Their calls count until the stream begins.
const STREAMS: [&str; 4] = [
    "/muster.v1.AgentLink/Connect",
    "/muster.v1.Fleet/Watch",
    "/muster.v1.Fleet/Logs",
    "/muster.v1.Maintenance/WatchRequests",
];

fn bounds_of(method: &str) -> Bounds {
    EXCEPTIONS.iter().find(|(name, _)| *name == method).map_or(USUAL, |(_, bounds)| *bounds)
}

/// Layer that puts the quotas before a service.
#[derive(Clone)]
pub(super) struct Bound {
    limiter: Limiter,
    turn_wait_max: Duration,
    call_max: Duration,
    reading_max: Duration,
}

impl Default for Bound {
    fn default() -> Self {
        Self { limiter: Limiter::default(), turn_wait_max: TURN_WAIT_MAX, call_max: CALL_MAX, reading_max: READING_MAX }
    }
}

/// A call under way, counted while this lives.
struct UnderWay {
    _seats: (LimiterGuard, LimiterGuard),
    _engaged: Engaged,
}

impl Bound {
    /// Waits for the caller's turn. Only an authenticated caller may wait.
    async fn turn(&self, caller: &Caller, bounds: &Bounds) -> Result<UnderWay, Status> {
        let deadline = Instant::now() + self.turn_wait_max;
        loop {
            let freed = self.limiter.freed();
            let busy = match self.begin(caller, bounds) {
                Err(busy) if matches!(caller.standing, PeerStatus::Known(_)) => busy,
                begun => return begun,
            };
            if tokio::time::timeout_at(deadline, freed).await.is_err() {
                return Err(busy);
            }
        }
    }

    fn begin(&self, caller: &Caller, bounds: &Bounds) -> Result<UnderWay, Status> {
        let Bounds { sort, of_peer, of_all, .. } = bounds;
        let (who, whose) = match &caller.standing {
            PeerStatus::Known(certificate) => (certificate.peer.to_string(), "these credentials have"),
            // The address includes the port, so each connection counts by itself.
            PeerStatus::Stranger | PeerStatus::Refused | PeerStatus::Revoked(_) => {
                (caller.address.to_string(), "this connection has")
            }
        };
        let busy = |whose: &str, most: usize| {
            let message = format!("Busy: {whose} {most} {sort} under way; let one end and try again");
            Status::resource_exhausted(message)
        };
        let own = self.limiter.take(format!("{sort} of {who}"), *of_peer).ok_or_else(|| busy(whose, *of_peer))?;
        let one = self.limiter.take((*sort).to_owned(), *of_all);
        let one = one.ok_or_else(|| busy("all callers together have", *of_all))?;
        Ok(UnderWay { _seats: (own, one), _engaged: caller.engage() })
    }
}

/// Limit the length of the request's body.
fn bounded(body: Body, request_bytes: Option<usize>) -> Body {
    let Some(most) = request_bytes else { return body };
    let limited = Limited::new(body, most + PREFIX_BYTES);
    Body::new(limited.map_err(move |error| match error.is::<LengthLimitError>() {
        true => Status::out_of_range(format!("the request is too large: this call takes at most {most} bytes")),
        false => Status::from_error(error),
    }))
}

/// Keep the call counted until its answer has been read or dropped. A reader slower than `reading_max` is cut off.
fn until_read(body: Body, under_way: UnderWay, caller: Caller, reading_max: Duration) -> Body {
    let (reading, read) = oneshot::channel::<()>();
    tokio::spawn(async move {
        if tokio::time::timeout(reading_max, read).await.is_err() {
            let peer = caller.peer().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(address = %caller.address, peer, "cut off: it does not read its answer");
            caller.hang_up();
        }
    });
    let held = (under_way, reading);
    Body::new(body.map_frame(move |frame| {
        let _held = &held;
        frame
    }))
}

impl<S> Layer<S> for Bound {
    type Service = Bounded<S>;

    fn layer(&self, inner: S) -> Bounded<S> {
        Bounded { bound: self.clone(), inner }
    }
}

/// A service behind the quotas.
#[derive(Clone)]
pub(super) struct Bounded<S> {
    bound: Bound,
    inner: S,
}

impl<S> Service<http::Request<Body>> for Bounded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (bounds, streams) = (bounds_of(request.uri().path()), STREAMS.contains(&request.uri().path()));
        let Some(caller) = request.extensions().get::<Caller>().cloned() else {
            return Box::pin(std::future::ready(Ok(Status::unauthenticated(NOT_ACCEPTED).into_http())));
        };
        let bound = self.bound.clone();
        // The service that was polled ready is the one to call.
        let unpolled = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, unpolled);
        Box::pin(async move {
            let under_way = match bound.turn(&caller, &bounds).await {
                Ok(under_way) => under_way,
                Err(busy) => return Ok(busy.into_http()),
            };
            let Bound { call_max, reading_max, .. } = bound;
            let answer = inner.call(request.map(|body| bounded(body, bounds.request_bytes)));
            let Ok(response) = tokio::time::timeout(call_max, answer).await else {
                let message = format!("the call was not over within {} s; try again", call_max.as_secs());
                return Ok(Status::deadline_exceeded(message).into_http());
            };
            let response = response?;
            if streams {
                return Ok(response);
            }
            Ok(response.map(|body| until_read(body, under_way, caller, reading_max)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        net::SocketAddr,
        sync::{Arc, Mutex},
    };

    use tonic::Code;
    use tower::{ServiceExt, service_fn};

    use super::{super::authz, *};
    use crate::pki::{Certificate, Peer, Role};

    const GET: &str = "/muster.v1.Fleet/Get";

    fn stranger(port: u16) -> Caller {
        Caller::new(SocketAddr::from(([127, 0, 0, 1], port)), PeerStatus::Stranger)
    }

    fn operator() -> Caller {
        let peer = Peer { role: Role::Operator("anna".to_owned()), clusters: None };
        let certificate =
            Certificate { peer, issued_at_ms: 0, not_before_ms: 0, not_after_ms: 0, public_key: Vec::new() };
        Caller::new(SocketAddr::from(([127, 0, 0, 1], 1)), PeerStatus::Known(Arc::new(certificate)))
    }

    /// Call a service that reads the whole request and then answers with `answer`, or reports its error.
    async fn call(bound: &Bound, caller: &Caller, method: &str, request: Body, answer: Body) -> http::Response<Body> {
        let answer = Arc::new(Mutex::new(Some(answer)));
        let service = service_fn(move |request: http::Request<Body>| {
            let answer = answer.lock().expect("lock").take().expect("called once");
            async move {
                Ok::<_, Infallible>(match request.into_body().collect().await {
                    Ok(_) => http::Response::new(answer),
                    Err(status) => status.into_http(),
                })
            }
        });
        let request = http::Request::builder().uri(method).extension(caller.clone()).body(request);
        bound.layer(service).oneshot(request.expect("a request")).await.expect("answered")
    }

    fn code(response: &http::Response<Body>) -> Code {
        response.headers().get("grpc-status").map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()))
    }

    fn bytes(count: usize) -> Body {
        Body::new(http_body_util::Full::from(vec![0; count]))
    }

    /// A body that stays silent.
    fn endless() -> Body {
        Body::new(http_body_util::StreamBody::new(futures_util::stream::pending::<Result<_, Status>>()))
    }

    #[test]
    fn every_exception_is_a_method() {
        for method in EXCEPTIONS.iter().map(|(method, _)| *method).chain(STREAMS) {
            assert!(authz::methods().any(|known| known == method), "{method}");
        }
        let protos = [
            include_str!("../../../proto/muster/v1/agent_link.proto"),
            include_str!("../../../proto/muster/v1/fleet.proto"),
            include_str!("../../../proto/muster/v1/maintenance.proto"),
        ];
        let streams = protos.iter().flat_map(|proto| proto.lines()).filter(|line| line.contains("returns (stream "));
        assert_eq!(streams.count(), STREAMS.len());
    }

    #[tokio::test]
    async fn a_request_has_a_largest_size_by_its_method() {
        let bound = Bound::default();
        for (method, most) in [
            ("/muster.v1.Enrollment/Enroll", 16 * 1024),
            (GET, 64 * 1024),
            ("/muster.v1.Fleet/Deploy", 64 * 1024),
            ("/muster.v1.Fleet/CreateSecret", 128 * 1024),
            ("/muster.v1.Maintenance/Register", 1024 * 1024),
            ("/muster.v1.Fleet/Apply", 5 * 1024 * 1024),
        ] {
            let fits = call(&bound, &stranger(1), method, bytes(most + PREFIX_BYTES), Body::empty()).await;
            assert_eq!(code(&fits), Code::Ok, "{method}");
            let over = call(&bound, &stranger(1), method, bytes(most + PREFIX_BYTES + 1), Body::empty()).await;
            assert_eq!(code(&over), Code::OutOfRange, "{method}");
        }
        let link = call(&bound, &stranger(1), "/muster.v1.AgentLink/Connect", bytes(9_000_000), Body::empty()).await;
        assert_eq!(code(&link), Code::Ok, "a stream has no end, its messages have");
    }

    #[tokio::test]
    async fn a_request_that_does_not_end_is_not_waited_for() {
        let bound = Bound { call_max: Duration::from_millis(20), ..Bound::default() };
        let late = call(&bound, &stranger(1), GET, endless(), Body::empty()).await;
        assert_eq!(code(&late), Code::DeadlineExceeded);
    }

    #[tokio::test]
    async fn a_peer_has_so_many_calls_under_way_until_their_answers_are_read() {
        let bound = Bound::default();
        let get = async |port| call(&bound, &stranger(port), GET, Body::empty(), bytes(9)).await;
        let mut held = Vec::new();
        for _ in 0..READS.of_peer {
            held.push(get(1).await);
        }
        assert!(held.iter().all(|answer| code(answer) == Code::Ok));
        assert_eq!(code(&get(1).await), Code::ResourceExhausted);
        let other = call(&bound, &stranger(1), "/muster.v1.Fleet/Deploy", Body::empty(), bytes(9)).await;
        assert_eq!(code(&other), Code::Ok, "calls of another sort");
        held.pop().expect("one").into_body().collect().await.expect("read");
        assert_eq!(code(&get(1).await), Code::Ok, "one is over");
        for port in 2..=9 {
            for _ in 0..READS.of_peer {
                held.push(get(port).await);
            }
        }
        let refused = held.iter().filter(|answer| code(answer) == Code::ResourceExhausted).count();
        assert_eq!(held.len() - refused, READS.of_all, "all together");
        drop(held);
        assert_eq!(code(&get(1).await), Code::Ok);
    }

    #[tokio::test]
    async fn authenticated_callers_take_turns() {
        let apply =
            async |bound: Bound| call(&bound, &operator(), "/muster.v1.Fleet/Apply", Body::empty(), bytes(9)).await;
        let bound = Bound { turn_wait_max: Duration::from_millis(20), ..Bound::default() };
        let mut held = Vec::new();
        for _ in 0..MANIFESTS.of_peer {
            held.push(apply(bound.clone()).await);
        }
        assert_eq!(code(&apply(bound.clone()).await), Code::ResourceExhausted, "none ended in that time");
        let mut next = std::pin::pin!(apply(Bound { turn_wait_max: Duration::from_secs(60), ..bound }));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut next).await.is_err(), "it waits");
        held.pop();
        assert_eq!(code(&next.await), Code::Ok);
    }

    #[tokio::test]
    async fn a_stream_is_no_call_under_way_once_it_has_begun() {
        let bound = Bound::default();
        let mut open = Vec::new();
        for _ in 0..=OPENINGS.of_peer {
            open.push(call(&bound, &stranger(1), "/muster.v1.Fleet/Watch", Body::empty(), bytes(9)).await);
        }
        assert!(open.iter().all(|answer| code(answer) == Code::Ok));
    }

    #[tokio::test]
    async fn who_does_not_read_an_answer_is_cut_off() {
        let bound = Bound { reading_max: Duration::from_millis(20), ..Bound::default() };
        let caller = stranger(1);
        let read = call(&bound, &caller, GET, Body::empty(), bytes(9)).await;
        drop(read);
        let cut = |wait_ms| tokio::time::timeout(Duration::from_millis(wait_ms), caller.hung_up());
        assert!(cut(100).await.is_err(), "it has read");
        let _unread = call(&bound, &caller, GET, Body::empty(), bytes(9)).await;
        assert!(cut(10_000).await.is_ok());
    }
}
