//! A step that decodes writes of a cache its new positions alone, under every layout.

use meshwright_core::{DecodedOutput, NewPositions, decode};
use meshwright_plan::{Arithmetic, BufId, Plan, Prim};
use meshwright_train::{Project, ProjectOptions};

const MODEL: &str = "
dim batch = 4, seq = 16, key = seq, vocab = 7, heads = 2, d = 4, layers = 3
model m {
    input token[batch, seq]: i32 in vocab
    param word[vocab, heads, d] = normal(0, 1)
    let x = word[vocab = token]
    LOOP {
        param w[heads, d] = normal(0, 1)
        let s = where(index(key) <= index(seq), sum[d](x * w * x[seq -> key]), -1e9)
        x = x + sum[key](softmax[key](s) * (x * w)[seq -> key])
    }
    let logits = sum[heads, d](x * word)
    output next = argmax[vocab](logits)
}
";

fn plan(text: &str, (mesh, layout): (&str, &str), count: usize) -> Plan {
    let option = |s: &str| (!s.is_empty()).then(|| s.to_string());
    let loaded = Project::load(&ProjectOptions {
        model: "m.mw".into(),
        mesh: option(mesh),
        layout: option(layout),
        precision: Some(Arithmetic::F32),
        texts: [("m.mw".to_string(), text.to_string())].into(),
        ..ProjectOptions::default()
    });
    let mut project = loaded.project.unwrap_or_else(|| panic!("{mesh} {layout}: {:?}", loaded.diagnostics));
    let seq = project.program.graph.dims.find("seq").unwrap();
    let new = NewPositions { count, output: DecodedOutput::MostProbable(7), kept_as: "cache" };
    let value = project.program.named_value("logits").unwrap();
    let decoding = decode(&project.program, &value, seq, new).0.unwrap();
    project.layout.gathers.extend(&decoding.gathered);
    let (done, found) = project.compile(&decoding.step, &loaded.sources);
    done.unwrap_or_else(|| panic!("{mesh} {layout}: {found:?}")).plan
}

/// From what a state is before the step to what it is after it, the steps by which its storage is handed on.
fn handed_on(plan: &Plan, from: BufId, to: BufId) -> Option<Vec<&Prim>> {
    let (mut now, mut steps) = (from, Vec::new());
    while now != to {
        let given = |s: &&meshwright_plan::Step| s.aliases.iter().any(|a| a.0 == now);
        let step = plan.steps.iter().find(given)?;
        now = step.aliases.iter().find(|a| a.0 == now)?.1;
        steps.push(&step.prim);
    }
    Some(steps)
}

#[test]
fn a_step_writes_of_a_cache_its_new_positions_alone() {
    let layouts = [
        ("", ""),
        ("a=2", "batch -> a"),
        ("a=3", "key -> a"),
        ("a=2", "heads -> a"),
        ("a=2,b=2", "batch -> a; heads -> b"),
        ("a=2,b=2", "key -> a; heads -> b"),
        ("a=2", "seq -> a"),
    ];
    let looped = MODEL.replace("LOOP", "repeat layers");
    // The same of one layer, without a loop.
    let once = MODEL
        .replace("LOOP {", "")
        .replace("    }\n    let logits", "    let logits")
        .replace("x = x +", "let y = x +")
        .replace("sum[heads, d](x * word)", "sum[heads, d](y * word)");
    for (text, loops) in [(&looped, true), (&once, false)] {
        for at in layouts {
            for count in [1, 5] {
                let plan = plan(text, at, count);
                let caches: Vec<_> =
                    plan.program_inputs.iter().filter(|i| i.name.contains("/cache.")).collect();
                assert_eq!(caches.len(), 2, "{at:?}");
                for cache in caches {
                    let steps = handed_on(&plan, cache.buf, cache.next.unwrap())
                        .unwrap_or_else(|| panic!("{at:?}: `{}` is copied", cache.name));
                    let names: Vec<&str> = steps.iter().map(|p| p.spec().name).collect();
                    let wanted: &[&str] = match loops {
                        true => &["repeat", "dynamic_update_slice", "end_repeat"],
                        false => &["dynamic_update_slice"],
                    };
                    assert_eq!(names, wanted, "{at:?}, {count} positions");
                }
                // Nothing else makes as much as one layer keeps: what reads it is a view.
                let least = plan
                    .program_inputs
                    .iter()
                    .filter(|i| i.name.contains("/cache."))
                    .map(|i| plan.buffer(i.buf).largest_bytes(&plan.mesh) as u64 / if loops { 3 } else { 1 })
                    .min()
                    .unwrap();
                for step in plan.steps.iter().filter(|s| s.computes()) {
                    let moves =
                        matches!(step.prim, Prim::Copy | Prim::IterationUpdate { .. } | Prim::Blank { .. });
                    let bytes: u64 =
                        step.writes.iter().map(|o| plan.buffer(o.buf).largest_bytes(&plan.mesh) as u64).sum();
                    assert!(!moves || bytes < least, "{at:?}: `{}` of {bytes} bytes", step.name());
                }
            }
        }
    }
}

/// What a rule stores split is gathered where it is used, in the programs of `generate` as in those of training: of tables of
/// positions, too, which are read at those of each text.
#[test]
fn stored_parameters_of_positions_need_no_gather_line() {
    let bias = MODEL
        .replace("LOOP", "repeat layers")
        .replace(
            "param word",
            "param place[seq, heads, d] = normal(0, 1)\n    param bias[seq] = normal(0, 1)\n    param word",
        )
        .replace("let x = word[vocab = token]", "let x = word[vocab = token] + place")
        .replace("sum[d](", "bias[seq -> key] + sum[d](");
    assert!(bias.contains("+ place") && bias.contains("bias[seq -> key]"), "{bias}");
    let layouts =
        ["params: * -> a", "params: * -> a; batch -> a", "params *: * -> a; heads -> a", "params: seq -> a"];
    for layout in layouts {
        for count in [1, 5] {
            plan(&bias, ("a=2", layout), count);
        }
    }
}
