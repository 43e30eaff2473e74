//! Answers to a browser on this machine, over HTTP/1.1. Each connection is answered once, by a thread of its own within limits of time
//! and size: whoever sends nothing, or takes nothing, holds up nobody else.

use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// So many connections are answered at once; others are closed.
const MOST: usize = 64;
/// The longest head of a request.
const HEAD: usize = 16 << 10;
/// The most headers that it may have.
const HEADERS: usize = 100;
/// How long a request may take to come.
const ASKING: Duration = Duration::from_secs(10);
/// How long whoever asked may take none of the answer, and all of it.
const STALLED: Duration = Duration::from_secs(10);
const ANSWERING: Duration = Duration::from_secs(300);
/// What is sent beside a request is thrown away: so much of it, for so long.
const REST: (usize, Duration) = (64 << 10, Duration::from_millis(500));

/// Nothing but what the page has in itself, and what this server answers.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What is answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) kind: &'static str,
    pub(super) body: String,
}

impl Answer {
    /// A line for people.
    pub(super) fn text(code: u16, body: &str) -> Answer {
        Answer { code, kind: "text/plain", body: format!("{body}\n") }
    }

    fn head(&self) -> String {
        let reason = match self.code {
            200 => "OK",
            204 => "No Content",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            _ => "Service Unavailable",
        };
        let mut head = format!("HTTP/1.1 {} {reason}\r\n", self.code);
        if self.code != 204 {
            let Answer { kind, body, .. } = self;
            head += &format!("Content-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\n", body.len());
        }
        head + "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
                Cross-Origin-Resource-Policy: same-origin\r\nContent-Security-Policy: "
            + POLICY
            + "\r\n\r\n"
    }
}

/// Answers each connection by what `answer` makes of a path with its query, until the process ends; where no connection is taken
/// any more, it gives the reason.
pub(super) fn serve(
    listener: &TcpListener,
    answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
) -> std::io::Error {
    let port = match listener.local_addr() {
        Ok(address) => address.port(),
        Err(e) => return e,
    };
    let answer = Arc::new(answer);
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // The other end gave up before it was taken.
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
            Err(e) => return e,
        };
        let held = OpenConnection::of(&open);
        if held.before >= MOST {
            continue;
        }
        let answer = Arc::clone(&answer);
        let talk = move || {
            let _held = held;
            // Whoever asked may be gone.
            let _gone = converse(stream, port, &*answer);
        };
        if let Err(e) = std::thread::Builder::new().name("answer".into()).spawn(talk) {
            return e;
        }
    }
}

/// One of the connections that are open.
struct OpenConnection {
    open: Arc<AtomicUsize>,
    before: usize,
}

impl OpenConnection {
    fn of(open: &Arc<AtomicUsize>) -> OpenConnection {
        OpenConnection { before: open.fetch_add(1, Ordering::Relaxed), open: Arc::clone(open) }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn converse(mut stream: TcpStream, port: u16, answer: &dyn Fn(&str) -> Answer) -> Result<()> {
    stream.set_nodelay(true)?;
    let head = read_head(&mut stream)?;
    let (answer, bodiless) = answered(&head, port, answer);
    stream.set_write_timeout(Some(STALLED))?;
    let end = Instant::now() + ANSWERING;
    let head = answer.head();
    let body = if bodiless { "" } else { &answer.body };
    for part in [head.as_bytes(), body.as_bytes()].into_iter().flat_map(|all| all.chunks(256 << 10)) {
        if Instant::now() > end {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.write_all(part)?;
    }
    stream.shutdown(Shutdown::Write)?;
    rest(&mut stream)
}

/// What there is of a head when it is whole, too long, or at its end.
fn read_head(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let end = Instant::now() + ASKING;
    let mut head = Vec::new();
    let mut block = [0; 2048];
    while head.len() < HEAD && !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut block)? {
            0 => break,
            n => head.extend_from_slice(&block[..n]),
        }
    }
    Ok(head)
}

/// Throws away what else was sent, such as a body: closing would else undo the answer.
fn rest(stream: &mut TcpStream) -> Result<()> {
    let end = Instant::now() + REST.1;
    let mut block = [0; 2048];
    let mut taken = 0;
    while taken < REST.0 {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut block)? {
            0 => break,
            n => taken += n,
        }
    }
    Ok(())
}

/// The answer to a request, and whether that asks for its head alone.
fn answered(head: &[u8], port: u16, answer: &dyn Fn(&str) -> Answer) -> (Answer, bool) {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let whole = matches!(request.parse(head), Ok(httparse::Status::Complete(_)));
    let (true, Some(method), Some(path)) = (whole, request.method, request.path) else {
        return (Answer::text(400, "this is no request of HTTP/1.1"), false);
    };
    let mut hosts = request.headers.iter().filter(|h| h.name.eq_ignore_ascii_case("Host"));
    let host = hosts.next().and_then(|h| std::str::from_utf8(h.value).ok());
    let bodiless = method == "HEAD";
    match method {
        _ if hosts.next().is_some() || !is_meant(host, port) => {
            let own = format!("this server is 127.0.0.1:{port}, for this machine alone");
            (Answer::text(403, &own), bodiless)
        }
        "GET" | "HEAD" if has_body(request.headers) => {
            (Answer::text(400, "a request for a page has no body"), bodiless)
        }
        "GET" | "HEAD" => (answer(path), bodiless),
        _ => (Answer::text(405, "only GET"), false),
    }
}

/// Whether a request is meant for what listens at a port of this machine. A page of elsewhere whose name leads here sends its own name.
fn is_meant(host: Option<&str>, port: u16) -> bool {
    const HTTP: u16 = 80;
    let Some(host) = host else { return false };
    let (name, at) = host.split_once(':').map_or((host, None), |(name, at)| (name, Some(at)));
    let at = match at {
        None => port == HTTP,
        Some(at) => at == port.to_string(),
    };
    at && ["127.0.0.1", "localhost"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Whether a request announces more than its head. Where it ends may be said in several ways, and readers that take different ones for
/// right take the rest for another request: so whatever says more than once that there is nothing is refused too.
fn has_body(headers: &[httparse::Header<'_>]) -> bool {
    let of = |name: &str| -> Vec<&[u8]> {
        headers.iter().filter(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value).collect()
    };
    let nothing = matches!(of("Content-Length")[..], [] | [b"0"]);
    !nothing || !of("Transfer-Encoding").is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_answered() {
        for own in ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080"] {
            assert!(is_meant(Some(own), 8080), "{own}");
        }
        assert!(is_meant(Some("127.0.0.1"), 80) && is_meant(Some("localhost:80"), 80));
        for other in [
            "example.com",
            "example.com:8080",
            "127.0.0.1.example.com:8080",
            "[::1].example.com",
            "[::1]:8080",
            "[::2]:8080",
            "",
            ":8080",
            "localhost.example.com:8080",
            "localhost",
            "127.0.0.1:80",
            "localhost:",
            "localhost:08080",
            "localhost:+8080",
            "localhost:8080:8080",
            "localhost:8080 ",
            "localhost:8080,example.com",
            "user@localhost:8080",
            "127.1:8080",
        ] {
            assert!(!is_meant(Some(other), 8080), "{other}");
        }
        assert!(!is_meant(None, 8080));
    }

    #[test]
    fn a_request_is_what_the_standard_says() {
        let code = |head: &str| answered(head.as_bytes(), 1, &|path| Answer::text(200, path)).0.code;
        let get = |more: &str| format!("GET / HTTP/1.1\r\nHost: localhost:1\r\n{more}\r\n");
        for (head, expected) in [
            ("GET /x HTTP/1.1\r\nhost: localhost:1\r\n\r\n", 200),
            ("HEAD / HTTP/1.0\r\nHost: 127.0.0.1:1\r\n\r\n", 200),
            ("POST / HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: 1000000000000000\r\n\r\n", 405),
            ("GET / HTTP/1.1\r\n\r\n", 403),
            ("GET / HTTP/1.1\r\nHost: localhost:1\r\nHost: example.com\r\n\r\n", 403),
            ("GET / HTTP/1.1\r\nHost: localhost:2\r\n\r\n", 403),
            ("GET / HTTP/1.1\r\nHost: loc", 400),
            ("GET /\r\n\r\n", 400),
            ("\u{16}\u{3}\u{1}", 400),
            ("", 400),
            (&get("Content-Length: 0\r\n"), 200),
            (&get("Content-Length: 5\r\n"), 400),
            (&get("Content-Length: 00\r\n"), 400),
            (&get("Content-Length: -1\r\n"), 400),
            (&get("Content-Length: 0\r\ncontent-length: 0\r\n"), 400),
            (&get("Content-Length: 0\r\nContent-Length: 50\r\n"), 400),
            (&get("Transfer-Encoding: chunked\r\n"), 400),
            (&get("transfer-encoding: identity\r\nContent-Length: 0\r\n"), 400),
        ] {
            assert_eq!(code(head), expected, "{head}");
        }
    }
}
