//! A page that is served on this machine while runs go on. The page asks for what has changed; what it shows of them else stays.

use crate::commands::ends::CommandEnd;
use crate::console::Console;
use crate::found::{ReadRuns, places, read, root};
use crate::signals;
use crate::stop::Stop;
use crate::wrong::wrong;
use meshwright_report::report::RunsReport;
use meshwright_train::Checked;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use tiny_http::{Header, Method, Request, Response, Server};

/// How long the page waits before it asks again.
const EVERY: Duration = Duration::from_millis(2000);
/// Runs are read no more often than this, however many pages ask.
const FRESH: Duration = Duration::from_millis(1000);
/// How soon Ctrl-C is seen.
const WAIT: Duration = Duration::from_millis(100);

/// Nothing but what the page has in itself, and what this server answers.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Serves the page until Ctrl-C.
pub(super) fn serve(
    runs: &[PathBuf],
    title: &str,
    port: u16,
    console: &mut Console,
) -> Result<(), CommandEnd> {
    // Versions of one server are not those of another: a page that is still open is sent all of it.
    let begin = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    let mut followed = Followed::new(runs, title, begin);
    followed.refresh()?;
    let server = bound(port)?;
    let address = server.server_addr();
    console.out(&format!("http://{address}/\n"))?;
    console.flush()?;
    console.note("the page follows the runs; Ctrl-C ends it");
    let stop = signals::stop_of(&mut |note| console.note(note));
    while !stop.load(Ordering::Relaxed) {
        match server.recv_timeout(WAIT) {
            Ok(Some(request)) => answer(request, &mut followed, console),
            Ok(None) => {}
            Err(e) => {
                return Err(Box::new(wrong(format!("the page at {address} is served no more: {e}"))).into());
            }
        }
    }
    Err(Stop::Interrupted.into())
}

fn bound(port: u16) -> Checked<Server> {
    Server::http((Ipv4Addr::LOCALHOST, port)).map_err(|e| {
        let d = wrong(format!("the page cannot be served at 127.0.0.1:{port}: {e}"));
        Box::new(d.help("leave `--port` out to take any port that is free"))
    })
}

/// What is served, and since when each part of it is as it is.
struct Followed {
    paths: Vec<PathBuf>,
    title: String,
    read: ReadRuns,
    /// Counts changes.
    version: u64,
    data: Value,
    /// By the names of runs: since which version each is so.
    since: BTreeMap<String, u64>,
    at: Option<Instant>,
}

impl Followed {
    fn new(paths: &[PathBuf], title: &str, version: u64) -> Followed {
        Followed {
            paths: paths.into(),
            title: title.into(),
            read: ReadRuns::default(),
            version,
            data: Value::Null,
            since: BTreeMap::new(),
            at: None,
        }
    }

    /// Reads what has changed, where that was not done a moment ago.
    fn refresh(&mut self) -> Checked<()> {
        if self.at.is_some_and(|at| at.elapsed() < FRESH) {
            return Ok(());
        }
        let found = read(&places(&self.paths)?, root(&self.paths), &mut self.read);
        // A run that is just being made may lack a file: the next time it is there.
        let report = RunsReport { title: &self.title, made: "", runs: &found.runs };
        self.take(report.data());
        self.at = Some(Instant::now());
        Ok(())
    }

    fn take(&mut self, data: Value) {
        if data == self.data {
            return;
        }
        self.version += 1;
        let old: BTreeMap<&str, &Value> = named(&self.data).collect();
        for (name, run) in named(&data) {
            if old.get(name) != Some(&run) {
                self.since.insert(name.into(), self.version);
            }
        }
        self.data = data;
    }

    /// All of it, for a page that begins.
    fn page(&self) -> String {
        let mut data = self.data.clone();
        data["live"] = json!({ "version": self.version, "every": EVERY.as_millis() as u64 });
        RunsReport { title: &self.title, made: "", runs: &[] }.page(data)
    }

    /// What has changed since a version; none where nothing has.
    fn changes(&self, version: u64) -> Option<Value> {
        let newer = |name: &str| self.since.get(name).is_none_or(|since| *since > version);
        let changed: Map<String, Value> = named(&self.data)
            .filter(|(name, _)| newer(name))
            .map(|(name, run)| (name.into(), run.clone()))
            .collect();
        let names: Vec<&str> = named(&self.data).map(|(name, _)| name).collect();
        (version != self.version).then(|| {
            json!({
                "version": self.version,
                "columns": self.data["columns"],
                "rows": self.data["rows"],
                "every": self.data["every"],
                "names": names,
                "changed": changed,
            })
        })
    }
}

fn named(data: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let runs = data["runs"].as_array().map(Vec::as_slice).unwrap_or_default();
    runs.iter().map(|run| (run["name"].as_str().unwrap_or_default(), run))
}

/// Whether a request is meant for this machine. A page of elsewhere whose name leads here sends its own name.
fn is_meant(host: Option<&str>) -> bool {
    let Some(host) = host else { return false };
    let name = match host.strip_prefix("[::1]") {
        Some(rest) if rest.is_empty() || rest.starts_with(':') => "localhost",
        _ => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    ["127.0.0.1", "localhost"].iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Of a path with `?since=N`: that version, 0 where it says none.
fn since(url: &str) -> u64 {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').find_map(|p| p.strip_prefix("since=")?.parse().ok()).unwrap_or(0)
}

fn answer(request: Request, followed: &mut Followed, console: &mut Console) {
    let host = request.headers().iter().find(|h| h.field.equiv("Host")).map(|h| h.value.as_str().to_string());
    let (code, kind, body) = match () {
        () if !is_meant(host.as_deref()) => {
            (403, "text/plain", "this address is for this machine alone\n".into())
        }
        () if !matches!(request.method(), Method::Get | Method::Head) => {
            (405, "text/plain", "only GET\n".into())
        }
        () => match followed.refresh() {
            Ok(()) => asked(request.url(), followed),
            Err(d) => {
                // The folder is gone, or a sweep is being changed: the page says that it is not connected, and asks again.
                console.warn(&d.message);
                (503, "text/plain", format!("{}\n", d.message))
            }
        },
    };
    let header = |name: &str, value: &str| Header::from_bytes(name, value).ok();
    let headers = [
        header("Content-Type", &format!("{kind}; charset=utf-8")),
        header("Content-Security-Policy", POLICY),
        header("Cache-Control", "no-store"),
        header("X-Content-Type-Options", "nosniff"),
        header("Cross-Origin-Resource-Policy", "same-origin"),
    ];
    let mut response = Response::from_string(body).with_status_code(code);
    headers.into_iter().flatten().for_each(|h| response.add_header(h));
    // Whoever asked may be gone.
    let _gone = request.respond(response);
}

fn asked(url: &str, followed: &Followed) -> (u16, &'static str, String) {
    match url.split('?').next().unwrap_or_default() {
        "/" => (200, "text/html", followed.page()),
        "/data.json" => match followed.changes(since(url)) {
            Some(changes) => (200, "application/json", changes.to_string()),
            None => (204, "application/json", String::new()),
        },
        _ => (404, "text/plain", "there is only the page, at /\n".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_answered() {
        for own in ["127.0.0.1:8080", "localhost:1", "LOCALHOST", "[::1]:80", "127.0.0.1"] {
            assert!(is_meant(Some(own)), "{own}");
        }
        for other in [
            "example.com",
            "example.com:8080",
            "127.0.0.1.example.com:80",
            "[::1].example.com",
            "[::2]:80",
            "",
            "localhost.example.com",
        ] {
            assert!(!is_meant(Some(other)), "{other}");
        }
        assert!(!is_meant(None));
    }

    #[test]
    fn a_page_is_sent_what_has_changed() {
        let data = |a: u32, b: u32| json!({ "columns": [], "rows": [[a], [b]], "every": 1, "runs": [{ "name": "a", "x": a }, { "name": "b", "x": b }] });
        let mut followed = Followed::new(&[], "t", 100);
        followed.take(data(1, 1));
        assert_eq!((followed.version, followed.changes(101)), (101, None));
        followed.take(data(1, 1));
        assert_eq!(followed.version, 101);
        followed.take(data(1, 2));
        let changes = followed.changes(101).unwrap_or_default();
        assert_eq!(changes["changed"], json!({ "b": { "name": "b", "x": 2 } }));
        assert_eq!((&changes["names"], &changes["version"]), (&json!(["a", "b"]), &json!(102)));
        // A page of an earlier server is sent all of it.
        assert_eq!(followed.changes(7).unwrap_or_default()["changed"].as_object().map(Map::len), Some(2));
        assert!(followed.changes(102).is_none());
        assert_eq!(
            (since("/data.json?since=12"), since("/data.json"), since("/data.json?x=1&since=3")),
            (12, 0, 3)
        );
    }
}
