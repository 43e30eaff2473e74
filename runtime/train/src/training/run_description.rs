//! A run in the words of its files: what `run.toml` and the file of `--metrics-file` say of its project and options.

use crate::project::Project;
use crate::training::TrainOptions;
use meshwright_core::{GRADIENT_NORM, LOSS_SCALE, STEP_SKIPPED};
use meshwright_data::Dataset;
use meshwright_diag::Sources;
use meshwright_plan::Plan;
use meshwright_runs::catalog::LAYOUTS;
use meshwright_runs::logs::RunFacts;
use meshwright_runs::settings::{COMMAND_LINE, RunSettings};
use std::path::{Path, PathBuf};

/// The outputs of a step that are no value of the model: fields of [`StepMetrics`](meshwright_runs::metrics::StepMetrics) say
/// them.
pub(crate) const MEASURED: [&str; 3] = [GRADIENT_NORM, LOSS_SCALE, STEP_SKIPPED];

/// The settings of a run that is asked for. `seed` is what it starts from where none is given; without data it is one that does
/// not train.
pub(crate) fn settings_of(
    project: &Project,
    sources: &Sources,
    options: &TrainOptions,
    seed: u64,
    set: Option<&Dataset>,
) -> RunSettings {
    let program = &project.program;
    let texts = &project.texts;
    RunSettings {
        model: program.model.clone(),
        file: sources.name(texts.model).into(),
        used: texts.used.iter().map(|id| sources.name(*id).to_string()).collect(),
        layout_file: texts.layout.map(|id| sources.name(id).to_string()),
        device: options.devices.asked.device.clone(),
        collectives: options.devices.asked.collectives.clone(),
        folder: options.folder.clone(),
        dim: project.settings().dims.iter().cloned().collect(),
        seed: seed.to_string(),
        precision: program.float.name().into(),
        mesh: project.layout.mesh.option(),
        layout: project.layout.rules.iter().map(|r| r.text.clone()).collect(),
        layout_settings: Some(project.layout.settings.clone()),
        cores: options.cores,
        transport: options.devices.asked.transport.clone(),
        deterministic: options.devices.asked.deterministic,
        timeout: options.devices.asked.timeout,
        epochs: options.epochs,
        steps: options.steps,
        eval: options.eval,
        preset: project.settings().size.clone(),
        data: options.data.clone(),
        data_folder: set.and_then(Dataset::folder).map(PathBuf::from),
        allow_nonfinite: options.allow_nonfinite,
        examples: set.map_or(0, Dataset::records),
        fingerprint: set.map(Dataset::fingerprint).unwrap_or_default(),
        set: project.settings().consts.iter().cloned().collect(),
        dims: program.graph.dims.iter().map(|(d, n)| (n.to_string(), program.graph.dims.size(d))).collect(),
        consts: program.consts.clone(),
        better: program
            .metrics
            .iter()
            .filter_map(|m| Some((m.name.clone(), m.better?.word().to_string())))
            .collect(),
        policies: options.policies.clone(),
        init: options.init.clone(),
        imported: None,
        class: None,
        class_names: set.map(|s| s.class_names().clone()).unwrap_or_default(),
    }
    .absolute()
}

/// The facts of a run of `steps` steps that `file` tells of.
pub(crate) fn facts_of(
    (project, sources, options): (&Project, &Sources, &TrainOptions),
    plan: &Plan,
    (steps, steps_per_epoch): (u64, u64),
    file: &Path,
) -> RunFacts {
    let lossy = |path: &Path| path.to_string_lossy().into_owned();
    let run = match options.run.as_deref() {
        Some(folder) => lossy(&std::path::absolute(folder).unwrap_or_else(|_| folder.into())),
        None => file.file_stem().map(|stem| lossy(Path::new(stem))).unwrap_or_default(),
    };
    let lines: Vec<&str> = project.layout.lines().collect();
    let layout = match project.texts.layout.map(|id| sources.name(id)) {
        // A label without a text is none to Prometheus.
        None => "none".into(),
        Some(COMMAND_LINE) => lines.join("; "),
        Some(name) => LAYOUTS.iter().find(|l| l.path == name).map_or(name, |l| l.name).into(),
    };
    RunFacts {
        run,
        model: project.program.model.clone(),
        layout,
        mesh: project.layout.mesh.option(),
        precision: project.program.float.name().into(),
        loss: project.loss().unwrap_or_default().into(),
        devices: project.layout.mesh.devices(),
        steps,
        steps_per_epoch,
        planned_bytes: plan.summary.peak_bytes,
        collective_bytes: plan.summary.collective_bytes,
    }
}
