//! The errors of attentions that no ring serves, where the layout permits rings alone.
//!
//! Rings replace all gathers of keys but those of what a rule stores split, which need no other line. What is left is an error,
//! with the reason of the attention that has it, if one is known.

use crate::layout::Layout;
use crate::partition::{Cause, Instr, Reshard, Spmd};
use meshwright_diag::{Diagnostic, MAX_REPORTED, Span, codes};
use meshwright_ops::{AttentionGrad, AttentionPass, Id, Op};
use meshwright_plan::{Axis, Collective, Dim, Plan, Provenance, Step};
use meshwright_sorted::{SortedMap, SortedSet};

/// Gathers by the numbers of their values and their axes.
pub(super) type Gathers = SortedSet<(u32, Axis)>;

/// Why no ring serves an attention.
#[derive(Clone, Debug, Default)]
pub(super) struct Unfit {
    /// The reason, as the end of a sentence about the attention.
    pub(super) because: String,
    /// What is in the way, if it is another value.
    pub(super) other: Option<Provenance>,
    /// The attention in the way, if it is one, by its step.
    pub(super) by: Option<usize>,
    /// The gathers of its operands.
    pub(super) gathered: Gathers,
}

impl From<String> for Box<Unfit> {
    fn from(because: String) -> Box<Unfit> {
        Box::new(because.into())
    }
}

impl From<String> for Unfit {
    fn from(because: String) -> Unfit {
        Unfit { because, ..Unfit::default() }
    }
}

/// An error for each place in the model: of attentions by their steps, with the number of a result and the dim of the keys, and
/// of gathers that are left in a Plan.
pub(super) fn errors(
    unfit: &SortedMap<usize, (u32, Dim, Unfit)>,
    left: &Plan,
    spmd: &Spmd,
    layout: &Layout,
) -> Vec<Diagnostic> {
    let mut said = Said { spmd, layout, places: SortedSet::new(), errors: Vec::new() };
    let gathers = |stored: bool| asked(spmd).filter(move |(_, c)| c.stored == stored);
    let stored: Gathers = gathers(true).map(|(gather, _)| gather).collect();
    let is_refused = |(_, _, why): &(u32, Dim, Unfit)| !why.gathered.is_subset(&stored);
    let refused = || unfit.values().filter(|u| is_refused(u));
    // The error of the attention with which one shares its keys says it all, but where that would say the same.
    let says_all =
        |(.., why): &(u32, Dim, Unfit)| why.by.and_then(|by| unfit.get(&by)).is_some_and(is_refused);
    refused().filter(|u| !says_all(u)).for_each(|(id, key, why)| said.error(*id, *key, why));
    if said.errors.is_empty() {
        refused().for_each(|(id, key, why)| said.error(*id, *key, why));
    }
    let known: Gathers = refused().flat_map(|(.., why)| why.gathered.clone()).collect();
    let left = all_gathers(left);
    for (gather, cause) in gathers(false).filter(|(g, _)| left.contains(g) && !known.contains(g)) {
        let key = cause.user.and_then(|u| key_of(&*spmd.step.graph.node(u).op));
        if let (Some(user), Some(key)) = (cause.user, key.filter(|_| key == cause.gathered)) {
            let because = "has keys that come to each device in a way that no ring replaces".to_string();
            said.error(user.0, key, &Unfit { gathered: [gather].into(), ..because.into() });
        }
    }
    said.errors
}

/// The dim of the keys of an attention, or of a part or gradient of one.
fn key_of(op: &dyn Op) -> Option<Dim> {
    let op = op.as_any();
    let pass = op.downcast_ref::<AttentionPass>().map(|o| &o.form);
    pass.or_else(|| op.downcast_ref::<AttentionGrad>().map(|o| &o.form)).map(|form| form.key)
}

/// The gathers of a program, with their causes.
fn asked(spmd: &Spmd) -> impl Iterator<Item = ((u32, Axis), &Cause)> {
    spmd.instrs.iter().filter_map(|i| match i {
        Instr::Reshard {
            kind: Reshard::Collective(Collective::AllGather { axis, .. }), out, cause, ..
        } => Some(((spmd.copy(*out).value.0, *axis), cause)),
        _ => None,
    })
}

fn all_gathers(plan: &Plan) -> Gathers {
    let of = |s: &Step| match s.collective() {
        Some(Collective::AllGather { axis, .. }) => s.origin.iter().map(|o| (o.id, *axis)).collect(),
        _ => Vec::new(),
    };
    plan.steps.iter().flat_map(of).collect()
}

/// What has been said so far.
struct Said<'a> {
    spmd: &'a Spmd,
    layout: &'a Layout,
    places: SortedSet<Span>,
    errors: Vec<Diagnostic>,
}

impl Said<'_> {
    /// An error of an attention, or of its gradient, unless the layout permits gathers too, or one was said at its place.
    fn error(&mut self, id: u32, key: Dim, why: &Unfit) {
        let g = &self.spmd.step.graph;
        let span = |id: u32| g.node(Id(id)).origin.span;
        let ring = self.layout.rings.get(&key).filter(|_| !self.layout.gathers.contains(&key));
        let Some(ring) = ring.filter(|_| self.errors.len() < MAX_REPORTED && self.places.insert(span(id)))
        else {
            return;
        };
        let name = g.dims.name(key);
        let values: SortedSet<String> =
            why.gathered.iter().map(|(id, _)| format!("`{}`", g.path(Id(*id)))).collect();
        let are = if values.len() > 1 { "are" } else { "is" };
        let values = Vec::from_iter(values).join(" and ");
        let text = format!("{values} {are} gathered along `{name}`, which `ring {name}` does not permit");
        let mut d = Diagnostic::error(codes::E0317, text).at(span(id), "this attention is no ring");
        if let Some(other) = why.other.as_ref().filter(|o| span(o.id) != span(id)) {
            d = d.and(span(other.id), format!("`{}`", other.path));
        }
        let help = format!("let the layout gather what no ring brings: `gather {name}` beside `ring {name}`");
        self.errors.push(d.and(*ring, "the ring").note(format!("it {}", why.because)).help(help));
    }
}
