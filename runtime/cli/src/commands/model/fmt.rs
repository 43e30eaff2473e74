//! `fmt`: model files and layout files in the one style.

use crate::args::{FmtArgs, Language};
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::text::counted;
use crate::replace::replace;
use crate::stop::Stop;
use meshwright_diag::render::printable;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_files::folder::{FolderEntry, entries};
use meshwright_files::text_file::open_text;
use meshwright_syntax::{MAX_BYTES, format_layout, format_model};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What became of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Formatted,
    Differs,
    Unchanged,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::Formatted => "formatted",
            Status::Differs => "differs",
            Status::Unchanged => "unchanged",
        }
    }
}

/// What is told at the end.
#[derive(Default)]
struct Found {
    sources: Sources,
    diagnostics: Vec<Diagnostic>,
    changed: u64,
    unchanged: u64,
}

/// Runs the command.
pub(crate) fn run(args: &FmtArgs, console: &mut Console) -> Result<(), Stop> {
    let mut found = Found::default();
    if args.paths.iter().any(|p| p.as_os_str() == "-") {
        if args.paths.len() > 1 {
            return Err(Stop::Usage("`-` is standard input and stands alone".into()));
        }
        stdin(args, &mut found, console)?;
    } else {
        let mut files = Vec::new();
        for path in &args.paths {
            collect(path, &mut files, &mut found.diagnostics);
        }
        for path in &files {
            file(path, args, &mut found, console)?;
        }
        if !console.json() && found.changed + found.unchanged > 0 {
            let verb = match (args.check, found.changed) {
                (false, _) => "formatted",
                (true, 1) => "differs",
                (true, _) => "differ",
            };
            let changed = counted(found.changed, "file");
            console.out(&format!("{changed} {verb}, {} in style already\n", found.unchanged))?;
        }
    }
    console.diagnostics(&found.diagnostics, &found.sources);
    if args.check && found.changed > 0 && !console.json() {
        // What is shown may go to a file: why the command fails is said beside it.
        let changed = counted(found.changed, "text");
        console.note(&format!(
            "{changed} not in the one style: `meshwright fmt` without `--check` changes that"
        ));
    }
    if found.diagnostics.is_empty() && (!args.check || found.changed == 0) {
        Ok(())
    } else {
        Err(Stop::Diagnosed)
    }
}

fn unreadable(what: &str, why: impl std::fmt::Display) -> Box<Diagnostic> {
    Box::new(Diagnostic::error(codes::E0515, format!("cannot read {what}: {why}")))
}

fn quoted(path: &Path) -> String {
    format!("`{}`", path.display())
}

/// The language that a file's name tells.
fn language(path: &Path) -> Option<Language> {
    match path.extension()?.to_str()? {
        "mw" => Some(Language::Model),
        "layout" => Some(Language::Layout),
        _ => None,
    }
}

/// `path`, or all models and layouts below it, in the order of their names.
fn collect(path: &Path, files: &mut Vec<PathBuf>, diagnostics: &mut Vec<Diagnostic>) {
    if !path.is_dir() {
        return files.push(path.into());
    }
    let before = files.len();
    if let Err(e) = walk(path, files) {
        diagnostics.push(*unreadable(&quoted(path), e));
    } else if files.len() == before {
        let d = Diagnostic::error(codes::E0515, format!("no model and no layout is below {}", quoted(path)));
        diagnostics.push(d.help("models end in .mw, layouts in .layout"));
    }
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for FolderEntry { name, path, kind, .. } in entries(folder)? {
        // Links to folders are not followed: they could lead round in circles.
        if kind.is_dir() {
            if !name.as_encoded_bytes().starts_with(b".") {
                walk(&path, files)?;
            }
        } else if language(&path).is_some() && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

/// All bytes of a file or of standard input, and the text that they are.
fn read(what: &str, from: &mut dyn Read) -> Result<(Vec<u8>, String), Box<Diagnostic>> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(|e| unreadable(what, e))?;
    if bytes.len() > MAX_BYTES {
        return Err(unreadable(what, format!("it has more than {MAX_BYTES} bytes")));
    }
    match String::from_utf8(bytes.clone()) {
        Ok(text) => Ok((bytes, text)),
        Err(e) => Err(unreadable(what, format!("byte {} is not UTF-8", e.utf8_error().valid_up_to()))),
    }
}

/// The text in the one style; `None` where there is something wrong with it.
fn formatted(name: &str, text: &str, language: Language, found: &mut Found) -> Option<String> {
    let id = found.sources.add(name, text);
    let (out, diagnostics) = match language {
        Language::Model => format_model(id, text),
        Language::Layout => format_layout(id, text),
    };
    found.diagnostics.extend(diagnostics);
    out
}

fn stdin(args: &FmtArgs, found: &mut Found, console: &mut Console) -> Result<(), Stop> {
    let text = match read("standard input", &mut io::stdin().lock()) {
        Ok((_, text)) => text,
        Err(d) => {
            found.diagnostics.push(*d);
            return Ok(());
        }
    };
    let language = args.language.unwrap_or(Language::Model);
    let Some(new) = formatted("standard input", &text, language, found) else { return Ok(()) };
    if args.check {
        let status = if new == text { Status::Unchanged } else { Status::Differs };
        return report("standard input", &text, &new, status, found, console);
    }
    if console.json() {
        return console.out_json(&object([("file", "-".into()), ("text", new.into())]));
    }
    console.out_styled(&new)
}

fn file(path: &Path, args: &FmtArgs, found: &mut Found, console: &mut Console) -> Result<(), Stop> {
    let name = path.display().to_string();
    let Some(language) = language(path).or(args.language) else {
        let d = unreadable(&quoted(path), "its name ends neither in .mw nor in .layout");
        found.diagnostics.push(d.help("say what it is: `--language model` or `--language layout`"));
        return Ok(());
    };
    let opened = open_text(path).map_err(|e| unreadable(&quoted(path), e));
    let (bytes, text) = match opened.and_then(|mut f| read(&quoted(path), &mut f)) {
        Ok(read) => read,
        Err(d) => {
            found.diagnostics.push(*d);
            return Ok(());
        }
    };
    let Some(new) = formatted(&name, &text, language, found) else { return Ok(()) };
    let status = match (new == text, args.check) {
        (true, _) => Status::Unchanged,
        (false, true) => Status::Differs,
        (false, false) => {
            if let Err(e) = replace(path, &bytes, &new) {
                let message = format!("cannot write {}: {e}", quoted(path));
                found.diagnostics.push(Diagnostic::error(codes::E0524, message));
                return Ok(());
            }
            Status::Formatted
        }
    };
    report(&name, &text, &new, status, found, console)
}

/// Says what became of a text.
fn report(
    name: &str,
    old: &str,
    new: &str,
    status: Status,
    found: &mut Found,
    console: &mut Console,
) -> Result<(), Stop> {
    if status == Status::Unchanged {
        found.unchanged += 1;
    } else {
        found.changed += 1;
    }
    let diff = (status == Status::Differs).then(|| diff(name, old, new));
    if console.json() {
        let mut line = object([("file", name.into()), ("status", status.word().into())]);
        if let Some(diff) = diff {
            line.push("diff", diff);
        }
        return console.out_json(&line);
    }
    match (diff, status) {
        (Some(diff), _) => console.out(&diff),
        (None, Status::Formatted) => console.out(&format!("formatted {}\n", printable(name))),
        (None, Status::Unchanged | Status::Differs) => Ok(()),
    }
}

/// How a text would change. Line ends cannot be seen, so they are spoken of.
fn diff(name: &str, old: &str, new: &str) -> String {
    let lines = old.replace("\r\n", "\n");
    let mut out = String::new();
    if lines != old {
        out.push_str(&format!("{name}: lines end in CR LF, where LF alone is wanted\n"));
    }
    let diff = crate::output::text::line_diff(&lines, new);
    out.push_str(&diff.unified_diff().header(name, &format!("{name} formatted")).to_string());
    out
}
