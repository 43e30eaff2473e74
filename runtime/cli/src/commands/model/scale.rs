//! `estimate --scale`: a row for each size of an axis.

use super::one_estimate::{fields, goodput, with_stages};
use crate::args::EstimateArgs;
use crate::output::console::Console;
use crate::output::table::{Align, Table};
use crate::output::text::{
    band_reason, bytes, percent, short_band, short_number, step_time as seconds, thousands,
};
use crate::stop::Stop;
use meshwright_cost::estimate::{Estimate, Fits, Goodput};
use meshwright_diag::{Diagnostic, Sources, has_errors};
use meshwright_train::estimates::{EstimateOptions, estimated};
use meshwright_train::{Failure, Loaded, Project, ProjectOptions};

/// Estimates each size of `sizes`, and reports.
pub(super) fn run(
    args: &EstimateArgs,
    (sizes, options): (&str, &ProjectOptions),
    (machine, asked): (&str, &EstimateOptions),
    console: &mut Console,
) -> Result<(), Stop> {
    let usage =
        || Stop::Usage("`--scale` takes an axis of the mesh with two sizes, such as data=8..1024".into());
    let (axis, sizes) = sizes.split_once('=').ok_or_else(usage)?;
    let (from, to) = sizes.split_once("..").ok_or_else(usage)?;
    let (from, to): (usize, usize) = from.parse().ok().zip(to.parse().ok()).ok_or_else(usage)?;
    // What there is to say of the mesh that was given, each size says of its own.
    let loaded = Project::load(options);
    let Some(base) = loaded.project else {
        return Err(console.failed(Failure::Diagnostics(loaded.diagnostics), &loaded.sources));
    };
    let mesh = &base.layout.mesh;
    let Some(own) = mesh.find(axis).filter(|_| from > 0 && from <= to) else { return Err(usage()) };
    let mut table = ScaleTable::new(axis, args.failures);
    let mut said: Vec<Diagnostic> = vec![];
    let mut assumed = vec![];
    for size in std::iter::successors(Some(from), |n| n.checked_mul(2)).take_while(|n| *n <= to) {
        let axes =
            mesh.axes.iter().map(|a| format!("{}={}", a.name, if a.name == axis { size } else { a.size }));
        let mesh_option = axes.collect::<Vec<_>>().join(",");
        let mut options = ProjectOptions { mesh: Some(mesh_option), ..options.clone() };
        if let (true, Some((_, name))) = (args.weak, base.example_dim()) {
            options.dims.retain(|(n, _)| n != name);
            options.dims.push((name.to_string(), (base.batch() * size).div_ceil(mesh.size(own))));
        }
        let (project, sources) = of_size(&options, &mut said, console)?;
        let (project, sources, asked) = with_stages(project, sources, asked.clone(), console);
        let e = estimated(&project, &sources, &asked).map_err(|e| console.failed(e, &sources))?;
        assumed.extend(e.assumed_rates.clone());
        let goodput = goodput(args, &asked.machine, &e, console)?;
        let efficiency = table.efficiency(&e);
        if console.json() {
            let of = (&project, args.project.layouts().first().map(String::as_str));
            let mut row = fields(of, (machine, &asked), &e, goodput)?;
            row.push("axis", axis);
            row.push("size", size);
            row.push("efficiency", efficiency);
            console.out_json(&row)?;
            continue;
        }
        table.row(size, &e, efficiency, goodput);
    }
    super::note_assumed_rates(&asked.machine.name, &assumed, console);
    if console.json() {
        return Ok(());
    }
    let of = format!("times on {}: {}\n\n", asked.machine.name, band_reason(&asked.machine));
    console.out(&(of + &table.table.render()))
}

/// The project of a size. What another size has said is not said again.
fn of_size(
    options: &ProjectOptions,
    said: &mut Vec<Diagnostic>,
    console: &mut Console,
) -> Result<(Project, Sources), Stop> {
    let Loaded { project, sources, mut diagnostics, .. } = Project::load(options);
    let Some(project) = project.filter(|_| !has_errors(&diagnostics)) else {
        return Err(console.failed(Failure::Diagnostics(diagnostics), &sources));
    };
    diagnostics.retain(|d| !said.contains(d));
    console.diagnostics(&diagnostics, &sources);
    said.extend(diagnostics);
    Ok((project, sources))
}

/// The rows for people.
struct ScaleTable {
    table: Table,
    /// Examples per second of each device at the first size.
    first: Option<f64>,
}

impl ScaleTable {
    fn new(axis: &str, failures: bool) -> ScaleTable {
        let [left, right] = [Align::Left, Align::Right];
        let mut align = vec![left, right, right, right, right, right, right, left];
        let mut titles = vec![axis, "devices", "step", "", "examples/s", "of linear", "MFU", "memory"];
        if failures {
            align.insert(7, right);
            titles.insert(7, "goodput");
        }
        let mut table = Table::new(&align);
        table.titles(titles);
        ScaleTable { table, first: None }
    }

    /// Examples per second of each device, relative to the first size.
    fn efficiency(&mut self, e: &Estimate) -> f64 {
        let each = e.examples_per_second / e.devices as f64;
        each / *self.first.get_or_insert(each)
    }

    fn row(&mut self, size: usize, e: &Estimate, efficiency: f64, goodput: Option<Goodput>) {
        let fits = if matches!(e.memory.fits, Fits::No { .. }) { "does not fit" } else { "fits" };
        let mut row = vec![
            size.to_string(),
            thousands(e.devices as u64),
            seconds(e.seconds),
            short_band(e.error),
            short_number((e.examples_per_second * 10.0).round() / 10.0),
            percent(efficiency),
            e.mfu.map_or("-".into(), percent),
        ];
        row.extend(goodput.map(|g| percent(g.share)));
        row.push(format!("{} ({fits})", bytes(e.memory.device_bytes)));
        self.table.row(row);
    }
}
