//! Failures: the error, the operator's next step, and the exit status for scripts. gRPC codes are mapped only here.

use std::{error::Error, io, process::ExitCode};

use muster_proto::{
    printable::{printable, printable_lines},
    tls::{ConnectError, without_manual},
};
use tonic::{Code, Status};

use crate::terminal;

/// Exit statuses, as documented in docs/reference/musterctl.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success.
    Done = 0,
    /// Failure.
    Failed = 1,
    /// Wrong input: the command line, a manifest, an unknown name.
    BadInput = 2,
    /// Permission denied: credentials are missing, expired, revoked, or have the wrong role.
    NotAllowed = 3,
    /// Conflicts with the current state; may succeed later.
    Refused = 4,
    /// The coordinator is unreachable.
    Unreachable = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<Code> for Exit {
    fn from(code: Code) -> Self {
        match code {
            Code::Ok => Self::Done,
            Code::InvalidArgument | Code::NotFound | Code::OutOfRange => Self::BadInput,
            Code::PermissionDenied | Code::Unauthenticated => Self::NotAllowed,
            Code::AlreadyExists | Code::FailedPrecondition | Code::Aborted | Code::ResourceExhausted => Self::Refused,
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Self::Unreachable,
            Code::Unknown | Code::Unimplemented | Code::Internal | Code::DataLoss => Self::Failed,
        }
    }
}

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    /// Exit status.
    pub exit: Exit,
    /// Empty: everything has been printed.
    what: String,
    causes: Vec<String>,
    next: Option<String>,
}

impl Failure {
    /// A failure with this exit status and message.
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), causes: Vec::new(), next: None }
    }

    /// A general failure.
    pub fn failed(what: impl Into<String>) -> Self {
        Self::new(Exit::Failed, what)
    }

    /// A failure because of wrong input.
    pub fn bad_input(what: impl Into<String>) -> Self {
        Self::new(Exit::BadInput, what)
    }

    /// A failure with this exit status whose message has been printed.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    /// Add the cause and its own causes.
    pub fn because(self, cause: impl Error + 'static) -> Self {
        self.owing_to(&cause)
    }

    fn owing_to(mut self, cause: &(dyn Error + 'static)) -> Self {
        let causes = std::iter::successors(Some(cause), |&error| error.source());
        self.causes.extend(causes.map(|cause| without_manual(&cause.to_string()).to_owned()));
        self
    }

    /// Add what to do next.
    pub fn next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// The message in one line, next step excluded.
    pub fn line(&self) -> String {
        let mut line = self.what.clone();
        for cause in &self.causes {
            if !line.contains(cause.as_str()) {
                line.push_str(": ");
                line.push_str(cause);
            }
        }
        printable(&line)
    }

    /// Print it to stderr.
    pub(crate) fn print(&self) {
        if self.what.is_empty() {
            return;
        }
        terminal::say(&format!("error: {}", self.line()));
        for line in self.next.iter().flat_map(|next| next.lines()) {
            terminal::say(&printable_lines(&format!("  {line}")));
        }
    }

    /// The failure of a connection.
    pub(crate) fn connect(address: &str, error: ConnectError) -> Self {
        let (exit, next) = match &error {
            ConnectError::Tls { .. } if error.is_cut() => (Exit::Unreachable, if_unreachable(address)),
            ConnectError::Resolve { .. } | ConnectError::NotTls13 { .. } => {
                let exit = if error.is_malformed_address() { Exit::BadInput } else { Exit::Unreachable };
                (exit, "Is `coordinator` in your config right? It is HOST:PORT.".to_owned())
            }
            ConnectError::Tcp { .. } | ConnectError::Timeout { .. } | ConnectError::Http { .. } => {
                (Exit::Unreachable, if_unreachable(address))
            }
            ConnectError::ClockSkew { .. } => (
                Exit::Failed,
                "Which clock is wrong, this machine's or the coordinator's? Set it (timedatectl), then try again."
                    .to_owned(),
            ),
            ConnectError::PinMismatch { .. } | ConnectError::Tls { .. } if alert(&error).is_none() => (
                Exit::NotAllowed,
                format!("Is {address} the coordinator that made your config? Its CA stands in the config's `ca`."),
            ),
            ConnectError::PinMismatch { .. } | ConnectError::Tls { .. } => (Exit::NotAllowed, new_credentials()),
        };
        Self::new(exit, "no connection to the coordinator").because(error).next(next)
    }

    /// The failure of a call, from the coordinator's answer.
    pub(crate) fn status(address: &str, status: &Status) -> Self {
        if let Some(alert) = alert(status) {
            return Self::new(Exit::NotAllowed, format!("the coordinator refused our certificate ({alert})"))
                .next(new_credentials());
        }
        let exit = Exit::from(status.code());
        let what = match status.message() {
            "" => format!("the coordinator answered {:?}", status.code()),
            message => message.to_owned(),
        };
        let failure = Self::new(exit, what);
        match exit {
            Exit::Unreachable => match status.source() {
                Some(source) => failure.owing_to(source).next(if_unreachable(address)),
                None => failure.next(if_unreachable(address)),
            },
            // The credentials are valid, but lack this permission.
            Exit::NotAllowed if status.code() == Code::PermissionDenied => {
                failure.next(format!("What these are for: musterctl version. {}", credentials_from("Other")))
            }
            Exit::NotAllowed => failure.next(new_credentials()),
            Exit::Failed => failure.next("The coordinator's log says more: journalctl -u muster-coordinator"),
            Exit::Done | Exit::BadInput | Exit::Refused => failure,
        }
    }
}

fn if_unreachable(address: &str) -> String {
    format!("Is the coordinator running at {address}? On its machine: systemctl status muster-coordinator")
}

fn new_credentials() -> String {
    credentials_from("New")
}

fn credentials_from(which: &str) -> String {
    format!("{which} credentials come from the coordinator's machine: muster-coordinator credentials --help")
}

/// The TLS alert of the peer, if one caused the error: with TLS 1.3, a refused client certificate shows only after the
/// handshake.
fn alert(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let tls = error.downcast_ref::<rustls::Error>().or_else(|| inner?.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(alert)) = tls {
            return Some(format!("{alert:?}"));
        }
        next = error.source();
    }
    None
}

/// The failure for an unreadable document: the coordinator has another version.
pub fn not_this_version(source: serde_json::Error) -> Failure {
    Failure::failed("the coordinator sent a document this musterctl cannot read")
        .because(source)
        .next("Compare: musterctl version. `-o json` shows the document as it is.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_exit_codes() {
        for (status, expected) in [
            (Status::invalid_argument("x"), Exit::BadInput),
            (Status::not_found("x"), Exit::BadInput),
            (Status::permission_denied("x"), Exit::NotAllowed),
            (Status::unauthenticated("x"), Exit::NotAllowed),
            (Status::failed_precondition("x"), Exit::Refused),
            (Status::aborted("x"), Exit::Refused),
            (Status::unavailable("x"), Exit::Unreachable),
            (Status::deadline_exceeded("x"), Exit::Unreachable),
            (Status::internal("x"), Exit::Failed),
        ] {
            assert_eq!(Failure::status("a:1", &status).exit, expected, "{status:?}");
        }
    }

    #[test]
    fn credentials_that_are_not_for_this_are_told_from_bad_ones() {
        for (status, theirs) in [(Status::permission_denied("x"), true), (Status::unauthenticated("x"), false)] {
            let next = Failure::status("a:1", &status).next.expect("advice");
            assert_eq!(next.contains("musterctl version"), theirs, "{next}");
            assert!(next.contains("muster-coordinator credentials"), "{next}");
        }
    }

    #[test]
    fn a_refused_certificate_is_not_called_unreachable() {
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateExpired);
        let mut status = Status::unavailable("transport error");
        status.set_source(std::sync::Arc::new(io::Error::other(alert)));
        let failure = Failure::status("a:1", &status);
        assert_eq!(failure.exit, Exit::NotAllowed);
        assert!(failure.line().contains("CertificateExpired"), "{failure:?}");
    }

    #[test]
    fn a_coordinator_that_dies_in_the_handshake_is_not_another_one() {
        let tls = |source| ConnectError::Tls { address: "a:1".to_owned(), source };
        let gone = Failure::connect("a:1", tls(io::Error::from(io::ErrorKind::ConnectionReset)));
        assert_eq!(gone.exit, Exit::Unreachable);
        let other = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let other = Failure::connect("a:1", tls(io::Error::new(io::ErrorKind::InvalidData, other)));
        assert_eq!(other.exit, Exit::NotAllowed);
    }

    #[test]
    fn an_address_that_can_never_be_right_is_bad_input() {
        let resolve = |address: &str| {
            let (address, source) = (address.to_owned(), io::Error::other("no such name"));
            Failure::connect("a:1", ConnectError::Resolve { address, source }).exit
        };
        for address in ["https://coordinator:7443", "coordinator", "coordinator:99999"] {
            assert_eq!(resolve(address), Exit::BadInput, "{address}");
        }
        assert_eq!(resolve("coordinator:7443"), Exit::Unreachable, "its name may be known tomorrow");
    }

    #[test]
    fn a_cause_is_said_once() {
        let failure = Failure::failed("cannot read x: gone").because(io::Error::other("gone"));
        assert_eq!(failure.line(), "cannot read x: gone");
        assert_eq!(Failure::failed("a\nb").because(io::Error::other("c")).line(), "a^Jb: c");
    }
}
