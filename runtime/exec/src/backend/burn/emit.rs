//! A list of tensor operations under construction: values with shapes and dtypes, and how each comes to be.
//!
//! Operations are recorded in an order in which they can run. [`Emit::finish`] drops what nobody needs, gives every value
//! an id, and marks last uses, so that storage is handed over where it ends.

use super::ops::{Binary, Op, Reduce, Unary, operation};
use burn_backend::{DType as BurnType, Shape};
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use meshwright_plan::BufId;
use std::collections::{BTreeMap, BTreeSet};

/// A value of the step that is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Val(usize);

/// Where a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Home {
    /// A buffer of the Plan; of pairs the values.
    Buffer(BufId),
    /// The indices of a buffer of pairs.
    Indices(BufId),
    /// An unchanging table that is uploaded once.
    Table(usize),
    /// A result that lives within its step.
    Temporary(u64),
}

impl Home {
    /// The id under which an interpreter knows it.
    pub(crate) fn id(self) -> TensorId {
        let kind = |k: u64, n: u64| TensorId::new(k << 40 | n);
        match self {
            Home::Buffer(b) => kind(0, u64::from(b.0)),
            Home::Indices(b) => kind(1, u64::from(b.0)),
            Home::Table(t) => kind(2, t as u64),
            Home::Temporary(n) => kind(3, n),
        }
    }
}

/// An unchanging table of integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) shape: Vec<usize>,
    pub(crate) elements: Vec<i32>,
}

struct Value {
    shape: Vec<usize>,
    dtype: BurnType,
    /// Of what is not computed in this step.
    home: Option<Home>,
}

struct Node {
    op: Op,
    inputs: Vec<Val>,
    out: Val,
}

/// What backends do each in their own way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// How truth values are stored.
    pub(crate) boolean: BurnType,
    /// See [`super::Plain::own_products`].
    pub(crate) own_products: bool,
}

/// Operations of one step, and what outlives it.
pub(crate) struct Emit {
    values: Vec<Value>,
    nodes: Vec<Node>,
    /// Results, with where they go.
    stored: Vec<(Val, Home)>,
    /// Tables of the whole program.
    pub(crate) tables: Vec<Table>,
    habits: Habits,
    temporaries: u64,
}

impl Emit {
    /// For a backend of these habits.
    pub(crate) fn new(habits: Habits) -> Emit {
        Emit { values: vec![], nodes: vec![], stored: vec![], tables: vec![], habits, temporaries: 0 }
    }

    pub(crate) fn shape(&self, v: Val) -> &[usize] {
        &self.values[v.0].shape
    }

    pub(crate) fn dtype(&self, v: Val) -> BurnType {
        self.values[v.0].dtype
    }

    pub(crate) fn is_truth(&self, v: Val) -> bool {
        self.dtype(v) == self.habits.boolean
    }

    fn value(&mut self, shape: Vec<usize>, dtype: BurnType, home: Option<Home>) -> Val {
        self.values.push(Value { shape, dtype, home });
        Val(self.values.len() - 1)
    }

    /// What is stored there when the step begins.
    pub(crate) fn read(&mut self, home: Home, shape: &[usize], dtype: BurnType) -> Val {
        let known = self.values.iter().position(|v| v.home == Some(home));
        known.map(Val).unwrap_or_else(|| self.value(shape.to_vec(), dtype, Some(home)))
    }

    /// A table of integers.
    pub(crate) fn table(&mut self, shape: &[usize], elements: Vec<i32>) -> Val {
        let table = Table { shape: shape.to_vec(), elements };
        let known = self.tables.iter().position(|t| *t == table);
        let at = known.unwrap_or_else(|| {
            self.tables.push(table);
            self.tables.len() - 1
        });
        self.read(Home::Table(at), shape, BurnType::I32)
    }

    /// `first, first + 1, …` along one of `rank` dims, of extent 1 along all others.
    pub(crate) fn count(&mut self, rank: usize, axis: usize, len: usize, first: usize) -> Val {
        let mut shape = vec![1; rank.max(1)];
        shape[axis] = len;
        self.table(&shape, (first..first + len).map(|i| i as i32).collect())
    }

    fn node(&mut self, op: Op, inputs: Vec<Val>, shape: Vec<usize>, dtype: BurnType) -> Val {
        let out = self.value(shape, dtype, None);
        self.nodes.push(Node { op, inputs, out });
        out
    }

    /// One number everywhere.
    pub(crate) fn full(&mut self, shape: &[usize], dtype: BurnType, number: f64) -> Val {
        if dtype == self.habits.boolean {
            let ones = self.full(shape, BurnType::I32, f64::from(u8::from(number != 0.0)));
            return self.scalar(Binary::Ne, ones, 0.0);
        }
        self.node(Op::Full(number), vec![], shape.to_vec(), dtype)
    }

    /// Elements that the host draws; see [`Op::Random`].
    pub(crate) fn random(&mut self, number: usize, shape: &[usize], dtype: BurnType) -> Val {
        self.node(Op::Random(number), vec![], shape.to_vec(), dtype)
    }

    pub(crate) fn unary(&mut self, f: Unary, a: Val) -> Val {
        let dtype = if f == Unary::IsNan { self.habits.boolean } else { self.dtype(a) };
        let shape = self.shape(a).to_vec();
        self.node(Op::Unary(f), vec![a], shape, dtype)
    }

    /// A function of two tensors of one rank; extents of 1 are repeated.
    pub(crate) fn binary(&mut self, f: Binary, a: Val, b: Val) -> Val {
        let shape = broadcast(self.shape(a), self.shape(b));
        // Backends repeat numbers, but not all of them truth values.
        let [a, b] = if self.is_truth(a) { [a, b].map(|v| self.expand(v, &shape)) } else { [a, b] };
        let dtype = if f.compares() { self.habits.boolean } else { self.dtype(a) };
        self.node(Op::Binary(f), vec![a, b], shape, dtype)
    }

    /// A function of a tensor and a number.
    pub(crate) fn scalar(&mut self, f: Binary, a: Val, number: f64) -> Val {
        let dtype = if f.compares() { self.habits.boolean } else { self.dtype(a) };
        let shape = self.shape(a).to_vec();
        self.node(Op::Scalar(f, number), vec![a], shape, dtype)
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
        self.unary(Unary::Not, a)
    }

    /// Conversion; what a float has after the point is cut off, other than 0 is true.
    pub(crate) fn cast(&mut self, a: Val, dtype: BurnType) -> Val {
        if self.dtype(a) == dtype {
            return a;
        }
        if dtype == self.habits.boolean {
            return self.scalar(Binary::Ne, a, 0.0);
        }
        let shape = self.shape(a).to_vec();
        if self.is_truth(a) && dtype.is_float() {
            // As numbers that are filled in, which CubeCL fuses with what comes before and after; a conversion ends a block.
            let zeros = self.full(&shape, dtype, 0.0);
            return self.fill(zeros, a, 1.0);
        }
        // The interpreter has no conversion among integers. One of the two is of bytes, which floats hold exactly.
        let whole = |t: BurnType| matches!(t, BurnType::I32 | BurnType::U8);
        let a = if whole(self.dtype(a)) && whole(dtype) { self.cast(a, BurnType::F32) } else { a };
        self.node(Op::Cast, vec![a], shape, dtype)
    }

    /// Folds one dim, of which an extent of 1 stays.
    pub(crate) fn reduce(&mut self, f: Reduce, a: Val, axis: usize) -> Val {
        if self.shape(a)[axis] == 1 {
            return a;
        }
        let mut shape = self.shape(a).to_vec();
        shape[axis] = 1;
        let dtype = self.dtype(a);
        self.node(Op::Reduce(f, axis), vec![a], shape, dtype)
    }

    pub(crate) fn cumsum(&mut self, a: Val, axis: usize) -> Val {
        let (shape, dtype) = (self.shape(a).to_vec(), self.dtype(a));
        self.node(Op::CumSum(axis), vec![a], shape, dtype)
    }

    pub(crate) fn flip(&mut self, a: Val, axis: usize) -> Val {
        let (shape, dtype) = (self.shape(a).to_vec(), self.dtype(a));
        self.node(Op::Flip(axis), vec![a], shape, dtype)
    }

    pub(crate) fn reshape(&mut self, a: Val, shape: &[usize]) -> Val {
        if self.shape(a) == shape {
            return a;
        }
        let dtype = self.dtype(a);
        self.node(Op::Reshape, vec![a], shape.to_vec(), dtype)
    }

    pub(crate) fn permute(&mut self, a: Val, axes: &[usize]) -> Val {
        if axes.iter().copied().eq(0..axes.len()) {
            return a;
        }
        let shape = axes.iter().map(|i| self.shape(a)[*i]).collect();
        let dtype = self.dtype(a);
        self.node(Op::Permute(axes.to_vec()), vec![a], shape, dtype)
    }

    pub(crate) fn expand(&mut self, a: Val, shape: &[usize]) -> Val {
        if self.shape(a) == shape {
            return a;
        }
        let dtype = self.dtype(a);
        self.node(Op::Expand, vec![a], shape.to_vec(), dtype)
    }

    pub(crate) fn slice(&mut self, a: Val, axis: usize, range: std::ops::Range<usize>) -> Val {
        if range == (0..self.shape(a)[axis]) {
            return a;
        }
        let (mut shape, dtype) = (self.shape(a).to_vec(), self.dtype(a));
        shape[axis] = range.len();
        self.node(Op::Slice(axis, range), vec![a], shape, dtype)
    }

    pub(crate) fn cat(&mut self, parts: Vec<Val>, axis: usize) -> Val {
        if let [one] = parts[..] {
            return one;
        }
        let mut shape = self.shape(parts[0]).to_vec();
        shape[axis] = parts.iter().map(|p| self.shape(*p)[axis]).sum();
        let dtype = self.dtype(parts[0]);
        self.node(Op::Cat(axis), parts, shape, dtype)
    }

    /// `out[.., i, ..] = a[.., indices[i], ..]`.
    pub(crate) fn select(&mut self, a: Val, axis: usize, indices: Val) -> Val {
        let (mut shape, dtype) = (self.shape(a).to_vec(), self.dtype(a));
        shape[axis] = self.shape(indices)[0];
        self.node(Op::Select(axis), vec![a, indices], shape, dtype)
    }

    /// `a[.., indices[i], ..] += values[.., i, ..]`.
    pub(crate) fn select_add(&mut self, a: Val, axis: usize, indices: Val, values: Val) -> Val {
        let (shape, dtype) = (self.shape(a).to_vec(), self.dtype(a));
        self.node(Op::SelectAdd(axis), vec![a, indices, values], shape, dtype)
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
        self.node(Op::MaskWhere, vec![no, mask, yes], shape, dtype)
    }

    /// `if mask { number } else { a }`; extents of 1 are repeated.
    pub(crate) fn fill(&mut self, a: Val, mask: Val, number: f64) -> Val {
        if self.is_truth(a) {
            let constant = vec![1; self.shape(a).len()];
            let number = self.full(&constant, self.habits.boolean, number);
            return self.choose(mask, number, a);
        }
        let shape = broadcast(self.shape(a), self.shape(mask));
        let [a, mask] = [a, mask].map(|v| self.expand(v, &shape));
        let dtype = self.dtype(a);
        self.node(Op::MaskFill(number), vec![a, mask], shape, dtype)
    }

    /// `[.., rows, columns]` of `[.., rows, summed]` and `[.., summed, columns]`, with elements of `dtype`.
    pub(crate) fn matmul(&mut self, a: Val, b: Val, dtype: BurnType) -> Val {
        let mut shape = self.shape(a).to_vec();
        let last = shape.len() - 1;
        shape[last] = self.shape(b)[last];
        let own = self.habits.own_products || dtype != self.dtype(a) || shape[last - 1] == 1;
        self.node(if own { Op::Product } else { Op::Matmul }, vec![a, b], shape, dtype)
    }

    /// A place that outlives the step, until it is read.
    pub(crate) fn fresh(&mut self) -> Home {
        self.temporaries += 1;
        Home::Temporary(self.temporaries)
    }

    /// Says where a value goes.
    pub(crate) fn store(&mut self, v: Val, home: Home) {
        self.stored.push((v, home));
    }

    /// The operations of the step, which releases `ending`.
    pub(crate) fn finish(&mut self, ending: &[Home]) -> Vec<OperationIr> {
        let mut homes: BTreeMap<Val, Home> = BTreeMap::new();
        for (v, home) in std::mem::take(&mut self.stored) {
            let mut v = v;
            if self.values[v.0].home.is_some() || homes.contains_key(&v) {
                let (shape, dtype) = (self.shape(v).to_vec(), self.dtype(v));
                v = self.node(Op::Reshape, vec![v], shape, dtype);
            }
            homes.insert(v, home);
        }
        let (values, nodes) = (std::mem::take(&mut self.values), std::mem::take(&mut self.nodes));
        let mut needed: BTreeSet<Val> = homes.keys().copied().collect();
        let mut kept = vec![];
        for node in nodes.into_iter().rev() {
            if needed.contains(&node.out) {
                needed.extend(&node.inputs);
                kept.push(node);
            }
        }
        for node in kept.iter().rev() {
            homes.entry(node.out).or_insert_with(|| self.fresh());
        }
        let home = |v: Val| homes.get(&v).copied().or(values[v.0].home).unwrap_or(Home::Temporary(0));
        let tensor = |v: Val, status: TensorStatus| TensorIr {
            id: home(v).id(),
            shape: Shape::from(values[v.0].shape.clone()),
            status,
            dtype: values[v.0].dtype,
        };
        // Backwards: the first use that is met is the last.
        let mut used: BTreeSet<Val> = BTreeSet::new();
        let mut operations = vec![];
        for node in &kept {
            let mut inputs: Vec<TensorIr> = vec![];
            for v in node.inputs.iter().rev() {
                let ends = match home(*v) {
                    Home::Temporary(_) => true,
                    h => ending.contains(&h),
                };
                let last = used.insert(*v) && ends;
                inputs.push(tensor(*v, if last { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly }));
            }
            inputs.reverse();
            operations.push(operation(&node.op, inputs, tensor(node.out, TensorStatus::NotInit)));
        }
        operations.reverse();
        let met: BTreeSet<Home> = used.into_iter().map(home).collect();
        for home in ending.iter().filter(|h| !met.contains(h)) {
            let gone = TensorIr {
                id: home.id(),
                shape: Shape::from(vec![1]),
                status: TensorStatus::ReadWrite,
                dtype: BurnType::F32,
            };
            operations.push(OperationIr::Drop(gone));
        }
        operations
    }
}

/// The extents of two tensors of one rank, of which those of 1 are repeated.
fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    a.iter().zip(b).map(|(a, b)| if *a == 1 { *b } else { *a }).collect()
}
