//! Another table of sizes makes of a graph what building it with those sizes makes of it, or the graph says that it may
//! not.

use meshwright_ops::family::{Sample, SampleInput};
use meshwright_ops::{Graph, Id, InputOp, InputOpKind, Type, families};
use meshwright_plan::Dims;
use meshwright_sorted::SortedMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The graph of a sample with some sizes of the dims of its operands; `None` where it is refused.
fn built(sample: &Sample, sizes: &SortedMap<&'static str, usize>) -> Option<Graph> {
    let mut dims = Dims::default();
    for (name, _) in sample.inputs.iter().flat_map(|i| i.dims.iter().chain(&i.range)) {
        if dims.find(name).is_none() {
            dims.add(*name, sizes[name]);
        }
    }
    let mut g = Graph::new(dims);
    let leaf = |g: &mut Graph, (k, i): (usize, &SampleInput)| -> Id {
        let dims = i.dims.iter().filter_map(|(n, _)| g.dims.find(n)).collect();
        let ty = Type { dtype: i.dtype, dims, range: i.range.and_then(|(n, _)| g.dims.find(n)) };
        g.op(InputOp { input: InputOpKind::Input { name: format!("x{k}") }, ty }, &[])
    };
    let x: Vec<Id> = sample.inputs.iter().enumerate().map(|i| leaf(&mut g, i)).collect();
    // A sample may build its ops with no regard to refusals.
    catch_unwind(AssertUnwindSafe(|| (sample.build)(&mut g, &x).ok().map(|_| g))).ok().flatten()
}

fn resized(dims: &Dims, name: &str, size: usize) -> Dims {
    let mut out = Dims::default();
    dims.iter().for_each(|(d, n)| {
        out.add(n, if n == name { size } else { dims.size(d) });
    });
    out
}

#[test]
fn a_graph_holds_no_size_but_those_it_names() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let (mut same, mut captured, mut refused, mut faults) = (0, 0, 0, Vec::new());
    for (family, sample) in families().flat_map(|f| (f.samples)().into_iter().map(move |s| (f.name, s))) {
        let declared = sample.inputs.iter().flat_map(|i| i.dims.iter().chain(&i.range).copied());
        let sizes: SortedMap<&'static str, usize> = declared.collect();
        let Some(g) = built(&sample, &sizes) else { continue };
        for (name, size) in &sizes {
            for other in [1, size - 1, size + 1, 2 * size] {
                let what = format!("{family}, {}: {name} = {size} as {other}", sample.label);
                let table = resized(&g.dims, name, other);
                let by_table = g.clone().resized(table);
                let by_building = built(
                    &sample,
                    &sizes.iter().map(|(n, s)| (*n, if n == name { other } else { *s })).collect(),
                );
                let is_captured =
                    other != *size && g.dims.find(name).is_some_and(|d| g.captured.contains(&d));
                match (by_table, by_building) {
                    (None, _) if is_captured => captured += 1,
                    (None, None) => refused += 1,
                    (Some(a), Some(b)) => {
                        let nodes = a.nodes.iter().zip(b.nodes.iter());
                        let equal = a.dims == b.dims
                            && a.nodes.len() == b.nodes.len()
                            && nodes
                                .into_iter()
                                .all(|(x, y)| *x.op == *y.op && x.inputs == y.inputs && x.ty == y.ty);
                        same += 1;
                        if !equal {
                            faults.push(format!("{what}: another graph"));
                        }
                    }
                    (Some(_), None) => faults.push(format!("{what}: refused when built, not by the table")),
                    (None, Some(_)) => faults.push(format!("{what}: refused by the table alone")),
                }
            }
        }
    }
    std::panic::set_hook(hook);
    crate::report(&format!(
        "{same} graphs of another table, {captured} that say they may not be, {refused} refused"
    ));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(same > 500 && captured > 50 && refused > 10, "{same}, {captured}, {refused}");
}
