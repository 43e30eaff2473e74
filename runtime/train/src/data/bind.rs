//! Binds files to a model's inputs: names, sizes, dtypes, and every value that is read before step 1 against the input's range.

use super::binding::{Binding, Places};
use super::column::{Column, Described, RangeOf, Runs, Scratch, Values};
use super::dataset::Dataset;
use super::order::{OrderRule, Weights};
use super::pieces;
use super::source::{InputSource, OrderSource, Source, SplitSource};
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_plan::{DType, Dim, InputDecl};
use std::sync::Arc;

/// Opens the files of one split and checks them against the model's inputs. Small files are read here, whole.
///
/// # Errors
///
/// Everything that is wrong, at once: E0502 for unreadable or malformed files, E0503 names, E0504 sizes, E0505 dtypes,
/// E0506 values.
pub fn load(source: &Source, split: &str, binding: &Binding) -> Result<Dataset, Vec<Diagnostic>> {
    let Some(set) = source.splits.get(split) else {
        let message = format!("`{}` has no set of examples named `{split}`", source.place);
        return Err(vec![Diagnostic::error(codes::E0503, message)]);
    };
    let mut errors = check_names(source, split, set, binding);
    let mut columns: Vec<(Column, usize)> = Vec::new();
    for decl in binding.inputs {
        let Some(from) = set.inputs.get(&decl.name) else { continue };
        match column(decl, from, set, binding) {
            Ok(column) => columns.push(column),
            Err(error) => errors.push(label(*error, decl, binding.places)),
        }
    }
    if let Some(((first, records), rest)) = columns.split_first() {
        for (other, n) in rest.iter().filter(|(_, n)| n != records) {
            errors.push(other_count((first, *records), (other, *n)));
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let all = columns.first().map_or(0, |c| c.1);
    let columns: Vec<Column> = columns.into_iter().map(|c| c.0).collect();
    let records = set.limit.unwrap_or(all).min(all);
    let rule = rule(set, binding, &columns, (all, records)).map_err(|e| vec![*e])?;
    Dataset::new(records, columns, rule).map_err(|e| vec![*e])
}

fn other_count((first, records): (&Column, usize), (other, n): (&Column, usize)) -> Diagnostic {
    let message = format!(
        "inputs differ in the number of examples: `{}` has {records}, `{}` has {n}",
        first.described.name, other.described.name
    );
    let mut error = Diagnostic::error(codes::E0504, message);
    for column in [first, other] {
        error = error.note(format!("`{}` is read from {}", column.described.name, column.values.named()));
    }
    error
}

fn label(error: Diagnostic, decl: &InputDecl, places: &Places) -> Diagnostic {
    match places.get(&decl.name) {
        Some(span) => error.at(*span, "declared here"),
        None => error,
    }
}

fn check_names(source: &Source, split: &str, set: &SplitSource, binding: &Binding) -> Vec<Diagnostic> {
    let inputs = binding.inputs;
    let declared = |name: &str| inputs.iter().any(|i| i.name == name);
    let mut errors = Vec::new();
    for decl in inputs.iter().filter(|i| !set.inputs.contains_key(&i.name)) {
        let message = format!("input `{}` has no file in the `{split}` set of `{}`", decl.name, source.place);
        let mut error = Diagnostic::error(codes::E0503, message);
        let others = set.inputs.keys().map(String::as_str).filter(|n| !declared(n));
        if let Some(near) = nearest(&decl.name, others) {
            error = error.help(format!("`{near}` is there; did you mean `{}`?", decl.name));
        } else {
            error = error.help(format!("add `{}=FILE`", decl.name));
        }
        errors.push(label(error, decl, binding.places));
    }
    if source.exact {
        for name in set.inputs.keys().filter(|n| !declared(n)) {
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

/// The column of one input, and its number of records.
fn column(
    decl: &InputDecl,
    from: &InputSource,
    set: &SplitSource,
    binding: &Binding,
) -> Result<(Column, usize), Box<Diagnostic>> {
    let dims = binding.dims;
    let range = decl.range.map(|d| (RangeOf::Dim(dims.name(d).to_string()), dims.size(d)));
    let described = Described { name: decl.name.clone(), dtype: decl.dtype, range };
    match from {
        InputSource::Files(files) => pieces::records(decl, files, described, binding),
        InputSource::Stream { files, cut } => {
            pieces::windows(decl, (files, cut, longest_shift(set)), described, binding)
        }
        InputSource::Weights { by, weights } => weights_of(decl, (by, weights), set, described, binding),
    }
}

/// The windows of all inputs are counted by the one that is moved furthest, so that they are equally many.
fn longest_shift(set: &SplitSource) -> usize {
    let shifts = set.inputs.values().map(|s| match s {
        InputSource::Stream { cut, .. } => cut.shift,
        _ => 0,
    });
    shifts.max().unwrap_or(0)
}

/// A number for each value of another input.
fn weights_of(
    decl: &InputDecl,
    (by, weights): (&str, &[f64]),
    set: &SplitSource,
    described: Described,
    binding: &Binding,
) -> Result<(Column, usize), Box<Diagnostic>> {
    if !matches!(decl.dtype, DType::F32 | DType::F64) {
        let message = format!("input `{}` is declared as `{}`, but it has `weights`", decl.name, decl.dtype);
        return Err(Box::new(Diagnostic::error(codes::E0505, message).help("declare it as `float`")));
    }
    let (by, records) = chooser(&decl.name, by, weights.len(), &decl.dims, set, binding)?;
    let table = weights
        .iter()
        .flat_map(|w| match decl.dtype {
            DType::F32 => (*w as f32).to_le_bytes().to_vec(),
            _ => w.to_le_bytes().to_vec(),
        })
        .collect();
    let shape = by.shape.clone();
    let values = Values::Chosen { by: Arc::new(by), table };
    Ok((Column { described, shape, first: 0, step: 0, values }, records))
}

/// The column that says which of some weights the examples have: of the dims of the input that is weighted.
fn chooser(
    name: &str,
    by: &str,
    weights: usize,
    dims: &[Dim],
    set: &SplitSource,
    binding: &Binding,
) -> Result<(Column, usize), Box<Diagnostic>> {
    let Some(from) = set.inputs.get(by).filter(|s| !matches!(s, InputSource::Weights { .. })) else {
        let message = format!("the weights of `{name}` are chosen by `{by}`, which has no file");
        let d = Diagnostic::error(codes::E0503, message);
        let near = nearest(by, set.inputs.keys().map(String::as_str).filter(|n| *n != name));
        return Err(Box::new(match near {
            Some(near) => d.help(format!("did you mean `{near}`?")),
            None => d.help(format!("add a line `{by} = \"FILE\"`")),
        }));
    };
    let dtype = DType::I32;
    let decl = InputDecl { name: by.to_string(), dims: dims.to_vec(), dtype, range: None };
    let range = Some((RangeOf::Weights(name.to_string()), weights));
    let described = Described { name: by.to_string(), dtype, range };
    match from {
        InputSource::Stream { files, cut } => {
            pieces::windows(&decl, (files, cut, longest_shift(set)), described, binding)
        }
        InputSource::Files(files) => pieces::records(&decl, files, described, binding),
        InputSource::Weights { .. } => unreachable!("left out above"),
    }
}

/// In which order a set of `all` records, of which the first `records` are used, is seen in training.
fn rule(
    set: &SplitSource,
    binding: &Binding,
    columns: &[Column],
    (all, records): (usize, usize),
) -> Result<OrderRule, Box<Diagnostic>> {
    Ok(match &set.order {
        OrderSource::Shuffled => OrderRule::Shuffled,
        OrderSource::Unshuffled => OrderRule::Unshuffled,
        OrderSource::Buffered(size) => {
            let files = columns.first().map_or(vec![0], Column::first_records);
            OrderRule::Buffered { size: *size, files: files.into() }
        }
        OrderSource::Weighted(from) => {
            let batch = binding.inputs.first().and_then(|i| i.dims.first()).copied();
            let name = "sampling".to_string();
            let decl =
                InputDecl { name: name.clone(), dims: batch.into_iter().collect(), dtype: DType::F64, range: None };
            // A chance must be a number, whatever else may pass.
            let strict = Binding { allow_nonfinite: false, ..*binding };
            let described = Described { name, dtype: DType::F64, range: None };
            let (column, n) = match from {
                InputSource::Weights { by, weights } => {
                    weights_of(&decl, (by, weights), set, described, &strict)?
                }
                from => column(&decl, from, set, &strict)?,
            };
            if n != all {
                let message = format!("`sampling` has {n} weights for {all} examples");
                return Err(Box::new(
                    Diagnostic::error(codes::E0504, message)
                        .note(format!("they are read from {}", column.values.named()))
                        .help("give one weight for each example"),
                ));
            }
            OrderRule::Weighted(Arc::new(chances(&column, records)?))
        }
    })
}

fn chances(column: &Column, records: usize) -> Result<Weights, Box<Diagnostic>> {
    let mut all = Vec::with_capacity(records);
    let (runs, mut scratch) = (Runs::whole(8), Scratch::default());
    for record in 0..records {
        let mut out = [0; 8];
        column.read(record, &runs, &mut out, &mut scratch)?;
        let weight = f64::from_le_bytes(out);
        if weight < 0.0 {
            let message = format!("record {record} has the weight {weight} for `sampling`");
            return Err(Box::new(
                Diagnostic::error(codes::E0506, message).help("give weights from 0 on; 0 is never drawn"),
            ));
        }
        all.push(weight);
    }
    Weights::new(all.into_iter()).ok_or_else(|| {
        let message = "no example can be drawn: the weights for `sampling` have no finite sum above 0";
        Box::new(Diagnostic::error(codes::E0506, message).help("give some example a weight above 0"))
    })
}
