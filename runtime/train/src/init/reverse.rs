//! A name map backwards: the tensors of a file that the parameters of a model make.

use super::name_map::NameMap;
use super::rule::{layered, of_layer};
use super::target::Target;
use super::view::{SourcePart, View, runs};
use meshwright_diag::{Diagnostic, codes};
use meshwright_files::{Checked, RawTensor};
use meshwright_plan::DType;
use std::ops::Range;

/// Tensors of a file that are made of the same parameters: one, or one of each layer.
#[derive(Debug)]
pub(crate) struct TensorGroup {
    /// Its name in the file, with `#` for the number of a layer.
    name: String,
    /// How many layers; none where it has no `#`.
    layers: Option<usize>,
    /// Shape of each.
    shape: Vec<usize>,
    dtype: DType,
    pieces: Vec<GroupPart>,
}

/// A parameter, or that of one layer, as a part of a tensor.
#[derive(Debug)]
struct GroupPart {
    path: String,
    /// Its shape here, without layers.
    shape: Vec<usize>,
    view: View,
    part: SourcePart,
}

/// The tensors of a file in which a map finds these parameters.
///
/// # Errors
///
/// E0516 where no rule is for a parameter, where a rule does not say what the file has, and where parts do not make a whole.
pub(crate) fn tensor_groups(map: &NameMap, targets: &[Target]) -> Checked<Vec<TensorGroup>> {
    let mut groups: Vec<TensorGroup> = Vec::new();
    for t in targets {
        let refused = |message: String| Box::new(Diagnostic::error(codes::E0516, message));
        let Some((names, rule)) = map.old_of(&t.path) else {
            return Err(refused(format!("no rule of the map is for `{}` {}", t.path, t.dims)));
        };
        if !rule.region.is_whole() {
            return Err(refused(format!(
                "the rule `{}` is for a part of `{}`: what becomes of the rest is not said",
                rule.text, t.path
            )));
        }
        let name = names.into_iter().next().unwrap_or_default();
        let (layers, shape) = match t.shape.split_first() {
            Some((n, rest)) if layered(&name) => (Some(*n), rest.to_vec()),
            _ => (None, t.shape.clone()),
        };
        let Some(part) = rule.view.source(&shape) else {
            let message = format!(
                "the rule `{}` does not say which form `{}` {} has in the file",
                rule.text, t.path, t.dims
            );
            let help = "say how many dims each dim of the file becomes: `reshaped 1 2`";
            return Err(Box::new(Diagnostic::error(codes::E0516, message).help(help)));
        };
        let piece = GroupPart { path: t.path.clone(), shape, view: rule.view.clone(), part };
        match groups.iter_mut().find(|g| g.name == name) {
            Some(g) if g.layers == layers && g.dtype == t.dtype => g.pieces.push(piece),
            Some(g) => {
                return Err(refused(format!(
                    "`{}` and `{}` make `{name}`, and are not alike",
                    g.pieces[0].path, t.path
                )));
            }
            None => {
                let group =
                    TensorGroup { name, layers, shape: Vec::new(), dtype: t.dtype, pieces: vec![piece] };
                groups.push(group);
            }
        }
    }
    for g in &mut groups {
        g.shape = g.whole().map_err(|why| Box::new(Diagnostic::error(codes::E0516, why)))?;
    }
    Ok(groups)
}

impl TensorGroup {
    /// The shape that all pieces make, without gaps or overlaps.
    fn whole(&self) -> Result<Vec<usize>, String> {
        let mut shape = self.pieces[0].part.whole.clone();
        for p in &self.pieces {
            if p.part.whole.len() != shape.len() {
                return Err(format!("`{}` has another number of dims in `{}`", p.path, self.name));
            }
            shape.iter_mut().zip(&p.part.whole).for_each(|(s, n)| *s = (*s).max(*n));
        }
        let count = |r: &[Range<usize>]| r.iter().map(Range::len).product::<usize>();
        let sum: usize = self.pieces.iter().map(|p| count(&p.part.ranges)).sum();
        let overlaps = self.pieces.iter().enumerate().any(|(i, p)| {
            self.pieces[..i].iter().any(|q| {
                let mut dims = p.part.ranges.iter().zip(&q.part.ranges);
                dims.all(|(a, b)| a.start < b.end && b.start < a.end)
            })
        });
        if overlaps || sum != shape.iter().product::<usize>() {
            let paths: Vec<String> = self.pieces.iter().map(|p| format!("`{}`", p.path)).collect();
            return Err(format!("{} do not make up all of `{}` {shape:?}", paths.join(", "), self.name));
        }
        Ok(shape)
    }

    /// The names of its tensors.
    pub(crate) fn names(&self) -> Vec<String> {
        match self.layers {
            Some(n) => (0..n).map(|i| of_layer(&self.name, i)).collect(),
            None => vec![self.name.clone()],
        }
    }

    /// Bytes of each of its tensors.
    pub(crate) fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.bytes()) as u64
    }

    /// Its tensors, in the order of their names; `read` gives the parameter of a path.
    pub(crate) fn tensors(
        &self,
        read: &mut dyn FnMut(&str) -> Checked<RawTensor>,
    ) -> Checked<Vec<RawTensor>> {
        let width = self.dtype.bytes();
        let empty =
            RawTensor { dtype: self.dtype, shape: self.shape.clone(), data: vec![0; self.bytes() as usize] };
        let mut out = vec![empty; self.layers.unwrap_or(1)];
        for p in &self.pieces {
            let tensor = read(&p.path)?;
            let each = p.shape.iter().product::<usize>() * width;
            let places = runs(&self.shape, &p.part.ranges);
            for (whole, data) in out.iter_mut().zip(tensor.data.chunks_exact(each.max(1))) {
                let bytes = p.view.back(data, width, &p.shape);
                let mut from = 0;
                for place in &places {
                    let to = place.start * width..place.end * width;
                    let next = from + to.len();
                    whole.data[to].copy_from_slice(&bytes[from..next]);
                    from = next;
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn target(path: &str, shape: &[usize]) -> Target {
        let dims = format!("{shape:?}");
        Target {
            path: path.into(),
            dtype: DType::U8,
            shape: shape.to_vec(),
            names: Vec::new(),
            dims,
            is_param: true,
        }
    }

    fn groups(rules: &str, targets: &[Target]) -> Checked<Vec<TensorGroup>> {
        tensor_groups(&NameMap::parse(rules, "")?, targets)
    }

    #[test]
    fn parts_of_layers_become_tensors_again() {
        let rules = "l.q = h.#.qk.(weight|w)[.., part 1 of 2] reshaped 1 2; l.k = h.#.qk.(weight|w)[.., part 2 of 2] transposed";
        let all = [target("l.q", &[2, 2, 1, 2]), target("l.k", &[2, 2, 2])];
        let made = groups(rules, &all).unwrap();
        assert_eq!(
            (made.len(), made[0].names()),
            (1, vec!["h.0.qk.weight".to_string(), "h.1.qk.weight".into()])
        );
        let tensors = made[0].tensors(&mut |path| {
            let from = if path == "l.q" { 0 } else { 100 };
            let t = all.iter().find(|t| t.path == path).unwrap();
            Ok(RawTensor { dtype: DType::U8, shape: t.shape.clone(), data: (from..from + 8).collect() })
        });
        let tensors = tensors.unwrap();
        assert_eq!((tensors[0].shape.as_slice(), made[0].bytes()), (&[2, 4][..], 8));
        assert_eq!(tensors[0].data, [0, 1, 100, 102, 2, 3, 101, 103]);
        assert_eq!(tensors[1].data, [4, 5, 104, 106, 6, 7, 105, 107]);
    }

    #[test]
    fn what_does_not_make_a_whole_is_refused() {
        for (rules, why) in [
            ("a = x", "no rule of the map is for `b`"),
            ("a = x; b = y reshaped", "does not say which form `b`"),
            ("a = x[part 1 of 3]; b = x[part 2 of 3]", "`a`, `b` do not make up all of `x` [6, 3]"),
            ("a = x[part 1 of 2]; b = x[part 1 of 2]", "do not make up all of `x`"),
            ("a = x; b = x reshaped 2", "another number of dims"),
            ("a = x.#; b = x.#[0..3]", "do not make up"),
        ] {
            let e = groups(rules, &[target("a", &[2, 3]), target("b", &[2, 3])]).unwrap_err();
            assert!(e.code.id == "E0516" && e.message.contains(why), "{rules}: {}", e.message);
        }
    }
}
