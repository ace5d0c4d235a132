//! Output of `watch`: redrawn bars on a terminal, plain timestamped lines elsewhere.

use std::io::{self, IsTerminal as _};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::{Timestamp, Zoned};

use crate::{
    errors::Failure,
    terminal,
    view::{Fleet, PhaseLine},
};

/// Lines of busy machines shown at once; the rest is counted.
const BUSY_LINES_MAX: usize = 16;
/// Lines of waits shown at once.
const BLOCKED_LINES_MAX: usize = 5;

/// Output of news.
pub struct Screen {
    /// Prefix of every line of news.
    mark: &'static str,
    /// Bars. None: stdout is a file or pipe, or a dumb terminal.
    live: Option<Live>,
}

/// Bars and lines that are redrawn at the bottom of a terminal.
struct Live {
    all: MultiProgress,
    phases: Vec<ProgressBar>,
    texts: Vec<ProgressBar>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self::marked("")
    }

    /// A screen whose lines all begin with this mark.
    pub fn marked(mark: &'static str) -> Self {
        // A terminal with a fixed cursor gets lines.
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let moves = io::stdout().is_terminal() && !dumb;
        let all = || MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        Self { mark, live: moves.then(|| Live { all: all(), phases: Vec::new(), texts: Vec::new() }) }
    }

    /// Does it print lines only? Then it also reports state changes of single machines.
    pub const fn is_plain(&self) -> bool {
        self.live.is_none()
    }

    /// Print one line of news.
    pub(crate) fn line(&self, text: &str) -> Result<(), Failure> {
        let line = format!("{}{} {text}", self.mark, Zoned::now().strftime("%H:%M:%S"));
        match &self.live {
            None => terminal::print(&line),
            Some(live) => {
                live.all.println(line).map_err(|source| Failure::failed("cannot write to the terminal").because(source))
            }
        }
    }

    /// Print the state of the cluster at the beginning.
    pub(crate) fn summary(&self, fleet: &Fleet, now: Timestamp) -> Result<(), Failure> {
        if !self.is_plain() {
            return Ok(()); // the bars say it
        }
        if let Some(line) = fleet.headline() {
            self.line(&line)?;
        }
        for phase in fleet.phases() {
            self.line(format!("{}: {} of {} done {}", phase.phase, phase.done, phase.total, phase.text).trim_end())?;
        }
        let lines = fleet.busy_lines(now).into_iter().chain(fleet.blocked_lines(now));
        lines.take(BUSY_LINES_MAX).try_for_each(|line| self.line(&line))
    }

    /// Draw the bars.
    pub(crate) fn draw(&mut self, fleet: &Fleet, now: Timestamp) {
        let Some(live) = &mut self.live else { return };
        live.draw_phases(&fleet.phases());
        let mut lines = shorten(fleet.busy_lines(now), BUSY_LINES_MAX, "machines");
        lines.extend(shorten(fleet.blocked_lines(now), BLOCKED_LINES_MAX, "waits"));
        live.draw_texts(lines);
    }

    /// Remove the bars; from now on print only lines.
    pub fn clear(&mut self) {
        if let Some(live) = self.live.take() {
            for bar in live.phases.iter().chain(&live.texts) {
                bar.finish_and_clear();
            }
            let _ = live.all.clear(); // a terminal that is gone needs no clearing
        }
    }
}

fn shorten(mut lines: Vec<String>, most: usize, what: &str) -> Vec<String> {
    let rest = lines.len().saturating_sub(most);
    if rest > 0 {
        lines.truncate(most);
        lines.push(format!("… and {rest} more {what}"));
    }
    lines
}

impl Live {
    fn draw_phases(&mut self, phases: &[PhaseLine]) {
        for phase in phases.iter().skip(self.phases.len()) {
            let bar = ProgressBar::new(phase.total.into())
                .with_style(style("{prefix:11} [{bar:32}] {pos:>4}/{len:<4} {wide_msg}").progress_chars("=> "));
            self.phases.push(self.all.insert(self.phases.len(), bar));
        }
        while self.phases.len() > phases.len() {
            if let Some(bar) = self.phases.pop() {
                self.all.remove(&bar);
            }
        }
        for (bar, phase) in self.phases.iter().zip(phases) {
            bar.set_prefix(phase.phase.as_str());
            bar.set_length(phase.total.into());
            bar.set_position(phase.done.into());
            bar.set_message(phase.text.clone());
        }
    }

    fn draw_texts(&mut self, lines: Vec<String>) {
        while self.texts.len() < lines.len() {
            self.texts.push(self.all.add(ProgressBar::no_length().with_style(style("  {wide_msg}"))));
        }
        while self.texts.len() > lines.len() {
            if let Some(bar) = self.texts.pop() {
                self.all.remove(&bar);
            }
        }
        for (bar, line) in self.texts.iter().zip(lines) {
            bar.set_message(line);
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
