//! Scalar expressions: what a fused element-wise step computes for one element.
//!
//! An [`Expr`] is a list of nodes in evaluation order; a node names earlier nodes by position.

pub use crate::prim::functions::{BinaryFn, Domain, FunctionCost, UnaryFn};

use crate::DType;
use serde::{Deserialize, Serialize};

/// Position of a node in its [`Expr`].
pub type Reg = u16;

/// What a node computes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scalar {
    /// The element of the step's operand of that number, in that operand's dtype.
    Load(u16),
    /// A number of the node's dtype.
    Const(#[serde(with = "float")] f64),
    /// The global index, `I32`, along the dim of that number of the iteration space.
    Index(u16),
    /// The index (as `I32`) of a pair.
    PairIndex(Reg),
    /// A function of one node.
    Unary(UnaryFn, Reg),
    /// A function of two nodes of one dtype.
    Binary(BinaryFn, Reg, Reg),
    /// `if first { second } else { third }`; the first is `Bool`.
    Select(Reg, Reg, Reg),
    /// Conversion to the node's dtype: to a half type rounds to the nearest, ties to even; float to integer truncates, non-zero
    /// is true, true is 1.
    Cast(Reg),
}

impl Scalar {
    /// The nodes it reads.
    pub fn reads(&self) -> Vec<Reg> {
        match *self {
            Scalar::Load(_) | Scalar::Const(_) | Scalar::Index(_) => vec![],
            Scalar::PairIndex(a) | Scalar::Unary(_, a) | Scalar::Cast(a) => vec![a],
            Scalar::Binary(_, a, b) => vec![a, b],
            Scalar::Select(a, b, c) => vec![a, b, c],
        }
    }

    /// The last of the nodes it reads.
    fn last_read(&self) -> Option<Reg> {
        match *self {
            Scalar::Load(_) | Scalar::Const(_) | Scalar::Index(_) => None,
            Scalar::PairIndex(a) | Scalar::Unary(_, a) | Scalar::Cast(a) => Some(a),
            Scalar::Binary(_, a, b) => Some(a.max(b)),
            Scalar::Select(a, b, c) => Some(a.max(b).max(c)),
        }
    }

    /// The same with its reads renumbered.
    pub fn map_reads(&self, mut f: impl FnMut(Reg) -> Reg) -> Scalar {
        match *self {
            Scalar::PairIndex(a) => Scalar::PairIndex(f(a)),
            Scalar::Unary(u, a) => Scalar::Unary(u, f(a)),
            Scalar::Cast(a) => Scalar::Cast(f(a)),
            Scalar::Binary(o, a, b) => Scalar::Binary(o, f(a), f(b)),
            Scalar::Select(a, b, c) => Scalar::Select(f(a), f(b), f(c)),
            leaf => leaf,
        }
    }
}

/// A node: what it computes and of which dtype its result is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// What it computes.
    pub scalar: Scalar,
    /// Dtype of the result.
    pub dtype: DType,
}

/// A scalar expression in evaluation order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Expr {
    /// The nodes; each reads only earlier ones.
    pub nodes: Vec<Node>,
}

impl Expr {
    /// Adds a node, or finds the same one, and returns its position.
    pub fn push(&mut self, scalar: Scalar, dtype: DType) -> Reg {
        let node = Node { scalar, dtype };
        // The same one reads the same nodes, and so comes after them.
        let from = scalar.last_read().map_or(0, |r| usize::from(r) + 1);
        if let Some(i) = self.nodes.iter().skip(from).position(|n| *n == node) {
            return (from + i) as Reg;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as Reg
    }

    /// An expression that begins with the loads of operands of these dtypes, and their positions.
    pub fn of_operands(dtypes: impl IntoIterator<Item = DType>) -> (Expr, Vec<Reg>) {
        let load = |(i, dtype): (usize, DType)| Node { scalar: Scalar::Load(i as u16), dtype };
        let nodes: Vec<Node> = dtypes.into_iter().enumerate().map(load).collect();
        let regs = (0..nodes.len()).map(|i| i as Reg).collect();
        (Expr { nodes }, regs)
    }

    /// Dtype of a node.
    pub fn dtype(&self, reg: Reg) -> DType {
        self.nodes[reg as usize].dtype
    }

    /// `Const` of a dtype.
    pub fn constant(&mut self, value: f64, dtype: DType) -> Reg {
        self.push(Scalar::Const(value), dtype)
    }

    /// `Unary`, of the operand's dtype.
    pub fn unary(&mut self, f: UnaryFn, a: Reg) -> Reg {
        let t = self.dtype(a);
        self.push(Scalar::Unary(f, a), t)
    }

    /// `Binary`; comparisons give `Bool`, all else the dtype of the first operand.
    pub fn binary(&mut self, f: BinaryFn, a: Reg, b: Reg) -> Reg {
        let t = if f.is_comparison() { DType::Bool } else { self.dtype(a) };
        self.push(Scalar::Binary(f, a, b), t)
    }

    /// `Select`, of the second operand's dtype.
    pub fn select(&mut self, c: Reg, a: Reg, b: Reg) -> Reg {
        let t = self.dtype(a);
        self.push(Scalar::Select(c, a, b), t)
    }

    /// `Cast`; the operand itself where it already has the dtype.
    pub fn cast(&mut self, a: Reg, dtype: DType) -> Reg {
        if self.dtype(a) == dtype { a } else { self.push(Scalar::Cast(a), dtype) }
    }
}

/// Floats as text, so that infinities survive JSON.
mod float {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(v: &f64, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{v:?}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
