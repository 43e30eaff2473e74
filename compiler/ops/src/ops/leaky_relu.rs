//! `leaky_relu(x)`: a relu that lets a part of negative values through.

use crate::family::{between, float};
use crate::{Call, Family, Form, Graph, Id, OpError, Sample, Value};
use meshwright_diag::codes;
use std::sync::Arc;

/// The part that goes through where none is given (Maas et al. 2013).
const SLOPE: f64 = 0.01;

const DOC: &str = "`leaky_relu(x)`: `x` above 0, else `0.01 x`; `leaky_relu(x, slope)`: else `slope x`, where the slope \
                   may be a tensor that is learned (He et al. 2015). The gradient at 0 is the slope.";

/// How they are written. They are a product and a choice, which become one step.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "leaky_relu",
        form: Form::Function(1),
        doc: DOC,
        build,
        samples: || vec![Sample::call("leaky_relu(x)", "leaky_relu", &[], vec![float(&[("a", 5), ("b", 3)])])],
    },
    Family {
        name: "leaky_relu",
        form: Form::Function(2),
        doc: DOC,
        build,
        samples: || {
            let slope = between(&[("b", 3)], 0.1, 0.5);
            vec![Sample::new("leaky_relu(x, slope)", vec![float(&[("a", 5), ("b", 3)]), slope], |g, x| {
                let args = [Value::Tensor(x[0]), Value::Tensor(x[1])];
                let float = g.ty(x[0]).dtype;
                build(g, &Call { name: "leaky_relu", args: &args, dims: &[], groups: &[], named: &[], float })
            })]
        },
    },
];

fn build(g: &mut Graph, c: &Call) -> Result<Id, OpError> {
    let slope = c.args.get(1).copied().unwrap_or(Value::Number(SLOPE));
    if let Value::Tensor(id) = c.args[0]
        && g.ty(id).dtype.is_int()
    {
        let text = format!("`leaky_relu` takes floats, not {}", g.ty(id).dtype);
        return Err(OpError::new(codes::E0202, text).operand(0).help("convert it: `cast(…, float)`"));
    }
    let args = [c.args[0], slope];
    let x = Call { args: &args, ..c.clone() }.unified(g, true)?;
    let zero = g.constant(0.0, g.ty(x[0]).dtype);
    let above = g.binary(">", x[0], zero);
    let below = g.product(&x);
    g.add_op(Arc::new(crate::Select), &[above, x[0], below])
}
