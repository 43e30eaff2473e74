//! Passes over a row. A reduction needs all elements of a row, so values that depend on it are computed in a later pass. Values
//! that are equal for all elements of a row are computed once, before the pass.

use super::super::map::MapOperand;
use super::super::scalar::ScalarProgram;
use super::expr::{FOLDS, ResultOf, RowExpr};
use meshwright_plan::DType;
use meshwright_plan::expr::{Expr, Reg, Scalar, UnaryFn};
use meshwright_sorted::{SortedMap, SortedSet};
use serde::{Deserialize, Serialize};

/// Most values kept for an element: more would leave a thread registers for too few elements.
const MOST_HELD: usize = 8;

/// Source of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RowSource {
    /// An operand, by number.
    Operand(usize),
    /// A value of the element that the thread has kept.
    Held(usize),
    /// A value of the row.
    Value(usize),
    /// The result of a reduction.
    Fold(usize),
}

/// Destination of a computed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RowTarget {
    /// A value of the element that the thread keeps, by place.
    Hold(usize),
    /// A value of the row, by number.
    Value(usize),
    /// An operand of a reduction along the row, by number.
    Fold(usize),
    /// A result of the group.
    Result(usize),
    /// A sum over all rows.
    Column(usize),
}

/// Values that a pass computes together, with their sources and destinations.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowPart {
    /// Functions that compute the values.
    pub program: ScalarProgram,
    /// Sources, in the order in which the program loads them.
    pub loads: Vec<RowSource>,
    /// Destination of each result of the program.
    pub targets: Vec<RowTarget>,
}

/// A pass over a row. Either part may be empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowPass {
    /// Values of the row, computed once before its elements.
    pub row: RowPart,
    /// Values of each element.
    pub elements: RowPart,
}

impl RowPass {
    fn parts(&self) -> impl Iterator<Item = &RowPart> {
        [&self.row, &self.elements].into_iter()
    }

    pub(crate) fn has_positions(&self) -> bool {
        self.parts().any(|part| part.program.has_positions())
    }

    /// Whether it ends a fold.
    pub fn folds(&self, fold: usize) -> bool {
        self.parts().any(|part| part.targets.contains(&RowTarget::Fold(fold)))
    }

    pub(crate) fn reads(&self, operand: usize) -> bool {
        self.parts().any(|part| part.loads.contains(&RowSource::Operand(operand)))
    }

    pub(crate) fn writes(&self, result: usize) -> bool {
        self.parts().any(|part| part.targets.contains(&RowTarget::Result(result)))
    }
}

/// Values that threads keep of their elements from pass to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    Nothing,
    /// Loads and results of steps that a later pass needs.
    Elements,
    /// Values that take many instructions, such as exponentials, are also kept.
    Costly,
}

/// The passes of a group.
pub(crate) struct Passes {
    pub passes: Vec<RowPass>,
    /// Number of values of an element that a thread keeps at once.
    pub held: usize,
    /// Number of values of a row that a thread keeps.
    pub values: usize,
}

/// Facts about a register.
#[derive(Clone, Copy, Default)]
struct Known {
    /// The pass in which it can be computed.
    pass: usize,
    /// Whether it is the same for all elements of a row, and whether it is the same everywhere.
    of_row: bool,
    constant: bool,
}

struct Planner<'a> {
    of: &'a RowExpr,
    known: Vec<Known>,
    half: Option<DType>,
    /// Registers of the values kept of each element, and indices of the values of a row.
    held: SortedMap<Reg, usize>,
    places: usize,
    values: SortedMap<Reg, usize>,
}

impl Passes {
    /// Splits an expression into passes; none if kernels lack a function. `rows` of the operands' dims are dims of the
    /// rows.
    pub(crate) fn of(
        of: &RowExpr,
        (rows, operands): (usize, &[MapOperand]),
        (half, keeping): (Option<DType>, Keeping),
    ) -> Option<Passes> {
        let mut planner = Planner {
            of,
            known: known(of, rows, operands)?,
            half,
            held: SortedMap::new(),
            places: 0,
            values: SortedMap::new(),
        };
        // A value of the row cannot be an element's.
        let of_rows = |reg: Reg| planner.known[usize::from(reg)].of_row;
        if of.results.iter().any(|r| r.of == ResultOf::Rows && !of_rows(r.reg)) {
            return None;
        }
        let last = planner.last_pass();
        planner.find_values(last);
        if keeping != Keeping::Nothing {
            planner.find_held(last, keeping);
        }
        if planner.places > MOST_HELD {
            return None;
        }
        let mut kept = SortedSet::new();
        let passes: Option<Vec<RowPass>> = (0..=last).map(|pass| planner.pass(pass, &mut kept)).collect();
        Some(Passes { passes: passes?, held: planner.places, values: planner.values.len() })
    }
}

fn known(of: &RowExpr, rows: usize, operands: &[MapOperand]) -> Option<Vec<Known>> {
    let mut all: Vec<Known> = vec![];
    for node in &of.expr.nodes {
        all.push(match node.scalar {
            Scalar::Load(n) if n >= FOLDS => {
                let (_, reg) = of.folds.get(usize::from(n - FOLDS))?;
                Known { pass: all.get(usize::from(*reg))?.pass + 1, of_row: true, constant: false }
            }
            Scalar::Load(n) => {
                let of_row = match operands.get(usize::from(n))? {
                    MapOperand::Tensor { dims, .. } => dims[rows..].iter().all(Option::is_none),
                    MapOperand::Drawn(_) => false,
                };
                Known { pass: 0, of_row, constant: false }
            }
            Scalar::Const(_) => Known { pass: 0, of_row: true, constant: true },
            Scalar::Index(dim) => Known { pass: 0, of_row: usize::from(dim) < rows, constant: false },
            other => {
                let reads = other.reads();
                let mut node = Known { pass: 0, of_row: true, constant: true };
                for read in reads {
                    let of = all.get(usize::from(read))?;
                    node.pass = node.pass.max(of.pass);
                    node.of_row &= of.of_row;
                    node.constant &= of.constant;
                }
                node
            }
        });
    }
    Some(all)
}

impl Planner<'_> {
    fn known(&self, reg: Reg) -> Known {
        self.known[usize::from(reg)]
    }

    fn scalar(&self, reg: Reg) -> Scalar {
        self.of.expr.nodes[usize::from(reg)].scalar
    }

    /// Computed values of a pass with their destinations, except kept ones.
    fn elements_of(&self, pass: usize) -> Vec<(Reg, RowTarget)> {
        let folds = self.of.folds.iter().enumerate().map(|(k, (_, reg))| (*reg, RowTarget::Fold(k)));
        let results = self.results(ResultOf::Elements).map(|(k, reg)| (reg, RowTarget::Result(k)));
        let columns = self.results(ResultOf::Columns).enumerate();
        let columns = columns.map(|(k, (_, reg))| (reg, RowTarget::Column(k)));
        folds.chain(results).chain(columns).filter(|(reg, _)| self.known(*reg).pass == pass).collect()
    }

    fn results(&self, of: ResultOf) -> impl Iterator<Item = (usize, Reg)> {
        self.of.results.iter().enumerate().filter(move |(_, r)| r.of == of).map(|(k, r)| (k, r.reg))
    }

    fn row_results(&self) -> impl Iterator<Item = (usize, Reg)> {
        self.results(ResultOf::Rows)
    }

    fn last_pass(&self) -> usize {
        let all = self.of.folds.iter().map(|f| f.1).chain(self.of.results.iter().map(|r| r.reg));
        all.map(|reg| self.known(reg).pass).max().unwrap_or(0)
    }

    /// Numbers the values of a row that elements need, or a later pass.
    fn find_values(&mut self, last: usize) {
        let mut wanted: SortedSet<Reg> = SortedSet::new();
        let mut open: Vec<Reg> =
            (0..=last).flat_map(|pass| self.elements_of(pass)).map(|(reg, _)| reg).collect();
        let mut seen: SortedSet<Reg> = SortedSet::new();
        open.extend(self.row_results().map(|(_, reg)| reg));
        for reg in &open {
            let known = self.known(*reg);
            if known.of_row && !known.constant && !self.row_results().any(|r| r.1 == *reg) {
                wanted.insert(*reg);
            }
        }
        while let Some(reg) = open.pop() {
            if !seen.insert(reg) {
                continue;
            }
            for read in self.scalar(reg).reads() {
                let (of, by) = (self.known(read), self.known(reg));
                if of.of_row && !of.constant && (!by.of_row || by.pass > of.pass) {
                    wanted.insert(read);
                }
                open.push(read);
            }
        }
        // The result of a reduction exists already.
        wanted.retain(|reg| !matches!(self.scalar(*reg), Scalar::Load(n) if n >= FOLDS));
        self.values = wanted.into_iter().enumerate().map(|(number, reg)| (reg, number)).collect();
    }

    /// Assigns registers to kept values: a register is free again in the pass that reads it last, before the pass keeps
    /// another.
    fn find_held(&mut self, last: usize, keeping: Keeping) {
        let candidate = |reg: Reg| {
            let found = match self.scalar(reg) {
                Scalar::Load(_) => true,
                Scalar::Unary(f, _) if keeping == Keeping::Costly && is_costly(f) => true,
                _ => self.of.steps.contains(&reg),
            };
            found && !self.known(reg).of_row
        };
        // The pass that makes each, and the last one that reads it.
        let (mut made, mut read) = (SortedMap::new(), SortedMap::new());
        for pass in 0..=last {
            let mut open: Vec<Reg> = self.elements_of(pass).into_iter().map(|(reg, _)| reg).collect();
            let mut seen: SortedSet<Reg> = SortedSet::new();
            while let Some(reg) = open.pop() {
                if !seen.insert(reg) || self.known(reg).of_row {
                    continue;
                }
                if candidate(reg) && *made.entry(reg).or_insert(pass) < pass {
                    read.insert(reg, pass);
                    continue;
                }
                open.extend(self.scalar(reg).reads());
            }
        }
        let mut held: Vec<(usize, usize, Reg)> =
            read.into_iter().map(|(reg, last)| (made[&reg], last, reg)).collect();
        held.sort_unstable();
        // The last pass that reads each register.
        let mut places: Vec<usize> = vec![];
        for (made, last, reg) in held {
            let place = places.iter().position(|end| *end <= made).unwrap_or_else(|| {
                places.push(0);
                places.len() - 1
            });
            places[place] = last;
            self.held.insert(reg, place);
        }
        self.places = places.len();
    }

    /// `kept` are the values that earlier passes keep.
    fn pass(&self, pass: usize, kept: &mut SortedSet<Reg>) -> Option<RowPass> {
        let of_pass = |reg: Reg| self.known(reg).pass == pass;
        let values = self.values.iter().filter(|(reg, _)| of_pass(**reg));
        let results = self.row_results().filter(|(_, reg)| of_pass(*reg));
        let of_row: Vec<(Reg, RowTarget)> = (values.map(|(reg, k)| (*reg, RowTarget::Value(*k))))
            .chain(results.map(|(k, reg)| (reg, RowTarget::Result(k))))
            .collect();
        let row = self.part(&of_row, |reg| match self.scalar(reg) {
            Scalar::Load(n) => Some(loaded(n)),
            _ if self.known(reg).pass < pass => self.values.get(&reg).map(|k| RowSource::Value(*k)),
            _ => None,
        })?;
        let mut elements = self.elements_of(pass);
        let source = |kept: &SortedSet<Reg>, reg: Reg| match self.scalar(reg) {
            _ if kept.contains(&reg) => Some(RowSource::Held(self.held[&reg])),
            Scalar::Load(n) if n >= FOLDS => Some(loaded(n)),
            _ if self.values.contains_key(&reg) => Some(RowSource::Value(self.values[&reg])),
            Scalar::Load(n) => Some(loaded(n)),
            _ => None,
        };
        // Intermediate values that a later pass needs.
        let needed = self.needed(&elements, |reg| source(kept, reg).is_some());
        let new: Vec<Reg> =
            needed.into_iter().filter(|r| self.held.contains_key(r) && !kept.contains(r)).collect();
        elements.extend(new.iter().map(|reg| (*reg, RowTarget::Hold(self.held[reg]))));
        let elements = self.part(&elements, |reg| source(kept, reg))?;
        kept.extend(new);
        Some(RowPass { row, elements })
    }

    /// The registers that are computed for some, those included, down to where something ends the way.
    fn needed(&self, wanted: &[(Reg, RowTarget)], ends: impl Fn(Reg) -> bool) -> SortedSet<Reg> {
        let mut found = SortedSet::new();
        let mut open: Vec<Reg> = wanted.iter().map(|(reg, _)| *reg).collect();
        while let Some(reg) = open.pop() {
            if found.insert(reg) && !ends(reg) {
                open.extend(self.scalar(reg).reads());
            }
        }
        found
    }

    /// Program for these registers; `source` gives the origin of others. None if kernels lack a function.
    fn part(
        &self,
        wanted: &[(Reg, RowTarget)],
        source: impl Fn(Reg) -> Option<RowSource>,
    ) -> Option<RowPart> {
        let (mut expr, mut loads, mut at) = (Expr::default(), vec![], SortedMap::new());
        for reg in self.needed(wanted, |reg| source(reg).is_some()) {
            let node = self.of.expr.nodes[usize::from(reg)];
            let new = match source(reg) {
                Some(source) => {
                    let known = loads.iter().position(|l| *l == source).unwrap_or_else(|| {
                        loads.push(source);
                        loads.len() - 1
                    });
                    expr.push(Scalar::Load(known as u16), node.dtype)
                }
                None => expr.push(node.scalar.map_reads(|r| at[&r]), node.dtype),
            };
            at.insert(reg, new);
        }
        let results: Vec<Reg> = wanted.iter().map(|(reg, _)| at[reg]).collect();
        let program = ScalarProgram::of_several(&expr, &results, self.half.unwrap_or(DType::BF16))?;
        let program = if self.half.is_some() { program.beside_halves() } else { program };
        Some(RowPart { program, loads, targets: wanted.iter().map(|w| w.1).collect() })
    }
}

fn loaded(n: u16) -> RowSource {
    if n >= FOLDS { RowSource::Fold(usize::from(n - FOLDS)) } else { RowSource::Operand(usize::from(n)) }
}

/// Whether a function takes a GPU more instructions than keeping its result.
fn is_costly(f: UnaryFn) -> bool {
    use UnaryFn::{Abs, Ceil, Floor, Neg, Not, Relu, Round, Sign};
    !matches!(f, Abs | Ceil | Floor | Neg | Not | Relu | Round | Sign)
}
