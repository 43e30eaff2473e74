//! `leaky_relu(x)`: a relu that lets a part of negative values through.

use crate::family::{between, float};
use crate::signature::Argument;
use crate::{Family, Graph, Id, OpCall, OpError, Sample, Signature, Value};
use meshwright_diag::codes;
use std::sync::Arc;

/// The part that goes through where none is given (Maas et al. 2013).
const SLOPE: f64 = 0.01;

/// How it is written. It is a product and a choice, which become one step.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "leaky_relu",
    signature: Signature::named(&[Argument::once("x"), Argument::optional("slope")]),
    doc: "`leaky_relu(x)`: `x` above 0, else `0.01 x`; `leaky_relu(x, slope)`: else `slope x`, where the slope may be a \
          tensor that is learned (He et al. 2015). The gradient at 0 is the slope.",
    build,
    samples: || {
        let x = || float(&[("a", 5), ("b", 3)]);
        vec![
            Sample::call("leaky_relu(x)", "leaky_relu", &[], vec![x()]),
            Sample::call(
                "leaky_relu(x, slope)",
                "leaky_relu",
                &[],
                vec![x(), between(&[("b", 3)], 0.1, 0.5)],
            ),
        ]
    },
}];

fn build(g: &mut Graph, c: &OpCall) -> Result<Id, OpError> {
    let slope = c.args.get(1).copied().unwrap_or(Value::Number(SLOPE));
    if let Value::Tensor(id) = c.args[0]
        && g.ty(id).dtype.is_int()
    {
        let text = format!("`leaky_relu` takes floats, not {}", g.ty(id).dtype);
        return Err(OpError::new(codes::E0202, text).operand(0).help("convert it: `cast(…, float)`"));
    }
    let x = c.unify(g, &[c.args[0], slope], true)?;
    let zero = g.constant(0.0, g.ty(x[0]).dtype);
    let above = g.binary(">", x[0], zero);
    let below = g.product(&x);
    g.add_op(Arc::new(crate::Select), &[above, x[0], below])
}
