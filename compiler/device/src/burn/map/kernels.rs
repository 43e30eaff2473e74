//! Element-wise steps by kernels of our own, where the backend compiles them.

use super::super::lower::Lower;
use super::functions::MapFunction;
use crate::error::LoweringError;
use crate::kernels::map::{MapCall, MapCalls, MapOperand};
use crate::lowering::local::Local;
use meshwright_plan::expr::{Expr, Reg};
use meshwright_plan::{BufId, Dim, Operand, Prim, Step};

/// A map kernel with its operands in memory, and its results.
pub(in crate::burn) struct OwnMap {
    pub call: MapCall,
    pub reads: Vec<Local>,
    pub writes: Vec<Local>,
}

impl Lower<'_> {
    /// Records independent steps with kernels as one launch.
    pub(crate) fn own_maps(&mut self, steps: &[&Step]) -> Result<(), LoweringError> {
        let functions = steps.iter().map(|step| self.map_function(step)).collect::<Result<Vec<_>, _>>()?;
        let (mut calls, mut reads, mut writes) = (vec![], vec![], vec![]);
        for function in MapFunction::merged(functions.into_iter().flatten()) {
            if let Some(map) = self.own_map(function)? {
                calls.push(map.call);
                reads.extend(map.reads);
                writes.extend(map.writes);
            }
        }
        self.record(MapCalls(calls), &reads, &writes);
        Ok(())
    }

    /// The call of a step, if there is a kernel for it.
    pub(crate) fn own_map_call(&self, step: &Step) -> Result<Option<MapCall>, LoweringError> {
        let Some(function) = self.map_function(step)? else { return Ok(None) };
        Ok(self.own_map(function)?.map(|map| map.call))
    }

    /// What a step computes element by element; none if it is no such step.
    fn map_function(&self, step: &Step) -> Result<Option<MapFunction>, LoweringError> {
        if let (Prim::Blank { zero: true }, [out]) = (&step.prim, &step.writes[..]) {
            // Row by row: a loop may put values there position by position.
            let mut zeros = MapFunction { gaps: false, ..MapFunction::default() };
            let out = self.local(out)?;
            zeros.written.push((zeros.expr.constant(0.0, out.dtype), out));
            return Ok(Some(zeros));
        }
        let Prim::Map { expr, regs } = &step.prim else { return Ok(None) };
        let written = regs.iter().copied().zip(self.all_local(&step.writes)?);
        Ok(Some(MapFunction {
            expr: expr.clone(),
            reads: self.all_local(&step.reads)?,
            written: written.filter(|(_, out)| !self.is_inlined(out)).collect(),
            donations: step.aliases.clone(),
            gaps: true,
        }))
    }

    fn is_inlined(&self, local: &Local) -> bool {
        self.decisions.inlined.values.contains_key(&local.buf)
    }

    /// The kernel of a function, if there is one.
    pub(in crate::burn) fn own_map(&self, of: MapFunction) -> Result<Option<OwnMap>, LoweringError> {
        let MapFunction { expr, reads, written, donations, gaps } = of;
        // A step that contradicts itself has no kernel; its lowering to Burn reports the error.
        let all: Vec<&Local> = reads.iter().chain(written.iter().map(|w| &w.1)).collect();
        if self.context.check_aligned(&all, &[]).is_err() {
            return Ok(None);
        }
        let drawn = |buf: &BufId| self.decisions.masks.drawn_by.get(buf).copied();
        let Some(call) = self.map_call(&expr, &reads, &written, drawn)? else { return Ok(None) };
        let reads: Vec<Local> = reads.into_iter().filter(|i| drawn(&i.buf).is_none()).collect();
        let writes: Vec<Local> = written.into_iter().map(|w| w.1).collect();
        let at = |all: &[Local], buf: BufId| all.iter().position(|l| l.buf == buf);
        let donations =
            donations.iter().filter_map(|(from, to)| Some((at(&reads, *from)?, at(&writes, *to)?)));
        let call = MapCall { gaps, ..call }.with_donations(&donations.collect::<Vec<_>>());
        Ok(Some(OwnMap { call, reads, writes }))
    }

    /// Whether there is a kernel for a step.
    pub(crate) fn is_own_map(&self, step: &Step) -> bool {
        let has_elements = |o: &Operand| self.local(o).is_ok_and(|l| l.elements() > 0);
        step.writes.iter().all(has_elements) && matches!(self.own_map_call(step), Ok(Some(_)))
    }

    fn all_local(&self, operands: &[Operand]) -> Result<Vec<Local>, LoweringError> {
        operands.iter().map(|o| self.local(o)).collect()
    }

    /// The call of a step whose results have elements; `drawn` is the producer of a random buffer that the kernel would
    /// draw.
    pub(in crate::burn) fn map_call(
        &self,
        expr: &Expr,
        inputs: &[Local],
        written: &[(Reg, Local)],
        drawn: impl Fn(&BufId) -> Option<usize>,
    ) -> Result<Option<MapCall>, LoweringError> {
        let Some((_, space)) = written.first() else { return Ok(None) };
        let known = |reg: &Reg| usize::from(*reg) < expr.nodes.len();
        if !self.graph.target.maps || !written.iter().all(|(reg, _)| known(reg)) {
            return Ok(None);
        }
        let mut operands = vec![];
        for input in inputs {
            let Some(operand) = self.kernel_operand(input, &space.dims, drawn(&input.buf))? else {
                return Ok(None);
            };
            operands.push(operand);
        }
        let regs: Vec<Reg> = written.iter().map(|w| w.0).collect();
        let outputs = written.iter().map(|w| w.1.dtype).collect();
        Ok(MapCall::new((expr, &regs), &space.ranges, operands, outputs))
    }

    /// An operand of a kernel over some dims, or the random draw that replaces it; none if it has other dims.
    pub(crate) fn kernel_operand(
        &self,
        local: &Local,
        dims: &[Dim],
        drawn: Option<usize>,
    ) -> Result<Option<MapOperand>, LoweringError> {
        let at = |of: &Dim| dims.iter().position(|dim| dim == of);
        let Some(places) = local.dims.iter().map(at).collect::<Option<Vec<usize>>>() else { return Ok(None) };
        let Some(by) = drawn else {
            let dims = dims.iter().map(|dim| local.at(*dim)).collect();
            return Ok(Some(MapOperand::Tensor { dtype: local.dtype, dims }));
        };
        let step = &self.context.plan.steps[by];
        let (Prim::Random { stream, distribution }, [out]) = (&step.prim, &step.writes[..]) else {
            return Ok(None);
        };
        let kernel = self.drawing(stream, distribution, &self.local(out)?)?;
        Ok(Some(MapOperand::Drawn((kernel, places))))
    }

    /// See [`Lowering::draws`](crate::lowering::Lowering::draws). A kernel draws values with all its dims: it would
    /// draw others repeatedly.
    pub(crate) fn draws_within(&self, step: usize, buf: BufId, by: usize) -> bool {
        let step = &self.context.plan.steps[step];
        let Prim::Map { expr, regs } = &step.prim else { return false };
        let (Ok(inputs), Ok(outs)) = (self.all_local(&step.reads), self.all_local(&step.writes)) else {
            return false;
        };
        let whole = |i: &Local| i.buf != buf || outs.iter().all(|out| out.dims.len() == i.dims.len());
        let written: Vec<(Reg, Local)> = regs.iter().copied().zip(outs.iter().cloned()).collect();
        let drawn = |of: &BufId| (*of == buf).then_some(by);
        inputs.iter().all(whole) && matches!(self.map_call(expr, &inputs, &written, drawn), Ok(Some(_)))
    }
}
