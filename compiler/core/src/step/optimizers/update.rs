//! Building blocks of the optimizers' updates.

use crate::declarations::{ParamDecl, Turn};
use crate::passes::squares::Squares;
use crate::step::step_graph::{OutputKind, StepOutput};
use meshwright_ops::{Class, Graph, Id, InputOp, InputOpKind, Kind, NEG, Origin, RECIP, Type};
use meshwright_plan::{DType, Dim, Init, Phase};

/// A parameter that is trained, with its gradient.
#[derive(Clone, Copy, Debug)]
pub struct Trained<'a> {
    /// The parameter.
    pub decl: &'a ParamDecl,
    /// Its gradient, clipped where the program says so; it has the parameter's dims.
    pub grad: Id,
}

/// Writes an update into a step graph.
#[derive(Debug)]
pub struct Update<'a> {
    g: &'a mut Graph,
    outputs: &'a mut Vec<StepOutput>,
    float: DType,
    dtype: DType,
    step: Option<Id>,
    turn: Option<InTurn>,
    /// Updates that were due and not made, because gradients were not finite.
    skips: Option<Id>,
}

/// The state that holds the moving average of a parameter: `PATH/ema`.
pub const AVERAGE: &str = "ema";

/// The origin of what belongs to the update of a parameter.
pub(crate) fn origin_of(decl: &ParamDecl) -> Origin {
    Origin {
        class: Class::OptimizerState,
        phase: Phase::Update,
        path: decl.path.as_str().into(),
        name: format!("update of {}", decl.path).into(),
        span: decl.span,
        full: false,
        layer: false,
    }
}

/// Updates that only some steps make.
#[derive(Clone, Copy, Debug)]
struct InTurn {
    /// Whether this step makes them.
    due: Id,
    /// Their number, with this step.
    count: Id,
}

impl<'a> Update<'a> {
    /// Writes into `g` and `outputs`; `float` is the arithmetic type of the program, `dtype` that of the parameters.
    pub fn new(g: &'a mut Graph, outputs: &'a mut Vec<StepOutput>, float: DType, dtype: DType) -> Self {
        Update { g, outputs, float, dtype, step: None, turn: None, skips: None }
    }

    /// The same, where `skips` earlier updates were not made: they do not count.
    pub(crate) fn skipping(self, skips: Option<Id>) -> Self {
        Update { skips, ..self }
    }

    /// Whether this step updates; `None` where every step does.
    pub(crate) fn is_due(&self) -> Option<Id> {
        self.turn.map(|t| t.due)
    }

    /// The same, where only some steps update: in all others parameters and moments stay as they are. What decides it
    /// belongs to the update of `p`.
    pub fn in_turn(mut self, turn: Option<Turn>, p: &Trained<'_>) -> Self {
        let Some(Turn { every, from: first }) = turn else { return self };
        self.of(p);
        let step = self.run_step();
        let (n, from, zero, one) = (
            self.number(every as f64, step),
            self.number(first as f64, step),
            self.number(0.0, step),
            self.number(1.0, step),
        );
        let since = self.minus(step, from);
        let rest = self.g.binary("%", since, n);
        let mut due = self.g.binary("==", rest, zero);
        if first > every {
            // Steps before the first lie a multiple of `every` before it, too.
            let begun = self.g.binary(">=", step, from);
            due = self.g.binary("and", due, begun);
        }
        let whole = self.g.binary("//", since, n);
        let count = self.sum(&[whole, one]);
        let count = self.made(count);
        // Before the first of them nothing is due; that number is then of no matter, but it must give no 1/0.
        let count = self.g.binary("max", count, one);
        self.turn = Some(InTurn { due, count });
        self
    }

    /// The new value of what is kept from step to step, where the step updates it.
    fn due(&mut self, old: Id, new: Id) -> Id {
        match self.turn {
            Some(turn) => self.g.choose(turn.due, new, old),
            None => new,
        }
    }

    /// The moving average `PATH/ema` of a parameter. It starts as the parameter does.
    pub fn average(&mut self, p: &Trained<'_>) -> Id {
        let Kind::Input(InputOpKind::Param { init, .. }) = self.g.node(p.decl.id).op.kind() else {
            panic!("internal error: the leaf of a parameter is none")
        };
        let dims = self.dims(p);
        self.state(p, AVERAGE, dims, init)
    }

    /// The graph. What is built in it belongs to the parameter last named by [`Update::of`].
    pub fn graph(&mut self) -> &mut Graph {
        self.g
    }

    /// Later values belong to the update of this parameter, and are placed as its moments are.
    pub fn of(&mut self, p: &Trained<'_>) {
        self.g.cursor = origin_of(p.decl);
    }

    /// The dims of a parameter.
    pub fn dims(&self, p: &Trained<'_>) -> Vec<Dim> {
        self.g.ty(p.decl.id).dims.clone()
    }

    /// A moment `PATH/which` of the parameter's dims, which starts at 0.
    pub fn moment(&mut self, p: &Trained<'_>, which: &str) -> Id {
        let dims = self.dims(p);
        self.moment_over(p, which, dims)
    }

    /// A moment `PATH/which` of some dims, which starts at 0.
    pub fn moment_over(&mut self, p: &Trained<'_>, which: &str, dims: Vec<Dim>) -> Id {
        self.state(p, which, dims, Init::Constant(0.0))
    }

    fn state(&mut self, p: &Trained<'_>, which: &str, dims: Vec<Dim>, init: Init) -> Id {
        let ty = Type::new(self.g.ty(p.decl.id).dtype, dims);
        let path = format!("{}/{which}", p.decl.path);
        let keep = std::mem::replace(&mut self.g.cursor.name, path.as_str().into());
        let leaf = InputOpKind::OptimizerState { path, init };
        let id = self.g.op(InputOp { input: leaf, ty }, &[]);
        self.g.cursor.name = keep;
        id
    }

    /// Says what the moment `PATH/which` with leaf `leaf` is in the next step.
    pub fn next_moment(&mut self, p: &Trained<'_>, which: &str, leaf: Id, id: Id) {
        let name = format!("{}/{which}", p.decl.path);
        let id = self.due(leaf, id);
        self.outputs.push(StepOutput { name, id, kind: OutputKind::Next(leaf) });
    }

    /// Says what a parameter is in the next step: itself less the product of `step`.
    pub fn descend(&mut self, p: &Trained<'_>, step: &[Id]) {
        let s = self.product(step);
        let id = self.minus(p.decl.id, s);
        let id = self.due(p.decl.id, id);
        self.outputs.push(StepOutput { name: p.decl.path.clone(), id, kind: OutputKind::Next(p.decl.id) });
    }

    /// The number of the update, from 1: that of the step, where every step updates.
    pub fn step_number(&mut self) -> Id {
        match self.turn {
            Some(turn) => turn.count,
            None => {
                let step = self.run_step();
                self.made(step)
            }
        }
    }

    /// The number of updates without skipped ones.
    fn made(&mut self, count: Id) -> Id {
        let Some(skips) = self.skips else { return count };
        let skips = self.g.cast(skips, self.g.ty(count).dtype);
        self.minus(count, skips)
    }

    /// The number of the step, from 1.
    fn run_step(&mut self) -> Id {
        if let Some(id) = self.step {
            return id;
        }
        // A learning-rate schedule may have made it.
        let existing =
            self.g.ids().find(|i| self.g.node(*i).op.kind() == Kind::Input(InputOpKind::StepNumber));
        let id = existing.unwrap_or_else(|| {
            let keep = std::mem::replace(&mut self.g.cursor.name, "step".into());
            let id =
                self.g.op(InputOp { input: InputOpKind::StepNumber, ty: Type::new(self.float, []) }, &[]);
            self.g.cursor.name = keep;
            id
        });
        let id = self.g.cast(id, self.dtype);
        self.step = Some(id);
        id
    }

    /// `step + decay * p`; `step` where there is no decay or it spares the parameter.
    pub fn decayed(&mut self, step: Id, p: &Trained<'_>, decay: Option<Id>) -> Id {
        match decay {
            Some(decay) if !p.decl.no_decay => {
                let pull = self.product(&[decay, p.decl.id]);
                self.sum(&[step, pull])
            }
            _ => step,
        }
    }

    /// `beta * old + (1 - beta) * product(new)`.
    pub fn mixed(&mut self, beta: Id, old: Id, new: &[Id]) -> Id {
        let rest = self.complement(beta);
        let kept = self.product(&[beta, old]);
        let added = self.product(&[&[rest], new].concat());
        self.sum(&[kept, added])
    }

    /// The factor that undoes the bias of an average that started at 0: `1 / (1 - beta^t)`, `t` the number of the step
    /// (Kingma & Ba 2015, section 3).
    pub fn correction(&mut self, beta: Id, t: Id) -> Id {
        let power = self.g.binary("pow", beta, t);
        let rest = self.complement(power);
        self.g.unary(&RECIP, rest)
    }

    /// `1 - x`.
    pub fn complement(&mut self, x: Id) -> Id {
        let one = self.number(1.0, x);
        self.minus(one, x)
    }

    /// `a - b`.
    pub fn minus(&mut self, a: Id, b: Id) -> Id {
        let n = self.g.unary(&NEG, b);
        self.sum(&[a, n])
    }

    /// The sum of several values.
    pub fn sum(&mut self, x: &[Id]) -> Id {
        self.g.sum_of(x)
    }

    /// The product of several values, broadcast by name.
    pub fn product(&mut self, x: &[Id]) -> Id {
        self.g.product(x)
    }

    /// The dims of one parameter: those of loops, along which there are many, are left out.
    pub fn own_dims(&self, p: &Trained<'_>) -> Vec<Dim> {
        self.dims(p).split_off(p.decl.stack)
    }

    /// The sums of squares of all elements of a whole value of a parameter, split or not: of each parameter in a loop.
    pub(crate) fn squares(&mut self, p: &Trained<'_>, x: Id) -> Squares {
        let mut loops = self.dims(p);
        loops.truncate(p.decl.stack);
        Squares::of(self.g, x, &loops)
    }

    /// A number of the dtype of `like`.
    pub fn number(&mut self, v: f64, like: Id) -> Id {
        let dtype = self.g.ty(like).dtype;
        self.g.constant(v, dtype)
    }
}
