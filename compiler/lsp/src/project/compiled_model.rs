//! A model under its layout, compiled.

use meshwright_core::explain::{Report, explain, split_by_rules};
use meshwright_core::why::{Why, why};
use meshwright_core::{
    CompileOptions, Compiled, Layout, Program, compile_with, diagnose, evaluation, model_flops_wide,
    refused_outputs, training_step,
};
use meshwright_cost::engine::EngineKind;
use meshwright_cost::estimate::{Estimate, EstimateQuestion, estimate};
use meshwright_cost::machine::Machine;
use meshwright_cost::shipped_machines::find;
use meshwright_diag::{Diagnostic, Sources, Span, has_errors};
use meshwright_plan::Plan;
use meshwright_sorted::SortedMap;

/// What a device holds and what it communicates.
pub(crate) struct PlacedModel {
    /// The report of `explain`; `None` where the step does not compile.
    pub(crate) report: Option<Report>,
    /// What it reports on.
    compiled: Option<Compiled>,
    layout: Layout,
    /// The values that each rule splits, by its place.
    pub(crate) splits: SortedMap<Span, Vec<String>>,
    /// The estimate on the machine that was named, or why there is none.
    pub(crate) estimate: Option<Result<Estimate, String>>,
    /// What is wrong with the placement.
    pub(crate) found: Vec<Diagnostic>,
}

impl PlacedModel {
    /// Compiles a program under a layout.
    pub(super) fn of(
        program: &Program,
        layout: Layout,
        sources: &Sources,
        machine: Option<&str>,
    ) -> PlacedModel {
        let (evaluation, mut found) = evaluation(program);
        found.extend(refused_outputs(program));
        let evaluation = evaluation.map(|e| e.step);
        let training = training_step(program);
        // In parts an evaluation has another batch: the command checks it as it runs.
        if let Some(step) =
            evaluation.as_ref().filter(|_| training.is_some() && layout.microbatches.is_none())
        {
            found.extend(diagnose(step, &layout));
        }
        let step = training.or(evaluation);
        let line_of = |span: Span| if span == Span::default() { 0 } else { sources.line(span) as u32 };
        let compiled = step.as_ref().and_then(|step| {
            let options = CompileOptions::default();
            let (compiled, more) = compile_with(step, &layout, &line_of, options, &mut |_, _| {});
            found.extend(more);
            compiled.filter(|_| !has_errors(&found))
        });
        let flops = step.as_ref().map_or(0.0, model_flops_wide);
        let estimate = compiled.as_ref().zip(machine).map(|(c, machine)| {
            let batch = program.inputs.first().and_then(|i| i.0.dims.first());
            let examples = batch.map_or(1, |d| program.graph.dims.size(*d)).max(1);
            estimated(&c.plan, machine, flops, examples)
        });
        found.dedup();
        PlacedModel {
            splits: compiled.as_ref().map(|c| split_by_rules(&layout, c)).unwrap_or_default(),
            report: compiled.as_ref().map(|c| explain(c, &line_of)),
            compiled,
            layout,
            estimate,
            found,
        }
    }

    /// Why each dim of the value of a path is split as it is, and what follows.
    pub(crate) fn why(&self, path: &str) -> Vec<Why> {
        let answer = self.compiled.as_ref().map(|c| why(&c.spmd, &self.layout, path, &|_| None));
        let of_path = |w: &Why| w.path == path;
        answer.and_then(Result::ok).unwrap_or_default().into_iter().filter(of_path).collect()
    }
}

fn estimated(plan: &Plan, name: &str, model_flops: f64, examples: usize) -> Result<Estimate, String> {
    let text = find(name).ok_or_else(|| format!("no machine that ships is called `{name}`"))?;
    let machine = Machine::read(text).map_err(|e| format!("{name}: {e}"))?;
    let engine = EngineKind::of(&machine);
    let asked = EstimateQuestion {
        machine: &machine,
        engine,
        model_flops,
        examples,
        tokens: None,
        pipe: None,
        slowest: 1.0,
    };
    estimate(plan, &asked).map_err(|e| e.to_string())
}
