//! Buffers of a program of `tf32` that hold rounded numbers only: tensor cores multiply them as they are.
//!
//! A step rounds the factors of a product on the device that has them; then collectives and loops move them. A product whose
//! factors are known to be rounded loses nothing on tensor cores, which read 11 bits.

use meshwright_plan::expr::{Scalar, UnaryFn};
use meshwright_plan::{Arithmetic, BufId, Plan, Prim, Step};
use meshwright_sorted::SortedSet;

/// The buffers that each step which writes them fills with rounded numbers.
pub fn rounded_buffers(plan: &Plan) -> SortedSet<BufId> {
    if plan.float != Arithmetic::TF32 {
        return SortedSet::new();
    }
    let sources = Sources::of(plan);
    let mut rounded: SortedSet<BufId> = sources.moves.iter().map(|(to, _)| *to).collect();
    rounded.extend(&sources.rounds);
    rounded.retain(|b| !sources.others.contains(b));
    // A moved buffer is rounded if all its sources are.
    loop {
        let before = rounded.len();
        for (to, from) in &sources.moves {
            if !rounded.contains(from) {
                rounded.remove(to);
            }
        }
        if rounded.len() == before {
            return rounded;
        }
    }
}

/// Checks that each step which writes one of these buffers rounds, or moves what another of them holds.
///
/// # Errors
/// If a buffer breaks the rule: the first one.
pub fn verify_rounded(plan: &Plan, rounded: &SortedSet<BufId>) -> Result<(), String> {
    if rounded.is_empty() {
        return Ok(());
    }
    let sources = Sources::of(plan);
    let written: SortedSet<BufId> =
        sources.rounds.iter().copied().chain(sources.moves.iter().map(|(to, _)| *to)).collect();
    let other = rounded.iter().find(|buf| sources.others.contains(buf) || !written.contains(buf));
    let moved = sources.moves.iter().find(|(to, from)| rounded.contains(to) && !rounded.contains(from));
    match other.or(moved.map(|(to, _)| to)) {
        Some(buf) => Err(format!("buffer {} has numbers that are not rounded to TF32", buf.0)),
        None => Ok(()),
    }
}

/// Where the contents of buffers come from.
#[derive(Default)]
struct Sources {
    /// A buffer that a step rounds to.
    rounds: Vec<BufId>,
    /// To and from: elements that are moved.
    moves: Vec<(BufId, BufId)>,
    /// Buffers with elements of another kind.
    others: SortedSet<BufId>,
}

impl Sources {
    fn of(plan: &Plan) -> Sources {
        let (mut sources, mut loops) = (Sources::default(), Vec::new());
        plan.steps.iter().for_each(|step| sources.add(step, &mut loops));
        sources
    }

    fn add<'p>(&mut self, step: &'p Step, loops: &mut Vec<&'p Step>) {
        let reads = || step.reads.iter().map(|o| o.buf);
        let writes = || step.writes.iter().map(|o| o.buf);
        match &step.prim {
            Prim::Map { expr, regs } => {
                for (out, reg) in writes().zip(regs) {
                    let made = expr.nodes[usize::from(*reg)].scalar;
                    match matches!(made, Scalar::Unary(UnaryFn::Tf32, _)) {
                        true => self.rounds.push(out),
                        false => drop(self.others.insert(out)),
                    }
                }
            }
            // Zeros, or nothing yet.
            Prim::Blank { .. } => self.rounds.extend(writes()),
            Prim::EndRepeat => {
                let currents = loops.pop().into_iter().flat_map(|s| s.writes.iter().map(|o| o.buf));
                self.moves.extend(writes().zip(reads()).chain(currents.zip(reads())));
            }
            prim if by_position(prim) => {
                if matches!(prim, Prim::Repeat { .. }) {
                    loops.push(step);
                }
                self.moves.extend(writes().zip(reads()));
            }
            prim if moves(prim) => {
                self.moves.extend(writes().flat_map(|to| reads().map(move |from| (to, from))));
            }
            _ => self.others.extend(writes()),
        }
    }
}

/// Whether each result has the elements of the operand at its position.
fn by_position(prim: &Prim) -> bool {
    match prim {
        Prim::Repeat { .. } | Prim::Receive { .. } => true,
        Prim::Collective(how) => !how.kind().folds(),
        _ => false,
    }
}

/// Whether all elements of the results are elements of the operands, or zeros.
fn moves(prim: &Prim) -> bool {
    match prim {
        Prim::Copy
        | Prim::Reverse { .. }
        | Prim::SplitDim { .. }
        | Prim::MergeDims { .. }
        | Prim::Concat { .. }
        | Prim::IterationSlice { .. }
        | Prim::IterationUpdate { .. } => true,
        Prim::Shift { fill, .. } => *fill == 0.0,
        _ => false,
    }
}
