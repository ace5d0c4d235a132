//! The start of an update: a cluster deployed without faults, its controllers running, a newer manifest applied. Also
//! operator actions during the update.

use std::collections::BTreeMap;

use muster_coordinator::{
    core::{Input, Request, update::Options},
    facts::MachineRow,
};
use muster_proto::model::{ClusterSpec, MachineName, MachineSpec, MachineType, Scope};

use super::{World, controllers::Controller, fate::Fate, interventions, manifest};
use crate::{invariants::Violation, rng::Rng};

/// Permille of seeds in which items leave the manifest, and return.
const DROPS_PERMILLE: u64 = 150;

impl World {
    /// Deploys without faults, and starts an update; after that faults may occur.
    pub(crate) fn begin_update(&mut self) -> Result<(), Violation> {
        let fate = self.plan.fate;
        self.chaos = false;
        self.plan.fate = Fate { fail_permille: 0, hopeless_permille: 0, lost_permille: 0, ..fate };
        self.choose_outsider();
        self.rest()?;
        self.found_kubernetes();
        let first = self.drop_an_item()?;
        self.leave_out()?;
        self.controllers = Controller::some(&mut self.rng);
        self.limit_controllers();
        self.start_controllers()?;
        self.want_reboots();
        self.rest()?;
        self.release(first.as_ref())?;
        let update = self.update();
        if self.operator(update)?.is_ok() {
            self.count("update started");
        }
        self.plan.fate = fate;
        self.chaos = true;
        self.plan_intervention();
        self.choose_targeted_fault();
        Ok(())
    }

    /// Three or more keep their majority; fewer cannot, and an operator has accepted that.
    pub(crate) fn accepts_downtime(&self) -> bool {
        let control = |row: &&std::sync::Arc<MachineRow>| row.spec.machine_type == MachineType::Control;
        self.facts().is_some_and(|facts| facts.machines.values().filter(control).count() < 3)
    }

    fn update(&mut self) -> Request {
        let accept_control_plane_downtime = self.accepts_downtime();
        let scope = if self.rng.permille(500) { Scope::Os } else { Scope::Drain };
        // Separate random numbers again.
        let skip_backup = Rng::new(self.rng.clone().next()).permille(200);
        let options = Options { accept_control_plane_downtime, skip_backup, ..Options::of(scope) };
        Request::Update { cluster: manifest::cluster_name(), options }
    }

    /// A machine that is out of service, or on its way there.
    fn in_maintenance(&mut self) -> Option<MachineName> {
        let rows = self.facts()?.machines.values();
        let out = rows.filter(|row| row.update.as_ref().is_some_and(|mine| mine.maintenance.is_some()));
        let names: Vec<MachineName> = out.map(|row| row.name.clone()).collect();
        self.rng.pick(&names).cloned()
    }

    /// A reboot of some machines, or of all.
    fn reboot(&mut self) -> Request {
        let accept_control_plane_downtime = self.accepts_downtime();
        let names: Vec<MachineName> = self.machines.iter().map(|machine| machine.name.clone()).collect();
        let machines = names.into_iter().filter(|_| self.rng.permille(400)).collect();
        Request::Reboot { cluster: manifest::cluster_name(), machines, accept_control_plane_downtime }
    }

    /// Hosts report that they want to reboot.
    fn want_reboots(&mut self) {
        for index in 0..self.machines.len() {
            let wants = self.rng.permille(400);
            let Some(machine) = self.machines.get_mut(index) else { continue };
            machine.wants_reboot = wants;
            let (id, facts) = (machine.id, Box::new(machine.facts()));
            let Some(session) = machine.session else { continue };
            self.tell(Input::HostChanged { id, session, facts });
        }
    }

    /// Some clusters are updated to a manifest without an item of each type, which returns in the next release. Returns
    /// the manifest before that.
    fn drop_an_item(&mut self) -> Result<Option<ClusterSpec>, Violation> {
        let name = manifest::cluster_name();
        // Separate random numbers, so that the other seeds stay the same.
        let mut dice = Rng::new(!self.rng.clone().next());
        let known = self.facts().and_then(|facts| facts.spec(&name)).map(|spec| (**spec).clone());
        let Some(first) = known.filter(|_| dice.permille(DROPS_PERMILLE)) else { return Ok(None) };
        let spec = ClusterSpec { release: format!("{}.0", first.release), ..manifest::drop_items(&mut dice, &first) };
        let clusters = [(name.clone(), (spec, BTreeMap::new()))].into();
        let apply = Request::Apply { clusters, machines: BTreeMap::new(), dry_run: false };
        let accept_control_plane_downtime = self.accepts_downtime();
        let options = Options { accept_control_plane_downtime, ..Options::of(Scope::Os) };
        for request in [apply, Request::Update { cluster: name, options }] {
            if self.operator(request)?.is_err() {
                return Ok(None);
            }
        }
        self.rest()?;
        self.count("item dropped");
        Ok(Some(first))
    }

    /// The next release: a few edits, the items that an update before it dropped, and the controllers that must be
    /// asked.
    fn release(&mut self, dropped_from: Option<&ClusterSpec>) -> Result<(), Violation> {
        let name = manifest::cluster_name();
        let known = self.facts().and_then(|facts| facts.spec(&name)).map(|spec| (**spec).clone());
        let Some(mut spec) = known else { return Ok(()) };
        for _ in 0..self.rng.between(1, 4) {
            spec = manifest::edit(&mut self.rng, &spec);
        }
        if let Some(first) = dropped_from {
            manifest::put_back(&mut spec, first);
        }
        spec.release.push_str(".1");
        spec.workload_controllers = self.controllers.iter().map(|controller| controller.name.clone()).collect();
        spec.nodes_reboot_required = self.rng.permille(300);
        manifest::update_groups(&mut self.rng, &mut spec);
        // More machines may go at once than a controller releases.
        if let Some(most) = self.controllers.iter().filter_map(Controller::partial_limit).min() {
            spec.max_worker_upgrade_count = u32::try_from(most + 1).unwrap_or(4);
        }
        // Separate random numbers, so that the rest of the seed stays the same.
        let mut dice = Rng::new(self.rng.clone().next());
        spec.update_hooks = manifest::update_hooks(&mut dice, self.plan.counts);
        let machines = self.grouped(&spec);
        let clusters = [(name, (spec, BTreeMap::new()))].into();
        let applied = self.operator(Request::Apply { clusters, machines, dry_run: false })?;
        applied.map(|_| ()).map_err(|error| self.watcher.violation("sim", error))
    }

    /// Documents that put workers into a cluster's update groups; some stay in the default group.
    fn grouped(&mut self, spec: &ClusterSpec) -> BTreeMap<MachineName, (MachineSpec, BTreeMap<String, String>)> {
        let rows = self.facts().map(|facts| facts.machines.values().cloned().collect::<Vec<_>>()).unwrap_or_default();
        let mut documents = BTreeMap::new();
        for row in rows.iter().filter(|row| row.spec.machine_type == MachineType::Worker) {
            let group = self.rng.pick(&spec.update_groups).map(|group| group.name.clone());
            let update_group = group.filter(|_| self.rng.permille(800));
            let reboot_required = self.rng.permille(200);
            if update_group.is_some() || reboot_required {
                let document = MachineSpec { update_group, reboot_required, ..row.spec.clone() };
                documents.insert(row.name.clone(), (document, BTreeMap::new()));
            }
        }
        documents
    }

    /// An operator starts, pauses, resumes or aborts.
    pub(crate) fn steer(&mut self) -> Result<(), Violation> {
        let name = manifest::cluster_name();
        let rollout = self.facts().and_then(|facts| facts.open_rollout(&name)).map(|rollout| rollout.name.clone());
        let out = self.in_maintenance();
        let index = self.any_machine();
        let Some(machine) = self.machines.get(index).map(|machine| machine.name.clone()) else { return Ok(()) };
        let accept_control_plane_downtime = self.accepts_downtime();
        let enter = Request::EnterMaintenance { machine, accept_control_plane_downtime };
        let (what, request) = match (rollout, self.rng.between(0, 9)) {
            (None, 0..=4) => ("update started", self.update()),
            (None, 5..=7) => ("maintenance entered", enter),
            (None, _) => ("reboot started", self.reboot()),
            (Some(_), 0..=3) if let Some(machine) = out => ("maintenance left", Request::LeaveMaintenance { machine }),
            (Some(_), 4..=5) => ("maintenance entered", enter),
            (Some(rollout), 0..=3) => ("update paused", Request::Pause { rollout }),
            (Some(rollout), 6..=7) => ("update resumed", Request::Resume { rollout }),
            (Some(rollout), _) => ("update aborted", Request::Abort { rollout }),
        };
        let at = self.facts().map(|facts| interventions::stages(facts, &name)).unwrap_or_default();
        if self.operator(request)?.is_ok() {
            self.count(what);
            self.count_at(what, &at);
        }
        Ok(())
    }
}
