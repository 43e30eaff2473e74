//! The gradient of a root of a sum of squares goes to what is squared at once. On the way through the sum it would be divided by
//! a square, which may be beyond the dtype, and then multiplied by a root of it.

use super::pass::{BackwardPass, backward};
use meshwright_ops::{Class, Graph, Id, NormRoot, Origin, RepeatId, may_sum_squares, squared};
use meshwright_plan::Dim;

impl BackwardPass<'_> {
    /// The root that a value is, if its gradient may go to what is squared.
    pub(super) fn norm_root(&self, id: Id) -> Option<NormRoot> {
        let root = *(*self.g.node(id).op).as_any().downcast_ref::<NormRoot>()?;
        let reached =
            self.reaches_squares(self.g.node(id).inputs[0], &self.g.ty(id).dims, self.g.node(id).scope);
        reached.then_some(root)
    }

    /// Whether all gradients that flow through a value come from squares that have the dims of the root.
    fn reaches_squares(&self, at: Id, dims: &[Dim], scope: Option<RepeatId>) -> bool {
        let node = self.g.node(at);
        if node.scope != scope || self.g.boundary(at).is_some() {
            return false;
        }
        let mut needing = node.inputs.iter().filter(|x| self.needs[**x]);
        match squared(self.g, at) {
            Some(both) => {
                needing.all(|x| both.contains(x)) && dims.iter().all(|d| self.g.ty(both[0]).has(*d))
            }
            None => {
                let below = may_sum_squares(self.g, at);
                !below.is_empty()
                    && needing.all(|x| below.contains(x) && self.reaches_squares(*x, dims, scope))
            }
        }
    }

    /// Hands the cotangent `dy` of a value on to what is squared beneath it, of which `moved` makes what takes its place.
    pub(super) fn hand_to_squares(&mut self, at: Id, dy: Id, moved: &dyn Fn(&mut Graph, Id) -> Id) {
        let node = self.g.node(at).clone();
        let need: Vec<bool> = node.inputs.iter().map(|x| self.needs[*x]).collect();
        let mut operands: Vec<Id> = node.inputs.iter().map(|x| self.bring(*x)).collect();
        let result = self.bring(at);
        self.g.cursor = Origin { full: self.g.cursor.full, ..backward(self.g, at, Class::Value) };
        let square = squared(self.g, at);
        // The derivative of a square is linear in what is squared.
        let held = |x: &Id| square.is_some_and(|both| both.contains(x));
        for (operand, _) in operands.iter_mut().zip(&node.inputs).filter(|(_, x)| held(x)) {
            *operand = moved(self.g, *operand);
        }
        for (input, part) in self.parts(&node, &operands, result, dy, &need) {
            match square {
                Some(_) => self.give(input, part),
                None => self.hand_to_squares(input, part, moved),
            }
        }
    }
}
