//! Files as the values of an input: opened, and checked against its declaration.

use super::binding::InputBinding;
use super::column::{Column, Values};
use super::input_info::InputInfo;
use crate::readers::array::TensorFile;
use crate::readers::file_piece::hold;
use crate::readers::formats;
use crate::source::pattern;
use crate::source::{FileRef, StreamCut};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::Checked;
use meshwright_plan::{Dim, Dims, InputDecl};
use std::path::PathBuf;

/// The column of an input each of whose records is one of the files', and their number.
pub(crate) fn records(
    decl: &InputDecl,
    files: &[FileRef],
    described: InputInfo,
    binding: &InputBinding,
) -> Checked<(Column, usize)> {
    let dims = binding.dims;
    let shape = dims.shape(decl.dims.get(1..).unwrap_or_default());
    let opened = open(decl, files, &described)?;
    for (file, o) in &opened {
        if !fits(&o.header.shape[1..], &shape) {
            return Err(misfit(decl, file, &o.header.shape, dims));
        }
    }
    let records = opened.iter().map(|(_, o)| o.header.shape[0]).sum();
    let per_record = shape.iter().product::<usize>();
    let pieces = hold(opened, per_record, &described, binding)?;
    let values = Values::Pieces(pieces);
    Ok((Column { described, shape, first: 0, step: per_record, values }, records))
}

/// The column of an input whose records are windows over the stream that the files hold, and their number. They are counted
/// as though they were moved by `longest`. If there is none, that is an error where `reports`: one input reports it for all.
pub(crate) fn windows(
    decl: &InputDecl,
    (files, cut): (&[FileRef], &StreamCut),
    (longest, reports): (usize, bool),
    described: InputInfo,
    binding: &InputBinding,
) -> Checked<(Column, usize)> {
    let dims = binding.dims;
    let shape = dims.shape(decl.dims.get(1..).unwrap_or_default());
    let along = decl.dims.get(1).map(|d| dims.name(*d));
    if along != Some(cut.window.as_str()) {
        let shown = declared(decl, dims);
        let message = format!(
            "the windows of `{}` are along `{}`, but it is declared as [{shown}] for each example",
            decl.name, cut.window
        );
        let help = match along {
            Some(first) => format!("windows are along the first of these dims: `window = \"{first}\"`"),
            None => format!("declare the dim of the window: `{}[…, {}]`", decl.name, cut.window),
        };
        return Err(Box::new(Diagnostic::error(codes::E0504, message).help(help)));
    }
    let length = shape[0];
    let opened = open(decl, files, &described)?;
    for (file, o) in &opened {
        if !fits(&o.header.shape[1..], &shape[1..]) {
            let message = format!(
                "`{}` is a stream of {:?} for each position along `{}`, but `{file}` has {:?}",
                decl.name,
                &shape[1..],
                cut.window,
                &o.header.shape[1..]
            );
            let note = format!("the first size in the file, {}, counts positions", o.header.shape[0]);
            return Err(Box::new(Diagnostic::error(codes::E0504, message).note(note)));
        }
    }
    let positions: usize = opened.iter().map(|(_, o)| o.header.shape[0]).sum();
    let stride = cut.stride.unwrap_or(length).max(1);
    let reach = length.saturating_add(longest);
    if positions < reach && reports {
        let message = format!(
            "`{}` has {positions} positions, too few for one window of `{}` = {length} moved by {longest}",
            decl.name, cut.window
        );
        let mut d = Diagnostic::error(codes::E0504, message);
        if positions > longest {
            d = d.help(format!("take shorter windows: `--dim {}={}`", cut.window, positions - longest));
        }
        return Err(Box::new(d));
    }
    let per_position = shape[1..].iter().product::<usize>();
    let pieces = hold(opened, per_position, &described, binding)?;
    let (first, step) = (cut.shift * per_position, stride * per_position);
    let column = Column { described, shape, first, step, values: Values::Pieces(pieces) };
    Ok((column, positions.checked_sub(reach).map_or(0, |more| more / stride + 1)))
}

/// Opens all files that the patterns name, in their order.
fn open(
    decl: &InputDecl,
    patterns: &[FileRef],
    described: &InputInfo,
) -> Checked<Vec<(FileRef, TensorFile)>> {
    let files = pattern::files_of(patterns).map_err(|(file, why)| described.unreadable(file, &why))?;
    let open = |(named, path): (&FileRef, PathBuf)| {
        let file = FileRef { path, ..named.clone() };
        let opened = formats::open(&file, decl).map_err(|unread| {
            let d = described.unreadable(&file, &unread.why);
            unread.help.into_iter().fold(d, |d, help| Box::new(d.help(help)))
        })?;
        Ok((file, opened))
    };
    files.into_iter().map(open).collect()
}

/// Whether a file's sizes are the declared ones, but for declared dims of size 1, which it may lack.
fn fits(file: &[usize], declared: &[usize]) -> bool {
    let mut file = file.iter().peekable();
    declared.iter().all(|n| file.next_if_eq(&n).is_some() || *n == 1) && file.next().is_none()
}

/// `rows=28 cols=28`
fn declared(decl: &InputDecl, dims: &Dims) -> String {
    let named = |d: &Dim| format!("{}={}", dims.name(*d), dims.size(*d));
    decl.dims.iter().skip(1).map(named).collect::<Vec<_>>().join(" ")
}

/// The error of a file of other sizes.
fn misfit(decl: &InputDecl, file: &FileRef, shape: &[usize], dims: &Dims) -> Box<Diagnostic> {
    let message = format!(
        "`{}` is declared as [{}] for each example, but `{file}` has {:?}",
        decl.name,
        declared(decl, dims),
        &shape[1..]
    );
    let mut error = Diagnostic::error(codes::E0504, message)
        .note(format!("the first size in the file, {}, counts examples", shape[0]));
    let name = &decl.name;
    if shape[1..] == [1] && decl.dims.len() == 1 {
        let example = decl.dims.first().map_or("batch", |d| dims.name(*d));
        return Box::new(
            error
                .note("the file has a column for a single value")
                .help(format!("declare the column: `dim one = 1` and `input {name}[{example}, one]`"))
                .help(format!("or save it without: `{name}[:, 0]` in NumPy")),
        );
    }
    // No dim has size 0.
    if shape.len() == decl.dims.len() && !shape[1..].contains(&0) {
        let changes = decl.dims.iter().zip(shape).skip(1).filter(|(d, n)| dims.size(**d) != **n);
        let changes = changes.map(|(d, n)| format!("`--dim {}={n}`", dims.name(*d)));
        error = error.help(format!("{} makes it fit", changes.collect::<Vec<_>>().join(" ")));
    }
    Box::new(error)
}
