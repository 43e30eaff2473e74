//! Chains of element-wise steps become one: what one step writes and the next reads stays in registers.
//!
//! Before `a = x * y; b = a + z` as two maps over one iteration space, after one map; `a` is still written if something
//! else reads it. Where nothing else does, `a` may also lie in another order of its dims than `b`. Maps without operands
//! (constants, positions) are computed where they are used, but for tables: costly functions of positions that many elements read.

use super::stretches::stretches;
use meshwright_plan::expr::{BinaryFn, Reg, Scalar, UnaryFn};
use meshwright_plan::{BufId, Dim, Expr, Extent, Operand, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};

/// Most nodes of a fused expression: its registers should stay in the first-level cache.
const MAX_NODES: usize = 128;
/// Most operands of a fused step.
const MAX_INPUTS: usize = 16;

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

/// Fuses element-wise steps, and the steps of each attention.
pub fn fuse(mut plan: Plan) -> Plan {
    super::attention::merge(&mut plan);
    let kept: SortedSet<BufId> =
        plan.outputs.iter().map(|o| o.buf).chain(plan.program_inputs.iter().filter_map(|l| l.next)).collect();
    let stretch = stretches(&plan.steps);
    let mut steps: Vec<Option<Step>> = plan.steps.drain(..).map(Some).collect();
    let mut readers: SortedMap<BufId, SortedSet<usize>> = SortedMap::new();
    let mut producer: SortedMap<BufId, usize> = SortedMap::new();
    for (i, s) in steps.iter().enumerate() {
        let Some(s) = s else { continue };
        for o in &s.reads {
            readers.entry(o.buf).or_default().insert(i);
        }
        for o in &s.writes {
            producer.insert(o.buf, i);
        }
    }
    for at in 0..steps.len() {
        while let Some(from) = candidate(&plan, &steps, &readers, &producer, &kept, at, &stretch) {
            let (Some(first), Some(second)) = (steps[from].clone(), steps[at].take()) else { break };
            let generator = first.reads.is_empty();
            let needed = |b: BufId| {
                kept.contains(&b) || readers.get(&b).is_some_and(|r| r.iter().any(|i| *i != at && *i != from))
            };
            // A generator is left for its other readers; anything else moves here.
            let gone = !generator || !first.writes.iter().any(|o| needed(o.buf));
            let merged = merge(&first, &second, &|b| !generator && needed(b));
            if gone {
                for o in &first.reads {
                    if let Some(r) = readers.get_mut(&o.buf) {
                        r.remove(&from);
                    }
                }
                steps[from] = None;
            }
            for o in &second.reads {
                if let Some(r) = readers.get_mut(&o.buf) {
                    r.remove(&at);
                }
            }
            for o in &merged.reads {
                readers.entry(o.buf).or_default().insert(at);
            }
            for o in &merged.writes {
                producer.insert(o.buf, at);
            }
            steps[at] = Some(merged);
        }
    }
    plan.steps = steps.into_iter().flatten().collect();
    plan
}

/// A map whose result the map at `at` reads, and that can be merged into it.
fn candidate(
    plan: &Plan,
    steps: &[Option<Step>],
    readers: &SortedMap<BufId, SortedSet<usize>>,
    producer: &SortedMap<BufId, usize>,
    kept: &SortedSet<BufId>,
    at: usize,
    stretch: &[usize],
) -> Option<usize> {
    let second = steps[at].as_ref()?;
    let Prim::Map { expr: e2, .. } = &second.prim else { return None };
    let (inputs, o2) = (&second.reads, &second.writes);
    for input in inputs {
        let Some(from) = producer.get(&input.buf).copied().filter(|f| *f < at && stretch[*f] == stretch[at])
        else {
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
                return Some(from);
            }
            continue;
        }
        let order = |o: &Operand| (o.dims.clone(), plan.buffer(o.buf).extents.clone());
        if order(&o1[0]) != order(&o2[0]) {
            // The same elements in another order: nothing else may want them in theirs.
            let elements = |o: &Operand| -> SortedMap<Dim, Extent> {
                o.dims.iter().copied().zip(plan.buffer(o.buf).extents.iter().cloned()).collect()
            };
            let wanted =
                |b: BufId| kept.contains(&b) || readers.get(&b).is_some_and(|r| r.iter().any(|i| *i != at));
            if elements(&o1[0]) != elements(&o2[0]) || o1.iter().any(|o| wanted(o.buf)) {
                continue;
            }
        }
        // Moved down to `at`, what it writes must not be read before.
        let early =
            o1.iter().any(|o| readers.get(&o.buf).is_some_and(|r| r.range(from + 1..at).next().is_some()));
        if !early {
            return Some(from);
        }
    }
    None
}

/// Whether a generator is better computed once, and read: where a step that reads it has many elements for each of it, and they are not cheap,
/// as the angles of rotary positions.
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
