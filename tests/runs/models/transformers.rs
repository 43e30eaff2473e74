//! Transformers that ship, with dropout, on meshes that divide nothing: every layout trains them alike.

use crate::layouts::every_layout::Subject;
use crate::support::{Sizes, command, measured, options, root, trained, write_data, write_tags};
use crate::training::text::tokenized;
use meshwright_core::training_step;
use meshwright_plan::{Collective, DType, Operand, Plan, Prim, Step};
use meshwright_runs::catalog::LAYOUTS;
use meshwright_speed::slowness;
use meshwright_train::{Project, ProjectOptions};
use std::path::Path;
use std::time::Duration;

/// Sizes at which a step takes milliseconds, of models of text.
const TEXT: [(&str, usize); 7] =
    [("batch", 5), ("seq", 14), ("vocab", 320), ("layers", 2), ("heads", 3), ("d_head", 4), ("d_ff", 10)];

/// A model of text, with examples of some chapters.
fn text_alike(model: &str, sizes: &[(&str, usize)], more: &[(&str, &str)], tokens: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), tokens);
    alike(model, sizes, more, [dir.path(); 2]);
}

/// A model with data for small sizes, and for those of its preset.
fn alike(model: &str, sizes: &[(&str, usize)], more: &[(&str, &str)], [at, own]: [&Path; 2]) {
    let more = &[more, &[("", "recompute layers.*")]].concat();
    let (single, at_own_sizes) = (model != "switch", Some(own));
    Subject { model, sizes, more, single, at, at_own_sizes }.is_trained_alike();
}

const NEXT: &[&str] = &["--train", "bpe", "--vocab", "320"];
const MASKED: &[&str] = &["--train", "wordpiece", "--vocab", "320", "--task", "masked"];

/// Layouts of several ideas, of models with heads.
const MIXED: &[(&str, &str)] = &[
    ("data=2,model=2", "batch -> data; heads, d_ff -> model; params: * -> data"),
    ("data=2,model=2", "batch -> data; heads, d_ff, vocab -> model; recompute layers.*"),
    ("model=2,ctx=2", "heads, d_ff, vocab -> model; seq -> ctx; ring key"),
    ("model=2,ctx=2", "heads, d_ff, vocab -> model; inside -> model, ctx; seq -> ctx when free"),
    ("", "microbatches 5"),
    // All that a layer hands on, with uneven shards.
    ("a=5", "d_model -> a"),
    ("data=3", "batch -> data; params: * -> data; microbatches 5; recompute layers.*"),
    ("data=2,model=2", "batch -> data; heads, d_ff, vocab -> model; microbatches 5"),
    ("data=3", "batch -> data; params: * -> data; microbatches 5; keep params; reduce grads once"),
    (
        "data=2,model=2",
        "batch -> data; heads, d_ff -> model; params: * -> data; moments: * -> data; microbatches 5; keep params word, layers.*; reduce grads by part; recompute layers.*",
    ),
];

/// Stages: as many as layers, more than layers, beside shards of all kinds.
const STAGES: &[(&str, &str)] = &[
    ("pipe=2", "layers -> pipe; microbatches 5"),
    ("pipe=3", "layers -> pipe"),
    ("data=2,pipe=2", "batch -> data; layers -> pipe; params: * -> data; microbatches 5; recompute layers.*"),
    ("pipe=2,model=2", "layers -> pipe; d_ff -> model; moments: * -> model; microbatches 5; schedule gpipe"),
    ("pipe=3", "layers -> pipe; stages 0, 2, 0; microbatches 5; schedule zb_h1"),
    (
        "data=2,pipe=2",
        "batch -> data; layers -> pipe; params: * -> data; microbatches 5; schedule zb_h1; recompute layers.*",
    ),
];

/// The layouts with stages that ship, with shards of each kind, and ZeRO 2.
const SHIPPED_STAGES: &[(&str, &str)] = &[
    ("pipe=2", "pipeline"),
    ("pipe=2,data=2,model=2", "3d"),
    ("data=2,pipe=2", "batch -> data; layers -> pipe; grads: * -> data; moments: * -> data; microbatches 8"),
    ("data=2,pipe=2", "batch -> data; layers -> pipe; params: * -> data; microbatches 8; schedule zb_h1"),
];

/// Long sequences within other ways: keys around a ring, heads in place of positions within attention, and both.
const LONG: &[(&str, &str)] = &[
    (
        "model=2,ctx=2",
        "d_ff -> model; seq -> ctx; ring key; params: * -> ctx; recompute layers.*; microbatches 5",
    ),
    ("ctx=3", "seq -> ctx; ring key; moments: * -> ctx; microbatches 5"),
    ("a=2,b=2", "seq -> b, a; ring key"),
    ("ctx=2", "inside -> ctx; seq -> ctx when free; params: * -> ctx; recompute layers.*; microbatches 5"),
    ("around=2,ctx=2", "seq -> around; inside -> ctx; seq -> ctx when free; ring key"),
    ("pipe=2,ctx=2", "layers -> pipe; seq -> ctx; ring key; microbatches 5"),
];

/// The same of models that have more dims of positions, as `t5` has, whose attention with a learned bias takes no ring.
const TWO_TEXTS: &[(&str, &str)] = &[
    (
        "ctx=3",
        "seq, out -> ctx; ring key, earlier; gather key, earlier; params: * -> ctx; recompute layers.*; microbatches 5",
    ),
    ("model=2,ctx=2", "d_ff -> model; inside -> ctx; seq, out -> ctx when free; microbatches 5"),
];

/// Of patches.
const PATCHES: &[(&str, &str)] = &[
    ("ctx=3", "seq, patches -> ctx; ring key; params: * -> ctx; recompute layers.*; microbatches 5"),
    ("model=2,ctx=2", "d_ff -> model; inside -> ctx; seq, patches -> ctx when free; microbatches 5"),
];

/// Of tokens that choose experts.
const CHOICES: &[(&str, &str)] = &[
    (
        "ctx=3",
        "seq -> ctx; choice -> ctx when free; ring key; params: * -> ctx; recompute layers.*; microbatches 5",
    ),
    ("model=2,ctx=2", "d_ff -> model; inside -> ctx; seq, choice -> ctx when free; microbatches 5"),
];

/// Positions in zigzag order, within other ways.
const ZIGZAG: &[(&str, &str)] = &[
    ("ctx=2", "seq -> ctx; ring key; order seq zigzag ctx"),
    ("ctx=3", "seq -> ctx; gather key; order seq zigzag ctx; moments: * -> ctx; microbatches 5"),
    ("a=2,b=2", "seq -> a, b; ring key; order seq zigzag a, b; recompute layers.*"),
    (
        "model=2,ctx=2",
        "d_ff, vocab -> model; seq -> ctx; ring key; order seq zigzag ctx; params: * -> ctx; microbatches 5",
    ),
    ("pipe=2,ctx=2", "layers -> pipe; seq -> ctx; ring key; order seq zigzag ctx; microbatches 5"),
    (
        "around=2,ctx=2",
        "seq -> around; inside -> ctx; seq -> ctx when free; ring key; order seq zigzag around",
    ),
    // In an order that no rule splits.
    ("ctx=2", "batch -> ctx; order seq zigzag ctx"),
];

/// A number of positions that two, three and four devices share in ranges.
fn zigzag_alike(model: &str, sizes: &[(&str, usize)]) {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), NEXT);
    let sizes: Vec<_> =
        sizes.iter().map(|(name, size)| (*name, if *name == "seq" { 24 } else { *size })).collect();
    let subject =
        Subject { model, sizes: &sizes, more: &[], single: true, at: dir.path(), at_own_sizes: None };
    subject.is_trained_alike_under(ZIGZAG);
    for (mesh, layout) in ZIGZAG.iter().filter(|(_, layout)| layout.contains("ring key")) {
        goes_around(model, &sizes, mesh, layout);
    }
}

/// Keys and values go around: nothing gathers them, and no attention has all of them.
fn goes_around(model: &str, sizes: &[(&str, usize)], mesh: &str, layout: &str) {
    let loaded = Project::load(&options(model, mesh, layout, sizes));
    let project = loaded.project.unwrap_or_else(|| panic!("{model}, {layout}: {:?}", loaded.diagnostics));
    let (compiled, found) = project.compile(&training_step(&project.program).unwrap(), &loaded.sources);
    let plan = compiled.unwrap_or_else(|| panic!("{model}, {layout}: {found:?}")).plan;
    let key = plan.dims.find("key").unwrap();
    let rotates = |s: &&Step| matches!(s.collective(), Some(Collective::Rotate { .. }));
    assert!(plan.steps.iter().filter(rotates).count() >= 6, "{model}, {layout}: no rings");
    let has_all = |o: &Operand| {
        let along = o.dims.iter().position(|d| *d == key);
        along.is_some_and(|k| plan.buffer(o.buf).extents[k].axes.is_empty()) && o.dims.len() > 2
    };
    let brings =
        |s: &&Step| matches!(s.prim, Prim::Attention { .. } | Prim::Collective(Collective::AllGather { .. }));
    let whole: Vec<&Step> = plan.steps.iter().filter(brings).filter(|s| s.all().any(has_all)).collect();
    assert!(whole.is_empty(), "{model}, {layout}: {whole:?}");
}

/// The batch example by example.
const PARTS: &[(&str, &str)] = &[("", "microbatches 5")];

#[test]
fn gpt_is_trained_alike_under_every_layout() {
    text_alike("gpt", &[&TEXT[..], &[("places", 16)]].concat(), &[MIXED, STAGES, LONG].concat(), NEXT);
}

#[test]
fn gpt_is_trained_alike_in_zigzag_order() {
    zigzag_alike("gpt", &[&TEXT[..], &[("places", 24)]].concat());
}

#[test]
fn llama_is_trained_alike_in_zigzag_order() {
    let mut sizes: Vec<_> = TEXT.into_iter().filter(|(name, _)| *name != "heads").collect();
    sizes.extend([("groups", 3), ("queries", 2)]);
    zigzag_alike("llama", &sizes);
}

#[test]
fn bert_is_trained_alike_under_every_layout() {
    text_alike("bert", &[&TEXT[..], &[("places", 16)]].concat(), &[MIXED, STAGES, LONG].concat(), MASKED);
}

#[test]
fn bert_classify_is_trained_alike_under_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), MASKED);
    let path = dir.path().join("data/data.toml");
    let pairs = std::fs::read_to_string(&path).unwrap();
    let pairs = pairs.replace("task = \"masked\"", "task = \"masked\", pairs = true");
    std::fs::write(path, pairs.replace("follows = {", "label = {")).unwrap();
    // Behind the layers something is dropped.
    let layouts = [PARTS, STAGES, LONG].concat();
    alike("bert_classify", &[&TEXT[..], &[("places", 16)]].concat(), &layouts, [dir.path(); 2]);
}

#[test]
fn bert_tag_is_trained_alike_under_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    write_tags(&dir.path().join("data"), [40, 14, 200]);
    let sizes = [&TEXT[..], &[("places", 16)]].concat();
    let (model, at) = ("bert_tag", dir.path());
    let subject = Subject { model, sizes: &sizes, more: &[], single: true, at, at_own_sizes: None };
    let shipped = [("data=2,ctx=2", "ring"), ("data=1,ctx=4", "ulysses")];
    subject.is_trained_alike_under(&[PARTS, STAGES, LONG, &shipped].concat());
}

#[test]
fn llama_is_trained_alike_under_every_layout() {
    // Its heads are `groups` times `queries`.
    let mut sizes: Vec<_> = TEXT.into_iter().filter(|(name, _)| *name != "heads").collect();
    sizes.extend([("groups", 3), ("queries", 2)]);
    text_alike("llama", &sizes, &[PARTS, STAGES, LONG].concat(), NEXT);
}

#[test]
fn switch_is_trained_alike_under_every_layout() {
    let both = ("data=2,model=2", "experts -> data; batch -> data when free; heads, d_ff, vocab -> model");
    text_alike("switch", &[&TEXT[..], &[("experts", 5)]].concat(), &[&[both], CHOICES].concat(), NEXT);
}

#[test]
fn t5_is_trained_alike_under_every_layout() {
    let tokens = ["--train", "bpe", "--vocab", "320", "--sentinels", "16", "--task", "spans"];
    let layouts = [PARTS, TWO_TEXTS].concat();
    text_alike("t5", &[&TEXT[..], &[("out", 9), ("d_model", 13)]].concat(), &layouts, &tokens);
}

/// In `f32` the losses are those of `f64` to six digits, if no hidden unit lies so near to the kink of `relu` that a rounding
/// decides on which side.
#[test]
fn t5_loses_no_digits_in_f32_where_it_is_smooth() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = ["--train", "bpe", "--vocab", "320", "--sentinels", "16", "--task", "spans"];
    tokenized(dir.path(), &tokens);
    let text = std::fs::read_to_string(root().join("models/t5.mw")).unwrap();
    let smooth = text.replace("relu(", "gelu(");
    assert_ne!(text, smooth);
    let model = dir.path().join("smooth.mw");
    std::fs::write(&model, smooth).unwrap();
    let sizes = [&TEXT[..], &[("out", 9), ("d_model", 13)]].concat();
    let losses = |precision: DType, mesh: &str, layout: &str| {
        let o = options(model.to_str().unwrap(), mesh, layout, &sizes);
        let o = ProjectOptions { preset: Some("tiny".into()), precision: Some(precision.into()), ..o };
        trained(&o, dir.path(), &format!("{precision}-{mesh}"), 15).losses
    };
    let double = losses(DType::F64, "", "");
    for (mesh, layout) in [("", ""), ("data=2", "batch -> data")] {
        let single = losses(DType::F32, mesh, layout);
        let off = double.iter().zip(&single).map(|(a, b)| ((a - b) / a).abs()).fold(0.0, f64::max);
        assert!(off < 1e-6, "{layout}: {off:e} of {double:?}");
    }
}

#[test]
fn vit_is_trained_alike_under_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    write_data(&dir.path().join("data"), Sizes { examples: 60, test: 10, rows: 12, cols: 9 });
    let own = tempfile::tempdir().unwrap();
    write_data(&own.path().join("data"), Sizes { examples: 200, test: 10, rows: 28, cols: 28 });
    let mut sizes = vec![("down", 3), ("across", 3), ("ph", 4), ("pw", 3)];
    // It reads no text.
    sizes.extend(TEXT.into_iter().filter(|(name, _)| !["seq", "vocab"].contains(name)));
    alike("vit", &sizes, &[PARTS, STAGES, PATCHES].concat(), [dir.path(), own.path()]);
}

/// The models with one loop over layers, with a batch that microbatches divide, under what `layouts` says of each.
fn staged_alike(layouts: &dyn Fn(&str) -> Vec<(&'static str, &'static str)>) {
    let batch = |sizes: &[(&'static str, usize)],
                 more: &[(&'static str, usize)]|
     -> Vec<(&'static str, usize)> {
        let other = sizes.iter().filter(|(name, _)| *name != "batch" && more.iter().all(|m| m.0 != *name));
        other.copied().chain([("batch", 8)]).chain(more.iter().copied()).collect()
    };
    let without =
        |names: &[&str]| -> Vec<_> { TEXT.into_iter().filter(|(name, _)| !names.contains(name)).collect() };
    let pixels = [("down", 3), ("across", 3), ("ph", 4), ("pw", 3)];
    let texts = [
        ("gpt", batch(&TEXT, &[("places", 16)]), NEXT),
        ("bert", batch(&TEXT, &[("places", 16)]), MASKED),
        ("llama", batch(&without(&["heads"]), &[("groups", 3), ("queries", 2)]), NEXT),
        ("switch", batch(&TEXT, &[("experts", 5)]), NEXT),
        ("vit", batch(&without(&["seq", "vocab"]), &pixels), &[]),
    ];
    for (model, sizes, tokens) in texts {
        let dir = tempfile::tempdir().unwrap();
        match model {
            "vit" => {
                write_data(&dir.path().join("data"), Sizes { examples: 60, test: 10, rows: 12, cols: 9 })
            }
            _ => tokenized(dir.path(), tokens),
        }
        let single = model != "switch";
        let subject = Subject { model, sizes: &sizes, more: &[], single, at: dir.path(), at_own_sizes: None };
        subject.is_trained_alike_under(&layouts(model));
    }
}

/// Experts are shared out beside stages, too.
#[test]
fn transformers_are_trained_alike_under_the_stages_that_ship() {
    let experts =
        ("data=2,pipe=2", "experts -> data; batch -> data when free; layers -> pipe; microbatches 8");
    staged_alike(&|model| {
        let more: &[_] = if model == "switch" { &[experts] } else { &[] };
        [SHIPPED_STAGES, more].concat()
    });
}

/// Stages whose devices share out positions: beside tensor parallel or alone, keys gathered or around a ring, with ZeRO 1 to 3,
/// in each order of microbatches.
#[test]
fn long_sequences_within_stages_are_trained_alike() {
    staged_alike(&|model| {
        let seq = if model == "vit" { "seq, patches" } else { "seq" };
        let ctx = match model {
            "switch" => "seq -> ctx; choice -> ctx when free".to_string(),
            _ => format!("{seq} -> ctx"),
        };
        let tensor = match model {
            "llama" => "groups, d_ff, vocab -> model",
            "vit" => "heads, d_ff -> model",
            _ => "heads, d_ff, vocab -> model",
        };
        let mut all = vec![
            ("pipe=2,model=2", format!("{tensor}; {seq} -> model when free; schedule zb_h1")),
            ("pipe=2,ctx=2", format!("{ctx}; gather key; grads: * -> ctx; moments: * -> ctx")),
            (
                "pipe=2,ctx=2",
                format!("{ctx}; ring key; params: * -> ctx; schedule zb_h1; recompute layers.*"),
            ),
            // What all stages of `switch` have alike may not be summed over microbatches in chunks.
            match model {
                "switch" => ("pipe=2,ctx=2", format!("{ctx}; ring key")),
                _ => {
                    let chunks = "chunks 2; stages 0, 1, 1, 0";
                    ("pipe=2,model=2", format!("{tensor}; {seq} -> model when free; {chunks}"))
                }
            },
        ];
        let zero = format!("batch -> data; {tensor}; {seq} -> model when free; params: * -> data");
        let ring = format!("{tensor}; {ctx}; ring key; moments: * -> ctx; schedule gpipe");
        all.extend([("pipe=2,data=2,model=2", zero), ("pipe=2,model=2,ctx=2", ring)]);
        let staged =
            |layout: String| String::leak(format!("layers -> pipe; microbatches 4; {layout}")) as &str;
        all.into_iter().map(|(mesh, layout)| (mesh, staged(layout))).collect()
    });
}

/// The Plan of training.
fn plan(o: &ProjectOptions) -> Plan {
    let loaded = Project::load(o);
    let project = loaded.project.unwrap_or_else(|| panic!("{:?}", loaded.diagnostics));
    let step = training_step(&project.program).unwrap();
    project.compile(&step, &loaded.sources).0.unwrap().plan
}

#[test]
fn more_layers_are_no_more_steps() {
    let steps = |layers, layout: &str| plan(&options("bert", "", layout, &[("layers", layers)])).steps.len();
    // `bert` computes in bf16.
    for layout in
        ["", "megatron_sp", "recompute layers.*", "recompute layers.attention, layers.feed_forward.*"]
    {
        assert_eq!(steps(2, layout), steps(96, layout), "{layout}");
    }
    // What is scattered around the loops is larger, and fills more buckets.
    let (few, many) = (steps(2, "zero3"), steps(96, "zero3"));
    assert!(few <= many && many < few + 8, "{few} and {many}");
}

/// Under every layout that ships. Where devices update shards of parameters whole values go into several buckets, of a share of
/// all their bytes or of 4 MiB: there alone more bytes are more steps, and no more than so many.
#[test]
fn more_layers_of_gpt_are_no_more_steps_but_buckets() {
    const MOST_BUCKETS: usize = 16;
    let tiny = |layout: &str, more: &[(&str, usize)]| ProjectOptions {
        preset: Some("tiny".into()),
        ..options("gpt", "", layout, more)
    };
    let moves = |s: &&Step| s.collective().is_some() || matches!(s.prim, Prim::Wait);
    let mut apart = Vec::new();
    for layout in LAYOUTS.iter().map(|l| l.name) {
        let [few, many] = [2, 96].map(|layers| plan(&tiny(layout, &[("layers", layers)])));
        let moving = |p: &Plan| p.steps.iter().filter(moves).count();
        assert_eq!(few.steps.len() - moving(&few), many.steps.len() - moving(&many), "{layout}");
        // What is in flight takes a step that starts it and one that waits.
        let (less, more) = (moving(&few), moving(&many));
        assert!(less <= more && more <= less + 2 * 2 * MOST_BUCKETS, "{layout}: {less} and {more}");
        if less < more {
            apart.push(layout);
        }
        // All of 96 layers in less than 4 MiB.
        let small = |layers| {
            let sizes = [("layers", layers), ("heads", 2), ("d_head", 8), ("d_ff", 32), ("vocab", 64)];
            plan(&tiny(layout, &sizes)).steps.len()
        };
        assert_eq!(small(2), small(96), "{layout}");
    }
    // Under ZeRO-3 the update moves nothing, and what else there is of `gpt` is within the loop.
    assert_eq!(apart, ["zero1", "zero2", "3d"]);
}

/// A hundred layers for a thousand devices are planned as fast as two for one: in less than a second of one processor, the start
/// of the command included, and in less than 500 MB.
#[test]
fn gpt_3_is_planned_for_a_thousand_devices() {
    // All ways at once: 96 microbatches of 16 examples in 24 stages.
    let staged = "batch -> data; heads, d_ff, vocab -> model; moments: * -> data; layers -> pipe; chunks 3; microbatches 96";
    for (layout, mesh) in
        [("dp_tp", "data=16,model=64"), ("zero3", "data=1024"), (staged, "pipe=8,data=16,model=8")]
    {
        for asked in [&["check"][..], &["explain", "--format", "json"]] {
            let args =
                [asked, &["gpt", "--preset", "gpt3_175b", "--layout", layout, "--mesh", mesh]].concat();
            // The best of some: caches are shared with whatever else runs.
            let took = (0..4).map(|_| {
                let (used, said) = measured(&mut command(&args));
                assert_eq!(said.code, Some(0), "{}", said.err);
                assert!(said.out.contains("1024") || said.out.contains("1,024"), "{}", said.out);
                assert!(used.peak_kib > 5_000 && used.peak_kib < 500_000, "{args:?}: {used:?}");
                used.cpu.div_f64(slowness())
            });
            let took = took.min().unwrap();
            assert!(took > Duration::ZERO && took < Duration::from_secs(1), "{args:?}: {took:?}");
        }
        let o = ProjectOptions { preset: Some("gpt3_175b".into()), ..options("gpt", mesh, layout, &[]) };
        assert!(plan(&o).steps.len() < 2_000, "{layout}");
    }
}
