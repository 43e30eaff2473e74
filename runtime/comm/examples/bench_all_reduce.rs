//! Time of an in-place all-reduce of `f32` over threads, by size: wall time a call, bytes of one device's buffer over
//! that time, and CPU time of all threads a call.
//!
//! `cargo run --release -p meshwright-comm --example bench_all_reduce -- [THREADS] [IDLE_US]`: each device computes for
//! about IDLE_US (a different time each) between two calls, so that none finds the others waiting already.

use meshwright_comm::{BufMut, Collectives, CommError, Group, Tag, ThreadsTransport, Timeouts, World};
use meshwright_plan::Monoid;
use std::io::Write;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or(Ok(4), |a| a.parse())?;
    let busy = args.next().map_or(Ok(0), |a| a.parse())?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:>10} {:>12} {:>12} {:>8} {:>12}",
        "bytes", "median us", "min us", "GB/s", "cpu us/call"
    )?;
    for log in 12..=26 {
        let bytes = 1usize << log;
        let calls = ((1usize << 30) / bytes).clamp(16, 5000);
        let devices = World::new(threads, Timeouts::for_tests());
        let run = |t| move || device(t, bytes / 4, calls, Duration::from_micros(busy));
        let times = std::thread::scope(|scope| {
            let devices: Vec<_> = devices.into_iter().map(|t| scope.spawn(run(t))).collect();
            devices
                .into_iter()
                .map(|d| d.join().unwrap_or(Ok(Default::default())))
                .collect::<Result<Vec<_>, _>>()
        })?;
        let (mut times, cpu) = times.into_iter().next().unwrap_or_default();
        let cpu = cpu.as_secs_f64() / calls as f64;
        times.sort_by(f64::total_cmp);
        let (median, min) = (times[times.len() / 2], times[0]);
        writeln!(
            out,
            "{bytes:>10} {:>12.1} {:>12.1} {:>8.2} {:>12.1}",
            median * 1e6,
            min * 1e6,
            bytes as f64 / median / 1e9,
            cpu * 1e6
        )?;
    }
    Ok(())
}

fn device(
    mut transport: ThreadsTransport,
    len: usize,
    calls: usize,
    busy: Duration,
) -> Result<(Vec<f64>, Duration), CommError> {
    use meshwright_comm::Transport;
    let rank = transport.rank();
    let Ok(group) = Group::world(transport.size(), rank) else { return Ok(Default::default()) };
    let mut data = vec![0f32; len];
    let mut times = Vec::with_capacity(calls);
    let mut cpu = Duration::ZERO;
    for sequence in 0..calls as u64 + 3 {
        // The first calls meet memory that is not there yet.
        if sequence == 3 {
            cpu = cpu_time();
        }
        let tag = Tag::new(sequence, "data", 1);
        let compute = busy.mul_f64(0.5 + ((sequence * 7 + rank as u64 * 3) % 11) as f64 / 11.0);
        let until = Instant::now();
        while until.elapsed() < compute {
            std::hint::black_box(&mut data);
        }
        let begin = Instant::now();
        transport.all_reduce(&group, &tag, Monoid::Sum, [BufMut::new(&mut data)])?;
        if sequence >= 3 {
            times.push(begin.elapsed().as_secs_f64());
        }
    }
    Ok((times, cpu_time() - cpu))
}

/// CPU time of the process so far, at the resolution of the kernel's clock ticks; zero where it is unknown.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}
