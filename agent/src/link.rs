//! The link to the coordinator: connects, sends the hello, keeps the session, renews the certificate, and reconnects.
//! It runs as one task beside the engine and exchanges messages with it. It leaves decisions about items to the core
//! and records only the identity. `convert` translates all wire values here.

pub mod logs;
mod report;
mod session;

use std::{
    path::Path,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use muster_proto::{
    address::Addresses,
    convert::{Hello, WireError},
    model::{AckProof, Assignment, AuthCode, ControlPlaneCall, Epoch, HostFacts, ItemName, Seq, SwarmCall},
    tls::{ConnectError, TlsError, spread, without_manual},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tracing::{info, warn};

pub use report::LinkReport;
pub use session::SessionHandle;

use crate::{
    config::{STATE_DIR_DEFAULT, StateDir},
    facts::{AddressChoice, containers::Watch},
    host::unix_ms,
    identity::{Identity, IdentityError},
};
use session::{Lent, Session, Source};

/// First delay before a reconnect.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
/// Longest delay before a reconnect; jitter comes on top.
const RECONNECT_MAX: Duration = Duration::from_secs(15);
/// A session of this length resets the reconnect delay.
const SESSION_GOOD_AFTER: Duration = Duration::from_secs(5);
/// Delay between two renewal tries.
const RENEW_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Number of refusals before a renewal: the certificate may have expired by the coordinator's clock.
const REFUSALS_BEFORE_RENEWAL: u32 = 3;
/// Interval of reading the machine's facts, in milliseconds.
pub const FACTS_EVERY_MS: u64 = 60_000;
/// Capacity of the queue from the link to the engine.
pub const ENGINE_QUEUE_MAX: usize = 64;

/// Messages from the link to the engine.
#[derive(Debug)]
pub enum FromLink {
    /// A session is being opened: answer with the hello.
    HelloWanted {
        /// Facts about the machine.
        facts: Box<HostFacts>,
        /// Channel for the answer.
        answer: oneshot::Sender<Hello>,
    },
    /// The coordinator accepted the session. It replaces any earlier session.
    Up {
        /// Epoch of that coordinator.
        epoch: Epoch,
        /// Proof that the epoch was told.
        code: AuthCode,
        /// Handle of the session; dropping it closes the session.
        session: SessionHandle,
    },
    /// The session ended.
    Down,
    /// An assignment arrived.
    Assigned(Assignment),
    /// The coordinator has every event up to this one.
    Acked(Seq, AckProof),
    /// The coordinator calls this machine's swarm.
    SwarmCalled(SwarmCall),
    /// The coordinator asks about this machine's part of a control plane.
    ControlPlaneCalled(ControlPlaneCall),
    /// A reader requests output.
    LogWanted {
        /// Id of the reader.
        request_id: u64,
        /// Item to read. None: the running or most recent one.
        item: Option<ItemName>,
        /// Continue until the attempt ends?
        follow: bool,
    },
    /// The reader is gone.
    LogCanceled {
        /// Id of the reader.
        request_id: u64,
    },
}

/// Hint for a coordinator with another CA.
const ANOTHER_COORDINATOR: &str = "; another coordinator answers there than enrolled this machine: is it the right \
                                   address? If it was made anew: `muster-agent enroll --force` with a token of it";

/// Hint when a certificate is rejected and its renewal was refused.
const SHUT_OUT: &str = ", and does not renew it: it ran out too long ago, or the record there does not have this \
                        machine; to come back: `musterctl replace MACHINE`, then here `muster-agent enroll --force` \
                        with a new token; every item runs again then";
/// Hint for a rejected certificate that the agent will renew by itself.
const TO_BE_RENEWED: &str = "; it may have run out, and is to be renewed: nothing need be done yet";

/// Reason for a missing session.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The connection failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The identity's credentials are invalid.
    #[error("this machine's credentials cannot be used; enrol it anew with `muster-agent enroll --force`")]
    Credentials(#[from] TlsError),
    /// The coordinator rejects the certificate and omits the reason.
    #[error("the coordinator does not accept this machine's certificate")]
    NotAccepted,
    /// The coordinator's record says that this identity was revoked. Only a person can restore it.
    #[error(
        "this machine's identity was revoked, the machine was removed, or another took its place (`musterctl get \
         audit` says which): the agent dials no more; to come back: `musterctl replace MACHINE`, unless it was \
         removed, then here `systemctl stop muster-agent`, `muster-agent enroll --force` with a new token, and start \
         it. Was an older record put back, which lets it in? Restart the agent"
    )]
    Revoked,
    /// The coordinator closed the stream with this reason.
    #[error("the coordinator closed the link: {0}")]
    Refused(String),
    /// The coordinator closed the stream.
    #[error("the coordinator closed the link")]
    Closed,
    /// Timeout: the coordinator is silent.
    #[error("the coordinator said nothing for {} s", session::WELCOME_TIMEOUT.as_secs())]
    Silent,
    /// The first message was something other than a welcome.
    #[error("the coordinator did not begin with a welcome")]
    NoWelcome,
    /// A message is invalid.
    #[error("a message of the coordinator is malformed")]
    Malformed(#[from] WireError),
    /// The coordinator reads our messages too slowly.
    #[error("the coordinator takes our messages too slowly")]
    Full,
    /// Every one of several addresses failed.
    #[error("{all}")]
    Everywhere {
        /// The most informative error.
        most: Box<LinkError>,
        /// All errors, each with its address.
        all: String,
    },
    /// The engine stopped.
    #[error("the agent stops")]
    Stopping,
}

impl LinkError {
    /// Combines the errors of all addresses.
    fn of_all(mut failed: Vec<(String, Self)>, renewal_refused: bool) -> Self {
        let each = failed.iter().map(|(address, error)| format!("{address}: {}", with_advice(error, renewal_refused)));
        let all = each.collect::<Vec<_>>().join("; ");
        // A coordinator's answer outweighs connection failures elsewhere.
        failed.sort_by_key(|(_, error)| (matches!(error, Self::Revoked), error.is_refusal()));
        match failed.pop() {
            Some((_, only)) if failed.is_empty() => only,
            Some((_, most)) => Self::Everywhere { most: Box::new(most), all },
            None => Self::Closed,
        }
    }

    /// The decisive error among several addresses.
    fn most(&self) -> &Self {
        if let Self::Everywhere { most, .. } = self { most } else { self }
    }

    /// Did a coordinator answer and refuse?
    fn is_refusal(&self) -> bool {
        match self {
            Self::Everywhere { most, .. } => most.is_refusal(),
            Self::Connect(ConnectError::Tls { .. } | ConnectError::Http { .. })
            | Self::NotAccepted
            | Self::Refused(_)
            | Self::Closed => true,
            Self::Connect(
                ConnectError::Resolve { .. }
                | ConnectError::Tcp { .. }
                | ConnectError::Timeout { .. }
                | ConnectError::NotTls13 { .. }
                | ConnectError::ClockSkew { .. }
                | ConnectError::PinMismatch { .. },
            )
            | Self::Credentials(_)
            | Self::Revoked
            | Self::Silent
            | Self::NoWelcome
            | Self::Malformed(_)
            | Self::Full
            | Self::Stopping => false,
        }
    }
}

/// State of the link.
pub struct Link {
    identity: Identity,
    dir: StateDir,
    /// Interval of reading the machine's facts.
    facts_every: Duration,
    /// Facts to report instead of this machine's.
    given_facts: Option<Arc<HostFacts>>,
    engine: mpsc::Sender<FromLink>,
    /// Addresses that the coordinator reports for itself.
    told: watch::Sender<Option<Addresses>>,
    /// Watches the machine's containers across sessions, so that the last answer of a now silent engine is kept. None
    /// for an agent that reports no containers.
    containers: Option<Watch>,
    /// The last coordinator's setting for choosing the InternalIP.
    choice: AddressChoice,
    /// When the certificate is to be renewed. It uses the monotonic clock, so that the schedule is immune to clock
    /// jumps.
    renew_at: Instant,
    /// Earliest time of the next renewal of an expired certificate.
    renew_expired_not_before: Instant,
    /// Was the last renewal of an expired certificate refused?
    renewal_refused: bool,
    /// Reason logged last since there was a session. Empty = none.
    complained: String,
}

impl Link {
    /// A link as `identity` that reports to `engine`.
    #[must_use]
    pub fn new(identity: Identity, dir: StateDir, facts_every: Duration, engine: mpsc::Sender<FromLink>) -> Self {
        let now = Instant::now();
        let renew_at = now + Duration::from_millis(identity.renew_in_ms(unix_ms()));
        Self {
            identity,
            dir,
            facts_every,
            given_facts: None,
            engine,
            told: watch::Sender::new(None),
            containers: None,
            choice: AddressChoice::default(),
            renew_at,
            renew_expired_not_before: now,
            renewal_refused: false,
            complained: String::new(),
        }
    }

    /// Reports these facts instead of this machine's: for a program that plays many machines.
    #[must_use]
    pub fn reporting(self, facts: HostFacts) -> Self {
        Self { given_facts: Some(Arc::new(facts)), ..self }
    }

    /// Keeps a session up until the engine is gone.
    pub async fn run(mut self) {
        let mut tries = 0;
        let mut refusals = 0;
        // Demo agents, many on one machine, report no containers.
        self.containers = (self.dir.path() == Path::new(STATE_DIR_DEFAULT)).then(Watch::begin);
        while !self.engine.is_closed() {
            self.read_addresses();
            let (error, held) = match self.open().await {
                Ok(session) => {
                    let welcomed = Instant::now();
                    (self.keep(session).await, Some(welcomed.elapsed()))
                }
                Err(error) => (error, None),
            };
            if matches!(error, LinkError::Stopping) {
                return;
            }
            tries = tries_after(tries, held);
            refusals = if error.is_refusal() { refusals + 1 } else { 0 };
            let error = match self.has_run_out() || refusals >= REFUSALS_BEFORE_RENEWAL {
                true => self.renew_expired(error).await,
                false => error,
            };
            self.complain(&error);
            if matches!(error.most(), LinkError::Revoked) {
                // Running items finish and the engine continues; the link only waits.
                return self.engine.closed().await;
            }
            tokio::time::sleep(reconnect_after(tries)).await;
        }
    }

    /// Opens a session at the first address that accepts one.
    async fn open(&self) -> Result<Session, LinkError> {
        let mut failed = Vec::new();
        for address in self.identity.coordinators.iter() {
            let (choice, facts_every) = (&self.choice, self.facts_every);
            let containers = self.containers.as_ref().map(Watch::containers);
            let source = Source { given: self.given_facts.clone(), containers };
            let lent = Lent { choice, facts_every, source, told: &self.told, engine: &self.engine };
            match Session::open(&self.identity, address, lent).await {
                Err(LinkError::Stopping) => return Err(LinkError::Stopping),
                Err(error) => failed.push((address.to_owned(), error)),
                opened => return opened,
            }
        }
        Err(LinkError::of_all(failed, self.renewal_refused))
    }

    /// Reads the addresses, which an operator may have changed (`muster-agent set-coordinator`).
    fn read_addresses(&mut self) {
        // If the file is unreadable, keep the known addresses.
        if let Ok(kept) = Identity::load(&self.dir.identity()) {
            self.identity.coordinators = kept.coordinators;
        }
    }

    /// Changes the recorded addresses if they differ.
    fn change_addresses(&mut self, change: impl Fn(&Addresses) -> Addresses) {
        if change(&self.identity.coordinators) == self.identity.coordinators {
            return;
        }
        let kept = Identity::change(&self.dir.identity(), |kept| kept.coordinators = change(&kept.coordinators));
        self.identity.coordinators = match kept {
            Ok(kept) => kept.coordinators,
            Err(error) => {
                warn!(error = %chain(&error), "the coordinator's addresses are not saved: known until a restart");
                change(&self.identity.coordinators)
            }
        };
        info!(coordinators = %self.identity.coordinators, "the coordinator's addresses, in the order of trying them");
    }

    /// Keeps a session, and its successor after each renewal, until it ends.
    async fn keep(&mut self, mut session: Session) -> LinkError {
        let engine = self.engine.clone();
        let mut report: Option<LinkReport> = None;
        loop {
            let address = session.address().to_owned();
            self.change_addresses(|known| known.led_by(&address));
            self.choice = session.choice().clone();
            if session.announce(&engine).await.is_err() {
                return LinkError::Stopping;
            }
            let report = report.get_or_insert_with(|| LinkReport::connected(&address));
            report.coordinator.clone_from(&address);
            report.clone().save(&self.dir);
            self.renewal_refused = false;
            self.complained.clear();
            info!(coordinator = %address, "connected");
            let next = self.next(pin!(session.run(&engine))).await;
            match next {
                Ok(next) => session = next,
                Err(_) if engine.send(FromLink::Down).await.is_err() => return LinkError::Stopping,
                Err(error) => return error,
            }
        }
    }

    /// Opens the session that follows the running one after a renewal. Error: the running one ended and has no
    /// successor.
    async fn next(&mut self, mut running: Pin<&mut impl Future<Output = LinkError>>) -> Result<Session, LinkError> {
        let mut told = self.told.subscribe();
        loop {
            tokio::select! {
                error = &mut running => return Err(error),
                Ok(()) = told.changed() => {
                    let addresses = told.borrow_and_update().clone();
                    self.change_addresses(|known| match &addresses {
                        Some(addresses) => known.joined_by(addresses),
                        None => known.clone(),
                    });
                    continue;
                }
                () = self.renewed() => {}
            }
            let mut opening = pin!(self.open());
            // The coordinator ends the old session when the new one arrives, before it sends the welcome there.
            let (opened, ended) = tokio::select! {
                opened = &mut opening => (opened, None),
                error = &mut running => (opening.await, Some(error)),
            };
            match (opened, ended) {
                (Ok(session), _) => return Ok(session),
                (Err(error), Some(_)) => return Err(error),
                (Err(error), None) => {
                    warn!(error = %chain(&error), "no session with the renewed certificate; keeping the old one");
                }
            }
        }
    }

    /// Renews the certificate when due, with retries until it succeeds.
    async fn renewed(&mut self) {
        loop {
            tokio::time::sleep_until(self.renew_at).await;
            self.renew_at = Instant::now() + RENEW_AGAIN_AFTER;
            let renewed = self.identity.renew().await;
            if self.take(renewed) {
                return;
            }
        }
    }

    /// Requests a renewal of the rejected certificate and returns the resulting reason.
    async fn renew_expired(&mut self, error: LinkError) -> LinkError {
        if Instant::now() < self.renew_expired_not_before {
            return error;
        }
        self.renew_expired_not_before = Instant::now() + RENEW_AGAIN_AFTER;
        let renewed = self.identity.renew_expired().await;
        let revoked = matches!(renewed, Err(IdentityError::Revoked));
        // Only an answer can be a refusal.
        self.renewal_refused = matches!(renewed, Err(IdentityError::Refused { code, .. }) if is_refusal(code));
        self.take(renewed);
        if revoked { LinkError::Revoked } else { error }
    }

    fn take(&mut self, renewed: Result<Identity, IdentityError>) -> bool {
        match renewed {
            Ok(identity) => {
                match identity.save_renewed(&self.dir.identity()) {
                    Ok(()) => info!("certificate renewed"),
                    // It is valid while this process lives; later the old one can still be exchanged for a week.
                    Err(error) => {
                        warn!(error = %chain(&error), "certificate renewed, and not saved: it is used all the same")
                    }
                }
                self.renew_at = Instant::now() + Duration::from_millis(identity.renew_after_ms());
                self.identity = identity;
                true
            }
            Err(error) => {
                warn!(error = %chain(&error), "the certificate could not be renewed");
                false
            }
        }
    }

    fn has_run_out(&self) -> bool {
        unix_ms() >= self.identity.not_after_ms
    }

    /// Reports the reason for a missing session; logs each reason once.
    fn complain(&mut self, error: &LinkError) {
        let text = with_advice(error, self.renewal_refused);
        LinkReport::disconnected(&self.identity.coordinators.to_string(), &text).save(&self.dir);
        let reason = match error.most() {
            // Its text contains the time.
            LinkError::Connect(ConnectError::ClockSkew { .. }) => "ClockSkew",
            _ => &text,
        };
        if self.complained != reason {
            warn!(coordinator = %self.identity.coordinators, error = %text, "no link to the coordinator");
            reason.clone_into(&mut self.complained);
        }
    }
}

/// Is this answer a definite refusal rather than a temporary failure?
const fn is_refusal(code: tonic::Code) -> bool {
    matches!(code, tonic::Code::Unauthenticated | tonic::Code::PermissionDenied)
}

/// Text of an error with its causes and a hint. There are hints for a foreign coordinator and for a rejected
/// certificate, depending on its renewal.
fn with_advice(error: &LinkError, renewal_refused: bool) -> String {
    let mut text = chain(error);
    if matches!(error, LinkError::NotAccepted) {
        text += if renewal_refused { SHUT_OUT } else { TO_BE_RENEWED };
    }
    // rustls' text for every certificate fault.
    if matches!(error, LinkError::Connect(ConnectError::Tls { .. })) && text.contains("invalid peer certificate") {
        text += ANOTHER_COORDINATOR;
    }
    text
}

/// Number of failed tries in a row, including this one. `held`: duration of the session; None if the try failed,
/// however long it took.
fn tries_after(tries: u32, held: Option<Duration>) -> u32 {
    if held >= Some(SESSION_GOOD_AFTER) { 0 } else { tries.saturating_add(1) }
}

/// Delay before a reconnect: doubles with each try, with jitter to spread the reconnects of a fleet.
fn reconnect_after(tries: u32) -> Duration {
    spread(RECONNECT_MIN.saturating_mul(1 << tries.saturating_sub(1).min(10)).min(RECONNECT_MAX))
}

/// Text of an error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(without_manual(&cause.to_string()));
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use muster_proto::{
        model::{HostFacts, ItemState, ItemStatus, Now},
        wire,
    };

    use super::*;
    use crate::{
        attempt::record::{Exit, Found},
        core::{
            Core, Input,
            tests::{assignment, config, empty, item, key},
        },
    };

    #[test]
    fn whatever_a_runner_leaves_passes_the_wire() {
        let now = Now { wall_ms: 0, mono_ms: 0 };
        let mut core = Core::new(config(), empty());
        let found = Found::Exited(Exit {
            state: ItemState::Failed { exit_code: 0, retryable: false },
            message: format!("a\u{7}b\n{}", "é".repeat(5_000)),
            output_tail: format!("{}\0é", "x".repeat(9_000)),
            result_json: Some("{not json".to_owned()),
            started_at_ms: 0,
            finished_at_ms: 0,
        });
        for input in [
            Input::Started { boot_id: "b".to_owned() },
            Input::Received(assignment(1, 1, vec![item("a", "1")])),
            Input::Ended { key: key("a", 1, 1), found },
        ] {
            assert!(core.step(input, now).len() < 9);
        }
        assert_eq!(core.ledger().outbox.len(), 2);
        for status in core.ledger().outbox.values() {
            assert_eq!(ItemStatus::try_from(wire::ItemStatus::from(&**status)).as_ref(), Ok(&**status));
        }
        let hello = core.hello(HostFacts::default());
        assert_eq!(Hello::try_from(wire::Hello::from(&hello)), Ok(hello));
    }

    #[test]
    fn another_coordinator_is_told_from_one_that_went_away() {
        let tls = |why: &str| {
            let source = std::io::Error::other(why.to_owned());
            with_advice(&LinkError::Connect(ConnectError::Tls { address: "a:1".to_owned(), source }), false)
        };
        assert!(tls("invalid peer certificate: BadSignature").ends_with(ANOTHER_COORDINATOR));
        assert!(!tls("tls handshake eof").contains("enroll"));
    }

    #[test]
    fn rejected_certificate_is_renewed_before_advice() {
        let rejected = |renewal_refused| with_advice(&LinkError::NotAccepted, renewal_refused);
        assert!(!rejected(false).contains("replace") && rejected(false).contains("to be renewed"));
        assert!(rejected(true).contains("musterctl replace MACHINE"));
        let codes = [tonic::Code::Unauthenticated, tonic::Code::PermissionDenied, tonic::Code::Unavailable];
        assert_eq!(codes.map(is_refusal), [true, true, false]);
    }

    #[test]
    fn what_each_address_said_is_told() {
        let of_all = |errors: Vec<LinkError>| {
            LinkError::of_all(
                errors.into_iter().zip(["a:1", "b:1"]).map(|(error, at)| (at.to_owned(), error)).collect(),
                false,
            )
        };
        let gone = || LinkError::Connect(ConnectError::Timeout { address: "a:1".to_owned() });
        assert!(matches!(of_all(vec![gone()]), LinkError::Connect(_)), "one speaks for itself");
        let all = of_all(vec![LinkError::NotAccepted, gone()]);
        assert!(all.is_refusal(), "somebody answered");
        let said = with_advice(&all, false);
        assert!(said.starts_with("a:1: the coordinator does not accept") && said.contains("; b:1: a:1 does"), "{said}");
        assert!(matches!(of_all(vec![LinkError::Revoked, LinkError::NotAccepted]).most(), LinkError::Revoked));
    }

    #[test]
    fn only_a_session_that_held_makes_the_wait_short_again() {
        assert_eq!(tries_after(3, None), 4, "a coordinator that accepts and says nothing");
        assert_eq!(tries_after(3, Some(SESSION_GOOD_AFTER / 2)), 4);
        assert_eq!(tries_after(3, Some(SESSION_GOOD_AFTER)), 0);
    }

    #[test]
    fn waits_grow_and_end_growing() {
        for (tries, min_ms, max_ms) in
            [(0, 100, 300), (1, 100, 300), (2, 200, 600), (4, 800, 2_400), (99, 7_500, 22_500)]
        {
            let wait = reconnect_after(tries);
            assert!(
                wait >= Duration::from_millis(min_ms) && wait <= Duration::from_millis(max_ms),
                "{tries}: {wait:?}"
            );
        }
    }
}
