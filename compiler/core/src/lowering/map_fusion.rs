//! Chains of element-wise steps become one: what one step writes and the next reads stays in registers.
//!
//! Before `a = x * y; b = a + z` as two maps over one iteration space, after one map; `a` is still written if something else
//! reads it, unless `b` is a factor in 8 bits: such a factor is a step of its own, which computes `a` a second time if that reads
//! no more. Where nothing else does, `a` may also lie in another order of its dims than `b`.
//! Maps without operands (constants, positions) are computed where they are used, but for tables: costly functions of positions
//! that many elements read.

use super::per_buffer::PerBuffer;
use super::stretches::stretches;
use meshwright_plan::expr::{BinaryFn, Reg, Scalar, UnaryFn};
use meshwright_plan::{BufId, Dim, Expr, Operand, Plan, Prim, Step, subexpression};
use meshwright_sorted::SortedMap;

/// Most nodes of a fused expression: its registers should stay in the first-level cache.
const MAX_NODES: usize = 128;
/// Most operands of a fused step.
const MAX_INPUTS: usize = 16;

/// Most maps that scale and round a factor: the product with the scale, what marks numbers that are not finite, the rounding.
const MOST_MAPS: usize = 5;

/// So many elements of a reader for each of a generator are many.
const MANY: usize = 4;
/// Functions that cost more than reading what they gave.
const COSTLY: &[UnaryFn] = &[
    UnaryFn::Exp,
    UnaryFn::Log,
    UnaryFn::Log1p,
    UnaryFn::Tanh,
    UnaryFn::Sigmoid,
    UnaryFn::Erf,
    UnaryFn::Sin,
    UnaryFn::Cos,
    UnaryFn::Tan,
];

/// Who makes and reads each buffer, by the positions of steps.
struct BufferUses {
    /// In ascending order.
    readers: PerBuffer<Vec<usize>>,
    producer: PerBuffer<Option<usize>>,
    /// Outputs and next values.
    kept: PerBuffer<bool>,
}

impl BufferUses {
    fn new(plan: &Plan) -> BufferUses {
        let (readers, producer) = (PerBuffer::new(plan, Vec::new()), PerBuffer::new(plan, None));
        let mut kept = PerBuffer::new(plan, false);
        let next = plan.program_inputs.iter().filter_map(|l| l.next);
        plan.outputs.iter().map(|o| o.buf).chain(next).for_each(|b| kept[b] = true);
        let mut uses = BufferUses { readers, producer, kept };
        for (at, step) in plan.steps.iter().enumerate() {
            uses.add(step, at);
        }
        uses
    }

    fn add(&mut self, step: &Step, at: usize) {
        for o in &step.reads {
            let all = &mut self.readers[o.buf];
            let place = all.partition_point(|i| *i < at);
            if all.get(place) != Some(&at) {
                all.insert(place, at);
            }
        }
        for o in &step.writes {
            self.producer[o.buf] = Some(at);
        }
    }

    fn remove_reader(&mut self, step: &Step, at: usize) {
        for o in &step.reads {
            let all = &mut self.readers[o.buf];
            if let Ok(place) = all.binary_search(&at) {
                all.remove(place);
            }
        }
    }

    /// True if something else than these two steps needs a buffer.
    fn needed_besides(&self, buf: BufId, [a, b]: [usize; 2]) -> bool {
        self.kept[buf] || self.readers[buf].iter().any(|i| *i != a && *i != b)
    }

    /// The step that computes of one map what a second one reads of it, if the second one then reads no more bytes, of values
    /// that are stored anyway: `gelu` of what is kept for the backward pass, but not the sum of two values. Where a step that
    /// may not copy it too reads it, it is stored.
    fn copied(
        &self,
        plan: &Plan,
        at: [usize; 2],
        [first, second]: [&Step; 2],
        may_copy: &dyn Fn(usize) -> bool,
    ) -> Option<Step> {
        let Prim::Map { expr, regs } = &first.prim else { return None };
        let is_read = |o: &Operand| second.reads.iter().any(|r| r.buf == o.buf);
        let mut read = (0..first.writes.len()).filter(|k| is_read(&first.writes[*k]));
        let (Some(k), None) = (read.next(), read.next()) else { return None };
        let result = first.writes[k].buf;
        if self.kept[result] || !self.readers[result].iter().all(|s| at.contains(s) || may_copy(*s)) {
            return None;
        }
        let stored = regs.iter().copied().zip(&first.writes).filter(|(_, o)| self.needed_besides(o.buf, at));
        let (of, reads) = subexpression(expr, regs[k], stored.collect(), &first.reads);
        let bytes = |o: &Operand| {
            let buffer = plan.buffer(o.buf);
            buffer.extents.iter().map(|extent| extent.size).product::<usize>() * buffer.dtype.bytes()
        };
        let more: Vec<_> = reads.iter().filter(|o| !second.reads.contains(o)).collect();
        let pays = more.iter().all(|o| self.needed_besides(o.buf, at))
            && more.into_iter().map(bytes).sum::<usize>() <= bytes(&first.writes[k]);
        let origin = first.origin.get(k).cloned().into_iter().collect();
        let prim = Prim::Map { expr: of.expr, regs: vec![of.reg] };
        pays.then(|| Step { prim, reads, writes: vec![first.writes[k].clone()], origin, ..first.clone() })
    }

    /// The steps between two others that read a buffer.
    fn read_between(&self, buf: BufId, from: usize, to: usize) -> impl Iterator<Item = usize> + '_ {
        let all = &self.readers[buf];
        all[all.partition_point(|i| *i <= from)..].iter().copied().take_while(move |i| *i < to)
    }
}

/// Fuses element-wise steps, and the steps of each attention.
pub fn fuse(mut plan: Plan) -> Plan {
    super::attention::merge(&mut plan);
    let stretch = stretches(&plan.steps);
    let mut uses = BufferUses::new(&plan);
    let mut steps: Vec<Option<Step>> = plan.steps.drain(..).map(Some).collect();
    for at in 0..steps.len() {
        while let Some(Merging { from, to, copy }) = candidate(&plan, &steps, &uses, at, &stretch) {
            let (Some(mut first), Some(second)) = (steps[from].take(), steps[at].take()) else { break };
            let needed = |b: BufId| uses.needed_besides(b, [from, at]);
            // What is computed twice is left for the other readers; anything else moves here.
            let merged = match &copy {
                Some(copy) => merge(copy, &second, &|_| false),
                None => merge(&first, &second, &needed),
            };
            if copy.is_some() {
                retain_results(&mut first, needed);
            }
            let gone = copy.is_none() || first.writes.is_empty();
            if gone {
                uses.remove_reader(&first, from);
            }
            uses.remove_reader(&second, at);
            uses.add(&merged, to);
            steps[from] = (!gone).then_some(first);
            steps[to] = Some(merged);
        }
    }
    plan.steps = steps.into_iter().flatten().collect();
    plan
}

/// A map that can be merged with one that reads its result.
struct Merging {
    from: usize,
    /// The place of both: that of the second, or that of the first if both give numbers alone.
    to: usize,
    /// If the first one stays for its other readers: what the second one computes once more.
    copy: Option<Step>,
}

/// A map whose result the map at `at` reads, and that can be merged with it.
fn candidate(
    plan: &Plan,
    steps: &[Option<Step>],
    uses: &BufferUses,
    at: usize,
    stretch: &[usize],
) -> Option<Merging> {
    let second = steps[at].as_ref()?;
    let Prim::Map { expr: e2, .. } = &second.prim else { return None };
    let (inputs, o2) = (&second.reads, &second.writes);
    for input in inputs {
        let Some(from) = uses.producer[input.buf].filter(|f| *f < at && stretch[*f] == stretch[at]) else {
            continue;
        };
        let Some(first) = &steps[from] else { continue };
        let Prim::Map { expr: e1, .. } = &first.prim else { continue };
        let (i1, o1) = (&first.reads, &first.writes);
        if e1.nodes.len() + e2.nodes.len() > MAX_NODES || i1.len() + inputs.len() > MAX_INPUTS {
            continue;
        }
        let Some(produced) = o1.iter().find(|o| o.buf == input.buf) else { continue };
        // Read under another name of a dim, the whole buffer is needed.
        if inputs.iter().any(|i| o1.iter().any(|o| o.buf == i.buf && o.dims != i.dims)) {
            continue;
        }
        if i1.is_empty() {
            // A generator: each of its dims is a dim of the consumer, split alike.
            let within = produced.dims.iter().all(|d| o2[0].dims.contains(d));
            if within && !is_table(plan, (e1, produced), &o2[0]) {
                return Some(Merging { from, to: at, copy: Some(first.clone()) });
            }
            continue;
        }
        // A device stores factors in 8 bits as codes if a step of their own rounds them.
        if o1.iter().any(|o| uses.needed_besides(o.buf, [from, at])) && is_factor(steps, uses, at, MOST_MAPS)
        {
            let copy = uses.copied(plan, [from, at], [first, second], &|step| {
                let is_map = steps[step].as_ref().is_some_and(|s| matches!(s.prim, Prim::Map { .. }));
                is_map && stretch[step] == stretch[at]
            });
            if same_order(plan, &o1[0], &o2[0]) && copy.is_some() {
                return Some(Merging { from, to: at, copy });
            }
            continue;
        }
        if !same_order(plan, &o1[0], &o2[0]) {
            // The same elements in another order: nothing else may want them in theirs.
            let wanted = |o: &Operand| uses.needed_besides(o.buf, [at; 2]);
            if !same_elements(plan, &o1[0], &o2[0]) || o1.iter().any(wanted) {
                continue;
            }
        }
        let between = || o1.iter().flat_map(|o| uses.read_between(o.buf, from, at));
        // Moved down to `at`, what it writes must not be read before.
        if between().next().is_none() {
            return Some(Merging { from, to: at, copy: None });
        }
        // Moved up, what it reads must be there: of a number that a loop stacks, as the inverse of a scale.
        let there = |o: &Operand| o1.iter().chain(i1).any(|known| known.buf == o.buf);
        let stacks =
            |i: usize| steps[i].as_ref().is_some_and(|s| matches!(s.prim, Prim::IterationUpdate { .. }));
        if o2[0].dims.is_empty() && between().all(stacks) && inputs.iter().all(there) {
            return Some(Merging { from, to: from, copy: None });
        }
    }
    None
}

/// Removes the results of a map that nothing needs any more.
fn retain_results(step: &mut Step, needed: impl Fn(BufId) -> bool) {
    fn retain<T>(all: &mut Vec<T>, which: &[bool]) {
        let mut which = which.iter();
        all.retain(|_| which.next() == Some(&true));
    }
    let which: Vec<bool> = step.writes.iter().map(|o| needed(o.buf)).collect();
    if let Prim::Map { regs, .. } = &mut step.prim {
        retain(regs, &which);
    }
    retain(&mut step.writes, &which);
    retain(&mut step.origin, &which);
}

/// True if a map rounds to 8 bits, or is one of `most` that lead to such a map alone.
fn is_factor(steps: &[Option<Step>], uses: &BufferUses, at: usize, most: usize) -> bool {
    let Some(Step { prim: Prim::Map { expr, .. }, writes, .. }) = &steps[at] else { return false };
    let rounds = |scalar: &Scalar| matches!(scalar, Scalar::Unary(f, _) if f.rounds_to().is_some());
    if expr.nodes.iter().any(|n| rounds(&n.scalar)) {
        return true;
    }
    let [out] = &writes[..] else { return false };
    let readers = &uses.readers[out.buf];
    let leads = |reader: &usize| is_factor(steps, uses, *reader, most - 1);
    most > 0 && !uses.kept[out.buf] && !readers.is_empty() && readers.iter().all(leads)
}

/// True if two operands have the same elements in the same order.
fn same_order(plan: &Plan, a: &Operand, b: &Operand) -> bool {
    a.dims == b.dims && plan.buffer(a.buf).extents == plan.buffer(b.buf).extents
}

/// True if they have the same elements in any order.
fn same_elements(plan: &Plan, a: &Operand, b: &Operand) -> bool {
    let extent = |o: &Operand, dim: Dim| {
        let at = o.dims.iter().position(|d| *d == dim)?;
        Some(&plan.buffer(o.buf).extents[at])
    };
    a.dims.len() == b.dims.len() && a.dims.iter().all(|d| extent(a, *d) == extent(b, *d))
}

/// Whether a generator is better computed once, and read: where a step that reads it has many elements for each of it, and they
/// are not cheap, as the angles of rotary positions.
fn is_table(plan: &Plan, (of, generated): (&Expr, &Operand), reader: &Operand) -> bool {
    let elements =
        |o: &Operand| plan.buffer(o.buf).extents.iter().map(|extent| extent.size).product::<usize>();
    // Whether a node is another number for each position.
    let mut varies: Vec<bool> = vec![];
    let mut costs = false;
    for node in &of.nodes {
        let reads = node.scalar.reads();
        let here = matches!(node.scalar, Scalar::Index(_)) || reads.iter().any(|r| varies[usize::from(*r)]);
        let costly = match node.scalar {
            Scalar::Unary(f, _) => COSTLY.contains(&f),
            Scalar::Binary(f, ..) => f == BinaryFn::Pow,
            _ => false,
        };
        costs |= here && costly;
        varies.push(here);
    }
    costs && elements(reader) >= MANY * elements(generated)
}

/// The map that computes both. Of the first one's results those for which `needed` are still written.
fn merge(first: &Step, second: &Step, needed: &dyn Fn(BufId) -> bool) -> Step {
    let (Prim::Map { expr: e1, regs: r1 }, Prim::Map { expr: e2, regs: r2 }) = (&first.prim, &second.prim)
    else {
        return second.clone();
    };
    let (o1, o2) = (&first.writes, &second.writes);
    let mut m = Merged { expr: Expr::default(), inputs: Vec::new(), space: o2[0].dims.clone() };
    let regs1 = m.append(e1, &first.reads, &o1[0].dims, &SortedMap::new());
    let known: SortedMap<BufId, Reg> = o1.iter().zip(r1).map(|(o, r)| (o.buf, regs1[*r as usize])).collect();
    let regs2 = m.append(e2, &second.reads, &o2[0].dims, &known);
    let (mut regs, mut writes, mut origin) = (Vec::new(), Vec::new(), Vec::new());
    for ((r, o), w) in r1.iter().zip(o1).zip(&first.origin).filter(|x| needed(x.0.1.buf)) {
        regs.push(regs1[*r as usize]);
        writes.push(o.clone());
        origin.push(w.clone());
    }
    regs.extend(r2.iter().map(|r| regs2[*r as usize]));
    writes.extend(o2.iter().cloned());
    origin.extend(second.origin.iter().cloned());
    Step { phase: second.phase, origin, ..Step::new(Prim::Map { expr: m.expr, regs }, m.inputs, writes) }
}

struct Merged {
    expr: Expr,
    inputs: Vec<Operand>,
    space: Vec<Dim>,
}

impl Merged {
    /// Appends an expression over its operands; those in `known` are already computed. Gives the new register of each of
    /// its nodes.
    fn append(
        &mut self,
        expr: &Expr,
        inputs: &[Operand],
        space: &[Dim],
        known: &SortedMap<BufId, Reg>,
    ) -> Vec<Reg> {
        let mut regs: Vec<Reg> = Vec::new();
        for node in &expr.nodes {
            let reg = match node.scalar {
                Scalar::Load(i) => {
                    let o = &inputs[i as usize];
                    match known.get(&o.buf) {
                        Some(r) => *r,
                        None => {
                            let slot = self.inputs.iter().position(|x| x == o).unwrap_or_else(|| {
                                self.inputs.push(o.clone());
                                self.inputs.len() - 1
                            });
                            self.expr.push(Scalar::Load(slot as u16), node.dtype)
                        }
                    }
                }
                Scalar::Index(k) => {
                    let dim = space[k as usize];
                    let k = self.space.iter().position(|d| *d == dim).unwrap_or(0);
                    self.expr.push(Scalar::Index(k as u16), node.dtype)
                }
                other => self.expr.push(other.map_reads(|r| regs[r as usize]), node.dtype),
            };
            regs.push(reg);
        }
        regs
    }
}
