//! The pipelines of a candidate, estimated by Plans with their stages, or projected from the Plan of one stage.

use crate::compiled::{CandidateResult, Subject};
use crate::space::Space;
use crate::text::Candidate;
use meshwright_cost::estimate::{Estimate, estimate_pipes};
use meshwright_cost::pipe::Pipe;
use meshwright_plan::actions::PipelineSchedule;

/// The estimates of the pipelines of a candidate.
pub type PipeEstimates = CandidateResult<Vec<(Pipe, Estimate)>>;

impl Subject<'_> {
    /// The pipelines whose stages have a candidate's rules each. Those that differ in chunks alone share a Plan. Where the
    /// compiler refuses the stages, they are projected.
    pub fn estimate_pipes(&self, space: &Space, of: &Candidate) -> PipeEstimates {
        let mut all: Vec<(Pipe, Estimate)> = Vec::new();
        for schedule in [PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZbH1] {
            let mut pipes = space.pipes(&of.mesh);
            pipes.retain(|p| p.schedule == schedule);
            let first = pipes.first().map(|pipe| Pipe { chunks: 1, ..pipe.clone() });
            let staged = self.plan(&space.written(&Candidate { pipe: first, ..of.clone() }), false);
            let Ok(plan) = staged else { return self.project_pipes(space, of) };
            match estimate_pipes(&plan, &self.question(), &pipes) {
                Ok(found) => all.extend(pipes.into_iter().zip(found)),
                Err(e) => return Ok(Err(e)),
            }
        }
        Ok(Ok(all))
    }

    /// The same, projected from the Plan of a stage, which takes a fifth of the time.
    pub fn project_pipes(&self, space: &Space, of: &Candidate) -> PipeEstimates {
        let plan = self.plan(&space.written(&Candidate { pipe: None, ..of.clone() }), false)?;
        let pipes = space.pipes(&of.mesh);
        Ok(estimate_pipes(&plan, &self.question(), &pipes)
            .map(|found| pipes.into_iter().zip(found).collect()))
    }

    /// The same of a neighbor of a good candidate: its projections alone, where none of them is below the best and fits.
    pub(crate) fn near_pipes(&self, space: &Space, of: &Candidate, best: f64) -> PipeEstimates {
        let projected = self.project_pipes(space, of)?;
        let is_better = |(_, e): &(Pipe, Estimate)| {
            e.seconds < best && e.memory.peak_bytes as f64 <= self.machine.device.memory
        };
        match &projected {
            Ok(all) if all.iter().any(is_better) => self.estimate_pipes(space, of),
            _ => Ok(projected),
        }
    }
}
