//! The link to the coordinator: dials, says hello, keeps the session, renews the certificate, and dials again. Runs as
//! one task beside the engine and talks with it by messages. It decides nothing about items and records nothing but
//! the identity; wire values pass through `convert` here and go no further.

pub mod logs;
mod report;
mod session;

use std::{
    path::Path,
    pin::{Pin, pin},
    time::Duration,
};

use muster_proto::{
    address::Addresses,
    convert::{Hello, WireError},
    model::{AckProof, Assignment, AuthCode, Epoch, HostFacts, ItemName, Seq, SwarmCall},
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
use session::{Lent, Session};

/// First wait before dialling again.
const RECONNECT_MIN: Duration = Duration::from_millis(200);
/// Longest wait before dialling again, jitter aside.
const RECONNECT_MAX: Duration = Duration::from_secs(15);
/// A session that held so long makes the next wait the first again.
const SESSION_GOOD_AFTER: Duration = Duration::from_secs(5);
/// Wait between two tries to renew.
const RENEW_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The coordinator answers, but will not have us: after so many times our certificate may have run out by its clock.
const REFUSALS_BEFORE_RENEWAL: u32 = 3;
/// How often the machine's facts are looked at, in milliseconds.
pub const FACTS_EVERY_MS: u64 = 60_000;
/// Messages from the link that the engine has not taken yet.
pub const ENGINE_QUEUE_MAX: usize = 64;

/// What the link tells the engine.
#[derive(Debug)]
pub enum FromLink {
    /// A session is being opened: answer with the hello.
    HelloWanted {
        /// What the machine is.
        facts: Box<HostFacts>,
        /// Where to.
        answer: oneshot::Sender<Hello>,
    },
    /// The coordinator welcomed us. Ends the session before, if there is one.
    Up {
        /// Of that coordinator.
        epoch: Epoch,
        /// Proves that the epoch was told.
        code: AuthCode,
        /// Dropping it closes the session.
        session: SessionHandle,
    },
    /// The session ended.
    Down,
    /// An assignment came.
    Assigned(Assignment),
    /// The coordinator has every event up to this one.
    Acked(Seq, AckProof),
    /// The coordinator asks something of this machine's swarm.
    SwarmCalled(SwarmCall),
    /// Somebody wants to read output.
    LogWanted {
        /// Names the reader.
        request_id: u64,
        /// None: of the item that runs or ran last.
        item: Option<ItemName>,
        /// On until the attempt ends.
        follow: bool,
    },
    /// Nobody reads any more.
    LogCanceled {
        /// Names the reader.
        request_id: u64,
    },
}

/// What a coordinator of another CA means.
const ANOTHER_COORDINATOR: &str = "; another coordinator answers there than enrolled this machine: is it the right \
                                   address? If it was made anew: `muster-agent enroll --force` with a token of it";

/// The reasons that are left when a certificate is rejected and was not renewed either.
const SHUT_OUT: &str = ", and does not renew it: it ran out too long ago, or the record there does not have this \
                        machine; to come back: `musterctl replace MACHINE`, then here `muster-agent enroll --force` \
                        with a new token; every item runs again then";
/// What is done about a certificate that is rejected, before anybody need do anything.
const TO_BE_RENEWED: &str = "; it may have run out, and is to be renewed: nothing need be done yet";

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The identity's credentials cannot be used.
    #[error("this machine's credentials cannot be used; enrol it anew with `muster-agent enroll --force`")]
    Credentials(#[from] TlsError),
    /// The coordinator rejects the certificate, and tells nobody why.
    #[error("the coordinator does not accept this machine's certificate")]
    NotAccepted,
    /// The record says that this identity was taken back. Nothing brings it back but a person.
    #[error(
        "this machine's identity was revoked, the machine was removed, or another took its place (`musterctl get \
         audit` says which): the agent dials no more; to come back: `musterctl replace MACHINE`, unless it was \
         removed, then here `systemctl stop muster-agent`, `muster-agent enroll --force` with a new token, and start \
         it. Was an older record put back, which lets it in? Restart the agent"
    )]
    Revoked,
    /// The coordinator closed the stream, saying why.
    #[error("the coordinator closed the link: {0}")]
    Refused(String),
    /// The coordinator closed the stream.
    #[error("the coordinator closed the link")]
    Closed,
    /// Nothing came for too long.
    #[error("the coordinator said nothing for {} s", session::WELCOME_TIMEOUT.as_secs())]
    Silent,
    /// Something else came than a welcome.
    #[error("the coordinator did not begin with a welcome")]
    NoWelcome,
    /// A message is not what it should be.
    #[error("a message of the coordinator is malformed")]
    Malformed(#[from] WireError),
    /// The coordinator does not take what we send.
    #[error("the coordinator takes our messages too slowly")]
    Full,
    /// None of several addresses gave a session.
    #[error("{all}")]
    Everywhere {
        /// The one that says most.
        most: Box<LinkError>,
        /// All of them, each with its address.
        all: String,
    },
    /// The engine stopped.
    #[error("the agent stops")]
    Stopping,
}

impl LinkError {
    /// What it comes to that there is no session at any of these addresses.
    fn of_all(mut failed: Vec<(String, Self)>, renewal_refused: bool) -> Self {
        let each = failed.iter().map(|(address, error)| format!("{address}: {}", with_advice(error, renewal_refused)));
        let all = each.collect::<Vec<_>>().join("; ");
        // What a coordinator said weighs more than that nobody answers elsewhere.
        failed.sort_by_key(|(_, error)| (matches!(error, Self::Revoked), error.is_refusal()));
        match failed.pop() {
            Some((_, only)) if failed.is_empty() => only,
            Some((_, most)) => Self::Everywhere { most: Box::new(most), all },
            None => Self::Closed,
        }
    }

    /// The one that counts, where it was tried at several addresses.
    fn most(&self) -> &Self {
        if let Self::Everywhere { most, .. } = self { most } else { self }
    }

    /// Did a coordinator answer, and turn us away?
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

/// The link's own memory.
pub struct Link {
    identity: Identity,
    dir: StateDir,
    /// How often the machine's facts are looked at.
    facts_every: Duration,
    engine: mpsc::Sender<FromLink>,
    /// Where the coordinator says that it is reached.
    told: watch::Sender<Option<Addresses>>,
    /// Looks at the machine's containers, for one session after the other: what an engine that does not answer said
    /// last is not forgotten with a session. None: they are not this agent's to report.
    containers: Option<Watch>,
    /// How the last coordinator wants the InternalIP chosen.
    choice: AddressChoice,
    /// When the certificate is to be renewed. Counted on the monotonic clock, so that a clock that jumps neither
    /// delays a renewal nor repeats it.
    renew_at: Instant,
    /// No renewal of a certificate that has run out is tried before.
    renew_expired_not_before: Instant,
    /// Was the last renewal of a certificate that had run out refused?
    renewal_refused: bool,
    /// The reason that was logged last since there was a session. Empty = none.
    complained: String,
}

impl Link {
    /// A link as `identity`, to the engine at `engine`.
    #[must_use]
    pub fn new(identity: Identity, dir: StateDir, facts_every: Duration, engine: mpsc::Sender<FromLink>) -> Self {
        let now = Instant::now();
        let renew_at = now + Duration::from_millis(identity.renew_in_ms(unix_ms()));
        Self {
            identity,
            dir,
            facts_every,
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

    /// Keeps a session up until the engine is gone.
    pub async fn run(mut self) {
        let mut tries = 0;
        let mut refusals = 0;
        // Agents of a demo, many on one machine, are none of that machine's own.
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
                // What runs is left to finish, and the engine goes on; there is nobody to talk to.
                return self.engine.closed().await;
            }
            tokio::time::sleep(reconnect_after(tries)).await;
        }
    }

    /// A session, at the first address that gives one.
    async fn open(&self) -> Result<Session, LinkError> {
        let mut failed = Vec::new();
        for address in self.identity.coordinators.iter() {
            let (choice, facts_every) = (&self.choice, self.facts_every);
            let containers = self.containers.as_ref().map(Watch::containers);
            let lent = Lent { choice, facts_every, containers, told: &self.told, engine: &self.engine };
            match Session::open(&self.identity, address, lent).await {
                Err(LinkError::Stopping) => return Err(LinkError::Stopping),
                Err(error) => failed.push((address.to_owned(), error)),
                opened => return opened,
            }
        }
        Err(LinkError::of_all(failed, self.renewal_refused))
    }

    /// An operator may have set other addresses (`muster-agent set-coordinator`).
    fn read_addresses(&mut self) {
        // What cannot be read now says nothing else than before.
        if let Ok(kept) = Identity::load(&self.dir.identity()) {
            self.identity.coordinators = kept.coordinators;
        }
    }

    /// Records other addresses, if these are others.
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

    /// The session that follows the running one after a renewal; or why that one ended, and none follows.
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
            // The coordinator ends the old session when it hears of the new one, and that before it welcomes us there.
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

    /// Renews the certificate when that is due. Tries until it succeeds.
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

    /// Asks to have the certificate renewed that was not accepted for this reason; what the reason is then.
    async fn renew_expired(&mut self, error: LinkError) -> LinkError {
        if Instant::now() < self.renew_expired_not_before {
            return error;
        }
        self.renew_expired_not_before = Instant::now() + RENEW_AGAIN_AFTER;
        let renewed = self.identity.renew_expired().await;
        let revoked = matches!(renewed, Err(IdentityError::Revoked));
        // One that nobody answered was refused by nobody.
        self.renewal_refused = matches!(renewed, Err(IdentityError::Refused { code, .. }) if is_refusal(code));
        self.take(renewed);
        if revoked { LinkError::Revoked } else { error }
    }

    fn take(&mut self, renewed: Result<Identity, IdentityError>) -> bool {
        match renewed {
            Ok(identity) => {
                match identity.save_renewed(&self.dir.identity()) {
                    Ok(()) => info!("certificate renewed"),
                    // Good as long as this process lives; after that the old one may still be exchanged for a week.
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

    /// Says why there is no session; in the log once for each reason.
    fn complain(&mut self, error: &LinkError) {
        let text = with_advice(error, self.renewal_refused);
        LinkReport::disconnected(&self.identity.coordinators.to_string(), &text).save(&self.dir);
        let reason = match error.most() {
            // It says what time it is.
            LinkError::Connect(ConnectError::ClockSkew { .. }) => "ClockSkew",
            _ => &text,
        };
        if self.complained != reason {
            warn!(coordinator = %self.identity.coordinators, error = %text, "no link to the coordinator");
            reason.clone_into(&mut self.complained);
        }
    }
}

/// Does this answer say no, rather than that there is none just now?
const fn is_refusal(code: tonic::Code) -> bool {
    matches!(code, tonic::Code::Unauthenticated | tonic::Code::PermissionDenied)
}

/// An error with what caused it, and what to do about it: where another coordinator answers than ours, and where ours
/// rejects the certificate, by what came of its renewal.
fn with_advice(error: &LinkError, renewal_refused: bool) -> String {
    let mut text = chain(error);
    if matches!(error, LinkError::NotAccepted) {
        text += if renewal_refused { SHUT_OUT } else { TO_BE_RENEWED };
    }
    // rustls' words, whatever is wrong with the certificate.
    if matches!(error, LinkError::Connect(ConnectError::Tls { .. })) && text.contains("invalid peer certificate") {
        text += ANOTHER_COORDINATOR;
    }
    text
}

/// Tries in a row that came to nothing, one more included. `held`: for how long there was a session; None: there was
/// none, however long it took to find that out.
fn tries_after(tries: u32, held: Option<Duration>) -> u32 {
    if held >= Some(SESSION_GOOD_AFTER) { 0 } else { tries.saturating_add(1) }
}

/// Waits double with each try; spread, so that a fleet does not come back in step.
fn reconnect_after(tries: u32) -> Duration {
    spread(RECONNECT_MIN.saturating_mul(1 << tries.saturating_sub(1).min(10)).min(RECONNECT_MAX))
}

/// An error with what caused it, in one line.
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
