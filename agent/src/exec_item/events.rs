//! Events of exec-item in one poll: signals, and output of the hosted program. It works without a runtime or threads.

use std::{
    io::{self, PipeReader, Read},
    os::fd::AsFd,
    time::Instant,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};

use super::{Cause, HostError};
use crate::output::OutputLog;

/// Size of one read: the capacity of a pipe.
const READ_BYTES: usize = 64 * 1024;

/// PID of the service manager, which stops units; a cancel comes from a person (`kill`).
const SERVICE_MANAGER: u32 = 1;

/// Event sources of exec-item; see the module.
pub(super) struct Events {
    signals: SignalFd,
    output: Option<PipeReader>,
    buffer: Vec<u8>,
}

/// Events of one wait. All empty = timeout.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Happened {
    /// A child changed state.
    pub(super) child: bool,
    /// The attempt must end for this reason.
    pub(super) cancel: Option<Cause>,
}

impl Events {
    /// Takes the signals over, for this thread and those it starts.
    pub(super) fn new() -> Result<Self, HostError> {
        let mask: SigSet = [Signal::SIGCHLD, Signal::SIGTERM].into_iter().collect();
        let failed = HostError::system("take the signals over");
        mask.thread_block().map_err(&failed)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&mask, flags).map_err(&failed)?;
        Ok(Self { signals, output: None, buffer: vec![0; READ_BYTES] })
    }

    /// Reads this output from now on.
    pub(super) fn watch(&mut self, output: PipeReader) -> Result<(), HostError> {
        fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(HostError::system("watch the output"))?;
        self.output = Some(output);
        Ok(())
    }

    /// Have all writers of the output closed it?
    pub(super) fn output_closed(&self) -> bool {
        self.output.is_none()
    }

    /// Waits for an event, at most until `until`. Output goes into the log as it arrives.
    pub(super) fn wait(&mut self, until: Option<Instant>, log: &mut OutputLog) -> Result<Happened, HostError> {
        let failed = HostError::system("wait for the program");
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.output.iter().map(|output| PollFd::new(output.as_fd(), PollFlags::POLLIN)));
        match poll(&mut fds, timeout(until)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        let readable = fds.get(1).and_then(PollFd::any).unwrap_or(false);
        if readable {
            self.read(log).map_err(&failed)?;
        }
        let mut happened = Happened::default();
        while let Some(info) = self.signals.read_signal().map_err(|errno| failed(errno.into()))? {
            match i32::try_from(info.ssi_signo).map(Signal::try_from) {
                Ok(Ok(Signal::SIGTERM)) if info.ssi_pid == SERVICE_MANAGER => happened.cancel = Some(Cause::Stopped),
                Ok(Ok(Signal::SIGTERM)) => happened.cancel = Some(Cause::Cancelled),
                _ => happened.child = true,
            }
        }
        Ok(happened)
    }

    fn read(&mut self, log: &mut OutputLog) -> io::Result<()> {
        let Some(output) = &mut self.output else { return Ok(()) };
        match output.read(&mut self.buffer) {
            Ok(0) => self.output = None,
            Ok(count) => log.write(self.buffer.get(..count).unwrap_or_default()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Poll timeout, rounded up: an early end of the wait would only spin.
fn timeout(until: Option<Instant>) -> PollTimeout {
    let Some(until) = until else { return PollTimeout::NONE };
    let left = until.saturating_duration_since(Instant::now());
    PollTimeout::try_from(left.as_millis() + u128::from(!left.is_zero())).unwrap_or(PollTimeout::MAX)
}
