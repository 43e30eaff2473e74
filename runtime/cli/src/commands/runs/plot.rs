//! `runs plot`: a metric of runs as curves.

use super::run_choice::all_chosen;
use crate::args::{PlotAxis, RunsPlotArgs};
use crate::commands::command_end::CommandEnd;
use crate::output::console::Console;
use crate::plot::{Curve, Plot, braille, svg};
use crate::refusal::wrong;
use crate::replace::write;
use crate::stop::Stop;
use meshwright_diag::nearest;
use meshwright_files::Checked;
use meshwright_runs::{LogEvent, RunSummary};
use meshwright_sorted::SortedSet;
use std::path::Path;

/// Columns if standard output is not a terminal.
const WIDTH: usize = 100;
const HEIGHT: usize = 20;
/// Fields of events that are measured at none of them.
const NOT_METRICS: [&str; 4] = ["step", "epoch", "steps", "epochs"];

/// Runs the command.
pub(super) fn plot(args: &RunsPlotArgs, console: &mut Console) -> Result<(), CommandEnd> {
    let runs = all_chosen(&args.runs)?;
    if args.svg.is_none() && runs.len() > braille::MOST {
        let (n, most) = (runs.len(), braille::MOST);
        return Err(
            Stop::Usage(format!("{n} runs are too many to tell apart: plot at most {most} at once")).into()
        );
    }
    let mut curves = Vec::new();
    for run in &runs {
        let points = curve(args, run)?;
        if points.is_empty() && runs.len() > 1 {
            console.note(&format!("`{}` has no {}", run.display(), args.metric));
        } else {
            curves.push(Curve { name: run.display().to_string(), points });
        }
    }
    if curves.iter().all(|c| c.points.is_empty()) {
        let mut known = SortedSet::new();
        for run in &runs {
            LogEvent::each(run, |e| {
                known.extend(names(&e));
                Ok(())
            })?;
        }
        return Err(Box::new(nothing(&args.metric, &known)).into());
    }
    let along = match args.by {
        PlotAxis::Step => "step",
        PlotAxis::Epoch => "epoch",
        PlotAxis::Time => "seconds",
    };
    let smooth = args.smooth.map_or(String::new(), |n| format!(", mean of {n}"));
    let plot =
        Plot { metric: format!("{}{smooth}", args.metric), along: along.into(), log: args.log, curves };
    let empty = || {
        let d = wrong(format!("there is nothing to plot: no value of `{}` can be drawn", args.metric));
        Box::new(if args.log { d.help("leave `--log` out: it needs values above 0") } else { d })
    };
    if let Some(path) = &args.svg {
        let text = svg::file(&plot).map_err(|why| Stop::Internal(Some(why)))?.ok_or_else(empty)?;
        return Ok(write(path, text.as_bytes())?);
    }
    let screen = *console.screen();
    let width = args.width.map(usize::from).or(screen.width).unwrap_or(WIDTH);
    let height = args.height.map_or(HEIGHT, usize::from);
    let text = braille::lines(&plot, (width, height), &screen).ok_or_else(empty)?;
    Ok(console.out_styled(&text)?)
}

/// What of an event can be plotted: of evaluations by the name of the set.
fn names(e: &LogEvent) -> Vec<String> {
    let numbers = e.fields.iter().filter(|f| f.1.is_number() || f.1.is_null());
    let named = numbers.map(|f| f.0.as_str()).filter(|n| !NOT_METRICS.contains(n));
    match (e.event.as_str(), &e.set) {
        ("step", _) => named.map(String::from).collect(),
        ("evaluation", Some(set)) => {
            named.filter_map(|n| Some(format!("{set}_{}", n.strip_prefix("eval_")?))).collect()
        }
        _ => Vec::new(),
    }
}

fn nothing(metric: &str, known: &SortedSet<String>) -> meshwright_diag::Diagnostic {
    let d = wrong(format!("there is nothing to plot: no run has `{metric}`"));
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    let d = match nearest(metric, names.iter().copied()) {
        Some(near) => d.help(format!("did you mean `{near}`?")),
        None => d,
    };
    match names.is_empty() {
        true => d.help("the runs have done no step"),
        false => d.help(format!("there are {}", names.join(", "))),
    }
}

/// The points of a run.
fn curve(args: &RunsPlotArgs, run: &Path) -> Checked<Vec<(f64, f64)>> {
    let mut points = Vec::new();
    // Steps in an epoch, as the end of the first says.
    let (mut seconds, mut in_epoch) = (0.0, None);
    LogEvent::each(run, |e| {
        // Epochs tell the seconds of their steps again.
        if matches!(e.event.as_str(), "step" | "evaluation") {
            seconds += e.number("seconds").filter(|s| s.is_finite()).unwrap_or(0.0);
        }
        if e.event == "epoch" && in_epoch.is_none() {
            in_epoch = Some(e.number("step").zip(e.number("epoch")).map(|(step, epoch)| step / epoch));
        }
        let value = match (e.event.as_str(), &e.set) {
            ("step", _) if !NOT_METRICS.contains(&args.metric.as_str()) => e.number(&args.metric),
            ("evaluation", Some(set)) => {
                let name = args.metric.strip_prefix(set.as_str()).and_then(|n| n.strip_prefix('_'));
                name.and_then(|n| e.number(&format!("eval_{n}")))
            }
            _ => None,
        };
        if let Some((value, step)) = value.zip(e.number("step")) {
            points.push((if args.by == PlotAxis::Time { seconds } else { step }, value));
        }
        Ok(())
    })?;
    if args.by == PlotAxis::Epoch {
        let steps = steps_in_epoch(in_epoch.flatten(), run)?;
        points.iter_mut().for_each(|p| p.0 /= steps);
    }
    Ok(smoothed(&points, args.smooth.unwrap_or(1) as usize))
}

/// Steps in an epoch: as its end says, or by the sizes of the data and a batch.
fn steps_in_epoch(told: Option<f64>, run: &Path) -> Checked<f64> {
    if let Some(steps) = told.filter(|s| *s > 0.0) {
        return Ok(steps);
    }
    let s = RunSummary::read(run)?;
    let steps = s.costs.as_ref().map(|c| s.examples / c.batch.max(1)).filter(|n| *n > 0);
    steps.map(|n| n as f64).ok_or_else(|| {
        let message = format!("`{}` does not say how many steps an epoch has", run.display());
        Box::new(wrong(message).help("plot by step: leave `--by epoch` out"))
    })
}

/// Means over the last `over` points; a value that is not a number leaves a gap and begins anew.
fn smoothed(points: &[(f64, f64)], over: usize) -> Vec<(f64, f64)> {
    let mut open: std::collections::VecDeque<f64> = std::collections::VecDeque::new();
    let mut mean = |y: f64| {
        if !y.is_finite() {
            open.clear();
            return y;
        }
        open.push_back(y);
        if open.len() > over {
            open.pop_front();
        }
        open.iter().sum::<f64>() / open.len() as f64
    };
    points.iter().map(|(x, y)| (*x, if over > 1 { mean(*y) } else { *y })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_the_last_points() {
        let points: Vec<(f64, f64)> =
            [1.0, 3.0, 5.0, f64::NAN, 7.0, 9.0].iter().zip(1..).map(|(y, x)| (f64::from(x), *y)).collect();
        let values: Vec<f64> = smoothed(&points, 2).iter().map(|p| p.1).collect();
        assert_eq!(values[..3], [1.0, 2.0, 4.0]);
        assert!(values[3].is_nan());
        assert_eq!(values[4..], [7.0, 8.0]);
        assert_eq!(smoothed(&points[..3], 1), points[..3]);
    }
}
