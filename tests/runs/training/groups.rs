//! Several optimizers, losses for some of the parameters, updates in turns and moving averages: against references, and as whole
//! trainings under several layouts.

use crate::layouts::agree::agrees;
use crate::support::{SMALL, Trained, folder, options, told, trained};
use crate::training::optimizers::{adam, as_the_reference, zip};
use meshwright_plan::Arithmetic;
use meshwright_runs::metrics::Evaluation;
use meshwright_train::{EvalOptions, Project, ProjectOptions, evaluate};
use std::path::Path;

#[test]
fn groups_have_optimizers_and_decay_of_their_own() {
    let line = "optimizer adam(lr = 0.1, beta1 = 0.8, beta2 = 0.95, eps = 1e-3)
        group w, v { optimizer sgd(lr = 0.5, momentum = 0.9); weight_decay 0.2 }
        group k { weight_decay 0.1 }";
    as_the_reference(line, &|p, g, t| {
        let decay = match p.name {
            "w" | "v" => 0.2,
            "k" => 0.1,
            _ => 0.0,
        };
        let g = zip(g, &p.x, |g, x| g + decay * x);
        if ["w", "v"].contains(&p.name) {
            let m = zip(&p.moment("m", g.len()), &g, |m, g| 0.9 * m + g);
            p.x = zip(&p.x, &m, |x, m| x - 0.5 * m);
            p.moments.insert("m", m);
        } else {
            let step = adam(p, &g, t, 1e-3);
            p.x = zip(&p.x, &step, |x, s| x - 0.1 * s);
        }
    });
}

#[test]
fn updates_in_turns_count_for_themselves() {
    let line = "minimize l of w, v every 3 from 2 optimizer adam(lr = 0.1, beta1 = 0.8, beta2 = 0.95)";
    as_the_reference(line, &|p, g, t| {
        let mut t = t as u64;
        if ["w", "v"].contains(&p.name) {
            // Moments exist from the start.
            p.moments.entry("m").or_insert(vec![0.0; g.len()]);
            p.moments.entry("v").or_insert(vec![0.0; g.len()]);
            if t % 3 != 2 {
                return;
            }
            t = t / 3 + 1;
        }
        let step = adam(p, g, t as f64, 1e-8);
        p.x = zip(&p.x, &step, |x, s| x - 0.1 * s);
    });
}

/// Parameters and moments stay as they begin until the first turn, which may be later than one period.
#[test]
fn turns_may_begin_later() {
    for (every, from) in [(1, 3), (2, 5), (3, 4)] {
        let line = format!(
            "minimize l of w, v every {every} from {from} optimizer adam(lr = 0.1, beta1 = 0.8, beta2 = 0.95)"
        );
        as_the_reference(&line, &|p, g, t| {
            let mut t = t as u64;
            if ["w", "v"].contains(&p.name) {
                p.moments.entry("m").or_insert(vec![0.0; g.len()]);
                p.moments.entry("v").or_insert(vec![0.0; g.len()]);
                if t < from || !(t - from).is_multiple_of(every) {
                    return;
                }
                t = (t - from) / every + 1;
            }
            let step = adam(p, g, t as f64, 1e-8);
            p.x = zip(&p.x, &step, |x, s| x - 0.1 * s);
        });
    }
}

#[test]
fn averages_follow_the_parameters() {
    as_the_reference("optimizer sgd(lr = 0.1) ema 0.9 of w, k", &|p, g, t| {
        p.x = zip(&p.x, g, |x, g| x - 0.1 * g);
        if ["w", "k"].contains(&p.name) {
            let old = p.moment("ema", g.len());
            let new = zip(&old, &p.x, |a, x| 0.9 * a + (1.0 - 0.9) * x);
            p.moments.insert("ema", if t == 1.0 { p.x.clone() } else { new });
        }
    });
}

/// A generator and a critic; what the `train` block says follows.
const GAN: &str = "
dim batch = 12, rows = 5, cols = 4, noise = 3, hidden = 11

layer dense(x, in, out) {
    param w[in, out] = normal(0, 1 / sqrt(size(in)))
    param b[out]     = 0
    return sum[in](x * w) + b
}

layer generator(z) {
    let h = tanh(dense(z, [noise], [hidden]))
    return sigmoid(dense(h, [hidden], [rows, cols]))
}

layer critic(x) {
    let h = leaky_relu(dense(x, [rows, cols], [hidden]), 0.2)
    return dense(h, [hidden], [])
}

model gan {
    input image[batch, rows, cols]: u8
    let fake = generator(random_normal[batch, noise](0, 1)) as gen
    let high = critic(cast(image, float) / 255) as critic
    let low  = critic(fake) sharing critic
    loss d_loss = mean[batch](softplus(-high)) + mean[batch](softplus(low))
    loss g_loss = mean[batch](softplus(-low))
}
";

const LAYOUTS: &[(&str, &str)] = &[
    ("all=4", "batch -> all"),
    ("a=3", "hidden -> a"),
    ("r=2,c=2", "batch -> r; hidden -> c"),
    ("data=4", "zero1"),
    ("data=3", "zero3"),
];

fn project(dir: &Path, text: &str, mesh: &str, layout: &str) -> ProjectOptions {
    let file = dir.join("model.mw");
    std::fs::write(&file, text).unwrap();
    let o = options(&file.display().to_string(), mesh, layout, &[]);
    ProjectOptions { precision: Some(Arithmetic::F64), ..o }
}

fn the_same_on_every_mesh(text: &str, dir: &Path, steps: u64) -> Trained {
    let one = trained(&project(dir, text, "", ""), dir, "one", steps);
    for (i, (mesh, layout)) in LAYOUTS.iter().enumerate() {
        let other = trained(&project(dir, text, mesh, layout), dir, &format!("run-{i}"), steps);
        agrees(&one, &other, layout);
    }
    one
}

#[test]
fn a_gan_trains_the_same_on_every_mesh() {
    let dir = folder(SMALL);
    let train = "train gan { minimize d_loss of critic.* minimize g_loss of gen.* every 2 from 1
        optimizer adam(lr = 2e-3, beta1 = 0.5) group critic.* { optimizer adam(lr = 1e-2, beta1 = 0.5) }
        clip global_norm = 1 ema 0.9 of gen.* }";
    let run = the_same_on_every_mesh(&format!("{GAN}{train}"), dir.path(), 60);
    // Each loss moves its own parameters alone: with one of them the other side stays as it began.
    let alone = "train gan { minimize d_loss of critic.* freeze gen.* optimizer adam(lr = 1e-2, beta1 = 0.5)
        clip global_norm = 1 }";
    let alone = trained(&project(dir.path(), &format!("{GAN}{alone}"), "", ""), dir.path(), "alone", 1);
    assert_eq!(alone.values("critic.h.w"), {
        let one = trained(&project(dir.path(), &format!("{GAN}{train}"), "", ""), dir.path(), "step", 1);
        one.values("critic.h.w")
    });
    assert_ne!(run.values("gen.h.w"), alone.values("gen.h.w"));
    assert_eq!(run.tensors.keys().filter(|k| k.ends_with("/ema")).count(), 4);
    assert!(run.losses.iter().all(|l| l.is_finite()));
}

/// The classes of small images, by a trunk and a head.
const TUNED: &str = "
dim batch = 12, rows = 5, cols = 4, hidden = 11, classes = 10

layer dense(x, in, out) {
    param w[in, out] = normal(0, 1 / sqrt(size(in)))
    param b[out]     = 0
    return sum[in](x * w) + b
}

model m {
    input image[batch, rows, cols]: u8
    input label[batch]: i32 in classes
    let trunk  = relu(dense(cast(image, float) / 255, [rows, cols], [hidden]))
    let head = dense(trunk, [hidden], [classes])
    loss xent  = mean[batch](cross_entropy[classes](head, label))
}
";

#[test]
fn fine_tuning_has_two_rates() {
    let dir = folder(SMALL);
    let tuned = |trunk: &str, head: &str| {
        format!(
            "{TUNED} train m {{ minimize xent optimizer adam(lr = {head}) group trunk.* {{ optimizer adam(lr = {trunk}) }} }}"
        )
    };
    let run = the_same_on_every_mesh(&tuned("1e-4", "1e-2"), dir.path(), 100);
    assert!(run.losses[99] < 0.9 * run.losses[0]);
    // One rate in two groups is one rate; a rate of 0 leaves the trunk as it is.
    let plain = format!("{TUNED} train m {{ minimize xent optimizer adam(lr = 1e-2) }}");
    let plain = trained(&project(dir.path(), &plain, "", ""), dir.path(), "plain", 20);
    let equal = trained(&project(dir.path(), &tuned("1e-2", "1e-2"), "", ""), dir.path(), "equal", 20);
    assert_eq!(plain, equal);
    let still = trained(&project(dir.path(), &tuned("0", "1e-2"), "", ""), dir.path(), "still", 20);
    let begun = trained(&project(dir.path(), &tuned("0", "0"), "", ""), dir.path(), "begun", 1);
    assert_eq!(still.values("trunk.w"), begun.values("trunk.w"));
    assert_ne!(still.values("head.w"), begun.values("head.w"));
}

fn evaluated(o: &ProjectOptions, dir: &Path, run: &str) -> Evaluation {
    let loaded = Project::load(o);
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    let options = EvalOptions {
        data: Some(dir.join("data").display().to_string()),
        split: "test".into(),
        checkpoint: dir.join(run),
        ..EvalOptions::default()
    };
    let found = evaluate(&project, &loaded.sources, &options, &mut |_, _| {});
    found.unwrap_or_else(|e| panic!("{}", told(&e))).evaluation
}

#[test]
fn evaluations_read_the_averages() {
    let dir = folder(SMALL);
    let text = |ema: &str| format!("{TUNED} train m {{ minimize xent optimizer adam(lr = 1e-2) {ema} }}");
    let (far, near) = (project(dir.path(), &text("ema 0.95"), "", ""), text("ema 0"));
    let averaged = trained(&far, dir.path(), "far", 30);
    let with = evaluated(&far, dir.path(), "far");
    let without = evaluated(&ProjectOptions { no_ema: true, ..far.clone() }, dir.path(), "far");
    assert!((with.loss - without.loss).abs() > 1e-3, "{} and {}", with.loss, without.loss);
    // On several devices, where each holds a part of the averages.
    let split = evaluated(&project(dir.path(), &text("ema 0.95"), "data=4", "zero1"), dir.path(), "far");
    assert!((with.loss - split.loss).abs() <= 1e-12, "{} and {}", with.loss, split.loss);
    // Training does not depend on the averages, and without a memory they are the parameters.
    let near = project(dir.path(), &near, "", "");
    let plain = trained(&near, dir.path(), "near", 30);
    assert_eq!(averaged.losses, plain.losses);
    let with = evaluated(&near, dir.path(), "near");
    let again = evaluated(&ProjectOptions { no_ema: true, ..near }, dir.path(), "near");
    assert_eq!(with.loss, again.loss);
    assert_eq!(with.loss, without.loss);
}
