//! `predict`.

use super::eval;
use super::project::{self, OfRun};
use crate::args::PredictArgs;
use crate::console::Console;
use crate::json::object;
use crate::progress::bar;
use crate::stop::Stop;
use meshwright_diag::render::printable;
use meshwright_exec::{HostData, HostTensor};
use meshwright_train::data::only_split;
use meshwright_train::{PredictOptions, PredictedOutput, Prediction, predict};
use serde_json::json;
use std::path::PathBuf;

/// Runs the command.
pub(crate) fn run(args: &PredictArgs, console: &mut Console) -> Result<(), Stop> {
    // Files that are named one by one are what to predict on, whatever their split.
    let of_data = args.what.data.data.as_deref().and_then(only_split);
    let split = args.what.split.as_deref().or(of_data).unwrap_or("test");
    let (OfRun { project, sources, .. }, eval) = eval::load(&args.what, split, console)?;
    let options = PredictOptions {
        eval,
        outputs: args.outputs.clone(),
        values: args.values.clone(),
        limit: args.limit.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
        seed: args.seed.unwrap_or(0),
        to: args.to.clone(),
    };
    let bar = bar(0, console);
    let ended = predict(&project, &sources, &options, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let Prediction { outputs, written, warnings, notes } =
        ended.map_err(|failure| console.failed(failure, &sources))?;
    project::warn(&warnings, console, &sources);
    notes.iter().for_each(|note| console.note(note));
    if options.to.is_some() {
        return report(&outputs, &written, console);
    }
    if console.json() {
        let outputs: Vec<_> = outputs.iter().map(described).collect();
        console.out_json(&object([("outputs", serde_json::Value::from(outputs))]))?;
    }
    let (each, whole): (Vec<_>, Vec<_>) = outputs.into_iter().partition(|o| o.each_example);
    for PredictedOutput { name, tensor, .. } in &whole {
        let value = rendered(tensor, 0..tensor.data.len(), &tensor.shape);
        let line = match console.json() {
            true => format!("{{{}:{value}}}\n", serde_json::Value::from(name.as_str())),
            false => format!("{name} {value}\n"),
        };
        console.out(&line)?;
    }
    let examples = each.iter().map(|o| o.tensor.shape.first().copied().unwrap_or(0)).min().unwrap_or(0);
    for i in 0..examples {
        let mut line = if console.json() { format!("{{\"example\":{i}") } else { format!("{i}") };
        for PredictedOutput { name, tensor, .. } in &each {
            let n = tensor.shape[1..].iter().product::<usize>();
            let value = rendered(tensor, i * n..(i + 1) * n, &tensor.shape[1..]);
            line += &match console.json() {
                true => format!(",{}:{value}", serde_json::Value::from(name.as_str())),
                false => format!("  {name} {value}"),
            };
        }
        console.out(&(line + if console.json() { "}\n" } else { "\n" }))?;
    }
    Ok(())
}

/// Says what was written where.
fn report(
    outputs: &[PredictedOutput],
    written: &[(PathBuf, Vec<String>)],
    console: &mut Console,
) -> Result<(), Stop> {
    for (path, names) in written {
        let within: Vec<&PredictedOutput> = outputs.iter().filter(|o| names.contains(&o.name)).collect();
        if console.json() {
            let outputs: Vec<_> = within.iter().map(|o| described(o)).collect();
            let path = path.display().to_string();
            console.out_json(&object([("written", path.into()), ("outputs", outputs.into())]))?;
            continue;
        }
        let shown = within.iter().map(|o| {
            let size = |(dim, n): (&String, &usize)| format!("{dim}={n}");
            let dims: Vec<String> = o.dims.iter().zip(&o.tensor.shape).map(size).collect();
            format!("{}[{}] {}", o.name, dims.join(", "), o.tensor.dtype())
        });
        let line = format!("{}: {}\n", path.display(), shown.collect::<Vec<_>>().join(", "));
        console.out(&printable(&line))?;
    }
    Ok(())
}

/// What the numbers of an output mean: its dtype, its dims as its lists nest, outermost first, and whether there is a value
/// for each example.
fn described(output: &PredictedOutput) -> serde_json::Value {
    let PredictedOutput { name, dims, each_example, tensor } = output;
    let nested = &dims[usize::from(*each_example)..];
    json!({ "name": name, "dtype": tensor.dtype().name(), "dims": nested, "each_example": each_example })
}

/// A run of elements as JSON: a number, or lists in lists by `shape`. Each float has as many digits as distinguish it from
/// the others of its type; JSON has no NaN and no infinities, so they are the texts `"NaN"`, `"Infinity"`, `"-Infinity"`.
fn rendered(tensor: &HostTensor, range: std::ops::Range<usize>, shape: &[usize]) -> String {
    fn plain<T: serde::Serialize>(v: &[T], range: std::ops::Range<usize>) -> Vec<String> {
        v[range].iter().map(|x| serde_json::to_string(x).unwrap_or_default()).collect()
    }
    fn floats<T: serde::Serialize + Copy + Into<f64>>(v: &[T], range: std::ops::Range<usize>) -> Vec<String> {
        let special = |x: f64| match x {
            _ if x.is_nan() => Some("\"NaN\""),
            f64::INFINITY => Some("\"Infinity\""),
            f64::NEG_INFINITY => Some("\"-Infinity\""),
            _ => None,
        };
        let wide: Vec<f64> = v[range.clone()].iter().map(|x| (*x).into()).collect();
        let texts = plain(v, range).into_iter().zip(wide);
        texts.map(|(text, x)| special(x).map_or(text, String::from)).collect()
    }
    let elements = match &tensor.data {
        HostData::F32(v) => floats(v, range),
        HostData::F64(v) => floats(v, range),
        HostData::I32(v) => plain(v, range),
        HostData::U8(v) => plain(v, range),
        HostData::Bool(v) => v[range].iter().map(|b| (*b != 0).to_string()).collect(),
        HostData::BF16(_) | HostData::F16(_) | HostData::PairF32(_) | HostData::PairF64(_) => {
            floats(&tensor.data.to_f64(), range)
        }
    };
    // Innermost dims first, each step makes lists of what there is.
    let nested = shape.iter().rev().fold(elements, |items, size| {
        if *size == 0 {
            return vec!["[]".into()];
        }
        items.chunks(*size).map(|c| format!("[{}]", c.join(","))).collect()
    });
    nested.join(",")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn values_nest_by_shape_and_floats_are_short() {
        let t = HostTensor::new(
            vec![2, 2, 2],
            HostData::F32(vec![0.1, 2.0, -3.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 7.0, 8.0]),
        )
        .unwrap();
        assert_eq!(rendered(&t, 0..4, &[2, 2]), "[[0.1,2.0],[-3.5,\"NaN\"]]");
        assert_eq!(rendered(&t, 4..7, &[3]), "[\"Infinity\",\"-Infinity\",7.0]");
        assert_eq!(rendered(&t, 1..2, &[]), "2.0");
        let t = HostTensor::new(vec![3], HostData::Bool(vec![0, 1, 1])).unwrap();
        assert_eq!(rendered(&t, 0..3, &[3]), "[false,true,true]");
        assert_eq!(rendered(&t, 0..0, &[0]), "[]");
    }
}
