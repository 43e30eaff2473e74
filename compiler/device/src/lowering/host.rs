//! Steps as kernels on the host's memory. A primitive is one kernel; operands and results of a half type that its
//! kernel lacks are copied to and from `f32`.

use crate::collective::blocked::Blocked;
use crate::collective::halo::Halo;
use crate::collective::pack::{PackedBlock, StridedView, in_turn};
use crate::error::LoweringError;
use crate::kernels::Kernel;
use crate::kernels::host::{Factored, HostKernel, HostWork, LEAST_MATRIX, MOST_ROWS, ThinShape, aligned};
use crate::lowering::contraction::{BatchedMatmul, Contraction, Factor, contraction};
use crate::lowering::graph::Val;
use crate::lowering::local::Local;
use crate::lowering::{Lowering, Plane};
use crate::slot::TensorSlot;
use crate::stored::{stored_as, stored_shape};
use meshwright_plan::{BufId, DType, Dim, HalfFloats, Prim, Step};
use std::sync::Arc;

/// An operand, and the value of the graph that it is.
#[derive(Clone)]
struct Held {
    local: Local,
    val: Val,
}

/// Exactly `N` operands or results.
fn exactly<const N: usize>(locals: &[Local]) -> Result<&[Local; N], LoweringError> {
    let found = locals.len();
    locals.try_into().map_err(|_| LoweringError::Plan(format!("{found} operands where {N} are needed")))
}

/// The lowering of steps for a thread of the host.
pub(crate) struct HostSteps<'l, 'a>(pub(crate) &'l mut Lowering<'a>);

impl HostSteps<'_, '_> {
    /// Records the operations of a step that computes.
    pub(crate) fn step(&mut self, step: &Step) -> Result<(), LoweringError> {
        let mut reads = vec![];
        for operand in &step.reads {
            let local = self.0.context.local(operand)?;
            reads.push(self.held(&local));
        }
        let writes: Vec<Local> =
            step.writes.iter().map(|o| self.0.context.local(o)).collect::<Result<_, _>>()?;
        if let Prim::Contract = step.prim {
            return self.contract(reads, writes);
        }
        let mut outs = writes.clone();
        if step.prim.spec().half == HalfFloats::Widened {
            reads = reads.into_iter().map(|r| self.upcast(r)).collect();
            outs.iter_mut().for_each(|o| o.dtype = o.dtype.wide());
        }
        // The first stage of a pipeline copies in place of receiving, and stacks of a chunk begin as zeros.
        let planned = &self.0.context.plan.steps[self.0.graph.step].prim;
        let work = match step.prim {
            Prim::Copy => HostWork::Copy,
            Prim::Blank { zero: true } if *planned != step.prim => HostWork::Zero,
            Prim::IterationSlice { .. } => HostWork::Show(self.0.graph.step),
            _ => HostWork::Step(self.0.graph.step, step.name().into()),
        };
        let made = self.record(work, &reads, &outs, Some(step));
        for (made, to) in made.into_iter().zip(&writes) {
            self.store(made, to);
        }
        Ok(())
    }

    fn held(&mut self, local: &Local) -> Held {
        let plane = Plane { slot: TensorSlot::Buffer(local.buf), dtype: local.dtype };
        Held { local: local.clone(), val: self.0.read_plane(local, plane) }
    }

    /// The operand in `f32`, if it is of a half type.
    fn upcast(&mut self, x: Held) -> Held {
        let wide = Local { dtype: x.local.dtype.wide(), ..x.local.clone() };
        if wide.dtype == x.local.dtype { x } else { self.cast(x, &wide) }
    }

    fn cast(&mut self, from: Held, to: &Local) -> Held {
        self.one(HostWork::Cast, &[from], to)
    }

    /// Stores a result, rounded to the dtype of the buffer.
    fn store(&mut self, made: Held, to: &Local) {
        let made = if made.local.dtype == to.dtype { made } else { self.cast(made, to) };
        self.0.graph.store(made.val, TensorSlot::Buffer(to.buf));
    }

    /// Records a kernel with one result in new storage.
    fn one(&mut self, work: HostWork, reads: &[Held], out: &Local) -> Held {
        self.record(work, reads, std::slice::from_ref(out), None).swap_remove(0)
    }

    /// Records a kernel. A `step` has pairs of buffers that should share storage, which is granted where every read of the
    /// operand goes element by element with the result.
    fn record(&mut self, work: HostWork, reads: &[Held], outs: &[Local], step: Option<&Step>) -> Vec<Held> {
        let (mut inputs, mut dtypes, mut loads): (Vec<Val>, Vec<DType>, Vec<usize>) =
            (vec![], vec![], vec![]);
        for read in reads {
            let known = inputs.iter().position(|v| *v == read.val);
            loads.push(known.unwrap_or(inputs.len()));
            if known.is_none() {
                inputs.push(read.val);
                dtypes.push(read.local.dtype);
            }
        }
        let locals: Vec<Local> = reads.iter().map(|r| r.local.clone()).collect();
        let walked = step.map_or(vec![], |step| aligned(&step.prim, &locals, outs));
        let aliases: &[(BufId, BufId)] = step.map_or(&[], |step| &step.aliases);
        let granted = |out: &Local| -> Option<usize> {
            let from = aliases.iter().find(|r| r.1 == out.buf)?.0;
            let k = locals.iter().position(|l| l.buf == from)?;
            let fits = locals[k].elements() == out.elements() && locals[k].dtype == out.dtype;
            let aligned = |k: usize| walked.get(k)?.as_ref().filter(|a| a.is_dense(&out.shape));
            let mut uses = (0..locals.len()).filter(|k| locals[*k].buf == from);
            (fits && uses.all(|k| aligned(k).is_some())).then_some(loads[k])
        };
        let over = outs.iter().map(granted).collect();
        let stored: Vec<_> =
            outs.iter().map(|o| (stored_shape(o.dtype, &o.shape), stored_as(o.dtype))).collect();
        let writes = outs.to_vec();
        let kernel = HostKernel { work, reads: locals, writes, inputs: dtypes, loads, over };
        let vals = self.0.graph.kernel(Kernel::Host(Arc::new(kernel)), inputs, stored);
        vals.into_iter().zip(outs).map(|(val, o)| Held { local: o.clone(), val }).collect()
    }

    /// See [`meshwright_plan::Prim::Contract`]. Factors of half types are read as `f32` copies, but where one has few rows.
    fn contract(&mut self, reads: Vec<Held>, writes: Vec<Local>) -> Result<(), LoweringError> {
        let (Ok([a, b]), [out]) = (<[Held; 2]>::try_from(reads), exactly(&writes)?) else {
            return Err(LoweringError::Plan("a contraction has two factors".into()));
        };
        self.0.context.check_aligned(&[&a.local, &b.local, out], &[])?;
        let dtypes = [a.local.dtype, b.local.dtype, out.dtype];
        if dtypes.iter().any(|t| t.wide() != dtypes[0].wide()) || !dtypes[0].is_float() {
            let [a, b, out] = dtypes;
            return Err(LoweringError::Plan(format!("a contraction of {a} and {b} to {out}")));
        }
        let product = match contraction(&a.local, &b.local, out)? {
            Contraction::Zero => {
                let zero = self.one(HostWork::Zero, &[], out);
                self.store(zero, out);
                return Ok(());
            }
            Contraction::Matmul(product) => product,
        };
        let (left, right) = if product.swapped { (b, a) } else { (a, b) };
        let wide = Local { dtype: out.dtype.wide(), ..out.clone() };
        let target = product.copy.as_ref().map_or_else(|| wide.clone(), |order| reordered(&wide, order));
        let made = match thin(&left.local, &right.local, &product) {
            Some(work) => self.one(work, &[left, right], &target),
            None => {
                let factors = [self.factor(left, &product.left), self.factor(right, &product.right)];
                self.one(HostWork::Matmul(product.clone()), &factors, &target)
            }
        };
        let made = if product.copy.is_some() { self.reorder(made, &wide) } else { made };
        self.store(made, out);
        Ok(())
    }

    /// A factor in `f32` if it is of a half type, and in the order that the product needs.
    fn factor(&mut self, of: Held, factor: &Factor) -> Held {
        let of = self.upcast(of);
        match &factor.copy {
            Some(order) => {
                let to = reordered(&of.local, order);
                self.reorder(of, &to)
            }
            None => of,
        }
    }

    fn reorder(&mut self, from: Held, to: &Local) -> Held {
        self.one(HostWork::Copy, &[from], to)
    }

    /// See [`Lowering::pack`].
    pub(crate) fn pack(&mut self, arrays: &[Blocked<'_>]) -> Val {
        let views: Vec<StridedView> =
            arrays.iter().map(|a| StridedView::new(&a.local.shape, a.axis)).collect();
        let ranges = arrays.iter().map(|a| a.ranges.as_slice());
        let (blocks, elements) = in_turn(&views.iter().copied().zip(ranges).collect::<Vec<_>>());
        let packed = Local { shape: vec![elements], ..arrays[0].local.clone() };
        let held = arrays.iter().map(|a| Held { local: a.local.clone(), val: a.val });
        let work = HostWork::Pack(views.into_iter().zip(blocks).collect());
        self.one(work, &held.collect::<Vec<_>>(), &packed).val
    }

    /// See [`Lowering::unpack`].
    pub(crate) fn unpack(&mut self, packed: Val, local: &Local, axis: usize, blocks: &[PackedBlock]) -> Val {
        let work = HostWork::Unpack(StridedView::new(&local.shape, axis), blocks.to_vec());
        self.one(work, &[Held { local: local.clone(), val: packed }], local).val
    }

    /// See [`Lowering::join_halo`].
    pub(crate) fn join_halo(
        &mut self,
        halo: &Halo,
        received: Option<Val>,
        own: Option<Val>,
        local: &Local,
    ) -> Val {
        let work = HostWork::JoinHalo(Box::new(halo.clone()), [received.is_some(), own.is_some()]);
        let reads: Vec<Held> =
            received.into_iter().chain(own).map(|val| Held { local: local.clone(), val }).collect();
        self.one(work, &reads, local).val
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

/// The product of a few rows and a matrix that lies in one piece, if it is one.
fn thin(left: &Local, right: &Local, product: &BatchedMatmul) -> Option<HostWork> {
    let ([batch @ .., m, n], inner) = (product.shape.as_slice(), product.summed) else { return None };
    let copies = product.left.copy.is_some() || product.right.copy.is_some();
    if copies || batch.iter().any(|b| *b != 1) || left.dtype != right.dtype {
        return None;
    }
    let [of_left, of_right] = [&product.left, &product.right].map(Factored::of);
    // Rows of the result `[m, n]` are the left factor's; rows of its transpose are the right factor's.
    let by_left = *m <= MOST_ROWS && inner * n >= LEAST_MATRIX;
    let by_right = *n <= MOST_ROWS && inner * m >= LEAST_MATRIX;
    let (rows, columns, factor, matrix, result) = match (by_left, by_right) {
        (true, _) => (*m, *n, [of_left.row, of_left.column], [of_right.row, of_right.column], [*n, 1]),
        (_, true) => (*n, *m, [of_right.column, of_right.row], [of_left.column, of_left.row], [1, *n]),
        _ => return None,
    };
    let by_columns = match matrix {
        [row, 1] if row == columns => false,
        [1, column] if column == inner => true,
        _ => return None,
    };
    let shape = ThinShape { rows, inner, columns, by_columns, thin: factor, result };
    Some(HostWork::ThinProduct { shape, of_left: by_left })
}
