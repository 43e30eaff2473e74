//! `check`: whether a model and a layout make a program.

use super::{fix, passes, project};
use crate::args::CheckArgs;
use crate::console::Console;
use crate::json::object;
use crate::stop::Stop;
use crate::text::{bytes, counted, thousands};

/// Runs the command.
pub(crate) fn run(args: &CheckArgs, console: &mut Console) -> Result<(), Stop> {
    let mut options = args.project.options();
    let mut unwritten = false;
    if args.fix || args.diff {
        let left = fix::run(options, args.diff, console)?;
        (options, unwritten) = (left.options, left.unwritten);
    }
    let made = match passes::make(&options, &args.passes, console) {
        Ok(Some(made)) => made,
        Ok(None) => return Ok(()),
        Err(Stop::Diagnosed) if console.json() && args.passes.emit.is_none() => {
            console.out_json(&object([("ok", false.into())]))?;
            return Err(Stop::Diagnosed);
        }
        Err(other) => return Err(other),
    };
    if unwritten {
        // What was checked is not what stands where it was read; whoever asks for a diff wants nothing behind it.
        if console.json() {
            console.out_json(&object([("ok", false.into())]))?;
        }
        return Err(Stop::Diagnosed);
    }
    if args.diff && !console.json() {
        return Ok(());
    }
    let (program, plan) = (&made.project.program, &made.compiled.plan);
    let elements: usize =
        program.params.iter().map(|p| program.graph.ty(p.id).elements(&program.graph.dims)).sum();
    let collectives = plan.steps.iter().filter(|s| s.collective().is_some()).count();
    let s = &plan.summary;
    if console.json() {
        return console.out_json(&object([
            ("ok", true.into()),
            ("model", program.model.clone().into()),
            ("program", plan.program.clone().into()),
            ("parameters", program.params.len().into()),
            ("elements", elements.into()),
            ("devices", plan.mesh.devices().into()),
            ("collectives", collectives.into()),
            ("collective_bytes", s.collective_bytes.into()),
            ("peak_bytes", s.peak_bytes.into()),
            ("plan", plan.hash().into()),
        ]));
    }
    let of = if made.trains { "a step" } else { "an evaluation step; it has no `train` block" };
    console.out(&format!(
        "ok: {}, {} elements, mesh {}, {} in {} and a peak of {} per device for {of}\n",
        counted(program.params.len() as u64, "parameter"),
        thousands(elements as u64),
        project::mesh(&made.project),
        bytes(s.collective_bytes),
        counted(collectives as u64, "collective"),
        bytes(s.peak_bytes),
    ))
}
