//! What is stored split is gathered where it is used: random programs with functions of parameters, in loops and around them, are
//! never refused under ZeRO-3, and train as on one device. Nor are they where the batch is taken in parts, and loops also carry
//! sums over all examples.
//!
//! 120 programs in a normal run, of which a quarter runs on devices; 10,000 with `LONG=1`; `SEED=n` takes one and prints it, and
//! `SEED=n..m` those between.

use crate::devices::{Refused, plan};
use crate::fuzz::{Random, equal, run};
use crate::report;
use crate::rng::{Rng, seeds};
use meshwright_core::program::Settings;
use meshwright_core::resolve::resolve;
use meshwright_core::{Layout, Program, layout, training_step};
use meshwright_diag::Sources;
use meshwright_ops::F64Tensor;
use meshwright_plan::Arithmetic;
use meshwright_syntax::{parse_layout, parse_model};
use std::fmt::Write;
use std::time::Instant;

/// The layouts that store parameters split and split no dim that their functions have: none of them may refuse anything.
const LAYOUTS: [&str; 9] = [
    "mesh data = 2\nbatch -> data\nparams: * -> data",
    "mesh data = 3\nbatch -> data\nparams: * -> data",
    "mesh data = 2\nparams: * -> data",
    "mesh pod = 2, data = 2\nbatch -> pod, data\nparams: * -> pod, data",
    "mesh data = 2\nbatch -> data\nparams: d -> data",
    "mesh data = 3\nbatch -> data\nparams: * -> data\nrecompute *",
    // What is of parameters alone is the same in each part of the batch.
    "mesh data = 1\nmicrobatches 2",
    "mesh data = 2\nbatch -> data\nparams: * -> data\nmicrobatches 2",
    // For programs in which nothing needs `e` whole.
    "mesh data = 2, model = 2\nbatch -> data\ne -> model\nparams: * -> data",
];

/// A value that statements may read.
#[derive(Clone)]
struct Value {
    name: String,
    dims: Vec<&'static str>,
    /// Whether it is made of parameters alone.
    of_params: bool,
}

/// Writes the text of a program.
struct Writer {
    rng: Rng,
    text: String,
    pool: Vec<Value>,
    /// The dims of the loops that are open.
    open: Vec<&'static str>,
    /// Whether a dim may get another name.
    renames: bool,
    /// Whether loops carry sums over all examples.
    sums: bool,
    /// Such sums, which only the loss reads.
    totals: Vec<String>,
    count: usize,
}

impl Writer {
    fn name(&mut self, with: &str) -> String {
        self.count += 1;
        format!("{with}{}", self.count)
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "{}{text}", "    ".repeat(self.open.len() + 1));
    }

    fn declare(&mut self, dims: Vec<&'static str>, of_params: bool, is: &str) {
        let name = self.name("v");
        self.line(&format!("let {name} = {is}"));
        self.pool.push(Value { name, dims, of_params });
    }

    fn param(&mut self) {
        let mut dims =
            self.rng.pick(&[vec!["d"], vec!["d"], vec!["e"], vec!["d", "e"], vec!["e", "d"], vec![]]);
        let name = self.name("p");
        // One for each iteration of loops that come, in which it has no such dim.
        if self.open.is_empty() && self.rng.one_in(4) {
            dims.insert(0, self.rng.pick(&["n", "m"]));
        }
        self.line(&format!("param {name}[{}] = normal(0, 0.5)", dims.join(", ")).replace("[]", ""));
        self.pool.push(Value { name, dims, of_params: true });
    }

    /// A value with the dims that it has here: in a loop it is that of the iteration.
    fn any(&mut self, fits: impl Fn(&Value) -> bool) -> Option<Value> {
        let here = |v: &Value| {
            let dims = v.dims.iter().filter(|d| !self.open.contains(d)).copied().collect();
            Value { dims, ..v.clone() }
        };
        let all: Vec<Value> = self.pool.iter().map(here).filter(|v| fits(v)).collect();
        if all.is_empty() { None } else { Some(self.rng.pick(&all)) }
    }

    /// A function of parameters, with its dims.
    fn of_params(&mut self) -> (String, Vec<&'static str>) {
        let Some(p) = self.any(|v| v.of_params) else { return ("0.5".into(), vec![]) };
        let Value { name, dims, .. } = p;
        match self.rng.below(12) {
            9 if !dims.is_empty() => {
                let along = self.rng.pick(&dims);
                (format!("where(index({along}) < 2, {name}, 0.1)"), dims)
            }
            10 if dims.contains(&"d") => (format!("cumsum[d]({name})"), dims),
            11 if dims.len() > 1 => {
                let along = dims[0];
                (format!("{name}[{along} = 0]"), dims[1..].to_vec())
            }
            0 => (format!("exp(0.3 * {name})"), dims),
            1 => (format!("(1 + {name})"), dims),
            // Those of a norm, and what it is divided by.
            2 if !dims.is_empty() => (format!("sqrt(sum[{}]({name} * {name}) + 1)", dims.join(", ")), vec![]),
            3 if !dims.is_empty() => {
                let norm = format!("sqrt(mean[{}]({name} * {name}) + 1)", dims.join(", "));
                (format!("{name} / {norm}"), dims)
            }
            4 if dims.len() == 2 => {
                let along = self.rng.pick(&dims);
                let rest = dims.into_iter().filter(|d| *d != along).collect();
                let how = self.rng.pick(&["sum", "mean", "max"]);
                (format!("{how}[{along}]({name})"), rest)
            }
            5 if dims == ["d"] && self.renames => (format!("{name}[d -> e]"), vec!["e"]),
            6 if !dims.is_empty() => {
                let along = self.rng.pick(&dims);
                (format!("softmax[{along}]({name})"), dims)
            }
            _ => {
                let Some(q) = self.any(|v| v.of_params) else { return (name, dims) };
                let op = self.rng.pick(&["*", "+", "-"]);
                let mut all = dims;
                all.extend(q.dims.iter().filter(|d| !all.contains(d)).collect::<Vec<_>>());
                if all.len() > 1 && self.rng.one_in(2) && op == "*" {
                    let along = self.rng.pick(&all);
                    all.retain(|d| *d != along);
                    return (format!("tanh(sum[{along}]({name} * {}))", q.name), all);
                }
                (format!("tanh({name} {op} {})", q.name), all)
            }
        }
    }

    /// A function of an activation and of parameters, with the dims `batch` and `d`.
    fn activation(&mut self) -> String {
        let y = self.any(|v| !v.of_params && v.dims == ["batch", "d"]).map_or("x".into(), |v| v.name);
        let Some(p) = self.any(|v| v.of_params) else { return format!("tanh({y})") };
        let Value { name: p, dims, .. } = p;
        match (&dims[..], self.rng.below(4)) {
            (["d"] | [], 0) => format!("{y} * exp(0.1 * {p})"),
            (["d"] | [], 1) => format!("tanh({y} + {p})"),
            (["d"], 2) => format!("tanh(sum[d]({y} * {p}) + {y})"),
            (["d"] | [], _) => format!("tanh({y} * {p})"),
            (["d", "e"] | ["e", "d"], 0 | 1) if self.renames => format!("tanh(sum[d]({y} * {p})[e -> d])"),
            (["d", "e"] | ["e", "d"], 0..=2) => format!("tanh(sum[e](tanh(sum[d]({y} * {p})) * {p}))"),
            _ => format!("tanh({y} * mean[{}]({p}))", rest(&dims)),
        }
    }

    fn statements(&mut self, depth: usize) {
        for _ in 0..2 + self.rng.below(4) {
            match self.rng.below(8) {
                0 | 1 => self.param(),
                2 | 3 => {
                    let (is, dims) = self.of_params();
                    self.declare(dims, true, &is);
                }
                4 | 5 if depth > 0 => self.a_loop(depth),
                _ => {
                    let is = self.activation();
                    self.declare(vec!["batch", "d"], false, &is);
                }
            }
        }
    }

    fn a_loop(&mut self, depth: usize) {
        let dim = self.rng.pick(&["n", "m"]);
        if self.open.contains(&dim) {
            return;
        }
        let scan = self.rng.one_in(3);
        // What it carries begins as a name of its own, so that loops do not share it.
        let mut carried = Vec::new();
        let around = self.pool.clone();
        for of_params in [false, true] {
            let Some(v) = self.any(|v| v.of_params == of_params && !v.dims.contains(&dim)) else { continue };
            if of_params && self.rng.one_in(3) {
                continue;
            }
            let name = self.name("c");
            self.line(&format!("let {name} = 1 * {}", v.name));
            carried.push(Value { name, ..v });
        }
        let sum = (self.sums && self.open.is_empty()).then(|| self.name("s"));
        if let Some(sum) = &sum {
            self.line(&format!("let {sum} = 0.5"));
        }
        self.pool.extend(carried.clone());
        let (word, before) = (if scan { "scan" } else { "repeat" }, self.pool.len());
        self.line(&format!("{word} {dim} {{"));
        self.open.push(dim);
        self.param();
        self.statements(depth - 1);
        for c in &carried {
            let next = if c.of_params { self.next_of_params(c) } else { self.next_activation(c) };
            self.line(&format!("{} = {next}", c.name));
        }
        if let Some(sum) = &sum {
            let y = self.activation();
            self.line(&format!("{sum} = {sum} / 2 + mean[batch, d]({y})"));
        }
        let inner = self.pool.split_off(before);
        self.open.pop();
        self.line("}");
        // Whether what is carried is of parameters alone is known behind the loop only: what is read further on may be either.
        self.pool = around;
        self.pool.extend(carried);
        self.totals.extend(sum);
        if scan {
            let collected = inner.into_iter().filter(|v| v.name.starts_with('v'));
            for v in collected.collect::<Vec<_>>() {
                let name = self.name("v");
                self.line(&format!("let {name} = mean[{dim}]({})", v.name));
                self.pool.push(Value { name, ..v });
            }
        }
    }

    fn next_of_params(&mut self, c: &Value) -> String {
        let alike = self.any(|v| v.of_params && v.dims == c.dims && v.name != c.name);
        match (alike, self.rng.below(3)) {
            (Some(v), 0) => format!("tanh({} * (1 + {}))", c.name, v.name),
            (Some(v), 1) => format!("tanh({} + {})", c.name, v.name),
            (Some(v), _) => format!("1 * {}", v.name),
            (None, _) => format!("tanh(1.1 * {})", c.name),
        }
    }

    fn next_activation(&mut self, c: &Value) -> String {
        let y = self.activation();
        format!("0.5 * {} + {y}", c.name)
    }
}

/// The dims but for `d`.
fn rest(dims: &[&str]) -> String {
    let rest: Vec<&str> = dims.iter().filter(|d| **d != "d").copied().collect();
    rest.join(", ")
}

/// Whether a program gives a dim another name.
fn renames(seed: u64) -> bool {
    !seed.is_multiple_of(3)
}

/// The text of the program of a seed.
fn text(seed: u64) -> String {
    let mut w = Writer {
        rng: Rng::new(seed ^ 0x2E_0003),
        text: String::new(),
        pool: vec![],
        open: vec![],
        renames: renames(seed),
        sums: seed % 5 == 2,
        totals: vec![],
        count: 0,
    };
    let sizes: Vec<usize> = (0..4).map(|_| 1 + w.rng.below(4)).collect();
    let _ = writeln!(
        w.text,
        "dim batch = {}, d = {}, e = d, n = {}, m = {}\nmodel stored {{",
        2 + 2 * sizes[0],
        3 + sizes[1],
        sizes[2],
        sizes[3]
    );
    w.line("input x[batch, d]: float");
    w.pool.push(Value { name: "x".into(), dims: vec!["batch", "d"], of_params: false });
    // Each dim is that of something.
    w.line("param p[d, e] = normal(0, 0.5)");
    w.pool.push(Value { name: "p".into(), dims: vec!["d", "e"], of_params: true });
    w.param();
    w.statements(2);
    w.a_loop(2);
    let mut terms = vec!["mean[batch, d](x * x)".to_string()];
    for v in w.pool.clone().iter().filter(|v| v.name != "x") {
        let square = format!("{0} * {0}", v.name);
        terms.push(if v.dims.is_empty() { square } else { format!("mean[{}]({square})", v.dims.join(", ")) });
    }
    terms.extend(w.totals.iter().map(|s| format!("0.1 * {s}")));
    w.line(&format!("loss l = {}", terms.join(" + ")));
    let optimizer = w.rng.pick(&["sgd(lr = 0.05)", "adam(lr = 0.02, eps = 0.01)"]);
    let clip = w.rng.pick(&["", "    clip global_norm(0.5)\n"]);
    w.text + &format!("}}\ntrain stored {{\n    minimize l\n    optimizer {optimizer}\n{clip}}}\n")
}

fn resolved(text: &str) -> Result<Program, String> {
    let mut sources = Sources::new();
    let id = sources.add("stored.mw", text.to_string());
    let (file, mut found) = parse_model(id, text);
    let settings = Settings { float: Some(Arithmetic::F64), ..Settings::default() };
    let program = file.and_then(|f| {
        let (program, more) = resolve(&f, None, &settings, &mut |_, _| (None, vec![]));
        found.extend(more);
        program
    });
    program.ok_or_else(|| format!("{found:?}\n{text}"))
}

fn laid_out(text: &str, p: &Program) -> Result<Layout, String> {
    let mut sources = Sources::new();
    let id = sources.add("rules", text.to_string());
    let (file, found) = parse_layout(id, text);
    let file = file.ok_or_else(|| format!("{found:?}"))?;
    let (layout, found) = layout(&file, None, p, false);
    layout.ok_or_else(|| format!("{found:?}"))
}

/// A program with numbers for its leaves.
fn random(seed: u64) -> Result<Random, String> {
    let program = resolved(&text(seed))?;
    let mut rng = Rng::new(seed);
    let leaves = program.inputs.iter().map(|i| i.1).chain(program.params.iter().map(|p| p.id));
    let g = &program.graph;
    let bound = leaves.map(|id| (id, F64Tensor::build(&g.dims, &g.ty(id).dims, |_| rng.float(-1.2, 1.2))));
    let bound = bound.collect();
    let watched = program.inputs[0].1;
    Ok(Random { program, bound, watched })
}

/// What is wrong with a program under the layouts.
fn wrong(seed: u64, runs: bool) -> Vec<String> {
    let r = match random(seed) {
        Ok(r) => r,
        Err(e) => return vec![format!("SEED={seed}: no program: {e}")],
    };
    let Some(step) = training_step(&r.program) else { return vec![format!("SEED={seed}: no training step")] };
    let alone =
        if runs { plan(&step, &Layout::default(), false).ok().map(|p| run(p.plan, &r)) } else { None };
    let mut found = Vec::new();
    let fits = |rules: &&str| !rules.contains("model") || !renames(seed);
    for rules in LAYOUTS.into_iter().filter(fits) {
        let told = |e: String| format!("SEED={seed} under `{}`: {e}", rules.replace('\n', "; "));
        let planned = match laid_out(rules, &r.program) {
            Ok(layout) => plan(&step, &layout, false),
            Err(e) => Err(Refused::Bug(e)),
        };
        match planned {
            Err(e) => found.push(told(format!("{e:?}"))),
            Ok(p) if runs => {
                let same = |got| match &alone {
                    Some(Ok(want)) => equal(&got, want),
                    Some(Err(e)) => Err(format!("on one device: {e}")),
                    None => Err("one device has no plan".into()),
                };
                found.extend(run(p.plan, &r).and_then(same).err().map(told));
            }
            Ok(_) => {}
        }
    }
    found
}

#[test]
fn functions_of_what_is_stored_split_are_never_refused() {
    let begin = Instant::now();
    let seeds = seeds(120, 10_000);
    let taken = seeds.end - seeds.start;
    if taken == 1 {
        report(&text(seeds.start));
    }
    let all: Vec<String> = seeds.flat_map(|seed| wrong(seed, seed % 4 == 0 || taken == 1)).collect();
    report(&format!("{taken} programs under what stores parameters split, in {:.1?}", begin.elapsed()));
    assert!(all.is_empty(), "{} wrong:\n{}", all.len(), all.join("\n"));
}
