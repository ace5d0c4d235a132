//! Evidence from what the items themselves wrote: their order, concurrency and single execution.

use std::collections::BTreeMap;

use muster_proto::model::WORKERS_AT_ONCE_MAX;

use super::moves;

/// One line of effects.log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) at_ms: u64,
    pub(super) machine: String,
    pub(super) item: String,
    pub(super) is_start: bool,
    /// The item's version in an update.
    release: Option<String>,
}

/// Result of the check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Broken guarantees; empty on success.
    pub(super) violations: Vec<String>,
    /// Number of items that started and ended.
    pub(super) items: usize,
    /// Time from the first start to the last end.
    pub(super) makespan_ms: u64,
    /// Most workers in deploy at the same time.
    pub(super) workers_at_once: usize,
    /// Times from a slot's release to the next machine's first item, in milliseconds, sorted.
    pub(super) handovers_ms: Vec<u64>,
}

impl Findings {
    /// Median of the hand-over times.
    pub(super) fn handover_median_ms(&self) -> Option<u64> {
        self.handovers_ms.get(self.handovers_ms.len() / 2).copied()
    }
}

/// Parse `<unix ms> <machine> <item> start|end <attempt> <phase>`, with `<version>` in an update. Lines of the toy
/// controller are skipped.
pub(super) fn parse(text: &str) -> Result<Vec<Effect>, String> {
    let of_items = text.lines().filter(|line| moves::parse(line).is_none());
    of_items.map(|line| effect(line).ok_or_else(|| format!("effects.log: not a line of ours: {line}"))).collect()
}

fn effect(line: &str) -> Option<Effect> {
    let mut words = line.split(' ');
    let at_ms = words.next()?.parse().ok()?;
    let (machine, item) = (words.next()?.to_owned(), words.next()?.to_owned());
    let is_start = match words.next()? {
        "start" => true,
        "end" => false,
        _ => return None,
    };
    let (_attempt, _phase) = (words.next()?, words.next()?);
    let release = words.next().map(str::to_owned);
    words.next().is_none().then_some(Effect { at_ms, machine, item, is_start, release })
}

/// The effects of the deployment (None), or of an update to this version.
pub(super) fn of_release(effects: &[Effect], release: Option<&str>) -> Vec<Effect> {
    effects.iter().filter(|effect| effect.release.as_deref() == release).cloned().collect()
}

/// Items that have started and are still running.
pub(super) fn in_the_middle(effects: &[Effect]) -> Vec<&Effect> {
    let mut open: BTreeMap<(&str, &str), &Effect> = BTreeMap::new();
    for effect in effects {
        if effect.is_start {
            open.insert((&effect.machine, &effect.item), effect);
        } else {
            open.remove(&(effect.machine.as_str(), effect.item.as_str()));
        }
    }
    open.into_values().collect()
}

/// Start and end of a machine's deploy phase.
#[derive(Clone, Copy, Debug)]
struct Span {
    start_ms: u64,
    end_ms: u64,
}

/// Check the lines against the guarantees: every item of every machine ran exactly once, control machines ran one after
/// another, workers only after the last of them, and at most 50 workers at once.
pub(super) fn examine(effects: &[Effect], machines: &[String], items_each: u32) -> Findings {
    let mut findings = Findings::default();
    count(effects, machines, items_each, &mut findings);
    let mut spans: BTreeMap<&str, Span> = BTreeMap::new();
    for effect in effects {
        let fresh = Span { start_ms: effect.at_ms, end_ms: effect.at_ms };
        let span = spans.entry(&effect.machine).or_insert(fresh);
        span.start_ms = span.start_ms.min(effect.at_ms);
        span.end_ms = span.end_ms.max(effect.at_ms);
    }
    let of = |prefix: &str| {
        let mut found: Vec<(&str, Span)> =
            spans.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(name, span)| (*name, *span)).collect();
        found.sort_by_key(|(_, span)| span.start_ms);
        found
    };
    let (controls, workers) = (of("control-"), of("worker-"));
    order(&controls, &workers, &mut findings);
    width(&workers, &mut findings);
    handovers(&controls, &workers, &mut findings);
    let first = spans.values().map(|span| span.start_ms).min().unwrap_or(0);
    findings.makespan_ms = spans.values().map(|span| span.end_ms).max().unwrap_or(0) - first;
    findings
}

fn count(effects: &[Effect], machines: &[String], items_each: u32, findings: &mut Findings) {
    let mut counts: BTreeMap<(&str, &str), (u32, u32)> = BTreeMap::new();
    for effect in effects {
        let (starts, ends) = counts.entry((&effect.machine, &effect.item)).or_default();
        *(if effect.is_start { starts } else { ends }) += 1;
    }
    for ((machine, item), (starts, ends)) in &counts {
        match (starts, ends) {
            (1, 1) => findings.items += 1,
            (1, _) => findings.violations.push(format!("{machine}: item {item} started once and ended {ends} times")),
            _ => findings.violations.push(format!("{machine}: item {item} started {starts} times, ended {ends} times")),
        }
    }
    for machine in machines {
        let ran = counts.keys().filter(|(name, _)| name == machine).count();
        if u32::try_from(ran) != Ok(items_each) {
            findings.violations.push(format!("{machine}: {ran} of {items_each} items ran"));
        }
    }
}

fn order(controls: &[(&str, Span)], workers: &[(&str, Span)], findings: &mut Findings) {
    for pair in controls.windows(2) {
        if let [(before, earlier), (after, later)] = pair
            && later.start_ms < earlier.end_ms
        {
            let early_ms = earlier.end_ms - later.start_ms;
            findings.violations.push(format!("{after} began {early_ms} ms before {before} had ended"));
        }
    }
    let controls_end = controls.iter().map(|(_, span)| span.end_ms).max().unwrap_or(0);
    for (name, span) in workers.iter().filter(|(_, span)| span.start_ms < controls_end) {
        let early_ms = controls_end - span.start_ms;
        findings.violations.push(format!("{name} began {early_ms} ms before the last control machine had ended"));
    }
}

fn width(workers: &[(&str, Span)], findings: &mut Findings) {
    // An end at the same millisecond as a start comes first: the slot was free.
    let mut moments: Vec<(u64, bool)> = Vec::new();
    for (_, span) in workers {
        moments.push((span.start_ms, true));
        moments.push((span.end_ms, false));
    }
    moments.sort_unstable();
    let mut now = 0_usize;
    for (_, begins) in moments {
        now = if begins { now + 1 } else { now.saturating_sub(1) };
        findings.workers_at_once = findings.workers_at_once.max(now);
    }
    let most = WORKERS_AT_ONCE_MAX;
    if u32::try_from(findings.workers_at_once).is_ok_and(|now| now <= most) {
        return;
    }
    findings
        .violations
        .push(format!("{} workers were in deploy at once; at most {most} may be", findings.workers_at_once));
}

/// The k-th start that had to wait, minus the k-th slot release.
fn handovers(controls: &[(&str, Span)], workers: &[(&str, Span)], findings: &mut Findings) {
    let handed = |freed_ms: u64, start_ms: u64| start_ms.saturating_sub(freed_ms);
    let mut all: Vec<u64> = Vec::new();
    for pair in controls.windows(2) {
        if let [(_, earlier), (_, later)] = pair {
            all.push(handed(earlier.end_ms, later.start_ms));
        }
    }
    if let (Some((_, last)), Some((_, first))) = (controls.last(), workers.first()) {
        all.push(handed(last.end_ms, first.start_ms));
    }
    let mut freed: Vec<u64> = workers.iter().map(|(_, span)| span.end_ms).collect();
    freed.sort_unstable();
    let at_once = usize::try_from(WORKERS_AT_ONCE_MAX).unwrap_or(usize::MAX);
    all.extend(
        freed.iter().zip(workers.iter().skip(at_once)).map(|(freed, (_, later))| handed(*freed, later.start_ms)),
    );
    all.sort_unstable();
    findings.handovers_ms = all;
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
100 control-1 a start 1 deploy
200 control-1 a end 1 deploy
205 control-2 a start 1 deploy
300 control-2 a end 1 deploy
310 worker-1 a start 1 deploy
312 worker-2 a start 1 deploy
400 worker-1 a end 1 deploy
401 worker-2 a end 1 deploy
";

    fn findings(text: &str) -> Findings {
        let machines = ["control-1", "control-2", "worker-1", "worker-2"].map(str::to_owned);
        examine(&parse(text).expect("lines"), &machines, 1)
    }

    #[test]
    fn a_good_run() {
        let expected = Findings {
            violations: Vec::new(),
            items: 4,
            makespan_ms: 301,
            workers_at_once: 2,
            handovers_ms: vec![5, 10],
        };
        assert_eq!(findings(GOOD), expected);
    }

    #[test]
    fn every_broken_promise_is_found() {
        let again = "500 worker-1 a start 2 deploy\n600 worker-1 a end 2 deploy\n";
        for (text, expected) in [
            (format!("{GOOD}{again}"), "worker-1: item a started 2 times, ended 2 times"),
            (GOOD.replace("401 worker-2 a end 1 deploy\n", ""), "worker-2: item a started once and ended 0 times"),
            (GOOD.replace("205 ", "199 "), "control-2 began 1 ms before control-1 had ended"),
            (GOOD.replace("310 ", "299 "), "worker-1 began 1 ms before the last control machine had ended"),
            (GOOD.lines().take(6).map(|line| format!("{line}\n")).collect(), "worker-1: item a started once"),
            (GOOD.lines().take(4).map(|line| format!("{line}\n")).collect(), "worker-2: 0 of 1 items ran"),
        ] {
            let violations = findings(&text).violations;
            assert!(violations.iter().any(|said| said.starts_with(expected)), "{expected}: {violations:?}");
        }
    }

    #[test]
    fn more_than_fifty_at_once_is_found() {
        let lines = |word: &str, at: u64| -> String {
            (0..51).map(|n| format!("{} worker-{n} a {word} 1 deploy\n", at + n)).collect()
        };
        let found = findings(&format!("{}{}", lines("start", 0), lines("end", 100)));
        assert_eq!(found.workers_at_once, 51);
        assert!(found.violations.iter().any(|said| said.starts_with("51 workers")), "{found:?}");
        let found = findings(&format!("{}{}", lines("start", 0), lines("end", 50)));
        assert_eq!(found.workers_at_once, 50, "the first ends as the 51st begins");
        assert_eq!(found.handovers_ms, [0]);
    }

    #[test]
    fn strange_lines_are_refused() {
        for bad in ["x", "1 m i begin 1 deploy", "1 m i start 1", "1 m i start 1 deploy 2 x", "-1 m i start 1 deploy"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn items_in_the_middle() {
        let effects = parse(GOOD).expect("lines");
        let open: Vec<&str> = in_the_middle(&effects[..6]).iter().map(|effect| effect.machine.as_str()).collect();
        assert_eq!(open, ["worker-1", "worker-2"]);
        assert!(in_the_middle(&effects).is_empty());
    }
}
