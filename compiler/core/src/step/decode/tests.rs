//! Decoding gives what the whole forward pass gives, by the meaning of the graphs.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::passes::unroll::unrolled;
use crate::program::Settings;
use crate::resolve::resolve;
use crate::step::evaluation::prediction;
use crate::verify::verify_graph;
use meshwright_diag::FileId;
use meshwright_ops::{F64Tensor, Kind};
use meshwright_sorted::SortedMap;
use meshwright_syntax::parse_model;

const LIBRARY: &str = include_str!("../../../../../models/std/nn.mw");
const GPT: &str = include_str!("../../../../../models/gpt.mw");

/// Rotary positions, grouped queries, a window, sines of positions; without a loop.
const ROTARY: &str = r#"
use "std:nn"
dim batch = 2, seq = 7, key = seq, vocab = 9, groups = 2, queries = 2, d_head = 4, half = 2, d = 6, d2 = 3
model m {
    input token[batch, seq]: i32 in vocab
    let x = embedding(token, vocab, d) + sinusoidal_positions(seq, d, d2)
    let y = x + (grouped_query_attention(rms_norm(x, d), seq, key, d, groups, queries, d_head, half, causal_window(seq, key, 3)) as one)
    let z = y + (grouped_query_attention(rms_norm(y, d) as n2, seq, key, d, groups, queries, d_head, half, causal(seq, key)) as two)
    let logits = linear(z, d, vocab) as head
    output next = argmax[vocab](logits)
}
"#;

/// A trained vector for each position, a loop in a loop that carries a value of positions alone, and truth values of the past.
const NESTED: &str = r#"
use "std:nn"
dim batch = 3, seq = 6, key = seq, vocab = 5, d = 4, e = 4, outer = 2, inner = 2
model m {
    input token[batch, seq]: i32 in vocab
    param bias[seq, key] = normal(0, 1)
    let x   = (embedding(token, vocab, d) as word) + (positions(seq, d, 1) as place)
    let odd = token == 1
    let n   = 0 * cast(index(seq), float)
    repeat outer {
        let w = linear(x, d, e) as up
        repeat inner {
            let v     = tanh(linear(linear(w, e, d) as low, d, e) as high)
            // Each position sees itself: scores that are masked alike would make a mean of all.
            let mask  = index(seq) >= index(key) and (not odd[seq -> key] or index(key) == index(seq))
            let score = where(mask, sum[e](w * v[seq -> key]) + bias, -1e9)
            w = w + sum[key](softmax[key](score) * v[seq -> key])
            n = n + cast(index(seq), float) / 10
        }
        x = x + tanh(linear(w, e, d) as down) + n
    }
    let logits = linear(x, d, vocab) as head
    output next = argmax[vocab](logits)
}
"#;
use meshwright_plan::Arithmetic;

fn program(text: &str, sizes: &[(&str, usize)]) -> Program {
    let (tree, found) = parse_model(FileId(0), text);
    let tree = tree.unwrap_or_else(|| panic!("{found:?}"));
    let dims = sizes.iter().map(|(n, s)| (n.to_string(), *s)).collect();
    let settings = Settings { dims, float: Some(Arithmetic::F64), ..Settings::default() };
    let (program, found) = resolve(&tree, None, &settings, &mut |_, _| parse_model(FileId(1), LIBRARY));
    program.unwrap_or_else(|| panic!("{found:?}"))
}

/// Numbers that look random, by name and place.
fn number(name: &str, at: usize) -> f64 {
    let mut h =
        name.bytes().fold(at as u64 + 7, |h, b| (h ^ u64::from(b)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    h ^= h >> 29;
    h = h.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (h >> 40) as f64 / f64::from(1 << 23) - 1.0
}

/// What inputs and states hold; parameters are numbers of their names.
type LeafValues = SortedMap<String, F64Tensor>;

/// The outputs of a step, by name, and the dims of each.
fn run(step: &StepGraph, given: &LeafValues) -> SortedMap<String, F64Tensor> {
    let step = unrolled(&dead_code(step));
    let g = &step.graph;
    let mut values: Vec<F64Tensor> = Vec::new();
    for id in g.ids() {
        let node = g.node(id);
        let dims = &node.ty.dims;
        let value = match node.op.kind() {
            Kind::Input(leaf) => match given.get(leaf.name()) {
                Some(v) => v.ordered(dims),
                None if matches!(leaf, InputOpKind::Param { .. }) => {
                    let data = (0..g.dims.elements(dims)).map(|i| number(leaf.name(), i) / 2.0);
                    F64Tensor::new(&g.dims, dims.clone(), data.collect())
                }
                None => panic!("no {}", leaf.name()),
            },
            _ => {
                let x: Vec<&F64Tensor> = node.inputs.iter().map(|i| &values[i.0 as usize]).collect();
                node.op.oracle(&x, &node.ty, &g.dims)
            }
        };
        values.push(value);
    }
    step.outputs.iter().map(|o| (o.name.clone(), values[o.id.0 as usize].clone())).collect()
}

/// Input values of the positions from `first[row]` on.
fn inputs(program: &Program, step: &StepGraph, first: &[usize]) -> LeafValues {
    let dims = &step.graph.dims;
    let mut given = LeafValues::new();
    for (decl, ..) in &program.inputs {
        let [batch, seq] = decl.dims[..] else { panic!("{}", decl.name) };
        let below = decl.range.map_or(2, |r| program.graph.dims.size(r));
        let context = program.graph.dims.size(seq);
        let value = F64Tensor::build(dims, &[batch, seq], |at| {
            let place = first[at[0]] + at[1];
            match decl.name.as_str() {
                // Past the end nothing counts.
                _ if place >= context => 0.0,
                "position" => place as f64,
                "document" => (place / 4) as f64,
                name => ((number(name, at[0] * 100 + place) + 1.0) / 2.0 * below as f64).floor(),
            }
        });
        given.insert(decl.name.clone(), value);
    }
    given
}

/// Decodes in steps of `counts` positions, each row from its own place on, and compares with the whole forward pass.
fn agrees(program: &Program, counts: &[usize]) {
    let wanted = program.named_value("logits").unwrap();
    let chosen = Program { outputs: vec![wanted.clone()], ..program.clone() };
    let whole = prediction(&chosen, &["logits".into()]).0.unwrap().step;
    let [batch, seq] = program.inputs[0].0.dims[..] else { panic!() };
    let (rows, context) = (program.graph.dims.size(batch), program.graph.dims.size(seq));
    let vocab = program.graph.dims.find("vocab").unwrap();
    let all = run(&whole, &inputs(program, &whole, &vec![0; rows])).remove("logits").unwrap();
    let all = all.ordered(&[batch, seq, vocab]);
    // Every row has its own number of positions in the first step, and positions that do not count after them.
    let mut at = vec![0; rows];
    let mut states = LeafValues::new();
    for (n, count) in counts.iter().enumerate() {
        let d = decode(program, &wanted, seq, once(*count)).0.unwrap();
        assert_eq!(verify_graph(&d.step), Vec::<String>::new());
        let dims = &d.step.graph.dims;
        for id in d.step.graph.ids() {
            let node = d.step.graph.node(id);
            if let Kind::Input(InputOpKind::State { path, .. }) = node.op.kind() {
                let zeros = || F64Tensor::build(dims, &node.ty.dims, |_| 0.0);
                states.entry(path).or_insert_with(zeros);
            }
        }
        let used: Vec<usize> = (0..rows)
            .map(|r| if n == 0 { count - r.min(count - 1) } else { *count }.min(context - at[r]))
            .collect();
        let row = |f: &dyn Fn(usize) -> usize| F64Tensor::build(dims, &[batch], |i| f(i[0]) as f64);
        let mut given = inputs(program, &d.step, &at);
        given.insert(d.start.clone(), row(&|r| at[r]));
        given.insert(d.last.clone(), row(&|r| used[r].saturating_sub(1)));
        given.extend(states.clone());
        let mut out = run(&d.step, &given);
        let logits = out.remove("logits").unwrap().ordered(&[batch, vocab]);
        states = out;
        assert_eq!(
            states.keys().collect::<Vec<_>>(),
            d.caches.iter().collect::<SortedSet<_>>().into_iter().collect::<Vec<_>>()
        );
        for r in (0..rows).filter(|r| used[*r] > 0) {
            at[r] += used[r];
            for v in 0..program.graph.dims.size(vocab) {
                let (got, want) =
                    (logits.at(&[batch, vocab], &[r, v]), all.at(&[batch, seq, vocab], &[r, at[r] - 1, v]));
                assert!(
                    (got - want).abs() <= 1e-12 * want.abs().max(1.0),
                    "row {r}, position {}: {got} {want}",
                    at[r]
                );
            }
        }
    }
}

fn once(count: usize) -> NewPositions {
    NewPositions { count, output: DecodedOutput::Value, kept_as: "cache" }
}

/// Caches of numbers that tell their sequences apart, of those sequences.
fn told_apart(d: &Decoding, of: &dyn Fn(usize) -> usize) -> LeafValues {
    let g = &d.step.graph;
    let leaf = |id: Id| match g.node(id).op.kind() {
        Kind::Input(InputOpKind::State { path, .. }) => {
            let ty = g.ty(id);
            let row = ty.dims.iter().position(|x| Some(*x) == d.row).unwrap();
            let name = path.rsplit_once('/').unwrap().0.to_string();
            let value = F64Tensor::build(&g.dims, &ty.dims, |at| {
                let mut at = at.to_vec();
                at[row] = of(at[row]);
                number(&name, at.iter().fold(0, |n, i| n * 31 + i))
            });
            Some((path, value))
        }
        _ => None,
    };
    g.ids().filter_map(leaf).collect()
}

/// Sequences that go on from others have what these had: of the same batch, or of another one.
#[test]
fn what_is_kept_follows_the_sequence_that_another_goes_on_from() {
    for (text, sizes) in [(GPT, &[&GPT_SIZES[..], &[("batch", 3)]].concat()[..]), (NESTED, &[])] {
        let program_of = |batch| program(text, &[sizes, &[("batch", batch)]].concat());
        let step = |batch: usize, kept_as| {
            let program = program_of(batch);
            let [_, seq] = program.inputs[0].0.dims[..] else { panic!() };
            let of = NewPositions { kept_as, ..once(2) };
            decode(&program, &program.named_value("logits").unwrap(), seq, of).0.unwrap()
        };
        let (prompts, beams) = (step(2, "prompt"), step(3, "cache"));
        assert!(beams.caches.iter().zip(&prompts.caches).all(|(b, p)| b != p));
        for (from, parents) in [(&beams, [2, 0, 2]), (&prompts, [1, 0, 1])] {
            let branch = branch(from, &beams).unwrap();
            assert_eq!(verify_graph(&branch.step), Vec::<String>::new());
            let row = beams.row.unwrap();
            let dims = &branch.step.graph.dims;
            let mut given = told_apart(from, &|r| r);
            let held = branch.before.1;
            for value in given.values_mut() {
                value.dims.iter_mut().filter(|d| **d == row).for_each(|d| *d = held);
            }
            given.extend(
                told_apart(&beams, &|r| r + 100).into_iter().filter(|(k, _)| !from.caches.contains(k)),
            );
            given.insert(branch.parent.clone(), F64Tensor::build(dims, &[row], |at| parents[at[0]] as f64));
            let out = run(&branch.step, &given);
            let wanted = told_apart(&beams, &|r| parents[r]);
            assert_eq!(out.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
            for (name, value) in &wanted {
                assert_eq!(out[name].ordered(&value.dims).data, value.data, "{name}");
            }
        }
    }
}

/// The token that a step gives is the one that its logits make most probable, of those that are tokens.
#[test]
fn the_most_probable_token_is_that_of_the_logits() {
    for (text, sizes) in [(GPT, &GPT_SIZES[..]), (ROTARY, &[])] {
        let program = program(text, sizes);
        let [batch, seq] = program.inputs[0].0.dims[..] else { panic!() };
        let vocab = program.graph.dims.find("vocab").unwrap();
        for known in [program.graph.dims.size(vocab), 3] {
            let out = |output| {
                let of = NewPositions { output, ..once(2) };
                let d = decode(&program, &program.named_value("logits").unwrap(), seq, of).0.unwrap();
                let dims = &d.step.graph.dims;
                let row = |i: f64| F64Tensor::build(dims, &[batch], |_| i);
                let mut given = inputs(&program, &d.step, &[0, 0]);
                given.extend(told_apart(&d, &|r| r));
                given.extend([(d.start.clone(), row(0.0)), (d.last.clone(), row(1.0))]);
                let out = run(&d.step, &given);
                d.step.outputs.iter().take(2).map(|o| out[&o.name].clone()).collect::<Vec<_>>()
            };
            let logits = out(DecodedOutput::Value).swap_remove(0);
            let [all, total] = &out(DecodedOutput::Logits(known))[..] else { panic!() };
            let [token, probability] = &out(DecodedOutput::MostProbable(known))[..] else { panic!() };
            assert_eq!(all, &logits);
            for r in 0..2 {
                let row: Vec<f64> = (0..known).map(|v| logits.at(&[batch, vocab], &[r, v])).collect();
                // The total is the model's, which knows nothing of the tokenizer.
                let all = (0..program.graph.dims.size(vocab)).map(|v| logits.at(&[batch, vocab], &[r, v]));
                let sum = all.map(f64::exp).sum::<f64>().ln();
                let best = (0..known).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
                assert!((total.at(&[batch], &[r]) - sum).abs() < 1e-12);
                assert_eq!(token.at(&[batch], &[r]), best as f64);
                assert!((probability.at(&[batch], &[r]) - (row[best] - sum)).abs() < 1e-12);
            }
        }
    }
}

/// The product with the vocabulary is one of single positions, however long a prompt is.
#[test]
fn logits_are_computed_at_the_last_position_alone() {
    for (text, sizes) in [(GPT, &GPT_SIZES[..]), (ROTARY, &[]), (NESTED, &[])] {
        let program = program(text, sizes);
        let dim = |name| program.graph.dims.find(name).unwrap();
        let d = decode(&program, &program.named_value("logits").unwrap(), dim("seq"), once(4)).0.unwrap();
        let g = &d.step.graph;
        let both = g.ids().find(|id| [dim("seq"), dim("vocab")].iter().all(|x| g.ty(*id).has(*x)));
        assert_eq!(both.map(|id| g.describe(id)), None);
    }
}

const GPT_SIZES: [(&str, usize); 7] =
    [("batch", 2), ("seq", 6), ("vocab", 7), ("layers", 2), ("heads", 2), ("d_head", 2), ("d_ff", 3)];

#[test]
fn one_by_one_and_many_at_once_give_the_same() {
    for (text, sizes) in [(GPT, &GPT_SIZES[..]), (ROTARY, &[]), (NESTED, &[])] {
        let program = program(text, sizes);
        agrees(&program, &[1, 1, 1, 1, 1, 1]);
        agrees(&program, &[4, 1, 1, 1]);
        agrees(&program, &[3, 2, 1]);
        agrees(&program, &[6]);
    }
}

#[test]
fn attention_is_found_in_what_is_decoded() {
    let program = program(GPT, &GPT_SIZES);
    let seq = program.graph.dims.find("seq").unwrap();
    let d = decode(&program, &program.named_value("logits").unwrap(), seq, once(1)).0.unwrap();
    assert!(d.step.graph.notes.iter().any(|n| n.because.is_none()), "{:?}", d.step.graph.notes);
    assert_eq!(d.caches.len(), 3, "{:?}", d.caches);
    assert_eq!((d.context, d.start.as_str(), d.last.as_str()), (6, "start", "last"));
}

#[test]
fn what_needs_other_positions_is_refused() {
    let text = |body: &str| {
        format!(
            "dim batch = 2, seq = 4, key = seq, vocab = 5, d = 3\nmodel m {{ input token[batch, seq]: i32 in vocab\n\
             param w[vocab, d] = normal(0, 1)\nlet x = w[vocab = token]\n{body}\noutput o = argmax[vocab](logits) }}"
        )
    };
    let seen = |mask: &str| {
        format!(
            "let s = where({mask}, sum[d](x * x[seq -> key]), -1e9)\nlet logits = sum[d](sum[key](softmax[key](s) * x[seq -> key]) * w)"
        )
    };
    let refused = |body: &str| {
        let program = program(&text(body), &[]);
        let seq = program.graph.dims.find("seq").unwrap();
        let (d, found) = decode(&program, &program.named_value("logits").unwrap(), seq, once(1));
        assert_eq!(d.is_none(), !found.is_empty());
        found.first().map(|d| d.labels[0].text.clone()).unwrap_or_default()
    };
    let cases = [
        (seen("index(key) <= index(seq)"), ""),
        (seen("index(seq) + 1 > index(key)"), ""),
        (seen("index(key) <= index(seq) + 1"), "all positions are seen along `key`"),
        (seen("index(key) >= index(seq)"), "all positions are seen along `key`"),
        (seen("true"), "all positions are seen along `key`"),
        ("let logits = sum[d]((x - mean[seq](x)) * w)".into(), "needs other positions along `seq`"),
        ("let logits = sum[d](cumsum[seq](x) * w)".into(), "needs other positions along `seq`"),
        ("let logits = sum[d](shift[seq, by = 1](x) * w)".into(), "needs other positions along `seq`"),
        ("let logits = sum[d](x * w) + random_normal[seq](0, 1)".into(), "drawn anew"),
        ("let logits = mean[seq](sum[d](x * w))".into(), "not a float with the dim `seq`"),
    ];
    for (body, why) in cases {
        let text = refused(&body);
        assert!(text.contains(why) && text.is_empty() == why.is_empty(), "{body}: {text}");
    }
}
