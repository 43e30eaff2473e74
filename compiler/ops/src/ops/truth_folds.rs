//! Whether all truth values along dims are true, and whether any is.

use crate::family::truth;
use crate::signature::DIMS;
use crate::{Family, Graph, Id, OpCall, OpError, Reduce, Sample, Signature};
use meshwright_plan::Monoid;
use std::sync::Arc;

/// How they are written.
pub(crate) static FAMILY: &[Family] = &[
    Family {
        name: "all",
        signature: Signature::over(&[DIMS]),
        doc: "`all[d, e](x)`: whether all truth values along dims are true; of none, true.",
        build: |g, c| build(g, c, Monoid::And),
        samples: || samples("all"),
    },
    Family {
        name: "any",
        signature: Signature::over(&[DIMS]),
        doc: "`any[d, e](x)`: whether at least one truth value along dims is true; of none, false.",
        build: |g, c| build(g, c, Monoid::Or),
        samples: || samples("any"),
    },
];

fn build(g: &mut Graph, c: &OpCall, monoid: Monoid) -> Result<Id, OpError> {
    let x = c.tensor(g, 0);
    g.add_op(Arc::new(Reduce { monoid, dims: c.dims() }), &[x])
}

fn samples(name: &'static str) -> Vec<Sample> {
    vec![
        Sample::call("inner", name, &["b"], vec![truth(&[("a", 7), ("b", 2)])]).flat(),
        Sample::call("outer", name, &["a"], vec![truth(&[("a", 3), ("b", 5)])]).flat(),
        Sample::call("both", name, &["a", "b"], vec![truth(&[("a", 2), ("b", 2), ("c", 5)])]).flat(),
    ]
}
