//! The devices of a project with its programs loaded, and batches on their way to them.

use crate::checkpoint::Checkpoint;
use crate::data::{self, Dataset, Places, Prefetch};
use crate::failure::Failure;
use crate::project::Project;
use crate::tensor::RawTensor;
use meshwright_core::{Compiled, StepGraph};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{Cluster, ClusterOptions, HostTensor, InputLeaf, ProgramId, Provider, StateInfo};
use meshwright_plan::Plan;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A batch as the devices take it: for each rank its tensors.
pub(crate) type Batch = Vec<Vec<HostTensor>>;

/// Starts the devices of a project's mesh.
pub(crate) fn start(project: &Project, threads: Option<usize>) -> Result<Cluster, Failure> {
    let options = ClusterOptions { cores: threads, ..ClusterOptions::default() };
    Ok(Cluster::threads(&project.layout.mesh, &options)?)
}

/// Compiles a step; its errors are the failure.
pub(crate) fn compiled(project: &Project, step: &StepGraph, sources: &Sources) -> Result<Compiled, Failure> {
    match project.compile(step, sources) {
        (Some(c), _) => Ok(c),
        (None, diagnostics) => Err(Failure::Diagnostics(diagnostics)),
    }
}

/// A program on the devices.
pub(crate) struct Loaded {
    /// The program.
    pub(crate) id: ProgramId,
    /// What each rank needs of each input.
    pub(crate) needs: Vec<Vec<InputLeaf>>,
    /// Examples in a batch.
    pub(crate) examples: usize,
    /// The Plan.
    pub(crate) plan: Arc<Plan>,
}

/// Loads a Plan on all devices.
pub(crate) fn load(cluster: &mut Cluster, plan: Plan) -> Result<Loaded, Failure> {
    let plan = Arc::new(plan);
    let examples = plan.inputs.first().and_then(|i| i.dims.first()).map_or(1, |d| d.size);
    let id = cluster.load(plan.clone())?;
    let mut needs = Vec::new();
    for rank in 0..cluster.mesh().devices() {
        needs.push(cluster.input_leaves(id, rank)?.to_vec());
    }
    Ok(Loaded { id, needs, examples, plan })
}

/// Reads a split of the data that a project's inputs are bound to.
pub(crate) fn dataset(
    project: &Project,
    given: Option<&str>,
    roots: &[PathBuf],
    split: &str,
    optional: bool,
) -> Result<Option<Dataset>, Failure> {
    let inputs: Vec<_> = project.program.inputs.iter().map(|i| i.0.clone()).collect();
    let places: Places = project.program.inputs.iter().map(|i| (i.0.name.clone(), i.2)).collect();
    let source = data::find(given, roots, &inputs)?;
    if optional && !source.has(split) {
        return Ok(None);
    }
    let set = data::load(&source, split, &inputs, &project.program.graph.dims, &places)?;
    if set.records() == 0 {
        return Err(Diagnostic::error(codes::E0516, format!("the data in {} has no examples", source.place))
            .help("give files with at least one record")
            .into());
    }
    Ok(Some(set))
}

/// The blocks of some records that the devices need: each device's own rows and nothing else.
pub(crate) fn batch(set: &Dataset, needs: &[Vec<InputLeaf>], records: &[usize]) -> Batch {
    needs
        .iter()
        .map(|leaves| {
            leaves
                .iter()
                .map(|leaf| {
                    let rows = leaf.ranges[0].clone();
                    match set.find(&leaf.name) {
                        Some(i) => set.block(i, &records[rows], &leaf.ranges[1..]),
                        None => HostTensor::zeros(leaf.dtype, leaf.ranges.iter().map(|r| r.len()).collect()),
                    }
                })
                .collect()
        })
        .collect()
}

/// Hands a batch to the devices, once.
pub(crate) fn provide(batch: Batch) -> Provider {
    let slots: Vec<Mutex<Option<Vec<HostTensor>>>> = batch.into_iter().map(|b| Mutex::new(Some(b))).collect();
    Arc::new(move |rank, _| {
        let mut slot = slots[rank].lock().map_err(|_| "another device failed".to_string())?;
        slot.take().ok_or_else(|| "the batch was taken twice".to_string())
    })
}

/// Prepares batches of the given steps in the background, two ahead.
pub(crate) fn prefetch(
    steps: std::ops::Range<u64>,
    make: impl FnMut(u64) -> Result<Batch, String> + Send + 'static,
) -> Result<Prefetch<Batch, String>, Failure> {
    Prefetch::new(steps, 2, make).map_err(|e| {
        Diagnostic::error(codes::E0516, format!("cannot start the thread that reads data: {e}")).into()
    })
}

/// Sets parameters and moments from a checkpoint. Moments are left alone unless the devices have them.
pub(crate) fn restore(cluster: &Cluster, checkpoint: &Checkpoint) -> Result<(), Failure> {
    let states: Vec<StateInfo> = cluster.states().cloned().collect();
    for s in &states {
        let raw = checkpoint.tensor(&s.name, &s.shape)?.clone();
        let from = raw.dtype;
        let host = raw.into_host().map(|t| converted(t, s.dtype));
        match host {
            Some(t) => cluster.set_state(&s.name, &t)?,
            None => {
                return Err(Diagnostic::error(
                    codes::E0516,
                    format!("`{}` is {from} in the checkpoint, which is no parameter's type", s.name),
                )
                .into());
            }
        }
    }
    Ok(())
}

/// A tensor in another dtype: a checkpoint of an `f32` run continues in `f64`, and the other way round.
fn converted(t: HostTensor, dtype: meshwright_plan::DType) -> HostTensor {
    if t.dtype() == dtype {
        return t;
    }
    let data = meshwright_exec::HostData::from_f64(dtype, t.data.to_f64());
    HostTensor { shape: t.shape, data }
}

/// Whole tensors of all parameters and moments.
pub(crate) fn snapshot(cluster: &Cluster) -> Result<Vec<(String, RawTensor)>, Failure> {
    let names: Vec<String> = cluster.states().map(|s| s.name.clone()).collect();
    let mut out = Vec::new();
    for name in names {
        let t = cluster.state(&name)?;
        if let Some(raw) = RawTensor::from_host(&t) {
            out.push((name, raw));
        }
    }
    Ok(out)
}
