//! `predict`.

use super::eval;
use super::project::{self, OfRun};
use crate::args::PredictArgs;
use crate::output::console::Console;
use crate::output::json::{Object, object};
use crate::output::progress::bar;
use crate::stop::Stop;
use meshwright_data::only_split;
use meshwright_diag::render::printable;
use meshwright_exec::{HostData, HostTensor};
use meshwright_sorted::SortedMap;
use meshwright_train::{PredictOptions, PredictedOutput, Prediction, predict};
use serde_json::json;
use std::ops::Range;
use std::path::PathBuf;

/// Runs the command.
pub(crate) fn run(args: &PredictArgs, console: &mut Console) -> Result<(), Stop> {
    // Files that are named one by one are what to predict on, whatever their split.
    let of_data = args.what.data.data.as_deref().and_then(only_split);
    let split = args.what.split.as_deref().or(of_data).unwrap_or("test");
    let (OfRun { project, sources, .. }, eval) = eval::load((&args.what, "predict"), split, console)?;
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
    let Prediction { outputs, class_names, written, warnings, notes } =
        ended.map_err(|failure| console.failed(failure, &sources))?;
    project::warn(&warnings, console, &sources);
    notes.iter().for_each(|note| console.note(note));
    if options.to.is_some() {
        return report(&outputs, &class_names, &written, console);
    }
    if console.json() {
        console.out_json(&described(&outputs.iter().collect::<Vec<_>>(), &class_names))?;
    }
    let (each, whole): (Vec<_>, Vec<_>) = outputs.into_iter().partition(|o| o.each_example);
    for output in &whole {
        let mut line = PrintedLine::new(console.json());
        line.add(output, 0..output.tensor.data.len(), &output.tensor.shape, &class_names);
        console.out(&line.ended())?;
    }
    let examples = each.iter().map(|o| o.tensor.shape.first().copied().unwrap_or(0)).min().unwrap_or(0);
    for i in 0..examples {
        let mut line = PrintedLine::new(console.json());
        line.item("example", &i.to_string());
        for output in &each {
            let shape = &output.tensor.shape[1..];
            let n = shape.iter().product::<usize>();
            line.add(output, i * n..(i + 1) * n, shape, &class_names);
        }
        console.out(&line.ended())?;
    }
    Ok(())
}

/// What the positions along dims are called.
type ClassNames = SortedMap<String, Vec<String>>;

/// A line of values, with the names of those that are positions: an object, or text.
struct PrintedLine {
    json: bool,
    /// What is there by now.
    items: Vec<String>,
    /// The names, in JSON.
    names: Vec<String>,
}

impl PrintedLine {
    fn new(json: bool) -> PrintedLine {
        PrintedLine { json, items: Vec::new(), names: Vec::new() }
    }

    fn item(&mut self, name: &str, value: &str) {
        self.items.push(match self.json {
            true => format!("{}:{value}", serde_json::Value::from(name)),
            // The number of an example is its first column.
            false if self.items.is_empty() && name == "example" => value.into(),
            false => format!("{name} {value}"),
        });
    }

    /// Some values of an output, which have this shape.
    fn add(&mut self, output: &PredictedOutput, range: Range<usize>, shape: &[usize], named: &ClassNames) {
        let PredictedOutput { name, tensor, position_in, .. } = output;
        let value = rendered(tensor, range.clone(), shape);
        let (HostData::I32(at), Some(all)) = (&tensor.data, position_in.as_ref().and_then(|d| named.get(d)))
        else {
            return self.item(name, &value);
        };
        let names = at[range].iter().map(|at| usize::try_from(*at).ok().and_then(|at| all.get(at)));
        if self.json {
            let texts =
                names.map(|n| n.map_or("null".into(), |n| serde_json::Value::from(n.as_str()).to_string()));
            self.names.push(format!(
                "{}:{}",
                serde_json::Value::from(name.as_str()),
                nested(texts.collect(), shape)
            ));
            return self.item(name, &value);
        }
        let names: Vec<&str> = names.map(|n| n.map_or("?", String::as_str)).collect();
        self.item(name, &format!("{value} ({})", printable(&names.join(", "))));
    }

    fn ended(mut self) -> String {
        if !self.names.is_empty() {
            self.items.push(format!("\"names\":{{{}}}", self.names.join(",")));
        }
        match self.json {
            true => format!("{{{}}}\n", self.items.join(",")),
            false => self.items.join("  ") + "\n",
        }
    }
}

/// Says what was written where.
fn report(
    outputs: &[PredictedOutput],
    class_names: &ClassNames,
    written: &[(PathBuf, Vec<String>)],
    console: &mut Console,
) -> Result<(), Stop> {
    for (path, names) in written {
        let within: Vec<&PredictedOutput> = outputs.iter().filter(|o| names.contains(&o.name)).collect();
        if console.json() {
            let mut line = described(&within, class_names);
            line.push("written", path.display().to_string());
            console.out_json(&line)?;
            continue;
        }
        let shown = within.iter().map(|o| {
            let size = |(dim, n): (&String, &usize)| format!("{dim}={n}");
            let dims: Vec<String> = o.dims.iter().zip(&o.tensor.shape).map(size).collect();
            let names = o.position_in.as_ref().and_then(|d| class_names.get(d));
            let names = names.map(|names| format!(" ({})", numbered(names))).unwrap_or_default();
            format!("{}[{}] {}{names}", o.name, dims.join(", "), o.tensor.dtype())
        });
        let line = format!("{}: {}\n", path.display(), shown.collect::<Vec<_>>().join(", "));
        console.out(&printable(&line))?;
    }
    Ok(())
}

/// The first few names, each with its number.
fn numbered(names: &[String]) -> String {
    const MOST: usize = 10;
    let mut texts: Vec<String> =
        names.iter().take(MOST).enumerate().map(|(i, name)| format!("{i} {name}")).collect();
    if names.len() > MOST {
        texts.push(format!("and {} more", names.len() - MOST));
    }
    texts.join(", ")
}

/// What the numbers of outputs mean: of each its dtype, its dims as its lists nest, outermost first, whether there is a value
/// for each example, and which dim its values are positions along; and what positions along dims are called.
fn described(outputs: &[&PredictedOutput], class_names: &ClassNames) -> Object {
    let described = outputs.iter().map(|output| {
        let PredictedOutput { name, dims, each_example, position_in, tensor } = output;
        let nested = &dims[usize::from(*each_example)..];
        let mut all = json!({ "name": name, "dtype": tensor.dtype().name(), "dims": nested, "each_example": each_example });
        if let Some(dim) = position_in.as_ref().filter(|dim| class_names.contains_key(*dim)) {
            all["position_in"] = dim.as_str().into();
        }
        all
    });
    let mut line = object([("outputs", described.collect::<Vec<_>>().into())]);
    if !class_names.is_empty() {
        line.push("class_names", json!(class_names));
    }
    line
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
    nested(elements, shape)
}

/// Elements as lists in lists by `shape`; a single one as it is.
fn nested(elements: Vec<String>, shape: &[usize]) -> String {
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
