//! The closed set of primitive steps. Ops lower to them; `exec` implements each once.

use crate::expr::Reg;
use crate::random::Distribution;
use crate::{Axis, BufId, Dim, Expr, Monoid, Plan, Provenance, SlidingWindow};
use serde::{Deserialize, Serialize};

/// Part of a training step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Loss and metrics.
    #[default]
    Forward,
    /// Gradients.
    Backward,
    /// Clipping and the optimizer.
    Update,
}

/// A buffer as one step sees it: its dims by name, in the buffer's storage order (row-major, dense).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operand {
    /// The buffer.
    pub buf: BufId,
    /// Name of each of its extents.
    pub dims: Vec<Dim>,
}

/// What a step does. Operands match by dim; a dim that an operand lacks is broadcast.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum StepKind {
    /// `out[i] = expr(inputs[i])` for each output register, over the iteration space of the outputs' dims (all outputs
    /// have the same dims in the same order, and the same splits). An input may lack dims, and may order them differently.
    Map {
        /// The expression; `Load(k)` reads `inputs[k]`, `Index(k)` is the global index along dim `k` of the outputs.
        expr: Expr,
        /// What is read.
        inputs: Vec<Operand>,
        /// What is written: a register each.
        outs: Vec<(Reg, Operand)>,
    },
    /// `out = sum over the dims that out lacks of a * b`. Every dim of `out` is in `a` or `b`; every summed dim is in both.
    /// Each of the three may be `bf16` where the others are `f32`: the sum is taken in `f32`, the result is rounded.
    Contract {
        /// First factor.
        a: Operand,
        /// Second factor.
        b: Operand,
        /// Result.
        out: Operand,
    },
    /// Folds the dims that `out` lacks. Sums and products of `bf16` are `f32`. `ArgMax` and `ArgMin` fold exactly one dim and write pairs of value and *global*
    /// index. An empty fold gives the identity.
    Reduce {
        /// How to fold.
        monoid: Monoid,
        /// What is folded.
        input: Operand,
        /// Result.
        out: Operand,
    },
    /// `out = table[dim = index]`, where this device's table holds a range of `dim`: an index outside of it gives 0.
    Lookup {
        /// The table; has `dim`.
        table: Operand,
        /// The dim that is looked up.
        dim: Dim,
        /// Global positions along `dim`, `I32`; lacks `dim`.
        index: Operand,
        /// Result: dims of the index and the rest of the table's.
        out: Operand,
    },
    /// `out[dim = index] += values` (of `bf16` in `f32`), the transpose of a lookup: indices outside this device's range are dropped.
    ScatterAdd {
        /// What is added.
        values: Operand,
        /// The dim that is scattered to.
        dim: Dim,
        /// Global positions along `dim`, `I32`.
        index: Operand,
        /// Result, starts at 0; has `dim`. Dims of the index that it lacks are summed.
        out: Operand,
    },
    /// `softmax`, along a dim that is whole.
    Softmax {
        /// What is normalized.
        input: Operand,
        /// Along which dim.
        dim: Dim,
        /// Whether to give the logarithm.
        log: bool,
        /// Result: the same dims in the same order.
        out: Operand,
    },
    /// `log(sum(exp(input)))` along a dim that is whole.
    LogSumExp {
        /// What is summed.
        input: Operand,
        /// Along which dim.
        dim: Dim,
        /// Result: without `dim`.
        out: Operand,
    },
    /// `logsumexp(logits) - logits[dim = label]` along a dim that is whole.
    CrossEntropy {
        /// The logits.
        logits: Operand,
        /// Global position of the true class, `I32`; its dims are among those of `out`.
        label: Operand,
        /// Along which dim.
        dim: Dim,
        /// Result: without `dim`.
        out: Operand,
    },
    /// `(softmax(logits) - onehot(label)) * scale`: the gradient of `CrossEntropy`.
    CrossEntropyGrad {
        /// The logits.
        logits: Operand,
        /// Global position of the true class, `I32`.
        label: Operand,
        /// The cotangent; lacks `dim`, may lack others.
        scale: Operand,
        /// Along which dim.
        dim: Dim,
        /// Result: dims of the logits in the same order.
        out: Operand,
    },
    /// The positions of the greatest along a dim that is whole, those of ranks `to`: in descending order of the values, of
    /// equal ones the lowest first, NaN before all numbers. `I32`.
    TopK {
        /// What is ranked.
        input: Operand,
        /// Along which dim.
        dim: Dim,
        /// The ranks: the last dim of the result.
        to: Dim,
        /// Result: without `dim`, with `to` at its end.
        out: Operand,
    },
    /// `out[i] = the sum of input[j] for j up to i` along a dim that is whole; an empty sum is 0.
    CumSum {
        /// What is summed.
        input: Operand,
        /// Along which dim.
        dim: Dim,
        /// From the end.
        reverse: bool,
        /// Without `input[i]` itself.
        exclusive: bool,
        /// Result: the same dims in the same order.
        out: Operand,
    },
    /// A sum of products in which kernels slide: over all positions `n` and taps `t` of every slide and the dims that
    /// `x` and `w` share and `y` lacks, with `i = n * stride + t * dilation - low` (nothing where there is no such
    /// element, or where the device does not hold it: it then holds zero or another device has it).
    /// `gives` says which of the three is the result; the two others are read.
    Convolve {
        /// Has the wide dims.
        x: Operand,
        /// Has the taps.
        w: Operand,
        /// Has the positions.
        y: Operand,
        /// How each kernel dim slides.
        slides: Vec<SlidingWindow>,
        /// Which of the three is computed from the two others.
        gives: Part,
    },
    /// Folds what each kernel position covers, or spreads it: with `spread` unset `out[n] = fold over t of input[i]`,
    /// with `spread` set (sums only) `out[i] = sum over n, t of input[n]`; `i` as in `Convolve`.
    Pool {
        /// How to fold: sum, max or min. Of nothing: the identity.
        monoid: Monoid,
        /// Has the wide dims, or with `spread` the positions.
        input: Operand,
        /// How each window slides.
        slides: Vec<SlidingWindow>,
        /// The transpose.
        spread: bool,
        /// Has the positions, or with `spread` the wide dims.
        out: Operand,
    },
    /// Which tap of each window holds the extreme that `Pool` gives: `I32`, row-major over the taps of `slides` in order;
    /// of equal ones the first.
    ArgmaxPool {
        /// Max or min.
        monoid: Monoid,
        /// Has the wide dims.
        input: Operand,
        /// How each window slides.
        slides: Vec<SlidingWindow>,
        /// Has the positions.
        out: Operand,
    },
    /// `out[i] = sum over the positions n whose tap is at i of values[n]`: the transpose of taking the extreme.
    Unpool {
        /// The tap of each position, `I32`, as `ArgmaxPool` gives it.
        tap: Operand,
        /// Has the positions.
        values: Operand,
        /// How each window slides.
        slides: Vec<SlidingWindow>,
        /// Has the wide dims.
        out: Operand,
    },
    /// `out[i] = from[i + start]` along one dim, which may have another name and size on each side; `fill` where there is
    /// no such element. All other dims are the same.
    Shift {
        /// Source.
        from: Operand,
        /// The dim of the source.
        dim: Dim,
        /// The dim of the result.
        to: Dim,
        /// Offset into the source.
        start: i64,
        /// What stands where the source has nothing.
        fill: f64,
        /// Destination, the dims in the same order.
        out: Operand,
    },
    /// The parts one after the other along one dim; all other dims are the same, in the same order.
    Concat {
        /// What is joined, with the dim that becomes a part of `to` and its offset there.
        parts: Vec<(Operand, Dim, usize)>,
        /// The dim of the result.
        to: Dim,
        /// Destination.
        out: Operand,
    },
    /// `out[i, j] = from[i * size(j) + j]`: one dim becomes several.
    SplitDim {
        /// Source.
        from: Operand,
        /// The dim that is cut.
        dim: Dim,
        /// What it becomes, the outermost first. They lie next to each other in the result.
        to: Vec<Dim>,
        /// Destination.
        out: Operand,
    },
    /// `out[i * size(j) + j] = from[i, j]`: several dims become one.
    MergeDims {
        /// Source.
        from: Operand,
        /// The dims, the outermost first. They lie next to each other in the source.
        dims: Vec<Dim>,
        /// The dim that they become.
        to: Dim,
        /// Destination.
        out: Operand,
    },
    /// Random values: element `i` of the whole (row-major over the extents of `out`) depends on the seed of the run, the
    /// number of the step, `stream` and `i` alone; see [`crate::random::draw`]. In a program that does not train, seed and
    /// step are fixed: [`crate::random::FIXED_SEED`] and 0.
    Random {
        /// Name of the stream: where in the model it is drawn.
        stream: String,
        /// What is drawn.
        distribution: Distribution,
        /// Result: a float, or a truth value of `Bernoulli`.
        out: Operand,
    },
    /// `out[i] = from[i]` for the global indices that this device's `out` holds, all of which its `from` holds too: a
    /// local slice, another order of dims, or both; a dim that `from` lacks is repeated.
    Copy(Copy),
    /// Communication: from start to end, or the start of it where the step has a [`Step::async_id`].
    Collective(Collective),
    /// The end of a collective that an earlier step of the same async_id started: waits for it. From here on its results may
    /// be read.
    Wait {
        /// The collective's results.
        to: Vec<Operand>,
    },
}

/// One of the three tensors of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// What is slid over.
    Input,
    /// What slides.
    Kernel,
    /// The positions.
    Result,
}

/// A copy; see [`StepKind::Copy`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// Source.
    pub from: Operand,
    /// Destination.
    pub out: Operand,
}

/// Communication over the group of some mesh axes. What each device holds follows from the extents of `from` and `to`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "collective")]
pub enum Collective {
    /// Folds equal shapes; a bucket of several buffers. `from[i]` and `to[i]` may share storage.
    AllReduce {
        /// Over which axes, jointly.
        axes: Vec<Axis>,
        /// How to fold, in ascending order of the group.
        monoid: Monoid,
        /// Inputs.
        from: Vec<Operand>,
        /// Results.
        to: Vec<Operand>,
    },
    /// Folds, and keeps this device's block of `dim`: `to` has `axis` appended to the axes of `dim`.
    ReduceScatter {
        /// Over which axis.
        axis: Axis,
        /// How to fold, in ascending order of the group.
        monoid: Monoid,
        /// Which dim is split.
        dim: Dim,
        /// Input.
        from: Operand,
        /// Result.
        to: Operand,
    },
    /// Joins blocks: `to` lacks `axis`, which was the minor-most of `dim`.
    AllGather {
        /// Over which axis.
        axis: Axis,
        /// Which dim is joined.
        dim: Dim,
        /// Input.
        from: Operand,
        /// Result.
        to: Operand,
    },
    /// Each device gets what a loop needs of a dim from the devices that hold it (a halo, or blocks with other edges): `to`
    /// is `from` with a window on `dim`. Over the group of all axes of `dim`.
    Permute {
        /// The axes of `dim`, major first.
        axes: Vec<Axis>,
        /// Along which dim.
        dim: Dim,
        /// Input: every device has its block of `dim`.
        from: Operand,
        /// Result.
        to: Operand,
    },
    /// Joins along one dim and splits along another: `axis` moves from the minor end of `join` to the minor end of `split`.
    AllToAll {
        /// Over which axis.
        axis: Axis,
        /// The dim that becomes less split.
        join: Dim,
        /// The dim that becomes more split.
        split: Dim,
        /// Input.
        from: Operand,
        /// Result.
        to: Operand,
    },
}

impl Collective {
    /// `all_reduce` and so on.
    pub fn name(&self) -> &'static str {
        match self {
            Collective::AllReduce { .. } => "all_reduce",
            Collective::ReduceScatter { .. } => "reduce_scatter",
            Collective::AllGather { .. } => "all_gather",
            Collective::AllToAll { .. } => "all_to_all",
            Collective::Permute { .. } => "permute",
        }
    }

    /// For each part the bytes of one device's buffer (the greatest): what goes in, of an all-gather what comes out, of a
    /// permute what comes from others.
    pub fn bytes(&self, plan: &Plan) -> Vec<usize> {
        let whole = |o: &Operand| plan.buffer(o.buf).largest_bytes(&plan.mesh);
        match self {
            Collective::AllReduce { from, .. } => from.iter().map(whole).collect(),
            Collective::AllGather { to, .. } => vec![whole(to)],
            Collective::ReduceScatter { from, .. } | Collective::AllToAll { from, .. } => vec![whole(from)],
            Collective::Permute { axes, dim, to, .. } => {
                let buffer = plan.buffer(to.buf);
                let along = to.dims.iter().zip(&buffer.extents);
                let elements = along.map(|(d, e)| match &e.window {
                    Some(w) if d == dim => w.missing(e.size, axes, &plan.mesh),
                    _ => e.largest(&plan.mesh),
                });
                vec![elements.product::<usize>() * buffer.dtype.bytes()]
            }
        }
    }

    /// The axes of its group.
    pub fn axes(&self) -> Vec<Axis> {
        match self {
            Collective::AllReduce { axes, .. } | Collective::Permute { axes, .. } => axes.clone(),
            Collective::ReduceScatter { axis, .. }
            | Collective::AllGather { axis, .. }
            | Collective::AllToAll { axis, .. } => vec![*axis],
        }
    }
}

/// A step of the Plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What it does.
    #[serde(flatten)]
    pub kind: StepKind,
    /// Which part of the training step it belongs to.
    pub phase: Phase,
    /// Why it is there: a cause for each buffer that it writes (the parts of a bucket have one each); of a wait, the causes
    /// of its collective.
    pub origin: Vec<Provenance>,
    /// `(input, output)` buffers that share storage: the input ends here and the output begins in its place.
    pub aliases: Vec<(BufId, BufId)>,
    /// Buffers whose last use this is, and whose storage is released after it (those of `aliases` are not among them).
    pub free: Vec<BufId>,
    /// Of a collective that goes on while later steps run, and of the step that waits for it, the number that the two have
    /// in common, from 0 in the order of starts. Storage of its results begins with the start; until the wait nothing reads
    /// them, and neither they nor its operands end (but for an operand whose storage a result takes at the start).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub async_id: Option<u32>,
}

impl StepKind {
    /// What it reads.
    pub fn reads(&self) -> Vec<&Operand> {
        match self {
            StepKind::Map { inputs, .. } => inputs.iter().collect(),
            StepKind::Random { .. } => Vec::new(),
            StepKind::Contract { a, b, .. } => vec![a, b],
            StepKind::Reduce { input, .. }
            | StepKind::Softmax { input, .. }
            | StepKind::CumSum { input, .. }
            | StepKind::TopK { input, .. }
            | StepKind::LogSumExp { input, .. } => vec![input],
            StepKind::Lookup { table, index, .. } => vec![table, index],
            StepKind::ScatterAdd { values, index, .. } => vec![values, index],
            StepKind::CrossEntropy { logits, label, .. } => vec![logits, label],
            StepKind::CrossEntropyGrad { logits, label, scale, .. } => vec![logits, label, scale],
            StepKind::Convolve { x, w, gives: Part::Result, .. } => vec![x, w],
            StepKind::Convolve { w, y, gives: Part::Input, .. } => vec![w, y],
            StepKind::Convolve { x, y, gives: Part::Kernel, .. } => vec![x, y],
            StepKind::Pool { input, .. } | StepKind::ArgmaxPool { input, .. } => vec![input],
            StepKind::Unpool { tap, values, .. } => vec![tap, values],
            StepKind::Shift { from, .. }
            | StepKind::SplitDim { from, .. }
            | StepKind::MergeDims { from, .. } => {
                vec![from]
            }
            StepKind::Concat { parts, .. } => parts.iter().map(|p| &p.0).collect(),
            StepKind::Copy(c) => vec![&c.from],
            StepKind::Collective(c) => match c {
                Collective::AllReduce { from, .. } => from.iter().collect(),
                Collective::ReduceScatter { from, .. }
                | Collective::AllGather { from, .. }
                | Collective::AllToAll { from, .. }
                | Collective::Permute { from, .. } => vec![from],
            },
            StepKind::Wait { to } => to.iter().collect(),
        }
    }

    /// What it writes. The results of a collective begin where it starts; a wait writes nothing.
    pub fn writes(&self) -> Vec<&Operand> {
        match self {
            StepKind::Map { outs, .. } => outs.iter().map(|o| &o.1).collect(),
            StepKind::Contract { out, .. }
            | StepKind::Reduce { out, .. }
            | StepKind::Lookup { out, .. }
            | StepKind::Random { out, .. }
            | StepKind::ScatterAdd { out, .. }
            | StepKind::Softmax { out, .. }
            | StepKind::CumSum { out, .. }
            | StepKind::TopK { out, .. }
            | StepKind::LogSumExp { out, .. }
            | StepKind::CrossEntropy { out, .. }
            | StepKind::CrossEntropyGrad { out, .. } => vec![out],
            StepKind::Convolve { y: out, gives: Part::Result, .. }
            | StepKind::Convolve { x: out, gives: Part::Input, .. }
            | StepKind::Convolve { w: out, gives: Part::Kernel, .. }
            | StepKind::Pool { out, .. }
            | StepKind::ArgmaxPool { out, .. }
            | StepKind::Unpool { out, .. }
            | StepKind::Shift { out, .. }
            | StepKind::SplitDim { out, .. }
            | StepKind::Concat { out, .. }
            | StepKind::MergeDims { out, .. } => vec![out],
            StepKind::Copy(c) => vec![&c.out],
            StepKind::Collective(c) => match c {
                Collective::AllReduce { to, .. } => to.iter().collect(),
                Collective::ReduceScatter { to, .. }
                | Collective::AllGather { to, .. }
                | Collective::AllToAll { to, .. }
                | Collective::Permute { to, .. } => vec![to],
            },
            StepKind::Wait { .. } => Vec::new(),
        }
    }

    /// Its name, for listings.
    pub fn name(&self) -> &'static str {
        match self {
            StepKind::Map { .. } => "map",
            StepKind::Contract { .. } => "contract",
            StepKind::Reduce { .. } => "reduce",
            StepKind::Lookup { .. } => "lookup",
            StepKind::ScatterAdd { .. } => "scatter_add",
            StepKind::Softmax { log: false, .. } => "softmax",
            StepKind::Softmax { log: true, .. } => "log_softmax",
            StepKind::LogSumExp { .. } => "logsumexp",
            StepKind::CumSum { .. } => "cumsum",
            StepKind::TopK { .. } => "top_k",
            StepKind::CrossEntropy { .. } => "cross_entropy",
            StepKind::CrossEntropyGrad { .. } => "cross_entropy_grad",
            StepKind::Convolve { .. } => "convolve",
            StepKind::Pool { .. } => "pool",
            StepKind::ArgmaxPool { .. } => "argmax_pool",
            StepKind::Unpool { .. } => "unpool",
            StepKind::Shift { .. } => "shift",
            StepKind::Concat { .. } => "concat",
            StepKind::SplitDim { .. } => "split_dim",
            StepKind::MergeDims { .. } => "merge_dims",
            StepKind::Random { .. } => "random",
            StepKind::Copy(_) => "copy",
            StepKind::Collective(c) => c.name(),
            StepKind::Wait { .. } => "wait",
        }
    }
}
