//! Where results lie that a program makes, on pieces that are written by hand.

use super::plans::Builder;
use crate::backend::burn::flex;
use crate::engine::arena::layout::arena_of;
use crate::engine::arena::{Arena, Spot, result_bytes, row_pitch};
use crate::engine::graph::{Segment, TensorSlot};
use crate::engine::pieces::{Piece, RepeatPiece};
use crate::engine::residuals::{load, store};
use crate::engine::turns::Carried;
use burn_backend::{DType as BurnType, Shape};
use burn_ir::{BaseOperationIr, CustomOpIr, OperationIr, ScalarIr, ShapeOpIr, TensorIr, TensorStatus};
use meshwright_gpu::load::Paths;
use meshwright_plan::{BufId, Dim, Mesh, Plan};
use std::collections::BTreeSet;

/// Bytes of each value; a multiple of what places are aligned to.
const BYTES: u64 = 1024;

fn tensor(buf: u32, many: usize, status: TensorStatus) -> TensorIr {
    let shape = Shape::from(vec![many, BYTES as usize / 4]);
    TensorIr { shape, ..TensorSlot::Buffer(BufId(buf)).tensor(&[1], BurnType::F32, status) }
}

/// What is read, and what ends there.
fn read(buf: u32) -> TensorIr {
    tensor(buf, 1, TensorStatus::ReadOnly)
}

fn last(buf: u32) -> TensorIr {
    tensor(buf, 1, TensorStatus::ReadWrite)
}

fn kernel(name: &'static str, inputs: &[TensorIr], out: TensorIr, number: u32) -> OperationIr {
    let number = vec![ScalarIr::UInt(u64::from(number))];
    OperationIr::Custom(CustomOpIr::with_scalars(name, inputs, &[out], number))
}

/// A kernel that makes a value.
fn make(inputs: &[TensorIr], out: u32) -> OperationIr {
    kernel("matmul", inputs, tensor(out, 1, TensorStatus::NotInit), 0)
}

fn reshape(input: TensorIr, out: u32) -> OperationIr {
    let out = tensor(out, 1, TensorStatus::NotInit);
    OperationIr::BaseFloat(BaseOperationIr::Reshape(ShapeOpIr { input, out }))
}

fn segment(operations: Vec<OperationIr>) -> Piece {
    Piece::Segment(Segment::of_step(operations, 0))
}

/// What starts as buffer 0, is buffer 1 in the body, which makes buffer 2 of it, and buffer 3 in the end.
fn carried() -> Carried {
    let [start, current, next, last] = [0, 1, 2, 3].map(BufId);
    Carried { start, ends: true, current, next, last, unread: false, lag: 0 }
}

/// A plan with a dim of three positions.
fn plan() -> (Plan, Dim) {
    let mut b = Builder::new(&Mesh::new([] as [(&str, usize); 0]));
    let dim = b.dim("layers", 3);
    (b.plan, dim)
}

fn arena(plan: &Plan, pieces: &[Piece], left: &[u32]) -> Arena {
    let left: BTreeSet<BufId> = left.iter().map(|buf| BufId(*buf)).collect();
    arena_of(&flex(&Paths::default()), plan, (pieces, &left), &[])
}

fn at(number: u64, values: u64) -> Spot {
    Spot::At { start: number * BYTES, bytes: values * BYTES }
}

#[test]
fn what_has_ended_makes_room_and_views_hold_what_they_show() {
    let (plan, _) = plan();
    let pieces = [segment(vec![
        make(&[], 0),
        make(&[last(0)], 1),
        make(&[last(1)], 2),
        reshape(last(2), 3),
        make(&[], 4),
        make(&[last(3), last(4)], 5),
    ])];
    let arena = arena(&plan, &pieces, &[5]);
    // A result is beside what it is made of; the reshaped one stays until it is read.
    assert_eq!(arena.spots, [at(0, 1), at(1, 1), at(0, 1), at(1, 1), Spot::Own]);
    assert_eq!(arena.bytes, 2 * BYTES);
}

/// The first loop keeps a value of each position, which the second one takes in the other direction.
#[test]
fn what_one_loop_keeps_for_another_has_a_place_for_each_position() {
    let (plan, dim) = plan();
    let stack = BufId(9);
    let forward = vec![segment(vec![make(&[], 0), store(stack, dim, last(0))])];
    let taken = load(stack, dim, true, tensor(1, 1, TensorStatus::NotInit));
    let backward =
        vec![segment(vec![taken, make(&[last(1)], 2), make(&[last(2)], 3), OperationIr::Drop(last(3))])];
    let repeat =
        |body, reverse| Piece::Repeat(Box::new(RepeatPiece::new(0, (dim, 3, reverse), vec![], (body, &[0]))));
    let found = arena(&plan, &[repeat(forward, false), repeat(backward, true)], &[]);
    let starts: Vec<u64> =
        found.spots.iter().map(|s| if let Spot::At { start, .. } = s { *start } else { 9 }).collect();
    let kept: BTreeSet<u64> = starts[..3].iter().copied().collect();
    assert_eq!(kept.len(), 3, "{starts:?}");
    // As the second loop goes on, what it makes takes the places of what it has read.
    assert_eq!(found.bytes, 4 * BYTES);
    for turn in 0..3 {
        let (read, made) = (starts[2 - turn], &starts[3 + 2 * turn..5 + 2 * turn]);
        assert!(made[0] != read && made[0] != made[1], "{starts:?}");
        let unread = &starts[..2 - turn];
        assert!(made.iter().all(|start| !unread.contains(start)), "{starts:?}");
    }
}

/// A value that goes into a stack is made there, unless the stack is read in between.
#[test]
fn what_goes_into_a_stack_is_made_there() {
    for looks in [false, true] {
        let (plan, dim) = plan();
        let stack = |buf, status| tensor(buf, 3, status);
        let blank = segment(vec![kernel("blank", &[], stack(0, TensorStatus::NotInit), 0)]);
        let mut body = vec![make(&[], 4)];
        if looks {
            body.push(make(&[stack(1, TensorStatus::ReadOnly)], 6));
            body.push(OperationIr::Drop(last(6)));
        }
        let into = [stack(1, TensorStatus::ReadWrite), last(4)];
        body.push(kernel("iteration_update", &into, stack(2, TensorStatus::NotInit), dim.0));
        let body = (vec![segment(body)], &[0][..]);
        let repeat = Piece::Repeat(Box::new(RepeatPiece::new(0, (dim, 3, false), vec![carried()], body)));
        let end = segment(vec![make(&[stack(3, TensorStatus::ReadWrite)], 5)]);
        let found = arena(&plan, &[blank, repeat, end], &[5]);
        let values: Vec<Spot> =
            found.spots.iter().copied().filter(|s| matches!(s, Spot::At { bytes: BYTES, .. })).collect();
        let updates = found.spots.iter().filter(|s| **s == Spot::Operand).count();
        assert_eq!((found.spots[0], updates), (at(0, 3), 3));
        match looks {
            false => {
                assert_eq!(values, [at(0, 1), at(1, 1), at(2, 1)]);
                assert_eq!(found.bytes, 3 * BYTES);
            }
            true => assert!(
                values.iter().all(|s| matches!(s, Spot::At { start, .. } if *start >= 3 * BYTES)),
                "{values:?}"
            ),
        }
    }
}

/// Three values go from turn to turn, each beside the one before.
#[test]
fn what_is_carried_lies_beside_what_comes_next() {
    let (plan, dim) = plan();
    let body = (vec![segment(vec![make(&[last(1)], 2)])], &[0][..]);
    let repeat = Piece::Repeat(Box::new(RepeatPiece::new(0, (dim, 3, false), vec![carried()], body)));
    let found = arena(
        &plan,
        &[segment(vec![make(&[], 0)]), repeat, segment(vec![make(&[read(3), last(3)], 4)])],
        &[4],
    );
    assert_eq!(found.spots, [at(0, 1), at(1, 1), at(0, 1), at(1, 1), Spot::Own]);
}

/// Rows of 4099 have gaps, in whatever number of dims they are; what is no longer rows is a copy; one row has none.
#[test]
fn rows_with_gaps_stay_rows() {
    let (plan, _) = plan();
    let of = |buf: u32, shape: &[usize], status| TensorIr {
        shape: Shape::from(shape.to_vec()),
        ..TensorSlot::Buffer(BufId(buf)).tensor(&[1], BurnType::F32, status)
    };
    let (new, last) = (TensorStatus::NotInit, TensorStatus::ReadWrite);
    let reshape =
        |from, to| OperationIr::BaseFloat(BaseOperationIr::Reshape(ShapeOpIr { input: from, out: to }));
    for (rows, joined, bytes) in [(2, [1, 8198], 2 * 16512), (1, [1, 4099], 16396)] {
        let pieces = [segment(vec![
            kernel("matmul", &[], of(0, &[rows, 4099], new), 0),
            reshape(of(0, &[rows, 4099], last), of(1, &[1, rows, 4099], new)),
            reshape(of(1, &[1, rows, 4099], last), of(2, &joined, new)),
            make(&[of(2, &joined, last)], 3),
            OperationIr::Drop(of(3, &[1], last)),
        ])];
        let found = arena(&plan, &pieces, &[]);
        assert_eq!(found.spots[0], Spot::At { start: 0, bytes });
        // It stays until what may be a copy of it has been read.
        assert!(matches!(found.spots[1], Spot::At { start, .. } if start >= bytes), "{found:?}");
    }
}

/// A vocabulary of GPT-2 in half types and in `f32`; one that is a multiple; and rows that are short, or one.
#[test]
fn long_rows_begin_at_multiples_of_what_products_want() {
    let pitches = [([4, 50_257], 2), ([4, 50_257], 4), ([4, 50_304], 2), ([4, 30], 4)];
    assert_eq!(pitches.map(|(shape, element)| row_pitch(&shape, element)), [50_304, 50_272, 50_304, 30]);
    assert_eq!([row_pitch(&[50_257], 2), row_pitch(&[1, 50_257], 2), row_pitch(&[], 2)], [50_257, 50_257, 1]);
    assert_eq!([false, true].map(|gaps| result_bytes(&[3, 2, 50_257], 2, gaps)), [603_084, 603_648]);
}
