//! Equations that are attention, with which laws test it.

use super::Recognizer;
use crate::family::{float, integer, no_spelling, truth};
use crate::{Family, Graph, Id, Sample, Signature, union};
use meshwright_plan::{DType, Dim};

/// Found in programs, never written.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "attention",
    signature: Signature::SYNTAX,
    doc: "The sum of values by a softmax of products of queries and keys; recognized where a program says so in its own equations.",
    build: no_spelling,
    samples,
}];

/// The equations of an attention over `key`, as programs have them, made one op.
fn sample(
    label: &'static str,
    inputs: Vec<crate::family::SampleInput>,
    equations: impl Fn(&mut Graph, &[Id], Dim) -> Id + Send + Sync + 'static,
) -> Sample {
    trained(label, inputs, None, equations)
}

/// The same where an input, a bias, has a gradient of its own.
fn trained(
    label: &'static str,
    inputs: Vec<crate::family::SampleInput>,
    bias: Option<usize>,
    equations: impl Fn(&mut Graph, &[Id], Dim) -> Id + Send + Sync + 'static,
) -> Sample {
    Sample::new(label, inputs, move |g, x| {
        let Some(key) = g.dims.find("key") else { panic!("a sample without keys") };
        let y = equations(g, x, key);
        let mut needs = g.nodes.table(false);
        for id in g.ids() {
            let is_bias = bias.is_some_and(|i| x[i] == id);
            needs[id] = is_bias || g.node(id).inputs.iter().any(|x| needs[*x]);
        }
        let roots = [y];
        let found = Recognizer::new(g, &roots, needs).run(g);
        assert!(found.iter().all(|f| f.1.is_ok()) && found.len() == 1, "{label}: not recognized: {found:?}");
        Ok(y)
    })
}

impl Sample {
    /// The same with what is made of its inputs and its value, which has no gradient of its own.
    fn then(self, f: impl Fn(&mut Graph, &[Id], Id) -> Option<Id> + Send + Sync + 'static) -> Sample {
        let build = self.build.clone();
        let made = move |g: &mut Graph, x: &[Id]| {
            let y = build(g, x)?;
            Ok(f(g, x, y).unwrap_or(y))
        };
        Sample::new(self.label, self.inputs.clone(), made).flat()
    }
}

impl Sample {
    /// The gradient of an operand, by the cotangent that is the last of its inputs.
    fn gradient_of(self, of: usize) -> Sample {
        let last = self.inputs.len() - 1;
        self.then(move |g, inputs, y| {
            let node = g.node(y).clone();
            let need: Vec<bool> = (0..node.inputs.len()).map(|i| i == of).collect();
            let residuals = node.op.residuals(g, &node.inputs);
            let x = [node.inputs, residuals].concat();
            node.op.vjp(g, &x, y, inputs[last], &need).swap_remove(of)
        })
    }
}

/// The gradient of an operand of an attention with a mask.
fn gradient(label: &'static str, of: usize) -> Sample {
    let (b, q, k, w) = (("b", 2), ("q", 5), ("key", 7), ("w", 3));
    let v = ("v", 4);
    let inputs = vec![float(&[b, q, w]), float(&[b, k, w]), float(&[b, k, v]), float(&[b, q, v])];
    sample(label, inputs, causal).gradient_of(of)
}

/// The gradient of a bias with some of the dims of the scores. These are capped, so that what all keys have in common counts too,
/// and masked.
fn of_bias(label: &'static str, dims: &[(&'static str, usize)]) -> Sample {
    let (b, q, k, w, v) = (("b", 2), ("q", 5), ("key", 7), ("w", 3), ("v", 4));
    let inputs =
        vec![float(&[b, q, w]), float(&[b, k, w]), float(&[b, k, v]), float(dims), float(&[b, q, v])];
    trained(label, inputs, Some(3), |g, x, key| {
        let s = score(g, x[0], x[1], 0.5);
        let s = g.sum_of(&[s, x[3]]);
        let s = g.unary(&crate::TANH, s);
        let query = g.ty(x[0]).dims[1];
        let s = seen(g, s, query, key);
        weighted(g, s, x[2], key)
    })
    .gradient_of(3)
}

/// Attention of queries, keys and values in which a position sees those up to itself.
fn causal(g: &mut Graph, x: &[Id], key: Dim) -> Id {
    let s = score(g, x[0], x[1], 0.5);
    let query = g.ty(x[0]).dims[1];
    let s = seen(g, s, query, key);
    weighted(g, s, x[2], key)
}

/// Scores without those of later positions.
fn seen(g: &mut Graph, score: Id, query: Dim, key: Dim) -> Id {
    let (i, j) = (g.index(query), g.index(key));
    let seen = g.binary("<=", j, i);
    let none = g.constant(-1e9, g.ty(score).dtype);
    g.choose(seen, score, none)
}

/// `sum[key](softmax[key](score) * v)`, kept to the dims `out`.
fn weighted(g: &mut Graph, score: Id, v: Id, key: Dim) -> Id {
    let p = g.op(crate::Softmax { dim: key, log: false }, &[score]);
    let keep: Vec<Dim> = union([g.ty(score), g.ty(v)]).into_iter().filter(|d| *d != key).collect();
    g.contract_to(&[p, v], &keep)
}

fn score(g: &mut Graph, q: Id, k: Id, scale: f64) -> Id {
    let width: Vec<Dim> = g.ty(q).dims.iter().copied().filter(|d| g.dims.name(*d) == "w").collect();
    let keep: Vec<Dim> = union([g.ty(q), g.ty(k)]).into_iter().filter(|d| !width.contains(d)).collect();
    let raw = g.contract_to(&[q, k], &keep);
    g.scaled(raw, scale)
}

fn samples() -> Vec<Sample> {
    let (b, q, k, w, v, h) = (("b", 2), ("q", 5), ("key", 7), ("w", 3), ("v", 4), ("group", 2));
    let three = || vec![float(&[b, q, w]), float(&[b, k, w]), float(&[b, k, v])];
    vec![
        sample("plain", three(), |g, x, key| {
            let s = score(g, x[0], x[1], 0.5);
            weighted(g, s, x[2], key)
        }),
        sample("causal", three(), causal),
        sample(
            "padded, with a bias",
            [three(), vec![truth(&[b, k]), integer(&[q, k], -3.0, 4.0)]].concat(),
            |g, x, key| {
                let s = score(g, x[0], x[1], 1.0);
                let (near, bias) = (g.constant(1.0, DType::I32), g.constant(0.7, g.ty(s).dtype));
                let near = g.binary("<", x[4], near);
                let biased = g.sum_of(&[s, bias]);
                let s = g.choose(near, biased, s);
                let none = g.constant(-1e9, g.ty(s).dtype);
                let s = g.choose(x[3], s, none);
                weighted(g, s, x[2], key)
            },
        ),
        sample("in passes", three(), |g, x, key| {
            let s = score(g, x[0], x[1], 0.5);
            weighted(g, s, x[2], key)
        })
        .then(|g, _, y| {
            let node = g.node(y).clone();
            node.op.expand(g, &node.inputs)
        }),
        gradient("of queries", 0),
        gradient("of keys", 1),
        gradient("of values", 2),
        of_bias("of a bias", &[q, k]),
        of_bias("of a bias of queries", &[b, q]),
        of_bias("of a bias of keys", &[k]),
        trained(
            "of a temperature",
            [three(), vec![float(&[]), float(&[b, q, v])]].concat(),
            Some(3),
            |g, x, key| {
                let s = score(g, x[0], x[1], 1.0);
                let s = g.product(&[s, x[3]]);
                weighted(g, s, x[2], key)
            },
        )
        .gradient_of(3),
        sample("with dropout", three(), |g, x, key| {
            let s = score(g, x[0], x[1], 0.5);
            let p = g.op(crate::Softmax { dim: key, log: false }, &[s]);
            let dims = g.ty(p).dims.clone();
            let distribution = meshwright_plan::random::Distribution::Bernoulli { rate: 0.25 };
            let kept = crate::Random { stream: "dropout".into(), distribution, dims, dtype: DType::Bool };
            let kept = g.op(kept, &[]);
            let p = g.masked(kept, p);
            let p = g.scaled(p, 1.0 / 0.75);
            let keep: Vec<Dim> = union([g.ty(p), g.ty(x[2])]).into_iter().filter(|d| *d != key).collect();
            g.contract_to(&[p, x[2]], &keep)
        }),
        sample(
            "queries in groups, capped",
            vec![float(&[b, q, h, w]), float(&[k, b, w]), float(&[v, b, k])],
            |g, x, key| {
                let s = score(g, x[0], x[1], 0.5);
                let s = g.unary(&crate::TANH, s);
                let s = g.scaled(s, 3.0);
                weighted(g, s, x[2], key)
            },
        ),
    ]
}
