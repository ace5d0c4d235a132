//! What really happened, from what the items themselves wrote: the evidence for order, concurrency and "once". It
//! shares no code with the programs under test.

use std::{collections::BTreeMap, fs, io::ErrorKind, path::Path};

use anyhow::{Context as _, Result};

/// One line of effects.log: `<unix ms> <machine> <item> start|end <attempt> <phase>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Unix milliseconds.
    pub at_ms: u64,
    /// The machine.
    pub machine: String,
    /// The item.
    pub item: String,
    /// True for `start`, false for `end`.
    pub is_start: bool,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Phase of the item.
    pub phase: String,
}

/// Reads the file; a missing file is empty.
///
/// # Errors
/// Fails on a line of another format.
pub fn read(path: &Path) -> Result<Vec<Effect>> {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// Parses the lines. The last may be incomplete.
///
/// # Errors
/// Fails on a line of another format.
pub fn parse(text: &str) -> Result<Vec<Effect>> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| effect(line).with_context(|| format!("not a line of an item: {line}"))).collect()
}

fn effect(line: &str) -> Option<Effect> {
    let words: Vec<&str> = line.split(' ').collect();
    let [at_ms, machine, item, edge @ ("start" | "end"), attempt, phase] = words[..] else { return None };
    Some(Effect {
        at_ms: at_ms.parse().ok()?,
        machine: machine.to_owned(),
        item: item.to_owned(),
        is_start: edge == "start",
        attempt: attempt.parse().ok()?,
        phase: phase.to_owned(),
    })
}

/// The expected order and width of a deployment.
#[derive(Clone, Copy, Debug)]
pub struct Promise<'a> {
    /// Names of all machines, `control-…` and `worker-…`.
    pub machines: &'a [String],
    /// Items that control machines have in effects.log.
    pub control_items: &'a [&'a str],
    /// Items that workers have in effects.log.
    pub worker_items: &'a [&'a str],
    /// Items of control machines in phase reconfigure. The control machine deployed last has none of them: it saw the
    /// complete control set in its deployment.
    pub reconfigure_items: &'a [&'a str],
    /// Most workers in deploy at once.
    pub workers_max: usize,
}

/// Result of [`examine`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Broken promises; empty when all is well.
    pub violations: Vec<String>,
    /// Most workers in deploy at once.
    pub workers_at_once: usize,
    /// First start to last end in deploy.
    pub makespan_ms: u64,
    /// From the release of a slot to the start of the next waiting worker, in milliseconds, sorted.
    pub handovers_ms: Vec<u64>,
}

impl Findings {
    /// Median of the hand-overs; 0 if there were none.
    #[must_use]
    pub fn handover_median_ms(&self) -> u64 {
        self.handovers_ms.get(self.handovers_ms.len() / 2).copied().unwrap_or(0)
    }
}

/// First start and last end of a machine in one phase.
#[derive(Clone, Copy, Debug)]
struct Span {
    start_ms: u64,
    end_ms: u64,
}

/// Checks the lines against the promise: each item of each machine runs once, its start before its end. Control
/// machines take turns in deploy and in reconfigure. No worker's deploy starts before the last control machine's deploy
/// ends.
#[must_use]
pub fn examine(effects: &[Effect], promise: &Promise<'_>) -> Findings {
    let mut findings = Findings::default();
    each_once(effects, promise, &mut findings);
    for phase in ["deploy", "reconfigure"] {
        let controls = spans(effects, phase, "control-");
        for pair in controls.windows(2) {
            if pair[1].1.start_ms < pair[0].1.end_ms {
                findings.violations.push(format!("{phase}: {} began before {} had ended", pair[1].0, pair[0].0));
            }
        }
    }
    let controls = spans(effects, "deploy", "control-");
    let workers = spans(effects, "deploy", "worker-");
    let controls_end = controls.iter().map(|(_, span)| span.end_ms).max().unwrap_or(0);
    for (name, _) in workers.iter().filter(|(_, span)| span.start_ms < controls_end) {
        findings.violations.push(format!("{name} began before the last control machine had ended"));
    }
    for (name, _) in spans(effects, "reconfigure", "control-").iter().filter(|(_, span)| span.start_ms < controls_end) {
        findings.violations.push(format!("{name} was reconfigured before the last control machine had ended"));
    }
    findings.workers_at_once = width(&workers);
    if findings.workers_at_once > promise.workers_max {
        findings.violations.push(format!("{} workers in deploy at once", findings.workers_at_once));
    }
    findings.handovers_ms = handovers(&controls, &workers, promise.workers_max);
    let all = || controls.iter().chain(&workers).map(|(_, span)| span);
    let first_ms = all().map(|span| span.start_ms).min().unwrap_or(0);
    findings.makespan_ms = all().map(|span| span.end_ms).max().unwrap_or(0) - first_ms;
    findings
}

fn each_once(effects: &[Effect], promise: &Promise<'_>, findings: &mut Findings) {
    let mut seen: BTreeMap<(&str, &str), String> = BTreeMap::new();
    for effect in effects {
        let word = if effect.is_start { "start " } else { "end " };
        seen.entry((&effect.machine, &effect.item)).or_default().push_str(word);
    }
    let last_control = spans(effects, "deploy", "control-").last().map_or("", |(name, _)| *name);
    for machine in promise.machines {
        let (items, more): (&[&str], &[&str]) = match machine.as_str() {
            last if last == last_control => (promise.control_items, &[]),
            name if name.starts_with("control-") => (promise.control_items, promise.reconfigure_items),
            _ => (promise.worker_items, &[]),
        };
        for item in items.iter().chain(more) {
            match seen.remove(&(machine.as_str(), *item)).as_deref() {
                Some("start end ") => {}
                other => findings.violations.push(format!("{machine} {item}: {}", other.unwrap_or("never ran"))),
            }
        }
    }
    findings.violations.extend(seen.into_keys().map(|(machine, item)| format!("{machine} {item}: not promised")));
}

fn spans<'a>(effects: &'a [Effect], phase: &str, prefix: &str) -> Vec<(&'a str, Span)> {
    let mut spans: BTreeMap<&str, Span> = BTreeMap::new();
    for effect in effects.iter().filter(|effect| effect.phase == phase && effect.machine.starts_with(prefix)) {
        let fresh = Span { start_ms: effect.at_ms, end_ms: effect.at_ms };
        let span = spans.entry(&effect.machine).or_insert(fresh);
        span.start_ms = span.start_ms.min(effect.at_ms);
        span.end_ms = span.end_ms.max(effect.at_ms);
    }
    let mut spans: Vec<_> = spans.into_iter().collect();
    spans.sort_by_key(|(_, span)| span.start_ms);
    spans
}

fn width(spans: &[(&str, Span)]) -> usize {
    // An end sorts before a start of the same millisecond: the slot was free.
    let mut moments: Vec<(u64, bool)> =
        spans.iter().flat_map(|(_, span)| [(span.start_ms, true), (span.end_ms, false)]).collect();
    moments.sort_unstable();
    let (mut now, mut most) = (0_usize, 0);
    for (_, begins) in moments {
        now = if begins { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}

fn handovers(controls: &[(&str, Span)], workers: &[(&str, Span)], at_once: usize) -> Vec<u64> {
    let mut all: Vec<u64> =
        controls.windows(2).map(|pair| pair[1].1.start_ms.saturating_sub(pair[0].1.end_ms)).collect();
    if let (Some((_, last)), Some((_, first))) = (controls.last(), workers.first()) {
        all.push(first.start_ms.saturating_sub(last.end_ms));
    }
    let mut freed: Vec<u64> = workers.iter().map(|(_, span)| span.end_ms).collect();
    freed.sort_unstable();
    let waited = workers.iter().skip(at_once);
    all.extend(freed.iter().zip(waited).map(|(freed, (_, later))| later.start_ms.saturating_sub(*freed)));
    all.sort_unstable();
    all
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
500 control-1 r start 1 reconfigure
510 control-1 r end 1 reconfigure
";

    fn violations(text: &str) -> Vec<String> {
        let machines = ["control-1", "control-2", "worker-1", "worker-2"].map(str::to_owned);
        let promise = Promise {
            machines: &machines,
            control_items: &["a"],
            worker_items: &["a"],
            reconfigure_items: &["r"],
            workers_max: 2,
        };
        examine(&parse(text).expect("lines"), &promise).violations
    }

    #[test]
    fn every_broken_promise_is_found() {
        assert_eq!(violations(GOOD), Vec::<String>::new());
        for (text, expected) in [
            (format!("{GOOD}600 worker-1 a start 2 deploy\n"), "worker-1 a: start end start "),
            (GOOD.replace("401 worker-2 a end 1 deploy\n", ""), "worker-2 a: start "),
            (format!("{GOOD}600 worker-1 b start 2 deploy\n"), "worker-1 b: not promised"),
            (GOOD.replace("205 ", "199 "), "deploy: control-2 began before control-1 had ended"),
            (
                format!("{GOOD}509 control-2 r start 1 reconfigure\n"),
                "reconfigure: control-2 began before control-1 had ended",
            ),
            (GOOD.replace("control-1 r", "worker-1 r"), "control-1 r: never ran"),
            (GOOD.replace("310 ", "299 "), "worker-1 began before the last control machine had ended"),
            (GOOD.replace("500 ", "299 "), "control-1 was reconfigured before the last"),
            (GOOD.replace("worker-2 a", "worker-2 b"), "worker-2 a: never ran"),
            (format!("{GOOD}311 worker-3 a start 1 deploy\n399 worker-3 a end 1 deploy\n"), "3 workers in deploy"),
        ] {
            let found = violations(&text);
            assert!(found.iter().any(|said| said.starts_with(expected)), "{expected}: {found:?}");
        }
    }

    #[test]
    fn half_a_line_is_left_for_later() {
        assert_eq!(parse("1 m i start 1 deploy\n2 m i en").expect("lines").len(), 1);
        for bad in ["x\n", "1 m i begin 1 deploy\n", "1 m i start 1\n", "1 m i start 1 deploy x\n"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
