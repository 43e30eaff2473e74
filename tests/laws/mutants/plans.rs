//! Faults in Plans, as a wrong order or a wrong lowering would make them. The verifier of Plans, a device that prepares one,
//! or another result must tell.

use super::sites::Site;
use super::subjects::{Planned, STEEP, planned, planned_from};
use super::{By, Found, Row, in_plan, judge};
use meshwright_plan::expr::{BinaryFn, Scalar};
use meshwright_plan::random::Distribution;
use meshwright_plan::{Axis, BufId, Collective, Init, Monoid, Operand, Plan, Prim, ProgramInputKind, Step};

/// What goes wrong, who must catch it, and how it is seeded at the `k`-th step, leaf or output.
pub(super) struct Fault {
    pub(super) what: &'static str,
    pub(super) by: &'static [By],
    pub(super) seed: fn(&mut Plan, usize) -> Site,
}

pub(super) const P: &[By] = &[By::PlanVerifier];
/// Another number comes out, or a device refuses what it is given.
pub(super) const R: &[By] = &[By::Result, By::Preparation, By::Run];
const PR: &[By] = &[By::PlanVerifier, By::Result, By::Preparation, By::Run];

/// Declares faults: what goes wrong, who must catch it, how it is seeded.
macro_rules! faults {
    ($($what:literal, $by:ident, $seed:expr;)*) => {
        &[$(Fault { what: $what, by: $by, seed: $seed },)*]
    };
}
pub(super) use faults;

pub(super) const FAULTS: &[Fault] = faults![
    "an all-reduce folds by another monoid", P, |p, k| {
        collectives(p, k, |c, _| match c {
            Collective::AllReduce { monoid, .. } | Collective::ReduceScatter { monoid, .. } => {
                *monoid = match monoid {
                    Monoid::Sum => Monoid::Max,
                    Monoid::Max => Monoid::Min,
                    Monoid::ArgMax => Monoid::ArgMin,
                    _ => return None,
                };
                Some(())
            }
            _ => None,
        })
    };
    "an all-reduce over the group of another axis", P, |p, k| {
        collectives(p, k, |c, all| match c {
            Collective::AllReduce { axes, .. } => {
                *axes = vec![*all.iter().find(|a| !axes.contains(a))?];
                Some(())
            }
            _ => None,
        })
    };
    "an all-reduce over one of two axes", P, |p, k| {
        collectives(p, k, |c, _| match c {
            Collective::AllReduce { axes, .. } if axes.len() > 1 => axes.pop().map(|_| ()),
            _ => None,
        })
    };
    "an all-reduce over one axis too many", P, |p, k| {
        collectives(p, k, |c, all| match c {
            Collective::AllReduce { axes, monoid: Monoid::Sum, .. } => {
                axes.push(*all.iter().find(|a| !axes.contains(a))?);
                axes.sort();
                Some(())
            }
            _ => None,
        })
    };
    "two results of a bucket are swapped", PR, |p, k| {
        buckets(p, k, |s| {
            s.writes.swap(0, 1);
        })
    };
    "a bucket reads one value twice", PR, |p, k| {
        buckets(p, k, |s| {
            s.reads[0] = s.reads[1].clone();
        })
    };
    "a bucket has a result less than values", PR, |p, k| {
        buckets(p, k, |s| {
            s.reads.pop();
        })
    };
    "two values of a bucket are gathered or scattered along the dim of the other", P, |p, k| {
        collectives(p, k, |c, _| match c {
            Collective::ReduceScatter { dims, .. } | Collective::AllGather { dims, .. } => {
                (*dims.first()? != *dims.get(1)?).then(|| dims.swap(0, 1))
            }
            _ => None,
        })
    };
    "a bucket of gathers or scatters has a dim less than values", P, |p, k| {
        collectives(p, k, |c, _| match c {
            Collective::ReduceScatter { dims, .. } | Collective::AllGather { dims, .. } => dims.pop().map(|_| ()),
            _ => None,
        })
    };
    "an all-reduce over an axis that the mesh lacks", P, |p, k| {
        collectives(p, k, |c, _| match c {
            Collective::AllReduce { axes, .. } => {
                axes[0] = Axis(9);
                Some(())
            }
            _ => None,
        })
    };
    "two dims of one size are swapped in an operand", PR, |p, k| {
        steps(p, k, |p, i| {
            // Not of a fold: where it folds both, nothing changes.
            (p.steps[i].prim == Prim::Contract).then_some(())?;
            let o = &mut p.steps[i].reads[0];
            let pairs = (0..o.dims.len()).flat_map(|j| (0..j).map(move |l| (l, j)));
            let (l, j) = pairs.into_iter().find(|(l, j)| p.dims.size(o.dims[*l]) == p.dims.size(o.dims[*j]))?;
            o.dims.swap(l, j);
            Some(())
        })
    };
    "a table is looked up at the positions of another index", PR, |p, k| {
        steps(p, k, |p, i| {
            let other = p.program_inputs.iter().filter(|l| l.kind == ProgramInputKind::Input).map(|l| l.buf).collect::<Vec<_>>();
            let buffers = &p.buffers;
            let (Prim::Lookup { .. } | Prim::ScatterAdd { .. }) = p.steps[i].prim else { return None };
            let index = &mut p.steps[i].reads[1];
            let like = |b: &&BufId| **b != index.buf && buffers[b.0 as usize] == buffers[index.buf.0 as usize];
            index.buf = *other.iter().find(like)?;
            Some(())
        })
    };
    "a collective of another axis than its result", P, |p, k| {
        collectives(p, k, |c, all| match c {
            Collective::ReduceScatter { axis, .. }
            | Collective::AllGather { axis, .. }
            | Collective::AllToAll { axis, .. } => {
                *axis = *all.iter().find(|a| *a != axis)?;
                Some(())
            }
            Collective::Permute { axes, .. } | Collective::Rotate { axes, .. } => {
                *axes = vec![*all.iter().find(|a| !axes.contains(a))?];
                Some(())
            }
            Collective::AllReduce { .. } | Collective::Broadcast { .. } => None,
        })
    };
    "a collective along another dim than its result", P, |p, k| {
        steps(p, k, |p, i| {
            let Step { prim: Prim::Collective(c), reads, .. } = &mut p.steps[i] else { return None };
            match c {
                Collective::ReduceScatter { dims, .. } | Collective::AllGather { dims, .. } => {
                    dims[0] = *reads[0].dims.iter().find(|d| **d != dims[0])?;
                }
                Collective::Permute { dim, .. } | Collective::Rotate { dim, .. } => *dim = *reads[0].dims.iter().find(|d| *d != dim)?,
                Collective::AllToAll { join, split, .. } => std::mem::swap(join, split),
                Collective::AllReduce { .. } | Collective::Broadcast { .. } => return None,
            }
            Some(())
        })
    };
    "a collective is a copy", P, |p, k| {
        steps(p, k, |p, i| {
            let s = &mut p.steps[i];
            let Prim::Collective(Collective::AllReduce { .. }) = s.prim else { return None };
            (s.reads.len() == 1 && s.aliases.len() == 1).then_some(())?;
            s.prim = Prim::Copy;
            // A copy takes no storage over.
            let ended = p.steps[i].aliases.pop()?.0;
            p.steps[i].free.push(ended);
            Some(())
        })
    };
    "a permute brings one element less", PR, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Collective(Collective::Permute { dim, .. }) = &p.steps[i].prim else { return None };
            let to = &p.steps[i].writes[0];
            let at = to.dims.iter().position(|d| d == dim)?;
            let w = p.buffers[to.buf.0 as usize].extents[at].window.as_mut()?;
            w.before += 1;
            Some(())
        })
    };
    "a permute brings what lies on the other side", PR, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Collective(Collective::Permute { dim, .. }) = &p.steps[i].prim else { return None };
            let to = &p.steps[i].writes[0];
            let at = to.dims.iter().position(|d| d == dim)?;
            let w = p.buffers[to.buf.0 as usize].extents[at].window.as_mut()?;
            (w.before, w.after) = (-w.after - 1, -w.before - 1);
            Some(())
        })
    };
    "a step comes before what it reads", P, |p, k| {
        steps(p, k, |p, i| {
            let reads: Vec<BufId> = p.steps[i].reads.iter().map(|o| o.buf).collect();
            let maker = p.steps.iter().position(|s| s.writes.iter().any(|o| reads.contains(&o.buf)))?;
            let step = p.steps.remove(i);
            p.steps.insert(maker, step);
            Some(())
        })
    };
    "a step is left out", P, |p, k| {
        steps(p, k, |p, i| {
            p.steps.remove(i);
            Some(())
        })
    };
    "a step comes twice", P, |p, k| {
        steps(p, k, |p, i| {
            let again = p.steps[i].clone();
            p.steps.insert(i, again);
            Some(())
        })
    };
    "a buffer ends a step too early", P, |p, k| {
        steps(p, k, |p, i| {
            let buf = *p.steps[i].free.first()?;
            let made = p.steps.iter().position(|s| s.writes.iter().any(|o| o.buf == buf));
            let early = made.map_or(0, |m| m.max(i.saturating_sub(1)));
            (early < i).then_some(())?;
            p.steps[i].free.remove(0);
            p.steps[early].free.push(buf);
            Some(())
        })
    };
    "a buffer ends twice", P, |p, k| {
        steps(p, k, |p, i| {
            let buf = *p.steps[i].free.first()?;
            p.steps[i].free.push(buf);
            Some(())
        })
    };
    "a buffer never ends", P, |p, k| steps(p, k, |p, i| p.steps[i].free.pop().map(|_| ()));
    "storage is handed on while it is still read", P, |p, k| {
        steps(p, k, |p, i| {
            let (reads, writes) = (&p.steps[i].reads, &p.steps[i].writes);
            let taken = |b: BufId| p.steps[i].aliases.iter().any(|r| r.1 == b || r.0 == b);
            let later = |b: BufId| p.steps[i + 1..].iter().any(|s| s.reads.iter().any(|o| o.buf == b));
            let pair = reads.iter().find_map(|r| {
                let fits = |w: &&Operand| p.buffer(w.buf) == p.buffer(r.buf) && !taken(w.buf);
                (later(r.buf) && !taken(r.buf)).then(|| writes.iter().find(fits).map(|w| (r.buf, w.buf)))?
            })?;
            p.steps[i].aliases.push(pair);
            Some(())
        })
    };
    "storage is handed on to a buffer of another shape", P, |p, k| {
        steps(p, k, |p, i| {
            let out = p.steps[i].writes.first()?.buf;
            let ends = p.steps[i].free.iter().position(|b| p.buffer(*b) != p.buffer(out))?;
            let buf = p.steps[i].free.remove(ends);
            p.steps[i].aliases.push((buf, out));
            Some(())
        })
    };
    "a wait comes after the first use", P, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Wait = &p.steps[i].prim else { return None };
            let results: Vec<BufId> = p.steps[i].reads.iter().map(|o| o.buf).collect();
            let reads = |s: &Step| s.reads.iter().any(|o| results.contains(&o.buf));
            let used = (i + 1..p.steps.len()).find(|j| reads(&p.steps[*j]))?;
            let wait = p.steps.remove(i);
            p.steps.insert(used, wait);
            Some(())
        })
    };
    "a collective in flight is started after what waits for it", P, |p, k| {
        steps(p, k, |p, i| {
            let end = p.end_of(i);
            (end > i).then(|| p.steps.swap(i, end))
        })
    };
    "an operand ends while it is in flight", P, |p, k| {
        steps(p, k, |p, i| {
            let (end, at) = (p.end_of(i), p.end_of(i).checked_sub(1)?);
            let operands: Vec<BufId> = p.steps[i].reads.iter().map(|o| o.buf).collect();
            let ends = p.steps[end].free.iter().position(|b| operands.contains(b) && end > i)?;
            let buf = p.steps[end].free.remove(ends);
            p.steps[at].free.push(buf);
            Some(())
        })
    };
    "a result ends before it is waited for", P, |p, k| {
        steps(p, k, |p, i| {
            let end = p.end_of(i);
            let results: Vec<BufId> = p.steps[i].writes.iter().map(|o| o.buf).collect();
            let frees = |s: &Step| s.free.iter().position(|b| results.contains(b));
            let (last, of) = (end..p.steps.len()).find_map(|j| Some((j, frees(&p.steps[j])?)))?;
            (end > i + 1).then_some(())?;
            let buf = p.steps[last].free.remove(of);
            p.steps[end - 1].free.push(buf);
            Some(())
        })
    };
    "two waits change places", P, |p, k| {
        steps(p, k, |p, i| {
            p.steps[i].async_id.filter(|_| p.steps[i].prim == Prim::Wait)?;
            let other = (i + 1..p.steps.len()).find(|j| p.steps[*j].prim == Prim::Wait)?;
            let (a, b) = (p.steps[i].async_id, p.steps[other].async_id);
            (p.steps[i].async_id, p.steps[other].async_id) = (b, a);
            Some(())
        })
    };
    "a start takes the number of another flight", P, |p, k| {
        steps(p, k, |p, i| {
            p.steps[i].collective()?;
            p.steps[i].async_id = Some(p.steps[i].async_id? + 1);
            Some(())
        })
    };
    "a collective forgets that it is waited for", P, |p, k| {
        steps(p, k, |p, i| p.steps[i].collective().is_some().then(|| p.steps[i].async_id.take())?.map(|_| ()))
    };
    "two factors are swapped for others of their shape", R, |p, k| {
        steps(p, k, |p, i| {
            (p.steps[i].prim == Prim::Contract).then_some(())?;
            let a = p.steps[i].reads[0].clone();
            let leaf = p.program_inputs.iter().find(|l| {
                l.kind == ProgramInputKind::Param && l.buf != a.buf && l.dims.len() > 1 && p.buffer(l.buf) == p.buffer(a.buf)
            })?;
            p.steps[i].reads[0].buf = leaf.buf;
            Some(())
        })
    };
    "a local fold by another monoid", PR, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Reduce { monoid, .. } = &mut p.steps[i].prim else { return None };
            *monoid = match monoid {
                Monoid::Sum => Monoid::Max,
                Monoid::Max => Monoid::Min,
                _ => return None,
            };
            Some(())
        })
    };
    "a shift by one more", R, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Shift { start, .. } = &mut p.steps[i].prim else { return None };
            *start += 1;
            Some(())
        })
    };
    "a dim is not reversed", R, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Reverse { dim } = p.steps[i].prim else { return None };
            p.steps[i].prim = Prim::Shift { dim, to: dim, start: 0, fill: 0.0 };
            Some(())
        })
    };
    "the parts of a concatenation change places", R, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Concat { parts, .. } = &mut p.steps[i].prim else { return None };
            (parts[0].1, parts[1].1) = (parts[1].1, parts[0].1);
            Some(())
        })
    };
    "a part of a concatenation begins one behind", R, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Concat { parts, .. } = &mut p.steps[i].prim else { return None };
            parts[1].1 += 1;
            Some(())
        })
    };
    "a running sum runs from the other end", R, |p, k| {
        steps(p, k, |p, i| {
            let Prim::CumSum { reverse, .. } = &mut p.steps[i].prim else { return None };
            *reverse = !*reverse;
            Some(())
        })
    };
    "a running sum leaves its own element out", R, |p, k| {
        steps(p, k, |p, i| {
            let Prim::CumSum { exclusive, .. } = &mut p.steps[i].prim else { return None };
            *exclusive = !*exclusive;
            Some(())
        })
    };
    "a random value is drawn from another stream", R, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Random { stream, .. } = &mut p.steps[i].prim else { return None };
            stream.push('x');
            Some(())
        })
    };
    "two random values share a stream", R, |p, k| {
        steps(p, k, |p, i| {
            let other = p.steps.iter().enumerate().find_map(|(j, s)| match &s.prim {
                Prim::Random { stream, .. } if i != j => Some(stream.clone()),
                _ => None,
            });
            let Prim::Random { stream, .. } = &mut p.steps[i].prim else { return None };
            *stream = other?;
            Some(())
        })
    };
    "a random value is of another distribution", R, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Random { distribution, .. } = &mut p.steps[i].prim else { return None };
            *distribution = match *distribution {
                Distribution::Uniform { low, high } => Distribution::Uniform { low: low - 0.5, high },
                Distribution::Normal { mean, std } => Distribution::Normal { mean, std: 2.0 * std },
                Distribution::Bernoulli { rate } => Distribution::Bernoulli { rate: 2.0 * rate },
            };
            Some(())
        })
    };
    "seed and step do not enter random values", R, |p, k| {
        let random = p.steps.iter().any(|s| matches!(s.prim, Prim::Random { .. }));
        match (k, random) {
            (0, true) => {
                p.program = "eval".into();
                Site::Seeded
            }
            _ => Site::End,
        }
    };
    "a fused expression divides the other way round", R, |p, k| {
        steps(p, k, |p, i| {
            let Prim::Map { expr, .. } = &mut p.steps[i].prim else { return None };
            let swapped = expr.nodes.iter_mut().find_map(|n| match &mut n.scalar {
                Scalar::Binary(BinaryFn::Div, a, b) if a != b => Some((a, b)),
                _ => None,
            });
            swapped.map(|(a, b)| std::mem::swap(a, b))
        })
    };
    "a fused expression takes the position along another dim", R, |p, k| {
        steps(p, k, |p, i| {
            let dims = p.steps[i].writes.first()?.dims.len() as u16;
            let Prim::Map { expr, .. } = &mut p.steps[i].prim else { return None };
            (dims > 1).then_some(())?;
            expr.nodes.iter_mut().find_map(|n| match &mut n.scalar {
                Scalar::Index(d) => {
                    *d = (*d + 1) % dims;
                    Some(())
                }
                _ => None,
            })
        })
    };
    "a leaf is bound where it is not read", PR, |p, k| {
        leaves(p, k, |p, i| {
            let buf = p.program_inputs[i].buf;
            let e = p.buffers[buf.0 as usize].extents.iter_mut().find(|e| e.axes.len() == 1)?;
            e.axes.clear();
            Some(())
        })
    };
    "a leaf is bound by other axes", PR, |p, k| {
        let axes: Vec<Axis> = p.mesh.iter().collect();
        leaves(p, k, |p, i| {
            let buf = p.program_inputs[i].buf;
            let used: Vec<Axis> = p.buffer(buf).extents.iter().flat_map(|e| e.axes.clone()).collect();
            let other = *axes.iter().find(|a| !used.contains(a))?;
            let e = p.buffers[buf.0 as usize].extents.iter_mut().find(|e| e.axes.len() == 1)?;
            e.axes = vec![other];
            Some(())
        })
    };
    "a parameter begins otherwise", R, |p, k| {
        leaves(p, k, |p, i| match &mut p.program_inputs[i].init {
            Some(Init::Normal { std, .. }) => {
                *std *= 2.0;
                Some(())
            }
            Some(Init::Constant(c)) => {
                *c += 1.0;
                Some(())
            }
            _ => None,
        })
    };
    "two parameters change places", R, |p, k| {
        leaves(p, k, |p, i| {
            let one = &p.program_inputs[i];
            let other = p.program_inputs[..i].iter().position(|l| {
                l.kind == one.kind && one.init.is_some() && p.buffer(l.buf) == p.buffer(one.buf)
            })?;
            let (a, b) = (p.program_inputs[i].buf, p.program_inputs[other].buf);
            (p.program_inputs[i].buf, p.program_inputs[other].buf) = (b, a);
            Some(())
        })
    };
    "the next values of two leaves change places", PR, |p, k| {
        leaves(p, k, |p, i| {
            let next = p.program_inputs[i].next?;
            let other = p.program_inputs[..i].iter().position(|l| l.next.is_some_and(|n| n != next))?;
            p.program_inputs[i].next = p.program_inputs[other].next;
            p.program_inputs[other].next = Some(next);
            Some(())
        })
    };
    "a leaf keeps its value", P, |p, k| leaves(p, k, |p, i| p.program_inputs[i].next.take().map(|_| ()));
    "the step gives another buffer", PR, |p, k| {
        let n = p.outputs.len();
        if k >= n {
            return Site::End;
        }
        let here = p.outputs[k].buf;
        let written: Vec<BufId> = p.steps.iter().flat_map(|s| &s.writes).map(|o| o.buf).collect();
        let like = |b: &BufId| *b != here && p.buffer(*b).extents.is_empty();
        match written.into_iter().rev().find(like) {
            Some(b) => {
                p.outputs[k].buf = b;
                Site::Seeded
            }
            None => Site::Skipped,
        }
    };
];

pub(super) fn steps(p: &mut Plan, k: usize, f: impl Fn(&mut Plan, usize) -> Option<()>) -> Site {
    match k < p.steps.len() {
        false => Site::End,
        true if f(p, k).is_some() => Site::Seeded,
        true => Site::Skipped,
    }
}

/// Applies `f` to the `k`-th step if it is a collective, with the axes of the mesh.
fn collectives(p: &mut Plan, k: usize, f: impl Fn(&mut Collective, &[Axis]) -> Option<()>) -> Site {
    let axes: Vec<Axis> = p.mesh.iter().collect();
    steps(p, k, |p, i| match &mut p.steps[i].prim {
        Prim::Collective(c) => f(c, &axes),
        _ => None,
    })
}

/// Applies `f` to the `k`-th step if it is a collective of several values.
fn buckets(p: &mut Plan, k: usize, f: impl Fn(&mut Step)) -> Site {
    steps(p, k, |p, i| {
        p.steps[i].collective()?;
        (p.steps[i].writes.len() > 1).then(|| f(&mut p.steps[i]))
    })
}

fn leaves(p: &mut Plan, k: usize, f: impl Fn(&mut Plan, usize) -> Option<()>) -> Site {
    match k < p.program_inputs.len() {
        false => Site::End,
        true if f(p, k).is_some() => Site::Seeded,
        true => Site::Skipped,
    }
}

#[test]
fn squares_that_are_not_scaled_are_caught() {
    let faults: &[Fault] = faults![
        "scaled squares are summed as they are", R, |p, k| {
            steps(p, k, |p, i| {
                let step = &mut p.steps[i];
                (step.prim == Prim::ScaledSquares).then_some(())?;
                step.prim = Prim::Contract;
                step.reads.push(step.reads[0].clone());
                Some(())
            })
        };
    ];
    let subjects = [planned_from("steep", STEEP, "a=2,b=2", "batch -> a; params: * -> a; e -> b")];
    judge("squares", &[seeded(&faults[0], &subjects)]);
}

#[test]
fn every_wrong_plan_is_caught() {
    all_caught("plans", FAULTS);
}

/// Seeds each fault at every place of every subject.
pub(super) fn all_caught(name: &str, faults: &[Fault]) {
    let subjects = planned();
    judge(name, &faults.iter().map(|fault| seeded(fault, &subjects)).collect::<Vec<_>>());
}

/// A fault at every place of some subjects.
pub(super) fn seeded(fault: &Fault, subjects: &[Planned]) -> Row {
    let mut found: Vec<Found> = Vec::new();
    for subject in subjects {
        for k in 0.. {
            let mut plan = subject.plan.clone();
            match (fault.seed)(&mut plan, k) {
                Site::End => break,
                Site::Skipped => continue,
                Site::Seeded => {}
            }
            let f = in_plan(subject, &plan);
            if f.is_none() {
                crate::report(&format!("nobody sees: {}, in {} at {k}", fault.what, subject.name));
            }
            found.push(f.map(|f| (f.0, format!("{}, step {k}: {}", subject.name, f.1))));
        }
    }
    Row { what: fault.what, expected: fault.by, found }
}
