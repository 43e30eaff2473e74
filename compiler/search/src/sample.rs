//! Candidates drawn evenly from a space: what the answer of a search is compared with on real devices.

use crate::space::{Space, Stored};
use crate::text::Candidate;
use meshwright_plan::random::{Key, uniform01};

impl Space {
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
