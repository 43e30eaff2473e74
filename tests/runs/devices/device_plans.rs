//! Device plans of what ships, for every kind of device, and faults in them that the verifier must find.

use crate::support::options;
use burn_ir::{TensorId, TensorStatus};
use meshwright_core::training_step;
use meshwright_device::arena::Spot;
use meshwright_device::kernels::Kernel;
use meshwright_device::kernels::matmul_group::GroupEpilogue;
use meshwright_device::launch::LaunchKind;
use meshwright_device::slot::TensorSlot;
use meshwright_device::target::Target;
use meshwright_device::verify::verify;
use meshwright_device::{BadEncoding, DevicePlan, compile, compile_launches};
use meshwright_exec::KernelsBy;
use meshwright_plan::{Arithmetic, BufId, DType, Plan};
use meshwright_runs::catalog::MODELS;
use meshwright_train::{BenchOptions, Devices, Project, ProjectOptions, bench};

const TARGETS: [fn() -> Target; 4] =
    [Target::cpu, plain_operations, Target::compiled_on_host, || Target::cuda((9, 0), true)];

/// Burn's operations, and attention in blocks of the size that GPUs take: those of the host's own size are a hundred times as
/// many, and `laws/attention.rs` is about them.
fn plain_operations() -> Target {
    Target { scores_at_once: Target::compiled_on_host().scores_at_once, ..Target::burn_on_host(false) }
}

/// The training step of a model that ships, in its smallest preset.
fn plan(model: &str, mesh: &str, layout: &str, precision: DType) -> Option<Plan> {
    let tiny = MODELS.iter().any(|m| m.name == model && m.text.contains("size tiny"));
    let fitted = options(model, mesh, layout, &[]);
    let preset = tiny.then(|| "tiny".to_string());
    let loaded = Project::load(&ProjectOptions { preset, precision: Some(precision.into()), ..fitted });
    let project = loaded.project?;
    let step = training_step(&project.program)?;
    Some(project.compile(&step, &loaded.sources).0?.plan)
}

/// Bytes read and written and operations of the lines of a device plan's text: a line in a loop counts for each iteration.
fn added_up(text: &str) -> [u64; 3] {
    let number =
        |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
    let (mut loops, mut sums): (Vec<(usize, u64)>, _) = (vec![], [0; 3]);
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        loops.retain(|(of, _)| *of < indent);
        let times: u64 = loops.iter().map(|(_, n)| n).product();
        if let Some((_, rest)) = line.split_once(" loop over the ") {
            loops.push((indent, number(rest)));
            continue;
        }
        let costs = line.split_once(" | ").map_or(line, |(_, costs)| costs);
        let (read, written) =
            costs.split_once(" + ").filter(|_| costs.contains(" bytes")).unwrap_or(("0", "0"));
        let flops = line
            .split(" flops")
            .next()
            .and_then(|s| s.rsplit(", ").next())
            .filter(|_| line.contains(" flops"));
        for (sum, n) in sums.iter_mut().zip([number(read), number(written), flops.map_or(0, number)]) {
            *sum += times * n;
        }
    }
    sums
}

/// The head of `explain --emit device` is the sum of its lines, with copies that Burn's operations make, and in JSON too.
#[test]
fn totals_are_the_sum_of_the_launches() {
    for (model, mesh, layout) in
        [("gpt", "d=2", "batch -> d; params: * -> d"), ("t5", "", ""), ("mnist_conv", "", "")]
    {
        let plan = plan(model, mesh, layout, DType::BF16).unwrap();
        for target in TARGETS {
            let device = compile(&plan, 0, target()).unwrap();
            let text = meshwright_device::text::text(&plan, &device, false);
            let (head, lines) = text.split_once("\n\n").unwrap();
            let totals = device.totals(&plan).traffic;
            let wanted = [totals.read, totals.written, totals.flops];
            assert!(
                head.contains(&format!(
                    "{} bytes read, {} written, {} flops",
                    wanted[0], wanted[1], wanted[2]
                ))
            );
            assert_eq!(added_up(lines), wanted, "{model} on {}", device.target);
            let (view, costs) = (device.view(&plan), device.costs(&plan));
            for (id, launch) in device.launches.ids().zip(&view.launches) {
                let moves = launch.traffic.read + launch.traffic.written > 0;
                assert!(launch.traffic == costs.of(id) && !(launch.in_place && moves), "{model}: {id:?}");
            }
        }
    }
}

/// Compiling verifies: one writer, defined before used, nothing fused away is touched, collectives in order, no overlap in the
/// arena, no leak. Each plan is read back from its bytes.
#[test]
fn every_model_has_a_device_plan_on_every_kind_of_device() {
    let one = |precision| ("a=1", "batch -> a", precision);
    let ways = [
        one(DType::F32),
        one(DType::BF16),
        ("a=2", "batch -> a; params: * -> a", DType::BF16),
        ("a=2", "batch -> a; microbatches 2", DType::F32),
        // In `f64` GPUs compute by Burn's operations, which follow each other between the loops of a pipeline.
        ("pipe=2", "layers -> pipe; microbatches 4; schedule zb_h1", DType::F64),
        ("pipe=2", "layers -> pipe; microbatches 4; schedule zb_h1; recompute layers.*", DType::BF16),
    ];
    let mut wrong = vec![];
    for (model, (mesh, layout, precision)) in MODELS.iter().flat_map(|m| ways.map(|way| (m, way))) {
        let Some(plan) = plan(model.name, mesh, layout, precision) else { continue };
        for target in TARGETS.map(|target| target()) {
            let last = plan.mesh.devices() - 1;
            let name = format!("{} under {layout} in {precision} on {target}", model.name);
            match compile(&plan, last, target) {
                Ok(device) => {
                    let read = DevicePlan::from_bytes(&device.to_bytes());
                    assert!(
                        read.as_ref() == Ok(&device),
                        "{name}: bytes give another plan, {:?}",
                        read.err()
                    );
                }
                Err(e) => wrong.push(format!("{name}: {e}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// In half types, what ships attends by kernels on a GPU: also the presets that people time.
#[test]
fn attention_of_what_ships_has_kernels_on_a_gpu() {
    let timed = [("gpt", "medium", 355e6), ("llama", "1b", 1.345e9)];
    let timed = timed.map(|(model, preset, parameters)| {
        let o = ProjectOptions {
            preset: Some(preset.into()),
            precision: Some(Arithmetic::BF16),
            ..options(model, "", "", &[("batch", 4), ("layers", 2)])
        };
        let whole = ProjectOptions { dims: vec![], ..o.clone() };
        let all = Project::load(&whole).project.unwrap().program.parameter_elements() as f64;
        assert!((all / parameters - 1.0).abs() < 1e-3, "{model} has {all} parameters");
        let loaded = Project::load(&o);
        let project = loaded.project.unwrap();
        let step = training_step(&project.program).unwrap();
        (model, project.compile(&step, &loaded.sources).0.unwrap().plan)
    });
    let shipped =
        MODELS.iter().filter_map(|m| Some((m.name, plan(m.name, "a=1", "batch -> a", DType::BF16)?)));
    // Turns of a ring are attentions, too.
    let around = ["ring", "ring_zigzag"].into_iter().flat_map(|layout| {
        let models = ["gpt", "llama", "bert", "bert_tag", "vit", "switch"];
        models.into_iter().filter_map(move |m| Some((m, plan(m, "data=1,ctx=4", layout, DType::BF16)?)))
    });
    let mut kernels = 0;
    for (model, plan) in shipped.chain(timed).chain(around) {
        let device = compile(&plan, 0, Target::cuda((9, 0), true)).unwrap();
        let lacking: Vec<_> = device.attention_without_kernel.values().map(ToString::to_string).collect();
        assert!(lacking.is_empty(), "{model}: {lacking:?}");
        kernels += device.launches.iter().filter(|l| l.kind.name() == "attention").count();
    }
    assert!(kernels > 12 + 8 * 8, "{kernels}");
}

/// What attention draws in its forward pass, its gradient reads again: from one loop over layers to the next, and within an
/// iteration where layers are computed again. Sequences that are too short to draw ahead do neither.
#[test]
fn a_gradient_of_attention_reads_what_was_drawn() {
    let count = |layout: &str, seq: usize| {
        let o = ProjectOptions {
            preset: Some("tiny".into()),
            precision: Some(Arithmetic::BF16),
            ..options("gpt", "a=1", layout, &[("seq", seq), ("places", 128)])
        };
        let loaded = Project::load(&o);
        let project = loaded.project.unwrap();
        let step = training_step(&project.program).unwrap();
        let plan = project.compile(&step, &loaded.sources).0.unwrap().plan;
        let device = compile(&plan, 0, Target::cuda((9, 0), true)).unwrap();
        let is_kept = |kernel: &Kernel| match kernel {
            Kernel::Store(residual) | Kernel::Load { residual, .. } => {
                let slot = residual.tensors.first().and_then(|id| device.slots.get(*id));
                matches!(slot, Some(TensorSlot::DrawnBits(..)))
            }
            _ => false,
        };
        let kernels = device.launches.iter().filter_map(|l| match &l.kind {
            LaunchKind::Kernel(kernel) => Some(kernel),
            _ => None,
        });
        let (mut draws, mut kept) = (0, 0);
        for kernel in kernels {
            draws += usize::from(kernel.name() == "attention_draws");
            kept += usize::from(is_kept(kernel));
        }
        [draws, kept]
    };
    assert_eq!(count("batch -> a", 128), [1, 2]);
    assert_eq!(count("batch -> a; recompute layers.*", 128), [2, 0]);
    assert_eq!(count("batch -> a", 64), [0, 0]);
}

/// Attention whose weights have a factor that learns, and one that is plain.
const GATED: &str = "
dim batch = 2, seq = 8, d = 16, key = seq
model m {
    input x[batch, seq, d]: float
    param w[d] = normal(0, 1)
    param gate[seq, key] = 1
    let q = x * w
    let weight = softmax[key](sum[d](q * q[seq -> key])) * gate
    let y = sum[key](weight * q[seq -> key])
    let z = sum[key](softmax[key](sum[d](y * y[seq -> key])) * y[seq -> key])
    loss l = mean[batch, seq, d](z * z)
}
train m { minimize l optimizer sgd(lr = 0.1) }
";

/// `bench model` says which attention is computed by plain operations and why: on threads it is what was not recognized, and on
/// Burn's devices, which have no kernel at all, the others too.
#[test]
fn timing_names_attention_without_a_kernel() {
    let noted = |device| {
        let loaded = Project::load(&ProjectOptions {
            texts: [("m.mw".to_string(), GATED.to_string())].into(),
            ..options("m.mw", "", "", &[])
        });
        let devices = Devices { device, ..Devices::default() };
        let options = BenchOptions {
            steps: 1,
            warmup: 0,
            cores: Some(1),
            seed: 0,
            devices,
            by: KernelsBy::Kernel,
            trace: None,
        };
        bench(&loaded.project.unwrap(), &loaded.sources, &options, &mut |_, _| {}).unwrap().notes
    };
    let on_threads = noted(meshwright_cpu::device());
    let gate =
        "attention not recognized, since `gate` in its weights has a gradient of its own: `weight` (line 8)";
    assert_eq!(on_threads, [gate]);
    let on_burn = noted(meshwright_burn::device());
    let why = "attention without a kernel, scores are stored some at a time, since its kernels need a GPU of compute capability 8.0 or later: ";
    assert!(on_burn.iter().any(|n| n.starts_with(why)), "{on_burn:?}");
    assert!(on_threads.iter().all(|n| on_burn.contains(n)), "{on_burn:?}");
}

/// In a loop of one iteration a value takes all of the stack that it is made in.
#[test]
fn loops_of_one_iteration_have_device_plans() {
    let one = ProjectOptions {
        preset: Some("tiny".into()),
        precision: Some(Arithmetic::BF16),
        ..options("gpt", "a=1", "batch -> a", &[("layers", 1)])
    };
    let loaded = Project::load(&one);
    let project = loaded.project.unwrap();
    let step = training_step(&project.program).unwrap();
    let plan = project.compile(&step, &loaded.sources).0.unwrap().plan;
    for target in TARGETS {
        compile(&plan, 0, target()).unwrap();
    }
}

/// A device plan whose target, in place of one that was asked for, has other kernels is another one.
#[test]
fn equal_device_plans_have_equal_hashes() {
    let plan = plan("gpt", "a=1", "batch -> a", DType::BF16).unwrap();
    let hash = |target| compile(&plan, 0, target).unwrap().hash();
    assert_eq!(hash(Target::cuda((9, 0), true)), hash(Target::cuda((9, 0), true)));
    let all: meshwright_sorted::SortedSet<String> = TARGETS.iter().map(|target| hash(target())).collect();
    assert_eq!(all.len(), TARGETS.len());
}

type Change = fn(&mut DevicePlan);

/// A change of each field of a device plan.
const CHANGES: [(&str, Change); 12] = [
    ("target", |device| device.target.epilogues ^= true),
    ("rank", |device| device.rank += 1),
    ("step of a launch", |device| nth(device, 3).unwrap().step += 1),
    ("lifetime", |device| {
        let tensor = device.launches.iter().find_map(|launch| launch.reads.first()).unwrap().id;
        nth(device, 3).unwrap().frees.push(tensor);
    }),
    ("order", |device| device.body.swap(0, 1)),
    ("slot", |device| {
        device.slots.insert(TensorSlot::Temporary(u64::MAX));
    }),
    ("element of a table", |device| device.tables[0].elements[0] += 1),
    ("pairs", |device| {
        device.pairs.insert(BufId(0), DType::F32);
    }),
    ("buffer at the end", |device| assert!(device.left.insert(BufId(u32::MAX)))),
    ("fused buffer", |device| assert!(device.never.insert(BufId(u32::MAX)))),
    ("buffer without storage", |device| assert!(device.stored.insert(BufId(u32::MAX), 0).is_none())),
    ("offset", |device| {
        let at = device.arena.spots.iter_mut().find_map(|spot| match spot {
            Spot::At { start, .. } => Some(start),
            _ => None,
        });
        *at.unwrap() += 256;
    }),
];

#[test]
fn each_change_of_a_device_plan_changes_its_hash() {
    let plan = plan("gpt", "a=1", "batch -> a", DType::BF16).unwrap();
    let device = compile(&plan, 0, Target::cuda((9, 0), true)).unwrap();
    let mut hashes = meshwright_sorted::SortedSet::from([device.hash()]);
    for (name, change) in CHANGES {
        let mut changed = device.clone();
        change(&mut changed);
        assert!(changed != device, "{name}: the plans are equal");
        assert!(hashes.insert(changed.hash()), "{name}: the hash is another plan's");
    }
    let kernels =
        device.launches.ids().filter(|id| matches!(device.launches[*id].kind, LaunchKind::Kernel(_)));
    for id in kernels {
        let mut changed = device.clone();
        changed.launches[id].kind = LaunchKind::Free;
        assert!(
            hashes.insert(changed.hash()),
            "launch {} without its kernel: the hash is another plan's",
            id.0
        );
    }
}

#[test]
fn bytes_that_are_not_a_device_plan_are_an_error() {
    let plan = plan("mlp", "a=1", "batch -> a", DType::F32).unwrap();
    let bytes = compile(&plan, 0, Target::cpu()).unwrap().to_bytes();
    let read = |bytes: &[u8]| DevicePlan::from_bytes(bytes).unwrap_err();
    for end in (0..bytes.len()).step_by(7) {
        assert!(matches!(read(&bytes[..end]), BadEncoding::Damaged(_)), "the first {end} bytes");
    }
    assert_eq!(read(&[&bytes[..], &[0, 0]].concat()), BadEncoding::Rest(2));
    let found = DevicePlan::VERSION + 1;
    assert_eq!(read(&[&[found as u8], &bytes[1..]].concat()), BadEncoding::Version { found });
}

/// Applies a fault in every place where there is one; gives how many there were. Each must be found.
pub(super) fn faults(
    plan: &Plan,
    target: Target,
    name: &str,
    fault: impl Fn(&mut DevicePlan, usize) -> Option<bool>,
) -> usize {
    let mut places = 0;
    for at in 0.. {
        let mut device = compile(plan, 0, target).unwrap();
        match fault(&mut device, at) {
            None => break,
            Some(false) => {}
            Some(true) => {
                places += 1;
                assert!(verify(plan, &device).is_err(), "{name}, place {at}, on {target}");
            }
        }
    }
    assert!(places > 0, "{name} on {target}: no place for the fault");
    places
}

/// A launch of a device plan, by its place among all; none past the last one.
fn nth(device: &mut DevicePlan, at: usize) -> Option<&mut meshwright_device::launch::Launch> {
    let id = device.launches.ids().nth(at)?;
    Some(&mut device.launches[id])
}

#[test]
fn faults_in_device_plans_are_found() {
    let plan = plan("mlp", "a=2", "batch -> a", DType::F32).unwrap();
    for target in [Target::cpu(), Target::cuda((9, 0), true)] {
        let flip = |from, to| {
            move |device: &mut DevicePlan, at: usize| {
                let launch = nth(device, at)?;
                let last = launch.reads.iter().rposition(|t| t.status == from);
                if let Some(k) = last {
                    launch.reads[k].status = to;
                }
                Some(last.is_some())
            }
        };
        use TensorStatus::{ReadOnly, ReadWrite};
        faults(&plan, target, "a tensor that does not end", flip(ReadWrite, ReadOnly));
        faults(&plan, target, "a tensor that ends too early", flip(ReadOnly, ReadWrite));
        faults(&plan, target, "a launch that is left out", |device, at| {
            (at < device.body.len()).then(|| device.body.remove(at))?;
            Some(true)
        });
        faults(&plan, target, "a launch that runs twice", |device, at| {
            let id = *device.body.get(at)?;
            let writes = !device.launches[id].writes.is_empty();
            device.body.insert(at, id);
            Some(writes)
        });
        faults(&plan, target, "a buffer that is fused away and written", |device, at| {
            let launch = nth(device, at)?;
            let written = launch.writes.first().map(|t| t.id);
            if let Some(TensorSlot::Buffer(buf)) = written.and_then(|id| device.slots.get(id)) {
                device.never.insert(buf);
                return Some(true);
            }
            Some(false)
        });
        faults(&plan, target, "a result that has no slot", |device, at| {
            let result = nth(device, at)?.writes.first_mut();
            Some(result.map(|t| t.id = TensorId::new(u64::MAX)).is_some())
        });
        faults(&plan, target, "a launch that runs before what it reads", |device, at| {
            let (first, second) = (*device.body.get(at)?, *device.body.get(at + 1)?);
            let written: Vec<_> = device.launches[first].writes.iter().map(|t| t.id).collect();
            let depends = device.launches[second].reads.iter().any(|t| written.contains(&t.id));
            device.body.swap(at, at + 1);
            Some(depends)
        });
    }
}

/// A loop that leaves values to another one stores those of all positions that are read.
#[test]
fn faults_in_residuals_are_found() {
    let plan = plan("gpt", "a=1", "batch -> a", DType::F32).unwrap();
    for target in [Target::cpu(), Target::cuda((9, 0), true)] {
        faults(&plan, target, "a position that is not kept", |device, at| {
            let kernel = &mut nth(device, at)?.kind;
            let (LaunchKind::Kernel(Kernel::Store(residual))
            | LaunchKind::Kernel(Kernel::Load { residual, .. })) = kernel
            else {
                return Some(false);
            };
            Some(residual.tensors.pop().is_some())
        });
    }
}

#[test]
fn faults_in_an_arena_are_found() {
    let plan = plan("gpt", "a=1", "batch -> a", DType::BF16).unwrap();
    let target = Target::cuda((9, 0), true);
    let device = || compile(&plan, 0, target).unwrap();
    let mut small = device();
    small.arena.bytes /= 2;
    assert!(verify(&plan, &small).is_err());
    let mut one_place = device();
    for spot in &mut one_place.arena.spots {
        if let Spot::At { start, .. } = spot {
            *start = 0;
        }
    }
    assert!(verify(&plan, &one_place).is_err());
    let mut few = device();
    few.arena.spots.pop();
    assert!(verify(&plan, &few).is_err());
    // Where the next result lies, this one does, for neighbors that live at the same time.
    let spots = device().arena.spots;
    let (mut found, mut moved) = (0, 0);
    for at in (0..spots.len() - 1).step_by(7) {
        let mut device = device();
        if let (Spot::At { start, .. }, Spot::At { start: next, .. }) = (spots[at], spots[at + 1])
            && start != next
        {
            let Spot::At { bytes, .. } = spots[at] else { continue };
            device.arena.spots[at] = Spot::At { start: next, bytes };
            moved += 1;
            found += usize::from(verify(&plan, &device).is_err());
        }
    }
    assert!(found * 2 > moved && moved > 10, "{found} of {moved} overlaps were found");
}

/// A product that is added to a position of a stack lies there: elsewhere in the stack it would be in the place of another sum.
#[test]
fn sums_at_another_position_of_their_stack_are_found() {
    let plan = plan("gpt", "a=1", "batch -> a; microbatches 2", DType::BF16).unwrap();
    let target = Target::cuda((9, 0), true);
    let device = compile(&plan, 0, target).unwrap();
    let is_update = |kind: &LaunchKind| matches!(kind, LaunchKind::Kernel(Kernel::IterationUpdate(_)));
    let updates = device.launches.iter().filter(|l| is_update(&l.kind));
    let put: Vec<TensorId> = updates.filter_map(|l| l.reads.get(1)).map(|t| t.id).collect();
    let mut moved = 0;
    for id in device.launches.ids() {
        let launch = &device.launches[id];
        let adds =
            matches!(&launch.kind, LaunchKind::Kernel(Kernel::MatmulEpilogue(call)) if call.beside.adds());
        if !adds || !put.contains(&launch.writes[0].id) {
            continue;
        }
        // Of the sums that the launch makes in its runs the first, where that of another layer lies.
        let of = (0..device.arena.of.len()).filter(|at| device.arena.of[*at] == id);
        let sums: Vec<usize> = of.step_by(launch.writes.len()).collect();
        let spot = device.arena.spots[sums[0]];
        let other = sums.iter().map(|at| device.arena.spots[*at]).find(|other| *other != spot).unwrap();
        let mut wrong = compile(&plan, 0, target).unwrap();
        wrong.arena.spots[sums[0]] = other;
        let found = verify(&plan, &wrong).unwrap_err();
        assert!(found.contains("of a stack, and what it is computed of"), "{found}");
        moved += 1;
    }
    assert!(moved >= 6, "{moved}");
}

/// A device plan in which the products of equal shapes that share a factor are one launch, of so many products, with what each
/// does besides.
#[test]
fn products_that_share_a_factor_are_one_launch() {
    let joined = |model: &str, layout: (&str, &str), precision| {
        let plan = plan(model, layout.0, layout.1, precision).unwrap();
        let device = compile(&plan, 0, Target::cuda((9, 0), true)).unwrap();
        let of = |kind: &LaunchKind| match kind {
            LaunchKind::Kernel(Kernel::MatmulGroup(call)) => Some((
                call.count,
                match call.beside {
                    GroupEpilogue::Nothing => "",
                    GroupEpilogue::Bias { .. } => "bias",
                    GroupEpilogue::Sums { .. } => "sums",
                },
            )),
            _ => None,
        };
        device.launches.iter().filter_map(|l| of(&l.kind)).collect::<Vec<_>>()
    };
    let whole = ("a=1", "batch -> a");
    let projections = [(3, "bias"), (3, "sums")];
    for model in ["gpt", "bert"] {
        assert_eq!(joined(model, whole, DType::BF16), projections, "{model}");
        // Each device multiplies its heads.
        assert_eq!(joined(model, ("a=2", "heads -> a"), DType::BF16), projections, "{model}");
    }
    // Keys and values are narrower than queries; gate and up are of one width.
    assert_eq!(joined("llama", whole, DType::BF16), [(2, ""); 4]);
    // Parameters are where they are; their gradients are placed.
    assert_eq!(joined("gpt", whole, DType::F32), [(3, "sums")]);
    // Estimates, which place nothing, count the launches of the plan with its arena.
    for model in MODELS.iter() {
        let Some(plan) = plan(model.name, "a=1", "batch -> a", DType::BF16) else { continue };
        let target = Target::cuda((9, 0), true);
        let placed = compile(&plan, 0, target).unwrap().launches.iter().count();
        assert_eq!(
            compile_launches(&plan, 0, target).unwrap().launches.iter().count(),
            placed,
            "{}",
            model.name
        );
    }
}

/// A result of several products that is moved to a free place is at another distance from the others.
#[test]
fn products_at_other_distances_are_found() {
    let plan = plan("gpt", "a=1", "batch -> a", DType::BF16).unwrap();
    let places = faults(&plan, Target::cuda((9, 0), true), "another distance", |device, at| {
        let id = *device.arena.of.get(at)?;
        let first = device.arena.of.iter().position(|of| *of == id)?;
        let LaunchKind::Kernel(Kernel::MatmulGroup(call)) = &device.launches[id].kind else {
            return Some(false);
        };
        // The first of a launch's first run.
        let Spot::At { bytes, .. } = device.arena.spots[at] else { return Some(false) };
        if at >= first + call.count {
            return Some(false);
        }
        let start = device.arena.bytes;
        device.arena.bytes += bytes;
        device.arena.spots[at] = Spot::At { start, bytes };
        Some(true)
    });
    assert!(places >= 6, "{places}");
}

#[test]
fn collectives_out_of_order_and_never_waited_for_are_found() {
    let plan = plan("mlp", "a=2", "batch -> a; params: * -> a", DType::F32).unwrap();
    let device = || compile(&plan, 0, Target::cpu()).unwrap();
    let is = |device: &DevicePlan, at: usize, of: fn(&LaunchKind) -> bool| {
        of(&device.launches[device.body[at]].kind)
    };
    let starts: Vec<usize> = {
        let device = device();
        (0..device.body.len())
            .filter(|at| is(&device, *at, |k| matches!(k, LaunchKind::Collective(_))))
            .collect()
    };
    let mut swapped = device();
    swapped.body.swap(starts[0], starts[1]);
    assert!(verify(&plan, &swapped).unwrap_err().contains("the Plan starts earlier"));
    let mut never = device();
    let wait = (0..never.body.len()).find(|at| is(&never, *at, |k| matches!(k, LaunchKind::Wait { .. })));
    never.body.remove(wait.unwrap());
    assert!(verify(&plan, &never).is_err());
}
