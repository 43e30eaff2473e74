//! Answers to a browser, over HTTP/1.1. Each connection is answered once, by a thread of its own within limits of time
//! and size: whoever sends nothing, or takes nothing, holds up nobody else.

use super::access::{Access, Admission};
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
    /// A cookie to keep.
    pub(super) cookie: Option<String>,
}

impl Answer {
    /// An answer of some kind.
    pub(super) fn new(code: u16, kind: &'static str, body: String) -> Answer {
        Answer { code, kind, body, cookie: None }
    }

    /// A line for people.
    pub(super) fn text(code: u16, body: &str) -> Answer {
        Answer::new(code, "text/plain", format!("{body}\n"))
    }

    fn head(&self) -> String {
        let reason = match self.code {
            200 => "OK",
            204 => "No Content",
            303 => "See Other",
            400 => "Bad Request",
            401 => "Unauthorized",
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
        if self.code == 303 {
            // The address without the token, which is then in no history.
            head += "Location: /\r\n";
        }
        if let Some(cookie) = &self.cookie {
            head += &format!("Set-Cookie: {cookie}\r\n");
        }
        head + "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
                Cross-Origin-Resource-Policy: same-origin\r\nContent-Security-Policy: "
            + POLICY
            + "\r\n\r\n"
    }
}

/// Answers each connection by what `answer` makes of a path with its query, until the process ends; where no connection is taken
/// any more, it gives the reason.
pub(super) fn serve(
    listener: &TcpListener,
    access: Access,
    answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
) -> std::io::Error {
    let (answer, access) = (Arc::new(answer), Arc::new(access));
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
        let (answer, access) = (Arc::clone(&answer), Arc::clone(&access));
        let talk = move || {
            let _held = held;
            // Whoever asked may be gone.
            let _gone = converse(stream, &access, &*answer);
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

fn converse(mut stream: TcpStream, access: &Access, answer: &dyn Fn(&str) -> Answer) -> Result<()> {
    stream.set_nodelay(true)?;
    let head = read_head(&mut stream)?;
    let (answer, bodiless) = answered(&head, access, answer);
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
fn answered(head: &[u8], access: &Access, answer: &dyn Fn(&str) -> Answer) -> (Answer, bool) {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let whole = matches!(request.parse(head), Ok(httparse::Status::Complete(_)));
    let (true, Some(method), Some(path)) = (whole, request.method, request.path) else {
        return (Answer::text(400, "this is no request of HTTP/1.1"), false);
    };
    let of = |name: &str| -> Vec<&str> {
        let headers = request.headers.iter().filter(|h| h.name.eq_ignore_ascii_case(name));
        headers.map(|h| std::str::from_utf8(h.value).unwrap_or_default()).collect()
    };
    let hosts = of("Host");
    let admission = access.admits(path, hosts.first().copied(), &of("Cookie").join(";"));
    let bodiless = method == "HEAD";
    match method {
        _ if hosts.len() > 1 || admission == Admission::Refused => {
            let (code, text) = access.refusal();
            (Answer::text(code, &text), bodiless)
        }
        "GET" | "HEAD" if has_body(request.headers) => {
            (Answer::text(400, "a request for a page has no body"), bodiless)
        }
        "GET" | "HEAD" if admission == Admission::Shown && path.starts_with("/?") => {
            let cookie = access.kept();
            (Answer { cookie, ..Answer::text(303, "the page is at /") }, bodiless)
        }
        "GET" | "HEAD" => (answer(path), bodiless),
        _ => (Answer::text(405, "only GET"), false),
    }
}

/// Whether a request announces more than its head. Where it ends may be said in several ways, and readers that take different
/// ones for right take the rest for another request: so whatever says more than once that there is nothing is refused too.
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
    fn a_request_is_what_the_standard_says() {
        let code = |head: &str| {
            let access = Access::ThisMachine(1);
            answered(head.as_bytes(), &access, &|path| Answer::text(200, path)).0.code
        };
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
    #[test]
    fn a_browser_keeps_the_token_and_its_address_loses_it() {
        let access = Access::Token("abc".into(), 7);
        let asked = |head: &str| answered(head.as_bytes(), &access, &|path| Answer::text(200, path)).0;
        let shown = asked("GET /?token=abc HTTP/1.1\r\nHost: m:7\r\n\r\n");
        let head = shown.head();
        assert_eq!(shown.code, 303);
        assert!(head.contains("\r\nLocation: /\r\n"), "{head}");
        assert!(
            head.contains("\r\nSet-Cookie: meshwright_7=abc; Path=/; HttpOnly; SameSite=Strict\r\n"),
            "{head}"
        );
        let with = |more: &str| asked(&format!("GET /data.json?since=1{more}\r\n\r\n"));
        assert_eq!(with(" HTTP/1.1\r\nHost: m:7\r\nCookie: meshwright_7=abc").code, 200);
        assert_eq!(with("&token=abc HTTP/1.1\r\nHost: m:7").code, 200);
        assert_eq!(with(" HTTP/1.1\r\nHost: m:7").code, 401);
        assert_eq!(with("&token=abd HTTP/1.1\r\nHost: m:7").code, 401);
    }
}
