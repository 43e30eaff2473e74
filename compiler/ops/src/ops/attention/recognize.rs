//! Finds attention in the equations of a program: `softmax[key]` of an element-wise expression of one product of queries and
//! keys, which nothing reads but a sum over `key` of its product with values.

use super::body::is_computed_again;
use super::{Attention, AttentionForm, Body, BodyRef};
use crate::{Computes, Contract, Graph, Id, Kind, Linear, Op, RepeatId, Softmax, Source};
use meshwright_plan::{Dim, IdVec};
use meshwright_sorted::{SortedMap, SortedSet};
use std::sync::Arc;

/// The reason why a softmax that weights a sum along its dim is not an attention, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionMiss(pub String);

/// Facts about a graph that every search needs.
pub struct Recognizer {
    /// Which live values read each.
    readers: IdVec<Id, Vec<Id>>,
    /// Values that are read from outside.
    roots: SortedSet<Id>,
    /// Values through which a gradient flows.
    needs: IdVec<Id, bool>,
}

/// The match of one softmax.
struct AttentionMatch {
    /// The sum that becomes the attention.
    at: Id,
    form: AttentionForm,
    inputs: Vec<Id>,
}

impl Recognizer {
    /// For the values that `roots` depend on; `needs` says which have a gradient.
    pub fn new(g: &Graph, roots: &[Id], needs: IdVec<Id, bool>) -> Recognizer {
        let mut live = g.nodes.table(false);
        let mut todo = roots.to_vec();
        while let Some(id) = todo.pop() {
            if !std::mem::replace(&mut live[id], true) {
                todo.extend(g.depends_on(id));
            }
        }
        let mut readers = g.nodes.table(Vec::new());
        for id in g.ids().filter(|id| live[*id]) {
            for x in &g.node(id).inputs {
                readers[*x].push(id);
            }
        }
        // The next iteration reads the carries of a loop.
        let carried = g.repeats.iter().flat_map(|r| &r.carries).map(|(_, next)| *next);
        Recognizer { readers, roots: roots.iter().copied().chain(carried).collect(), needs }
    }

    /// Puts attention in place of every sum that is one: of each the value, or of a softmax that nearly is one the reason why
    /// it is not. Ids stay what they are.
    pub fn run(&self, g: &mut Graph) -> Vec<(Id, Result<(), AttentionMiss>)> {
        let mut out = Vec::new();
        for id in g.ids() {
            let Some(Softmax { dim, log: false }) = (*g.node(id).op).as_any().downcast_ref() else {
                continue;
            };
            let dim = *dim;
            if self.readers[id].is_empty() {
                continue;
            }
            match self.find(g, id, dim) {
                Ok(Some(found)) => {
                    let node = &mut g.nodes[found.at];
                    node.op = Arc::new(Attention(Arc::new(found.form)));
                    node.inputs = found.inputs;
                    out.push((found.at, Ok(())));
                }
                Ok(None) => {}
                Err(why) => out.push((id, Err(why))),
            }
        }
        out
    }

    /// `None` where the softmax weights no sum along its dim.
    fn find(&self, g: &Graph, softmax: Id, key: Dim) -> Result<Option<AttentionMatch>, AttentionMiss> {
        let Some((path, at)) = self.reader(g, softmax, key) else { return Ok(None) };
        let miss = |why: &str| Err(AttentionMiss(why.into()));
        let mut chain = softmax;
        for next in path.iter().chain([&at]) {
            if self.roots.contains(&chain) || self.readers[chain].len() != 1 {
                return miss("its weights are read by something else too");
            }
            chain = *next;
        }
        let last = path.last().copied().unwrap_or(softmax);
        let scope = g.node(at).scope;
        let mut search = AttentionSearch {
            recognizer: self,
            g,
            key,
            scope,
            product: None,
            by_product: SortedSet::new(),
            extras: Vec::new(),
            bias: None,
            of_weights: false,
        };
        let (score, ScoreMatmul { at: product, q, k, space }, width) =
            search.score(g.node(softmax).inputs[0])?;
        let weight = search.weight(softmax, &path)?;
        let (values, weight) = search.values(at, last, weight)?;
        let AttentionSearch { extras, bias, .. } = search;
        let out = g.ty(at).dims.clone();
        let rows = |d: &Dim| space.contains(d) && *d != key;
        let of_values = g.ty(values).dims.clone();
        let has = |d: &Dim| rows(d) || (of_values.contains(d) && *d != key);
        if !space.iter().filter(|d| **d != key).all(|d| out.contains(d)) || !out.iter().all(has) {
            return miss("the sum of the values is over other dims than the keys too");
        }
        if of_values.iter().any(|d| !space.contains(d) && !out.contains(d)) {
            return miss("the sum of the values is over other dims than the keys too");
        }
        if !extras.iter().all(|x| g.ty(*x).dims.iter().all(|d| space.contains(d))) {
            return miss("its scores have dims that queries and keys lack");
        }
        let dtypes = extras.iter().map(|x| g.ty(*x).dtype.wide()).collect();
        let form = AttentionForm {
            key,
            width,
            space,
            score,
            weight,
            out,
            dtype: g.ty(product).dtype,
            extras: dtypes,
            bias,
            rounds: false,
        };
        let types: Vec<crate::Type> = extras.iter().map(|x| g.ty(*x).clone()).collect();
        if form.described(&g.dims, g.ty(q).dtype, &types).is_none() {
            return miss("its scores have no derivative element by element");
        }
        let inputs = [&[q, k, values], extras.as_slice()].concat();
        Ok(Some(AttentionMatch { at, form, inputs }))
    }

    /// The sum along `key` that the softmax weights, and the values on the way there; `None` where there is none.
    fn reader(&self, g: &Graph, softmax: Id, key: Dim) -> Option<(Vec<Id>, Id)> {
        let mut path = Vec::new();
        let mut at = softmax;
        loop {
            let sums = |r: &&Id| {
                g.node(**r).op.kind() == Kind::Compute(Computes::Contraction) && !g.ty(**r).has(key)
            };
            let elementwise = |r: &&Id| g.ty(**r).has(key) && g.is_elementwise(**r);
            if let Some(sum) = self.readers[at].iter().find(sums) {
                // Of one factor it is a sum of the weights, which are 1.
                return (g.node(*sum).inputs.len() > 1).then_some((path, *sum));
            }
            at = *self.readers[at].iter().find(elementwise)?;
            path.push(at);
        }
    }
}

/// The product of queries and keys.
#[derive(Clone)]
struct ScoreMatmul {
    at: Id,
    q: Id,
    k: Id,
    space: Vec<Dim>,
}

/// The search of one attention.
struct AttentionSearch<'a> {
    recognizer: &'a Recognizer,
    g: &'a Graph,
    key: Dim,
    /// The loop in whose body the attention would be.
    scope: Option<RepeatId>,
    product: Option<ScoreMatmul>,
    /// The product, and what of the scores is computed from it.
    by_product: SortedSet<Id>,
    extras: Vec<Id>,
    /// The extra operand that has a gradient of its own.
    bias: Option<usize>,
    /// Whether the function between softmax and sum is searched, or else that of the scores.
    of_weights: bool,
}

impl AttentionSearch<'_> {
    fn miss<T>(&self, why: impl Into<String>) -> Result<T, AttentionMiss> {
        Err(AttentionMiss(why.into()))
    }

    /// True if a value is the product of queries and keys: of two factors (and numbers), where one factor has the keys.
    fn is_product(&self, id: Id) -> bool {
        let node = self.g.node(id);
        let summed = node.inputs.iter().any(|x| self.g.ty(*x).dims.iter().any(|d| !node.ty.has(*d)));
        node.op.kind() == Kind::Compute(Computes::Contraction)
            && summed
            && node.ty.has(self.key)
            && node.ty.dims.len() > 1
    }

    /// The scores as a body, and the width of queries and keys.
    fn score(&mut self, score: Id) -> Result<(Body, ScoreMatmul, Vec<Dim>), AttentionMiss> {
        let mut made = BodyBuilder::default();
        let product = self.find_product(score)?;
        self.product = Some(product.clone());
        let result = self.absorb(score, &mut made)?;
        if self.g.ty(score).dims.len() != product.space.len() {
            return self.miss("its scores have dims that queries and keys lack");
        }
        let (q, k) = (self.g.ty(product.q), self.g.ty(product.k));
        let summed = |d: &&Dim| !product.space.contains(d);
        let width: Vec<Dim> = q.dims.iter().filter(summed).copied().collect();
        if k.dims.iter().filter(summed).any(|d| !width.contains(d)) || width.iter().any(|d| !k.has(*d)) {
            return self.miss("queries and keys are summed over a dim that one of them lacks");
        }
        Ok((Body { nodes: made.nodes, result }, product, width))
    }

    /// The only product of queries and keys that scores are an element-wise expression of.
    fn find_product(&mut self, score: Id) -> Result<ScoreMatmul, AttentionMiss> {
        let (mut todo, mut seen, mut found) = (vec![score], SortedSet::new(), SortedSet::new());
        while let Some(id) = todo.pop() {
            if !seen.insert(id) || !self.g.ty(id).has(self.key) {
                continue;
            }
            if self.is_product(id) {
                found.insert(id);
            } else if self.g.is_elementwise(id) {
                todo.extend(&self.g.node(id).inputs);
            }
        }
        let at = match found.into_iter().collect::<Vec<_>>()[..] {
            [at] => at,
            [] => return self.miss("its scores hold no product of queries and keys"),
            _ => return self.miss("its scores hold more than one product"),
        };
        // Operands come before what is computed from them.
        for id in seen {
            let of_it = self.g.node(id).inputs.iter().any(|x| self.by_product.contains(x));
            if id == at || of_it {
                self.by_product.insert(id);
            }
        }
        let node = self.g.node(at);
        let factors = self.factors(at).1;
        let [a, b] = factors[..] else {
            return self.miss(format!("its scores are a product of {} factors", factors.len()));
        };
        let (q, k) = match (self.g.ty(a).has(self.key), self.g.ty(b).has(self.key)) {
            (false, true) => (a, b),
            (true, false) => (b, a),
            _ => return self.miss("queries and keys both have the dim of the keys"),
        };
        if !node.ty.dtype.is_float() {
            return self.miss("its scores are no floats");
        }
        Ok(ScoreMatmul { at, q, k, space: node.ty.dims.clone() })
    }

    /// The numbers among the factors of a product, and the others.
    fn factors(&self, id: Id) -> (Vec<Id>, Vec<Id>) {
        self.g.node(id).inputs.iter().partition(|x| self.g.ty(**x).dims.is_empty())
    }

    /// A value as part of a body: computed again where it has both keys and queries, and would else be stored so.
    fn absorb(&mut self, id: Id, made: &mut BodyBuilder) -> Result<BodyRef, AttentionMiss> {
        if let Some(known) = made.known.get(&id) {
            return Ok(*known);
        }
        if self.of_weights && self.by_product.contains(&id) {
            return self.miss("its weights are made of its scores beside the softmax too");
        }
        let product = self.product.clone();
        if let Some(p) = product.as_ref().filter(|p| p.at == id) {
            let found = self.scaled(BodyRef::Root, &self.factors(id).0, &p.space, made)?;
            made.known.insert(id, found);
            return Ok(found);
        }
        if self.recognizer.needs[id] && !self.by_product.contains(&id) {
            return self.trained(id);
        }
        let node = self.g.node(id);
        let of_queries =
            |d: &Dim| product.as_ref().is_some_and(|p| p.space.contains(d) && !self.g.ty(p.k).has(*d));
        let large = node.ty.has(self.key) && node.ty.dims.iter().any(of_queries);
        let free = node.inputs.is_empty() || node.ty.dims.is_empty();
        // Random values depend on the iteration in which they are drawn.
        let random = node.op.kind() == Kind::Rematerializable(Source::Random);
        let here = !random || node.scope == self.scope;
        if is_computed_again(self.g, id) && (free || large) && here {
            let mut reads = Vec::with_capacity(node.inputs.len());
            for x in &node.inputs {
                reads.push(self.absorb(*x, made)?);
            }
            let at = BodyRef::Node(made.nodes.len());
            made.nodes.push((node.op.clone(), reads));
            made.known.insert(id, at);
            return Ok(at);
        }
        Ok(BodyRef::Extra(self.extra(id)))
    }

    /// The position of a value among the extra operands.
    fn extra(&mut self, id: Id) -> usize {
        self.extras.iter().position(|x| *x == id).unwrap_or_else(|| {
            self.extras.push(id);
            self.extras.len() - 1
        })
    }

    /// A value that has a gradient of its own: the bias, if it is the only one. It is stored, whatever it is made of.
    fn trained(&mut self, id: Id) -> Result<BodyRef, AttentionMiss> {
        let path = self.g.path(id);
        if self.of_weights {
            return self.miss(format!("`{path}` in its weights has a gradient of its own"));
        }
        let at = self.extra(id);
        if let Some(known) = self.bias.filter(|known| *known != at) {
            let other = self.g.path(self.extras[known]);
            return self.miss(format!("`{other}` and `{path}` in its scores have gradients of their own"));
        }
        self.bias = Some(at);
        Ok(BodyRef::Extra(at))
    }

    /// A value of a body times numbers.
    fn scaled(
        &mut self,
        of: BodyRef,
        numbers: &[Id],
        dims: &[Dim],
        made: &mut BodyBuilder,
    ) -> Result<BodyRef, AttentionMiss> {
        if numbers.is_empty() {
            return Ok(of);
        }
        let mut reads = vec![of];
        for x in numbers {
            reads.push(self.absorb(*x, made)?);
        }
        made.nodes.push((Arc::new(Contract { out: dims.to_vec() }), reads));
        Ok(BodyRef::Node(made.nodes.len() - 1))
    }

    /// The function between softmax and sum, which must be linear.
    fn weight(&mut self, softmax: Id, path: &[Id]) -> Result<BodyBuilder, AttentionMiss> {
        self.of_weights = true;
        let mut made = BodyBuilder { last: BodyRef::Root, ..BodyBuilder::default() };
        made.known.insert(softmax, BodyRef::Root);
        let mut before = softmax;
        for id in path {
            let node = self.g.node(*id);
            let slots: SortedSet<usize> =
                node.inputs.iter().enumerate().filter(|(_, x)| **x == before).map(|(i, _)| i).collect();
            let roles = node.op.roles(&self.g.input_types(*id), &node.ty, &self.g.dims);
            let alone = !matches!(roles.linear, Linear::Jointly) || node.inputs.len() == 1;
            if !alone || !roles.linear_in(&slots, node.inputs.len()) {
                return self.miss(format!("`{}` of its weights is not linear", node.op.name()));
            }
            if node.ty.dims.len() != self.g.ty(softmax).dims.len() {
                return self.miss("its weights get dims that the scores lack");
            }
            let mut reads = Vec::with_capacity(node.inputs.len());
            for x in &node.inputs {
                reads.push(self.absorb(*x, &mut made)?);
            }
            made.last = BodyRef::Node(made.nodes.len());
            made.nodes.push((node.op.clone(), reads));
            made.known.insert(*id, made.last);
            before = *id;
        }
        Ok(made)
    }

    /// The values that a sum weights, and the body of the weights with the numbers that it multiplies them by.
    fn values(&mut self, at: Id, last: Id, mut made: BodyBuilder) -> Result<(Id, Body), AttentionMiss> {
        let (numbers, factors) = self.factors(at);
        let others: Vec<Id> = factors.iter().copied().filter(|x| *x != last).collect();
        let [values] = others[..] else {
            return self.miss(format!("the sum is of a product of {} factors", factors.len()));
        };
        if !self.g.ty(values).has(self.key) || factors.len() != 2 {
            return self.miss("what its weights multiply lacks the keys");
        }
        let dims = self.g.ty(last).dims.clone();
        let result = self.scaled(made.last, &numbers, &dims, &mut made)?;
        Ok((values, Body { nodes: made.nodes, result }))
    }
}

/// A body that is being made.
struct BodyBuilder {
    nodes: Vec<(Arc<dyn Op>, Vec<BodyRef>)>,
    known: SortedMap<Id, BodyRef>,
    last: BodyRef,
}

impl Default for BodyBuilder {
    fn default() -> BodyBuilder {
        BodyBuilder { nodes: Vec::new(), known: SortedMap::new(), last: BodyRef::Root }
    }
}
