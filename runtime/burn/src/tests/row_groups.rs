//! Row groups: their steps, and the order of a Plan's steps with them.

use super::plans::Builder;
use meshwright_device::decisions::Decisions;
use meshwright_device::decisions::def_use::DefUse;
use meshwright_device::decisions::fused::{FusedCall, FusedGroup, FusedGroups};
use meshwright_device::kernels::Kernel;
use meshwright_device::kernels::rows::row_groups::{RowGroupDims, RowSteps, row_groups};
use meshwright_device::passes::epilogues::Epilogues;
use meshwright_device::passes::inlined::InlinedValues;
use meshwright_device::passes::step_order::StepOrder;
use meshwright_plan::expr::{BinaryFn, UnaryFn};
use meshwright_plan::{Axis, DType, Dim, Mesh, Monoid, Operand, Plan, Prim, ProgramInputKind, Step};
use meshwright_sorted::SortedSet;

/// Rows that are normalized.
struct Norm {
    b: Builder,
    row: Dim,
    n: Dim,
    x: Operand,
    y: Operand,
    /// `x + y`.
    sum: Operand,
}

fn norm() -> Norm {
    let mut b = Builder::new(&Mesh::new([("a", 2)]));
    let (row, n) = (b.dim("row", 4), b.dim("n", 8));
    let (x, y) = (b.whole(DType::F32, &[row, n]), b.whole(DType::F32, &[row, n]));
    b.leaf(ProgramInputKind::Input, "x", &x);
    b.leaf(ProgramInputKind::Input, "y", &y);
    let sum = b.like(&x);
    b.map("sum", &[&x, &y], &sum, |e, r| e.binary(BinaryFn::Add, r[0], r[1]));
    Norm { b, row, n, x, y, sum }
}

impl Norm {
    fn of_rows(&mut self) -> Operand {
        self.b.whole(DType::F32, &[self.row])
    }

    fn map(&mut self, reads: [&Operand; 2], f: BinaryFn) -> Operand {
        let out = self.b.whole(DType::F32, &[self.row, self.n]);
        self.b.map("map", &reads, &out, |e, r| e.binary(f, r[0], r[1]));
        out
    }

    /// Values without their mean, and the square root of their sum of squares.
    fn center(&mut self) -> [Operand; 2] {
        let (mean, square) = (self.of_rows(), self.of_rows());
        let sum = self.sum.clone();
        self.b.reduce("mean", Monoid::Sum, &sum, &mean);
        let center = self.map([&sum, &mean], BinaryFn::Sub);
        let squares = self.map([&center, &center], BinaryFn::Mul);
        self.b.reduce("square", Monoid::Sum, &squares, &square);
        let root = self.of_rows();
        self.b.map("root", &[&square], &root, |e, r| e.unary(UnaryFn::Sqrt, r[0]));
        [center, root]
    }

    fn column(&mut self, monoid: Monoid, of: &Operand, dtype: DType) -> Operand {
        let folded = self.b.whole(dtype, &[self.n]);
        self.b.reduce("column", monoid, of, &folded);
        folded
    }
}

/// A kernel for any steps along rows.
fn any(_: &RowSteps) -> Option<FusedCall> {
    Some(FusedCall { kernel: Kernel::Blank, reads: vec![], writes: vec![] })
}

fn found_of(plan: &Plan, call: impl Fn(&RowSteps) -> Option<FusedCall>) -> FusedGroups {
    let waits = |s: &Step| !matches!(s.prim, Prim::Contract);
    row_groups(&DefUse::of(plan), &SortedSet::new(), call, waits).into_iter().collect()
}

fn found(plan: &Plan) -> FusedGroups {
    found_of(plan, any)
}

fn only(groups: &FusedGroups) -> &FusedGroup {
    assert_eq!(groups.at.len(), 1, "{groups:?}");
    groups.at.values().next().unwrap()
}

#[test]
fn a_norm_is_one_and_what_reads_it_in_between_runs_after_it() {
    let mut n = norm();
    let (mean, square) = (n.of_rows(), n.of_rows());
    let sum = n.sum.clone();
    n.b.reduce("mean", Monoid::Sum, &sum, &mean);
    let center = n.map([&sum, &mean], BinaryFn::Sub);
    let columns = n.column(Monoid::Max, &center, DType::F32);
    let other = n.column(Monoid::Max, &n.y.clone(), DType::F32);
    let squares = n.map([&center, &center], BinaryFn::Mul);
    n.b.reduce("square", Monoid::Sum, &squares, &square);
    let normed = n.map([&center, &square], BinaryFn::Div);
    for (name, value) in [("columns", &columns), ("other", &other), ("normed", &normed)] {
        n.b.output(name, value);
    }
    let plan = n.b.finish();
    let groups = found_of(&plan, |group| {
        assert_eq!(group.space, RowGroupDims { rows: vec![n.row], along: vec![n.n] });
        any(group)
    });
    let group = only(&groups);
    assert_eq!((&group.steps[..], &group.after[..]), (&[0, 1, 2, 5, 6, 7][..], &[3][..]));
    assert_eq!(group.inner, [&sum, &mean, &squares, &square].map(|o| o.buf).into());
    let order = StepOrder::of(&DefUse::of(&plan), &groups, &InlinedValues::default(), false);
    assert_eq!(order.steps, [4, 0, 1, 2, 5, 6, 7, 3]);
    // The lifetimes of the group's operands end with its last step, those of its results with their last consumer.
    assert_eq!(order.end_of(n.x.buf, 0), 7);
    assert_eq!(order.end_of(n.y.buf, 4), 7);
    let ends = plan
        .steps
        .iter()
        .position(|s| s.free.contains(&center.buf) || s.aliases.iter().any(|a| a.0 == center.buf));
    assert_eq!(order.end_of(center.buf, ends.unwrap()), 3);
}

#[test]
fn a_fold_of_which_no_element_depends_is_none() {
    let mut n = norm();
    let [_, root] = n.center();
    let columns = n.column(Monoid::Sum, &n.sum.clone(), DType::F32);
    n.b.output("root", &root);
    n.b.output("columns", &columns);
    let plan = n.b.finish();
    // The center depends on the mean; and a sum over all rows of what the group computes belongs to it.
    assert_eq!(only(&found(&plan)).steps, [0, 1, 2, 3, 4, 5, 6]);
    let mut n = norm();
    let (mean, sum) = (n.of_rows(), n.sum.clone());
    n.b.reduce("mean", Monoid::Sum, &sum, &mean);
    n.b.output("mean", &mean);
    assert!(found(&n.b.finish()).at.is_empty());
}

#[test]
fn a_product_in_between_and_a_sum_over_devices_end_it() {
    // The divisor is a product of the dividend.
    let mut n = norm();
    let [center, root] = n.center();
    let (w, product) = (n.b.whole(DType::F32, &[n.n]), n.of_rows());
    n.b.leaf(ProgramInputKind::Param, "w", &w);
    n.b.contract("product", &center, &w, &product);
    let by_product = n.map([&center, &product], BinaryFn::Div);
    let by_root = n.map([&center, &root], BinaryFn::Div);
    n.b.output("by_product", &by_product);
    n.b.output("by_root", &by_root);
    assert_eq!(only(&found(&n.b.finish())).steps, [0, 1, 2, 3, 4, 5]);
    let mut n = norm();
    let [center, root] = n.center();
    let all = n.b.all_reduce("all", Monoid::Sum, &[Axis(0)], &[&root]).remove(0);
    let normed = n.map([&center, &all], BinaryFn::Div);
    n.b.output("normed", &normed);
    assert_eq!(only(&found(&n.b.finish())).steps, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn cross_entropy_and_its_gradient_are_one_and_alone_it_is_one_too() {
    let mut n = norm();
    let (label, scale) = (n.b.whole(DType::I32, &[n.row]), n.of_rows());
    n.b.leaf(ProgramInputKind::Input, "label", &label);
    n.b.leaf(ProgramInputKind::Input, "scale", &scale);
    let (each, loss, sum) = (n.of_rows(), n.b.whole(DType::F32, &[]), n.sum.clone());
    let dim = n.n;
    n.b.step("each", Prim::CrossEntropy { dim }, &[&sum, &label], &[&each]);
    n.b.reduce("loss", Monoid::Sum, &each, &loss);
    let grad = n.b.like(&n.x.clone());
    n.b.step("grad", Prim::CrossEntropyGrad { dim }, &[&sum, &label, &scale], &[&grad]);
    let half = n.b.like(&grad);
    n.b.map("half", &[&grad], &half, |e, r| {
        let number = e.constant(0.5, DType::F32);
        e.binary(BinaryFn::Mul, r[0], number)
    });
    n.b.output("loss", &loss);
    n.b.output("half", &half);
    let plan = n.b.finish();
    let groups = found(&plan);
    assert_eq!((&only(&groups).steps[..], &only(&groups).after[..]), (&[0, 1, 3, 4][..], &[2][..]));
    // If the device has no kernel for more than one step.
    let alone: FusedGroups = row_groups(
        &DefUse::of(&plan),
        &SortedSet::new(),
        |g| any(g).filter(|_| g.steps.len() == 1),
        |_| true,
    )
    .into_iter()
    .collect();
    assert_eq!(alone.at.keys().copied().collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn the_norm_of_a_parameter_is_none() {
    let mut b = Builder::new(&Mesh::new([] as [(&str, usize); 0]));
    let n = b.dim("n", 8);
    let (p, norm, scaled) = (b.whole(DType::F32, &[n]), b.whole(DType::F32, &[]), b.whole(DType::F32, &[n]));
    b.leaf(ProgramInputKind::Input, "p", &p);
    b.reduce("norm", Monoid::Sum, &p, &norm);
    b.map("scaled", &[&p, &norm], &scaled, |e, r| e.binary(BinaryFn::Div, r[0], r[1]));
    b.output("scaled", &scaled);
    assert!(found(&b.finish()).at.is_empty());
}

/// `P = x * w`, to which a row's softmax is added, which a group makes after the product.
#[test]
fn a_product_adds_nothing_that_a_group_makes_later() {
    let mut b = Builder::new(&Mesh::new([] as [(&str, usize); 0]));
    let [n, k, out] = [("n", 4), ("k", 6), ("out", 8)].map(|(name, size)| b.dim(name, size));
    let (x, w, v) =
        (b.whole(DType::F32, &[n, k]), b.whole(DType::F32, &[k, out]), b.whole(DType::F32, &[out]));
    for (name, value) in [("x", &x), ("w", &w), ("v", &v)] {
        b.leaf(ProgramInputKind::Input, name, value);
    }
    let (soft, half) = (b.like(&v), b.like(&v));
    let (product, sum) = (b.whole(DType::F32, &[n, out]), b.whole(DType::F32, &[n, out]));
    b.step("soft", Prim::Softmax { dim: out, log: false }, &[&v], &[&soft]);
    b.contract("product", &x, &w, &product);
    b.map("sum", &[&product, &soft], &sum, |e, r| e.binary(BinaryFn::Add, r[0], r[1]));
    b.map("half", &[&soft], &half, |e, r| {
        let number = e.constant(0.5, DType::F32);
        e.binary(BinaryFn::Mul, r[0], number)
    });
    b.output("sum", &sum);
    b.output("half", &half);
    let plan = b.finish();
    let (uses, rows) = (DefUse::of(&plan), found(&plan));
    assert_eq!((&only(&rows).steps[..], &only(&rows).after[..]), (&[0, 3][..], &[2][..]));
    let with = |fused: FusedGroups| {
        let order = StepOrder::of(&uses, &fused, &InlinedValues::default(), false);
        Decisions { fused, order, ..Decisions::default() }
    };
    let grouped = with(rows);
    assert_eq!(grouped.order.steps, [1, 0, 3, 2]);
    let of = |d: &Decisions| {
        let taken = (&d.residuals, &d.masks, &d.fused, &d.inlined);
        Epilogues::of(&uses, taken, &d.order, |_| true).at.len()
    };
    assert_eq!(of(&grouped), 0);
    // If it is computed before, it is a bias.
    assert_eq!(of(&with(FusedGroups::default())), 1);
}
