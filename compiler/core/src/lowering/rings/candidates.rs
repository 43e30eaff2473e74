//! Attentions whose keys are gathered: which of them a ring serves, and what is in the way of the others.

use super::collectives::{Gathered, Uses};
use super::ring_errors::{Gathers, Unfit};
use super::turns::{Gradient, Ring, Shard};
use super::verify::adds_two;
use meshwright_plan::{AttentionOperands, AttentionPart, Axis, BufId, Collective, Dim, Operand, Prim};
use meshwright_sorted::{SortedMap, SortedSet};

/// Results of an attention, by position, with the names of their dims.
type NamedResults = Vec<(usize, Vec<Dim>)>;

/// Most devices of a ring: its turns are unrolled.
const MOST_TURNS: usize = 1024;

/// A search among the steps of a Plan.
pub(super) struct RingSearch<'a> {
    pub(super) uses: &'a Uses<'a>,
}

impl RingSearch<'_> {
    fn axes(&self, axes: &[Axis]) -> String {
        let mesh = &self.uses.plan.mesh;
        axes.iter().map(|a| format!("`{}`", mesh.name(*a))).collect::<Vec<_>>().join(", ")
    }

    /// The ring in the place of a step of attention, or why there is none; `None` where nothing that has its keys is gathered.
    pub(super) fn ring_at(&self, at: usize) -> Option<Result<Ring, Box<Unfit>>> {
        let step = self.uses.step(at);
        let Prim::Attention { spec, parts } = &step.prim else { return None };
        let mut gathered: SortedMap<BufId, (Vec<usize>, usize, Gathered)> = SortedMap::new();
        for (position, whole) in step.reads.iter().enumerate().skip(1) {
            let Some(along) = whole.dims.iter().position(|d| *d == spec.key) else { continue };
            if let Some((positions, first, _)) = gathered.get_mut(&whole.buf) {
                if *first != along {
                    return Some(Err("reads the same keys along two dims".to_string().into()));
                }
                positions.push(position);
            } else if let Some(found) = self.uses.gathered(whole, along, step.reads[0].buf) {
                gathered.insert(whole.buf, (vec![position], along, found));
            }
        }
        // A mask alone is gathered where keys are whole.
        let values = AttentionOperands::of(parts).values;
        let of = |position: usize| gathered.values().find(|g| g.0.contains(&position));
        let axes = of(1).or_else(|| values.and_then(of))?.2.axes.clone();
        let gathers: Gathers = gathered.values().flat_map(|(.., g)| g.gathers()).collect();
        let ring = self.ring((at, spec.key), parts, &axes, gathered.into_values().collect());
        Some(ring.map_err(|why| Box::new(Unfit { gathered: gathers, ..*why })))
    }

    fn ring(
        &self,
        (at, key): (usize, Dim),
        parts: &[AttentionPart],
        axes: &[Axis],
        gathered: Vec<(Vec<usize>, usize, Gathered)>,
    ) -> Result<Ring, Box<Unfit>> {
        let step = self.uses.step(at);
        let turns: usize = axes.iter().map(|a| self.uses.plan.mesh.size(*a)).product();
        if turns > MOST_TURNS {
            return Err(
                format!("takes {turns} turns, each with steps of its own, and {MOST_TURNS} at most").into()
            );
        }
        let gradient = parts.iter().any(|p| p.is_gradient());
        if !gradient && (parts.len() != 3 || !parts.contains(&AttentionPart::Max)) {
            return Err("finds its greatest scores in a pass of their own".to_string().into());
        }
        let of_keys =
            |(part, o): (&AttentionPart, &Operand)| *part == AttentionPart::Bias && o.dims.contains(&key);
        if parts.iter().zip(&step.writes).any(of_keys) {
            return Err("has a bias with a gradient of its own for each of its keys".to_string().into());
        }
        let queries = self.uses.plan.buffer(step.reads[0].buf);
        if let Some(a) = axes.iter().find(|a| !queries.is_split_over(**a)) {
            return Err(format!(
                "has all of its queries on each device along `{}`",
                self.uses.plan.mesh.name(*a)
            )
            .into());
        }
        let operands = AttentionOperands::of(parts);
        let (mut shards, mut passed) = (Vec::new(), Vec::new());
        for (positions, along, found) in gathered {
            if found.axes != axes {
                let (one, other) = (self.axes(axes), self.axes(&found.axes));
                return Err(
                    format!("has operands that are gathered over {one}, and others over {other}").into()
                );
            }
            let (extent, own) =
                (self.uses.extent(found.own.buf, along), self.uses.plan.buffer(found.own.buf));
            let apart = extent.axes != axes || extent.window.is_some() || extent.cuts.is_some();
            if apart || !own.partial.is_empty() {
                return Err(format!("has operands that no shards over {} make up", self.axes(axes)).into());
            }
            let at_positions = positions.iter().map(|p| (*p, step.reads[*p].dims.clone()));
            shards.push(Shard { positions: at_positions.collect(), own: found.own, origin: found.origin });
            passed.extend(found.passed);
        }
        let goes = |p: usize| shards.iter().any(|s: &Shard| s.positions.iter().any(|q| q.0 == p));
        if let Some(p) = [Some(1), operands.values].into_iter().flatten().find(|p| !goes(*p)) {
            let which = if p == 1 { "keys" } else { "values" };
            return Err(format!("has all of its {which} on each device already").into());
        }
        for (_, o) in step.reads.iter().enumerate().filter(|(p, _)| !goes(*p)) {
            let along = o.dims.iter().position(|d| *d == key);
            if along.is_some_and(|k| !self.uses.extent(o.buf, k).axes.is_empty()) {
                return Err("has a mask or a bias whose keys are split otherwise".to_string().into());
            }
        }
        let gradients = self.gradients((at, key), parts, axes)?;
        Ok(Ring { axes: axes.to_vec(), key, shards, gathered: passed, gradients })
    }

    /// The sums of the gradients of keys and values.
    fn gradients(
        &self,
        (at, key): (usize, Dim),
        parts: &[AttentionPart],
        axes: &[Axis],
    ) -> Result<Vec<Gradient>, Box<Unfit>> {
        let step = self.uses.step(at);
        let mut all: Vec<Gradient> = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let taken = all.iter().any(|g| g.of.iter().any(|(j, _)| *j == i));
            if taken || !matches!(part, AttentionPart::Key | AttentionPart::Value) {
                continue;
            }
            let alone = || (vec![(i, step.writes[i].dims.clone())], step.writes[i].clone());
            let (of, sum) = self.joint(at, parts, i).unwrap_or_else(alone);
            let along = sum.dims.iter().position(|d| *d == key);
            let Some(scattered) = along.and_then(|along| self.uses.scattered(at, sum.buf, along, axes))
            else {
                let name = if *part == AttentionPart::Key { "keys" } else { "values" };
                let reader = self.uses.readers(sum.buf).first();
                let other = reader.and_then(|r| self.uses.step(*r).origin.first());
                let because = format!(
                    "has gradients of {name} that something else needs before each shard has its sum"
                );
                return Err(Box::new(Unfit { other: other.cloned(), ..because.into() }));
            };
            all.push(Gradient { of, sum, scattered });
        }
        Ok(all)
    }

    /// The gradients of keys that are values too, and their sum: nothing but a step that adds them reads either. Dims have the
    /// names of the attention.
    fn joint(&self, at: usize, parts: &[AttentionPart], i: usize) -> Option<(NamedResults, Operand)> {
        let step = self.uses.step(at);
        let place = self.uses.only_reader(step.writes[i].buf)?;
        let to = self.uses.step(place);
        let (Prim::Map { expr, regs }, [out]) = (&to.prim, &to.writes[..]) else { return None };
        if !adds_two(expr, regs[0])
            || to.reads.len() != 2
            || self.uses.stretch[at] != self.uses.stretch[place]
        {
            return None;
        }
        let names: SortedMap<Dim, Dim> = {
            let own = to.reads.iter().find(|o| o.buf == step.writes[i].buf)?;
            own.dims.iter().copied().zip(step.writes[i].dims.iter().copied()).collect()
        };
        let named =
            |o: &Operand| -> Option<Vec<Dim>> { o.dims.iter().map(|d| names.get(d).copied()).collect() };
        let mut of = Vec::new();
        for read in &to.reads {
            let j = step.writes.iter().position(|o| o.buf == read.buf)?;
            let summed = matches!(parts[j], AttentionPart::Key | AttentionPart::Value);
            (summed && self.uses.only_reader(read.buf).is_some()).then_some(())?;
            of.push((j, named(read)?));
        }
        Some((of, Operand { buf: out.buf, dims: named(out)? }))
    }

    /// An attention among those of rings whose gathered operands something else reads too.
    pub(super) fn shared(&self, found: &SortedMap<usize, Ring>) -> Option<(usize, Unfit)> {
        let plan = self.uses.plan;
        let gone: SortedSet<BufId> = found.values().flat_map(Ring::replaced).collect();
        let reads = |b: BufId, i: usize| {
            let step = self.uses.step(i);
            let positions = step.reads.iter().enumerate().filter(|(_, o)| o.buf == b).map(|(p, _)| p);
            match (found.get(&i), step.collective()) {
                (Some(ring), _) => positions.into_iter().all(|p| ring.takes(p)),
                (None, Some(Collective::AllGather { .. })) => {
                    positions.into_iter().all(|p| gone.contains(&step.writes[p].buf))
                }
                _ => false,
            }
        };
        for (at, ring) in found {
            for b in &ring.gathered {
                if let Some(i) = self.uses.readers(*b).iter().find(|i| !reads(*b, **i)) {
                    let other = self.uses.step(*i).origin.first().cloned();
                    let because = "shares its keys with what needs all of them".to_string();
                    let gathered = ring.gathers();
                    return Some((*at, Unfit { other, by: Some(*i), gathered, ..because.into() }));
                }
                if plan.outputs.iter().any(|o| o.buf == *b) {
                    let because = "has keys that the program gives".to_string();
                    return Some((*at, Unfit { gathered: ring.gathers(), ..because.into() }));
                }
            }
        }
        None
    }
}
