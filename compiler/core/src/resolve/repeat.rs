//! `repeat layers as i { … }` and `scan seq { … }`: loops. The body is resolved once; in it the dim of the loop is a single
//! position, at which values around the loop that have the dim are taken. Parameters in a `repeat` have a value for each
//! iteration; those in a `scan` are the same in all, and what it declares is collected.

use super::Resolver;
use super::expr::NotHeld;
use super::number::Konst;
use super::scope::{Local, OpenRepeat, Val};
use meshwright_diag::{Diagnostic, Span, codes};
use meshwright_ops::{Crossing, Id, Kind, RepeatId, Type};
use meshwright_plan::{DType, Dim};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_syntax::ast::{Expr, Name, Repeat, Statement, StatementKind};

/// The most loops in each other, as the runtime counts iterations.
const MOST_NESTED: usize = 8;

/// A name that is carried.
struct Carried<'a> {
    name: &'a str,
    /// Its first assignment.
    at: Span,
    /// Whether it starts as a number whose type is still looked for.
    number: bool,
    carry: Id,
    /// The state that it is, whose name is the state's value again behind the loop.
    state: Option<(usize, Val)>,
}

/// The numbers that a loop carries.
struct Numbers<'a> {
    /// Their types, as far as they are known.
    types: SortedMap<&'a str, Type>,
    pass: NumberPass,
}

/// Passes over a body that find the types of its numbers, in order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NumberPass {
    /// A number without a known type is a number in the body too, and takes the type of its other operands.
    AsNumbers,
    /// All numbers have a type: the known one, or the default of a number.
    Typed,
    /// A value of another type is an error.
    Last,
}

impl<'a> Resolver<'a> {
    pub(super) fn repeat(&mut self, r: &'a Repeat, span: Span) {
        let head = Span { end: r.dim.span.end, ..span };
        let dims = self.dims_named(&r.dim.text, r.dim.span);
        let dim = dims.and_then(|d| self.one_of(&d, &r.dim.text, r.dim.span));
        let dim = dim.filter(|d| self.not_open(*d, r.dim.span));
        let mut assigned = SortedMap::new();
        assignments(&r.body, &mut assigned);
        let (Some(dim), true) = (dim, self.can_carry(&assigned)) else {
            let names: Vec<&'a str> = assigned.into_keys().collect();
            names.into_iter().for_each(|n| self.poisoned_local(n));
            let declares = |s: &'a Statement| match &s.kind {
                StatementKind::Let { names, .. } if r.scan => names.as_slice(),
                _ => &[],
            };
            r.body.iter().for_each(|s| self.poison(declares(s)));
            return;
        };
        self.repeat_with_numbers(r, (dim, head), &assigned);
    }

    /// Resolves a loop again and again until the types of its numbers stay the same. A number takes the type of what it becomes,
    /// which is known once the body is resolved. Earlier passes leave no values and no errors.
    fn repeat_with_numbers(&mut self, r: &'a Repeat, head: (Dim, Span), assigned: &SortedMap<&'a str, Span>) {
        let mut numbers = Numbers { types: SortedMap::new(), pass: NumberPass::Last };
        let count = assigned.keys().filter(|n| self.is_number(n)).count();
        if count > 0 {
            let before = Box::new(self.clone());
            for pass in [NumberPass::AsNumbers, NumberPass::Typed] {
                numbers.pass = pass;
                // In `a = a + b, b = b + x` the type of `a` follows from that of `b`, one pass later.
                for _ in 0..=count {
                    let found = self.loop_once(r, head, assigned, &numbers);
                    let done = found.is_empty();
                    if done && pass == NumberPass::Typed {
                        return;
                    }
                    // Nested loops multiply the passes: they count as work, which has a limit.
                    let work = self.work;
                    *self = (*before).clone();
                    self.work = work;
                    numbers.types.extend(found);
                    if pass == NumberPass::AsNumbers && (done || numbers.types.len() == count) {
                        break;
                    }
                }
            }
            numbers.pass = NumberPass::Last;
        }
        self.loop_once(r, head, assigned, &numbers);
    }

    /// Resolves a loop, where carried numbers have the types given. The types that they should have had instead.
    fn loop_once(
        &mut self,
        r: &'a Repeat,
        (dim, head): (Dim, Span),
        assigned: &SortedMap<&'a str, Span>,
        numbers: &Numbers<'a>,
    ) -> SortedMap<&'a str, Type> {
        let around = self.graph.scope;
        let of = self.graph.repeat(dim, false);
        let scope = self.scope();
        let outer: SortedSet<&'a str> = scope.locals.keys().copied().collect();
        let (path, own) = (scope.path.clone(), scope.own.clone());
        let states: SortedMap<&'a str, usize> =
            assigned.keys().filter_map(|n| Some((*n, self.state_named(n)?))).collect();
        let scope = self.scope();
        let element = scope.path_of(&r.dim.text);
        if !r.scan {
            scope.path = scope.declared_path(&r.dim.text).into();
        }
        let calls = self.calls.entry(element.clone()).or_insert(0);
        *calls += 1;
        let numbered = if *calls == 1 { element } else { format!("{element}#{calls}").into() };
        self.scope().own = numbered;
        let (mut all, mut untyped) = (Vec::new(), SortedMap::new());
        for (name, at) in assigned.iter().filter(|(n, _)| outer.contains(*n)) {
            if numbers.pass == NumberPass::AsNumbers
                && self.is_number(name)
                && !numbers.types.contains_key(name)
            {
                untyped.insert(*name, *at);
            } else {
                all.extend(self.begin_carry(of, (name, *at), numbers, states.get(name).copied()));
            }
        }
        self.graph.scope = Some(of);
        let depth = self.scopes.len();
        let carried = all.iter().map(|c| (c.name, c.at)).chain(untyped.clone()).collect();
        let (scan, around_path) = (r.scan, path.clone());
        self.open_repeats.push(OpenRepeat { depth, span: head, of, scan, around: around_path, carried });
        if let Some(i) = &r.index {
            let val = self.iteration(of, i.span);
            self.define(i, val);
        }
        self.repeated_body(&r.body);
        self.open_repeats.pop();
        let nexts: Vec<(Carried<'a>, Val)> = all
            .into_iter()
            .map(|c| {
                let val = self.scope().locals.get(c.name).map_or(Val::Poison, |l| l.val.clone());
                (c, val)
            })
            .collect();
        let collected = if r.scan { self.declared_in(&r.body) } else { Vec::new() };
        let mut wanted: SortedMap<&'a str, Type> = untyped
            .into_keys()
            .filter_map(|name| match self.scope().locals.get(name)?.val {
                Val::Tensor(id) => Some((name, self.graph.ty(id).clone())),
                _ => None,
            })
            .collect();
        let scope = self.scope();
        scope.locals.retain(|n, _| outer.contains(n));
        (scope.path, scope.own) = (path, own);
        for (c, next) in nexts {
            wanted.extend(self.end_carry(of, c, next, around));
        }
        self.graph.scope = around;
        if wanted.is_empty() {
            self.collect(of, collected);
        }
        wanted
    }

    /// The values that a body declares with `let`, and whether they are read there.
    fn declared_in(&mut self, body: &'a [Statement]) -> Vec<(&'a Name, Val, bool)> {
        let names = body.iter().filter_map(|s| match &s.kind {
            StatementKind::Let { names, .. } => Some(names),
            _ => None,
        });
        let locals = &self.scope().locals;
        let known = |n: &'a Name| locals.get(n.text.as_str()).map(|l| (n, l.val.clone(), l.used));
        names.flatten().filter_map(known).collect()
    }

    /// The declared values of a `scan`, of all iterations.
    fn collect(&mut self, of: RepeatId, declared: Vec<(&'a Name, Val, bool)>) {
        let dim = self.graph.repeats[of].dim;
        for (name, val, used) in declared {
            self.scope().call_values(&name.text);
            let all = match val {
                Val::Tensor(id) if self.graph.within(self.graph.node(id).scope, Some(of)) => {
                    self.point(name.span);
                    Val::Tensor(self.graph.cross(of, Crossing::Stack, id))
                }
                // The same in all iterations.
                Val::Tensor(id) => self.make(&[], name.span, |g| {
                    let dims = [&[dim], g.ty(id).dims.as_slice()].concat();
                    Ok(g.expanded(id, &dims))
                }),
                other => other,
            };
            self.define(name, all);
            if let Some(local) = self.scope().locals.get_mut(name.text.as_str()) {
                local.used |= used;
            }
        }
    }

    fn repeated_body(&mut self, body: &'a [Statement]) {
        for s in body {
            if self.ended() {
                return;
            }
            let word = match &s.kind {
                StatementKind::Loss(_) => "loss",
                StatementKind::Metric(_) => "metric",
                StatementKind::Output(_) => "output",
                StatementKind::Input(_) => "input",
                StatementKind::Return(_) => "return",
                _ => {
                    self.statement(s);
                    continue;
                }
            };
            let text = format!("`{word}` stands inside of `repeat`");
            let d = Diagnostic::error(codes::E0218, text).at(s.span, "would be one of each iteration");
            self.error(d.help(format!("carry the value out of the loop, and put `{word}` behind it")));
        }
    }

    /// `x = …` in the body of a loop that carries `x`. False, with nothing done, where one of the names is not carried.
    pub(super) fn assigns_carried(&mut self, names: &'a [Name], value: &'a Expr) -> bool {
        let depth = self.scopes.len();
        let open = self.open_repeats.last().filter(|o| o.depth == depth);
        if !open.is_some_and(|o| names.iter().all(|n| o.carried.contains_key(n.text.as_str()))) {
            return false;
        }
        let values = self.bound_values(names, value, "");
        for (n, val) in names.iter().zip(values) {
            self.fact(n.span, &val);
            if let Some(local) = self.scope().locals.get_mut(n.text.as_str()) {
                local.val = val;
            }
        }
        true
    }

    /// The place of the loop whose body has the statements, outside of layers that the body calls.
    pub(super) fn open_repeat(&self) -> Option<Span> {
        self.open_repeats.last().filter(|o| o.depth == self.scopes.len()).map(|o| o.span)
    }

    /// The loops in whose bodies values are made, outermost first.
    pub(super) fn open_loops(&self) -> Vec<RepeatId> {
        let mut all = Vec::new();
        let mut scope = self.graph.scope;
        while let Some(of) = scope {
            all.push(of);
            scope = self.graph.repeats[of].parent;
        }
        all.reverse();
        all
    }

    /// The place of the loop over a dim whose body has the new values, if there is one.
    pub(super) fn open_loop_over(&self, dim: Dim) -> Option<Span> {
        let open = self.open_loops().into_iter().zip(&self.open_repeats);
        open.filter(|(of, _)| self.graph.repeats[*of].dim == dim).map(|(_, open)| open.span).next_back()
    }

    /// Loops that give each iteration parameters of its own.
    pub(super) fn loops_of_variables(&self) -> Vec<RepeatId> {
        let scan = |of: &RepeatId| self.open_repeats.iter().any(|o| o.scan && o.of == *of);
        let outside = self.scopes.last().map_or(&[][..], |s| &s.outside);
        self.open_loops().into_iter().filter(|of| !scan(of) && !outside.contains(of)).collect()
    }

    /// A value as the body reads it: at the position of the iteration along the dims of loops around which it was made.
    pub(super) fn at_iteration(&mut self, mut id: Id, at: Span) -> Id {
        for of in self.open_loops() {
            let dim = self.graph.repeats[of].dim;
            if self.graph.ty(id).has(dim) && !self.graph.within(self.graph.node(id).scope, Some(of)) {
                self.point(at);
                self.graph.cursor.name = self.graph.node(id).origin.name.clone();
                id = self.graph.cross(of, Crossing::Slice, id);
            }
        }
        id
    }

    /// `index(layers)` where `layers` may be the dim of a loop that is open: the number of the iteration.
    pub(super) fn index_of(&mut self, dim: Dim, at: Span) -> Val {
        let of = self.open_loops().into_iter().find(|of| self.graph.repeats[*of].dim == dim);
        match of {
            Some(of) => self.iteration(of, at),
            None => self.make(&[], at, |g| Ok(g.index(dim))),
        }
    }

    fn iteration(&mut self, of: RepeatId, at: Span) -> Val {
        let (dim, parent) = (self.graph.repeats[of].dim, self.graph.repeats[of].parent);
        let scope = std::mem::replace(&mut self.graph.scope, parent);
        let val = self.make(&[], at, |g| Ok(g.index(dim)));
        self.graph.scope = scope;
        match val {
            Val::Tensor(id) => Val::Tensor(self.at_iteration(id, at)),
            other => other,
        }
    }

    /// Whether the dims of values that were made since `before` are none of a loop in whose body they are.
    pub(super) fn no_loop_dim(&mut self, before: usize, at: Span) -> bool {
        let open = self.open_loops();
        if open.is_empty() {
            return true;
        }
        let made = (before..self.graph.nodes.len()).map(|at| Id(at as u32));
        let found = made.filter(|id| self.graph.node(*id).scope.is_some()).find_map(|id| {
            let inside = |of: &&RepeatId| self.graph.within(self.graph.node(id).scope, Some(**of));
            let dims = open.iter().filter(inside).map(|of| self.graph.repeats[*of].dim);
            dims.into_iter().find(|d| self.graph.ty(id).has(*d))
        });
        let Some(dim) = found else { return true };
        self.single_position(dim, at);
        false
    }

    pub(super) fn single_position(&mut self, dim: Dim, at: Span) {
        let name = self.graph.dims.name(dim).to_string();
        let text = format!("a value inside of `repeat {name}` has the dim `{name}`");
        let d = Diagnostic::error(codes::E0203, text).at(at, format!("`{name}` is a single position here"));
        self.error(d.help(format!(
            "leave `{name}` out: parameters in the loop get it by themselves, and `index({name})` is the position"
        )));
    }

    fn not_open(&mut self, dim: Dim, at: Span) -> bool {
        if self.open_loops().len() >= MOST_NESTED {
            let text = format!("more than {MOST_NESTED} loops stand in each other");
            let d = Diagnostic::error(codes::E0219, text).at(at, "the loop that is too many");
            self.error(d.help("make one loop of two: a dim whose size is the product of theirs"));
            return false;
        }
        if !self.open_loops().iter().any(|of| self.graph.repeats[*of].dim == dim) {
            return true;
        }
        let name = self.graph.dims.name(dim).to_string();
        let text = format!("`repeat {name}` stands inside of another `repeat {name}`");
        let d = Diagnostic::error(codes::E0203, text).at(at, "a single position here");
        self.error(d.help(format!("declare a second dim of the same size: `dim {name}2 = {name}`")));
        false
    }

    // ------------------------------------------------------------------------------------------- carries

    /// Whether each assigned name that is known here is one that a loop may carry.
    fn can_carry(&mut self, assigned: &SortedMap<&'a str, Span>) -> bool {
        let mut fine = true;
        for (name, at) in assigned {
            let Some(local) = self.scope().locals.get(name) else { continue };
            let (val, span) = (local.val.clone(), local.span);
            let declared = |id: &Id| {
                let n = self.graph.node(*id);
                matches!(n.op.kind(), Kind::Input(_)) && n.origin.span == span
            };
            let leaf = matches!(&val, Val::Tensor(id) if declared(id)) && self.state_named(name).is_none();
            let d = match val {
                Val::Tensor(_) if leaf => {
                    Diagnostic::error(codes::E0218, format!("`{name}` cannot be carried by `repeat`"))
                        .at(*at, "assigned here")
                        .and(span, "no `let`")
                        .help(format!("carry a value of it: `let y = {name}`, and `y = …` in the loop"))
                }
                Val::Tensor(_) | Val::Konst(_) => continue,
                Val::Poison => {
                    fine = false;
                    continue;
                }
                Val::Dims(_) | Val::Tuple(_) => {
                    Diagnostic::error(codes::E0218, format!("`{name}` cannot be carried by `repeat`"))
                        .at(*at, "assigned here")
                        .and(span, "no value")
                }
            };
            self.error(d);
            fine = false;
        }
        fine
    }

    fn is_number(&self, name: &str) -> bool {
        let local = self.scopes.last().and_then(|s| s.locals.get(name));
        matches!(local, Some(Local { val: Val::Konst(_), .. }))
    }

    fn begin_carry(
        &mut self,
        of: RepeatId,
        (name, at): (&'a str, Span),
        numbers: &Numbers<'a>,
        state: Option<usize>,
    ) -> Option<Carried<'a>> {
        let val = self.scope().locals.get(name)?.val.clone();
        // Its path is of around the loop.
        let state = state.map(|k| (k, val.clone()));
        self.scope().call_values(name);
        let (start, number) = match val {
            Val::Tensor(id) => (id, false),
            Val::Konst(k) => {
                let alone = if let Konst::Bool(_) = k { DType::Bool } else { self.float };
                let (dtype, dims) = match numbers.types.get(name) {
                    Some(ty) => (ty.dtype, ty.dims.clone()),
                    None => (alone, Vec::new()),
                };
                let Some(id) = self.number_as((name, at), k, (dtype, &dims)) else {
                    self.poisoned_local(name);
                    return None;
                };
                (id, numbers.pass != NumberPass::Last)
            }
            _ => return None,
        };
        if self.graph.ty(start).has(self.graph.repeats[of].dim) {
            self.single_position(self.graph.repeats[of].dim, at);
            self.poisoned_local(name);
            return None;
        }
        self.point(at);
        let carry = self.graph.carry(of, start);
        if let Some(local) = self.scope().locals.get_mut(name) {
            local.val = Val::Tensor(carry);
        }
        Some(Carried { name, at, number, carry, state })
    }

    /// A number as a value of a type; an error if the type cannot hold it.
    fn number_as(
        &mut self,
        (name, at): (&str, Span),
        k: Konst,
        (dtype, dims): (DType, &[Dim]),
    ) -> Option<Id> {
        let number = k.num().f64();
        if let Some(wrong) = NotHeld::of(number, dtype) {
            let text = format!("`{name}` is {} and of {dtype}: the number does not fit", wrong.number);
            let d = Diagnostic::error(codes::E0202, text).at(at, &wrong.holds);
            self.error(d.help(wrong.help("what it becomes")));
            return None;
        }
        let made = self.make(&[], at, |g| {
            let number = g.as_tensor(k.value(), dtype)?;
            Ok(g.expanded(number, dims))
        });
        if let Val::Tensor(id) = made { Some(id) } else { None }
    }

    /// Closes a carry whose next value is known. The type that a number should have had, where it had another.
    fn end_carry(
        &mut self,
        of: RepeatId,
        c: Carried<'a>,
        next: Val,
        around: Option<RepeatId>,
    ) -> Option<(&'a str, Type)> {
        self.scope().call_values(c.name);
        let next = match next {
            Val::Tensor(id) => Some(id),
            Val::Konst(k) => {
                let ty = self.graph.ty(c.carry).clone();
                self.number_as((c.name, c.at), k, (ty.dtype, &ty.dims))
            }
            _ => None,
        };
        let Some(next) = next else {
            self.poisoned_local(c.name);
            return None;
        };
        let (old, new) = (self.graph.ty(c.carry).clone(), self.graph.ty(next).clone());
        let same_dims = old.dims.len() == new.dims.len() && old.dims.iter().all(|d| new.has(*d));
        if !same_dims || old.dtype != new.dtype {
            if c.number {
                return Some((c.name, new));
            }
            let code = if same_dims { codes::E0202 } else { codes::E0203 };
            let text = format!(
                "`{}` is {} before an iteration and {} after it",
                c.name,
                self.shape(c.carry),
                self.shape(next)
            );
            let d = Diagnostic::error(code, text).at(c.at, "what a loop carries keeps its type");
            let help = match same_dims {
                true => format!("convert it: `{} = cast(…, {})`", c.name, old.dtype),
                false => "fold or rename dims so that it has those that it starts with".to_string(),
            };
            self.error(d.help(help));
            self.poisoned_local(c.name);
            return None;
        }
        self.graph.carry_on(of, c.carry, next);
        self.graph.scope = around;
        self.point(c.at);
        let last = self.graph.cross(of, Crossing::Final, next);
        let path = self.scope().path_of(c.name);
        self.graph.scope = Some(of);
        if around.is_none() {
            self.named.insert(path, last);
        }
        let behind = c.state.as_ref().map_or(Val::Tensor(last), |(_, was)| was.clone());
        if let Some(local) = self.scope().locals.get_mut(c.name) {
            local.val = behind;
        }
        if let Some((state, _)) = c.state {
            self.graph.scope = around;
            self.assign(state, (c.name, c.at), Some(last), c.at);
            self.graph.scope = Some(of);
        }
        None
    }

    fn poisoned_local(&mut self, name: &str) {
        if let Some(local) = self.scope().locals.get_mut(name) {
            local.val = Val::Poison;
        }
    }
}

/// The names that a body assigns, loops in it included, and where each is first assigned.
fn assignments<'a>(body: &'a [Statement], found: &mut SortedMap<&'a str, Span>) {
    let mut declared: SortedSet<&'a str> = SortedSet::new();
    let mut mine = SortedMap::new();
    for s in body {
        match &s.kind {
            StatementKind::Assign { names, .. } => {
                for n in names {
                    mine.entry(n.text.as_str()).or_insert(n.span);
                }
            }
            StatementKind::Repeat(r) => assignments(&r.body, &mut mine),
            StatementKind::Let { names, .. } => declared.extend(names.iter().map(|n| n.text.as_str())),
            StatementKind::State(v) => {
                declared.insert(v.name.text.as_str());
            }
            _ => {}
        }
    }
    for (name, at) in mine.into_iter().filter(|(n, _)| !declared.contains(n)) {
        found.entry(name).or_insert(at);
    }
}
