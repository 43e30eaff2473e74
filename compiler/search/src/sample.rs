//! Candidates outside of the order of a search: those drawn evenly from a space, which its answer is compared with on real
//! devices, and those for which it has no bounds.

use crate::space::{Space, Stored};
use crate::text::Candidate;
use meshwright_plan::random::{Key, uniform01};

impl Space {
    /// Candidates that split the batch over some devices, or over none, and nothing over the others. Bounds do not hold of
    /// devices without work, so the space counts none of these: they are for a search that has no other answer.
    pub(crate) fn with_idle_devices(&self) -> Vec<Candidate> {
        let nothing = self.sets.iter().position(|set| set.dims.is_empty());
        let batch = self.sets.iter().position(|set| set.batch && set.dims.len() == 1);
        let (Some(nothing), true) = (nothing, self.choices.kept.axes.is_empty()) else { return Vec::new() };
        let of = |mesh: &Vec<usize>| {
            let sets = match (mesh.len(), batch) {
                (1, _) => vec![nothing],
                (2, Some(batch)) if self.sets[batch].smallest >= mesh[1] => vec![nothing, batch],
                _ => return None,
            };
            let stored = vec![Stored::Whole; mesh.len()];
            Some(Candidate { mesh: mesh.clone(), sets, stored, ..Candidate::default() })
        };
        self.meshes.iter().filter(|mesh| self.stages(mesh) == 1).filter_map(of).collect()
    }

    /// All candidates that differ in the sets of their axes alone: all is stored whole, in one part, and nothing is computed
    /// again.
    pub fn bases(&self) -> Vec<Candidate> {
        let mut out = Vec::new();
        for mesh in &self.meshes {
            let mut prefixes = vec![Vec::new()];
            for _ in mesh {
                let longer = |p: &Vec<usize>| {
                    let next: Vec<usize> = self.next(mesh, p).collect();
                    next.into_iter().map(|s| [&p[..], &[s]].concat()).collect::<Vec<_>>()
                };
                prefixes = prefixes.iter().flat_map(longer).collect();
            }
            out.extend(prefixes.into_iter().map(|sets| {
                let stored = vec![Stored::Whole; sets.len()];
                Candidate { mesh: mesh.clone(), sets, stored, ..Candidate::default() }
            }));
        }
        out
    }

    /// Candidates without stages, each drawn with the same chance and at most once: all of them where there are no more than
    /// `count`. The same seed draws the same ones (Knuth, The Art of Computer Programming 2, algorithm 3.4.2 S).
    pub fn sample(&self, count: u64, seed: u64) -> Vec<Candidate> {
        let bases: Vec<Candidate> = self.bases().into_iter().filter(|b| self.stages(&b.mesh) == 1).collect();
        let mut left: u64 = bases.iter().map(|b| self.alike(&b.mesh, &b.sets)).sum();
        let key = Key::new(seed, "sample of a space");
        let mut out = Vec::new();
        for candidate in bases.iter().flat_map(|b| self.variants(b)) {
            let wanted = count.saturating_sub(out.len() as u64);
            if uniform01(key, left) * (left as f64) < wanted as f64 {
                out.push(candidate);
            }
            left -= 1;
        }
        out
    }
}
