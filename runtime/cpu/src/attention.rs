//! Attention as one kernel: which dims are outer ones, rows, keys, and dims of an operand's own.

use super::kernel::KernelWork;
use super::kernels::{AttentionAccess, AttentionKernel, AttentionPlan, Slice};
use meshwright_device::LoweringError;
use meshwright_device::kernels::attention::space::AttentionSpace;
use meshwright_device::lowering::local::{DeviceContext, Local};
use meshwright_plan::{AttentionOperands, AttentionPart, AttentionSpec, Dim};

/// See [`meshwright_plan::Prim::Attention`].
pub(super) fn attention(
    context: &DeviceContext<'_>,
    spec: &AttentionSpec,
    parts: &[AttentionPart],
    reads: &[Local],
    writes: &[Local],
) -> Result<KernelWork, LoweringError> {
    let at = AttentionOperands::of(parts);
    if reads.len() != spec.operands(parts) || writes.len() != parts.len() {
        return Err(LoweringError::Plan("an attention of other operands than it says".into()));
    }
    context.check_aligned(&reads.iter().chain(writes).collect::<Vec<_>>(), &[])?;
    let (q, k, v) = (&reads[0], &reads[1], at.values.map(|v| &reads[v]));
    let has = |l: &Local, d: Dim| l.at(d).is_some();
    let of_values = v.or_else(|| parts.iter().position(|p| *p == AttentionPart::Value).map(|i| &writes[i]));
    let space = AttentionSpace::of(spec, k, of_values, reads)?;
    let access = |l: &Local, own: &[Dim]| AttentionAccess {
        dtype: Some(l.dtype),
        outer: space.outer().iter().map(|d| l.stride(*d)).collect(),
        rows: space.rows().iter().map(|d| l.stride(*d)).collect(),
        key: l.stride(spec.key),
        own: own.iter().filter_map(|d| Some((l.shape[l.at(*d)?], l.stride(*d)))).collect(),
    };
    let state = spec.state(parts);
    let own_of_read = |i: usize| -> &[Dim] {
        match i {
            0 | 1 => &spec.width,
            _ if state.is_some_and(|[_, _, values]| values == i) => &spec.values,
            _ if Some(i) == at.values || Some(i) == at.cotangent => &spec.values,
            _ => &[],
        }
    };
    let own_of_part = |p: AttentionPart| -> &[Dim] {
        match p {
            AttentionPart::Query | AttentionPart::Key => &spec.width,
            AttentionPart::Values | AttentionPart::Result | AttentionPart::Value => &spec.values,
            AttentionPart::Max | AttentionPart::Sum | AttentionPart::Bias => &[],
        }
    };
    let draws = spec.draws.iter().map(|drawn| space.draw(context, drawn, q));
    let kernel = AttentionKernel::new(AttentionPlan {
        dtype: q.dtype,
        parts: parts.to_vec(),
        outer: space
            .outer()
            .iter()
            .map(|d| (space.size(*d), has(q, *d) && has(k, *d) && of_values.is_none_or(|v| has(v, *d))))
            .collect(),
        rows: space.rows().iter().map(|d| space.size(*d)).collect(),
        keys: space.size(spec.key),
        reads: reads.iter().enumerate().map(|(i, l)| access(l, own_of_read(i))).collect(),
        writes: writes.iter().zip(parts).map(|(l, p)| access(l, own_of_part(*p))).collect(),
        starts: space.ranges.iter().map(|r| r.start).collect(),
        score: space.renumbered(&spec.score, spec),
        slope: space.renumbered(&spec.slope, spec),
        bias: spec.bias.as_ref().map(|bias| space.renumbered(&bias.slope, spec)),
        weight: spec.weight.as_ref().map(|w| space.renumbered(w, spec)),
        state,
        rounds: spec.rounds,
        draws: draws.collect::<Result<_, _>>()?,
    })?;
    Ok(KernelWork::new(move |args, outs| {
        let reads: Vec<Slice<'_>> = (0..args.len()).map(|i| args.read(i)).collect::<Result<_, _>>()?;
        kernel.run(&reads, outs, args.rng)
    }))
}
