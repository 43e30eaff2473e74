//! Joins of ranges along a dim.

use super::call::KernelCall;
use super::map::{MapCall, MapOperand};
use super::result::ResultMemory;
use burn_ir::TensorIr;
use meshwright_plan::DType;
use meshwright_plan::expr::Expr;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A join of ranges along a dim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinCall {
    /// Index of the dim in the result.
    pub axis: usize,
    /// Parts of the result, which cover it.
    pub parts: Vec<JoinPart>,
}

/// Parts of the result that one map writes: copies of a range of an input, constants, or what is computed of several inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JoinPart {
    /// Kernel that writes them. It reads the inputs that follow those of the parts before it.
    pub map: MapCall,
    /// Position along the dim at which each result of the map begins.
    pub at: Vec<usize>,
    /// The range of its only input along the dim; none where inputs are read whole.
    pub range: Option<Range<usize>>,
}

impl KernelCall for JoinCall {
    const NAME: &'static str = "join";
    const BY_ELEMENTS: bool = true;

    fn result_memory(&self, results: &[TensorIr]) -> ResultMemory {
        ResultMemory::given(results, true)
    }
}

impl JoinCall {
    /// Describes a join to a result of `shape` and `dtype` along `axis`. A source is a range of an input and its position in the
    /// result; the rest of the result is `fill`. None if there is no kernel for it.
    pub fn new(
        (shape, axis): (&[usize], usize),
        (dtype, fill): (DType, f64),
        sources: &[(Range<usize>, usize)],
    ) -> Option<JoinCall> {
        let part = |at: usize, many: usize, range: Option<Range<usize>>| {
            let mut space: Vec<Range<usize>> = shape.iter().map(|size| 0..*size).collect();
            space[axis] = 0..many;
            let dims = (0..shape.len()).map(Some).collect();
            let (mut expr, mut operands, mut reg) = (Expr::default(), vec![], 0);
            match range {
                Some(_) => {
                    operands.push(MapOperand::Tensor { dtype, dims });
                    expr = Expr::of_operands([dtype]).0;
                }
                None => reg = expr.constant(fill, dtype),
            }
            let map = MapCall::new((&expr, &[reg]), &space, operands, vec![dtype])?;
            Some(JoinPart { map, at: vec![at], range })
        };
        let (mut parts, mut next) = (vec![], 0);
        for (range, at) in sources {
            if *at > next {
                parts.push(part(next, at - next, None)?);
            }
            parts.push(part(*at, range.len(), Some(range.clone()))?);
            next = at + range.len();
        }
        if next < shape[axis] {
            parts.push(part(next, shape[axis] - next, None)?);
        }
        Some(JoinCall { axis, parts })
    }
}
