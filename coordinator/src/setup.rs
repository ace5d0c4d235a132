//! Commands before and beside a running coordinator: create the record, issue credentials, mark the record for recovery
//! from the fleet.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use muster_proto::{
    address::{Addresses, is_loopback},
    model::{ClusterName, Epoch, Now},
};
use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, StateDir},
    core::{self, credentials},
    facts::{CertificateRow, CredentialRow, Facts, RowError, Transaction},
    journal,
    pki::{Ca, KeyFileError, PERSON_LIFETIME, Peer, PkiError, StateKey, TrustDomain, Validity},
    store::{EmbeddedStore, Row, Store, StoreError},
};

/// Actor in the audit record for actions on the coordinator's machine.
pub const LOCAL_ACTOR: &str = "coordinator";
/// Mode of a file with a private key.
const SECRET_MODE: u32 = 0o600;
/// Most epochs by which a fleet may be ahead of a copy of its store: each start of a coordinator is one.
const EPOCHS_AHEAD_MAX: u64 = 1_000_000;
/// A file in the state directory of every enrolled muster-agent.
const AGENT_IDENTITY: &str = "identity.json";

/// Why setup failed.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The state directory.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The key file.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The CA.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A row of the store.
    #[error(transparent)]
    Row(#[from] RowError),
    /// It conflicts with the state of the record.
    #[error("{0}")]
    Refused(String),
    /// A record already exists.
    #[error(
        "{} holds a coordinator's record already; `muster-coordinator credentials` makes further credentials for it",
        path.display()
    )]
    Exists {
        /// Path of the state directory.
        path: PathBuf,
    },
    /// The directory belongs to another program.
    #[error("{} is the state directory of a muster-agent; name another with --state-dir", path.display())]
    OfAgent {
        /// Path of the state directory.
        path: PathBuf,
    },
    /// The key would be beside the data that it seals.
    #[error(
        "the key file {} lies in the state directory: whoever gets hold of a copy of that directory has the CA's key \
         too; name one elsewhere (or --demo, if nothing depends on this coordinator)", path.display()
    )]
    KeyBesideRecord {
        /// Path of the key file.
        path: PathBuf,
    },
    /// The file for the credentials already exists.
    #[error("{} exists, and may hold credentials; name another file with --out, or remove it", path.display())]
    OutExists {
        /// Path of the file.
        path: PathBuf,
    },
    /// The path exists as something other than a file.
    #[error("{} is {what}; name a new file with --out", path.display())]
    OutIsNoFile {
        /// The path.
        path: PathBuf,
        /// Its type in words.
        what: &'static str,
    },
    /// Writing a file failed.
    #[error("cannot write {} ({option} names another place)", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The option that sets its path.
        option: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

impl SetupError {
    /// Is it caused by the command line?
    #[must_use]
    pub const fn is_bad_input(&self) -> bool {
        let out = matches!(self, Self::OutExists { .. } | Self::OutIsNoFile { .. });
        let place = matches!(self, Self::Exists { .. } | Self::OfAgent { .. } | Self::KeyBesideRecord { .. });
        out || place || matches!(self, Self::Config(_))
    }
}

/// Configuration of musterctl: the coordinator's address, and our credentials.
#[derive(Clone, Serialize, Deserialize)]
pub struct Credentials {
    /// `HOST:PORT`.
    pub coordinator: String,
    /// PEM.
    pub ca: String,
    /// PEM.
    pub certificate: String,
    /// PEM.
    pub key: String,
}

/// Validity of the next certificate of `peer`, and its row. `known` is the present row of its name.
pub(crate) fn next_certificate(
    peer: &Peer,
    known: Option<&CredentialRow>,
    lifetime: Duration,
    now_ms: u64,
) -> (Validity, CertificateRow) {
    let revoked_at_ms = known.and_then(|row| row.revoked_at_ms);
    // Certificates count in seconds: one issued in the second of a revocation would count as revoked.
    let issued_at_ms = now_ms.max(revoked_at_ms.map_or(0, |at_ms| (at_ms / 1000 + 1) * 1000));
    let validity = Validity::from(issued_at_ms, lifetime);
    let expires_at_ms = validity.not_after_ms;
    let clusters = peer.clusters.clone().unwrap_or_default();
    (validity, CertificateRow { issued_at_ms, expires_at_ms, clusters })
}

impl Credentials {
    /// Issue credentials for `peer`, with the row to record before they are handed out. `known` is the row of the same
    /// name.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn issue(
        ca: &Ca,
        address: &str,
        (peer, lifetime): (&Peer, Duration),
        known: Option<&CredentialRow>,
        now_ms: u64,
    ) -> Result<(Self, CredentialRow), PkiError> {
        let (validity, certificate) = next_certificate(peer, known, lifetime, now_ms);
        let identity = ca.issue(peer, validity)?;
        let revoked_at_ms = known.and_then(|row| row.revoked_at_ms);
        let row = CredentialRow { subject: peer.to_string(), certificates: vec![certificate], revoked_at_ms };
        let credentials = Self {
            coordinator: address.to_owned(),
            ca: ca.pem().to_owned(),
            certificate: identity.certificate_pem,
            key: identity.key_pem,
        };
        Ok((credentials, row))
    }
}

/// New credentials, with notes for the operator who requested them.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Issued {
    /// The credentials.
    pub credentials: Credentials,
    /// Clusters they are limited to that are still to be created.
    pub unknown_clusters: Vec<ClusterName>,
}

impl Issued {
    /// Credentials for `peer`, checked against the known clusters.
    #[must_use]
    pub fn new(credentials: Credentials, peer: &Peer, facts: &Facts) -> Self {
        let named = peer.clusters.iter().flatten();
        let unknown_clusters = named.filter(|name| !facts.clusters.contains_key(*name)).cloned().collect();
        Self { credentials, unknown_clusters }
    }
}

/// The file for new credentials. It is created first, because a key is lost if storing it fails. It is removed unless
/// kept.
pub struct CredentialsFile {
    path: PathBuf,
    file: fs::File,
    kept: bool,
}

impl CredentialsFile {
    /// Create the file, at a free path, readable only by its owner.
    ///
    /// # Errors
    /// [`SetupError::OutExists`], [`SetupError::OutIsNoFile`], [`SetupError::Write`].
    pub fn create(path: &Path) -> Result<Self, SetupError> {
        let error = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists if path.is_dir() => {
                SetupError::OutIsNoFile { path: path.to_owned(), what: "a directory" }
            }
            io::ErrorKind::AlreadyExists if path.exists() && !path.is_file() => {
                SetupError::OutIsNoFile { path: path.to_owned(), what: "a device, a pipe or a socket" }
            }
            io::ErrorKind::AlreadyExists => SetupError::OutExists { path: path.to_owned() },
            _ => SetupError::Write { path: path.to_owned(), option: "--out", source },
        };
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(parent).map_err(error)?;
        }
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(SECRET_MODE).open(path).map_err(error)?;
        Ok(Self { path: path.to_owned(), file, kept: false })
    }

    /// Write musterctl's configuration.
    ///
    /// # Errors
    /// [`SetupError::Write`].
    pub fn write(&mut self, credentials: &Credentials) -> Result<(), SetupError> {
        let error = |source| SetupError::Write { path: self.path.clone(), option: "--out", source };
        let text = toml::to_string_pretty(credentials).map_err(|problem| error(io::Error::other(problem)))?;
        self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_all()).map_err(error)
    }

    /// Keep the file: the credentials are recorded.
    pub fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for CredentialsFile {
    fn drop(&mut self) {
        if !self.kept {
            // The file is ours, and unread. If its removal fails, the next attempt reports that it exists.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Arguments of `init`.
pub struct Init<'a> {
    /// State directory for the record.
    pub state_dir: &'a StateDir,
    /// Path of its key, which is created if missing.
    pub key_file: &'a Path,
    /// The realm of the new CA.
    pub trust_domain: &'a TrustDomain,
    /// The coordinator's address for operators.
    pub address: &'a str,
    /// The first operator.
    pub operator: &'a Peer,
    /// Path for the first operator's credentials.
    pub out: &'a Path,
    /// Allow the key beside the record.
    pub demo: bool,
}

impl Init<'_> {
    /// Create the key file, the CA, the first operator's credentials, and last the record: everything else counts only
    /// with it, so `init` can be run again.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn run(&self, now_ms: u64) -> Result<(), SetupError> {
        let store = self.state_dir.store();
        if store.exists() {
            return Err(SetupError::Exists { path: self.state_dir.path().to_owned() });
        }
        if self.state_dir.path().join(AGENT_IDENTITY).is_file() {
            return Err(SetupError::OfAgent { path: self.state_dir.path().to_owned() });
        }
        if self.out == self.key_file {
            return Err(SetupError::OutIsNoFile { path: self.out.to_owned(), what: "the key file" });
        }
        let mut out = CredentialsFile::create(self.out)?;
        self.state_dir.create()?;
        self.check_key_place()?;
        if self.key_file.exists() {
            self.make(&StateKey::read(self.key_file)?, &mut out, now_ms)?;
        } else {
            let made = self.make(&StateKey::create(self.key_file)?, &mut out, now_ms);
            if made.is_err() && !store.exists() {
                let _ = fs::remove_file(self.key_file); // ours, and it opens nothing
            }
            made?;
        }
        out.keep();
        Ok(())
    }

    fn make(&self, key: &StateKey, out: &mut CredentialsFile, now_ms: u64) -> Result<(), SetupError> {
        let ca = Ca::create(self.trust_domain, now_ms)?;
        let (credentials, row) = Credentials::issue(&ca, self.address, (self.operator, PERSON_LIFETIME), None, now_ms)?;
        out.write(&credentials)?;
        let mut rows = ca.rows(key)?;
        let mut facts = Facts::default();
        self.address.clone_into(&mut facts.meta.address);
        // Agents are told it too, unless it would lead each of them to itself.
        let others = Addresses::parse(self.address).ok().filter(|_| !is_loopback(self.address));
        facts.meta.advertised = others;
        // The first start writes this to the journal.
        rows.extend(recorded(&mut facts, row, now_ms)?.into_changes());
        EmbeddedStore::create_with(&self.state_dir.store(), &rows)?;
        Ok(self.state_dir.give_record()?)
    }

    fn check_key_place(&self) -> Result<(), SetupError> {
        let error = |source| SetupError::Write { path: self.key_file.to_owned(), option: "--key-file", source };
        let absolute = std::path::absolute(self.key_file).map_err(error)?;
        let parent = absolute.parent().unwrap_or(&absolute);
        if !self.demo {
            fs::create_dir_all(parent).map_err(error)?;
        }
        let place = parent.canonicalize().map_err(error)?;
        let record = self.state_dir.path().canonicalize().map_err(error)?;
        if place.starts_with(&record) && !self.demo {
            return Err(SetupError::KeyBesideRecord { path: self.key_file.to_owned() });
        }
        Ok(())
    }
}

/// Issue credentials while the coordinator is stopped, recorded first as in a running one.
///
/// # Errors
/// [`SetupError`].
pub fn issue(
    store: &mut EmbeddedStore,
    key: &StateKey,
    (peer, lifetime): (&Peer, Duration),
    now_ms: u64,
) -> Result<Issued, SetupError> {
    let rows = store.load()?;
    let ca = Ca::load(&rows, key)?;
    let mut facts = load(rows)?;
    let address = facts.meta.address.clone();
    let known = facts.credentials.get(&peer.to_string()).map(|row| &**row);
    let (credentials, row) = Credentials::issue(&ca, &address, (peer, lifetime), known, now_ms)?;
    commit(store, recorded(&mut facts, row, now_ms)?)?;
    Ok(Issued::new(credentials, peer, &facts))
}

fn recorded(facts: &mut Facts, row: CredentialRow, now_ms: u64) -> Result<Transaction<'_>, SetupError> {
    let mut tx = Transaction::new(facts);
    let now = Now { wall_ms: now_ms, mono_ms: 0 };
    credentials::record(&mut tx, LOCAL_ACTOR, row, now).map_err(|refusal| SetupError::Refused(refusal.to_string()))?;
    Ok(tx)
}

/// Load the record of a stopped coordinator. The last writer's audit lines are then in the journal: the next batch
/// replaces the one that might be missing there.
fn load(rows: Vec<Row>) -> Result<Facts, SetupError> {
    let facts = Facts::load(rows)?;
    journal::catch_up(&facts);
    Ok(facts)
}

/// Make a change durable as a running coordinator does: its audit lines are in the journal before an answer.
fn commit(store: &mut EmbeddedStore, mut tx: Transaction<'_>) -> Result<(), SetupError> {
    let audited = tx.take_audited();
    store.commit(&tx.into_changes())?;
    audited.iter().for_each(|line| journal::audit(line));
    Ok(())
}

/// Record the coordinator's addresses while it is stopped, as a running one does.
///
/// # Errors
/// [`SetupError`].
pub fn set_address(store: &mut EmbeddedStore, addresses: Addresses, now_ms: u64) -> Result<(), SetupError> {
    let mut facts = load(store.load()?)?;
    let mut tx = Transaction::new(&mut facts);
    credentials::set_address(&mut tx, LOCAL_ACTOR, addresses, Now { wall_ms: now_ms, mono_ms: 0 });
    commit(store, tx)
}

/// Mark the record as older than the fleet. The next start takes an epoch above every one seen, and adopts what agents'
/// ledgers know better. Return the epoch of that start.
///
/// # Errors
/// [`SetupError`].
pub fn recover(store: &mut EmbeddedStore, seen: Option<u64>, now_ms: u64) -> Result<Epoch, SetupError> {
    let now = Now { wall_ms: now_ms, mono_ms: 0 };
    let mut facts = load(store.load()?)?;
    let own = facts.meta.epoch;
    if let Some(seen) = seen.filter(|seen| *seen > own.0.saturating_add(EPOCHS_AHEAD_MAX)) {
        return Err(SetupError::Refused(format!(
            "no coordinator of this fleet can have had epoch {seen}: this store's is {own}, and each start takes the \
             next; `musterctl get machines` names the one to give beside StoreOlderThanFleet"
        )));
    }
    let mut tx = Transaction::new(&mut facts);
    let next = core::begin_recovery(&mut tx, Epoch(seen.unwrap_or_default()), LOCAL_ACTOR, now);
    commit(store, tx)?;
    Ok(next)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use nix::unistd::geteuid;

    use super::*;
    use crate::{journal::tests::told_by, pki::Role};

    fn operator() -> Peer {
        Peer { role: Role::Operator("anna".to_owned()), clusters: None }
    }

    fn init(dir: &Path, key_file: &Path, demo: bool) -> Result<(), SetupError> {
        let trust_domain = TrustDomain::new("muster.test").expect("a name");
        let state_dir = StateDir::new(dir.join("state"));
        let out = dir.join("anna.toml");
        let (address, operator) = ("coordinator.example:7443", &operator());
        let (state_dir, out, trust_domain) = (&state_dir, &out, &trust_domain);
        Init { state_dir, key_file, trust_domain, address, operator, out, demo }.run(1_800_000_000_000)
    }

    #[test]
    fn init_makes_everything_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let key_file = dir.path().join("etc/key");
        init(dir.path(), &key_file, false).expect("made");
        let mode = |path: &str| fs::metadata(dir.path().join(path)).expect(path).permissions().mode() & 0o777;
        assert_eq!(
            (mode("state"), mode("state/store"), mode("etc/key"), mode("anna.toml")),
            (0o700, 0o600, 0o600, 0o600)
        );
        let rows = EmbeddedStore::open(&dir.path().join("state/store")).expect("a store").load().expect("rows");
        let ca = Ca::load(&rows, &StateKey::read(&key_file).expect("a key")).expect("a CA");
        let facts = Facts::load(rows).expect("facts");
        let advertised = facts.meta.advertised.map(|addresses| addresses.to_string());
        assert_eq!(
            (facts.meta.address.as_str(), advertised.as_deref()),
            ("coordinator.example:7443", Some("coordinator.example:7443"))
        );
        let text = fs::read_to_string(dir.path().join("anna.toml")).expect("credentials");
        let credentials: Credentials = toml::from_str(&text).expect("TOML");
        assert_eq!((credentials.ca.as_str(), credentials.coordinator.as_str()), (ca.pem(), "coordinator.example:7443"));
        assert!(matches!(init(dir.path(), &key_file, false), Err(SetupError::Exists { .. })));
    }

    #[test]
    fn no_record_is_made_in_an_agents_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("state")).expect("made");
        fs::write(dir.path().join("state/identity.json"), "{}").expect("written");
        let refused = init(dir.path(), &dir.path().join("key"), false).expect_err("an agent's");
        assert!(refused.is_bad_input() && refused.to_string().contains("of a muster-agent"), "{refused}");
        assert!(!dir.path().join("key").exists() && !dir.path().join("anna.toml").exists());
    }

    #[test]
    fn an_init_that_failed_can_be_run_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let key_file = dir.path().join("key");
        fs::write(dir.path().join("anna.toml"), "precious").expect("write");
        assert!(
            matches!(init(dir.path(), &key_file, false), Err(SetupError::OutExists { .. })),
            "it overwrites nothing"
        );
        fs::remove_file(dir.path().join("anna.toml")).expect("remove");
        for (out, what) in [(dir.path(), "is a directory"), (Path::new("/dev/null"), "is a device")] {
            let refused = CredentialsFile::create(out).err().expect("it is no new file");
            assert!(refused.is_bad_input() && refused.to_string().contains(what), "{refused}");
            assert!(out.exists() && !refused.to_string().contains("remove"), "{refused}");
        }
        let beside = dir.path().join("state/key");
        assert!(matches!(init(dir.path(), &beside, false), Err(SetupError::KeyBesideRecord { .. })));
        assert!(!dir.path().join("anna.toml").exists(), "credentials of nothing are not left in the way");
        let part = dir.path().join("state/store.part");
        fs::create_dir(&part).expect("made");
        assert!(matches!(init(dir.path(), &key_file, false), Err(SetupError::Store(_))));
        assert!(!key_file.exists(), "nor a key that opens nothing");
        StateKey::create(&key_file).expect("a key");
        assert!(matches!(init(dir.path(), &key_file, false), Err(SetupError::Store(_))));
        assert!(key_file.exists(), "one that was there before is not ours to remove");
        fs::remove_dir(&part).expect("removed");
        init(dir.path(), &key_file, false).expect("made, with the key file that was made before");
    }

    #[test]
    fn the_key_lies_beside_the_record_in_a_demo_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let inside = dir.path().join("state/key");
        assert!(matches!(init(dir.path(), &inside, false), Err(SetupError::KeyBesideRecord { .. })));
        let detour = dir.path().join("state/../state/key");
        assert!(matches!(init(dir.path(), &detour, false), Err(SetupError::KeyBesideRecord { .. })));
        init(dir.path(), &inside, true).expect("a demo");
    }

    #[test]
    fn the_record_belongs_to_whom_its_directory_does() {
        let dir = tempfile::tempdir().expect("a directory");
        let state_dir = StateDir::new(dir.path().join("state"));
        // Only root can give files away; those of other users belong to them, as does the directory.
        let us = geteuid().as_raw();
        let service = if us == 0 { 64_710 } else { us };
        let owner = |path: &Path| fs::metadata(path).expect("it is there").uid();
        state_dir.create().expect("made");
        chown(state_dir.path(), Some(service), None).expect("given");
        init(dir.path(), &dir.path().join("key"), false).expect("made");
        assert_eq!(owner(&state_dir.store()), service, "a new one");
        let copy = dir.path().join("copy");
        EmbeddedStore::open(&state_dir.store()).expect("open").backup(&copy).expect("copied");
        fs::rename(&copy, state_dir.store()).expect("put in its place");
        assert_eq!(owner(&state_dir.store()), us);
        state_dir.give_record().expect("given");
        assert_eq!(owner(&state_dir.store()), service, "a copy that was put in its place");
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, "somebody else's").expect("write");
        fs::remove_file(state_dir.store()).expect("removed");
        symlink(&elsewhere, state_dir.store()).expect("a link");
        state_dir.give_record().expect("left alone");
        assert_eq!(owner(&elsewhere), us, "what a link leads to is not given away");
    }

    #[test]
    fn root_leaves_nothing_in_the_services_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let state_dir = StateDir::new(dir.path().join("state"));
        let us = geteuid().as_raw();
        let service = if us == 0 { 64_710 } else { us };
        state_dir.create().expect("made");
        chown(state_dir.path(), Some(service), None).expect("given");
        let key_file = dir.path().join("key");
        init(dir.path(), &key_file, false).expect("made");
        state_dir.check().expect("root works beside the service");
        assert!(crate::admin::AdminClient::connect(&state_dir).expect("nobody is there").is_none());
        let mut store = EmbeddedStore::open(&state_dir.store()).expect("open");
        let key = StateKey::read(&key_file).expect("a key");
        issue(&mut store, &key, (&operator(), PERSON_LIFETIME), 1_800_000_001_000).expect("issued");
        store.backup(&dir.path().join("copy")).expect("copied");
        recover(&mut store, None, 0).expect("marked");
        for entry in fs::read_dir(state_dir.path()).expect("read") {
            let entry = entry.expect("an entry");
            assert_eq!(entry.metadata().expect("there").uid(), service, "{:?}", entry.path());
        }
        // A coordinator run by root would leave its socket and other files there, and break the service.
        let refused = state_dir.check_to_run().err().map(|error| error.to_string());
        assert_eq!(refused.is_some(), us == 0, "{refused:?}");
        assert!(refused.is_none_or(|refused| refused.contains("run it as that user")));
    }

    #[test]
    fn state_directory_of_everybody_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        init(dir.path(), &dir.path().join("key"), false).expect("made");
        let state_dir = StateDir::new(dir.path().join("state"));
        fs::set_permissions(state_dir.path(), fs::Permissions::from_mode(0o777)).expect("opened");
        let refused = state_dir.check().expect_err("everybody's").to_string();
        assert!(refused.contains("chmod o-w"), "{refused}");
        fs::set_permissions(state_dir.path(), fs::Permissions::from_mode(0o700)).expect("closed");
        symlink(state_dir.path(), dir.path().join("link")).expect("a link");
        let link = StateDir::new(dir.path().join("link"));
        link.check().expect("only we can have made it");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).expect("opened");
        let refused = link.check().expect_err("a link").to_string();
        assert!(refused.contains("`rm "), "{refused}");
    }

    #[test]
    fn credentials_are_recorded_before_anybody_has_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let key_file = dir.path().join("key");
        init(dir.path(), &key_file, false).expect("made");
        let mut store = EmbeddedStore::open(&dir.path().join("state/store")).expect("open");
        let key = StateKey::read(&key_file).expect("a key");
        let bo = Peer { role: Role::Viewer("bo".to_owned()), clusters: None };
        issue(&mut store, &key, (&bo, PERSON_LIFETIME), 1_800_000_001_000).expect("issued");
        let facts = Facts::load(store.load().expect("rows")).expect("facts");
        assert_eq!(facts.credentials.keys().collect::<Vec<_>>(), ["operator/anna", "viewer/bo"]);
        let objects: Vec<_> =
            facts.audit_lines().into_iter().map(|line| (line.action.as_str(), line.object.as_str())).collect();
        assert_eq!(objects, [("issue", "credentials/operator/anna"), ("issue", "credentials/viewer/bo")]);
        // A new certificate under a name revoked in this very second must be accepted.
        let revoked =
            CredentialRow { revoked_at_ms: Some(1_800_000_001_500), ..(*facts.credentials["viewer/bo"]).clone() };
        assert!(revoked.revoked());
        let ca = Ca::create(&TrustDomain::new("muster.test").expect("a name"), 0).expect("a CA");
        let (_, row) =
            Credentials::issue(&ca, "", (&bo, PERSON_LIFETIME), Some(&revoked), 1_800_000_001_600).expect("issued");
        assert_eq!((row.certificates[0].issued_at_ms, row.revoked()), (1_800_000_002_000, false));
    }

    /// What a command records while the coordinator is stopped is in the journal before it answers. So are lines that
    /// the process before failed to write.
    #[test]
    fn offline_commands_tell_the_journal() {
        let dir = tempfile::tempdir().expect("a directory");
        let key_file = dir.path().join("key");
        init(dir.path(), &key_file, false).expect("made");
        let mut store = EmbeddedStore::open(&dir.path().join("state/store")).expect("open");
        let key = StateKey::read(&key_file).expect("a key");
        let bo = Peer { role: Role::Viewer("bo".to_owned()), clusters: None };
        let (first, second) = ("1 audit: for every cluster", "2 audit: for every cluster");
        let told = told_by(|| issue(&mut store, &key, (&bo, PERSON_LIFETIME), 1_800_000_001_000).expect("issued")).1;
        assert_eq!(told, [first, second], "what init recorded is told by whoever comes next");
        let told = told_by(|| set_address(&mut store, Addresses::parse("a:1").expect("one"), 0).expect("set")).1;
        assert_eq!(told, [second, "3 audit: a:1"]);
        let told = told_by(|| recover(&mut store, None, 0).expect("marked")).1;
        let recovered = "4 audit: the next start has epoch 1 and takes over what the agents know better";
        assert_eq!(told, ["3 audit: a:1", recovered]);
        let told = told_by(|| issue(&mut store, &key, (&bo, PERSON_LIFETIME), 1_800_000_002_000).expect("issued")).1;
        assert_eq!((told[0].as_str(), told.len()), (recovered, 2));
    }

    #[test]
    fn recover_takes_an_epoch_above_all_that_were_seen() {
        let dir = tempfile::tempdir().expect("a directory");
        init(dir.path(), &dir.path().join("key"), false).expect("made");
        let mut store = EmbeddedStore::open(&dir.path().join("state/store")).expect("open");
        assert_eq!(recover(&mut store, None, 0).expect("marked"), Epoch(1));
        assert_eq!(recover(&mut store, Some(7), 0).expect("marked"), Epoch(8));
        assert_eq!(recover(&mut store, Some(3), 0).expect("marked"), Epoch(8), "it never goes back");
        let beyond = recover(&mut store, Some(u64::MAX), 0).expect_err("none can be taken after it").to_string();
        assert!(beyond.contains("this store's is 7"), "{beyond}");
        let facts = Facts::load(store.load().expect("rows")).expect("facts");
        assert!(facts.meta.recovering && facts.meta.recovered_epoch == Epoch(8) && facts.audit_lines().len() == 3);
    }
}
