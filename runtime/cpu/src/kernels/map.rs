//! Fused element-wise steps: preparation. [`super::map_run`] runs the result.

use super::instruction_set::Level;
use super::strided_walk::Walk;
use super::{Access, Arg, KernelError, SliceMut};
use meshwright_plan::DType;
use meshwright_plan::expr::{BinaryFn, Expr, Node, Reg, Scalar, UnaryFn};

/// Operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapPlace {
    /// A register of the dtype's bank.
    Reg(usize),
    /// An input's elements: in place, or in its register.
    Input(usize),
    /// An output's elements.
    Out(usize),
}

/// Elements that one instruction handles at a time: few enough for all registers to stay in the innermost cache.
pub(super) const BLOCK: usize = 1024;

/// One instruction. `to` and its sources are registers or operands, all of a block's length.
#[derive(Clone, Copy, Debug)]
pub(super) enum MapOp {
    Constant(f64),
    Index(usize),
    PairIndex(usize),
    Unary(UnaryFn, MapPlace),
    Binary(BinaryFn, MapPlace, MapPlace),
    Select(MapPlace, MapPlace, MapPlace),
    Cast(DType, MapPlace),
    /// `x^n` for a constant `n` of 2, 3 or 4.
    Power(u8, MapPlace),
    /// An input's elements are brought into a register, if they cannot be read where they are.
    Load(usize),
}

/// An instruction, with the dtype that it computes in (that of its operands, for comparisons) and where it writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instr {
    pub(super) op: MapOp,
    pub(super) dtype: DType,
    pub(super) to: MapPlace,
}

/// Something that a block reads by position: an input, or the counter of an `Index`.
#[derive(Clone, Debug)]
pub(super) struct MapSource {
    pub(super) dtype: DType,
    pub(super) strides: Vec<usize>,
    pub(super) offset: usize,
    /// Elements that the input must have.
    pub(super) reach: usize,
    /// Element `i` of the iteration is element `i` of the input.
    pub(super) dense: bool,
    /// All elements of the iteration read the same one.
    pub(super) uniform: bool,
    /// For inputs that blocks read, the register for their elements.
    pub(super) reg: Option<usize>,
}

/// A prepared map: several outputs, each an expression of the inputs' elements.
#[derive(Clone, Debug)]
pub struct MapKernel {
    pub(super) total: usize,
    pub(super) shape: Vec<usize>,
    pub(super) inputs: Vec<MapSource>,
    pub(super) counters: Vec<MapSource>,
    /// The dim that each counter counts.
    pub(super) counted: Vec<usize>,
    /// Computed once per run, for a single element.
    pub(super) uniform: Vec<Instr>,
    /// Registers that a block reads and that hold one uniform number.
    pub(super) splat: Vec<(DType, usize)>,
    /// Computed for each block.
    pub(super) body: Vec<Instr>,
    /// Outputs that no instruction writes directly: copied from there at the end of each block.
    pub(super) stores: Vec<(usize, MapPlace)>,
    pub(super) outs: Vec<DType>,
    /// Registers of each bank.
    pub(super) banks: [usize; 4],
    pub(super) level: Level,
}

/// Number of the bank of registers for a dtype; pairs have none.
pub(super) fn bank(dtype: DType) -> Option<usize> {
    match dtype {
        DType::F64 => Some(0),
        // Computed in `f32`, and rounded where it is made.
        DType::F32 | DType::BF16 | DType::F16 => Some(1),
        DType::I32 => Some(2),
        DType::U8 | DType::Bool => Some(3),
        DType::PairF32 | DType::PairF64 => None,
    }
}

impl MapKernel {
    /// Prepares `outs[k][i] = expr's register outs[k]` over the iteration `shape`. `Load(k)` reads by `inputs[k]`;
    /// `Index(d)` is `index_offsets[d]` plus the position along dim `d` of `shape`. Outputs are dense over `shape`.
    ///
    /// # Errors
    /// If the expression reads a missing operand, mixes dtypes, applies a function to a dtype that lacks it, or uses
    /// pairs for anything but `PairIndex` of a `Load`.
    pub fn new(
        expr: &Expr,
        shape: &[usize],
        inputs: &[Access],
        index_offsets: &[usize],
        outs: &[Reg],
    ) -> Result<MapKernel, KernelError> {
        check(expr, shape, inputs, index_offsets, outs)?;
        let stored: Vec<DType> = outs.iter().map(|r| expr.dtype(*r)).collect();
        let (expr, outs) = &rounding(expr, outs);
        // A counter is an access whose position is the index itself.
        let mut counted: Vec<usize> = vec![];
        for n in &expr.nodes {
            if let Scalar::Index(d) = n.scalar
                && !counted.contains(&usize::from(d))
            {
                counted.push(usize::from(d));
            }
        }
        let counters: Vec<Access> = counted
            .iter()
            .map(|d| Access {
                dtype: DType::I32,
                offset: index_offsets[*d],
                strides: (0..shape.len()).map(|e| usize::from(e == *d)).collect(),
            })
            .collect();
        let all: Vec<&Access> = inputs.iter().chain(&counters).collect();
        let walk = Walk::new(shape, &all)?;
        let mut sources: Vec<MapSource> = all
            .iter()
            .enumerate()
            .map(|(k, a)| MapSource {
                dtype: a.dtype,
                strides: walk.strides[k].clone(),
                offset: a.offset,
                reach: a.reach(shape),
                dense: a.is_dense(shape),
                uniform: walk.strides[k].iter().all(|s| *s == 0),
                reg: None,
            })
            .collect();
        let counters = sources.split_off(inputs.len());
        let kernel = MapKernel {
            total: shape.iter().product(),
            shape: walk.shape,
            inputs: sources,
            counters,
            counted: counted.clone(),
            uniform: vec![],
            splat: vec![],
            body: vec![],
            stores: vec![],
            outs: stored,
            banks: [0; 4],
            level: Level::best(),
        };
        Ok(Compiler::new(expr, outs, &counted, kernel).compile())
    }

    /// Whether it reads positions.
    pub(super) fn counts(&self) -> bool {
        !self.counters.is_empty()
    }

    /// The same with other indices of the first position along each dim.
    pub(super) fn counted_from(&self, offsets: &[usize]) -> MapKernel {
        let mut moved = self.clone();
        for (counter, dim) in moved.counters.iter_mut().zip(&self.counted) {
            counter.offset = offsets[*dim];
        }
        moved
    }

    /// For another instruction set.
    #[cfg(test)]
    pub(super) fn with_level(mut self, level: Level) -> MapKernel {
        self.level = level;
        self
    }

    pub(super) fn check_operands(&self, args: &[Arg<'_>], outs: &[SliceMut<'_>]) -> Result<(), KernelError> {
        if args.len() != self.inputs.len() {
            return Err(KernelError::Count { expected: self.inputs.len(), found: args.len() });
        }
        if outs.len() != self.outs.len() {
            return Err(KernelError::Count { expected: self.outs.len(), found: outs.len() });
        }
        for (o, dtype) in outs.iter().zip(&self.outs) {
            super::check_out(o, *dtype, self.total)?;
        }
        for (a, source) in args.iter().zip(&self.inputs) {
            match a {
                Arg::Slice(s) => super::check_in(s, source.dtype, source.reach)?,
                Arg::Out(k) => {
                    let out =
                        outs.get(*k).ok_or(KernelError::Count { expected: *k + 1, found: outs.len() })?;
                    super::check_in(&out.as_slice(), source.dtype, self.total)?;
                    if !source.dense {
                        return Err(KernelError::Unsupported(
                            "an output's contents are not read in order".into(),
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Everything that running relies on.
fn check(
    expr: &Expr,
    shape: &[usize],
    inputs: &[Access],
    offsets: &[usize],
    outs: &[Reg],
) -> Result<(), KernelError> {
    let bad = |i: usize, n: &Node, why: &str| {
        Err(KernelError::Unsupported(format!(
            "node {i} of an expression, {:?} of {}: {why}",
            n.scalar, n.dtype
        )))
    };
    if offsets.len() != shape.len() {
        return Err(KernelError::Rank { expected: shape.len(), found: offsets.len() });
    }
    for (i, n) in expr.nodes.iter().enumerate() {
        if n.scalar.reads().iter().any(|r| usize::from(*r) >= i) {
            return bad(i, n, "it reads a later node");
        }
        let t = |r: Reg| expr.dtype(r);
        let fits = match n.scalar {
            Scalar::Load(k) => match inputs.get(usize::from(k)) {
                None => return bad(i, n, "there is no such input"),
                Some(a) => a.dtype == n.dtype,
            },
            Scalar::Const(_) => !n.dtype.is_pair(),
            Scalar::Index(d) => {
                let Some(len) = shape.get(usize::from(d)) else { return bad(i, n, "there is no such dim") };
                if offsets[usize::from(d)].saturating_add(*len) > i32::MAX as usize {
                    return bad(i, n, "the dim is too long for its index");
                }
                n.dtype == DType::I32
            }
            Scalar::PairIndex(r) => {
                if !matches!(expr.nodes[usize::from(r)].scalar, Scalar::Load(_)) {
                    return bad(i, n, "only loaded pairs have an index");
                }
                t(r).is_pair() && n.dtype == DType::I32
            }
            Scalar::Unary(f, a) => t(a) == n.dtype && f.takes(n.dtype),
            Scalar::Binary(f, a, b) => t(a) == t(b) && f.result(t(a)) == Some(n.dtype),
            Scalar::Select(c, a, b) => {
                t(c) == DType::Bool && t(a) == n.dtype && t(b) == n.dtype && !n.dtype.is_pair()
            }
            Scalar::Cast(a) => !t(a).is_pair() && !n.dtype.is_pair(),
        };
        if !fits {
            return bad(i, n, "the dtypes do not fit");
        }
    }
    for r in outs {
        match expr.nodes.get(usize::from(*r)) {
            None => {
                return Err(KernelError::Unsupported(format!("an output is node {r}, which is not there")));
            }
            Some(n) if n.dtype.is_pair() => {
                return Err(KernelError::Unsupported("an output of a map is a pair".into()));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// The expression with all half types computed in `f32`: only loads and rounding casts have half types in the result,
/// and their consumers take them as `f32`. Every node of a half type is rounded, so that fusion changes no number.
fn rounding(expr: &Expr, outs: &[Reg]) -> (Expr, Vec<Reg>) {
    let mut e = Expr::default();
    let mut at: Vec<Reg> = Vec::with_capacity(expr.nodes.len());
    for n in &expr.nodes {
        let narrow = n.dtype.is_half();
        let of = n.scalar.map_reads(|r| at[usize::from(r)]);
        let reg = match of {
            // A value of a half type is an `f32` number without conversion.
            Scalar::Cast(a) if e.dtype(a).is_half() && [DType::F32, e.dtype(a)].contains(&n.dtype) => a,
            Scalar::Cast(a) if narrow && e.dtype(a).wide() == DType::F32 => e.push(Scalar::Cast(a), n.dtype),
            Scalar::Load(_) => e.push(of, n.dtype),
            _ if narrow => {
                let wide = e.push(of, DType::F32);
                e.push(Scalar::Cast(wide), n.dtype)
            }
            _ => e.push(of, n.dtype),
        };
        at.push(reg);
    }
    (e, outs.iter().map(|r| at[usize::from(*r)]).collect())
}

/// From nodes to instructions with registers.
struct Compiler<'a> {
    expr: &'a Expr,
    outs: &'a [Reg],
    counted: &'a [usize],
    kernel: MapKernel,
    /// Node that is needed at all.
    live: Vec<bool>,
    /// Node whose value is the same for all elements.
    uniform: Vec<bool>,
    /// Last instruction that reads a node; outputs are read at the end.
    last: Vec<usize>,
    place: Vec<Option<MapPlace>>,
    free: [Vec<usize>; 4],
}

impl<'a> Compiler<'a> {
    fn new(expr: &'a Expr, outs: &'a [Reg], counted: &'a [usize], kernel: MapKernel) -> Compiler<'a> {
        let n = expr.nodes.len();
        let mut c = Compiler {
            expr,
            outs,
            counted,
            kernel,
            live: vec![false; n],
            uniform: vec![false; n],
            last: vec![0; n],
            place: vec![None; n],
            free: Default::default(),
        };
        for r in outs {
            c.live[usize::from(*r)] = true;
            c.last[usize::from(*r)] = n;
        }
        for i in (0..n).rev() {
            if !c.live[i] {
                continue;
            }
            for r in c.reads(i) {
                c.live[r] = true;
                c.last[r] = c.last[r].max(i);
            }
        }
        for i in 0..n {
            c.uniform[i] = match expr.nodes[i].scalar {
                Scalar::Load(k) => c.kernel.inputs[usize::from(k)].uniform,
                Scalar::Const(_) => true,
                Scalar::Index(d) => c.kernel.counters[c.counter(d)].uniform,
                Scalar::PairIndex(r) => c.uniform[usize::from(r)],
                s => s.reads().iter().all(|r| c.uniform[usize::from(*r)]),
            };
        }
        c
    }

    fn counter(&self, dim: u16) -> usize {
        self.counted.iter().position(|d| *d == usize::from(dim)).unwrap_or(0)
    }

    /// The constant exponent of a power that multiplications compute.
    fn exponent(&self, i: usize) -> Option<u8> {
        let Node { scalar: Scalar::Binary(BinaryFn::Pow, _, e), dtype } = self.expr.nodes[i] else {
            return None;
        };
        match self.expr.nodes[usize::from(e)].scalar {
            Scalar::Const(x) if dtype.is_float() && (x == 2.0 || x == 3.0 || x == 4.0) => Some(x as u8),
            _ => None,
        }
    }

    /// Nodes whose registers a node reads. Indices of pairs are read from the input itself.
    fn reads(&self, i: usize) -> Vec<usize> {
        match self.expr.nodes[i].scalar {
            Scalar::PairIndex(_) => vec![],
            Scalar::Binary(BinaryFn::Pow, a, _) if self.exponent(i).is_some() => vec![usize::from(a)],
            s => s.reads().into_iter().map(usize::from).collect(),
        }
    }

    fn new_reg(&mut self, dtype: DType) -> usize {
        let Some(b) = bank(dtype) else { return 0 };
        self.free[b].pop().unwrap_or_else(|| {
            self.kernel.banks[b] += 1;
            self.kernel.banks[b] - 1
        })
    }

    fn at(&self, r: Reg) -> MapPlace {
        self.place[usize::from(r)].unwrap_or(MapPlace::Reg(0))
    }

    fn compile(mut self) -> MapKernel {
        let live: Vec<usize> = (0..self.live.len()).filter(|i| self.live[*i]).collect();
        // Registers of inputs and of uniform values are theirs alone, so they are given out first.
        for i in live.iter().copied() {
            let dtype = self.expr.nodes[i].dtype;
            match self.expr.nodes[i].scalar {
                Scalar::Load(k) if !self.uniform[i] => {
                    let reg = self.new_reg(dtype);
                    self.kernel.inputs[usize::from(k)].reg = Some(reg);
                    self.place[i] = Some(MapPlace::Input(usize::from(k)));
                }
                _ if self.uniform[i] => self.place[i] = Some(MapPlace::Reg(self.new_reg(dtype))),
                _ => {}
            }
        }
        for i in live.iter().copied() {
            self.instruction(i);
        }
        for (k, r) in self.outs.iter().enumerate() {
            let place = self.at(*r);
            if place != MapPlace::Out(k) {
                self.kernel.stores.push((k, place));
            }
        }
        self.splats();
        self.kernel
    }

    fn instruction(&mut self, i: usize) {
        let node = self.expr.nodes[i];
        let mut dtype = node.dtype;
        let op = match node.scalar {
            Scalar::Load(k) if self.uniform[i] => MapOp::Load(usize::from(k)),
            Scalar::Load(_) => return,
            Scalar::Const(x) => MapOp::Constant(x),
            Scalar::Index(d) => MapOp::Index(self.counter(d)),
            Scalar::PairIndex(r) => match self.expr.nodes[usize::from(r)].scalar {
                Scalar::Load(k) => MapOp::PairIndex(usize::from(k)),
                _ => return,
            },
            Scalar::Unary(f, a) => MapOp::Unary(f, self.at(a)),
            Scalar::Binary(f, a, b) => {
                dtype = self.expr.dtype(a);
                match self.exponent(i) {
                    Some(n) => MapOp::Power(n, self.at(a)),
                    None => MapOp::Binary(f, self.at(a), self.at(b)),
                }
            }
            Scalar::Select(c, a, b) => MapOp::Select(self.at(c), self.at(a), self.at(b)),
            Scalar::Cast(a) => {
                dtype = self.expr.dtype(a);
                MapOp::Cast(node.dtype, self.at(a))
            }
        };
        // Registers hold half types as `f32`.
        let dtype = dtype.wide();
        if self.uniform[i] {
            let to = self.at(i as Reg);
            self.kernel.uniform.push(Instr { op, dtype, to });
            return;
        }
        let out = self.outs.iter().position(|r| usize::from(*r) == i);
        let to = match out {
            // A value that is stored in a half type is rounded in a register first.
            Some(k) if self.kernel.outs[k] == node.dtype && !node.dtype.is_half() => MapPlace::Out(k),
            _ => MapPlace::Reg(self.new_reg(node.dtype)),
        };
        self.place[i] = Some(to);
        self.kernel.body.push(Instr { op, dtype, to });
        // Freed only after `to` was chosen, so that no instruction overwrites its operands.
        let mut reads = self.reads(i);
        reads.sort_unstable();
        reads.dedup();
        for r in reads {
            if let (Some(MapPlace::Reg(reg)), Some(b)) = (self.place[r], bank(self.expr.nodes[r].dtype))
                && self.last[r] == i
                && !self.uniform[r]
            {
                self.free[b].push(reg);
            }
        }
    }

    /// Uniform values that blocks or outputs read.
    fn splats(&mut self) {
        let n = self.expr.nodes.len();
        let mut read = vec![false; n];
        for i in (0..n).filter(|i| self.live[*i] && !self.uniform[*i]) {
            self.reads(i).into_iter().for_each(|r| read[r] = true);
        }
        self.outs.iter().for_each(|r| read[usize::from(*r)] = true);
        for i in (0..n).filter(|i| read[*i] && self.uniform[*i]) {
            if let Some(MapPlace::Reg(reg)) = self.place[i] {
                self.kernel.splat.push((self.expr.nodes[i].dtype.wide(), reg));
            }
        }
    }
}
