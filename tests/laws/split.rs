//! Split equals whole: every sample under every way to split its dims, with operands that arrive split otherwise, stored
//! split, or unfinished.

use crate::devices::{Devices, Refused, Tensors, free, layout, plan, rule, say, to};
use crate::oracle::{Bound, close_from, from_host, walk};
use crate::subject::{Arrival, Built, Subject, build, narrow, step, subjects, tensors};
use meshwright_core::StepGraph;
use meshwright_core::layout::{OrderRule, Rule, RuleDim, ScopeClass};
use meshwright_diag::Span;
use meshwright_ops::{F64Tensor, Graph, Id};
use meshwright_plan::{Axis, DType, Dim, Mesh, Plan};
use std::time::Instant;

/// A way to place a built subject.
pub(crate) struct Way {
    /// Its mesh.
    pub(crate) mesh: Mesh,
    /// Its rules.
    pub(crate) rules: Vec<Rule>,
    /// Dims whose shards go around.
    pub(crate) rings: Vec<Dim>,
    /// Dims in zigzag order over the axes of the first rule.
    pub(crate) zigzag: Vec<Dim>,
}

/// Axes of some sizes, and rules.
pub(crate) fn way(axes: &[usize], rules: Vec<Rule>) -> Way {
    let mesh = Mesh::new(axes.iter().zip(["a", "b", "c"]).map(|(k, n)| (n, *k)));
    Way { mesh, rules, rings: Vec::new(), zigzag: Vec::new() }
}

/// Operands are inputs: each dim over 1 to 4 devices, pairs of dims over two axes, one dim over both, two dims that
/// want one axis.
pub(crate) fn ways_of_inputs(dims: &[Dim]) -> Vec<Way> {
    let mut out = vec![way(&[], vec![])];
    for d in dims {
        out.extend((1..=4).map(|k| way(&[k], vec![to(*d, &[0])])));
        out.push(way(&[2, 3], vec![to(*d, &[0, 1])]));
        out.push(way(&[2, 3], vec![to(*d, &[1, 0])]));
        for e in dims.iter().filter(|e| *e != d) {
            out.push(way(&[2, 3], vec![to(*d, &[0]), to(*e, &[1])]));
            out.push(way(&[3], vec![to(*d, &[0]), free(*e, &[0])]));
        }
    }
    out
}

/// Operands are parameters: stored split where they are used split, and where they are used whole.
pub(crate) fn ways_of_params(dims: &[Dim]) -> Vec<Way> {
    let stored = |d: Dim, axes: &[u8]| rule(Some(ScopeClass::Params), RuleDim::Dim(d), axes, false);
    let mut out = vec![way(&[3], vec![rule(Some(ScopeClass::Params), RuleDim::Any, &[0], false)])];
    for d in dims {
        out.push(way(&[3], vec![to(*d, &[0])]));
        out.extend([2, 4].map(|k| way(&[k], vec![stored(*d, &[0])])));
        out.push(way(&[2, 2], vec![stored(*d, &[1, 0])]));
        for e in dims {
            out.push(way(&[2, 2], vec![stored(*d, &[0]), to(*e, &[1])]));
        }
    }
    out
}

/// Operands are sums of parts that are not on one device: alone, and with a dim split beside it or over the same axis.
fn ways_of_sums(part: Dim, dims: &[Dim]) -> Vec<Way> {
    let mut out = vec![way(&[2], vec![to(part, &[0])]), way(&[4], vec![to(part, &[0])])];
    for d in dims {
        out.push(way(&[2, 3], vec![to(part, &[1]), to(*d, &[0])]));
        out.push(way(&[3], vec![to(part, &[0]), free(*d, &[0])]));
    }
    out.push(way(&[2, 2], vec![to(part, &[0, 1])]));
    out
}

/// An operand is split along a dim by another name: the dim has no rule, another axis, or another dim wants its axis.
fn ways_of_renamed(source: Dim, to_dim: Dim, dims: &[Dim]) -> Vec<Way> {
    let mut out = vec![
        way(&[3], vec![to(source, &[0])]),
        way(&[2, 2], vec![to(source, &[0]), to(to_dim, &[1])]),
        way(&[2, 2], vec![to(source, &[0, 1])]),
        way(&[2, 2], vec![to(source, &[1, 0]), to(to_dim, &[1])]),
    ];
    for e in dims.iter().filter(|e| **e != to_dim) {
        out.push(way(&[3], vec![to(source, &[0]), free(*e, &[0])]));
    }
    out
}

/// Checks a subject in every way. `change` may alter the program before it is compiled: the broken ops use it. Gives the
/// number of cases.
pub(crate) fn law(
    subject: &Subject,
    devices: &mut Devices,
    change: &dyn Fn(&mut Built),
) -> Result<usize, String> {
    let n = subject.inputs.len();
    let floats: Vec<usize> = (0..n).filter(|i| subject.inputs[*i].dtype.is_float()).collect();
    let mut all: Vec<Vec<Arrival>> = vec![vec![Arrival::Input; n], vec![Arrival::Param; n]];
    let mut sums = |slots: &[usize]| {
        let arrival = |i| if slots.contains(&i) { Arrival::Sum } else { Arrival::Input };
        all.push((0..n).map(arrival).collect());
    };
    floats.iter().for_each(|s| sums(&[*s]));
    if floats.len() > 1 {
        sums(&floats);
    }
    for slot in 0..n {
        for k in 0..subject.inputs[slot].dims.len() {
            let mut a = vec![Arrival::Input; n];
            a[slot] = Arrival::Renamed(k);
            all.push(a);
        }
    }
    let mut cases = 0;
    for (seed, arrivals) in all.iter().enumerate() {
        let mut b = build(subject, arrivals, seed as u64)?;
        let want = walk(&b.graph, &b.bound).swap_remove(b.value.0 as usize);
        change(&mut b);
        let first = arrivals.iter().find(|a| **a != Arrival::Input);
        let ways = match first {
            None => ways_of_inputs(&b.dims),
            Some(Arrival::Param) => ways_of_params(&b.dims),
            Some(Arrival::Renamed(k)) => {
                let slot = arrivals.iter().position(|a| matches!(a, Arrival::Renamed(_))).unwrap_or(0);
                let name = subject.inputs[slot].dims[*k].0;
                let dim = b.graph.dims.find(name).ok_or("no such dim")?;
                ways_of_renamed(b.source, dim, &b.dims)
            }
            Some(_) => ways_of_sums(b.part, &b.dims),
        };
        let name = format!("{}: {arrivals:?}", subject.name);
        cases += same(&name, &b.graph, &b.bound, &[("y", b.value, want)], 0.0, &ways, devices)?;
    }
    Ok(cases)
}

/// Runs a graph in several ways and compares some of its values with what they should be. Magnitudes below `least`
/// are taken as that. Gives the number of cases.
pub(crate) fn same(
    name: &str,
    graph: &Graph,
    bound: &Bound,
    outputs: &[(&str, Id, F64Tensor)],
    least: f64,
    ways: &[Way],
    devices: &mut Devices,
) -> Result<usize, String> {
    let wanted: Vec<(&str, Id)> = outputs.iter().map(|g| (g.0, g.1)).collect();
    let step = step(graph, &wanted);
    same_step(
        name,
        &step,
        &tensors(graph, bound),
        outputs,
        Within { least, ..Within::default() },
        ways,
        devices,
    )
}

/// How close two results must be.
#[derive(Clone, Copy)]
pub(crate) struct Within {
    /// What the largest magnitude is taken as where that is less.
    pub(crate) least: f64,
    /// How far floats of fewer bits than `f64` may be off, of the largest magnitude.
    pub(crate) narrow: f64,
    /// Whether it must be the same infinity, or NaN.
    pub(crate) exact: bool,
    /// Whether it may be 0 instead of what is not finite.
    pub(crate) skips: bool,
}

impl Default for Within {
    fn default() -> Within {
        Within { least: 0.0, narrow: 1e-5, exact: true, skips: false }
    }
}

/// The same of a step, with its inputs and states.
pub(crate) fn same_step(
    name: &str,
    step: &StepGraph,
    (inputs, states): &(Tensors, Tensors),
    outputs: &[(&str, Id, F64Tensor)],
    within: Within,
    ways: &[Way],
    devices: &mut Devices,
) -> Result<usize, String> {
    let graph = &step.graph;
    for w in ways {
        let at = |what: String| {
            let rules: Vec<String> = w.rules.iter().map(|r| say(r, &w.mesh, &graph.dims)).collect();
            format!("{name} on {}, `{}`: {what}", w.mesh.describe(), rules.join("; "))
        };
        let out = devices.run(planned(step, w).map_err(&at)?, inputs, states).map_err(&at)?;
        for (goal, id, want) in outputs {
            let ty = graph.ty(*id);
            let (got, dims) = out.get(*goal).ok_or_else(|| at(format!("no result `{goal}`")))?;
            if got.dtype() != ty.dtype {
                return Err(at(format!("`{goal}` is {} instead of {}", got.dtype(), ty.dtype)));
            }
            let tolerance = match ty.dtype {
                DType::F64 => 1e-12,
                DType::F32 => within.narrow,
                _ => 0.0,
            };
            let mut got = from_host(got, dims).ordered(&want.dims);
            if !within.exact {
                got.data
                    .iter_mut()
                    .zip(&want.data)
                    .filter(|(g, w)| !g.is_finite() || (within.skips && **g == 0.0 && !w.is_finite()))
                    .for_each(|(g, w)| *g = *w);
            }
            close_from(&got.data, &want.data, tolerance, within.least)
                .map_err(|e| at(format!("`{goal}`, {e}")))?;
        }
    }
    Ok(ways.len())
}

/// The Plan of a step that is split in one way, or why there is none.
pub(crate) fn planned(step: &StepGraph, w: &Way) -> Result<Plan, String> {
    let mut layout = layout(&w.mesh, w.rules.clone());
    layout.rings = w.rings.iter().map(|d| (*d, Span::default())).collect();
    let axes = w.rules.iter().find(|r| matches!(r.dim, RuleDim::Dim(d) if w.zigzag.contains(&d)));
    let axes = axes.map_or(vec![Axis(0)], |r| r.axes.clone());
    let order = |d: &Dim| OrderRule { dim: *d, axes: axes.clone(), span: Span::default() };
    layout.orders = w.zigzag.iter().map(order).collect();
    // Training alone puts positions in another order; what is drawn is that of a program that does not train.
    let program = if w.zigzag.is_empty() { step.program } else { "train" };
    let ordered = StepGraph { program, ..step.clone() };
    match plan(&ordered, &layout, true) {
        Ok(p) => Ok(Plan { program: step.program.into(), ..p.plan }),
        Err(Refused::Bug(e)) => Err(e),
        Err(Refused::Layout(e)) => Err(format!("refused: {e:?}")),
    }
}

/// Checks a subject with a dim in zigzag order over two devices, split and whole. Gives whether it can be in this order; `None`
/// where the sample has no dim of the size that takes.
pub(crate) fn law_of_order(
    subject: &Subject,
    dim: &str,
    devices: &mut Devices,
) -> Result<Option<bool>, String> {
    let mut sized = subject.clone();
    for (name, size) in sized.inputs.iter_mut().flat_map(|i| i.dims.iter_mut().chain(&mut i.range)) {
        if *name == dim {
            *size = 8;
        }
    }
    let n = subject.inputs.len();
    let made = |arrivals: &[Arrival]| {
        let built = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| build(&sized, arrivals, 1)));
        built.ok()?.ok()
    };
    let mut keeps = None;
    for arrival in [Arrival::Param, Arrival::Input] {
        let Some(b) = made(&vec![arrival.clone(); n]) else { return Ok(None) };
        let Some(d) = b.graph.dims.find(dim) else { return Ok(None) };
        // The first dim of an input counts examples.
        let first = |id: &Id| arrival == Arrival::Input && b.graph.ty(*id).dims.first() == Some(&d);
        if b.operands.iter().any(first) {
            continue;
        }
        let want = walk(&b.graph, &b.bound).swap_remove(b.value.0 as usize);
        let ways = [way(&[2], vec![to(d, &[0])]), way(&[2], vec![])];
        let ways = ways.map(|w| Way { zigzag: vec![d], ..w });
        match same(&subject.name, &b.graph, &b.bound, &[("y", b.value, want)], 0.0, &ways, devices) {
            Ok(_) => keeps = Some(true),
            Err(e) if e.contains("E0318") => return Ok(Some(false)),
            Err(e) => return Err(e),
        }
    }
    Ok(keeps)
}

#[test]
fn every_op_is_the_same_however_it_is_split() {
    let begin = Instant::now();
    let (mut devices, mut wrong, mut cases) = (Devices::default(), Vec::new(), 0);
    for subject in subjects() {
        match law(&subject, &mut devices, &|_| {}) {
            Ok(n) => cases += n,
            Err(e) => wrong.push(e),
        }
    }
    crate::report(&format!("split equals whole: {cases} cases in {:.1?}", begin.elapsed()));
    assert!(wrong.is_empty(), "{} of the samples:\n{}", wrong.len(), wrong.join("\n"));
}

/// The kernels of f32 are not those of f64: every sample of which all operands and steps can be narrowed, on one device and
/// with its dims split.
#[test]
fn every_op_is_the_same_in_f32() {
    in_f32(Devices::default(), "f32", &|dims| {
        let mut ways = vec![way(&[], vec![])];
        ways.extend(dims.iter().map(|d| way(&[3], vec![to(*d, &[0])])));
        ways
    });
}

/// The same on some devices, placed in some ways.
pub(crate) fn in_f32(mut devices: Devices, what: &str, ways: &dyn Fn(&[Dim]) -> Vec<Way>) {
    let begin = Instant::now();
    let (mut wrong, mut cases, mut names) = (Vec::new(), 0, Vec::new());
    for subject in subjects() {
        let Some(b) = narrow(&subject) else { continue };
        names.push(subject.name.clone());
        let want = walk(&b.graph, &b.bound).swap_remove(b.value.0 as usize);
        let ways = ways(&b.dims);
        // The oracle is of f64: sums that cancel are off by what f32 rounds.
        match same(&subject.name, &b.graph, &b.bound, &[("y", b.value, want)], 1.0, &ways, &mut devices) {
            Ok(n) => cases += n,
            Err(e) => wrong.push(e),
        }
    }
    crate::report(&format!("{what}: {} samples, {cases} cases in {:.1?}", names.len(), begin.elapsed()));
    assert!(wrong.is_empty(), "{} of the samples:\n{}", wrong.len(), wrong.join("\n"));
    for family in ["+", "*", "sum", "max", "softmax", "cross_entropy", "lookup", "exp", "tanh", "cumsum"] {
        assert!(
            names.iter().any(|n| n.starts_with(&format!("{family}, "))),
            "no sample of `{family}` in f32"
        );
    }
}
