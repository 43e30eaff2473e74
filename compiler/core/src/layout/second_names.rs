//! Dims that are others under a second name: what a layout says of the first holds for both, unless it speaks of the second too.

use meshwright_ops::{Graph, Kind, Source, union};
use meshwright_plan::{Dim, Phase};
use meshwright_sorted::{SortedMap, SortedSet};

/// Dims that a program has only between a rename to them and one back, `x[heads -> inside]` and `y[inside -> heads]`, each with
/// its first name: nothing else makes such a dim, all renames of it are from and to one other, and no value has both.
///
/// `key`, to which self-attention renames `seq`, is none: scores have both.
pub fn second_names(g: &Graph) -> SortedMap<Dim, Dim> {
    let (mut made, mut met) = (SortedSet::new(), SortedSet::new());
    let (mut into, mut back): (SortedMap<Dim, SortedSet<Dim>>, SortedMap<Dim, SortedSet<Dim>>) =
        Default::default();
    for id in g.ids().filter(|id| g.node(*id).origin.phase == Phase::Forward) {
        let node = g.node(id);
        let read = union(g.input_types(id));
        match node.op.kind() {
            Kind::Rename { from, to } => {
                into.entry(to).or_default().insert(from);
                back.entry(from).or_default().insert(to);
                met.insert(&node.ty.dims[..]);
                continue;
            }
            Kind::Rematerializable(Source::Constant | Source::Training | Source::Random) => {}
            _ => made.extend(node.ty.dims.iter().copied().filter(|d| !read.contains(d))),
        }
        met.insert(&node.ty.dims[..]);
    }
    let one = |of: &SortedMap<Dim, SortedSet<Dim>>, d: Dim| match of.get(&d) {
        Some(others) if others.len() == 1 => others.first().copied(),
        _ => None,
    };
    let second = into.keys().filter(|d| !made.contains(*d)).filter_map(|d| {
        let first = one(&into, *d).filter(|first| one(&back, *d) == Some(*first))?;
        // Of two dims of which each would be the second name of the other, it is the one that is declared later.
        let mutual = !made.contains(&first) && one(&into, first) == Some(*d) && first > *d;
        let meet = met.iter().any(|dims| dims.contains(d) && dims.contains(&first));
        (!mutual && !meet).then_some((*d, first))
    });
    second.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::layout::{RuleDim, layout};
    use crate::{Program, Settings, resolve::resolve};
    use meshwright_diag::FileId;
    use meshwright_syntax::{parse_layout, parse_model};

    /// `inside` and `within` are second names; `key` meets `seq`, `other` is not renamed back, and a parameter has `free`.
    const MODEL: &str = "
        dim seq = 4, heads = 2, d = 3
        dim key = seq, inside = heads, within = heads, other = heads, free = heads
        model m {
            input x[seq, heads, d]: float
            param w[free] = 1
            let a = x[heads -> inside]
            let b = a[seq -> key]
            let c = sum[d, key](a * b)[inside -> heads]
            let e = exp(x[heads -> within])[within -> heads]
            let f = sum[other](x[heads -> other])
            let h = (x[heads -> free] * w)[free -> heads]
            output out = c + e + f + h
        }";

    fn program() -> Program {
        let (file, found) = parse_model(FileId(0), MODEL);
        assert!(found.is_empty(), "{found:?}");
        let (program, found) =
            resolve(&file.unwrap(), None, &Settings::default(), &mut |_, _| unreachable!("uses nothing"));
        program.unwrap_or_else(|| panic!("{found:?}"))
    }

    #[test]
    fn dims_between_a_rename_and_one_back_are_second_names() {
        let program = program();
        let name = |d: &Dim| program.graph.dims.name(*d);
        let found = second_names(&program.graph);
        let found: Vec<_> = found.iter().map(|(second, first)| (name(second), name(first))).collect();
        assert_eq!(found, [("inside", "heads"), ("within", "heads")]);
    }

    #[test]
    fn second_names_without_a_rule_follow() {
        let program = program();
        let (file, _) =
            parse_layout(FileId(1), "mesh a = 2; heads -> a; d: within -> -; gather heads; ring heads");
        let (layout, found) = layout(&file.unwrap(), None, &program, true);
        let layout = layout.unwrap_or_else(|| panic!("{found:?}"));
        let dim = |name: &str| program.graph.dims.find(name).unwrap();
        assert_eq!(layout.second_names, [(dim("inside"), dim("heads"))].into());
        let (both, one) = ([dim("heads"), dim("inside")], dim("within"));
        assert!(both.iter().all(|d| layout.gathers.contains(d) && layout.rings.contains_key(d)));
        assert!(!layout.joins(one));
        assert!(layout.rules.iter().all(|r| r.dim != RuleDim::Dim(dim("inside"))));
    }
}
