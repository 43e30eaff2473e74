//! What `recompute` may name.

use crate::step::factor_scales::is_scale;
use meshwright_ops::{Kind, Node, Source};
use std::borrow::Cow;

/// What a layout may call a value that it has computed again: the path of its call, and its own name, without the numbers that
/// tell calls of one name apart. `None` of what is never computed again: parameters, inputs, what crosses the boundary of a
/// loop, and the scales of factors in 8 bits.
pub(crate) fn recomputed_names(node: &Node) -> Option<[Cow<'_, str>; 2]> {
    let computed = matches!(
        node.op.kind(),
        Kind::Compute(_) | Kind::Add | Kind::Rename { .. } | Kind::Rematerializable(Source::Random)
    );
    let plain = |name: &'_ str| {
        let element = |e: &str| e.split('#').next().unwrap_or(e).to_string();
        name.split('.').map(element).collect::<Vec<_>>().join(".")
    };
    let name = match node.origin.name.contains('#') {
        true => Cow::Owned(plain(&node.origin.name)),
        false => Cow::Borrowed(&*node.origin.name),
    };
    (computed && !is_scale(node)).then_some([Cow::Borrowed(&*node.origin.path), name])
}
