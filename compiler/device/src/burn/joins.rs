//! Joins whose parts a kernel computes where it joins them.

use super::fold::element_of;
use super::lower::Lower;
use super::map::functions::MapFunction;
use crate::error::LoweringError;
use crate::kernels::join::{JoinCall, JoinPart};
use crate::lowering::local::Local;
use crate::passes::inlined::Inlined;
use meshwright_plan::{BufId, Operand, Prim, Step};

/// Most tensors of such a join, which are arguments of one kernel.
const MOST_TENSORS: usize = 64;

/// A join with its operands in memory.
struct OwnJoin {
    call: JoinCall,
    reads: Vec<Local>,
    out: Local,
}

impl Lower<'_> {
    /// Records a join that computes some of its parts; false if it computes none.
    pub(super) fn own_join(&mut self, step: &Step) -> Result<bool, LoweringError> {
        let inlined = &self.decisions.inlined.values;
        if !step.reads.iter().any(|o| inlined.contains_key(&o.buf)) {
            return Ok(false);
        }
        let Some(join) = self.own_join_with(step, &|o| inlined.get(&o.buf))? else {
            return Err(LoweringError::Plan("a join computes what it has no kernel for".into()));
        };
        self.record(join.call, &join.reads, &[join.out]);
        Ok(true)
    }

    /// See [`Lowering::computes`](crate::lowering::Lowering::computes).
    pub(crate) fn can_join(&self, inlined: &Inlined, value: BufId) -> bool {
        let drawn = |o: &Operand| self.decisions.masks.drawn_by.contains_key(&o.buf);
        let step = &self.context.plan.steps[inlined.by];
        let fits = step.reads.len() * (inlined.reads.len() + 1) < MOST_TENSORS;
        let joins = self.own_join_with(step, &|o| (o.buf == value).then_some(inlined));
        fits && !inlined.reads.iter().any(drawn) && matches!(joins, Ok(Some(_)))
    }

    /// A join where some parts are computed; none where it has no kernel. A device uses all that it holds of a part.
    fn own_join_with<'i>(
        &self,
        step: &Step,
        computed: &dyn Fn(&Operand) -> Option<&'i Inlined>,
    ) -> Result<Option<OwnJoin>, LoweringError> {
        let (Prim::Concat { parts, to }, [out]) = (&step.prim, &step.writes[..]) else { return Ok(None) };
        let out = self.local(out)?;
        let axis = out.position(*to)?;
        let (wanted, mut functions, mut places) = (out.ranges[axis].clone(), vec![], vec![]);
        for (operand, (dim, offset)) in step.reads.iter().zip(parts) {
            let part = self.local(operand)?;
            let begin = part.range(*dim)?.start + offset;
            let fits = part.elements() > 0 && part.dims[axis] == *dim && begin >= wanted.start;
            if !fits || begin + part.shape[axis] > wanted.end {
                return Ok(None);
            }
            places.push((part.buf, begin - wanted.start));
            let (of, reads) = match computed(operand) {
                Some(inlined) => (inlined.of.clone(), inlined.reads.clone()),
                None => (element_of(part.dtype), vec![operand.clone()]),
            };
            let reads = reads.iter().map(|o| self.local(o)).collect::<Result<Vec<_>, _>>()?;
            let written = vec![(of.reg, part)];
            functions.push(MapFunction { expr: of.expr, reads, written, ..MapFunction::default() });
        }
        let covered: usize = functions.iter().map(|f| f.written[0].1.shape[axis]).sum();
        if covered != wanted.len() {
            return Ok(None);
        }
        let (mut parts, mut reads) = (vec![], vec![]);
        for function in MapFunction::merged(functions) {
            let Some(map) = self.own_map(function)? else { return Ok(None) };
            // One value may be several parts, each at a place of its own.
            let mut place = |out: &Local| {
                let found = places.iter().position(|p| p.0 == out.buf)?;
                Some(places.remove(found).1)
            };
            let at = map.writes.iter().filter_map(&mut place).collect();
            parts.push(JoinPart { map: map.call, at, range: None });
            reads.extend(map.reads);
        }
        Ok(Some(OwnJoin { call: JoinCall { axis, parts }, reads, out }))
    }
}
