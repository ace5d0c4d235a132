//! Output on its way from an agent to an operator. It shares the agent's one stream, and a slow reader would block
//! that. So the buffer of a request is bounded, and the request ends if its reader is too slow.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::Stream;
use muster_proto::{model::MachineId, wire};
use tokio::{
    sync::mpsc,
    time::{Sleep, sleep},
};
use tonic::Status;

use super::{
    limiter::{Limiter, LimiterGuard},
    sessions::Sessions,
};

/// Most log requests at once, over all machines and peers.
const REQUESTS_MAX: usize = 32;
/// Most log requests of one peer: an operator has several terminals.
const REQUESTS_OF_PEER_MAX: usize = 4;
/// Most bytes that wait for one reader.
const BUFFER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Upper bound of a piece's overhead: small pieces use memory too.
const PIECE_BYTES: usize = 256;
/// Timeout for the agent's first answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

type Piece = Result<Vec<u8>, Status>;

/// Open requests.
#[derive(Default)]
pub(super) struct LogRelay {
    requests: Mutex<Requests>,
    limiter: Limiter,
}

#[derive(Default)]
struct Requests {
    last_id: u64,
    open: BTreeMap<(MachineId, u64), Request>,
}

struct Request {
    pieces: mpsc::UnboundedSender<Piece>,
    waiting_bytes: Arc<AtomicUsize>,
    /// An answer has arrived.
    answered: bool,
}

impl LogRelay {
    fn requests(&self) -> std::sync::MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open a request of `peer` to a machine; return its number and the output.
    pub(super) fn open(&self, peer: &str, id: MachineId, sessions: Sessions) -> Result<(u64, LogStream), Status> {
        let too_many = |whose: &str, most: usize| {
            let message = format!("Busy: {whose} read {most} logs already; end one with Ctrl-C and try again");
            Status::resource_exhausted(message)
        };
        let own = self.limiter.take(format!("of {peer}"), REQUESTS_OF_PEER_MAX);
        let own = own.ok_or_else(|| too_many("these credentials", REQUESTS_OF_PEER_MAX))?;
        let one = self.limiter.take("all".to_owned(), REQUESTS_MAX);
        let one = one.ok_or_else(|| too_many("all callers together", REQUESTS_MAX))?;
        let mut requests = self.requests();
        requests.last_id += 1;
        let request_id = requests.last_id;
        let (pieces, came) = mpsc::unbounded_channel();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let request = Request { pieces, waiting_bytes: Arc::clone(&waiting_bytes), answered: false };
        requests.open.insert((id, request_id), request);
        let answer_by = Some(Box::pin(sleep(ANSWER_TIMEOUT)));
        Ok((request_id, LogStream { id, request_id, came, waiting_bytes, answer_by, sessions, _seats: (own, one) }))
    }

    pub(super) fn forget(&self, id: MachineId, request_id: u64) {
        self.requests().open.remove(&(id, request_id));
    }

    /// Deliver a piece from an agent. Unrequested pieces are dropped.
    pub(super) fn came(&self, id: MachineId, chunk: wire::LogChunk) {
        let mut requests = self.requests();
        let key = (id, chunk.request_id);
        let Some(request) = requests.open.get_mut(&key) else { return };
        let says_nothing = chunk.data.is_empty() && chunk.error.is_empty() && !chunk.end;
        if says_nothing && request.answered {
            return;
        }
        request.answered = true;
        let bytes = chunk.data.len() + PIECE_BYTES;
        let over = request.waiting_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > BUFFER_BYTES_MAX;
        let piece = match () {
            () if over => Err(Status::resource_exhausted("the output came faster than it was read; ask for it again")),
            () if chunk.error.is_empty() => Ok(chunk.data),
            () => Err(Status::failed_precondition(muster_proto::convert::as_line(&chunk.error))),
        };
        let last = chunk.end || piece.is_err();
        // The reader is gone: the end of its stream tells the agent.
        drop(request.pieces.send(piece));
        if last {
            requests.open.remove(&key);
        }
    }

    /// End all requests on the machine's stream, which is over.
    pub(super) fn end_of_session(&self, id: MachineId) {
        self.requests().open.retain(|(machine, _), request| {
            if *machine == id {
                drop(request.pieces.send(Err(Status::unavailable("the machine's connection ended"))));
            }
            *machine != id
        });
    }
}

/// Output for an operator. Dropping it tells the agent to stop.
pub(super) struct LogStream {
    id: MachineId,
    request_id: u64,
    came: mpsc::UnboundedReceiver<Piece>,
    waiting_bytes: Arc<AtomicUsize>,
    answer_by: Option<Pin<Box<Sleep>>>,
    sessions: Sessions,
    _seats: (LimiterGuard, LimiterGuard),
}

impl Stream for LogStream {
    type Item = Result<wire::LogsResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.came.poll_recv(context) {
            Poll::Ready(piece) => {
                self.answer_by = None;
                if let Some(Ok(data)) = &piece {
                    self.waiting_bytes.fetch_sub(data.len() + PIECE_BYTES, Ordering::Relaxed);
                }
                Poll::Ready(piece.map(|piece| piece.map(|data| wire::LogsResponse { data })))
            }
            Poll::Pending => {
                let Some(answer_by) = &mut self.answer_by else { return Poll::Pending };
                std::task::ready!(answer_by.as_mut().poll(context));
                self.answer_by = None;
                self.came.close();
                let message = format!("the agent did not answer within {} s", ANSWER_TIMEOUT.as_secs());
                Poll::Ready(Some(Err(Status::deadline_exceeded(message))))
            }
        }
    }
}

impl Drop for LogStream {
    fn drop(&mut self) {
        self.sessions.cancel_log(self.id, self.request_id);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use muster_proto::wire::coordinator_message::Body;
    use tonic::Code;
    use uuid::Uuid;

    use super::{super::authenticator::Caller, *};

    const ID: MachineId = MachineId(Uuid::from_u128(1));

    fn chunk(request_id: u64, data: &[u8], end: bool) -> wire::LogChunk {
        wire::LogChunk { request_id, data: data.to_vec(), end, error: String::new() }
    }

    async fn text(log: LogStream) -> (String, Option<Code>) {
        let (mut text, mut code) = (String::new(), None);
        for piece in log.collect::<Vec<_>>().await {
            match piece {
                Ok(piece) => text.push_str(std::str::from_utf8(&piece.data).expect("text")),
                Err(status) => code = Some(status.code()),
            }
        }
        (text, code)
    }

    #[tokio::test]
    async fn output_reaches_who_asked_for_it() {
        let sessions = Sessions::default();
        assert_eq!(
            sessions.request_log("a", ID, String::new(), false).err().map(|s| s.code()),
            Some(Code::FailedPrecondition)
        );
        let (_, mut outgoing) = sessions.open(ID, Caller::nobody());
        let one = sessions.request_log("a", ID, "a".to_owned(), false).expect("asked");
        let two = sessions.request_log("a", ID, "b".to_owned(), true).expect("asked");
        let asked = [outgoing.next().await, outgoing.next().await].map(|message| match message {
            Some(Ok(wire::CoordinatorMessage { body: Some(Body::LogRequest(request)) })) => request.request_id,
            other => panic!("{other:?}"),
        });
        sessions.log_came(ID, chunk(asked[1], b"of two", false));
        sessions.log_came(ID, chunk(asked[0], b"of ", false));
        sessions.log_came(ID, chunk(asked[0], b"one", true));
        sessions.log_came(ID, chunk(asked[0], b"after its end", true));
        sessions.log_came(MachineId(Uuid::from_u128(2)), chunk(asked[1], b"of another machine", false));
        sessions.log_came(ID, chunk(99, b"nobody asked", false));
        sessions
            .log_came(ID, wire::LogChunk { request_id: asked[1], error: "NoOutput".to_owned(), ..Default::default() });
        assert_eq!(text(one).await, ("of one".to_owned(), None));
        assert_eq!(text(two).await, ("of two".to_owned(), Some(Code::FailedPrecondition)));
    }

    #[tokio::test]
    async fn a_reader_that_goes_stops_the_agent_and_an_agent_that_goes_tells_the_reader() {
        let sessions = Sessions::default();
        let (number, mut outgoing) = sessions.open(ID, Caller::nobody());
        drop(sessions.request_log("a", ID, String::new(), true).expect("asked"));
        let log = sessions.request_log("a", ID, String::new(), true).expect("asked");
        let mut bodies = Vec::new();
        for _ in 0..3 {
            bodies.extend(outgoing.next().await.expect("sent").expect("a message").body);
        }
        assert!(
            matches!(bodies.as_slice(), [Body::LogRequest(_), Body::LogCancel(_), Body::LogRequest(_)]),
            "{bodies:?}"
        );
        sessions.end(ID, number, Status::aborted("gone"));
        assert_eq!(text(log).await.1, Some(Code::Unavailable));
    }

    #[tokio::test]
    async fn a_slow_reader_loses_its_request_and_nothing_else() {
        let sessions = Sessions::default();
        let (_, _outgoing) = sessions.open(ID, Caller::nobody());
        let log = sessions.request_log("a", ID, String::new(), true).expect("asked");
        for _ in 0..20 {
            sessions.log_came(ID, chunk(log.request_id, &vec![b'x'; 512 * 1024], false));
        }
        let (text, code) = text(log).await;
        let fit = BUFFER_BYTES_MAX / (512 * 1024 + PIECE_BYTES);
        assert_eq!((text.len(), code), (fit * 512 * 1024, Some(Code::ResourceExhausted)));
    }

    /// Empty pieces of an agent use memory too.
    #[tokio::test]
    async fn many_small_pieces_are_as_much_as_one_large_one() {
        let sessions = Sessions::default();
        let (_, _outgoing) = sessions.open(ID, Caller::nobody());
        let log = sessions.request_log("a", ID, String::new(), true).expect("asked");
        for _ in 0..100_000 {
            sessions.log_came(ID, chunk(log.request_id, b"", false));
        }
        assert_eq!(log.came.len(), 1, "the first says that the agent is there, the others nothing");
        for _ in 0..100_000 {
            sessions.log_came(ID, chunk(log.request_id, b"x", false));
        }
        let fit = (BUFFER_BYTES_MAX - PIECE_BYTES) / (1 + PIECE_BYTES);
        let (text, code) = text(log).await;
        assert_eq!((text.len(), code), (fit, Some(Code::ResourceExhausted)));
    }

    #[tokio::test]
    async fn an_agent_that_does_not_answer_is_not_waited_for() {
        let sessions = Sessions::default();
        let (_, _outgoing) = sessions.open(ID, Caller::nobody());
        let mut log = sessions.request_log("a", ID, String::new(), true).expect("asked");
        assert!(log.answer_by.is_some(), "it has a deadline");
        log.answer_by = Some(Box::pin(sleep(Duration::from_millis(1))));
        assert_eq!(text(log).await, (String::new(), Some(Code::DeadlineExceeded)));
    }

    #[tokio::test]
    async fn only_so_many_at_once_and_nobody_has_them_all() {
        let sessions = Sessions::default();
        let (_, _outgoing) = sessions.open(ID, Caller::nobody());
        let read = |peer: usize| sessions.request_log(&format!("viewer/{peer}"), ID, String::new(), true);
        let code = |result: Result<LogStream, Status>| result.err().map(|status| status.code());
        let of_one: Vec<_> = (0..REQUESTS_OF_PEER_MAX).map(|_| read(0).expect("asked")).collect();
        assert_eq!(code(read(0)), Some(Code::ResourceExhausted));
        assert_eq!(code(read(1)), None, "somebody else reads");
        let others: Vec<_> = (REQUESTS_OF_PEER_MAX..REQUESTS_MAX).map(|n| read(n).expect("asked")).collect();
        assert_eq!(code(read(1)), Some(Code::ResourceExhausted), "all together");
        drop((of_one, others));
        assert_eq!(code(read(0)), None);
    }
}
