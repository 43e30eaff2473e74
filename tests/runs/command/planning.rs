//! Planning: fast, and a function of its input alone.

use crate::support::options;
use meshwright_core::explain::explain;
use meshwright_core::lowering::verify_plan;
use meshwright_core::partition::PlacedLoop;
use meshwright_core::verify::verify;
use meshwright_core::{Compiled, OutputKind, training_step};
use meshwright_plan::{Operand, Plan, Prim};
use meshwright_speed::slowness;
use meshwright_train::{Project, ProjectOptions};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// From names on the command line to a Plan: parsing, resolving, differentiating, partitioning, lowering.
fn plan(o: &ProjectOptions) -> Plan {
    compiled(o).plan
}

fn compiled(o: &ProjectOptions) -> Compiled {
    let loaded = Project::load(o);
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    let step = training_step(&project.program).unwrap();
    project.compile(&step, &loaded.sources).0.unwrap()
}

#[test]
fn what_is_alive_at_the_peak_adds_up_to_it() {
    for (model, mesh, layout) in
        [("mnist_mlp", "", ""), ("mnist_mlp", "", "zero3"), ("mnist_conv", "", "dp"), ("unet", "", "spatial")]
    {
        let plan = plan(&options(model, mesh, layout, &[]));
        let held = plan.at_peak();
        let sum: u64 = held.iter().map(|b| b.bytes).sum();
        assert_eq!(sum, plan.summary.peak_bytes, "{model}, {layout}");
        assert!(held.is_sorted_by(|a, b| a.bytes >= b.bytes) && held.iter().all(|b| !b.path.is_empty()));
    }
}

#[test]
fn planning_takes_less_than_50_ms() {
    for (model, mesh, layout) in [
        ("mlp", "", "dp_tp"),
        ("mnist_mlp", "", "dp_tp"),
        ("mnist_mlp", "", "zero3"),
        ("mnist_mlp", "a=2,b=3,c=4", "batch -> a; hidden1 -> b; hidden2 -> c; params: rows -> c"),
    ] {
        let o = options(model, mesh, layout, &[]);
        // Of the processor, and the best of some: others share the machine and its caches.
        let best = (0..5).map(|_| {
            let begin = thread_time();
            plan(&o);
            (thread_time() - begin).div_f64(slowness())
        });
        let best = best.min().unwrap();
        assert!(best < Duration::from_millis(50), "{model}, {mesh}, {layout}: {best:?}");
    }
}

/// A decoder of so many blocks, written out one by one.
fn decoder(blocks: usize) -> String {
    let mut text = DECODER.to_string();
    for i in 0..blocks {
        text.push_str(&format!("    let x{} = block(x{i}) as b{i}\n", i + 1));
    }
    text.push_str(&format!("    let logits = sum[d_model](x{blocks} * word)\n"));
    text + DECODER_END
}

const DECODER: &str = "
dim batch = 32, seq = 128, vocab = 1000, heads = 12, d_head = 64, d_ff = 3072, d_model = heads * d_head, key = seq

layer dense(x, in, out) {
    param w[in, out] = truncated_normal(0, 0.02)
    param b[out]     = 0
    return sum[in](x * w) + b
}

layer norm(x) {
    param scale[d_model] = 1
    param shift[d_model] = 0
    let c = x - mean[d_model](x)
    return c * rsqrt(mean[d_model](c * c) + 1e-12) * scale + shift
}

layer attention(x) {
    let q = dense(x, [d_model], [heads, d_head])
    let k = dense(x, [d_model], [heads, d_head])[seq -> key]
    let v = dense(x, [d_model], [heads, d_head])[seq -> key]
    let score  = sum[d_head](q * k) / sqrt(size(d_head))
    let weight = softmax[key](where(index(key) <= index(seq), score, -1e9))
    return dense(sum[key](weight * v), [heads, d_head], [d_model]) as out
}

layer feed_forward(x) {
    let up = gelu(dense(x, [d_model], [d_ff]))
    return dense(up, [d_ff], [d_model]) as down
}

layer block(x) {
    let a = norm(x + attention(x)) as norm1
    return norm(a + feed_forward(a)) as norm2
}

model decoder {
    input token [batch, seq]: i32 in vocab
    input target[batch, seq]: i32 in vocab
    param word[vocab, d_model] = truncated_normal(0, 0.02)
    let x0 = norm(word[vocab = token]) as embed
";

const DECODER_END: &str = "    loss xent = mean[batch, seq](cross_entropy[vocab](logits, target))
}

train decoder {
    minimize xent
    optimizer adamw(lr = 1e-4)
}
";

/// CPU time of this thread so far.
fn thread_time() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Four times the blocks take about four times as long, under ZeRO-3 and with tensor parallelism: nothing in the compiler
/// looks at all of a program for each part of it.
#[test]
fn planning_grows_with_the_size_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let file = |blocks: usize| {
        let file = dir.path().join(format!("decoder{blocks}.mw")).display().to_string();
        std::fs::write(&file, decoder(blocks)).unwrap();
        file
    };
    for (mesh, layout) in [("data=4", "zero3"), ("r=2,c=2", "batch -> r; heads, d_ff, vocab -> c")] {
        // Time of this thread alone, the best of some: others share the machine.
        let best = |blocks: usize, tries: usize| {
            let o = options(&file(blocks), mesh, layout, &[]);
            let took = (0..tries).map(|_| {
                let begin = thread_time();
                plan(&o);
                thread_time() - begin
            });
            took.min().unwrap()
        };
        let (few, many) = (best(12, 6), best(48, 5));
        assert!(many < few * 7, "{layout}: 12 blocks in {few:?}, 48 in {many:?}");
    }
}

#[test]
fn a_plan_is_byte_identical_and_survives_its_own_form() {
    for layout in ["dp", "tp", "dp_tp", "zero1", "zero2", "zero3", "folded"] {
        let o = options("mnist_mlp", "", layout, &[]);
        let (a, b) = (plan(&o), plan(&o));
        assert_eq!(a.to_json(), b.to_json(), "{layout}");
        let read = Plan::from_json(&a.to_json()).unwrap();
        assert_eq!(read, a, "{layout}");
        assert_eq!(read.hash(), a.hash());
    }
    let of = |layout| plan(&options("mlp", "", layout, &[])).hash();
    assert_ne!(of("dp"), of("tp"));
}

/// A network whose weight, logits and attention are squares: another order of their dims has the same sizes.
const SQUARES: &str = "
dim batch = 6, in = 6, classes = 6

model squares {
    input image[batch, in]: u8
    input label[batch]: i32 in classes
    param w[in, classes] = normal(0, 1)
    let x = cast(image, float) / 255
    let weight = softmax[in](x * 3)
    let logits = sum[in](weight * w)
    loss xent = mean[batch](cross_entropy[classes](logits, label))
}

train squares {
    minimize xent
    optimizer sgd(lr = 0.1)
}
";

/// Softmax and the gradient of a cross-entropy write over their logits, which nobody needs any more, and updates over what
/// they update. The verifier of Plans refuses each where the operand is read in another order than the result is written.
#[test]
fn storage_is_handed_on_in_order_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("squares.mw").display().to_string();
    std::fs::write(&file, SQUARES).unwrap();
    let sound = plan(&options(&file, "", "", &[]));
    assert_eq!(verify_plan(&sound), Vec::<String>::new());
    let mut seen = Vec::new();
    for (i, step) in sound.steps.iter().enumerate() {
        for (from, to) in &step.aliases {
            let turn = |o: &mut Operand| {
                if o.buf == *from {
                    o.dims.reverse();
                }
            };
            let mut broken = sound.clone();
            match &step.prim {
                Prim::Map { .. } if step.writes[0].dims.len() == 2 => {}
                Prim::Softmax { .. } | Prim::CrossEntropyGrad { .. } => {}
                _ => continue,
            }
            broken.steps[i].reads.iter_mut().for_each(turn);
            seen.push(step.name());
            let said = verify_plan(&broken);
            let expected = format!("storage of {} cannot go to {}", from.0, to.0);
            assert!(said.iter().any(|s| s.contains(&expected)), "{}: {said:?}", step.name());
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, ["cross_entropy_grad", "map", "softmax"]);

    // Nor do two results share a place, nor does an operand go to a result of another step.
    let i = sound.steps.iter().position(|s| !s.aliases.is_empty()).unwrap();
    let mut twice = sound.clone();
    let pair = twice.steps[i].aliases[0];
    twice.steps[i].aliases.push(pair);
    assert!(!verify_plan(&twice).is_empty());
}

/// The verifier of SPMD programs refuses a next value that is not placed as what it replaces.
#[test]
fn next_values_are_placed_as_their_leaves() {
    let spmd = compiled(&options("mlp", "data=4", "zero1", &[])).spmd;
    assert_eq!(verify(&spmd), Vec::<String>::new());
    for (k, goal) in spmd.step.outputs.iter().enumerate() {
        let OutputKind::Next(_) = goal.kind else { continue };
        let version = spmd.outputs[k];
        // Another version of the same value, in another placement.
        let other = spmd.instrs.iter().map(|i| i.out()).find(|o| {
            let (a, b) = (spmd.copy(*o), spmd.copy(version));
            a.value == b.value && a.placement != b.placement && a.placement.partial.is_empty()
        });
        let Some(other) = other else { continue };
        let mut broken = spmd.clone();
        broken.outputs[k] = other;
        let expected = format!("the next value of `{}` is not placed as it is", goal.name);
        assert_eq!(verify(&broken), [expected]);
        return;
    }
    panic!("no next value has a second version");
}

/// `explain` shows loops of the Plan, and in them values by the loops of the partitioned step: the two are in the same order.
#[test]
fn values_are_reported_in_the_loops_of_the_plan() {
    for (model, layout) in [
        ("gpt", "zero3"),
        ("bert", "megatron_sp"),
        ("llama", "context"),
        ("llama", "ring"),
        ("llama", "ring_zigzag"),
        ("switch", "experts"),
        ("t5", "mesh data = 2; batch -> data; microbatches 4"),
        ("vit", "dp_tp"),
    ] {
        let preset = Some("tiny".into());
        let loaded = Project::load(&ProjectOptions { preset, ..options(model, "", layout, &[]) });
        let project = loaded.project.unwrap_or_else(|| panic!("{model}: {:?}", loaded.diagnostics));
        let step = training_step(&project.program).unwrap();
        let compiled = project.compile(&step, &loaded.sources).0.unwrap();
        let (spmd, report) = (&compiled.spmd, explain(&compiled, &|_| 0));
        let g = &spmd.step.graph;
        let of = |l: &PlacedLoop| (g.dims.name(g.repeats[l.of].dim), g.repeats[l.of].reverse);
        let here: Vec<_> = spmd.loops.iter().map(of).collect();
        let there: Vec<_> = report.loops.iter().map(|l| (l.dim.as_str(), l.reverse)).collect();
        assert!(here.len() >= 2, "{model}");
        assert_eq!(here, there, "{model}");
        // A value in a loop lacks its dim.
        for v in &report.values {
            let dim = v.in_loop.map(|l| &report.loops[l].dim);
            assert!(dim.is_none_or(|d| !v.dims.contains(d)), "{model}: {}", v.value);
        }
        let bytes: u64 = report.collectives.iter().map(|c| c.bytes as u64 * c.times).sum();
        assert_eq!(bytes, report.per_device.collective_bytes, "{model}");
        let kinds: u64 = report.totals.iter().map(|t| t.bytes).sum();
        assert_eq!(kinds, bytes, "{model}");
    }
}
