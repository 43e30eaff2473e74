//! `check --fix` and `check --diff`: fixes that are sure, applied to the texts until none is left.

use super::passes::examine;
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::text::line_diff;
use crate::replace::replace;
use crate::stop::Stop;
use meshwright_diag::render::printable;
use meshwright_diag::{Diagnostic, FileId, Location, Sources, applicable, codes, repair};
use meshwright_sorted::SortedMap;
use meshwright_train::{Loaded, ProjectOptions};

use std::path::Path;

/// How often texts are repaired and read again: one fix may bring another to light, but no text needs that many.
const ROUNDS: usize = 16;

/// One fix that was made.
struct Change {
    code: &'static str,
    title: String,
    /// Its place in the text at that time.
    at: Location,
    before: String,
    after: String,
}

/// Texts, repaired in memory.
struct Mended {
    /// What to check now: the options with the new texts.
    options: ProjectOptions,
    changes: Vec<Change>,
    /// Files, by path: the text as it was read.
    files: SortedMap<String, String>,
    /// Texts of the command line that are repaired, by the name of their option: old and new.
    given: SortedMap<String, (String, String)>,
    /// What is still wrong.
    remaining: Vec<Remaining>,
}

/// A mistake that was left, and why.
struct Remaining {
    code: &'static str,
    at: Option<Location>,
    why: String,
    /// Whether `--unsafe-fixes` would mend it.
    with_unsafe: bool,
}

/// The mistakes of a text as it is, each with the reason for which it is not mended.
fn remaining(loaded: &Loaded, unsure: bool) -> Vec<Remaining> {
    let left = |d: &Diagnostic| {
        let n = d.fixes.len();
        let mine = applicable(d, &loaded.sources, true).filter(|f| repairable(loaded, f.span.file));
        let (why, with_unsafe) = match (n, mine) {
            (0, _) => ("no fix is known".to_string(), false),
            (_, Some(fix)) if applicable(d, &loaded.sources, false).is_none() && !unsure => (
                format!("its fix may not be what was meant: {} (`--unsafe-fixes` applies it)", fix.title),
                true,
            ),
            (_, Some(fix)) => (format!("its fix did not help: {}", fix.title), false),
            (1, None) => ("its fix would change a text that ships".to_string(), false),
            (n, None) => (format!("it has {n} fixes: choose one"), false),
        };
        let at = d.labels.first().map(|l| loaded.sources.locate(l.span));
        Remaining { code: d.code.id, at, why, with_unsafe }
    };
    loaded.diagnostics.iter().filter(|d| d.is_error() || !d.fixes.is_empty()).map(left).collect()
}

/// What was left and why: on standard error, since what `--diff` prints is a patch.
fn say_remaining(r: &Remaining, console: &mut Console) -> Result<(), Stop> {
    let file = r.at.as_ref().map_or("", |at| at.file.as_str());
    if console.json() {
        let fields = [
            ("code", r.code.into()),
            ("file", file.into()),
            ("line", r.at.as_ref().map_or(0, |at| at.line).into()),
            ("why", r.why.as_str().into()),
            ("unsafe_fix", r.with_unsafe.into()),
        ];
        return console.out_json(&SortedMap::from([("left", object(fields))]));
    }
    let place = r.at.as_ref().map_or(String::new(), |at| format!("{}:{}: ", at.file, at.line));
    console.note(&format!("{place}{} is left: {}", r.code, r.why));
    Ok(())
}

/// What is left to do for the command.
pub(in crate::commands) struct Left {
    /// What to check and report on.
    pub(in crate::commands) options: ProjectOptions,
    /// Whether something is repaired here but not where it came from.
    pub(in crate::commands) unwritten: bool,
}

/// Repairs what is surely wrong. Writes the files, or shows how they would change where `dry`.
pub(in crate::commands) fn run(
    options: ProjectOptions,
    (dry, unsure): (bool, bool),
    console: &mut Console,
) -> Result<Left, Stop> {
    let mended = mend(options, unsure);
    let texts = &mended.options.texts;
    let changed: Vec<(&String, &String, &String)> = mended
        .files
        .iter()
        .filter_map(|(path, old)| texts.get(path).filter(|new| *new != old).map(|new| (path, old, new)))
        .collect();
    if !dry {
        mended.changes.iter().try_for_each(|c| say(c, console))?;
    }
    let mut failed = Vec::new();
    let mut unwritten = !mended.given.is_empty();
    for (path, old, new) in changed {
        if dry {
            show(path, old, new, console)?;
            unwritten = true;
        } else if !is_file(path) {
            console.note(&format!("`{path}` cannot be replaced; this is the corrected text"));
            match console.json() {
                true => console.out_json(&SortedMap::from([(
                    "corrected",
                    object([("file", path.as_str().into()), ("text", new.as_str().into())]),
                )]))?,
                false => console.out_styled(new)?,
            }
            unwritten = true;
        } else if let Err(e) = replace(Path::new(path), old.as_bytes(), new) {
            failed.push(Diagnostic::error(codes::E0524, format!("cannot write `{path}`: {e}")));
        }
    }
    for (name, (old, new)) in &mended.given {
        if dry {
            show(name, old, new, console)?;
        }
        console
            .note(&format!("`{name}` is on the command line; corrected it reads: {name} '{}'", new.trim()));
    }
    mended.remaining.iter().try_for_each(|r| say_remaining(r, console))?;
    if failed.is_empty() {
        return Ok(Left { options: mended.options, unwritten });
    }
    console.diagnostics(&failed, &Sources::new());
    Err(Stop::Diagnosed)
}

/// Repairs in memory, round by round. Shipped texts stay as they are.
fn mend(options: ProjectOptions, unsure: bool) -> Mended {
    let mut m = Mended {
        options,
        changes: Vec::new(),
        files: SortedMap::new(),
        given: SortedMap::new(),
        remaining: Vec::new(),
    };
    // Fixes that undo each other would go round for ever.
    let mut seen: Vec<Vec<Option<String>>> = Vec::new();
    for _ in 0..ROUNDS {
        let loaded = examine(&m.options);
        let sources = &loaded.sources;
        m.remaining = remaining(&loaded, unsure);
        for f in &loaded.files {
            let (name, text) = (sources.name(*f).to_string(), sources.text(*f).to_string());
            // Read once: standard input has nothing more to give the second time.
            m.options.texts.entry(name.clone()).or_insert_with(|| text.clone());
            m.files.entry(name).or_insert(text);
        }
        let files = m.options.texts.values().cloned().map(Some);
        let now = files.chain([m.options.layout.clone(), m.options.mesh.clone()]).collect();
        if seen.contains(&now) {
            break;
        }
        seen.push(now);
        let repaired = repair(&loaded.diagnostics, sources, unsure, &|f| repairable(&loaded, f));
        if repaired.is_empty() {
            break;
        }
        for r in repaired {
            let name = sources.name(r.file).to_string();
            m.changes.extend(r.applied.into_iter().map(|a| Change {
                code: a.code.id,
                title: a.title,
                at: sources.locate(a.span),
                before: a.before,
                after: a.after,
            }));
            if loaded.files.contains(&r.file) {
                m.options.texts.insert(name, r.text);
                continue;
            }
            let old = sources.text(r.file).to_string();
            m.given.entry(name.clone()).or_insert((old, String::new())).1 = r.text.clone();
            let option = if name == "--mesh" { &mut m.options.mesh } else { &mut m.options.layout };
            *option = Some(r.text);
        }
    }
    m
}

/// A file, or an option's text; not what ships.
fn repairable(loaded: &Loaded, file: FileId) -> bool {
    loaded.files.contains(&file) || matches!(loaded.sources.name(file), "--layout" | "--mesh")
}

fn say(c: &Change, console: &mut Console) -> Result<(), Stop> {
    if console.json() {
        let fields = [
            ("code", c.code.into()),
            ("title", c.title.as_str().into()),
            ("file", c.at.file.as_str().into()),
            ("line", c.at.line.into()),
            ("column", c.at.column.into()),
            ("before", c.before.as_str().into()),
            ("after", c.after.as_str().into()),
        ];
        return console.out_json(&SortedMap::from([("fixed", object(fields))]));
    }
    let quoted = |s: &str| format!("`{}`", printable(&s.replace('\n', "\\n")));
    let what = match (c.before.as_str(), c.after.as_str()) {
        ("", after) => format!("insert {}", quoted(after)),
        (before, "") => format!("remove {}", quoted(before)),
        (before, after) => format!("{} -> {}", quoted(before), quoted(after)),
    };
    console.out(&format!("{}:{}: {what}\n", printable(&c.at.file), c.at.line))
}

fn show(name: &str, old: &str, new: &str, console: &mut Console) -> Result<(), Stop> {
    let text = line_diff(old, new).unified_diff().header(name, name).to_string();
    match console.json() {
        true => {
            let fields = object([("file", name.into()), ("text", text.into())]);
            console.out_json(&SortedMap::from([("diff", fields)]))
        }
        false => console.out(&text),
    }
}

/// Whether a path names a file that can be replaced, and not a pipe or what the system shows as one.
fn is_file(path: &str) -> bool {
    let device = ["/dev/", "/proc/"].iter().any(|p| path.starts_with(p));
    !device && std::fs::metadata(path).is_ok_and(|m| m.is_file())
}
