//! What a graph of values can be asked, and how it grows.

use crate::{Computes, Graph, Id, Kind, Node, Op, OpError, Source, Type};
use meshwright_plan::{Dim, Dims, Expr};
use std::sync::Arc;

impl Node {
    /// The number that a scalar is whose operands are the numbers `x`; `None` where its op does not say.
    pub fn folded(&self, x: &[f64]) -> Option<f64> {
        let product = self.op.kind() == Kind::Compute(Computes::Contraction);
        if product { Some(x.iter().product()) } else { self.op.element(x, &self.ty) }
    }
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
        Ok(self.push(Node {
            op,
            inputs: inputs.to_vec(),
            ty,
            origin: self.cursor.clone(),
            scope: self.scope,
        }))
    }

    /// Type of what `op` gives for operands. Ops see operands that are stored as `bf16` or `f16` as `f32`, in which they compute.
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
        let (mut e, regs) = Expr::of_operands(types.iter().map(|t| t.dtype));
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

    /// The op that makes a value, as it is written.
    pub fn spelled(&self, id: Id) -> &'static str {
        self.node(id).op.spelled(&self.dims)
    }

    /// `b1.up[batch d_ff]`: a value as messages call it.
    pub fn describe(&self, id: Id) -> String {
        format!("{}{}", self.path(id), self.dims.list(&self.ty(id).dims))
    }
}
