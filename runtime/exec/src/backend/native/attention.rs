//! Attention as one kernel: which dims are outer ones, rows, keys, and dims of an operand's own.

use super::kernel::KernelWork;
use super::kernels::{AttentionAccess, AttentionKernel, AttentionPlan, RandomKernel, Slice};
use crate::engine::context::{DeviceContext, Local};
use crate::engine::lowering::LoweringError;
use meshwright_plan::expr::Scalar;
use meshwright_plan::{AttentionOperands, AttentionPart, AttentionSpec, Computed, DType, Dim, Drawn};
use std::ops::Range;

/// See [`meshwright_plan::Prim::Attention`].
pub(super) fn attention(
    context: &DeviceContext<'_>,
    spec: &AttentionSpec,
    parts: &[AttentionPart],
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let at = AttentionOperands::of(parts);
    if reads.len() != at.extras + spec.extras || writes.len() != parts.len() {
        return Err(LoweringError::Plan("an attention of other operands than it says".into()));
    }
    context.check_aligned(&reads.iter().chain(writes).collect::<Vec<_>>(), &[])?;
    let (q, k, v) = (&reads[0], &reads[1], at.values.map(|v| &reads[v]));
    let has = |l: &Local, d: Dim| l.at(d).is_some();
    let of_values = v.or_else(|| parts.iter().position(|p| *p == AttentionPart::Value).map(|i| &writes[i]));
    let beside = |d: &Dim| has(k, *d) || of_values.is_some_and(|v| has(v, *d));
    let dims: Vec<Dim> = spec.space.iter().copied().filter(|d| *d != spec.key).collect();
    let (outer, rows): (Vec<Dim>, Vec<Dim>) = dims.into_iter().partition(beside);
    let order: Vec<Dim> = [outer.as_slice(), &rows, &[spec.key]].concat();
    let found = |d: &Dim| reads.iter().find_map(|l| l.range(*d).ok().cloned());
    let ranges: Vec<_> = order
        .iter()
        .map(|d| found(d).ok_or_else(|| LoweringError::Plan(format!("no operand has the dim {}", d.0))))
        .collect::<Result<_, _>>()?;
    let size = |d: &Dim| order.iter().position(|o| o == d).map_or(1, |i| ranges[i].len());
    let access = |l: &Local, own: &[Dim]| AttentionAccess {
        dtype: Some(l.dtype),
        outer: outer.iter().map(|d| l.stride(*d)).collect(),
        rows: rows.iter().map(|d| l.stride(*d)).collect(),
        key: l.stride(spec.key),
        own: own.iter().filter_map(|d| Some((l.shape[l.at(*d)?], l.stride(*d)))).collect(),
    };
    let own_of_read = |i: usize| -> &[Dim] {
        match i {
            0 | 1 => &spec.width,
            _ if Some(i) == at.values || Some(i) == at.cotangent => &spec.values,
            _ => &[],
        }
    };
    let own_of_part = |p: AttentionPart| -> &[Dim] {
        match p {
            AttentionPart::Query | AttentionPart::Key => &spec.width,
            AttentionPart::Values | AttentionPart::Value => &spec.values,
            AttentionPart::Max | AttentionPart::Sum => &[],
        }
    };
    let place = |d: &Dim| order.iter().position(|o| o == d).unwrap_or(0);
    let draws = spec.draws.iter().map(|drawn| draw(context, drawn, &order, &ranges, q));
    let kernel = AttentionKernel::new(AttentionPlan {
        dtype: q.dtype,
        parts: parts.to_vec(),
        outer: outer
            .iter()
            .map(|d| (size(d), has(q, *d) && has(k, *d) && of_values.is_none_or(|v| has(v, *d))))
            .collect(),
        rows: rows.iter().map(size).collect(),
        keys: size(&spec.key),
        reads: reads.iter().enumerate().map(|(i, l)| access(l, own_of_read(i))).collect(),
        writes: writes.iter().zip(parts).map(|(l, p)| access(l, own_of_part(*p))).collect(),
        starts: ranges.iter().map(|r| r.start).collect(),
        score: renumbered(&spec.score, spec, &place),
        slope: renumbered(&spec.slope, spec, &place),
        weight: spec.weight.as_ref().map(|w| renumbered(w, spec, &place)),
        draws: draws.collect::<Result<_, _>>()?,
    })?;
    Ok(KernelWork::new(vec![], move |args, outs| {
        let reads: Vec<Slice<'_>> = (0..args.len()).map(|i| args.read(i)).collect::<Result<_, _>>()?;
        kernel.run(&reads, outs, args.rng)
    }))
}

/// An expression whose indices count the dims in the order of the kernel.
fn renumbered(of: &Computed, spec: &AttentionSpec, place: &dyn Fn(&Dim) -> usize) -> Computed {
    let mut of = of.clone();
    for n in &mut of.expr.nodes {
        if let Scalar::Index(k) = &mut n.scalar
            && let Some(dim) = spec.space.get(usize::from(*k))
        {
            *k = place(dim) as u16;
        }
    }
    of
}

/// What is drawn, and which dim of the kernel each of its dims is.
fn draw(
    context: &DeviceContext<'_>,
    drawn: &Drawn,
    order: &[Dim],
    ranges: &[Range<usize>],
    like: &Local,
) -> Result<(RandomKernel, Vec<usize>), LoweringError> {
    let places: Vec<usize> =
        drawn.dims.iter().map(|d| order.iter().position(|o| o == d).unwrap_or(0)).collect();
    let ranges: Vec<Range<usize>> = places.iter().map(|i| ranges[*i].clone()).collect();
    let shape = ranges.iter().map(ExactSizeIterator::len).collect();
    let whole = Local { dims: drawn.dims.clone(), ranges: ranges.clone(), shape, ..like.clone() };
    let sizes = context.plan.dims.shape(&drawn.dims);
    let random = RandomKernel::new(&drawn.stream, drawn.distribution, DType::Bool, &sizes, &ranges)?
        .of_examples(context.examples_of(&whole))
        .in_parts(context.parts_of(&whole));
    Ok((random, places))
}
