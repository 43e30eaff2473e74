//! Partial results: over which axes each device holds only a part of what a step writes, which a collective has yet to fold.

use crate::expr::{BinaryFn, Expr, Reg, Scalar, UnaryFn};
use crate::{Axis, Linear, Monoid, Operand, PartialAxes, Plan, Prim, Step};
use meshwright_sorted::{SortedMap, SortedSet};

impl Step {
    /// For each result the axes over which it is partial: those over which the operands are, and those of the split dims that the
    /// step folds. Only sums travel through steps that compute, and only where the primitive is linear; what only moves elements
    /// takes parts of any monoid along, and so does a fold by the same monoid.
    ///
    /// # Errors
    /// What is wrong, in words: something else than a sum travels, the primitive is not linear, or a split dim is lost.
    /// What a collective does to it says [`crate::Collective::apply`].
    pub fn partial(&self, plan: &Plan) -> Result<Vec<PartialAxes>, String> {
        match &self.prim {
            Prim::Map { expr, regs } => self.of_expression(plan, expr, regs),
            // A carry is on both sides of a boundary what it is, and zeros are whatever they are said to be.
            Prim::Repeat { axes, .. } | Prim::Receive { axes, .. } => {
                // In the body of a loop that is split, a device has its own part of a sum.
                let own = |o: &Operand| {
                    let mut partial = plan.buffer(o.buf).partial.clone();
                    partial.retain(|a, _| !axes.contains(a));
                    partial
                };
                Ok(self.reads.iter().map(own).collect())
            }
            // What it makes of sums depends on the loop that it ends.
            Prim::Blank { .. } | Prim::EndRepeat => {
                Ok(self.writes.iter().map(|o| plan.buffer(o.buf).partial.clone()).collect())
            }
            _ => self.writes.iter().map(|out| self.of_operands(plan, out)).collect(),
        }
    }

    fn of_operands(&self, plan: &Plan, out: &Operand) -> Result<PartialAxes, String> {
        let spec = self.prim.spec();
        // A loop runs the iterations of the positions that the device has.
        let own: &[Axis] = match (&self.prim, self.reads.first().map(|all| plan.buffer(all.buf))) {
            (Prim::IterationSlice { .. }, Some(all)) => all.extents.first().map_or(&[], |e| &e.axes),
            _ => &[],
        };
        let kept = |a: Axis| plan.buffer(out.buf).is_split_over(a);
        let mut partial = PartialAxes::new();
        for from in &self.reads {
            for a in plan.buffer(from.buf).split_axes().filter(|a| !kept(*a) && !own.contains(a)) {
                let Some(monoid) = spec.folds else {
                    return Err(format!("loses a dim that is split over `{}`", plan.mesh.name(a)));
                };
                partial.insert(a, monoid);
            }
        }
        if spec.linear == Linear::Moved {
            for (a, monoid) in
                self.reads.iter().flat_map(|o| &plan.buffer(o.buf).partial).map(|(a, m)| (*a, *m))
            {
                if kept(a) || partial.insert(a, monoid).is_some() {
                    return Err(format!("splits over `{}` what is partial over it", plan.mesh.name(a)));
                }
            }
            return Ok(partial);
        }
        if let (Prim::Reduce { monoid }, [from]) = (&self.prim, &self.reads[..])
            && plan.buffer(from.buf).partial.values().all(|m| m == monoid)
        {
            // A fold of parts, which the same fold finishes, is a part.
            let more = plan.buffer(from.buf).partial.iter().map(|(a, m)| (*a, *m));
            for (a, monoid) in more {
                if kept(a) || partial.insert(a, monoid).is_some() {
                    return Err(format!("splits over `{}` what is partial over it", plan.mesh.name(a)));
                }
            }
            return Ok(partial);
        }
        for (a, open) in self.open(plan)? {
            let linear = match spec.linear {
                Linear::Never | Linear::Expression | Linear::Moved => false,
                Linear::Alone(positions) => open.len() == 1 && open.iter().all(|i| positions.contains(i)),
                Linear::Jointly => open.len() == self.reads.len(),
            };
            let name = plan.mesh.name(a);
            if !linear {
                return Err(format!("is not linear in what is partial over `{name}`"));
            }
            if kept(a) || partial.insert(a, Monoid::Sum).is_some() {
                return Err(format!("splits over `{name}` what is partial over it"));
            }
        }
        Ok(partial)
    }

    /// For each axis over which operands are partial their positions.
    fn open(&self, plan: &Plan) -> Result<SortedMap<Axis, SortedSet<usize>>, String> {
        let mut open: SortedMap<Axis, SortedSet<usize>> = SortedMap::new();
        for (i, o) in self.reads.iter().enumerate() {
            for (a, monoid) in &plan.buffer(o.buf).partial {
                if *monoid != Monoid::Sum {
                    return Err(format!("reads a {monoid} that is partial over `{}`", plan.mesh.name(*a)));
                }
                open.entry(*a).or_default().insert(i);
            }
        }
        Ok(open)
    }

    fn of_expression(&self, plan: &Plan, expr: &Expr, regs: &[Reg]) -> Result<Vec<PartialAxes>, String> {
        let mut partial = vec![PartialAxes::new(); regs.len()];
        for (a, open) in self.open(plan)? {
            let name = plan.mesh.name(a);
            if self.writes.iter().any(|o| plan.buffer(o.buf).is_split_over(a)) {
                return Err(format!("splits over `{name}` what is partial over it"));
            }
            let forms = forms(expr, &open);
            for (reg, p) in regs.iter().zip(&mut partial) {
                match forms.get(usize::from(*reg)) {
                    Some(Form::Part) => {
                        p.insert(a, Monoid::Sum);
                    }
                    Some(Form::Whole | Form::Zero) => {}
                    Some(Form::Neither) | None => {
                        return Err(format!("is not linear in what is partial over `{name}`"));
                    }
                }
            }
        }
        Ok(partial)
    }
}

/// What a register of an expression holds on each device of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The value.
    Whole,
    /// 0, which is also a part of 0.
    Zero,
    /// A part of the value: their sum is the value.
    Part,
    /// What is not linear in parts.
    Neither,
}

/// The form of each register where the operands in `open` are partial sums.
fn forms(expr: &Expr, open: &SortedSet<usize>) -> Vec<Form> {
    use Form::{Neither, Part, Whole, Zero};
    let mut known: Vec<Form> = Vec::with_capacity(expr.nodes.len());
    for node in &expr.nodes {
        let of = |r: Reg| known.get(usize::from(r)).copied().unwrap_or(Neither);
        // A sum of two, or one of two.
        let both = |a: Form, b: Form| match (a, b) {
            (Neither, _) | (_, Neither) | (Part, Whole) | (Whole, Part) => Neither,
            (Part, _) | (_, Part) => Part,
            (Zero, Zero) => Zero,
            _ => Whole,
        };
        known.push(match node.scalar {
            Scalar::Load(i) if open.contains(&usize::from(i)) => Part,
            Scalar::Const(0.0) => Zero,
            Scalar::Load(_) | Scalar::Const(_) | Scalar::Index(_) => Whole,
            Scalar::Unary(UnaryFn::Neg, a) => of(a),
            Scalar::Cast(a) if node.dtype.is_float() && expr.dtype(a).is_float() => of(a),
            Scalar::Binary(BinaryFn::Add | BinaryFn::Sub, a, b) => both(of(a), of(b)),
            Scalar::Binary(BinaryFn::Mul, a, b) => match (of(a), of(b)) {
                (Part, Whole | Zero) | (Whole | Zero, Part) => Part,
                (Whole | Zero, Whole | Zero) => Whole,
                _ => Neither,
            },
            Scalar::Binary(BinaryFn::Div, a, b) if of(a) == Part && of(b) == Whole => Part,
            Scalar::Select(c, a, b) if matches!(of(c), Whole | Zero) => both(of(a), of(b)),
            other => match other.reads().into_iter().all(|r| matches!(of(r), Whole | Zero)) {
                true => Whole,
                false => Neither,
            },
        });
    }
    known
}
