//! `data.toml`: a table for each set of examples, with a line for each input and lines that say how the set is used.

use super::{FileRef, InputSource, OrderSource, Source, SplitSource, StreamCut, check_split, malformed};
use crate::tokens::token_source;
use meshwright_diag::nearest;
use meshwright_files::Checked;
use meshwright_files::given_paths::MANIFEST;
use meshwright_files::text_file::text_of_at_most;
use meshwright_sorted::SortedMap;
use std::path::Path;
use toml::{Spanned, Table, Value};

/// The largest `data.toml`.
const MOST_BYTES: usize = 16 << 20;

pub(super) fn read_manifest(folder: &Path) -> Checked<Source> {
    let path = folder.join(MANIFEST);
    let place = path.display().to_string();
    let text = text_of_at_most(&path, MOST_BYTES)
        .map_err(|why| malformed(format!("`{place}` cannot be read: {why}")))?;
    let line = |at: usize| text.get(..at).unwrap_or("").matches('\n').count() + 1;
    let table: SortedMap<String, SortedMap<String, Spanned<Value>>> = toml::from_str(&text).map_err(|e| {
        malformed(format!(
            "`{place}` is malformed at line {}: {}",
            line(e.span().map_or(0, |s| s.start)),
            e.message().lines().next().unwrap_or("")
        ))
        .help(
            "it holds `[train]`, `[validation]` and `[test]` with a line `INPUT = \"FILE\"` for every input",
        )
    })?;
    let mut splits = SortedMap::new();
    for (split, lines) in table {
        check_split(&split, &place)?;
        let mut out = SplitSource::default();
        for (name, value) in lines {
            let at = line(value.span().start);
            set(&mut out, &split, &name, value.into_inner(), folder).map_err(|(why, help)| {
                let d = malformed(format!("`{place}` is malformed at line {at}: {why}"));
                if help.is_empty() { d } else { Box::new(d.help(help)) }
            })?;
        }
        splits.insert(split, out);
    }
    Ok(Source { place: folder.display().to_string(), folder: Some(folder.into()), exact: false, splits })
}

/// What is wrong with a line, and what to do about it.
type LineError = (String, String);

fn wrong<T>(why: impl Into<String>, help: impl Into<String>) -> Result<T, LineError> {
    Err((why.into(), help.into()))
}

/// Takes one line of a set.
fn set(out: &mut SplitSource, split: &str, name: &str, value: Value, folder: &Path) -> Result<(), LineError> {
    if matches!(name, "shuffle" | "sampling") && split != "train" {
        return wrong(
            format!("`{name}` is of the training set"),
            format!("leave it out: `{split}` is read in the order of its files"),
        );
    }
    match name {
        "limit" => out.limit = Some(count(name, &value)?),
        "shuffle" => {
            let order = match value {
                Value::Boolean(true) => OrderSource::Shuffled,
                Value::Boolean(false) => OrderSource::Unshuffled,
                Value::Integer(_) => OrderSource::Buffered(count(name, &value)?),
                _ => {
                    let help =
                        "write `shuffle = false`, or `shuffle = 10000` for a buffer of so many examples";
                    return wrong("`shuffle` is neither `true`, `false` nor a number of examples", help);
                }
            };
            order_once(out, order)?;
        }
        "sampling" => {
            let weights = input(name, value, folder)?;
            if !matches!(weights, InputSource::Files(_) | InputSource::Weights { .. }) {
                let help = "write `sampling = \"FILE\"`, or `by` and `weights`";
                return wrong("`sampling` has one weight for each example", help);
            }
            order_once(out, OrderSource::Weighted(weights))?;
        }
        "shards" => out.shards = files(name, value, folder)?,
        "tokens" => out.tokens = Some(token_source(value, split, folder)?),
        "damaged" => {
            out.skip_damaged = match value.as_str() {
                Some("skip") => true,
                Some("error") => false,
                _ => {
                    return wrong(
                        "`damaged` is neither \"skip\" nor \"error\"",
                        "write `damaged = \"skip\"`",
                    );
                }
            }
        }
        _ => {
            let mut value = value;
            if let Some(number) = value.as_table_mut().and_then(|t| t.remove("ignore")) {
                let Some(number) = number.as_integer() else {
                    return wrong(
                        format!("`ignore` of `{name}` is not a whole number"),
                        "write `ignore = -100`",
                    );
                };
                out.ignored.insert(name.to_string(), number);
            }
            out.inputs.insert(name.to_string(), input(name, value, folder)?);
        }
    }
    Ok(())
}

fn order_once(out: &mut SplitSource, order: OrderSource) -> Result<(), LineError> {
    if out.order != OrderSource::default() {
        return wrong(
            "`shuffle` and `sampling` exclude each other",
            "leave `shuffle` out: `sampling` draws in its own order",
        );
    }
    out.order = order;
    Ok(())
}

/// A number of examples, at least 1.
fn count(name: &str, value: &Value) -> Result<usize, LineError> {
    match value.as_integer().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0) {
        Some(n) => Ok(n),
        None => wrong(format!("`{name}` is not a number of at least 1"), format!("write `{name} = 1000`")),
    }
}

/// What an input is read from: a name, a list of names, or a table.
fn input(name: &str, value: Value, folder: &Path) -> Result<InputSource, LineError> {
    match value {
        Value::Table(table) => described(name, table, folder),
        value => Ok(InputSource::Files(files(name, value, folder)?)),
    }
}

fn files(name: &str, value: Value, folder: &Path) -> Result<Vec<FileRef>, LineError> {
    let file = |v: Value| match v {
        Value::String(s) if !s.is_empty() => Some(FileRef::parse(&s, folder)),
        _ => None,
    };
    let files = match value {
        Value::Array(list) => list.into_iter().map(file).collect::<Option<Vec<_>>>(),
        value => file(value).map(|f| vec![f]),
    };
    match files.filter(|f| !f.is_empty()) {
        Some(files) => Ok(files),
        None => wrong(
            format!("`{name}` names no file"),
            format!("write `{name} = \"FILE\"`, a list of files, or a table with `file`"),
        ),
    }
}

/// Keys of a table that says more than the names of files.
const KEYS: [&str; 13] = [
    "file",
    "columns",
    "window",
    "stride",
    "shift",
    "by",
    "weights",
    "member",
    "folder_of",
    "classes",
    "field",
    "mask_of",
    "ignore",
];

fn described(name: &str, mut table: Table, folder: &Path) -> Result<InputSource, LineError> {
    if let Some(odd) = table.keys().find(|k| !KEYS.contains(&k.as_str())) {
        let near = nearest(odd, KEYS).map(|n| format!("did you mean `{n}`?"));
        let all = KEYS.map(|k| format!("`{k}`")).join(", ");
        return wrong(
            format!("`{name}` has no setting `{odd}`"),
            near.unwrap_or(format!("its settings are {all}")),
        );
    }
    if let Some(weights) = table.remove("weights") {
        return weighted(name, weights, &table);
    }
    if let Some(source) = without_files(name, &mut table) {
        return source;
    }
    let Some(file) = table.remove("file") else {
        return wrong(
            format!("`{name}` names no file"),
            format!("add `file`: `{name} = {{ file = \"FILE\" }}`"),
        );
    };
    let mut files = files(name, file, folder)?;
    if let Some(columns) = table.remove("columns") {
        name_columns(name, columns, &mut files)?;
    }
    if let Some(classes) = table.remove("classes") {
        name_classes(name, classes, &mut files)?;
    }
    let window = table.remove("window");
    let (stride, shift) = (table.remove("stride"), table.remove("shift"));
    if let Some(odd) = table.keys().next() {
        let (with, help) = match odd.as_str() {
            "by" => ("weights", "add `weights = [1.0, 2.0]`"),
            _ => ("folder_of", "write `folder_of = \"image\"` in place of `file`"),
        };
        return wrong(format!("`{odd}` of `{name}` goes with `{with}`"), help);
    }
    let Some(window) = window else {
        if stride.is_some() || shift.is_some() {
            return wrong(
                format!("`stride` and `shift` of `{name}` are of windows over a stream"),
                "add `window = \"DIM\"`, the dim of the input that is as long as a window",
            );
        }
        return Ok(InputSource::Files(files));
    };
    let Some(window) = window.as_str().map(String::from) else {
        return wrong(format!("`window` of `{name}` is not the name of a dim"), "write `window = \"seq\"`");
    };
    let stride = stride.map(|v| count("stride", &v)).transpose()?;
    let shift = match shift.map(|v| v.as_integer().and_then(|n| usize::try_from(n).ok())) {
        None => 0,
        Some(Some(n)) => n,
        Some(None) => {
            return wrong(format!("`shift` of `{name}` is not a number from 0 on"), "write `shift = 1`");
        }
    };
    Ok(InputSource::Stream { files, cut: StreamCut { window, stride, shift } })
}

/// What is read from members of shards, text, or another input.
fn without_files(name: &str, table: &mut Table) -> Option<Result<InputSource, LineError>> {
    if let Some(member) = table.remove("member") {
        let form = format!("write `{name} = {{ member = \"jpg\" }}`, or a list of endings");
        return Some(match (texts(member), table.is_empty()) {
            (Some(endings), true) => {
                let small = |e: String| e.trim_start_matches('.').to_ascii_lowercase();
                Ok(InputSource::Members(endings.into_iter().map(small).collect()))
            }
            _ => wrong(format!("`{name}` has more than the endings of members"), form),
        });
    }
    if let Some(field) = table.remove("field") {
        return Some(match (field.as_str(), table.is_empty()) {
            (Some(field), true) => Ok(InputSource::Field(field.into())),
            _ => wrong(
                format!("`{name}` has more than the name of a field"),
                format!("write `{name} = {{ field = \"token\" }}`"),
            ),
        });
    }
    if let Some(input) = table.remove("mask_of") {
        return Some(match (input.as_str(), table.is_empty()) {
            (Some(input), true) => Ok(InputSource::MaskOf(input.into())),
            _ => wrong(
                format!("`{name}` has more than the input that it is a mask of"),
                format!("write `{name} = {{ mask_of = \"label\" }}`"),
            ),
        });
    }
    if let Some(input) = table.remove("folder_of") {
        let form = format!("write `{name} = {{ folder_of = \"image\", classes = [\"cat\", \"dog\"] }}`");
        let classes = table.remove("classes").and_then(texts);
        return Some(match (input.as_str(), classes, table.is_empty()) {
            (Some(input), Some(classes), true) => Ok(InputSource::FolderOf { input: input.into(), classes }),
            _ => wrong(format!("`{name}` needs an input and the names of the folders of its files"), form),
        });
    }
    None
}

/// Names the columns of CSV files that an input is read from.
fn name_columns(name: &str, columns: Value, files: &mut [FileRef]) -> Result<(), LineError> {
    let Some(names) = texts(columns) else {
        return wrong(
            format!("`columns` of `{name}` is not a list of names"),
            "write `columns = [\"a\", \"b\"]`",
        );
    };
    if let Some(f) = files.iter().find(|f| !f.is(".csv")) {
        return wrong(
            format!("`{name}` has `columns`, but `{f}` is not a CSV file"),
            "leave `columns` out, or name a file that ends in `.csv`",
        );
    }
    files.iter_mut().for_each(|f| f.parts = names.clone());
    Ok(())
}

/// Names the classes that cells of CSV files are.
fn name_classes(name: &str, classes: Value, files: &mut [FileRef]) -> Result<(), LineError> {
    let classes = texts(classes).filter(|all| !all.iter().enumerate().any(|(i, c)| all[..i].contains(c)));
    let Some(classes) = classes else {
        return wrong(
            format!("`classes` of `{name}` is not a list of different names"),
            "write `classes = [\"cat\", \"dog\"]`, in the order of their numbers",
        );
    };
    if let Some(f) = files.iter().find(|f| !f.is(".csv")) {
        return wrong(
            format!("`{name}` has `classes`, but `{f}` is not a CSV file"),
            "leave `classes` out, or name a file that ends in `.csv`",
        );
    }
    files.iter_mut().for_each(|f| f.classes = classes.clone());
    Ok(())
}

/// One text, or a list of some.
fn texts(value: Value) -> Option<Vec<String>> {
    let texts: Option<Vec<String>> = match value {
        Value::Array(list) => list.into_iter().map(|v| v.as_str().map(String::from)).collect(),
        Value::String(s) => Some(vec![s]),
        _ => None,
    };
    texts.filter(|t| !t.is_empty())
}

fn weighted(name: &str, weights: Value, table: &Table) -> Result<InputSource, LineError> {
    let form = format!("write `{name} = {{ by = \"INPUT\", weights = [1.0, 2.5] }}`");
    let Some(by) = table.get("by").and_then(Value::as_str) else {
        return wrong(format!("`{name}` does not say by which input its `weights` are chosen"), form);
    };
    if table.len() > 1 {
        return wrong(format!("`{name}` has more than `by` and `weights`"), form);
    }
    let number = |v: &Value| v.as_float().or(v.as_integer().map(|n| n as f64));
    let weights: Option<Vec<f64>> = weights.as_array().and_then(|list| list.iter().map(number).collect());
    match weights.filter(|w| !w.is_empty() && w.iter().all(|w| w.is_finite() && *w >= 0.0)) {
        Some(weights) => Ok(InputSource::Weights { by: by.into(), weights }),
        None => wrong(format!("`weights` of `{name}` is not a list of finite numbers from 0 on"), form),
    }
}
