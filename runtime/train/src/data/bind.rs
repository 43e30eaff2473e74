//! Binds files to a model's inputs: names, sizes, dtypes, and every value against the input's range, before step 1.

use super::array::{Array, Elem};
use super::dataset::{Column, Dataset};
use super::formats;
use super::source::{FileRef, Source};
use meshwright_diag::{Diagnostic, Span, codes, nearest};
use meshwright_plan::{DType, Dims, InputDecl};
use std::collections::BTreeMap;

/// Where inputs are declared, by name, for messages that show the declaration. May be empty.
pub type Places = BTreeMap<String, Span>;

/// Reads the files of one split and checks them against the model's inputs.
///
/// # Errors
///
/// Everything that is wrong, at once: E0502 for unreadable or malformed files, E0503 names, E0504 sizes, E0505 dtypes,
/// E0506 values.
pub fn load(
    source: &Source,
    split: &str,
    inputs: &[InputDecl],
    dims: &Dims,
    places: &Places,
) -> Result<Dataset, Vec<Diagnostic>> {
    let Some(files) = source.splits.get(split) else {
        let message = format!("`{}` has no set of examples named `{split}`", source.place);
        return Err(vec![Diagnostic::error(codes::E0503, message)]);
    };
    let mut errors = check_names(source, split, files, inputs, places);
    let mut columns: Vec<(Column, usize)> = Vec::new();
    for decl in inputs {
        let Some(file) = files.get(&decl.name) else { continue };
        match column(decl, file, dims) {
            Ok(column) => columns.push(column),
            Err(error) => errors.push(label(*error, decl, places)),
        }
    }
    if let Some(((first, records), rest)) = columns.split_first() {
        for (other, n) in rest.iter().filter(|(_, n)| n != records) {
            let message = format!(
                "inputs differ in the number of examples: `{}` has {records}, `{}` has {n}",
                first.name, other.name
            );
            errors.push(
                Diagnostic::error(codes::E0504, message)
                    .note(format!("`{}` is read from `{}`", first.name, files[&first.name]))
                    .note(format!("`{}` is read from `{}`", other.name, files[&other.name])),
            );
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let records = columns.first().map_or(0, |c| c.1);
    Ok(Dataset { records, columns: columns.into_iter().map(|c| c.0).collect() })
}

fn label(error: Diagnostic, decl: &InputDecl, places: &Places) -> Diagnostic {
    match places.get(&decl.name) {
        Some(span) => error.at(*span, "declared here"),
        None => error,
    }
}

fn check_names(
    source: &Source,
    split: &str,
    files: &BTreeMap<String, FileRef>,
    inputs: &[InputDecl],
    places: &Places,
) -> Vec<Diagnostic> {
    let declared = |name: &str| inputs.iter().any(|i| i.name == name);
    let mut errors = Vec::new();
    for decl in inputs.iter().filter(|i| !files.contains_key(&i.name)) {
        let message = format!("input `{}` has no file in the `{split}` set of `{}`", decl.name, source.place);
        let mut error = Diagnostic::error(codes::E0503, message);
        if let Some(near) = nearest(&decl.name, files.keys().map(String::as_str).filter(|n| !declared(n))) {
            error = error.help(format!("`{near}` is there; did you mean `{}`?", decl.name));
        } else {
            error = error.help(format!("add `{}=FILE`", decl.name));
        }
        errors.push(label(error, decl, places));
    }
    if source.exact {
        for name in files.keys().filter(|n| !declared(n)) {
            let message = format!("the model has no input `{name}`");
            let mut error = Diagnostic::error(codes::E0503, message);
            error = match nearest(name, inputs.iter().map(|i| i.name.as_str())) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => {
                    let all = inputs.iter().map(|i| format!("`{}`", i.name)).collect::<Vec<_>>().join(", ");
                    error.note(format!("it has {all}"))
                }
            };
            errors.push(error);
        }
    }
    errors
}

/// The checked column of one input, and its number of records.
fn column(decl: &InputDecl, file: &FileRef, dims: &Dims) -> Result<(Column, usize), Box<Diagnostic>> {
    let array = formats::read(file).map_err(|why| {
        let message = format!("`{file}` cannot be read as data for `{}`: {why}", decl.name);
        Box::new(Diagnostic::error(codes::E0502, message))
    })?;
    let shape = dims.shape(decl.dims.get(1..).unwrap_or_default());
    let records = array.shape.first().copied().unwrap_or(0);
    if !fits(&array.shape[1..], &shape) {
        let declared = decl.dims.iter().skip(1).map(|d| format!("{}={}", dims.name(*d), dims.size(*d)));
        let message = format!(
            "`{}` is declared as [{}] for each example, but `{file}` has {:?}",
            decl.name,
            declared.collect::<Vec<_>>().join(" "),
            &array.shape[1..]
        );
        let mut error = Diagnostic::error(codes::E0504, message)
            .note(format!("the first size in the file, {records}, counts examples"));
        if array.shape.len() == decl.dims.len() {
            let changes = decl.dims.iter().zip(&array.shape).skip(1).filter(|(d, n)| dims.size(**d) != **n);
            let changes = changes.map(|(d, n)| format!("`--dim {}={n}`", dims.name(*d)));
            error = error.help(format!("{} makes it fit", changes.collect::<Vec<_>>().join(" ")));
        }
        return Err(Box::new(error));
    }
    let per_record = shape.iter().product::<usize>();
    let data = convert(array, decl, per_record, file)?;
    check_range(decl, &data, per_record, file, dims)?;
    Ok((Column { name: decl.name.clone(), dtype: decl.dtype, shape, data }, records))
}

/// Whether a file's sizes are the declared ones, but for declared dims of size 1, which it may lack.
fn fits(file: &[usize], declared: &[usize]) -> bool {
    let mut file = file.iter().peekable();
    declared.iter().all(|n| file.next_if_eq(&n).is_some() || *n == 1) && file.next().is_none()
}

fn convert(
    array: Array,
    decl: &InputDecl,
    per_record: usize,
    file: &FileRef,
) -> Result<Vec<u8>, Box<Diagnostic>> {
    let Array { elem, data, .. } = array;
    let misfit = |at: usize, value: &dyn std::fmt::Display| {
        let record = at / per_record.max(1);
        let message = format!(
            "record {record} of `{}` has the value {value}, which `{}` cannot hold",
            decl.name, decl.dtype
        );
        Box::new(Diagnostic::error(codes::E0506, message).note(format!("records of `{file}` count from 0")))
    };
    Ok(match (elem, decl.dtype) {
        (Elem::U8, DType::U8)
        | (Elem::I32, DType::I32)
        | (Elem::F32, DType::F32)
        | (Elem::F64, DType::F64) => data,
        (Elem::Bool | Elem::U8, DType::Bool) => match data.iter().position(|b| *b > 1) {
            Some(at) => return Err(misfit(at, &data[at])),
            None => data,
        },
        (Elem::U8 | Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64, DType::I32 | DType::U8) => {
            let mut out = Vec::with_capacity(data.len() / elem.bytes() * decl.dtype.bytes());
            for (at, bytes) in data.chunks_exact(elem.bytes()).enumerate() {
                let value = integer(elem, bytes);
                match decl.dtype {
                    DType::U8 => out.push(u8::try_from(value).map_err(|_| misfit(at, &value))?),
                    _ => out.extend(i32::try_from(value).map_err(|_| misfit(at, &value))?.to_le_bytes()),
                }
            }
            out
        }
        (Elem::F32, DType::F64) => data
            .chunks_exact(4)
            .flat_map(|b| f64::from(f32::from_le_bytes(crate::tensor::array(b))).to_le_bytes())
            .collect(),
        (Elem::F64, DType::F32) => {
            let mut out = Vec::with_capacity(data.len() / 2);
            for (at, bytes) in data.chunks_exact(8).enumerate() {
                let value = f64::from_le_bytes(crate::tensor::array(bytes));
                let narrow = value as f32;
                if narrow.is_infinite() && value.is_finite() {
                    return Err(misfit(at, &value));
                }
                out.extend(narrow.to_le_bytes());
            }
            out
        }
        _ => return Err(wrong_dtype(elem, decl, file)),
    })
}

fn wrong_dtype(elem: Elem, decl: &InputDecl, file: &FileRef) -> Box<Diagnostic> {
    let message = format!(
        "input `{}` is declared as `{}`, but `{file}` holds `{}`",
        decl.name,
        decl.dtype,
        elem.name()
    );
    let error = Diagnostic::error(codes::E0505, message);
    let as_declared = match elem {
        Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64 => "i32",
        Elem::U8 => "u8",
        Elem::Bool => "bool",
        Elem::F32 | Elem::F64 => "float",
    };
    Box::new(match decl.dtype.is_float() {
        true => error.help(format!(
            "declare it as `{as_declared}` and write `cast({}, float)` where it is used",
            decl.name
        )),
        false => error.help(format!("declare it as `{as_declared}`")),
    })
}

fn integer(elem: Elem, bytes: &[u8]) -> i64 {
    use crate::tensor::array;
    match elem {
        Elem::I8 => i64::from(i8::from_le_bytes(array(bytes))),
        Elem::I16 => i64::from(i16::from_le_bytes(array(bytes))),
        Elem::I32 => i64::from(i32::from_le_bytes(array(bytes))),
        Elem::I64 => i64::from_le_bytes(array(bytes)),
        _ => i64::from(bytes[0]),
    }
}

fn check_range(
    decl: &InputDecl,
    data: &[u8],
    per_record: usize,
    file: &FileRef,
    dims: &Dims,
) -> Result<(), Box<Diagnostic>> {
    let (Some(range), true) = (decl.range, decl.dtype.is_int()) else { return Ok(()) };
    let elem = if decl.dtype == DType::U8 { Elem::U8 } else { Elem::I32 };
    let mut values = data.chunks_exact(elem.bytes()).map(|b| integer(elem, b)).enumerate();
    let outside = |v: &(usize, i64)| usize::try_from(v.1).map_or(true, |v| v >= dims.size(range));
    let Some((at, value)) = values.find(outside) else { return Ok(()) };
    let more = values.filter(outside).count();
    let name = dims.name(range);
    let message = format!(
        "record {} of `{}` has the value {value}, outside `{name}`, which counts from 0 to {}",
        at / per_record.max(1),
        decl.name,
        dims.size(range).saturating_sub(1)
    );
    let mut error =
        Diagnostic::error(codes::E0506, message).note(format!("records of `{file}` count from 0"));
    if more > 0 {
        error = error.note(format!("{more} more values are outside"));
    }
    Err(Box::new(error.help(format!("if the data is right, declare a larger `dim {name}`"))))
}
