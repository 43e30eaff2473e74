//! The graph of new positions, made of that of whole sequences.

use crate::step::step_graph::{OutputKind, StepOutput};
use meshwright_ops::{
    Class, Contract, Crossing, DynamicUpdateSlice, Expand, Graph, Id, InRange, Index, InputOp, InputOpKind,
    Kind, Node, Op, Origin, Rename, Role, Source, Type,
};
use meshwright_plan::{DType, Dim, IdVec, Init};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// Why a value cannot be decoded: a place, and words.
pub(super) type Refusal = (Option<Id>, String);

/// That each op computes every position along `seq` by itself, or gives positions another name.
pub(super) fn each_position_by_itself(g: &Graph, seq: Dim) -> Result<(), Refusal> {
    let name = g.dims.name(seq);
    for id in g.ids() {
        let node = g.node(id);
        let kind = node.op.kind();
        if kind == Kind::Rematerializable(Source::Random) {
            return Err((Some(id), "this is drawn anew in each step".into()));
        }
        if !node.ty.has(seq) && !g.input_types(id).iter().any(|t| t.has(seq)) {
            continue;
        }
        let whole = || Err((Some(id), format!("`{}` needs other positions along `{name}`", node.op.name())));
        match kind {
            Kind::Rename { from, .. } if from == seq => continue,
            Kind::Rematerializable(Source::Position)
                if node.op.as_any().downcast_ref::<Index>().is_none() =>
            {
                return whole();
            }
            _ => {}
        }
        let roles = node.op.roles(&g.input_types(id), &node.ty, &g.dims);
        for l in &roles.loops {
            let elsewhere = l.on.iter().flatten().any(|on| (*on == seq) != (l.dim == seq));
            let windows = l.dim == seq && l.windows.iter().any(Option::is_some);
            if elsewhere || windows || (l.dim == seq && l.role != Role::Parallel) {
                return whole();
            }
        }
        let looped = |t: &Type| t.has(seq) && roles.get(seq).is_none();
        if looped(&node.ty) || g.input_types(id).into_iter().any(looped) {
            return whole();
        }
    }
    Ok(())
}

/// The dims of positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence {
    /// Along which a model sees a sequence, of the size of the new positions.
    pub(super) seq: Dim,
    /// Of the size that `seq` had.
    pub(super) whole: Dim,
    /// The new positions on their way into a cache.
    pub(super) fresh: Dim,
}

pub(super) struct Rebuild<'a> {
    old: &'a Graph,
    pub(super) new: Graph,
    pub(super) seq: Dim,
    whole: Dim,
    fresh: Dim,
    /// The dims that count sequences.
    rows: Vec<Dim>,
    /// The new id of each value.
    now: IdVec<Id, Option<Id>>,
    start: Id,
    /// Prefix of states.
    pub(super) kept_as: &'static str,
    /// The new positions.
    positions: Option<Id>,
    /// The dims that `seq` is renamed to.
    pub(super) keys: SortedSet<Dim>,
    /// States by value and dim, so that each exists once.
    kept: SortedMap<(Id, Dim), Id>,
    /// The next values of what is kept.
    pub(super) next: Vec<StepOutput>,
}

impl<'a> Rebuild<'a> {
    pub(super) fn new(
        old: &'a Graph,
        mut new: Graph,
        Sequence { seq, whole, fresh }: Sequence,
        rows: Vec<Dim>,
        start: Id,
    ) -> Self {
        new.repeats = old.repeats.clone();
        Rebuild {
            old,
            new,
            seq,
            whole,
            fresh,
            rows,
            now: old.nodes.table(None),
            start,
            kept_as: "cache",
            positions: None,
            keys: SortedSet::new(),
            kept: SortedMap::new(),
            next: Vec::new(),
        }
    }

    /// The new id of a value.
    pub(super) fn now(&self, id: Id) -> Id {
        self.now[id].unwrap_or_else(|| panic!("internal error: {} is not made", self.old.describe(id)))
    }

    pub(super) fn all(&mut self) -> Result<(), Refusal> {
        for id in self.old.ids() {
            let made = self.value(id)?;
            self.now[id] = Some(made);
        }
        for of in self.old.repeats.ids() {
            let mut carries = Vec::new();
            for (carry, next) in &self.old.repeats[of].carries {
                let (now, then) = (self.now(*carry), self.now(*next));
                if !same_dims(&self.new.ty(now).dims, &self.new.ty(then).dims) {
                    return Err((
                        Some(*next),
                        "a loop carries it, and it is not of one sequence at first".into(),
                    ));
                }
                carries.push((now, then));
            }
            self.new.repeats[of].carries = carries;
        }
        Ok(())
    }

    fn value(&mut self, id: Id) -> Result<Id, Refusal> {
        let node = self.old.node(id);
        self.new.cursor = node.origin.clone();
        self.new.scope = node.scope;
        match node.op.kind() {
            Kind::Rename { from, to } if from == self.seq => self.past(id, to),
            Kind::Input(_) => self.leaf(id),
            Kind::Rematerializable(Source::Position) if node.ty.has(self.seq) => Ok(self.positions()),
            _ => self.computed(id),
        }
    }

    /// An op on the new operands. Where positions depend on the sequence, more values are of one sequence than before: all that
    /// have the dim `seq`.
    fn computed(&mut self, id: Id) -> Result<Id, Refusal> {
        let node = self.old.node(id);
        let inputs: Vec<Id> = node.inputs.iter().map(|x| self.now(*x)).collect();
        let had = |d: Dim| node.inputs.iter().any(|x| self.old.ty(*x).has(d));
        let has = |d: Dim| inputs.iter().any(|x| self.new.ty(*x).has(d));
        let repeated = node.ty.has(self.seq) && !had(self.seq);
        let gains = |d: &Dim| !node.ty.has(*d) && (repeated || has(*d) && !had(*d));
        let more: Vec<Dim> = self.rows.iter().copied().filter(gains).collect();
        let op = with_dims(&node.op, &more);
        let made = self.new.add_op(op, &inputs).map_err(|e| (Some(id), e.to_string()))?;
        let wanted: Vec<Dim> = node.ty.dims.iter().chain(&more).copied().collect();
        if !same_dims(&self.new.ty(made).dims, &wanted) {
            let has = self.new.dims.list(&self.new.ty(made).dims);
            return Err((Some(id), format!("`{}` of single positions has the dims {has}", node.op.name())));
        }
        Ok(made)
    }

    fn leaf(&mut self, id: Id) -> Result<Id, Refusal> {
        let node = self.old.node(id);
        let Kind::Input(leaf) = node.op.kind() else { return self.computed(id) };
        let stays = !is_kept(self.old, id);
        let of = |d: Dim| if d == self.seq { self.whole } else { d };
        let dims = node.ty.dims.iter().map(|d| if stays { *d } else { of(*d) }).collect();
        let ty = Type { dtype: node.ty.dtype, dims, range: node.ty.range.map(of) };
        let made =
            self.new.push(Node { op: Arc::new(InputOp { input: leaf, ty: ty.clone() }), ty, ..node.clone() });
        if !self.new.ty(made).has(self.whole) {
            return Ok(made);
        }
        let at = self.positions();
        // What is read of a parameter is computed: a rule that says how parameters are stored does not speak of it.
        self.new.cursor.class = Class::Value;
        self.new.at(made, self.whole, at).map_err(|e| (Some(id), e.to_string()))
    }

    /// The new positions, of the whole sequences.
    fn positions(&mut self) -> Id {
        if let Some(known) = self.positions {
            return known;
        }
        let scope = self.new.scope.take();
        let computed = Origin { class: Class::Value, ..self.new.cursor.clone() };
        let cursor = std::mem::replace(&mut self.new.cursor, computed);
        let index = self.new.index(self.seq);
        let at = self.new.sum_of(&[self.start, index]);
        // Padding of a sequence may reach beyond its end.
        let last = self.new.constant(self.new.dims.size(self.whole) as f64 - 1.0, DType::I32);
        let at = self.new.binary("min", at, last);
        let at = self.new.op(InRange { dim: self.whole }, &[at]);
        (self.new.cursor, self.new.scope) = (cursor, scope);
        self.positions = Some(at);
        at
    }

    /// The result of `seq -> key`: the cache of earlier positions, with the new ones in their places.
    fn past(&mut self, id: Id, key: Dim) -> Result<Id, Refusal> {
        let source = self.old.node(id).inputs[0];
        if let Some(known) = self.kept.get(&(source, key)) {
            return Ok(*known);
        }
        let failed = |e: meshwright_ops::OpError| (Some(id), e.to_string());
        let fresh = self.now(source);
        // Whatever reads the value may read what is kept of it.
        let scope = self.new.node(fresh).scope;
        self.new.scope = scope;
        let ty = self.new.ty(fresh).clone();
        // Whatever is no float is exact in this.
        let dtype = if ty.dtype.is_float() { ty.dtype } else { DType::F64 };
        let fresh = self.new.cast(fresh, dtype);
        let renamed = ty.dims.iter().map(|d| if *d == self.seq { key } else { *d });
        let dims = distinct(self.rows.iter().copied().chain(renamed).collect());
        let (all, old) = self.kept_state(source, key, dims.clone(), dtype);
        self.keys.insert(key);
        let value = self.new.op(Rename { from: self.seq, to: self.fresh }, &[fresh]);
        let update = DynamicUpdateSlice { dim: key, from: self.fresh };
        let next = self.new.add_op(Arc::new(update), &[old, value, self.start]).map_err(failed)?;
        self.store(all, next);
        let read = self.new.cast(next, ty.dtype);
        let read = match ty.range {
            None => read,
            Some(d) => self.new.op(InRange { dim: if d == self.seq { self.whole } else { d } }, &[read]),
        };
        self.kept.insert((source, key), read);
        Ok(read)
    }

    /// A state of those dims, stacked along the loops that the cursor is in, and the element of this iteration.
    fn kept_state(&mut self, source: Id, key: Dim, dims: Vec<Dim>, dtype: DType) -> (Id, Id) {
        let scope = self.new.scope.take();
        let mut loops = Vec::new();
        let mut at = scope;
        while let Some(of) = at {
            loops.insert(0, of);
            at = self.new.repeats[of].parent;
        }
        let dims: Vec<Dim> = loops.iter().map(|of| self.new.repeats[*of].dim).chain(dims).collect();
        let (path, key) = (self.old.path(source), self.new.dims.name(key));
        let taken = |name: &str| self.next.iter().any(|n| n.name == name);
        let path = free(taken, format!("{path}/{}.{key}", self.kept_as));
        let leaf = InputOpKind::State { path: path.clone(), init: Init::Constant(0.0) };
        let cursor = Origin { class: Class::Value, name: path.as_str().into(), ..self.new.cursor.clone() };
        let cursor = std::mem::replace(&mut self.new.cursor, cursor);
        let all = self.new.op(InputOp { input: leaf, ty: Type::new(dtype, dims) }, &[]);
        self.new.cursor = cursor;
        self.next.push(StepOutput { name: path, id: all, kind: OutputKind::Next(all) });
        let mine = loops.iter().fold(all, |x, of| self.new.cross(*of, Crossing::Slice, x));
        self.new.scope = scope;
        (all, mine)
    }

    /// Makes what is next for a state of [`Rebuild::kept_state`] out of what it is in each iteration.
    fn store(&mut self, all: Id, next: Id) {
        let mut next = next;
        let mut at = self.new.scope;
        while let Some(of) = at {
            next = self.new.cross(of, Crossing::Stack, next);
            at = self.new.repeats[of].parent;
        }
        for goal in self.next.iter_mut().filter(|g| g.kind == OutputKind::Next(all)) {
            goal.id = next;
        }
    }
}

pub(super) fn same_dims(a: &[Dim], b: &[Dim]) -> bool {
    a.len() == b.len() && a.iter().all(|d| b.contains(d))
}

fn distinct(dims: Vec<Dim>) -> Vec<Dim> {
    let mut out = Vec::new();
    for d in dims {
        if !out.contains(&d) {
            out.push(d);
        }
    }
    out
}

/// An op that says which dims its result has, with more of them.
fn with_dims(op: &Arc<dyn Op>, more: &[Dim]) -> Arc<dyn Op> {
    let any = op.as_any();
    if let Some(Contract { out }) = any.downcast_ref() {
        let out = distinct(out.iter().chain(more).copied().collect());
        return Arc::new(Contract { out });
    }
    if let Some(Expand { dims }) = any.downcast_ref() {
        return Arc::new(Expand { dims: distinct(dims.iter().chain(more).copied().collect()) });
    }
    op.clone()
}

/// A name that nothing has.
pub(super) fn free(taken: impl Fn(&str) -> bool, name: String) -> String {
    let mut name = name;
    while taken(&name) {
        name.push('_');
    }
    name
}

/// Whether a value is bound before the step, and kept after it.
fn is_kept(g: &Graph, id: Id) -> bool {
    matches!(g.node(id).op.kind(), Kind::Input(InputOpKind::Param { .. } | InputOpKind::State { .. }))
}
