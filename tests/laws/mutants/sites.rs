//! Places in a partitioned program where a fault may be seeded, and what seeding takes.

use meshwright_core::partition::{CopyId, Instr, PlacedCopy, Reshard, Spmd};
use meshwright_plan::{Axis, Collective, Dim, Monoid, Placement, Window};

/// What becomes of a fault at a place.
pub(super) enum Site {
    /// It is seeded.
    Seeded,
    /// It does not apply there.
    Skipped,
    /// There is no such place, nor any later one.
    End,
}

/// Applies `f` at the `k`-th instruction if it is `of` a kind.
pub(super) fn nth(
    s: &mut Spmd,
    k: usize,
    of: fn(&Instr) -> bool,
    f: impl Fn(&mut Spmd, usize) -> Option<()>,
) -> Site {
    match s.instrs.get(k).map(of) {
        None => Site::End,
        Some(true) if f(s, k).is_some() => Site::Seeded,
        Some(_) => Site::Skipped,
    }
}

pub(super) fn ops(s: &mut Spmd, k: usize, f: impl Fn(&mut Spmd, usize) -> Option<()>) -> Site {
    nth(s, k, |i| matches!(i, Instr::Op { .. }), f)
}

pub(super) fn moves(s: &mut Spmd, k: usize, f: impl Fn(&mut Spmd, usize) -> Option<()>) -> Site {
    nth(s, k, |i| matches!(i, Instr::Reshard { .. }), f)
}

/// Applies `f` to the placement of what the `k`-th instruction makes, of leaves aside.
pub(super) fn placed(s: &mut Spmd, k: usize, f: impl Fn(&mut Placement) -> Option<()>) -> Site {
    nth(s, k, |i| !matches!(i, Instr::Input { .. }), |s, i| f(&mut out(s, i).placement))
}

/// Changes the window of a permute or of a cut; `both` changes the result as well.
pub(super) fn windowed(s: &mut Spmd, k: usize, f: fn(Window) -> Window, both: bool) -> Site {
    moves(s, k, |s, i| {
        let (Reshard::Collective(Collective::Permute { window, .. }) | Reshard::SliceWindow { window, .. }) =
            kind(s, i)
        else {
            return None;
        };
        *window = f(*window);
        if both { follow(s, i) } else { Some(()) }
    })
}

pub(super) fn outputs(s: &mut Spmd, k: usize, f: impl Fn(&mut Spmd, usize) -> Option<()>) -> Site {
    match k < s.outputs.len() {
        false => Site::End,
        true if f(s, k).is_some() => Site::Seeded,
        true => Site::Skipped,
    }
}

/// The version that an instruction makes.
pub(super) fn out(s: &mut Spmd, i: usize) -> &mut PlacedCopy {
    let v = s.instrs[i].out();
    &mut s.copies[v]
}

/// The move of an instruction that is one.
pub(super) fn kind(s: &mut Spmd, i: usize) -> &mut Reshard {
    match &mut s.instrs[i] {
        Instr::Reshard { kind, .. } => kind,
        other => panic!("{other:?} is no move"),
    }
}

pub(super) fn move_from(s: &Spmd, i: usize) -> Option<CopyId> {
    match &s.instrs[i] {
        Instr::Reshard { from, .. } => Some(*from),
        _ => None,
    }
}

pub(super) fn from(s: &Spmd, i: usize) -> CopyId {
    move_from(s, i).unwrap()
}

pub(super) fn set_from(s: &mut Spmd, i: usize, new: CopyId) -> Option<()> {
    let Instr::Reshard { from, .. } = &mut s.instrs[i] else { return None };
    *from = new;
    Some(())
}

/// Places the result of a move where the move leads.
pub(super) fn follow(s: &mut Spmd, i: usize) -> Option<()> {
    let from = from(s, i);
    let before = s.copy(from).placement.clone();
    out(s, i).placement = kind(s, i).apply(&before)?;
    Some(())
}

/// Inserts a sound move at `i`; gives what it makes.
pub(super) fn append(s: &mut Spmd, i: usize, from: CopyId, kind: Reshard) -> Option<CopyId> {
    let PlacedCopy { value, placement, in_bf16 } = s.copy(from).clone();
    let placement = kind.apply(&placement)?;
    let out = s.copies.push(PlacedCopy { value, placement, in_bf16 });
    let cause = meshwright_core::partition::Cause { because: "a fault".into(), ..Default::default() };
    s.instrs.insert(i, Instr::Reshard { kind, from, out, cause });
    Some(out)
}

/// Whoever reads `old` reads `new`, from instruction `start` on, and so do the outputs.
pub(super) fn rewire(s: &mut Spmd, start: usize, old: CopyId, new: CopyId) {
    let mut change = |v: &mut CopyId| {
        if *v == old {
            *v = new;
        }
    };
    for instr in &mut s.instrs[start..] {
        match instr {
            Instr::Input { .. } => {}
            Instr::Op { inputs, .. } => inputs.iter_mut().for_each(&mut change),
            Instr::Reshard { from, .. } => change(from),
        }
    }
    s.outputs.iter_mut().for_each(change);
}

pub(super) fn dims_of(s: &Spmd, v: CopyId) -> Vec<Dim> {
    s.step.graph.ty(s.copy(v).value).dims.clone()
}

pub(super) fn first_split(s: &Spmd, v: CopyId) -> Option<(Dim, Axis)> {
    let p = &s.copy(v).placement;
    p.splits.iter().next().and_then(|(d, a)| Some((*d, *a.last()?)))
}

/// An axis that a version does not use, other than `a`.
pub(super) fn unused(s: &Spmd, v: CopyId, a: Axis) -> Option<Axis> {
    s.mesh.iter().find(|b| *b != a && !s.copy(v).placement.uses(*b))
}

pub(super) fn other_than(m: Monoid) -> Monoid {
    if m == Monoid::Sum { Monoid::Max } else { Monoid::Sum }
}
