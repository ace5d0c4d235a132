//! Faults on demand: requests that the server refuses, delays or loses.

use std::time::Duration;

/// Effect of a fault on a matching request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// 429 of API Priority and Fairness: text/plain, Retry-After 1. The request is not executed.
    PriorityAndFairness,
    /// 503 of a server that is starting, Retry-After 5.
    Starting,
    /// 401, as after the token expired.
    Unauthorized,
    /// 403, as after the role was changed.
    Forbidden,
    /// The request stays open, and is never executed.
    Hang,
    /// The request waits, then it is executed if the client is still connected.
    Delay(Duration),
    /// The request is executed after this time, even if the client disconnected.
    LandLate(Duration),
    /// The connection closes before the request is executed.
    CutBefore,
    /// The connection closes after the request is executed: the answer is lost.
    CutAfter,
}

/// A fault for the next requests that match.
#[derive(Clone, Debug)]
pub struct Fault {
    pub(super) action: FaultAction,
    pub(super) left: usize,
    every: usize,
    matched: usize,
    verb: Option<String>,
    resource: Option<String>,
    user: Option<String>,
}

impl Fault {
    /// A fault for the next `count` requests.
    pub fn next(count: usize, action: FaultAction) -> Self {
        Self { action, left: count, every: 1, matched: 0, verb: None, resource: None, user: None }
    }

    /// A fault for every request until `Kubernetes::clear_faults`.
    pub fn always(action: FaultAction) -> Self {
        Self::next(usize::MAX, action)
    }

    /// Only for every `every`-th request that matches.
    #[must_use]
    pub fn every(mut self, every: usize) -> Self {
        self.every = every.max(1);
        self
    }

    /// Only for this verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    #[must_use]
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = Some(verb.to_owned());
        self
    }

    /// Only for this resource, such as `nodes` or `pods/eviction`, or for a path such as `/readyz`.
    #[must_use]
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    /// Only for this user.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    fn matches(&self, verb: &str, resource: &str, user: &str) -> bool {
        let allows = |wanted: &Option<String>, actual: &str| wanted.as_deref().is_none_or(|wanted| wanted == actual);
        self.left > 0 && allows(&self.verb, verb) && allows(&self.resource, resource) && allows(&self.user, user)
    }
}

/// The action for this request. Uses up one of the first fault that matches.
pub(super) fn take(faults: &mut Vec<Fault>, verb: &str, resource: &str, user: &str) -> Option<FaultAction> {
    let is_due = |fault: &mut Fault| {
        let matches = fault.matches(verb, resource, user);
        fault.matched += usize::from(matches);
        matches && fault.matched.is_multiple_of(fault.every)
    };
    let fault = faults.iter_mut().find_map(|fault| is_due(fault).then_some(fault))?;
    if fault.left != usize::MAX {
        fault.left -= 1;
    }
    let action = fault.action;
    faults.retain(|fault| fault.left > 0);
    Some(action)
}
