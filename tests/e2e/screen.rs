//! `musterctl watch` on a terminal: a bar per phase, a line per busy machine, all cleared at the end.

use std::{
    fs::{self, File},
    io::Read as _,
    process::Stdio,
    sync::mpsc,
    thread,
};

use anyhow::{Context as _, Result};
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    manifest::{bash, cluster},
    wait_for,
};
use nix::pty::{Winsize, openpty};

const SIZE: Winsize = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };

/// A terminal emulation sufficient for bars and lines: cursor row and column, and clearing.
#[derive(Default)]
struct Terminal {
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    /// The incomplete control sequence after its escape.
    sequence: Option<String>,
}

impl Terminal {
    fn take(&mut self, text: &str) {
        for c in text.chars() {
            if let Some(sequence) = &mut self.sequence {
                sequence.push(c);
                if c != '[' && !c.is_ascii_digit() && !";?".contains(c) {
                    let sequence = self.sequence.take().unwrap_or_default();
                    self.obey(&sequence);
                }
                continue;
            }
            match c {
                '\u{1b}' => self.sequence = Some(String::new()),
                '\r' => self.column = 0,
                '\n' => (self.row, self.column) = (self.row + 1, 0),
                c => {
                    let row = self.row();
                    row.1.resize((row.0 + 1).max(row.1.len()), ' ');
                    row.1[row.0] = c;
                    self.column += 1;
                }
            }
        }
    }

    /// The column, and its row.
    fn row(&mut self) -> (usize, &mut Vec<char>) {
        self.rows.resize((self.row + 1).max(self.rows.len()), Vec::new());
        (self.column, &mut self.rows[self.row])
    }

    fn obey(&mut self, sequence: &str) {
        let count = || sequence.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(1);
        match sequence.chars().last() {
            Some('A') => self.row = self.row.saturating_sub(count()),
            Some('B') => self.row += count(),
            Some('C') => self.column += count(),
            Some('D') => self.column = self.column.saturating_sub(count()),
            Some('G') => self.column = count() - 1,
            Some('K') if sequence == "[2K" => self.row().1.clear(),
            Some('K') => {
                let (column, row) = self.row();
                row.truncate(column);
            }
            Some('J') => {
                let (column, row) = self.row();
                row.truncate(column);
                self.rows.truncate(self.row + 1);
            }
            _ => {} // colours, and whether the cursor is seen
        }
    }

    fn lines(&self) -> Vec<String> {
        self.rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned()).collect()
    }

    fn shows(&self, words: &[&str]) -> bool {
        self.lines().iter().any(|line| words.iter().all(|word| line.contains(word)))
    }
}

#[test]
fn watch_on_a_terminal() -> Result<()> {
    let mut fleet = Fleet::start("screen", &[])?;
    let body = format!("until test -e {}; do sleep 0.05; done", fleet.path("go"));
    let items = [
        bash("fetch", "prepare", &fleet.effects_log(), ":", &[]),
        bash("work", "deploy", &fleet.effects_log(), &body, &[]),
    ];
    fleet.apply(&cluster(1, 1, &items, &items, &[]))?;
    fleet.add_machines(1, 1)?;

    let pty = openpty(Some(&SIZE), None)?;
    let mut command = fleet.musterctl();
    command.args(["--config", "operator.toml", "watch", "e2e"]).env("TERM", "xterm").stdin(Stdio::null());
    let mut watching = command.stdout(pty.slave.try_clone()?).stderr(pty.slave).spawn()?;
    drop(command); // it holds the terminal's other end open
    let mut master = File::from(pty.master);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        // A terminal whose other end is closed returns an error, not an end of file.
        while let Ok(count @ 1..) = master.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    let (mut terminal, mut bytes) = (Terminal::default(), Vec::new());
    let mut seen = false;
    while let Ok(more) = receiver.recv_timeout(TIME_LIMIT) {
        bytes.extend(more);
        let whole = match std::str::from_utf8(&bytes) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text: Vec<u8> = bytes.drain(..whole).collect();
        terminal.take(std::str::from_utf8(&text)?);
        let bars = terminal.shows(&["prepare", "[=", "2/2"]) && terminal.shows(&["deploy", "[", "0/2", "1 running"]);
        let busy = terminal.shows(&["  control-1", "Deploy", "item work"]);
        if !seen && bars && busy && terminal.shows(&["WaitingForControl (worker-1)"]) {
            seen = true;
            fs::write(fleet.path("go"), "")?;
        }
    }
    let status = wait_for("the end of watch", TIME_LIMIT, || Ok(watching.try_wait()?))?;
    let lines = terminal.lines();
    let shown = lines.join("\n");
    assert!(seen, "bars, a busy machine and who waits were never there together; at last:\n{shown}");
    assert!(status.success(), "{status}\n{shown}");
    let last = lines.iter().rfind(|line| !line.is_empty()).context("a line")?;
    assert!(last.contains("cluster e2e: all 2 machines are Ready"), "{shown}");
    let left = |line: &&String| line.contains('[') || line.starts_with("  ");
    assert_eq!(lines.iter().find(left), None, "bars and busy machines are gone:\n{shown}");
    fleet.done()
}
