//! Epilogues of matmuls.

use super::plans::Builder;
use meshwright_device::decisions::Decisions;
use meshwright_device::decisions::def_use::DefUse;
use meshwright_device::kernels::matmul::EpilogueFunction;
use meshwright_device::passes::epilogues::{Epilogue, EpilogueKind, Epilogues, SummedBeside};
use meshwright_device::passes::step_order::StepOrder;
use meshwright_plan::expr::{BinaryFn, Expr, Reg, UnaryFn};
use meshwright_plan::{DType, Dim, Mesh, Monoid, Operand, Plan, Prim, ProgramInputKind};

fn found(plan: &Plan) -> Epilogues {
    found_by(plan, |_| true)
}

fn found_by(plan: &Plan, computes: impl Fn(&Epilogue) -> bool) -> Epilogues {
    let (uses, none) = (DefUse::of(plan), Decisions::default());
    let order = StepOrder::of(&uses, &none.fused, &none.inlined, false);
    Epilogues::of(&uses, (&none.residuals, &none.masks, &none.fused, &none.inlined), &order, computes)
}

struct Layer {
    b: Builder,
    dims: [Dim; 3],
    x: Operand,
    product: Operand,
}

/// `product[n, out] = sum[k](x * w)`.
fn layer() -> Layer {
    let mut b = Builder::new(&Mesh::new([] as [(&str, usize); 0]));
    let dims = [("n", 4), ("k", 6), ("out", 8)].map(|(name, size)| b.dim(name, size));
    let [n, k, out] = dims;
    let (x, w) = (b.whole(DType::F32, &[n, k]), b.whole(DType::F32, &[k, out]));
    b.leaf(ProgramInputKind::Input, "x", &x);
    b.leaf(ProgramInputKind::Param, "w", &w);
    let product = b.whole(DType::F32, &[n, out]);
    b.step("product", Prim::Contract, &[&x, &w], &[&product]);
    Layer { b, dims, x, product }
}

impl Layer {
    fn map(&mut self, reads: &[&Operand], f: impl FnOnce(&mut Expr, &[Reg]) -> Reg) -> Operand {
        let out = self.b.like(&self.product);
        self.b.map("y", reads, &out, f);
        out
    }

    fn bias(&mut self) -> Operand {
        let bias = self.b.whole(DType::F32, &[self.dims[2]]);
        self.b.leaf(ProgramInputKind::Param, "b", &bias);
        bias
    }
}

fn relu(e: &mut Expr, r: &[Reg]) -> Reg {
    let sum = e.binary(BinaryFn::Add, r[1], r[0]);
    e.unary(UnaryFn::Relu, sum)
}

fn map(function: EpilogueFunction, bias: Option<usize>) -> EpilogueKind {
    EpilogueKind::Map { function, product: 0, bias }
}

#[test]
fn a_bias_and_what_follows_it_are_done_by_the_product() {
    let mut l = layer();
    let (product, bias) = (l.product.clone(), l.bias());
    let y = l.map(&[&product, &bias], relu);
    l.b.output("y", &y);
    let all = found(&l.b.finish());
    let does = map(EpilogueFunction::Relu, Some(1));
    assert_eq!(all.at, [(0, Epilogue { product: 0, other: 1, before: vec![], after: vec![], does })].into());
    assert_eq!((all.moved, all.never), ([(1, 0)].into(), [product.buf].into()));
}

/// As users write it: with another order, and a power.
/// `x (1 + tanh(scale (x + 0.044715 x^3))) / 2`.
fn gelu(e: &mut Expr, x: Reg, scale: f64) -> Reg {
    let [three, small, scale, one, half] =
        [3.0, 0.044_715, scale, 1.0, 0.5].map(|x| e.constant(x, DType::F32));
    let cube = e.binary(BinaryFn::Pow, x, three);
    let cube = e.binary(BinaryFn::Mul, cube, small);
    let inner = e.binary(BinaryFn::Add, cube, x);
    let inner = e.binary(BinaryFn::Mul, inner, scale);
    let tanh = e.unary(UnaryFn::Tanh, inner);
    let sum = e.binary(BinaryFn::Add, tanh, one);
    let halved = e.binary(BinaryFn::Mul, sum, half);
    e.binary(BinaryFn::Mul, halved, x)
}

/// `sqrt(2 / pi)`.
const SCALE: f64 = 0.797_884_560_802_865_4;

#[test]
fn gelu_is_known_by_its_equation() {
    for scale in [SCALE, 0.8] {
        let mut l = layer();
        let product = l.product.clone();
        let y = l.map(&[&product], |e, r| gelu(e, r[0], scale));
        l.b.output("y", &y);
        let all = found(&l.b.finish());
        let does = all.at.get(&0).map(|e| e.does);
        assert_eq!(does, (scale < 0.799).then(|| map(EpilogueFunction::GeluTanh, None)));
    }
}

#[test]
fn what_something_else_reads_or_another_function_needs_stays_a_step() {
    // The product is an output too.
    let mut l = layer();
    let (product, bias) = (l.product.clone(), l.bias());
    let y = l.map(&[&product, &bias], relu);
    l.b.output("y", &y);
    l.b.output("product", &product);
    assert!(found(&l.b.finish()).at.is_empty());
    // Another function.
    let mut l = layer();
    let (product, bias) = (l.product.clone(), l.bias());
    let y = l.map(&[&product, &bias], |e, r| e.binary(BinaryFn::Mul, r[0], r[1]));
    l.b.output("y", &y);
    assert!(found(&l.b.finish()).at.is_empty());
}

/// Forward with a `relu`, and back through it: `dx = dy * w2`, where `y` was above 0, of which the columns are summed too.
#[test]
fn the_gradient_of_a_relu_reads_its_bits_and_a_factor_is_summed_by_the_product_that_reads_it() {
    let mut l = layer();
    let ([n, k, out], product, x) = (l.dims, l.product.clone(), l.x.clone());
    let y = l.map(&[&product], |e, r| e.unary(UnaryFn::Relu, r[0]));
    let to = l.b.dim("to", 3);
    let (dz, w2) = (l.b.whole(DType::F32, &[n, to]), l.b.whole(DType::F32, &[out, to]));
    l.b.leaf(ProgramInputKind::Input, "dz", &dz);
    l.b.leaf(ProgramInputKind::Param, "w2", &w2);
    let back = l.b.like(&product);
    l.b.step("back", Prim::Contract, &[&dz, &w2], &[&back]);
    let dy = l.map(&[&y, &back], |e, r| {
        let zero = e.constant(0.0, DType::F32);
        let above = e.binary(BinaryFn::Gt, r[0], zero);
        let through = e.cast(above, DType::F32);
        e.binary(BinaryFn::Mul, r[1], through)
    });
    let (db, dw) = (l.b.whole(DType::F32, &[out]), l.b.whole(DType::F32, &[k, out]));
    l.b.reduce("db", Monoid::Sum, &dy, &db);
    l.b.step("dw", Prim::Contract, &[&x, &dy], &[&dw]);
    l.b.output("db", &db);
    l.b.output("dw", &dw);
    let all = found(&l.b.finish());
    let does: Vec<(usize, EpilogueKind)> = all.at.iter().map(|(at, e)| (*at, e.does)).collect();
    let relu = map(EpilogueFunction::Relu, None);
    let grad = EpilogueKind::ReluGrad { product: 1, of: 1, forward: 0 };
    assert_eq!(does, [(0, relu), (2, grad), (5, EpilogueKind::FactorSums { factor: 1 })]);
    assert_eq!(all.keep_bits, [(1, 2)].into());
}

/// `gelu` of a product with a bias, which something else reads too: the product writes both.
#[test]
fn a_gelu_is_written_beside_what_it_is_applied_to() {
    for kept in [false, true] {
        let mut l = layer();
        let (product, bias) = (l.product.clone(), l.bias());
        let x = l.map(&[&product, &bias], |e, r| e.binary(BinaryFn::Add, r[0], r[1]));
        let y = l.map(&[&x], |e, r| gelu(e, r[0], SCALE));
        l.b.output("y", &y);
        if kept {
            l.b.output("x", &x);
        }
        let all = found(&l.b.finish());
        let does = EpilogueKind::GeluKeeping { product: 0, bias: 1, gelu: 2 };
        assert_eq!(all.at[&0].does, does);
        assert_eq!(all.moved, [(1, 0), (2, 0)].into());
        assert_eq!(all.at[&0].others().collect::<Vec<_>>(), [1, 2]);
        // The product alone is nowhere, what the `gelu` is applied to is.
        assert_eq!(all.never, [product.buf].into());
    }
}

/// `dx` of `gelu(x)`, in the terms of the chain rule, with `x` taken out of a stack between the product and the map.
#[test]
fn the_gradient_of_a_gelu_reads_what_it_was_applied_to() {
    for reads_twice in [false, true] {
        let mut l = layer();
        let ([n, k, out], product) = (l.dims, l.product.clone());
        let stack = l.b.whole(DType::F32, &[k, n, out]);
        l.b.leaf(ProgramInputKind::Input, "stack", &stack);
        let slice = Prim::IterationSlice { dim: k };
        let x = l.b.like(&product);
        l.b.step("x", slice.clone(), &[&stack], &[&x]);
        if reads_twice {
            let again = l.b.like(&product);
            l.b.step("again", slice, &[&stack], &[&again]);
            l.b.output("again", &again);
        }
        let dx = l.map(&[&x, &product], |e, r| {
            let [half, one, three, small, scale] =
                [0.5, 1.0, 3.0, 0.044_715, 0.797_884_560_802_865_4].map(|x| e.constant(x, DType::F32));
            let times = |e: &mut Expr, a, b| e.binary(BinaryFn::Mul, a, b);
            let cube = e.binary(BinaryFn::Pow, r[0], three);
            let cube = times(e, cube, small);
            let inner = e.binary(BinaryFn::Add, r[0], cube);
            let inner = times(e, inner, scale);
            let tanh = e.unary(UnaryFn::Tanh, inner);
            let square = times(e, tanh, tanh);
            let negative = e.unary(UnaryFn::Neg, square);
            let slope = e.binary(BinaryFn::Add, negative, one);
            let halved = times(e, r[0], half);
            let to_tanh = times(e, r[1], halved);
            let to_inner = times(e, to_tanh, slope);
            let linear = times(e, to_inner, scale);
            let cubic = times(e, linear, small);
            let squared = times(e, r[0], r[0]);
            let cubic = times(e, cubic, squared);
            let cubic = times(e, cubic, three);
            let sum = e.binary(BinaryFn::Add, one, tanh);
            let outer = times(e, r[1], sum);
            let outer = times(e, outer, half);
            let both = e.binary(BinaryFn::Add, linear, cubic);
            e.binary(BinaryFn::Add, both, outer)
        });
        l.b.output("dx", &dx);
        let all = found(&l.b.finish());
        let does = EpilogueKind::GeluGrad { product: 1, operand: 0 };
        let epilogue = Epilogue { product: 0, other: 2, before: vec![1], after: vec![], does };
        // Whoever takes a value out of a stack last ends it, so neither of two can go first.
        let expected = if reads_twice { [].into() } else { [(0, epilogue)].into() };
        assert_eq!(all.at, expected);
    }
}

/// The product of a layer, in a loop that sums it in a stack: the slice is taken before the product.
#[test]
fn a_product_is_added_to_a_value_that_ends_there() {
    for (read_again, stacked) in [(false, false), (true, false), (false, true)] {
        let mut l = layer();
        let ([n, k, out], product) = (l.dims, l.product.clone());
        let slice = |l: &mut Layer| {
            let stack = l.b.whole(DType::F32, &[k, n, out]);
            l.b.leaf(ProgramInputKind::Input, "stack", &stack);
            let value = l.b.like(&product);
            l.b.step("value", Prim::IterationSlice { dim: k }, &[&stack], &[&value]);
            value
        };
        let value = if stacked {
            slice(&mut l)
        } else {
            let value = l.b.like(&product);
            l.b.leaf(ProgramInputKind::Input, "value", &value);
            value
        };
        let sum = l.map(&[&value, &product], |e, r| e.binary(BinaryFn::Add, r[1], r[0]));
        l.b.output("sum", &sum);
        if read_again {
            l.b.output("value", &value);
        }
        let all = found_by(&l.b.finish(), |e| !matches!(e.does, EpilogueKind::Map { .. }));
        let does = EpilogueKind::Adds { product: 1, sums: None };
        let (other, before) = if stacked { (2, vec![1]) } else { (1, vec![]) };
        let epilogue = Epilogue { product: 0, other, before, after: vec![], does };
        let expected = if read_again { [].into() } else { [(0, epilogue)].into() };
        assert_eq!(all.at, expected);
        let ends: Vec<_> = if read_again { vec![] } else { vec![(value.buf, 0)] };
        assert_eq!(all.added.into_iter().collect::<Vec<_>>(), ends);
    }
}

/// A gradient is added to the sum so far, and the same kernel computes the gradient of the bias.
#[test]
fn a_product_that_is_added_sums_a_factor_too() {
    let mut l = layer();
    let ([n, ..], product, x) = (l.dims, l.product.clone(), l.x.clone());
    let value = l.b.like(&product);
    l.b.leaf(ProgramInputKind::Input, "value", &value);
    let rows = l.b.whole(DType::F32, &[n]);
    l.b.reduce("rows", Monoid::Sum, &x, &rows);
    let sum = l.map(&[&product, &value], |e, r| e.binary(BinaryFn::Add, r[0], r[1]));
    l.b.output("sum", &sum);
    l.b.output("rows", &rows);
    let all = found_by(&l.b.finish(), |e| !matches!(e.does, EpilogueKind::Map { .. }));
    let sums = Some(SummedBeside { step: 1, factor: 0 });
    assert_eq!(all.at[&0].does, EpilogueKind::Adds { product: 0, sums });
    assert_eq!(all.at[&0].others().collect::<Vec<_>>(), [2, 1]);
}
