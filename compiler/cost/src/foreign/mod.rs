//! A program as another system runs it, by documented facts. Only published runs are estimated so.

mod merge;
mod overlap;
mod recompute;

use crate::engine::EngineFacts;
use crate::foreign::merge::{merged, product_of};
use crate::foreign::recompute::{recompute, recompute_last};
use crate::timeline::Prices;
use crate::work::{DeviceWork, KernelPurpose, KernelWork, Matmul, Scores, Transfer, WorkItem};
use meshwright_plan::KernelFamily;
use meshwright_plan::expr::Scalar;
use meshwright_plan::{
    Arithmetic, BufId, CollectiveKind, Dim, Operand, Phase, Plan, Prim, ProgramInputKind, Step,
};
use meshwright_sorted::SortedSet;

/// Bytes of a half type.
const HALF: f64 = 2.0;
/// Bytes of an operand that is converted to 8 bits: read, and written twice, once transposed.
const CONVERTED: f64 = 4.0;
/// Bytes that stream for each logit in the forward and in the backward pass, by the name of a loss: `fused` reads logits and
/// writes gradients in their place, `torch` copies them to `f32`, `vocab` is the loss of Megatron-LM over a split vocabulary,
/// operation by operation.
const LOSSES: [(&str, f64, f64); 3] = [("fused", 4.0, 6.0), ("torch", 14.0, 18.0), ("vocab", 38.0, 20.0)];

/// The program as an engine with these facts runs it.
pub fn translated(plan: &Plan, program: &DeviceWork, facts: &EngineFacts, prices: &dyn Prices) -> DeviceWork {
    let t = Translation { plan, facts, prices, inputs: input_dims(plan), parameters: parameters(plan) };
    let mut body = t.items(&program.body, 0);
    t.loss(&mut body);
    if facts.recompute_all {
        recompute_last(&mut body);
    }
    if facts.recompute_every > 0 {
        recompute(&mut body, facts.recompute_every);
    }
    t.beside_products(&mut body);
    DeviceWork { body }
}

struct Translation<'a> {
    plan: &'a Plan,
    facts: &'a EngineFacts,
    prices: &'a dyn Prices,
    /// Dims of the inputs: what has one of them is an activation.
    inputs: SortedSet<Dim>,
    /// Buffers with parameters, and views of them.
    parameters: SortedSet<BufId>,
}

/// Dims of the inputs, and of what splits and joins make of them: what has one of them is an activation.
pub(crate) fn input_dims(plan: &Plan) -> SortedSet<Dim> {
    let mut dims: SortedSet<Dim> = plan.inputs.iter().flat_map(|i| i.dims.iter().copied()).collect();
    dims.extend(plan.microbatches.map(|m| m.dim));
    // What a split or a join makes of such a dim counts as one too.
    for step in &plan.steps {
        if let Prim::SplitDim { .. } | Prim::MergeDims { .. } = &step.prim {
            let (reads, writes): (Vec<Dim>, Vec<Dim>) = (all_dims(&step.reads), all_dims(&step.writes));
            if reads.iter().any(|d| dims.contains(d) && !writes.contains(d)) {
                dims.extend(writes.iter().filter(|d| !reads.contains(d)));
            }
        }
    }
    dims
}

fn all_dims(operands: &[Operand]) -> Vec<Dim> {
    operands.iter().flat_map(|o| o.dims.iter().copied()).collect()
}

fn parameters(plan: &Plan) -> SortedSet<BufId> {
    let inputs = plan.program_inputs.iter().filter(|i| i.kind == ProgramInputKind::Param);
    let mut found: SortedSet<BufId> = inputs.map(|i| i.buf).collect();
    for step in &plan.steps {
        let view = matches!(
            step.prim,
            Prim::IterationSlice { .. } | Prim::Copy | Prim::SplitDim { .. } | Prim::Repeat { .. }
        );
        if view {
            for (from, to) in step.reads.iter().zip(&step.writes) {
                if found.contains(&from.buf) {
                    found.insert(to.buf);
                }
            }
        }
    }
    found
}

impl Translation<'_> {
    fn items(&self, items: &[WorkItem], depth: usize) -> Vec<WorkItem> {
        let mut made = vec![];
        for item in items {
            match item {
                WorkItem::Work(work) => {
                    made.extend(self.work(work, depth).into_iter().map(|w| WorkItem::Work(Box::new(w))))
                }
                WorkItem::Start(transfer) => made.extend(self.transfer(transfer)),
                WorkItem::Wait(flight) => made.push(WorkItem::Wait(*flight)),
                WorkItem::Loop(of) => {
                    let body = of.body.iter().flat_map(|(item, lag)| {
                        self.items(std::slice::from_ref(item), depth + 1)
                            .into_iter()
                            .map(|i| (i, *lag))
                            .collect::<Vec<_>>()
                    });
                    let mut of = of.clone();
                    let body: Vec<(WorkItem, usize)> = body.collect();
                    let body = if self.facts.fused_projections { merged(self.plan, body) } else { body };
                    let (body, later) = self.bucketed(self.converted(body));
                    of.body = body;
                    made.push(WorkItem::Loop(of));
                    made.extend(later.into_iter().map(WorkItem::Wait));
                }
            }
        }
        made
    }

    fn step(&self, step: usize) -> Option<&Step> {
        self.plan.steps.get(step)
    }

    /// True if some operand is an activation or gradients of them.
    fn activates(&self, operands: &[Operand]) -> bool {
        operands.iter().any(|o| o.dims.iter().any(|d| self.inputs.contains(d)))
    }

    fn work(&self, work: &KernelWork, depth: usize) -> Vec<KernelWork> {
        // Others keep activations in the order in which they are sent, and prepare no tensors.
        if work.purpose != KernelPurpose::Step || work.steps.is_empty() || self.converts_a_parameter(work) {
            return vec![];
        }
        let mut own = work.clone();
        if self.in_parts(depth) {
            let (added, rest): (Vec<usize>, Vec<usize>) =
                own.steps.iter().partition(|s| self.accumulates(**s, depth));
            if rest.is_empty() && !added.is_empty() {
                return vec![];
            }
            own.bytes = (own.bytes - self.bytes(&added)).max(0.0);
            own.steps = rest;
        }
        if let (Some(scores), "unfused") = (&work.attention, self.facts.attention.as_str()) {
            return self.unfused(work, scores);
        }
        if let Some(scores) = own.attention.as_mut().filter(|_| self.facts.ring) {
            scores.visible = scores.balanced;
        }
        if own.family != KernelFamily::Matmul {
            if self.facts.fusion == "eager" && own.steps.len() > 1 {
                own.bytes = self.bytes(&own.steps);
                own.kernels = own.steps.len() as f64;
            }
            return vec![own];
        }
        let layers = depth > usize::from(self.plan.microbatches.is_some());
        if layers && self.facts.dtype == "fp8" {
            own.products.iter_mut().for_each(|p| p.fp8 = true);
        }
        vec![own]
    }

    /// Activations before products in 8 bits are converted.
    fn converted(&self, items: Vec<(WorkItem, usize)>) -> Vec<(WorkItem, usize)> {
        let conversion = |(item, lag): &(WorkItem, usize)| {
            let WorkItem::Work(work) = item else { return None };
            let activation = self.step(work.step).is_some_and(|s| self.activates(&s.writes));
            let in_8_bits = work.products.iter().filter(|p| p.fp8 && activation);
            let elements: f64 = in_8_bits.map(|p| (p.m * p.k * p.batch) as f64).sum();
            let made = KernelWork::memory(work.step, work.phase, CONVERTED * elements, 1.0);
            (elements > 0.0).then(|| (WorkItem::Work(Box::new(made)), *lag))
        };
        items.into_iter().flat_map(|pair| [conversion(&pair), Some(pair)]).flatten().collect()
    }

    /// One collective of a kind for all parameters of a layer: a gather where the first is, a reduction behind the last product,
    /// which the reduction of the next layer waits for. Gives the flights that go on behind the loop.
    fn bucketed(&self, items: Vec<(WorkItem, usize)>) -> (Vec<(WorkItem, usize)>, Vec<u32>) {
        let key = |item: &WorkItem| match item {
            WorkItem::Start(t) if self.step(t.step).is_some_and(|s| !self.activates(&s.reads)) => {
                Some((t.kind, t.axes.clone(), t.phase))
            }
            _ => None,
        };
        let mut made: Vec<(WorkItem, usize)> = vec![];
        for (item, lag) in items {
            let same =
                key(&item).and_then(|k| made.iter().position(|(other, _)| key(other).as_ref() == Some(&k)));
            let (Some(at), WorkItem::Start(own)) = (same, &item) else {
                made.push((item, lag));
                continue;
            };
            let WorkItem::Start(earlier) = &mut made[at].0 else { continue };
            earlier.bytes += own.bytes;
            if own.kind != CollectiveKind::AllGather {
                let bytes = earlier.bytes;
                made.remove(at);
                made.push((WorkItem::Start(Transfer { bytes, ..own.clone() }), lag));
            }
        }
        let reduces = |item: &WorkItem| match item {
            WorkItem::Start(t) if key(item).is_some() && t.kind != CollectiveKind::AllGather => t.flight,
            _ => None,
        };
        let later: Vec<u32> = made.iter().filter_map(|(item, _)| reduces(item)).collect();
        made.retain(|(item, _)| !matches!(item, WorkItem::Wait(flight) if later.contains(flight)));
        let waits = |(item, lag): (WorkItem, usize)| {
            let before = reduces(&item).map(|flight| (WorkItem::Wait(flight), lag));
            before.into_iter().chain([(item, lag)])
        };
        (made.into_iter().flat_map(waits).collect(), later)
    }

    /// True in the loop over parts of the batch, but not in one over layers.
    fn in_parts(&self, depth: usize) -> bool {
        self.plan.microbatches.is_some() && depth > 0
    }

    /// Whether a step adds up gradients: it reads and writes no activation, and in a loop over layers adds to a position of a
    /// sum. Other engines add in the product.
    fn accumulates(&self, step: usize, depth: usize) -> bool {
        self.step(step).is_some_and(|s| {
            matches!(s.prim, Prim::Map { .. })
                && !self.activates(&s.reads)
                && !self.activates(&s.writes)
                && (depth == 1 || self.adds_to_a_position(s))
        })
    }

    fn adds_to_a_position(&self, step: &Step) -> bool {
        let sliced = |o: &Operand| {
            let slices = |s: &&Step| matches!(s.prim, Prim::IterationSlice { .. });
            self.plan.steps.iter().filter(slices).any(|s| s.writes_buf(o.buf))
        };
        let put = |o: &Operand| {
            let updates = |s: &&Step| matches!(s.prim, Prim::IterationUpdate { .. });
            self.plan.steps.iter().filter(updates).any(|s| s.reads.get(1).is_some_and(|r| r.buf == o.buf))
        };
        step.reads.iter().any(sliced) && step.writes.iter().any(put)
    }

    /// Bytes of steps, each with a kernel of its own.
    fn bytes(&self, steps: &[usize]) -> f64 {
        steps.iter().filter_map(|s| self.step(*s)).map(|s| s.memory_bytes(self.plan) as f64).sum()
    }

    /// Whether it only rounds a parameter, of which other engines keep a copy in the half type.
    fn converts_a_parameter(&self, work: &KernelWork) -> bool {
        self.facts.param_bytes == HALF
            && !work.steps.is_empty()
            && work.steps.iter().all(|s| {
                self.step(*s).is_some_and(|step| match &step.prim {
                    Prim::Map { expr, .. } => {
                        let plain = |s: &Scalar| matches!(s, Scalar::Load(_) | Scalar::Cast(_));
                        expr.nodes.iter().all(|n| plain(&n.scalar))
                            && step.reads.iter().all(|o| self.parameters.contains(&o.buf))
                    }
                    _ => false,
                })
            })
    }

    /// Attention as products, a softmax and a mask of dropout, each in memory.
    fn unfused(&self, work: &KernelWork, s: &Scores) -> Vec<KernelWork> {
        let elements = s.matrices * s.queries * s.keys;
        let product = |m: f64, n: f64, k: f64| {
            let (m, n, k, batch) = (m as u64, n as u64, k as u64, s.matrices as u64);
            let bytes = HALF * (batch * (m * k + k * n + m * n)) as f64;
            let mut made = KernelWork::memory(work.step, work.phase, bytes, 1.0);
            made.family = KernelFamily::Matmul;
            made.products = vec![Matmul { m, n, k, batch, arithmetic: Arithmetic::BF16, fp8: false }];
            made
        };
        let memory = |bytes: f64| {
            let mut made = KernelWork::memory(work.step, work.phase, bytes * elements, 1.0);
            made.family = KernelFamily::Attention;
            made
        };
        let dropped = |made: &mut Vec<KernelWork>| {
            if s.dropout {
                made.push(memory(2.0 * HALF + 1.0));
            }
        };
        let forward = |made: &mut Vec<KernelWork>| {
            made.extend([product(s.queries, s.keys, s.width), memory(2.0 * HALF)]);
            dropped(made);
            made.push(product(s.queries, s.values, s.keys));
        };
        let mut made = vec![];
        if !s.backward {
            forward(&mut made);
            return made;
        }
        if self.facts.recompute_attention {
            forward(&mut made);
        }
        made.extend([product(s.queries, s.keys, s.values), product(s.keys, s.values, s.queries)]);
        dropped(&mut made);
        made.extend([
            memory(3.0 * HALF),
            product(s.queries, s.width, s.keys),
            product(s.keys, s.width, s.queries),
        ]);
        made
    }

    fn transfer(&self, transfer: &Transfer) -> Vec<WorkItem> {
        let Some(step) = self.step(transfer.step) else { return vec![] };
        let mut own = transfer.clone();
        if self.activates(&step.reads) {
            // Within layers: only what a gradient needs is gathered before.
            let overlaps = self.facts.tp_overlap != "none"
                && own.phase == Phase::Backward
                && own.kind == CollectiveKind::AllGather;
            own.flight = own.flight.filter(|_| overlaps);
            if self.facts.dtype == "fp8"
                && self.facts.tp_overlap == "pipe"
                && own.kind == CollectiveKind::AllGather
            {
                own.bytes /= 2.0;
            }
            return vec![WorkItem::Start(own)];
        }
        own.flight = own.flight.filter(|_| self.facts.dp_overlap);
        let size = step.reads.first().map_or(1.0, |o| self.plan.buffer(o.buf).dtype.bytes() as f64);
        let each = if own.kind == CollectiveKind::AllGather {
            self.facts.param_bytes
        } else {
            self.facts.grad_bytes
        };
        let elements = own.bytes / size;
        own.bytes = elements * each;
        let copies = KernelWork::memory(own.step, own.phase, elements * self.facts.copies, 1.0);
        let copied = self.facts.copies > 0.0 && own.phase != Phase::Update;
        let copies = copied.then(|| WorkItem::Work(Box::new(copies)));
        [WorkItem::Start(own)].into_iter().chain(copies).collect()
    }

    /// Replaces what streams between the last product of the forward pass and the first of the backward pass by the bytes of the
    /// engine's loss.
    fn loss(&self, items: &mut Vec<WorkItem>) {
        let inner = items.iter().position(|i| matches!(i, WorkItem::Loop(of) if self.plan.microbatches.is_some_and(|m| self.over(of.step) == Some(m.over)) && of.body.iter().any(|(i, _)| matches!(i, WorkItem::Loop(_) | WorkItem::Work(_)) && product_of(i).is_some())));
        if let Some(WorkItem::Loop(of)) = inner.map(|at| &mut items[at]) {
            let mut body: Vec<WorkItem> = of.body.iter().map(|(i, _)| i.clone()).collect();
            let lag = of.body.iter().map(|(_, lag)| *lag).max().unwrap_or(0);
            self.loss(&mut body);
            of.body = body.into_iter().map(|i| (i, lag)).collect();
            return;
        }
        let last =
            items.iter().rposition(|i| product_of(i).is_some_and(|(phase, _)| phase == Phase::Forward));
        let first =
            items.iter().position(|i| product_of(i).is_some_and(|(phase, _)| phase == Phase::Backward));
        let (Some(last), Some(first)) = (last, first.filter(|f| last.is_some_and(|l| *f > l))) else {
            return;
        };
        let logits = product_of(&items[last]).map_or(0.0, |(_, p)| (p.m * p.n * p.batch) as f64);
        let Some((_, forward, backward)) = LOSSES.iter().find(|l| l.0 == self.facts.loss) else { return };
        let WorkItem::Work(of) = &items[last] else { return };
        let work = KernelWork::memory(of.step, Phase::Forward, (forward + backward) * logits, 5.0);
        let mut between: Vec<WorkItem> = items.drain(last + 1..first).collect();
        between.retain(|i| !matches!(i, WorkItem::Work(_)));
        between.push(WorkItem::Work(Box::new(work)));
        items.splice(last + 1..last + 1, between);
    }

    fn over(&self, step: usize) -> Option<Dim> {
        match self.step(step)?.prim {
            Prim::Repeat { dim, .. } => Some(dim),
            _ => None,
        }
    }
}
