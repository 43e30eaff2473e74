//! Scales of 8-bit factors by the history of maxima ("delayed scaling" of Transformer Engine): the scale of a step is known
//! before the step computes anything, so that no product waits for a maximum, nor for other devices.
//!
//! A factor has a state of `steps` numbers for each iteration of the loops that it is in: the logarithms of the scales that fit
//! the maxima of the last steps. The least of them is the scale's. A step writes its own over the oldest one. A factor without
//! a maximum so far (its elements were all 0, or one was not finite) has the scale 1, and so has every factor in the first
//! step.
//!
//! A maximum over the batch is no sum of maxima over its parts, which a loop over microbatches could add. Counts of examples
//! are: each example counts for the logarithm of the scale that fits it, and the least logarithm with a count is that of the
//! batch.

use crate::step::factor_scales::{FactorNumbers, source};
use crate::step::step_graph::{OutputKind, StepGraph, StepOutput};
use meshwright_ops::{
    Class, Crossing, EXP, FLOOR, Graph, Id, InputOp, InputOpKind, Kind, LOG, NEG, Origin, POWER_OF_TWO,
    Quantized, RECIP, RepeatId, Type,
};
use meshwright_plan::{DType, Dim, Fp8, Init, Monoid, Phase};
use meshwright_sorted::{SortedMap, SortedSet};
use std::f64::consts::LN_2;

/// Steps of a history where a program names no number.
pub const DEFAULT_STEPS: usize = 16;

/// The most steps of a history.
pub const MOST_STEPS: usize = 65_536;

/// The logarithm of no scale. Those of scales lie between its negative and it.
const NONE: f64 = 126.0;

/// Paths of the states begin so.
const PREFIX: &str = "fp8/";

/// Whether a state is the history of a factor's scales: a run that continues in another precision, or with another number of
/// steps, begins it anew.
pub fn is_scale_history(path: &str) -> bool {
    path.starts_with(PREFIX) && Fp8::ALL.iter().any(|f| path.ends_with(&format!("/{}", f.name())))
}

/// A factor: the value of the step that it is a copy of, the format, and the dims of the loops that it is in.
type HistoryKey = (Id, Fp8, Vec<Dim>);

/// The histories of a step while its precision is assigned.
pub(super) struct ScaleHistory {
    steps: usize,
    /// The dim of the examples.
    example: Option<Dim>,
    /// Dims of the last steps, and of logarithms.
    dims: Option<[Dim; 2]>,
    /// Scales of this step with their inverses, around all loops.
    scales: SortedMap<HistoryKey, [Id; 2]>,
    /// What this step adds to the states, for copies of a factor.
    own: FactorNumbers<1>,
    /// Values in 8 bits.
    rounded: SortedMap<(Id, Fp8), Id>,
    paths: SortedSet<String>,
    written: Vec<NextScale>,
}

/// A state, with what this step adds to it.
struct NextScale {
    path: String,
    leaf: Id,
    own: Id,
}

impl ScaleHistory {
    pub(super) fn of(step: &StepGraph) -> Option<ScaleHistory> {
        step.scale_history.map(|steps| ScaleHistory {
            steps,
            example: step.inputs.first().and_then(|i| i.dims.first().copied()),
            dims: None,
            scales: SortedMap::new(),
            own: FactorNumbers::new(),
            rounded: SortedMap::new(),
            paths: SortedSet::new(),
            written: Vec::new(),
        })
    }

    /// The value `x` in 8 bits.
    pub(super) fn rounded(&mut self, g: &mut Graph, x: Id, format: Fp8) -> Id {
        if let Some(known) = self.rounded.get(&(x, format)) {
            return *known;
        }
        let Type { dims, .. } = g.ty(x).clone();
        if g.dims.elements(&dims) == 0 {
            return x;
        }
        let (origin, scope) = (g.node(x).origin.clone(), g.node(x).scope);
        let around = (g.cursor.clone(), g.scope);
        let name = format!("{}({})", format.name(), g.path(x));
        (g.cursor, g.scope) = (Origin { name: name.as_str().into(), layer: true, ..origin.clone() }, scope);
        let loops = loops(g, scope);
        let value = source(g, x).0.value;
        let factor = (value, format, loops.iter().map(|of| g.repeats[*of].dim).collect());
        let scale = match self.scales.get(&factor) {
            Some(known) => *known,
            None => self.state(g, x, factor, &loops),
        };
        let scale =
            scale.map(|scale| loops.iter().fold(scale, |scale, of| g.cross(*of, Crossing::Slice, scale)));
        let made = scaled_and_rounded(g, x, scale, format);
        (g.cursor, g.scope) = around;
        self.rounded.insert((x, format), made);
        made
    }

    /// Adds the state of a factor, and notes what this step writes; the scale of the step, and its inverse.
    fn state(&mut self, g: &mut Graph, x: Id, factor: HistoryKey, loops: &[RepeatId]) -> [Id; 2] {
        let cursor = g.cursor.clone();
        let format = factor.1;
        let path = (1..)
            .map(|n| if n == 1 { String::new() } else { format!(" {n}") })
            .map(|n| format!("{PREFIX}{}{n}/{}", g.path(x), format.name()))
            .find(|path| !self.paths.contains(path))
            .unwrap_or_default();
        self.paths.insert(path.clone());
        g.cursor = Origin { name: path.as_str().into(), class: Class::Value, ..cursor.clone() };
        let dims = self.dims(g);
        let [history, _] = dims;
        let (example, named) = (self.example, g.cursor.clone());
        let [own] = self.own.of(g, x, format, |g, x, along| {
            g.cursor = Origin { phase: g.cursor.phase, ..named.clone() };
            [own_logarithm(g, x, format, along, example, dims)]
        });
        let own = loops.iter().rev().fold(own, |own, of| stacked(g, *of, own));
        let scope = g.scope.take();
        let own = least_counted(g, own, dims);
        let dims: Vec<Dim> = factor.2.iter().copied().chain([history]).collect();
        let ty = Type::new(DType::F32, dims);
        let input = InputOpKind::OptimizerState { path: path.clone(), init: Init::Constant(NONE) };
        let leaf = g.op(InputOp { input, ty }, &[]);
        let least = g.reduce(Monoid::Min, leaf, &[history]);
        let (none, one) = (g.constant(NONE, DType::F32), g.constant(0.0, DType::F32));
        let any = g.binary("<", least, none);
        let logarithm = g.choose(any, least, one);
        let scale = power(g, logarithm);
        let scale = [scale, g.unary(&RECIP, scale)];
        (g.cursor, g.scope) = (cursor, scope);
        self.written.push(NextScale { path, leaf, own });
        self.scales.insert(factor, scale);
        scale
    }

    fn dims(&mut self, g: &mut Graph) -> [Dim; 2] {
        *self.dims.get_or_insert_with(|| {
            let logarithms = 2 * NONE as usize;
            [("fp8_history", self.steps), ("fp8_logarithm", logarithms)]
                .map(|(name, size)| g.dims.make(name, size, None))
        })
    }

    /// The next values of the states: this step's over the oldest.
    pub(super) fn finish(self, step: &mut StepGraph) {
        let Some([history, _]) = self.dims else { return };
        let g = &mut step.graph;
        g.scope = None;
        let mut known = g.ids().find(|i| g.node(*i).op.kind() == Kind::Input(InputOpKind::StepNumber));
        for NextScale { path, leaf, own } in self.written {
            g.cursor = Origin { phase: Phase::Update, layer: false, ..g.node(leaf).origin.clone() };
            let number = *known.get_or_insert_with(|| {
                let ty = Type::new(DType::F32, []);
                g.op(InputOp { input: InputOpKind::StepNumber, ty }, &[])
            });
            let number = g.cast(number, DType::F32);
            let steps = g.constant(self.steps as f64, DType::F32);
            let oldest = g.binary("%", number, steps);
            let each = g.index(history);
            let each = g.cast(each, DType::F32);
            let here = g.binary("==", each, oldest);
            let next = g.choose(here, own, leaf);
            step.outputs.push(StepOutput { name: path, id: next, kind: OutputKind::Next(leaf) });
        }
    }
}

/// The logarithm of the greatest scale that fits the maximum of a value, for each position along some dims; of a value with a dim
/// of examples, counts of these for each logarithm.
fn own_logarithm(
    g: &mut Graph,
    x: Id,
    format: Fp8,
    along: &[Dim],
    example: Option<Dim>,
    dims: [Dim; 2],
) -> Id {
    let ty = g.ty(x).clone();
    let example = example.filter(|d| ty.has(*d));
    let others = ty.dims.into_iter().filter(|d| Some(*d) != example && !along.contains(d));
    let others: Vec<Dim> = others.collect();
    let sizes = Quantized::sizes(g, x);
    let scale = Quantized { format }.scale(g, sizes, &others);
    let logarithm = g.unary(&LOG, scale);
    let logarithm = g.scaled(logarithm, 1.0 / LN_2);
    let half = g.constant(0.5, DType::F32);
    let logarithm = g.sum_of(&[logarithm, half]);
    let logarithm = g.unary(&FLOOR, logarithm);
    let (zero, none) = (g.constant(0.0, DType::F32), g.constant(NONE, DType::F32));
    let any = g.binary(">", scale, zero);
    let logarithm = g.choose(any, logarithm, none);
    let Some(example) = example else { return logarithm };
    let each = logarithms(g, dims);
    let hit = g.binary("==", logarithm, each);
    let hit = g.cast(hit, DType::F32);
    g.reduce(Monoid::Sum, hit, &[example])
}

/// All logarithms, along their dim.
fn logarithms(g: &mut Graph, [_, logarithms]: [Dim; 2]) -> Id {
    let at = g.index(logarithms);
    let at = g.cast(at, DType::F32);
    let first = g.constant(-NONE, DType::F32);
    g.sum_of(&[at, first])
}

/// The least logarithm that any example counts for; what is one already stays.
fn least_counted(g: &mut Graph, own: Id, dims: [Dim; 2]) -> Id {
    if !g.ty(own).has(dims[1]) {
        return own;
    }
    let each = logarithms(g, dims);
    let (zero, none) = (g.constant(0.0, DType::F32), g.constant(NONE, DType::F32));
    let any = g.binary(">", own, zero);
    let found = g.choose(any, each, none);
    g.reduce(Monoid::Min, found, &[dims[1]])
}

/// A value of all iterations of a loop: of what the loop slices, that.
fn stacked(g: &mut Graph, of: RepeatId, x: Id) -> Id {
    match g.boundary(x) {
        Some(b) if b.of == of && b.how == Crossing::Slice => g.node(x).inputs[0],
        _ => g.cross(of, Crossing::Stack, x),
    }
}

/// The loops around a scope, from the outermost.
fn loops(g: &Graph, mut scope: Option<RepeatId>) -> Vec<RepeatId> {
    let mut all = Vec::new();
    while let Some(of) = scope {
        all.push(of);
        scope = g.repeats[of].parent;
    }
    all.reverse();
    all
}

/// Two to the power of a whole number, exactly.
fn power(g: &mut Graph, logarithm: Id) -> Id {
    let half = g.constant(0.5, DType::F32);
    let between = g.sum_of(&[logarithm, half]);
    let between = g.scaled(between, LN_2);
    let between = g.unary(&EXP, between);
    g.unary(&POWER_OF_TWO, between)
}

/// A value rounded to a format with a scale and its inverse. What is too great for the format is its greatest number; what is
/// not finite becomes NaN.
fn scaled_and_rounded(g: &mut Graph, x: Id, [scale, inverse]: [Id; 2], format: Fp8) -> Id {
    let stored = g.ty(x).dtype;
    let scaled = g.product(&[x, scale]);
    let negative = g.unary(&NEG, x);
    // 0, or NaN.
    let nothing = g.sum_of(&[x, negative]);
    let scaled = g.sum_of(&[scaled, nothing]);
    let rounded = g.unary(Quantized { format }.rounding(), scaled);
    let back = g.product(&[rounded, inverse]);
    g.nodes[back].ty.dtype = stored;
    back
}
