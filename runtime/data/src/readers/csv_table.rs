//! Columns of a CSV file with a header.

use super::array::{Elem, Header, TensorFile};
use super::bytes::Bytes;
use super::table_fault::{Unread, bad_row, no_column, open_quote};
use crate::corpus::class_of;
use crate::source::FileRef;
use meshwright_plan::{DType, InputDecl};

/// Reads the columns of these names, where `*` stands for any text; without names that of the input's own name. Cells may be
/// names of `classes`. They are read whole: text has no places that a header could tell.
pub(crate) fn open(
    bytes: Bytes,
    FileRef { path, parts: names, classes }: &FileRef,
    decl: &InputDecl,
) -> Result<TensorFile, Unread> {
    let mut table = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(bytes);
    let mut row = csv::StringRecord::new();
    let header = table.headers().map_err(|e| bad_row(&e, &row, path))?;
    let header: Vec<String> = header.iter().map(String::from).collect();
    let own = [decl.name.clone()];
    let chosen = match columns(&header, if names.is_empty() { &own } else { names })? {
        Chosen::All(chosen) => chosen,
        Chosen::Lacks(name) => {
            let header: Vec<&str> = header.iter().map(String::as_str).collect();
            return Err(no_column(name, &header, path, table));
        }
    };
    let mut out = Vec::new();
    let mut rows = 0;
    while table.read_record(&mut row).map_err(|e| bad_row(&e, &row, path))? {
        let line = row.position().map_or(0, csv::Position::line);
        for at in &chosen {
            let text = row.get(*at).unwrap_or_default();
            let value = cell(text, classes, decl.dtype);
            out.extend(value.map_err(|why| {
                open_quote(line, &row).unwrap_or_else(|| bad_cell((line, &header[*at]), text, &why))
            })?);
        }
        rows += 1;
    }
    let shape = if chosen.len() == 1 { vec![rows] } else { vec![rows, chosen.len()] };
    let size = out.len();
    let elements = Bytes::memory(out).elements((0, size, 0), "its cells")?;
    Ok(TensorFile { header: Header::plain(elem(decl.dtype), shape), elements })
}

/// A cell that is none of the values of its input.
fn bad_cell((line, column): (u64, &str), text: &str, why: &str) -> Unread {
    let help = match text.contains(',') {
        true => "write numbers with a point: `0.5`",
        false => "correct it, or leave the line out",
    };
    let why = match text {
        "" => format!("line {line} has nothing in the column `{column}`"),
        _ => format!("line {line} has `{text}` in the column `{column}`, {why}"),
    };
    Unread::new(why, help)
}

/// The value of a cell; an error says why it has none.
fn cell(text: &str, classes: &[String], dtype: DType) -> Result<Vec<u8>, String> {
    if !classes.is_empty() {
        return class_of(text, classes).map(|n| i64::from(n).to_le_bytes().to_vec());
    }
    number(text, dtype).ok_or_else(|| {
        let names = if dtype == DType::I32 { "; names of classes are listed in `classes`" } else { "" };
        format!("which is not a value of `{dtype}`{names}")
    })
}

/// The columns of a table that are asked for.
enum Chosen<'n> {
    /// Their positions.
    All(Vec<usize>),
    /// The name that the table has no column of.
    Lacks(&'n str),
}

/// Positions of the columns of these names, in the order asked for.
fn columns<'n>(header: &[String], names: &'n [String]) -> Result<Chosen<'n>, String> {
    let all: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut chosen = Vec::new();
    for name in names {
        let pattern =
            glob::Pattern::new(name).map_err(|e| format!("`{name}` is not a name of columns: {e}"))?;
        let before = chosen.len();
        chosen.extend((0..all.len()).filter(|i| all[*i] == name || pattern.matches(all[*i])));
        if chosen.len() == before {
            return Ok(Chosen::Lacks(name));
        }
    }
    match chosen.iter().enumerate().find(|(i, c)| chosen[..*i].contains(c)) {
        Some((_, twice)) => Err(format!("its column `{}` is named twice", all[*twice])),
        None => Ok(Chosen::All(chosen)),
    }
}

/// Numbers between blanks and commas, as a tensor of one dim.
pub(crate) fn numbers(text: &[u8], dtype: DType) -> Result<TensorFile, String> {
    let text =
        std::str::from_utf8(text).map_err(|_| "it is neither an image, an array nor text".to_string())?;
    let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|w| !w.is_empty());
    let mut out = Vec::new();
    let mut count = 0;
    for word in words {
        out.extend(number(word, dtype).ok_or_else(|| {
            let short: String = word.chars().take(20).collect();
            format!("`{}` is not a value of `{dtype}`", short.escape_debug())
        })?);
        count += 1;
    }
    let size = out.len();
    let elements = Bytes::memory(out).elements((0, size, 0), "its numbers")?;
    Ok(TensorFile { header: Header::plain(elem(dtype), vec![count]), elements })
}

/// Element type that texts are parsed to, for an input of this dtype.
fn elem(dtype: DType) -> Elem {
    match dtype {
        DType::Bool => Elem::Bool,
        d if d.is_float() => Elem::F64,
        _ => Elem::I64,
    }
}

fn number(text: &str, dtype: DType) -> Option<Vec<u8>> {
    Some(match dtype {
        DType::Bool => match text {
            "1" | "true" | "True" | "TRUE" => vec![1],
            "0" | "false" | "False" | "FALSE" => vec![0],
            _ => return None,
        },
        d if d.is_float() => text.parse::<f64>().ok()?.to_le_bytes().to_vec(),
        _ => text.parse::<i64>().ok()?.to_le_bytes().to_vec(),
    })
}
