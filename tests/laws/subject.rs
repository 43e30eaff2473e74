//! Samples of the registry as programs: operands that arrive in every way an operand can.

use crate::devices::Tensors;
use crate::oracle::{Bound, to_host};
use crate::rng::Rng;
use meshwright_core::{OutputKind, StepGraph, StepOutput};
use meshwright_ops::family::{SampleBuild, SampleInput};
use meshwright_ops::{
    Class, F64Tensor, Graph, Id, InputOp, InputOpKind, Origin, Rename, Sample, Type, families,
};
use meshwright_plan::{Arithmetic, DType, Dim, Dims, Init, InputDecl, Monoid};

/// What a law is checked on.
#[derive(Clone)]
pub(crate) struct Subject {
    /// Family and sample.
    pub(crate) name: String,
    /// Its operands.
    pub(crate) inputs: Vec<SampleInput>,
    /// Builds the value.
    pub(crate) build: SampleBuild,
    /// Whether it has a gradient.
    pub(crate) differentiable: bool,
}

/// Every sample of every family.
pub(crate) fn subjects() -> Vec<Subject> {
    families().flat_map(|f| (f.samples)().into_iter().map(|s| subject(f.name, &s))).collect()
}

fn subject(family: &str, s: &Sample) -> Subject {
    Subject {
        name: format!("{family}, {}", s.label),
        inputs: s.inputs.clone(),
        build: s.build.clone(),
        differentiable: s.differentiable,
    }
}

/// How an operand comes to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Read: it can be had in any placement.
    Input,
    /// A parameter: it is where its rules put it.
    Param,
    /// The sum of three parts along a dim `part` of its own: unfinished where that dim is split.
    Sum,
    /// A value whose dim was called `source` before: split where no rule of this program splits it.
    Renamed(usize),
}

/// A program with one value under test.
pub(crate) struct Built {
    /// Its graph.
    pub(crate) graph: Graph,
    /// The operands, as the op sees them.
    pub(crate) operands: Vec<Id>,
    /// The value under test.
    pub(crate) value: Id,
    /// First value that the sample itself built.
    pub(crate) first: Id,
    /// Values of the leaves.
    pub(crate) bound: Bound,
    /// Every dim of the sample.
    pub(crate) dims: Vec<Dim>,
    /// The dim along which parts are summed.
    pub(crate) part: Dim,
    /// The old name of the renamed dim.
    pub(crate) source: Dim,
}

const PARTS: usize = 3;

/// Builds a subject whose operands arrive as told (all others as inputs). Elements are drawn by `seed`.
pub(crate) fn build(subject: &Subject, arrivals: &[Arrival], seed: u64) -> Result<Built, String> {
    let mut names = Dims::default();
    let mut dims: Vec<Dim> = Vec::new();
    for (name, size) in subject.inputs.iter().flat_map(|i| i.dims.iter().chain(&i.range)) {
        if names.find(name).is_none() {
            dims.push(names.add(*name, *size));
        }
    }
    let part = names.add("part", PARTS);
    let renamed = arrivals.iter().enumerate().find_map(|(slot, a)| match a {
        Arrival::Renamed(k) => Some(subject.inputs[slot].dims[*k].1),
        _ => None,
    });
    let source = names.add("source", renamed.unwrap_or(1));
    let mut b = Builder { graph: Graph::new(names), bound: Bound::new(), rng: Rng::new(seed), part, source };
    let mut operands = Vec::new();
    for (slot, input) in subject.inputs.iter().enumerate() {
        operands.push(b.operand(slot, input, arrivals.get(slot).unwrap_or(&Arrival::Input)));
    }
    let Builder { mut graph, bound, .. } = b;
    let first = Id(graph.nodes.len() as u32);
    let value =
        (subject.build)(&mut graph, &operands).map_err(|e| format!("{}: not built: {e}", subject.name))?;
    Ok(Built { graph, operands, value, first, bound, dims, part, source })
}

/// A subject with operands of f32.
pub(crate) fn narrowed(subject: &Subject) -> Subject {
    let mut narrow = subject.clone();
    for i in narrow.inputs.iter_mut().filter(|i| i.dtype == DType::F64) {
        i.dtype = DType::F32;
    }
    narrow
}

/// A subject with operands of f32, as inputs; `None` where it has no floats, or its sample itself builds values of f64.
pub(crate) fn narrow(subject: &Subject) -> Option<Built> {
    let narrow = narrowed(subject);
    let floats = narrow.inputs.iter().any(|i| i.dtype == DType::F32);
    // A number of f64 that meets an f32 is refused, in ops that build by a panic.
    let built = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| build(&narrow, &[], 0)));
    let built = built.ok()?.ok()?;
    let wide = built.graph.nodes.iter().any(|n| matches!(n.ty.dtype, DType::F64 | DType::PairF64));
    (floats && !wide).then_some(built)
}

struct Builder {
    graph: Graph,
    bound: Bound,
    rng: Rng,
    part: Dim,
    source: Dim,
}

impl Builder {
    fn operand(&mut self, slot: usize, input: &SampleInput, arrival: &Arrival) -> Id {
        let dims: Vec<Dim> = input.dims.iter().filter_map(|d| self.graph.dims.find(d.0)).collect();
        let range = input.range.and_then(|r| self.graph.dims.find(r.0));
        let ty = Type { dtype: input.dtype, dims, range };
        match arrival {
            Arrival::Input => self.leaf(format!("x{slot}"), ty, input, 1.0, false),
            Arrival::Param => self.leaf(format!("x{slot}"), ty, input, 1.0, true),
            Arrival::Sum => {
                let mut wide = ty.clone();
                wide.dims.insert(0, self.part);
                let x = self.leaf(format!("x{slot}"), wide, input, 1.0 / PARTS as f64, false);
                self.graph.reduce(Monoid::Sum, x, &[self.part])
            }
            Arrival::Renamed(k) => {
                let to = ty.dims[*k];
                let mut old = ty.clone();
                old.dims[*k] = self.source;
                let x = self.leaf(format!("x{slot}"), old.clone(), input, 1.0, false);
                // An op on two inputs: an activation, which no longer can be had anywhere.
                let zero = self.leaf(format!("zero{slot}"), old, input, 0.0, false);
                let sum = if ty.dtype == DType::Bool {
                    self.graph.binary("or", x, zero)
                } else {
                    self.graph.sum_of(&[x, zero])
                };
                // Plus nothing: a position stays the position that an op which indexes asks for.
                self.graph.nodes[sum].ty.range = ty.range;
                self.graph.op(Rename { from: self.source, to }, &[sum])
            }
        }
    }

    /// A leaf with elements drawn as the sample says, times `scale`.
    fn leaf(&mut self, name: String, ty: Type, input: &SampleInput, scale: f64, param: bool) -> Id {
        let round = |v: f64| if input.dtype == DType::F32 { f64::from(v as f32) } else { v };
        let value =
            F64Tensor::build(&self.graph.dims, &ty.dims, |_| round(draw(&mut self.rng, input) * scale));
        let class = if param { Class::Param } else { Class::Value };
        self.graph.cursor =
            Origin { class, name: name.as_str().into(), path: name.as_str().into(), ..Origin::default() };
        let leaf = if param {
            InputOpKind::Param { path: name, init: Init::Constant(0.0) }
        } else {
            InputOpKind::Input { name }
        };
        let id = self.graph.op(InputOp { input: leaf, ty }, &[]);
        self.graph.cursor = Origin::default();
        self.bound.insert(id, value);
        id
    }
}

/// An element of an operand.
pub(crate) fn draw(rng: &mut Rng, input: &SampleInput) -> f64 {
    let v = rng.float(input.low, input.high);
    if input.dtype.is_float() { v } else { v.floor() }
}

/// A step that gives some values of a graph, each as an output of its name.
pub(crate) fn step(graph: &Graph, outputs: &[(&str, Id)]) -> StepGraph {
    let inputs = graph.ids().filter_map(|id| match input_name(graph, id) {
        Some(name) => {
            let ty = graph.ty(id);
            Some(InputDecl { name, dims: ty.dims.clone(), dtype: ty.dtype, range: ty.range })
        }
        None => None,
    });
    StepGraph {
        model: "law".into(),
        program: "predict",
        float: Arithmetic::F64,
        scale_history: None,
        graph: graph.clone(),
        inputs: inputs.collect(),
        outputs: outputs
            .iter()
            .map(|(name, id)| StepOutput { name: (*name).into(), id: *id, kind: OutputKind::Output })
            .collect(),
    }
}

fn input_name(graph: &Graph, id: Id) -> Option<String> {
    match graph.node(id).op.kind() {
        meshwright_ops::Kind::Input(InputOpKind::Input { name }) => Some(name),
        _ => None,
    }
}

/// The leaves' values as devices take them: inputs, and parameters.
pub(crate) fn tensors(graph: &Graph, bound: &Bound) -> (Tensors, Tensors) {
    let (mut inputs, mut states) = (Tensors::new(), Tensors::new());
    for (id, value) in bound {
        let ty = graph.ty(*id);
        let host = to_host(value, ty.dtype, &ty.dims);
        match graph.node(*id).op.kind() {
            meshwright_ops::Kind::Input(InputOpKind::Input { name }) => inputs.insert(name, host),
            meshwright_ops::Kind::Input(InputOpKind::Param { path, .. }) => states.insert(path, host),
            _ => None,
        };
    }
    (inputs, states)
}
