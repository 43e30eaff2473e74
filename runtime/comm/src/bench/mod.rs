//! Times collectives in the manner of nccl-tests, over any [`Transport`], and compares every element of their results.
//!
//! All devices of a world form one group, or several of equal size side by side ([`BenchGroups`]), and call the same collective
//! again and again, back to back. The time of a call is that of its slowest device; what is reported is the median of the calls,
//! and the least.
//!
//! **Size** is that of the greater of a device's two buffers, as in nccl-tests: the result of an all-gather, the input of
//! a reduce-scatter, either buffer of the others. **Algorithm bandwidth** is size over time. **Bus bandwidth** multiplies it
//! by what the collective must move at least for each byte of a buffer ([`crate::CollectiveKind::bus_factor`]), so that it can
//! be compared
//! between collectives and numbers of devices, and with what the hardware gives.

mod device;
mod job;

pub use device::Timings;
pub use job::{BenchJob, DTYPES, MONOIDS, kinds};

use crate::{Collectives, CommError, Group, Tag, Transport};
use device::measure;
use meshwright_plan::{Axis, DType, Mesh};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Which devices of a world call together: those of a mesh whose places differ along some of its axes alone. All groups call side
/// by side, as they do in a step, and share what they share.
#[derive(Clone, Debug)]
pub struct BenchGroups {
    mesh: Mesh,
    axes: Vec<Axis>,
}

impl BenchGroups {
    /// Over these axes.
    pub fn over(mesh: Mesh, axes: Vec<Axis>) -> BenchGroups {
        BenchGroups { mesh, axes }
    }

    /// All devices as one group.
    pub fn world(devices: usize) -> BenchGroups {
        let mesh = Mesh::new([("all", devices)]);
        BenchGroups { axes: mesh.iter().collect(), mesh }
    }

    /// Devices of a group.
    pub fn members(&self) -> usize {
        self.axes.iter().map(|a| self.mesh.size(*a)).product()
    }

    /// How many groups there are.
    pub fn count(&self) -> usize {
        self.mesh.devices() / self.members()
    }

    fn of(&self, rank: usize) -> Group {
        match Group::new(self.mesh.group(rank, &self.axes), rank) {
            Ok(group) => group,
            Err(e) => unreachable!("the group of rank {rank}: {e}"),
        }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// What was asked for.
    pub job: BenchJob,
    /// Devices of a group.
    pub members: usize,
    /// Groups that called side by side.
    pub groups: usize,
    /// Elements of the greater buffer of a device.
    pub elements: usize,
    /// Median time of a call.
    pub median: Duration,
    /// Shortest call.
    pub least: Duration,
    /// Wrong elements on all devices in all checks; none where nothing was compared.
    pub wrong: Option<u64>,
}

impl Measured {
    fn new(job: BenchJob, groups: &BenchGroups, samples: &[Timings]) -> Measured {
        let members = groups.members();
        let calls = samples.iter().map(|s| s.times.len()).min().unwrap_or(0);
        let slowest = |i| samples.iter().filter_map(|s: &Timings| s.times.get(i)).max().copied();
        let mut times: Vec<Duration> = (0..calls).filter_map(slowest).collect();
        times.sort_unstable();
        Measured {
            job,
            members,
            groups: groups.count(),
            elements: job.elements(members),
            median: times.get(times.len() / 2).copied().unwrap_or_default(),
            least: times.first().copied().unwrap_or_default(),
            wrong: (job.checks > 0).then(|| samples.iter().map(|s| s.wrong).sum()),
        }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.elements * self.job.dtype.bytes()
    }

    /// Bytes a second: size over median time; 0 where that was too short to be measured.
    pub fn algorithm_bandwidth(&self) -> f64 {
        match self.median.as_secs_f64() {
            0.0 => 0.0,
            time => self.bytes() as f64 / time,
        }
    }

    /// Bytes a second that a link must have carried at least.
    pub fn bus_bandwidth(&self) -> f64 {
        self.algorithm_bandwidth() * self.job.kind.bus_factor().of(self.members)
    }
}

/// Sizes from `min` to `max`, each `factor` times the one before.
pub fn sizes(min: usize, max: usize, factor: usize) -> Vec<usize> {
    let next = |bytes: &usize| if factor > 1 { bytes.checked_mul(factor) } else { None };
    std::iter::successors(Some(min), next).take_while(|bytes| *bytes <= max).collect()
}

/// Measures jobs one after the other on the ends of a world, a thread each. `each` gets the result of a job as soon as all
/// devices are done with it; where it returns false, nothing more is measured.
///
/// # Errors
///
/// The first error of a device that is not the consequence of another's. All devices have ended then.
pub fn run<T: Transport>(
    ends: Vec<T>,
    jobs: &[BenchJob],
    each: impl FnMut(Measured) -> bool,
) -> Result<(), CommError> {
    let groups = BenchGroups::world(ends.len());
    run_over(ends, &groups, jobs, each)
}

/// As [`run`], with these groups.
///
/// # Errors
///
/// Those of [`run`].
pub fn run_over<T: Transport>(
    ends: Vec<T>,
    groups: &BenchGroups,
    jobs: &[BenchJob],
    mut each: impl FnMut(Measured) -> bool,
) -> Result<(), CommError> {
    let devices = ends.len();
    let aborter = ends.first().map(Transport::aborter);
    let (send, receive) = channel();
    std::thread::scope(|scope| {
        for mut transport in ends {
            let send = send.clone();
            scope.spawn(move || {
                let mut sequence = 0;
                for (index, job) in jobs.iter().enumerate() {
                    let sample = one(&mut transport, groups, job, &mut sequence);
                    if let Err(e) = &sample
                        && !e.is_consequence()
                    {
                        transport.abort(&e.to_string());
                    }
                    // Whoever listened may have had enough.
                    let ended = sample.is_err();
                    if send.send((index, sample)).is_err() || ended {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut samples: Vec<Vec<Timings>> = jobs.iter().map(|_| Vec::new()).collect();
        let mut error: Option<CommError> = None;
        let mut goes_on = true;
        for (index, sample) in receive {
            match sample {
                Ok(sample) => samples[index].push(sample),
                Err(e)
                    if error.as_ref().is_none_or(|known| known.is_consequence() && !e.is_consequence()) =>
                {
                    error = Some(e);
                }
                Err(_) => {}
            }
            if goes_on && samples[index].len() == devices {
                goes_on = each(Measured::new(jobs[index], groups, &std::mem::take(&mut samples[index])));
                if let (false, Some(aborter)) = (goes_on, &aborter) {
                    aborter.abort("nobody wants to know more");
                }
            }
        }
        if goes_on { error.map_or(Ok(()), Err) } else { Ok(()) }
    })
}

/// Measures jobs one after the other on the end of a world whose other ends are elsewhere (in other processes, which call
/// this with the same jobs). On the first rank `each` gets the result of a job as soon as all devices are done with it;
/// where it returns false, nothing more is measured anywhere.
///
/// # Errors
///
/// The first error on this device.
pub fn run_end<T: Transport + ?Sized>(
    transport: &mut T,
    jobs: &[BenchJob],
    each: impl FnMut(Measured) -> bool,
) -> Result<(), CommError> {
    let groups = BenchGroups::world(transport.size());
    run_end_over(transport, &groups, jobs, each)
}

/// As [`run_end`], with these groups.
///
/// # Errors
///
/// Those of [`run_end`].
pub fn run_end_over<T: Transport + ?Sized>(
    transport: &mut T,
    groups: &BenchGroups,
    jobs: &[BenchJob],
    mut each: impl FnMut(Measured) -> bool,
) -> Result<(), CommError> {
    let mut sequence = 0;
    for job in jobs {
        let sample = one(transport, groups, job, &mut sequence)?;
        let samples = gathered(transport, &sample, &mut sequence)?;
        if transport.rank() == 0 && !each(Measured::new(*job, groups, &samples)) {
            transport.abort("nobody wants to know more");
            break;
        }
    }
    Ok(())
}

/// The samples of all devices.
fn gathered<T: Transport + ?Sized>(
    transport: &mut T,
    sample: &Timings,
    sequence: &mut u64,
) -> Result<Vec<Timings>, CommError> {
    *sequence += 1;
    let tag = Tag::new(*sequence, "times of the benchmark", 0);
    let group = BenchGroups::world(transport.size()).of(transport.rank());
    transport.gather_values(&group, &tag, sample)
}

fn one<T: Transport + ?Sized>(
    transport: &mut T,
    groups: &BenchGroups,
    job: &BenchJob,
    sequence: &mut u64,
) -> Result<Timings, CommError> {
    let group = groups.of(transport.rank());
    match job.dtype {
        DType::F64 => measure::<f64, T>(transport, &group, job, sequence),
        DType::F32 => measure::<f32, T>(transport, &group, job, sequence),
        DType::I32 => measure::<i32, T>(transport, &group, job, sequence),
        DType::BF16 => measure::<half::bf16, T>(transport, &group, job, sequence),
        DType::F16 => measure::<half::f16, T>(transport, &group, job, sequence),
        DType::U8 | DType::Bool | DType::PairF32 | DType::PairF64 => {
            measure::<u8, T>(transport, &group, job, sequence)
        }
    }
}
