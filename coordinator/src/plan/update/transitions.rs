//! The transitions of a machine's turn: which step leads from which state to which, and the rule that lets it. The
//! documents show this list, and debug builds hold every recorded step to it.

use super::{MachineStep, turn::TurnState};
use crate::plan::drain::DrainStep;

impl TurnState {
    /// Its name in the documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hooks => "Hooks",
            Self::Idle => "Idle",
            Self::Preparing => "Preparing",
            Self::Prepared => "Prepared",
            Self::Deferred => "Deferred",
            Self::Harmless => "Harmless",
            Self::Requested => "Requested",
            Self::Draining => "Draining",
            Self::Entered => "Entered",
            Self::Disturbed => "Disturbed",
            Self::Withdrawing => "Withdrawing",
            Self::Renewing => "Renewing",
            Self::Out => "Out",
            Self::Stopping => "Stopping",
            Self::GivingBack { .. } => "GivingBack",
            Self::Returning { .. } => "Returning",
        }
    }
}

impl MachineStep {
    /// Its name in the documents.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Prepare(_) => "Prepare",
            Self::Prepared => "Prepared",
            Self::Stuck { .. } => "Stuck",
            Self::TakeSlot { .. } => "TakeSlot",
            Self::Drain(DrainStep::Begin(_)) => "Drain",
            Self::Drain(DrainStep::KubernetesTarget(_) | DrainStep::SwarmTarget(_)) => "DrainTarget",
            Self::Drain(DrainStep::Uncordon { .. }) => "Uncordon",
            Self::Drain(DrainStep::Uncordoned(_)) => "Uncordoned",
            Self::Enter(..) => "Enter",
            Self::Permit { .. } => "Permit",
            Self::Defer { .. } => "Defer",
            Self::OutOfService => "OutOfService",
            Self::PauseAll { .. } => "PauseAll",
            Self::Renew(_) => "Renew",
            Self::GiveBack { .. } => "GiveBack",
            Self::Finish => "Finish",
            Self::FreeSlot => "FreeSlot",
            Self::Leave => "Leave",
            Self::LeaveOut => "LeaveOut",
            Self::IsBack => "IsBack",
        }
    }
}

/// One or several transitions by the same step and rule.
#[derive(Debug)]
pub struct Transition {
    /// The step's name: [`super::MachineStep::name`].
    pub step: &'static str,
    /// States before.
    pub from: &'static [&'static str],
    /// States after. `-`: the machine has no part in the update any more.
    pub to: &'static [&'static str],
    /// What has to hold.
    pub rule: &'static str,
}

const fn of(
    step: &'static str,
    from: &'static [&'static str],
    to: &'static [&'static str],
    rule: &'static str,
) -> Transition {
    Transition { step, from, to, rule }
}

/// States in which a machine holds nothing.
const WITHOUT_SLOT: &[&str] = &["Hooks", "Idle", "Preparing", "Prepared", "Deferred"];
/// States before the point of no return.
const BEFORE_PERMIT: &[&str] = &["Requested", "Draining", "Entered"];

/// All transitions, in the order of a turn.
pub const TRANSITIONS: &[Transition] = &[
    of("Prepare", &["Idle", "Deferred"], &["Preparing", "Prepared", "Deferred"], "a place in prepare is free"),
    of("Prepared", &["Prepared", "Deferred"], &["Prepared", "Deferred"], "its prepare items are done"),
    of("TakeSlot", &["Prepared"], &["Requested"], "rules 1 to 3; something disruptive is due"),
    of("TakeSlot", &["Prepared"], &["Harmless"], "rules 1 to 3; nothing disruptive is due"),
    of("Enter", &["Harmless"], &["Harmless"], "at once"),
    of("FreeSlot", &["Harmless"], WITHOUT_SLOT, "something disruptive became due, or aborted"),
    of("Drain", BEFORE_PERMIT, &["Draining", "Entered"], "its locks are inactive"),
    of("DrainTarget", BEFORE_PERMIT, &["Draining", "Entered"], "its node is identified"),
    of("DrainTarget", &["Disturbed", "Withdrawing", "Out"], &["Disturbed", "Withdrawing", "Out"], "its node changed"),
    of("Drain", &["Disturbed", "Withdrawing", "Out"], &["Disturbed", "Withdrawing", "Out"], "it joined a swarm"),
    of("Enter", &["Requested", "Draining"], &["Entered"], "rule 4: locks inactive, node drained"),
    of("OutOfService", &["Requested", "Draining", "Withdrawing"], &["Out"], "rule 4, and nothing runs there"),
    of("Permit", &["Entered", "Disturbed"], &["Disturbed"], "rule 4 holds now"),
    of("Defer", BEFORE_PERMIT, &["GivingBack", "Stopping"], "the deadline of its locks or its drain passed"),
    of("Defer", &["Prepared"], &["Deferred"], "its locks did not return in time from an earlier request"),
    of("Renew", &["-"], &["Prepared"], "after the hooks after: a DaemonSet's pod on its node is of an older template"),
    of("TakeSlot", &["Prepared"], &["Renewing", "GivingBack"], "as above; pods are renewed on no other node"),
    of("Renew", &["Renewing"], &["Renewing", "GivingBack"], "its locks are inactive; a pod is renewed"),
    of("Defer", &["Renewing"], &["GivingBack"], "the deadline of its locks passed"),
    of("Uncordon", &["GivingBack"], &["GivingBack"], "its items are done, or nothing of it runs"),
    of("Uncordoned", &["GivingBack"], &["GivingBack"], "its node is as it was"),
    of("GiveBack", &["GivingBack"], &["Returning"], "its node is as it was"),
    of("Finish", &["GivingBack", "Returning"], &["-"], "all done; locks active again, or past their deadline"),
    of("FreeSlot", &["Returning"], WITHOUT_SLOT, "not done; locks active again, or past their deadline"),
    of("Finish", WITHOUT_SLOT, &["-"], "nothing is left to do"),
    of("Leave", WITHOUT_SLOT, &["-"], "aborted, revoked, or wanted back"),
    of("LeaveOut", WITHOUT_SLOT, &["-"], "lost, and its rollout began by itself"),
    of("IsBack", &["Deferred"], &["Hooks", "Idle", "Preparing", "Prepared"], "it was lost and is back"),
];

/// Steps that record a deadline: the machine stays, or is deferred.
const DEADLINES: &[&str] = &["Stuck", "PauseAll"];

/// Is this step one of the transitions? None: the machine has no part in the update.
#[must_use]
pub fn allows(from: Option<TurnState>, step: &str, to: Option<TurnState>) -> bool {
    let name = |state: Option<TurnState>| state.map_or("-", TurnState::name);
    let (from, to) = (name(from), name(to));
    let deadline = DEADLINES.contains(&step);
    let known = |one: &Transition| one.step == step && one.from.contains(&from) && one.to.contains(&to);
    (deadline && (from == to || to == "Deferred" || to == "GivingBack" || to == "Stopping"))
        || TRANSITIONS.iter().any(known)
}

/// The list as the documents show it.
#[must_use]
pub fn table() -> String {
    let row = |one: &Transition| {
        let (from, to) = (one.from.join(", "), one.to.join(", "));
        format!("| {from} | `{}` | {to} | {} |\n", one.step, one.rule)
    };
    let rows: String = TRANSITIONS.iter().map(row).collect();
    format!("| from | step | to | rule |\n|---|---|---|---|\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `docs/explanation/update.md` shows the list between two marks.
    #[test]
    fn documents_show_the_transitions() {
        let page = include_str!("../../../../docs/explanation/update.md");
        let shown = page.split("<!-- transitions -->\n").nth(1).and_then(|rest| rest.split("<!-- end -->").next());
        assert_eq!(shown.map(str::trim), Some(table().trim()), "paste this:\n{}", table());
    }

    #[test]
    fn unknown_steps_are_refused() {
        assert!(allows(Some(TurnState::Prepared), "TakeSlot", Some(TurnState::Requested)));
        assert!(!allows(Some(TurnState::Prepared), "Permit", Some(TurnState::Disturbed)));
        assert!(!allows(Some(TurnState::Disturbed), "GiveBack", Some(TurnState::Prepared)));
    }
}
