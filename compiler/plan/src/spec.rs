//! The table of primitives: what every pass wants to know of each, said once.

use crate::expr::Scalar;
use crate::{BufId, Collective, DType, Dim, Expr, Monoid, Operand, Part, Plan, Prim, SlidingWindow, Step};

/// What passes know of a primitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Its name, for listings.
    pub name: &'static str,
    /// What it reads.
    pub reads: Operands,
    /// What it writes.
    pub writes: Operands,
    /// Which operand's storage a result may take.
    pub donation: Donation,
    /// What happens to operands and results of `bf16`.
    pub bf16: Bf16,
    /// Whether a row of the result (the elements along the dim that the primitive names, or one element where it names none)
    /// depends on nothing but that row of the operands, so that any range of rows can be computed by itself.
    pub rowwise: bool,
    /// In which operands it is linear, so that partial sums may pass through it.
    pub linear: Linear,
    /// What it computes.
    pub work: Work,
}

/// Operands of a primitive, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// As many as there are names.
    Named(&'static [&'static str]),
    /// Any number of one kind.
    Many(&'static str),
}

/// Which results may be written into the storage of which operands. Shape and dtype must be the same besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Donation {
    /// None.
    Never,
    /// Any result into any operand that it reads in the order in which it writes the result: each element depends on none of
    /// the operand but that at its own position.
    Aligned,
    /// The result into the first operand, if no other operand is that buffer too: each row depends on the operand's own row.
    First,
    /// Each result into the operand of its position, if no other operand is that buffer too.
    Paired,
}

/// What happens to operands and results of `bf16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bf16 {
    /// The primitive takes them, and sums in `f32`.
    Native,
    /// It computes on copies in `f32`; results are rounded once, where they are stored.
    Widened,
}

/// In which operands a primitive is linear: there `f` of a sum is the sum of `f`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linear {
    /// In none.
    Never,
    /// In each of these positions alone, the other operands held fixed.
    Alone(&'static [usize]),
    /// In all operands together.
    Jointly,
    /// As the expression of a map is.
    Expression,
}

/// Floating-point operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// None: it moves data.
    Moves,
    /// As many for each element of the first operand.
    Input(u64),
    /// As many for each element of the first result.
    Output(u64),
    /// As many for each position of the dims of all operands and results.
    Space(u64),
    /// Those of the expression of a map, for each element of a result.
    Expression,
    /// A product and a sum for each tap at each position of a convolution.
    Taps,
    /// One for each tap at each element of the first operand.
    TapsOfInput,
    /// One for each tap at each element of the result.
    TapsOfOutput,
}

impl Operands {
    /// Whether there may be so many.
    pub fn takes(self, count: usize) -> bool {
        match self {
            Operands::Named(names) => names.len() == count,
            Operands::Many(_) => true,
        }
    }

    /// What the operand at a position is called.
    pub fn name(self, position: usize) -> &'static str {
        match self {
            Operands::Named(names) => names.get(position).copied().unwrap_or("too many"),
            Operands::Many(name) => name,
        }
    }
}

impl Prim {
    /// The line of the table.
    pub fn spec(&self) -> Spec {
        use {Bf16::Widened, Donation as D, Operands as O};
        const OUT: Operands = O::Named(&["out"]);
        const INPUT: Operands = O::Named(&["input"]);
        let (reads, writes) = (INPUT, OUT);
        let (donation, bf16, rowwise) = (D::Never, Bf16::Native, false);
        let linear = Linear::Never;
        let plain = Spec { name: "", reads, writes, donation, bf16, rowwise, linear, work: Work::Moves };
        let first = Spec { linear: Linear::Alone(&[0]), ..plain };
        let rows = Spec { bf16: Widened, rowwise: true, ..plain };
        let taps = Spec { bf16: Widened, ..plain };
        match self {
            Prim::Map { .. } => Spec {
                name: "map",
                reads: O::Many("input"),
                writes: O::Many("out"),
                donation: D::Aligned,
                rowwise: true,
                linear: Linear::Expression,
                work: Work::Expression,
                ..plain
            },
            Prim::Contract => Spec {
                name: "contract",
                reads: O::Named(&["a", "b"]),
                linear: Linear::Alone(&[0, 1]),
                work: Work::Space(2),
                ..plain
            },
            Prim::Reduce { monoid: Monoid::Sum } => Spec { name: "reduce", work: Work::Input(1), ..first },
            Prim::Reduce { .. } => Spec { name: "reduce", work: Work::Input(1), ..plain },
            Prim::Lookup { .. } => {
                Spec { name: "lookup", reads: O::Named(&["table", "index"]), work: Work::Output(1), ..first }
            }
            Prim::ScatterAdd { .. } => Spec {
                name: "scatter_add",
                reads: O::Named(&["values", "index"]),
                work: Work::Input(1),
                ..first
            },
            Prim::Softmax { log, .. } => Spec {
                name: if *log { "log_softmax" } else { "softmax" },
                donation: D::First,
                work: Work::Input(5),
                ..rows
            },
            Prim::LogSumExp { .. } => Spec { name: "logsumexp", work: Work::Input(4), ..rows },
            Prim::CrossEntropy { .. } => Spec {
                name: "cross_entropy",
                reads: O::Named(&["logits", "label"]),
                work: Work::Input(5),
                ..rows
            },
            Prim::CrossEntropyGrad { .. } => Spec {
                name: "cross_entropy_grad",
                reads: O::Named(&["logits", "label", "scale"]),
                donation: D::First,
                linear: Linear::Alone(&[2]),
                work: Work::Input(6),
                ..rows
            },
            Prim::TopK { .. } => Spec { name: "top_k", work: Work::Input(2), ..rows },
            Prim::CumSum { .. } => {
                Spec { name: "cumsum", linear: Linear::Alone(&[0]), work: Work::Output(1), ..rows }
            }
            Prim::Convolve { computes, .. } => {
                let (reads, writes): (&[_], &[_]) = match computes {
                    Part::Input => (&["kernel", "result"], &["input"]),
                    Part::Kernel => (&["input", "result"], &["kernel"]),
                    Part::Result => (&["input", "kernel"], &["result"]),
                };
                let (reads, writes) = (O::Named(reads), O::Named(writes));
                Spec {
                    name: "convolve",
                    reads,
                    writes,
                    linear: Linear::Alone(&[0, 1]),
                    work: Work::Taps,
                    ..taps
                }
            }
            Prim::Pool { spread, monoid, .. } => {
                let linear = if *monoid == Monoid::Sum { Linear::Alone(&[0]) } else { Linear::Never };
                let work = if *spread { Work::TapsOfInput } else { Work::TapsOfOutput };
                Spec { name: "pool", linear, work, ..taps }
            }
            Prim::ArgmaxPool { .. } => Spec { name: "argmax_pool", work: Work::TapsOfOutput, ..taps },
            Prim::Unpool { .. } => Spec {
                name: "unpool",
                reads: O::Named(&["tap", "values"]),
                linear: Linear::Alone(&[1]),
                work: Work::TapsOfInput,
                ..taps
            },
            Prim::Shift { fill: 0.0, .. } => Spec { name: "shift", ..first },
            Prim::Shift { .. } => Spec { name: "shift", ..plain },
            Prim::Concat { .. } => {
                Spec { name: "concat", reads: O::Many("part"), linear: Linear::Jointly, ..plain }
            }
            Prim::SplitDim { .. } => Spec { name: "split_dim", ..first },
            Prim::MergeDims { .. } => Spec { name: "merge_dims", ..first },
            Prim::Random { .. } => Spec {
                name: "random",
                reads: O::Named(&[]),
                bf16: Widened,
                rowwise: true,
                work: Work::Output(1),
                ..plain
            },
            Prim::Copy => Spec { name: "copy", ..first },
            Prim::Collective(c @ Collective::AllReduce { .. }) => Spec {
                name: c.name(),
                reads: O::Many("part"),
                writes: O::Many("sum"),
                donation: D::Paired,
                ..plain
            },
            Prim::Collective(c) if c.spec().is_bucketable() => {
                Spec { name: c.name(), reads: O::Many("part"), writes: O::Many("result"), ..plain }
            }
            Prim::Collective(c) => Spec { name: c.name(), ..plain },
            Prim::Wait => Spec { name: "wait", reads: O::Many("result"), writes: O::Named(&[]), ..plain },
        }
    }

    /// How windows slide, of primitives that have some.
    fn windows(&self) -> &[SlidingWindow] {
        match self {
            Prim::Convolve { windows, .. }
            | Prim::Pool { windows, .. }
            | Prim::ArgmaxPool { windows, .. }
            | Prim::Unpool { windows } => windows,
            _ => &[],
        }
    }
}

impl Step {
    /// Whether it has as many operands and results as its primitive takes and gives.
    pub fn fits(&self) -> bool {
        let spec = self.prim.spec();
        let paired = spec.donation != Donation::Paired || self.reads.len() == self.writes.len();
        let attributes = match &self.prim {
            Prim::Map { regs, .. } => regs.len() == self.writes.len() && !regs.is_empty(),
            Prim::Concat { parts, .. } => parts.len() == self.reads.len(),
            Prim::Collective(c) => c.takes(self.reads.len()) && self.reads.len() == self.writes.len(),
            _ => true,
        };
        spec.reads.takes(self.reads.len()) && spec.writes.takes(self.writes.len()) && paired && attributes
    }

    /// Whether it may write `to` into the storage of `from`, if shape and dtype are the same.
    pub fn may_donate(&self, from: BufId, to: BufId) -> bool {
        let mut read = self.reads.iter().enumerate().filter(|(_, o)| o.buf == from);
        let written = self.writes.iter().enumerate().find(|(_, o)| o.buf == to);
        let (Some((i, first)), Some((k, out))) = (read.next(), written) else { return false };
        let aligned = first.dims == out.dims;
        match self.prim.spec().donation {
            Donation::Never => false,
            Donation::Aligned => aligned && read.all(|(_, o)| o.dims == out.dims),
            Donation::First => aligned && i == 0 && read.next().is_none(),
            Donation::Paired => aligned && i == k && read.next().is_none(),
        }
    }

    /// Floating-point operations of the device with the largest shards.
    pub fn flops(&self, plan: &Plan) -> u64 {
        let elements = |o: Option<&Operand>| o.map_or(0, |o| plan.buffer(o.buf).largest(&plan.mesh) as u64);
        let (input, output) = (self.reads.first(), self.writes.first());
        let taps = || self.prim.windows().iter().map(|w| plan.dims.size(w.tap) as u64).product::<u64>();
        match self.prim.spec().work {
            Work::Moves => 0,
            Work::Input(each) => each * elements(input),
            Work::Output(each) => each * elements(output),
            Work::Space(each) => each * self.space(plan, &|_| true),
            Work::Expression => match &self.prim {
                Prim::Map { expr, .. } => operations(expr) * elements(output),
                _ => 0,
            },
            Work::TapsOfInput => taps() * elements(input),
            Work::TapsOfOutput => taps() * elements(output),
            Work::Taps => {
                let windows = self.prim.windows();
                let slides = |d: Dim| windows.iter().any(|w| [w.wide, w.narrow, w.tap].contains(&d));
                // A gradient of the input visits as many pairs as there are elements, taken every stride.
                let backward = matches!(self.prim, Prim::Convolve { computes: Part::Input, .. });
                let along = windows.iter().map(|w| {
                    let taps = plan.dims.size(w.tap) as u64;
                    match backward {
                        true => (self.local(plan, w.wide) * taps).div_ceil(w.stride as u64),
                        false => self.local(plan, w.narrow) * taps,
                    }
                });
                2 * self.space(plan, &|d| !slides(d)) * along.product::<u64>()
            }
        }
    }

    /// Bytes of memory that the device with the largest shards reads and writes. Of a table that is looked up, the entries that
    /// are read.
    pub fn memory_bytes(&self, plan: &Plan) -> u64 {
        let bytes = |o: &Operand| plan.buffer(o.buf).largest_bytes(&plan.mesh) as u64;
        match &self.prim {
            Prim::Wait => 0,
            Prim::Lookup { .. } => {
                self.reads.iter().skip(1).map(bytes).sum::<u64>()
                    + 2 * self.writes.iter().map(bytes).sum::<u64>()
            }
            _ => self.all().map(bytes).sum(),
        }
    }

    /// Elements of a dim on the device with the largest shards.
    fn local(&self, plan: &Plan, dim: Dim) -> u64 {
        let of =
            |o: &Operand| Some(plan.buffer(o.buf).extents[o.dims.iter().position(|d| *d == dim)?].clone());
        self.all().find_map(of).map_or(1, |e| e.largest(&plan.mesh) as u64)
    }

    /// Positions of all dims that `counts`.
    fn space(&self, plan: &Plan, counts: &dyn Fn(Dim) -> bool) -> u64 {
        let mut dims: Vec<Dim> = self.all().flat_map(|o| o.dims.iter().copied()).collect();
        dims.sort();
        dims.dedup();
        dims.into_iter().filter(|d| counts(*d)).map(|d| self.local(plan, d)).product()
    }
}

/// Floating-point operations of an expression at one position.
fn operations(expr: &Expr) -> u64 {
    let computes = |s: &Scalar| matches!(s, Scalar::Unary(..) | Scalar::Binary(..) | Scalar::Select(..));
    expr.nodes.iter().filter(|n| computes(&n.scalar) && n.dtype != DType::Bool).count() as u64
}
