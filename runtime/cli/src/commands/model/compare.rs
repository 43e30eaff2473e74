//! `compare`: one model under several layouts, on several meshes, with several sizes.

use super::{estimate, passes};
use crate::args::{CompareArgs, ComparePart, PassArgs, ProgramChoice, TableFormat};
use crate::commands::machine::bench;
use crate::commands::project::{self, COMMAND};
use crate::compare::{self, Comparison, Shown, Variant, VariantFit};
use crate::launch;
use crate::output::console::Console;
use crate::stop::Stop;
use crate::sweep::values;
use meshwright_core::explain::explain;
use meshwright_diag::{Diagnostic, Sources, has_errors};
use meshwright_exec::KernelsBy;
use meshwright_train::estimates::{EstimateOptions, estimated};
use meshwright_train::project::line_of;
use meshwright_train::{BenchOptions, Project, ProjectOptions, lines_that_fit_device};

/// Runs the command.
pub(crate) fn run(args: &CompareArgs, console: &mut Console) -> Result<(), Stop> {
    if args.measure && args.program.program.is_some_and(|p| p != ProgramChoice::Train) {
        return Err(Stop::Usage("`--measure` times training steps: leave `--program` out".into()));
    }
    if args.only.is_some() && args.format == TableFormat::Json {
        return Err(Stop::Usage("with `--format json` the report has everything: leave `--only` out".into()));
    }
    let (fixed, varied): (Vec<_>, Vec<_>) = args.dims.iter().partition(|d| d.1.len() == 1);
    let asked = ProjectOptions {
        model: args.model.clone(),
        dims: fixed.iter().flat_map(|(name, sizes)| sizes.iter().map(move |n| (name.clone(), *n))).collect(),
        ..args.settings.options()
    };
    let (alone, mut sources) = project::load(&asked, console)?;
    let machine = estimate::of_machine_if_named(&args.machine, console)?;
    let mut found = Variants { variants: Vec::new(), projects: Vec::new(), failed: false };
    for sizes in choices(&varied) {
        let sized = if sizes.is_empty() { Ok(alone.clone()) } else { alone.with_sizes(&sizes) };
        match sized {
            Ok(project) => layouts(args, &asked, &project, &sizes, &mut sources, &mut found, console)?,
            Err(errors) => found.fails(&errors, &sources, &sizes, console),
        }
    }
    if args.measure {
        measure(args, &sources, &mut found, console)?;
    }
    if let Some(machine) = machine {
        let mut assumed = vec![];
        for (variant, project) in found.variants.iter_mut().zip(&found.projects) {
            let asked = EstimateOptions::of(machine.clone());
            let estimate = estimated(project, &sources, &asked).map_err(|e| console.failed(e, &sources))?;
            variant.add_estimate(estimate.seconds, estimate.error);
            assumed.extend(estimate.assumed_rates);
        }
        super::note_assumed_rates(&machine.name, &assumed, console);
    }
    report(args, &found.variants, console)?;
    if found.failed { Err(Stop::Diagnosed) } else { Ok(()) }
}

/// What has been compiled.
struct Variants {
    variants: Vec<Variant>,
    projects: Vec<Project>,
    failed: bool,
}

impl Variants {
    fn fails(
        &mut self,
        errors: &[Diagnostic],
        sources: &Sources,
        sizes: &[(String, usize)],
        console: &mut Console,
    ) {
        self.failed = true;
        let sizes: Vec<String> = sizes.iter().map(|(name, n)| format!("{name}={n}")).collect();
        if !sizes.is_empty() {
            console.note(&format!("with {}:", sizes.join(", ")));
        }
        console.diagnostics(errors, sources);
    }
}

/// All choices of one size for each dim; one without any where no dim varies.
fn choices(varied: &[&(String, Vec<usize>)]) -> Vec<Vec<(String, usize)>> {
    varied.iter().fold(vec![Vec::new()], |all, (name, sizes)| {
        let with = |chosen: &Vec<(String, usize)>, n: usize| [&chosen[..], &[(name.clone(), n)]].concat();
        all.iter().flat_map(|chosen| sizes.iter().map(move |n| with(chosen, *n))).collect()
    })
}

/// Compiles each layout for each mesh.
fn layouts(
    args: &CompareArgs,
    asked: &ProjectOptions,
    project: &Project,
    sizes: &[(String, usize)],
    sources: &mut Sources,
    found: &mut Variants,
    console: &mut Console,
) -> Result<(), Stop> {
    let nothing = PassArgs::default();
    let steps = passes::Steps::of(project, args.program.program);
    let some = |given: &[String], list: fn(&str) -> Vec<String>| match given {
        [] => vec![None],
        all => {
            // A layout without rules is one too.
            let listed = |text: &String| match list(text) {
                none if none.is_empty() => vec![text.clone()],
                some => some,
            };
            all.iter().flat_map(listed).map(Some).collect()
        }
    };
    for mesh in some(&args.meshes, values::meshes) {
        for layout in some(&args.layouts, values::layouts) {
            let options = ProjectOptions { layout: layout.clone(), mesh: mesh.clone(), ..asked.clone() };
            let (placed, mut said) = project.with_layout(&options, sources);
            let compiled = match &placed {
                Some(p) => {
                    let (compiled, more) = steps.compiled(p, &nothing, sources, &mut Vec::new(), console)?;
                    said.extend(more);
                    compiled
                }
                None => None,
            };
            let Some((placed, compiled)) = placed.zip(compiled).filter(|_| !has_errors(&said)) else {
                let what = [
                    layout.map(|l| format!("`--layout {l}`")),
                    mesh.clone().map(|m| format!("`--mesh {m}`")),
                ];
                console.note(&format!(
                    "no result for {}:",
                    what.into_iter().flatten().collect::<Vec<_>>().join(" ")
                ));
                found.fails(&said, sources, sizes, console);
                continue;
            };
            console.diagnostics(&said, sources);
            let report = explain(&compiled, &|span| line_of(sources, span));
            let mut variant = Variant::of(layout, placed.layout.mesh.option(), sizes, &report);
            variant.memory = args.memory.bytes().map(|memory| {
                let target = passes::target(args.devices.device.unwrap_or_default());
                let fits = meshwright_train::fits(&compiled.plan, memory, target);
                let step = steps.shown.as_ref().filter(|_| !fits);
                let lines = step.and_then(|step| {
                    lines_that_fit_device((&placed, sources), (step, &compiled.plan), (memory, target))
                });
                let (fits_with, peak_with) = lines.map_or((Vec::new(), None), |(l, peak)| (l, Some(peak)));
                VariantFit { bytes: memory, fits, fits_with, peak_with }
            });
            found.variants.push(variant);
            found.projects.push(placed);
        }
    }
    Ok(())
}

/// Times steps of each variant.
fn measure(
    args: &CompareArgs,
    sources: &Sources,
    found: &mut Variants,
    console: &mut Console,
) -> Result<(), Stop> {
    let devices = launch::devices(&args.devices, &[(COMMAND, "compare".into())], console)?;
    let options = BenchOptions {
        steps: args.steps as usize,
        warmup: args.warmup as usize,
        cores: args.cores.get(),
        seed: 0,
        devices,
        by: KernelsBy::Kernel,
        trace: None,
    };
    for (variant, project) in found.variants.iter_mut().zip(&found.projects) {
        launch::fits(project, console, sources)?;
        let timed = bench::timed(project, sources, &options, console)?;
        timed.notes.iter().for_each(|note| console.note(note));
        variant.measured = Some(timed);
    }
    Ok(())
}

fn report(args: &CompareArgs, variants: &[Variant], console: &mut Console) -> Result<(), Stop> {
    if variants.is_empty() {
        return Ok(());
    }
    let shown = match args.only {
        None => Shown { totals: true, diff: args.format != TableFormat::Csv },
        Some(part) => Shown { totals: part == ComparePart::Totals, diff: part == ComparePart::Diff },
    };
    match args.format {
        TableFormat::Json => console.out_json(&Comparison::of(variants)),
        TableFormat::Csv => console.out(&compare::csv(variants, shown)),
        TableFormat::Markdown => console.out(&compare::markdown(variants, shown)),
        TableFormat::Text => {
            let text = compare::text(variants, shown, console.screen());
            console.out_paged(&text, !args.pager.no_pager)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_combined() {
        let (batch, seq) = (("batch".to_string(), vec![8, 32]), ("seq".to_string(), vec![4]));
        let all = choices(&[&batch, &seq]);
        let chosen = |n: usize| vec![("batch".to_string(), n), ("seq".to_string(), 4)];
        assert_eq!(all, [chosen(8), chosen(32)]);
        assert_eq!(choices(&[]), [Vec::new()]);
    }
}
