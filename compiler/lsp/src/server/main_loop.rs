//! The loop: edits are applied, requests handed on, answers sent.

use super::published_diagnostics::Published;
use super::requests::Requests;
use super::worker::{WorkerAnswer, WorkerTask, start};
use crate::host::Host;
use crate::settings::EditorSettings;
use crate::snapshot::Snapshot;
use crate::text::{Document, Documents, LanguageKind, path_of};
use crossbeam_channel::{Sender, select, unbounded};
use lsp_server::{Connection, ErrorCode, Message, Notification, ProtocolError, Request, RequestId, Response};
use lsp_types::notification::{
    Cancel, DidChangeConfiguration, DidChangeTextDocument, DidChangeWatchedFiles, DidChangeWorkspaceFolders,
    DidCloseTextDocument, DidOpenTextDocument, DidSaveTextDocument, Notification as _,
};
use lsp_types::request::{RegisterCapability, Request as _};
use lsp_types::{
    CancelParams, DidChangeConfigurationParams, DidChangeTextDocumentParams,
    DidChangeWatchedFilesRegistrationOptions, DidChangeWorkspaceFoldersParams, DidCloseTextDocumentParams,
    DidOpenTextDocumentParams, FileSystemWatcher, GlobPattern, InitializeParams, NumberOrString,
    Registration, RegistrationParams,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client shut the server down, and said so.
    Shutdown,
    /// The client went away.
    Disconnected,
}

struct MainLoop<'c> {
    connection: &'c Connection,
    snapshot: Snapshot,
    requests: Requests,
    published: Published,
    /// Counts the changes of texts and settings.
    revision: Arc<AtomicU64>,
    tasks: Sender<WorkerTask>,
    shut_down: bool,
}

/// Runs until the client ends the session or goes away.
pub(super) fn run(
    connection: &Connection,
    host: Arc<dyn Host>,
    params: &InitializeParams,
) -> Result<SessionEnd, ProtocolError> {
    let folders = params.workspace_folders.iter().flatten().map(|f| path_of(&f.uri)).collect();
    let settings = params.initialization_options.as_ref().map(EditorSettings::of).unwrap_or_default();
    let snapshot = Snapshot {
        documents: Arc::new(Documents::default()),
        settings: Arc::new(settings),
        folders: Arc::new(folders),
        host,
    };
    let revision = Arc::new(AtomicU64::new(0));
    let (tasks, taken) = unbounded();
    let (sender, done) = unbounded();
    let Ok(thread) = start(taken, sender, revision.clone()) else { return Ok(SessionEnd::Disconnected) };
    let (requests, published) = (Requests::default(), Published::default());
    let mut server =
        MainLoop { connection, snapshot, requests, published, revision, tasks, shut_down: false };
    server.watch_files(params);
    let end = loop {
        select! {
            recv(connection.receiver) -> message => match message {
                Ok(message) => if let Some(end) = server.take(message) { break end },
                Err(_) => break SessionEnd::Disconnected,
            },
            recv(done) -> said => match said {
                Ok(said) => server.say(said),
                Err(_) => break SessionEnd::Disconnected,
            },
        }
    };
    // No more tasks can come, so the thread ends.
    drop(server);
    let _ = thread.join();
    Ok(end)
}

impl MainLoop<'_> {
    fn send(&self, message: impl Into<Message>) {
        // A client that is gone ends the loop by itself.
        let _ = self.connection.sender.send(message.into());
    }

    /// Asks to be told of changes of files, where the client can do that.
    fn watch_files(&self, params: &InitializeParams) {
        let workspace = params.capabilities.workspace.as_ref();
        let watching = workspace.and_then(|w| w.did_change_watched_files);
        if !watching.and_then(|w| w.dynamic_registration).unwrap_or_default() {
            return;
        }
        let watcher =
            |glob: &str| FileSystemWatcher { glob_pattern: GlobPattern::String(glob.into()), kind: None };
        let options = DidChangeWatchedFilesRegistrationOptions {
            watchers: vec![watcher("**/*.mw"), watcher("**/*.layout")],
        };
        let registration = Registration {
            id: "files".into(),
            method: DidChangeWatchedFiles::METHOD.into(),
            register_options: serde_json::to_value(options).ok(),
        };
        let params = RegistrationParams { registrations: vec![registration] };
        let id = RequestId::from("files".to_string());
        self.send(Request::new(id, RegisterCapability::METHOD.into(), params));
    }

    fn take(&mut self, message: Message) -> Option<SessionEnd> {
        match message {
            Message::Request(request) => self.request(request),
            Message::Notification(n) if n.method == "exit" => {
                return Some(if self.shut_down { SessionEnd::Shutdown } else { SessionEnd::Disconnected });
            }
            Message::Notification(n) => self.notified(n),
            // The client has nothing to answer but that it watches files.
            Message::Response(_) => {}
        }
        None
    }

    fn request(&mut self, request: Request) {
        if self.shut_down {
            let message = "the server was shut down".to_string();
            return self.send(Response::new_err(request.id, ErrorCode::InvalidRequest as i32, message));
        }
        if request.method == "shutdown" {
            self.shut_down = true;
            return self.send(Response::new_ok(request.id, Value::Null));
        }
        let cancelled = self.requests.begin(request.id.clone());
        let _ = self.tasks.send(WorkerTask::Answer(request, self.snapshot.clone(), cancelled));
    }

    fn notified(&mut self, n: Notification) {
        match n.method.as_str() {
            DidOpenTextDocument::METHOD => self.with(n, |s, p: DidOpenTextDocumentParams| {
                let d = p.text_document;
                let path = path_of(&d.uri);
                let layout = d.language_id == "meshwright-layout";
                let kind = if layout { LanguageKind::Layout } else { LanguageKind::of(&path) };
                let document = Document { kind, version: d.version, text: d.text.into() };
                s.documents().open(path, document);
            }),
            DidChangeTextDocument::METHOD => self.with(n, |s, p: DidChangeTextDocumentParams| {
                let path = path_of(&p.text_document.uri);
                if let Some(d) = s.documents().get_mut(&path) {
                    d.change(p.text_document.version, p.content_changes);
                }
            }),
            DidCloseTextDocument::METHOD => self.with(n, |s, p: DidCloseTextDocumentParams| {
                s.documents().close(&path_of(&p.text_document.uri));
            }),
            DidSaveTextDocument::METHOD | DidChangeWatchedFiles::METHOD => self.with(n, |_, _: Value| {}),
            DidChangeConfiguration::METHOD => self.with(n, |s, p: DidChangeConfigurationParams| {
                if p.settings.is_object() {
                    s.snapshot.settings = Arc::new(EditorSettings::of(&p.settings));
                }
            }),
            DidChangeWorkspaceFolders::METHOD => self.with(n, |s, p: DidChangeWorkspaceFoldersParams| {
                let gone: Vec<_> = p.event.removed.iter().map(|f| path_of(&f.uri)).collect();
                let folders = Arc::make_mut(&mut s.snapshot.folders);
                folders.retain(|f| !gone.contains(f));
                folders.extend(p.event.added.iter().map(|f| path_of(&f.uri)));
            }),
            Cancel::METHOD => {
                let Ok(CancelParams { id }) = serde_json::from_value(n.params) else { return };
                let id = match id {
                    NumberOrString::Number(id) => RequestId::from(id),
                    NumberOrString::String(id) => RequestId::from(id),
                };
                if let Some(response) = self.requests.cancel(&id) {
                    self.send(response);
                }
            }
            _ => {}
        }
    }

    /// Takes a notification that changes texts or settings, after which what is wrong is looked for again. What is not as the
    /// protocol has it is left out: nobody waits for an answer.
    fn with<P: DeserializeOwned>(&mut self, n: Notification, change: impl FnOnce(&mut Self, P)) {
        let Ok(params) = serde_json::from_value(n.params) else { return };
        change(self, params);
        let revision = self.revision.fetch_add(1, Ordering::Relaxed) + 1;
        let _ = self.tasks.send(WorkerTask::Diagnose(revision, self.snapshot.clone()));
    }

    fn documents(&mut self) -> &mut Documents {
        Arc::make_mut(&mut self.snapshot.documents)
    }

    fn say(&mut self, said: WorkerAnswer) {
        match said {
            WorkerAnswer::Answer(response) => {
                if self.requests.end(&response.id) {
                    self.send(response);
                }
            }
            WorkerAnswer::Diagnosed(found) => {
                let messages = self.published.update(found);
                messages.into_iter().for_each(|m| self.send(m));
            }
        }
    }
}
