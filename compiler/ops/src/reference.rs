//! Facts about a family from the registry, for people: its form, its dtypes, its gradient.

use crate::family::{Sample, SampleInput};
use crate::signature::{Choice, Unset};
use crate::{Family, Graph, Id, InputOp, InputOpKind, Type, families};
use meshwright_plan::{DType, Dims};
use meshwright_sorted::SortedMap;

/// The reference entry of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its form: `sum[dims](x)`.
    pub form: String,
    /// Its paragraph.
    pub doc: &'static str,
    /// Its options: what each may be set to, its default, and what it does.
    pub options: Vec<String>,
    /// Dtypes of operands and result, by trial: `float, float -> bool`. `float` stands for the dtypes `f32` and `f64`.
    pub types: Vec<String>,
    /// True if it has a gradient, by its samples.
    pub gradient: bool,
}

/// The reference entry of a family.
pub fn reference(family: &Family) -> Reference {
    let samples = (family.samples)();
    let calls: Vec<&Sample> = samples.iter().filter(|s| s.calls == Some(family.name)).collect();
    let gradient = match calls.as_slice() {
        // It is not written as a call: each sample shows it.
        [] => samples.iter().any(|s| s.differentiable),
        // Where no sample can be compared with differences, the rules of its ops say it.
        calls => calls.iter().any(|s| s.differentiable) || calls.iter().any(|s| passes_gradient(s)),
    };
    Reference {
        form: family.text(),
        options: family.signature.options.iter().map(described).collect(),
        doc: family.doc,
        types: types(family.signature.arity().0, &calls),
        gradient,
    }
}

/// Dtypes of `n` operands and the result, by trial: each sample is built of operands of all dtypes.
fn types(n: usize, calls: &[&Sample]) -> Vec<String> {
    let mut found: SortedMap<Vec<DType>, DType> = SortedMap::new();
    for s in calls.iter().filter(|s| n > 0 && s.inputs.len() == n) {
        for dtypes in choices(n) {
            if let Some(result) = trial(s, &dtypes) {
                found.entry(dtypes).or_insert(result);
            }
        }
    }
    // Where a number may stand, a truth value becomes one: among numbers that is not listed again.
    let becomes_number = |of: &Vec<DType>, result: &DType| {
        let mixed = of.iter().any(|d| *d != of[0]);
        let number = |i: usize| {
            let like = |number: DType| {
                let mut other = of.clone();
                other[i] = number;
                found.get(&other) == Some(result)
            };
            of[i] == DType::Bool && NUMBERS.into_iter().any(like)
        };
        mixed && (0..of.len()).any(number)
    };
    let listed = choices(n).into_iter().filter_map(|of| found.get(&of).map(|result| (of, *result)));
    listed.filter(|(of, result)| !becomes_number(of, result)).map(|(of, y)| signature(&of, y)).collect()
}

/// The dtypes of numbers: `f64` stands for all floats.
const NUMBERS: [DType; 2] = [DType::F64, DType::I32];

/// Every choice of dtypes for `n` operands, those of one dtype first.
fn choices(n: usize) -> Vec<Vec<DType>> {
    let mut all = vec![Vec::new()];
    for _ in 0..n {
        let longer = |of: &Vec<DType>| {
            let each = NUMBERS.into_iter().chain([DType::Bool]);
            each.map(|d| [&of[..], &[d]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all.sort_by_key(|of| of.iter().any(|d| *d != of[0]));
    all
}

/// Dtype of a sample's value where its operands have other dtypes; none if they are refused.
fn trial(sample: &Sample, dtypes: &[DType]) -> Option<DType> {
    let with = |(i, d): (&SampleInput, &DType)| SampleInput { dtype: *d, ..i.clone() };
    let inputs: Vec<SampleInput> = sample.inputs.iter().zip(dtypes).map(with).collect();
    let mut g = graph(&inputs);
    let args: Vec<Id> = inputs.iter().map(|i| leaf(&mut g, i)).collect();
    let y = (sample.build)(&mut g, &args).ok()?;
    Some(g.ty(y).dtype)
}

/// Whether a gradient passes from the value of a sample to an operand, by the rules of the ops between them.
fn passes_gradient(sample: &Sample) -> bool {
    let mut g = graph(&sample.inputs);
    let args: Vec<Id> = sample.inputs.iter().map(|i| leaf(&mut g, i)).collect();
    let Ok(value) = (sample.build)(&mut g, &args) else { return false };
    let mut open = vec![value];
    while let Some(y) = open.pop() {
        let (node, ty) = (g.node(y).clone(), g.ty(y).clone());
        let need: Vec<bool> = node.inputs.iter().map(|i| g.ty(*i).dtype.is_float()).collect();
        if !ty.dtype.is_float() {
            continue;
        }
        if args.contains(&y) {
            return true;
        }
        let residuals = node.op.residuals(&mut g, &node.inputs);
        let x = [&node.inputs[..], &residuals].concat();
        let cotangent = InputOpKind::Input { name: "dy".into() };
        let dy = g.op(InputOp { input: cotangent, ty }, &[]);
        let found = node.op.vjp(&mut g, &x, y, dy, &need);
        open.extend(node.inputs.iter().zip(found).filter_map(|(i, d)| d.map(|_| *i)));
    }
    false
}

fn described(o: &Choice) -> String {
    let default = match o.default {
        Unset::Needed => "it must be set".to_string(),
        Unset::Is(v) => format!("`{v}` unless it is set"),
        Unset::By(what) => format!("{what} unless it is set"),
    };
    format!("`{}`: {o}, {default}: {}", o.name, o.doc)
}

/// The families of that name or symbol: `max` is a function of two values and one over dims.
pub fn named(name: &str) -> Vec<&'static Family> {
    families().filter(|f| f.name == name).collect()
}

fn graph(inputs: &[SampleInput]) -> Graph {
    let mut names = Dims::default();
    for (name, size) in inputs.iter().flat_map(|i| i.dims.iter().chain(&i.range)) {
        if names.find(name).is_none() {
            names.add(*name, *size);
        }
    }
    Graph::new(names)
}

fn leaf(g: &mut Graph, input: &SampleInput) -> Id {
    let dims = input.dims.iter().filter_map(|(n, _)| g.dims.find(n)).collect();
    let range = input.range.filter(|_| input.dtype == DType::I32).and_then(|(n, _)| g.dims.find(n));
    let leaf = InputOpKind::Input { name: "x".into() };
    g.op(InputOp { input: leaf, ty: Type { dtype: input.dtype, dims, range } }, &[])
}

fn signature(operands: &[DType], result: DType) -> String {
    let name = |d: DType| if d.is_float() { "float" } else { d.name() };
    let from: Vec<&str> = operands.iter().map(|d| name(*d)).collect();
    format!("{} -> {}", from.join(", "), name(result))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Reference {
        reference(named(name)[0])
    }

    #[test]
    fn types_are_those_of_the_op_and_no_more() {
        assert_eq!(
            entry("where").types,
            ["bool, bool, bool -> bool", "bool, float, float -> float", "bool, i32, i32 -> i32"]
        );
        assert_eq!(entry("top_k").types, ["float -> i32", "i32 -> i32"]);
        assert_eq!(entry("+").types, ["float, float -> float", "i32, i32 -> i32", "bool, bool -> float"]);
        assert_eq!(entry("cross_entropy").types, ["float, i32 -> float"]);
    }

    #[test]
    fn a_gradient_is_that_of_the_op_and_not_of_what_a_sample_adds() {
        for (name, gradient) in [
            ("top_k", false),
            ("argmax", false),
            ("==", false),
            ("stop_gradient", false),
            ("straight_through", true),
            ("where", true),
            ("softmax", true),
        ] {
            assert_eq!(entry(name).gradient, gradient, "{name}");
        }
    }

    #[test]
    fn every_op_that_is_called_has_types() {
        let without = families().filter(|f| f.signature.arity().0 > 0 && reference(f).types.is_empty());
        assert_eq!(without.map(|f| f.name).collect::<Vec<_>>(), Vec::<&str>::new());
    }
}
