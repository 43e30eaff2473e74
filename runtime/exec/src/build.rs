//! From a Plan to what one device runs: segments of backend operations, and collectives between them.
//!
//! Contractions become the backend's reshape, permute and matmul; all else is a custom operation that names an own
//! kernel. The last use of a tensor is marked `ReadWrite`, which hands its storage over. Operands of matmul are released
//! by an operation of their own, so that their storage goes back to the pool. The backend never meets an empty tensor:
//! a contraction that is empty, or sums nothing, is an own op that writes zeros.

use crate::collective::Prepared;
use crate::contract::{Contraction, Factor, contraction};
use crate::error::{ExecError, Place};
use crate::local::{Here, Local};
use crate::own::{Input, Own, Unprepared};
use crate::tensor::{stored_as, stored_shape};
use burn_backend::Shape;
use burn_ir::{
    BaseOperationIr, CustomOpIr, FloatOperationIr, GraphIr, MatmulOpIr, OperationIr, PermuteOpIr, ScalarIr,
    ShapeOpIr, TensorId, TensorIr, TensorStatus,
};
use meshwright_plan::{Bf16, BufId, Buffer, DType, Dim, Operand, Plan, Prim, Step};
use std::collections::{BTreeMap, BTreeSet};

/// Name of the custom operation that runs an own kernel; its only scalar is the kernel's number.
pub(crate) const OWN: &str = "meshwright";

/// A straight-line stretch of operations.
pub(crate) struct Segment {
    pub(crate) graph: GraphIr,
    /// For each operation the step of the Plan that it belongs to.
    pub(crate) steps: Vec<usize>,
}

/// Part of a program.
pub(crate) enum Piece {
    Segment(Segment),
    /// `flight` is set where it only starts.
    Collective {
        prepared: Box<Prepared>,
        step: usize,
        flight: Option<usize>,
    },
    /// Waits for the collective that the piece `start` started.
    Wait {
        flight: usize,
        start: usize,
        step: usize,
    },
}

/// A program for one device.
pub(crate) struct Built {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) owns: Vec<Own>,
    /// Buffers that are alive at the end.
    pub(crate) left: BTreeSet<BufId>,
}

/// Where a step of a Plan is, for errors.
pub(crate) fn place(plan: &Plan, rank: usize, step_number: Option<u64>, step: Option<usize>) -> Box<Place> {
    let found = step.and_then(|i| plan.steps.get(i).map(|s| (i, s)));
    let origin = found.and_then(|(_, s)| s.origin.first());
    Box::new(Place {
        rank,
        step_number,
        step: found.map(|(i, s)| (i, s.name())),
        value: origin.map_or_else(String::new, |o| o.value.clone()),
        line: origin.map_or(0, |o| o.line),
    })
}

/// Makes a Plan concrete for the device of that rank.
pub(crate) fn build(plan: &Plan, rank: usize) -> Result<Built, ExecError> {
    let mut builder = Builder {
        here: Here::new(plan, rank),
        owns: vec![],
        pieces: vec![],
        operations: vec![],
        steps: vec![],
        step: 0,
        next_temporary: plan.buffers.len() as u32,
        flying: BTreeMap::new(),
    };
    let mut alive: BTreeSet<BufId> = plan.program_inputs.iter().map(|l| l.buf).collect();
    let mut in_flight: BTreeMap<u32, (usize, Vec<BufId>)> = BTreeMap::new();
    for (index, step) in plan.steps.iter().enumerate() {
        builder.step = index;
        let built = check_lifetimes((index, step), &mut alive, &mut in_flight)
            .map_err(Unprepared::Plan)
            .and_then(|()| builder.add(step));
        built.map_err(|e| {
            let place = place(plan, rank, None, Some(index));
            match e {
                Unprepared::Plan(problem) => ExecError::Plan { place, problem },
                Unprepared::Kernel(source) => ExecError::Kernel { place, source },
            }
        })?;
    }
    builder.end_segment();
    if let Some(start) = in_flight.values().next() {
        let problem = "what it starts is never waited for".into();
        return Err(ExecError::Plan { place: place(plan, rank, None, Some(start.0)), problem });
    }
    let ends = plan.outputs.iter().map(|o| o.buf).chain(plan.program_inputs.iter().filter_map(|l| l.next));
    for buf in ends {
        if !alive.contains(&buf) {
            let problem = format!("buffer {} is not alive at the end of the plan", buf.0);
            return Err(ExecError::Plan { place: place(plan, rank, None, None), problem });
        }
    }
    Ok(Built { pieces: builder.pieces, owns: builder.owns, left: alive })
}

/// Each buffer is written once, read only while alive, and ends at most once. The results of a collective in flight are alive
/// when it was waited for.
pub(crate) fn check_lifetimes(
    (index, step): (usize, &Step),
    alive: &mut BTreeSet<BufId>,
    in_flight: &mut BTreeMap<u32, (usize, Vec<BufId>)>,
) -> Result<(), String> {
    if let (Prim::Wait, Some(flight)) = (&step.prim, step.async_id) {
        alive.extend(in_flight.remove(&flight).map_or(vec![], |(_, results)| results));
    }
    if let Some(dead) = step.reads.iter().find(|o| !alive.contains(&o.buf)) {
        return Err(format!("buffer {} is read while it holds nothing", dead.buf.0));
    }
    for operand in &step.writes {
        if !alive.insert(operand.buf) {
            return Err(format!("buffer {} is written twice", operand.buf.0));
        }
    }
    if let (Prim::Collective(_), Some(flight)) = (&step.prim, step.async_id) {
        let results: Vec<BufId> = step.writes.iter().map(|o| o.buf).collect();
        alive.retain(|b| !results.contains(b));
        if in_flight.insert(flight, (index, results)).is_some() {
            return Err(format!("flight {flight} is started twice"));
        }
    }
    for buf in step.free.iter().copied().chain(step.aliases.iter().map(|r| r.0)) {
        if !alive.remove(&buf) {
            return Err(format!("buffer {} is released while it holds nothing", buf.0));
        }
    }
    Ok(())
}

/// A step on `f32` copies of its operands of `bf16`.
struct Widened {
    step: Step,
    /// Its results that are then to be rounded, each with what it is rounded to.
    rounded: Vec<(Local, Local)>,
}

struct Builder<'a> {
    here: Here<'a>,
    owns: Vec<Own>,
    pieces: Vec<Piece>,
    operations: Vec<OperationIr>,
    steps: Vec<usize>,
    /// The step that is being added.
    step: usize,
    next_temporary: u32,
    /// For each flight the piece that starts it.
    flying: BTreeMap<usize, usize>,
}

impl Builder<'_> {
    fn add(&mut self, step: &Step) -> Result<(), Unprepared> {
        let ending: Vec<BufId> = step.free.iter().copied().chain(step.aliases.iter().map(|r| r.0)).collect();
        if let Some(prepared) = Prepared::of_step(&self.here, step)? {
            let rest = self.inputs(ending.iter().filter(|b| prepared.from.iter().all(|f| f.buf != **b)))?;
            self.end_segment();
            let flight = step.async_id.map(|f| f as usize);
            if let Some(flight) = flight {
                self.flying.insert(flight, self.pieces.len());
            }
            self.pieces.push(Piece::Collective { prepared: Box::new(prepared), step: self.step, flight });
            self.release(rest);
            return Ok(());
        }
        if let Prim::Wait = &step.prim {
            let rest = self.inputs(ending.iter())?;
            let flight = step.async_id.map(|f| f as usize);
            let Some((flight, start)) = flight.and_then(|f| Some((f, self.flying.remove(&f)?))) else {
                return Err(Unprepared::Plan("nothing is in flight that it could wait for".into()));
            };
            self.end_segment();
            self.pieces.push(Piece::Wait { flight, start, step: self.step });
            self.release(rest);
            return Ok(());
        }
        if let Some(Widened { step: wide, rounded }) = self.widened(step)? {
            let temporaries: Vec<BufId> = self.here.wide.keys().copied().collect();
            let Some(own) = Own::of_step(&self.here, &wide)? else {
                return Err(Unprepared::Plan(format!("a {} of bf16", step.name())));
            };
            self.own(own, &temporaries);
            for (from, to) in rounded {
                self.own(Own::cast(&from, &to)?, &[from.buf]);
            }
            self.here.wide.clear();
            let rest = self.inputs(ending.iter())?;
            self.release(rest);
            return Ok(());
        }
        if let Some(own) = Own::of_step(&self.here, step)? {
            let rest = self.inputs(ending.iter().filter(|b| own.inputs.iter().all(|i| i.buf != **b)))?;
            self.own(own, &ending);
            self.release(rest);
            return Ok(());
        }
        if let Prim::Contract = &step.prim {
            let ([a, b], [out]) = step.operands()?;
            let [a, b, out] = [self.here.local(a)?, self.here.local(b)?, self.here.local(out)?];
            self.here.check_aligned(&[&a, &b, &out], &[])?;
            self.contract(&a, &b, &out)?;
            let rest = self.inputs(ending.iter())?;
            self.release(rest);
        }
        Ok(())
    }

    /// Buffers as a release op reads them.
    fn inputs<'b>(&self, bufs: impl Iterator<Item = &'b BufId>) -> Result<Vec<Input>, String> {
        bufs.map(|buf| {
            let Some(buffer) = self.here.plan.buffers.get(buf.0 as usize) else {
                return Err(format!("there is no buffer {}", buf.0));
            };
            let ranges = buffer.ranges(self.here.mesh(), &self.here.coords);
            let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
            let local = Local { buf: *buf, dtype: buffer.dtype, dims: vec![], ranges, shape };
            Ok(Input::from(&local))
        })
        .collect()
    }

    fn push(&mut self, operation: OperationIr) {
        self.operations.push(operation);
        self.steps.push(self.step);
    }

    fn end_segment(&mut self) {
        if !self.operations.is_empty() {
            let graph = GraphIr::new(std::mem::take(&mut self.operations));
            self.pieces.push(Piece::Segment(Segment { graph, steps: std::mem::take(&mut self.steps) }));
        }
    }

    fn own(&mut self, own: Own, ending: &[BufId]) {
        let status =
            |b: &BufId| if ending.contains(b) { TensorStatus::ReadWrite } else { TensorStatus::ReadOnly };
        let inputs: Vec<TensorIr> =
            own.inputs.iter().map(|i| tensor(i.buf, i.dtype, &i.shape, status(&i.buf))).collect();
        let outputs: Vec<TensorIr> =
            own.outputs.iter().map(|o| tensor(o.buf, o.dtype, &o.shape, TensorStatus::NotInit)).collect();
        let number = ScalarIr::UInt(self.owns.len() as u64);
        self.owns.push(own);
        self.push(OperationIr::Custom(CustomOpIr::with_scalars(OWN, &inputs, &outputs, vec![number])));
    }

    fn release(&mut self, inputs: Vec<Input>) {
        if !inputs.is_empty() {
            let bufs: Vec<BufId> = inputs.iter().map(|i| i.buf).collect();
            self.own(Own::release(inputs), &bufs);
        }
    }

    fn temporary(&mut self) -> BufId {
        self.next_temporary += 1;
        BufId(self.next_temporary - 1)
    }

    /// A tensor of the dims of `like` (extents of 1 last) in another order.
    fn reordered(&mut self, like: &Local, order: &[Dim]) -> Local {
        let rest = like.dims.iter().filter(|d| !order.contains(d));
        let dims: Vec<Dim> = order.iter().chain(rest).copied().collect();
        let places: Vec<usize> = dims.iter().filter_map(|d| like.at(*d)).collect();
        let ranges: Vec<_> = places.iter().map(|i| like.ranges[*i].clone()).collect();
        let shape = places.iter().map(|i| like.shape[*i]).collect();
        Local { buf: self.temporary(), dtype: like.dtype, dims, ranges, shape }
    }

    /// The step on `f32` copies, where it has operands of `bf16` and its kernel knows none. The copies of what is read are
    /// made here.
    fn widened(&mut self, step: &Step) -> Result<Option<Widened>, Unprepared> {
        if step.prim.spec().bf16 != Bf16::Widened {
            return Ok(None);
        }
        let mut wide = Step { aliases: vec![], free: vec![], ..step.clone() };
        let mut narrow: Vec<Operand> = vec![];
        for o in step.all() {
            let narrow_one =
                self.here.plan.buffers.get(o.buf.0 as usize).is_some_and(|b| b.dtype == DType::BF16);
            if narrow_one && narrow.iter().all(|n| n.buf != o.buf) {
                narrow.push(o.clone());
            }
        }
        if narrow.is_empty() {
            return Ok(None);
        }
        let written: Vec<BufId> = step.writes.iter().map(|o| o.buf).collect();
        let mut rounded = vec![];
        for o in narrow {
            let buf = self.temporary();
            let buffer = Buffer { dtype: DType::F32, ..self.here.plan.buffer(o.buf).clone() };
            self.here.wide.insert(buf, buffer);
            for operand in wide.reads.iter_mut().chain(&mut wide.writes) {
                if operand.buf == o.buf {
                    operand.buf = buf;
                }
            }
            let (stored, copy) = (self.here.local(&o)?, self.here.local(&Operand { buf, ..o.clone() })?);
            if written.contains(&o.buf) {
                rounded.push((copy, stored));
            } else {
                self.own(Own::cast(&stored, &copy)?, &[]);
            }
        }
        Ok(Some(Widened { step: wide, rounded }))
    }

    /// A factor as `f32`, in which products are computed: a copy where it is `bf16`.
    fn wide(&mut self, of: &Local, copies: &mut Vec<Input>) -> Result<Local, Unprepared> {
        if of.dtype != DType::BF16 {
            return Ok(of.clone());
        }
        let copy = Local { buf: self.temporary(), dtype: DType::F32, ..of.clone() };
        self.own(Own::cast(of, &copy)?, &[]);
        copies.push(Input::from(&copy));
        Ok(copy)
    }

    fn contract(&mut self, a: &Local, b: &Local, out: &Local) -> Result<(), Unprepared> {
        let dtypes = [a.dtype, b.dtype, out.dtype].map(DType::wide);
        if dtypes[0] != dtypes[1] || dtypes[0] != dtypes[2] || !a.dtype.is_float() {
            let message = format!("a contraction of {} and {} to {}", a.dtype, b.dtype, out.dtype);
            return Err(Unprepared::Plan(message));
        }
        let product = match contraction(a, b, out)? {
            Contraction::Zero => {
                self.own(Own::zero(out), &[]);
                return Ok(());
            }
            Contraction::Product(product) => product,
        };
        let mut copies = vec![];
        let (a, b) = (&self.wide(a, &mut copies)?, &self.wide(b, &mut copies)?);
        let (left, right) = if product.swapped { (b, a) } else { (a, b) };
        let stored = out;
        let out = &if out.dtype == DType::BF16 {
            Local { buf: self.temporary(), dtype: DType::F32, ..out.clone() }
        } else {
            out.clone()
        };
        let lhs = self.factor(left, &product.left, &mut copies)?;
        let rhs = self.factor(right, &product.right, &mut copies)?;
        let target = match &product.copy {
            Some(order) => self.reordered(out, order),
            None => out.clone(),
        };
        let direct = product.shape == target.shape;
        let result = if direct { target.buf } else { self.temporary() };
        let dtype = stored_as(out.dtype);
        self.push(OperationIr::Float(
            dtype,
            FloatOperationIr::Matmul(MatmulOpIr {
                lhs,
                rhs,
                out: tensor(result, out.dtype, &product.shape, TensorStatus::NotInit),
            }),
        ));
        if !direct {
            self.push(OperationIr::BaseFloat(BaseOperationIr::Reshape(ShapeOpIr {
                input: tensor(result, out.dtype, &product.shape, TensorStatus::ReadWrite),
                out: tensor(target.buf, out.dtype, &target.shape, TensorStatus::NotInit),
            })));
        }
        if product.copy.is_some() {
            self.own(Own::copy(&target, out)?, &[target.buf]);
        }
        if stored.buf != out.buf {
            self.own(Own::cast(out, stored)?, &[out.buf]);
        }
        self.release(copies);
        Ok(())
    }

    /// A factor of a matrix product as a view of its buffer, which stays alive.
    fn factor(
        &mut self,
        of: &Local,
        factor: &Factor,
        copies: &mut Vec<Input>,
    ) -> Result<TensorIr, Unprepared> {
        let mut base = of.clone();
        if let Some(order) = &factor.copy {
            base = self.reordered(of, order);
            self.own(Own::copy(of, &base)?, &[]);
            copies.push(Input::from(&base));
        }
        let mut last = tensor(base.buf, base.dtype, &base.shape, TensorStatus::ReadOnly);
        if factor.reshape != base.shape {
            let out = tensor(self.temporary(), base.dtype, &factor.reshape, TensorStatus::NotInit);
            let operation = BaseOperationIr::Reshape(ShapeOpIr { input: last, out: out.clone() });
            self.push(OperationIr::BaseFloat(operation));
            last = TensorIr { status: TensorStatus::ReadWrite, ..out };
        }
        if let Some(axes) = &factor.permute {
            let shape: Vec<usize> = axes.iter().map(|i| factor.reshape[*i]).collect();
            let out = tensor(self.temporary(), base.dtype, &shape, TensorStatus::NotInit);
            let operation =
                BaseOperationIr::Permute(PermuteOpIr { input: last, out: out.clone(), axes: axes.clone() });
            self.push(OperationIr::BaseFloat(operation));
            last = TensorIr { status: TensorStatus::ReadWrite, ..out };
        }
        Ok(last)
    }
}

/// A use of a tensor.
pub(crate) fn tensor(buf: BufId, dtype: DType, shape: &[usize], status: TensorStatus) -> TensorIr {
    let shape: Shape = stored_shape(dtype, shape);
    TensorIr { id: TensorId::new(u64::from(buf.0)), shape, status, dtype: stored_as(dtype) }
}
