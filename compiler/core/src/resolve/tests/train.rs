//! `train` blocks.

use super::*;
use crate::program::ClipSpec;
use crate::step::optimizers::{self, Choices, OPTIMIZERS};
use meshwright_ops::{F64Tensor, Graph, Id};
use meshwright_plan::{Arithmetic, DType, Phase};

const MODEL: &str = "
dim b = 2, d = 3, e = 4
layer dense(x, in, out) {
    param w[in, out] = normal(0, 1)
    param b[out] = 0
    return sum[in](x * w) + b
}
const rate = 0.25
model m {
    input x[b, d]: float
    let h = dense(x, [d], [e])
    let y = dense(h, [e], [d])
    loss l = mean[b, d](y * y)
    metric big = max[b, d](y)
}
";

fn trained(settings: &str) -> Program {
    program(&format!("{MODEL} train m {{ minimize l {settings} }}"))
}

fn mistakes(settings: &str) -> String {
    errors(&format!("{MODEL} train m {{ {settings} }}"))
}

/// A scalar of the graph at a step, by the ops' oracles.
fn at_step(g: &Graph, id: Id, step: f64) -> f64 {
    let n = g.node(id);
    if n.op.name() == "step" {
        return step;
    }
    let x: Vec<F64Tensor> = n.inputs.iter().map(|i| F64Tensor::scalar(at_step(g, *i, step))).collect();
    let refs: Vec<&F64Tensor> = x.iter().collect();
    n.op.oracle(&refs, &n.ty, &g.dims).data[0]
}

fn lr(settings: &str, step: f64) -> f64 {
    let p = trained(&format!("optimizer sgd(lr = {settings})"));
    let lr = p.train.unwrap().optimizers[0].chosen.scalar("lr");
    assert_eq!(p.graph.node(lr).origin.phase, Phase::Update);
    at_step(&p.graph, lr, step)
}

#[test]
fn optimizers_have_their_defaults() {
    let p = trained("optimizer adamw(lr = rate, beta2 = 0.99) clip global_norm = 2 precision f64");
    assert_eq!(p.float, Arithmetic::F64);
    let t = p.train.unwrap();
    assert_eq!((t.loss().name.as_str(), t.clip), ("l", Some(ClipSpec::GlobalNorm(2.0))));
    assert_eq!(t.optimizers[0].def.name, "adamw");
    let value = |c: &Choices, name: &str, g: &Graph| at_step(g, c.scalar(name), 1.0);
    let values = ["lr", "beta1", "beta2", "eps", "weight_decay"];
    assert_eq!(values.map(|n| value(&t.optimizers[0].chosen, n, &p.graph)), [0.25, 0.9, 0.99, 1e-8, 0.01]);
    let p = trained("optimizer sgd(0.5, momentum = 0.9, nesterov = true)");
    let c = p.train.unwrap().optimizers.remove(0).chosen;
    assert_eq!((value(&c, "momentum", &p.graph), c.flag("nesterov")), (0.9, true));
    assert_eq!(c.nonzero("weight_decay"), None);
    let p = trained("optimizer sgd(lr = 1)");
    let c = p.train.unwrap().optimizers.remove(0).chosen;
    assert_eq!((c.nonzero("momentum"), c.flag("nesterov")), (None, false));
    let p = trained("optimizer adafactor(clip = false, min_factored = 2)");
    let c = p.train.unwrap().optimizers.remove(0).chosen;
    assert_eq!((c.nonzero("clip"), c.nonzero("beta1"), c.count("min_factored")), (None, None, 2));
    assert_eq!((value(&c, "lr", &p.graph), c.written("lr"), c.flag("factored")), (0.01, false, true));
}

#[test]
fn the_command_line_sets_the_precision() {
    let text = format!("{MODEL} train m {{ minimize l optimizer sgd(lr = 1) precision bf16 }}");
    let p = program_with(&text, &Settings { float: Some(Arithmetic::F64), ..Settings::default() });
    assert_eq!(p.float, Arithmetic::F64);
    assert_eq!(p.graph.ty(p.params[0].id).dtype, DType::F64);
    // Built in `f32`; what is stored as `bf16` is decided on the whole step.
    let p = program(&text);
    assert_eq!((p.float, p.graph.ty(p.params[0].id).dtype), (Arithmetic::BF16, DType::F32));
}

#[test]
fn f16_has_settings() {
    let scaling = |precision: &str, float| {
        let text = format!("{MODEL} train m {{ minimize l optimizer sgd(lr = 1) {precision} }}");
        let p = program_with(&text, &Settings { float, ..Settings::default() });
        let scaling = p.train.unwrap().scaling;
        (p.float, scaling.scale, scaling.growth)
    };
    assert_eq!(scaling("precision f16", None), (Arithmetic::F16, 65536.0, 2000.0));
    assert_eq!(scaling("precision f16(growth = 5 * 10)", None), (Arithmetic::F16, 65536.0, 50.0));
    assert_eq!(scaling("precision f16(2 ** 4, 7)", None), (Arithmetic::F16, 16.0, 7.0));
    assert_eq!(scaling("precision bf16", Some(Arithmetic::F16)), (Arithmetic::F16, 65536.0, 2000.0));
    // A run in another precision leaves them aside.
    assert_eq!(scaling("precision f16(scale = 8)", Some(Arithmetic::F32)).0, Arithmetic::F32);
}

#[test]
fn schedules_are_expressions_of_the_step() {
    assert_eq!(lr("rate / (1 + step)", 3.0), 0.0625);
    assert_eq!(lr("min(step / 10, sqrt(10 / step))", 40.0), 0.5);
    assert_eq!(lr("constant(0.3)", 9.0), 0.3);
    let linear = "warmup_linear(peak = 2, warmup = 10, total = 110)";
    assert_eq!([1.0, 10.0, 60.0, 110.0, 500.0].map(|s| lr(linear, s)), [0.2, 2.0, 1.0, 0.0, 0.0]);
    let cosine = "warmup_cosine(2, 10, 110, floor = 0.5)";
    for step in [1.0, 5.0, 10.0, 11.0, 35.0, 60.0, 99.0, 110.0, 200.0] {
        let part = ((step - 10.0) / 100.0f64).clamp(0.0, 1.0);
        let fall = 0.5 + 1.5 * (1.0 + (std::f64::consts::PI * part).cos()) / 2.0;
        let expected = if step < 10.0 { 2.0 * step / 10.0 } else { fall };
        assert!((lr(cosine, step) - expected).abs() < 4e-16, "{step}: {} {expected}", lr(cosine, step));
    }
}

#[test]
fn patterns_choose_parameters() {
    let p = trained("optimizer sgd(lr = 1, weight_decay = 0.1) freeze h.* weight_decay except *.b");
    let flags: Vec<_> = p.params.iter().map(|p| (p.path.as_str(), p.frozen, p.no_decay)).collect();
    assert_eq!(
        flags,
        [("h.w", true, false), ("h.b", true, true), ("y.w", false, false), ("y.b", false, true)]
    );
    let p = trained("optimizer sgd(lr = 1) weight_decay 0.5 except y.*");
    let c = p.train.unwrap().optimizers.remove(0).chosen;
    assert_eq!(at_step(&p.graph, c.scalar("weight_decay"), 1.0), 0.5);
}

#[test]
fn a_pattern_matches_something() {
    same(
        &mistakes("minimize l optimizer sgd(lr = 1) freeze h weight_decay 0.1 except *.c"),
        "E0217 `h` matches no parameter
          ^ `h`: matches nothing
          note: parameters: h.w, h.b, y.w, y.b
          fix!: match all parameters below it: `h` -> `h.*`",
    );
}

#[test]
fn what_is_missing_or_misspelled_is_said() {
    same(
        &mistakes("minimize ll optimizer adan(lr = 1) clip norm = 1 precision f23"),
        "E0201 model `m` has no loss `ll`
          ^ `ll`: no such loss
          note: its losses: `l`
          fix: write `l`: `ll` -> `l`
        E0201 there is no optimizer `adan`
          ^ `adan`: not known
          note: optimizers: `sgd`, `adam`, `adamw`, `adafactor`, `lion` and `lamb`
          fix: write `adam`: `adan` -> `adam`
        E0201 there is no clipping by `norm`
          ^ `norm`: not known
          fix: clip by the norm of all gradients: `norm` -> `global_norm`
        E0201 there is no precision `f23`
          ^ `f23`: not known
          note: precisions: `f32`, `f64`, `bf16`, `f16`, `tf32` and `fp8`
          fix: write `f32`: `f23` -> `f32`",
    );
    same(
        &mistakes("minimize big optimizer shampoo(lr = 1)"),
        "E0217 `big` is minimized, but it is no loss
          ^ `big`: not a loss
          - `big`: declared here
          help: declare it as a loss: `loss big = …`
        E0190 optimizer `shampoo` is not implemented yet
          ^ `shampoo`: not in this version
          help: use `adam(lr = …)` or `sgd(lr = …, momentum = 0.9)` until then",
    );
    same(
        &mistakes("optimizer sgd(learning_rate = 1)"),
        "E0217 the `train` block of `m` does not say `minimize`
          ^ `m`: is trained
          help: add a line `minimize l`
        E0212 `sgd` has no parameter `learning_rate`
          ^ `learning_rate`: no such parameter
          note: `sgd` takes `lr`, `momentum`, `nesterov` and `weight_decay`
          fix!: write `lr`: `learning_rate` -> `lr`",
    );
    same(
        &mistakes("minimize l optimizer adam(lr = -1, beta1 = 1) optimizer sgd(lr = 1)"),
        "E0217 `lr` is -1: it must be 0 or more
          ^ `-1`: must be 0 or more
        E0217 `beta1` is 1: it must be at least 0 and less than 1
          ^ `1`: must be at least 0 and less than 1
        E0210 `optimizer` is said twice
          ^ `optimizer sgd(lr = 1)`: again here
          - `optimizer adam(lr = -1, beta1 = 1)`: first here
          help: leave one of them out",
    );
    same(
        &mistakes("minimize l optimizer sgd(lr = warmup_linear(1, 10, 5), nesterov = true)"),
        "E0217 `total` is 5: it must be more than `warmup`, which is 10
          ^ `5`: counted in steps
          - `10`: the warm-up",
    );
    same(
        &mistakes("minimize l optimizer sgd(lr = 1, nesterov = true) freeze *"),
        "E0217 there is no parameter to train: all of them are frozen
          ^ `m`: nothing to train
        E0217 `nesterov` looks ahead along the momentum, but there is none
          ^ `true`: without momentum
          help: add `momentum = 0.9`",
    );
}

#[test]
fn settings_are_in_their_ranges() {
    same(
        &mistakes(
            "minimize l optimizer adafactor(clip = -1, beta1 = 1.5, min_factored = 2.5, factored = 1, decay = 0)",
        ),
        "E0217 `clip` is -1: it must be more than 0
          ^ `-1`: must be more than 0
        E0217 `beta1` is 1.5: it must be at least 0 and less than 1
          ^ `1.5`: must be at least 0 and less than 1
        E0217 `min_factored` is 2.5: it must be a whole number, 0 or more
          ^ `2.5`: must be a whole number, 0 or more
        E0213 `factored` is 1: it must be `true` or `false`
          ^ `1`: a number
        E0217 `decay` is 0: it must be more than 0
          ^ `0`: must be more than 0",
    );
    same(
        &mistakes("minimize l optimizer adafactor(clip = 0, eps2 = true, lr = size(b) > 1)"),
        "E0217 `clip` is 0: it must be more than 0
          ^ `0`: must be more than 0
          help: `clip = false` switches it off
        E0213 `eps2` is true: it must be a number
          ^ `true`: a truth value
        E0213 `lr` is true: it must be a number
          ^ `size(b) > 1`: a truth value",
    );
    same(
        &mistakes("minimize l optimizer adafactor(factored = false, min_factored = 2)"),
        "E0217 `min_factored` says what is factored, but `factored` is false
          ^ `2`: has no effect
          help: leave one of them out",
    );
    same(
        &mistakes("minimize l optimizer lion(lr = 1) weight_decay except *.b"),
        "E0217 parameters are spared from weight decay, but `lion` has none
          ^ `weight_decay except *.b`: has no effect
          - `lion`: the optimizer
          help: give the decay: `weight_decay 0.01 except …`",
    );
}

#[test]
fn every_optimizer_is_resolved_with_its_defaults() {
    for o in OPTIMIZERS {
        let p = trained(&format!("optimizer {}(lr = 0.5)", o.name));
        let c = p.train.unwrap().optimizers.remove(0).chosen;
        assert!(c.written("lr") && !c.written("weight_decay"), "{}", o.name);
        assert_eq!(optimizers::find(o.name).unwrap().name, o.name);
    }
}

#[test]
fn a_block_names_a_model() {
    same(
        &errors(&format!("{MODEL} train n {{ minimize l optimizer sgd(lr = 1) }}")),
        "E0201 there is no model `n` to train
          ^ `n`: no such model
          note: models of this file: `m`
          fix!: write `m`: `n` -> `m`",
    );
}

#[test]
fn parameters_of_other_dtypes_are_updated_in_their_own() {
    let model = "dim b = 2, d = 3 model m { input x[b, d]: float param w[d]: f64 = 1 param v[d] = 1
        loss l = mean[b, d](x * cast(w, float) * v) }";
    for (name, settings) in [
        ("sgd", "momentum = 0.9, weight_decay = 0.1"),
        ("adam", "weight_decay = 0.1"),
        ("adamw", ""),
        ("adafactor", "beta1 = 0.9"),
        ("adafactor", "relative_step = true, min_factored = 1"),
        ("lion", ""),
        ("lamb", ""),
    ] {
        for lr in ["0.1", "cast(1 / step, f64)"] {
            let text = format!(
                "{model} train m {{ minimize l optimizer {name}(lr = {lr}, {settings}) clip global_norm(1.0) }}"
            );
            let step = crate::training_step(&program(&text)).unwrap();
            assert_eq!(crate::verify::verify_graph(&step), Vec::<String>::new(), "{name}");
        }
    }
}

#[test]
fn a_metric_says_which_way_is_better() {
    let text = "dim b = 2\nconst rate = 1, scale = 2, of = 2 * scale\nmodel m {\n input x[b]: float\n param w[] = of\n loss l = mean[b](x * w)\n metric min one = l\n metric max two = l\n metric min = l\n metric max max = l\n}\ntrain m { minimize l optimizer sgd(lr = rate * scale) }";
    let p = program(text);
    let ways: Vec<_> = p.metrics.iter().map(|m| (m.name.as_str(), m.better.map(|b| b.word()))).collect();
    assert_eq!(ways, [("one", Some("min")), ("two", Some("max")), ("min", None), ("max", Some("max"))]);
    assert_eq!(p.losses[0].better.map(|b| b.word()), Some("min"));
    // What the `train` block alone reads is not the model's.
    assert_eq!(p.model_consts.iter().collect::<Vec<_>>(), ["of"]);
}
