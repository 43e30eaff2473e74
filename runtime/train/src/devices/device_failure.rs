//! What is said of devices that failed.

use crate::devices::plan_memory;
use crate::devices::plan_memory::{largest, lines_for, peak_on};
use crate::failure::Failure;
use crate::project::Project;
use meshwright_core::training_step;
use meshwright_device::target::Target;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{ExecError, GpuFault, OutOfMemory};
use meshwright_files::text::bytes as shown;

/// The error of a device for the user.
pub fn described(error: &ExecError) -> Diagnostic {
    match error {
        ExecError::OutOfMemory(e) => out_of_memory(e),
        ExecError::Gpu(e) => gpu_fault(e),
        ExecError::Silent { gpu: Some(gpu), .. } => {
            let d = Diagnostic::error(codes::E0520, error.to_string());
            gpu.health.advice().into_iter().fold(d, Diagnostic::help)
        }
        other => Diagnostic::error(codes::E0520, other.to_string()),
    }
}

/// The same failure; where a GPU had no memory in a training, with lines that make the layout need less.
pub(crate) fn with_lines(failure: Failure, project: &Project, sources: &Sources) -> Failure {
    let Failure::Exec(ExecError::OutOfMemory(mut e)) = failure else { return failure };
    if let Some(plan) = e.plan.clone().filter(|plan| plan.trains()) {
        let step = training_step(&project.program);
        let other = |lines: &str| plan_memory::with_lines(project, sources, step.as_ref()?, lines);
        let peak = peak_on(&plan, Target::h100());
        // What the process has now and what is free. Where that is enough, it is in pieces: then what is asked for beyond what is
        // free is left out of account, and some more.
        let there = e.device.zip(e.held).map_or(u64::MAX, |(device, held)| device.free + held.reserved);
        let lacks = e.asked.zip(e.device).map_or(0, |(asked, device)| asked.saturating_sub(device.free));
        let less = peak.saturating_sub(lacks.max(peak / 10));
        e.lines = lines_for(&plan, (there.min(less), Target::h100()), &other);
    }
    Failure::Exec(ExecError::OutOfMemory(e))
}

fn out_of_memory(e: &OutOfMemory) -> Diagnostic {
    let asked = e.asked.map_or("no memory left".into(), |n| format!("no memory for another {}", shown(n)));
    let mut d = Diagnostic::error(codes::E0401, format!("{}: {} has {asked}", e.place, e.gpu));
    let held =
        e.held.map(|m| format!("this process has {} of it, {} in use", shown(m.reserved), shown(m.in_use)));
    let device = e.device.map(|m| format!("the GPU has {}, {} free", shown(m.total), shown(m.free)));
    let others = e.held.zip(e.device).map(|(held, device)| {
        let rest = device.total.saturating_sub(device.free).saturating_sub(held.reserved);
        format!("other processes, libraries and the driver have {}", shown(rest))
    });
    let memory: Vec<String> = [device, held, others].into_iter().flatten().collect();
    if !memory.is_empty() {
        d = d.note(memory.join("; "));
    }
    if let Some(plan) = &e.plan {
        let peak = shown(plan.summary.peak_bytes);
        d = d.note(format!("the program `{}` needs at most {peak} on a device by its plan", plan.program));
        d = match e.place.step {
            Some((step, _)) => d.note(largest(&plan.alive_at(step), "alive at this step")),
            None => d.note(largest(&plan.at_peak(), "alive at once")),
        };
        if e.place.step.is_none() && e.held.is_some() {
            d = d.note(
                "no step had run: inputs, parameters and the optimizer's state are brought to the GPU before",
            );
        }
    }
    if let Some((lines, bytes)) = &e.lines {
        let lines: Vec<String> = lines.iter().map(|line| format!("`{line}`")).collect();
        d = d.help(format!(
            "with this in the layout a device needs at most {}: {}",
            shown(*bytes),
            lines.join(" and ")
        ));
    } else {
        d = d.help("take a smaller batch or other smaller dims: `--dim NAME=SIZE`");
    }
    d.help("or end what else uses the GPU: `nvidia-smi` lists processes and what they hold")
}

fn gpu_fault(e: &GpuFault) -> Diagnostic {
    let d = Diagnostic::error(codes::E0520, format!("{}: {} reported {}", e.place, e.gpu, e.error));
    let d = e.health.findings().into_iter().fold(d, Diagnostic::note);
    let d = match e.place.step {
        Some(_) => d.note("kernels run after they are launched: the error may be that of an earlier step"),
        None => d,
    };
    let advice = e.health.advice();
    if !advice.is_empty() {
        return advice.into_iter().fold(d, Diagnostic::help);
    }
    d.help(
        "the system's log may say more (`dmesg | grep -i xid`): Xid 13, 31 and 43 are as a rule errors of the program, which please \
         report; 48, 63, 64, 94 and 95 of the GPU's memory (reset the GPU); 79 of its connection (restart the machine)",
    )
}
