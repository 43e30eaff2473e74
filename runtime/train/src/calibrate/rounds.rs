//! Programs on devices of their own, run in turns with the recorder on: what disturbs a machine for a while then disturbs all
//! alike.

use crate::bench::{self, BenchOptions};
use crate::devices::Devices;
use crate::estimates::measured_step::MeasuredStep;
use crate::failure::Failure;
use crate::project::{Loaded, Project, ProjectOptions};
use meshwright_exec::{Cluster, KernelsBy, ProgramId, Provider, Record};
use meshwright_plan::Plan;
use meshwright_sorted::SortedMap;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Gets the name of what is measured.
pub(super) type RoundsWatcher<'a> = dyn FnMut(&str) + Send + 'a;

/// Training steps of a program each time that its turn comes.
const STEPS: u64 = 3;

/// Least and greatest number of turns: a time is the median of nine at least.
const TURNS: [usize; 2] = [3, 600];

/// A time is steady if another one would be about this part of it away: the distance from the lower quartile to the median, over
/// the root of the number of times.
const STEADY: f64 = 0.005;

/// Quartiles of a time lie further apart than this part of it only where something else is at work.
pub const UNSTEADY: f64 = 0.1;

/// A time during which something else was at work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unsteady {
    /// The program, or the collective.
    pub name: String,
    /// The distance of the quartiles, relative to the median.
    pub spread: f64,
}

/// True of a number of times whose lower quartile is this far from the median, relative to it.
pub(super) fn is_steady(spread: f64, times: usize) -> bool {
    times > 1 && spread <= STEADY * (times as f64).sqrt()
}

/// The cores on which the devices of a program run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cores {
    /// One for each device, as far as there are enough.
    OneEach,
    /// All, as programs of users have them.
    All,
}

/// A program that is loaded.
pub(super) struct Timed {
    /// What it is called where progress is shown.
    pub(super) name: String,
    pub(super) project: Project,
    pub(super) plan: Arc<Plan>,
    cluster: Cluster,
    program: ProgramId,
    inputs: Provider,
    done: u64,
    seen: SeenSteps,
}

/// What was seen of a program.
enum SeenSteps {
    /// What devices have recorded that are threads.
    Records(Vec<Record>),
    /// Of GPUs the seconds of whole steps, and by the Plan's step those of its kernels in one more step, by the GPU's clock.
    Kernels { steps: Vec<f64>, by_step: SortedMap<usize, Vec<f64>> },
}

impl Timed {
    /// Loads the training step of a project on devices. The first step, which makes kernels ready, is run.
    pub(super) fn start(
        name: String,
        options: &ProjectOptions,
        devices: &Devices,
        cores: Cores,
    ) -> Result<Timed, Failure> {
        let Loaded { sources, project, diagnostics, .. } = Project::load(options);
        let project = project.ok_or(Failure::Diagnostics(diagnostics))?;
        let asked = BenchOptions {
            steps: 0,
            warmup: 0,
            cores: match cores {
                Cores::All => None,
                Cores::OneEach if devices.processes.count() > 1 => Some(1),
                Cores::OneEach => Some(project.layout.mesh.devices()),
            },
            seed: 0,
            devices: devices.shared(),
            by: KernelsBy::Kernel,
            trace: None,
        };
        let (cluster, program, _) = bench::loaded(&project, &sources, &asked)?;
        let inputs = bench::inputs(&program, asked.seed);
        cluster.hold_inputs(program.id, &inputs)?;
        cluster.run_held(program.id, 1)?;
        let seen = match cluster.chooses_kernels() {
            true => SeenSteps::Kernels { steps: vec![], by_step: SortedMap::new() },
            false => SeenSteps::Records(vec![]),
        };
        let (program, plan) = (program.id, program.plan.clone());
        Ok(Timed { name, project, plan, cluster, program, inputs, done: 1, seen })
    }

    fn turn(&mut self) -> Result<(), Failure> {
        let (cluster, program) = (&self.cluster, self.program);
        let steps = self.done + 1..=self.done + STEPS;
        self.done += STEPS;
        match &mut self.seen {
            SeenSteps::Records(records) => {
                cluster.trace(program, steps.clone())?;
                for step in steps {
                    cluster.run_held(program, step)?;
                }
                let first = cluster.traced()?.into_iter().next();
                records.extend(first.into_iter().flat_map(|d| d.records));
            }
            SeenSteps::Kernels { steps: whole, by_step } => {
                for step in steps {
                    let begin = Instant::now();
                    cluster.run_held(program, step)?;
                    whole.push(begin.elapsed().as_secs_f64());
                }
                // To be watched takes time, and a step that is recorded has no kernels by themselves.
                self.done += 1;
                cluster.release_inputs(program)?;
                let watch = cluster.watch_kernels(KernelsBy::Step);
                cluster.run(program, self.done, &self.inputs)?;
                cluster.memory()?;
                for kernel in watch.end() {
                    if let Ok(step) = kernel.name.parse() {
                        let seconds = kernel.ms / 1e3 / cluster.ranks().len() as f64;
                        by_step.entry(step).or_default().push(seconds);
                    }
                }
                cluster.hold_inputs(program, &self.inputs)?;
            }
        }
        Ok(())
    }

    fn is_steady(&self) -> bool {
        let seen = self.measured();
        is_steady((seen.seconds - seen.undelayed.0) / seen.seconds, seen.steps)
    }

    /// What the first device was seen to do.
    pub(super) fn measured(&self) -> MeasuredStep {
        match &self.seen {
            SeenSteps::Records(records) => MeasuredStep::of(records).unwrap_or_default(),
            SeenSteps::Kernels { steps, by_step } => {
                MeasuredStep::of_kernels(steps, by_step).unwrap_or_default()
            }
        }
    }
}

/// Runs programs in turns: all for the least number of them, then each until its time is steady, as long as there is time. Of
/// several processes the first decides.
pub(super) fn in_turns(
    all: &mut [Timed],
    devices: &Devices,
    time: Duration,
    progress: &mut RoundsWatcher<'_>,
) -> Result<(), Failure> {
    let (begin, count) = (Instant::now(), all.len());
    let mut last = Duration::ZERO;
    for turn in 0..TURNS[1] {
        // A turn takes at most as long as the one before.
        let enough = begin.elapsed() + last > time;
        let goes_on = |one: &Timed| turn < TURNS[0] || !(enough || one.is_steady());
        let asked: Vec<bool> = all.iter().map(goes_on).collect();
        let asked = devices.processes.broadcast("the next turn".into(), asked)?;
        if !asked.contains(&true) {
            break;
        }
        let start = Instant::now();
        for (i, one) in all.iter_mut().enumerate().filter(|(i, _)| asked[*i]) {
            progress(&format!("turn {}, {} of {count}: {}", turn + 1, i + 1, one.name));
            one.turn()?;
        }
        last = start.elapsed();
    }
    Ok(())
}
