//! Counts the healthy tasks of a service, from a manager's data. PURE.

use std::collections::{BTreeMap, BTreeSet};

use bollard::models::{Service, Task, TaskSpecRestartPolicyConditionEnum as Restart, TaskState};
use muster_proto::{convert::as_line, model::SwarmService};

use super::lives;

/// A service with its tasks counted. None: its number of tasks is variable. That applies to global services, to jobs,
/// and to services whose tasks Docker never restarts (`--restart-condition none`): a lost task is lost for good, so
/// waiting would be endless.
pub(super) fn counted_of(service: Service, tasks: &[Task]) -> Option<SwarmService> {
    let (id, spec) = (service.id?, service.spec?);
    // Docker's default is one.
    let wanted = u32::try_from(spec.mode?.replicated?.replicas.unwrap_or(1)).unwrap_or(u32::MAX);
    let restart = spec.task_template.and_then(|template| template.restart_policy?.condition);
    if restart == Some(Restart::NONE) {
        return None;
    }
    let own = || tasks.iter().filter(|task| task.service_id.as_ref() == Some(&id));
    let complete = if restart == Some(Restart::ON_FAILURE) { completed(own()) } else { 0 };
    let running = u32::try_from(own().filter(|task| stays(task)).count() + complete).unwrap_or(u32::MAX);
    Some(SwarmService { running, name: as_line(&spec.name.unwrap_or(id)), wanted })
}

/// Does a task run, and is it meant to continue?
fn stays(task: &Task) -> bool {
    let running = Some(TaskState::RUNNING);
    task.desired_state == running && state(task) == running
}

fn state(task: &Task) -> Option<TaskState> {
    task.status.as_ref()?.state
}

/// Number of finished replicas: one task has completed, and all others have ended. They count as present.
fn completed<'a>(tasks: impl Iterator<Item = &'a Task>) -> usize {
    let mut slots: BTreeMap<i64, BTreeSet<bool>> = BTreeMap::new();
    for task in tasks.filter(|task| lives(task) || state(task) == Some(TaskState::COMPLETE)) {
        if let Some(slot) = task.slot {
            slots.entry(slot).or_default().insert(lives(task));
        }
    }
    slots.values().filter(|living| !living.contains(&true)).count()
}

#[cfg(test)]
mod tests {
    use bollard::models::{
        ServiceSpec, ServiceSpecMode, ServiceSpecModeReplicated, ServiceSpecModeReplicatedJob, TaskSpec,
        TaskSpecRestartPolicy, TaskStatus,
    };

    use super::*;

    const RUNNING: TaskState = TaskState::RUNNING;
    const SHUTDOWN: TaskState = TaskState::SHUTDOWN;

    fn service(mode: ServiceSpecMode, restart: Option<Restart>) -> Service {
        let policy = TaskSpecRestartPolicy { condition: restart, ..TaskSpecRestartPolicy::default() };
        let template = TaskSpec { restart_policy: Some(policy), ..TaskSpec::default() };
        let name = Some("web".to_owned());
        let spec = ServiceSpec { name, mode: Some(mode), task_template: Some(template), ..ServiceSpec::default() };
        Service { id: Some("s1".to_owned()), spec: Some(spec), ..Service::default() }
    }

    fn of_three(restart: Option<Restart>) -> Service {
        let replicated = Some(ServiceSpecModeReplicated { replicas: Some(3) });
        service(ServiceSpecMode { replicated, ..ServiceSpecMode::default() }, restart)
    }

    fn task(service: &str, slot: i64, desired: TaskState, state: TaskState) -> Task {
        Task {
            service_id: Some(service.to_owned()),
            slot: Some(slot),
            desired_state: Some(desired),
            status: Some(TaskStatus { state: Some(state), ..TaskStatus::default() }),
            ..Task::default()
        }
    }

    fn running(service: Service, tasks: &[Task]) -> Option<(u32, u32)> {
        counted_of(service, tasks).map(|counted| (counted.running, counted.wanted))
    }

    #[test]
    fn a_task_counts_while_it_runs_and_is_to_go_on() {
        let tasks = [
            task("s1", 1, RUNNING, RUNNING),
            task("s1", 2, SHUTDOWN, RUNNING),
            task("s1", 3, RUNNING, TaskState::STARTING),
            task("s1", 3, SHUTDOWN, TaskState::COMPLETE),
            task("other", 1, RUNNING, RUNNING),
        ];
        for restart in [None, Some(Restart::ANY), Some(Restart::ON_FAILURE)] {
            assert_eq!(running(of_three(restart), &tasks), Some((1, 3)), "{restart:?}");
        }
    }

    #[test]
    fn a_replica_that_is_complete_is_not_missing() {
        let tasks = [
            task("s1", 1, RUNNING, RUNNING),
            task("s1", 2, SHUTDOWN, TaskState::FAILED),
            task("s1", 2, SHUTDOWN, TaskState::COMPLETE),
            task("s1", 3, SHUTDOWN, TaskState::FAILED),
        ];
        assert_eq!(running(of_three(Some(Restart::ON_FAILURE)), &tasks), Some((2, 3)), "the third has failed");
        assert_eq!(running(of_three(Some(Restart::ANY)), &tasks), Some((1, 3)), "it is started again");
    }

    #[test]
    fn what_is_never_started_again_is_not_waited_for() {
        let tasks = [task("s1", 1, SHUTDOWN, TaskState::COMPLETE)];
        assert_eq!(running(of_three(Some(Restart::NONE)), &tasks), None);
        let replicated_job = Some(ServiceSpecModeReplicatedJob { max_concurrent: Some(1), total_completions: Some(3) });
        let job = ServiceSpecMode { replicated_job, ..ServiceSpecMode::default() };
        assert_eq!(running(service(job, None), &tasks), None);
        assert_eq!(running(service(ServiceSpecMode::default(), None), &tasks), None, "global ones, and global jobs");
    }
}
