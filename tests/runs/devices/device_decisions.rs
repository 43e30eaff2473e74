//! Faults in what each pass for devices decides, which the verifier after the passes must find.

use crate::support::options;
use meshwright_core::training_step;
use meshwright_device::decisions::Decisions;
use meshwright_device::decisions::decide::{PASSES, decisions};
use meshwright_device::decisions::def_use::DefUse;
use meshwright_device::decisions::fused::FusedGroup;
use meshwright_device::decisions::verify_decisions::{left, verify};
use meshwright_device::kernels::Kernel;
use meshwright_device::passes::residuals::ResidualStep;
use meshwright_device::target::Target;
use meshwright_plan::{Arithmetic, BufId, Collective, Fp8, Plan, Prim};
use meshwright_sorted::SortedSet;
use meshwright_train::{Project, ProjectOptions};

/// A value that one number needs alone, and that is computed from one that is stored.
const SUMS: &str = "dim n = 4096
model sums {
    input x[n]: float
    param w[n] = 1
    let h = tanh(x * w)
    loss l = sum[n](exp(h) * h * x)
}
train sums {
    minimize l
    optimizer sgd(lr = 0.1)
}
";

/// Model, mesh, layout and dims.
type Way = (&'static str, &'static str, &'static str, Vec<(&'static str, usize)>);

/// Training steps in which every pass for GPUs finds something to do.
fn plans() -> Vec<Plan> {
    let ways = [
        ("gpt", "a=1", "batch -> a", vec![("seq", 128), ("places", 128), ("layers", 2)]),
        ("gpt", "a=2", "batch -> a; params: * -> a; microbatches 2", vec![("layers", 2)]),
        ("gpt", "a=1", "batch -> a; recompute layers.*", vec![("seq", 128), ("places", 128), ("layers", 2)]),
        ("bert", "a=2", "d_ff, heads -> a", vec![("layers", 2)]),
        ("mlp", "a=2", "batch -> a", vec![]),
        ("mlp", "a=1", "microbatches 2", vec![]),
        ("sums.mw", "a=2", "n -> a", vec![]),
    ];
    let plan = |((model, mesh, layout, dims), precision): (Way, Arithmetic)| {
        let o = ProjectOptions {
            preset: ["gpt", "bert"].contains(&model).then(|| "tiny".to_string()),
            precision: Some(precision),
            texts: [("sums.mw".to_string(), SUMS.to_string())].into(),
            ..options(model, mesh, layout, &dims)
        };
        let loaded = Project::load(&o);
        let project = loaded.project.unwrap();
        let step = training_step(&project.program).unwrap();
        project.compile(&step, &loaded.sources).0.unwrap().plan
    };
    let rounded = ("gpt", "a=2", "batch -> a; params: * -> a; microbatches 2", vec![("layers", 2)]);
    let halves = ways.into_iter().map(|way| (way, Arithmetic::BF16));
    let codes = ("gpt", "a=1", "batch -> a", vec![("layers", 2)]);
    halves.chain([(rounded, Arithmetic::TF32), (codes, Arithmetic::FP8)]).map(plan).collect()
}

/// A fault at the place of that number: none where there is no such place any more.
type Fault = fn(&mut Decisions, &DefUse<'_>, usize) -> Option<()>;

/// The groups of products.
fn joined(d: &mut Decisions) -> impl Iterator<Item = &mut FusedGroup> {
    d.fused.at.values_mut().filter(|group| matches!(group.call.kernel, Kernel::MatmulGroup(_)))
}

/// For each pass, faults that it could make.
const FAULTS: [(&str, &str, Fault); 31] = [
    ("fp8_matmuls", "a value is stored as codes that no step rounds", |d, uses, at| {
        let (_, factor) = d.fp8.factors.iter().next()?;
        let factor = factor.clone();
        let others = uses.readers.keys().filter(|buf| !d.fp8.factors.contains_key(buf));
        let buf = *{ others }.nth(at)?;
        d.fp8.factors.insert(buf, factor);
        Some(())
    }),
    ("fp8_matmuls", "one factor of a matmul is stored as codes, and the other is not", |d, _, at| {
        let buf = *d.fp8.factors.keys().nth(at)?;
        d.fp8.factors.remove(&buf);
        Some(())
    }),
    ("fp8_matmuls", "a value is stored in no order", |d, _, at| {
        let factor = d.fp8.factors.values_mut().nth(at)?;
        (factor.plain, factor.turned) = (false, false);
        Some(())
    }),
    ("fp8_matmuls", "both factors are E5M2", |d, _, at| {
        let factor = d.fp8.factors.values_mut().filter(|f| f.format == Fp8::E4M3).nth(at)?;
        factor.format = Fp8::E5M2;
        let gradients = d.fp8.factors.values().any(|f| f.format == Fp8::E5M2);
        d.fp8.factors.values_mut().for_each(|f| f.format = Fp8::E5M2);
        gradients.then_some(())
    }),
    ("fp8_matmuls", "a scale ends before the matmul that reads it", |d, _, at| {
        let scales: SortedSet<BufId> = d.fp8.factors.values().map(|f| f.inverse.buf).collect();
        let longer = d.order.ends.keys().filter(|(_, buf)| scales.contains(buf));
        let key = *{ longer }.nth(at)?;
        d.order.ends.remove(&key);
        Some(())
    }),
    ("rounded_factors", "a buffer of other numbers is taken for rounded", |d, uses, at| {
        let all = (0..uses.plan.buffers.len()).map(|b| BufId(b as u32));
        // Those of programs that round something.
        let others = all.filter(|buf| !d.rounded.is_empty() && !d.rounded.contains(buf));
        let buf = others.filter(|buf| uses.readers.contains_key(buf)).nth(at)?;
        d.rounded.insert(buf);
        Some(())
    }),
    ("rounded_factors", "a buffer that is moved is not known to be rounded", |d, uses, at| {
        let moved = |buf: &&BufId| {
            let copies = |step: &usize| {
                matches!(uses.plan.steps[*step].prim, Prim::Collective(Collective::AllGather { .. }))
            };
            uses.readers.get(buf).is_some_and(|by| by.iter().any(copies))
        };
        let buf = *d.rounded.iter().filter(moved).nth(at)?;
        d.rounded.remove(&buf);
        Some(())
    }),
    ("residuals", "a value is not left", |d, _, at| {
        let stores = d.residuals.steps.iter().filter(|(_, how)| matches!(how, ResidualStep::Store { .. }));
        let step = *stores.map(|(step, _)| step).nth(at)?;
        d.residuals.steps.remove(&step);
        Some(())
    }),
    ("residuals", "a value ends with no reader, or with two", |d, _, at| {
        let mut loads = d.residuals.steps.values_mut().filter_map(|how| match how {
            ResidualStep::Load { last, .. } => Some(last),
            _ => None,
        });
        let last = loads.nth(at)?;
        *last = !*last;
        Some(())
    }),
    ("residuals", "a stack that is there is taken for one that is not", |d, _, at| {
        let buf = *d.residuals.buffers.iter().nth(at)?;
        d.residuals.buffers.remove(&buf);
        Some(())
    }),
    ("masks", "a mask is neither stored nor drawn", |d, _, at| {
        let buf = *d.masks.drawn_by.keys().nth(at)?;
        d.masks.drawn_by.remove(&buf);
        Some(())
    }),
    ("masks", "a step is skipped that something needs", |d, uses, at| {
        let needed = |step: &usize| {
            let step = &uses.plan.steps[*step];
            matches!(step.prim, Prim::Map { .. }) && !step.writes.iter().any(|o| d.is_never_made(o.buf))
        };
        let step = (0..uses.plan.steps.len()).filter(needed).nth(at)?;
        d.masks.skipped.insert(step);
        Some(())
    }),
    ("row_groups", "a step of a group is forgotten", |d, _, at| {
        let mut long = d.fused.at.values_mut().filter(|group| group.steps.len() > 1);
        long.nth(at)?.steps.remove(0);
        Some(())
    }),
    ("row_groups", "a step runs before what it reads", |d, uses, at| {
        let depends = |steps: &[usize]| {
            let [first, .., last] = steps else { return false };
            let written = &uses.plan.steps[*first].writes;
            written.iter().any(|o| uses.plan.steps[*last].reads_buf(o.buf))
        };
        let mut groups = d.fused.at.values_mut().filter(|group| depends(&group.steps));
        groups.nth(at)?.steps.reverse();
        Some(())
    }),
    ("row_groups", "a value is not stored that another launch reads", |d, uses, at| {
        let read_outside = |buf: &BufId, of: &[usize]| {
            uses.readers.get(buf).is_some_and(|by| by.iter().any(|step| !of.contains(step)))
        };
        let written = d.fused.at.values().flat_map(|group| {
            let all = group.steps.iter().flat_map(|s| &uses.plan.steps[*s].writes).map(|o| o.buf);
            all.filter(|buf| read_outside(buf, &group.steps))
        });
        let buf = written.filter(|buf| !d.is_never_made(*buf)).nth(at)?;
        d.fused.never.insert(buf);
        Some(())
    }),
    ("matmul_groups", "a product of a group is forgotten", |d, _, at| {
        joined(d).nth(at)?.steps.remove(0);
        Some(())
    }),
    ("matmul_groups", "two products take each other's factors", |d, _, at| {
        joined(d).nth(at)?.call.reads.swap(1, 2);
        Some(())
    }),
    ("matmul_groups", "two products give each other's results", |d, _, at| {
        joined(d).nth(at)?.call.writes.swap(0, 1);
        Some(())
    }),
    ("inlined", "a value is computed for another step than its reader", |d, _, at| {
        d.inlined.values.values_mut().nth(at)?.by += 1;
        Some(())
    }),
    ("inlined", "a value is computed from what is not there", |d, uses, at| {
        let inlined = d.inlined.values.values_mut().filter(|value| !value.reads.is_empty());
        let value = inlined.into_iter().nth(at)?;
        // What a later step writes.
        let later = &uses.plan.steps[value.by].writes;
        value.reads[0] = later.first()?.clone();
        Some(())
    }),
    ("step_order", "a step runs before what it reads", |d, uses, at| {
        let steps = &uses.plan.steps;
        let depends = |w: &[usize]| {
            let single = |step: &usize| {
                !d.fused.members.contains_key(step)
                    && !d.epilogues.at.contains_key(step)
                    && !d.epilogues.moved.contains_key(step)
                    && !d.residuals.steps.contains_key(step)
                    && !d.inlined.skipped.contains(step)
                    && !d.masks.skipped.contains(step)
            };
            let made = steps[w[0]].writes.iter().filter(|o| !d.is_never_made(o.buf));
            w.iter().all(single) && { made }.any(|o| steps[w[1]].reads_buf(o.buf))
        };
        let pairs = d.order.steps.windows(2).enumerate().filter(|(_, w)| depends(w));
        let first = pairs.map(|(first, _)| first).nth(at)?;
        d.order.steps.swap(first, first + 1);
        Some(())
    }),
    ("step_order", "a step is left out", |d, _, at| {
        (at < d.order.steps.len()).then(|| d.order.steps.remove(at)).map(drop)
    }),
    ("step_order", "collectives change places", |d, uses, at| {
        let is = |step: &usize| matches!(uses.plan.steps[*step].prim, Prim::Collective(_) | Prim::Wait);
        let all: Vec<usize> =
            d.order.steps.iter().enumerate().filter(|(_, step)| is(step)).map(|(place, _)| place).collect();
        d.order.steps.swap(*all.get(at)?, *all.get(at + 1)?);
        Some(())
    }),
    ("step_order", "a buffer ends before its last reader", |d, uses, at| {
        let place = |step: &usize| d.order.steps.iter().position(|s| s == step);
        let read_later = |(step, buf): &&(usize, BufId)| {
            let readers = uses.readers.get(buf).into_iter().flatten();
            !d.is_never_made(*buf) && !d.epilogues.moved.contains_key(step) && { readers }
                .any(|reader| Some(d.order.place[*reader]) > place(step))
        };
        let key = *d.order.ends.keys().filter(read_later).nth(at)?;
        d.order.ends.remove(&key);
        Some(())
    }),
    ("attention_bits", "bits are not left", |d, _, at| {
        let step = *d.attention_bits.stored.keys().nth(at)?;
        d.attention_bits.stored.remove(&step);
        Some(())
    }),
    ("attention_bits", "bits are taken from a later step", |d, _, at| {
        let (step, by) = d.attention_bits.shared.iter().nth(at).map(|(step, by)| (*step, *by))?;
        d.attention_bits.shared.remove(&step);
        d.attention_bits.shared.insert(by, step);
        Some(())
    }),
    ("epilogues", "a step is computed in two places", |d, _, at| {
        let others: Vec<usize> = d.epilogues.at.values().flat_map(|e| e.others()).collect();
        d.epilogues.moved.remove(others.get(at)?);
        Some(())
    }),
    ("epilogues", "what the matmul reads beside is not there yet", |d, _, at| {
        let mut early = d.epilogues.at.values_mut().filter(|e| !e.before.is_empty());
        early.nth(at)?.before.clear();
        Some(())
    }),
    ("epilogues", "a value that a matmul is added to ends later", |d, _, at| {
        let buf = *d.epilogues.added.keys().nth(at)?;
        d.epilogues.added.remove(&buf);
        Some(())
    }),
    ("epilogues", "another value ends with a matmul, and is read later", |d, uses, at| {
        let (buf, product) = d.epilogues.added.iter().nth(at).map(|(buf, product)| (*buf, *product))?;
        let factor = uses.plan.steps[product].reads[0].buf;
        d.epilogues.added.remove(&buf);
        d.epilogues.added.insert(factor, product);
        Some(())
    }),
    ("epilogues", "a result is not stored that another launch reads", |d, uses, at| {
        let others = d.epilogues.at.values().flat_map(|e| e.others());
        let written: Vec<BufId> = others.flat_map(|s| &uses.plan.steps[s].writes).map(|o| o.buf).collect();
        let read = written.iter().filter(|buf| uses.readers.contains_key(buf) && !d.is_never_made(**buf));
        let buf = *{ read }.nth(at)?;
        d.epilogues.never.insert(buf);
        Some(())
    }),
];

#[test]
fn faults_of_each_pass_for_devices_are_found() {
    let decided = |plan: Plan| {
        let decisions = decisions(&plan, 0, Target::cuda((9, 0), true)).unwrap();
        (plan, decisions)
    };
    let plans: Vec<(Plan, Decisions)> = plans().into_iter().map(decided).collect();
    for pass in PASSES {
        assert!(FAULTS.iter().any(|(of, ..)| *of == pass.name), "{} has no fault", pass.name);
    }
    for (pass, name, fault) in FAULTS {
        let mut places = 0;
        for (number, (plan, decisions)) in plans.iter().enumerate() {
            let uses = DefUse::of(plan);
            let left = left(&uses).unwrap();
            for at in 0.. {
                let mut decided = decisions.clone();
                if fault(&mut decided, &uses, at).is_none() {
                    break;
                }
                places += 1;
                let found = verify(&uses, &decided, &left);
                assert!(found.is_err(), "{pass}: {name}, place {at} of plan {number}");
            }
        }
        assert!(places > 0, "{pass}: {name}: no place for the fault");
    }
}
