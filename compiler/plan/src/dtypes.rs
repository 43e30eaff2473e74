//! Whether the dtypes of a step's operands and results go together.

use crate::expr::Scalar;
use crate::{DType, DTypes, HalfFloats, Monoid, Prim};

impl Prim {
    /// What is wrong with the dtypes of operands and results, in words; `None` where they go together. There are as many of
    /// both as the primitive takes.
    pub fn dtype_fault(&self, reads: &[DType], writes: &[DType]) -> Option<String> {
        let spec = self.spec();
        let of = |t: &DType| if spec.half == HalfFloats::Widened { t.wide() } else { *t };
        let one = |all: Vec<DType>| all.windows(2).find(|w| w[0] != w[1]).map(|w| differ(w[0], w[1]));
        let all = reads.iter().chain(writes);
        match spec.dtypes {
            DTypes::Any => None,
            DTypes::Same => one(all.map(of).collect()),
            DTypes::Mixed => one(all.map(|t| t.wide()).collect()),
            DTypes::GivesPositions => writes.iter().find_map(|t| positions(*t)),
            DTypes::Positions(at) => {
                let index = reads.get(at).and_then(|t| positions(*t));
                let others = reads.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, t)| t);
                index.or_else(|| one(others.chain(writes).map(of).collect()))
            }
            DTypes::Entries | DTypes::Scatters => {
                let sums = spec.dtypes == DTypes::Scatters;
                let value = reads.iter().take(1).map(|t| if sums { t.wide() } else { *t });
                let index = reads.iter().skip(1).find_map(|t| positions(*t));
                index.or_else(|| one(value.chain(writes.iter().copied()).collect()))
            }
            DTypes::Folds => {
                let folded = |t: &DType| match spec.folds {
                    Some(Monoid::ArgMax | Monoid::ArgMin) if !t.is_pair() => t.pair(),
                    Some(Monoid::Sum | Monoid::Prod) => t.wide(),
                    _ => *t,
                };
                one(reads.iter().map(folded).chain(writes.iter().copied()).collect())
            }
            DTypes::Expression => self.expression_fault(reads, writes),
        }
    }

    fn expression_fault(&self, reads: &[DType], writes: &[DType]) -> Option<String> {
        let Prim::Map { expr, regs } = self else { return None };
        let loads = expr.nodes.iter().filter_map(|n| match n.scalar {
            Scalar::Load(i) => Some((n.dtype, reads.get(usize::from(i)).copied())),
            _ => None,
        });
        let results =
            regs.iter().zip(writes).map(|(r, w)| (*w, expr.nodes.get(usize::from(*r)).map(|n| n.dtype)));
        let fault = |(wanted, found): (DType, Option<DType>)| match found {
            Some(found) if found != wanted => Some(differ(wanted, found)),
            Some(_) => None,
            None => Some("reads or gives what is not there".into()),
        };
        loads.chain(results).find_map(fault)
    }
}

fn positions(t: DType) -> Option<String> {
    (t != DType::I32).then(|| differ(DType::I32, t))
}

fn differ(wanted: DType, found: DType) -> String {
    format!("an operand or a result of {found} where {wanted} is needed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::UnaryFn;
    use crate::{Dim, Expr};
    use DType::{BF16, F32, I32, PairF32};

    #[test]
    fn dtypes_go_together_or_not() {
        let fits = |prim: &Prim, reads: &[DType], writes: &[DType]| prim.dtype_fault(reads, writes).is_none();
        let lookup = Prim::Lookup { dims: vec![Dim(0)] };
        assert!(fits(&lookup, &[BF16, I32], &[BF16]));
        assert!(!fits(&lookup, &[BF16, I32], &[F32]) && !fits(&lookup, &[F32, F32], &[F32]));
        let scatter = Prim::ScatterAdd { dims: vec![Dim(0)] };
        assert!(fits(&scatter, &[BF16, I32], &[F32]) && !fits(&scatter, &[BF16, I32], &[BF16]));
        let reduce = |monoid| Prim::Reduce { monoid };
        assert!(fits(&reduce(Monoid::Sum), &[BF16], &[F32]) && fits(&reduce(Monoid::Max), &[BF16], &[BF16]));
        assert!(
            fits(&reduce(Monoid::ArgMax), &[BF16], &[PairF32])
                && !fits(&reduce(Monoid::Max), &[BF16], &[F32])
        );
        assert!(fits(&Prim::Contract, &[BF16, F32], &[F32]) && !fits(&Prim::Contract, &[F32, I32], &[F32]));
        let softmax = Prim::Softmax { dim: Dim(0), log: false };
        assert!(fits(&softmax, &[BF16], &[F32]) && !fits(&softmax, &[I32], &[F32]));
        assert!(fits(&Prim::Copy, &[I32], &[I32]) && !fits(&Prim::Copy, &[BF16], &[F32]));
        let (mut expr, regs) = Expr::of_operands([F32]);
        let reg = expr.unary(UnaryFn::Neg, regs[0]);
        let map = Prim::Map { expr, regs: vec![reg] };
        assert!(fits(&map, &[F32], &[F32]) && !fits(&map, &[BF16], &[F32]) && !fits(&map, &[F32], &[BF16]));
    }
}
