//! A page that is served while runs go on. The page asks for what has changed; what it shows of them else stays.

use super::access::Access;
use super::serving::{self, Answer};
use crate::commands::command_end::CommandEnd;
use crate::output::console::Console;
use crate::refusal::wrong;
use crate::run_places::{ReadRuns, places, read, root};
use crate::signals;
use crate::stop::Stop;
use meshwright_files::Checked;
use meshwright_report::report::RunsReport;
use meshwright_sorted::{SortedMap, SortedSet};
use serde_json::{Map, Value, json};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How long the page waits before it asks again.
const EVERY: Duration = Duration::from_millis(2000);
/// Runs are read no more often than this, however many pages ask.
const FRESH: Duration = Duration::from_millis(1000);
/// How soon Ctrl-C is seen.
const WAIT: Duration = Duration::from_millis(100);

/// Serves the page until Ctrl-C.
pub(super) fn serve(
    runs: &[PathBuf],
    title: &str,
    at: SocketAddr,
    console: &mut Console,
) -> Result<(), CommandEnd> {
    // Versions of one server are not those of another: a page that is still open is sent all of it.
    let begin = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    let mut followed = Followed::new(runs, title, begin);
    followed.refresh()?;
    let (listener, address, access) = bound(at)?;
    console.out(&format!("{}\n", access.url(address)))?;
    console.flush()?;
    console.note("the page follows the runs; Ctrl-C ends it");
    let (tell, told) = channel();
    // It ends with the process: what a browser asks for, and takes its time to read, holds up nothing here.
    std::thread::spawn(move || {
        let ended = tell.clone();
        let followed = Mutex::new((
            followed,
            Spoken { tell, failure: None, unreadable: SortedSet::new(), known: SortedSet::new() },
        ));
        let why = serving::serve(&listener, access, move |url| answer(url, &followed));
        let _over = ended.send(Said::Ended(why.to_string()));
    });
    attend(&told, &address.to_string(), console)
}

/// Says what there is to say until Ctrl-C.
fn attend(told: &Receiver<Said>, address: &str, console: &mut Console) -> Result<(), CommandEnd> {
    let stop = signals::stop_of(&mut |note| console.note(note));
    while !stop.load(Ordering::Relaxed) {
        let ended = match told.recv_timeout(WAIT) {
            Ok(Said::Warning(text)) => {
                console.warn(&text);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => continue,
            Ok(Said::Ended(why)) => why,
            Err(RecvTimeoutError::Disconnected) => "its thread has ended".into(),
        };
        return Err(Box::new(wrong(format!("the page at {address} is served no more: {ended}"))).into());
    }
    Err(Stop::Interrupted.into())
}

fn bound(at: SocketAddr) -> Checked<(TcpListener, SocketAddr, Access)> {
    let bound = TcpListener::bind(at).and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address, Access::of(address)?))
    });
    bound.map_err(|e| {
        let d = wrong(format!("the page cannot be served at {at}: {e}"));
        Box::new(
            d.help(
                "leave `--port` out to take any port that is free; `--host` is an address of this machine",
            ),
        )
    })
}

/// What is said on the terminal meanwhile.
#[derive(Debug)]
enum Said {
    Warning(String),
    Ended(String),
}

/// What was said, so that nothing is said each time that a page asks.
#[derive(Debug)]
struct Spoken {
    tell: Sender<Said>,
    /// Why nothing could be read, the last time.
    failure: Option<String>,
    /// Of runs that could not be read, the last time: one that is just being made may lack a file, and has it the next time.
    unreadable: SortedSet<String>,
    /// Those of which it was said.
    known: SortedSet<String>,
}

impl Spoken {
    fn warn(&self, text: &str) {
        // Nobody listens when the command is about to end.
        let _over = self.tell.send(Said::Warning(text.into()));
    }

    fn failed(&mut self, why: &str) {
        if self.failure.as_deref() != Some(why) {
            self.warn(why);
        }
        self.failure = Some(why.into());
    }

    /// Says what could not be read twice.
    fn read(&mut self, unreadable: &[String]) {
        self.failure = None;
        let now: SortedSet<String> = unreadable.iter().cloned().collect();
        for why in now.intersection(&self.unreadable) {
            if !self.known.contains(why) {
                self.warn(&format!("a run is left out: {why}"));
            }
        }
        self.known = now.intersection(&self.unreadable).cloned().collect();
        self.unreadable = now;
    }
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
    since: SortedMap<String, u64>,
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
            since: SortedMap::new(),
            at: None,
        }
    }

    /// Reads what has changed, where that was not done a moment ago, and gives what it could not read.
    fn refresh(&mut self) -> Checked<Option<Vec<String>>> {
        if self.at.is_some_and(|at| at.elapsed() < FRESH) {
            return Ok(None);
        }
        let found = read(&places(&self.paths)?, root(&self.paths), &mut self.read);
        let unreadable = found.left_out();
        let report = RunsReport { title: &self.title, made: "", runs: &found.runs, unreadable: &unreadable };
        self.take(report.data());
        self.at = Some(Instant::now());
        Ok(Some(unreadable))
    }

    fn take(&mut self, data: Value) {
        if data == self.data {
            return;
        }
        self.version += 1;
        let old: SortedMap<&str, &Value> = named(&self.data).collect();
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
        RunsReport { title: &self.title, made: "", runs: &[], unreadable: &[] }.page(data)
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
                "unreadable": self.data["unreadable"],
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

/// Of a path with `?since=N`: that version, 0 where it says none.
fn since(url: &str) -> u64 {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').find_map(|p| p.strip_prefix("since=")?.parse().ok()).unwrap_or(0)
}

fn answer(url: &str, followed: &Mutex<(Followed, Spoken)>) -> Answer {
    let (followed, spoken) = &mut *followed.lock().unwrap_or_else(PoisonError::into_inner);
    match followed.refresh() {
        Ok(read) => {
            read.iter().for_each(|unreadable| spoken.read(unreadable));
            asked(url, followed)
        }
        Err(d) => {
            // The folder is gone, or a sweep is being changed: the page says that it is not connected, and asks again.
            spoken.failed(&d.message);
            Answer::text(503, &d.message)
        }
    }
}

fn asked(url: &str, followed: &Followed) -> Answer {
    match url.split('?').next().unwrap_or_default() {
        "/" => Answer::new(200, "text/html", followed.page()),
        "/data.json" => match followed.changes(since(url)) {
            Some(changes) => Answer::new(200, "application/json", changes.to_string()),
            None => Answer::new(204, "application/json", String::new()),
        },
        _ => Answer::text(404, "there is only the page, at /"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    #[test]
    fn what_cannot_be_read_is_said_once_and_when_it_lasts() {
        let (tell, told) = channel();
        let mut spoken =
            Spoken { tell, failure: None, unreadable: SortedSet::new(), known: SortedSet::new() };
        let said = |spoken: &mut Spoken, unreadable: &[&str]| {
            spoken.read(&unreadable.iter().map(|s| (*s).to_string()).collect::<Vec<_>>());
            told.try_iter().count()
        };
        // A run that is just being made is none of them.
        assert_eq!(
            [&["a"][..], &[], &["a"], &["a"], &["a", "b"]].map(|u| said(&mut spoken, u)),
            [0, 0, 0, 1, 0]
        );
        assert_eq!(said(&mut spoken, &["a", "b"]), 1);
        assert_eq!([&["a"][..], &[], &["a"], &["a"]].map(|u| said(&mut spoken, u)), [0, 0, 0, 1]);
        for _ in 0..3 {
            spoken.failed("the folder is gone");
        }
        assert_eq!(told.try_iter().count(), 1);
    }
}
