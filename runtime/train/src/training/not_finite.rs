//! Why a loss is infinite or NaN. The step is run again, from the last known state, with checks: on a Plan in which
//! every value has a buffer of its own, each is examined when it is computed. The result names the first ancestor of
//! the loss that is not finite.

use crate::devices::consensus::{agree_on_result, synchronized_stop};
use crate::devices::{Batch, LoadedProgram, batch, compiled, load, provide, restore};
use crate::failure::Failure;
use crate::inference::read_checkpoint;
use crate::project::{Project, line_of};
use crate::training::guards::Guard;
use crate::training::poles::{Pole, guarded_growth, is_setting, smaller_steps};
use crate::training::{Progress, TrainOptions};
use meshwright_core::{Compiled, GRADIENT_NORM, examined_step};
use meshwright_data::{BatchSampler, Dataset};
use meshwright_diag::{Diagnostic, Sources, Span, codes};
use meshwright_exec::{Cluster, Finiteness, Processes};
use meshwright_ops::{Graph, Id};
use meshwright_plan::{Arithmetic, BufId, Phase, Plan, Prim, ProgramInputKind, Step};
use meshwright_runs::checkpoint::Which;
use meshwright_runs::metrics::StepMetrics;
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A value that is not finite after a step, so that the run ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NotFinite {
    step: u64,
    what: What,
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    Loss(f64),
    /// A norm of gradients: the name of the step's output.
    Norm(String, f64),
    /// Gradients of `f16`, at any loss scale.
    Gradients,
    /// A parameter, or what an optimizer keeps: its name, and what is said of it.
    State(String, Vec<String>),
}

impl NotFinite {
    /// A measurement of a step that is not finite. Norms of `f16` may be infinite: such a step is repeated with another
    /// scale.
    pub(crate) fn of(measured: &StepMetrics) -> Option<NotFinite> {
        let step = measured.step;
        if !measured.loss.is_finite() {
            return Some(NotFinite { step, what: What::Loss(measured.loss) });
        }
        let others = measured.values.iter().filter(|(name, _)| name.starts_with(GRADIENT_NORM));
        let norms = others.map(|(name, v)| (name.as_str(), *v));
        let mut norms = norms.chain(measured.gradient_norm.map(|v| (GRADIENT_NORM, v)));
        let (name, value) = norms.find(|(_, v)| !v.is_finite() && measured.loss_scale.is_none())?;
        Some(NotFinite { step, what: What::Norm(name.into(), value) })
    }

    /// The gradients of a step in `f16` whose loss scale cannot be halved any more.
    pub(crate) fn gradients(step: u64) -> NotFinite {
        NotFinite { step, what: What::Gradients }
    }

    /// A parameter or a moment, as it stands after a step; `notes` say what comes of it.
    pub(crate) fn state(step: u64, name: String, notes: Vec<String>) -> NotFinite {
        NotFinite { step, what: What::State(name, notes) }
    }

    /// Its description.
    fn message(&self, loss: &str) -> String {
        let step = self.step;
        let of = |name: &str| name.strip_prefix(GRADIENT_NORM)?.strip_prefix('_').map(String::from);
        match &self.what {
            What::Loss(value) => format!("the loss `{loss}` is {value} at step {step}"),
            What::Norm(name, value) => {
                let of = of(name).map(|loss| format!(" of `{loss}`")).unwrap_or_default();
                format!("the norm of all gradients{of} is {value} at step {step}")
            }
            What::Gradients => format!(
                "the loss scale falls below 1 at step {step}, since gradients of `{loss}` are not finite at any"
            ),
            What::State(name, _) => format!("`{name}` is not finite after step {step}"),
        }
    }

    /// The first step that may have made it, where the state after `saved` is known.
    fn looked_at(&self, saved: u64) -> u64 {
        match self.what {
            // No measurement has reported it meanwhile.
            What::State(..) => saved,
            // The loss shows what the step before did to the parameters.
            _ => self.step.saturating_sub(2).max(saved),
        }
    }
}

/// A run that came to a loss or a norm that is not finite.
pub(crate) struct Rerun<'a> {
    project: &'a Project,
    sources: &'a Sources,
    options: &'a TrainOptions,
    sampler: &'a BatchSampler,
    set: &'a Dataset,
    /// The training step.
    program: &'a LoadedProgram,
    /// The step of the newest checkpoint; 0 where there is none.
    saved: u64,
    /// Sets everything to what the run began with.
    first_values: &'a dyn Fn(&Cluster) -> Result<(), Failure>,
    stop: &'a AtomicBool,
}

/// The first value that is not finite.
#[derive(Clone, Debug, PartialEq)]
struct Culprit {
    /// In which training step.
    step: u64,
    path: String,
    span: Span,
    is: Finiteness,
    /// Its operands, each with its finiteness; `None` for a value at the begin of a step.
    operands: Option<Vec<(String, Finiteness)>>,
    /// The function that is infinite at a point, where it was one.
    pole: Option<Pole>,
    /// The function that grows fast behind a guard, where it was one.
    growth: Option<(&'static str, Guard)>,
    /// Whether it is a setting of the `train` block, which no step has made so.
    setting: bool,
    /// The first that is not a number, where that is another one.
    not_a_number: Option<(String, Span)>,
}

/// Outcome of running a step again.
enum Outcome {
    Found(Culprit),
    /// All was finite: whatever it was did not come again.
    Nothing,
    /// It did not come to its end.
    GivenUp {
        at: u64,
        why: String,
    },
}

/// Limit for running steps again up to the examined one.
const MOST_TIME: Duration = Duration::from_secs(600);

impl<'a> Rerun<'a> {
    /// `saved` is the step of the newest checkpoint, 0 where there is none; `first_values` sets everything to what the run began
    /// with.
    pub(crate) fn of(
        (project, sources, options): (&'a Project, &'a Sources, &'a TrainOptions),
        (sampler, set, program): (&'a BatchSampler, &'a Dataset, &'a LoadedProgram),
        (saved, stop): (u64, &'a AtomicBool),
        first_values: &'a dyn Fn(&Cluster) -> Result<(), Failure>,
    ) -> Rerun<'a> {
        Rerun { project, sources, options, sampler, set, program, saved, first_values, stop }
    }

    /// The error for it: with its cause, where running the step again shows it.
    pub(crate) fn error(
        &self,
        cluster: &mut Cluster,
        found: &NotFinite,
        progress: &mut dyn FnMut(Progress),
    ) -> Diagnostic {
        let declared = self.project.program.train.as_ref().map(|t| t.loss());
        let step = found.step;
        let message = found.message(declared.map_or("the loss", |d| d.name.as_str()));
        // The next part may take long, and be cut off.
        let checked = found.looked_at(self.saved);
        progress(Progress::RunningAgain { from: self.saved, checked, step, why: &message });
        let culprit = self.culprit(cluster, found);
        let d = match &culprit {
            Ok(Outcome::Found(c)) => {
                self.described(Diagnostic::error(codes::E0517, self.with_cause(&message, c)), c, found)
            }
            Ok(Outcome::Nothing) => Diagnostic::error(codes::E0517, message)
                .note(format!("run again from step {}, nothing in it was other than finite", self.saved)),
            Ok(Outcome::GivenUp { at, why }) => Diagnostic::error(codes::E0517, message)
                .note(format!("to find its cause it was run again, up to step {at}: {why}")),
            Err(failure) => Diagnostic::error(codes::E0517, message)
                .note(format!("it could not be run again: {}", said(failure))),
        };
        let d = match (&found.what, declared) {
            (What::Loss(_), Some(decl)) => d.and(decl.span, "not finite from here on"),
            (What::State(_, notes), _) => notes.iter().fold(d, |d, note| d.note(note)),
            _ => d,
        };
        let culprit = match &culprit {
            Ok(Outcome::Found(c)) => Some(c),
            _ => None,
        };
        let shown = culprit.is_some_and(|c| c.step == found.step) && matches!(found.what, What::Loss(_));
        self.helped(d, culprit, shown)
    }

    /// With what helps; the loss of the step may have `shown` the value.
    fn helped(&self, d: Diagnostic, culprit: Option<&Culprit>, shown: bool) -> Diagnostic {
        let float = self.project.program.float;
        let pole = culprit.and_then(|c| c.pole);
        let growth = culprit.and_then(|c| c.growth).filter(|(_, guard)| guard.holds(shown));
        let guarded = growth.map(|(name, guard)| guard.help(self.sources, name));
        let guarded = guarded.or_else(|| pole.and_then(|p| p.help_behind(self.sources, shown)));
        let in_the_model = guarded.is_some() || pole.is_some_and(|p| p.is_in_the_model());
        let d = match float {
            Arithmetic::F16 if !in_the_model => d.note(
                "in `f16`, what is beyond 65504 is infinite; `--precision bf16` has the range of `f32`",
            ),
            _ => d,
        };
        let helps = guarded.into_iter().chain(pole.map(|p| p.help(float)));
        let d = helps.fold(d, Diagnostic::help);
        match culprit {
            _ if in_the_model => d,
            Some(c) if c.setting => d.help("write an expression of `step` that is finite at every step"),
            _ => d.help(smaller_steps(self.project)),
        }
    }

    fn with_cause(&self, message: &str, c: &Culprit) -> String {
        format!("{message}: the first value that is not finite is `{}`{}", c.path, self.place(c.span))
    }

    /// ` (line 7)`; of another file than the model's, ` (layers.mw:7)`; nothing for a place that is nowhere.
    fn place(&self, span: Span) -> String {
        match line_of(self.sources, span) {
            0 => String::new(),
            line if span.file == self.project.texts.model => format!(" (line {line})"),
            line => format!(" ({}:{line})", self.sources.name(span.file)),
        }
    }

    fn described(&self, d: Diagnostic, c: &Culprit, found: &NotFinite) -> Diagnostic {
        let is = words(c.is);
        let named = |all: &[&(String, Finiteness)]| {
            all.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        };
        let (label, note) = match &c.operands {
            None => (format!("{is}, before step {} began", c.step), None),
            Some(operands) => {
                let (fine, bad): (Vec<_>, Vec<_>) = operands.iter().partition(|o| o.1 == Finiteness::Finite);
                match (bad.is_empty(), fine.is_empty()) {
                    (true, true) => (format!("{is}; it has no operands"), None),
                    (true, false) => (format!("{is}; its operands were finite: {}", named(&fine)), None),
                    (false, _) => {
                        let kinds = bad.iter().map(|(name, f)| format!("`{name}` was {}", words(*f)));
                        let label = format!("{is}; not all of its operands were finite");
                        (label, Some(kinds.collect::<Vec<_>>().join(", ")))
                    }
                }
            }
        };
        let d = if c.span == Span::default() {
            d.note(format!("`{}` is {label}", c.path))
        } else {
            d.at(c.span, label)
        };
        let d = note.into_iter().fold(d, Diagnostic::note);
        let d = match &c.not_a_number {
            Some((path, span)) => {
                d.note(format!("the first that is not a number is `{path}`{}", self.place(*span)))
            }
            None => d,
        };
        match found.what {
            _ if c.step == found.step => d,
            What::Loss(_) => d.note(format!("that was in step {}, before the loss showed it", c.step)),
            _ => d.note(format!("that was in step {}", c.step)),
        }
    }

    fn culprit(&self, cluster: &mut Cluster, not_finite: &NotFinite) -> Result<Outcome, Failure> {
        let step = not_finite.step;
        let project = self.project.examined();
        let processes = cluster.processes().clone();
        let Some(graph) = examined_step(&project.program) else { return Ok(Outcome::Nothing) };
        let made = compiled(&project, &graph, self.sources)
            .and_then(|Compiled { spmd, plan }| Ok((load(cluster, plan, None)?, spmd.step.graph)));
        let (examined, graph) = agree_on_result(&processes, "the step with checks", made)?;
        self.restart(cluster)?;
        let looked_at = not_finite.looked_at(self.saved);
        let began = Instant::now();
        for n in self.saved..step {
            if n < looked_at {
                let given = self.batch(&processes, self.program, n)?;
                cluster.run(self.program.id, n + 1, &provide(self.program, given))?;
            } else {
                let given = self.batch(&processes, &examined, n)?;
                let (_, seen) = cluster.run_examined(examined.id, n + 1, &provide(&examined, given))?;
                let trail = Trail { plan: &examined.plan, graph: &graph, seen: &seen };
                if let Some(found) = trail.culprit(n + 1, &not_finite.what) {
                    return Ok(Outcome::Found(found));
                }
            }
            // The last steps are few.
            if n + 1 >= step.saturating_sub(2) {
                continue;
            }
            let wishes = [self.stop.load(Ordering::Relaxed), began.elapsed() > MOST_TIME];
            match synchronized_stop(&processes, "the step that is run again".into(), wishes, None)? {
                [true, _] => return Ok(Outcome::GivenUp { at: n + 1, why: "it was interrupted".into() }),
                [_, true] => {
                    let minutes = MOST_TIME.as_secs() / 60;
                    let why = format!(
                        "it took more than {minutes} minutes; `--checkpoint-every` keeps a nearer state"
                    );
                    return Ok(Outcome::GivenUp { at: n + 1, why });
                }
                _ => {}
            }
        }
        Ok(Outcome::Nothing)
    }

    /// The batch of a step. Where one process cannot read it, none goes on.
    fn batch(&self, processes: &Processes, program: &LoadedProgram, n: u64) -> Result<Batch, Failure> {
        let records = self.sampler.records(n, 0..program.examples);
        let read =
            batch(self.set, &program.needs, (&records, self.sampler.epoch_seed(n))).map_err(Failure::from);
        agree_on_result(processes, "the batch of a step that is run again", read)
    }

    /// Back to the newest checkpoint, or to the beginning.
    fn restart(&self, cluster: &Cluster) -> Result<(), Failure> {
        (self.first_values)(cluster)?;
        let Some(run) = self.options.run.as_deref().filter(|_| self.saved > 0) else { return Ok(()) };
        let processes = cluster.processes();
        let which = Which::Step(self.saved);
        let read = processes.on_first("the checkpoint".into(), || read_checkpoint(run, which))?;
        let checkpoint = agree_on_result(processes, "the checkpoint", read.transpose())?;
        restore(cluster, checkpoint.as_ref().map(|l| &l.checkpoint), true)
    }
}

fn said(failure: &Failure) -> String {
    match failure {
        Failure::Diagnostics(found) => {
            found.iter().map(|d| d.message.as_str()).collect::<Vec<_>>().join("; ")
        }
        Failure::Exec(e) => e.to_string(),
        Failure::Elsewhere => "another process failed".into(),
    }
}

fn words(is: Finiteness) -> &'static str {
    match is {
        Finiteness::Finite => "finite",
        Finiteness::Infinite => "infinite",
        Finiteness::NotANumber => "not a number",
    }
}

/// A step of a Plan that was run, and what was seen of its buffers.
struct Trail<'a> {
    plan: &'a Plan,
    graph: &'a Graph,
    seen: &'a [Finiteness],
}

impl Trail<'_> {
    fn of(&self, buf: BufId) -> Finiteness {
        self.seen.get(buf.0 as usize).copied().unwrap_or_default()
    }

    /// The first of all values that are not finite and that such a loss is made of, or such a norm; where that is finite, that
    /// the next parameters are made of. Infinite constants, such as those of masks, are nobody's fault.
    fn culprit(&self, step: u64, what: &What) -> Option<Culprit> {
        let plan = self.plan;
        let bad = |buf: &BufId| self.of(*buf) != Finiteness::Finite;
        let mut todo = self.ends(what);
        let mut makers: SortedMap<BufId, usize> = SortedMap::new();
        for (at, s) in plan.steps.iter().enumerate() {
            makers.extend(s.writes.iter().map(|o| (o.buf, at)));
        }
        let mut reached: SortedSet<(Option<usize>, BufId)> = SortedSet::new();
        while let Some(buf) = todo.pop() {
            let maker = makers.get(&buf).copied();
            let made_by = maker.and_then(|at| plan.steps.get(at));
            if made_by.is_some_and(is_constant) || !reached.insert((maker, buf)) {
                continue;
            }
            todo.extend(made_by.iter().flat_map(|s| &s.reads).map(|o| o.buf).filter(bad));
        }
        // Values at the begin of a step come before its results.
        let (maker, buf) = *reached.first()?;
        let nan = reached.iter().find(|(_, b)| self.of(*b) == Finiteness::NotANumber);
        let name = |buf: BufId| self.named(buf, makers.get(&buf).copied());
        let (path, span) = name(buf);
        let operands = maker.and_then(|at| plan.steps.get(at)).map(|s| {
            let mut all: Vec<(String, Finiteness)> = Vec::new();
            for o in &s.reads {
                let called = match name(o.buf).0 {
                    // Of the ops that one statement is made of, this one comes before.
                    same if same == path => {
                        self.op(o.buf, makers.get(&o.buf)).map_or(same, |op| format!("{op} of {path}"))
                    }
                    other => other,
                };
                let operand = (called, self.of(o.buf));
                let listed = operand.0.is_empty() || all.contains(&operand);
                all.extend((!listed).then_some(operand));
            }
            all
        });
        let not_a_number = nan.filter(|n| n.1 != buf).map(|n| name(n.1)).filter(|n| n.0 != path);
        let is = self.of(buf);
        let finite = operands.as_ref().is_some_and(|all| all.iter().all(|o| o.1 == Finiteness::Finite));
        let made = self.node(buf, makers.get(&buf));
        let node = made.filter(|_| finite);
        let pole = node.and_then(|id| Pole::of(self.graph, id, is));
        let growth = node.and_then(|id| guarded_growth(self.graph, id));
        let setting = made.is_some_and(|id| is_setting(self.graph, id));
        Some(Culprit { step, path, span, is, operands, pole, growth, setting, not_a_number })
    }

    /// Reported values that are not finite.
    fn ends(&self, what: &What) -> Vec<BufId> {
        let plan = self.plan;
        let bad = |buf: &BufId| self.of(*buf) != Finiteness::Finite;
        let mut outputs = plan.outputs.iter();
        let told = match what {
            What::Norm(name, _) => outputs.find(|o| o.name == *name),
            What::Loss(_) => outputs.next(),
            What::Gradients | What::State(..) => None,
        };
        if let Some(told) = told.map(|o| o.buf).filter(bad) {
            return vec![told];
        }
        if *what == What::Gradients {
            // The step has updated nothing, but would have read them.
            let phase = |s: &Step| s.origin.first().map(|cause| self.graph.node(Id(cause.id)).origin.phase);
            let updates = plan.steps.iter().filter(|s| phase(s) == Some(Phase::Update));
            return updates.flat_map(|s| &s.reads).map(|o| o.buf).filter(bad).collect();
        }
        plan.program_inputs.iter().filter_map(|l| l.next).filter(bad).collect()
    }

    /// The op that makes a buffer.
    fn op(&self, buf: BufId, maker: Option<&usize>) -> Option<&'static str> {
        self.node(buf, maker).map(|id| self.graph.node(id).op.name())
    }

    /// The value of the graph that a buffer holds.
    fn node(&self, buf: BufId, maker: Option<&usize>) -> Option<Id> {
        let step = self.plan.steps.get(*maker?)?;
        let at = step.writes.iter().position(|o| o.buf == buf)?;
        let cause = step.origin.get(at).or(step.origin.first())?;
        self.graph.ids().find(|id| *id == Id(cause.id))
    }

    /// Path and place of what a buffer holds; no path for constants and the number of the step.
    fn named(&self, buf: BufId, maker: Option<usize>) -> (String, Span) {
        let nowhere = Span::default();
        let Some(step) = maker.and_then(|at| self.plan.steps.get(at)) else {
            let leaf = self.plan.program_inputs.iter().find(|l| l.buf == buf);
            let leaf = leaf.filter(|l| l.kind != ProgramInputKind::StepNumber);
            let Some(leaf) = leaf else { return (String::new(), nowhere) };
            let declared = self.graph.ids().find(|id| self.graph.path(*id) == leaf.name);
            let span = declared.map_or(nowhere, |id| self.graph.node(id).origin.span);
            return (leaf.name.clone(), span);
        };
        if is_constant(step) {
            return (String::new(), nowhere);
        }
        let at = step.writes.iter().position(|o| o.buf == buf).unwrap_or(0);
        let Some(cause) = step.origin.get(at).or(step.origin.first()) else {
            return (String::new(), nowhere);
        };
        let known = self.graph.ids().find(|id| *id == Id(cause.id));
        let span = known.map_or(nowhere, |id| self.graph.node(id).origin.span);
        (cause.path.to_string(), span)
    }
}

fn is_constant(step: &Step) -> bool {
    step.reads.is_empty() && !matches!(step.prim, Prim::Random { .. })
}
