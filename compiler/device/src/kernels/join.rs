//! Joins of ranges along a dim.

use super::map::{MapCall, MapOperand};
use meshwright_plan::DType;
use meshwright_plan::expr::Expr;
use std::ops::Range;

/// A join of ranges along a dim.
#[derive(Clone, Debug)]
pub struct JoinCall {
    pub axis: usize,
    pub parts: Vec<JoinPart>,
}

/// What writes a part of the result from a position on: it copies a range of an input, or writes a number.
#[derive(Clone, Debug)]
pub struct JoinPart {
    pub map: MapCall,
    pub at: usize,
    pub from: Option<(usize, Range<usize>)>,
}

impl JoinCall {
    /// Of tensors of one dtype and shape but for the axis, each with its range and where that goes; `fill` is where none goes. None where
    /// there is no kernel for it.
    pub fn new(
        (shape, axis): (&[usize], usize),
        (dtype, fill): (DType, f64),
        sources: &[(Range<usize>, usize)],
    ) -> Option<JoinCall> {
        let part = |at: usize, many: usize, from: Option<(usize, Range<usize>)>| {
            let mut space: Vec<Range<usize>> = shape.iter().map(|size| 0..*size).collect();
            space[axis] = 0..many;
            let dims = (0..shape.len()).map(Some).collect();
            let (mut expr, mut operands, mut reg) = (Expr::default(), vec![], 0);
            match from {
                Some(_) => {
                    operands.push(MapOperand::Tensor { dtype, dims });
                    expr = Expr::of_operands([dtype]).0;
                }
                None => reg = expr.constant(fill, dtype),
            }
            let map = MapCall::new((&expr, &[reg]), &space, operands, vec![dtype])?;
            Some(JoinPart { map, at, from })
        };
        let (mut parts, mut next) = (vec![], 0);
        for (which, (range, at)) in sources.iter().enumerate() {
            if *at > next {
                parts.push(part(next, at - next, None)?);
            }
            parts.push(part(*at, range.len(), Some((which, range.clone())))?);
            next = at + range.len();
        }
        if next < shape[axis] {
            parts.push(part(next, shape[axis] - next, None)?);
        }
        Some(JoinCall { axis, parts })
    }
}
