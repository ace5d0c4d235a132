use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use rcgen::{PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SigningKey};

use super::*;

const NOW_MS: u64 = 1_800_000_000_000;

fn domain() -> TrustDomain {
    TrustDomain::new("muster.test").expect("a name")
}

fn key_in(dir: &Path, name: &str) -> StateKey {
    StateKey::create(&dir.join(name)).expect("a key file")
}

fn rows(changes: Vec<Change>) -> Vec<Row> {
    let row = |change| match change {
        Change::Put { table, key, value } => (table, key, value),
        Change::Delete { .. } => panic!("nothing is deleted"),
    };
    changes.into_iter().map(row).collect()
}

#[test]
fn a_ca_comes_back_with_its_key_file_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let key = key_in(dir.path(), "key");
    let ca = Ca::create(&domain(), NOW_MS).expect("a CA");
    let good = rows(ca.rows(&key).expect("sealed"));
    let again = Ca::load(&good, &StateKey::read(&dir.path().join("key")).expect("the file")).expect("opened");
    assert_eq!((again.pin(), again.pem(), again.trust_domain()), (ca.pin(), ca.pem(), &domain()));
    assert_eq!(spki_sha256(ca.certificate()), Some(ca.pin()), "what agents compare");

    let other = Ca::create(&domain(), NOW_MS).expect("a CA");
    let check = |rows: &[Row], key: &StateKey, expected: &str| {
        let error = Ca::load(rows, key).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&good, &key_in(dir.path(), "other"), "key file is not the one");
    check(&[], &key, "holds no certificate authority");
    check(&good[..1], &key, "holds no certificate authority");
    let mut damaged = good.clone();
    damaged[1].2[20] ^= 1;
    check(&damaged, &key, "key file is not the one");
    let mut mixed = good.clone();
    mixed[0].2 = other.pem().as_bytes().to_vec();
    check(&mixed, &key, "do not belong together");
    let sealed = &good[1].2;
    let plain = ca.issuer.key().serialized_der();
    assert!(!sealed.windows(16).any(|part| part == &plain[plain.len() - 16..]), "the key lies open");
}

#[test]
fn a_key_file_is_for_its_owner_and_has_the_right_length() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("key");
    assert!(matches!(StateKey::read(&path), Err(KeyFileError::Read { .. })));
    drop(key_in(dir.path(), "key"));
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    assert!(matches!(StateKey::create(&path), Err(KeyFileError::Create { .. })), "it overwrites none");
    StateKey::read(&path).expect("readable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
    assert!(matches!(StateKey::read(&path), Err(KeyFileError::Exposed { .. })));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).expect("chmod");
    StateKey::read(&path).expect("what a container secret looks like");
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).expect("made");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("chmod");
    assert!(matches!(StateKey::read(&folder), Err(KeyFileError::Read { .. })), "chmod does not help");
    for bytes in [&[][..], &[1; 31], &[1; 33]] {
        let wrong = dir.path().join("wrong");
        fs::write(&wrong, bytes).expect("write");
        fs::set_permissions(&wrong, fs::Permissions::from_mode(0o644)).expect("chmod");
        assert!(matches!(StateKey::read(&wrong), Err(KeyFileError::Length { .. })), "chmod does not help");
    }
}

#[test]
fn a_certificate_says_what_was_signed() {
    let ca = Ca::create(&domain(), NOW_MS).expect("a CA");
    let clusters = ["a", "b"].map(|name| muster_proto::model::ClusterName::new(name).expect("a name"));
    let id = muster_proto::model::MachineId(uuid::Uuid::from_u128(7));
    for peer in [
        Peer::agent(id),
        Peer { role: Role::Operator("anna".to_owned()), clusters: None },
        Peer { role: Role::Viewer("bo".to_owned()), clusters: Some(clusters.into_iter().collect()) },
        Peer { role: Role::Controller("locks".to_owned()), clusters: None },
    ] {
        let validity = Validity::from(NOW_MS, AGENT_LIFETIME);
        let identity = ca.issue(&peer, validity).expect("issued");
        let der = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).expect("PEM");
        let read = Certificate::read(&domain(), &der).expect("readable");
        assert_eq!(read.peer, peer);
        assert_eq!((read.not_before_ms, read.not_after_ms), (validity.not_before_ms, validity.not_after_ms));
        assert_eq!(read.not_after_ms, NOW_MS + 24 * 3_600_000);
        let key = KeyPair::from_pem(&identity.key_pem).expect("PEM");
        assert_eq!(read.public_key, key.subject_public_key_info());
        let other = TrustDomain::new("other").expect("a name");
        assert_eq!(Certificate::read(&other, &der), Err(CertificateError::TrustDomain));
    }
    assert_eq!(Certificate::read(&domain(), &CertificateDer::from(vec![1, 2, 3])), Err(CertificateError::Parse));
    assert_eq!(Certificate::read(&domain(), ca.certificate()), Err(CertificateError::TrustDomain), "the CA is no peer");
}

#[test]
fn of_a_request_only_a_proven_p256_key_is_taken() {
    let request =
        |key: &KeyPair| CertificateParams::default().serialize_request(key).expect("a request").der().to_vec();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let good = request(&key);
    assert_eq!(public_key(&good).expect("taken").subject_public_key_info(), key.subject_public_key_info());

    let check = |what: &str, der: &[u8], expected: RequestError| {
        assert_eq!(public_key(der).err(), Some(expected), "{what}");
    };
    let p384 = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key");
    let ed25519 = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    check("P-384", &request(&p384), RequestError::Algorithm);
    check("Ed25519", &request(&ed25519), RequestError::Algorithm);
    check("nothing", &[], RequestError::Parse);
    check("no DER", b"hello", RequestError::Parse);
    check("cut", &good[..good.len() - 1], RequestError::Parse);
    check("more behind it", &[&good[..], &[0]].concat(), RequestError::Parse);
    check("long", &vec![0x30; 5000], RequestError::Parse);
    let mut changed = good.clone();
    *changed.last_mut().expect("bytes") ^= 1;
    check("signature changed", &changed, RequestError::Signature);
    // Another key in an otherwise valid request.
    let ours = key.subject_public_key_info();
    let at = good.windows(ours.len()).position(|part| part == ours).expect("it is in there");
    let mut stolen = good.clone();
    let other = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    stolen[at..at + ours.len()].copy_from_slice(&other.subject_public_key_info());
    check("key of another", &stolen, RequestError::Signature);
}

#[test]
fn a_signature_is_of_the_key_and_the_message() {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let other = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let signature = key.sign(b"message").expect("signed");
    assert!(signed_by(&key.subject_public_key_info(), b"message", &signature));
    assert!(!signed_by(&key.subject_public_key_info(), b"massage", &signature));
    assert!(!signed_by(&other.subject_public_key_info(), b"message", &signature));
    assert!(!signed_by(&key.subject_public_key_info(), b"message", &[]));
    assert!(!signed_by(b"no key", b"message", &signature));
}
