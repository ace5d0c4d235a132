//! Fetches a manifest over http or https, and checks its sum.

use std::time::Duration;

use ::aws_lc_rs::digest;
use bytes::Bytes;
use http::{
    Request, StatusCode, Uri,
    header::{HOST, LOCATION, USER_AGENT},
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::{
    facts::kubernetes::addons::ManifestText,
    orchestrator::kubernetes::{
        text::{chain, one_line},
        transport::AGENT,
    },
};

/// Largest manifest that is read, in bytes.
pub(super) const MANIFEST_MAX_BYTES: usize = 4 * 1024 * 1024;
/// Time for all of it, with its redirects.
const FETCH_MAX: Duration = Duration::from_secs(20);
/// Most redirects that are followed.
const REDIRECTS_MAX: usize = 5;
/// Where systems keep the certificate authorities that they trust.
const CA_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why a manifest was not fetched.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("it is not an http or https URL")]
    Url,
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    #[error("no bundle of certificate authorities in {}", CA_BUNDLES.join(", "))]
    NoAuthorities,
    #[error("TLS cannot be used")]
    Config(#[from] rustls::Error),
    #[error("TLS handshake failed")]
    Tls(#[source] std::io::Error),
    #[error("the connection broke")]
    Http(#[from] hyper::Error),
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
    #[error("reading it failed, or it has more than {MANIFEST_MAX_BYTES} bytes")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("HTTP {0}")]
    Status(StatusCode),
    #[error("more than {REDIRECTS_MAX} redirects")]
    Redirects,
    #[error("it redirects from https to http")]
    Downgrade,
}

/// The manifest at a URL, if its bytes have this sum.
///
/// # Errors
/// Why not, in one sentence with the URL.
pub(super) async fn fetch(url: &str, sha256: &str) -> Result<ManifestText, String> {
    let bytes = match timeout(FETCH_MAX, follow(url)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(fault)) => return Err(one_line(&format!("cannot fetch {url}: {}", chain(&fault)))),
        Err(_) => return Err(one_line(&format!("cannot fetch {url}: it took longer than {} s", FETCH_MAX.as_secs()))),
    };
    let found: String = digest::digest(&digest::SHA256, &bytes).as_ref().iter().map(|b| format!("{b:02x}")).collect();
    if found != sha256 {
        return Err(one_line(&format!("{url} has the SHA-256 {found}, and the manifest says {sha256}")));
    }
    let text = String::from_utf8(bytes.to_vec()).map_err(|_| one_line(&format!("{url} is not text")))?;
    Ok(ManifestText(text.into()))
}

async fn follow(url: &str) -> Result<Bytes, Fault> {
    let mut at: Uri = url.parse().map_err(|_| Fault::Url)?;
    for _ in 0..=REDIRECTS_MAX {
        match get(&at).await? {
            Answer::Body(bytes) => return Ok(bytes),
            Answer::Elsewhere(next) => {
                let next = joined(&at, &next).ok_or(Fault::Url)?;
                if at.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                    return Err(Fault::Downgrade);
                }
                at = next;
            }
        }
    }
    Err(Fault::Redirects)
}

/// The target of a redirect: an absolute URL, or a path on the same host.
fn joined(from: &Uri, location: &str) -> Option<Uri> {
    let target: Uri = location.parse().ok()?;
    if target.scheme().is_some() {
        return Some(target);
    }
    let path = target.path_and_query().filter(|path| path.as_str().starts_with('/'))?;
    Uri::builder()
        .scheme(from.scheme_str()?)
        .authority(from.authority()?.as_str())
        .path_and_query(path.as_str())
        .build()
        .ok()
}

/// What a server answers.
enum Answer {
    Body(Bytes),
    Elsewhere(String),
}

async fn get(url: &Uri) -> Result<Answer, Fault> {
    let (Some(host), Some(authority)) = (url.host(), url.authority()) else { return Err(Fault::Url) };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let connect = async |port: u16| TcpStream::connect((bare, url.port_u16().unwrap_or(port))).await;
    match url.scheme_str() {
        Some("http") => exchange(connect(80).await.map_err(Fault::Connect)?, url, authority.as_str()).await,
        Some("https") => {
            let name = ServerName::try_from(bare.to_owned()).map_err(|_| Fault::Url)?;
            let tls = TlsConnector::from(std::sync::Arc::new(trust().await?));
            let tcp = connect(443).await.map_err(Fault::Connect)?;
            exchange(tls.connect(name, tcp).await.map_err(Fault::Tls)?, url, authority.as_str()).await
        }
        _ => Err(Fault::Url),
    }
}

/// TLS by the certificate authorities that the system trusts.
async fn trust() -> Result<ClientConfig, Fault> {
    let mut roots = RootCertStore::empty();
    for path in CA_BUNDLES {
        let Ok(bundle) = tokio::fs::read(path).await else { continue };
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bundle).filter_map(Result::ok));
        break;
    }
    if roots.is_empty() {
        return Err(Fault::NoAuthorities);
    }
    let builder = ClientConfig::builder_with_provider(std::sync::Arc::new(aws_lc_rs::default_provider()));
    let mut config = builder.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

async fn exchange<S>(stream: S, url: &Uri, authority: &str) -> Result<Answer, Fault>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Its error reaches the pending request too.
    let task = tokio::spawn(async move { connection.await.unwrap_or_default() });
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path).header(HOST, authority).header(USER_AGENT, AGENT).body(Empty::<Bytes>::new())?;
    let answer = read(sender.send_request(request).await?).await;
    task.abort();
    answer
}

async fn read(response: http::Response<hyper::body::Incoming>) -> Result<Answer, Fault> {
    let (head, body) = response.into_parts();
    if head.status.is_redirection() {
        let location = head.headers.get(LOCATION).and_then(|location| location.to_str().ok());
        return location.map(|location| Answer::Elsewhere(location.to_owned())).ok_or(Fault::Status(head.status));
    }
    if head.status != StatusCode::OK {
        return Err(Fault::Status(head.status));
    }
    let body = Limited::new(body, MANIFEST_MAX_BYTES).collect().await.map_err(Fault::Body)?;
    Ok(Answer::Body(body.to_bytes()))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    const TEXT: &str = "apiVersion: v1";
    const SUM: &str = "5c9e5a5a4bfe4a04cc0ec8a4e2fdbb3d5e5e5bd5b3a1c2f2a8d3c4f3b0a6c7d8";

    /// A server that gives these answers, one for each connection.
    async fn serve(answers: Vec<String>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut request = [0; 2048];
                let _ = stream.read(&mut request).await;
                stream.write_all(answer.as_bytes()).await.expect("written");
            }
        });
        format!("http://{at}/m.yaml")
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    fn sum(text: &str) -> String {
        digest::digest(&digest::SHA256, text.as_bytes()).as_ref().iter().map(|b| format!("{b:02x}")).collect()
    }

    #[tokio::test]
    async fn manifest_is_fetched_across_redirects() {
        let elsewhere = "HTTP/1.1 302 Found\r\nLocation: /n.yaml\r\nContent-Length: 0\r\n\r\n".to_owned();
        let url = serve(vec![elsewhere, ok(TEXT)]).await;
        assert_eq!(fetch(&url, &sum(TEXT)).await, Ok(ManifestText(TEXT.into())));
    }

    #[tokio::test]
    async fn what_is_wrong_is_said() {
        let turns = "HTTP/1.1 302 Found\r\nLocation: /m.yaml\r\nContent-Length: 0\r\n\r\n".to_owned();
        let large = "x".repeat(MANIFEST_MAX_BYTES + 1);
        for (answers, why) in [
            (vec![ok(TEXT)], "has the SHA-256"),
            (vec!["HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned()], "HTTP 404"),
            (vec![turns; REDIRECTS_MAX + 1], "more than 5 redirects"),
            (vec![ok(&large)], "more than 4194304 bytes"),
            (vec![String::new()], "the connection broke"),
        ] {
            let url = serve(answers).await;
            let said = fetch(&url, SUM).await.expect_err(why);
            assert!(said.contains(&url) && said.contains(why), "{said}");
        }
        for url in ["ftp://h/m", "http:///m", "m"] {
            assert!(fetch(url, SUM).await.is_err_and(|said| said.contains("not an http or https URL")), "{url}");
        }
    }

    #[test]
    fn redirects_are_joined() {
        let from: Uri = "https://h:1/a/b".parse().expect("a URL");
        let to = |location: &str| joined(&from, location).map(|url| url.to_string());
        assert_eq!(to("/c?d=e").as_deref(), Some("https://h:1/c?d=e"));
        assert_eq!(to("http://i/j").as_deref(), Some("http://i/j"));
        assert_eq!(to("c"), None);
    }
}
