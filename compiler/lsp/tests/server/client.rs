//! A client in the same process: it sends what an editor sends, and keeps what an editor shows.

use lsp_server::{Connection, Message, Notification, Request, RequestId, Response};
use meshwright_diag::{Diagnostic, codes};
use meshwright_lsp::{Host, SessionEnd, serve};
use meshwright_sorted::SortedMap;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The layers that ship.
pub(crate) const NN: &str = include_str!("../../../../models/std/nn.mw");
/// A layout that ships.
const DP_TP: &str = include_str!("../../../../layouts/dp_tp.layout");

/// Files in memory.
#[derive(Default)]
pub(crate) struct MemoryHost {
    files: Mutex<SortedMap<PathBuf, String>>,
}

impl Host for MemoryHost {
    fn read(&self, path: &Path) -> Result<String, String> {
        self.files.lock().unwrap().get(path).cloned().ok_or_else(|| "no such file".to_string())
    }

    fn texts_in(&self, folder: &Path) -> Vec<PathBuf> {
        self.files.lock().unwrap().keys().filter(|p| p.parent() == Some(folder)).cloned().collect()
    }

    fn standard(&self, name: &str) -> Result<&'static str, Box<Diagnostic>> {
        match name {
            "std:nn" => Ok(NN),
            _ => Err(Box::new(Diagnostic::error(codes::E0515, format!("there is no `{name}`")))),
        }
    }

    fn layouts(&self) -> Vec<(&'static str, &'static str)> {
        vec![("dp_tp", DP_TP)]
    }

    fn shelve(&self, name: &str, text: &str) -> Option<PathBuf> {
        let path = Path::new("/shelf").join(name);
        self.files.lock().unwrap().insert(path.clone(), text.to_string());
        Some(path)
    }
}

/// The client.
pub(crate) struct Client {
    connection: Option<Connection>,
    server: Option<JoinHandle<SessionEnd>>,
    requests: i32,
    version: i32,
    texts: SortedMap<String, String>,
    /// What is wrong with each text, as it was told last.
    pub(crate) found: SortedMap<String, Vec<Value>>,
}

/// The URI of a file of the workspace.
pub(crate) fn uri(name: &str) -> String {
    format!("file:///w/{name}")
}

impl Client {
    /// Starts a server with these files, and opens them all.
    pub(crate) fn with(files: &[(&str, &str)]) -> Client {
        let mut client = Client::start(files);
        files.iter().for_each(|(name, text)| client.open(name, text));
        client
    }

    /// Starts a server with these files.
    pub(crate) fn start(files: &[(&str, &str)]) -> Client {
        let host = Arc::new(MemoryHost::default());
        for (name, text) in files {
            host.files.lock().unwrap().insert(Path::new("/w").join(name), text.to_string());
        }
        let (server, connection) = Connection::memory();
        let server = std::thread::spawn(move || serve(&server, host).unwrap());
        let mut client = Client {
            connection: Some(connection),
            server: Some(server),
            requests: 0,
            version: 0,
            texts: SortedMap::new(),
            found: SortedMap::new(),
        };
        let folder = json!({ "uri": "file:///w", "name": "w" });
        let params = json!({ "capabilities": {}, "processId": null, "workspaceFolders": [folder] });
        client.ask("initialize", params);
        client.tell("initialized", json!({}));
        client
    }

    /// Sends a notification.
    pub(crate) fn tell(&mut self, method: &str, params: Value) {
        let n = Notification::new(method.to_string(), params);
        self.connection.as_ref().unwrap().sender.send(n.into()).unwrap();
    }

    /// Sends a request, without waiting for its answer.
    pub(crate) fn send(&mut self, method: &str, params: Value) -> RequestId {
        self.requests += 1;
        let id = RequestId::from(self.requests);
        let request = Request::new(id.clone(), method.to_string(), params);
        self.connection.as_ref().unwrap().sender.send(request.into()).unwrap();
        id
    }

    /// Waits for the answer to a request.
    pub(crate) fn answer(&mut self, id: &RequestId) -> Response {
        loop {
            if let Message::Response(r) = self.receive()
                && r.id == *id
            {
                return r;
            }
        }
    }

    fn receive(&mut self) -> Message {
        let receiver = &self.connection.as_ref().unwrap().receiver;
        let message = receiver.recv_timeout(Duration::from_secs(60)).expect("the server hangs");
        if let Message::Notification(n) = &message
            && n.method == "textDocument/publishDiagnostics"
        {
            let uri = n.params["uri"].as_str().unwrap().to_string();
            self.found.insert(uri, n.params["diagnostics"].as_array().unwrap().clone());
        }
        message
    }

    /// A request with its answer, which is no error.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        let response = self.answer(&id);
        response.response_result.unwrap_or_else(|error| panic!("{method}: {}", error.message))
    }

    /// Opens a text.
    pub(crate) fn open(&mut self, name: &str, text: &str) {
        self.version += 1;
        self.texts.insert(name.to_string(), text.to_string());
        let language = if name.ends_with(".layout") { "meshwright-layout" } else { "meshwright" };
        let d = json!({ "uri": uri(name), "languageId": language, "version": self.version, "text": text });
        self.tell("textDocument/didOpen", json!({ "textDocument": d }));
    }

    /// Puts another text in place of one.
    pub(crate) fn change(&mut self, name: &str, text: &str) {
        self.version += 1;
        self.texts.insert(name.to_string(), text.to_string());
        let d = json!({ "uri": uri(name), "version": self.version });
        self.tell(
            "textDocument/didChange",
            json!({ "textDocument": d, "contentChanges": [{ "text": text }] }),
        );
    }

    /// The text of a file as the client has it.
    pub(crate) fn text(&self, name: &str) -> &str {
        &self.texts[name]
    }

    /// What is wrong with a text now: `CODE first line of the message`.
    pub(crate) fn wrong(&mut self, name: &str) -> Vec<String> {
        // What comes before the answer to a request that follows is about texts as they are.
        self.ask("textDocument/foldingRange", json!({ "textDocument": { "uri": uri(name) } }));
        let all = self.found.get(&uri(name)).cloned().unwrap_or_default();
        let line = |d: &Value| {
            let message = d["message"].as_str().unwrap().lines().next().unwrap().to_string();
            format!("{} {message}", d["code"].as_str().unwrap_or("-"))
        };
        all.iter().map(line).collect()
    }

    /// The position of the `n`th place of a piece of a text, from 0; `|` in it is where the position is, else it is the start.
    pub(crate) fn at(&self, name: &str, piece: &str, n: usize) -> Value {
        let cursor = piece.find('|').unwrap_or(0);
        let text = self.text(name);
        let start = text.match_indices(&piece.replace('|', "")).nth(n).expect("the piece is in the text").0;
        let before = &text[..start + cursor];
        let line = before.matches('\n').count();
        let column: usize = before.rsplit('\n').next().unwrap().chars().map(char::len_utf16).sum();
        json!({ "line": line, "character": column })
    }

    /// The parameters of a request about a place.
    pub(crate) fn place(&self, name: &str, piece: &str, n: usize) -> Value {
        json!({ "textDocument": { "uri": uri(name) }, "position": self.at(name, piece, n) })
    }

    /// What a hover shows.
    pub(crate) fn hover(&mut self, name: &str, piece: &str, n: usize) -> String {
        let place = self.place(name, piece, n);
        self.ask("textDocument/hover", place)["contents"]["value"].as_str().unwrap_or_default().to_string()
    }

    /// A text with the edits of a file from a `WorkspaceEdit` or a list of edits.
    pub(crate) fn edited(&self, name: &str, edits: &Value) -> String {
        let edits = edits.get("changes").map_or(edits, |c| &c[uri(name)]);
        let text = self.text(name);
        let offset = |p: &Value| {
            let line = p["line"].as_u64().unwrap() as usize;
            let mut start = 0;
            for l in text.split_inclusive('\n').take(line) {
                start += l.len();
            }
            let mut units = p["character"].as_u64().unwrap() as usize;
            let mut at = start;
            for c in text[start..].chars() {
                if units == 0 {
                    break;
                }
                units -= c.len_utf16();
                at += c.len_utf8();
            }
            at
        };
        let mut all: Vec<(usize, usize, &str)> = edits
            .as_array()
            .into_iter()
            .flatten()
            .map(|e| {
                (offset(&e["range"]["start"]), offset(&e["range"]["end"]), e["newText"].as_str().unwrap())
            })
            .collect();
        all.sort();
        let mut out = text.to_string();
        for (start, end, new) in all.into_iter().rev() {
            out.replace_range(start..end, new);
        }
        out
    }

    /// Shuts the server down.
    pub(crate) fn end(mut self) -> SessionEnd {
        self.ask("shutdown", Value::Null);
        self.tell("exit", Value::Null);
        self.server.take().unwrap().join().unwrap()
    }
}
