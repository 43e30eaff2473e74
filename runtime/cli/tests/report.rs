//! The page of runs as users have it: which runs it finds, what it refuses, and what it answers while it is served.

use crate::support::{command, file, prepared, run_in as run};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TRAIN: [&str; 6] = ["train", "sums.mw", "--data", "data", "--epochs", "2"];

/// What a page draws.
fn data(at: &Path, page: &str) -> Value {
    let page = file(at, page);
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn names(data: &Value) -> Vec<&str> {
    data["runs"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect()
}

fn trained(at: &Path, runs: &[&str]) {
    for name in runs {
        let (code, _, err) = run(at, &[&TRAIN[..], &["--run", name]].concat());
        assert_eq!(code, 0, "{err}");
    }
}

#[test]
fn a_page_has_the_runs_of_folders_and_of_sweeps() {
    let at = prepared("report-found");
    trained(&at, &["all/deep/er/a"]);
    let sweep =
        ["sweep", "sums.mw", "--data", "data", "--layout", "batch -> r", "--mesh", "2,2x2", "--epochs", "1"];
    let (code, _, err) = run(&at, &[&sweep[..], &["--run", "all/s", "--report", "s.html"]].concat());
    assert!(code == 0 && err.contains("s.html` shows 2 runs in "), "{err}");
    let own = data(&at, "s.html");
    assert_eq!(names(&own), ["batch-r-2-seed=0", "batch-r-2x2-seed=0"]);
    assert_eq!((&own["runs"][0]["state"], &own["runs"][1]["state"]), (&"finished".into(), &"skipped".into()));
    assert!(
        own["rows"][1].as_array().unwrap().iter().any(|c| c.as_str().is_some_and(|c| c.contains("E03"))),
        "{own}"
    );
    // The page is named from where the command is, even if the sweep goes on in another folder.
    let (code, _, err) = run(&at.join("all"), &["sweep", "s", "--table", "--report", "again.html"]);
    assert_eq!((code, names(&data(&at, "all/again.html"))), (0, names(&own)), "{err}");

    let (code, _, err) = run(&at, &["report", "all"]);
    assert!(code == 0 && err.contains("`report.html` shows 3 runs in "), "{err}");
    let all = data(&at, "report.html");
    assert_eq!(names(&all), ["deep/er/a", "s/batch-r-2-seed=0", "s/batch-r-2x2-seed=0"]);
    assert_eq!(all["runs"][0]["losses"]["of"], 20);
    assert_eq!(all["runs"][0]["epochs"]["at"], serde_json::json!([1, 2]));
    let (code, _, err) =
        run(&at, &["report", "all/s", "all/deep", "--output", "two.html", "--title", "<both>"]);
    assert_eq!((code, names(&data(&at, "two.html"))[2]), (0, "all/deep/er/a"), "{err}");
    assert!(file(&at, "two.html").contains("<title>&lt;both&gt;</title>"));
    // A run itself.
    assert_eq!(run(&at, &["report", "all/deep/er/a", "--output", "one.html"]).0, 0);
    assert_eq!(names(&data(&at, "one.html")), ["a"]);
}

#[test]
fn what_cannot_be_shown_is_said() {
    let at = prepared("report-wrong");
    trained(&at, &["runs/a", "runs/b"]);
    std::fs::create_dir(at.join("empty")).unwrap();
    for (folder, why) in [
        ("empty", "it holds no run"),
        ("nowhere", "there is no such folder"),
        ("sums.mw", "there is no such folder"),
    ] {
        let (code, _, err) = run(&at, &["report", "runs", folder]);
        assert!(
            code == 1 && err.contains("error[E0511]") && err.contains(folder) && err.contains(why),
            "{err}"
        );
    }
    // A folder, as a web server takes it.
    for (page, file) in [("site/", "site/index.html"), ("empty", "empty/index.html")] {
        assert_eq!(run(&at, &["report", "runs", "--output", page]).0, 0);
        assert_eq!(names(&data(&at, file)), ["a", "b"]);
    }
    for page in ["missing/page.html", "missing/deeper/"] {
        let (code, _, err) = run(&at, &["report", "runs", "--output", page]);
        assert!(code == 1 && err.contains("error[E0516]") && err.contains("cannot be written"), "{err}");
    }
    // A sweep says so before it runs anything.
    let (code, _, err) =
        run(&at, &["sweep", "sums.mw", "--data", "data", "--run", "s", "--report", "missing/page.html"]);
    assert!(code == 1 && err.contains("cannot be written") && !at.join("s").exists(), "{err}");
    // A run that is damaged is left out, and reported.
    std::fs::write(at.join("runs/a/run.toml"), "model = ").unwrap();
    let (code, _, err) = run(&at, &["report", "runs", "--output", "page.html"]);
    assert!(code == 1 && err.contains("error[E0511]") && err.contains("runs/a/run.toml"), "{err}");
    assert_eq!(names(&data(&at, "page.html")), ["b"]);
    assert_eq!(run(&at, &["report"]).0, 2);
    assert_eq!(run(&at, &["report", "runs", "--port", "1"]).0, 2);
    assert_eq!(run(&at, &["report", "runs", "--live", "--output", "x.html"]).0, 2);
}

/// A page that is being served; it ends with the test.
struct Served(Child, String);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Served {
    fn start(at: &Path, args: &[&str]) -> Served {
        let mut c = command(&[&["report", "runs", "--live"], args].concat());
        let mut child = c.current_dir(at).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").and_then(|a| a.strip_suffix('/'));
        Served(child, address.unwrap_or_else(|| panic!("{line}")).into())
    }

    fn open(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.1).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Ctrl-C, and the code that the command then ends with.
    fn interrupted(&mut self) -> Option<i32> {
        Command::new("kill").args(["-INT", &self.0.id().to_string()]).status().unwrap();
        for _ in 0..100 {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        None
    }

    /// Status, head and body of an answer.
    fn ask(&self, request: &str) -> (u16, String, String) {
        let mut stream = self.open();
        stream.write_all(format!("{request}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_lowercase(), body.into())
    }

    fn get(&self, path: &str) -> (u16, String, String) {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {}", self.1))
    }
}

#[test]
fn a_page_is_served_to_this_machine_alone_and_follows_runs() {
    let at = prepared("report-live");
    trained(&at, &["runs/a"]);
    let mut served = Served::start(&at, &[]);
    assert!(served.1.starts_with("127.0.0.1:"), "{}", served.1);
    let (code, head, page) = served.get("/");
    assert!(
        code == 200
            && page.contains("\"live\":{")
            && head.contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    let all: Value = serde_json::from_str(&served.get("/data.json").2).unwrap();
    assert_eq!(
        (&all["names"], all["changed"]["a"]["losses"]["of"].as_u64()),
        (&serde_json::json!(["a"]), Some(20))
    );
    assert_eq!(served.ask(&format!("HEAD / HTTP/1.1\r\nHost: {}", served.1)).2, "");
    let since = format!("/data.json?since={}", all["version"]);
    assert_eq!((served.get(&since).0, served.get("/runs/a/run.toml").0), (204, 404));
    for other in ["example.com", "127.0.0.1.example.com:80", "192.168.0.7", "127.0.0.1", "localhost:1"] {
        assert_eq!(served.ask(&format!("GET / HTTP/1.1\r\nHost: {other}")).0, 403, "{other}");
    }
    for body in ["Content-Length: 3", "Content-Length: 0\r\nContent-Length: 0", "Transfer-Encoding: chunked"]
    {
        assert_eq!(served.ask(&format!("GET / HTTP/1.1\r\nHost: {}\r\n{body}", served.1)).0, 400, "{body}");
    }
    assert_eq!(served.ask(&format!("POST / HTTP/1.1\r\nHost: {}\r\nContent-Length: 0", served.1)).0, 405);
    // A port that is taken.
    let port = served.1.rsplit(':').next().unwrap();
    let (code, _, err) = run(&at, &["report", "runs", "--live", "--port", port]);
    assert!(
        code == 1 && err.contains("error[E0516]") && err.contains(port) && err.contains("leave `--port` out"),
        "{err}"
    );
    // Only the new run is sent.
    trained(&at, &["runs/b"]);
    std::thread::sleep(Duration::from_millis(1100));
    let (code, _, body) = served.get(&since);
    let now: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &now["names"]), (200, &serde_json::json!(["a", "b"])));
    assert_eq!(now["changed"].as_object().unwrap().keys().collect::<Vec<_>>(), ["b"]);
    // A run that cannot be read is reported, and is there again when it can.
    let kept = std::fs::read(at.join("runs/b/run.toml")).unwrap();
    std::fs::write(at.join("runs/b/run.toml"), "model = ").unwrap();
    let fresh = || {
        std::thread::sleep(Duration::from_millis(1100));
        serde_json::from_str::<Value>(&served.get("/data.json").2).unwrap()
    };
    let now = fresh();
    let why = now["unreadable"][0].as_str().unwrap();
    assert!(
        now["names"] == serde_json::json!(["a"]) && why.contains("E0511: ") && why.contains("b/run.toml"),
        "{why}"
    );
    std::fs::write(at.join("runs/b/run.toml"), kept).unwrap();
    let now = fresh();
    assert_eq!((&now["names"], &now["unreadable"]), (&serde_json::json!(["a", "b"]), &serde_json::json!([])));
    assert_eq!(served.interrupted(), Some(130));
}

/// Of a log that grows, points are read, and never all of its text at once.
#[test]
fn a_page_that_is_served_holds_no_logs() {
    let at = prepared("report-memory");
    trained(&at, &["runs/a"]);
    let served = Served::start(&at, &[]);
    let peak = || -> u64 {
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(served.get("/data.json").0, 200);
        let status = std::fs::read_to_string(format!("/proc/{}/status", served.0.id())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    };
    let before = peak();
    let log = file(&at, "runs/a/metrics.jsonl");
    let step = log.lines().find(|l| l.contains("\"event\":\"step\"")).unwrap();
    let grown = log.clone() + &format!("{step}\n").repeat(80_000);
    std::fs::write(at.join("runs/a/metrics.jsonl"), &grown).unwrap();
    let held = peak() - before;
    assert!(grown.len() > 20_000_000 && held < grown.len() as u64 * 3 / 4, "{held} of {}", grown.len());
}

#[test]
fn clients_that_stall_hold_up_nobody() {
    let at = prepared("report-stalled");
    trained(&at, &["runs/a"]);
    let mut served = Served::start(&at, &[]);
    let get = format!("GET / HTTP/1.1\r\nHost: {}\r\n", served.1);
    let other = "GET / HTTP/1.1\r\nHost: example.com\r\n";
    let body = |length: &str| format!("Content-Length: {length}\r\n\r\nhalf of it");
    let mut open = Vec::new();
    for sent in [
        String::new(),
        "GET / HT".into(),
        // The page again and again, without a reader of its bytes.
        format!("{get}\r\n").repeat(40),
        get.clone() + &body("5000"),
        get.clone() + &body("1000000000000000"),
        other.to_string() + &body("1000000000000000"),
        get.clone() + "Expect: 100-continue\r\n" + &body("2000"),
        get.clone() + "Transfer-Encoding: chunked\r\n\r\nffffffffffff\r\n",
    ] {
        for _ in 0..3 {
            let mut stream = served.open();
            stream.write_all(sent.as_bytes()).unwrap();
            open.push(stream);
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    let begin = Instant::now();
    assert_eq!((served.get("/data.json").0, served.get("/").0, served.get("/nothing").0), (200, 200, 404));
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    // Whoever announces a body is answered nevertheless.
    let length = "Content-Length: 1000000000000000";
    assert_eq!(served.ask(&format!("POST / HTTP/1.1\r\nHost: {}\r\n{length}", served.1)).0, 405);
    assert_eq!(served.ask(&format!("{other}{length}")).0, 403);
    assert_eq!(served.ask(&format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(20_000))).0, 400);
    assert_eq!(served.interrupted(), Some(130));
    drop(open);
}
