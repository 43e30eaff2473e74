//! When a run saves and evaluates, and what is the best of it, checked against the model.

use crate::project::Project;
use meshwright_core::{GRADIENT_NORM, LossDecl, Reports};
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_runs::policies::{EvaluationPolicy, Monitor, PolicySettings, SavePolicy};
use meshwright_syntax::ast::Better;

/// What steps are asked to tell beside their losses.
pub fn reports_of(settings: &PolicySettings) -> Reports {
    let (norm, metrics): (Vec<String>, Vec<String>) =
        settings.metrics.iter().cloned().partition(|m| m == GRADIENT_NORM);
    Reports { metrics, gradient_norm: !norm.is_empty() }
}

/// The policies that a run is asked for.
///
/// # Errors
///
/// E0516 where something is named that the model does not have, or that is no time.
pub fn policies_of(
    settings: &PolicySettings,
    project: &Project,
) -> Result<(SavePolicy, EvaluationPolicy), Box<Diagnostic>> {
    let monitor = |text: &Option<String>| text.as_deref().map(|t| monitor_of(project, t)).transpose();
    let every = settings.checkpoint_every.as_deref().map(str::parse).transpose();
    let every = every.map_err(|why: String| Box::new(Diagnostic::error(codes::E0516, why)))?;
    let keep = settings.keep.map_or(SavePolicy::default().keep, usize::from);
    let saves = SavePolicy { every, keep, best: monitor(&settings.keep_best)? };
    let monitor = monitor(&settings.monitor)?.unwrap_or_default();
    let PolicySettings { eval_every, patience, validation, .. } = *settings;
    Ok((saves, EvaluationPolicy { every: eval_every, patience, monitor, validation }))
}

/// What is the best, as the command line names it: `NAME`, `min:NAME` or `max:NAME`. Without a word before it less is better of a
/// loss, and of a metric what the model says.
///
/// # Errors
///
/// E0516 where the model has no loss and no metric of that name, and where nothing says which way is better.
pub fn monitor_of(project: &Project, text: &str) -> Result<Monitor, Box<Diagnostic>> {
    let given = text.split_once(':').and_then(|(word, name)| Some((Better::of(word)?, name)));
    let (way, name) = given.map_or((None, text), |(way, name)| (Some(way), name));
    let name = if Some(name) == project.loss() { "loss" } else { name };
    let known: Vec<&str> = std::iter::once("loss").chain(project.metrics()).collect();
    if !known.contains(&name) {
        let message = format!("an evaluation of `{}` has no `{name}`", project.program.model);
        let d = Diagnostic::error(codes::E0516, message);
        let d = match nearest(name, known.iter().copied()) {
            Some(near) => d.help(format!("did you mean `{near}`?")),
            None => d,
        };
        return Err(Box::new(d.help(format!("it has {}", known.join(", ")))));
    }
    let all = project.program.losses.iter().chain(&project.program.metrics);
    let declared = all.into_iter().find(|d| d.name == name);
    let said = declared.map_or(Some(Better::Less), |d| d.better);
    match (way.or(said), declared) {
        (Some(better), _) => Ok(Monitor { metric: name.into(), better }),
        (None, declared) => Err(no_way(name, declared)),
    }
}

/// Nothing says which way a metric is better.
fn no_way(name: &str, declared: Option<&LossDecl>) -> Box<Diagnostic> {
    let message = format!("nothing says whether more or less of the metric `{name}` is better");
    let d = Diagnostic::error(codes::E0516, message)
        .help(format!(
            "say it where it is named: `max:{name}` where more is better, `min:{name}` where less is"
        ))
        .help(format!("or in the model, for all runs: `metric max {name} = …`, or `metric min {name} = …`"));
    Box::new(match declared {
        Some(d0) => d.at(d0.span, "declared here, without `min` or `max`"),
        None => d,
    })
}
