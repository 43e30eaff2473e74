//! Every instruction of an SPMD program becomes primitive steps on buffers. A rename moves nothing: the same buffer is read
//! under another name.

use crate::partition::{Cause, CopyId, Instr, PlacedLoop, Reshard, Spmd, keeps_storage};
use crate::step::step_graph::OutputKind;
use meshwright_diag::Span;
use meshwright_ops::{Emit, Id, InputOpKind, Kind, Op, Type};
use meshwright_plan::expr::Reg;
use meshwright_plan::{
    BufId, Buffer, DType, Dim, Dims, Expr, Extent, IdVec, Operand, OutputDecl, Phase, Placement, Plan, Prim,
    ProgramInput, ProgramInputKind, Provenance, Splits, Step, Summary,
};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// Line of the model file that a span starts in.
pub type LineOf<'a> = dyn Fn(Span) -> u32 + 'a;

/// Lowers a verified SPMD program. Steps come without lifetimes; [`super::lifetimes`] adds them.
pub fn lower(spmd: &Spmd, line_of: &LineOf) -> Plan {
    let mut l = Lower {
        spmd,
        line_of,
        operands: spmd.copies.table(None),
        rounded: SortedSet::new(),
        upcasts: SortedMap::new(),
        plan: Plan {
            version: Plan::VERSION,
            model: spmd.step.model.clone(),
            program: spmd.step.program.into(),
            mesh: spmd.mesh.clone(),
            dims: spmd.step.graph.dims.unmarked(),
            float: spmd.step.float,
            inputs: spmd.step.inputs.clone(),
            microbatches: spmd.step.graph.microbatches,
            pipeline: spmd.pipeline.clone(),
            buffers: Vec::new(),
            program_inputs: Vec::new(),
            steps: Vec::new(),
            outputs: Vec::new(),
            summary: Summary::default(),
        },
        leaf_of: SortedMap::new(),
        open: Vec::new(),
        loops_begun: 0,
        times: 1,
        taken: SortedSet::new(),
    };
    for (i, instr) in spmd.instrs.iter().enumerate() {
        l.loops_at(i);
        l.instr(instr);
        l.leaving(instr.out());
    }
    l.loops_at(spmd.instrs.len());
    l.round_early();
    l.taken = l.plan.program_inputs.iter().map(|l| l.buf).collect();
    for (goal, version) in spmd.step.outputs.iter().zip(&spmd.outputs) {
        let operand = l.operand(*version);
        match goal.kind {
            OutputKind::Scalar | OutputKind::Output => {
                let out = OutputDecl { name: goal.name.clone(), buf: operand.buf, dims: operand.dims };
                l.plan.outputs.push(out);
            }
            OutputKind::Next(leaf) => l.next(leaf, goal.id, operand),
        }
    }
    l.plan
}

/// A loop whose body is being lowered.
pub(super) struct OpenBody<'a> {
    pub(super) placed: &'a PlacedLoop,
    pub(super) dim: Dim,
    pub(super) reverse: bool,
    pub(super) from: usize,
    /// The place of its first step.
    pub(super) begin: usize,
    /// Its carries: initial value, value in the body, and next value of each.
    pub(super) carried: Vec<[Operand; 3]>,
    /// Of these, in order of their numbers, the blanks that start as zeros or as nothing.
    pub(super) blanks: Vec<(Operand, bool)>,
    /// Its results: for each copy after the loop the position among the carries.
    pub(super) leaving: SortedMap<CopyId, usize>,
    /// Its stacks, each with its position among the carries.
    pub(super) stacked: Vec<(BufId, usize)>,
    /// Its sliced buffers, each with the slice.
    pub(super) sliced: Vec<(BufId, Operand)>,
    /// The dims of copies behind the loop that are stacked once, under the names of another.
    pub(super) renamed: SortedMap<CopyId, Vec<Dim>>,
    /// The value that the steps of the boundary belong to.
    pub(super) of: Id,
    pub(super) phase: Phase,
}

pub(super) struct Lower<'a> {
    pub(super) spmd: &'a Spmd,
    line_of: &'a LineOf<'a>,
    pub(super) operands: IdVec<CopyId, Option<Operand>>,
    /// Buffers of gradients' terms that are rounded to be reduced.
    pub(super) rounded: SortedSet<BufId>,
    /// Of gradients that are stored in `bf16`, the buffers in `f32`, each with the number of loops that were open when it was
    /// made.
    pub(super) upcasts: SortedMap<CopyId, (Operand, usize)>,
    pub(super) plan: Plan,
    /// Position in the Plan's leaves of a parameter's, moment's or state's value.
    leaf_of: SortedMap<Id, usize>,
    /// The loops whose bodies are being lowered, outermost first.
    pub(super) open: Vec<OpenBody<'a>>,
    /// Number of loops that have begun so far.
    pub(super) loops_begun: usize,
    /// Number of runs of the current step.
    pub(super) times: u64,
    /// Buffers of program inputs, and of the next values that are bound.
    taken: SortedSet<BufId>,
}

impl Lower<'_> {
    pub(super) fn operand(&self, v: CopyId) -> Operand {
        match &self.operands[v] {
            Some(o) => o.clone(),
            None => panic!("internal error: version {} is read before it is made", v.0),
        }
    }

    pub(super) fn buffer(&mut self, dtype: DType, dims: &[Dim], placement: &Placement) -> Operand {
        let extents = dims.iter().map(|d| placement.extent(*d, &self.plan.dims)).collect();
        let buffer = Buffer { partial: placement.partial.clone(), ..Buffer::new(dtype, extents) };
        self.buffer_of(buffer, dims)
    }

    /// One more buffer.
    pub(super) fn buffer_of(&mut self, buffer: Buffer, dims: &[Dim]) -> Operand {
        self.plan.buffers.push(buffer);
        Operand { buf: BufId(self.plan.buffers.len() as u32 - 1), dims: dims.to_vec() }
    }

    fn origin(&self, id: Id, cause: Option<&Cause>) -> Provenance {
        let graph = &self.spmd.step.graph;
        let made = graph.node(id);
        let named = !made.origin.name.is_empty();
        Provenance {
            id: id.0,
            path: if named { made.origin.name.clone() } else { graph.path(id).into() },
            line: (self.line_of)(made.origin.span),
            because: cause.map_or_else(Arc::default, |c| c.because.clone()),
            rule: cause.and_then(|c| c.rule).map(self.line_of),
        }
    }

    pub(super) fn push(
        &mut self,
        prim: Prim,
        reads: Vec<Operand>,
        out: Operand,
        of: (Id, Option<&Cause>),
        phase: Phase,
    ) {
        let step = self.step(prim, reads, vec![out], of, phase);
        self.plan.steps.push(step);
    }

    /// A step with its provenance.
    pub(super) fn step(
        &self,
        prim: Prim,
        reads: Vec<Operand>,
        writes: Vec<Operand>,
        (id, cause): (Id, Option<&Cause>),
        phase: Phase,
    ) -> Step {
        // What writes nothing, such as a message that is sent, has a cause too: errors name it.
        let origin = vec![self.origin(id, cause); writes.len().max(1)];
        Step { phase, origin, ..Step::new(prim, reads, writes) }
    }

    fn instr(&mut self, instr: &Instr) {
        let out = instr.out();
        let version = self.spmd.copy(out).clone();
        let id = version.value;
        let graph = &self.spmd.step.graph;
        let ty = graph.ty(id).clone();
        let phase = graph.node(id).origin.phase;
        match instr {
            Instr::Input { .. } => {
                let o = self.buffer(ty.dtype, &ty.dims, &version.placement);
                self.leaf(id, &o);
                self.operands[out] = Some(o);
            }
            Instr::Op { inputs, loops, .. } => {
                if let Kind::Rename { from, to } = graph.node(id).op.kind() {
                    let mut o = self.operand(inputs[0]);
                    for d in &mut o.dims {
                        if *d == from {
                            *d = to;
                        }
                    }
                    self.operands[out] = Some(o);
                    return;
                }
                if let Some(b) = graph.boundary(id) {
                    return self.crossed(b.how, b.dim, inputs[0], out);
                }
                let as_stored = keeps_storage(graph, id);
                let mut read = |v: &CopyId| if as_stored { self.operand(*v) } else { self.wide(*v, id) };
                let operands: Vec<Operand> = inputs.iter().map(&mut read).collect();
                let o = self.op(id, &operands, loops, &version.placement);
                self.operands[out] = Some(o);
                self.count_flops(id, loops);
            }
            Instr::Reshard { kind, from, cause, .. } => {
                let dtype = self.spmd.dtype(out);
                let phase = cause.phase.max(phase);
                // A term of a gradient is named by the parameter, not by the layer it comes from.
                let gradient = cause.user.filter(|u| graph.node(*u).op.kind() == Kind::Gradient);
                let called = gradient.unwrap_or(id);
                let from = self.rounded(*from, out, (called, phase));
                let to = self.buffer(dtype, &from.dims, &version.placement);
                self.operands[out] = Some(to.clone());
                let prim = match kind {
                    Reshard::Collective(c) => Prim::Collective(c.clone()),
                    Reshard::Slice { .. } | Reshard::SliceWindow { .. } => Prim::Copy,
                };
                self.push(prim, vec![from], to, (called, Some(cause)), phase);
            }
        }
    }

    fn count_flops(&mut self, id: Id, loops: &Splits) {
        let graph = &self.spmd.step.graph;
        let mesh = &self.spmd.mesh;
        let size = |d: Dim| {
            Extent::of(&graph.dims, d, loops.get(&d).map_or(&[][..], Vec::as_slice)).largest(mesh) as u64
        };
        self.plan.summary.flops +=
            self.times * graph.node(id).op.flops(&graph.input_types(id), graph.ty(id), &size, &graph.dims);
    }

    fn leaf(&mut self, id: Id, o: &Operand) {
        let node = self.spmd.step.graph.node(id);
        let Kind::Input(leaf) = node.op.kind() else { return };
        let (kind, name, init) = match leaf {
            InputOpKind::Input { name } => (ProgramInputKind::Input, name, None),
            InputOpKind::Param { path, init } | InputOpKind::State { path, init } => {
                (ProgramInputKind::Param, path, Some(init))
            }
            InputOpKind::OptimizerState { path, init } => {
                (ProgramInputKind::OptimizerState, path, Some(init))
            }
            InputOpKind::StepNumber => (ProgramInputKind::StepNumber, "step".into(), None),
        };
        if init.is_some() {
            self.leaf_of.insert(id, self.plan.program_inputs.len());
        }
        self.plan.program_inputs.push(ProgramInput {
            kind,
            name,
            buf: o.buf,
            dims: o.dims.clone(),
            init,
            next: None,
        });
    }

    fn op(&mut self, id: Id, operands: &[Operand], loops: &Splits, placement: &Placement) -> Operand {
        let graph = &self.spmd.step.graph;
        let node = graph.node(id).clone();
        let types: Vec<Type> = graph.input_types(id).into_iter().cloned().collect();
        let refs: Vec<&Type> = types.iter().collect();
        if let Some((expr, loads, reg)) = scalar(&*node.op, &refs, &node.ty, &graph.dims) {
            let identity = loads.first() == Some(&reg) && operands[0].dims.len() == node.ty.dims.len();
            if identity && loads.len() == 1 {
                return operands[0].clone();
            }
            // Stored like the first operand that has all dims, so that chains need no transposition.
            let all = |o: &&Operand| {
                o.dims.len() == node.ty.dims.len() && node.ty.dims.iter().all(|d| o.dims.contains(d))
            };
            let order = operands.iter().find(all).map_or(node.ty.dims.clone(), |o| o.dims.clone());
            let out = self.buffer(node.ty.dtype, &order, placement);
            let prim = Prim::Map { expr, regs: vec![reg] };
            self.push(prim, operands.to_vec(), out.clone(), (id, None), node.origin.phase);
            return out;
        }
        let mut e = Emitter {
            lower: self,
            id,
            operands,
            types: &types,
            ty: node.ty.clone(),
            loops,
            placement,
            out: None,
        };
        node.op.lower(&mut e);
        match e.out {
            Some(o) => o,
            None => panic!("internal error: `{}` does not lower to anything", node.op.name()),
        }
    }

    /// Binds the next value of a leaf: stored as the leaf is, in a buffer of its own.
    fn next(&mut self, leaf: Id, value: Id, o: Operand) {
        let Some(i) = self.leaf_of.get(&leaf).copied() else { return };
        let l = &self.plan.program_inputs[i];
        if o.buf == l.buf {
            // It stays as it is.
            return;
        }
        let mut buf = o.buf;
        if o.dims != l.dims || self.taken.contains(&o.buf) {
            let dims = l.dims.clone();
            let extents = self.plan.buffer(l.buf).extents.clone();
            let dtype = self.plan.buffer(l.buf).dtype;
            self.plan.buffers.push(Buffer::new(dtype, extents));
            buf = BufId(self.plan.buffers.len() as u32 - 1);
            let out = Operand { buf, dims };
            self.push(Prim::Copy, vec![o], out, (value, None), Phase::Update);
        }
        self.taken.insert(buf);
        self.plan.program_inputs[i].next = Some(buf);
    }
}

/// The expression of an element-wise op: what is stored in a half type is read as `f32`, in which all is computed, and the result
/// is rounded once, where it is stored. With the registers of the operands as they are stored, and that of the result.
fn scalar(op: &dyn Op, x: &[&Type], y: &Type, dims: &Dims) -> Option<(Expr, Vec<Reg>, Reg)> {
    let (mut expr, loads) = Expr::of_operands(x.iter().map(|t| t.dtype));
    let read: Vec<Reg> = loads.iter().zip(x).map(|(r, t)| expr.cast(*r, t.dtype.wide())).collect();
    let wide: Vec<Type> = x.iter().map(|t| t.wide()).collect();
    let reg = op.scalar(&mut expr, &read, &wide.iter().collect::<Vec<_>>(), &y.wide(), dims)?;
    // An unchanged operand needs no rounding.
    if let Some(i) = read.iter().position(|r| *r == reg)
        && x[i].dtype == y.dtype
    {
        return Some((expr, loads.clone(), loads[i]));
    }
    let reg = expr.cast(reg, y.dtype);
    Some((expr, loads, reg))
}

/// The interface through which one op lowers.
struct Emitter<'a, 'b> {
    lower: &'a mut Lower<'b>,
    id: Id,
    operands: &'a [Operand],
    types: &'a [Type],
    ty: Type,
    loops: &'a Splits,
    placement: &'a Placement,
    out: Option<Operand>,
}

impl Emit for Emitter<'_, '_> {
    fn dims(&self) -> &Dims {
        &self.lower.plan.dims
    }

    fn input_count(&self) -> usize {
        self.operands.len()
    }

    fn input(&self, i: usize) -> Operand {
        self.operands[i].clone()
    }

    fn input_type(&self, i: usize) -> &Type {
        &self.types[i]
    }

    fn result_type(&self) -> &Type {
        &self.ty
    }

    fn output(&mut self, order: &[Dim]) -> Operand {
        let o = self.lower.buffer(self.ty.dtype, order, self.placement);
        self.out = Some(o.clone());
        o
    }

    fn temp(&mut self, dtype: DType, dims: &[Dim]) -> Operand {
        self.lower.buffer(dtype, dims, &Placement::split(self.loops.clone()))
    }

    fn reordered(&mut self, from: &Operand, order: &[Dim]) -> Operand {
        if from.dims == order {
            return from.clone();
        }
        let plan = &mut self.lower.plan;
        let held = plan.buffer(from.buf).clone();
        let along = |d: &Dim| from.dims.iter().position(|f| f == d).map(|i| held.extents[i].clone());
        plan.buffers.push(Buffer::new(held.dtype, order.iter().filter_map(along).collect()));
        let out = Operand { buf: BufId(plan.buffers.len() as u32 - 1), dims: order.to_vec() };
        self.push(Prim::Copy, vec![from.clone()], out.clone());
        out
    }

    fn push(&mut self, prim: Prim, reads: Vec<Operand>, out: Operand) {
        let phase = self.lower.spmd.step.graph.node(self.id).origin.phase;
        let (buf, placed) = (out.buf, self.out.as_ref().is_some_and(|o| o.buf == out.buf));
        self.lower.push(prim, reads, out, (self.id, None), phase);
        // The result is partial as the partitioner says, all else as the step makes it; the verifier compares.
        let plan = &mut self.lower.plan;
        let inferred = plan.steps.last().and_then(|s| s.partial(plan).ok()?.pop());
        if let Some(partial) = inferred.filter(|_| !placed) {
            plan.buffers[buf.0 as usize].partial = partial;
        }
    }
}
