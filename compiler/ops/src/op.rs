//! The trait that every op implements, in one file each, and the graph of ops and values that its methods extend.

use crate::{Computes, Emit, ExpandWhen, F64Tensor, Kind, OpError, Precision, RepeatId, Roles, Type, union};
use meshwright_diag::Span;
use meshwright_plan::expr::Reg;
use meshwright_plan::{ArenaId, Dim, Dims, Drawn, Expr, IdVec, Microbatches, Phase};
use meshwright_sorted::SortedSet;
use std::any::Any;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
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

/// Class of a value for layout rules.
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

/// Origin of a value, for rules and messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Its class for rules.
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
    /// True if it belongs to the gradient of an op that computes in [`crate::Precision::Full`]; it then does so too.
    pub full: bool,
    /// True for a product of a layer, and what belongs to its gradient: in a program of `fp8` its factors have 8 bits. What
    /// rounds them has it too.
    pub layer: bool,
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
    /// Its origin.
    pub origin: Origin,
    /// The loop to whose body it belongs.
    pub scope: Option<RepeatId>,
}

/// A program: values in order of definition.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Names and sizes of the dims.
    pub dims: Dims,
    /// Dims whose sizes went into ops as numbers, such as the padding of a convolution, or which were checked where the ops
    /// were built and nowhere else: with another size of one of them the text must be resolved again.
    pub captured: SortedSet<Dim>,
    /// The values.
    pub nodes: IdVec<Id, Node>,
    /// The loops.
    pub repeats: IdVec<RepeatId, Repeat>,
    /// The origin given to values that are added.
    pub cursor: Origin,
    /// The loop to whose body values that are added belong.
    pub scope: Option<RepeatId>,
    /// Notes on patterns in its equations.
    pub notes: Vec<GraphNote>,
    /// The parts in which it goes through the batch.
    pub microbatches: Option<Microbatches>,
}

/// A loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Its body runs once for each position of this dim.
    pub dim: Dim,
    /// From the last position to the first.
    pub reverse: bool,
    /// The lowest position that it runs for: positions before it are left out, and what the loop stacks is 0 there.
    pub from: usize,
    /// The loop in whose body it stands.
    pub parent: Option<RepeatId>,
    /// Carries: the value in the body, and its next value.
    pub carries: Vec<(Id, Id)>,
}

/// A place where an op of its own was put in place of equations, or nearly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphNote {
    /// The path of the value.
    pub value: Arc<str>,
    /// Its place in the model file.
    pub span: Span,
    /// Why the equations stayed; `None` where they were replaced.
    pub because: Option<String>,
}

/// Equality with any other op. Equal ops of equal operands are the same computation.
pub trait DynEq {
    /// The op as its own type may be had from it.
    fn as_any(&self) -> &dyn Any;

    /// Whether both are of one type and have equal attributes.
    fn dyn_eq(&self, other: &dyn Op) -> bool;
}

/// The hash that goes with [`DynEq`].
pub trait DynHash {
    /// Feeds type and attributes to `state`.
    fn dyn_hash(&self, state: &mut dyn Hasher);
}

impl<T: Eq + Any> DynEq for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn dyn_eq(&self, other: &dyn Op) -> bool {
        other.as_any().downcast_ref::<T>() == Some(self)
    }
}

impl<T: Hash + Any> DynHash for T {
    fn dyn_hash(&self, mut state: &mut dyn Hasher) {
        (self.type_id(), self).hash(&mut state);
    }
}

impl PartialEq for dyn Op {
    fn eq(&self, other: &dyn Op) -> bool {
        self.dyn_eq(other)
    }
}

impl Eq for dyn Op {}

impl Hash for dyn Op {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.dyn_hash(state);
    }
}

/// Equality and hash of an op by a key, for attributes that are floats: those are equal by their bits, NaN to itself and 0
/// not to -0.
macro_rules! eq_by {
    ($op:ty, |$this:ident| $key:expr) => {
        impl PartialEq for $op {
            fn eq(&self, other: &Self) -> bool {
                let key = |$this: &Self| $key;
                key(self) == key(other)
            }
        }

        impl Eq for $op {}

        impl std::hash::Hash for $op {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                let $this = self;
                std::hash::Hash::hash(&$key, state);
            }
        }
    };
}
pub(crate) use eq_by;

/// Positions along all of some dims; dims without positions do not count.
pub(crate) fn positions(dims: &[Dim], table: &Dims) -> u64 {
    let sizes = dims.iter().map(|d| table.size(*d) as u64).filter(|size| *size > 0);
    sizes.fold(1, u64::saturating_mul)
}

/// An op: one result, any number of operands, attributes in the implementing type, which derives equality and hash.
pub trait Op: DynEq + DynHash + Debug + Send + Sync {
    /// Its name, for listings.
    fn name(&self) -> &'static str;

    /// Type of the result, or why the operands do not fit. Here and below `table` has the sizes of the dims.
    fn infer(&self, x: &[&Type], table: &Dims) -> Result<Type, OpError>;

    /// The role of every dim.
    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles;

    /// The dims along which an element depends on where it stands or on its neighbors: operands in another order along one of
    /// them do not give the result in that order.
    fn ordered(&self, x: &[&Type], y: &Type, table: &Dims) -> Vec<Dim> {
        let roles = self.roles(x, y, table);
        let windows = roles.loops.iter().filter(|l| l.windows.iter().any(Option::is_some));
        windows.flat_map(|l| l.on.iter().flatten().copied().chain([l.dim])).collect()
    }

    /// What it is called where it is written, which may depend on its dims.
    fn spelled(&self, _table: &Dims) -> &'static str {
        self.name()
    }

    /// Attributes that distinguish ops of this name in listings; starts with a blank.
    fn detail(&self) -> String {
        String::new()
    }

    /// Its kind for the partitioner.
    fn kind(&self) -> Kind {
        Kind::Compute(Computes::Other)
    }

    /// Values of the forward pass beside operands and result that its gradient reads: built from ops on the operands, and kept.
    fn residuals(&self, _g: &mut Graph, _x: &[Id]) -> Vec<Id> {
        Vec::new()
    }

    /// For each operand whose `need` is set, its cotangent: built from ops on the operands and then the residuals, `x`, the
    /// result `y` and its cotangent `dy`. A cotangent may lack dims along which it is constant. `None` means zero.
    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>>;

    /// An element-wise op as a scalar expression of its operands (already in `e`); `None` for all others. Neither operands
    /// nor types are of a half type: what is stored so is read as `f32`.
    fn scalar(&self, _e: &mut Expr, _x: &[Reg], _types: &[&Type], _y: &Type, _table: &Dims) -> Option<Reg> {
        None
    }

    /// In which dtype it reads and gives floats in a program of `bf16` or `f16`.
    fn precision(&self, _x: &[&Type], _y: &Type) -> Precision {
        Precision::AsOperands
    }

    /// The operands that it multiplies, and the same op with the factors rounded that it makes itself, for a program of `tf32`.
    /// `None` of ops that make none.
    fn rounding(&self) -> Option<(Vec<usize>, Arc<dyn Op>)> {
        None
    }

    /// Of an op that draws truth values: what it draws, so that whoever reads them may draw them again.
    fn drawn(&self) -> Option<Drawn> {
        None
    }

    /// When [`Op::expand`] applies.
    fn expand_when(&self) -> ExpandWhen {
        ExpandWhen::Never
    }

    /// The same result from simpler ops.
    fn expand(&self, _g: &mut Graph, _x: &[Id]) -> Option<Id> {
        None
    }

    /// Appends the primitive steps that compute it on one device. Never called where [`Op::scalar`] gives an expression.
    fn lower(&self, e: &mut dyn Emit);

    /// Positions that the largest of the loops it is computed by runs over.
    fn positions(&self, x: &[&Type], y: &Type, table: &Dims) -> u64 {
        positions(&union(x.iter().copied().chain([y])), table)
    }

    /// Floating-point operations, given local sizes of the dims.
    fn flops(&self, x: &[&Type], y: &Type, size: &dyn Fn(Dim) -> u64, table: &Dims) -> u64 {
        let _ = (x, table);
        y.dims.iter().map(|d| size(*d)).product()
    }

    /// Floating-point operations of the model that it stands for, on all devices together: those of matrix products, two for
    /// each multiplication and addition, without what is computed again. 0 where it is none.
    fn model_flops(&self, _x: &[&Type], _y: &Type, _table: &Dims) -> u64 {
        0
    }

    /// The meaning of an element-wise op, in f64: an element of the result, of which the operands have the elements `x`.
    /// `None` for all others. It shares nothing with [`Op::scalar`].
    fn element(&self, _x: &[f64], _y: &Type) -> Option<f64> {
        None
    }

    /// Its meaning, slow and in f64, on whole values: what tests compare with, and what the last few numbers of an
    /// evaluation are computed by. It shares nothing with [`Op::lower`] or [`Op::roles`].
    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        F64Tensor::build(table, &y.dims, |at| {
            let x: Vec<f64> = x.iter().map(|t| t.at(&y.dims, at)).collect();
            self.element(&x, y).unwrap_or_else(|| panic!("internal error: `{}` has no meaning", self.name()))
        })
    }
}
