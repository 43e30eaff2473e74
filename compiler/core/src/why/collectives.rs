//! The collectives that a split brings about.

use super::{Caused, Teller};
use crate::partition::{CopyId, Instr, Reshard};
use crate::print::describe_move;
use meshwright_ops::Id;
use meshwright_plan::{Axis, Collective, Dim};
use meshwright_sorted::SortedSet;

impl Teller<'_> {
    /// Collectives that the split of `dim` of a value brings about: moves of the value along the dim, and the
    /// finishing of every sum that runs over it, however many ops the sum travels through before.
    pub(super) fn caused(&self, id: Id, dim: Dim) -> Vec<Caused> {
        let spmd = self.spmd;
        let mut out = Vec::new();
        let split = |v: CopyId, a: Axis| {
            let v = spmd.copy(v);
            v.value == id && v.placement.axes(dim).contains(&a)
        };
        let all: Vec<Axis> = (0..spmd.mesh.axes.len()).map(|i| Axis(i as u8)).collect();
        let mut open: SortedSet<(CopyId, Axis)> = SortedSet::new();
        for instr in &spmd.instrs {
            match instr {
                Instr::Input { .. } => {}
                Instr::Op { inputs, loops, out: made } => {
                    for a in &all {
                        let begins = loops.get(&dim).is_some_and(|l| l.contains(a))
                            && inputs.iter().any(|v| split(*v, *a));
                        let goes_on = inputs.iter().any(|v| open.contains(&(*v, *a)));
                        if (begins || goes_on) && spmd.copy(*made).placement.partial.contains_key(a) {
                            open.insert((*made, *a));
                        }
                    }
                }
                Instr::Reshard { kind, from, out: made, cause } => {
                    let (old, new) = (&spmd.copy(*from).placement, &spmd.copy(*made).placement);
                    let finished: Vec<Axis> =
                        old.partial.keys().copied().filter(|a| !new.partial.contains_key(a)).collect();
                    for (v, a) in open.clone() {
                        if v == *from && !finished.contains(&a) {
                            open.insert((*made, a));
                        }
                    }
                    let moved: Vec<Axis> =
                        all.iter().copied().filter(|a| split(*from, *a) != split(*made, *a)).collect();
                    let of_sum = finished.iter().any(|a| open.contains(&(*from, *a)));
                    if !of_sum && moved.is_empty() || matches!(kind, Reshard::Slice { .. }) {
                        continue;
                    }
                    let mut over = finished;
                    over.extend(moved.into_iter().filter(|a| !old.partial.contains_key(a)));
                    let how = describe_move(kind, spmd);
                    let value = spmd.copy(*from).value;
                    let measured = if matches!(kind, Reshard::Collective(Collective::AllGather { .. })) {
                        *made
                    } else {
                        *from
                    };
                    out.push(Caused {
                        op: how.split(['[', ' ']).next().unwrap_or("").into(),
                        axes: self.axis_names(&over),
                        bytes: spmd.moved_bytes(measured, *made),
                        phase: cause.phase,
                        value: self.describe(value),
                        place: self.place(value),
                        because: cause.because.to_string(),
                    });
                }
            }
        }
        out
    }
}
