//! Runs a Plan on one engine a device, and looks at what every device holds at the end, copies included.

use super::{By, Found};
use crate::oracle::{close_from, from_host, to_host};
use crate::rng::Rng;
use meshwright_comm::{ThreadsTransport, Timeouts, Transport, World};
use meshwright_exec::{Engine, ExecError, HostData, HostTensor};
use meshwright_gpu::load::Paths;
use meshwright_plan::{DType, Dim, Dims, InputDecl, Plan};
use meshwright_sorted::SortedMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Seed of every run.
const SEED: u64 = 3;

/// Steps of every run.
pub(super) const STEPS: u64 = 2;

/// A block of a value: where it lies in the whole, its dims in the order of storage, its elements.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    ranges: Vec<Range<usize>>,
    dims: Vec<Dim>,
    value: HostTensor,
}

/// Where a block begins and ends along each dim.
type Place = Vec<(usize, usize)>;

/// All that a device gives: outputs of each step, parameters and moments at the end.
pub(crate) type Shard = SortedMap<String, Block>;

/// How devices are run; [`Conduct::default`] as they should be.
pub(crate) struct Conduct {
    /// The transport of a device.
    pub(crate) transport: fn(ThreadsTransport) -> Box<dyn Transport>,
    /// The seed that a rank is given.
    pub(crate) seed: fn(usize) -> u64,
    /// The number of the step that a rank is given.
    pub(crate) step: fn(usize, u64) -> u64,
    /// What becomes of the Plan that a rank is given.
    pub(crate) plan: fn(usize, &mut Plan),
    /// The rank, of so many, whose block of the inputs a rank reads.
    pub(crate) reads_as: fn(usize, usize) -> usize,
}

impl Default for Conduct {
    fn default() -> Self {
        Conduct {
            transport: |t| Box::new(t),
            seed: |_| SEED,
            step: |_, step| step,
            plan: |_, _| {},
            reads_as: |rank, _| rank,
        }
    }
}

/// Why a run did not come to its end.
#[derive(Debug)]
pub(crate) enum Ended {
    /// While the Plan was prepared.
    Prepared(String),
    /// In a step.
    Ran(String),
}

/// The same elements of an input for every run of a step.
fn input(decl: &InputDecl, dims: &Dims, step: u64) -> HostTensor {
    let mut rng = Rng::new(step ^ decl.name.bytes().fold(7, |h, b| h * 31 + u64::from(b)));
    let shape = dims.shape(&decl.dims);
    let mut draw = || match decl.range {
        Some(r) => rng.below(dims.size(r)) as f64,
        None => rng.float(-1.0, 1.0),
    };
    let values = (0..shape.iter().product()).map(|_| draw()).collect();
    let dtype = if decl.dtype.is_float() { DType::F64 } else { decl.dtype };
    HostTensor::new(shape, HostData::from_f64(dtype, values)).unwrap()
}

/// Runs a Plan for some steps on all its devices.
pub(crate) fn run(plan: &Plan, conduct: &Conduct) -> Result<Vec<Shard>, Ended> {
    let ends = World::new(plan.mesh.devices(), Timeouts::all(Duration::from_secs(10)));
    let done: Vec<Result<Shard, Ended>> = std::thread::scope(|scope| {
        let device = |end: ThreadsTransport| {
            let mut plan = plan.clone();
            scope.spawn(move || {
                (conduct.plan)(end.rank(), &mut plan);
                let plan = Arc::new(plan);
                let mut engine =
                    Engine::on(&meshwright_cpu::device(), (conduct.transport)(end), &Paths::default())
                        .unwrap();
                let done = catch_unwind(AssertUnwindSafe(|| device(&mut engine, &plan, conduct)));
                done.unwrap_or_else(|_| {
                    engine.abort("a device panicked");
                    panic!("a device panics on a Plan that it should refuse or run")
                })
            })
        };
        let threads: Vec<_> = ends.into_iter().map(device).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut shards = Vec::new();
    let mut ended: Option<Ended> = None;
    for d in done {
        match (d, &ended) {
            (Ok(shard), _) => shards.push(shard),
            (Err(e @ Ended::Prepared(_)), Some(Ended::Ran(_)) | None) => ended = Some(e),
            (Err(e), None) => ended = Some(e),
            _ => {}
        }
    }
    ended.map_or(Ok(shards), Err)
}

fn device(engine: &mut Engine, plan: &Arc<Plan>, conduct: &Conduct) -> Result<Shard, Ended> {
    let (rank, devices) = (engine.rank(), plan.mesh.devices());
    let prepared = |e: ExecError| Ended::Prepared(e.to_string());
    let ran = |e: ExecError| Ended::Ran(e.to_string());
    let id = engine.load(plan.clone()).map_err(prepared)?;
    engine.init_state(id, (conduct.seed)(rank)).map_err(prepared)?;
    let mut out = Shard::new();
    for step in 1..=STEPS {
        let mut given = Vec::new();
        for leaf in meshwright_exec::local_inputs(plan, (conduct.reads_as)(rank, devices)) {
            let decl = plan.inputs.iter().find(|i| i.name == leaf.name).unwrap();
            given.push(input(decl, &plan.dims, step).slice(&leaf.ranges).unwrap());
        }
        let mut outputs = engine.run(id, given, (conduct.step)(rank, step)).map_err(ran)?;
        for o in &plan.outputs {
            let ranges = plan.buffer(o.buf).ranges(&plan.mesh, &plan.mesh.coords(rank));
            let value = outputs.remove(&o.name).unwrap();
            out.insert(format!("step {step}: {}", o.name), Block { ranges, dims: o.dims.clone(), value });
        }
    }
    for leaf in plan.program_inputs.iter().filter(|l| l.init.is_some()) {
        let ranges = engine.state_ranges(&leaf.name).map_err(ran)?.to_vec();
        let value = engine.state(&leaf.name).map_err(ran)?;
        out.insert(leaf.name.clone(), Block { ranges, dims: leaf.dims.clone(), value });
    }
    Ok(out)
}

/// The first block of a device that is not the part of the whole that it should be; then the first copies of which not all
/// bits are the same.
pub(crate) fn compared(alone: &Shard, devices: &[Shard]) -> Found {
    for (name, whole) in alone {
        let meaning = from_host(&whole.value, &whole.dims);
        let scale = meaning.data.iter().fold(0f64, |m, v| m.max(v.abs()));
        for (rank, shard) in devices.iter().enumerate() {
            let differs = |what: String| Some((By::Result, format!("`{name}` on rank {rank}: {what}")));
            let Some(block) = shard.get(name) else { return differs("is not there".into()) };
            let whole = to_host(&meaning, whole.value.dtype(), &block.dims);
            let Some(want) = whole.slice(&block.ranges) else { return differs("lies elsewhere".into()) };
            let (got, want) = (&block.value.data, &want.data);
            if got.dtype() != want.dtype() {
                return differs("has another dtype".into());
            }
            if let Err(e) = close_from(&got.to_f64(), &want.to_f64(), 1e-10, scale) {
                return differs(e);
            }
        }
    }
    for name in alone.keys() {
        let mut first: SortedMap<Place, (usize, Vec<u64>)> = SortedMap::new();
        for (rank, shard) in devices.iter().enumerate() {
            let block = &shard[name];
            let bits: Vec<u64> = block.value.data.to_f64().iter().map(|v| v.to_bits()).collect();
            let place: Place = block.ranges.iter().map(|r| (r.start, r.end)).collect();
            let (other, want) = first.entry(place).or_insert_with(|| (rank, bits.clone()));
            if *want != bits {
                return Some((
                    By::Replicas,
                    format!("`{name}` differs in bits between ranks {other} and {rank}"),
                ));
            }
        }
    }
    None
}
