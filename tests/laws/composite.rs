//! A composite op and what it expands to are the same function.

use crate::oracle::{close, walk};
use crate::subject::{Arrival, build, subjects};
use meshwright_sorted::SortedSet;

#[test]
fn composites_equal_their_expansions() {
    let (mut seen, mut wrong) = (SortedSet::new(), Vec::new());
    for subject in subjects() {
        let b = build(&subject, &vec![Arrival::Input; subject.inputs.len()], 3).unwrap();
        for id in b.graph.ids() {
            let mut g = b.graph.clone();
            let node = g.node(id).clone();
            let Some(expanded) = node.op.expand(&mut g, &node.inputs) else { continue };
            seen.insert(node.op.name());
            let (got, want) = (g.ty(expanded).clone(), node.ty.clone());
            let same_dims = got.dims.len() == want.dims.len() && got.dims.iter().all(|d| want.has(*d));
            if got.dtype != want.dtype || !same_dims {
                wrong.push(format!("{}: {got:?} instead of {want:?}", subject.name));
                continue;
            }
            let values = walk(&g, &b.bound);
            let got = values[expanded.0 as usize].ordered(&want.dims);
            if let Err(e) = close(&got.data, &values[id.0 as usize].data, 1e-12) {
                wrong.push(format!("{}: {e}", subject.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let expected =
        ["cross_entropy", "cross_entropy_grad", "log_softmax", "logsumexp", "mean", "softmax", "top_k"];
    assert!(expected.iter().all(|n| seen.contains(n)), "composites were not met: {seen:?}");
}
