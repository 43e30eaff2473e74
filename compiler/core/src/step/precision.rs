//! Which values of a program of `bf16` or `f16` are stored in that half type, and which are rounded in one of `tf32` or `fp8`.
//!
//! Before: a step in `f32`. After: the same step in which products read the half type and activations are kept in it, while
//! whatever rounding would spoil stays in `f32`: parameters and moments, gradients of parameters, sums, softmax and losses,
//! and all that is computed from those alone. Each op says in its own file how it reads and what it gives
//! ([`Precision`]); nothing here knows one by name.
//!
//! A value of a half type is computed in `f32` and rounded once, when it is stored; so an element-wise op reads
//! operands of both dtypes without a cast. A cast is a value of its own only if an op insists on one dtype. A cast to
//! the half type belongs to its operand, as its one rounded copy: a parameter is rounded on its shard, before it is
//! gathered, and before the loops that read it.
//!
//! Values that cross the boundary of a loop have one dtype on both sides, and a carry has the dtype of its next value.
//! So carries that become each other have one dtype, which depends on all of them: the classes are a fixpoint.
//!
//! A step in `fp8` is one in `bf16` in which products of layers (`layers.rs`) read factors that are rounded once more, to 8
//! bits ([`Quantized`]): in the forward pass to E4M3, in the backward pass a cotangent to E5M2 and the other factor to E4M3. A
//! rounded factor is a number of `bf16`, so a device without such products computes what one that has them does.

use crate::passes::linear::linearized;
use crate::passes::normalize::rebuild;
use crate::step::rounding::{beside, precision, readers};
use crate::step::scale_history::ScaleHistory;
use crate::step::step_graph::{OutputKind, StepGraph};
use meshwright_ops::{Crossing, Expand, Graph, Id, InputOpKind, Kind, Origin, Precision, Quantized};
use meshwright_plan::{Arithmetic, DType, Fp8, IdVec, Phase};

/// Gives every value its dtype. A step whose arithmetic is `f32` or `f64` stays as it is.
pub fn assign(step: StepGraph) -> StepGraph {
    if step.float == Arithmetic::TF32 {
        return super::tf32_factors::rounded(&step);
    }
    let Some(half) = step.float.half() else { return step };
    let (natures, choices) = choices(&step, half);
    let mut history = ScaleHistory::of(&step);
    let mut out = rebuild(&step, |g, mut node, id| {
        let choice = choices[id];
        if let Some(to) = choice.reads {
            let product = precision(&step.graph, id) == Precision::Products;
            let layer = product && to == half && step.float == Arithmetic::FP8 && node.origin.layer;
            // The initial value of a carry is cast before the loop.
            if let Some(b) = step.graph.boundary(id) {
                g.scope = step.graph.repeats[b.of].parent;
            }
            for (x, before) in node.inputs.iter_mut().zip(&step.graph.node(id).inputs) {
                // A number that scales a product is no factor of it that hardware would want rounded.
                if product && g.ty(*x).dims.is_empty() {
                    continue;
                }
                *x = cast(g, *x, to, &node.origin);
                if layer {
                    let format = format_of(&step.graph, *before);
                    *x = match &mut history {
                        Some(history) => history.rounded(g, *x, format),
                        None => beside(g, *x, Quantized { format }),
                    };
                    g.nodes[*x].origin.layer = true;
                }
            }
        }
        // Attention reads what it multiplies as it is stored, but data in the half type, as a product does.
        let inside = matches!(precision(&step.graph, id), Precision::Inside | Precision::Rounded);
        let multiplied = if inside { node.op.rounding().map_or(vec![], |r| r.0) } else { vec![] };
        for k in multiplied {
            if natures[step.graph.node(id).inputs[k]] == PrecisionClass::Neutral {
                node.inputs[k] = cast(g, node.inputs[k], half, &node.origin);
            }
        }
        if choice.narrow {
            node.ty.dtype = half;
        }
        g.push(node)
    });
    if let Some(history) = history {
        history.finish(&mut out);
    }
    // Outputs of the step, and next values of inputs, are stored without rounding.
    out.graph.scope = None;
    for goal in &mut out.outputs {
        let origin = out.graph.node(goal.id).origin.clone();
        goal.id = cast(&mut out.graph, goal.id, DType::F32, &origin);
    }
    // Initial values of carries, and values from around a body that it rounds, are cast in front of the loop.
    linearized(out)
}

/// The format of a factor: cotangents need the range of E5M2. A value of the forward pass is read in the body of a backward
/// loop as a slice of its stack.
fn format_of(g: &Graph, mut x: Id) -> Fp8 {
    while g.node(x).origin.phase == Phase::Backward {
        let node = g.node(x);
        let same = matches!(node.op.kind(), Kind::Rename { .. }) || node.op.as_any().is::<Expand>();
        if !same && g.boundary(x).is_none_or(|b| b.how != Crossing::Slice) {
            return Fp8::E5M2;
        }
        x = node.inputs[0];
    }
    Fp8::E4M3
}

/// A value in another of the two dtypes. Down to the half type the cast belongs to the value, up to `f32` to who reads it: so
/// what is moved between devices is the half type. What can be made anywhere is cast where it is read.
fn cast(g: &mut Graph, x: Id, to: DType, reader: &Origin) -> Id {
    let node = g.node(x);
    let from = node.ty.dtype;
    if from == to || from.wide() != DType::F32 {
        return x;
    }
    let anywhere = matches!(
        node.op.kind(),
        Kind::Rematerializable(_) | Kind::Input(InputOpKind::Input { .. } | InputOpKind::StepNumber)
    );
    let (origin, scope) =
        if to.is_half() && !anywhere { (&node.origin, node.scope) } else { (reader, g.scope) };
    let name = format!("{to}({})", g.path(x)).into();
    g.cursor = Origin { name, ..origin.clone() };
    let around = std::mem::replace(&mut g.scope, scope);
    let cast = g.cast(x, to);
    g.scope = around;
    cast
}

/// Precision of an op's operands, and of its result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// The dtype in which it insists on reading its floats; `None` where it reads both.
    reads: Option<DType>,
    /// Whether the result is stored in the half type.
    pub(super) narrow: bool,
}

/// Class of an `f32` value, in ascending order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PrecisionClass {
    /// No float of `f32`: it stays as it is.
    Other,
    /// An input, a constant, or a function of such.
    Neutral,
    /// In full: a sum, a softmax, a loss, or a function of such.
    Wide,
    /// A parameter or a function of parameters alone; stored in full.
    Weight,
    /// An activation or its cotangent.
    Narrow,
}

/// The class of each value, and what follows.
pub(super) fn choices(step: &StepGraph, half: DType) -> (IdVec<Id, PrecisionClass>, IdVec<Id, Choice>) {
    let g = &step.graph;
    let mut natures = g.nodes.table(PrecisionClass::Other);
    let mut choices = g.nodes.table(Choice { reads: None, narrow: false });
    loop {
        let mut changed = false;
        for id in g.ids() {
            let (mut nature, reads) = forward(g, id, &natures, half);
            // A carry is what comes after it. All else follows from what carries are, and those only rise: so this ends.
            if g.boundary(id).is_some_and(|b| matches!(b.how, Crossing::Carry(_))) {
                nature = nature.max(natures[id]);
                changed |= nature != natures[id];
            }
            natures[id] = nature;
            choices[id] = Choice { reads, narrow: nature == PrecisionClass::Narrow };
        }
        if !changed {
            break;
        }
    }
    let readers = readers(g);
    upcast_uses(step, &mut choices, &readers);
    read_rounded(g, &mut choices, &readers, half);
    for id in g.ids() {
        // Ops that move elements move one dtype.
        let moves = precision(g, id) == Precision::AsOperands && g.ty(id).dtype == DType::F32;
        if moves && !g.node(id).inputs.is_empty() && !g.is_elementwise(id) && g.boundary(id).is_none() {
            let choice = &mut choices[id];
            choice.reads = Some(if choice.narrow { half } else { DType::F32 });
        }
    }
    cross_boundaries(g, &mut choices, half);
    (natures, choices)
}

/// Values that cross the boundary of a loop have one dtype on both sides, and a carry has that of its next value.
/// Carries that become each other and nothing else are stored in the half type if all of them may be.
fn cross_boundaries(g: &Graph, choices: &mut IdVec<Id, Choice>, half: DType) {
    let crosses = |id: &Id| {
        g.ty(*id).dtype == DType::F32 && g.boundary(*id).is_some_and(|b| b.how != Crossing::Accumulate)
    };
    // The value whose dtype each has: for a carry its next value.
    let like = |id: Id| g.depends_on(id).pop().filter(|_| crosses(&id));
    let mut settled: IdVec<Id, bool> = g.nodes.table(false);
    for id in g.ids().filter(crosses) {
        let mut way = vec![id];
        let mut narrow = None;
        while let Some(next) = way.last().and_then(|id| like(*id)) {
            if settled[next] || !crosses(&next) {
                narrow = Some(choices[next].narrow);
                break;
            }
            if let Some(at) = way.iter().position(|w| *w == next) {
                narrow = Some(way[at..].iter().all(|w| choices[*w].narrow));
                break;
            }
            way.push(next);
        }
        for id in way {
            settled[id] = true;
            choices[id].narrow = narrow.unwrap_or(choices[id].narrow);
            if matches!(g.boundary(id).map(|b| b.how), Some(Crossing::Carry(_))) {
                choices[id].reads = Some(if choices[id].narrow { half } else { DType::F32 });
            }
        }
    }
}

/// The nature of a value, of whose operands it is known; and in which dtype its op insists on reading.
fn forward(
    g: &Graph,
    id: Id,
    natures: &IdVec<Id, PrecisionClass>,
    half: DType,
) -> (PrecisionClass, Option<DType>) {
    let node = g.node(id);
    let of = |x: &Id| natures[*x];
    // Operands that count: of the result's dims, so that a mean along a dim does not make all of it wide.
    let all = |x: &Id| node.ty.dims.iter().all(|d| g.ty(*x).has(*d));
    let elementwise = g.is_elementwise(id);
    let operands = g.depends_on(id);
    let prevailing = |f: &dyn Fn(&Id) -> bool| operands.iter().filter(|x| f(x)).map(of).max();
    let (nature, reads) = match (node.op.kind(), precision(g, id)) {
        (Kind::Input(InputOpKind::Param { .. }), _) => (PrecisionClass::Weight, None),
        (Kind::Input(InputOpKind::State { .. } | InputOpKind::OptimizerState { .. }), _) => {
            (PrecisionClass::Wide, None)
        }
        (Kind::Input(_) | Kind::Rematerializable(_), _) => (PrecisionClass::Neutral, None),
        (_, Precision::Full) => (PrecisionClass::Wide, Some(DType::F32)),
        (_, Precision::Sums | Precision::Inside) => (PrecisionClass::Wide, None),
        (_, Precision::Rounded) => match prevailing(&|_| true) {
            Some(PrecisionClass::Neutral) => (PrecisionClass::Narrow, None),
            known => (known.unwrap_or(PrecisionClass::Neutral), None),
        },
        (_, Precision::Products | Precision::Entries) => {
            let factors = prevailing(&|x| !g.ty(*x).dims.is_empty()).or_else(|| prevailing(&|_| true));
            match factors {
                // A product of losses, or of those with inputs such as weights of examples.
                Some(PrecisionClass::Wide) => (PrecisionClass::Wide, Some(DType::F32)),
                _ => (PrecisionClass::Narrow, Some(half)),
            }
        }
        (_, Precision::AsOperands) => {
            let large = if elementwise { prevailing(&all) } else { None };
            let known = large.filter(|n| *n > PrecisionClass::Neutral).or_else(|| prevailing(&|_| true));
            (known.unwrap_or(PrecisionClass::Neutral).max(PrecisionClass::Neutral), None)
        }
    };
    if node.ty.dtype == DType::F32 { (nature, reads) } else { (PrecisionClass::Other, reads) }
}

/// A value that all who read it take in full is stored in full: the gradient of a parameter, the scores of a softmax, the
/// terms of a loss. A sum takes what it reads in full in the forward part alone: cotangents stay in the half type.
fn upcast_uses(step: &StepGraph, choices: &mut IdVec<Id, Choice>, readers: &IdVec<Id, Vec<Id>>) {
    let g = &step.graph;
    let mut given = g.nodes.table(false);
    for goal in &step.outputs {
        given[goal.id] = true;
        if let OutputKind::Next(leaf) = goal.kind {
            given[leaf] = true;
        }
    }
    let back = |r: &Id| g.node(*r).origin.phase == Phase::Backward;
    for id in g.ids().rev() {
        // An entry of a table is as it is there: to store it in full would add nothing.
        if !choices[id].narrow || precision(g, id) == Precision::Entries {
            continue;
        }
        // Whether a reader takes it in full; `None` where its dtype does not matter to that reader.
        let takes = |r: &Id| match (choices[*r].reads, g.ty(*r).dtype) {
            (Some(dtype), _) => Some(dtype == DType::F32),
            _ if matches!(precision(g, *r), Precision::Inside | Precision::Rounded) => None,
            _ if back(r) && precision(g, *r) == Precision::Sums => None,
            (None, DType::F32) => Some(!choices[*r].narrow),
            (None, _) => None,
        };
        let said: Vec<bool> = readers[id].iter().filter_map(takes).collect();
        let full = said.iter().all(|f| *f) && (given[id] || !said.is_empty());
        if full {
            choices[id].narrow = false;
        }
    }
}

/// A sum of a cotangent that all others round reads the rounded copy too: the gradient of the bias beside that of the weight.
/// So nobody needs the one in full, which of logits is the largest value of a step.
fn read_rounded(g: &Graph, choices: &mut IdVec<Id, Choice>, readers: &IdVec<Id, Vec<Id>>, half: DType) {
    let back = |id: Id| g.node(id).origin.phase == Phase::Backward;
    for x in g.ids() {
        if !back(x) || g.ty(x).dtype != DType::F32 || choices[x].narrow {
            continue;
        }
        let sums = |r: &Id| back(*r) && g.node(*r).inputs.len() == 1 && precision(g, *r) == Precision::Sums;
        let (sums, others): (Vec<Id>, Vec<Id>) = readers[x].iter().copied().partition(sums);
        if !others.is_empty() && others.iter().all(|r| choices[*r].reads == Some(half)) {
            sums.into_iter().for_each(|sum| choices[sum].reads = Some(half));
        }
    }
}
