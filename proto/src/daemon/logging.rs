//! Destination of the log: the journal, with separate fields, when stderr is connected to it; else one line per record
//! on stderr. `MUSTER_LOG` sets the level (`info` by default). Pure code does not log. Text from other parties is
//! escaped: each record stays one line and is safe for a terminal.

use std::{env, fmt::Write as _, io};

use log::kv::{Key, Source, Value, VisitSource};
use systemd_journal_logger::{JournalLog, connected_to_journal};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{LevelFilter, filter_fn},
    layer::Context,
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::{model::MachineName, printable::printable};

/// Variable with the level, `debug`, or levels by module,
/// `info,muster_agent::link=debug,muster_coordinator::server=trace`.
pub const LEVEL_VARIABLE: &str = "MUSTER_LOG";
/// Target of the audit record's lines. They are logged at every level: this copy is out of reach of an attacker who
/// controls the record.
pub const AUDIT_TARGET: &str = "muster_coordinator::audit";
/// Prefix of our fields in the journal: `journalctl MUSTER_MACHINE=worker-1`.
const FIELD_PREFIX: &str = "muster_";

/// Set up the log for this process, on the first call. With a `machine`, every record in the journal carries its name:
/// an agent passes its own, a coordinator names machines per record.
pub fn init(machine: Option<&MachineName>) {
    let wanted = env::var(LEVEL_VARIABLE).unwrap_or_default();
    let (filter, fault) = match filter(&wanted) {
        Ok(filter) => (filter, None),
        Err(fault) => (EnvFilter::default().add_directive(LevelFilter::INFO.into()), Some(fault)),
    };
    let journal =
        if connected_to_journal() { JournalLog::new().ok().map(|log| Journal::new(log, machine)) } else { None };
    let registry = Registry::default().with(filter).with(filter_fn(is_shown));
    let outcome = match journal {
        Some(journal) => registry.with(journal).try_init(),
        None => registry.with(to_stderr()).try_init(),
    };
    // Setup fails only if it has been done before.
    if outcome.is_ok()
        && let Some(fault) = fault
    {
        tracing::warn!("{LEVEL_VARIABLE}={wanted}: {fault}; this log is at info");
    }
}

/// Writes one line per record.
fn to_stderr<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    let lines = tracing_subscriber::fmt::layer().compact().with_ansi(false).with_target(false);
    lines.with_writer(|| Lines(io::stderr()))
}

/// Set up the log for a command that works in place of a stopped daemon. The audit record's lines go to stderr, and to
/// the journal if present, where they count as the daemon's (`journalctl -u UNIT`).
pub fn init_beside(unit: &str) {
    let fields = [("OBJECT_SYSTEMD_UNIT", unit)];
    let journal = JournalLog::new().ok().map(|log| Journal::new(log.with_extra_fields(fields), None));
    let stderr = (!connected_to_journal()).then(to_stderr);
    let registry = Registry::default().with(filter_fn(|metadata| metadata.target() == AUDIT_TARGET));
    // Setup fails only if it has been done before.
    drop(registry.with(journal).with(stderr).try_init());
}

/// Parse levels: one foreverything (`info` by default) and others by module. The library would take a mistyped level
/// for the name of a module and silence the log.
fn filter(text: &str) -> Result<EnvFilter, String> {
    let directives = || text.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    let is_level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
    let mut filter = EnvFilter::default();
    if !directives().any(is_level) {
        filter = filter.add_directive(LevelFilter::INFO.into());
    }
    for directive in directives() {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        if !is_level(level) {
            let expected = "expected error, warn, info, debug or trace, or MODULE=LEVEL after a comma";
            return Err(format!("\"{level}\" is no level; {expected}"));
        }
        filter = filter.add_directive(directive.parse().map_err(|fault| format!("\"{directive}\": {fault}"))?);
    }
    let audit = format!("{AUDIT_TARGET}=info");
    Ok(filter.add_directive(audit.parse().map_err(|fault| format!("\"{audit}\": {fault}"))?))
}

/// Prefix of our own modules.
const OURS: &str = "muster";

/// Libraries print what they send and receive at detailed levels, tokens and passwords included: show theirs at `info`
/// at most.
fn is_shown(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::INFO || metadata.target().starts_with(OURS)
}

/// Writer that gets each record in one call, as `tracing` writes it, and makes it one printable line.
struct Lines<W>(W);

impl<W: io::Write> io::Write for Lines<W> {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(record);
        let line = printable(text.strip_suffix('\n').unwrap_or(&text));
        self.0.write_all(format!("{line}\n").as_bytes())?;
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Sends events to the journal with their fields and those of their spans. `tracing`'s own bridge to `log` would
/// flatten the fields into the text.
struct Journal<L> {
    log: L,
    /// Fields of every record.
    always: Fields,
}

impl<L> Journal<L> {
    fn new(log: L, machine: Option<&MachineName>) -> Self {
        let machine = machine.map(|name| (format!("{FIELD_PREFIX}machine"), name.to_string()));
        Self { log, always: Fields { message: String::new(), pairs: machine.into_iter().collect() } }
    }
}

/// Fields of a span or an event.
#[derive(Clone, Default)]
struct Fields {
    message: String,
    pairs: Vec<(String, String)>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = printable(value);
        } else {
            self.pairs.push((format!("{FIELD_PREFIX}{}", field.name()), printable(value)));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let mut text = String::new();
        // Writing to a String cannot fail.
        write!(text, "{value:?}").ok();
        self.record_str(field, &text);
    }
}

impl Source for Fields {
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn VisitSource<'kvs>) -> Result<(), log::kv::Error> {
        self.pairs
            .iter()
            .try_for_each(|(name, value)| visitor.visit_pair(Key::from_str(name), Value::from_display(value)))
    }
}

impl<L: log::Log + 'static, S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Journal<L> {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = self.always.clone();
        event.record(&mut fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.pairs.extend(of_span.pairs.iter().cloned());
            }
        }
        let metadata = event.metadata();
        let message = std::mem::take(&mut fields.message);
        self.log.log(
            &log::Record::builder()
                .level(level(*metadata.level()))
                .target(metadata.target())
                .module_path(metadata.module_path())
                .file(metadata.file())
                .line(metadata.line())
                .key_values(&fields)
                .args(format_args!("{message}"))
                .build(),
        );
    }
}

const fn level(level: Level) -> log::Level {
    match level {
        Level::ERROR => log::Level::Error,
        Level::WARN => log::Level::Warn,
        Level::INFO => log::Level::Info,
        Level::DEBUG => log::Level::Debug,
        Level::TRACE => log::Level::Trace,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Keeps each log entry as a line.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    struct Pairs(String);

    impl<'kvs> VisitSource<'kvs> for Pairs {
        fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), log::kv::Error> {
            self.0.push_str(&format!(" {key}={value}"));
            Ok(())
        }
    }

    impl log::Log for Kept {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            let mut pairs = Pairs(String::new());
            record.key_values().visit(&mut pairs).expect("pairs");
            let line = format!("{} {}{}", record.level(), record.args(), pairs.0);
            self.0.lock().expect("a lock").push(line);
        }
        fn flush(&self) {}
    }

    /// Keeps what is written to it.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("a lock").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Text that a peer may send to forge log records: a second record, colours, reversed reading direction.
    const FORGED: &str = "w1\n2026-01-01T00:00:00Z  INFO all is well \x1b]0;x\x07\x1b[31m\u{9b}2J\u{202e}";

    fn log_forgeries() {
        let span = tracing::info_span!("item", item = %FORGED);
        span.in_scope(|| tracing::warn!(error = %FORGED, status = ?FORGED, text = FORGED, "refused {FORGED}"));
        tracing::info!("next");
    }

    fn assert_safe(line: &str) {
        assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
    }

    #[test]
    fn nobody_forges_a_line() {
        let written = Written::default();
        let to = written.clone();
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || Lines(to.clone()));
        tracing::subscriber::with_default(Registry::default().with(lines), log_forgeries);
        let text = String::from_utf8(written.0.lock().expect("a lock").clone()).expect("text");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.ends_with("next\n"), "{text}");
        text.lines().for_each(assert_safe);
    }

    #[test]
    fn a_mistyped_level_silences_nothing() {
        for (text, shown) in [
            ("", "info"),
            ("debug", "debug"),
            ("muster_agent::link=debug", "info,muster_agent::link=debug"),
            ("warn, muster_agent=trace", "warn,muster_agent=trace"),
        ] {
            let (read, expected) = (filter(text).expect(text).to_string(), filter(shown).expect(shown).to_string());
            assert!(read == expected && !read.is_empty(), "{text}: {read}");
        }
        for bad in ["debgu", "verbose", "info,xx", "muster_agent=debgu", "="] {
            assert!(filter(bad).is_err_and(|fault| fault.contains("debug or trace")), "{bad}");
        }
    }

    #[test]
    fn libraries_tell_no_details() {
        let written = Written::default();
        let to = written.clone();
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || Lines(to.clone()));
        let registry = Registry::default().with(EnvFilter::new("trace")).with(filter_fn(is_shown)).with(lines);
        tracing::subscriber::with_default(registry, || {
            tracing::debug!(target: "bollard::docker", "Decoded into string: JoinTokens");
            tracing::info!(target: "h2", "one");
            tracing::trace!(target: "muster_agent::link", "two");
        });
        let text = String::from_utf8(written.0.lock().expect("a lock").clone()).expect("text");
        assert_eq!((text.lines().count(), text.contains("one"), text.contains("two")), (2, true, true), "{text}");
    }

    #[test]
    fn nobody_forges_a_record_of_the_journal() {
        let kept = Kept::default();
        let journal = Journal::new(kept.clone(), None);
        tracing::subscriber::with_default(Registry::default().with(journal), log_forgeries);
        let lines = kept.0.lock().expect("a lock").clone();
        assert_eq!((lines.len(), lines[1].as_str()), (2, "INFO next"));
        assert!(lines[0].contains("WARN refused w1^J2026"), "{}", lines[0]);
        lines.iter().for_each(|line| assert_safe(line));
    }

    #[test]
    fn fields_stay_fields() {
        let kept = Kept::default();
        let machine = MachineName::new("worker-1").expect("a label");
        let journal = Journal::new(kept.clone(), Some(&machine));
        tracing::subscriber::with_default(Registry::default().with(journal), || {
            let span = tracing::info_span!("item", generation = 4, attempt = tracing::field::Empty);
            span.record("attempt", 2);
            span.in_scope(|| tracing::warn!(item = "images", bytes = 7, "no {}", "space"));
            tracing::info!("plain");
        });
        let lines = kept.0.lock().expect("a lock").clone();
        let with_fields = "WARN no space muster_machine=worker-1 muster_item=images muster_bytes=7 muster_generation=4 \
                           muster_attempt=2";
        assert_eq!(lines, [with_fields, "INFO plain muster_machine=worker-1"]);
    }
}
