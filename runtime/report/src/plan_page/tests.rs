//! The page's data against the Plan and against what `explain` says.

use super::{LayoutView, PlannedLayout, data, html};
use meshwright_core::explain::{Report, explain};
use meshwright_core::{Compiled, training_step};
use meshwright_plan::memory::{self, MemoryKind};
use meshwright_plan::{BufId, ProgramInputKind};
use meshwright_sorted::SortedSet;
use meshwright_train::project::line_of;
use meshwright_train::{Loaded, Project, ProjectOptions};
use serde_json::{Value, json};

/// Models under layouts: tensors in buckets, halos, loops that stagger, gathers of parameters, one device, three axes.
const CASES: &[(&str, Option<&str>, &str, &str)] = &[
    ("mnist_mlp", None, "r=2,c=2", "batch -> r; hidden1 -> c"),
    ("unet", None, "", "unet_tiles"),
    ("gpt", Some("tiny"), "data=4", "zero3"),
    ("gpt", Some("tiny"), "data=2,model=2", "megatron_sp"),
    ("bert", Some("tiny"), "data=4", "dp"),
    ("mlp", None, "", ""),
    ("mlp", None, "a=2,b=3,c=2", "batch -> a, b; hidden -> c"),
    ("gpt", Some("tiny"), "pipe=2", "layers -> pipe; microbatches 4; chunks 2; schedule zb_h1"),
];

struct Case {
    compiled: Compiled,
    report: Report,
    view: LayoutView,
    json: Value,
}

fn case(model: &str, preset: Option<&str>, mesh: &str, layout: &str) -> Case {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_string());
    let options = ProjectOptions {
        model: model.into(),
        preset: preset.map(Into::into),
        mesh: given(mesh),
        layout: given(layout),
        ..ProjectOptions::default()
    };
    let Loaded { project, sources, diagnostics, .. } = Project::load(&options);
    let project = project.unwrap_or_else(|| panic!("{diagnostics:?}"));
    let step = training_step(&project.program).unwrap();
    let compiled = project.compile(&step, &sources).0.unwrap();
    let report = explain(&compiled, &|span| line_of(&sources, span));
    let planned = PlannedLayout {
        name: layout,
        compiled: &compiled,
        report: &report,
        sources: &sources,
        layout: &project.layout,
    };
    let view = LayoutView::of(&planned);
    let json = serde_json::to_value(&view).unwrap();
    Case { compiled, report, view, json }
}

fn cases() -> impl Iterator<Item = Case> {
    CASES.iter().map(|(model, preset, mesh, layout)| case(model, *preset, mesh, layout))
}

fn kind_named(name: &str) -> usize {
    MemoryKind::ALL.iter().position(|k| k.name() == name).unwrap()
}

/// Kind, bytes and lifetime of each buffer, as a browser reads them.
fn held(json: &Value) -> Vec<(usize, u64, u64, u64)> {
    let row = |b: &Value| {
        let at = |k: usize| b[k].as_u64().unwrap();
        (at(2) as usize, at(5), at(3), at(4))
    };
    json["buffers"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn the_curve_of_memory_has_the_peak_of_the_plan() {
    for Case { compiled, json, .. } in cases() {
        let (plan, held) = (&compiled.plan, held(&json));
        let alive = |at: u64| held.iter().filter(move |b| b.2 <= at && at < b.3);
        let total = |at: u64| alive(at).map(|b| b.1).sum::<u64>();
        let peak =
            (0..plan.steps.len() as u64).max_by_key(|at| (total(*at), std::cmp::Reverse(*at))).unwrap();
        assert_eq!(total(peak), plan.summary.peak_bytes, "{}", plan.model);
        let mut there: Vec<u64> = alive(peak).map(|b| b.1).collect();
        there.sort_unstable_by(|a, b| b.cmp(a));
        let expected: Vec<u64> = plan.at_peak().iter().map(|b| b.bytes).collect();
        assert_eq!(there, expected, "{}", plan.model);
        // The sums by kind are those of the same step.
        let sums = meshwright_plan::peak_by_kind(
            plan,
            &memory::residency(plan, &memory::paths(plan)),
            &meshwright_plan::StoredElements::new(),
        );
        let mut here = memory::ByKind::default();
        alive(peak).for_each(|b| here[b.0] += b.1);
        assert_eq!(sums, here, "{}", plan.model);
        // Before the step there is what is bound, of each kind what the totals say.
        let bound = |kind: &str| {
            let kind = kind_named(kind);
            let written = |i: usize| plan.steps.iter().any(|s| s.writes_buf(BufId(i as u32)));
            held.iter()
                .enumerate()
                .filter(|(i, b)| b.0 == kind && b.2 == 0 && b.3 > 0 && !written(*i))
                .map(|b| b.1.1)
                .sum::<u64>()
        };
        assert_eq!(bound("parameters"), plan.summary.parameter_bytes, "{}", plan.model);
        assert_eq!(bound("optimizer state"), plan.summary.optimizer_state_bytes, "{}", plan.model);
    }
}

#[test]
fn collectives_have_the_bytes_the_lines_and_the_reasons_of_explain() {
    for Case { report, json, compiled, .. } in cases() {
        let steps = json["steps"].as_array().unwrap();
        let text = |at: &Value| at.as_u64().map_or("", |at| json["texts"][at as usize].as_str().unwrap());
        let found: Vec<(usize, &Value)> =
            steps.iter().enumerate().filter(|(_, s)| s.get("collective").is_some()).collect();
        assert_eq!(found.len(), report.collectives.len());
        let mut moved = 0;
        for ((at, step), told) in found.into_iter().zip(&report.collectives) {
            let c = &step["collective"];
            assert_eq!((step["op"].as_str(), at), (Some(&*told.op), told.start));
            assert_eq!(c["wait"], json!(told.wait));
            let axes: Vec<&str> = c["axes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|a| &*compiled.plan.mesh.axes[a.as_u64().unwrap() as usize].name)
                .collect();
            assert_eq!(axes, told.axes);
            for (k, part) in told.parts.iter().enumerate() {
                let origin = &step["of"][k];
                assert_eq!(text(&origin["path"]), part.value);
                assert_eq!(text(&origin["because"]), part.because);
                assert_eq!(c["bytes"][k], json!(part.bytes));
                // The rules are those that stand in the line that `explain` names.
                let rules = origin["rules"].as_array().cloned().unwrap_or_default();
                assert_eq!(rules.is_empty(), part.rule.is_none(), "{origin}");
                for rule in rules {
                    let rule = &json["rules"][rule.as_u64().unwrap() as usize];
                    assert_eq!(rule["line"].as_u64(), part.rule.map(u64::from));
                }
                let line = origin["line"]
                    .as_u64()
                    .map_or(0, |l| json["lines"][l as usize]["line"].as_u64().unwrap());
                assert_eq!(line, u64::from(part.line));
                moved += part.bytes as u64 * step["times"].as_u64().unwrap();
            }
        }
        assert_eq!(moved, report.per_device.collective_bytes);
    }
}

#[test]
fn shards_are_those_of_the_plan_also_beyond_the_own_ones() {
    let mut windows = 0;
    for Case { compiled, json, view, .. } in cases() {
        let plan = &compiled.plan;
        // Behind the buffers are the other microbatches of a pipeline, and its messages.
        for (row, buffer) in json["buffers"].as_array().unwrap().iter().zip(&plan.buffers) {
            let placed = &json["types"][row[1].as_u64().unwrap() as usize];
            for rank in 0..plan.mesh.devices() {
                let coords = plan.mesh.coords(rank);
                for (k, range) in buffer.ranges(&plan.mesh, &coords).into_iter().enumerate() {
                    let e = &json["extents"][placed["extents"][k].as_u64().unwrap() as usize];
                    let axes = e["axes"].as_array().unwrap().iter().map(|a| a.as_u64().unwrap() as usize);
                    let at = axes.fold(0, |n, a| n * view.shown[a].len() + coords[a]);
                    assert_eq!(e["ranges"][at], json!([range.start, range.end]));
                    windows += usize::from(e.get("own").is_some());
                }
            }
        }
    }
    assert!(windows > 0);
}

#[test]
fn what_memory_is_for_is_told() {
    let kinds = |c: &Case| {
        let mut sums = memory::ByKind::default();
        held(&c.json).iter().for_each(|b| sums[b.0] += b.1);
        sums
    };
    let name = kind_named;
    let zero3 = case("gpt", Some("tiny"), "data=4", "zero3");
    let dp = case("gpt", Some("tiny"), "data=4", "dp");
    // Gathered parameters are copies of them; without ZeRO nothing is gathered.
    assert!(kinds(&zero3)[name("copies of parameters")] > kinds(&dp)[name("copies of parameters")]);
    for c in [&zero3, &dp] {
        assert_eq!(kinds(c)[name("communication")], 0);
    }
    // Sums over parts of a batch are gradients from their first zero on.
    let parts = case("gpt", Some("tiny"), "data=2", "batch -> data; microbatches 2");
    let texts = parts.json["texts"].as_array().unwrap();
    let sums = parts.json["buffers"].as_array().unwrap().iter().filter(|b| {
        let path = texts[b[0].as_u64().unwrap() as usize].as_str().unwrap();
        ["d(word)", "d(place)"].contains(&path) && b[4].as_u64() > b[3].as_u64()
    });
    let uses: SortedSet<usize> = sums.map(|b| b[2].as_u64().unwrap() as usize).collect();
    assert_eq!(uses, SortedSet::from([name("gradients")]));
    // Those of all layers too, which the loop over the parts carries on around the loop of layers.
    let kinds_of_parts = kinds(&parts);
    assert!(10 * kinds_of_parts[name("gradients")] >= 9 * kinds_of_parts[name("parameters")]);
    for c in [&zero3, &dp] {
        assert!(kinds(c)[name("residuals")] > 0 && kinds(c)[name("gradients")] > 0);
        // What loops fill is called by what fills it.
        let texts = c.json["texts"].as_array().unwrap();
        let named = |path: &str| {
            let all = c.json["buffers"].as_array().unwrap().iter();
            let of = |b: &&Value| texts[b[0].as_u64().unwrap() as usize].as_str() == Some(path);
            all.filter(of).map(|b| b[2].as_u64().unwrap() as usize).collect::<Vec<_>>()
        };
        assert!(named("layers.block.mlp.up").contains(&name("residuals")));
        assert!(named("d(layers.block.mlp.up.w)").contains(&name("gradients")));
        assert!(c.compiled.plan.program_inputs.iter().all(|i| match i.kind {
            ProgramInputKind::Param => named(&i.name).contains(&name("parameters")),
            _ => true,
        }));
    }
}

/// Of each stage the passes in the order in which it runs them, one behind the other, each where what it waits for has ended.
#[test]
fn the_passes_of_stages_are_drawn_in_order() {
    let layout = "layers -> pipe; microbatches 4; schedule 1f1b";
    let Case { json, report, .. } = case("gpt", Some("tiny"), "pipe=2", layout);
    let (drawn, told) = (&json["pipeline"], report.pipeline.unwrap());
    let passes: Vec<Vec<[u64; 5]>> = serde_json::from_value(drawn["passes"].clone()).unwrap();
    let order = |list: &[[u64; 5]]| {
        list.iter()
            .map(|p| format!("{}{}", ["F", "B", "W"][p[0] as usize], p[1]))
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(order(&passes[0]), "F0 F1 B0 F2 B1 F3 B2 B3");
    assert_eq!(order(&passes[1]), "F0 B0 F1 B1 F2 B2 F3 B3");
    for list in &passes {
        assert!(list.windows(2).all(|two| two[0][4] <= two[1][3]) && list.iter().all(|p| p[3] < p[4]));
    }
    let of = |stage: usize, pass: u64, micro: u64| {
        *passes[stage].iter().find(|p| (p[0], p[1]) == (pass, micro)).unwrap()
    };
    for micro in 0..4 {
        assert!(of(0, 0, micro)[4] <= of(1, 0, micro)[3] && of(1, 1, micro)[4] <= of(0, 1, micro)[3]);
    }
    // The time in which no pass is drawn is the bubble.
    let busy: u64 = passes.iter().flatten().map(|p| p[4] - p[3]).sum();
    let whole = passes.iter().flatten().map(|p| p[4]).max().unwrap() * passes.len() as u64;
    let bubble = whole as f64 / busy as f64 - 1.0;
    assert!(
        (bubble - told.bubble).abs() < 1e-9 && drawn["bubble"] == json!(told.bubble),
        "{bubble} {}",
        told.bubble
    );
    let stages = drawn["stages"].as_array().unwrap();
    assert_eq!(stages.iter().map(|s| s["in_flight"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 1]);
    assert_eq!((&drawn["left_out"], &drawn["balanced"]), (&json!(0), &json!(told.balanced)));
    // Of many passes the first ones are drawn, and the page says how many are not.
    let large = case("gpt", Some("gpt3_175b"), "pipe=8", "layers -> pipe; microbatches 256");
    let drawn: Vec<usize> = large.json["pipeline"]["passes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| l.as_array().unwrap().len())
        .collect();
    assert_eq!((drawn, &large.json["pipeline"]["left_out"]), (vec![400; 8], &json!(8 * (2 * 256 - 400))));
}

#[test]
fn a_model_of_many_devices_is_a_small_page() {
    let large = case("gpt", Some("gpt3_175b"), "data=128,model=8", "megatron_sp");
    assert_eq!(large.json["devices"], 1024);
    assert_eq!(large.view.shown.iter().map(Vec::len).product::<usize>(), 64);
    let size = large.json.to_string().len();
    assert!(size < 400_000, "{size} bytes");
    let page = html("gpt", data("gpt", "train", &[large.view], json!([])));
    assert!(page.len() < 2_000_000 && page.contains("id=\"data\">{"));
}

#[test]
fn steps_have_the_operations_of_the_plan() {
    for Case { compiled, json, .. } in cases() {
        let steps = json["steps"].as_array().unwrap();
        let of = |s: &Value, field: &str| s.get(field).map_or(0, |v| v.as_u64().unwrap());
        // The total is that of the ops: what steps share is computed once, and halos are computed by all that have them.
        let flops: u64 = steps.iter().map(|s| of(s, "flops") * of(s, "times")).sum();
        let part = flops as f64 / compiled.plan.summary.flops as f64;
        let most = if compiled.plan.model == "unet" { 1.25 } else { 1.0 };
        assert!(part > 0.9 && part <= most, "{}: {part}", compiled.plan.model);
    }
    // Images of 28 x 28 pixels times a matrix, of which each device has a half.
    let mlp = case("mnist_mlp", None, "r=2,c=2", "batch -> r; hidden1 -> c");
    let steps = mlp.json["steps"].as_array().unwrap();
    let contract = steps.iter().find(|s| s["op"] == "contract").unwrap();
    assert_eq!(contract["flops"], 2 * 50 * 784 * 512);
}
