//! What is wrong with a table, in which line, and how to mend it.

use super::array::list;
use meshwright_diag::nearest;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Why a file cannot be read, and a way out where one is known.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) why: String,
    pub(crate) help: Option<String>,
}

impl From<String> for Unread {
    fn from(why: String) -> Self {
        Unread { why, help: None }
    }
}

impl Unread {
    pub(crate) fn new(why: impl Into<String>, help: impl Into<String>) -> Unread {
        Unread { why: why.into(), help: Some(help.into()) }
    }
}

/// Separators of tables other than the comma.
const SEPARATORS: [char; 3] = [';', '\t', '|'];

/// A table of which no column is found, since its cells are separated by something else.
pub(crate) fn other_separator(
    header: &[&str],
    path: &Path,
    table: &mut csv::Reader<impl std::io::Read>,
) -> Option<Unread> {
    let [one] = header else { return None };
    let separator = SEPARATORS.into_iter().find(|s| one.contains(*s))?;
    let mut row = csv::StringRecord::new();
    let mut commas = false;
    while !commas && !matches!(table.read_record(&mut row), Ok(false)) {
        commas = row.len() > 1;
    }
    Some(separated(separator, commas, path))
}

/// A table that has no column of a name.
pub(crate) fn no_column(
    name: &str,
    header: &[&str],
    path: &Path,
    mut table: csv::Reader<impl std::io::Read>,
) -> Unread {
    if let Some(other) = other_separator(header, path, &mut table) {
        return other;
    }
    let why = format!("it has no column `{name}`; it has {}", list("columns", header));
    let is_number = |cell: &&str| cell.parse::<f64>().is_ok();
    if header.is_empty() {
        return Unread::new(why, "write the names of the columns in line 1, and a row in each line after it");
    }
    if header.iter().all(is_number) {
        let names: Vec<String> = (1..=header.len()).map(|n| format!("c{n}")).collect();
        let help =
            "line 1 has the names of the columns, and here it has numbers: add a line before it, such as";
        return Unread::new(why, format!("{help} `{}`", names.join(",")));
    }
    let near = nearest(name, header.iter().copied()).map_or(header[0], |near| near.name);
    Unread::new(why, format!("name one of them: `{}:{near}`", path.display()))
}

fn separated(separator: char, commas: bool, path: &Path) -> Unread {
    let shown = separator.escape_default().to_string();
    let file = path.display().to_string();
    let plain = file.bytes().all(|b| b.is_ascii_alphanumeric() || b"./_-".contains(&b));
    let why = format!("line 1 separates its cells by `{shown}`, and tables are separated by commas");
    let help = match commas || !plain {
        false => format!("replace them: `tr '{shown}' ',' < {file} > commas.csv`"),
        true => format!(
            "convert it, for instance with pandas: `read_csv({file:?}, sep=\"{shown}\", decimal=\",\").to_csv(\"commas.csv\", index=False)`"
        ),
    };
    Unread::new(why, help)
}

/// A row that was not read: of `row` it has the cells.
pub(crate) fn bad_row(e: &csv::Error, row: &csv::StringRecord, path: &Path) -> Unread {
    let line = e.position().map_or(0, csv::Position::line);
    if let Some(open) = open_quote(line, row) {
        return open;
    }
    match e.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            let cells = if *len == 1 { "cell" } else { "cells" };
            Unread::new(
                format!("line {line} has {len} {cells}, the header {expected_len}"),
                "give it as many cells as the header; a comma inside of a cell needs quotes: `\"a, b\"`",
            )
        }
        csv::ErrorKind::Utf8 { .. } => Unread::new(
            format!("line {line} is not text"),
            format!(
                "save it as UTF-8, such as by `iconv -f {} -t UTF-8 {} > utf8.csv`",
                encoding(&first_bytes(path)),
                path.display()
            ),
        ),
        _ => e.to_string().into(),
    }
}

/// The most likely encoding of a text that is not UTF-8, for `iconv`. Only UTF-16 begins with a mark.
pub(crate) fn encoding(first: &[u8]) -> &'static str {
    match first {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "UTF-16",
        _ => "LATIN1",
    }
}

/// None where the file cannot be read again.
fn first_bytes(path: &Path) -> Vec<u8> {
    let mut first = Vec::new();
    let read = File::open(path).and_then(|f| f.take(2).read_to_end(&mut first));
    read.map_or(Vec::new(), |_| first)
}

/// A row over several lines, which begins in `line`: most likely a quote that nobody meant to open.
pub(crate) fn open_quote(line: u64, row: &csv::StringRecord) -> Option<Unread> {
    let more = row.iter().map(|cell| cell.matches('\n').count() as u64).sum::<u64>();
    (more > 0).then(|| {
        Unread::new(
            format!("line {line} opens a quote (`\"`) that goes on to line {}", line + more),
            "close it in its line; a quote inside of a quoted cell is written twice: `\"\"`",
        )
    })
}
