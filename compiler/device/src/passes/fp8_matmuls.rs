//! Matmuls of factors in 8 bits: which values are stored as bytes, and the reasons why other matmuls of a program of `fp8` run
//! in `bf16`.
//!
//! In a Plan a rounded factor is a number of `bf16`: a code of FP8 times a power of two (ADR 73). A library that multiplies
//! codes gives the same products, with the powers of two as scales (ADR 76). A factor is stored either as codes or in `bf16`,
//! so all matmuls that read it have to agree: a matmul that cannot takes others with it.

use crate::decisions::def_use::DefUse;
use crate::error::NoFp8Matmul;
use crate::lowering::contraction::{Contraction, contraction};
use crate::lowering::local::Local;
use crate::target::Target;
use meshwright_plan::expr::{BinaryFn, Expr, Reg, Scalar};
use meshwright_plan::{BufId, Computed, DType, Fp8, Operand, Prim, Step, subexpression};
use meshwright_sorted::{SortedMap, SortedSet};

/// Extents of the matrices of a kernel are multiples of this: 16 bytes of codes (NVIDIA, *cuBLAS*, "cublasLtMatmul").
const UNIT: usize = 16;

/// Most steps between the rounding of a factor and its matmul that only move it.
const FARTHEST: usize = 64;

/// The decisions of the pass.
#[derive(Clone, Debug, Default)]
pub struct Fp8Matmuls {
    /// Values that are stored as codes. All their consumers are matmuls of two such values.
    pub factors: SortedMap<BufId, Fp8Factor>,
    /// Reasons why other matmuls of rounded factors run in `bf16`, by step.
    pub declined: SortedMap<usize, NoFp8Matmul>,
}

/// A value that is stored as codes.
#[derive(Clone, Debug)]
pub struct Fp8Factor {
    /// The step that rounds it.
    pub step: usize,
    /// The format of the codes.
    pub format: Fp8,
    /// The scaled value before it is rounded, of the operands.
    pub value: Computed,
    /// The operands.
    pub reads: Vec<Operand>,
    /// The number by which codes are multiplied: a power of two.
    pub inverse: Operand,
    /// Rows and columns of the value as a matrix.
    pub matrix: [usize; 2],
    /// True if a matmul sums over the last dims of the value.
    pub plain: bool,
    /// True if a matmul sums over the first ones, so that the matrix is transposed.
    pub turned: bool,
}

/// A matmul of two rounded factors as a device computes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fp8Contraction {
    /// True if the second operand is the left factor.
    pub swapped: bool,
    /// Rows, columns and summed elements.
    pub sizes: [usize; 3],
    /// Whether the left and the right factor are the transposed matrices of their values.
    pub turned: [bool; 2],
    /// Rows and columns of the values as matrices: of the left and of the right factor.
    pub matrices: [[usize; 2]; 2],
}

impl Fp8Contraction {
    /// The operands that are the left and the right factor.
    fn operands(&self) -> [usize; 2] {
        if self.swapped { [1, 0] } else { [0, 1] }
    }

    /// The matmul of operands of these extents; none if its result is zero.
    ///
    /// # Errors
    /// The reason why kernels cannot compute it, if they cannot.
    pub fn of(
        [a, b]: [&Local; 2],
        out: &Local,
    ) -> Result<Option<Result<Fp8Contraction, NoFp8Matmul>>, String> {
        let Contraction::Matmul(m) = contraction(a, b, out)? else { return Ok(None) };
        let ([rows, columns], [p, q], [r, s]) = (&m.shape[..], &m.left.reshape[..], &m.right.reshape[..])
        else {
            return Ok(Some(Err(NoFp8Matmul::Interleaved)));
        };
        if m.copy.is_some() || m.left.copy.is_some() || m.right.copy.is_some() {
            return Ok(Some(Err(NoFp8Matmul::Interleaved)));
        }
        let sizes = [*rows, *columns, m.summed];
        if !sizes.iter().all(|n| n.is_multiple_of(UNIT)) {
            return Ok(Some(Err(NoFp8Matmul::Extents(*rows, *columns, m.summed))));
        }
        // The library sums along the rows of both matrices.
        let turned = [m.left.permute.is_some(), m.right.permute.is_none()];
        let matrices = [[*p, *q], [*r, *s]];
        Ok(Some(Ok(Fp8Contraction { swapped: m.swapped, sizes, turned, matrices })))
    }
}

/// A step that rounds.
struct Rounding {
    step: usize,
    format: Fp8,
    value: Reg,
    inverse: Operand,
}

/// The roundings of a Plan by their results.
type Roundings = SortedMap<BufId, Rounding>;

impl Fp8Matmuls {
    /// Finds the matmuls of a device; `local` gives its block of an operand.
    ///
    /// # Errors
    /// If the Plan contradicts itself.
    pub fn of(
        uses: &DefUse<'_>,
        target: &Target,
        local: impl Fn(&Operand) -> Result<Local, String>,
    ) -> Result<Fp8Matmuls, String> {
        let roundings = roundings(uses);
        let mut found = Fp8Matmuls::default();
        if !target.blocks || roundings.is_empty() {
            return Ok(found);
        }
        let mut matmuls: SortedMap<usize, Fp8Contraction> = SortedMap::new();
        for (at, step) in uses.plan.steps.iter().enumerate() {
            let (Prim::Contract, [a, b], [out]) = (&step.prim, &step.reads[..], &step.writes[..]) else {
                continue;
            };
            let [Some(x), Some(y)] = [a, b].map(|o| source(uses, &roundings, o.buf)) else { continue };
            let locals = [local(a)?, local(b)?];
            let Some(shaped) = Fp8Contraction::of([&locals[0], &locals[1]], &local(out)?)? else { continue };
            match declined(uses, target, &roundings, at, [(a, x), (b, y)]).map_or(shaped, Err) {
                Ok(matmul) => drop(matmuls.insert(at, matmul)),
                Err(because) => drop(found.declined.insert(at, because)),
            }
        }
        agree(uses, &mut matmuls, &mut found.declined);
        matmuls.iter().for_each(|(at, matmul)| found.add(uses, &roundings, *at, matmul));
        Ok(found)
    }

    /// Adds the factors of a matmul in the order in which it reads them.
    fn add(&mut self, uses: &DefUse<'_>, roundings: &Roundings, at: usize, matmul: &Fp8Contraction) {
        for ((operand, turned), matrix) in
            matmul.operands().into_iter().zip(matmul.turned).zip(matmul.matrices)
        {
            let buf = uses.plan.steps[at].reads[operand].buf;
            let Some(rounding) = roundings.get(&buf) else { continue };
            let factor = self.factors.entry(buf).or_insert_with(|| rounding.factor(&uses.plan.steps));
            if turned || !factor.turned {
                factor.matrix = matrix;
            }
            (factor.plain, factor.turned) = (factor.plain || !turned, factor.turned || turned);
        }
    }
}

/// The reason why a matmul of factors that these steps round cannot be one of FP8 whatever its extents.
fn declined(
    uses: &DefUse<'_>,
    target: &Target,
    roundings: &Roundings,
    at: usize,
    factors: [(&Operand, &Rounding); 2],
) -> Option<NoFp8Matmul> {
    let moved = factors.iter().find(|(operand, rounding)| {
        !roundings.contains_key(&operand.buf) || !scale_lasts(uses, operand.buf, rounding)
    });
    match moved {
        _ if !target.epilogues => Some(NoFp8Matmul::Library),
        _ if !target.fp8 => Some(NoFp8Matmul::Capability),
        Some((operand, _)) => Some(NoFp8Matmul::Moved(name(uses, operand.buf, at))),
        None => factors.iter().all(|f| f.1.format == Fp8::E5M2).then_some(NoFp8Matmul::BothE5M2),
    }
}

/// Whether the scale of a factor can live as long as the factor: both end in one loop, or the scale later, and no value takes
/// its storage.
fn scale_lasts(uses: &DefUse<'_>, factor: BufId, rounding: &Rounding) -> bool {
    let scale = rounding.inverse.buf;
    let taken = uses.plan.steps.iter().any(|s| s.aliases.iter().any(|(from, _)| *from == scale));
    match (uses.end(scale), uses.end(factor)) {
        (None, _) => true,
        (Some(scale), Some(factor)) => !taken && (uses.is_beside(scale, factor) || scale >= factor),
        (Some(_), None) => false,
    }
}

/// Removes matmuls until each factor of the others has no consumer but them, and is one matrix for all.
fn agree(
    uses: &DefUse<'_>,
    matmuls: &mut SortedMap<usize, Fp8Contraction>,
    declined: &mut SortedMap<usize, NoFp8Matmul>,
) {
    loop {
        let one = |(at, matmul): (&usize, &Fp8Contraction)| {
            let reads = &uses.plan.steps[*at].reads;
            matmul.operands().into_iter().enumerate().find_map(|(side, operand)| {
                let buf = reads[operand].buf;
                let readers = uses.readers.get(&buf).into_iter().flatten();
                let other = |reader: &&usize| {
                    let Some(other) = matmuls.get(reader) else { return true };
                    let second = uses.plan.steps[**reader].reads[1].buf == buf;
                    let its = usize::from(second != other.swapped);
                    // A value has one transposed matrix.
                    let both = other.turned[its] && matmul.turned[side];
                    both && other.matrices[its] != matmul.matrices[side]
                };
                let reader = readers.clone().find(other).map(|reader| (*at, buf, *reader));
                reader.or_else(|| uses.leaves(buf).then_some((*at, buf, *at)))
            })
        };
        let Some((at, buf, reader)) = matmuls.iter().find_map(one) else { return };
        matmuls.remove(&at);
        let (factor, by) = (name(uses, buf, at), &uses.plan.steps[reader]);
        let reader = by.origin.first().map_or_else(String::new, |o| o.path.to_string());
        let because = match by.prim {
            Prim::IterationUpdate { .. } => NoFp8Matmul::Kept(factor),
            _ => NoFp8Matmul::OtherReader { factor, reader },
        };
        declined.insert(at, because);
    }
}

/// The name of the value that a step reads.
fn name(uses: &DefUse<'_>, buf: BufId, reader: usize) -> String {
    let by = uses.written_by(buf, reader).map(|by| &uses.plan.steps[by]);
    let origin = by.and_then(|step| {
        let at = step.writes.iter().position(|o| o.buf == buf)?;
        step.origin.get(at).or(step.origin.first())
    });
    origin.map_or_else(|| format!("buffer {}", buf.0), |o| o.path.to_string())
}

impl Rounding {
    fn factor(&self, steps: &[Step]) -> Fp8Factor {
        let step = &steps[self.step];
        let empty = Expr::default();
        let expr = if let Prim::Map { expr, .. } = &step.prim { expr } else { &empty };
        let (value, reads) = subexpression(expr, self.value, vec![], &step.reads);
        let (step, format, inverse) = (self.step, self.format, self.inverse.clone());
        Fp8Factor { step, format, value, reads, inverse, matrix: [1, 1], plain: false, turned: false }
    }
}

/// The steps that do nothing but round a value: `bf16(round(x) * inverse)`.
fn roundings(uses: &DefUse<'_>) -> Roundings {
    let of = |(at, step): (usize, &Step)| {
        let (Prim::Map { expr, regs }, [out]) = (&step.prim, &step.writes[..]) else { return None };
        let [reg] = &regs[..] else { return None };
        let node = |r: Reg| expr.nodes.get(usize::from(r)).map(|n| n.scalar);
        let Scalar::Cast(product) = node(*reg)? else { return None };
        let Scalar::Binary(BinaryFn::Mul, value, inverse) = node(product)? else { return None };
        let (Scalar::Unary(f, value), Scalar::Load(inverse)) = (node(value)?, node(inverse)?) else {
            return None;
        };
        let (format, inverse) = (f.rounds_to()?, step.reads.get(usize::from(inverse))?.clone());
        let is_number = inverse.dims.is_empty() && uses.plan.buffer(inverse.buf).dtype == DType::F32;
        is_number.then_some((out.buf, Rounding { step: at, format, value, inverse }))
    };
    uses.plan.steps.iter().enumerate().filter_map(of).collect()
}

/// The rounding of a value's elements, if all steps between only move them. A loop's carry is what the loop starts with, or what
/// it takes from one iteration to the next.
fn source<'r>(uses: &DefUse<'_>, roundings: &'r Roundings, buf: BufId) -> Option<&'r Rounding> {
    let (mut seen, mut open) = (SortedSet::from([buf]), vec![buf]);
    while let Some(buf) = open.pop().filter(|_| seen.len() < FARTHEST) {
        if let Some(rounding) = roundings.get(&buf) {
            return Some(rounding);
        }
        let Some(by) = uses.written_by(buf, usize::MAX) else { continue };
        let step = &uses.plan.steps[by];
        let at = step.writes.iter().position(|o| o.buf == buf)?;
        let same = |step: &'_ Step| step.reads.get(at).map(|o| o.buf);
        let from = match &step.prim {
            Prim::Repeat { .. } => {
                let end = uses.begins.iter().find(|(_, begin)| **begin == by);
                let next = end.and_then(|(end, _)| same(&uses.plan.steps[*end]));
                next.into_iter().chain(same(step)).collect()
            }
            Prim::EndRepeat | Prim::Receive { .. } => Vec::from_iter(same(step)),
            Prim::Collective(how) if !how.kind().folds() => Vec::from_iter(same(step)),
            Prim::IterationUpdate { .. } => vec![step.reads[1].buf],
            Prim::Copy | Prim::IterationSlice { .. } | Prim::SplitDim { .. } | Prim::MergeDims { .. } => {
                vec![step.reads[0].buf]
            }
            _ => vec![],
        };
        open.extend(from.into_iter().filter(|buf| seen.insert(*buf)));
    }
    None
}
