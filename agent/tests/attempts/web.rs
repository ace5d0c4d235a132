//! A small web server whose answers the test defines. The unit tests of the downloader use it too.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// Headers of one request, with names in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    headers: Vec<(String, String)>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Start of the requested range.
    pub(crate) fn from(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

pub(crate) struct Web {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Web {
    /// Answers each request by `answer`, which writes to the connection; then closes it.
    pub(crate) fn new(answer: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (answer, log) = (Arc::new(answer), Arc::clone(&asked));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
                thread::spawn(move || serve(stream, &*answer, &log));
            }
        });
        Self { address, asked }
    }

    /// Serves this file, with ranges.
    pub(crate) fn file(body: Vec<u8>) -> Self {
        Self::new(move |asked, stream| send_file(stream, asked, &body))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn authority(&self) -> String {
        self.address.to_string()
    }

    /// All requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(&Asked, &mut TcpStream), log: &Mutex<Vec<Asked>>) {
    let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines().map_while(Result::ok);
    let Some(_request_line) = lines.next() else { return };
    let headers = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())))
        .collect();
    let asked = Asked { headers };
    log.lock().expect("not poisoned").push(asked.clone());
    answer(&asked, &mut stream);
}

/// Sends an answer with extra headers; ignores a client that hung up.
pub(crate) fn send(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n");
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

/// Sends a whole file, or the requested range.
pub(crate) fn send_file(stream: &mut TcpStream, asked: &Asked, body: &[u8]) {
    match asked.from() {
        None => send(stream, "200 OK", &format!("Content-Length: {}\r\n", body.len()), body),
        Some(from) if from < body.len() => {
            let (rest, last, total) = (&body[from..], body.len() - 1, body.len());
            let headers = format!("Content-Length: {}\r\nContent-Range: bytes {from}-{last}/{total}\r\n", rest.len());
            send(stream, "206 Partial Content", &headers, rest);
        }
        Some(_) => {
            let headers = format!("Content-Length: 0\r\nContent-Range: bytes */{}\r\n", body.len());
            send(stream, "416 Range Not Satisfiable", &headers, b"");
        }
    }
}

/// Sends the start of a file, with the length of the whole.
pub(crate) fn send_cut(stream: &mut TcpStream, body: &[u8], at: usize) {
    send(stream, "200 OK", &format!("Content-Length: {}\r\n", body.len()), &body[..at]);
}
