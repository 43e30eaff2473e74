//! A project on its devices, stepped by Python.

use crate::arrays::{ArrayBatch, array_of, numpy_name};
use crate::process::{failed, is_forked, not_forked, say};
use meshwright_cli::embedded::{self, Reply};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_runs::checkpoint::Which;
use meshwright_runs::metrics::StepMetrics;
use meshwright_runs::settings::InitFrom;
use meshwright_train::{BatchNeeds, Failure, GivenBlocks, OpenPrediction, StepSession};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// What a prediction was asked for: outputs, values, and the examples of a batch.
type PredictionKey = (Vec<String>, Vec<String>, usize);

/// The session while it is open, with the programs of its predictions.
struct Open {
    session: StepSession,
    predictions: BTreeMap<PredictionKey, (Arc<OpenPrediction>, BatchNeeds)>,
}

/// A project on its devices.
#[pyclass(frozen)]
pub(crate) struct Session {
    open: Mutex<Option<Open>>,
    /// What a step takes; none where the model does not train.
    step_needs: Option<BatchNeeds>,
    process: u32,
}

/// An input: name, names of dims, their sizes, the type in NumPy, and what its values are below.
type InputRow = (String, Vec<String>, Vec<usize>, &'static str, Option<usize>);

/// A parameter: path, names of dims, values.
type ParameterRow<'py> = (String, Vec<String>, Bound<'py, PyAny>);

#[pymethods]
impl Session {
    /// Of the words of `train`.
    #[new]
    fn new(py: Python<'_>, words: Vec<OsString>) -> PyResult<Session> {
        not_forked(py)?;
        let started = py.detach(|| {
            let ((project, sources, options), said) = embedded::project(&words)?;
            let known = sources.clone();
            let session = StepSession::start(project, sources, options);
            Ok((session.map_err(|failure| embedded::failed(failure, &known))?, said))
        });
        let (session, said) = started.map_err(|ended: Reply| failed(py, &ended))?;
        say(py, &said)?;
        let step_needs = session.step_needs().ok();
        let open = Mutex::new(Some(Open { session, predictions: BTreeMap::new() }));
        Ok(Session { open, step_needs, process: std::process::id() })
    }

    /// The inputs of a batch.
    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<InputRow>> {
        let forms = self.with(py, |open| Ok(open.session.inputs()))?;
        let form = |f: meshwright_train::InputForm| (f.name, f.dims, f.shape, numpy_name(f.dtype), f.range);
        Ok(forms.into_iter().map(form).collect())
    }

    /// Steps done.
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |open| Ok(open.session.steps()))
    }

    /// Trains on a batch. Ctrl-C is raised when the step is done.
    fn step<'py>(&self, py: Python<'py>, batch: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
        let needs = match &self.step_needs {
            Some(needs) => needs.clone(),
            None => self.with(py, |open| open.session.step_needs())?,
        };
        let given = self.taken(py, &needs, &ArrayBatch::of(batch)?)?;
        let told = self.with(py, |open| open.session.step(given))?;
        py.check_signals()?;
        metrics(py, &told)
    }

    /// Losses and metrics over batches.
    fn evaluate<'py>(&self, py: Python<'py>, batches: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        let mut evaluation = self.with(py, |open| open.session.evaluation())?;
        for batch in batches.try_iter()? {
            let batch = ArrayBatch::of(batch?.cast::<PyDict>()?)?;
            let examples = batch.examples();
            let needs = self.with(py, |open| open.session.evaluation_needs(examples))?;
            let given = self.taken(py, &needs, &batch)?;
            self.with(py, |open| open.session.evaluate(&mut evaluation, examples, given))?;
            py.check_signals()?;
        }
        if evaluation.examples() == 0 {
            let d = Diagnostic::error(codes::E0516, "there is no batch to evaluate on");
            let d = d.help("give at least one: an iterator is empty once it is read");
            return Err(failed(py, &embedded::failed(d.into(), &Sources::new())));
        }
        let (found, out) = (evaluation.finish(), PyDict::new(py));
        out.set_item("loss", found.loss)?;
        found.metrics.iter().try_for_each(|(name, value)| out.set_item(name, value))?;
        Ok(out)
    }

    /// Outputs and values of a batch, by name.
    fn predict<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, PyDict>,
        outputs: Vec<String>,
        values: Vec<String>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let batch = ArrayBatch::of(batch)?;
        let asked = (outputs, values, batch.examples());
        let ((prediction, needs), said) = self.with(py, |open| match open.predictions.get(&asked) {
            Some(known) => Ok((known.clone(), String::new())),
            None => {
                let (prediction, needs) = open.session.prediction(&asked.0, &asked.1, asked.2)?;
                let said = embedded::warned(&prediction.warnings, open.session.sources());
                let made = (Arc::new(prediction), needs);
                Ok((open.predictions.entry(asked).or_insert(made).clone(), said))
            }
        })?;
        say(py, &said)?;
        let given = self.taken(py, &needs, &batch)?;
        let found = self.with(py, |open| open.session.predict(&prediction, given))?;
        py.check_signals()?;
        let out = PyDict::new(py);
        for output in found {
            out.set_item(output.name, array_of(py, output.tensor)?)?;
        }
        Ok(out)
    }

    /// All parameters: path, names of dims, values.
    fn parameters<'py>(&self, py: Python<'py>) -> PyResult<Vec<ParameterRow<'py>>> {
        let all = self.with(py, |open| open.session.parameters())?;
        all.into_iter().map(|(path, dims, tensor)| Ok((path, dims, array_of(py, tensor)?))).collect()
    }

    /// Takes parameters from a file or a run, by rules; says which.
    fn load(&self, py: Python<'_>, path: PathBuf, map: Vec<String>) -> PyResult<Vec<String>> {
        let from = InitFrom { path, map, which: Which::default() };
        self.with(py, |open| open.session.load(&from))
    }

    /// Goes on from the newest checkpoint of a run.
    fn resume(&self, py: Python<'_>, run: PathBuf) -> PyResult<()> {
        self.with(py, |open| open.session.resume(&run))
    }

    /// Writes the folder of a run.
    fn save(&self, py: Python<'_>, run: PathBuf) -> PyResult<()> {
        self.with(py, |open| open.session.save(&run))
    }

    /// Ends the devices.
    fn close(&self, py: Python<'_>) {
        if !is_forked(self.process) {
            py.detach(|| drop(self.open.lock().unwrap_or_else(PoisonError::into_inner).take()));
        }
    }
}

impl Session {
    /// Runs with the session, while the interpreter is free.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Open) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        not_forked(py)?;
        let done = py.detach(|| {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(open) = &mut *open else {
                let d = Diagnostic::error(codes::E0516, "the session is closed");
                return Err(embedded::failed(d.help("open another one").into(), &Sources::new()));
            };
            let done = work(open);
            done.map_err(|failure| embedded::failed(failure, open.session.sources()))
        });
        done.map_err(|ended: Reply| failed(py, &ended))
    }

    /// The devices' parts of a batch.
    fn taken(&self, py: Python<'_>, needs: &BatchNeeds, batch: &ArrayBatch<'_>) -> PyResult<GivenBlocks> {
        needs.take(batch).map_err(|d| failed(py, &embedded::failed(d.into(), &Sources::new())))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if is_forked(self.process) {
            // The threads of the devices are in the process that this one is a fork of: nobody would end here.
            let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(open.take());
        }
    }
}

/// What a step has told.
fn metrics<'py>(py: Python<'py>, told: &StepMetrics) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("loss", told.loss)?;
    told.values.iter().try_for_each(|(name, value)| out.set_item(name, value))?;
    if let Some(norm) = told.gradient_norm {
        out.set_item("gradient_norm", norm)?;
    }
    if let Some(scale) = told.loss_scale {
        out.set_item("loss_scale", scale)?;
    }
    if let Some(skipped) = told.skipped {
        out.set_item("skipped", skipped)?;
    }
    Ok(out)
}
