//! The maintenance handshake as custom resources: their definitions, and who answers there.

use std::collections::BTreeSet;

use muster_proto::{model::MaintenanceObjects, resource::CheckLine};

use super::{APPLY_MAINTENANCE, bounded, note, ok, problem, then};
use crate::facts::kubernetes::{
    KubernetesFailure,
    check::{Definitions, Handshake},
};

/// The findings. `spec`: which controllers the manifest names.
pub(super) fn lines(spec: &MaintenanceObjects, found: &Handshake) -> Vec<CheckLine> {
    let mut lines = match &found.definitions {
        Ok(definitions) => definition_lines(definitions),
        Err(failure) => vec![unlisted("the custom resource definitions cannot be read", failure)],
    };
    match &found.controllers {
        Ok(held) => lines.extend(bounded(controller_lines(spec, held))),
        Err(failure) => lines.push(unlisted("the workload locks cannot be listed", failure)),
    }
    lines
}

fn unlisted(what: &str, failure: &KubernetesFailure) -> CheckLine {
    let line = problem(format!("{what}: {failure}"));
    match failure {
        KubernetesFailure::Forbidden(_) => then(line, APPLY_MAINTENANCE),
        _ => line,
    }
}

fn definition_lines(Definitions { usable, absent, unusable }: &Definitions) -> Vec<CheckLine> {
    let mut lines: Vec<CheckLine> = unusable
        .iter()
        .map(|why| then(problem(why.as_str()), "Muster changes no definition: whoever made it installs a newer one."))
        .collect();
    if !absent.is_empty() {
        let line = note(format!("custom resource definitions are not there: {}", absent.join(", ")));
        lines.push(then(line, "Muster creates them when it looks for requests and locks."));
    } else if unusable.is_empty() {
        lines.push(ok(format!(
            "all {usable} custom resource definitions are there, with the fields that Muster writes"
        )));
    }
    lines
}

fn controller_lines(spec: &MaintenanceObjects, held: &BTreeSet<String>) -> Vec<CheckLine> {
    let named: BTreeSet<&str> = spec.controllers.iter().map(|controller| controller.name.as_str()).collect();
    let both = held.iter().filter(|name| named.contains(name.as_str()));
    let both: Vec<CheckLine> =
        both.map(|name| ok(format!("{name} (spec.kubernetes.maintenance.controllers) holds locks"))).collect();
    let unnamed = held.iter().filter(|name| !named.contains(name.as_str())).map(|name| {
        let line = note(format!(
            "{name} holds locks, and is not in spec.kubernetes.maintenance.controllers: where it has none, Muster \
             takes that for an answer 10 s after the request"
        ));
        then(line, "Name it there if it makes locks only when it sees a request.")
    });
    let silent = named.iter().filter(|name| !held.contains(**name)).map(|name| {
        let line = note(format!("{name} (spec.kubernetes.maintenance.controllers) holds no lock"));
        then(line, "Is that its name (spec.controllerName of its locks), and does it run?")
    });
    both.into_iter().chain(unnamed).chain(silent).collect()
}

#[cfg(test)]
mod tests {
    use muster_proto::{model::ObjectController, resource::LineKind};

    use super::*;

    fn said(controllers: &[&str], found: &Handshake) -> Vec<(LineKind, String)> {
        let of = |name: &&str| ObjectController {
            name: (*name).to_owned(),
            finalizer: None,
            handled_annotation: None,
            node_labels: Vec::new(),
        };
        let spec = MaintenanceObjects { controllers: controllers.iter().map(of).collect() };
        lines(&spec, found).into_iter().map(|line| (line.kind, line.text)).collect()
    }

    fn found(definitions: Definitions, controllers: &[&str]) -> Handshake {
        Handshake {
            missing: Ok(Vec::new()),
            definitions: Ok(definitions),
            controllers: Ok(controllers.iter().map(|name| (*name).to_owned()).collect()),
        }
    }

    fn sound() -> Definitions {
        Definitions { usable: 6, ..Definitions::default() }
    }

    #[test]
    fn controllers_are_compared_with_manifest() {
        let all = said(&["openstack", "storage"], &found(sound(), &["openstack", "tungstenfabric"]));
        let kinds: Vec<LineKind> = all.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [LineKind::Ok, LineKind::Ok, LineKind::Note, LineKind::Note], "{all:?}");
        for (at, words) in [
            (0, "all 6 custom resource definitions are there"),
            (1, "openstack (spec.kubernetes.maintenance.controllers) holds locks"),
            (2, "tungstenfabric holds locks, and is not in"),
            (3, "storage (spec.kubernetes.maintenance.controllers) holds no lock"),
        ] {
            assert!(all[at].1.starts_with(words), "{all:?}");
        }
        assert_eq!(said(&[], &found(sound(), &[])).len(), 1, "nothing to compare");
    }

    #[test]
    fn definitions_that_cannot_be_used_are_problems() {
        let why = "the custom resource definition a.lcm.mirantis.com is too old: it has no spec.scope".to_owned();
        let old = Definitions { usable: 5, unusable: vec![why.clone()], absent: Vec::new() };
        assert_eq!(said(&[], &found(old, &[])), [(LineKind::Problem, why)]);
        let absent = vec!["b.lcm.mirantis.com".to_owned(), "c.lcm.mirantis.com".to_owned()];
        let absent = Definitions { usable: 4, unusable: Vec::new(), absent };
        let all = said(&[], &found(absent, &[]));
        assert!(
            matches!(&all[..], [(LineKind::Note, text)] if text.ends_with("b.lcm.mirantis.com, c.lcm.mirantis.com"))
        );
    }

    #[test]
    fn what_may_not_be_looked_at_is_a_problem() {
        let forbidden = KubernetesFailure::Forbidden("no".to_owned());
        let found =
            Handshake { missing: Ok(Vec::new()), definitions: Err(forbidden.clone()), controllers: Err(forbidden) };
        let lines = lines(&MaintenanceObjects::default(), &found);
        assert_eq!(lines.len(), 2, "{lines:?}");
        let sends =
            |line: &CheckLine| line.kind == LineKind::Problem && line.next.as_deref() == Some(APPLY_MAINTENANCE);
        assert!(lines.iter().all(sends), "{lines:?}");
    }
}
