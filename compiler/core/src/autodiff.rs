//! Reverse-mode differentiation of the global named program, so that the backward pass is partitioned by the same rules
//! as the forward one.
//!
//! Before: a graph with a scalar loss. After: the same graph with, for each parameter, a value of class `Grad`. Cotangents
//! may lack dims along which they are constant, and several of one value meet in one n-ary add.

use crate::program::ParamDecl;
use meshwright_ops::{Class, Graph, Id, Kind, Origin, Precision, Type};
use meshwright_plan::Phase;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Appends the backward pass. Returns the gradient of `loss` for each of `params`, with the parameter's dims.
pub fn gradients(g: &mut Graph, loss: Id, params: &[&ParamDecl]) -> Vec<Id> {
    let wanted: BTreeSet<Id> = params.iter().map(|p| p.id).collect();
    let mut needs = g.nodes.table(false);
    for id in g.ids() {
        needs[id] = wanted.contains(&id) || g.node(id).inputs.iter().any(|i| needs[*i]);
    }
    let mut cotangents: BTreeMap<Id, Vec<Id>> = BTreeMap::new();
    g.cursor = backward(g, loss, Class::Value);
    let one = g.constant(1.0, g.ty(loss).dtype);
    cotangents.insert(loss, vec![one]);
    let mut found: BTreeMap<Id, Id> = BTreeMap::new();
    for id in (0..=loss.0).rev().map(Id) {
        let Some(parts) = cotangents.remove(&id) else { continue };
        g.cursor = backward(g, id, Class::Value);
        let dy = g.sum_of(&parts);
        if wanted.contains(&id) {
            found.insert(id, dy);
            continue;
        }
        if !needs[id] {
            continue;
        }
        let node = g.node(id).clone();
        let need: Vec<bool> = node.inputs.iter().map(|i| needs[*i] && g.ty(*i).dtype.is_float()).collect();
        if !need.contains(&true) || matches!(node.op.kind(), Kind::Input(_)) {
            continue;
        }
        let types: Vec<&Type> = node.inputs.iter().map(|i| g.ty(*i)).collect();
        g.cursor.full = node.origin.full || node.op.precision(&types, &node.ty) == Precision::Full;
        let made = g.nodes.len() as u32;
        let parts = node.op.vjp(g, &node.inputs, id, dy, &need);
        for ((input, part), need) in node.inputs.iter().zip(parts).zip(need) {
            if let (Some(part), true) = (part, need) {
                // Placed as the op's own values are, it is a cotangent of the operand.
                if part.0 >= made {
                    g.nodes[part].origin.name = cotangent_of(g, *input);
                }
                cotangents.entry(*input).or_default().push(part);
            }
        }
    }
    params
        .iter()
        .map(|p| {
            g.cursor = backward(g, p.id, Class::Value);
            let dims = g.ty(p.id).dims.clone();
            let dtype = g.ty(p.id).dtype;
            let dy = match found.get(&p.id) {
                Some(dy) => *dy,
                None => g.constant(0.0, dtype),
            };
            let full = g.expanded(dy, &dims);
            g.cursor = backward(g, p.id, Class::Grad);
            g.op(meshwright_ops::Gradient, &[full])
        })
        .collect()
}

/// `d(b1.up)`: what the cotangent of a value is called.
fn cotangent_of(g: &Graph, of: Id) -> Arc<str> {
    format!("d({})", g.path(of)).into()
}

/// The origin of what belongs to the cotangent of a value: its path and place, so that the same rules apply to it.
fn backward(g: &Graph, of: Id, class: Class) -> Origin {
    let o = &g.node(of).origin;
    Origin {
        class,
        phase: Phase::Backward,
        path: o.path.clone(),
        name: cotangent_of(g, of),
        span: o.span,
        full: false,
    }
}
