//! The folder of a run that was stepped by another program: what `eval`, `predict`, `generate` and `--init` read.

use crate::devices::consensus::agree_on_result;
use crate::devices::snapshot;
use crate::failure::Failure;
use crate::stepping::StepSession;
use crate::training::TrainOptions;
use crate::training::history::HistoryEvent;
use crate::training::run_description::settings_of;
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::tensor::RawTensor;
use meshwright_runs::RunCosts;
use meshwright_runs::checkpoint::{Meta, not_finite};
use meshwright_runs::metrics_log::Stands;
use meshwright_runs::run_dir::RunDir;
use std::path::Path;

impl StepSession {
    /// Writes a checkpoint and the metrics of all steps into the folder of a run, which is made, or is that which this session
    /// has saved to last.
    ///
    /// # Errors
    /// E0510 and E0511 where the folder cannot be used, E0514 where a parameter is not finite or the checkpoint cannot be
    /// written.
    pub fn save(&mut self, path: &Path) -> Result<(), Failure> {
        let processes = self.cluster.processes().clone();
        let tensors = snapshot(&self.cluster)?;
        let written = processes.on_first("the checkpoint".into(), || self.write(path, &tensors))?;
        agree_on_result(&processes, "the checkpoint", written.unwrap_or(Ok(())))?;
        self.events.clear();
        self.saved = Some((path.into(), self.steps));
        Ok(())
    }

    /// Writes what the first process has of all.
    fn write(&self, path: &Path, tensors: &[(String, RawTensor)]) -> Result<(), Failure> {
        let before = self.saved.as_ref().filter(|s| s.0 == path).map(|s| s.1);
        if let Some(name) = not_finite(tensors) {
            let message = format!("the checkpoint cannot be written: `{name}` is not finite");
            return Err(Diagnostic::error(codes::E0514, message).into());
        }
        let run = match before {
            Some(_) => RunDir::resume(path)?,
            None => self.begin_run(path)?,
        };
        let kept = before.unwrap_or(0);
        let stands = Stands { steps: kept, epochs: 0, open: false };
        let (mut log, _) = run.metrics(stands, |_| Ok(Vec::new()))?;
        for event in &self.events {
            log.append(&event.line(), event)?;
        }
        log.sync()?;
        if before != Some(self.steps) {
            let log = Some(log.mark());
            let meta = Meta { log, ..Meta::new(&self.project.program.model, self.steps, 0, 0, self.seed) };
            let store = run.checkpoints()?.keeping(self.options.saves.keep);
            store.save(&meta, tensors.iter().map(|(n, t)| (n.as_str(), t)))?;
        }
        // From here on it is a run: one that could not be written is begun again by the next try.
        let options =
            TrainOptions { steps: Some(self.steps), run: Some(path.into()), ..self.options.clone() };
        run.write_settings(&settings_of(&self.project, &self.sources, &options, self.seed, None))?;
        Ok(())
    }

    /// Makes the folder of a run.
    fn begin_run(&self, path: &Path) -> Result<RunDir, Failure> {
        let (project, sources) = (&self.project, &self.sources);
        let run = RunDir::create(path)?;
        let texts = &project.texts;
        let used: Vec<&str> = texts.used.iter().map(|id| sources.text(*id)).collect();
        run.write_texts(sources.text(texts.model), &used, texts.layout.map(|id| sources.text(id)))?;
        if let Some(program) = &self.program {
            run.write_plan(&program.plan.to_json())?;
            run.write_costs(&RunCosts::of(&program.plan))?;
        }
        run.remember(&HistoryEvent::new((project, sources), &self.options, ("start", 0)))?;
        Ok(run)
    }
}
