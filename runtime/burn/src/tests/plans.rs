//! Builds Plans by hand, with lifetimes as the compiler gives them.

use meshwright_plan::{
    Arithmetic, Axis, BufId, Buffer, Collective, DType, Dim, Dims, Expr, Extent, Init, Mesh, Monoid, Operand,
    OutputDecl, Plan, Prim, ProgramInput, ProgramInputKind, Provenance, Step, Summary, expr::Reg,
};

/// A Plan in the making.
pub(crate) struct Builder {
    pub(crate) plan: Plan,
}

impl Builder {
    pub(crate) fn new(mesh: &Mesh) -> Builder {
        let plan = Plan {
            version: Plan::VERSION,
            model: "test".into(),
            program: "train".into(),
            mesh: mesh.clone(),
            dims: Dims::default(),
            float: Arithmetic::F64,
            inputs: vec![],
            microbatches: None,
            pipeline: None,
            buffers: vec![],
            program_inputs: vec![],
            steps: vec![],
            outputs: vec![],
            summary: Summary::default(),
        };
        Builder { plan }
    }

    pub(crate) fn dim(&mut self, name: &str, size: usize) -> Dim {
        self.plan.dims.add(name, size)
    }

    /// A buffer whose dims are split over axes.
    pub(crate) fn split(&mut self, dtype: DType, dims: &[(Dim, &[Axis])]) -> Operand {
        let size = |d: Dim| self.plan.dims.size(d);
        let extents = dims
            .iter()
            .map(|(d, axes)| Extent {
                size: size(*d),
                axes: axes.to_vec(),
                window: None,
                rotated: 0,
                cuts: None,
            })
            .collect();
        self.plan.buffers.push(Buffer::new(dtype, extents));
        let buf = BufId(self.plan.buffers.len() as u32 - 1);
        Operand { buf, dims: dims.iter().map(|d| d.0).collect() }
    }

    /// A whole buffer.
    pub(crate) fn whole(&mut self, dtype: DType, dims: &[Dim]) -> Operand {
        let dims: Vec<(Dim, &[Axis])> = dims.iter().map(|d| (*d, &[][..])).collect();
        self.split(dtype, &dims)
    }

    /// A buffer of another one's dims and placement.
    pub(crate) fn like(&mut self, other: &Operand) -> Operand {
        let buffer = self.plan.buffer(other.buf).clone();
        self.plan.buffers.push(buffer);
        Operand { buf: BufId(self.plan.buffers.len() as u32 - 1), dims: other.dims.clone() }
    }

    pub(crate) fn leaf(&mut self, kind: ProgramInputKind, name: &str, operand: &Operand) {
        let init = match kind {
            ProgramInputKind::Param => Some(Init::Uniform { low: -1.0, high: 1.0 }),
            ProgramInputKind::OptimizerState => Some(Init::Constant(0.0)),
            _ => None,
        };
        let (buf, dims) = (operand.buf, operand.dims.clone());
        self.plan.program_inputs.push(ProgramInput { kind, name: name.into(), buf, dims, init, next: None });
    }

    pub(crate) fn next(&mut self, name: &str, operand: &Operand) {
        self.plan.program_inputs.iter_mut().find(|l| l.name == name).unwrap().next = Some(operand.buf);
    }

    pub(crate) fn step(&mut self, value: &str, prim: Prim, reads: &[&Operand], writes: &[&Operand]) {
        let of = |operands: &[&Operand]| operands.iter().map(|o| (*o).clone()).collect::<Vec<_>>();
        let line = 10 + self.plan.steps.len() as u32;
        let cause = Provenance { path: value.into(), line, ..Provenance::default() };
        let step = Step::new(prim, of(reads), of(writes));
        self.plan.steps.push(Step { origin: vec![cause; writes.len()], ..step });
    }

    /// `out = f(loads)`, element by element.
    pub(crate) fn map(
        &mut self,
        value: &str,
        inputs: &[&Operand],
        out: &Operand,
        f: impl FnOnce(&mut Expr, &[Reg]) -> Reg,
    ) {
        let mut expr = Expr::default();
        let loads: Vec<Reg> = (0..inputs.len())
            .map(|k| {
                let dtype = self.plan.buffer(inputs[k].buf).dtype;
                expr.push(meshwright_plan::expr::Scalar::Load(k as u16), dtype)
            })
            .collect();
        let reg = f(&mut expr, &loads);
        self.step(value, Prim::Map { expr, regs: vec![reg] }, inputs, &[out]);
    }

    pub(crate) fn contract(&mut self, value: &str, a: &Operand, b: &Operand, out: &Operand) {
        self.step(value, Prim::Contract, &[a, b], &[out]);
    }

    pub(crate) fn reduce(&mut self, value: &str, monoid: Monoid, input: &Operand, out: &Operand) {
        self.step(value, Prim::Reduce { monoid }, &[input], &[out]);
    }

    /// Sums buffers over axes of more than one device, in place; gives what holds the sums.
    pub(crate) fn all_reduce(
        &mut self,
        value: &str,
        monoid: Monoid,
        axes: &[Axis],
        from: &[&Operand],
    ) -> Vec<Operand> {
        let axes: Vec<Axis> = axes.iter().copied().filter(|a| self.plan.mesh.size(*a) > 1).collect();
        if axes.is_empty() {
            return from.iter().map(|o| (*o).clone()).collect();
        }
        let to: Vec<Operand> = from.iter().map(|f| self.like(f)).collect();
        let collective = Collective::AllReduce { axes, monoid };
        self.step(value, Prim::Collective(collective), from, &to.iter().collect::<Vec<_>>());
        to
    }

    pub(crate) fn output(&mut self, name: &str, operand: &Operand) {
        let (buf, dims) = (operand.buf, operand.dims.clone());
        self.plan.outputs.push(OutputDecl { name: name.into(), buf, dims });
    }

    /// The Plan with lifetimes: each buffer ends at its last use; an output of a map or all-reduce takes the storage of
    /// an input of the same dims that ends there.
    pub(crate) fn finish(mut self) -> Plan {
        let kept: Vec<BufId> = self
            .plan
            .outputs
            .iter()
            .map(|o| o.buf)
            .chain(
                self.plan
                    .program_inputs
                    .iter()
                    .filter(|l| l.kind != ProgramInputKind::Input)
                    .map(|l| l.next.unwrap_or(l.buf)),
            )
            .collect();
        let mut later: Vec<BufId> = kept;
        let buffers = self.plan.buffers.clone();
        for step in self.plan.steps.iter_mut().rev() {
            let (mut ends, mut aliases): (Vec<BufId>, Vec<(BufId, BufId)>) = (vec![], vec![]);
            for operand in step.all() {
                if !later.contains(&operand.buf) {
                    later.push(operand.buf);
                    ends.push(operand.buf);
                }
            }
            for out in &step.writes {
                let fits = |r: &&Operand| {
                    ends.contains(&r.buf)
                        && step.may_donate(r.buf, out.buf)
                        && buffers[r.buf.0 as usize] == buffers[out.buf.0 as usize]
                };
                if let Some(read) = step.reads.iter().find(fits).map(|r| r.buf) {
                    ends.retain(|b| *b != read);
                    aliases.push((read, out.buf));
                }
            }
            step.aliases = aliases;
            step.free = ends;
        }
        self.plan
    }
}
