//! One API server: its listener, connections and requests.

use std::{
    convert::Infallible,
    error::Error,
    future::pending,
    net::{SocketAddr, TcpListener},
    pin::{Pin, pin},
    sync::{Arc, mpsc as blocking},
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, anyhow};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Body, Bytes, Frame, Incoming},
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    net::TcpStream,
    runtime::Handle,
    sync::{mpsc, watch},
    time::sleep,
};

use super::{
    Shared,
    access::{self, Caller},
    api::{self, Answer},
    call::Call,
    failure::Failure,
    faults::{self, FaultAction},
    request_log::LoggedRequest,
    state::lock,
    watch as watches,
};

/// How long a stop waits for the listener to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;
type Cut = Box<dyn Error + Send + Sync>;

/// Life of a server process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    /// After SIGTERM: no listener, open watches stay open and silent.
    Terminating,
    /// After SIGKILL: every connection is cut.
    Killed,
}

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    life: watch::Sender<Life>,
    closed: blocking::Receiver<()>,
}

/// Context of every connection of a server.
struct Process {
    shared: Arc<Shared>,
    index: usize,
    /// The watch cache of a server starts at the revision of its start.
    floor: u64,
    life: watch::Receiver<Life>,
}

impl Server {
    /// Listen and serve.
    pub(super) fn start(runtime: &Handle, shared: &Arc<Shared>, index: usize, listener: TcpListener) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let (life, alive) = watch::channel(Life::Running);
        let (closing, closed) = blocking::channel();
        let floor = lock(&shared.state).store.revision();
        // The first start has seen the whole history.
        let floor = if shared.is_new(index) { 0 } else { floor };
        let process = Arc::new(Process { shared: shared.clone(), index, floor, life: alive });
        let _guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        runtime.spawn(async move {
            accept(&process, listener).await;
            // An error means that the handle is gone.
            let _ = closing.send(());
        });
        Ok(Self { life, closed })
    }

    /// Stop. Returns when the port is closed.
    pub(super) fn stop(&self, kill: bool) -> Result<()> {
        self.life.send_replace(if kill { Life::Killed } else { Life::Terminating });
        self.closed.recv_timeout(CLOSE_TIMEOUT).map_err(|_| anyhow!("the listener did not close"))
    }

    /// Cut the open watches of a terminating server.
    pub(super) fn kill(&self) {
        self.life.send_replace(Life::Killed);
    }
}

/// Bind an address.
pub(super) fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))
}

async fn accept(process: &Arc<Process>, listener: tokio::net::TcpListener) {
    let mut life = process.life.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    tokio::spawn(serve(process.clone(), stream));
                }
            }
            _ = life.wait_for(|life| *life != Life::Running) => return,
        }
    }
}

async fn serve(process: Arc<Process>, stream: TcpStream) {
    let mut life = process.life.clone();
    let mut kill = process.life.clone();
    let connection = async {
        if process.shared.hangs_handshakes() {
            pending::<()>().await;
        }
        let Ok(stream) = process.shared.acceptor.accept(stream).await else { return };
        let answered = process.clone();
        let service = service_fn(move |request| answer(answered.clone(), request));
        let mut connection = pin!(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        // Errors end the connection, and only the client can tell why.
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = life.wait_for(|life| *life != Life::Running) => connection.as_mut().graceful_shutdown(),
        }
        tokio::select! {
            _ = connection => {}
            () = sleep(process.shared.config.shutdown_after) => {}
        }
    };
    tokio::select! {
        () = connection => {}
        _ = kill.wait_for(|life| *life == Life::Killed) => {}
    }
}

async fn answer(process: Arc<Process>, request: Request<Incoming>) -> Result<Reply, Cut> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let header = |name: HeaderName| header(&parts.headers, name);
    let (mut call, caller) = {
        let state = lock(&process.shared.state);
        let query = parts.uri.query().unwrap_or("");
        let call = Call::parse(&state.kinds, parts.method.as_str(), parts.uri.path(), query);
        (call, access::authenticate(&state, header(AUTHORIZATION).as_deref()))
    };
    call.content_type = header(CONTENT_TYPE).unwrap_or_default();
    call.body = if body.is_empty() { Some(Value::Null) } else { serde_json::from_slice(&body).ok() };
    if call.body.is_none() && call.content_type.contains("yaml") {
        call.body = serde_saphyr::from_slice(&body).ok();
    }
    call.accept = header(hyper::header::ACCEPT).unwrap_or_default();
    let user = caller.as_ref().map_or("", |caller| &caller.user).to_owned();
    let id = record(&process, &call, &user);
    let result = match caller {
        Ok(caller) => with_faults(&process, &caller, call, id).await?,
        Err(failure) => Err(failure),
    };
    respond(&process, id, result)
}

fn header(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned)
}

fn record(process: &Process, call: &Call, user: &str) -> u64 {
    let mut state = lock(&process.shared.state);
    let plural = call.kind.as_ref().map_or_else(|| call.path.clone(), |kind| kind.plural.clone());
    let id = process.shared.next_id();
    state.log.push(LoggedRequest {
        id,
        at: SystemTime::now(),
        server: process.index,
        user: user.to_owned(),
        verb: call.verb.clone(),
        resource: plural,
        namespace: call.namespace.clone(),
        name: call.name.clone(),
        subresource: call.subresource.clone(),
        query: call.query_text.clone(),
        status: None,
        body: call.body.clone().unwrap_or(Value::Null),
    });
    id
}

/// The answer's content before it becomes an HTTP response.
enum Outcome {
    Answer(Answer),
    Watch(mpsc::Receiver<Bytes>),
}

/// Perform a request under the faults that match it. An error cuts the connection.
async fn with_faults(
    process: &Arc<Process>,
    caller: &Caller,
    call: Call,
    id: u64,
) -> Result<Result<Outcome, Failure>, Cut> {
    let fault = {
        let mut state = lock(&process.shared.state);
        faults::take(&mut state.faults, &call.verb, &call.resource_name(), &caller.user)
    };
    match fault {
        None => {}
        Some(FaultAction::PriorityAndFairness) => return Ok(Err(Failure::priority_and_fairness())),
        Some(FaultAction::Starting) => return Ok(Err(Failure::starting())),
        Some(FaultAction::Unauthorized) => return Ok(Err(Failure::unauthorized())),
        Some(FaultAction::Forbidden) => {
            return Ok(Err(match &call.kind {
                Some(kind) => caller.forbidden(&call.action(kind), kind),
                None => caller.forbidden_path(&call.verb, &call.path),
            }));
        }
        Some(FaultAction::Hang) => pending::<()>().await,
        Some(FaultAction::Delay(time)) => sleep(time).await,
        Some(FaultAction::LandLate(time)) => {
            let (process, caller) = (process.clone(), caller.clone());
            // A task of its own: it outlives the connection.
            let task = tokio::spawn(async move {
                sleep(time).await;
                let outcome = execute(&process, &caller, &call);
                note(&process, id, &outcome);
                outcome
            });
            return Ok(task.await?);
        }
        Some(FaultAction::CutBefore) => return Err("connection cut before the request".into()),
        Some(FaultAction::CutAfter) => {
            // The client must find out the outcome by itself.
            drop(execute(process, caller, &call));
            return Err("connection cut after the request".into());
        }
    }
    Ok(execute(process, caller, &call))
}

fn execute(process: &Process, caller: &Caller, call: &Call) -> Result<Outcome, Failure> {
    api::authorize(caller, call)?;
    if let (Some(kind), "get" | "list" | "watch") = (&call.kind, call.verb.as_str())
        && lock(&process.shared.state).initializing.remove(&kind.resource())
    {
        return Err(Failure::initializing());
    }
    if let (Some(kind), "watch") = (&call.kind, call.verb.as_str()) {
        let floor = process.floor.max(lock(&process.shared.state).store.floor());
        let lines = watches::open(&process.shared, process.life.clone(), floor, call, kind)?;
        return Ok(Outcome::Watch(lines));
    }
    let mut state = lock(&process.shared.state);
    api::perform(&mut state, process.index, process.floor, caller, call).map(Outcome::Answer)
}

fn note(process: &Process, id: u64, outcome: &Result<Outcome, Failure>) {
    let status = match outcome {
        Ok(Outcome::Answer(Answer::Json(code, _))) => *code,
        Ok(Outcome::Answer(Answer::Text(_)) | Outcome::Watch(_)) => 200,
        Err(failure) => failure.code,
    };
    let mut state = lock(&process.shared.state);
    if let Some(entry) = state.log.iter_mut().rev().find(|entry| entry.id == id) {
        entry.status = Some(status);
    }
}

fn respond(process: &Process, id: u64, outcome: Result<Outcome, Failure>) -> Result<Reply, Cut> {
    note(process, id, &outcome);
    let reply = Response::builder()
        .header("Audit-Id", uuid::Uuid::new_v4().to_string())
        .header("Cache-Control", "no-cache, private");
    let full = |text: String| Full::new(Bytes::from(text)).boxed_unsync();
    Ok(match outcome {
        Ok(Outcome::Answer(Answer::Json(code, object))) => {
            reply.status(code).header(CONTENT_TYPE, "application/json").body(full(object.to_string()))?
        }
        Ok(Outcome::Answer(Answer::Text(text))) => {
            reply.header(CONTENT_TYPE, "text/plain; charset=utf-8").body(full(text.to_owned()))?
        }
        Ok(Outcome::Watch(lines)) => {
            reply.header(CONTENT_TYPE, "application/json").body(Lines(lines).boxed_unsync())?
        }
        Err(failure) => {
            let (content_type, text) = failure.body();
            let mut reply = reply.status(failure.code).header(CONTENT_TYPE, content_type);
            if let Some(seconds) = failure.retry_after {
                reply = reply.header("Retry-After", seconds);
            }
            reply.body(full(text))?
        }
    })
}

/// The body of a watch.
struct Lines(mpsc::Receiver<Bytes>);

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}
