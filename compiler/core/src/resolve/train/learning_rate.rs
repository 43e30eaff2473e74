//! The number of the step, and learning rates made of it.

use crate::resolve::Resolver;
use crate::resolve::call::args::Slot;
use crate::resolve::call::operand::Operand;
use crate::resolve::number::Num;
use crate::resolve::scope::Val;
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Id, InputOp, InputOpKind, Type, Value};
use meshwright_syntax::ast::Call;

/// Learning rates that depend on the step, with their parameters, and how many of those must be given.
pub(crate) const LEARNING_RATES: [(&str, &[&str], usize); 3] = [
    ("constant", &["value"], 1),
    ("warmup_linear", &["peak", "warmup", "total"], 3),
    ("warmup_cosine", &["peak", "warmup", "total", "floor"], 3),
];

/// Whether a name is that of such a learning rate.
pub(in crate::resolve) fn is_learning_rate(name: &str) -> bool {
    LEARNING_RATES.iter().any(|s| s.0 == name)
}

impl<'a> Resolver<'a> {
    /// The number of the step, a float from 1.
    pub(in crate::resolve) fn step_number(&mut self, at: Span) -> Id {
        if let Some(id) = self.step {
            return id;
        }
        self.point(at);
        self.graph.cursor.name = "step".into();
        let leaf = InputOp { input: InputOpKind::StepNumber, ty: Type::new(self.float, []) };
        let id = self.graph.op(leaf, &[]);
        self.step = Some(id);
        id
    }

    /// `warmup_linear(peak = 1e-4, warmup = 100, total = 1000)`.
    pub(in crate::resolve) fn learning_rate(&mut self, call: &'a Call, span: Span) -> Val {
        let name = call.name.text.as_str();
        let Some((_, names, required)) = LEARNING_RATES.iter().find(|s| s.0 == name) else {
            return Val::Poison;
        };
        let slots: Vec<Slot<'_>> =
            names.iter().enumerate().map(|(i, n)| Slot::built_in(n, i < *required)).collect();
        let Some(args) = self.bound(name, span, None, &slots, &call.args) else { return Val::Poison };
        let values: Vec<Option<Num>> = args
            .iter()
            .zip(*names)
            .map(|(e, n)| match e {
                Some(e) => self.konst(e, &format!("`{n}` of `{name}`")).map(|k| k.num()),
                None => Some(Num::int(0)),
            })
            .collect();
        let Some(v) = values.into_iter().collect::<Option<Vec<Num>>>() else { return Val::Poison };
        if name == "constant" {
            return Val::Konst(crate::resolve::number::Konst::Num(v[0]));
        }
        let (peak, warmup, total) = (v[0].f64(), v[1].f64(), v[2].f64());
        if warmup < 0.0 || total <= warmup {
            let (at, text) = match (args[1], args[2]) {
                (Some(w), _) if warmup < 0.0 => {
                    (w.span, format!("`warmup` is {}: it must be 0 or more", v[1]))
                }
                (_, Some(t)) => {
                    (t.span, format!("`total` is {}: it must be more than `warmup`, which is {}", v[2], v[1]))
                }
                _ => return Val::Poison,
            };
            let mut d = Diagnostic::error(codes::E0217, text).at(at, "counted in steps");
            if let Some(w) = args[1].filter(|w| w.span != at) {
                d = d.and(w.span, "the warm-up");
            }
            self.error(d);
            return Val::Poison;
        }
        let step = self.step_number(span);
        if name == "warmup_linear" {
            self.warmup_linear(step, peak, warmup, total, span)
        } else {
            self.warmup_cosine(step, peak, warmup, total, v[3].f64(), span)
        }
    }

    fn op(&mut self, name: &str, args: &[Val], span: Span) -> Val {
        let mut operands = Vec::new();
        for a in args {
            let value = match a {
                Val::Tensor(id) => Value::Tensor(*id),
                Val::Konst(k) => k.value(),
                _ => return Val::Poison,
            };
            operands.push(Operand::made(value, span));
        }
        self.build(name, &operands, span)
    }

    /// Rises in a straight line from 0 to `peak` at step `warmup`, and falls in one to 0 at step `total`.
    fn warmup_linear(&mut self, step: Id, peak: f64, warmup: f64, total: f64, span: Span) -> Val {
        let left = self.op("-", &[number(total), Val::Tensor(step)], span);
        let down = self.op("/", &[left, number(total - warmup)], span);
        let down = self.op("max", &[down, number(0.0)], span);
        let shape = if warmup > 0.0 {
            let up = self.op("/", &[Val::Tensor(step), number(warmup)], span);
            self.op("min", &[up, down], span)
        } else {
            down
        };
        self.op("*", &[shape, number(peak)], span)
    }

    /// Rises in a straight line from 0 to `peak` at step `warmup`, and falls along half a cosine to `floor` at step `total`.
    fn warmup_cosine(&mut self, step: Id, peak: f64, warmup: f64, total: f64, floor: f64, span: Span) -> Val {
        let past = self.op("-", &[Val::Tensor(step), number(warmup)], span);
        let part = self.op("/", &[past, number(total - warmup)], span);
        let part = self.op("max", &[part, number(0.0)], span);
        let part = self.op("min", &[part, number(1.0)], span);
        let cosine = self.cosine_of_half_turns(part, span);
        let high = self.op("+", &[cosine, number(1.0)], span);
        let fall = self.op("*", &[high, number((peak - floor) / 2.0)], span);
        let fall = self.op("+", &[fall, number(floor)], span);
        if warmup == 0.0 {
            return fall;
        }
        let rise = self.op("*", &[Val::Tensor(step), number(peak / warmup)], span);
        let rising = self.op("<", &[Val::Tensor(step), number(warmup)], span);
        self.op("where", &[rising, rise, fall], span)
    }

    /// `cos(pi * x)` for `x` in 0..1, as the sine of `pi * (0.5 - x)`: its Taylor series up to the 21st power is exact to
    /// the last bit of `f64` between plus and minus half of pi.
    fn cosine_of_half_turns(&mut self, x: Val, span: Span) -> Val {
        let minus = self.op("neg", &[x], span);
        let y = self.op("+", &[minus, number(0.5)], span);
        let t = self.op("*", &[y, number(std::f64::consts::PI)], span);
        let z = self.op("*", &[t.clone(), t.clone()], span);
        // Horner: 1 - z/(2*3) * (1 - z/(4*5) * (1 - …)).
        let mut sum = number(1.0);
        for k in (1..=10).rev() {
            let k = f64::from(k);
            let term = self.op("*", &[z.clone(), sum], span);
            let term = self.op("*", &[term, number(-1.0 / (2.0 * k * (2.0 * k + 1.0)))], span);
            sum = self.op("+", &[term, number(1.0)], span);
        }
        self.op("*", &[t, sum], span)
    }
}

fn number(v: f64) -> Val {
    Val::Konst(crate::resolve::number::Konst::Num(Num::real(v)))
}
