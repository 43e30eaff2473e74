//! Operations of Burn, as the lowering of steps asks for them.

use crate::kernels::Kernel;
use crate::kernels::matmul::FactorDigits;
use crate::kernels::random::RandomBlock;
use crate::lowering::graph::{GraphBuilder, Val};
use crate::lowering::ops::{self, Binary, Reduce, base, number, numeric};
use crate::stored::extents;
use burn_backend::{DType as BurnType, Slice, tensor::IndexingUpdateOp};
use burn_ir::{
    BaseOperationIr, BinaryOpIr, BoolOperationIr, CastOpIr, CatOpIr, FlipOpIr, FloatOperationIr, FullOpIr,
    MaskFillOpIr, MaskWhereOpIr, NumericOperationIr, OperationIr, ReduceDimOpIr, ScalarOpIr,
    SelectAssignOpIr, SelectOpIr, ShapeOpIr, SliceOpIr, UnaryOpIr,
};

impl GraphBuilder {
    pub(crate) fn is_truth(&self, v: Val) -> bool {
        self.dtype(v) == self.target.boolean
    }

    /// `first, first + 1, …` along one of `rank` dims, of extent 1 along all others.
    pub(crate) fn count(&mut self, rank: usize, axis: usize, len: usize, first: usize) -> Val {
        let mut shape = vec![1; rank.max(1)];
        shape[axis] = len;
        self.table(&shape, (first..first + len).map(|i| i as i32).collect())
    }

    /// One number everywhere.
    pub(crate) fn full(&mut self, shape: &[usize], dtype: BurnType, x: f64) -> Val {
        if dtype == self.target.boolean {
            let ones = self.full(shape, BurnType::I32, f64::from(u8::from(x != 0.0)));
            return self.scalar(Binary::Ne, ones, 0.0);
        }
        self.node([], shape.to_vec(), dtype, move |[], out| {
            numeric(dtype, NumericOperationIr::Full(FullOpIr { value: number(dtype, x), out }))
        })
    }

    /// Elements that the host draws; where positions are stored in another order, range by range.
    pub(crate) fn random(&mut self, block: &RandomBlock, dtype: BurnType) -> Val {
        if let Some((axis, pieces)) = block.in_pieces() {
            let parts = pieces.iter().map(|piece| self.random(piece, dtype)).collect();
            return self.cat(parts, axis);
        }
        self.kernel(Kernel::Random(block.clone()), vec![], [(extents(&block.shape()), dtype)])[0]
    }

    /// A function of floats that Burn has.
    pub(crate) fn float(&mut self, f: fn(UnaryOpIr) -> FloatOperationIr, a: Val) -> Val {
        self.alike(a, move |input, out| OperationIr::Float(input.dtype, f(UnaryOpIr { input, out })))
    }

    /// A function of numbers that Burn has.
    pub(crate) fn numeric(&mut self, f: fn(UnaryOpIr) -> NumericOperationIr, a: Val) -> Val {
        self.alike(a, move |input, out| numeric(input.dtype, f(UnaryOpIr { input, out })))
    }

    pub(crate) fn is_nan(&mut self, a: Val) -> Val {
        let shape = self.shape(a).to_vec();
        self.node([a], shape, self.target.boolean, |[input], out| {
            OperationIr::Float(input.dtype, FloatOperationIr::IsNan(UnaryOpIr { input, out }))
        })
    }

    /// A function of two tensors of one rank; extents of 1 are repeated.
    pub(crate) fn binary(&mut self, f: Binary, a: Val, b: Val) -> Val {
        let shape = broadcast(self.shape(a), self.shape(b));
        // Backends repeat numbers, but not all of them truth values.
        let [a, b] = if self.is_truth(a) { [a, b].map(|v| self.expand(v, &shape)) } else { [a, b] };
        let dtype = if f.compares() { self.target.boolean } else { self.dtype(a) };
        self.node([a, b], shape, dtype, move |[lhs, rhs], out| ops::binary(f, BinaryOpIr { lhs, rhs, out }))
    }

    /// A function of a tensor and a number.
    pub(crate) fn scalar(&mut self, f: Binary, a: Val, x: f64) -> Val {
        let dtype = if f.compares() { self.target.boolean } else { self.dtype(a) };
        let shape = self.shape(a).to_vec();
        self.node([a], shape, dtype, move |[lhs], out| {
            ops::scalar(f, ScalarOpIr { rhs: number(lhs.dtype, x), lhs, out })
        })
    }

    pub(crate) fn add(&mut self, a: Val, b: Val) -> Val {
        self.binary(Binary::Add, a, b)
    }

    pub(crate) fn sub(&mut self, a: Val, b: Val) -> Val {
        self.binary(Binary::Sub, a, b)
    }

    pub(crate) fn mul(&mut self, a: Val, b: Val) -> Val {
        self.binary(Binary::Mul, a, b)
    }

    pub(crate) fn and(&mut self, a: Val, b: Val) -> Val {
        self.binary(Binary::And, a, b)
    }

    pub(crate) fn not(&mut self, a: Val) -> Val {
        self.alike(a, |input, out| OperationIr::Bool(BoolOperationIr::Not(UnaryOpIr { input, out })))
    }

    /// Conversion; floats are truncated, and numbers other than 0 are true.
    pub(crate) fn cast(&mut self, a: Val, dtype: BurnType) -> Val {
        if self.dtype(a) == dtype {
            return a;
        }
        if dtype == self.target.boolean {
            return self.scalar(Binary::Ne, a, 0.0);
        }
        let shape = self.shape(a).to_vec();
        // The interpreter has no conversion among integers. One of the two is of bytes, which floats hold exactly.
        let whole = |t: BurnType| matches!(t, BurnType::I32 | BurnType::U8);
        let a = if whole(self.dtype(a)) && whole(dtype) { self.cast(a, BurnType::F32) } else { a };
        self.node([a], shape, dtype, |[input], out| ops::cast(CastOpIr { input, out }))
    }

    /// Reduces one dim to an extent of 1.
    pub(crate) fn reduce(&mut self, f: Reduce, a: Val, axis: usize) -> Val {
        if self.shape(a)[axis] == 1 {
            return a;
        }
        let mut shape = self.shape(a).to_vec();
        shape[axis] = 1;
        let dtype = self.dtype(a);
        self.node([a], shape, dtype, move |[input], out| {
            ops::reduce(f, ReduceDimOpIr { input, out, axis, accumulator_len: 1 })
        })
    }

    /// From the end of one dim to its start.
    pub(crate) fn flip(&mut self, a: Val, axis: usize) -> Val {
        self.alike(a, move |input, out| {
            base(input.dtype, BaseOperationIr::Flip(FlipOpIr { input, out, axes: vec![axis] }))
        })
    }

    /// One further along a dim: the last element is dropped, and 0 comes before the first.
    pub(crate) fn delay(&mut self, a: Val, axis: usize) -> Val {
        let (mut shape, dtype) = (self.shape(a).to_vec(), self.dtype(a));
        let n = std::mem::replace(&mut shape[axis], 1);
        let mut parts = vec![self.full(&shape, dtype, 0.0)];
        if n > 1 {
            parts.push(self.slice(a, axis, 0..n - 1));
        }
        self.cat(parts, axis)
    }

    pub(crate) fn expand(&mut self, a: Val, shape: &[usize]) -> Val {
        if self.shape(a) == shape {
            return a;
        }
        let dtype = self.dtype(a);
        self.node([a], shape.to_vec(), dtype, |[input], out| {
            base(input.dtype, BaseOperationIr::Expand(ShapeOpIr { input, out }))
        })
    }

    pub(crate) fn slice(&mut self, a: Val, axis: usize, range: std::ops::Range<usize>) -> Val {
        if range == (0..self.shape(a)[axis]) {
            return a;
        }
        let (mut shape, dtype) = (self.shape(a).to_vec(), self.dtype(a));
        // All other dims are whole.
        let mut ranges: Vec<Slice> = shape.iter().map(|n| Slice::new(0, Some(*n as isize), 1)).collect();
        ranges[axis] = Slice::new(range.start as isize, Some(range.end as isize), 1);
        shape[axis] = range.len();
        self.node([a], shape, dtype, |[tensor], out| {
            base(tensor.dtype, BaseOperationIr::Slice(SliceOpIr { tensor, ranges, out }))
        })
    }

    pub(crate) fn cat(&mut self, parts: Vec<Val>, axis: usize) -> Val {
        if let [one] = parts[..] {
            return one;
        }
        let mut shape = self.shape(parts[0]).to_vec();
        shape[axis] = parts.iter().map(|p| self.shape(*p)[axis]).sum();
        let dtype = self.dtype(parts[0]);
        self.node_of(parts, shape, dtype, move |parts, out| {
            base(dtype, BaseOperationIr::Cat(CatOpIr { tensors: parts.to_vec(), dim: axis, out }))
        })
    }

    /// `out[.., i, ..] = a[.., indices[i], ..]`.
    pub(crate) fn select(&mut self, a: Val, axis: usize, indices: Val) -> Val {
        let (mut shape, dtype) = (self.shape(a).to_vec(), self.dtype(a));
        shape[axis] = self.shape(indices)[0];
        self.node([a, indices], shape, dtype, move |[tensor, indices], out| {
            base(tensor.dtype, BaseOperationIr::Select(SelectOpIr { tensor, dim: axis, indices, out }))
        })
    }

    /// `a[.., indices[i], ..] += values[.., i, ..]`.
    pub(crate) fn select_add(&mut self, a: Val, axis: usize, indices: Val, values: Val) -> Val {
        let (shape, dtype) = (self.shape(a).to_vec(), self.dtype(a));
        self.node([a, indices, values], shape, dtype, move |[tensor, indices, value], out| {
            let (dim, update) = (axis, IndexingUpdateOp::Add);
            let op = SelectAssignOpIr { tensor, dim, indices, value, update, out };
            base(dtype, BaseOperationIr::SelectAssign(op))
        })
    }

    /// `if mask { yes } else { no }`; extents of 1 are repeated.
    pub(crate) fn choose(&mut self, mask: Val, yes: Val, no: Val) -> Val {
        if self.is_truth(yes) {
            let (a, not) = (self.and(mask, yes), self.not(mask));
            let b = self.and(not, no);
            return self.binary(Binary::Or, a, b);
        }
        let shape = broadcast(&broadcast(self.shape(mask), self.shape(yes)), self.shape(no));
        let [mask, yes, no] = [mask, yes, no].map(|v| self.expand(v, &shape));
        let dtype = self.dtype(yes);
        self.node([no, mask, yes], shape, dtype, |[tensor, mask, value], out| {
            base(tensor.dtype, BaseOperationIr::MaskWhere(MaskWhereOpIr { tensor, mask, value, out }))
        })
    }

    /// `if mask { x } else { a }`; extents of 1 are repeated.
    pub(crate) fn fill(&mut self, a: Val, mask: Val, x: f64) -> Val {
        if self.is_truth(a) {
            let constant = vec![1; self.shape(a).len()];
            let constant = self.full(&constant, self.target.boolean, x);
            return self.choose(mask, constant, a);
        }
        let shape = broadcast(self.shape(a), self.shape(mask));
        let [a, mask] = [a, mask].map(|v| self.expand(v, &shape));
        let dtype = self.dtype(a);
        self.node([a, mask], shape, dtype, move |[tensor, mask], out| {
            let value = number(tensor.dtype, x);
            base(tensor.dtype, BaseOperationIr::MaskFill(MaskFillOpIr { tensor, mask, value, out }))
        })
    }

    /// `[.., rows, columns]` of `[.., rows, summed]` and `[.., summed, columns]`, with elements of `dtype`.
    pub(crate) fn product(&mut self, a: Val, b: Val, dtype: BurnType, digits: FactorDigits) -> Val {
        let rows = self.shape(a).iter().rev().nth(1).copied();
        if !self.target.own_matmul && dtype == self.dtype(a) && rows != Some(1) {
            return self.matmul(a, b);
        }
        let mut shape = self.shape(a).to_vec();
        let last = shape.len() - 1;
        shape[last] = self.shape(b)[last];
        self.kernel(Kernel::Matmul(digits), vec![a, b], [(shape, dtype)])[0]
    }
}

/// The extents of two tensors of one rank after broadcasting.
fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    a.iter().zip(b).map(|(a, b)| if *a == 1 { *b } else { *a }).collect()
}
