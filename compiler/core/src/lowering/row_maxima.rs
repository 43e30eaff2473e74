//! A maximum over all elements of a value is first that of each row, where other steps go along the same rows.
//!
//! Before `c = norm(a)` and `m = max(|c|)`; after `r = max(|c|)` of each row and `m = max(r)`. A device computes `r` in the
//! kernel that makes `c`, or that sums it over its rows, so that nothing reads `c` for its maximum: so it is with the scales of
//! factors in 8 bits (ADR 80). A maximum of maxima is the same number.

use super::per_buffer::PerBuffer;
use super::stretches::stretches;
use meshwright_plan::{BufId, Buffer, Dim, Monoid, Operand, Plan, Prim, Step};

/// Splits maxima to one number into those of rows, and theirs.
pub fn row_maxima(mut plan: Plan) -> Plan {
    let rows: Vec<Option<usize>> = RowFinder::new(&plan).rows();
    let mut steps = Vec::with_capacity(plan.steps.len());
    for (step, rows) in std::mem::take(&mut plan.steps).into_iter().zip(rows) {
        let Some(rows) = rows else {
            steps.push(step);
            continue;
        };
        let of = plan.buffer(step.reads[0].buf);
        let extents = of.extents[..rows].to_vec();
        let dtype = plan.buffer(step.writes[0].buf).dtype;
        let each =
            Operand { buf: BufId(plan.buffers.len() as u32), dims: step.reads[0].dims[..rows].to_vec() };
        plan.buffers.push(Buffer::new(dtype, extents));
        let first = Step { writes: vec![each.clone()], ..step.clone() };
        // A row that is split is partial.
        let partial = first.partial(&plan).ok().and_then(|mut all| all.pop());
        plan.buffers[each.buf.0 as usize].partial = partial.unwrap_or_default();
        steps.push(first);
        steps.push(Step { reads: vec![each], ..step });
    }
    plan.steps = steps;
    plan
}

struct RowFinder<'a> {
    plan: &'a Plan,
    stretch: Vec<usize>,
    readers: PerBuffer<Vec<usize>>,
    producer: PerBuffer<Option<usize>>,
}

impl<'a> RowFinder<'a> {
    fn new(plan: &'a Plan) -> RowFinder<'a> {
        let (mut readers, mut producer) = (PerBuffer::new(plan, vec![]), PerBuffer::new(plan, None));
        for (at, step) in plan.steps.iter().enumerate() {
            step.reads.iter().for_each(|o| readers[o.buf].push(at));
            step.writes.iter().for_each(|o| producer[o.buf] = Some(at));
        }
        RowFinder { plan, stretch: stretches(&plan.steps), readers, producer }
    }

    /// For each step the number of dims of the rows of its operand, if it is a maximum to split.
    fn rows(&self) -> Vec<Option<usize>> {
        self.plan.steps.iter().enumerate().map(|(at, step)| self.rows_of(at, step)).collect()
    }

    fn rows_of(&self, at: usize, step: &Step) -> Option<usize> {
        let (Prim::Reduce { monoid: Monoid::Max }, [of], [out]) =
            (&step.prim, &step.reads[..], &step.writes[..])
        else {
            return None;
        };
        if !out.dims.is_empty() || of.dims.len() < 2 {
            return None;
        }
        // The element-wise steps that the value comes from, and their operands with the same dims.
        let (mut values, mut next) = (vec![of], 0);
        let mut found = None;
        while let (Some(value), None) = (values.get(next), found) {
            next += 1;
            let near = |step: &usize| self.stretch[*step] == self.stretch[at];
            let readers = self.readers[value.buf].iter().filter(|s| near(s) && **s != at);
            found = readers.map(|s| &self.plan.steps[*s]).find_map(|s| summed_rows(s, &of.dims));
            let Some(by) = self.producer[value.buf].filter(near) else { continue };
            let by = &self.plan.steps[by];
            if !matches!(by.prim, Prim::Map { .. }) {
                continue;
            }
            found = found.or_else(|| by.reads.iter().find_map(|o| prefix(&o.dims, &of.dims)));
            let same = by.reads.iter().chain(&by.writes).filter(|o| o.dims == of.dims);
            let new: Vec<_> = same.filter(|o| !values.iter().any(|v| v.buf == o.buf)).collect();
            values.extend(new);
        }
        found
    }
}

/// The number of dims of rows over which a step sums a value with these dims.
fn summed_rows(step: &Step, dims: &[Dim]) -> Option<usize> {
    let sums = matches!(step.prim, Prim::Reduce { monoid: Monoid::Sum } | Prim::Contract);
    let same = step.reads.iter().all(|o| o.dims == dims);
    let kept = &step.writes.first()?.dims;
    let rows = dims.len().checked_sub(kept.len()).filter(|rows| *rows > 0 && !kept.is_empty())?;
    (sums && same && dims.ends_with(kept)).then_some(rows)
}

/// The number of dims of an operand that has one element for each row.
fn prefix(operand: &[Dim], dims: &[Dim]) -> Option<usize> {
    let is = !operand.is_empty() && operand.len() < dims.len() && dims.starts_with(operand);
    is.then_some(operand.len())
}
