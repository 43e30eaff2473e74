//! Values of a model by their paths, for whoever wants to see one that is not declared as an output.

use crate::declarations::LossDecl;
use crate::program::Program;
use meshwright_diag::{Diagnostic, codes, nearest};
use meshwright_ops::{Crossing, Id};
use meshwright_plan::Phase;
use meshwright_sorted::SortedMap;

/// The most paths that an error lists.
const LISTED: usize = 24;

impl Program {
    /// The value of a path, such as `b1.attention.out`: whole, or without its first elements where one value alone ends so. Of
    /// the call of a layer it is what the layer returns.
    ///
    /// # Errors
    ///
    /// E0516 where no value is called so, or several are.
    pub fn named_value(&self, name: &str) -> Result<LossDecl, Box<Diagnostic>> {
        let paths = self.paths();
        let ends = |p: &str| p.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let within = |p: &str| p.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
        let ending: Vec<(&str, Id)> = match paths.get(name) {
            Some(id) => vec![(name, *id)],
            None => paths.iter().filter(|(p, _)| ends(p)).map(|(p, id)| (*p, *id)).collect(),
        };
        let found = match ending.as_slice() {
            [first, rest @ ..] if rest.iter().all(|r| r.1 == first.1) => Some(*first),
            [] => {
                let computed = |id: &Id| !self.graph.node(*id).inputs.is_empty();
                let of_call = paths.iter().filter(|(p, id)| within(p) && computed(id));
                of_call.map(|(_, id)| (name, *id)).max_by_key(|f| f.1)
            }
            several => return Err(Box::new(ambiguous(name, several))),
        };
        match found {
            Some((name, id)) => {
                let span = self.graph.node(id).origin.span;
                Ok(LossDecl { name: name.into(), id, span, better: None })
            }
            None => Err(Box::new(self.unknown_value(name, &paths))),
        }
    }

    /// The value of a path, as an output may have it: one of the body of a loop for all its iterations, along the loop's dim.
    ///
    /// # Errors
    ///
    /// As of [`Program::named_value`].
    pub fn value_of_all_iterations(&mut self, name: &str) -> Result<LossDecl, Box<Diagnostic>> {
        let mut value = self.named_value(name)?;
        let g = &mut self.graph;
        let around = g.cursor.clone();
        while let Some(of) = g.node(value.id).scope {
            g.cursor = g.node(value.id).origin.clone();
            value.id = g.cross(of, Crossing::Stack, value.id);
        }
        g.cursor = around;
        Ok(value)
    }

    /// The value of each path: that of a name, and of the several ops that one statement is made of, the last.
    fn paths(&self) -> SortedMap<&str, Id> {
        let g = &self.graph;
        let named = g.ids().filter(|id| {
            let origin = &g.node(*id).origin;
            !origin.name.is_empty() && origin.phase == Phase::Forward
        });
        let of_names = self.named.iter().map(|(path, id)| (&**path, *id));
        named.map(|id| (g.path(id), id)).chain(of_names).collect()
    }

    fn unknown_value(&self, name: &str, paths: &SortedMap<&str, Id>) -> Diagnostic {
        let message = format!("`{}` has no value that is called `{name}`", self.model);
        let d = Diagnostic::error(codes::E0516, message);
        match nearest(name, paths.keys().copied()) {
            Some(near) => d.help(format!("did you mean `{near}`?")),
            None => d.help("`meshwright explain MODEL --program eval` lists the values"),
        }
    }
}

fn ambiguous(name: &str, paths: &[(&str, Id)]) -> Diagnostic {
    let mut listed: Vec<String> = paths.iter().take(LISTED).map(|(p, _)| format!("`{p}`")).collect();
    if paths.len() > LISTED {
        listed.push(format!("{} more", paths.len() - LISTED));
    }
    Diagnostic::error(codes::E0516, format!("{} values are called `{name}`", paths.len()))
        .help(format!("ask for one of them by its path: {}", listed.join(", ")))
}
