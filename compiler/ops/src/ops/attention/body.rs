//! A function of one value, element by element, with other values beside it: what stands between the product of queries and
//! keys and the softmax, and between the softmax and the sum over the keys.

use crate::{F64Tensor, Graph, Id, Kind, Op, Source, Type, union};
use meshwright_plan::expr::Scalar;
use meshwright_plan::{Computed, DType, Dim, Dims, Drawn, Expr};
use meshwright_sorted::SortedMap;
use std::sync::Arc;

/// What an op of a body reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BodyRef {
    /// What the body is a function of.
    Root,
    /// An extra operand.
    Extra(usize),
    /// The result of an earlier op.
    Node(usize),
}

/// Ops in order, each with what it reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Body {
    /// The ops.
    pub nodes: Vec<(Arc<dyn Op>, Vec<BodyRef>)>,
    /// The result.
    pub result: BodyRef,
}

impl Body {
    /// The root itself.
    pub fn identity() -> Body {
        Body { nodes: Vec::new(), result: BodyRef::Root }
    }

    /// Whether the result is the root.
    pub fn is_identity(&self) -> bool {
        self.result == BodyRef::Root
    }

    /// The same as values of a graph: the result, and the first value that was added.
    pub fn replay(&self, g: &mut Graph, root: Id, extras: &[Id]) -> Id {
        let mut made: Vec<Id> = Vec::with_capacity(self.nodes.len());
        let of = |r: &BodyRef, made: &[Id]| match *r {
            BodyRef::Root => root,
            BodyRef::Extra(i) => extras[i],
            BodyRef::Node(i) => made[i],
        };
        for (op, reads) in &self.nodes {
            let inputs: Vec<Id> = reads.iter().map(|r| of(r, &made)).collect();
            match g.add_op(op.clone(), &inputs) {
                Ok(id) => made.push(id),
                Err(e) => panic!("internal error: `{op:?}` refuses what it was found on: {e}"),
            }
        }
        of(&self.result, &made)
    }

    /// The ops that read nothing: numbers, positions, random values.
    pub fn sources(&self) -> impl Iterator<Item = &dyn Op> {
        self.nodes.iter().filter(|n| n.1.is_empty()).map(|n| &*n.0)
    }

    /// The same with the results of other ops in place of some that read nothing.
    pub fn replaced(&self, other: &dyn Fn(&dyn Op) -> Option<Body>) -> Body {
        let mut nodes: Vec<(Arc<dyn Op>, Vec<BodyRef>)> = Vec::with_capacity(self.nodes.len());
        let mut now: Vec<usize> = Vec::with_capacity(self.nodes.len());
        let moved = |r: &BodyRef, now: &[usize]| match *r {
            BodyRef::Node(i) => BodyRef::Node(now[i]),
            other => other,
        };
        for (op, reads) in &self.nodes {
            let first = nodes.len();
            match other(&**op).filter(|_| reads.is_empty()) {
                Some(body) => {
                    let places: Vec<usize> = (first..first + body.nodes.len()).collect();
                    let all = body.nodes.into_iter();
                    nodes.extend(all.map(|(op, r)| (op, r.iter().map(|r| moved(r, &places)).collect())));
                }
                None => nodes.push((op.clone(), reads.iter().map(|r| moved(r, &now)).collect())),
            }
            now.push(nodes.len() - 1);
        }
        Body { nodes, result: moved(&self.result, &now) }
    }

    /// The ops that compute the last value of a graph without operands.
    pub fn of_graph(g: &Graph) -> Body {
        let reads = |id: Id| g.node(id).inputs.iter().map(|x| BodyRef::Node(x.0 as usize)).collect();
        let nodes: Vec<_> = g.ids().map(|id| (g.node(id).op.clone(), reads(id))).collect();
        Body { result: BodyRef::Node(nodes.len().saturating_sub(1)), nodes }
    }

    /// The derivative of the result by the root or an extra operand, element by element, as a value of a graph. An extra operand
    /// must have all dims of the root: otherwise its derivative is a sum.
    pub fn slope(&self, g: &mut Graph, root: Id, extras: &[Id], by: BodyRef) -> Id {
        let of = match by {
            BodyRef::Extra(i) => extras[i],
            _ => root,
        };
        let dtype = g.ty(of).dtype;
        let first = g.nodes.len() as u32;
        let result = self.replay(g, root, extras);
        let last = g.nodes.len() as u32;
        let mut depends: SortedMap<Id, bool> = SortedMap::from([(of, true)]);
        for id in (first..last).map(Id) {
            let any = g.node(id).inputs.iter().any(|x| depends.get(x) == Some(&true));
            depends.insert(id, any);
        }
        let depends_on_it = |x: &Id| depends.get(x) == Some(&true);
        let one = g.constant(1.0, dtype);
        let mut parts: SortedMap<Id, Vec<Id>> = SortedMap::from([(result, vec![one])]);
        for id in (first..last).rev().map(Id).filter(|id| depends_on_it(id)) {
            let Some(all) = parts.remove(&id) else { continue };
            let dy = g.sum_of(&all);
            let node = g.node(id).clone();
            let need: Vec<bool> =
                node.inputs.iter().map(|x| depends_on_it(x) && g.ty(*x).dtype.is_float()).collect();
            // Element-wise ops keep nothing but operands and result.
            let given = node.op.vjp(g, &node.inputs, id, dy, &need);
            for ((x, part), need) in node.inputs.iter().zip(given).zip(need) {
                if let (Some(part), true) = (part, need) {
                    parts.entry(*x).or_default().push(part);
                }
            }
        }
        match parts.remove(&of) {
            Some(all) => g.sum_of(&all),
            None => g.constant(0.0, dtype),
        }
    }
}

/// A graph of nothing but leaves for a body: the root and the extra operands.
pub(super) fn leaves(table: &Dims, root: &Type, extras: &[Type]) -> (Graph, Id, Vec<Id>) {
    let mut g = Graph::new(table.clone());
    let mut leaf = |ty: &Type, i: usize| {
        let leaf = crate::InputOpKind::Input { name: format!("x{i}") };
        g.op(crate::InputOp { input: leaf, ty: ty.wide() }, &[])
    };
    let root = leaf(root, 0);
    let extras = extras.iter().enumerate().map(|(i, t)| leaf(t, i + 1)).collect();
    (g, root, extras)
}

/// A value of a graph as a scalar expression of `leaves`, which are its loads in order, over `space`. Random values go to
/// `draws`. `None` where an op on the way is not element-wise.
pub(super) fn computed(
    g: &Graph,
    value: Id,
    leaves: &[Id],
    space: &[Dim],
    draws: &mut Vec<Drawn>,
) -> Option<Computed> {
    let mut wanted = vec![value];
    let mut needed = meshwright_sorted::SortedSet::new();
    while let Some(id) = wanted.pop() {
        if needed.insert(id) && !leaves.contains(&id) {
            wanted.extend(&g.node(id).inputs);
        }
    }
    let mut expr = Expr::default();
    let mut regs = SortedMap::new();
    for id in needed {
        let ty = g.ty(id).wide();
        if let Some(k) = leaves.iter().position(|l| *l == id) {
            regs.insert(id, expr.push(Scalar::Load(k as u16), ty.dtype));
            continue;
        }
        if let Some(random) = g.node(id).op.drawn() {
            let k = draws.iter().position(|d| *d == random).unwrap_or_else(|| {
                draws.push(random);
                draws.len() - 1
            });
            regs.insert(id, expr.push(Scalar::Load((leaves.len() + k) as u16), ty.dtype));
            continue;
        }
        let inputs: Vec<u16> =
            g.node(id).inputs.iter().map(|x| regs.get(x).copied()).collect::<Option<_>>()?;
        let reg = inlined(g, id, &inputs, space, &mut expr)?;
        regs.insert(id, expr.cast(reg, ty.dtype));
    }
    let reg = regs.get(&value).copied()?;
    (union([g.ty(value)]).iter().all(|d| space.contains(d))).then_some(Computed { expr, reg })
}

/// Appends an element-wise op.
fn inlined(g: &Graph, id: Id, inputs: &[u16], space: &[Dim], expr: &mut Expr) -> Option<u16> {
    let node = g.node(id);
    let types: Vec<Type> = node.inputs.iter().map(|x| g.ty(*x).wide()).collect();
    let types: Vec<&Type> = types.iter().collect();
    let (mut own, loads) = Expr::of_operands(types.iter().map(|t| t.dtype));
    let result = node.op.scalar(&mut own, &loads, &types, &node.ty.wide(), &g.dims)?;
    let mut at: Vec<u16> = Vec::with_capacity(own.nodes.len());
    for n in &own.nodes {
        at.push(match n.scalar {
            Scalar::Load(i) => inputs[usize::from(i)],
            Scalar::Index(k) => {
                let dim = node.ty.dims.get(usize::from(k))?;
                let k = space.iter().position(|d| d == dim)?;
                expr.push(Scalar::Index(k as u16), DType::I32)
            }
            other => expr.push(other.map_reads(|r| at[usize::from(r)]), n.dtype),
        });
    }
    at.get(usize::from(result)).copied()
}

/// Whether a value can be computed again wherever it is read: an element-wise op, a constant, a position, a random value.
pub(super) fn is_computed_again(g: &Graph, id: Id) -> bool {
    let node = g.node(id);
    match node.op.kind() {
        Kind::Input(_) | Kind::Gradient | Kind::Rename { .. } => false,
        Kind::Rematerializable(Source::Random) => node.op.drawn().is_some(),
        Kind::Rematerializable(Source::Training) => false,
        _ => g.is_elementwise(id),
    }
}

/// The meaning of a graph over leaves that have these values.
pub(super) fn evaluated(g: &Graph, leaves: &[Id], x: &[&F64Tensor], of: Id) -> F64Tensor {
    let mut known: Vec<F64Tensor> = Vec::with_capacity(g.nodes.len());
    for id in g.ids() {
        let value = match leaves.iter().position(|l| *l == id) {
            Some(i) => x[i].clone(),
            None => {
                let inputs: Vec<&F64Tensor> =
                    g.node(id).inputs.iter().map(|i| &known[i.0 as usize]).collect();
                g.node(id).op.oracle(&inputs, g.ty(id), &g.dims)
            }
        };
        known.push(value);
    }
    known.swap_remove(of.0 as usize)
}
