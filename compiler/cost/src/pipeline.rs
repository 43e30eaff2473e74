//! Pipelines: the passes of all ranks, each as soon as what it needs is there.

use meshwright_plan::actions::{Pass, PassRun};

/// Seconds of the passes of a microbatch through a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageTimes {
    /// Forward.
    pub forward: f64,
    /// Backward, without `weight`.
    pub backward: f64,
    /// Gradients of weights. A schedule that does not have them apart runs them with the backward pass.
    pub weight: f64,
}

/// A pipeline that was played.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    /// For each rank, the start and the end of each of its passes, in order.
    pub spans: Vec<Vec<(f64, f64)>>,
    /// When each rank is done.
    pub ends: Vec<f64>,
    /// Seconds in which each rank computes or stands still for a transfer.
    pub busy: Vec<f64>,
}

/// Plays lists of passes. `stages` has the times of stage `c p + r` for chunk `c` of rank `r` among `p`; `hop` is the time of a
/// transfer to the next stage. If it is `blocking`, the sender stands still for it, else it runs beside the next pass.
///
/// # Errors
/// Where the lists wait for each other, or name stages that there are not.
pub fn play(
    lists: &[Vec<PassRun>],
    stages: &[StageTimes],
    hop: f64,
    blocking: bool,
) -> Result<Played, String> {
    let p = lists.len();
    let last = stages.len().checked_sub(1).ok_or("a pipeline without stages")?;
    let micros = lists.iter().flatten().map(|r| r.micro + 1).max().unwrap_or(0);
    let apart = lists.iter().flatten().any(|r| r.pass == Pass::W);
    let at = |pass: Pass, stage: usize, micro: usize| (pass as usize * stages.len() + stage) * micros + micro;
    let mut done: Vec<Option<f64>> = vec![None; 3 * stages.len() * micros];
    let mut played = Played { spans: vec![vec![]; p], ends: vec![0.0; p], busy: vec![0.0; p] };
    let mut ready: Vec<usize> = (0..p).rev().collect();
    while let Some(rank) = ready.pop() {
        while let Some(run) = lists[rank].get(played.spans[rank].len()) {
            let stage = run.chunk * p + rank;
            let times = stages.get(stage).ok_or_else(|| format!("there is no stage {stage}"))?;
            // What it needs, and whether that comes from another rank.
            let needs = match run.pass {
                Pass::F if stage == 0 => None,
                Pass::F => Some((at(Pass::F, stage - 1, run.micro), p > 1)),
                Pass::B if stage == last => Some((at(Pass::F, stage, run.micro), false)),
                Pass::B => Some((at(Pass::B, stage + 1, run.micro), p > 1)),
                Pass::W => Some((at(Pass::B, stage, run.micro), false)),
            };
            let arrival = match needs {
                None => 0.0,
                Some((need, moves)) => match done[need] {
                    Some(time) => time + if moves && !blocking { hop } else { 0.0 },
                    None => break,
                },
            };
            let seconds = match run.pass {
                Pass::F => times.forward,
                Pass::B => times.backward + if apart { 0.0 } else { times.weight },
                Pass::W => times.weight,
            };
            let sends = p > 1
                && match run.pass {
                    Pass::F => stage < last,
                    Pass::B => stage > 0,
                    Pass::W => false,
                };
            let seconds = seconds + if sends && blocking { hop } else { 0.0 };
            let start = arrival.max(played.ends[rank]);
            played.spans[rank].push((start, start + seconds));
            played.ends[rank] = start + seconds;
            played.busy[rank] += seconds;
            done[at(run.pass, stage, run.micro)] = Some(start + seconds);
            let next = match run.pass {
                Pass::F => (rank + 1) % p,
                Pass::B => (rank + p - 1) % p,
                Pass::W => rank,
            };
            if next != rank && !ready.contains(&next) {
                ready.push(next);
            }
        }
    }
    match lists.iter().zip(&played.spans).position(|(list, spans)| spans.len() < list.len()) {
        Some(rank) => Err(format!(
            "rank {rank} of the pipeline waits for ever after {} passes",
            played.spans[rank].len()
        )),
        None => Ok(played),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use meshwright_plan::actions::{PipelineSchedule, runs};

    fn makespan(schedule: PipelineSchedule, p: usize, v: usize, m: usize, times: (f64, f64, f64)) -> f64 {
        let (forward, backward, weight) = times;
        let stage = StageTimes {
            forward: forward / v as f64,
            backward: backward / v as f64,
            weight: weight / v as f64,
        };
        let lists = runs(schedule, p, v, m).unwrap();
        let played = play(&lists, &vec![stage; p * v], 0.0, false).unwrap();
        played.ends.into_iter().fold(0.0, f64::max)
    }

    #[test]
    fn bubbles_are_those_of_the_papers() {
        for (p, m) in [(2, 4), (4, 8), (8, 64), (3, 7)] {
            let (f, b, w) = (1.0, 1.5, 0.5);
            let (n, edge) = (m as f64, (p - 1) as f64);
            for schedule in [PipelineSchedule::Gpipe, PipelineSchedule::OneForwardOneBackward] {
                let got = makespan(schedule, p, 1, m, (f, b, w));
                assert!((got - (n + edge) * (f + b + w)).abs() < 1e-9, "{schedule:?} {p} {m}: {got}");
            }
            if m % p == 0 {
                let got = makespan(PipelineSchedule::OneForwardOneBackward, p, 2, m, (f, b, w));
                assert!((got - (n * (f + b + w) + edge * (f + b + w) / 2.0)).abs() < 1e-9, "{p} {m}: {got}");
            }
            if m >= 2 * p {
                let got = makespan(PipelineSchedule::ZbH1, p, 1, m, (1.0, 1.0, 1.0));
                assert!((got - (3.0 * n + edge)).abs() < 1e-9, "zb_h1 {p} {m}: {got}");
            }
        }
    }

    #[test]
    fn parts_that_ranks_do_not_divide_end() {
        assert!(makespan(PipelineSchedule::OneForwardOneBackward, 16, 6, 376, (1.0, 1.0, 1.0)) > 3.0 * 376.0);
        let wrong = vec![vec![
            PassRun { pass: Pass::B, micro: 0, chunk: 0 },
            PassRun { pass: Pass::F, micro: 0, chunk: 0 },
        ]];
        assert!(play(&wrong, &[StageTimes::default()], 0.0, false).unwrap_err().contains("for ever"));
    }

    #[test]
    fn transfers_delay_or_block() {
        let lists = runs(PipelineSchedule::OneForwardOneBackward, 4, 1, 8).unwrap();
        let stages = vec![StageTimes { forward: 1.0, backward: 1.0, weight: 1.0 }; 4];
        let end = |hop, blocking| {
            play(&lists, &stages, hop, blocking).unwrap().ends.into_iter().fold(0.0, f64::max)
        };
        assert!(end(0.0, false) < end(0.1, false) && end(0.1, false) < end(0.1, true));
    }
}
