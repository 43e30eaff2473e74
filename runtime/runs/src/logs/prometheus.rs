//! The metrics of a run, in the text format of Prometheus (version 0.0.4), which the textfile collector of the node
//! exporter reads.

use crate::memory::peak_resident_bytes;
use crate::metrics::{Evaluation, Event, StepMetrics};
use meshwright_sorted::SortedMap;
use prometheus::{GaugeVec, Opts, Registry, TextEncoder};
use std::time::{SystemTime, UNIX_EPOCH};

/// Prefix of all names.
const NAMESPACE: &str = "meshwright_training";

/// The labels of all samples.
const COMMON: [&str; 3] = ["run", "model", "layout"];

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It goes on; of a process that was killed the file says so forever.
    Running,
    /// All that was asked for is done.
    Finished,
    /// It was asked to stop.
    Interrupted,
    /// It ended with an error.
    Failed,
}

impl RunState {
    const ALL: [(RunState, &str); 4] = [
        (RunState::Running, "running"),
        (RunState::Finished, "finished"),
        (RunState::Interrupted, "interrupted"),
        (RunState::Failed, "failed"),
    ];
}

/// Constants of a run.
#[derive(Clone, Debug, Default)]
pub struct RunFacts {
    /// The folder of the run; without one the name of this file, without `.prom`. The node exporter refuses two files
    /// that have a sample with equal labels, so it must be unique on a machine.
    pub run: String,
    /// Name of the model.
    pub model: String,
    /// Name of the layout, or its rules.
    pub layout: String,
    /// The mesh, as `r=2,c=2`.
    pub mesh: String,
    /// Arithmetic type.
    pub precision: String,
    /// Name of the objective.
    pub loss: String,
    /// Devices of the mesh.
    pub devices: usize,
    /// The last step.
    pub steps: u64,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Peak of a device, by the Plan.
    pub planned_bytes: u64,
    /// By the Plan, of a device in a step.
    pub collective_bytes: u64,
}

/// Sums over steps, from which means are reported.
#[derive(Clone, Copy, Debug, Default)]
struct StepSums {
    steps: f64,
    seconds: f64,
    examples: f64,
    tokens: Option<f64>,
    /// Seconds times model FLOPs utilization.
    utilized: Option<f64>,
    /// Seconds in which devices waited.
    waited: f64,
}

impl StepSums {
    fn add(&mut self, s: &StepMetrics) {
        let more = |sum: Option<f64>, rate: Option<f64>| Some(sum.unwrap_or(0.0) + rate? * s.seconds);
        self.steps += 1.0;
        self.seconds += s.seconds;
        self.examples += s.examples_per_second * s.seconds;
        self.tokens = more(self.tokens, s.tokens_per_second);
        self.utilized = more(self.utilized, s.mfu);
        self.waited += s.waiting * s.seconds;
    }
}

/// State of a run's reports, as far as they are written.
#[derive(Debug, Default)]
pub(super) struct Latest {
    /// Steps done.
    step: u64,
    /// The last one.
    last: Option<StepMetrics>,
    /// Of the steps since the last text, and of those between the last two.
    new: StepSums,
    shown: StepSums,
    /// The last evaluation of each set, and after which step it was.
    evaluations: SortedMap<String, (u64, Evaluation)>,
    /// When this process began, in seconds since 1970.
    began: f64,
}

impl Latest {
    /// Of a run that stands after a step.
    pub(super) fn at(step: u64) -> Latest {
        Latest { step, began: unix_seconds(), ..Latest::default() }
    }

    /// Takes an event in.
    pub(super) fn take(&mut self, event: &Event) {
        match event {
            Event::Step(s) => {
                self.step = s.step;
                self.new.add(s);
                self.last = Some(s.clone());
            }
            Event::Evaluation { step, set, eval, .. } => {
                self.evaluations.insert(set.clone(), (*step, eval.clone()));
            }
            // What they have is told by steps and evaluations.
            Event::Epoch { .. } | Event::Done { .. } => {}
        }
    }

    /// The text. Without a step since the last one, rates stay what they were.
    ///
    /// # Errors
    /// If a name is not one that Prometheus allows: a bug.
    pub(super) fn text(&mut self, run: &RunFacts, state: RunState) -> prometheus::Result<String> {
        if self.new.steps > 0.0 {
            self.shown = std::mem::take(&mut self.new);
        }
        let mut out = Families { registry: Registry::new(), run };
        self.standing(&mut out, run, state)?;
        self.steps(&mut out)?;
        self.evaluations(&mut out)?;
        TextEncoder::new().encode_to_string(&out.registry.gather())
    }

    /// The run, its progress, and the Plan's figures.
    fn standing(&self, out: &mut Families, run: &RunFacts, state: RunState) -> prometheus::Result<()> {
        let about = ["mesh", "precision", "loss", "version"];
        let version = env!("CARGO_PKG_VERSION");
        let values = [run.mesh.as_str(), &run.precision, &run.loss, version];
        out.labeled("info", "What the run is, in labels; always 1.", &about, [(values, 1.0)])?;
        let states = RunState::ALL.map(|(s, name)| ([name], f64::from(u8::from(s == state))));
        let help = "1 for how the run stands: running, finished, interrupted or failed.";
        out.labeled("state", help, &["state"], states)?;
        out.gauge("start_time_seconds", "When this process began, in seconds since 1970.", self.began)?;
        let help = "When this was written, in seconds since 1970.";
        out.gauge("last_write_timestamp_seconds", help, unix_seconds())?;
        out.gauge("step", "Steps done, those before a resume included.", self.step as f64)?;
        out.gauge("target_step", "The step that the run goes to.", run.steps as f64)?;
        let epochs = self.step as f64 / run.steps_per_epoch.max(1) as f64;
        out.gauge("epochs", "Epochs done, with the part of the one at hand.", epochs)?;
        out.gauge("devices", "Devices of the mesh.", run.devices as f64)?;
        let help = "Peak memory of a device in a training step, by the Plan.";
        out.gauge("planned_memory_bytes", help, run.planned_bytes as f64)?;
        let help = "What a device gives to collectives in a step, by the Plan.";
        out.gauge("step_collective_bytes", help, run.collective_bytes as f64)?;
        // The system may not tell it.
        let peak = Some(peak_resident_bytes()).filter(|b| *b > 0).map(|b| b as f64);
        let help = "Greatest resident memory so far of the first process of the run.";
        out.gauge("peak_resident_memory_bytes", help, peak)
    }

    /// Measurements of steps.
    fn steps(&self, out: &mut Families) -> prometheus::Result<()> {
        let Some(last) = &self.last else { return Ok(()) };
        let StepSums { steps, seconds, examples, tokens, utilized, waited } = self.shown;
        out.gauge("loss", "The loss that is minimized, of the last step.", last.loss)?;
        let values = last.values.iter().map(|(name, v)| ([name.as_str()], *v));
        out.labeled("metric", "Other losses and metrics of the last step, by name.", &["name"], values)?;
        out.gauge("learning_rate", "Learning rate of the last step.", last.learning_rate)?;
        let help = "Joint 2-norm of all gradients of the last step, before clipping.";
        out.gauge("gradient_norm", help, last.gradient_norm)?;
        out.gauge("loss_scale", "Loss scale of the last step, in f16.", last.loss_scale)?;
        let resident = Some(last.memory_bytes).filter(|b| *b > 0).map(|b| b as f64);
        let help = "Resident memory of the first process of the run.";
        out.gauge("resident_memory_bytes", help, resident)?;
        let help = "Wall time of a step with the wait for its data, on average since the write before.";
        out.gauge("step_duration_seconds", help, seconds / steps)?;
        let help = "Examples a second, on average since the write before.";
        out.gauge("examples_per_second", help, examples / seconds)?;
        let help = "Tokens a second, on average since the write before.";
        out.gauge("tokens_per_second", help, tokens.map(|n| n / seconds))?;
        let help = "Model FLOPs utilization (MFU), 0 to 1, on average since the write before.";
        out.gauge("model_flops_utilization_ratio", help, utilized.map(|s| s / seconds))?;
        let help =
            "Share of a step that devices wait in collectives, 0 to 1, on average since the write before.";
        out.gauge("waiting_ratio", help, waited / seconds)
    }

    fn evaluations(&self, out: &mut Families) -> prometheus::Result<()> {
        let all = || self.evaluations.iter().map(|(set, (step, eval))| (set.as_str(), *step, eval));
        let losses = all().map(|(set, _, eval)| ([set], eval.loss));
        out.labeled("evaluation_loss", "Loss of the last evaluation, by set.", &["set"], losses)?;
        let metrics = all()
            .flat_map(|(set, _, eval)| eval.metrics.iter().map(move |(name, v)| ([set, name.as_str()], *v)));
        let help = "Other losses and metrics of the last evaluation, by set and name.";
        out.labeled("evaluation_metric", help, &["set", "name"], metrics)?;
        let steps = all().map(|(set, step, _)| ([set], step as f64));
        out.labeled("evaluation_step", "Steps done before the last evaluation, by set.", &["set"], steps)
    }
}

/// Metrics in the making.
struct Families<'a> {
    registry: Registry,
    run: &'a RunFacts,
}

impl Families<'_> {
    /// A number without labels of its own, where there is one.
    fn gauge(&self, name: &str, help: &str, value: impl Into<Option<f64>>) -> prometheus::Result<()> {
        self.labeled(name, help, &[], value.into().map(|v| ([], v)))
    }

    /// A number for each value of some labels. Without one the name is left out.
    fn labeled<'b, const N: usize>(
        &self,
        name: &str,
        help: &str,
        labels: &[&str; N],
        samples: impl IntoIterator<Item = ([&'b str; N], f64)>,
    ) -> prometheus::Result<()> {
        let RunFacts { run, model, layout, .. } = self.run;
        let names = [&COMMON[..], labels].concat();
        let family = GaugeVec::new(Opts::new(name, help).namespace(NAMESPACE), &names)?;
        for (values, value) in samples {
            let values = [&[run.as_str(), model, layout], &values[..]].concat();
            family.get_metric_with_label_values(&values)?.set(value);
        }
        self.registry.register(Box::new(family))
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn step(step: u64, seconds: f64) -> Event {
        Event::Step(StepMetrics {
            step,
            loss: 1.0 / step as f64,
            values: vec![("accuracy".into(), 0.5)],
            seconds,
            examples_per_second: 100.0 / seconds,
            mfu: Some(0.1 / seconds),
            waiting: 0.25,
            ..StepMetrics::default()
        })
    }

    fn facts(run: &str) -> RunFacts {
        let (model, layout, loss) = ("m".into(), "none".into(), "l".into());
        RunFacts { run: run.into(), model, layout, loss, steps: 9, steps_per_epoch: 4, ..RunFacts::default() }
    }

    /// The sample of a name with labels beside the common ones.
    fn sample(text: &str, name: &str, labels: &str) -> Option<f64> {
        let common = "layout=\"none\",model=\"m\",";
        let line =
            text.lines().find_map(|l| l.strip_prefix(&format!("{NAMESPACE}_{name}{{{common}{labels}")))?;
        line.split_once("} ")?.1.parse().ok()
    }

    #[test]
    fn rates_are_those_of_all_steps_since_the_text_before() {
        let mut latest = Latest::at(3);
        let none = latest.text(&facts("a"), RunState::Running).unwrap();
        assert_eq!((sample(&none, "step", ""), sample(&none, "loss", "")), (Some(3.0), None));
        [step(4, 0.5), step(5, 1.5)].iter().for_each(|e| latest.take(e));
        for _ in 0..2 {
            // Without a step in between they stay.
            let text = latest.text(&facts("a"), RunState::Running).unwrap();
            let found = |name| sample(&text, name, "").unwrap();
            assert_eq!((found("step"), found("loss"), found("epochs")), (5.0, 0.2, 1.25));
            assert_eq!((found("step_duration_seconds"), found("examples_per_second")), (1.0, 100.0));
            assert_eq!((found("model_flops_utilization_ratio"), found("waiting_ratio")), (0.1, 0.25));
            assert_eq!(sample(&text, "metric", "name=\"accuracy\","), Some(0.5));
            assert!(!text.contains("tokens_per_second") && !text.contains("loss_scale"), "{text}");
        }
        latest.take(&step(6, 4.0));
        let text = latest.text(&facts("a"), RunState::Running).unwrap();
        assert_eq!(sample(&text, "step_duration_seconds", ""), Some(4.0));
    }

    #[test]
    fn labels_are_escaped_and_numbers_that_are_none_are_told() {
        let mut latest = Latest::at(0);
        let eval = Evaluation { loss: f64::NAN, metrics: vec![("top5".into(), f64::INFINITY)] };
        latest.take(&Event::Evaluation { step: 2, set: "test".into(), eval, seconds: 1.0 });
        let text = latest.text(&facts("a \"b\"\\c\nd"), RunState::Failed).unwrap();
        let labels = r#"{layout="none",model="m",run="a \"b\"\\c\nd",set="test"} NaN"#;
        assert!(text.contains(&format!("{NAMESPACE}_evaluation_loss{labels}\n")), "{text}");
        assert!(sample(&text, "evaluation_metric", "name=\"top5\"").unwrap().is_infinite(), "{text}");
        let states: Vec<&str> = text.lines().filter(|l| l.contains("_state{") && l.ends_with(" 1")).collect();
        assert!(states.len() == 1 && states[0].contains("state=\"failed\""), "{text}");
        // Each name once, with its help and its type before its samples.
        let mut names = meshwright_sorted::SortedSet::new();
        let mut at = "";
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["#", "HELP", name, ..] => {
                    assert!(names.insert(*name) && line.ends_with('.'), "{line}");
                    at = name;
                }
                ["#", "TYPE", name, kind] => assert_eq!((*name, *kind), (at, "gauge")),
                _ => assert!(line.starts_with(&format!("{at}{{")), "{line}"),
            }
        }
        assert!(names.len() > 10, "{text}");
    }
}
