//! Where the log goes: to the journal, field by field, when stderr is connected to it; else to stderr, a line each.
//! The level comes from `MUSTER_LOG` (`info` unless set). Pure code does not log.

use std::fmt::Write as _;

use log::kv::{Key, Source, Value, VisitSource};
use systemd_journal_logger::{JournalLog, connected_to_journal};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::LevelFilter, layer::Context, layer::SubscriberExt, registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::model::MachineName;

/// Names the level, `debug`, or levels by module, `info,muster_agent::link=debug,muster_coordinator::server=trace`.
pub const LEVEL_VARIABLE: &str = "MUSTER_LOG";
/// Prefix of our fields in the journal: `journalctl MUSTER_MACHINE=worker-1`.
const FIELD_PREFIX: &str = "muster_";

/// Sets the log up for this process. Again: nothing happens. In the journal every record carries the name of the
/// `machine`, if one is given: that of the agent is its own, a coordinator names those it speaks of.
pub fn init(machine: Option<&MachineName>) {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var(LEVEL_VARIABLE)
        .from_env_lossy();
    let journal =
        if connected_to_journal() { JournalLog::new().ok().map(|log| Journal::new(log, machine)) } else { None };
    let registry = Registry::default().with(filter);
    let outcome = match journal {
        Some(journal) => registry.with(journal).try_init(),
        None => {
            let lines = tracing_subscriber::fmt::layer().compact().with_ansi(false).with_writer(std::io::stderr);
            registry.with(lines.with_target(false)).try_init()
        }
    };
    // The only way to fail is to have been set up before.
    outcome.ok();
}

/// Sends events to the journal with their fields and those of the spans around them. `tracing`'s own bridge to `log`
/// would flatten the fields into the text.
struct Journal<L> {
    log: L,
    /// In every record.
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
            value.clone_into(&mut self.message);
        } else {
            self.pairs.push((format!("{FIELD_PREFIX}{}", field.name()), value.to_owned()));
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let mut text = String::new();
        // Writing to a String does not fail.
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

    /// Keeps what it is given, a line each.
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
