//! Whether the dtypes of a step's operands and results go together.

use crate::expr::Scalar;
use crate::{DType, DTypes, HalfFloats, Monoid, Prim};

impl Prim {
    /// What is wrong with the dtypes of operands and results, in words; `None` where they go together. There are as many of
    /// both as the primitive takes; `dtype` gives that of one.
    pub fn dtype_fault<T>(&self, reads: &[T], writes: &[T], dtype: impl Fn(&T) -> DType) -> Option<String> {
        let spec = self.spec();
        let of = |t: DType| if spec.half == HalfFloats::Widened { t.wide() } else { t };
        let (mut given, mut taken) = (writes.iter().map(&dtype), reads.iter().map(&dtype));
        match spec.dtypes {
            DTypes::Any => None,
            DTypes::Same => alike(taken.chain(given).map(of)),
            DTypes::Mixed => alike(taken.chain(given).map(|t| t.wide())),
            DTypes::GivesPositions => given.find_map(positions),
            DTypes::Positions(at) => {
                let index = reads.get(at).map(&dtype).and_then(positions);
                let others = taken.enumerate().filter(|(i, _)| *i != at).map(|(_, t)| t);
                index.or_else(|| alike(others.chain(given).map(of)))
            }
            DTypes::Entries | DTypes::Scatters => {
                let sums = spec.dtypes == DTypes::Scatters;
                let value = taken.next().map(|t| if sums { t.wide() } else { t });
                taken.find_map(positions).or_else(|| alike(value.into_iter().chain(given)))
            }
            DTypes::Folds => {
                let folded = |t: DType| match spec.folds {
                    Some(Monoid::ArgMax | Monoid::ArgMin) if !t.is_pair() => t.pair(),
                    Some(Monoid::Sum | Monoid::Prod) => t.wide(),
                    _ => t,
                };
                alike(taken.map(folded).chain(given))
            }
            DTypes::Expression => self.expression_fault(|i| reads.get(i).map(&dtype), given),
        }
    }

    fn expression_fault(
        &self,
        read: impl Fn(usize) -> Option<DType>,
        given: impl Iterator<Item = DType>,
    ) -> Option<String> {
        let Prim::Map { expr, regs } = self else { return None };
        let loads = expr.nodes.iter().filter_map(|n| match n.scalar {
            Scalar::Load(i) => Some((n.dtype, read(usize::from(i)))),
            _ => None,
        });
        let results =
            regs.iter().zip(given).map(|(r, w)| (w, expr.nodes.get(usize::from(*r)).map(|n| n.dtype)));
        let fault = |(wanted, found): (DType, Option<DType>)| match found {
            Some(found) if found != wanted => Some(differ(wanted, found)),
            Some(_) => None,
            None => Some("reads or gives what is not there".into()),
        };
        loads.chain(results).find_map(fault)
    }
}

/// The first that is not as the one before it.
fn alike(mut all: impl Iterator<Item = DType>) -> Option<String> {
    let first = all.next()?;
    all.find(|t| *t != first).map(|t| differ(first, t))
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
        let fits = |prim: &Prim, reads: &[DType], writes: &[DType]| {
            prim.dtype_fault(reads, writes, |t| *t).is_none()
        };
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
