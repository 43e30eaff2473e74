//! The line `tokens` of a set in `data.toml`.

use super::task::{TaskKind, TaskOptions, TokenFiles, TokenSource};
use crate::corpus::{DocumentRule, LabelRule};
use meshwright_diag::nearest;
use std::path::Path;
use toml::{Table, Value};

/// What is wrong with a line, and what to do about it.
type LineError = (String, String);

const FORM: &str = "write `tokens = { index = \"index.json\", task = \"next\" }`, or `text` and `tokenizer` in place of `index`";

/// Keys of the table.
const KEYS: [&str; 17] = [
    "index",
    "set",
    "text",
    "tokenizer",
    "documents",
    "json_field",
    "column",
    "second",
    "label",
    "classes",
    "cased",
    "task",
    "packed",
    "rate",
    "span",
    "whole_words",
    "pairs",
];

fn wrong<T>(why: impl Into<String>, help: impl Into<String>) -> Result<T, LineError> {
    Err((why.into(), help.into()))
}

/// The token source of the set `split`.
pub(in super::super) fn token_source(
    value: Value,
    split: &str,
    folder: &Path,
) -> Result<TokenSource, LineError> {
    let Value::Table(mut table) = value else { return wrong("`tokens` is not a table", FORM) };
    if let Some(odd) = table.keys().find(|k| !KEYS.contains(&k.as_str())) {
        let all = KEYS.map(|k| format!("`{k}`")).join(", ");
        let near = nearest(odd, KEYS).map(|n| format!("did you mean `{n}`?"));
        return wrong(
            format!("`tokens` has no setting `{odd}`"),
            near.unwrap_or(format!("its settings are {all}")),
        );
    }
    let task = task(&mut table)?;
    let labels = labels(&mut table)?;
    let set = text(&mut table, "set")?;
    let files = match (text(&mut table, "index")?, table.remove("text")) {
        (Some(index), None) => {
            let set = set.unwrap_or(split.to_string());
            TokenFiles::Shards { index: folder.join(index), set }
        }
        (None, Some(files)) => {
            if set.is_some() {
                return wrong("`set` is of an index, but `tokens` has `text`", "leave `set` out");
            }
            of_text(files, &mut table, folder)?
        }
        (Some(_), Some(_)) => return wrong("`tokens` has both `index` and `text`", "leave one of them out"),
        (None, None) => return wrong("`tokens` names no text", FORM),
    };
    match table.keys().next() {
        Some(odd) => wrong(
            format!("`{odd}` of `tokens` goes with `text`, not with `index`"),
            format!("leave `{odd}` out"),
        ),
        None => Ok(TokenSource { files, task, labels }),
    }
}

fn of_text(files: Value, table: &mut Table, folder: &Path) -> Result<TokenFiles, LineError> {
    let list = match files {
        Value::Array(list) => list,
        one => vec![one],
    };
    let paths = list.iter().map(|v| v.as_str().filter(|s| !s.is_empty()).map(|s| folder.join(s)));
    let Some(files) = paths.collect::<Option<Vec<_>>>().filter(|f| !f.is_empty()) else {
        return wrong("`text` of `tokens` names no file", "write `text = \"FILE\"`, or a list of files");
    };
    let Some(tokenizer) = text(table, "tokenizer")? else {
        return wrong("`tokens` has a `text`, but no `tokenizer`", "add `tokenizer = \"tokenizer.json\"`");
    };
    let documents = match text(table, "documents")?.as_deref() {
        None | Some("blank-lines") => DocumentRule::BlankLines,
        Some("lines") => DocumentRule::Lines,
        Some("files") => DocumentRule::Files,
        Some(odd) => {
            return wrong(
                format!("`documents` of `tokens` is `{odd}`"),
                "write `documents = \"blank-lines\"`, `\"lines\"` or `\"files\"`",
            );
        }
    };
    let field = match (text(table, "json_field")?, text(table, "column")?) {
        (Some(_), Some(_)) => {
            return wrong("`tokens` has both `json_field` and `column`", "leave one of them out");
        }
        (field, column) => field.or(column).unwrap_or("text".into()),
    };
    let second = text(table, "second")?;
    if second.as_ref() == Some(&field) {
        return wrong(
            format!("both texts of a pair are `{field}`"),
            "name the column of the first with `column`, and another with `second`",
        );
    }
    let cased = truth(table, "cased")?.unwrap_or(false);
    Ok(TokenFiles::Text { files, tokenizer: folder.join(tokenizer), cased, documents, field, second })
}

/// Rule for labels: the field with the class of a text, and the names of classes.
fn labels(table: &mut Table) -> Result<LabelRule, LineError> {
    let field = text(table, "label")?.unwrap_or("label".into());
    let classes = match table.remove("classes") {
        None => Some(Vec::new()),
        Some(Value::Array(all)) => all.iter().map(|v| v.as_str().map(String::from)).collect(),
        Some(_) => None,
    };
    let twice = |all: &Vec<String>| all.iter().enumerate().any(|(i, c)| all[..i].contains(c));
    match classes.filter(|all| !twice(all)) {
        Some(classes) => Ok(LabelRule { field, classes }),
        None => wrong(
            "`classes` of `tokens` is not a list of different names",
            "write `classes = [\"no\", \"yes\"]`, in the order of their numbers",
        ),
    }
}

fn text(table: &mut Table, key: &str) -> Result<Option<String>, LineError> {
    match table.remove(key) {
        None => Ok(None),
        Some(Value::String(s)) if !s.is_empty() => Ok(Some(s)),
        Some(_) => wrong(format!("`{key}` of `tokens` is not a text"), format!("write `{key} = \"…\"`")),
    }
}

fn truth(table: &mut Table, key: &str) -> Result<Option<bool>, LineError> {
    match table.remove(key) {
        None => Ok(None),
        Some(Value::Boolean(b)) => Ok(Some(b)),
        Some(_) => wrong(
            format!("`{key}` of `tokens` is neither `true` nor `false`"),
            format!("write `{key} = true`"),
        ),
    }
}

fn number(
    table: &mut Table,
    key: &str,
    fits: impl Fn(f64) -> bool,
    help: &str,
) -> Result<Option<f64>, LineError> {
    let Some(value) = table.remove(key) else { return Ok(None) };
    match value.as_float().or(value.as_integer().map(|n| n as f64)).filter(|n| fits(*n)) {
        Some(n) => Ok(Some(n)),
        None => wrong(format!("`{key}` of `tokens` is `{value}`"), help),
    }
}

fn task(table: &mut Table) -> Result<TaskOptions, LineError> {
    let names = TaskKind::ALL.map(TaskKind::name);
    let Some(name) = text(table, "task")? else {
        return wrong(
            "`tokens` does not say what it is for",
            "add `task = \"next\"`, `\"masked\"`, `\"spans\"` or `\"classify\"`",
        );
    };
    let Some(kind) = TaskKind::ALL.into_iter().find(|t| t.name() == name) else {
        let near = nearest(&name, names).map(|n| format!("did you mean `{n}`?"));
        return wrong(
            format!("`{name}` is not a task"),
            near.unwrap_or("the tasks are `next`, `masked`, `spans` and `classify`".into()),
        );
    };
    let of_task = |key: &str, kinds: &[TaskKind]| match table.contains_key(key) && !kinds.contains(&kind) {
        true => wrong(format!("`{key}` is not a setting of the task `{name}`"), format!("leave `{key}` out")),
        false => Ok(()),
    };
    of_task("rate", &[TaskKind::Masked, TaskKind::Spans])?;
    of_task("span", &[TaskKind::Spans])?;
    of_task("whole_words", &[TaskKind::Masked])?;
    of_task("pairs", &[TaskKind::Masked])?;
    ["column", "second", "label", "classes"]
        .into_iter()
        .try_for_each(|key| of_task(key, &[TaskKind::Classify]))?;
    let usual = kind.usual();
    let pairs = truth(table, "pairs")?.unwrap_or(false);
    let packed = truth(table, "packed")?;
    if pairs && packed == Some(true) {
        return wrong("pairs of text keep to documents, and cannot be packed", "leave `packed` out");
    }
    if kind == TaskKind::Classify && packed == Some(true) {
        return wrong("each text is classified by itself, and cannot be packed", "leave `packed` out");
    }
    let rate = number(
        table,
        "rate",
        |r| r > 0.0 && r < 1.0,
        "write a share between 0 and 1, such as `rate = 0.15`",
    )?;
    let span = number(
        table,
        "span",
        |s| (1.0..1e6).contains(&s),
        "write a mean length of at least 1, such as `span = 3.0`",
    )?;
    Ok(TaskOptions {
        kind,
        packed: packed.unwrap_or(usual.packed && !pairs),
        rate: rate.unwrap_or(usual.rate),
        span: span.unwrap_or(usual.span),
        whole_words: truth(table, "whole_words")?.unwrap_or(false),
        pairs,
    })
}
