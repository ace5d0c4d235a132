//! What goes wrong on the wire.

use tokio::net::TcpListener;

use super::*;

fn evict_op() -> KubernetesOp {
    KubernetesOp::Evict { pods: vec![pod_ref()] }
}

fn unreachable(result: Result<KubernetesReply, KubernetesFailure>) -> String {
    match result {
        Err(KubernetesFailure::Unreachable(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn other(result: Result<KubernetesReply, KubernetesFailure>) -> String {
    match result {
        Err(KubernetesFailure::Other(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn refused_connection_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut kubeconfig = Server::in_order(Vec::new()).await.kubeconfig();
    kubeconfig.server.port = port;
    let text = unreachable(done(&KubernetesClient::new(&kubeconfig).unwrap(), &KubernetesOp::Nodes).await);
    let expected = format!("https://127.0.0.1:{port}: cannot connect: Connection refused (os error 111)");
    assert_eq!(text, expected);
}

#[tokio::test]
async fn wrong_ca_is_unreachable() {
    let server = Server::in_order(Vec::new()).await;
    let mut kubeconfig = server.kubeconfig();
    kubeconfig.ca = test_server::other_ca();
    let text = unreachable(done(&KubernetesClient::new(&kubeconfig).unwrap(), &KubernetesOp::Nodes).await);
    assert!(text.contains("TLS handshake failed: invalid peer certificate: "), "{text}");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn wrong_server_name_is_unreachable() {
    let server = Server::in_order(Vec::new()).await;
    let mut kubeconfig = server.kubeconfig();
    kubeconfig.tls_server_name = Some("elsewhere".to_owned());
    let text = unreachable(done(&KubernetesClient::new(&kubeconfig).unwrap(), &KubernetesOp::Nodes).await);
    assert!(text.contains("not valid for name \"elsewhere\""), "{text}");
}

#[tokio::test]
async fn hanging_answer_meets_the_deadline() {
    let server = Server::in_order(vec![Reply::hang()]).await;
    let mut client = KubernetesClient::new(&server.kubeconfig()).unwrap();
    client.transport.limits.request = Duration::from_millis(200);
    let text = unreachable(done(&client, &evict_op()).await);
    assert!(text.ends_with(": no answer within 200ms"), "{text}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn hanging_handshake_meets_the_deadline() {
    // It accepts connections (the kernel does), and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut kubeconfig = Server::in_order(Vec::new()).await.kubeconfig();
    kubeconfig.server.port = listener.local_addr().unwrap().port();
    let mut client = KubernetesClient::new(&kubeconfig).unwrap();
    client.transport.limits.connect = Duration::from_millis(100);
    let text = unreachable(done(&client, &KubernetesOp::Nodes).await);
    assert!(text.ends_with(": connecting took longer than 100ms"), "{text}");
}

#[tokio::test]
async fn closed_handshake_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut kubeconfig = Server::in_order(Vec::new()).await.kubeconfig();
    kubeconfig.server.port = listener.local_addr().unwrap().port();
    let client = KubernetesClient::new(&kubeconfig).unwrap();
    let close = async { drop(listener.accept().await.unwrap()) };
    let op = evict_op();
    let (result, ()) = tokio::join!(done(&client, &op), close);
    assert!(unreachable(result).contains("TLS handshake failed: "));
}

/// The kubeconfig of this server, with a virtual address that is on no machine now.
fn behind_virtual_address(server: &Server) -> (KubernetesClient, std::net::TcpListener) {
    let mut kubeconfig = server.kubeconfig();
    // It accepts connections (the kernel does), and says nothing.
    let silent = std::net::TcpListener::bind(("127.0.0.9", kubeconfig.server.port)).unwrap();
    silent.set_nonblocking(true).unwrap();
    kubeconfig.tls_server_name = Some(kubeconfig.server.host.clone());
    kubeconfig.server.host = "127.0.0.9".to_owned();
    let mut client = KubernetesClient::new(&kubeconfig).unwrap();
    client.transport.limits.connect = Duration::from_millis(200);
    (client, silent)
}

fn no_node() -> Vec<Reply> {
    vec![kube_system(), items(json!([]))]
}

#[tokio::test]
async fn control_machine_answers_for_silent_server() {
    let server = Server::in_order([no_node(), no_node()].concat()).await;
    let (client, silent) = behind_virtual_address(&server);
    let fallbacks = ["127.0.0.8".parse().unwrap(), "127.0.0.1".parse().unwrap()];
    for _ in 0..2 {
        client.perform(&KubernetesOp::Nodes, &fallbacks).await.unwrap();
    }
    assert_eq!(server.seen().len(), 4);
    silent.accept().unwrap();
    // The one that answered went first.
    assert_eq!(silent.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn server_is_named_where_no_address_answers() {
    let server = Server::in_order(Vec::new()).await;
    let (client, _silent) = behind_virtual_address(&server);
    let text = unreachable(client.perform(&KubernetesOp::Nodes, &["127.0.0.8".parse().unwrap()]).await);
    assert!(text.starts_with("https://127.0.0.9:") && text.ends_with(": connecting took longer than 200ms"), "{text}");
}

/// A path before the API is a proxy's: the port of a control machine may be anything.
#[tokio::test]
async fn proxy_has_no_fallback() {
    let server = Server::in_order(Vec::new()).await;
    let mut kubeconfig = server.kubeconfig();
    kubeconfig.tls_server_name = Some(kubeconfig.server.host.clone());
    (kubeconfig.server.host, kubeconfig.server.path) = ("127.0.0.9".to_owned(), "/k8s/clusters/c-1".to_owned());
    let client = KubernetesClient::new(&kubeconfig).unwrap();
    unreachable(client.perform(&KubernetesOp::Nodes, &["127.0.0.1".parse().unwrap()]).await);
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn recorded_statuses_become_failures() {
    let status =
        |code: u16, message: &str| Reply::json(code, json!({ "kind": "Status", "message": message, "code": code }));
    let busy = |seconds, message: &str| KubernetesFailure::Busy {
        after: Duration::from_secs(seconds),
        message: message.to_owned(),
    };
    let (result, _) = perform(evict_op(), vec![status(401, "Unauthorized")]).await;
    let failure = result.unwrap_err();
    assert_eq!(failure, KubernetesFailure::Unauthorized("Unauthorized".to_owned()));
    let (result, _) = perform(KubernetesOp::Nodes, vec![status(403, "namespaces is forbidden")]).await;
    assert_eq!(result.unwrap_err(), KubernetesFailure::Forbidden("namespaces is forbidden".to_owned()));
    let too_many = || Reply::text(429, "Too many requests, please try again later.\n").with_header("retry-after", "3");
    let message = "HTTP 429: Too many requests, please try again later.";
    // One request each: the client retries nothing.
    let (result, seen) = perform(evict_op(), vec![too_many(), Reply::json(201, json!({}))]).await;
    assert_eq!((result.unwrap_err(), seen.len()), (busy(3, message), 1));
    let (result, seen) = perform(KubernetesOp::Nodes, vec![too_many()]).await;
    assert_eq!((result.unwrap_err(), seen.len()), (busy(3, message), 1));
    let (result, _) = perform(load_op(), vec![status(503, "starting").with_header("retry-after", "5")]).await;
    assert_eq!(result.unwrap_err(), busy(5, "starting"));
}

#[tokio::test]
async fn node_conflicts_are_told_apart() {
    let cordon = || cordon_of(node_ref());
    let details = |code: u16, details: Value| {
        vec![Reply::json(code, json!({ "kind": "Status", "message": "words", "code": code, "details": details }))]
    };
    let words = || "words".to_owned();
    let (result, _) = perform(cordon(), details(404, json!({ "kind": "nodes" }))).await;
    assert_eq!(result, Err(KubernetesFailure::NotFound(words())));
    let (result, _) = perform(cordon(), details(409, json!({ "kind": "nodes" }))).await;
    assert_eq!(result, Err(KubernetesFailure::Conflict(words())));
    let (result, _) = perform(cordon(), details(422, json!({ "causes": [{ "field": "metadata.uid" }] }))).await;
    assert_eq!(result, Err(KubernetesFailure::Conflict(words())));
    let (result, _) = perform(cordon(), details(422, json!({ "causes": [{ "field": "spec.x" }] }))).await;
    assert_eq!(result, Err(KubernetesFailure::Other(words())));
}

#[tokio::test]
async fn huge_answer_is_cut_off() {
    let server = Server::in_order(vec![Reply::text(200, &" ".repeat(1 << 20))]).await;
    let mut client = KubernetesClient::new(&server.kubeconfig()).unwrap();
    assert_eq!(client.transport.limits.answer, 64 * 1024 * 1024);
    client.transport.limits.answer = 1 << 16;
    let text = other(done(&client, &KubernetesOp::Nodes).await);
    assert!(text.ends_with(": the answer has more than 65536 bytes"), "{text}");
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let redirect = Reply::text(307, "").with_header("location", "/elsewhere");
    let (result, seen) = perform(KubernetesOp::Nodes, vec![redirect]).await;
    assert_eq!(other(result), "the API server redirects (HTTP 307); correct the kubeconfig's server");
    assert_eq!(seen.len(), 1);
}

#[tokio::test]
async fn unreadable_answer_is_named() {
    let (result, _) = perform(KubernetesOp::Nodes, vec![Reply::text(200, "<html>\u{1b}")]).await;
    let text = other(result);
    assert!(text.starts_with("cannot read the API server's answer: "), "{text}");
    let (result, _) = perform(KubernetesOp::Nodes, vec![Reply::json(200, json!({ "metadata": {} }))]).await;
    assert!(other(result).ends_with("kube-system has no UID"));
}

#[tokio::test]
async fn unsafe_requests_are_not_sent() {
    let server = Server::in_order(Vec::new()).await;
    let client = KubernetesClient::new(&server.kubeconfig()).unwrap();
    let mut ops = Vec::new();
    for name in ["", ".", "..", "a/b", "a?b", "a%2fb", "ä", "a\r\nb"] {
        ops.push(KubernetesOp::Load { node: name.to_owned() });
        ops.push(KubernetesOp::Evict { pods: vec![PodRef { name: name.to_owned(), ..pod_ref() }] });
        ops.push(KubernetesOp::Evict { pods: vec![PodRef { namespace: name.to_owned(), ..pod_ref() }] });
        let node = NodeRef { name: name.to_owned(), ..node_ref() };
        ops.push(KubernetesOp::Uncordon { node, schedulable: true, scale_down: None });
    }
    ops.push(KubernetesOp::Evict { pods: vec![PodRef { uid: String::new(), ..pod_ref() }] });
    ops.push(KubernetesOp::Delete { pod: PodRef { uid: String::new(), ..pod_ref() } });
    for node in
        [NodeRef { uid: String::new(), ..node_ref() }, NodeRef { resource_version: String::new(), ..node_ref() }]
    {
        ops.push(cordon_of(node.clone()));
        ops.push(KubernetesOp::Uncordon { node, schedulable: false, scale_down: None });
    }
    for op in ops {
        other(done(&client, &op).await);
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn client_certificate_replaces_token() {
    let server = Server::in_order(vec![Reply::json(201, json!({}))]).await;
    let mut kubeconfig = server.kubeconfig();
    kubeconfig.credentials = server.client_certificate();
    done(&KubernetesClient::new(&kubeconfig).unwrap(), &evict_op()).await.unwrap();
    let seen = &server.seen()[0];
    assert!(seen.certified);
    assert_eq!(seen.header("authorization"), "");
}

#[tokio::test]
async fn operations_run_at_the_same_time() {
    let server = Server::in_order(vec![Reply::hang(), Reply::json(201, json!({}))]).await;
    let client = Arc::new(KubernetesClient::new(&server.kubeconfig()).unwrap());
    let first = tokio::spawn({
        let client = Arc::clone(&client);
        async move { done(&client, &evict_op()).await }
    });
    while server.seen().is_empty() {
        tokio::task::yield_now().await;
    }
    assert!(done(&client, &evict_op()).await.is_ok());
    first.abort();
}

#[tokio::test]
async fn unusable_ca_is_named() {
    let mut kubeconfig = Server::in_order(Vec::new()).await.kubeconfig();
    kubeconfig.ca = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned();
    let KubernetesFailure::Other(text) = KubernetesClient::new(&kubeconfig).unwrap_err() else { panic!() };
    assert!(text.starts_with("cannot use the kubeconfig's CA: "), "{text}");
}
