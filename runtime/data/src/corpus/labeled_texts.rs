//! Labeled texts: each text, or pair of texts, is an example with a class. Files are CSV with a header, JSON lines or plain text.

use super::documents::{DocumentRule, TextFiles, is_json_lines};
use super::failed;
use crate::Bytes;
use crate::readers::table_fault::{Unread, bad_row, other_separator};
use meshwright_diag::Diagnostic;
use meshwright_files::Checked;
use meshwright_files::text::listed;
use std::io::Read;
use std::path::Path;

/// Rule for labels: the field with the class of a text, and the names of classes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelRule {
    /// The field of a JSON object, or the column of a table.
    pub field: String,
    /// The names of classes 0, 1, and so on; without them files say numbers.
    pub classes: Vec<String>,
}

/// Texts (both of a pair one after the other), and the class of each example if it is wanted.
#[derive(Debug, Default)]
pub(crate) struct LabeledTexts {
    pub(crate) texts: Vec<String>,
    pub(crate) labels: Vec<i32>,
}

impl TextFiles {
    /// All texts, those without a character too, so that they are as many as the records of other files; with a rule their
    /// classes.
    ///
    /// # Errors
    /// E0502 for files that cannot be read or hold something else.
    pub(crate) fn labeled(&self, rule: Option<&LabelRule>) -> Checked<LabeledTexts> {
        let mut out = LabeledTexts::default();
        for path in &self.paths {
            match (path, rule) {
                (path, rule) if is_table(path) => self.rows(path, rule, &mut out)?,
                (path, rule) if is_json_lines(path) => self.objects(path, rule, &mut out)?,
                (path, _) if self.second.is_some() => {
                    let d = *failed(path, "plain text has no second text beside each");
                    return Err(Box::new(d.help("take CSV or JSON lines")));
                }
                (path, Some(_)) => {
                    let d = *failed(path, "plain text does not say of which class a text is");
                    return Err(Box::new(d.help(
                        "take CSV or JSON lines, or give the input a file of its own, with as many records: `label = \"labels.csv\"`",
                    )));
                }
                (path, None) if self.rule == DocumentRule::Lines => {
                    out.texts.extend(content(path)?.lines().map(String::from));
                }
                (path, None) => {
                    let one = TextFiles { paths: vec![path.clone()], ..self.clone() };
                    let texts = one.documents().collect::<Checked<Vec<String>>>()?;
                    out.texts.extend(texts);
                }
            }
        }
        Ok(out)
    }

    fn rows(&self, path: &Path, rule: Option<&LabelRule>, out: &mut LabeledTexts) -> Checked<()> {
        let bytes = Bytes::open(path).map_err(|why| failed(path, why))?;
        let mut table = csv::ReaderBuilder::new().from_reader(bytes);
        let mut row = csv::StringRecord::new();
        let bad = |e: &csv::Error, row: &csv::StringRecord| unread(path, bad_row(e, row, path));
        let header = table.headers().map_err(|e| bad(&e, &row))?;
        let header: Vec<String> = header.iter().map(|h| h.trim().to_string()).collect();
        let names: Vec<&str> = header.iter().map(String::as_str).collect();
        if !names.contains(&self.field.as_str())
            && let Some(other) = other_separator(&names, path, &mut table)
        {
            return Err(unread(path, other));
        }
        let column = |name: &str, key: &str| {
            let at = header.iter().position(|h| h == name);
            at.ok_or_else(|| {
                let d = *failed(path, format!("it has no column `{name}`"));
                Box::new(d.help(format!("it has {}: choose one with `{key}` of `tokens`", listed(&names))))
            })
        };
        let text = column(&self.field, "column")?;
        let second = self.second.as_ref().map(|name| column(name, "second")).transpose()?;
        let label = rule.map(|r| column(&r.field, "label")).transpose()?;
        while table.read_record(&mut row).map_err(|e| bad(&e, &row))? {
            let columns = [Some(text), second].into_iter().flatten();
            out.texts.extend(columns.map(|at| row.get(at).unwrap_or_default().to_string()));
            if let (Some(at), Some(rule)) = (label, rule) {
                let line = row.position().map_or(0, csv::Position::line);
                let cell = row.get(at).unwrap_or_default().trim();
                out.labels.push(rule.class(cell).map_err(|why| failed(path, format!("line {line} {why}")))?);
            }
        }
        Ok(())
    }

    fn objects(&self, path: &Path, rule: Option<&LabelRule>, out: &mut LabeledTexts) -> Checked<()> {
        for (n, line) in content(path)?.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let at = |why: String| failed(path, format!("line {} {why}", n + 1));
            let object: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(line).map_err(|e| at(format!("is not a JSON object: {e}")))?;
            let value = |name: &str, key: &str| {
                object.get(name).ok_or_else(|| {
                    let names: Vec<&str> = object.keys().map(String::as_str).collect();
                    let d = *at(format!("has no field `{name}`"));
                    Box::new(
                        d.help(format!("it has {}: choose one with `{key}` of `tokens`", listed(&names))),
                    )
                })
            };
            let second = self.second.as_ref().map(|name| (name, "second"));
            for (name, key) in [(&self.field, "json_field")].into_iter().chain(second) {
                let text = value(name, key)?;
                let text = text.as_str().ok_or_else(|| at(format!("has no text in the field `{name}`")))?;
                out.texts.push(text.to_string());
            }
            if let Some(rule) = rule {
                let label = value(&rule.field, "label")?;
                let label = label.as_str().map_or_else(|| label.to_string(), String::from);
                out.labels.push(rule.class(&label).map_err(at)?);
            }
        }
        Ok(())
    }
}

/// The error of a table that cannot be read.
fn unread(path: &Path, Unread { why, help }: Unread) -> Box<Diagnostic> {
    help.into_iter().fold(failed(path, why), |d, help| Box::new(d.help(help)))
}

impl LabelRule {
    /// The number of a class, by its name or as a number; an error says what is wrong with it.
    fn class(&self, text: &str) -> Result<i32, String> {
        class_of(text, &self.classes).map_err(|why| format!("has the class `{}`, {why}", text.escape_debug()))
    }
}

/// The number of a class: where it stands in the list, or what a text says where there is none. An error says why there is none.
pub(crate) fn class_of(text: &str, classes: &[String]) -> Result<i32, String> {
    let number = text.parse::<i32>().ok();
    match (classes.iter().position(|c| c == text), number) {
        (Some(at), _) => i32::try_from(at).map_err(|e| e.to_string()),
        (None, Some(n)) if classes.is_empty() || (0..classes.len() as i32).contains(&n) => Ok(n),
        (None, _) if classes.is_empty() => {
            Err("which is not a number: name the classes, `classes = [\"A\", \"B\"]`".into())
        }
        (None, _) => {
            let names: Vec<&str> = classes.iter().map(String::as_str).collect();
            Err(format!("which is none of the `classes` {}", listed(&names)))
        }
    }
}

/// Whether a name is that of a table.
fn is_table(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.strip_suffix(".gz").unwrap_or(&name).ends_with(".csv")
}

fn content(path: &Path) -> Checked<String> {
    let mut text = String::new();
    let mut bytes = Bytes::open(path).map_err(|why| failed(path, why))?;
    bytes.read_to_string(&mut text).map_err(|e| failed(path, e))?;
    Ok(text.strip_prefix('\u{feff}').map(String::from).unwrap_or(text))
}
