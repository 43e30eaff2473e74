//! What a run shows while it goes: JSON lines, or a table of epochs on standard output with a bar on a terminal and plain
//! lines elsewhere on standard error.

use crate::output::console::Console;
use crate::output::table::{Align, padded};
use crate::output::text::{progressing, seconds, thousands};
use crate::signals;
use crate::stop::Stop;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use meshwright_diag::render::printable;
use meshwright_runs::metrics::{Evaluation, Event};
use meshwright_train::{Finished, Progress};
use std::time::{Duration, Instant};

/// Plain lines about steps come at most so often.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// How many characters a line of progress may have, and a row of the table of epochs.
const WIDTH: usize = 80;

/// A bar on a terminal, of its width; otherwise nothing is drawn.
pub(crate) fn bar(total: u64, console: &Console) -> ProgressBar {
    let hidden = console.json() || !console.leads() || !console.draws();
    let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    if !hidden {
        // What Ctrl-C leaves of it is cleared.
        signals::draws_a_bar();
    }
    let bar = ProgressBar::with_draw_target(Some(total), target);
    match ProgressStyle::with_template("  {pos}/{len}  [{wide_bar}]  {msg}  {eta}") {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

/// Shows the progress of a training run.
pub(crate) struct Watcher<'a> {
    console: &'a mut Console,
    head: Head,
    bar: ProgressBar,
    per_epoch: u64,
    total: u64,
    said: Option<Instant>,
    /// Why standard output takes no more, once it does not.
    pub(crate) broken: Option<Stop>,
}

/// What the head of the report says of a run.
pub(crate) struct Head {
    /// Name of the model as the user gave it.
    pub(crate) model: String,
    /// The mesh, in words.
    pub(crate) mesh: String,
    /// The run's folder, in words.
    pub(crate) run: String,
    /// The metrics in order.
    pub(crate) metrics: Vec<String>,
    /// Whether there is an evaluation each epoch.
    pub(crate) eval: bool,
    /// Tokens of an example, where the examples are sequences of them.
    pub(crate) tokens: Option<usize>,
}

impl<'a> Watcher<'a> {
    /// Nothing shown yet.
    pub(crate) fn new(console: &'a mut Console, head: Head) -> Self {
        let bar = bar(0, console);
        Watcher { console, head, bar, per_epoch: 0, total: 0, said: None, broken: None }
    }

    /// Takes in what the trainer tells; false where nobody reads the report any more.
    pub(crate) fn see(&mut self, progress: Progress) -> bool {
        if self.console.leads()
            && self.broken.is_none()
            && let Err(why) = self.show(progress)
        {
            self.broken = Some(why);
        }
        self.broken.is_none()
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn show(&mut self, progress: Progress) -> Result<(), Stop> {
        match progress {
            Progress::Started {
                parameters,
                steps_per_epoch,
                total_steps,
                devices: _,
                from_step,
                examples,
                evaluates,
                warnings,
                notes,
            } => {
                self.head.eval &= evaluates;
                warnings.iter().for_each(|w| self.console.warn(w));
                notes.iter().for_each(|n| self.console.note(n));
                (self.per_epoch, self.total) = (steps_per_epoch, total_steps);
                self.bar.set_length(total_steps);
                self.bar.set_position(from_step);
                // The time left is that of the steps to do, not of those that an earlier process did.
                self.bar.reset_eta();
                if !self.console.json() {
                    let head = self.head.lines(parameters, examples, steps_per_epoch, total_steps, from_step);
                    let head = printable(&head);
                    self.report(&head)?;
                }
            }
            Progress::Event { line, .. } if self.console.json() => self.report(&format!("{line}\n"))?,
            Progress::Event { event: Event::Evaluation { step, set, eval, .. }, .. }
                if !step.is_multiple_of(self.per_epoch.max(1)) =>
            {
                // At the end of an epoch its row has the numbers.
                self.report(&format!("  {set} after step {}: {}\n", thousands(*step), evaluation(eval)))?;
            }
            Progress::Event { event: Event::Epoch { epoch, train_loss, eval, seconds, .. }, .. } => {
                let row = self.head.row(*epoch, *train_loss, eval.as_ref(), *seconds);
                self.report(&row)?;
            }
            Progress::StepDone { step, epoch, loss, examples_per_second, mfu } => {
                let rate = self.head.rate(examples_per_second) + &utilization(mfu);
                self.bar.set_position(step);
                self.bar.set_message(format!("epoch {epoch}  loss {}  {rate}", progressing(loss)));
                // A run without an end of an epoch in sight shows that it goes on; a short one has its table.
                let due = self.said.is_none_or(|t| t.elapsed() >= PLAIN_EVERY);
                if due && !self.console.json() && self.bar.is_hidden() {
                    self.said = Some(Instant::now());
                    let total = thousands(self.total);
                    self.console.err(&format!(
                        "step {}/{total}  epoch {epoch}  loss {}  {rate}\n",
                        thousands(step),
                        progressing(loss)
                    ));
                }
            }
            Progress::Evaluating { done, total } => {
                self.bar.set_message(format!(
                    "evaluating {}/{}",
                    thousands(done as u64),
                    thousands(total as u64)
                ));
            }
            Progress::StepSkipped { step, scale } => {
                let step = thousands(step);
                let why = format!("gradients are not finite at a loss scale of {scale}, which is halved");
                self.tell(|console| console.note(&format!("step {step} updates nothing: {why}")));
            }
            Progress::RunningAgain { from, checked, step, why } => {
                let which = if checked + 2 < step { "" } else { "the last two " };
                let (from, step) = (thousands(from + 1), thousands(step));
                let note = match from == step {
                    true => format!("{why}: step {step} runs again, with checks"),
                    false => format!("{why}: steps {from} to {step} run again, {which}with checks"),
                };
                self.tell(|console| console.note(&note));
            }
            Progress::Warning(warning) => self.tell(|console| console.warn(&warning)),
            Progress::Event { .. } | Progress::Checkpoint { .. } => {}
        }
        Ok(())
    }

    /// Says something on a line of its own, and not behind the bar.
    fn tell(&mut self, say: impl FnOnce(&mut Console)) {
        let console = &mut *self.console;
        self.bar.suspend(|| say(console));
    }

    fn report(&mut self, text: &str) -> Result<(), Stop> {
        let console = &mut *self.console;
        self.bar.suspend(|| {
            console.out(text)?;
            console.flush()
        })
    }
}

impl Head {
    fn lines(&self, parameters: usize, examples: usize, per_epoch: u64, total: u64, from: u64) -> String {
        let t = |n: usize| thousands(n as u64);
        let mut out = format!(
            "{}: {} parameters, {} examples, {} steps an epoch\nmesh  {}\nrun   {}\n",
            self.model,
            t(parameters),
            t(examples),
            thousands(per_epoch),
            self.mesh,
            self.run
        );
        if from >= total {
            out += &format!("nothing to do: {} of {} steps are done\n", thousands(from), thousands(total));
        } else if from > 0 {
            out += &format!("resumed after step {} of {}\n", thousands(from), thousands(total));
        }
        let hidden: Vec<&str> = self.metrics.iter().skip(self.columns_shown()).map(String::as_str).collect();
        if self.eval && !hidden.is_empty() {
            out += &format!("not in the table, but in metrics.jsonl: {}\n", hidden.join(", "));
        }
        // A table without a row would be odd.
        if total / per_epoch.max(1) > from / per_epoch.max(1) {
            out += &format!(
                "\n  epoch  train loss{}  seconds\n",
                self.columns(|w, name| format!("  {}", padded(name, w, Align::Right)))
            );
        }
        out
    }

    fn row(&self, epoch: u32, train_loss: f64, eval: Option<&Evaluation>, seconds: f64) -> String {
        let value = |name: &str| match eval {
            Some(e) if name == LOSS => progressing(e.loss),
            Some(e) => e.metrics.iter().find(|m| m.0 == name).map_or("-".into(), |m| progressing(m.1)),
            None => "-".into(),
        };
        let cells = self.columns(|w, name| format!("  {}", padded(&value(name), w, Align::Right)));
        format!("  {epoch:>5}  {:>10}{cells}  {seconds:>7.1}\n", progressing(train_loss))
    }

    fn columns(&self, cell: impl Fn(usize, &str) -> String) -> String {
        if !self.eval {
            return String::new();
        }
        let metrics = self.metrics.iter().take(self.columns_shown()).map(String::as_str);
        std::iter::once(LOSS).chain(metrics).map(|name| cell(column(name), name)).collect()
    }

    /// How many metrics a row of the table has room for.
    fn columns_shown(&self) -> usize {
        let mut used = "  epoch  train loss  seconds".len() + 2 + column(LOSS);
        let fits = |name: &&String| {
            used += 2 + column(name);
            used <= WIDTH
        };
        self.metrics.iter().take_while(fits).count()
    }

    /// `1,234 examples/s`, or tokens of models of language.
    fn rate(&self, examples_per_second: f64) -> String {
        match self.tokens {
            Some(n) => format!("{} tokens/s", thousands((examples_per_second * n as f64) as u64)),
            None => format!("{} examples/s", thousands(examples_per_second as u64)),
        }
    }
}

/// `  MFU 34 %`.
fn utilization(mfu: Option<f64>) -> String {
    mfu.map(|share| format!("  MFU {:.*} %", usize::from(share < 0.1), share * 100.0)).unwrap_or_default()
}

const LOSS: &str = "eval loss";

/// The width of a column.
fn column(name: &str) -> usize {
    name.chars().count().max(8)
}

/// `loss 0.0812  accuracy 0.9751`.
pub(crate) fn evaluation(e: &Evaluation) -> String {
    let mut out = format!("loss {}", progressing(e.loss));
    for (name, value) in &e.metrics {
        out += &format!("  {name} {}", progressing(*value));
    }
    out
}

/// The last line of a run.
pub(crate) fn summary(finished: &Finished, wall: f64) -> String {
    let steps = crate::output::text::counted(finished.steps, "step");
    let loss = finished.loss.map(|l| format!(", last loss {}", progressing(l))).unwrap_or_default();
    let last = finished.test.as_ref().map(|t| ("test", t));
    let last = last.or(finished.eval.as_ref().map(|e| (finished.eval_set, e)));
    let eval = last.map(|(set, e)| format!("; on the {set} set {}", evaluation(e))).unwrap_or_default();
    format!("done: {steps} in {}{loss}{eval}\n", seconds(wall))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_epochs_stands_in_columns() {
        let head = Head {
            model: "mlp".into(),
            mesh: "r=2 x c=2 = 4 devices".into(),
            run: "runs/mlp-1".into(),
            metrics: vec!["accuracy".into()],
            eval: true,
            tokens: None,
        };
        let eval = Evaluation { loss: 0.1, metrics: vec![("accuracy".into(), 0.97)] };
        let text = head.lines(814_090, 60_000, 600, 1200, 0)
            + &head.row(1, 0.25, Some(&eval), 3.12)
            + &head.row(2, 0.25, None, 3.0);
        assert_eq!(
            text,
            "mlp: 814,090 parameters, 60,000 examples, 600 steps an epoch\n\
             mesh  r=2 x c=2 = 4 devices\n\
             run   runs/mlp-1\n\
             \n\
             \x20 epoch  train loss  eval loss  accuracy  seconds\n\
             \x20     1      0.2500     0.1000    0.9700      3.1\n\
             \x20     2      0.2500          -         -      3.0\n"
        );
        let huge = Evaluation { loss: 2.0 / 3.0 * 1e37, metrics: vec![("accuracy".into(), -1e300)] };
        assert_eq!(
            head.row(3, 1e9 / 3.0, Some(&huge), 3.0),
            "      3   3.33333e8  6.66667e36  -1.00000e300      3.0\n"
        );
        assert_eq!(evaluation(&huge), "loss 6.66667e36  accuracy -1.00000e300");
        assert_eq!(
            (progressing(999_999.0), progressing(f64::INFINITY)),
            ("999999.0000".into(), "inf".into())
        );
        assert!(!head.lines(1, 1, 600, 20, 0).contains("epoch  train"));
        assert!(head.lines(1, 1, 600, 1200, 700).contains("resumed after step 700 of 1,200"));
        assert!(head.lines(1, 1, 600, 600, 700).contains("nothing to do: 700 of 600"));
        assert_eq!(head.rate(1234.5), "1,234 examples/s");
        assert_eq!(Head { tokens: Some(128), ..head }.rate(10.0), "1,280 tokens/s");
        assert_eq!(utilization(Some(0.3449)) + &utilization(Some(0.0312)), "  MFU 34 %  MFU 3.1 %");
        assert_eq!(utilization(None), "");
    }

    #[test]
    fn many_metrics_do_not_make_the_table_wider_than_a_terminal() {
        let metrics: Vec<String> = (0..9).map(|i| format!("precision_of_{i}")).collect();
        let head = Head {
            model: "m".into(),
            mesh: "one device".into(),
            run: "runs/m-1".into(),
            metrics: metrics.clone(),
            eval: true,
            tokens: None,
        };
        let eval = Evaluation { loss: 0.1, metrics: metrics.into_iter().map(|m| (m, 0.5)).collect() };
        let text = head.lines(1, 1, 10, 10, 0) + &head.row(1, 0.25, Some(&eval), 3.0);
        let table: Vec<&str> = text.lines().skip_while(|l| !l.starts_with("  epoch")).collect();
        assert!(table.len() == 2 && table.iter().all(|l| l.len() <= WIDTH && l.len() > 60), "{text}");
        assert!(text.contains("not in the table, but in metrics.jsonl: precision_of_2, "), "{text}");
    }
}
