//! What "alike under every layout" means: a model with dropout, trained on one device and then on meshes of which no axis
//! divides a size; losses, gradients and parameters differ by rounding only. And the memory that rules promise.
//!
//! A normal run takes a few layouts and steps. `LONG=1` takes all that ship, on every mesh of 1, 2, 3, 4, 6 and 8 devices, for 20
//! steps; then, at the sizes of `--preset tiny` itself, on 6 devices for 5 steps. `LONG=2` takes those sizes alone, with a batch
//! of 6, on all of these numbers of devices for 20 steps, in an hour or two. It prints the greatest differences.

use crate::support::{Sizes, Trained, apart, attempted, options, root, shapes, write_data};
use meshwright_core::program::Reports;
use meshwright_core::training_step;
use meshwright_plan::DType;
use meshwright_runs::catalog::{LAYOUTS, MODELS};
use meshwright_train::{Devices, Project, ProjectOptions};
use std::path::Path;

/// Axes of the meshes of the layouts that ship.
const AXES: &[(&str, &[&str])] = &[
    ("dp", &["data"]),
    ("tp", &["model"]),
    ("dp_tp", &["data", "model"]),
    ("megatron_sp", &["data", "model"]),
    ("zero1", &["data"]),
    ("zero2", &["data"]),
    ("zero3", &["data"]),
    ("hybrid", &["pod", "data"]),
    ("context", &["data", "ctx"]),
    ("ring", &["data", "ctx"]),
    ("ulysses", &["data", "ctx"]),
    ("experts", &["data"]),
    ("folded", &["pod", "data"]),
    ("spatial", &["y", "x"]),
    ("unet_tiles", &["y", "x"]),
];

/// Those whose stages are layers of one loop, which not all models have.
const STAGED: &[(&str, &[&str])] = &[("pipeline", &["pipe"]), ("3d", &["pipe", "data", "model"])];

/// Those that put positions in an order, which not all models can have.
const ORDERED: &[(&str, &[&str])] = &[("ring_zigzag", &["data", "ctx"])];

/// Mesh and layout of every run of the tests: no size divides another, and each number of devices occurs.
const FEW: &[(&str, &str)] = &[
    ("data=1", "zero3"),
    ("model=2", "tp"),
    ("data=3", "dp"),
    ("data=3", "zero3"),
    ("data=4", "zero1"),
    ("data=2,model=2", "megatron_sp"),
    ("pod=2,data=3", "hybrid"),
    ("data=2,ctx=3", "context"),
    ("data=1,ctx=4", "ring"),
    ("data=2,ctx=2", "ulysses"),
    ("data=2,model=4", "dp_tp"),
    ("data=4", "experts"),
];

fn long() -> bool {
    std::env::var_os("LONG").is_some()
}

fn hours() -> bool {
    std::env::var_os("LONG").is_some_and(|v| v == "2")
}

/// The numbers of devices.
const COUNTS: &[usize] = &[1, 2, 3, 4, 6, 8];

/// All meshes of so many devices for a layout that ships.
fn meshes(axes: &[&str], devices: usize) -> Vec<String> {
    match axes {
        [axis] => vec![format!("{axis}={devices}")],
        [first, second] => (1..=devices)
            .filter(|n| devices.is_multiple_of(*n))
            .map(|n| format!("{first}={n},{second}={}", devices / n))
            .collect(),
        _ => panic!("meshes of {} axes", axes.len()),
    }
}

/// Layouts that ship, with their meshes of these numbers of devices.
fn shipped(devices: &[usize]) -> Vec<(String, String)> {
    let pairs = |(layout, axes): &(&str, &[&str])| -> Vec<(String, String)> {
        let of = |n: &usize| meshes(axes, *n);
        devices.iter().flat_map(of).map(|mesh| (mesh, layout.to_string())).collect()
    };
    AXES.iter().flat_map(pairs).collect()
}

/// A model with small sizes and its data.
pub(crate) struct Subject<'a> {
    pub(crate) model: &'a str,
    pub(crate) sizes: &'a [(&'a str, usize)],
    /// Meshes and layouts beside those that ship.
    pub(crate) more: &'a [(&'a str, &'a str)],
    /// Whether f32 is near enough to f64 for a comparison: where tokens choose their experts, a rounding may turn a choice.
    pub(crate) single: bool,
    /// Below it is `data`.
    pub(crate) at: &'a Path,
    /// The same for the model's own sizes, where a step of them takes no longer than a second.
    pub(crate) at_own_sizes: Option<&'a Path>,
}

/// The greatest differences of some trainings from that on one device.
#[derive(Debug, Default)]
struct Worst {
    runs: usize,
    /// Of a loss, and of a parameter or optimizer state at the end, in f64.
    double: [f64; 2],
    /// Of the first loss and of its gradients' norm, in f32.
    single: [f64; 2],
}

/// What may be apart, relative: as in [`Worst`].
const DOUBLE: [f64; 2] = [1e-11, 1e-8];
const SINGLE: [f64; 2] = [1e-6, 1e-5];

impl Subject<'_> {
    fn train(
        &self,
        precision: DType,
        name: &str,
        (mesh, layout): (&str, &str),
        steps: u64,
    ) -> Result<Trained, String> {
        let presets = std::fs::read_to_string(root().join(format!("models/{}.mw", self.model))).unwrap();
        let o = ProjectOptions {
            preset: presets.contains("size tiny").then(|| "tiny".into()),
            precision: Some(precision.into()),
            reports: Reports { gradient_norm: true, ..Reports::default() },
            ..options(self.model, mesh, layout, self.sizes)
        };
        let mut trained = attempted(&Devices::default(), &o, self.at, name, steps)?;
        std::fs::remove_dir_all(self.at.join(name)).unwrap();
        // A bias of all keys changes no softmax: its gradient is nothing but rounding, which Adam makes large.
        trained.tensors.retain(|path, _| !path.contains("attention.k.b"));
        Ok(trained)
    }

    /// Trains on one device, then under each of the layouts: all that differ by more than rounding, in words.
    fn differences(&self, layouts: &[(String, String)], steps: u64, worst: &mut Worst) -> Vec<String> {
        let mut wrong = Vec::new();
        let whole = |precision, steps| {
            self.train(precision, "one", ("", ""), steps).unwrap_or_else(|e| panic!("{}: {e}", self.model))
        };
        let double = whole(DType::F64, steps);
        let fine =
            double.losses.iter().all(|l| (0.2..9.5).contains(l)) && double.losses.len() as u64 == steps;
        assert!(fine, "{}: {:?}", self.model, double.losses);
        // Where no gradient comes, a bias stays what it was at first: 0.
        let dead = double.tensors.keys().find(|path| double.values(path).iter().all(|x| *x == 0.0));
        assert!(dead.is_none(), "{}: {dead:?} has no gradient", self.model);
        let single = self.single.then(|| whole(DType::F32, 1));
        for (mesh, layout) in layouts {
            let name = format!("{}, {layout}, {mesh}", self.model);
            let other = match self.train(DType::F64, "other", (mesh, layout), steps) {
                Ok(other) => other,
                Err(e) => {
                    wrong.push(format!("{name}: {e}"));
                    continue;
                }
            };
            worst.runs += 1;
            let off = apart_in_double(&double, &other);
            note(&mut worst.double, off, DOUBLE, &format!("{name}, f64: loss and parameters"), &mut wrong);
            let Some(single) = &single else { continue };
            match self.train(DType::F32, "other", (mesh, layout), 1) {
                Ok(other) => {
                    let off = apart_in_single(single, &other);
                    note(&mut worst.single, off, SINGLE, &format!("{name}, f32: loss and norm"), &mut wrong);
                }
                Err(e) => wrong.push(format!("{name}, f32: {e}")),
            }
        }
        wrong
    }

    /// Trains under some layouts: every result is that of one device.
    pub(crate) fn is_trained_alike_under(&self, layouts: &[(&str, &str)]) {
        let owned = |(mesh, layout): &(&str, &str)| (mesh.to_string(), layout.to_string());
        let wrong =
            self.differences(&layouts.iter().map(owned).collect::<Vec<_>>(), 6, &mut Worst::default());
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Trains under a few layouts, or all: every result is that of one device.
    pub(crate) fn is_trained_alike(&self) {
        let owned = |(mesh, layout): &(&str, &str)| (mesh.to_string(), layout.to_string());
        let more = self.more.iter().map(owned);
        let mut worst = Worst::default();
        if !long() {
            return self.is_trained_alike_under(&[FEW, self.more].concat());
        }
        let mut wrong = vec![];
        if !hours() {
            let layouts: Vec<_> = shipped(COUNTS).into_iter().chain(more).collect();
            wrong.extend(self.differences(&layouts, 20, &mut worst));
            told_at_end(&format!("{}, small", self.model), &worst);
        }
        if let Some(at) = self.at_own_sizes {
            let (sizes, counts, steps): (&[_], _, _) =
                if hours() { (&[("batch", 6)], COUNTS, 20) } else { (&[], &[6][..], 5) };
            let (own, mut worst) = (Subject { sizes, at, ..*self }, Worst::default());
            // Of two axes one of which is single, the other is what a layout of one axis has.
            let both = |mesh: &str| !mesh.contains("=1") || mesh == "data=1";
            let layouts = shipped(counts).into_iter().filter(|(mesh, _)| both(mesh));
            wrong.extend(own.differences(&layouts.collect::<Vec<_>>(), steps, &mut worst));
            told_at_end(&format!("{}, at its own sizes", self.model), &worst);
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// The greatest difference of a loss, and that of a tensor at the end.
fn apart_in_double(one: &Trained, other: &Trained) -> [f64; 2] {
    assert_eq!(one.tensors.keys().collect::<Vec<_>>(), other.tensors.keys().collect::<Vec<_>>());
    assert_eq!(one.losses.len(), other.losses.len());
    let losses = one.losses.iter().zip(&other.losses).map(|(a, b)| ((a - b) / a).abs());
    let tensors = one.tensors.keys().map(|path| apart(&one.values(path), &other.values(path)));
    [losses.fold(0.0, f64::max), tensors.fold(0.0, f64::max)]
}

/// The difference of the first losses, and of the norms of the first gradients.
fn apart_in_single(one: &Trained, other: &Trained) -> [f64; 2] {
    let relative = |a: f64, b: f64| ((a - b) / a).abs();
    let norms = [one, other].map(|t| t.gradient_norm.unwrap());
    [relative(one.losses[0], other.losses[0]), relative(norms[0], norms[1])]
}

/// Keeps the greater of each, and says if one is too great. What is not a number is.
fn note(worst: &mut [f64; 2], off: [f64; 2], most: [f64; 2], name: &str, wrong: &mut Vec<String>) {
    if !off.iter().zip(most).all(|(o, m)| *o <= m) {
        wrong.push(format!("{name} {off:?} apart"));
    }
    *worst = [0, 1].map(|i| worst[i].max(off[i]));
}

/// A row of `docs/results/layouts_agree.md`.
#[expect(clippy::print_stdout, reason = "what a long run is for")]
fn told_at_end(what: &str, worst: &Worst) {
    println!("{what}: {worst:?}");
}

#[test]
fn every_layout_that_ships_has_its_meshes_here() {
    let names: Vec<&str> = LAYOUTS.iter().map(|l| l.name).collect();
    let all = || AXES.iter().chain(STAGED).chain(ORDERED);
    let mut here: Vec<&str> = all().map(|(name, _)| *name).collect();
    here.sort_by_key(|name| names.iter().position(|n| n == name));
    assert_eq!(here, names);
    for (layout, axes) in all() {
        let text = std::fs::read_to_string(root().join(format!("layouts/{layout}.layout"))).unwrap();
        let mesh = text.lines().find_map(|l| l.strip_prefix("mesh ")).unwrap();
        let found: Vec<&str> = mesh.split(", ").map(|a| a.split(" = ").next().unwrap()).collect();
        assert_eq!(&found[..], *axes, "{layout}");
    }
    assert_eq!(shipped(&[1, 2, 3, 4, 6, 8]).len(), 6 * 6 + 9 * 16);
}

/// Every model that ships has a plan under every layout that ships, on meshes of one, two and more devices an axis. What is
/// cheapest to move depends on the size of a batch; whether there is a plan does not.
#[test]
fn every_model_fits_every_layout() {
    let mut wrong = Vec::new();
    for (model, batch) in MODELS.iter().flat_map(|m| [(m, &[][..]), (m, &[("batch", 3)])]) {
        let preset = model.text.contains("size tiny").then(|| "tiny".to_string());
        for (mesh, layout) in shipped(&[2, 6]) {
            let fitted = options(model.name, &mesh, &layout, batch);
            let loaded = Project::load(&ProjectOptions { preset: preset.clone(), ..fitted });
            let planned = loaded.project.as_ref().and_then(|project| {
                let step = training_step(&project.program)?;
                project.compile(&step, &loaded.sources).0
            });
            if planned.is_none() {
                wrong.push(format!("{} under {layout} on {mesh}, {batch:?}", model.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Models that predict what comes next have a plan in zigzag order; of the others it is said what depends on the order of
/// positions.
#[test]
fn causal_transformers_are_planned_in_zigzag_order() {
    let planned = |model: &str, mesh: &str, sizes: &[(&str, usize)]| {
        let o = options(model, mesh, "ring_zigzag", sizes);
        let loaded = Project::load(&ProjectOptions { preset: Some("tiny".into()), ..o });
        let project = loaded.project.unwrap_or_else(|| panic!("{model}: {:?}", loaded.diagnostics));
        let step = training_step(&project.program).unwrap();
        let (compiled, found) = project.compile(&step, &loaded.sources);
        let codes: Vec<&str> = found.iter().map(|d| d.code.id).collect();
        (compiled.is_some(), codes.contains(&"E0318"))
    };
    for model in ["gpt", "llama"] {
        for mesh in ["data=2,ctx=1", "data=1,ctx=2", "data=2,ctx=2", "data=1,ctx=4", "data=1,ctx=8"] {
            assert_eq!(planned(model, mesh, &[("batch", 6)]), (true, false), "{model} on {mesh}");
        }
        assert_eq!(planned(model, "data=1,ctx=3", &[]), (false, true), "{model}: 128 has no 6 parts");
        assert_eq!(planned(model, "data=1,ctx=3", &[("seq", 126)]), (true, false), "{model}");
    }
    for model in ["bert", "bert_classify", "bert_tag", "switch", "vit"] {
        assert_eq!(planned(model, "data=1,ctx=2", &[]), (false, true), "{model}");
    }
}

/// The transformers with one loop over their layers have a plan under the layouts with stages, on each mesh that has several.
#[test]
fn stages_are_planned_for_every_transformer_with_one_loop() {
    let meshes: [(&str, &[&str]); 2] =
        [("pipeline", &["pipe=2", "pipe=3", "pipe=4"]), ("3d", &["2x2x2", "3x1x2", "2x3x1", "4x2x4"])];
    for model in ["bert", "bert_classify", "bert_tag", "gpt", "llama", "switch", "vit"] {
        for (mesh, layout) in meshes.iter().flat_map(|(l, all)| all.iter().map(move |m| (m, l))) {
            let o = options(model, mesh, layout, &[("batch", 48)]);
            let loaded = Project::load(&ProjectOptions { preset: Some("tiny".into()), ..o });
            let project =
                loaded.project.unwrap_or_else(|| panic!("{model}, {layout}: {:?}", loaded.diagnostics));
            let step = training_step(&project.program).unwrap();
            let (compiled, found) = project.compile(&step, &loaded.sources);
            assert!(compiled.is_some(), "{model} under {layout} on {mesh}: {found:?}");
        }
    }
    let o = options("t5", "pipe=2", "pipeline", &[]);
    let refused = Project::load(&ProjectOptions { preset: Some("tiny".into()), ..o });
    let codes: Vec<&str> = refused.diagnostics.iter().map(|d| d.code.id).collect();
    assert!(refused.project.is_none() && codes.contains(&"E0315"), "{codes:?}");
}

fn images(model: &str, sizes: &[(&str, usize)], of: Sizes) {
    let dir = tempfile::tempdir().unwrap();
    write_data(&dir.path().join("data"), of);
    let subject = Subject { model, sizes, more: &[], single: true, at: dir.path(), at_own_sizes: None };
    subject.is_trained_alike();
}

const ROWS: [(&str, usize); 3] = [("batch", 12), ("rows", 8), ("cols", 7)];
const SMALL_IMAGES: Sizes = Sizes { examples: 120, test: 10, rows: 8, cols: 7 };

#[test]
fn mlp_is_trained_alike_under_every_layout() {
    images("mlp", &[&ROWS[..], &[("hidden", 11)]].concat(), SMALL_IMAGES);
}

#[test]
fn mnist_mlp_is_trained_alike_under_every_layout() {
    images("mnist_mlp", &[&ROWS[..], &[("hidden1", 11), ("hidden2", 9)]].concat(), SMALL_IMAGES);
}

#[test]
fn mnist_conv_is_trained_alike_under_every_layout() {
    let narrow = [("filters1", 5), ("filters2", 3), ("hidden1", 31), ("hidden2", 29)];
    images("mnist_conv", &[&ROWS[..], &narrow].concat(), SMALL_IMAGES);
}

#[test]
fn unet_is_trained_alike_under_every_layout() {
    let dir = tempfile::tempdir().unwrap();
    shapes(dir.path());
    let sizes = [("batch", 5), ("wide", 2), ("wide_up", 3), ("wide_out", 2), ("mid", 3), ("low", 4)];
    let at = dir.path();
    let subject =
        Subject { model: "unet", sizes: &sizes, more: &[], single: true, at, at_own_sizes: Some(at) };
    subject.is_trained_alike();
}

/// Of the parameters and the optimizer state, what a device holds of them under ZeRO is what the rules say.
#[test]
fn zero_divides_what_is_stored_by_the_devices() {
    let stored = |model: &str, mesh: &str, layout: &str| {
        let preset = Some("tiny".into());
        let loaded = Project::load(&ProjectOptions { preset, ..options(model, mesh, layout, &[]) });
        let project = loaded.project.unwrap();
        let step = training_step(&project.program).unwrap();
        let summary = project.compile(&step, &loaded.sources).0.unwrap().plan.summary;
        [summary.parameter_bytes, summary.optimizer_state_bytes].map(|b| b as f64)
    };
    for model in ["gpt", "bert", "bert_classify", "llama", "switch", "t5", "vit"] {
        let [parameters, state] = stored(model, "", "");
        for n in [1, 2, 3, 4, 6, 8] {
            let mesh = format!("data={n}");
            let of = |layout| stored(model, &mesh, layout);
            let share = |bytes: f64, of_all: f64| (bytes * f64::from(n) / of_all - 1.0).abs();
            for layout in ["zero1", "zero2", "zero3"] {
                let [stored, moments] = of(layout);
                assert!(share(moments, state) < 0.05, "{model}, {layout} over {n}: {moments} of {state}");
                let fine =
                    if layout == "zero3" { share(stored, parameters) < 0.05 } else { stored == parameters };
                assert!(fine, "{model}, {layout} over {n}: {stored} of {parameters}");
            }
            assert_eq!(of("dp"), [parameters, state], "{model} over {n}");
        }
    }
}
