//! Contractions: products of matrices where their elements lie. Factors of half types are read as `f32` copies, but where one has few
//! rows.

use super::contract::{Contraction, Factor, MatrixProduct, contraction};
use super::kernel::{Args, Held, Kernel, KernelWork, exactly};
use super::kernels::{
    Factored, KernelError, LEAST_MATRIX, MOST_ROWS, ProductKernel, SliceMut, ThinKernel, ThinShape,
    dense_strides,
};
use super::moves::copy;
use crate::engine::context::Local;
use crate::engine::lowering::{Lowering, LoweringError};
use meshwright_plan::Dim;

impl Lowering<'_, Kernel> {
    /// See [`meshwright_plan::Prim::Contract`].
    pub(super) fn contract(&mut self, reads: Vec<Held>, writes: Vec<Local>) -> Result<(), LoweringError> {
        let (Ok([a, b]), [out]) = (<[Held; 2]>::try_from(reads), exactly(&writes)?) else {
            return Err(LoweringError::Plan("a contraction has two factors".into()));
        };
        self.context.check_aligned(&[&a.local, &b.local, out], &[])?;
        let dtypes = [a.local.dtype, b.local.dtype, out.dtype];
        if dtypes.iter().any(|t| t.wide() != dtypes[0].wide()) || !dtypes[0].is_float() {
            let [a, b, out] = dtypes;
            return Err(LoweringError::Plan(format!("a contraction of {a} and {b} to {out}")));
        }
        let product = match contraction(&a.local, &b.local, out)? {
            Contraction::Zero => {
                let zero = self.one("zero", KernelWork::to_one(zeros), &[], out);
                return self.store(zero, out);
            }
            Contraction::Product(product) => product,
        };
        let (left, right) = if product.swapped { (b, a) } else { (a, b) };
        let wide = Local { dtype: out.dtype.wide(), ..out.clone() };
        let target = product.copy.as_ref().map_or_else(|| wide.clone(), |order| reordered(&wide, order));
        let made = match thin(&left.local, &right.local, &product)? {
            Some(work) => self.one("thin_product", work, &[left, right], &target),
            None => self.product(left, right, &product, &target)?,
        };
        let made = if product.copy.is_some() { self.reorder(made, &wide)? } else { made };
        self.store(made, out)
    }

    fn product(
        &mut self,
        left: Held,
        right: Held,
        product: &MatrixProduct,
        target: &Local,
    ) -> Result<Held, LoweringError> {
        let left = self.factor(left, &product.left)?;
        let right = self.factor(right, &product.right)?;
        let ([batch @ .., m, n], factors) =
            (product.shape.as_slice(), [factored(&product.left), factored(&product.right)])
        else {
            return Err(LoweringError::Plan("a product has rows and columns".into()));
        };
        let [of_left, of_right] = factors;
        let kernel = ProductKernel::new(target.dtype, batch, [*m, *n, product.summed], of_left, of_right)?;
        let work = KernelWork::to_one(move |args, out| kernel.run(args.read(0)?, args.read(1)?, out));
        Ok(self.one("product", work, &[left, right], target))
    }

    /// A factor in `f32` if it is `bf16`, and in the order that the product needs.
    fn factor(&mut self, of: Held, factor: &Factor) -> Result<Held, LoweringError> {
        let of = self.upcast(of)?;
        match &factor.copy {
            Some(order) => {
                let to = reordered(&of.local, order);
                self.reorder(of, &to)
            }
            None => Ok(of),
        }
    }

    fn reorder(&mut self, from: Held, to: &Local) -> Result<Held, LoweringError> {
        let work = copy(std::slice::from_ref(&from.local), std::slice::from_ref(to))?;
        Ok(self.one("copy", work, &[from], to))
    }
}

/// A tensor of the dims of `like` (extents of 1 last) in another order.
fn reordered(like: &Local, order: &[Dim]) -> Local {
    let rest = like.dims.iter().filter(|d| !order.contains(d));
    let dims: Vec<Dim> = order.iter().chain(rest).copied().collect();
    let places: Vec<usize> = dims.iter().filter_map(|d| like.at(*d)).collect();
    let ranges = places.iter().map(|i| like.ranges[*i].clone()).collect();
    let shape = places.iter().map(|i| like.shape[*i]).collect();
    Local { dims, ranges, shape, ..like.clone() }
}

/// How the matrices of a factor lie.
fn factored(factor: &Factor) -> Factored {
    let steps = dense_strides(&factor.reshape);
    let order: Vec<usize> = factor.permute.clone().unwrap_or_else(|| (0..steps.len()).collect());
    let mut steps: Vec<usize> = order.iter().map(|i| steps[*i]).collect();
    let (column, row) = (steps.pop().unwrap_or(1), steps.pop().unwrap_or(1));
    Factored { batch: steps, row, column }
}

/// The product of a few rows and a matrix that lies in one piece, if it is one.
fn thin(left: &Local, right: &Local, product: &MatrixProduct) -> Result<Option<KernelWork>, LoweringError> {
    let ([batch @ .., m, n], inner) = (product.shape.as_slice(), product.summed) else { return Ok(None) };
    let copies = product.left.copy.is_some() || product.right.copy.is_some();
    if copies || batch.iter().any(|b| *b != 1) || left.dtype != right.dtype {
        return Ok(None);
    }
    let [of_left, of_right] = [factored(&product.left), factored(&product.right)];
    // Of the result `[m, n]` the rows are those of the left factor; of its transpose those of the right one.
    let by_left = *m <= MOST_ROWS && inner * n >= LEAST_MATRIX;
    let by_right = *n <= MOST_ROWS && inner * m >= LEAST_MATRIX;
    let (rows, columns, factor, matrix, result) = match (by_left, by_right) {
        (true, _) => (*m, *n, [of_left.row, of_left.column], [of_right.row, of_right.column], [*n, 1]),
        (_, true) => (*n, *m, [of_right.column, of_right.row], [of_left.column, of_left.row], [1, *n]),
        _ => return Ok(None),
    };
    let by_columns = match matrix {
        [row, 1] if row == columns => false,
        [1, column] if column == inner => true,
        _ => return Ok(None),
    };
    let shape = ThinShape { rows, inner, columns, by_columns, thin: factor, result };
    let (kernel, of_left) = (ThinKernel::new(left.dtype, shape)?, by_left);
    Ok(Some(KernelWork::to_one(move |args, out| {
        let (thin, matrix) = if of_left { (0, 1) } else { (1, 0) };
        kernel.run(args.read(thin)?, args.read(matrix)?, out)
    })))
}

/// Of every dtype zero is all bits 0.
fn zeros(_: &Args<'_>, out: SliceMut<'_>) -> Result<(), KernelError> {
    out.into_bytes().fill(0);
    Ok(())
}
