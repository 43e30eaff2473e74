//! The graph of one program: values in order of definition, each made by one op.

use crate::{Computes, Kind, Op, OpError, Source, Type};
use meshwright_diag::Span;
use meshwright_plan::expr::{Reg, Scalar};
use meshwright_plan::{ArenaId, Dim, Dims, Expr, IdVec, Phase};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A value, by position in its [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);

impl ArenaId for Id {
    fn at(position: usize) -> Self {
        Id(position as u32)
    }

    fn position(self) -> usize {
        self.0 as usize
    }
}

/// What kind of thing a value is to the layout rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// An activation, a cotangent or any other temporary.
    #[default]
    Value,
    /// A stored parameter.
    Param,
    /// The finished gradient of a parameter, and what clipping makes of it.
    Grad,
    /// A state of the optimizer, and every temporary of the update.
    OptimizerState,
}

/// Where a value comes from: what the rules and messages need to know about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// What it is to the rules.
    pub class: Class,
    /// Part of the training step.
    pub phase: Phase,
    /// Path of the layer call (or, for what belongs to a parameter, of the parameter): what the rules' scopes address.
    pub path: Arc<str>,
    /// The value's own path: `b1.attention.out`, or one made from another value's, `d(b1.up)`. Empty for what no statement
    /// names; [`Graph::path`] then gives the op's name.
    pub name: Arc<str>,
    /// Its place in the model file.
    pub span: Span,
    /// Whether it belongs to the gradient of an op that computes in [`crate::Precision::Full`], and so does too.
    pub full: bool,
}

/// A value with the op that makes it.
#[derive(Clone, Debug)]
pub struct Node {
    /// The op.
    pub op: Arc<dyn Op>,
    /// Its operands, all defined before.
    pub inputs: Vec<Id>,
    /// Type of the result.
    pub ty: Type,
    /// Where it comes from.
    pub origin: Origin,
}

impl Node {
    /// The number that a scalar is whose operands are the numbers `x`; `None` where its op does not say.
    pub fn folded(&self, x: &[f64]) -> Option<f64> {
        let product = self.op.kind() == Kind::Compute(Computes::Contraction);
        if product { Some(x.iter().product()) } else { self.op.element(x, &self.ty) }
    }
}

/// A program: values in order of definition.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Names and sizes of the dims.
    pub dims: Dims,
    /// Dims whose sizes went into ops as numbers, such as the padding of a convolution, or which were checked where the ops
    /// were built and nowhere else: with another size of one of them the text must be resolved again.
    pub captured: BTreeSet<Dim>,
    /// The values.
    pub nodes: IdVec<Id, Node>,
    /// The origin given to values that are added.
    pub cursor: Origin,
}

impl Graph {
    /// A graph without values.
    pub fn new(dims: Dims) -> Self {
        Graph { dims, ..Graph::default() }
    }

    /// The same values where dims have other sizes: `dims` is a table of the same dims. `None` where that is not known to be
    /// what they are when built with these sizes: a size that changes was captured, or an op refuses its operands.
    pub fn resized(mut self, dims: Dims) -> Option<Graph> {
        let changes = |d: &Dim| dims.size(*d) != self.dims.size(*d);
        if self.captured.iter().any(changes) {
            return None;
        }
        self.dims = dims;
        let same = |n: &Node| self.infer(&*n.op, &n.inputs).is_ok_and(|ty| ty == n.ty);
        self.nodes.iter().all(same).then_some(self)
    }

    /// Adds a value made by `op`; its type is inferred and its origin is the cursor's.
    pub fn add_op(&mut self, op: Arc<dyn Op>, inputs: &[Id]) -> Result<Id, OpError> {
        let ty = self.infer(&*op, inputs)?;
        Ok(self.push(Node { op, inputs: inputs.to_vec(), ty, origin: self.cursor.clone() }))
    }

    /// Type of what `op` gives for operands. Ops see operands that are stored as `bf16` as `f32`, in which they compute.
    ///
    /// # Errors
    /// Where the op refuses them.
    pub fn infer(&self, op: &dyn Op, inputs: &[Id]) -> Result<Type, OpError> {
        let types: Vec<Type> = inputs.iter().map(|i| self.ty(*i).wide()).collect();
        op.infer(&types.iter().collect::<Vec<_>>(), &self.dims)
    }

    /// Adds a value that is known to be well typed: what gradients and expansions are made of.
    ///
    /// # Panics
    /// Where the op refuses its operands: a bug in the op that builds it.
    pub fn op(&mut self, op: impl Op + 'static, inputs: &[Id]) -> Id {
        let op: Arc<dyn Op> = Arc::new(op);
        match self.add_op(op.clone(), inputs) {
            Ok(id) => id,
            Err(e) => panic!("internal error: `{op:?}` was built on operands that it refuses: {e}"),
        }
    }

    /// Adds a node as it is.
    pub fn push(&mut self, node: Node) -> Id {
        self.nodes.push(node)
    }

    /// A node.
    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id]
    }

    /// Type of a value.
    pub fn ty(&self, id: Id) -> &Type {
        &self.nodes[id].ty
    }

    /// All values in order of definition.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = Id> + use<> {
        self.nodes.ids()
    }

    /// The number that a value is, if it is a constant.
    pub fn constant_value(&self, id: Id) -> Option<f64> {
        let n = self.node(id);
        if n.op.kind() == Kind::Rematerializable(Source::Constant) { n.op.element(&[], &n.ty) } else { None }
    }

    /// Types of the operands of a node.
    pub fn input_types(&self, id: Id) -> Vec<&Type> {
        self.node(id).inputs.iter().map(|i| self.ty(*i)).collect()
    }

    /// Whether a value is made element by element.
    pub fn is_elementwise(&self, id: Id) -> bool {
        let node = self.node(id);
        let types: Vec<Type> = node.inputs.iter().map(|i| self.ty(*i).wide()).collect();
        let mut e = Expr::default();
        let load = |(i, t): (usize, &Type)| e.push(Scalar::Load(i as u16), t.dtype);
        let regs: Vec<Reg> = types.iter().enumerate().map(load).collect();
        node.op
            .scalar(&mut e, &regs, &types.iter().collect::<Vec<_>>(), &node.ty.wide(), &self.dims)
            .is_some()
    }

    /// The path of a value, `b1.attention.out`: what every message, report and trace calls it. The op's name where it has
    /// none.
    pub fn path(&self, id: Id) -> &str {
        let n = self.node(id);
        if n.origin.name.is_empty() { n.op.name() } else { &n.origin.name }
    }

    /// `b1.up[batch d_ff]`: a value as messages call it.
    pub fn describe(&self, id: Id) -> String {
        format!("{}{}", self.path(id), self.dims.list(&self.ty(id).dims))
    }
}
