//! Facts about a family from the registry, for people: its form, its dtypes, its gradient.

use crate::family::SampleInput;
use crate::signature::{Choice, DimGroup, Unset};
use crate::{Family, Graph, Id, InputOp, InputOpKind, OpCall, Type, Value, families};
use meshwright_plan::{DType, Dims};

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
    let mut types: Vec<String> = Vec::new();
    let n = family.signature.arity().0;
    let mut add = |t: Option<String>| {
        if let Some(t) = t.filter(|t| !types.contains(t)) {
            types.push(t);
        }
    };
    for dtype in [DType::F64, DType::I32, DType::Bool] {
        add(trial(family, n, dtype));
    }
    // Operands of several dtypes, as samples have them; a sample with other operands is of more than this op.
    for s in samples.iter().filter(|s| n > 0 && s.inputs.len() == n) {
        let mut g = graph(&s.inputs);
        let args: Vec<Id> = s.inputs.iter().map(|i| leaf(&mut g, i)).collect();
        add((s.build)(&mut g, &args).ok().map(|y| signature(&g, &args, y)));
    }
    Reference {
        form: family.text(),
        options: family.signature.options.iter().map(described).collect(),
        doc: family.doc,
        types,
        gradient: samples.iter().any(|s| s.differentiable),
    }
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

/// The dtype of the result for operands all of one dtype; `None` if it declines them, or is not called by name.
fn trial(f: &Family, n: usize, dtype: DType) -> Option<String> {
    // Dims that become others and windows need dims of sizes that fit.
    if n == 0 || !f.signature.groups.iter().all(DimGroup::is_plain) {
        return None;
    }
    let input = SampleInput { dims: vec![("a", 5), ("b", 3)], dtype, low: 0.0, high: 2.0, range: None };
    let mut g = graph(std::slice::from_ref(&input));
    let args: Vec<Id> = (0..n).map(|_| leaf(&mut g, &input)).collect();
    let values: Vec<Value> = args.iter().map(|i| Value::Tensor(*i)).collect();
    let dims =
        if f.signature.groups.is_empty() { Vec::new() } else { g.ty(*args.first()?).dims[..1].to_vec() };
    let y = f.call(&mut g, OpCall::of(values, DType::F64).over(&dims)).ok()?;
    Some(signature(&g, &args, y))
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
    let range = input.range.and_then(|(n, _)| g.dims.find(n));
    let leaf = InputOpKind::Input { name: "x".into() };
    g.op(InputOp { input: leaf, ty: Type { dtype: input.dtype, dims, range } }, &[])
}

fn signature(g: &Graph, args: &[Id], y: Id) -> String {
    let name = |id: Id| match g.ty(id).dtype {
        d if d.is_float() => "float",
        d => d.name(),
    };
    let from: Vec<&str> = args.iter().map(|a| name(*a)).collect();
    match from.as_slice() {
        [] => name(y).to_string(),
        all => format!("{} -> {}", all.join(", "), name(y)),
    }
}
