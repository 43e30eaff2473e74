//! Plans of shipped models and layouts, measured and estimated: what the numbers of a machine are worth.

use super::rounds::Timed;
use crate::estimates::measured_step::{Compared, MeasuredStep, compared};
use crate::estimates::{EstimateOptions, question};
use crate::failure::Failure;
use crate::project::{Project, ProjectOptions};
use meshwright_core::{model_flops_wide, training_step};
use meshwright_cost::estimate::EstimateError;
use meshwright_cost::machine::{DeviceKind, Machine};
use meshwright_diag::{Diagnostic, codes};
use meshwright_plan::{Arithmetic, Mesh, Plan};
use meshwright_sorted::SortedMap;
use serde::Serialize;
use std::sync::Arc;

/// A plan that was measured and estimated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CalibratedPlan {
    /// Its model and its rules.
    pub name: String,
    /// Its mesh, in words.
    pub mesh: String,
    /// Median seconds of a step.
    pub measured: f64,
    /// What lies between the quartiles of these, relative to the median.
    pub spread: f64,
    /// Estimated seconds.
    pub estimated: f64,
    /// `estimated / measured - 1`.
    pub error: f64,
}

/// How far the estimates of a machine are off.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CalibrationErrors {
    /// Mean of the relative errors of plans, without their signs.
    pub mean: f64,
    /// The greatest.
    pub max: f64,
    /// Relative error by family of work, as in `[errors]` of a machine file.
    pub families: SortedMap<String, f64>,
    /// The plans.
    pub plans: Vec<CalibratedPlan>,
}

/// A plan: model, preset, sizes, and rules on the first or the last axis of the mesh, `A` and `Z`; none for one device.
type PlanCase = (&'static str, &'static str, &'static [(&'static str, usize)], &'static str);

const CASES: [PlanCase; 14] = [
    ("mlp", "", &[], ""),
    ("mnist_conv", "", &[("batch", 40)], ""),
    ("bert", "tiny", &[("batch", 4)], ""),
    ("gpt", "tiny", &[("batch", 2)], ""),
    ("mlp", "", &[], "batch -> A"),
    ("mlp", "", &[("batch", 400)], "batch -> A; moments: * -> A"),
    ("mlp", "", &[("hidden", 4096)], "hidden -> Z"),
    ("mnist_mlp", "", &[], "batch -> A"),
    ("mnist_conv", "", &[("batch", 80)], "batch -> A"),
    ("bert", "tiny", &[("batch", 8)], "batch -> A"),
    ("bert", "tiny", &[("batch", 4)], "heads, d_ff, vocab -> Z"),
    ("gpt", "tiny", &[("batch", 8)], "batch -> A; moments: * -> A"),
    ("gpt", "tiny", &[("batch", 4)], "heads, d_ff, vocab -> Z"),
    ("llama", "tiny", &[("batch", 4)], "batch -> A"),
];

/// Plans that fill a GPU, in `bf16`.
const GPU_CASES: [PlanCase; 9] = [
    ("mlp", "", &[("batch", 8192), ("hidden", 8192)], ""),
    ("bert", "base", &[("batch", 32)], ""),
    ("gpt", "small", &[("batch", 16)], ""),
    ("llama", "sheared_1b", &[("batch", 2)], ""),
    ("gpt", "small", &[("batch", 64)], "batch -> A"),
    ("bert", "base", &[("batch", 128)], "batch -> A; moments: * -> A"),
    ("mlp", "", &[("batch", 8192), ("hidden", 16_384)], "hidden -> Z"),
    ("gpt", "small", &[("batch", 16)], "heads, d_ff, vocab -> Z"),
    ("llama", "sheared_1b", &[("batch", 16)], "batch -> A; params: * -> A"),
];

/// The plans for a mesh, or those for one device, by name; of a short calibration every second one.
pub(super) fn cases(kind: DeviceKind, mesh: Option<&Mesh>, short: bool) -> Vec<(String, ProjectOptions)> {
    let (all, precision) = match kind {
        DeviceKind::Cpu => (&CASES[..], None),
        DeviceKind::Gpu => (&GPU_CASES[..], Some(Arithmetic::BF16)),
    };
    let mut axes = mesh.iter().flat_map(|m| &m.axes).filter(|a| a.size > 1).map(|a| a.name.as_str());
    let ends = axes.clone().next().zip(axes.next_back());
    let mut found = vec![];
    for (model, preset, dims, rules) in all.iter().step_by(if short { 2 } else { 1 }).copied() {
        let mut options = ProjectOptions {
            model: model.into(),
            preset: (!preset.is_empty()).then(|| preset.into()),
            dims: dims.iter().map(|(name, size)| ((*name).into(), *size)).collect(),
            precision,
            ..ProjectOptions::default()
        };
        let mut name = options.model.clone();
        match (mesh, ends, rules) {
            (None, _, "") => {}
            (None, ..) | (_, None, _) | (.., "") => continue,
            (Some(mesh), Some((first, last)), _) => {
                let rules =
                    rules.replace("-> A", &format!("-> {first}")).replace("-> Z", &format!("-> {last}"));
                name = format!("{name}, {rules}");
                (options.layout, options.mesh) = (Some(rules), Some(mesh.option()));
            }
        }
        found.push((name, options));
    }
    found
}

/// A plan with what was measured of it.
pub(super) struct MeasuredPlan {
    name: String,
    project: Project,
    plan: Arc<Plan>,
    measured: MeasuredStep,
    model_flops: f64,
}

impl MeasuredPlan {
    pub(super) fn of(timed: Timed) -> MeasuredPlan {
        let measured = timed.measured();
        let Timed { name, project, plan, .. } = timed;
        let model_flops = training_step(&project.program).map_or(0.0, |step| model_flops_wide(&step));
        MeasuredPlan { name, project, plan, measured, model_flops }
    }

    fn compared(&self, machine: &Machine) -> Result<Compared, EstimateError> {
        let options = EstimateOptions::of(machine.clone());
        compared(&self.plan, &question(&self.project, &options, self.model_flops), &self.measured)
    }
}

/// Parts of the greatest rate that a training may keep.
const SUSTAINED: std::ops::RangeInclusive<u32> = 50..=100;

/// Sets the part of its greatest rate that a training keeps: the one with which the plans are off least, in the mean of squares,
/// which a single plan between two values does not move far.
pub(super) fn sustain(machine: &mut Machine, plans: &[MeasuredPlan]) -> Result<(), Failure> {
    let mut best: Option<(f64, f64)> = None;
    for percent in SUSTAINED.rev() {
        let sustained = f64::from(percent) / 100.0;
        machine.device.sustained = sustained;
        let off = errors(machine, plans)?.plans.iter().map(|p| (1.0 + p.error).ln().powi(2)).sum::<f64>();
        if best.is_none_or(|(least, _)| off < least) {
            best = Some((off, sustained));
        }
    }
    machine.device.sustained = best.map_or(1.0, |b| b.1);
    Ok(())
}

/// How far the estimates of plans are off. The error of a family is that of its seconds in each plan, weighted by its part of
/// them, times what makes the bands of these plans as wide as their steps are off in the mean: what one family is too long
/// another is often too short.
pub(super) fn errors(machine: &Machine, plans: &[MeasuredPlan]) -> Result<CalibrationErrors, Failure> {
    let mut rows = vec![];
    let mut families: SortedMap<&str, (f64, f64)> = SortedMap::new();
    for plan in plans {
        let found = plan
            .compared(machine)
            .map_err(|e| Diagnostic::error(codes::E0531, format!("{}: {e}", plan.name)))?;
        for part in &found.parts {
            let (off, weight) = families.entry(part.part.error_family()).or_default();
            *off += (part.estimated - part.measured).abs() / found.measured;
            *weight += part.measured / found.measured;
        }
        rows.push(CalibratedPlan {
            name: plan.name.clone(),
            mesh: plan.plan.mesh.describe(),
            measured: found.measured,
            spread: plan.measured.spread,
            estimated: found.estimated,
            error: found.estimated / found.measured - 1.0,
        });
    }
    let count = rows.len().max(1) as f64;
    let (all, each) =
        (rows.iter().map(|r| r.error.abs()).sum::<f64>(), families.values().map(|f| f.0).sum::<f64>());
    let together = if each > 0.0 { all / each } else { 1.0 };
    let of = |(family, (off, weight)): (&str, (f64, f64))| {
        (family.to_string(), (together * off / weight).min(1.0))
    };
    Ok(CalibrationErrors {
        mean: rows.iter().map(|r| r.error.abs()).sum::<f64>() / count,
        max: rows.iter().map(|r| r.error.abs()).fold(0.0, f64::max),
        families: families.into_iter().filter(|(_, (_, weight))| *weight > 0.0).map(of).collect(),
        plans: rows,
    })
}
