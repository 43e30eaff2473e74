//! The order in which positions lie on devices (`order seq zigzag ctx`).
//!
//! Before: a training step in which a dim and its other names count positions from the first to the last. After: the same step
//! with them in zigzag order, so that each of `k` devices has a range from the front and the range as far from the end, and a
//! causal mask leaves all of them as much to compute. What is bound before the step stays as it is: inputs, parameters and states
//! are looked up in the new order where activations are made of them, and gradients and next states in the old one. `index`
//! becomes arithmetic on places. All that is the same in any order stays; the rest is refused.

use crate::layout::{Layout, OrderRule};
use crate::passes::linear::linearized;
use crate::passes::normalize::rebuild;
use crate::step::step_graph::StepGraph;
use meshwright_diag::{Diagnostic, MAX_REPORTED, Span, codes};
use meshwright_ops::{
    Body, Class, Graph, Id, Index, InputOp, InputOpKind, Kind, Lookup, NEG, Node, Op, Origin, Rename, Source,
    Type, replaced_in,
};
use meshwright_plan::{DType, Dim, Dims, Zigzag};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// A dim in zigzag order, with its other names.
#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    /// The order.
    order: Zigzag,
    /// Each name, with the dim under which its positions are counted from the first to the last.
    dims: SortedMap<Dim, Dim>,
    /// The line of the layout.
    span: Span,
}

/// The dims that a step needs whose positions are in other orders, added to it, and the layout by which what is looked up may be
/// gathered; none where the step does not train, or all devices are one.
pub(crate) fn planned(
    step: &mut StepGraph,
    layout: &Layout,
    found: &mut Vec<Diagnostic>,
) -> Option<(Vec<Ordered>, Layout)> {
    let mut all: Vec<Ordered> = Vec::new();
    for rule in layout.orders.iter().filter(|_| step.program == "train") {
        let devices = rule.axes.iter().map(|a| layout.mesh.size(*a)).product();
        let names = names(&step.graph, rule.dim);
        if devices == 1 {
            continue;
        }
        let order = match zigzag(step, rule, devices, (&names, &all)) {
            Ok(order) => order,
            Err(errors) => {
                found.extend(errors);
                continue;
            }
        };
        let dims = &mut step.graph.dims;
        let in_order = |d: Dim| {
            let (name, size) = (format!("{}*order", dims.name(d)), dims.size(d));
            (d, dims.make(&name, size, Some(d)))
        };
        let names: SortedMap<Dim, Dim> = names.into_iter().map(in_order).collect();
        for d in names.keys() {
            dims.put_in_order(*d, order);
        }
        all.push(Ordered { order, dims: names, span: rule.span });
    }
    let gathers = all.iter().flat_map(|o| o.dims.values().copied()).collect::<Vec<_>>();
    let mut layout = (!all.is_empty()).then(|| layout.clone())?;
    layout.gathers.extend(gathers);
    Some((all, layout))
}

/// A dim with all names that renames give it.
fn names(g: &Graph, dim: Dim) -> SortedSet<Dim> {
    let renames = g.nodes.iter().filter_map(|n| match n.op.kind() {
        Kind::Rename { from, to } => Some((from, to)),
        _ => None,
    });
    let renames: SortedSet<(Dim, Dim)> = renames.collect();
    let mut names = SortedSet::from([dim]);
    loop {
        let meets = |(a, b): &&(Dim, Dim)| names.contains(a) != names.contains(b);
        let Some((a, b)) = renames.iter().find(meets) else { return names };
        names.extend([*a, *b]);
    }
}

/// The zigzag order of a dim, or why it cannot be.
fn zigzag(
    step: &StepGraph,
    rule: &OrderRule,
    devices: usize,
    (names, others): (&SortedSet<Dim>, &[Ordered]),
) -> Result<Zigzag, Vec<Diagnostic>> {
    let dims = &step.graph.dims;
    let (name, size, parts) = (dims.name(rule.dim), dims.size(rule.dim), 2 * devices);
    let error = |text: String, label: String| Diagnostic::error(codes::E0318, text).at(rule.span, label);
    if let Some(other) = others.iter().find(|o| o.dims.contains_key(&rule.dim)) {
        let text = format!("`{name}` is another name of a dim that is in zigzag order already");
        let d = error(text, "the second order".into());
        return Err(vec![d.and(other.span, "the first").help("leave one out")]);
    }
    if step.inputs.iter().filter_map(|i| i.dims.first()).any(|d| names.contains(d)) {
        let d = error(format!("`{name}` counts examples, which have no order"), "asked for here".into());
        return Err(vec![d.help("name the dim that counts positions")]);
    }
    if let Some(order) = Zigzag::new(size, devices) {
        return Ok(order);
    }
    // No size helps where something depends on the order, as does all that makes the size of the dim one of other sizes.
    let errors = unordered(step, &names.iter().map(|d| (*d, *d)).collect(), rule.span);
    if !errors.is_empty() {
        return Err(errors);
    }
    let text = format!("`{name}` = {size} has no {parts} equal parts, two for each of {devices} devices");
    let d = error(text, format!("{size} / {parts} is no integer"));
    // Fewer positions are never too many for a table of them.
    let fits = if size > parts { size - size % parts } else { parts };
    let first = dims.name(names.first().copied().unwrap_or(rule.dim));
    Err(vec![d.help(format!("take another size: `--dim {first}={fits}`"))])
}

/// Puts positions in zigzag order.
pub(crate) fn ordered(
    step: &StepGraph,
    orders: &[Ordered],
    found: &mut Vec<Diagnostic>,
) -> Option<StepGraph> {
    orders.iter().try_fold(step.clone(), |step, order| {
        let errors = unordered(&step, &order.dims, order.span);
        let sound = errors.is_empty();
        found.extend(errors);
        sound.then(|| in_order(&step, order))
    })
}

/// The errors of what is not the same in another order.
fn unordered(step: &StepGraph, dims: &SortedMap<Dim, Dim>, asked: Span) -> Vec<Diagnostic> {
    let g = &step.graph;
    let (mut errors, mut told) = (Vec::new(), SortedSet::new());
    for id in g.ids().filter(|id| !keeps_order(g, *id)) {
        let node = g.node(id);
        // Positions within attention are put in order as others are.
        let op = replaced_in(&*node.op, &|source| is_index(source, dims).map(|_| position_like()))
            .unwrap_or_else(|| node.op.clone());
        // Positions become arithmetic, and random values are those of positions, wherever these lie.
        if is_index(&*op, dims).is_some() || is_random(&*op) {
            continue;
        }
        let along = op.ordered(&g.input_types(id), &node.ty, &g.dims);
        let Some(dim) = along.into_iter().find(|d| dims.contains_key(d)) else { continue };
        if errors.len() >= MAX_REPORTED || !told.insert(node.origin.span) {
            continue;
        }
        let (name, path) = (g.dims.name(dim), g.path(id));
        let text = format!("`{}` depends on the order of `{name}`, which is in zigzag order", g.spelled(id));
        let d = Diagnostic::error(codes::E0318, text).at(node.origin.span, format!("`{path}`"));
        errors.push(d.and(asked, "asked for here").help("leave `order` out"));
    }
    errors
}

/// Whether a value has positions from the first to the last: what is bound before the step, and all that is made of it to update
/// it.
fn keeps_order(g: &Graph, id: Id) -> bool {
    let node = g.node(id);
    match node.op.kind() {
        Kind::Input(InputOpKind::Input { .. }) => false,
        Kind::Input(_) => true,
        _ => node.origin.class != Class::Value,
    }
}

fn in_order(step: &StepGraph, order: &Ordered) -> StepGraph {
    let old = &step.graph;
    let keeps = |id: Id| keeps_order(old, id);
    let mut moved: SortedMap<Id, Id> = SortedMap::new();
    // Inputs with one dim in this order, as they are given.
    let mut given: SortedMap<Id, Id> = SortedMap::new();
    let mut out = rebuild(step, |g, mut node, id| {
        let (cursor, scope) = (g.cursor.clone(), g.scope);
        for (x, before) in node.inputs.iter_mut().zip(&old.node(id).inputs) {
            if keeps(*before) != keeps(id) {
                *x = *moved.entry(*before).or_insert_with(|| order.turned(g, *x, keeps(id)));
            }
        }
        (g.cursor, g.scope) = (cursor, scope);
        if keeps(id) {
            return g.push(node);
        }
        if matches!(node.op.kind(), Kind::Input(_)) {
            let (made, found) = order.input(g, node);
            given.insert(id, made);
            return found;
        }
        // Under another name an input is looked up again, wherever that name puts it: nothing moves.
        if let Kind::Rename { from, to } = node.op.kind()
            && let (Some(whole), Some(made)) = (order.dims.get(&from), given.get(&old.node(id).inputs[0]))
            && g.ty(*made).dims.iter().filter(|d| order.dims.values().any(|w| w == *d)).count() == 1
        {
            g.scope = g.node(*made).scope;
            return order.looked_up(g, *made, (to, *whole), false);
        }
        if let Some(dim) = is_index(&*node.op, &order.dims) {
            let at = order.position(g, dim);
            g.nodes[at].ty.range = node.ty.range;
            return at;
        }
        node.op = put_in_order(&node.op, order, &old.dims).unwrap_or(node.op);
        g.push(node)
    });
    for goal in out.outputs.iter_mut().zip(&step.outputs) {
        if !keeps(goal.1.id) {
            goal.0.id = order.turned(&mut out.graph, goal.0.id, true);
        }
    }
    for input in &mut out.inputs {
        input.dims.iter_mut().for_each(|d| *d = order.dims.get(d).copied().unwrap_or(*d));
    }
    linearized(out)
}

/// The dim of an `index` along a dim in zigzag order.
fn is_index(op: &dyn Op, dims: &SortedMap<Dim, Dim>) -> Option<Dim> {
    op.as_any().downcast_ref::<Index>().map(|i| i.dim).filter(|d| dims.contains_key(d))
}

fn is_random(op: &dyn Op) -> bool {
    op.kind() == Kind::Rematerializable(Source::Random)
}

/// An attention whose masks are made of positions; `None` of what is none.
fn put_in_order(op: &Arc<dyn Op>, order: &Ordered, dims: &Dims) -> Option<Arc<dyn Op>> {
    replaced_in(&**op, &|source| {
        let dim = is_index(source, &order.dims)?;
        let mut g = Graph::new(dims.clone());
        order.position(&mut g, dim);
        Some(Body::of_graph(&g))
    })
}

impl Ordered {
    /// The position at each place: device `i` has its range of the front, then that of the end.
    fn position(&self, g: &mut Graph, dim: Dim) -> Id {
        let Zigzag { length, devices } = self.order;
        let [both, one, last] = [2 * length, length, 2 * (devices - 1) * length].map(|n| integer(g, n));
        let place = g.index(dim);
        let device = g.binary("//", place, both);
        let before = g.product(&[device, both]);
        let within = less(g, place, before);
        let front = g.product(&[device, one]);
        let end = less(g, last, front);
        let is_front = g.binary("<", within, one);
        let begin = g.choose(is_front, front, end);
        g.sum_of(&[begin, within])
    }

    /// The place of each position.
    fn place(&self, g: &mut Graph, dim: Dim) -> Id {
        let Zigzag { length, devices } = self.order;
        let [one, both, half, last] = [length, 2 * length, devices, 2 * devices - 1].map(|n| integer(g, n));
        let position = g.index(dim);
        let range = g.binary("//", position, one);
        let from_end = less(g, last, range);
        let device = g.binary("min", range, from_end);
        let before = g.product(&[range, one]);
        let within = less(g, position, before);
        let first = g.product(&[device, both]);
        let none = integer(g, 0);
        let is_front = g.binary("<", range, half);
        let begin = g.choose(is_front, none, one);
        g.sum_of(&[first, begin, within])
    }

    /// A value in the other order: from positions to places, or `back`. What it has the dim under is looked up under another
    /// name.
    fn turned(&self, g: &mut Graph, x: Id, back: bool) -> Id {
        let node = g.node(x);
        let (origin, dims) = (node.origin.clone(), node.ty.dims.clone());
        (g.cursor, g.scope) = (Origin { class: Class::Value, ..origin }, node.scope);
        let mine = dims.iter().filter_map(|d| Some((*d, *self.dims.get(d)?)));
        mine.fold(x, |x, (dim, whole)| {
            let under = g.op(Rename { from: dim, to: whole }, &[x]);
            self.looked_up(g, under, (dim, whole), back)
        })
    }

    /// What a value has along the second dim, along the first, in the other order.
    fn looked_up(&self, g: &mut Graph, x: Id, (dim, whole): (Dim, Dim), back: bool) -> Id {
        let at = if back { self.place(g, dim) } else { self.position(g, dim) };
        g.nodes[at].ty.range = Some(whole);
        let mut ty = g.ty(x).clone();
        ty.dims.iter_mut().filter(|d| **d == whole).for_each(|d| *d = dim);
        let table = g.cast(x, entries(&ty, &g.dims));
        let found = g.op(Lookup { dims: vec![whole] }, &[table, at]);
        let found = g.cast(found, ty.dtype);
        // In the order of its dims as declared, and with what is known of it.
        g.nodes[found].ty = ty;
        found
    }

    /// An input, whole on each device along dims in zigzag order, and what is looked up there.
    fn input(&self, g: &mut Graph, node: Node) -> (Id, Id) {
        let whole = |ty: &Type| {
            let dims = ty.dims.iter().map(|d| self.dims.get(d).copied().unwrap_or(*d)).collect();
            Type { dims, ..ty.clone() }
        };
        let Some(leaf) = node.op.as_any().downcast_ref::<InputOp>() else {
            let made = g.push(node);
            return (made, made);
        };
        let mine: Vec<(Dim, Dim)> =
            node.ty.dims.iter().filter_map(|d| Some((*d, *self.dims.get(d)?))).collect();
        let op = Arc::new(InputOp { input: leaf.input.clone(), ty: whole(&leaf.ty) });
        let made = g.push(Node { op, ty: whole(&node.ty), ..node });
        (made, mine.into_iter().fold(made, |x, dims| self.looked_up(g, x, dims, false)))
    }
}

/// The floats that are looked up, as nothing else is: those that are each of the values exactly.
fn entries(ty: &Type, dims: &Dims) -> DType {
    let small = ty.dtype == DType::Bool || ty.range.is_some_and(|of| dims.size(of) <= 1 << 24);
    match ty.dtype {
        dtype if dtype.is_float() => dtype,
        _ if small => DType::F32,
        _ => DType::F64,
    }
}

/// A number in place of a position.
fn position_like() -> Body {
    let mut g = Graph::default();
    integer(&mut g, 0);
    Body::of_graph(&g)
}

fn less(g: &mut Graph, a: Id, b: Id) -> Id {
    let minus = g.unary(&NEG, b);
    g.sum_of(&[a, minus])
}

fn integer(g: &mut Graph, n: usize) -> Id {
    g.constant(n as f64, DType::I32)
}
