//! Places of results in an arena, for programs that are written by hand.

use super::plans::Builder;
use burn_backend::{DType as BurnType, Shape};
use burn_ir::{BaseOperationIr, GraphIr, OperationIr, ShapeOpIr, TensorId, TensorIr, TensorStatus};
use meshwright_device::arena::layout::arena_of;
use meshwright_device::arena::{Arena, Spot, result_bytes, row_pitch};
use meshwright_device::kernels::Kernel;
use meshwright_device::kernels::matmul::FactorDigits;
use meshwright_device::launch::{BurnGraph, DevicePlan, Launch, LaunchKind, LoopLaunch};
use meshwright_device::slot::{LaunchId, Residual, Slots, StoredPositions, TensorSlot};
use meshwright_device::target::Target;
use meshwright_device::turns::{Carried, turns};
use meshwright_plan::{BufId, Dim, IdVec, Mesh, Plan};
use meshwright_sorted::{SortedMap, SortedSet};

/// Bytes of each value; a multiple of what places are aligned to.
const BYTES: u64 = 1024;

/// A tensor of a buffer: slots of [`Hand`] are in the order of buffers.
fn shaped(buf: u32, shape: &[usize], status: TensorStatus) -> TensorIr {
    let (id, shape) = (TensorId::new(buf.into()), Shape::from(shape.to_vec()));
    TensorIr { id, shape, status, dtype: BurnType::F32 }
}

fn tensor(buf: u32, many: usize, status: TensorStatus) -> TensorIr {
    shaped(buf, &[many, BYTES as usize / 4], status)
}

/// An operand whose lifetime goes on, and one whose lifetime ends.
fn read(buf: u32) -> TensorIr {
    tensor(buf, 1, TensorStatus::ReadOnly)
}

fn last(buf: u32) -> TensorIr {
    tensor(buf, 1, TensorStatus::ReadWrite)
}

fn reshape(input: TensorIr, out: TensorIr) -> LaunchKind {
    let operation = OperationIr::BaseFloat(BaseOperationIr::Reshape(ShapeOpIr { input, out }));
    LaunchKind::Burn(BurnGraph { graph: GraphIr::new(vec![operation]), steps: vec![0] })
}

/// Buffers of a program, and where the loop of one keeps values for another.
const BUFFERS: u32 = 9;
const STACK: BufId = BufId(BUFFERS);

/// A device plan that is written by hand.
struct Hand {
    plan: Plan,
    dim: Dim,
    launches: IdVec<LaunchId, Launch>,
    slots: Slots,
}

impl Hand {
    /// A builder with a dim of three positions.
    fn new() -> Hand {
        let mut b = Builder::new(&Mesh::new([] as [(&str, usize); 0]));
        let dim = b.dim("layers", 3);
        let mut slots = Slots::default();
        for buf in 0..BUFFERS {
            slots.insert(TensorSlot::Buffer(BufId(buf)));
        }
        Hand { plan: b.plan, dim, launches: IdVec::new(), slots }
    }

    fn launch(&mut self, kind: LaunchKind, reads: &[TensorIr], writes: &[TensorIr]) -> LaunchId {
        let (reads, writes) = (reads.to_vec(), writes.to_vec());
        self.launches.push(Launch { kind, step: 0, steps: vec![0], reads, writes, frees: vec![] })
    }

    /// A kernel that makes a tensor.
    fn makes(&mut self, reads: &[TensorIr], out: TensorIr) -> LaunchId {
        self.launch(LaunchKind::Kernel(Kernel::Matmul(FactorDigits::All)), reads, &[out])
    }

    /// A kernel that makes a value.
    fn make(&mut self, reads: &[TensorIr], out: u32) -> LaunchId {
        self.makes(reads, tensor(out, 1, TensorStatus::NotInit))
    }

    fn kernel(&mut self, kernel: Kernel, reads: &[TensorIr], writes: &[TensorIr]) -> LaunchId {
        self.launch(LaunchKind::Kernel(kernel), reads, writes)
    }

    fn free(&mut self, buf: u32) -> LaunchId {
        let id = self.launch(LaunchKind::Free, &[], &[]);
        self.launches[id].frees.push(TensorId::new(buf.into()));
        id
    }

    /// The kernels that keep values of positions, and give them.
    fn kept(&mut self, from: usize) -> [Kernel; 2] {
        let tensors = (from..3).map(|at| self.slots.insert(TensorSlot::Residual(STACK, at))).collect();
        let over = vec![StoredPositions { dim: self.dim, from, count: 3 - from }];
        let residual = Residual { over, tensors };
        [Kernel::Store(residual.clone()), Kernel::Load { residual, last: true }]
    }

    fn over(&mut self, reverse: bool, carries: Vec<Carried>, body: Vec<LaunchId>) -> LaunchId {
        self.over_from(0, reverse, carries, body)
    }

    fn over_from(
        &mut self,
        from: usize,
        reverse: bool,
        carries: Vec<Carried>,
        body: Vec<LaunchId>,
    ) -> LaunchId {
        let turns = turns(from..3, reverse, &carries, &vec![0; body.len()]);
        let of = LoopLaunch {
            dim: self.dim,
            reverse,
            from,
            positions: 0..3,
            runs: from..3,
            of_one_stage: false,
            numbers: None,
            carries,
            body,
            turns,
            passes: vec![],
        };
        self.launch(LaunchKind::Loop(Box::new(of)), &[], &[])
    }

    fn arena(self, body: Vec<LaunchId>, left: &[u32]) -> Arena {
        let device = DevicePlan {
            target: Target::cuda((9, 0), true),
            rank: 0,
            launches: self.launches,
            body,
            slots: self.slots,
            tables: vec![],
            pairs: SortedMap::new(),
            left: left.iter().map(|buf| BufId(*buf)).collect(),
            never: SortedSet::new(),
            stored: SortedMap::new(),
            attention_without_kernel: SortedMap::new(),
            fp8_declined: SortedMap::new(),
            arena: Arena::default(),
        };
        arena_of(&self.plan, &device).unwrap()
    }
}

/// A carry: buffer 0 before the loop, 1 at the start of an iteration, 2 at its end, and 3 after the loop.
fn carried() -> Carried {
    let [start, current, next, last] = [0, 1, 2, 3].map(BufId);
    Carried { start, ends: true, current, next, last, unread: false, lag: 0 }
}

fn at(number: u64, values: u64) -> Spot {
    Spot::At { start: number * BYTES, bytes: values * BYTES }
}

#[test]
fn what_has_ended_makes_room_and_views_hold_what_they_show() {
    let mut h = Hand::new();
    let mut body = vec![h.make(&[], 0), h.make(&[last(0)], 1), h.make(&[last(1)], 2)];
    body.push(h.launch(reshape(last(2), tensor(3, 1, TensorStatus::NotInit)), &[], &[]));
    body.extend([h.make(&[], 4), h.make(&[last(3), last(4)], 5)]);
    let arena = h.arena(body, &[5]);
    // A result and its operands have separate places; the reshaped one lives until it is read.
    assert_eq!(arena.spots, [at(0, 1), at(1, 1), at(0, 1), at(1, 1), Spot::Own]);
    assert_eq!(arena.bytes, 2 * BYTES);
}

/// The first loop keeps a value of each position, which the second one takes in the other direction.
#[test]
fn what_one_loop_keeps_for_another_has_a_place_for_each_position() {
    let mut h = Hand::new();
    let [store, load] = h.kept(0);
    let forward = vec![h.make(&[], 0), h.kernel(store, &[last(0)], &[])];
    let taken = h.kernel(load, &[], &[tensor(1, 1, TensorStatus::NotInit)]);
    let backward = vec![taken, h.make(&[last(1)], 2), h.make(&[last(2)], 3), h.free(3)];
    let body = vec![h.over(false, vec![], forward), h.over(true, vec![], backward)];
    let found = h.arena(body, &[]);
    let starts: Vec<u64> =
        found.spots.iter().map(|s| if let Spot::At { start, .. } = s { *start } else { 9 }).collect();
    let kept: SortedSet<u64> = starts[..3].iter().copied().collect();
    assert_eq!(kept.len(), 3, "{starts:?}");
    // The results of the second loop take the places of the residuals that it has read.
    assert_eq!(found.bytes, 4 * BYTES);
    for turn in 0..3 {
        let (read, made) = (starts[2 - turn], &starts[3 + 2 * turn..5 + 2 * turn]);
        assert!(made[0] != read && made[0] != made[1], "{starts:?}");
        let unread = &starts[..2 - turn];
        assert!(made.iter().all(|start| !unread.contains(start)), "{starts:?}");
    }
}

/// Residuals of positions that the second loop does not run have no place.
#[test]
fn what_no_loop_takes_has_no_place_for_each_position() {
    let mut h = Hand::new();
    let [store, load] = h.kept(2);
    let forward = vec![h.make(&[], 0), h.kernel(store, &[last(0)], &[])];
    let taken = h.kernel(load, &[], &[tensor(1, 1, TensorStatus::NotInit)]);
    let backward = vec![taken, h.make(&[last(1)], 2), h.free(2)];
    let body = vec![h.over(false, vec![], forward), h.over_from(2, true, vec![], backward)];
    // The residual of the last position, and the value that is computed from it.
    assert_eq!(h.arena(body, &[]).bytes, 2 * BYTES);
}

/// A value that goes into a stack is made there, unless the stack is read in between.
#[test]
fn what_goes_into_a_stack_is_made_there() {
    for looks in [false, true] {
        let mut h = Hand::new();
        let stack = |buf, status| tensor(buf, 3, status);
        let blank = h.kernel(Kernel::Blank, &[], &[stack(0, TensorStatus::NotInit)]);
        let mut body = vec![h.make(&[], 4)];
        if looks {
            body.extend([h.make(&[stack(1, TensorStatus::ReadOnly)], 6), h.free(6)]);
        }
        let into = [stack(1, TensorStatus::ReadWrite), last(4)];
        let update = Kernel::IterationUpdate(h.dim);
        body.push(h.kernel(update, &into, &[stack(2, TensorStatus::NotInit)]));
        let body = h.over(false, vec![carried()], body);
        let end = h.make(&[stack(3, TensorStatus::ReadWrite)], 5);
        let found = h.arena(vec![blank, body, end], &[5]);
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

/// The next value of a carry has another place than the current one.
#[test]
fn what_is_carried_lies_beside_what_comes_next() {
    let mut h = Hand::new();
    let body = vec![h.make(&[last(1)], 2)];
    let body = vec![h.make(&[], 0), h.over(false, vec![carried()], body), h.make(&[read(3), last(3)], 4)];
    let found = h.arena(body, &[4]);
    assert_eq!(found.spots, [at(0, 1), at(1, 1), at(0, 1), at(1, 1), Spot::Own]);
}

/// Rows of 4099 have gaps, in whatever number of dims they are; what is no longer rows is a copy; one row has none.
#[test]
fn rows_with_gaps_stay_rows() {
    let (new, last) = (TensorStatus::NotInit, TensorStatus::ReadWrite);
    for (rows, joined, bytes) in [(2, [1, 8198], 2 * 16512), (1, [1, 4099], 16396)] {
        let mut h = Hand::new();
        let body = vec![
            h.makes(&[], shaped(0, &[rows, 4099], new)),
            h.launch(reshape(shaped(0, &[rows, 4099], last), shaped(1, &[1, rows, 4099], new)), &[], &[]),
            h.launch(reshape(shaped(1, &[1, rows, 4099], last), shaped(2, &joined, new)), &[], &[]),
            h.make(&[shaped(2, &joined, last)], 3),
            h.free(3),
        ];
        let found = h.arena(body, &[]);
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
