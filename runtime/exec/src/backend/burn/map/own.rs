//! Element-wise steps by kernels of our own, where the backend compiles them.

use super::super::cube::OwnKernel;
use super::super::cube::maps::{MapCall, MapOperand};
use super::super::emit::MAP;
use super::super::lower::{BurnKernel, Lower};
use crate::engine::context::Local;
use crate::engine::graph::{TensorSlot, Val};
use crate::engine::lowering::{LoweringError, extents, stored_as};
use meshwright_plan::expr::{Expr, Reg};
use meshwright_plan::{BufId, Prim};
use std::sync::Arc;

impl Lower<'_> {
    /// False where there is no kernel for it, and nothing is recorded.
    pub(super) fn own_map(
        &mut self,
        expr: &Expr,
        inputs: &[Local],
        written: &[(Reg, Local)],
    ) -> Result<bool, LoweringError> {
        let drawn = |buf: &BufId| self.masks.drawn_by.get(buf).copied();
        let Some(call) = self.map_call(expr, inputs, written, drawn)? else { return Ok(false) };
        let in_memory: Vec<&Local> = inputs.iter().filter(|i| drawn(&i.buf).is_none()).collect();
        let read: Vec<Val> = in_memory.into_iter().map(|i| self.read(i).val).collect();
        let outs = written.iter().map(|(_, out)| (extents(&out.shape), stored_as(out.dtype)));
        self.kernels.push(BurnKernel::Own(OwnKernel::Map(Arc::new(call))));
        let made = self.graph.kernel((MAP, self.kernels.len() - 1), read, outs);
        for ((_, out), val) in written.iter().zip(made) {
            self.graph.store(val, TensorSlot::Buffer(out.buf));
        }
        Ok(true)
    }

    /// Of a step whose results have elements; `drawn` says which step would draw a buffer that the kernel is to draw.
    fn map_call(
        &self,
        expr: &Expr,
        inputs: &[Local],
        written: &[(Reg, Local)],
        drawn: impl Fn(&BufId) -> Option<usize>,
    ) -> Result<Option<MapCall>, LoweringError> {
        let Some((_, space)) = written.first() else { return Ok(None) };
        let known = |reg: &Reg| usize::from(*reg) < expr.nodes.len();
        if !self.graph.capabilities.own_maps || !written.iter().all(|(reg, _)| known(reg)) {
            return Ok(None);
        }
        let mut operands = vec![];
        for input in inputs {
            let Some(by) = drawn(&input.buf) else {
                let dims = space.dims.iter().map(|d| input.at(*d)).collect();
                operands.push(MapOperand::Tensor { dtype: input.dtype, dims });
                continue;
            };
            let step = &self.context.plan.steps[by];
            let (Prim::Random { stream, distribution }, [out]) = (&step.prim, &step.writes[..]) else {
                return Ok(None);
            };
            let kernel = self.drawing(stream, distribution, &self.local(out)?)?;
            let places: Option<Vec<usize>> = input.dims.iter().map(|d| space.at(*d)).collect();
            let Some(places) = places else { return Ok(None) };
            operands.push(MapOperand::Drawn(kernel, places));
        }
        let regs: Vec<Reg> = written.iter().map(|w| w.0).collect();
        let outputs = written.iter().map(|w| w.1.dtype).collect();
        Ok(MapCall::new((expr, &regs), &space.ranges, operands, outputs))
    }

    /// See [`crate::backend::Backend::draws`]. A kernel draws what has all its dims: else it would draw the same again and again.
    pub(in super::super) fn draws_within(&self, step: usize, buf: BufId, by: usize) -> bool {
        let step = &self.context.plan.steps[step];
        let Prim::Map { expr, regs } = &step.prim else { return false };
        let local = |operands: &[meshwright_plan::Operand]| -> Option<Vec<Local>> {
            operands.iter().map(|o| self.local(o).ok()).collect()
        };
        let (Some(inputs), Some(outs)) = (local(&step.reads), local(&step.writes)) else { return false };
        let whole = |i: &Local| i.buf != buf || outs.iter().all(|out| out.dims.len() == i.dims.len());
        let written: Vec<(Reg, Local)> = regs.iter().copied().zip(outs.iter().cloned()).collect();
        let drawn = |of: &BufId| (*of == buf).then_some(by);
        inputs.iter().all(whole) && matches!(self.map_call(expr, &inputs, &written, drawn), Ok(Some(_)))
    }
}
