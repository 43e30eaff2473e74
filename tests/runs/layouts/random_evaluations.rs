//! Losses and metrics of a whole set do not depend on the batch size: random programs that draw at random in evaluations too, as
//! diffusion, the sampling of a VAE, and dropout that is kept on purpose do.

use crate::support::Numbers;
use crate::training::evaluation::{LOSS, Place};
use serde_json::Value;

/// A value of the program: its name, and its dims beside `batch`.
#[derive(Clone)]
struct NamedValue {
    name: String,
    dims: Vec<&'static str>,
}

/// Statements of a random program.
struct ProgramWriter {
    numbers: Numbers,
    text: String,
    made: Vec<NamedValue>,
}

impl ProgramWriter {
    fn one_in(&mut self, n: usize) -> bool {
        self.numbers.below(n) == 0
    }

    fn any(&mut self) -> NamedValue {
        let at = self.numbers.below(self.made.len());
        self.made[at].clone()
    }

    /// Some of the dims of a value in any order, those of an example as a rule.
    fn some(&mut self, of: &[&'static str]) -> Vec<&'static str> {
        let mut dims: Vec<&str> = of.iter().copied().filter(|_| !self.one_in(3)).collect();
        if !self.one_in(5) {
            dims.insert(self.numbers.below(dims.len() + 1), "batch");
        }
        if dims.len() > 1 && self.one_in(3) {
            dims.reverse();
        }
        dims
    }

    /// Numbers that are drawn.
    fn drawn(&mut self, of: &[&'static str]) -> String {
        let dims = self.some(of).join(", ");
        let dims = if dims.is_empty() { dims } else { format!("[{dims}]") };
        let how = ["random_normal", "random_uniform"][self.numbers.below(2)];
        format!("{how}{dims}(0, 1)")
    }

    fn line(&mut self, text: &str) {
        self.text += &format!("    {text}\n");
    }

    fn value(&mut self, text: &str, dims: Vec<&'static str>) {
        let name = format!("v{}", self.made.len());
        self.line(&format!("let {name} = {text}"));
        self.made.push(NamedValue { name, dims });
    }

    /// A value that is drawn, or made of one that is.
    fn draw(&mut self) {
        let NamedValue { name, dims } = self.any();
        let drawn = self.drawn(&dims);
        match self.numbers.below(4) {
            0 => {
                let mask = self.some(&dims).join(", ");
                let mask = if mask.is_empty() { mask } else { format!("[{mask}]") };
                self.value(&format!("where(random_uniform{mask}(0, 1) < 0.6, {name} / 0.6, 0)"), dims);
            }
            1 => {
                self.value(&name, dims);
                let carry = format!("v{}", self.made.len() - 1);
                self.line(&format!("repeat times {{ {carry} = tanh({carry} + 0.3 * {drawn}) }}"));
            }
            2 if dims.contains(&"rows") => {
                let rest: Vec<&str> = dims.into_iter().filter(|d| *d != "rows").collect();
                let drawn = self.drawn(&rest);
                self.value(&format!("mean[rows]({name})"), rest);
                let carry = format!("v{}", self.made.len() - 1);
                self.line(&format!("scan rows {{ {carry} = tanh({carry} + {name} * {drawn}) }}"));
            }
            _ => self.value(&format!("{name} + 0.5 * {name} * {drawn}"), dims),
        }
    }

    /// A value of others.
    fn compute(&mut self) {
        let (a, b) = (self.any(), self.any());
        let mut all = a.dims.clone();
        all.extend(b.dims.iter().filter(|d| !a.dims.contains(d)));
        match self.numbers.below(4) {
            0 if !a.dims.is_empty() => {
                let along = a.dims[self.numbers.below(a.dims.len())];
                let fold = ["mean", "max", "sum"][self.numbers.below(3)];
                let rest = a.dims.iter().copied().filter(|d| *d != along).collect();
                self.value(&format!("tanh({fold}[{along}]({}))", a.name), rest);
            }
            1 if !a.dims.is_empty() => {
                let along = a.dims[self.numbers.below(a.dims.len())];
                self.value(&format!("softmax[{along}]({})", a.name), a.dims);
            }
            2 => self.value(&format!("tanh({} - {})", a.name, b.name), all),
            _ => self.value(&format!("{} * sigmoid({})", a.name, b.name), all),
        }
    }

    /// What a metric says of a value.
    fn fold(&mut self) -> String {
        let NamedValue { name, dims } = self.any();
        let all = [&["batch"], &dims[..]].concat().join(", ");
        match self.numbers.below(6) {
            0 => format!("max[{all}]({name})"),
            1 => format!("min[{all}]({name})"),
            2 => format!("sqrt(mean[{all}]({name} * {name}))"),
            3 => format!("sum[{all}]({name}) / (1 + sum[{all}]({name} * {name}))"),
            4 => "mean[batch](random_uniform[batch](0, 1))".into(),
            _ => format!("mean[{all}]({name})"),
        }
    }
}

/// Statements with a loss and three metrics.
fn program(seed: u64) -> String {
    let given = |name: &str, dims: &[&'static str]| NamedValue { name: name.into(), dims: dims.to_vec() };
    let made = vec![given("x", &["rows", "cols"]), given("logits", &["classes"])];
    let mut w = ProgramWriter { numbers: Numbers(seed), text: String::new(), made };
    w.draw();
    for _ in 0..3 + w.numbers.below(5) {
        if w.one_in(2) { w.draw() } else { w.compute() }
    }
    for k in 0..3 {
        let fold = w.fold();
        w.line(&format!("metric m{k} = {fold}"));
    }
    let NamedValue { name, dims } = w.made.last().cloned().unwrap();
    let all = [&["batch"], &dims[..]].concat().join(", ");
    w.line(&format!("loss extra = mean[{all}]({name} * {name})"));
    w.text + LOSS
}

#[test]
fn what_is_drawn_in_an_evaluation_does_not_depend_on_the_batch_size() {
    let count = if std::env::var_os("LONG").is_some() { 400 } else { 20 };
    let one = std::env::var("SEED").ok().and_then(|s| s.parse::<u64>().ok());
    for seed in one.map_or(0..count, |s| s..s + 1) {
        let text = program(seed);
        let p = Place::new("dim times = 3", &text);
        p.trained("run", &["--no-eval", "--precision", "f64"]);
        let evaluated = |more: &[&str]| -> Value {
            p.of("eval", "run", &[&["--precision", "f64"], more].concat()).remove(0)
        };
        let whole = evaluated(&["--dim", "batch=50"]);
        for more in [
            &["--dim", "batch=1"][..],
            &["--dim", "batch=7", "--layout", "batch -> r", "--mesh", "r=2"],
            &["--dim", "batch=16", "--layout", "cols -> r; classes -> r when free", "--mesh", "r=3"],
            &["--layout", "microbatches 4"],
        ] {
            let got = evaluated(more);
            for name in ["eval_loss", "eval_extra", "eval_m0", "eval_m1", "eval_m2"] {
                let [a, b] = [&whole, &got].map(|e| e[name].as_f64().unwrap());
                assert!(
                    (a - b).abs() <= 1e-11 * a.abs().max(1e-3),
                    "SEED={seed} {more:?}: {name}: {a} and {b} of\n{text}"
                );
            }
        }
    }
}

/// What an evaluation draws for an example is what a prediction draws for it; examples that are in the same place of their
/// batches differ.
#[test]
fn an_evaluation_draws_what_a_prediction_draws() {
    let more = "    let noise = random_uniform[batch](0, 1)\n    metric most = max[batch](noise)\n    output noise = noise";
    let p = Place::new("", &format!("{more}\n{LOSS}"));
    p.trained("run", &["--no-eval", "--precision", "f64"]);
    let predicted: Vec<f64> = (p.of("predict", "run", &["--precision", "f64", "--limit", "50"]).iter())
        .map(|line| line["noise"].as_f64().unwrap())
        .collect();
    let most = predicted.iter().copied().fold(0.0, f64::max);
    assert!(predicted.len() == 50 && predicted[..12].iter().all(|v| *v < most), "{predicted:?}");
    assert_eq!(p.of("eval", "run", &["--precision", "f64"])[0]["eval_most"].as_f64(), Some(most));
}
