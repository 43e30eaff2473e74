//! Folds of dims, places of extremes, running sums, and ranks.

use super::lower::{Lower, Named, unsupported};
use crate::error::LoweringError;
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::lowering::ops::{Binary, Reduce};
use crate::stored::{extents, stored_as};
use burn_backend::DType as BurnType;
use meshwright_plan::{DType, Dim, Monoid, Step, square_scale};

impl Lower<'_> {
    /// See [`meshwright_plan::Prim::Reduce`]. Dims that lie side by side and share their fate are folded as one.
    pub(crate) fn reduction(&mut self, step: &Step, monoid: Monoid) -> Result<(), LoweringError> {
        let ([input], [out]) = self.locals(step)?;
        self.context.check_aligned(&[&input, &out], &[])?;
        if out.dims.iter().any(|d| input.at(*d).is_none()) {
            return Err(LoweringError::Plan("a reduction writes a dim that it does not read".into()));
        }
        let places = matches!(monoid, Monoid::ArgMax | Monoid::ArgMin);
        if places != out.dtype.is_pair() {
            return unsupported(format!("{monoid} of {} to {}", input.dtype, out.dtype));
        }
        if input.elements() == 0 {
            self.write_number(identity(monoid, self.value_type(out.buf, out.dtype)), &out);
            if places {
                let none = self.graph.full(&extents(&out.shape), BurnType::I32, f64::from(i32::MAX));
                self.write_indices(&Named { val: none, dims: out.dims.clone() }, &out);
            }
            return Ok(());
        }
        if places {
            return self.place(monoid == Monoid::ArgMax, &input, &out);
        }
        let x = self.read(&input);
        let (f, x) = match (monoid, input.dtype) {
            (Monoid::And | Monoid::Or, DType::Bool | DType::U8) => {
                let truth = self.truth(x.val);
                let number = self.graph.cast(truth, BurnType::I32);
                (if monoid == Monoid::And { Reduce::Min } else { Reduce::Max }, number)
            }
            (Monoid::Sum, _) => (Reduce::Sum, x.val),
            (Monoid::Prod, _) => (Reduce::Prod, x.val),
            (Monoid::Max, _) => (Reduce::Max, x.val),
            (Monoid::Min, _) => (Reduce::Min, x.val),
            _ => return unsupported(format!("{monoid} of {}", input.dtype)),
        };
        let mut x = self.wide(x);
        if self.graph.dtype(x) == BurnType::U8 {
            x = self.graph.cast(x, BurnType::I32);
        }
        self.folded(f, x, (&input, &out));
        Ok(())
    }

    /// See [`meshwright_plan::Prim::ScaledSquares`].
    pub(crate) fn scaled_squares(&mut self, step: &Step) -> Result<(), LoweringError> {
        let ([input], [out]) = self.locals(step)?;
        self.context.check_aligned(&[&input, &out], &[])?;
        if input.elements() == 0 {
            self.write_number(0.0, &out);
            return Ok(());
        }
        let x = self.read(&input).val;
        let x = self.wide(x);
        let scaled = self.graph.scalar(Binary::Mul, x, square_scale(out.dtype));
        let squares = self.graph.binary(Binary::Mul, scaled, scaled);
        self.folded(Reduce::Sum, squares, (&input, &out));
        Ok(())
    }

    /// Folds a value with the dims of `input` over the dims that `out` lacks, and writes it to `out`.
    fn folded(&mut self, f: Reduce, x: Val, (input, out): (&Local, &Local)) {
        // Runs of dims that are folded, or kept, together.
        let mut runs: Vec<(bool, usize)> = vec![];
        for (dim, n) in input.dims.iter().zip(&input.shape) {
            let folded = out.at(*dim).is_none();
            match runs.last_mut() {
                Some((f, size)) if *f == folded => *size *= n,
                _ => runs.push((folded, *n)),
            }
        }
        let shape: Vec<usize> = runs.iter().map(|r| r.1).collect();
        let mut val = self.graph.reshape(x, &extents(&shape));
        for (axis, _) in runs.iter().enumerate().filter(|(_, r)| r.0) {
            val = self.graph.reduce(f, val, axis);
        }
        let kept: Vec<Dim> = input.dims.iter().filter(|d| out.at(**d).is_some()).copied().collect();
        let shape: Vec<usize> = Self::sizes(&kept, &[input]);
        let val = self.graph.reshape(val, &extents(&shape));
        self.write(&Named { val, dims: kept }, out);
    }

    fn place(&mut self, greatest: bool, input: &Local, out: &Local) -> Result<(), LoweringError> {
        let folded: Vec<Dim> = input.dims.iter().filter(|d| out.at(**d).is_none()).copied().collect();
        let [dim] = folded[..] else {
            return unsupported(format!("the place of an extreme along {} dims", folded.len()));
        };
        let range = input.range(dim)?.clone();
        let x = self.read(input);
        let axis = input.at(dim).unwrap_or(0);
        let (value, index) = self.first_best(x.val, axis, greatest, None);
        let index = self.graph.scalar(Binary::Add, index, range.start as f64);
        let dims: Vec<Dim> = input.dims.iter().filter(|d| **d != dim).copied().collect();
        let shape = extents(&Self::sizes(&dims, &[input]));
        let dtype = stored_as(self.value_type(out.buf, out.dtype));
        let value = self.graph.cast(value, dtype);
        let [value, index] = [value, index].map(|v| self.graph.reshape(v, &shape));
        self.write(&Named { val: value, dims: dims.clone() }, out);
        self.write_indices(&Named { val: index, dims }, out);
        Ok(())
    }

    /// The extreme along an axis and its first place, as extents of 1. NaN comes before all numbers. What `taken` says is
    /// left out; something must be left.
    pub(crate) fn first_best(
        &mut self,
        x: Val,
        axis: usize,
        greatest: bool,
        taken: Option<Val>,
    ) -> (Val, Val) {
        let dtype = self.graph.dtype(x);
        let x = if dtype == BurnType::U8 { self.graph.cast(x, BurnType::I32) } else { x };
        let e = &mut self.graph;
        let (rank, n) = (e.shape(x).len(), e.shape(x)[axis]);
        let float = dtype.is_float();
        let (best, worst) = match (float, greatest) {
            (true, true) => (f64::INFINITY, f64::NEG_INFINITY),
            (true, false) => (f64::NEG_INFINITY, f64::INFINITY),
            (false, true) => (f64::from(i32::MAX), f64::from(i32::MIN)),
            (false, false) => (f64::from(i32::MIN), f64::from(i32::MAX)),
        };
        let nan = float.then(|| e.is_nan(x));
        let mut y = x;
        if let Some(nan) = nan {
            y = e.fill(y, nan, best);
        }
        if let Some(taken) = taken {
            y = e.fill(y, taken, worst);
        }
        let value = e.reduce(if greatest { Reduce::Max } else { Reduce::Min }, y, axis);
        let mut other = e.binary(Binary::Ne, y, value);
        if let Some(taken) = taken {
            other = e.binary(Binary::Or, other, taken);
        }
        let mut key = e.count(rank, axis, n, 0);
        if let Some(nan) = nan {
            // NaN comes first among the best.
            let early = e.scalar(Binary::Sub, key, n as f64);
            key = e.choose(nan, early, key);
        }
        let key = e.fill(key, other, f64::from(i32::MAX));
        let key = e.reduce(Reduce::Min, key, axis);
        if nan.is_none() {
            return (value, key);
        }
        let early = e.scalar(Binary::Lt, key, 0.0);
        let later = e.scalar(Binary::Add, key, n as f64);
        let index = e.choose(early, later, key);
        (e.fill(value, early, f64::NAN), index)
    }

    /// See [`meshwright_plan::Prim::TopK`]: the best is found and left out, as often as there are ranks.
    pub(crate) fn top_k(&mut self, step: &Step, dim: Dim, to: Dim) -> Result<(), LoweringError> {
        let ([input], [out]) = self.locals(step)?;
        self.context.check_aligned(&[&input, &out], &[])?;
        let Some((_, rows)) = out.dims.split_last().filter(|(last, _)| **last == to) else {
            return Err(LoweringError::Plan("the ranks are not the last dim of their result".into()));
        };
        let ranks = out.range(to)?.clone();
        let n = input.range(dim)?.len();
        if ranks.end > n {
            return Err(LoweringError::Plan(format!("{} of {n} elements are ranked", ranks.end)));
        }
        let x = self.read(&input);
        let x = self.align(&x, &[rows, &[dim]].concat());
        let axis = rows.len();
        let rank = self.graph.shape(x).len();
        let mut taken: Option<Val> = None;
        let mut found = vec![];
        for r in 0..ranks.end {
            let (_, index) = self.first_best(x, axis, true, taken);
            if ranks.contains(&r) {
                found.push(index);
            }
            if r + 1 < ranks.end {
                let places = self.graph.count(rank, axis, n, 0);
                let here = self.graph.binary(Binary::Eq, places, index);
                taken = Some(match taken {
                    Some(t) => self.graph.binary(Binary::Or, t, here),
                    None => here,
                });
            }
        }
        let val = self.graph.cat(found, axis);
        self.write_val(val, &out);
        Ok(())
    }
}

/// The result of an empty fold.
pub(super) fn identity(monoid: Monoid, dtype: DType) -> f64 {
    let (least, greatest) = match dtype {
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        DType::U8 | DType::Bool => (0.0, 255.0),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    };
    match monoid {
        Monoid::Sum | Monoid::Or => 0.0,
        Monoid::Prod | Monoid::And => 1.0,
        Monoid::Max | Monoid::ArgMax => least,
        Monoid::Min | Monoid::ArgMin => greatest,
    }
}
