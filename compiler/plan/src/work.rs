//! What follows for a step from the row of its primitive: arity, donation, operations and bytes.

use crate::expr::Scalar;
use crate::{
    AttentionPart, AttentionSpec, BufId, Collective, DType, DeviceBlocks, Dim, Donation, Expr, Operand, Part,
    Plan, Prim, SlidingWindow, Step, Work,
};

/// A Plan and a device of it.
type OnDevice<'a> = (&'a Plan, &'a DeviceBlocks<'a>);

impl Step {
    /// Whether it has as many operands and results as its primitive takes and gives.
    pub fn fits(&self) -> bool {
        let spec = self.prim.spec();
        let paired = spec.donation != Donation::Paired || self.reads.len() == self.writes.len();
        let attributes = match &self.prim {
            Prim::Map { regs, .. } => regs.len() == self.writes.len() && !regs.is_empty(),
            Prim::Lookup { dims } | Prim::ScatterAdd { dims } => self.reads.len() == dims.len() + 1,
            Prim::Concat { parts, .. } => parts.len() == self.reads.len(),
            Prim::Attention { spec, parts } => {
                self.reads.len() == spec.operands(parts) && self.writes.len() == parts.len()
            }
            Prim::Collective(c) => c.takes(self.reads.len()) && self.reads.len() == self.writes.len(),
            _ => true,
        };
        spec.reads.takes(self.reads.len()) && spec.writes.takes(self.writes.len()) && paired && attributes
    }

    /// Whether it may write `to` into the storage of `from`, if shape and dtype are the same.
    pub fn may_donate(&self, from: BufId, to: BufId) -> bool {
        let mut read = self.reads.iter().enumerate().filter(|(_, o)| o.buf == from);
        let written = self.writes.iter().enumerate().find(|(_, o)| o.buf == to);
        let (Some((i, first)), Some((k, out))) = (read.next(), written) else { return false };
        let aligned = first.dims == out.dims;
        match self.prim.spec().donation {
            Donation::Never => false,
            Donation::Aligned => aligned && read.all(|(_, o)| o.dims == out.dims),
            Donation::First => aligned && i == 0 && read.next().is_none(),
            Donation::Paired => aligned && i == k && read.next().is_none(),
        }
    }

    /// Floating-point operations of the device with the largest shards.
    pub fn flops(&self, plan: &Plan) -> u64 {
        self.flops_on(plan, &DeviceBlocks::largest(plan))
    }

    /// Floating-point operations of a device.
    pub fn flops_on(&self, plan: &Plan, on: &DeviceBlocks<'_>) -> u64 {
        let elements = |o: Option<&Operand>| o.map_or(0, |o| on.elements(plan.buffer(o.buf)) as u64);
        let (input, output) = (self.reads.first(), self.writes.first());
        let taps = || self.prim.windows().iter().map(|w| plan.dims.size(w.tap) as u64).product::<u64>();
        match self.prim.spec().work {
            Work::Moves => 0,
            Work::Input(each) => each * elements(input),
            Work::Output(each) => each * elements(output),
            Work::Space(each) => each * self.space((plan, on), &|_| true),
            Work::Expression => match &self.prim {
                Prim::Map { expr, .. } => operations(expr) * elements(output),
                _ => 0,
            },
            Work::Attention => match &self.prim {
                Prim::Attention { spec, parts } => self.attention((plan, on), spec, parts),
                _ => 0,
            },
            Work::TapsOfInput => taps() * elements(input),
            Work::TapsOfOutput => taps() * elements(output),
            Work::Taps => match &self.prim {
                Prim::Convolve { windows, computes } => self.convolution((plan, on), windows, *computes),
                _ => 0,
            },
        }
    }

    /// Of a convolution: the positions that a device has are those of the result, or of the input whose gradient it computes; of
    /// the other one it may have a halo.
    fn convolution(&self, at: OnDevice<'_>, windows: &[SlidingWindow], computes: Part) -> u64 {
        let Ok(([a, b], [out])) = self.operands::<2, 1>() else { return 0 };
        let [input, _, result] = computes.arrange([a, b], out);
        let slides = |d: Dim| windows.iter().any(|w| [w.wide, w.narrow, w.tap].contains(&d));
        let along = windows.iter().map(|w| {
            let taps = at.0.dims.size(w.tap) as u64;
            match computes {
                // A gradient of the input visits as many pairs as there are elements, taken every stride.
                Part::Input => (len(at, input, w.wide) * taps).div_ceil(w.stride as u64),
                Part::Kernel | Part::Result => len(at, result, w.narrow) * taps,
            }
        });
        2 * self.space(at, &|d| !slides(d)) * along.product::<u64>()
    }

    fn attention(&self, at: OnDevice<'_>, spec: &AttentionSpec, parts: &[AttentionPart]) -> u64 {
        let pairs = self.space(at, &|d| spec.space.contains(&d));
        let width = self.space(at, &|d| spec.width.contains(&d));
        let values = self.space(at, &|d| spec.values.contains(&d));
        parts.iter().map(|p| pairs.saturating_mul(p.flops(width, values))).sum()
    }

    /// Bytes of memory that the device with the largest shards reads and writes. Of a table that is looked up, the entries that
    /// are read.
    pub fn memory_bytes(&self, plan: &Plan) -> u64 {
        let bytes = |o: &Operand| plan.buffer(o.buf).largest_bytes(&plan.mesh) as u64;
        match &self.prim {
            Prim::Wait | Prim::Repeat { .. } | Prim::EndRepeat => 0,
            Prim::IterationSlice { .. } => 2 * self.writes.iter().map(bytes).sum::<u64>(),
            // The first operand is written where it lies.
            Prim::IterationUpdate { .. } | Prim::DynamicUpdateSlice { .. } => {
                2 * self.reads.iter().skip(1).map(bytes).sum::<u64>()
            }
            Prim::Lookup { .. } => {
                self.reads.iter().skip(1).map(bytes).sum::<u64>()
                    + 2 * self.writes.iter().map(bytes).sum::<u64>()
            }
            _ => self.all().map(bytes).sum(),
        }
    }

    /// For each part of a collective the bytes of one device's buffer (the greatest): what goes in, of an all-gather what
    /// comes out, of a permute what comes from others. Nothing of other steps.
    pub fn collective_bytes(&self, plan: &Plan) -> Vec<usize> {
        let Some(c) = self.collective() else { return Vec::new() };
        self.reads.iter().zip(&self.writes).map(|(from, to)| c.bytes(plan, from, to)).collect()
    }

    /// Elements of a dim on a device.
    fn local(&self, at: OnDevice<'_>, dim: Dim) -> u64 {
        self.all().find(|o| o.dims.contains(&dim)).map_or(1, |o| len(at, o, dim))
    }

    /// Positions of all dims that `counts`.
    fn space(&self, at: OnDevice<'_>, counts: &dyn Fn(Dim) -> bool) -> u64 {
        let mut dims: Vec<Dim> = self.all().flat_map(|o| o.dims.iter().copied()).collect();
        dims.sort();
        dims.dedup();
        dims.into_iter().filter(|d| counts(*d)).map(|d| self.local(at, d)).product()
    }
}

/// Elements of an operand's dim on a device.
fn len((plan, on): OnDevice<'_>, of: &Operand, dim: Dim) -> u64 {
    let extents = &plan.buffer(of.buf).extents;
    let extent = of.dims.iter().position(|d| *d == dim).and_then(|at| extents.get(at));
    extent.map_or(1, |e| on.len(e) as u64)
}

impl Collective {
    /// The bytes of one device's buffer (the greatest): what goes in, of an all-gather what comes out, of a permute what
    /// comes from others.
    pub fn bytes(&self, plan: &Plan, from: &Operand, to: &Operand) -> usize {
        let c = self.spec();
        let Some((dim, window)) = c.window else {
            let grows = !c.join.is_empty() && c.split.is_empty();
            return plan.buffer(if grows { to } else { from }.buf).largest_bytes(&plan.mesh);
        };
        let buffer = plan.buffer(to.buf);
        let along = to.dims.iter().zip(&buffer.extents);
        let elements = along.map(|(d, e)| match *d == dim {
            true => window.missing(e.size, c.axes, &plan.mesh),
            false => e.largest(&plan.mesh),
        });
        elements.product::<usize>() * buffer.dtype.bytes()
    }
}

/// Floating-point operations of an expression at one position.
fn operations(expr: &Expr) -> u64 {
    let computes = |s: &Scalar| matches!(s, Scalar::Unary(..) | Scalar::Binary(..) | Scalar::Select(..));
    expr.nodes.iter().filter(|n| computes(&n.scalar) && n.dtype != DType::Bool).count() as u64
}
