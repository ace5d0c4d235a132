use serde_json::{Value, json};
use tokio::time::sleep;
use uuid::Uuid;

use super::*;
use crate::{
    facts::kubernetes::{NodeRef, PodRef, ScaleDownBefore},
    orchestrator::kubernetes::test_server::{Reply, Server},
};

const PATH: &str = "/etc/kubernetes/admin.conf";
/// UID of the cluster that was there first.
const PINNED: &str = "cluster-1";

/// What the agents of control machines do, by the machine's number.
#[derive(Clone, Default)]
struct Agents(Arc<Mutex<Played>>);

#[derive(Default)]
struct Played {
    files: BTreeMap<u32, String>,
    reads: Vec<u32>,
    delay: Duration,
}

impl Agents {
    fn played(&self) -> MutexGuard<'_, Played> {
        self.0.lock().unwrap()
    }

    /// From now on the machine has this file.
    fn write(&self, number: u32, content: impl Into<String>) {
        self.played().files.insert(number, content.into());
    }

    /// The machines whose files were read since the last time.
    fn reads(&self) -> Vec<u32> {
        std::mem::take(&mut self.played().reads)
    }
}

/// Three control machines, and one API server.
struct World {
    sessions: Sessions,
    agents: Agents,
    server: Server,
    confs: AdminConfs,
    file: AdminConfFile,
}

fn holder(number: u32) -> (MachineName, MachineId) {
    (MachineName::new(format!("control-{number}")).unwrap(), MachineId(Uuid::from_u128(number.into())))
}

impl World {
    /// The first two machines have a file, each with a token of its own.
    async fn new(replies: impl IntoIterator<Item = Vec<Reply>>) -> Self {
        let server = Server::in_order(replies.into_iter().flatten().collect()).await;
        let (sessions, agents) = (Sessions::default(), Agents::default());
        for number in 1..=3 {
            let agents = agents.clone();
            sessions.connect_agent(holder(number).1, move |_| {
                let (file, delay) = {
                    let mut played = agents.played();
                    played.reads.push(number);
                    (played.files.get(&number).cloned(), played.delay)
                };
                async move {
                    sleep(delay).await;
                    let content = file.ok_or_else(|| "no such file".to_owned())?;
                    Ok(ControlPlaneReply::AdminConf(AdminConf(content.into_bytes())))
                }
            });
        }
        agents.write(1, server.file("first"));
        agents.write(2, server.file("second"));
        let file = AdminConfFile {
            cluster: ClusterName::new("edge").unwrap(),
            path: PATH.to_owned(),
            kubernetes_uid: Some(PINNED.to_owned()),
            holders: (1..=3).map(holder).collect(),
        };
        Self { sessions, agents, server, confs: AdminConfs::default(), file }
    }

    async fn ask(&self, op: &KubernetesOp) -> Result<KubernetesReply, KubernetesFailure> {
        self.confs.perform(&self.file, (&self.sessions, Epoch(1)), op, &[]).await
    }

    async fn nodes(&self) -> Result<KubernetesReply, KubernetesFailure> {
        self.ask(&KubernetesOp::Nodes).await
    }

    async fn failure(&self) -> KubernetesFailure {
        self.nodes().await.unwrap_err()
    }

    /// The tokens of all requests, one after another.
    fn tokens(&self) -> Vec<String> {
        let mut tokens: Vec<String> =
            self.server.seen().iter().map(|seen| seen.header("authorization").replace("Bearer ", "")).collect();
        tokens.dedup();
        tokens
    }
}

fn uid(of: &str) -> Reply {
    Reply::json(200, json!({ "metadata": { "uid": of } }))
}

fn nodes_of(cluster: &str) -> Vec<Reply> {
    vec![uid(cluster), Reply::json(200, json!({ "metadata": {}, "items": [] }))]
}

fn served() -> Vec<Reply> {
    nodes_of(PINNED)
}

fn status(code: u16) -> Vec<Reply> {
    let words: Value = json!({ "kind": "Status", "message": format!("status {code}"), "code": code });
    vec![Reply::json(code, words)]
}

#[tokio::test]
async fn good_file_is_read_once() {
    let world = World::new([served(), served()]).await;
    world.nodes().await.unwrap();
    world.nodes().await.unwrap();
    assert_eq!((world.agents.reads(), world.tokens()), (vec![1], vec!["first".to_owned()]));
}

/// 502: the API server cannot be reached.
#[tokio::test]
async fn doubtful_file_is_read_again() {
    for code in [502, 403, 400] {
        let world = World::new([served(), status(code), served(), served()]).await;
        world.nodes().await.unwrap();
        let failure = world.failure().await.to_string();
        assert!(failure.ends_with("; kubeconfig: /etc/kubernetes/admin.conf of control-1"), "{failure}");
        world.agents.write(1, world.server.file("corrected"));
        world.nodes().await.unwrap();
        world.nodes().await.unwrap();
        assert_eq!((world.agents.reads(), world.tokens()), (vec![1, 1], vec!["first".into(), "corrected".into()]));
    }
}

#[tokio::test]
async fn refused_eviction_reads_again() {
    let world = World::new([served(), status(401), served()]).await;
    world.nodes().await.unwrap();
    let KubernetesReply::Evicted(answers) = world.ask(&eviction()).await.unwrap() else { panic!() };
    assert!(matches!(&answers[..], [(_, Err(KubernetesFailure::Unauthorized(_)))]));
    world.nodes().await.unwrap();
    assert_eq!((world.agents.reads(), world.tokens().last().unwrap().as_str()), (vec![1, 1, 2], "second"));
}

#[tokio::test]
async fn unread_file_serves_further() {
    let world = World::new([served(), status(502), served()]).await;
    world.nodes().await.unwrap();
    world.failure().await;
    world.agents.played().files.clear();
    world.nodes().await.unwrap();
    assert_eq!((world.agents.reads(), world.tokens()), (vec![1, 1, 2, 3], vec!["first".to_owned()]));
}

/// Its credentials are not accepted, or it leads to another cluster.
#[tokio::test]
async fn rejected_file_yields_to_next() {
    for rejection in [status(401), nodes_of("another")] {
        let world = World::new([rejection, served(), served()]).await;
        world.nodes().await.unwrap();
        world.nodes().await.unwrap();
        assert_eq!((world.agents.reads(), world.tokens()), (vec![1, 1, 2], vec!["first".into(), "second".into()]));
    }
}

#[tokio::test]
async fn third_file_is_reached() {
    let world = World::new([status(401), status(401), served()]).await;
    world.agents.write(3, world.server.file("third"));
    world.nodes().await.unwrap();
    assert_eq!(world.tokens(), ["first", "second", "third"]);
}

/// The same file is everywhere. It is tried again with the next question: the API server may have changed.
#[tokio::test]
async fn equal_files_are_named() {
    let world = World::new([status(401), served()]).await;
    world.agents.write(2, world.server.file("first"));
    let failure = world.failure().await;
    assert!(matches!(failure, KubernetesFailure::Unauthorized(_)));
    for words in [
        "admin.conf of control-1;",
        "control-1: it has a file that was rejected",
        "control-2: it has a file that was rejected",
        "control-3: no such file",
    ] {
        assert!(failure.to_string().contains(words), "{failure}");
    }
    assert_eq!(world.server.seen().len(), 1, "a rejected file is not tried twice");
    world.nodes().await.unwrap();
}

#[tokio::test]
async fn another_cluster_is_named() {
    let world = World::new([nodes_of("another")]).await;
    world.agents.played().files.remove(&2);
    let failure = world.failure().await.to_string();
    let expected =
        "kube-system has UID another, and had cluster-1; kubeconfig: /etc/kubernetes/admin.conf of control-1";
    assert!(failure.contains(expected), "{failure}");
}

#[tokio::test]
async fn unfit_file_yields_to_next() {
    for unfit in ["{", "", "{\"current-context\": \"none\"}"] {
        let world = World::new([served()]).await;
        world.agents.write(1, unfit);
        world.nodes().await.unwrap();
        assert_eq!((world.agents.reads(), world.tokens()), (vec![1, 2], vec!["second".to_owned()]));
    }
}

#[tokio::test]
async fn unusable_files_are_named() {
    let world = World::new([]).await;
    world.agents.write(1, "{");
    world.agents.played().files.remove(&2);
    let failure = world.failure().await;
    assert!(matches!(failure, KubernetesFailure::NoKubeconfig(_)));
    for words in [PATH, "control-1: cannot read the kubeconfig", "control-2: no such file"] {
        assert!(failure.to_string().contains(words), "{failure}");
    }
}

#[tokio::test]
async fn lost_holder_drops_its_file() {
    let mut world = World::new([served(), served()]).await;
    world.nodes().await.unwrap();
    world.file.holders.remove(0);
    world.nodes().await.unwrap();
    assert_eq!((world.agents.reads(), world.tokens()), (vec![1, 2], vec!["first".into(), "second".into()]));
}

/// The cluster's first answer, and the cluster when it was made again.
#[tokio::test]
async fn other_pin_drops_the_file() {
    let mut world = World::new([served(), served(), served()]).await;
    world.nodes().await.unwrap();
    world.file.kubernetes_uid = None;
    world.nodes().await.unwrap();
    world.file.kubernetes_uid = Some(PINNED.to_owned());
    world.nodes().await.unwrap();
    assert_eq!(world.agents.reads(), [1, 1, 1]);
}

fn eviction() -> KubernetesOp {
    KubernetesOp::Evict { pods: vec![pod()] }
}

fn pod() -> PodRef {
    PodRef { namespace: "shop".to_owned(), name: "web-0".to_owned(), uid: "uid-2".to_owned() }
}

fn changes() -> [KubernetesOp; 3] {
    let node = NodeRef { name: "node-1".to_owned(), uid: "uid-1".to_owned(), resource_version: "1".to_owned() };
    let scale_down = ScaleDownBefore(None);
    let cordon = KubernetesOp::Cordon { node, drained_for: "r-1".to_owned(), scale_down };
    [cordon, eviction(), KubernetesOp::Delete { pod: pod() }]
}

#[tokio::test]
async fn slow_read_sends_no_change() {
    for op in changes() {
        let mut world = World::new([served()]).await;
        world.confs.limits.change = Duration::from_millis(20);
        world.agents.played().delay = Duration::from_millis(60);
        let failure = world.ask(&op).await.unwrap_err();
        assert!(matches!(failure, KubernetesFailure::NoKubeconfig(_)));
        assert!(failure.to_string().starts_with("not sent"), "{failure}");
        assert!(world.server.seen().is_empty());
        world.nodes().await.unwrap();
    }
}

#[tokio::test]
async fn slow_read_is_no_silent_server() {
    let mut world = World::new([]).await;
    world.confs.limits.reading = Duration::from_millis(50);
    world.agents.played().delay = Duration::from_secs(60);
    let failure = world.failure().await;
    assert!(matches!(failure, KubernetesFailure::NoKubeconfig(_)), "{failure}");
    assert!(failure.to_string().contains("cannot read /etc/kubernetes/admin.conf"), "{failure}");
}

#[tokio::test]
async fn waiting_questions_share_a_read() {
    let world = World::new([]).await;
    world.agents.played().files.clear();
    world.agents.played().delay = Duration::from_millis(20);
    let (one, other) = tokio::join!(world.failure(), world.failure());
    assert_eq!((one == other, world.agents.reads()), (true, vec![1, 2, 3]));
    world.failure().await;
    assert_eq!(world.agents.reads(), [1, 2, 3], "a later question reads again");

    let world = World::new([served(), status(502), status(502), status(502)]).await;
    world.nodes().await.unwrap();
    world.failure().await;
    tokio::join!(world.failure(), world.failure());
    assert_eq!(world.agents.reads(), [1, 1], "a doubtful file too");
}
