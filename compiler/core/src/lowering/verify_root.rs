//! What goes from one device to all is what this device alone has.

use super::per_buffer::PerBuffer;
use meshwright_plan::{Axis, BufId, Collective, Extent, Operand, Plan, Prim, Step, only_member};

/// The members that alone have something of a partial buffer, as far as the steps say so.
struct Roots<'p> {
    plan: &'p Plan,
    of: PerBuffer<Option<usize>>,
    zeros: PerBuffer<bool>,
    open: Vec<&'p Step>,
}

/// Broadcasts of what others have a part of, or of another member's.
pub(super) fn roots(plan: &Plan, v: &mut Vec<String>) {
    let (of, zeros) = (PerBuffer::new(plan, None), PerBuffer::new(plan, false));
    let mut roots = Roots { plan, of, zeros, open: vec![] };
    for (i, step) in plan.steps.iter().enumerate().filter(|(_, step)| step.fits()) {
        if let Prim::Collective(Collective::Broadcast { axes, root }) = &step.prim {
            let alone = |o: &Operand| roots.of[o.buf] == Some(*root) && roots.is_partial_over(o.buf, axes);
            if !step.reads.iter().all(alone) {
                v.push(format!("step {i} (broadcast): its root is not the only one that has what it reads"));
            }
        }
        roots.step(step);
    }
}

impl<'p> Roots<'p> {
    fn is_partial_over(&self, buf: BufId, axes: &[Axis]) -> bool {
        let mut axes = axes.to_vec();
        axes.sort();
        self.plan.buffer(buf).partial.keys().eq(&axes)
    }

    fn step(&mut self, step: &'p Step) {
        match &step.prim {
            Prim::Blank { zero: true } => step.writes.iter().for_each(|o| self.zeros[o.buf] = true),
            Prim::Repeat { .. } => self.open.push(step),
            Prim::EndRepeat => self.end(step),
            _ => {
                let partial = |o: &Operand| &self.plan.buffer(o.buf).partial;
                let read: Vec<&Operand> = step.reads.iter().filter(|o| !partial(o).is_empty()).collect();
                let mut roots = read.iter().map(|o| self.of[o.buf]);
                let root = roots.next().flatten().filter(|first| roots.all(|root| root == Some(*first)));
                for out in &step.writes {
                    // Over a further axis all have a part of a sum.
                    let alike = read.iter().all(|o| partial(o) == partial(out));
                    self.of[out.buf] = root.filter(|_| alike);
                }
            }
        }
    }

    /// Of a sum over one iteration the device has all that runs it, if the others begin with zeros; a sum may go on from one that
    /// this device alone has.
    fn end(&mut self, step: &Step) {
        let Some(Step { prim: Prim::Repeat { dim, from, axes, .. }, reads, .. }) = self.open.pop() else {
            return;
        };
        let root = only_member(&Extent::of(&self.plan.dims, *dim, axes), *from, &self.plan.mesh);
        for ((start, last), next) in reads.iter().zip(&step.writes).zip(&step.reads) {
            let own = self.plan.buffer(next.buf).partial.is_empty() && self.is_partial_over(last.buf, axes);
            let begins = self.zeros[start.buf] || self.of[start.buf] == root;
            self.of[last.buf] = root.filter(|_| own && begins);
        }
    }
}
