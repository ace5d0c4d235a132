//! The eviction subresource, in the order of checks of the real server.

use serde_json::{Value, json};

use super::{
    call::Call,
    deletion::{DeleteOptions, delete_object},
    failure::Failure,
    kinds::Kind,
    objects::{self, is_ready, is_terminating, name, namespace, number, selects, set, set_condition, text},
    store::Store,
    times, write,
};

const BUDGETS: &str = "poddisruptionbudgets.policy";

/// Evict a pod.
pub(super) fn evict(store: &mut Store, call: &Call, pods: &Kind) -> Result<Value, Failure> {
    let eviction = parse(call)?;
    write::admit_creation(store, pods, &call.namespace, &call.name)?;
    if name(eviction) != call.name {
        return Err(Failure::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut options = DeleteOptions::from_object(eviction.get("deleteOptions").unwrap_or(&Value::Null));
    options.dry_run |= call.is_dry_run();
    let pod = store.get("pods", &call.namespace, &call.name);
    let pod = pod.ok_or_else(|| Failure::not_found(pods, &call.name))?;
    if !ignores_budgets(&pod)
        && let Some(budget) = budget_of(store, &pod)?
        && needs_budget(&budget, &pod)
    {
        take_from_budget(store, &budget, &pod, options.dry_run)?;
    }
    let pod = mark_as_target(store, pods, &pod, &options)?;
    delete_object(store, pods, &pod, &options)?;
    Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}))
}

fn parse(call: &Call) -> Result<&Value, Failure> {
    let body = call.body.as_ref().filter(|body| body.is_object());
    let body = body.ok_or_else(|| Failure::bad_request("the body of the request is not a JSON object"))?;
    // The crate kube sends neither field; the real server fills them in.
    let is_eviction = matches!(text(body, "/kind"), "" | "Eviction")
        && matches!(text(body, "/apiVersion"), "" | "policy/v1" | "policy/v1beta1");
    if !is_eviction {
        let message =
            format!("no kind \"{}\" is registered for version \"{}\"", text(body, "/kind"), text(body, "/apiVersion"));
        return Err(Failure::bad_request(message));
    }
    let namespace = namespace(body);
    if !namespace.is_empty() && namespace != call.namespace {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(body)
}

/// Budgets protect pods that run and stay.
fn ignores_budgets(pod: &Value) -> bool {
    is_terminating(pod) || matches!(text(pod, "/status/phase"), "Succeeded" | "Failed" | "Pending")
}

/// The budget that covers the pod. Two budgets are an error.
fn budget_of(store: &Store, pod: &Value) -> Result<Option<Value>, Failure> {
    let mut budgets = store.within(BUDGETS, namespace(pod));
    budgets.retain(|budget| selects(budget.pointer("/spec/selector"), pod));
    if budgets.len() > 1 {
        let message =
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(Failure::new(500, None, message));
    }
    Ok(budgets.pop().map(|budget| (*budget).clone()))
}

/// An unready pod may go without the budget, depending on the budget's policy.
fn needs_budget(budget: &Value, pod: &Value) -> bool {
    if is_ready(pod) {
        return true;
    }
    if text(budget, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow" {
        return false;
    }
    let (healthy, desired) = (number(budget, "/status/currentHealthy"), number(budget, "/status/desiredHealthy"));
    !(desired > 0 && healthy >= desired)
}

/// Take one disruption. The budget stays used up even if the deletion fails afterwards.
fn take_from_budget(store: &mut Store, budget: &Value, pod: &Value, dry_run: bool) -> Result<(), Failure> {
    let budget_name = name(budget);
    if number(budget, "/status/observedGeneration") < number(budget, "/metadata/generation") {
        let why = format!("The disruption budget {budget_name} is still being processed by the server.");
        return Err(Failure::budget(why).with_retry_after(10));
    }
    let allowed = number(budget, "/status/disruptionsAllowed");
    if allowed <= 0 {
        let (healthy, desired) = (number(budget, "/status/currentHealthy"), number(budget, "/status/desiredHealthy"));
        let what = if healthy <= desired {
            format!("needs {desired} healthy pods and has {healthy} currently")
        } else {
            "does not allow evicting pods currently".to_owned()
        };
        return Err(Failure::budget(format!("The disruption budget {budget_name} {what}")));
    }
    if dry_run {
        return Ok(());
    }
    store.update(BUDGETS, budget, |budget| {
        set(budget, &["status", "disruptionsAllowed"], allowed - 1);
        set(budget, &["status", "disruptedPods", name(pod)], times::now());
        if allowed == 1 {
            let observed = number(budget, "/status/observedGeneration");
            let fields = json!({"observedGeneration": observed, "reason": "InsufficientPods", "message": ""});
            set_condition(budget, "DisruptionAllowed", "False", fields);
        }
    });
    Ok(())
}

/// Note in the pod's conditions why it goes.
fn mark_as_target(store: &mut Store, pods: &Kind, pod: &Value, options: &DeleteOptions) -> Result<Value, Failure> {
    // The real server checks the preconditions at this write first: a failed eviction leaves no condition.
    let trial = DeleteOptions { dry_run: true, ..options.clone() };
    delete_object(store, pods, pod, &trial)?;
    if options.dry_run {
        return Ok(pod.clone());
    }
    store.update("pods", pod, |pod| {
        let fields = json!({
            "lastProbeTime": null,
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        });
        set_condition(pod, "DisruptionTarget", "True", fields);
    });
    let marked = store.get("pods", namespace(pod), name(pod));
    let mut marked = marked.map_or_else(|| pod.clone(), |pod| (*pod).clone());
    // The precondition names the version before the condition was added.
    if !options.resource_version.is_empty() {
        objects::set(&mut marked, &["metadata", "resourceVersion"], options.resource_version.as_str());
    }
    Ok(marked)
}
