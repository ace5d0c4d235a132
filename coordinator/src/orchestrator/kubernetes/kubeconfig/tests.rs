use serde_json::{Value, json};

use super::*;

/// PEM in base64, of a CA, and of a client's certificate and key.
struct Material {
    ca: String,
    certificate: String,
    key: String,
}

fn material() -> Material {
    let ca = rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).unwrap();
    let client = rcgen::generate_simple_self_signed(vec!["muster".to_owned()]).unwrap();
    let data = |pem: String| STANDARD.encode(pem);
    Material {
        ca: data(ca.cert.pem()),
        certificate: data(client.cert.pem()),
        key: data(client.signing_key.serialize_pem()),
    }
}

/// A kubeconfig that is accepted, with these changes to its cluster and user. Null removes a field.
fn file(cluster: &Value, user: &Value) -> Value {
    let merged = |mut base: Value, changes: &Value| {
        for (key, value) in changes.as_object().unwrap() {
            base[key] = value.clone();
        }
        base.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        base
    };
    let base = json!({ "server": "https://10.0.0.1:6443", "certificate-authority-data": material().ca });
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "c",
        "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u", "namespace": "n" } }],
        "clusters": [
            { "name": "unused", "cluster": { "server": "http://x", "insecure-skip-tls-verify": true } },
            { "name": "k", "cluster": merged(base, cluster) },
        ],
        "users": [
            { "name": "unused", "user": { "exec": { "command": "aws" } } },
            { "name": "u", "user": merged(json!({ "token": "t0ken" }), user) },
        ],
    })
}

fn parse(cluster: Value, user: Value) -> Result<Kubeconfig, KubeconfigError> {
    Kubeconfig::parse(&file(&cluster, &user).to_string())
}

fn refusal(cluster: Value, user: Value) -> String {
    parse(cluster, user).unwrap_err().to_string()
}

fn server(address: &str) -> Result<Server, KubeconfigError> {
    parse(json!({ "server": address }), json!({})).map(|kubeconfig| kubeconfig.server)
}

#[test]
fn token_in_yaml_is_read() {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- context: {{cluster: k, user: u}}\n  name: c\n\
         clusters:\n- cluster:\n    certificate-authority-data: {}\n    server: https://api.example:6443/prefix/\n    \
         tls-server-name: kubernetes\n  name: k\nusers:\n- name: u\n  user:\n    token: |\n      t0ken\n",
        material().ca
    );
    let kubeconfig = Kubeconfig::parse(&text).unwrap();
    let expected = Server { host: "api.example".to_owned(), port: 6443, path: "/prefix".to_owned() };
    assert_eq!(kubeconfig.server, expected);
    assert_eq!(kubeconfig.tls_server_name.as_deref(), Some("kubernetes"));
    assert!(kubeconfig.ca.starts_with("-----BEGIN CERTIFICATE-----"));
    let Credentials::Token(token) = kubeconfig.credentials else { panic!() };
    assert_eq!(token.reveal(), "t0ken");
}

#[test]
fn client_certificate_is_read() {
    let Material { certificate, key, .. } = material();
    let broken = certificate.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect::<Vec<_>>();
    let user = json!({ "token": "", "client-certificate-data": broken.join("\n"), "client-key-data": key });
    let Credentials::ClientCertificate { certificate, key } = parse(json!({}), user).unwrap().credentials else {
        panic!()
    };
    assert!(certificate.starts_with("-----BEGIN CERTIFICATE-----"));
    assert!(key.reveal().starts_with("-----BEGIN PRIVATE KEY-----"));
}

#[test]
fn server_address_is_split() {
    let of = |host: &str, port, path: &str| Ok(Server { host: host.to_owned(), port, path: path.to_owned() });
    assert_eq!(server("https://api"), of("api", 443, ""));
    assert_eq!(server("https://api:6443/"), of("api", 6443, ""));
    assert_eq!(server("https://[fd00::1]:6443"), of("fd00::1", 6443, ""));
    assert_eq!(server("https://[fd00::1]"), of("fd00::1", 443, ""));
    assert_eq!(server("HTTPS://10.0.0.1/k8s/clusters/c-1"), of("10.0.0.1", 443, "/k8s/clusters/c-1"));
}

#[test]
fn unusable_server_is_refused() {
    let refused = |address: &str| server(address).unwrap_err().to_string();
    let field = "clusters[k].cluster.server";
    assert_eq!(
        refused("http://api"),
        format!("{field} is invalid: it must start with https://, for credentials are sent to it")
    );
    assert!(refused("api:6443").contains("https://"));
    assert!(refused("https://user:pass@api").contains("remove the user name and password"));
    assert!(!refused("https://user:pass@api").contains("pass@"));
    assert!(refused("https://api?x=1").contains("remove the query"));
    for address in [
        "https://",
        "https://:6443",
        "https://api:0",
        "https://api:99999",
        "https://api:",
        "https://a b",
        "https://-_!",
    ] {
        assert!(refused(address).starts_with(&format!("{field} is invalid: ")), "{address}: {}", refused(address));
    }
    assert!(refused("").starts_with(&format!("the kubeconfig has no {field}: ")));
}

#[test]
fn unsupported_fields_are_refused() {
    let user = |field: &str, value: Value| (json!({}), json!({ (field): value }), format!("users[u].user.{field}"));
    let cluster =
        |field: &str, value: Value| (json!({ (field): value }), json!({}), format!("clusters[k].cluster.{field}"));
    let table = [
        user("exec", json!({ "command": "aws" })),
        user("auth-provider", json!({ "name": "oidc" })),
        user("username", json!("admin")),
        user("password", json!("secret-word")),
        user("as", json!("root")),
        user("as-uid", json!("1")),
        user("as-groups", json!(["system:masters"])),
        user("as-user-extra", json!({ "a": ["b"] })),
        cluster("insecure-skip-tls-verify", json!(true)),
        cluster("proxy-url", json!("http://proxy")),
    ];
    for (cluster, user, field) in table {
        let text = refusal(cluster, user);
        assert!(text.starts_with(&format!("{field} is not supported: ")), "{text}");
        assert!(!text.contains("secret-word"));
    }
    assert!(parse(json!({ "insecure-skip-tls-verify": false, "proxy-url": "" }), json!({ "username": "" })).is_ok());
}

#[test]
fn files_are_refused() {
    let user =
        [("tokenFile", "token"), ("client-certificate", "client-certificate-data"), ("client-key", "client-key-data")];
    for (field, embedded) in user {
        let text = refusal(json!({}), json!({ (field): "/etc/x" }));
        let start = format!(
            "users[u].user.{field} names a file, which the coordinator cannot read: embed its content as {embedded}, "
        );
        assert!(text.starts_with(&start), "{text}");
    }
    let text = refusal(json!({ "certificate-authority": "/etc/ca.pem" }), json!({}));
    assert!(text.starts_with("clusters[k].cluster.certificate-authority names a file"), "{text}");
    assert!(text.contains("certificate-authority-data"));
}

#[test]
fn missing_fields_are_named() {
    let without = |cluster: Value, user: Value| refusal(cluster, user);
    let Material { certificate, key, .. } = material();
    let table = [
        (
            without(json!({ "certificate-authority-data": null }), json!({})),
            "clusters[k].cluster.certificate-authority-data",
        ),
        (without(json!({ "server": null }), json!({})), "clusters[k].cluster.server"),
        (without(json!({}), json!({ "token": null })), "users[u].user.token or users[u].user.client-certificate-data"),
        (without(json!({}), json!({ "token": null, "client-key-data": key })), "users[u].user.client-certificate-data"),
        (
            without(json!({}), json!({ "token": null, "client-certificate-data": certificate })),
            "users[u].user.client-key-data",
        ),
    ];
    for (text, field) in table {
        assert!(text.starts_with(&format!("the kubeconfig has no {field}: ")), "{text}");
    }
}

#[test]
fn entries_are_looked_up() {
    let changed = |change: fn(&mut Value)| {
        let mut file = file(&json!({}), &json!({}));
        change(&mut file);
        Kubeconfig::parse(&file.to_string()).unwrap_err().to_string()
    };
    assert!(changed(|file| file["current-context"] = json!("")).starts_with("the kubeconfig has no current-context: "));
    let text = changed(|file| file["current-context"] = json!("x\u{1b}"));
    assert_eq!(
        text,
        "the kubeconfig has no context 'x\u{fffd}', which its current-context names: add it or correct the name"
    );
    let text = changed(|file| file["contexts"][0]["context"]["cluster"] = json!("x"));
    assert!(
        text.starts_with("the kubeconfig has no cluster 'x', which its contexts[c].context.cluster names"),
        "{text}"
    );
    let text = changed(|file| file["contexts"][0]["context"]["user"] = json!("x"));
    assert!(text.starts_with("the kubeconfig has no user 'x', which its contexts[c].context.user names"), "{text}");
    let text = changed(|file| file["contexts"][0]["context"]["user"] = json!(null));
    assert!(text.starts_with("the kubeconfig has no contexts[c].context.user: "), "{text}");
    let text = changed(|file| file["users"] = json!(null));
    assert!(text.starts_with("the kubeconfig has no user 'u'"), "{text}");
    let text = changed(|file| file["users"][0]["name"] = json!("u"));
    assert_eq!(text, "the kubeconfig has more than one user 'u': leave one of them");
}

#[test]
fn invalid_data_is_refused() {
    let pem = |text: &str| STANDARD.encode(text);
    let text = refusal(json!({ "certificate-authority-data": "%%%" }), json!({}));
    let field = "clusters[k].cluster.certificate-authority-data";
    assert_eq!(text, format!("{field} is invalid: it must be base64 of one or more certificates in PEM"));
    assert_eq!(refusal(json!({ "certificate-authority-data": pem("no PEM") }), json!({})), text);
    let Material { certificate, .. } = material();
    let user = json!({ "token": null, "client-certificate-data": certificate, "client-key-data": pem("hush") });
    let text = refusal(json!({}), user);
    assert!(text.starts_with("users[u].user.client-key-data is invalid: "), "{text}");
    let text = refusal(json!({}), json!({ "token": "two words" }));
    assert!(text.starts_with("users[u].user.token is invalid: ") && !text.contains("two words"), "{text}");
    let text = refusal(json!({ "tls-server-name": "-!" }), json!({}));
    assert!(text.starts_with("clusters[k].cluster.tls-server-name is invalid: "), "{text}");
}

#[test]
fn two_credentials_are_refused() {
    let Material { certificate, key, .. } = material();
    let text = refusal(json!({}), json!({ "client-certificate-data": certificate, "client-key-data": key }));
    assert!(
        text.starts_with("users[u].user.token beside client-certificate-data is not supported: remove one"),
        "{text}"
    );
}

#[test]
fn large_file_is_refused() {
    let text = file(&json!({}), &json!({})).to_string();
    let padded = text.clone() + &" ".repeat(MAX_KUBECONFIG - text.len());
    assert!(Kubeconfig::parse(&padded).is_ok());
    assert_eq!(Kubeconfig::parse(&(padded + " ")).unwrap_err(), KubeconfigError::TooLarge(MAX_KUBECONFIG + 1));
}

#[test]
fn unreadable_file_quotes_nothing() {
    let texts = [
        "users:\n- name: u\n  user:\n    token: [hush]\n",
        "users:\n- name: u\n  user: hush\n",
        "users:\n- name: u\n  user:\n    token: hush\n    token: hush\n",
        "token: \"hush",
        "- hush",
    ];
    for text in texts {
        let error = Kubeconfig::parse(text).unwrap_err();
        assert!(matches!(error, KubeconfigError::Unreadable(_)), "{error:?}");
        assert!(error.to_string().starts_with("cannot read the kubeconfig, line "), "{error}");
        assert!(!format!("{error} {error:?}").contains("hush"), "{error}");
    }
}

#[test]
fn debug_output_shows_no_secrets() {
    let Material { certificate, key, .. } = material();
    let shown = format!("{:?}", parse(json!({}), json!({ "token": "hush" })).unwrap());
    assert!(shown.contains("Token(Secret(..))") && !shown.contains("hush"), "{shown}");
    let user = json!({ "token": null, "client-certificate-data": certificate, "client-key-data": key });
    let shown = format!("{:?}", parse(json!({}), user).unwrap());
    assert!(!shown.contains("PRIVATE KEY"), "{shown}");
}
