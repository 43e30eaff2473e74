//! The closed set of primitives, and what passes know of each. Ops lower to them; each backend implements each once.

pub(super) mod attention;
pub(super) mod functions;
pub(super) mod monoid;
pub(super) mod spec;
pub(super) mod window;

use crate::expr::Reg;
use crate::prim::spec::HalfFloats::{self, Widened};
use crate::prim::spec::{DTypes as T, Donation as D, KernelFamily, Linear, Operands as O, Spec, Work};
use crate::random::Distribution;
use crate::{AttentionPart, AttentionSpec, Axis, Collective, Dim, Expr, Monoid, SlidingWindow};
use serde::{Deserialize, Serialize};

/// The specification of an ordinary primitive.
const PLAIN: Spec = Spec {
    name: "",
    reads: O::Named(&["input"]),
    writes: O::Named(&["out"]),
    donation: D::Never,
    half: HalfFloats::Native,
    dtypes: T::Same,
    rowwise: false,
    row: None,
    linear: Linear::Never,
    folds: None,
    work: Work::Moves,
    family: KernelFamily::Memory,
};

/// Primitives that move the elements of their operand, each once or not at all.
const MOVED: Spec = Spec { linear: Linear::Moved, ..PLAIN };

/// Primitives that are linear in their first operand.
const FIRST: Spec = Spec { linear: Linear::Alone(&[0]), ..PLAIN };

/// Primitives along a dim that is whole.
const ROWS: Spec = Spec { half: Widened, rowwise: true, ..PLAIN };

/// Primitives with windows.
const TAPS: Spec = Spec { half: Widened, family: KernelFamily::Pool, ..PLAIN };

/// Declares the primitives: of each its attributes and, behind the arrow, what passes know of it.
macro_rules! primitives {
    ($($(#[$doc:meta])* $prim:ident
        $({ $($(#[$about:meta])* $field:ident: $type:ty,)* })?
        $(($inner:ident: $of:ty))? => $spec:expr;)*
    ) => {
        /// The computation of a step, with its attributes; [`crate::Step::reads`] and [`crate::Step::writes`] are its operands,
        /// by position. Operands match by dim; a dim that an operand lacks is broadcast. Below, `(a, b) -> c` names the operands
        /// in order. [`Prim::spec`] is what passes know of each.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", tag = "step")]
        pub enum Prim {
            $($(#[$doc])* $prim $({ $($(#[$about])* $field: $type,)* })? $(($of))?,)*
        }

        impl Prim {
            /// The row of the table.
            #[allow(unused_variables, reason = "few rows depend on attributes")]
            pub fn spec(&self) -> Spec {
                match self {
                    $(Prim::$prim $({ $($field,)* })? $(($inner))? => $spec,)*
                }
            }
        }
    };
}

primitives! {
    /// `(inputs…) -> outs…`: `out[i] = expr(inputs[i])`, a register for each result, over the iteration space of the results'
    /// dims (all results have the same dims in the same order, and the same splits). An input may lack dims, and may order
    /// them differently.
    Map {
        /// The expression; `Load(k)` reads operand `k`, `Index(k)` is the global index along dim `k` of the results.
        expr: Expr,
        /// The register of each result.
        regs: Vec<Reg>,
    } => Spec {
        name: "map",
        reads: O::Many("input"),
        writes: O::Many("out"),
        donation: D::Aligned,
        dtypes: T::Expression,
        rowwise: true,
        linear: Linear::Expression,
        work: Work::Expression,
        ..PLAIN
    };
    /// `(a, b) -> out`: sum over the dims that `out` lacks of `a * b`. Every dim of `out` is in `a` or `b`; every summed dim is
    /// in both. Each of the three may be of a half type where the others are `f32`: the sum is taken in `f32`, the result is
    /// rounded.
    Contract => Spec {
        family: KernelFamily::Matmul, name: "contract",
        reads: O::Named(&["a", "b"]),
        dtypes: T::Mixed,
        linear: Linear::Alone(&[0, 1]),
        folds: Some(Monoid::Sum),
        work: Work::Space(2),
        ..PLAIN
    };
    /// `(input) -> out`: folds the dims that `out` lacks. Sums and products of half types are `f32`. `ArgMax` and `ArgMin` fold
    /// exactly one dim and write pairs of value and *global* index. An empty fold gives the identity.
    Reduce {
        /// The reduction.
        monoid: Monoid,
    } => Spec {
        name: "reduce",
        dtypes: T::Folds,
        linear: if *monoid == Monoid::Sum { Linear::Alone(&[0]) } else { Linear::Never },
        folds: Some(*monoid),
        work: Work::Input(1),
        ..PLAIN
    };
    /// `(input) -> out`: the sum of `(scale * input)^2` over the dims that `out` lacks, with [`crate::square_scale`] of the
    /// dtype: finite wherever the root of the sum of squares is.
    ScaledSquares => Spec {
        name: "scaled_squares",
        half: Widened,
        folds: Some(Monoid::Sum),
        work: Work::Input(3),
        ..PLAIN
    };
    /// `(table, indices…) -> out`: `out = table[dims = indices]`, where this device's table holds a range of each of `dims`: an
    /// index outside of it gives 0. The table has `dims`; the indices, one for each, global positions in `I32`, lack them. The
    /// result has the dims of the indices and the rest of the table's.
    Lookup {
        /// The dims that are looked up.
        dims: Vec<Dim>,
    } => Spec {
        family: KernelFamily::Lookup, name: "lookup",
        reads: O::Many("operand"),
        dtypes: T::Entries,
        folds: Some(Monoid::Sum),
        work: Work::Output(1),
        ..FIRST
    };
    /// `(values, indices…) -> out`: `out[dims = indices] += values` (of half types in `f32`), starting at 0: the transpose of a
    /// lookup. What has an index outside this device's range is dropped. Dims of the operands that the result lacks are summed.
    ScatterAdd {
        /// The dims that are scattered to, one for each index; the result has them.
        dims: Vec<Dim>,
    } => Spec {
        family: KernelFamily::TableSum, name: "scatter_add",
        reads: O::Many("operand"),
        dtypes: T::Scatters,
        folds: Some(Monoid::Sum),
        work: Work::Input(1),
        ..FIRST
    };
    /// `(input) -> out`: `softmax`, along a dim that is whole. The result has the same dims in the same order.
    Softmax {
        /// Along which dim.
        dim: Dim,
        /// True for the logarithm.
        log: bool,
    } => Spec {
        name: if *log { "log_softmax" } else { "softmax" },
        donation: D::First,
        row: Some(*dim),
        work: Work::Input(5),
        ..ROWS
    };
    /// `(input) -> out`: `log(sum(exp(input)))` along a dim that is whole; the result lacks it.
    LogSumExp {
        /// Along which dim.
        dim: Dim,
    } => Spec { name: "logsumexp", row: Some(*dim), work: Work::Input(4), ..ROWS };
    /// `(logits, label) -> out`: `logsumexp(logits) - logits[dim = label]` along a dim that is whole; the result lacks it. The
    /// label, a global position in `I32`, has dims of the result only.
    CrossEntropy {
        /// Along which dim.
        dim: Dim,
    } => Spec {
        name: "cross_entropy",
        reads: O::Named(&["logits", "label"]),
        dtypes: T::Positions(1),
        row: Some(*dim),
        work: Work::Input(5),
        ..ROWS
    };
    /// `(logits, label, scale) -> out`: `(softmax(logits) - onehot(label)) * scale`, the gradient of `CrossEntropy`. The scale
    /// is the cotangent: it lacks `dim`, and may lack others. The result has the dims of the logits in the same order.
    CrossEntropyGrad {
        /// Along which dim.
        dim: Dim,
    } => Spec {
        name: "cross_entropy_grad",
        reads: O::Named(&["logits", "label", "scale"]),
        dtypes: T::Positions(1),
        donation: D::First,
        row: Some(*dim),
        linear: Linear::Alone(&[2]),
        work: Work::Input(6),
        ..ROWS
    };
    /// `(queries, keys, …, extras…) -> parts…`: the parts as defined by [`AttentionPart`]. None but the gradient of a bias is
    /// stored with both queries and keys among its dims; [`crate::AttentionOperands`] lists the operands. The scores are the
    /// product of queries and keys, summed over the width, as the specification changes it. Only a step that does not give the
    /// maximum along with other parts may hold a part of the keys, or one of a ring, after which another goes on. Of no keys the
    /// maximum is `-inf`, the sums are 0, and the result is NaN.
    Attention {
        /// The specification that all steps of one attention share.
        spec: Box<AttentionSpec>,
        /// The parts that the step computes.
        parts: Vec<AttentionPart>,
    } => Spec {
        family: KernelFamily::Attention, name: if parts.iter().any(|p| p.is_gradient()) { "attention_grad" } else { "attention" },
        reads: O::Many("operand"),
        writes: O::Many("part"),
        half: Widened,
        dtypes: T::Any,
        linear: match parts[..] {
            [AttentionPart::Values] => Linear::Alone(&[3]),
            [AttentionPart::Query | AttentionPart::Key | AttentionPart::Bias] => Linear::Alone(&[4]),
            [AttentionPart::Value] => Linear::Alone(&[3, 4]),
            _ => Linear::Never,
        },
        folds: Some(if parts[..] == [AttentionPart::Max] { Monoid::Max } else { Monoid::Sum }),
        work: Work::Attention,
        ..PLAIN
    };
    /// `(input) -> out`: the positions of the greatest along a dim that is whole, those of ranks `to`: in descending order of
    /// the values, of equal ones the lowest first, NaN before all numbers. `I32`. The result lacks `dim` and has `to` at its
    /// end.
    TopK {
        /// Along which dim.
        dim: Dim,
        /// The ranks.
        to: Dim,
    } => Spec {
        family: KernelFamily::Scan, name: "top_k",
        dtypes: T::GivesPositions,
        row: Some(*dim),
        work: Work::Input(2),
        ..ROWS
    };
    /// `(input) -> out`: `out[i] = the sum of input[j] for j up to i` along a dim that is whole; an empty sum is 0. The result
    /// has the same dims in the same order.
    CumSum {
        /// Along which dim.
        dim: Dim,
        /// From the end.
        reverse: bool,
        /// Without `input[i]` itself.
        exclusive: bool,
    } => Spec { family: KernelFamily::Scan, name: "cumsum", row: Some(*dim), linear: Linear::Alone(&[0]), work: Work::Output(1), ..ROWS };
    /// A sum of products in which kernels slide: over all positions `n` and taps `t` of every window and the dims that input and
    /// kernel share and the result lacks, with `i = n * stride + t * dilation - low` (nothing beyond the input, or where the
    /// device does not hold it: it then holds zero or another device has it). `computes` says which of the three is written; the
    /// two others are read, in the order of [`Part`].
    Convolve {
        /// The window of each kernel dim.
        windows: Vec<SlidingWindow>,
        /// Which of the three is computed from the two others.
        computes: Part,
    } => {
        let (reads, writes): (&[_], &[_]) = match computes {
            Part::Input => (&["kernel", "result"], &["input"]),
            Part::Kernel => (&["input", "result"], &["kernel"]),
            Part::Result => (&["input", "kernel"], &["result"]),
        };
        let (reads, writes) = (O::Named(reads), O::Named(writes));
        let (linear, folds) = (Linear::Alone(&[0, 1]), Some(Monoid::Sum));
        Spec { family: KernelFamily::Convolve, name: "convolve", reads, writes, linear, folds, work: Work::Taps, ..TAPS }
    };
    /// `(input) -> out`: folds what each kernel position covers, or spreads it. With `spread` unset `out[n] = fold over t of
    /// input[i]`; with `spread` set (sums only) `out[i] = sum over n, t of input[n]`; `i` as in `Convolve`.
    Pool {
        /// The reduction: sum, max or min. Of nothing: the identity.
        monoid: Monoid,
        /// The windows.
        windows: Vec<SlidingWindow>,
        /// The transpose.
        spread: bool,
    } => {
        let work = if *spread { Work::TapsOfInput } else { Work::TapsOfOutput };
        let linear = if *monoid == Monoid::Sum { Linear::Alone(&[0]) } else { Linear::Never };
        Spec { name: "pool", linear, folds: Some(*monoid), work, ..TAPS }
    };
    /// `(input) -> out`: which tap of each window holds the extreme that `Pool` gives: `I32`, row-major over the taps of
    /// `windows` in order; of equal ones the first.
    ArgmaxPool {
        /// Max or min.
        monoid: Monoid,
        /// The windows.
        windows: Vec<SlidingWindow>,
    } => Spec {
        name: "argmax_pool",
        dtypes: T::GivesPositions,
        work: Work::TapsOfOutput,
        ..TAPS
    };
    /// `(tap, values) -> out`: `out[i] = sum over the positions n whose tap is at i of values[n]`, the transpose of taking the
    /// extreme. The tap of each position is `I32`, as `ArgmaxPool` gives it.
    Unpool {
        /// The windows.
        windows: Vec<SlidingWindow>,
    } => Spec {
        name: "unpool",
        reads: O::Named(&["tap", "values"]),
        dtypes: T::Positions(0),
        linear: Linear::Alone(&[1]),
        folds: Some(Monoid::Sum),
        work: Work::TapsOfInput,
        ..TAPS
    };
    /// `(input) -> out`: `out[i] = input[i + start]` along one dim, which may have another name and size on each side; `fill`
    /// beyond the input. All other dims are the same, in the same order.
    Shift {
        /// The dim of the input.
        dim: Dim,
        /// The dim of the result.
        to: Dim,
        /// Offset into the input.
        start: i64,
        /// The value of elements that the input lacks.
        fill: f64,
    } => {
        // A fill is added once, and not by each partial sum.
        let linear = if *fill == 0.0 { Linear::Alone(&[0]) } else { Linear::Never };
        Spec { name: "shift", linear, ..PLAIN }
    };
    /// `(input) -> out`: `out[i] = input[n - 1 - i]` along one dim of size `n`. All other dims are the same, in the same order.
    Reverse {
        /// The dim.
        dim: Dim,
    } => Spec { name: "reverse", ..MOVED };
    /// `(parts…) -> out`: the parts one after the other along one dim; all other dims are the same, in the same order.
    Concat {
        /// Of each part the dim that becomes a part of `to`, and its offset there.
        parts: Vec<(Dim, usize)>,
        /// The dim of the result.
        to: Dim,
    } => Spec { name: "concat", reads: O::Many("part"), linear: Linear::Jointly, ..PLAIN };
    /// `(input) -> out`: `out[i, j] = input[i * size(j) + j]`: one dim becomes several.
    SplitDim {
        /// The dim that is cut.
        dim: Dim,
        /// The resulting dims, outermost first. They lie next to each other in the result.
        to: Vec<Dim>,
    } => Spec { name: "split_dim", ..MOVED };
    /// `(input) -> out`: `out[i * size(j) + j] = input[i, j]`: several dims become one.
    MergeDims {
        /// The dims, the outermost first. They lie next to each other in the input.
        dims: Vec<Dim>,
        /// The dim that they become.
        to: Dim,
    } => Spec { name: "merge_dims", ..MOVED };
    /// `() -> out`: random values. Element `i` of the whole (row-major over the extents of the result) depends on the seed of
    /// the run, the number of the step, `stream` and `i` alone; see [`crate::random::draw`]. In a program that does not
    /// train, seed and step are fixed: [`crate::random::FIXED_SEED`] and 0. A float, or a truth value of `Bernoulli`.
    Random {
        /// Name of the stream: where in the model it is drawn.
        stream: String,
        /// The distribution.
        distribution: Distribution,
    } => Spec {
        name: "random",
        reads: O::Named(&[]),
        half: Widened,
        dtypes: T::Any,
        rowwise: true,
        work: Work::Output(1),
        ..PLAIN
    };
    /// `(input) -> out`: `out[i] = input[i]` for the global indices that this device's `out` holds. Its `input` holds them
    /// too: a local slice, another order of dims, or both; a dim that `input` lacks is repeated.
    Copy => Spec { name: "copy", ..MOVED };
    /// Communication: from start to end, or the start of it where the step has a [`crate::Step::async_id`]. All-reduces,
    /// broadcasts, reduce-scatters and all-gathers are buckets of operands of one dtype, `(from…) -> to…`; all others are
    /// `(from) -> to`.
    Collective(collective: Collective) => match collective {
        Collective::AllReduce { .. } | Collective::Broadcast { .. } => Spec {
            name: collective.name(),
            reads: O::Many("part"),
            writes: O::Many("sum"),
            donation: D::Paired,
            ..PLAIN
        },
        c if c.spec().is_bucketable() => {
            Spec { name: c.name(), reads: O::Many("part"), writes: O::Many("result"), ..PLAIN }
        }
        _ => Spec { name: collective.name(), ..PLAIN },
    };
    /// `(starts…) -> currents…`: a loop begins. The steps up to its `EndRepeat` run once for each position of `dim` that is not
    /// before `from` and that the device holds where the dim is split over `axes`. A current is its start in the first iteration,
    /// then the operand of the `EndRepeat` at the same position. That operand is written with the [`crate::Step::lag`] with which
    /// the current is read, or with one less. In the latter case the current is the value of the turn before, and neither its
    /// start nor its value after the loop is read.
    Repeat {
        /// The dim.
        dim: Dim,
        /// From the last position to the first.
        reverse: bool,
        /// The lowest position.
        from: usize,
        /// Axes that split the dim: each device runs the iterations of its own positions. In the body values are those of the
        /// device; a carry that is partial over these axes around the loop is a sum over the iterations of all devices.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        axes: Vec<Axis>,
    } => Spec {
        name: "repeat",
        reads: O::Many("start"),
        writes: O::Many("current"),
        donation: D::Paired,
        dtypes: T::Any,
        ..PLAIN
    };
    /// `(nexts…) -> lasts…`: the loop that was begun last ends. What is next for each current, in order, and what that is after
    /// the last iteration.
    EndRepeat => Spec {
        name: "end_repeat",
        reads: O::Many("next"),
        writes: O::Many("last"),
        donation: D::Paired,
        dtypes: T::Any,
        ..PLAIN
    };
    /// `(input) -> out`: `out = input[dim = position]`, at the position of the iteration of the loop over `dim` in whose body the
    /// step is. The input is split along `dim` as the loop is. All other dims are the same, in the same order.
    IterationSlice {
        /// The dim of the loop, the first of the input's.
        dim: Dim,
    } => Spec { name: "iteration_slice", ..MOVED };
    /// `(all, value) -> out`: `all` with `value` at the position of the iteration along `dim`, as in `IterationSlice`.
    IterationUpdate {
        /// The dim of the loop, the first of the result's.
        dim: Dim,
    } => Spec {
        name: "iteration_update",
        reads: O::Named(&["all", "value"]),
        donation: D::First,
        linear: Linear::Jointly,
        ..PLAIN
    };
    /// `(all, value, start) -> out`: `all` with `value` at the positions from `start` on along `dim`, which `value` counts along
    /// `from`: `out[dim = start + i] = value[from = i]`. Positions that this device does not hold are dropped. The start, in
    /// `I32`, may have dims of `all`. With `iteration` the dims of `all` begin with that of a loop around the step, `value` lacks
    /// it, and only the position of the iteration is written.
    DynamicUpdateSlice {
        /// Along which dim of the result.
        dim: Dim,
        /// The dim of the value that counts its positions, whole on each device.
        from: Dim,
        /// The dim of the loop, the first of the result's.
        iteration: Option<Dim>,
    } => Spec {
        name: "dynamic_update_slice",
        reads: O::Named(&["all", "value", "start"]),
        donation: D::First,
        dtypes: T::Positions(2),
        row: Some(*from),
        ..PLAIN
    };
    /// `() -> out`: zeros (each is also a partial 0), or memory that nothing reads before it is written.
    Blank {
        /// True if it must be zeros.
        zero: bool,
    } => Spec { name: "blank", reads: O::Named(&[]), dtypes: T::Any, ..PLAIN };
    /// `(starts…) -> received…`: before a loop whose dim is split over stages, the carries as the stage before made them; on the
    /// first stage with positions in the direction of the loop what they start as. It waits for the message of [`Prim::Send`] of
    /// that stage.
    Receive {
        /// The axes of the stages, major first.
        axes: Vec<Axis>,
        /// Whether the last stage is the first one.
        reverse: bool,
    } => Spec {
        family: KernelFamily::Memory, name: "receive",
        reads: O::Many("start"),
        writes: O::Many("received"),
        donation: D::Paired,
        dtypes: T::Any,
        ..MOVED
    };
    /// `(lasts…) ->`: behind such a loop, sends its carries to the stage behind; nothing on the last one. It does not wait for
    /// that stage.
    Send {
        /// The axes of the stages, major first.
        axes: Vec<Axis>,
        /// Whether the last stage is the first one.
        reverse: bool,
    } => Spec { name: "send", reads: O::Many("last"), writes: O::Named(&[]), dtypes: T::Any, ..PLAIN };
    /// `(results…) ->`: the end of a collective that an earlier step of the same async_id started: waits for it. From here on
    /// its results may be read.
    Wait => Spec { name: "wait", reads: O::Many("result"), writes: O::Named(&[]), ..PLAIN };
}

impl Prim {
    /// The windows of primitives that have some.
    pub(crate) fn windows(&self) -> &[SlidingWindow] {
        match self {
            Prim::Convolve { windows, .. }
            | Prim::Pool { windows, .. }
            | Prim::ArgmaxPool { windows, .. }
            | Prim::Unpool { windows } => windows,
            _ => &[],
        }
    }
}

/// One of the three tensors of a convolution, in the order in which a step has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The tensor that the kernel slides over.
    Input,
    /// The kernel.
    Kernel,
    /// The positions.
    Result,
}

impl Part {
    /// Input, kernel and result of a convolution that computes this part from the two others, which are in that order.
    pub fn arrange<T>(self, [a, b]: [T; 2], computed: T) -> [T; 3] {
        match self {
            Part::Input => [computed, a, b],
            Part::Kernel => [a, computed, b],
            Part::Result => [a, b, computed],
        }
    }
}
