//! Roots of sums of squares, which [`NormRoot`] computes: norms that a model writes out.

use meshwright_ops::{
    Binary, Contract, Graph, Id, NormRoot, POW, RSQRT, SQRT, Unary, may_sum_squares, squared,
};
use std::sync::Arc;

/// Steps between a root and the squares beneath it: a scale, a sum, what keeps it from 0.
const FEW: usize = 16;

/// Puts a root of squares in place of each square root, or reciprocal of one, of what sums squares alone.
pub(super) fn replace(g: &mut Graph) {
    for id in g.ids() {
        if let Some(root) = root(g, id)
            && sums_squares(g, g.node(id).inputs[0], &mut FEW.clone())
        {
            let node = &mut g.nodes[id];
            node.op = Arc::new(root);
            node.inputs.truncate(1);
        }
    }
}

fn root(g: &Graph, id: Id) -> Option<NormRoot> {
    let node = g.node(id);
    let any = (*node.op).as_any();
    if let Some(Binary(def)) = any.downcast_ref() {
        let power = g.constant_value(*node.inputs.get(1)?).filter(|_| def.name == POW.name)?;
        return (power.abs() == 0.5).then_some(NormRoot { inverse: power < 0.0 });
    }
    let Unary(def) = any.downcast_ref()?;
    (def.name == SQRT.name || def.name == RSQRT.name).then_some(NormRoot { inverse: def.name == RSQRT.name })
}

/// Whether a value is made of squares by sums and factors alone, within as many steps as are left.
fn sums_squares(g: &Graph, id: Id, left: &mut usize) -> bool {
    let Some(less) = left.checked_sub(1) else { return false };
    *left = less;
    if squared(g, id).is_some() {
        return true;
    }
    let varies = |x: &&Id| g.constant_value(**x).is_none();
    let below: Vec<Id> = may_sum_squares(g, id).iter().filter(varies).copied().collect();
    let some = below.iter().filter(|x| sums_squares(g, **x, left)).count();
    let product = (*g.node(id).op).as_any().is::<Contract>();
    some > 0 && some == if product { 1 } else { below.len() }
}
