//! `repeat`: what is carried, what is taken at the iteration, the dims of parameters, and the mistakes.

use super::*;
use meshwright_ops::{Crossing, Type};

const HEAD: &str = "
dim batch = 6, layers = 3, d = 4, e = 5
layer dense(x, in, out) {
    param w[in, out] = normal(0, 1)
    return sum[in](x * w)
}
model m {
    input x[batch, d]: float
    input more[batch]: i32
    param rate[layers] = 1
    let y = x
";

fn one(body: &str) -> Program {
    program(&format!("{HEAD}{body}\n}}\n"))
}

fn wrong(body: &str) -> String {
    errors(&format!("{HEAD}{body}\n}}\n"))
}

/// The parameters, each with its dims, how many of them are of loops first.
fn params(body: &str) -> Vec<String> {
    let p = one(body);
    let names = |t: &Type| t.dims.iter().map(|d| p.graph.dims.name(*d).to_string()).collect::<Vec<_>>();
    p.params.iter().map(|d| format!("{}{:?} {}", d.path, names(p.graph.ty(d.id)), d.stack)).collect()
}

#[test]
fn parameters_have_a_value_for_each_iteration() {
    let found = params("repeat layers { param b[d] = 0 y = tanh(dense(y, [d], [e]) as up)[e = 0] + b }");
    assert_eq!(
        found,
        ["rate[\"layers\"] 0", "layers.b[\"layers\", \"d\"] 1", "layers.up.w[\"layers\", \"d\", \"e\"] 1"]
    );
}

#[test]
fn a_loop_carries_what_is_assigned() {
    let p = one(
        "let n = 0 repeat layers as i { y = y * rate + cast(i, float) n = n + sum[d](y) } output out = n",
    );
    let r = &p.graph.repeats.iter().next().unwrap();
    let dims = |id| p.graph.ty(id).dims.len();
    let carries: Vec<_> = r.carries.iter().map(|(c, next)| (dims(*c), dims(*next))).collect();
    assert_eq!(carries, [(1, 1), (2, 2)]);
    let count = |how| p.graph.ids().filter(|id| p.graph.boundary(*id).is_some_and(|b| b.how == how)).count();
    // Of `rate`, and of the position.
    assert_eq!((count(Crossing::Slice), count(Crossing::Final)), (2, 2));
}

/// A number takes the dtype and the dims of what it becomes, whatever they are and wherever they come from.
#[test]
fn carried_numbers_take_the_type_of_what_they_become() {
    let kind = |body: &str| {
        let p = one(body);
        let ty = p.graph.ty(p.outputs[0].id);
        let dims: Vec<&str> = ty.dims.iter().map(|d| p.graph.dims.name(*d)).collect();
        (format!("{} {}", ty.dtype, dims.join(" ")), p.graph.ids().count())
    };
    for (body, of) in [
        ("let n = 0 repeat layers as i { n = n + more * i } output out = n", "i32 batch"),
        ("let n = 0 repeat layers { repeat e { n = n + x } } output out = n", "f32 batch d"),
        ("let n = 0 repeat layers as i { repeat e { n = n + more * i } } output out = n", "i32 batch"),
        ("let n = 0 repeat layers { repeat e { n = n + 1 } n = n + x } output out = n", "f32 batch d"),
        (
            "let n = 0 repeat layers { let k = 0 repeat e { k = k + x } n = n + k } output out = n",
            "f32 batch d",
        ),
        ("let a = 0 let b = 0 repeat layers { a = a + b b = b + x } output out = a", "f32 batch d"),
        ("let a = 0 let b = 0 repeat layers { a = a + exp(b) b = b + x } output out = a", "f32 batch d"),
        (
            "let a = 0 let b = 0 let c = 0 repeat layers { a = b b = c c = c + more } output out = a",
            "i32 batch",
        ),
        ("let a = false repeat layers { a = a or x > 0 } output out = a", "bool batch d"),
        ("let a = false repeat layers { a = not a } output out = a", "bool "),
        ("let a = 1 repeat layers { a = a * 2 } output out = a", "f32 "),
        ("let a = 1 repeat layers { a = where(a < 2, a + 1, a + x) } output out = a", "f32 batch d"),
        ("let a = 0 scan batch { a = a + more let each = a } output out = each", "i32 batch"),
    ] {
        let (found, values) = kind(body);
        assert_eq!(found, of, "{body}");
        // Trials leave nothing behind.
        assert!(values < 25, "{body}: {values} values");
    }
}

#[test]
fn numbers_that_what_they_become_does_not_have() {
    for (body, text) in [
        (
            "let n = 0.5 repeat layers { n = more } output out = n",
            "0.5 meets a value of i32: it is no integer",
        ),
        ("let n = 0 repeat layers as i { n = n + i n = 0.5 } output out = n", "`+` of f32 and i32"),
        ("let n = 3000000000 repeat layers { n = more } output out = n", "`n` is 3000000000 and of i32"),
        ("let a = 0 let b = 0 repeat layers { a = a + more b = b + a + x }", "`+` of f32 and i32"),
    ] {
        let found = wrong(body);
        assert!(found.contains(text), "{body}: {found}");
    }
}

#[test]
fn iterations_of_a_scan_share_their_parameters() {
    let body = "let h = 0 scan batch { h = tanh(sum[e](dense(x, [d], [e]) as in) + h) let each = h let same = 2 * rate } \
                output a = h output b = each output c = same";
    assert_eq!(params(body), ["rate[\"layers\"] 0", "in.w[\"d\", \"e\"] 0"]);
    let p = one(body);
    let names = |k: usize| {
        let ty = p.graph.ty(p.outputs[k].id);
        ty.dims.iter().map(|d| p.graph.dims.name(*d)).collect::<Vec<_>>()
    };
    assert_eq!((names(0), names(1), names(2)), (vec![], vec!["batch"], vec!["batch", "layers"]));
    // In a loop with parameters of its own there is one for each of its iterations.
    let nested =
        "repeat layers { let h = 0 scan batch { h = h + sum[e](dense(x, [d], [e]) as in) } y = y + h }";
    assert_eq!(params(nested), ["rate[\"layers\"] 0", "layers.in.w[\"layers\", \"d\", \"e\"] 1"]);
}

#[test]
fn sums_that_a_loop_carries_on_are_sums_over_its_iterations() {
    let crossings = |body: &str| {
        let p = crate::specialized(&one(body), true);
        let how = |id| p.graph.boundary(id).map(|b| b.how);
        let all: Vec<Crossing> = p.graph.ids().filter_map(how).collect();
        let count = |how: Crossing| all.iter().filter(|h| **h == how).count();
        (p.graph.repeats.iter().map(|r| r.carries.len()).sum::<usize>(), count(Crossing::Accumulate))
    };
    let sum = "let n = 0 repeat layers { y = tanh(y) n = n + sum[d](y) } output out = n output last = y";
    assert_eq!(crossings(sum), (1, 1));
    // What starts with another number, is read in the body, or gets dims on the way, is carried on.
    assert_eq!(crossings(&sum.replace("n = 0", "n = 1")), (2, 0));
    assert_eq!(crossings(&sum.replace("tanh(y)", "tanh(y) * n")), (2, 0));
    assert_eq!(crossings(&sum.replace("n + sum", "n * 2 + sum")), (2, 0));
}

#[test]
fn a_loop_that_nothing_reads_is_gone() {
    // There is no loss: an evaluation computes nothing.
    let p = one("repeat layers { y = y * rate } output out = y");
    let step = crate::evaluation(&p).0.unwrap().step;
    assert_eq!(crate::passes::normalize::dead_code(&step).graph.ids().count(), 0);
}

#[test]
fn mistakes() {
    let all = [
        (
            "repeat layers { let z = y param w[layers, d] = 0 z = z * 2 } output out = y",
            "E0203 a value inside of `repeat layers` has the dim `layers`\nE0218 `z` is not declared before this `repeat`, so it cannot be carried",
        ),
        (
            "repeat layers { y = sum[d](y) } output out = y",
            "E0203 `y` is f32 [batch d] before an iteration and f32 [batch] after it",
        ),
        (
            "repeat layers { let z = y * index(e) } output out = y",
            "E0202 `*` of f32 and i32: they need one dtype",
        ),
        (
            "let n = more repeat layers { n = cast(n, float) * 0.5 } output out = n",
            "E0202 `n` is i32 [batch] before an iteration and f32 [batch] after it",
        ),
        (
            "repeat layers { repeat layers { y = y + 1 } } output out = y",
            "E0203 `repeat layers` stands inside of another `repeat layers`",
        ),
        (
            "let z = rate repeat layers { z = z + 1 } output out = z",
            "E0203 a value inside of `repeat layers` has the dim `layers`",
        ),
        ("repeat layers { x = x + 1 } output out = x", "E0218 `x` cannot be carried by `repeat`"),
        ("repeat layers { rate = 1 } output out = x", "E0218 `rate` cannot be carried by `repeat`"),
        (
            "scan layers { state s[d] = 0 s = s + 1 } output out = x",
            "E0218 state `s` is declared in a `scan`, which would give it a next value at each position",
        ),
        (
            "state s[d] = 0 repeat layers { s = s + 1 } s = s + 2 output out = x",
            "E0210 state `s` is given two next values",
        ),
        ("repeat layers { output out = y y = y + 1 }", "E0218 `output` stands inside of `repeat`"),
        (
            "repeat layers { let z = sum[layers](rate) y = y + z } output out = y",
            "E0203 `sum[layers]` in a loop over `layers`, where values are at one position of it",
        ),
        (
            "repeat layers { let z = rate[layers = 1] y = y + z } output out = y",
            "E0203 `[layers = …]` in a loop over `layers`, where values are at one position of it",
        ),
        ("scan layrs { let v = y y = y + 1 } output out = v", "E0201 there is no dim `layrs`"),
        ("scan layers { let v = y x = x + 1 } output out = v + x", "E0218 `x` cannot be carried by `repeat`"),
        (
            "repeat layers { d = y } output out = y",
            "E0218 `d` is not declared before this `repeat`, so it cannot be carried",
        ),
        ("y = y + 1 output out = y", "E0218 `y = …` stands outside of `repeat`"),
        (
            "let z = 1 z = z + 1 d = y output out = y",
            "E0218 `z = …` stands outside of `repeat`\nE0218 `d = …` stands outside of `repeat`",
        ),
        ("repeat layrs { y = y + 1 } output out = y", "E0201 there is no dim `layrs`"),
        ("repeat layers { let z = y } output out = z", "E0201 nothing is called `z` here"),
    ];
    for (text, expected) in all {
        let found = wrong(text);
        let first: Vec<&str> = found.lines().filter(|l| l.starts_with('E')).collect();
        assert_eq!(first.join("\n"), expected, "{text}");
    }
}

#[test]
fn loops_are_not_nested_without_end() {
    let nested = |n: usize| {
        let dims: String = (0..n).map(|i| format!("dim k{i} = 2\n")).collect();
        let open: String = (0..n).map(|i| format!("repeat k{i} {{ ")).collect();
        format!("{dims}{HEAD}{open} y = y + 1 {} output out = y\n}}\n", "} ".repeat(n))
    };
    assert_eq!(program(&nested(8)).graph.repeats.len(), 8);
    let found = errors(&nested(9));
    assert!(found.contains("E0219 more than 8 loops stand in each other"), "{found}");
}
