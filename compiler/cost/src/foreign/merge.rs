//! Products that engines compute as one.

use crate::work::{KernelWork, Matmul, WorkItem};
use meshwright_plan::KernelFamily;
use meshwright_plan::{Phase, Plan, Prim, Step};

/// Products of the same left factor as one, and products whose results are added up as one.
pub(super) fn merged(plan: &Plan, items: Vec<(WorkItem, usize)>) -> Vec<(WorkItem, usize)> {
    let mut made: Vec<(WorkItem, usize)> = vec![];
    // Sums of products that are one product.
    let mut added: Vec<usize> = vec![];
    for (item, lag) in items {
        if matches!(&item, WorkItem::Work(w) if w.family == KernelFamily::Memory && w.steps.len() == 1 && added.contains(&w.steps[0]))
        {
            continue;
        }
        let WorkItem::Work(work) = &item else {
            made.push((item, lag));
            continue;
        };
        let together = |(other, _): &(WorkItem, usize)| match other {
            WorkItem::Work(other) => merge_of(plan, other, work),
            _ => None,
        };
        let found = made.iter().enumerate().rev().find_map(|(at, pair)| Some((at, together(pair)?)));
        let Some((at, merge)) = found else {
            made.push((item, lag));
            continue;
        };
        let (WorkItem::Work(earlier), _) = made.remove(at) else { continue };
        let mut own = work.clone();
        let (of, other) = (&mut own.products[0], earlier.products[0]);
        match merge {
            Merge::Columns => of.n += other.n,
            Merge::Rows => of.m += other.m,
            Merge::Sums(step) => {
                of.k += other.k;
                added.push(step);
            }
        }
        own.bytes += earlier.bytes;
        own.steps.extend(&earlier.steps);
        own.single = [earlier.single, own.single].concat();
        made.push((WorkItem::Work(own), lag));
    }
    made
}

enum Merge {
    Columns,
    Rows,
    /// The step that adds the results.
    Sums(usize),
}

/// How two products are one, if they are.
fn merge_of(plan: &Plan, first: &KernelWork, second: &KernelWork) -> Option<Merge> {
    let ([p], [q]) = (first.products.as_slice(), second.products.as_slice()) else { return None };
    if first.phase != second.phase || p.fp8 != q.fp8 || p.batch != q.batch {
        return None;
    }
    let (a, b) = (plan.steps.get(first.step)?, plan.steps.get(second.step)?);
    let ([a, b], [x, y]) = ([contraction(plan, first, a)?, contraction(plan, second, b)?], [p, q]);
    if a.reads[0].buf == b.reads[0].buf && (x.m, x.k) == (y.m, y.k) {
        return Some(Merge::Columns);
    }
    if a.reads[1].buf == b.reads[1].buf && (x.n, x.k) == (y.n, y.k) {
        return Some(Merge::Rows);
    }
    let added = |step: &Step| {
        let of = step.writes.first()?.buf;
        plan.steps.iter().position(|s| matches!(s.prim, Prim::Map { .. }) && s.reads_buf(of))
    };
    let adds = added(a).filter(|s| Some(*s) == added(b))?;
    let linear = plan.steps[adds].reads.len() >= 2 && (x.m, x.n) == (y.m, y.n);
    linear.then_some(Merge::Sums(adds))
}

/// The contraction of a kernel.
fn contraction<'p>(plan: &'p Plan, work: &KernelWork, last: &'p Step) -> Option<&'p Step> {
    let is = |s: &&Step| matches!(s.prim, Prim::Contract);
    work.steps.iter().filter_map(|s| plan.steps.get(*s)).find(is).or(Some(last)).filter(is)
}

/// Phase and first product of a kernel that multiplies.
pub(super) fn product_of(item: &WorkItem) -> Option<(Phase, Matmul)> {
    match item {
        WorkItem::Work(w) if w.family == KernelFamily::Matmul => Some((w.phase, *w.products.first()?)),
        _ => None,
    }
}
