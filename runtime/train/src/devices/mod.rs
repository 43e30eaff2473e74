//! The devices of a project with its programs loaded, and batches on their way to them.

pub(super) mod consensus;
pub(super) mod device_failure;
pub(super) mod host_tensor;
pub(super) mod plan_memory;

use crate::devices::consensus::agree_on_result;
use crate::devices::host_tensor::{host_of, raw_of};
use crate::devices::plan_memory::{MemoryShare, WithLines, plan_fits, with_lines};
use crate::failure::Failure;
use crate::project::Project;
use meshwright_comm::Timeouts;
use meshwright_core::{
    Compiled, OutputKind, StepGraph, StepOutput, is_loss_scaling_state, is_scale_history, training_step,
};
use meshwright_data::{Dataset, EpochSeed, InputBinding, Places, Prefetch};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{
    Cluster, ClusterOptions, DeviceCollectives, DeviceKind, HostTensor, LocalInput, Processes, ProgramId,
    Provider, StateInfo,
};
use meshwright_files::Checked;
use meshwright_files::tensor::RawTensor;
use meshwright_gpu::load::Paths;
use meshwright_plan::Plan;
use meshwright_runs::checkpoint::Checkpoint;
use meshwright_runs::memory::devices_fit;
use meshwright_sorted::SortedSet;
use std::cell::LazyCell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A batch as the devices of this process take it: for each its tensors.
pub(crate) type Batch = Vec<Vec<HostTensor>>;

/// Which devices a project runs on, and how they wait for each other.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The processes that the mesh is spread over; by default all devices are threads of this one.
    pub processes: Arc<Processes>,
    /// Time-outs of collectives between threads. Those between processes are the transport's own.
    pub timeouts: Timeouts,
    /// The first device of this process; the others are the next ones.
    pub device: DeviceKind,
    /// Number of GPUs, where ranks may share them.
    pub gpus: Option<usize>,
    /// The transport between GPUs.
    pub collectives: DeviceCollectives,
    /// Paths of NVIDIA's libraries.
    pub libraries: Paths,
    /// Whether several programs have them at once, each with a cluster of its own, and run one after the other.
    pub beside: bool,
    /// As it was asked for, to be noted with the run.
    pub asked: Asked,
}

impl Devices {
    /// The first of them, in a process that is alone.
    pub(crate) fn first(&self) -> Devices {
        Devices { processes: Arc::default(), ..self.clone() }
    }

    /// Of a program among several that have the same devices and run one after the other.
    pub(crate) fn shared(&self) -> Devices {
        Devices { beside: true, ..self.clone() }
    }
}

impl Default for Devices {
    fn default() -> Devices {
        Devices {
            processes: Arc::default(),
            timeouts: Timeouts::default(),
            device: meshwright_cpu::device(),
            gpus: None,
            collectives: DeviceCollectives::default(),
            libraries: Paths::default(),
            beside: false,
            asked: Asked::default(),
        }
    }
}

/// The devices' transport, in the words of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The transport: `threads`, `mpi`.
    pub transport: String,
    /// Whether reductions have a fixed order on every transport.
    pub deterministic: bool,
    /// Seconds after which a collective is given up, where it was said.
    pub timeout: Option<u64>,
    /// The kind of devices: `cpu`, `cuda`.
    pub device: String,
    /// The transport between GPUs, if it was given.
    pub collectives: Option<String>,
}

/// Starts the devices of a project's mesh, or this process's part of them.
///
/// # Errors
/// E0401 where one process would have more than fit, and those of [`Cluster::start`].
pub(crate) fn start(project: &Project, cores: Option<usize>, devices: &Devices) -> Result<Cluster, Failure> {
    if devices.processes.devices().is_none() {
        devices_fit(project.layout.mesh.devices())?;
    }
    let options = ClusterOptions {
        cores,
        timeouts: devices.timeouts,
        device: devices.device.clone(),
        gpus: devices.gpus,
        collectives: devices.collectives,
        libraries: devices.libraries.clone(),
        beside: devices.beside,
    };
    Ok(Cluster::start(&project.layout.mesh, devices.processes.clone(), &options)?)
}

/// Compiles a step; its errors are the failure.
pub(crate) fn compiled(project: &Project, step: &StepGraph, sources: &Sources) -> Result<Compiled, Failure> {
    match project.compile(step, sources) {
        (Some(c), _) => Ok(c),
        (None, diagnostics) => Err(Failure::Diagnostics(diagnostics)),
    }
}

/// The project for the examples that whole batches of `records` leave over; `None` where they leave none.
pub(crate) fn remainder(project: &Project, records: usize) -> Result<Option<Project>, Failure> {
    let Some((_, name)) = project.example_dim() else { return Ok(None) };
    let size = project.batch();
    let rest = records % size;
    if rest == 0 {
        return Ok(None);
    }
    let mut found = match project.with_batch(rest) {
        Ok(p) => return Ok(Some(p)),
        Err(found) => found,
    };
    let message = format!(
        "of {records} examples {rest} are left over by batches of {size}, and the model cannot be made for `{name}` = {rest}"
    );
    let d = Diagnostic::error(codes::E0516, message);
    // Sizes that leave nothing over, the largest first.
    let divisors = (1..=size.min(records)).rev().filter(|n| records.is_multiple_of(*n));
    let fits = divisors.take(MOST_TRIED).find(|n| project.with_batch(*n).is_ok());
    found.push(match fits {
        Some(n) => d.help(format!("batches of {n} leave nothing over: `--dim {name}={n}`")),
        None => d.help(format!(
            "give a number of examples that is a multiple of {size}, or no other dim a size that depends on `{name}`"
        )),
    });
    Err(Failure::Diagnostics(found))
}

/// The most batch sizes tried before a fix is given up.
const MOST_TRIED: usize = 12;

/// A program on the devices.
pub(crate) struct LoadedProgram {
    /// The program.
    pub(crate) id: ProgramId,
    /// Needed ranges of each input on each device of this process.
    pub(crate) needs: Vec<Vec<LocalInput>>,
    /// The first of these devices.
    pub(crate) first: usize,
    /// Examples in a batch.
    pub(crate) examples: usize,
    /// The Plan.
    pub(crate) plan: Arc<Plan>,
}

/// Loads a Plan on all devices. `of` is the project of a training step, to say which layout would need less.
///
/// # Errors
/// E0401 where the devices need more memory than there is, and those of [`Cluster::load`].
pub(crate) fn load(
    cluster: &mut Cluster,
    plan: Plan,
    of: Option<(&Project, &Sources)>,
) -> Result<LoadedProgram, Failure> {
    // Of a host it is known what is left, of a GPU what there is.
    let held = cluster.states().next().is_some() && cluster.gpus().is_empty();
    let step = LazyCell::new(|| of.and_then(|(project, _)| training_step(&project.program)));
    let other = of.map(|(project, sources)| {
        let step = &step;
        move |lines: &str| with_lines(project, sources, step.as_ref()?, lines)
    });
    let other = other.as_ref().map(|f| f as WithLines<'_>);
    let fits = plan_fits(&plan, &MemoryShare::of(cluster), held, other);
    agree_on_result(cluster.processes(), "the memory", fits)?;
    let plan = Arc::new(plan);
    let examples = plan.inputs.first().and_then(|i| i.dims.first()).map_or(1, |d| plan.dims.size(*d));
    let id = cluster.load(plan.clone())?;
    let mut needs = Vec::new();
    for rank in cluster.ranks() {
        needs.push(cluster.local_inputs(id, rank)?.to_vec());
    }
    Ok(LoadedProgram { id, needs, first: cluster.ranks().start, examples, plan })
}

/// Folders of data, and the strictness of its checks.
#[derive(Clone, Debug)]
pub(crate) struct DataOptions<'a> {
    /// `--data`.
    pub(crate) given: Option<&'a str>,
    /// Folders in which data is sought.
    pub(crate) roots: &'a [PathBuf],
    /// The model's own tokenizer, for text that is found and not named.
    pub(crate) tokenizer: Option<PathBuf>,
    /// `--allow-nonfinite`.
    pub(crate) allow_nonfinite: bool,
    /// The inputs to bind; all of them without it.
    pub(crate) inputs: Option<&'a SortedSet<&'a str>>,
}

/// Opens a split of the data that a project's inputs are bound to; `None` for one that is optional and not there.
pub(crate) fn dataset(
    project: &Project,
    wanted: DataOptions,
    split: &str,
    optional: bool,
) -> Result<Option<Dataset>, Failure> {
    let declared = project.program.inputs.iter().map(|i| &i.0);
    let bound = declared.filter(|i| wanted.inputs.is_none_or(|names| names.contains(i.name.as_str())));
    let inputs: Vec<_> = bound.cloned().collect();
    let places: Places = project.program.inputs.iter().map(|i| (i.0.name.clone(), i.2)).collect();
    // In folders, a set for all inputs takes precedence over one for the inputs that are read.
    let all: Vec<_> = project.program.inputs.iter().map(|i| i.0.clone()).collect();
    let mut source = meshwright_data::find(wanted.given, wanted.roots, &all)
        .or_else(|_| meshwright_data::find(wanted.given, wanted.roots, &inputs))?;
    if let Some(tokenizer) = &wanted.tokenizer {
        source.tokenized_by(tokenizer);
    }
    if optional && !source.has(split) {
        return Ok(None);
    }
    let dims = &project.program.graph.dims;
    let binding =
        InputBinding { inputs: &inputs, dims, places: &places, allow_nonfinite: wanted.allow_nonfinite };
    let set = meshwright_data::load(&source, split, &binding)?;
    if set.records() == 0 {
        return Err(Diagnostic::error(codes::E0516, format!("the data in {} has no examples", source.place))
            .help("give files with at least one record")
            .into());
    }
    Ok(Some(set.with_class_names(source.class_names(all.iter(), dims))))
}

/// The blocks of some records, as they are in the epoch of `seed`, that these devices need: each device's own rows and nothing
/// else. What several of them need is read once.
pub(crate) fn batch(
    set: &Dataset,
    needs: &[Vec<LocalInput>],
    (records, seed): (&[usize], EpochSeed),
) -> Checked<Batch> {
    let mut out: Batch = Vec::with_capacity(needs.len());
    for (device, leaves) in needs.iter().enumerate() {
        let mut blocks = Vec::with_capacity(leaves.len());
        for leaf in leaves {
            let same = needs[..device].iter().zip(&out).find_map(|(leaves, blocks)| {
                let at = leaves.iter().position(|l| (&l.name, &l.ranges) == (&leaf.name, &leaf.ranges))?;
                blocks.get(at)
            });
            blocks.push(match (same, set.find(&leaf.name)) {
                (Some(block), _) => block.clone(),
                (None, Some(i)) => {
                    let block = set.block(i, (&records[leaf.ranges[0].clone()], seed), &leaf.ranges[1..])?;
                    host_of(block).expect("loading refuses the dtypes that no tensor of a file has")
                }
                (None, None) => {
                    HostTensor::zeros(leaf.dtype, leaf.ranges.iter().map(ExactSizeIterator::len).collect())
                }
            });
        }
        out.push(blocks);
    }
    Ok(out)
}

/// Hands a batch to the devices, once.
pub(crate) fn provide(program: &LoadedProgram, batch: Batch) -> Provider {
    let first = program.first;
    let slots: Vec<Mutex<Option<Vec<HostTensor>>>> = batch.into_iter().map(|b| Mutex::new(Some(b))).collect();
    Arc::new(move |rank, _| {
        let slot =
            rank.checked_sub(first).and_then(|i| slots.get(i)).ok_or("the batch is another process's")?;
        let mut slot = slot.lock().map_err(|_| "another device failed".to_string())?;
        slot.take().ok_or_else(|| "the batch was taken twice".to_string())
    })
}

/// Prepares batches of the given steps in the background, at least two ahead.
pub(crate) fn prefetch(
    steps: std::ops::Range<u64>,
    readers: usize,
    make: impl Fn(u64) -> Checked<Batch> + Send + Sync + 'static,
) -> Result<Prefetch<Batch, Box<Diagnostic>>, Failure> {
    Prefetch::new(steps, (2, readers), make).map_err(|e| {
        Diagnostic::error(codes::E0516, format!("cannot start the thread that reads data: {e}")).into()
    })
}

/// Loads a program that does nothing but hold the parameters and states that no loaded one uses, such as those of an output: a
/// run keeps all that the model declares. `None` where there is none.
pub(crate) fn hold_rest(
    project: &Project,
    sources: &Sources,
    cluster: &mut Cluster,
) -> Result<Option<LoadedProgram>, Failure> {
    let p = &project.program;
    let held: SortedSet<&str> = cluster.states().map(|s| s.name.as_str()).collect();
    let params = p.params.iter().map(|d| (&d.path, d.id));
    let all = params.chain(p.states.iter().map(|d| (&d.path, d.id)));
    let missing = all.filter(|d| !held.contains(d.0.as_str()));
    let goal = |(path, id): (&String, _)| StepOutput { name: path.clone(), id, kind: OutputKind::Output };
    let outputs: Vec<StepOutput> = missing.map(goal).collect();
    if outputs.is_empty() {
        return Ok(None);
    }
    let step = StepGraph {
        model: p.model.clone(),
        program: "hold",
        float: p.float,
        scale_history: None,
        graph: p.graph.clone(),
        inputs: p.inputs.iter().map(|i| i.0.clone()).collect(),
        outputs,
    };
    load(cluster, compiled(project, &step, sources)?.plan, None).map(Some)
}

/// Sets everything that the programs hold to its first value.
pub(crate) fn init_all<'a>(
    cluster: &Cluster,
    programs: impl IntoIterator<Item = &'a LoadedProgram>,
    seed: u64,
) -> Result<(), Failure> {
    let mut done: SortedSet<&str> = SortedSet::new();
    for program in programs {
        let leaves = program.plan.program_inputs.iter().filter(|l| l.init.is_some());
        let names: Vec<&str> = leaves.map(|l| l.name.as_str()).collect();
        // Values depend on seed and name alone, so it does no harm that some are set again.
        if names.iter().any(|n| !done.contains(n)) {
            cluster.init_state(program.id, seed)?;
            done.extend(names);
        }
    }
    Ok(())
}

/// Whether a state belongs to a precision. A run that goes on in another one lacks it, or has it and needs it no more; back in
/// this one it begins with its first value.
fn is_of_precision(name: &str) -> bool {
    is_loss_scaling_state(name) || is_scale_history(name)
}

/// Sets parameters and moments from a checkpoint, which the first process has. Moments are left alone unless the devices
/// have them. With `all`, the checkpoint must hold nothing else.
pub(crate) fn restore(cluster: &Cluster, checkpoint: Option<&Checkpoint>, all: bool) -> Result<(), Failure> {
    let lacks = |s: &&StateInfo| {
        checkpoint.is_some_and(|c| match is_scale_history(&s.name) {
            // It may have had another number of steps.
            true => c.fits(&s.name, s.dtype, &s.shape).is_err(),
            false => c.info(&s.name).is_none(),
        })
    };
    let scales: Vec<&StateInfo> = cluster.states().filter(|s| is_of_precision(&s.name)).collect();
    let missing = match scales.is_empty() {
        true => Vec::new(),
        false => {
            let mine: Vec<String> = scales.into_iter().filter(lacks).map(|s| s.name.clone()).collect();
            cluster.processes().broadcast("the scales of the checkpoint".into(), mine)?
        }
    };
    restore_but(cluster, checkpoint, all, &missing)
}

/// The same, but for some states, which the checkpoint need not have.
pub(crate) fn restore_but(
    cluster: &Cluster,
    checkpoint: Option<&Checkpoint>,
    all: bool,
    but: &[String],
) -> Result<(), Failure> {
    let states: Vec<StateInfo> = cluster.states().filter(|s| !but.contains(&s.name)).cloned().collect();
    agree_on_result(
        cluster.processes(),
        "the checkpoint",
        checkpoint.map_or(Ok(()), |c| fits(&states, c, all)),
    )?;
    for s in &states {
        let read = checkpoint.map(|c| c.tensor(&s.name)).transpose().map_err(Failure::from);
        let raw = agree_on_result(cluster.processes(), "the checkpoint", read)?;
        let whole = raw.and_then(host_of).map(|t| in_dtype(t, s.dtype));
        cluster.spread_state(&s.name, whole.as_ref())?;
    }
    Ok(())
}

fn fits(states: &[StateInfo], checkpoint: &Checkpoint, all: bool) -> Result<(), Failure> {
    for s in states {
        checkpoint.fits(&s.name, s.dtype, &s.shape)?;
    }
    if all {
        let scales = checkpoint.tensors.iter().map(|t| t.name.as_str()).filter(|n| is_of_precision(n));
        checkpoint.only(states.iter().map(|s| s.name.as_str()).chain(scales))?;
    }
    Ok(())
}

/// A tensor in another dtype: a checkpoint of an `f32` run continues in `f64`, and the other way round.
pub(crate) fn in_dtype(t: HostTensor, dtype: meshwright_plan::DType) -> HostTensor {
    if t.dtype() == dtype {
        return t;
    }
    let data = meshwright_exec::HostData::from_f64(dtype, t.data.to_f64());
    HostTensor { shape: t.shape, data }
}

/// Whole tensors of all parameters and moments; on the first process alone. Copies on devices that have drifted apart are made
/// equal: the run goes on from what a resumed one would begin with.
pub(crate) fn snapshot(cluster: &Cluster) -> Result<Vec<(String, RawTensor)>, Failure> {
    let names: Vec<String> = cluster.states().map(|s| s.name.clone()).collect();
    let apart = if cluster.chooses_kernels() { cluster.differing_copies()? } else { vec![] };
    let mut out = Vec::new();
    for name in names {
        let whole = cluster.gathered_state(&name)?;
        if apart.contains(&name) {
            cluster.spread_state(&name, whole.as_ref())?;
        }
        out.extend(whole.and_then(|t| raw_of(&t)).map(|raw| (name, raw)));
    }
    Ok(out)
}
