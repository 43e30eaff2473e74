//! The programs by which text is continued, on devices: of prompts, of single tokens, and of texts that go on from others.

use super::choice::Logits;
use super::generation_request::Question;
use super::options::GenerateOptions;
use super::prompts::integers;
use super::sequence::Sequence;
use crate::devices::{LoadedProgram, compiled, load};
use crate::failure::Failure;
use crate::project::Project;
use meshwright_core::layout::RuleDim;
use meshwright_core::{Branching, DecodedOutput, Decoding, LossDecl, NewPositions, branch, decode};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{Cluster, HostTensor, LocalInput, Provider, StepReport};
use meshwright_ops::F64Tensor;
use meshwright_plan::Dim;
use meshwright_sorted::SortedMap;
use std::sync::Arc;

/// What a program tells of the next token of a text.
pub(super) enum NextToken {
    /// The most probable one, and the logarithm of its probability.
    Chosen(u32, f64),
    /// All.
    Of(Logits),
}

impl NextToken {
    pub(super) fn logits(self) -> Option<Logits> {
        match self {
            NextToken::Of(logits) => Some(logits),
            NextToken::Chosen(..) => None,
        }
    }
}

/// All programs. They share what they keep.
pub(super) struct Programs {
    prompt: TextProgram,
    single: TextProgram,
    /// Of a beam search: by which texts go on from prompts, and from each other.
    branches: Option<[BranchProgram; 2]>,
}

impl Programs {
    pub(super) fn of(
        q: &Question,
        options: &GenerateOptions,
        cluster: &mut Cluster,
        sources: &Sources,
    ) -> Result<Programs, Failure> {
        let mut of = |project: &Project, new: NewPositions| {
            TextProgram::of(q, options, project, new, (cluster, sources))
        };
        let known = q.tokenizer.vocab();
        let (longest, kept_as) = (q.prompts.longest(), "cache");
        let Some(search) = options.beams else {
            // Where the best is taken always, devices find it, and nothing else comes from there.
            let greedy = options.sampling.is_greedy();
            let output =
                if greedy { DecodedOutput::MostProbable(known) } else { DecodedOutput::Logits(known) };
            let [prompt, single] =
                [longest, 1].map(|count| of(&q.project, NewPositions { count, output, kept_as }));
            return Ok(Programs { prompt: prompt?, single: single?, branches: None });
        };
        let output = DecodedOutput::Logits(known);
        let rows = q.project.with_batch(q.prompts.tokens.len() * search.width)?;
        // Prompts have fewer rows than texts, and so states of their own.
        let prompt = of(&q.project, NewPositions { count: longest, output, kept_as: "prompt" })?;
        let single = of(&rows, NewPositions { count: 1, output, kept_as })?;
        let [from_prompts, from_texts] =
            [&prompt, &single].map(|from| BranchProgram::of(from, &single, &rows, (cluster, sources)));
        Ok(Programs { prompt, single, branches: Some([from_prompts?, from_texts?]) })
    }

    /// The states in which positions are kept.
    pub(super) fn caches(&self) -> Vec<String> {
        let of = [&self.prompt, &self.single].into_iter().flat_map(|p| p.decoding.caches.clone());
        let mut all: Vec<String> = of.collect();
        all.sort();
        all.dedup();
        all
    }

    /// Computes the tokens of texts that are not computed yet, of which each goes on from that of its parent, and tells what is
    /// next.
    pub(super) fn run(
        &self,
        cluster: &Cluster,
        q: &Question,
        round: usize,
        sequences: &[Sequence],
        parents: Option<&[usize]>,
    ) -> Result<Vec<NextToken>, Failure> {
        let program = if round == 0 { &self.prompt } else { &self.single };
        if let (Some([from_prompts, from_texts]), Some(parents)) = (&self.branches, parents) {
            // A text that goes on from itself has what it needs.
            let same = parents.iter().enumerate().all(|(row, parent)| row == *parent);
            match round {
                0 => {}
                1 => from_prompts.run(cluster, parents)?,
                _ if same => {}
                _ => from_texts.run(cluster, parents)?,
            }
        }
        program.run(cluster, q, sequences)
    }
}

/// A program that computes some positions of all texts.
struct TextProgram {
    decoding: Decoding,
    program: LoadedProgram,
    output: DecodedOutput,
}

impl TextProgram {
    fn of(
        q: &Question,
        options: &GenerateOptions,
        project: &Project,
        new: NewPositions,
        (cluster, sources): (&mut Cluster, &Sources),
    ) -> Result<TextProgram, Failure> {
        let mut project = project.clone();
        let mut program = (*project.program).clone();
        let value = program.value_of_all_iterations(&options.value)?;
        project.program = Arc::new(program);
        one_number_each(q, &project, &value)?;
        let (decoding, found) = decode(&project.program, &value, q.inputs.seq, new);
        let decoding = decoding.ok_or(Failure::Diagnostics(found))?;
        q.inputs.all_known(&decoding)?;
        project.layout.gathers.extend(&decoding.gathered);
        let program = load(cluster, compiled(&project, &decoding.step, sources)?.plan, None)?;
        Ok(TextProgram { decoding, program, output: new.output })
    }

    fn run(
        &self,
        cluster: &Cluster,
        q: &Question,
        sequences: &[Sequence],
    ) -> Result<Vec<NextToken>, Failure> {
        let d = &self.decoding;
        let mut given: SortedMap<String, HostTensor> = q.inputs.given(sequences, d.count, q.context)?;
        let row = |f: &dyn Fn(&Sequence) -> usize| integers(sequences.iter().map(f).collect());
        given.insert(d.start.clone(), row(&|s| s.start(q.context)));
        given.insert(d.last.clone(), row(&|s| s.pending().len().min(d.count) - 1));
        let report = cluster.run(self.program.id, 1, &provider(given))?;
        let [first, second] = [0, 1].map(|k| self.numbers(&report, k));
        Ok(match self.output {
            DecodedOutput::MostProbable(_) => {
                first.into_iter().zip(second).map(|(token, p)| NextToken::Chosen(token as u32, p)).collect()
            }
            DecodedOutput::Logits(_) | DecodedOutput::Value => {
                let (each, known) = (first.len() / second.len().max(1), q.tokenizer.vocab());
                let rows = first.chunks(each.max(1)).zip(second);
                rows.map(|(row, log_total)| NextToken::Of(Logits { of: row[..known].to_vec(), log_total }))
                    .collect()
            }
        })
    }

    /// The numbers of an output, text by text.
    fn numbers(&self, report: &StepReport, output: usize) -> Vec<f64> {
        let plan = &self.program.plan;
        let found = self.decoding.step.outputs.get(output).and_then(|wanted| {
            let stored = plan.outputs.iter().find(|o| o.name == wanted.name)?;
            Some((report.outputs.get(&wanted.name)?, &stored.dims))
        });
        let Some((tensor, dims)) = found else { unreachable!("the program has two outputs") };
        let row = self.decoding.row;
        let mut order: Vec<Dim> = dims.iter().copied().filter(|d| Some(*d) == row).collect();
        order.extend(dims.iter().copied().filter(|d| Some(*d) != row));
        let numbers = tensor.data.to_f64();
        if order == *dims {
            numbers
        } else {
            F64Tensor::new(&plan.dims, dims.clone(), numbers).ordered(&order).data
        }
    }
}

/// A program that gives each text what another one has kept.
struct BranchProgram {
    branching: Branching,
    program: LoadedProgram,
}

impl BranchProgram {
    fn of(
        from: &TextProgram,
        to: &TextProgram,
        project: &Project,
        (cluster, sources): (&mut Cluster, &Sources),
    ) -> Result<BranchProgram, Failure> {
        let (Some(mut branching), Some(row)) = (branch(&from.decoding, &to.decoding), to.decoding.row) else {
            unreachable!("several texts have a dim that counts them");
        };
        let mut project = project.clone();
        let (before, held) = branching.before;
        // Texts that go on from those of other devices: what is kept of these is brought.
        project.layout.gathers.insert(before);
        if held != row {
            // States of prompts lie as those of texts do.
            let of_rows = project.layout.rules.iter().filter(|r| r.dim == RuleDim::Dim(row)).cloned();
            let of_held: Vec<_> = of_rows
                .map(|mut rule| {
                    rule.dim = RuleDim::Dim(held);
                    rule
                })
                .collect();
            project.layout.rules.extend(of_held);
        }
        // It has no loop, by which stages would be found, and the caches of all iterations.
        project.layout.cut_stages(&mut branching.step.graph.dims);
        let program = load(cluster, compiled(&project, &branching.step, sources)?.plan, None)?;
        Ok(BranchProgram { branching, program })
    }

    fn run(&self, cluster: &Cluster, parents: &[usize]) -> Result<(), Failure> {
        let given = SortedMap::from([(self.branching.parent.clone(), integers(parents.to_vec()))]);
        cluster.run(self.program.id, 1, &provider(given))?;
        Ok(())
    }
}

/// Gives each device its part of inputs.
fn provider(given: SortedMap<String, HostTensor>) -> Provider {
    Arc::new(move |_, needed: &[LocalInput]| {
        let part = |leaf: &LocalInput| {
            let whole = given.get(&leaf.name).ok_or_else(|| format!("no input `{}`", leaf.name))?;
            whole.slice(&leaf.ranges).ok_or_else(|| format!("`{}` is of another size", leaf.name))
        };
        needed.iter().map(part).collect()
    })
}

/// That a value has a number for each token at each position.
fn one_number_each(q: &Question, project: &Project, value: &LossDecl) -> Result<(), Failure> {
    let g = &project.program.graph;
    let (ty, name) = (g.ty(value.id), &value.name);
    let positions = [Some(q.inputs.seq), project.example_dim().map(|d| d.0)];
    let others: Vec<Dim> = ty.dims.iter().copied().filter(|d| !positions.contains(&Some(*d))).collect();
    let wrong = |why: String, help: &str| {
        Err(Diagnostic::error(codes::E0516, why).at(value.span, "this value").help(help).into())
    };
    let [vocab] = others[..] else {
        let has = g.dims.list(&ty.dims);
        let message = format!("`{name}` is {has}, and not one number for each token at each position");
        return wrong(message, "name the value that has these: `--value logits`");
    };
    let (dim, size, known) = (g.dims.name(vocab), g.dims.size(vocab), q.tokenizer.vocab());
    if size < known {
        let message = format!("`{name}` tells {size} tokens apart (`{dim}`), but the tokenizer has {known}");
        let help = "name the tokenizer that the model was trained with (`--tokenizer FILE`), or the value that has a number for each token (`--value logits`)";
        return wrong(message, help);
    }
    Ok(())
}
