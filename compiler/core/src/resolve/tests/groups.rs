//! Several losses and optimizers in a `train` block.

use super::*;
use crate::program::Turn;

const MODEL: &str = "
dim b = 2, d = 3
model m {
    input x[b, d]: float
    param u[d] = 1
    param v[d] = 2
    param w[d] = 3
    loss one = mean[b, d](x * u * v * w)
    loss two = mean[b, d](x + u + v + w)
    metric big = max[b, d](x)
}
";

fn spec(settings: &str) -> Program {
    program(&format!("{MODEL} train m {{ {settings} }}"))
}

fn mistakes(settings: &str) -> String {
    errors(&format!("{MODEL} train m {{ {settings} }}"))
}

fn of(p: &Program, f: impl Fn(&crate::ParamDecl) -> usize) -> Vec<usize> {
    p.params.iter().map(f).collect()
}

#[test]
fn each_parameter_has_a_loss_and_an_optimizer() {
    let p = spec(
        "minimize one of u minimize two every 2 optimizer sgd(lr = 1) group v, w { optimizer lion(lr = 2) }",
    );
    let train = p.train.as_ref().unwrap();
    assert_eq!((of(&p, |p| p.objective), of(&p, |p| p.optimizer)), (vec![0, 1, 1], vec![0, 1, 1]));
    let turns: Vec<Option<Turn>> = train.objectives.iter().map(|o| o.turn).collect();
    assert_eq!(turns, [None, Some(Turn { every: 2, from: 2 })]);
    assert_eq!(train.loss().name, "one");
    let names: Vec<&str> = train.optimizers.iter().map(|o| o.def.name).collect();
    assert_eq!(names, ["sgd", "lion"]);
    // No optimizer but those of groups; no loss but those of some; every step is no turn.
    let p = spec("minimize one of u, v every 1 freeze w group * { optimizer sgd(lr = 1) }");
    let train = p.train.as_ref().unwrap();
    assert_eq!((train.optimizers.len(), train.objectives[0].turn), (1, None));
    // The first turn may come later than one period.
    for (line, every, from) in [("every 1 from 4", 1, 4), ("every 2 from 7", 2, 7)] {
        let p = spec(&format!("minimize one {line} optimizer sgd(lr = 1)"));
        assert_eq!(p.train.as_ref().unwrap().objectives[0].turn, Some(Turn { every, from }));
    }
    let p = spec("minimize one optimizer sgd(lr = 1) ema 0.5 of u, w");
    assert_eq!(of(&p, |p| usize::from(p.averaged)), [1, 0, 1]);
}

#[test]
fn losses_and_groups_share_no_parameter() {
    same(
        &mistakes("minimize one of u, v minimize two of v, w optimizer sgd(lr = 1)"),
        "E0217 `v` is minimized twice: `v` matches it too
          ^ `v`: matches it
          - `minimize one of u, v`: this has it already
          help: write patterns that have no parameter in common",
    );
    same(
        &mistakes("minimize one optimizer sgd(lr = 1) group u { weight_decay 1 } group * { weight_decay 0 }"),
        "E0217 `u` is in a group twice: `*` matches it too
          ^ `*`: matches it
          - `u`: this has it already
          help: write patterns that have no parameter in common",
    );
    same(
        &mistakes("minimize one minimize two optimizer sgd(lr = 1)"),
        "E0210 `minimize` is said twice
          ^ `minimize two`: again here
          - `minimize one`: first here
          help: leave one of them out, or say which parameters each is for: `minimize LOSS of gen.*`",
    );
}

#[test]
fn no_parameter_is_forgotten() {
    same(
        &mistakes("minimize one of u optimizer sgd(lr = 1)"),
        "E0217 no loss is minimized for `v` and `w`
          ^ `minimize one of u`: the last of the losses
          help: name it in one of the lines, or keep it as it is: `freeze v`
          help: a line without `of` is for all parameters that no other line names",
    );
    same(
        &mistakes("minimize one group u { optimizer sgd(lr = 1) }"),
        "E0217 no optimizer trains `v` and `w`
          ^ `u`: the last of the groups
          help: add a line `optimizer sgd(lr = 0.1)` beside the groups: it trains all others",
    );
    same(
        &mistakes("minimize one optimizer sgd(lr = 1) freeze u ema 0.5 of u"),
        "E0217 there is nothing to average: none of these parameters is trained
          ^ `ema 0.5 of u`: has no effect
          help: leave it out",
    );
}

#[test]
fn numbers_of_turns_and_averages() {
    same(
        &mistakes("minimize one every 2 from 0 optimizer sgd(lr = 1)"),
        "E0217 `from` is 0: it must be a whole number from 1 to 1048576
          ^ `0`: must be a whole number from 1 to 1048576",
    );
    same(
        &mistakes("minimize one every 0.5 optimizer sgd(lr = 1) ema 1"),
        "E0217 `every` is 0.5: it must be a whole number from 1 to 1048576
          ^ `0.5`: must be a whole number from 1 to 1048576
        E0217 `ema` is 1: it must be at least 0 and less than 1
          ^ `1`: must be at least 0 and less than 1",
    );
    same(
        &mistakes("minimize one optimizer sgd(lr = 1) group u { clip global_norm = 1 }"),
        "E0217 `clip` stands in a `group`
          ^ `clip global_norm = 1`: not here
          help: a group has `optimizer` and `weight_decay`; move this out of it",
    );
    same(
        &mistakes(
            "minimize one optimizer sgd(lr = 1) group u { optimizer sgd(lr = 1, weight_decay = 1); weight_decay 2 }",
        ),
        "E0210 the weight decay is said twice
          ^ `2`: here
          - `1`: and here
          help: leave one of them out; `weight_decay except …` keeps the optimizer's",
    );
}

#[test]
fn the_decay_that_is_nearest_counts() {
    let decay = |settings: &str| {
        let p = spec(settings);
        let train = p.train.as_ref().unwrap();
        let value = |o: &crate::step::optimizers::Optimizer| {
            p.graph.constant_value(o.chosen.scalar("weight_decay")).unwrap()
        };
        train.optimizers.iter().map(value).collect::<Vec<_>>()
    };
    let own = "group u { optimizer sgd(lr = 1, weight_decay = 3) } group v { optimizer sgd(lr = 1) }";
    assert_eq!(decay(&format!("minimize one optimizer sgd(lr = 1) weight_decay 2 {own}")), [2.0, 3.0, 2.0]);
    let taken = "group u { weight_decay 4 } group v { weight_decay except w }";
    assert_eq!(
        decay(&format!("minimize one optimizer sgd(lr = 1, weight_decay = 2) {taken}")),
        [2.0, 4.0, 2.0]
    );
}

const STACK: &str = "
dim b = 2, d = 3, layers = 4, inner = 2
model m {
    input x[b, d]: float
    param v[d] = 2
    let h = x
    repeat layers {
        param w[d] = 1
        h = h * w
        repeat inner { param u[d] = 1  h = h * u }
    }
    loss one = mean[b, d](h * v)
}
";

fn stack(settings: &str) -> Program {
    program(&format!("{STACK} train m {{ minimize one {settings} }}"))
}

#[test]
fn parts_of_a_stack_have_their_own_settings() {
    let p = stack(
        "freeze layers[..2].* optimizer adam(lr = 1) group layers[2].* { weight_decay 0.1 except *.u } group layers[3].inner[1].* { optimizer adam(lr = 2) }",
    );
    let [v, w, u] = [0, 1, 2].map(|i| &p.params[i]);
    let parts =
        |p: &crate::ParamDecl| (p.frozen, p.frozen_at.len(), p.no_decay_at.len(), p.optimizer_at.len());
    assert_eq!((parts(v), parts(w), parts(u)), ((false, 0, 0, 0), (false, 1, 0, 1), (false, 1, 1, 2)));
    assert_eq!(u.optimizer_at[1].0.0.iter().map(|r| r.1.clone()).collect::<Vec<_>>(), [3..4, 1..2]);
    // All parts together are the whole.
    let p = stack("freeze layers[0..3].* freeze layers[3..].w, layers[3].inner[..].* optimizer sgd(lr = 1)");
    assert_eq!(
        p.params.iter().map(parts).collect::<Vec<_>>(),
        [(false, 0, 0, 0), (true, 0, 0, 0), (true, 0, 0, 0)]
    );
    let p = stack(
        "group v { optimizer sgd(lr = 1) } group layers[0..3].* { optimizer sgd(lr = 2) } group layers[3].* { optimizer sgd(lr = 3) }",
    );
    assert_eq!(of(&p, |p| p.optimizer), [0, 1, 1]);
}

#[test]
fn parts_that_cannot_be_are_refused() {
    let wrong = |settings: &str| errors(&format!("{STACK} train m {{ minimize one {settings} }}"));
    for (settings, why) in [
        ("optimizer sgd(lr = 1) freeze layers[2..5].*", "has no iterations 2..5 of `layers`"),
        ("optimizer sgd(lr = 1) freeze layers[2..2].*", "has no iterations 2..2 of `layers`"),
        ("optimizer sgd(lr = 1) freeze v[0..1]", "`v` is in no loop over `v`"),
        ("optimizer sgd(lr = 1) freeze layers.inner[0].w", "matches no parameter"),
        ("optimizer sgd(lr = 1) freeze layer[0].*", "matches no parameter"),
        (
            "optimizer sgd(lr = 1) group layers[0..2].* { weight_decay 1 } group layers[1].w { weight_decay 2 }",
            "`layers.w` is in a group twice",
        ),
        (
            "optimizer sgd(lr = 1) group layers[0..2].* { optimizer adam(lr = 1) }",
            "by optimizers of two kinds: `sgd` and `adam`",
        ),
        (
            "optimizer sgd(lr = 1, momentum = 0.9) group layers[0].* { optimizer sgd(lr = 1, momentum = 0.9, nesterov = true) }",
            "`sgd` with another `nesterov`",
        ),
        (
            "optimizer sgd(lr = cast(index(layers), float))",
            "`lr` differs along `layers`, and `v` is in no loop over it",
        ),
        ("optimizer sgd(lr = 1 + index(d))", "`lr` is not one float"),
        ("group v, layers[0..3].* { optimizer sgd(lr = 1) }", "no optimizer trains `layers.w`"),
        ("optimizer sgd(lr = 1) ema 0.9 of layers[0].*", "`ema` is of whole parameters"),
        ("of layers[0].* optimizer sgd(lr = 1)", "`minimize` is of whole parameters"),
    ] {
        assert!(wrong(settings).contains(why), "{settings}: {}", wrong(settings));
    }
}
