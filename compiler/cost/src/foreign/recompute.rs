//! Recomputation: work of the forward pass that other systems run again in the backward pass.

use super::merge::product_of;
use crate::work::{KernelWork, Loop, Matmul, WorkItem};
use meshwright_plan::KernelFamily;
use meshwright_plan::Phase;

/// Adds the last product of the forward pass to the loop of the backward pass, if that loop recomputes the forward pass. No
/// gradient needs this product.
pub(super) fn recompute_last(items: &mut [WorkItem]) {
    inner(items, recompute_last);
    let flops =
        |of: &Loop| of.body.iter().filter_map(|(i, _)| product_of(i)).map(|p| p.1.flops()).sum::<f64>();
    let Some((forward, backward)) = layers(items) else { return };
    let (WorkItem::Loop(from), WorkItem::Loop(to)) = (&items[forward], &items[backward]) else { return };
    let recomputes = flops(to) > 2.2 * flops(from);
    let last = from.body.iter().rev().find(|(i, _)| product_of(i).is_some()).cloned();
    if let (true, Some((mut item, lag)), WorkItem::Loop(to)) = (recomputes, last, &mut items[backward]) {
        if let WorkItem::Work(work) = &mut item {
            work.phase = Phase::Backward;
        }
        to.body.push((item, lag));
    }
}

/// Calls a function on the items of each loop.
pub(super) fn inner(items: &mut [WorkItem], change: impl Fn(&mut [WorkItem])) {
    for item in items.iter_mut() {
        if let WorkItem::Loop(of) = item {
            let mut body: Vec<WorkItem> = of.body.iter().map(|(i, _)| i.clone()).collect();
            change(&mut body);
            of.body.iter_mut().zip(body).for_each(|((old, _), new)| *old = new);
        }
    }
}

/// The loops of layers of the forward and the backward pass.
fn layers(items: &[WorkItem]) -> Option<(usize, usize)> {
    // A backward pass may compute products of the forward pass again, at first.
    let phase = |item: &WorkItem| match item {
        WorkItem::Loop(of) => of.body.iter().rev().find_map(|(i, _)| product_of(i)).map(|p| p.0),
        _ => None,
    };
    let at = |wanted: Phase| items.iter().position(|i| phase(i) == Some(wanted));
    Some((at(Phase::Forward)?, at(Phase::Backward)?))
}

/// Adds to each loop of the backward pass every `every`-th product of the loop of the forward pass, and all its kernels of
/// memory.
pub(super) fn recompute(items: &mut [WorkItem], every: usize) {
    inner(items, |items| recompute(items, every));
    let Some((forward, backward)) = layers(items) else { return };
    let WorkItem::Loop(from) = &items[forward] else { return };
    let mut again: Vec<Box<KernelWork>> = vec![];
    let mut products = 0;
    for (item, _) in &from.body {
        let WorkItem::Work(work) = item else { continue };
        if work.family == KernelFamily::Memory {
            again.push(work.clone());
        }
        for product in &work.single {
            products += 1;
            if products % every == 0 {
                let fp8 = work.products.iter().any(|p| p.fp8);
                let mut own = work.clone();
                own.bytes *= product.flops() / work.products.iter().map(Matmul::flops).sum::<f64>();
                own.products = vec![Matmul { fp8, ..*product }];
                again.push(own);
            }
        }
    }
    again.iter_mut().for_each(|w| w.phase = Phase::Backward);
    if let WorkItem::Loop(of) = &mut items[backward] {
        let lag = of.body.iter().map(|(_, lag)| *lag).max().unwrap_or(0);
        of.body.extend(again.into_iter().map(|w| (WorkItem::Work(w), lag)));
    }
}
