//! Random values, dropout, `training`, states, and initializers by fan.

use super::*;
use crate::{evaluation, training_step};
use meshwright_ops::{InputOpKind, Kind};
use meshwright_plan::Init;

const DIMS: &str = "dim batch = 6, seq = 4, d = 3, e = 5\n";

fn model(body: &str) -> Program {
    program(&format!(
        "{DIMS}model m {{ input x[batch, d]: float param w[d] = 1\n{body}\n}} train m {{ minimize l optimizer sgd(lr = 0.1) }}"
    ))
}

/// The streams of a program, in order.
fn streams(p: &Program) -> Vec<String> {
    let random = p.graph.nodes.iter().filter(|n| n.op.name() == "random");
    random.map(|n| n.op.detail().split('`').nth(1).unwrap().to_string()).collect()
}

/// Names of the ops that the outputs of a step need.
fn live(step: &crate::StepGraph) -> Vec<&'static str> {
    crate::passes::normalize::dead_code(step).graph.nodes.iter().map(|n| n.op.name()).collect()
}

#[test]
fn streams_are_called_by_their_source_path() {
    let layers = "layer noisy(x) { let y = dropout(x, 0.1) + dropout(x, 0.1) return dropout(y, 0.2) }
        layer block(x) { let a = noisy(x) return noisy(a) * random_uniform(0, 1) }";
    let body = "let a = block(x) as one let b = block(a) as two let c = block(b) as two
        loss l = mean[batch, d](dropout(c * w, 0.5) * random_normal[d](0, 1))";
    let p = program(&format!("{DIMS}{layers} model m {{ input x[batch, d]: float param w[d] = 1 {body} }}"));
    let all = streams(&p);
    let one = [
        "one.noisy.y/dropout",
        "one.noisy.y/dropout 2",
        "one.noisy/dropout",
        "one.noisy.y/dropout 3",
        "one.noisy.y/dropout 4",
        "one.noisy/dropout 2",
        "one/random_uniform",
    ];
    assert_eq!(all[..7], one);
    assert_eq!(all[7], "two.noisy.y/dropout");
    assert_eq!(all[all.len() - 2..], ["l/dropout", "l/random_normal"]);
    let mut unique = all.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), all.len(), "{all:?}");
}

#[test]
fn equal_draws_of_two_calls_are_two() {
    let p = model("let a = dropout(x, 0.5) let b = dropout(x, 0.5) loss l = mean[batch, d](a * b * w)");
    let step = training_step(&p).unwrap();
    let merged = crate::passes::normalize::common_subexpressions(&step, false);
    assert_eq!(live(&merged).iter().filter(|n| **n == "random").count(), 2);
}

#[test]
fn dropout_is_in_training_alone() {
    let p = model("let a = dropout(x * w, 0.25, shared = [d]) loss l = mean[batch, d](a)");
    let train = live(&training_step(&p).unwrap());
    assert!(train.contains(&"random") && train.contains(&"mask") && !train.contains(&"where"), "{train:?}");
    let eval = live(&evaluation(&p).0.unwrap().step);
    assert!(!eval.iter().any(|n| ["random", "mask", "where", "training"].contains(n)), "{eval:?}");
    let mask = p.graph.nodes.iter().find(|n| n.op.name() == "random").unwrap();
    assert_eq!(p.graph.dims.list(&mask.ty.dims), "[batch]");
    // Nothing is dropped: no mask at all.
    assert!(streams(&model("loss l = mean[batch, d](dropout(x * w, 0))")).is_empty());
}

#[test]
fn training_decides_what_is_known_from_it() {
    let p = model(
        "let on = training and not false
        let a = where(not on, x, w)
        let b = where(training, exp(x), log(x)) * (2 - training)
        loss l = mean[batch, d](a * b)",
    );
    let (train, eval) = (live(&training_step(&p).unwrap()), live(&evaluation(&p).0.unwrap().step));
    for (names, has, lacks) in [(&train, "exp", "log"), (&eval, "log", "exp")] {
        assert!(names.contains(&has) && !names.contains(&lacks), "{names:?}");
        assert!(!names.iter().any(|n| ["where", "training", "not", "and"].contains(n)), "{names:?}");
    }
    // `a` is `w` in training, along `batch` too.
    assert!(train.contains(&"expand"), "{train:?}");
}

#[test]
fn a_name_of_the_user_comes_before_training() {
    let p = model("let training = x < 0 loss l = mean[batch, d](where(training, x * w, x))");
    assert!(p.graph.nodes.iter().all(|n| n.op.name() != "training"));
}

#[test]
fn random_values_in_error() {
    same(
        &body(
            "let a = random_uniform[d, d](0, 1) let b = random_normal[d](0, -1) let c = random_uniform[d](x, 1)
            let f = random_uniform[d](1, 0) let g = random_normal[dd](0, 1) let h = random_normal[d](0)
            let i = dropout(x, 1) let j = dropout(x, -0.1) let k = dropout(label, 0.1) let n = dropout(2, 0.1)
            let o = dropout(x, 0.1, shared = [seq]) let p = dropout[d](x, 0.1) let q = dropuot(x, 0.1) let s = random_norml[d](0, 1)",
        ),
        "E0203 `random_uniform[…]` names `d` twice
          ^ `random_uniform[d, d](0, 1)`: a tensor never holds one dim twice
        E0214 `random_normal` with a standard deviation of -1: it is negative
          ^ `-1`: this is -1
        E0213 `low` of `random_uniform` must be a number known at compile time
          ^ `x`: a tensor, f32 [batch d]
          - `x`: `x` is declared here
          help: numbers, consts and `size(…)` are known at compile time
        E0214 `random_uniform` from 1 to 0: the low end is above the high end
          ^ `0`: this is 0
        E0201 there is no dim `dd`
          ^ `dd`: not declared
          - `d`: `d` is declared here
          fix: write `d`: `dd` -> `d`
        E0212 `random_normal` is called without `std`
          ^ `random_normal[d](0)`: `std` missing
          help: add `std = …`
        E0214 the rate of `dropout` is 1: it must be at least 0 and less than 1
          ^ `1`: the share of elements that are dropped
          help: `dropout(x, 0.1)` drops one element in ten
        E0214 the rate of `dropout` is -0.1: it must be at least 0 and less than 1
          ^ `-0.1`: the share of elements that are dropped
          help: `dropout(x, 0.1)` drops one element in ten
        E0202 `dropout` takes floats, not i32
          ^ `label`: this is i32 in vocab [batch]
          - `label`: `label` is declared here
          help: convert it: `cast(…, float)`
        E0213 `dropout` of a number: nothing would be drawn for each element
          ^ `2`: a number
          help: give it a tensor
        E0203 the mask is shared along `seq`, which the value lacks: it has [batch d]
          ^ `[seq]`: no dim of it
          - `x`: this is f32 [batch d]
          help: leave `seq` out
        E0212 `dropout` is not an op over dims
          ^ `dropout[d](x, 0.1)`: with dims
          help: it is written `dropout(x)`, without brackets
        E0201 no layer or function is called `dropuot`
          ^ `dropuot`: not known
          fix!: write `dropout`: `dropuot` -> `dropout`
        E0201 there is no op `random_norml` over dims
          ^ `random_norml`: not known
          fix!: write `random_normal`: `random_norml` -> `random_normal`",
    );
}

#[test]
fn random_values_stand_in_no_train_block() {
    let text = format!(
        "{DIMS}model m {{ input x[batch]: float param w[] = 1 loss l = mean[batch](x * w) }}
        train m {{ minimize l optimizer sgd(lr = random_uniform(0, 1)) }}"
    );
    same(
        &errors(&text),
        "E0213 `random_uniform` stands in a `train` block: random values are drawn in the model
          ^ `random_uniform(0, 1)`: not a number or a learning-rate schedule",
    );
}

#[test]
fn a_state_has_a_path_a_first_value_and_a_next() {
    let p = program(&format!(
        "{DIMS}layer count(x) {{ state n[] = 3 n = n + 1 return x * n }}
        model m {{ input x[batch, d]: float param w[d] = 1 state last[d, batch] = he_normal(d)
            let a = count(x) let b = count(a * w)
            last = x
            loss l = mean[batch, d](b + last) }}
        train m {{ minimize l optimizer adam(lr = 0.1) }}"
    ));
    let paths: Vec<&str> = p.states.iter().map(|s| s.path.as_str()).collect();
    assert_eq!(paths, ["last", "a.n", "b.n"]);
    assert!(p.states.iter().all(|s| s.next.is_some()));
    let Kind::Input(InputOpKind::State { init, .. }) = p.graph.node(p.states[1].id).op.kind() else {
        panic!()
    };
    assert_eq!(init, Init::Constant(3.0));
    let outputs: Vec<String> = training_step(&p).unwrap().outputs.into_iter().map(|g| g.name).collect();
    assert_eq!(outputs, ["l", "w/m", "w/v", "w", "last", "a.n", "b.n"]);
}

#[test]
fn states_in_error() {
    same(
        &errors(&format!(
            "{DIMS}layer keep(s, x) {{ s = x return x }}
            model m {{ input x[batch, d]: float
            state a[d] = 0 state b[d] = 0 state c[d] = 0 state f[d]: i32 = 0 state g[dd] = 0 state h[] = 0
            a = x b = mean[batch](x) b = mean[batch](x) * 2 c = mean[batch](x) > 0 g = 1 h = 2
            let i = h let y = keep(h, x)
            i = 3
            output o = x + a }}"
        )),
        "E0218 `s = …` stands outside of `repeat`
          ^ `s = x`: carries a value to the next iteration of a `repeat`, or a `state` to the next step
          - `s`: the value of this name
          - `keep(h, x)`: in this call of `keep`
          help: a name has one value: give the new one a name of its own, as in `let s2 = …`, and use that from here on
        E0202 a state is a float, not `i32`
          ^ `i32`: `float`, `f32` or `f64`
          help: leave the dtype out: a state is `float`
        E0201 there is no dim `dd`
          ^ `dd`: not declared
          - `d`: `d` is declared here
          fix: write `d`: `dd` -> `d`
        E0203 state `a` is f32 [d], its next value f32 [batch d]
          ^ `x`: this is f32 [batch d]
          - `a`: the state
          help: fold what the state lacks: `a = mean[batch](…)`
        E0210 state `b` is given two next values
          ^ `b`: again here
          - `b`: first here
          help: leave one of them out: a state has one value a step
        E0202 state `c` is f32 [d], its next value bool [d]
          ^ `mean[batch](x) > 0`: this is bool [d]
          - `c`: the state
          help: convert it: `c = cast(…, f32)`
        E0218 `i = …` stands outside of `repeat`
          ^ `i = 3`: carries a value to the next iteration of a `repeat`, or a `state` to the next step
          - `i`: the value of this name
          help: a name has one value: give the new one a name of its own, as in `let i2 = …`, and use that from here on",
    );
}

#[test]
fn a_state_that_nothing_changes_is_told_of() {
    same(
        &body("state s[d] = 0 let y = x + s"),
        "E0225 state `s` is never given a next value
          ^ `s`: keeps its first value
          help: give it one, `s = …`, or make it a `let`",
    );
}

#[test]
fn fans_give_first_values() {
    let init = |text: &str| {
        let p = program(&format!(
            "{DIMS}layer l(in, out) {{ param w[in, out] = {text} return sum[in, out](w) }}
            model m {{ output o = l([seq, d], [e]) }}"
        ));
        let Kind::Input(InputOpKind::Param { init, .. }) = p.graph.node(p.params[0].id).op.kind() else {
            panic!()
        };
        init
    };
    // 12 in, 5 out.
    let bound = (6.0f64 / 17.0).sqrt();
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-15, "{a} {b}");
    let Init::Uniform { low, high } = init("glorot_uniform(in, out)") else { panic!() };
    near(low, -bound);
    near(high, bound);
    let Init::Normal { mean, std } = init("glorot_normal(in, [out])") else { panic!() };
    assert_eq!(mean, 0.0);
    near(std, (2.0f64 / 17.0).sqrt());
    let Init::Uniform { high, .. } = init("he_uniform(in)") else { panic!() };
    near(high, 0.5f64.sqrt());
    let Init::Normal { std, .. } = init("he_normal([seq, d])") else { panic!() };
    near(std, (2.0f64 / 12.0).sqrt());
    let Init::Normal { std, .. } = init("he_normal(fan_in = d)") else { panic!() };
    near(std, (2.0f64 / 3.0).sqrt());
    same(
        &body("param w[d, e] = he_normal(seq) param v[d] = glorot_uniform(d) param u[d] = he_normal(3)"),
        "E0203 `he_normal` counts `seq`, but `w` has the dims [d e]
          ^ `seq`: no dim of `w`
          help: name the dims of `w` that are summed, and those that the result has; or write the numbers: `normal(0, 1 / sqrt(size(seq)))`
        E0212 `glorot_uniform` is called without `fan_out`
          ^ `glorot_uniform(d)`: `fan_out` missing
          help: add `fan_out = …`
        E0213 `he_normal` takes dims
          ^ `3`: no dim",
    );
}
