//! Reshard paths against all that there are.

use super::*;
use meshwright_plan::{DType, Dims};

/// Every placement of `dims` over the mesh with at most `partials` partial axes.
fn placements(dims: &[Dim], mesh: &Mesh, partials: usize) -> Vec<Placement> {
    let mut all = vec![Placement::replicated()];
    let mut seen: SortedSet<Placement> = all.iter().cloned().collect();
    let mut at = 0;
    while at < all.len() {
        let p = all[at].clone();
        at += 1;
        for a in mesh.iter().filter(|a| !p.uses(*a)) {
            let mut more: Vec<Placement> = Vec::new();
            for d in dims {
                let mut q = p.clone();
                q.push(*d, a);
                more.push(q);
            }
            if p.partial.len() < partials {
                let mut q = p.clone();
                q.partial.insert(a, Monoid::Sum);
                more.push(q);
            }
            for q in more {
                if seen.insert(q.clone()) {
                    all.push(q);
                }
            }
        }
    }
    all
}

/// Every move there is from `p`, toward anything, over the axes that one of the two ends uses.
fn every_move(dims: &[Dim], p: &Placement, axes: &[Axis]) -> Vec<Reshard> {
    let mut out = Vec::new();
    let open: Vec<Axis> = p.partial.keys().copied().collect();
    for set in 1u32..(1 << open.len()) {
        let chosen = open.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, a)| *a);
        out.push(Collective::AllReduce { axes: chosen.collect(), monoid: Monoid::Sum }.into());
    }
    for axis in axes.iter().copied() {
        for dim in dims.iter().copied() {
            out.push(Collective::ReduceScatter { axis, monoid: Monoid::Sum, dims: vec![dim] }.into());
            out.push(Collective::AllGather { axis, dims: vec![dim] }.into());
            out.push(Reshard::Slice { axis, dim });
            for split in dims.iter().copied().filter(|s| *s != dim) {
                out.push(Collective::AllToAll { axis, join: dim, split }.into());
            }
        }
    }
    out.retain(|m| m.apply(p).is_some());
    out
}

/// Cost of the cheapest way of any moves from `src` to everywhere (Bellman and Ford's: no order, no estimate).
fn brute(
    ty: &Type,
    dims: &Dims,
    mesh: &Mesh,
    src: &Placement,
    axes: &[Axis],
    bound: usize,
) -> SortedMap<Placement, u64> {
    let mut cost = SortedMap::from([(src.clone(), 0u64)]);
    let mut changed: Vec<Placement> = vec![src.clone()];
    while let Some(p) = changed.pop() {
        let here = cost[&p];
        for m in every_move(&ty.dims, &p, axes) {
            let Some(q) = m.apply(&p) else { continue };
            let after = bytes(ty, dims, mesh, &q);
            let c = here + m.wire_bytes(dims, mesh, bytes(ty, dims, mesh, &p), after);
            if after <= bound && cost.get(&q).is_none_or(|b| c < *b) {
                cost.insert(q.clone(), c);
                changed.push(q);
            }
        }
    }
    cost
}

#[test]
fn no_way_is_cheaper_than_the_path() {
    let mut names = Dims::default();
    let dims = vec![names.add("d", 12), names.add("e", 24)];
    let ty = Type::new(DType::F32, dims.clone());
    let (mut pairs, mut worse, mut turns) = (0, Vec::new(), 0);
    for mesh in [Mesh::new([("a", 2), ("b", 2)]), Mesh::new([("a", 2), ("b", 3), ("c", 2)])] {
        // Blocks for which a launch counts much, and for which it counts little.
        for scale in [1, 4096] {
            let mut table = Dims::default();
            let dims = vec![table.add("d", 12 * scale), table.add("e", 24 * scale)];
            let ty = Type::new(ty.dtype, dims.clone());
            let mut paths = ReshardPaths::default();
            for (i, src) in placements(&dims, &mesh, 2).into_iter().enumerate() {
                for (j, dst) in placements(&dims, &mesh, 0).into_iter().enumerate() {
                    // A third of all pairs: enough, and in time.
                    if (i + j) % 3 != 0 {
                        continue;
                    }
                    let axes: Vec<Axis> = mesh.iter().filter(|a| src.uses(*a) || dst.uses(*a)).collect();
                    let bound = bytes(&ty, &table, &mesh, &src).max(bytes(&ty, &table, &mesh, &dst));
                    let (cost, moves) = paths.cheapest(&ty, &table, &mesh, &src, &dst).expect("a path");
                    let mut now = src.clone();
                    for m in &moves {
                        now = m.apply(&now).expect("a move that applies");
                    }
                    assert_eq!(now, dst);
                    let best = brute(&ty, &table, &mesh, &src, &axes, bound).get(&dst).copied();
                    let best = best
                        .or_else(|| brute(&ty, &table, &mesh, &src, &axes, usize::MAX).get(&dst).copied());
                    pairs += 1;
                    turns += usize::from(
                        moves
                            .iter()
                            .filter(|m| matches!(m, Reshard::Collective(Collective::AllToAll { .. })))
                            .count()
                            > 1,
                    );
                    if best != Some(cost) {
                        worse.push(format!("{src:?} -> {dst:?}: {cost} instead of {best:?}, {moves:?}"));
                    }
                }
            }
        }
    }
    assert!(pairs > 3_000 && turns > 50, "{pairs} pairs, {turns} that take turns");
    assert!(worse.is_empty(), "{} of {pairs}:\n{}", worse.len(), worse[..worse.len().min(20)].join("\n"));
}

#[test]
fn a_path_over_many_axes_is_found_at_once() {
    let mut names = Dims::default();
    let d = names.add("d", 1 << 22);
    let ty = Type::new(DType::F32, vec![d]);
    let mesh = Mesh::new(["a", "b", "c", "e", "f", "g", "h", "i"].map(|n| (n, 2)));
    let all: Vec<Axis> = mesh.iter().collect();
    let split = Placement::split([(d, all.clone())]);
    let (_, gathers) = ReshardPaths::default()
        .cheapest(&ty, &names, &mesh, &split, &Placement::replicated())
        .expect("a path");
    assert_eq!(gathers.len(), 8);
    let mut open = Placement::replicated();
    open.partial = all.iter().map(|a| (*a, Monoid::Sum)).collect();
    let (_, moves) = ReshardPaths::default().cheapest(&ty, &names, &mesh, &open, &split).expect("a path");
    assert_eq!(moves.len(), 8, "{moves:?}");
    assert!(
        moves.iter().all(|m| matches!(m, Reshard::Collective(Collective::ReduceScatter { .. }))),
        "{moves:?}"
    );
}
