//! Candidates of a search, timed on the devices here.

use crate::args::LayoutSearchArgs;
use crate::commands::machine::bench;
use crate::commands::project::COMMAND;
use crate::launch;
use crate::output::console::Console;
use crate::output::progress::bar;
use crate::output::text::thousands;
use crate::stop::Stop;
use meshwright_diag::Sources;
use meshwright_exec::KernelsBy;
use meshwright_search::compiled::Subject;
use meshwright_search::report::{SampleReport, SampledRow};
use meshwright_search::space::Space;
use meshwright_search::text::WrittenLayout;
use meshwright_sorted::SortedSet;
use meshwright_train::estimates::foresight::kendall;
use meshwright_train::{BenchOptions, Project, ProjectOptions};
use std::time::Instant;

/// How often each candidate has its turn.
const TURNS: u32 = 3;
/// Untimed steps of each turn.
const WARMUP: usize = 5;
/// Candidates of a sample that are timed between two turns of the first one.
const BETWEEN: usize = 20;
/// Candidates of a sample that are timed again, in turns with the first: their time relative to its at most, and their number.
const CLOSE: (f64, usize) = (1.15, 20);
/// The seed of a sample: the same candidates are drawn each time.
const SEED: u64 = 0;
/// Seconds between lines about a sample.
const TELL: f64 = 30.0;

/// Times candidates of one search.
pub(super) struct CandidateBench<'a> {
    pub(super) args: &'a LayoutSearchArgs,
    pub(super) project: &'a Project,
    pub(super) options: &'a ProjectOptions,
    pub(super) sources: &'a mut Sources,
    /// Notes on how candidates run, each of which is said once.
    pub(super) said: SortedSet<String>,
}

/// The project with a candidate as its layout.
pub(super) fn placed(
    project: &Project,
    options: &ProjectOptions,
    sources: &mut Sources,
    of: &WrittenLayout,
) -> Option<Project> {
    let layout = Some(of.lines.join("\n")).filter(|l| !l.is_empty());
    let mesh = Some(of.mesh.clone()).filter(|m| !m.is_empty());
    project.with_layout(&ProjectOptions { layout, mesh, ..options.clone() }, sources).0
}

impl CandidateBench<'_> {
    /// Milliseconds of steps of some candidates, in turns: what else the machine does meets them all.
    pub(super) fn measured(
        &mut self,
        of: &[&WrittenLayout],
        console: &mut Console,
    ) -> Result<Vec<f64>, Stop> {
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); of.len()];
        for _ in 0..TURNS {
            for (written, times) in of.iter().zip(&mut times) {
                times.extend(self.turn(written, console)?);
            }
        }
        times.iter_mut().for_each(|t| t.sort_by(f64::total_cmp));
        Ok(times.iter().filter_map(|t| t.get(t.len() / 2).copied()).collect())
    }

    /// The median of the steps of one turn.
    fn turn(&mut self, of: &WrittenLayout, console: &mut Console) -> Result<Option<f64>, Stop> {
        let Some(project) = placed(self.project, self.options, self.sources, of) else { return Ok(None) };
        launch::fits(&project, console, self.sources)?;
        let options = BenchOptions {
            steps: self.args.steps.div_ceil(TURNS) as usize,
            warmup: WARMUP,
            cores: self.args.cores.get(),
            seed: 0,
            devices: launch::devices(&self.args.device, &[(COMMAND, "search".into())], console)?,
            by: KernelsBy::Kernel,
            trace: None,
        };
        let timed = bench::timed(&project, self.sources, &options, console)?;
        for note in timed.notes {
            if !self.said.contains(&note) {
                console.note(&note);
                self.said.insert(note);
            }
        }
        Ok(Some(timed.median_ms))
    }

    /// Times candidates that are drawn from the whole space, each against the first one near it in time, and the close ones again
    /// in turns.
    pub(super) fn sampled(
        &mut self,
        (space, subject): (&Space, &Subject<'_>),
        (count, first): (u64, &WrittenLayout),
        console: &mut Console,
    ) -> Result<SampleReport, Stop> {
        let drawn: Vec<WrittenLayout> = space.sample(count, SEED).iter().map(|c| space.written(c)).collect();
        let (total, begin, mut next) = (drawn.len() as u64, Instant::now(), TELL);
        let bar = bar(total, console);
        let (mut rows, mut refused, mut of_first) = (Vec::new(), 0, None);
        for (at, written) in drawn.into_iter().enumerate() {
            bar.set_position(at as u64);
            if begin.elapsed().as_secs_f64() > next {
                next += TELL;
                console.note(&format!(
                    "{} of {} drawn candidates timed",
                    thousands(at as u64),
                    thousands(total)
                ));
            }
            let Ok(Ok(estimate)) = subject.estimate(&written) else {
                refused += 1;
                continue;
            };
            if rows.len() % BETWEEN == 0 {
                of_first = self.turn(first, console)?;
            }
            let ms = self.turn(&written, console)?;
            if let Some((ms, first)) = ms.zip(of_first) {
                rows.push((written, estimate.seconds * 1e3, ms, ms / first));
            }
        }
        bar.finish_and_clear();
        rows.sort_by(|a, b| a.3.total_cmp(&b.3));
        let close: Vec<&WrittenLayout> =
            rows.iter().take(CLOSE.1).filter(|r| r.3 <= CLOSE.0).map(|r| &r.0).collect();
        let again = self.measured(&[&[first], &close[..]].concat(), console)?;
        let fastest = match again.split_first() {
            Some((first, again)) if !again.is_empty() => {
                rows.iter().zip(again).map(|(r, ms)| (r, *ms, ms / first)).min_by(|a, b| a.2.total_cmp(&b.2))
            }
            _ => rows.first().map(|r| (r, r.2, r.3)),
        };
        Ok(SampleReport {
            drawn: total,
            refused,
            timed: rows.len() as u64,
            tau: kendall(&rows.iter().map(|r| (r.1, r.3)).collect::<Vec<_>>()),
            fastest: fastest.map(|((written, estimated_ms, ..), measured_ms, ratio)| SampledRow {
                layout: written.rules(),
                mesh: written.mesh.clone(),
                estimated_ms: *estimated_ms,
                measured_ms,
                ratio,
            }),
        })
    }
}
