//! The table that a run prints: each figure beside its goal, under the computer's name.

use std::{fmt, fs};

use nix::sys::utsname::uname;

/// Figures, in the order of measuring.
pub(crate) struct Table {
    title: String,
    rows: Vec<[String; 3]>,
}

impl Table {
    /// An empty table about a fleet of this size.
    pub(crate) fn new(agents: usize, clusters: usize) -> Self {
        Self { title: format!("{agents} agents in {clusters} cluster(s); {}", computer()), rows: Vec::new() }
    }

    /// Adds a figure. It is also told on stderr at once, for whoever waits.
    #[expect(clippy::print_stderr, reason = "progress of a run of many minutes")]
    pub(crate) fn add(&mut self, what: &str, figure: String, goal: &str) {
        eprintln!("{what}: {figure}");
        self.rows.push([what.to_owned(), figure, goal.to_owned()]);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (what_width, figure_width) = (width(0), width(1));
        writeln!(f, "\n{}", self.title)?;
        for [what, figure, goal] in &self.rows {
            writeln!(f, "{}", format!("{what:what_width$}  {figure:figure_width$}  {goal}").trim_end())?;
        }
        Ok(())
    }
}

/// Cores, processor, kernel, and how busy the computer was before.
fn computer() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let model = model.trim_start_matches([' ', '\t', ':']);
    let kernel = uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown");
    format!("{cores} cores of {model}, kernel {kernel}, load average before {load}")
}
