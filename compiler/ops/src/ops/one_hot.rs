//! `one_hot[d](index)`: 1 at the position that an index names, else 0; or two other values.

use crate::family::{float, index_of};
use crate::signature::{Argument, DIM, DimGroup, Of};
use crate::{Family, Graph, Id, OpCall, OpError, Sample, Signature, Value};
use meshwright_diag::codes;
use meshwright_plan::DType;
use std::sync::Arc;

/// How it is written. It is a comparison with the position along the dim, so it can be made anywhere.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "one_hot",
    signature: Signature {
        operands: &[Argument::once("i"), Argument::optional("on"), Argument::optional("off")],
        ..Signature::over(&[DimGroup { of: Of::Other, ..DIM }])
    },
    doc: "`one_hot[d](i)`: 1 along `d` at the position `i`, an `i32 in d`, else 0; of the program's arithmetic type. \
          `one_hot[d](i, on, off)`: `on` there, else `off`, numbers or tensors; `off` is 0 unless it is given.",
    build,
    samples: || {
        let at = || index_of(&[("a", 5)], ("v", 7));
        vec![
            Sample::call("one_hot", "one_hot", &["v"], vec![at()]).flat(),
            Sample::call("tensors", "one_hot", &["v"], vec![at(), float(&[("a", 5)]), float(&[("v", 7)])]),
            Sample::new("numbers", vec![at()], |g, x| {
                let args = vec![Value::Tensor(x[0]), Value::Number(0.9), Value::Number(-0.1)];
                let dims: Vec<_> = g.dims.find("v").into_iter().collect();
                build(g, &OpCall::of(args, DType::F64).over(&dims))
            })
            .flat(),
        ]
    },
}];

fn build(g: &mut Graph, c: &OpCall) -> Result<Id, OpError> {
    let (i, dim) = (c.tensor(g, 0), c.dim());
    let t = g.ty(i).clone();
    let name = g.dims.name(dim).to_string();
    if t.dtype != DType::I32 || t.range != Some(dim) || t.has(dim) {
        return Err(OpError::new(
            codes::E0205,
            format!("`one_hot[{name}]` takes an `i32 in {name}` without that dim, not {}", t.dtype),
        )
        .operand(0)
        .help(format!("declare it `i32 in {name}`")));
    }
    let here = g.index(dim);
    let hit = g.binary("==", i, here);
    if c.args.len() == 1 {
        return Ok(g.cast(hit, c.float));
    }
    let off = c.args.get(2).copied().unwrap_or(Value::Number(0.0));
    let values = c.unify(g, &[c.args[1], off], true)?;
    g.add_op(Arc::new(crate::Select), &[hit, values[0], values[1]])
}
