//! Settings of optimizers: what each may be, and what was chosen.

use meshwright_ops::{Graph, Id};
use meshwright_plan::DType;
use meshwright_sorted::SortedMap;

/// Range of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// 0 or more.
    NotNegative,
    /// More than 0.
    Positive,
    /// At least 0, less than 1.
    Decay,
}

impl Range {
    /// Whether a number is in it.
    pub fn has(self, v: f64) -> bool {
        match self {
            Range::NotNegative => v >= 0.0,
            Range::Positive => v > 0.0,
            Range::Decay => (0.0..1.0).contains(&v),
        }
    }

    /// `must be …`.
    pub fn text(self) -> &'static str {
        match self {
            Range::NotNegative => "must be 0 or more",
            Range::Positive => "must be more than 0",
            Range::Decay => "must be at least 0 and less than 1",
        }
    }
}

/// Values that a setting accepts, with its default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accepts {
    /// A number in the range or a scalar of the graph, such as a learning-rate schedule; required where there is no default.
    Scalar(Range, Option<f64>),
    /// The same, or `false` for none.
    ScalarOrOff(Range, Option<f64>),
    /// `true` or `false`.
    Flag(bool),
    /// A whole number, 0 or more, known at compile time.
    Count(usize),
}

/// A setting of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Its values.
    pub accepts: Accepts,
}

impl Setting {
    /// A number, or an expression of the step.
    pub(super) const fn scalar(name: &'static str, range: Range, default: f64) -> Setting {
        Setting { name, accepts: Accepts::Scalar(range, Some(default)) }
    }

    /// A number, or an expression of the step, that must be given.
    pub(super) const fn required(name: &'static str, range: Range) -> Setting {
        Setting { name, accepts: Accepts::Scalar(range, None) }
    }

    /// As [`Setting::scalar`], and `false` switches it off.
    pub(super) const fn or_off(name: &'static str, range: Range, default: f64) -> Setting {
        Setting { name, accepts: Accepts::ScalarOrOff(range, Some(default)) }
    }

    /// A switch.
    pub(super) const fn flag(name: &'static str, default: bool) -> Setting {
        Setting { name, accepts: Accepts::Flag(default) }
    }

    /// A whole number.
    pub(super) const fn count(name: &'static str, default: usize) -> Setting {
        Setting { name, accepts: Accepts::Count(default) }
    }

    /// Whether a call must give it.
    pub fn is_required(&self) -> bool {
        matches!(self.accepts, Accepts::Scalar(_, None) | Accepts::ScalarOrOff(_, None))
    }
}

/// Value of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Chosen {
    /// A scalar of the graph, with its value where that is known now.
    Scalar(Id, Option<f64>),
    /// None.
    Off,
    /// A switch.
    Flag(bool),
    /// A whole number.
    Count(usize),
}

/// Values of all settings of an optimizer, and which of them were written.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    all: SortedMap<&'static str, (Chosen, bool)>,
}

impl Choices {
    /// Chooses; `written` says that the file does, and not the default.
    pub fn choose(&mut self, name: &'static str, chosen: Chosen, written: bool) {
        self.all.insert(name, (chosen, written));
    }

    /// The same with scalars of a dtype: parameters of another dtype than the program's are updated in their own.
    pub fn cast(&self, g: &mut Graph, dtype: DType) -> Choices {
        let mut out = self.clone();
        for (chosen, _) in out.all.values_mut() {
            let Chosen::Scalar(id, known) = chosen else { continue };
            if g.ty(*id).dtype == dtype {
                continue;
            }
            g.cursor = g.node(*id).origin.clone();
            *id = match known {
                Some(v) => g.constant(*v, dtype),
                None => g.cast(*id, dtype),
            };
        }
        out
    }

    fn get(&self, name: &str) -> Chosen {
        match self.all.get(name) {
            Some((chosen, _)) => *chosen,
            None => panic!("internal error: the optimizer has no setting `{name}`"),
        }
    }

    /// Whether the file says it.
    pub fn written(&self, name: &str) -> bool {
        self.all.get(name).is_some_and(|c| c.1)
    }

    /// A scalar.
    pub fn scalar(&self, name: &str) -> Id {
        match self.get(name) {
            Chosen::Scalar(id, _) => id,
            other => panic!("internal error: `{name}` is no scalar but {other:?}"),
        }
    }

    /// A scalar; `None` where it is off, or known to be 0.
    pub fn nonzero(&self, name: &str) -> Option<Id> {
        match self.get(name) {
            Chosen::Off | Chosen::Scalar(_, Some(0.0)) => None,
            _ => Some(self.scalar(name)),
        }
    }

    /// All scalars, by name.
    pub fn scalars(&self) -> impl Iterator<Item = (&'static str, Id)> {
        self.all.iter().filter_map(|(name, (chosen, _))| match chosen {
            Chosen::Scalar(id, _) => Some((*name, *id)),
            _ => None,
        })
    }

    /// A setting that is of another kind in `other`, or a switch that stands otherwise: what cannot differ by position.
    pub(super) fn apart(&self, other: &Choices) -> Option<&'static str> {
        let scalar = |c: Chosen| matches!(c, Chosen::Scalar(..));
        // Adafactor's rate falls by itself where none is written.
        let rate = |name: &str| ["lr", "relative_step"].contains(&name);
        let pairs = self.all.iter().filter_map(|(name, mine)| Some((*name, *mine, *other.all.get(name)?)));
        let mut apart = pairs.filter(|(name, mine, theirs)| {
            let numbers = scalar(mine.0) && scalar(theirs.0);
            !numbers && mine.0 != theirs.0 || rate(name) && mine.1 != theirs.1
        });
        apart.next().map(|p| p.0)
    }

    /// These settings, and those of `other` where `holds` is true.
    pub(crate) fn chosen_where(&self, holds: Id, other: &Choices, g: &mut Graph) -> Choices {
        let mut out = self.clone();
        for (name, (chosen, _)) in &mut out.all {
            let (Chosen::Scalar(mine, known), Some((Chosen::Scalar(theirs, number), _))) =
                (*chosen, other.all.get(name))
            else {
                continue;
            };
            if mine != *theirs && (known.is_none() || known != *number) {
                *chosen = Chosen::Scalar(g.choose(holds, *theirs, mine), None);
            }
        }
        out
    }

    /// The same with another number for a setting that is not off, where `holds` is true.
    pub(crate) fn set_where(&self, holds: Id, name: &'static str, number: f64, g: &mut Graph) -> Choices {
        let mut out = self.clone();
        if let (Some(id), Some((chosen, _))) = (self.nonzero(name), out.all.get_mut(name)) {
            let number = g.constant(number, g.ty(id).dtype);
            *chosen = Chosen::Scalar(g.choose(holds, number, id), None);
        }
        out
    }

    /// A switch.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Chosen::Flag(true))
    }

    /// A whole number.
    pub fn count(&self, name: &str) -> usize {
        match self.get(name) {
            Chosen::Count(n) => n,
            other => panic!("internal error: `{name}` is no count but {other:?}"),
        }
    }
}

/// A setting that contradicts others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Which one.
    pub setting: &'static str,
    /// The error.
    pub text: &'static str,
    /// Said at its place.
    pub label: &'static str,
    /// Its fix.
    pub help: &'static str,
}
