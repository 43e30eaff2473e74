//! Every monoid with devices that hold nothing: they must give its identity, not a zero.

use crate::devices::Devices;
use crate::split::law;
use crate::subject::Subject;
use meshwright_ops::family::SampleInput;
use meshwright_ops::{Graph, Id, OpError, Reduce, arg_extreme};
use meshwright_plan::{DType, Monoid};
use std::sync::Arc;

fn build(g: &mut Graph, monoid: Monoid, x: Id) -> Result<Id, OpError> {
    let dim = g.dims.find("few").unwrap();
    match monoid {
        Monoid::ArgMax | Monoid::ArgMin => Ok(arg_extreme(g, monoid, x, dim)),
        _ => g.add_op(Arc::new(Reduce { monoid, dims: vec![dim] }), &[x]),
    }
}

/// Elements for which a zero, a false or index 0 from a device without elements would show.
fn bounds(monoid: Monoid, dtype: DType) -> (f64, f64) {
    match (monoid, dtype) {
        (Monoid::And, _) => (1.0, 2.0),
        (Monoid::Or, _) => (0.0, 1.0),
        (Monoid::Max | Monoid::ArgMax, _) => (-9.0, -1.0),
        _ => (1.0, 9.0),
    }
}

#[test]
fn every_monoid_has_its_identity_where_nothing_is() {
    let (mut devices, mut cases) = (Devices::default(), 0);
    for monoid in Monoid::ALL {
        let dtypes = match monoid {
            Monoid::And | Monoid::Or => &[DType::Bool][..],
            _ => &[DType::F64, DType::I32],
        };
        for dtype in dtypes {
            // Over up to 4 and 2x3 devices: always some that hold nothing.
            for size in [1, 2, 3] {
                let (low, high) = bounds(monoid, *dtype);
                let dims = vec![("few", size), ("b", 2)];
                let subject = Subject {
                    name: format!("{monoid} of {dtype} over {size}"),
                    inputs: vec![SampleInput { dims, dtype: *dtype, low, high, range: None }],
                    build: Arc::new(move |g, x| build(g, monoid, x[0])),
                    differentiable: false,
                };
                cases += law(&subject, &mut devices, &|_| {}).unwrap();
            }
        }
    }
    crate::report(&format!("monoids x empty blocks: {cases} cases"));
}
