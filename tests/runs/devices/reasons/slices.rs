//! Slices that are read after their stack was updated: the update is a copy then, and the slice stays as it was.

use super::written::written;
use meshwright_device::arena::Spot;
use meshwright_device::compile;
use meshwright_device::kernels::Kernel;
use meshwright_device::launch::{DevicePlan, Launch, LaunchKind};
use meshwright_device::target::Target;
use meshwright_device::verify::verify;
use meshwright_plan::{Arithmetic, Plan};

/// Each iteration stores a product at the position of a slice, and reads both what the slice was and what it is.
const READ_AGAIN: &str = "
    x[batch d] = input
    w[d d2] = input
    z0[seq batch d2] = zeros
    y0[batch d], z1[seq batch d2] = repeat seq (x, z0)
        r[batch d2] = slice seq (z1)
        y1[batch d2] = contract (y0, w)
        z2[seq batch d2] = update seq (z1, y1)
        q[batch d2] = slice seq (z2)
        y2[batch d2] = map add(tanh($0), $1) (q, r)
        y3[batch d] = contract (y2[batch d2], w)
    y4[batch d], z3[seq batch d2] = end (y3, z2)
    s[batch d2] = sum (z3)
    output s
    output y4
";

fn plan(text: &str) -> Plan {
    written(Arithmetic::F32, "seq 3 batch 64 d 64 d2 64", text)
}

fn is_update(launch: &Launch) -> bool {
    matches!(launch.kind, LaunchKind::Kernel(Kernel::IterationUpdate(_)))
}

fn updates(device: &DevicePlan) -> Vec<Spot> {
    let of = device.arena.of.iter().zip(&device.arena.spots);
    of.filter(|(id, _)| is_update(&device.launches[**id])).map(|(_, spot)| *spot).collect()
}

#[test]
fn a_slice_that_is_read_after_an_update_compiles() {
    let device = compile(&plan(READ_AGAIN), 0, Target::h100()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(updates(&device), [Spot::Own; 3]);
}

/// Where nothing reads the slice again, it is the stack itself that is updated: in its place the slice would change.
#[test]
fn an_update_in_place_of_a_slice_that_is_read_again_is_found() {
    let once = READ_AGAIN
        .replace("(q, r)", "(q, q)")
        .replace("y1[batch d2] = contract (y0, w)", "y1[batch d2] = map add($0, $1) (r, y0[batch d2])");
    let device = compile(&plan(&once), 0, Target::h100()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(updates(&device), [Spot::Operand; 3]);
    let plan = plan(READ_AGAIN);
    let mut wrong = compile(&plan, 0, Target::h100()).unwrap_or_else(|e| panic!("{e}"));
    let in_place = wrong.arena.of.iter().position(|id| is_update(&wrong.launches[*id])).unwrap();
    wrong.arena.spots[in_place] = Spot::Operand;
    let found = verify(&plan, &wrong).unwrap_err();
    assert!(found.contains("is a live slice of a stack"), "{found}");
}
