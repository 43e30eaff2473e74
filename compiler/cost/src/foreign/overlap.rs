//! Collectives of activations that an engine runs during matmuls.

use super::Translation;
use super::recompute::inner;
use crate::work::{Transfer, WorkItem};
use meshwright_plan::KernelFamily;
use meshwright_plan::{CollectiveKind, Phase, Step};

/// The rate of a product in pieces relative to one that is whole (torchtitan's asynchronous tensor parallelism).
const PIECES: f64 = 1.15;

impl Translation<'_> {
    /// Hides collectives of activations that an engine runs during matmuls.
    pub(super) fn beside_products(&self, items: &mut [WorkItem]) {
        if self.facts.tp_overlap == "none" {
            return;
        }
        inner(items, |items| self.beside_products(items));
        for at in 0..items.len() {
            let WorkItem::Start(transfer) = &items[at] else { continue };
            let Some(step) = self.step(transfer.step).filter(|s| self.activates(&s.reads)) else { continue };
            if transfer.flight.is_some() {
                continue;
            }
            let gathers = transfer.kind == CollectiveKind::AllGather;
            let hidden = match transfer.phase == Phase::Backward && !gathers && !self.is_computed_again(step)
            {
                true => self.beside_weights(items, at, transfer),
                false if self.facts.tp_overlap == "pipe" => self.in_pieces(items, at, transfer),
                false => None,
            };
            if let WorkItem::Start(transfer) = &mut items[at] {
                transfer.pieces = hidden;
            }
        }
    }

    /// Whether it is a collective of the forward pass that the backward pass does again.
    fn is_computed_again(&self, step: &Step) -> bool {
        let of = |s: &Step| s.origin.first().map(|o| o.id);
        let is = |s: &&Step| s.phase == Phase::Forward && s.collective().is_some() && of(s) == of(step);
        self.plan.steps.iter().any(|s| is(&s))
    }

    /// The part of a reduction of gradients that the matmul for the gradient of a weight hides.
    fn beside_weights(&self, items: &[WorkItem], at: usize, transfer: &Transfer) -> Option<f64> {
        let of_weights = |i: &&WorkItem| match i {
            WorkItem::Work(w) if w.family == KernelFamily::Matmul => {
                self.step(w.step).is_some_and(|s| !self.activates(&s.writes))
            }
            _ => false,
        };
        let near =
            items[at + 1..].iter().find(of_weights).or_else(|| items[..at].iter().rev().find(of_weights));
        let Some(WorkItem::Work(near)) = near else { return None };
        let ((wire, taken), product) = (self.prices.transfer(transfer), self.prices.work(near).work);
        let beside = wire.min(product / (1.0 - taken));
        Some((beside * (1.0 - taken) / wire).clamp(0.0, 1.0))
    }

    /// The hidden part of a collective if it and the matmul that runs at the same time are cut into one piece for each
    /// member.
    fn in_pieces(&self, items: &[WorkItem], at: usize, transfer: &Transfer) -> Option<f64> {
        let is_product = |i: &&WorkItem| matches!(i, WorkItem::Work(w) if w.family == KernelFamily::Matmul);
        let near = match transfer.kind == CollectiveKind::AllGather {
            true => items[at + 1..].iter().find(is_product),
            false => items[..at].iter().rev().find(is_product),
        };
        let Some(WorkItem::Work(near)) = near else { return None };
        let ((wire, taken), product) = (self.prices.transfer(transfer), self.prices.work(near).work);
        let members: usize = transfer.axes.iter().map(|a| self.plan.mesh.size(*a)).product();
        let both = wire.max(PIECES * product + taken * wire.min(product));
        let bare = both - product + wire / members as f64;
        Some((1.0 - bare / wire).clamp(0.0, 1.0))
    }
}
