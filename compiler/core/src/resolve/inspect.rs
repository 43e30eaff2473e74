//! What stands at each place of a model's text, for an editor: the resolver keeps it while it resolves, errors or not.

use super::resolver::Resolver;
use super::scope::Val;
use meshwright_diag::Span;
use meshwright_ops::{Graph, Id};
use meshwright_plan::Dim;
use meshwright_sorted::SortedMap;

/// The meaning of an expression or a name.
#[derive(Clone, Debug, PartialEq)]
pub enum Meaning {
    /// A value of the graph.
    Value(Id),
    /// A number or a truth value that is known when the text is read.
    Known(String),
    /// Dims.
    Dims(Vec<Dim>),
    /// What a layer with several results gives.
    Several(Vec<Meaning>),
}

/// What stands at the places of a text.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The values so far; where the text has errors, those that have none.
    pub graph: Graph,
    /// Places with what stands there, in the order of evaluation: one in a layer has an entry for each call.
    pub facts: Vec<(Span, Meaning)>,
    /// Dims by name.
    pub dims: SortedMap<String, Dim>,
    /// Consts by name, with their values.
    pub consts: SortedMap<String, String>,
}

impl Inspection {
    pub(super) fn of(r: &mut Resolver<'_>) -> Inspection {
        let facts = r.facts.take().unwrap_or_default();
        let dims = r.globals.dims.iter().filter_map(|(name, (_, dim))| Some((name.to_string(), (*dim)?)));
        let consts = r.globals.consts.iter();
        let consts =
            consts.filter_map(|(name, (_, value))| Some((name.to_string(), value.as_ref()?.to_string())));
        Inspection {
            facts: facts.into_iter().filter_map(|(at, val)| Some((at, meaning(val)?))).collect(),
            dims: dims.collect(),
            consts: consts.collect(),
            graph: r.graph.clone(),
        }
    }
}

fn meaning(val: Val) -> Option<Meaning> {
    Some(match val {
        Val::Tensor(id) => Meaning::Value(id),
        Val::Konst(k) => Meaning::Known(k.to_string()),
        Val::Dims(dims) => Meaning::Dims(dims),
        Val::Tuple(all) => Meaning::Several(all.into_iter().filter_map(meaning).collect()),
        Val::Poison => return None,
    })
}
