//! Renewal of controllers' certificates over their own connections.

use muster_proto::wire::{
    CredentialsRequest, GetRequest, ListLocksRequest, RenewCertificateRequest, RenewedCertificate,
    maintenance_client::MaintenanceClient,
};
use tonic::Code;

use super::*;

const AGE_MS: u64 = 40 * 60 * 1000;

fn nova() -> Peer {
    Peer { role: Role::Controller("nova-2".to_owned()), clusters: None }
}

impl World {
    /// A controller with a certificate for an hour that was issued 40 minutes ago.
    async fn aged(&self) -> Identity {
        let issued_at_ms = self.began_ms - AGE_MS;
        let validity = Validity::from(issued_at_ms, HOUR);
        let certificate =
            CertificateRow { issued_at_ms, expires_at_ms: validity.not_after_ms, clusters: BTreeSet::new() };
        let row = CredentialRow { subject: nova().to_string(), certificates: vec![certificate], revoked_at_ms: None };
        self.desired(DesiredState::RecordCredentials(row)).await;
        self.ca.issue(&nova(), validity).expect("issued")
    }

    async fn controller(&self, identity: &Identity) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel(Some(identity)).await)
    }

    /// Is this certificate accepted?
    async fn accepts(&self, identity: &Identity) -> bool {
        let request = ListLocksRequest { cluster: "edge".to_owned() };
        self.controller(identity).await.list_locks(request).await.is_ok()
    }
}

async fn renew(client: &mut MaintenanceClient<Channel>, csr_der: Vec<u8>) -> Result<RenewedCertificate, tonic::Status> {
    Ok(client.renew_certificate(RenewCertificateRequest { csr_der }).await?.into_inner())
}

#[tokio::test]
async fn renewed_certificate_and_former_are_accepted_until_revoked() {
    let world = World::start().await;
    let former = world.aged().await;
    let mut client = world.controller(&former).await;
    let (key, csr_der) = request();
    let renewed = renew(&mut client, csr_der).await.expect("renewed");
    assert_eq!(renewed.ca_pem, world.ca.pem());
    let left_ms = renewed.not_after_ms - world.engine.now().wall_ms;
    assert!((3_500_000..=3_600_000).contains(&left_ms), "as long as the one before: {left_ms}");
    let renewed = Identity { certificate_pem: renewed.certificate_pem, key_pem: key.serialize_pem() };
    assert!(world.accepts(&renewed).await && world.accepts(&former).await);
    let get = GetRequest { kind: "credentials".to_owned(), name: nova().to_string(), ..Default::default() };
    let mut anna = world.operator().await;
    assert_eq!(anna.get(get).await.expect("read").into_inner().items.len(), 2, "each is listed");
    anna.revoke_credentials(CredentialsRequest { subject: nova().to_string() }).await.expect("revoked");
    assert!(!world.accepts(&renewed).await && !world.accepts(&former).await);
    let refused = renew(&mut client, request().1).await.expect_err("revoked");
    assert_ne!(refused.code(), Code::Internal, "{refused:?}");
}

#[tokio::test]
async fn renewal_takes_a_new_key_and_an_old_certificate() {
    let world = World::start().await;
    let former = world.aged().await;
    let mut client = world.controller(&former).await;
    let key = KeyPair::from_pem(&former.key_pem).expect("a key");
    let same = CertificateParams::default().serialize_request(&key).expect("a request").der().to_vec();
    for (csr_der, told) in [(same, "make a new one"), (vec![1, 2, 3], "csr_der: not a certificate request")] {
        let refused = renew(&mut client, csr_der).await.expect_err(told);
        assert_eq!((refused.code(), refused.message().contains(told)), (Code::InvalidArgument, true), "{refused:?}");
    }
    let fresh = world.issued(nova().role).await;
    let refused = renew(&mut world.controller(&fresh).await, request().1).await.expect_err("too early");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(refused.message().contains("half of its life"), "{refused:?}");
}
