//! Faults in partitioned programs: each is seeded at every place of every program where it applies, after the pass that
//! makes placements. The verifier must find it, or what is communicated differs.

use super::sites::*;
use super::subjects::planned;
use super::{By, Found, Row, in_spmd, judge};
use meshwright_core::OutputKind;
use meshwright_core::partition::{CopyId, Instr, PlacedCopy, Reshard, Spmd};
use meshwright_ops::{Kind, Role};
use meshwright_plan::{Axis, Collective, Dim, Monoid, Window};

/// Seeds a fault at the `k`-th instruction, goal or step.
type Seed = fn(&mut Spmd, usize) -> Site;

/// What goes wrong, who must catch it, and how it is seeded.
pub(super) struct Fault {
    what: &'static str,
    by: &'static [By],
    seed: Seed,
}

const V: &[By] = &[By::Verifier];
const BYTES: &[By] = &[By::Bytes];

macro_rules! faults {
    ($($what:literal, $by:ident, $seed:expr;)*) => {
        &[$(Fault { what: $what, by: $by, seed: $seed },)*]
    };
}

/// All faults of placements.
pub(super) const FAULTS: &[Fault] = faults![
    "the result of an op is split over another axis", V, |s, k| {
        ops(s, k, |s, i| {
            let (d, a) = first_split(s, s.instrs[i].out())?;
            let other = unused(s, s.instrs[i].out(), a)?;
            out(s, i).placement.splits.insert(d, vec![other]);
            Some(())
        })
    };
    "the result of an op is split along another dim", V, |s, k| {
        ops(s, k, |s, i| {
            let (d, a) = first_split(s, s.instrs[i].out())?;
            let dims = dims_of(s, s.instrs[i].out());
            let other = *dims.iter().find(|e| out(s, i).placement.axes(**e).is_empty())?;
            out(s, i).placement.splits.remove(&d);
            out(s, i).placement.splits.insert(other, vec![a]);
            Some(())
        })
    };
    "two axes of one dim are swapped", V, |s, k| {
        placed(s, k, |p| {
            let (_, axes) = p.splits.iter_mut().find(|(_, a)| a.len() > 1)?;
            axes.reverse();
            Some(())
        })
    };
    "the axes of two dims are swapped", V, |s, k| {
        placed(s, k, |p| {
            let dims: Vec<Dim> = p.splits.keys().copied().collect();
            let ([d, e], true) = (dims.get(..2)?, p.windows.is_empty()) else { return None };
            let (a, b) = (p.splits.remove(d)?, p.splits.remove(e)?);
            p.splits.extend([(*d, b), (*e, a)]);
            Some(())
        })
    };
    "a split value counts as whole", V, |s, k| {
        placed(s, k, |p| {
            let d = *p.splits.keys().next()?;
            p.splits.remove(&d);
            p.windows.remove(&d);
            Some(())
        })
    };
    "an unfinished value counts as finished", V, |s, k| {
        placed(s, k, |p| {
            let axis = *p.partial.keys().next()?;
            p.partial.remove(&axis).map(|_| ())
        })
    };
    "a finished value counts as unfinished", V, |s, k| {
        let axes: Vec<Axis> = s.mesh.iter().collect();
        placed(s, k, |p| {
            let free = axes.iter().find(|a| !p.uses(**a))?;
            p.partial.insert(*free, Monoid::Sum);
            Some(())
        })
    };
    "an unfinished value is folded by another monoid", V, |s, k| {
        placed(s, k, |p| p.partial.iter_mut().next().map(|(_, m)| *m = other_than(*m)))
    };
    "an axis splits a value twice", V, |s, k| {
        placed(s, k, |p| {
            let a = p.split_axes().next()?;
            p.splits.iter_mut().last()?.1.push(a);
            Some(())
        })
    };
    "an all-reduce over one axis too few", V, |s, k| {
        moves(s, k, |s, i| match kind(s, i) {
            Reshard::Collective(Collective::AllReduce { axes, .. }) if axes.len() > 1 => axes.pop().map(|_| ()),
            _ => None,
        })
    };
    "an all-reduce over one axis too few, and the result counts as unfinished", V, |s, k| {
        moves(s, k, |s, i| match kind(s, i) {
            Reshard::Collective(Collective::AllReduce { axes, monoid }) if axes.len() > 1 => {
                let (a, m) = (axes.pop()?, *monoid);
                out(s, i).placement.partial.insert(a, m);
                Some(())
            }
            _ => None,
        })
    };
    "an all-reduce over one axis too many", V, |s, k| {
        let all: Vec<Axis> = s.mesh.iter().collect();
        moves(s, k, |s, i| match kind(s, i) {
            Reshard::Collective(Collective::AllReduce { axes, .. }) => {
                axes.push(*all.iter().find(|a| !axes.contains(a))?);
                Some(())
            }
            _ => None,
        })
    };
    "an all-reduce over no axes", V, |s, k| {
        moves(s, k, |s, i| match kind(s, i) {
            Reshard::Collective(Collective::AllReduce { axes, .. }) => {
                axes.clear();
                let from = from(s, i);
                out(s, i).placement = s.copy(from).placement.clone();
                Some(())
            }
            _ => None,
        })
    };
    "a fold by another monoid", V, |s, k| {
        moves(s, k, |s, i| match kind(s, i) {
            Reshard::Collective(
                Collective::AllReduce { monoid, .. } | Collective::ReduceScatter { monoid, .. },
            ) => {
                *monoid = other_than(*monoid);
                Some(())
            }
            _ => None,
        })
    };
    "a move is left out", V, |s, k| {
        moves(s, k, |s, i| {
            let (old, new) = (s.instrs[i].out(), from(s, i));
            s.instrs.remove(i);
            rewire(s, 0, old, new);
            Some(())
        })
    };
    "a move happens after its first use", V, |s, k| {
        moves(s, k, |s, i| {
            let out = s.instrs[i].out();
            let user = s.instrs.iter().position(|u| u.reads().contains(&out))?;
            let moved = s.instrs.remove(i);
            s.instrs.insert(user, moved);
            Some(())
        })
    };
    "a reduce-scatter to another dim", V, |s, k| {
        moves(s, k, |s, i| {
            let dims = dims_of(s, s.instrs[i].out());
            let Reshard::Collective(Collective::ReduceScatter { dims: to, .. }) = kind(s, i) else { return None };
            to[0] = *dims.iter().find(|d| **d != to[0])?;
            Some(())
        })
    };
    "a reduce-scatter to another dim, in which the result is split", V, |s, k| {
        moves(s, k, |s, i| {
            let dims = dims_of(s, s.instrs[i].out());
            let Reshard::Collective(Collective::ReduceScatter { dims: to, .. }) = kind(s, i) else { return None };
            to[0] = *dims.iter().find(|d| **d != to[0])?;
            follow(s, i)
        })
    };
    "a slice of another dim, in which the result is split", V, |s, k| {
        moves(s, k, |s, i| {
            let dims = dims_of(s, s.instrs[i].out());
            let Reshard::Slice { dim, .. } = kind(s, i) else { return None };
            *dim = *dims.iter().find(|d| *d != dim)?;
            follow(s, i)
        })
    };
    "a slice over another axis, over which the result is split", V, |s, k| {
        let all: Vec<Axis> = s.mesh.iter().collect();
        moves(s, k, |s, i| {
            let Reshard::Slice { axis, .. } = kind(s, i) else { return None };
            *axis = *all.iter().find(|a| *a != axis)?;
            follow(s, i)
        })
    };
    "a gather of another dim", V, |s, k| {
        moves(s, k, |s, i| {
            let dims = dims_of(s, s.instrs[i].out());
            let Reshard::Collective(Collective::AllGather { dims: of, .. }) = kind(s, i) else { return None };
            of[0] = *dims.iter().find(|d| **d != of[0])?;
            Some(())
        })
    };
    "a gather over another axis", V, |s, k| {
        let all: Vec<Axis> = s.mesh.iter().collect();
        moves(s, k, |s, i| {
            let Reshard::Collective(Collective::AllGather { axis, .. }) = kind(s, i) else { return None };
            *axis = *all.iter().find(|a| *a != axis)?;
            Some(())
        })
    };
    "an all-to-all in the other direction", V, |s, k| {
        moves(s, k, |s, i| {
            let Reshard::Collective(Collective::AllToAll { join, split, .. }) = kind(s, i) else { return None };
            std::mem::swap(join, split);
            Some(())
        })
    };
    "a move of another version of its value", V, |s, k| {
        moves(s, k, |s, i| {
            let old = from(s, i);
            let PlacedCopy { value, placement, .. } = s.copy(old).clone();
            let other = s.copies.iter().position(|v| v.value == value && v.placement != placement)?;
            set_from(s, i, CopyId(other as u32))
        })
    };
    "a move of another value in the same placement", V, |s, k| {
        moves(s, k, |s, i| {
            let PlacedCopy { value, placement, .. } = s.copy(from(s, i)).clone();
            let made = s.instrs[..i].iter().map(Instr::out).collect::<Vec<_>>();
            let other = made.into_iter().find(|o| {
                let v = s.copy(*o);
                v.value != value && v.placement == placement && s.step.graph.ty(v.value) == s.step.graph.ty(value)
            })?;
            set_from(s, i, other)
        })
    };
    "a halo that is one narrower", V, |s, k| {
        windowed(s, k, |w| Window { after: w.after - 1, ..w }, false)
    };
    "a halo that is one narrower, in the result too", V, |s, k| {
        windowed(s, k, |w| Window { before: w.before + 1, ..w }, true)
    };
    "a halo that is one wider, in the result too", V, |s, k| {
        windowed(s, k, |w| Window { after: w.after + 1, ..w }, true)
    };
    "a halo from the other side, in the result too", V, |s, k| {
        windowed(s, k, |w| Window { before: -w.after - 1, after: -w.before - 1, ..w }, true)
    };
    "an op loops over another axis", V, |s, k| {
        let all: Vec<Axis> = s.mesh.iter().collect();
        ops(s, k, |s, i| {
            let Instr::Op { loops, .. } = &mut s.instrs[i] else { return None };
            let used: Vec<Axis> = loops.values().flatten().copied().collect();
            let (_, axes) = loops.iter_mut().next()?;
            *axes = vec![*all.iter().find(|a| !used.contains(a))?];
            Some(())
        })
    };
    "an op does not split a loop", V, |s, k| {
        ops(s, k, |s, i| {
            let Instr::Op { loops, .. } = &mut s.instrs[i] else { return None };
            let dim = *loops.keys().next()?;
            loops.remove(&dim).map(|_| ())
        })
    };
    "an op splits the loop of another dim", V, |s, k| {
        ops(s, k, |s, i| {
            let value = s.copy(s.instrs[i].out()).value;
            let node = s.step.graph.node(value).clone();
            let roles = node.op.roles(&s.step.graph.input_types(value), &node.ty, &s.step.graph.dims);
            let Instr::Op { loops, .. } = &mut s.instrs[i] else { return None };
            let other = roles.loops.iter().find(|l| l.role != Role::NeedReplication && !loops.contains_key(&l.dim))?.dim;
            let dim = *loops.keys().next()?;
            let axes = loops.remove(&dim)?;
            loops.insert(other, axes);
            Some(())
        })
    };
    "an axis splits two loops of an op", V, |s, k| {
        ops(s, k, |s, i| {
            let dims = dims_of(s, s.instrs[i].out());
            let Instr::Op { loops, .. } = &mut s.instrs[i] else { return None };
            let axes = loops.values().next()?.clone();
            loops.insert(*dims.iter().find(|d| !loops.contains_key(d))?, axes);
            Some(())
        })
    };
    "an op reads its operands in another order", V, |s, k| {
        ops(s, k, |s, i| {
            let Instr::Op { inputs, .. } = &mut s.instrs[i] else { return None };
            (inputs.len() > 1 && inputs[0] != inputs[1]).then_some(())?;
            let (a, b) = (inputs[0], inputs[1]);
            // Not where both operands are the same value, placed alike.
            (s.copy(a) != s.copy(b)).then_some(())?;
            let Instr::Op { inputs, .. } = &mut s.instrs[i] else { return None };
            inputs.swap(0, 1);
            Some(())
        })
    };
    "an op reads another placement of its operand", V, |s, k| {
        ops(s, k, |s, i| {
            let Instr::Op { inputs, .. } = &s.instrs[i] else { return None };
            let made: Vec<CopyId> = s.instrs[..i].iter().map(Instr::out).collect();
            let (slot, other) = inputs.iter().enumerate().find_map(|(slot, input)| {
                let v = s.copy(*input);
                let differs =
                    |o: &&CopyId| s.copy(**o).value == v.value && s.copy(**o).placement != v.placement;
                Some((slot, *made.iter().find(differs)?))
            })?;
            let Instr::Op { inputs, .. } = &mut s.instrs[i] else { return None };
            inputs[slot] = other;
            Some(())
        })
    };
    "an op happens before what it reads", V, |s, k| {
        ops(s, k, |s, i| {
            let reads = s.instrs[i].reads();
            let first = s.instrs.iter().position(|m| reads.contains(&m.out()))?;
            let op = s.instrs.remove(i);
            s.instrs.insert(first, op);
            Some(())
        })
    };
    "an op happens twice", V, |s, k| {
        ops(s, k, |s, i| {
            let again = s.instrs[i].clone();
            s.instrs.insert(i, again);
            Some(())
        })
    };
    "a random value is made where nobody needs it", V, |s, k| {
        ops(s, k, |s, i| {
            let value = s.copy(s.instrs[i].out()).value;
            matches!(s.step.graph.node(value).op.kind(), Kind::Rematerializable(_)).then_some(())?;
            let (d, _) = first_split(s, s.instrs[i].out())?;
            let Instr::Op { loops, .. } = &mut s.instrs[i] else { return None };
            loops.remove(&d);
            out(s, i).placement.splits.remove(&d);
            out(s, i).placement.windows.remove(&d);
            Some(())
        })
    };
    "a leaf is bound unfinished", V, |s, k| {
        let axes: Vec<Axis> = s.mesh.iter().collect();
        nth(s, k, |i| matches!(i, Instr::Input { .. }), |s, i| {
            let p = &mut out(s, i).placement;
            p.partial.insert(*axes.iter().find(|a| !p.uses(**a))?, Monoid::Sum);
            Some(())
        })
    };
    "a leaf is bound in another placement", V, |s, k| {
        nth(s, k, |i| matches!(i, Instr::Input { .. }), |s, i| {
            let p = &mut out(s, i).placement;
            let dim = *p.splits.keys().next()?;
            p.splits.remove(&dim).map(|_| ())
        })
    };
    "a sum is stored in `bf16` that is no gradient's", V, |s, k| {
        moves(s, k, |s, i| {
            let grads = |s: &Spmd| matches!(s.step.graph.node(s.copy(from(s, i)).value).op.kind(), Kind::Gradient);
            let user = match &s.instrs[i] {
                Instr::Reshard { cause, .. } => cause.user.is_some_and(|u| s.step.graph.node(u).op.kind() == Kind::Gradient),
                _ => true,
            };
            (!grads(s) && !user).then_some(())?;
            out(s, i).in_bf16 = true;
            Some(())
        })
    };
    "a collective without a cause", V, |s, k| {
        moves(s, k, |s, i| {
            let Instr::Reshard { kind, cause, .. } = &mut s.instrs[i] else { return None };
            kind.collective().is_some().then(|| cause.because = "".into())
        })
    };
    "what the step gives is left unfinished", V, |s, k| {
        outputs(s, k, |s, g| {
            let v = s.outputs[g];
            let i = s.instrs.iter().position(|i| i.out() == v)?;
            (!s.copy(move_from(s, i)?).placement.partial.is_empty()).then_some(())?;
            s.outputs[g] = move_from(s, i)?;
            Some(())
        })
    };
    "the step gives another value", V, |s, k| {
        outputs(s, k, |s, g| {
            let v = s.copy(s.outputs[g]).clone();
            let ty = s.step.graph.ty(v.value).clone();
            let other = s.instrs.iter().map(Instr::out).find(|o| {
                let w = s.copy(*o);
                w.value != v.value && w.placement == v.placement && *s.step.graph.ty(w.value) == ty
            })?;
            s.outputs[g] = other;
            Some(())
        })
    };
    "a next value is not placed as its leaf", V, |s, k| {
        outputs(s, k, |s, g| {
            let OutputKind::Next(_) = s.step.outputs[g].kind else { return None };
            let v = s.copy(s.outputs[g]).clone();
            let axes: Vec<Axis> = s.mesh.iter().collect();
            let dims = dims_of(s, s.outputs[g]);
            // Moved once more, by a sound move.
            let moved = match v.placement.splits.iter().next() {
                Some((dim, axes)) => Collective::AllGather { axis: *axes.last()?, dims: vec![*dim] }.into(),
                None => Reshard::Slice { axis: *axes.first()?, dim: *dims.first()? },
            };
            s.outputs[g] = append(s, s.instrs.len(), s.outputs[g], moved)?;
            Some(())
        })
    };
    "a scalar is given split by its example", V, |s, k| {
        outputs(s, k, |s, g| {
            (s.step.outputs[g].kind == OutputKind::Scalar).then_some(())?;
            let split = s.instrs.iter().map(Instr::out).find(|o| !s.copy(*o).placement.splits.is_empty())?;
            s.outputs[g] = split;
            Some(())
        })
    };
    "a sum is finished everywhere and then cut, not scattered", BYTES, |s, k| {
        moves(s, k, |s, i| {
            let Reshard::Collective(Collective::ReduceScatter { axis, monoid, dims }) = kind(s, i).clone() else { return None };
            let (old, start) = (s.instrs[i].out(), from(s, i));
            let whole = append(s, i, start, Collective::AllReduce { axes: vec![axis], monoid }.into())?;
            *kind(s, i + 1) = Reshard::Slice { axis, dim: dims[0] };
            set_from(s, i + 1, whole)?;
            (s.instrs[i + 1].out() == old).then_some(())
        })
    };
    "a value is gathered and cut again", BYTES, |s, k| {
        ops(s, k, |s, i| {
            let v = s.instrs[i].out();
            let p = s.copy(v).placement.clone();
            // Not of the value itself that becomes a gradient or a goal: its users read the copy from then on.
            s.instrs[i + 1..].iter().any(|u| u.reads().contains(&v)).then_some(())?;
            p.windows.is_empty().then_some(())?;
            let (dim, axes) = p.splits.iter().next()?;
            let axis = *axes.last()?;
            let whole = append(s, i + 1, v, Collective::AllGather { axis, dims: vec![*dim] }.into())?;
            let back = append(s, i + 2, whole, Reshard::Slice { axis, dim: *dim })?;
            rewire(s, i + 3, v, back);
            Some(())
        })
    };
    "an all-reduce over two axes comes in two", BYTES, |s, k| {
        moves(s, k, |s, i| {
            let Reshard::Collective(Collective::AllReduce { axes, monoid }) = kind(s, i).clone() else { return None };
            let ([first, rest @ ..], true) = (&axes[..], axes.len() > 1) else { return None };
            let start = from(s, i);
            let half = append(s, i, start, Collective::AllReduce { axes: vec![*first], monoid }.into())?;
            *kind(s, i + 1) = Collective::AllReduce { axes: rest.to_vec(), monoid }.into();
            set_from(s, i + 1, half)
        })
    };
    "an all-to-all comes as a gather and a cut", BYTES, |s, k| {
        moves(s, k, |s, i| {
            let Reshard::Collective(Collective::AllToAll { axis, join, split }) = kind(s, i).clone() else { return None };
            let start = from(s, i);
            let whole = append(s, i, start, Collective::AllGather { axis, dims: vec![join] }.into())?;
            *kind(s, i + 1) = Reshard::Slice { axis, dim: split };
            set_from(s, i + 1, whole)
        })
    };
];

#[test]
fn every_wrong_placement_is_caught() {
    let subjects = planned();
    let mut rows = Vec::new();
    for fault in FAULTS {
        let mut found: Vec<Found> = Vec::new();
        for subject in &subjects {
            for k in 0.. {
                let mut spmd = subject.spmd.clone();
                match (fault.seed)(&mut spmd, k) {
                    Site::End => break,
                    Site::Skipped => continue,
                    Site::Seeded => {}
                }
                let f = in_spmd(subject, &spmd);
                if f.is_none() {
                    crate::report(&format!("nobody sees: {}, in {} at {k}", fault.what, subject.name));
                }
                found.push(f.map(|f| (f.0, format!("{}: {}", subject.name, f.1))));
            }
        }
        rows.push(Row { what: fault.what, expected: fault.by, found });
    }
    judge("placements", &rows);
}
