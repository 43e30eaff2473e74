//! Dynamic loss scaling (Micikevicius et al. 2018, section 3.2), which a training step in `f16` is built with.
//!
//! Cotangents smaller than `f16` holds would be lost, so the loss is differentiated as if it were multiplied by a scale, and the
//! gradients of parameters, which are `f32`, are divided by it again. Where the scale is too large, something on the way
//! overflows, and the joint norm of the gradients is not finite: such a step updates nothing, and halves the scale.
//! After many steps without an overflow the scale doubles. All of it is ordinary values and states of the step, so that
//! layouts, devices and checkpoints need no rule for it.

use crate::step::step_graph::{OutputKind, StepOutput};
use meshwright_ops::{Class, Graph, Id, InputOp, InputOpKind, Origin, RECIP, Type};
use meshwright_plan::{DType, Init, Phase};
use meshwright_sorted::SortedMap;

/// Start and growth of the scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaling {
    /// The scale of the first step: a power of two, so that multiplying by it rounds nothing.
    pub scale: f64,
    /// Number of steps in a row without an overflow that doubles it.
    pub growth: f64,
}

impl LossScaling {
    /// The greatest scale.
    pub const MOST: f64 = 16_777_216.0;
}

impl Default for LossScaling {
    fn default() -> Self {
        LossScaling { scale: 65_536.0, growth: 2_000.0 }
    }
}

/// Name of the output with the scale of a step.
pub const LOSS_SCALE: &str = "loss_scale/used";

/// Name of the output that is 1 where a step has updated nothing, else 0.
pub const STEP_SKIPPED: &str = "loss_scale/skipped";

/// Paths of states begin so; no parameter's path has a `/`, and no optimizer's state is of a parameter of that name alone.
const PREFIX: &str = "loss_scale/";

/// Whether a state belongs to the scaling of the loss: a run that continues in another precision has only the counts of
/// skipped updates.
pub fn is_loss_scaling_state(path: &str) -> bool {
    path.strip_prefix(PREFIX).is_some_and(|rest| rest == VALUE || rest == GOOD) || is_skip_count(path)
}

/// Whether a state counts updates that were skipped. A run that has skipped some keeps it in every precision, since optimizers
/// number their updates without them: [`Settings::skips`](crate::program::Settings::skips).
pub fn is_skip_count(path: &str) -> bool {
    path.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with(SKIPS))
}

const VALUE: &str = "value";
const GOOD: &str = "good_steps";
const SKIPS: &str = "skipped_updates";

/// The states of one training step while it is built.
#[derive(Debug)]
pub(crate) struct Scaler {
    settings: LossScaling,
    scale: Id,
    inverse: Id,
    good: Id,
    /// The joint norms of scaled gradients.
    norms: Vec<Id>,
}

/// Counts of skipped updates before a step: their states while the step is built.
#[derive(Debug)]
pub(crate) struct SkippedUpdates {
    /// Of all steps, and then of each objective that has its turns.
    all: Vec<Skips>,
    /// Of each objective, which of those counts for it.
    counts: Vec<usize>,
}

/// A count of due updates that were skipped.
#[derive(Debug)]
struct Skips {
    path: String,
    leaf: Id,
    /// Whether it is due in this step; `None` where it always is.
    due: Option<Id>,
}

fn cursor(g: &mut Graph, name: &str) {
    g.cursor = Origin {
        class: Class::OptimizerState,
        phase: Phase::Update,
        name: name.into(),
        path: "loss_scale".into(),
        span: g.cursor.span,
        full: false,
        layer: false,
    };
}

/// A scalar state.
fn state(g: &mut Graph, name: &str, init: f64) -> (String, Id) {
    let path = format!("{PREFIX}{name}");
    cursor(g, &path);
    let leaf = InputOpKind::OptimizerState { path: path.clone(), init: Init::Constant(init) };
    (path, g.op(InputOp { input: leaf, ty: Type::new(DType::F32, []) }, &[]))
}

fn store(outputs: &mut Vec<StepOutput>, name: String, leaf: Id, id: Id) {
    outputs.push(StepOutput { name, id, kind: OutputKind::Next(leaf) });
}

impl SkippedUpdates {
    /// Adds the states. `turns` says of each objective whether only some steps update its parameters.
    pub(crate) fn new(g: &mut Graph, turns: impl Iterator<Item = bool>) -> SkippedUpdates {
        let mut all = Vec::new();
        let mut count = |name: &str| {
            let (path, leaf) = state(g, name, 0.0);
            all.push(Skips { path, leaf, due: None });
            all.len() - 1
        };
        count(SKIPS);
        let own = |(k, turn)| if turn { count(&format!("{SKIPS}_{}", k + 1)) } else { 0 };
        let counts: Vec<usize> = turns.enumerate().map(own).collect();
        SkippedUpdates { all, counts }
    }

    /// Updates of an objective that were skipped before this step; of all steps where none is named.
    pub(crate) fn before(&self, objective: Option<usize>) -> Id {
        self.all[objective.map_or(0, |k| self.counts[k])].leaf
    }

    /// An objective that has its turns is updated where `due` says so.
    pub(crate) fn in_turn(&mut self, objective: usize, due: Option<Id>) {
        if due.is_some() {
            self.all[self.counts[objective]].due = due;
        }
    }

    /// The next values of the states: unchanged, or one more if this step is `skipped` and would have updated.
    pub(crate) fn finish(self, g: &mut Graph, skipped: Option<Id>, outputs: &mut Vec<StepOutput>) {
        for Skips { path, leaf, due } in self.all {
            let Some(skipped) = skipped else {
                store(outputs, path, leaf, leaf);
                continue;
            };
            let more = match due {
                Some(due) => {
                    let zero = g.constant(0.0, DType::F32);
                    g.choose(due, skipped, zero)
                }
                None => skipped,
            };
            let next = g.sum_of(&[leaf, more]);
            store(outputs, path, leaf, next);
        }
    }
}

impl Scaler {
    /// Adds the states, and those of [`SkippedUpdates`].
    pub(crate) fn new(
        g: &mut Graph,
        settings: LossScaling,
        turns: impl Iterator<Item = bool>,
    ) -> (Scaler, SkippedUpdates) {
        let scale = state(g, VALUE, settings.scale).1;
        let good = state(g, GOOD, 0.0).1;
        let skips = SkippedUpdates::new(g, turns);
        cursor(g, "1 / loss_scale");
        let inverse = g.unary(&RECIP, scale);
        (Scaler { settings, scale, inverse, good, norms: Vec::new() }, skips)
    }

    /// The cotangent of a loss of a dtype.
    pub(crate) fn seed(&self, g: &mut Graph, dtype: DType) -> Id {
        g.cast(self.scale, dtype)
    }

    /// The factor that undoes the scale, in a dtype.
    pub(crate) fn inverse(&self, g: &mut Graph, dtype: DType) -> Id {
        g.cast(self.inverse, dtype)
    }

    /// The norm of the scaled gradients of an objective counts.
    pub(crate) fn watches(&mut self, norm: Id) {
        self.norms.push(norm);
    }

    /// If a gradient is not finite, all states stay unchanged, and the scale is halved. `kept` has the states that become another
    /// value instead.
    pub(crate) fn finish(
        self,
        g: &mut Graph,
        skips: SkippedUpdates,
        kept: &SortedMap<Id, Id>,
        outputs: &mut Vec<StepOutput>,
    ) {
        cursor(g, "loss_scale");
        let number = |g: &mut Graph, v: f64| g.constant(v, DType::F32);
        let finite = self.finite(g);
        for output in outputs.iter_mut() {
            let OutputKind::Next(leaf) = output.kind else { continue };
            if leaf != output.id {
                let origin = g.node(output.id).origin.clone();
                g.cursor = Origin { phase: Phase::Update, ..origin };
                output.id = g.choose(finite, output.id, kept.get(&leaf).copied().unwrap_or(leaf));
            }
        }
        cursor(g, "loss_scale");
        let (zero, one) = (number(g, 0.0), number(g, 1.0));
        let (half, two) = (number(g, 0.5), number(g, 2.0));
        let most = number(g, LossScaling::MOST);
        let growth = number(g, self.settings.growth);
        let count = g.sum_of(&[self.good, one]);
        let grows = g.binary(">=", count, growth);
        let doubled = g.product(&[self.scale, two]);
        let doubled = g.binary("min", doubled, most);
        let grown = g.choose(grows, doubled, self.scale);
        let halved = g.product(&[self.scale, half]);
        let scale = g.choose(finite, grown, halved);
        let counted = g.choose(grows, zero, count);
        let good = g.choose(finite, counted, zero);
        let skipped = g.choose(finite, zero, one);
        store(outputs, format!("{PREFIX}{VALUE}"), self.scale, scale);
        store(outputs, format!("{PREFIX}{GOOD}"), self.good, good);
        skips.finish(g, Some(skipped), outputs);
        for (name, id) in [(LOSS_SCALE, self.scale), (STEP_SKIPPED, skipped)] {
            outputs.push(StepOutput { name: name.into(), id, kind: OutputKind::Scalar });
        }
    }

    /// Whether all gradients are finite: their joint norm is no more than the greatest number.
    fn finite(&self, g: &mut Graph) -> Id {
        let norms: Vec<Id> = self.norms.iter().map(|n| g.cast(*n, DType::F32)).collect();
        match norms.is_empty() {
            true => g.constant(1.0, DType::Bool),
            false => {
                let norm = g.sum_of(&norms);
                let most = g.constant(f64::from(f32::MAX), DType::F32);
                // NaN is not.
                g.binary("<=", norm, most)
            }
        }
    }
}
