//! What a sweep shows while it goes on: on a terminal a line for each run that is going on, below the lines of ended ones,
//! elsewhere a line for each end, and now and then one for what goes on.

use super::child::{ProcessEnd, Signal};
use crate::output::console::Console;
use crate::output::text::{measure, seconds, thousands};
use crate::signals;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use meshwright_diag::render::printable;
use meshwright_sorted::SortedMap;
use std::time::{Duration, Instant};

/// Plain lines about what goes on come at most so often.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// A run that goes on.
struct Going {
    bar: ProgressBar,
    step: u64,
    total: Option<u64>,
    loss: f64,
}

/// What is shown of a sweep.
pub(crate) struct LiveView<'a> {
    console: &'a mut Console,
    bars: Option<MultiProgress>,
    /// All runs together.
    all: ProgressBar,
    total: usize,
    done: usize,
    /// How many runs were done already.
    before: usize,
    began: Instant,
    said: Instant,
    going: SortedMap<String, Going>,
}

impl<'a> LiveView<'a> {
    /// The display of `total` runs, with `done` of them done.
    pub(crate) fn new(console: &'a mut Console, total: usize, done: usize) -> Self {
        let terminal = console.draws() && !console.json();
        let bars = terminal.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        let all = ProgressBar::new(1000);
        let all = match &bars {
            Some(bars) => {
                signals::draws_a_bar();
                bars.add(all.with_style(style("  {msg}  [{wide_bar}]")))
            }
            None => all,
        };
        let now = Instant::now();
        let mut view = LiveView {
            console,
            bars,
            all,
            total,
            done,
            before: done,
            began: now,
            said: now,
            going: SortedMap::new(),
        };
        view.shows_all();
        view
    }

    /// Takes in what happens to a run. `result` is what is worth knowing of one that has ended well.
    pub(crate) fn see(
        &mut self,
        name: &str,
        signal: &Signal,
        total: Option<u64>,
        result: &dyn Fn() -> String,
    ) {
        match signal {
            Signal::Waits => {
                self.note(&format!("`{name}` waits for another process, which is at work in its folder"))
            }
            Signal::Starts => {
                let bar = ProgressBar::new(total.unwrap_or(0)).with_message(name.to_string());
                let bar = match &self.bars {
                    Some(bars) => {
                        bars.insert_before(&self.all, bar.with_style(style("  {msg}  [{wide_bar}]  {eta}")))
                    }
                    None => bar,
                };
                self.going.insert(name.into(), Going { bar, step: 0, total, loss: f64::NAN });
            }
            Signal::Step { step, loss } => {
                if let Some(going) = self.going.get_mut(name) {
                    if going.total.is_none() && total.is_some() {
                        going.total = total;
                        going.bar.set_length(total.unwrap_or(0));
                    }
                    (going.step, going.loss) = (*step, *loss);
                    if self.bars.is_some() {
                        going.bar.set_position(*step);
                        going.bar.set_message(format!("{name}  {}", going.words()));
                    }
                }
                self.shows_all();
                self.says_what_goes_on();
            }
            Signal::Ends { how, seconds: took } => {
                if let Some(going) = self.going.remove(name) {
                    going.bar.finish_and_clear();
                }
                self.done += usize::from(*how != ProcessEnd::Stopped);
                let what = match how {
                    ProcessEnd::Well => result(),
                    ProcessEnd::Stopped => "stopped, with a checkpoint".into(),
                    ProcessEnd::Failed(why) => format!("failed: {why}"),
                };
                self.said = Instant::now();
                self.line(&format!("[{}/{}] {name}: {what}, {}", self.done, self.total, seconds(*took)));
                self.shows_all();
            }
        }
    }

    /// Something worth knowing, above what goes on.
    pub(crate) fn note(&mut self, text: &str) {
        let console = &mut *self.console;
        match &self.bars {
            Some(bars) => bars.suspend(|| console.note(text)),
            None => console.note(text),
        }
    }

    /// Takes the bars away.
    pub(crate) fn finish(&self) {
        self.all.finish_and_clear();
    }

    fn line(&mut self, text: &str) {
        if self.console.json() {
            return;
        }
        let text = printable(text);
        let console = &mut *self.console;
        match &self.bars {
            Some(bars) => bars.suspend(|| console.err(&format!("{text}\n"))),
            None => console.err(&format!("{text}\n")),
        }
    }

    fn shows_all(&mut self) {
        if self.bars.is_none() {
            return;
        }
        let share = self.share();
        self.all.set_position((share * 1000.0) as u64);
        let left = self.left().map_or(String::new(), |s| format!(", {} left", seconds(s)));
        self.all.set_message(format!("{} of {} runs{left}", self.done, self.total));
    }

    /// The share of all runs that is done; of a run that goes on, its part.
    fn share(&self) -> f64 {
        let part = |g: &Going| g.total.map_or(0.0, |t| g.step as f64 / t.max(1) as f64).min(1.0);
        (self.done as f64 + self.going.values().map(part).sum::<f64>()) / self.total.max(1) as f64
    }

    /// Seconds that are left, as far as what this process did tells.
    fn left(&self) -> Option<f64> {
        let before = self.before as f64 / self.total.max(1) as f64;
        let (share, took) = (self.share(), self.began.elapsed().as_secs_f64());
        (share > before).then(|| took * (1.0 - share) / (share - before))
    }

    fn says_what_goes_on(&mut self) {
        if self.bars.is_some() || self.console.json() || self.said.elapsed() < PLAIN_EVERY {
            return;
        }
        self.said = Instant::now();
        let left = self.left().map_or(String::new(), |s| format!("; {} left", seconds(s)));
        let lines: Vec<String> =
            self.going.iter().map(|(name, g)| format!("{name}: {}", g.words())).collect();
        self.line(&format!("{}{left}", lines.join("; ")));
    }
}

impl Going {
    fn words(&self) -> String {
        let of = self.total.map_or(String::new(), |t| format!("/{}", thousands(t)));
        format!("step {}{of}  loss {}", thousands(self.step), measure(self.loss))
    }
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("=> ")
}
