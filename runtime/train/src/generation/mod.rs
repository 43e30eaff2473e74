//! `generate`: text that a checkpoint continues, a token at a time, with what earlier positions gave kept on the devices.

mod beams;
mod choice;
mod options;
mod prompts;
mod sequence;

pub use beams::BeamSearch;
pub use choice::Sampling;
pub use options::GenerateOptions;
pub use sequence::{GeneratedText, TextEnd};

use crate::consensus::{abort_on_error, agree_on_result, check_same_configuration};
use crate::corpus::TextTokenizer;
use crate::devices::{LoadedProgram, compiled, load, restore_but, start};
use crate::failure::Failure;
use crate::inference::{asked, checkpoint_of, oddities};
use crate::project::Project;
use beams::{FinishedBeam, PromptBeams};
use meshwright_core::{Decoding, LossDecl, NewPositions, decode};
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{Cluster, HostTensor, LocalInput, Provider};
use meshwright_ops::F64Tensor;
use meshwright_plan::Dim;
use prompts::{Prompts, TextInputs};
use sequence::{Limits, Sequence};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What `generate` gives.
#[derive(Clone, Debug, Default)]
pub struct Generated {
    /// The texts, in the order of the prompts.
    pub texts: Vec<GeneratedText>,
    /// Tokens of all prompts, and the time that they took together.
    pub prompt: (usize, Duration),
    /// Tokens that were computed one by one, and the time that they took.
    pub decoded: (usize, Duration),
    /// What else is worth knowing.
    pub notes: Vec<String>,
}

/// Continues texts by the tokens that a checkpoint gives. `told` gets each piece of text as soon as it is known, with the number of
/// its prompt. What is drawn for a text depends on the seed, its number and the position, not on the texts beside it.
///
/// Of several processes the first reads the checkpoint; all get the texts.
pub fn generate(
    project: &Project,
    sources: &Sources,
    options: &GenerateOptions,
    told: &mut dyn FnMut(usize, &str),
) -> Result<Generated, Failure> {
    abort_on_error(&options.eval.devices.processes, generated(project, sources, options, told))
}

fn generated(
    project: &Project,
    sources: &Sources,
    options: &GenerateOptions,
    told: &mut dyn FnMut(usize, &str),
) -> Result<Generated, Failure> {
    let e = &options.eval;
    let processes = &*e.devices.processes;
    let ready = Question::of(project, options);
    let q = agree_on_result(processes, "the prompts", ready)?;
    let checkpoint = checkpoint_of(e)?;
    let mut cluster = agree_on_result(processes, "the devices", start(&q.project, e.cores, &e.devices))?;
    let more = [
        ("`--prompt`", options.prompts.join("\n")),
        ("`--seed`", options.seed.to_string()),
        (
            "how tokens are chosen",
            format!("{:?}, {:?}, {}", options.sampling, options.beams, options.max_tokens),
        ),
    ];
    check_same_configuration(processes, &asked(e, None, None, &more))?;
    let programs = q.programs(&mut cluster, sources);
    let programs = agree_on_result(processes, "the programs", programs)?;
    let caches = &programs[0].decoding.caches;
    for state in cluster.states().filter(|s| caches.contains(&s.name)) {
        cluster.set_state(&state.name, &HostTensor::zeros(state.dtype, state.shape.clone()))?;
    }
    restore_but(&cluster, checkpoint.as_ref().map(|c| &c.checkpoint), false, caches)?;
    let notes = oddities(checkpoint.as_ref(), project);
    let mut run = Continuation {
        q: &q,
        options,
        cluster: &cluster,
        programs: &programs,
        out: Generated { notes, ..Generated::default() },
    };
    run.out.texts = match options.beams {
        Some(search) => run.searched(search)?,
        None => run.chosen(told)?,
    };
    let out = run.out;
    cluster.shutdown();
    Ok(out)
}

/// Programs on devices, and what they have given so far.
struct Continuation<'a> {
    q: &'a Question,
    options: &'a GenerateOptions,
    cluster: &'a Cluster,
    programs: &'a [TextProgram],
    out: Generated,
}

impl Continuation<'_> {
    /// Continues each prompt by tokens that are chosen one by one.
    fn chosen(&mut self, told: &mut dyn FnMut(usize, &str)) -> Result<Vec<GeneratedText>, Failure> {
        let (q, options) = (self.q, self.options);
        let mut sequences: Vec<Sequence> =
            q.prompts.tokens.iter().map(|t| Sequence::new(t.clone())).collect();
        let rows: Vec<usize> = (0..sequences.len()).collect();
        for round in 0.. {
            let computed: usize =
                sequences.iter().filter(|s| s.ended.is_none()).map(|s| s.pending().len()).sum();
            let logits = self.round(round, computed, &sequences, &rows)?;
            for (row, s) in sequences.iter_mut().enumerate().filter(|(_, s)| s.ended.is_none()) {
                let chosen = options.sampling.choose(&logits[row], (options.seed, row, s.tokens.len()));
                let (token, log_probability) = chosen.ok_or_else(|| not_numbers(&options.value))?;
                s.push(token, log_probability, q.limits(options));
                let piece = s.text(&q.tokenizer)?;
                if !piece.is_empty() {
                    told(row, &piece);
                }
            }
            if sequences.iter().all(|s| s.ended.is_some()) {
                break;
            }
        }
        let prompts = options.prompts.iter().map(String::as_str).enumerate();
        Ok(prompts.zip(sequences).filter_map(|(p, s)| s.finished(p)).collect())
    }

    /// Continues each prompt by a beam search. A prompt has as many rows as there are beams.
    fn searched(&mut self, search: BeamSearch) -> Result<Vec<GeneratedText>, Failure> {
        let (q, options) = (self.q, self.options);
        let mut beams: Vec<PromptBeams> =
            q.prompts.tokens.iter().map(|t| PromptBeams::new(Sequence::new(t.clone()))).collect();
        for round in 0.. {
            let rows = beams.iter().enumerate().flat_map(|(p, b)| {
                b.rows(search.width).map(move |(text, parent)| (text, p * search.width + parent))
            });
            let (sequences, parents): (Vec<Sequence>, Vec<usize>) = rows.unzip();
            let computed = beams.iter().map(PromptBeams::pending).sum();
            let logits = self.round(round, computed, &sequences, &parents)?;
            for (b, logits) in beams.iter_mut().zip(logits.chunks(search.width)).filter(|(b, _)| !b.is_done())
            {
                b.advance(logits, search, q.limits(options)).ok_or_else(|| not_numbers(&options.value))?;
            }
            if beams.iter().all(PromptBeams::is_done) {
                break;
            }
        }
        let mut texts = Vec::new();
        for (prompt, b) in options.prompts.iter().map(String::as_str).enumerate().zip(beams) {
            for (rank, FinishedBeam { score, mut text }) in b.results(search.results).enumerate() {
                text.text(&q.tokenizer)?;
                let told = text.finished(prompt).map(|t| GeneratedText { beam: Some((rank, score)), ..t });
                texts.extend(told);
            }
        }
        Ok(texts)
    }

    /// Runs the program of a round: the first computes prompts, the others single tokens.
    fn round(
        &mut self,
        round: usize,
        computed: usize,
        sequences: &[Sequence],
        parents: &[usize],
    ) -> Result<Vec<Vec<f64>>, Failure> {
        let begin = Instant::now();
        let program = &self.programs[round.min(self.programs.len() - 1)];
        let logits = program.run(self.cluster, self.q, sequences, parents)?;
        let spent = if round == 0 { &mut self.out.prompt } else { &mut self.out.decoded };
        *spent = (spent.0 + computed, spent.1 + begin.elapsed());
        Ok(logits)
    }
}

fn not_numbers(value: &str) -> Failure {
    let d = Diagnostic::error(codes::E0517, format!("`{value}` is not a number for every token"));
    d.help("an earlier checkpoint may be finite: `ckpt list RUN` lists them, `--from STEP` takes one").into()
}

/// What is asked for.
struct Question {
    /// The project with a batch as large as there are prompts.
    project: Project,
    value: LossDecl,
    inputs: TextInputs,
    tokenizer: TextTokenizer,
    prompts: Prompts,
    /// Ends a text.
    end: Option<u32>,
    context: usize,
    /// Whether texts go on from others.
    branching: bool,
}

impl Question {
    fn of(project: &Project, options: &GenerateOptions) -> Result<Question, Failure> {
        let inputs = TextInputs::of(project, options)?;
        let tokenizer = inputs.tokenizer(options)?;
        let context = project.program.graph.dims.size(inputs.seq);
        let prompts = Prompts::of(project, &inputs, &tokenizer, options)?;
        let beams = options.beams.map_or(1, |b| b.width);
        let project = project.with_batch(prompts.tokens.len() * beams)?;
        let value = project.program.named_value(&options.value)?;
        let end = tokenizer.special().end;
        let branching = options.beams.is_some();
        Ok(Question { project, value, inputs, tokenizer, prompts, end, context, branching })
    }

    fn limits(&self, options: &GenerateOptions) -> Limits {
        Limits { end: self.end, most: options.max_tokens, context: self.context }
    }

    /// The program for the prompts, and the one for single tokens. Both share what they keep.
    fn programs(&self, cluster: &mut Cluster, sources: &Sources) -> Result<Vec<TextProgram>, Failure> {
        let mut counts = vec![self.prompts.longest(), 1];
        counts.dedup();
        let of = |count: usize| {
            let new = NewPositions { count, branching: self.branching };
            let (decoding, found) = decode(&self.project.program, &self.value, self.inputs.seq, new);
            let decoding = decoding.ok_or(Failure::Diagnostics(found))?;
            self.inputs.all_known(&decoding)?;
            let vocab = self.vocab(&decoding)?;
            let mut project = self.project.clone();
            // Texts that go on from those of other devices: what is kept of these is brought.
            let inputs = decoding.step.inputs.iter().filter(|i| Some(&i.name) == decoding.parent.as_ref());
            project.layout.gathers.extend(inputs.filter_map(|parent| parent.range));
            let program = load(cluster, compiled(&project, &decoding.step, sources)?.plan)?;
            Ok(TextProgram { decoding, program, vocab })
        };
        counts.into_iter().map(of).collect()
    }

    /// The dim of the tokens that may be next.
    fn vocab(&self, decoding: &Decoding) -> Result<Dim, Failure> {
        let g = &decoding.step.graph;
        let ty = g.ty(decoding.step.outputs[0].id);
        let batch = self.project.example_dim().map(|d| d.0);
        let others: Vec<Dim> = ty.dims.iter().copied().filter(|d| Some(*d) != batch).collect();
        let name = &self.value.name;
        let wrong = |why: String, help: String| {
            Err(Diagnostic::error(codes::E0516, why).at(self.value.span, "this value").help(help).into())
        };
        let [vocab] = others[..] else {
            let has =
                self.project.program.graph.dims.list(&self.project.program.graph.ty(self.value.id).dims);
            let message = format!("`{name}` is {has}, and not one number for each token at each position");
            return wrong(message, "name the value that has these: `--value logits`".into());
        };
        let (dim, size, known) = (g.dims.name(vocab), g.dims.size(vocab), self.tokenizer.vocab());
        if size < known {
            let message =
                format!("`{name}` tells {size} tokens apart (`{dim}`), but the tokenizer has {known}");
            let help = "name the tokenizer that the model was trained with (`--tokenizer FILE`), or the value that has a number for each token (`--value logits`)";
            return wrong(message, help.into());
        }
        Ok(vocab)
    }
}

/// A program that computes some positions of all texts.
struct TextProgram {
    decoding: Decoding,
    program: LoadedProgram,
    vocab: Dim,
}

impl TextProgram {
    /// For each text the numbers of all tokens that the tokenizer knows.
    fn run(
        &self,
        cluster: &Cluster,
        q: &Question,
        sequences: &[Sequence],
        parents: &[usize],
    ) -> Result<Vec<Vec<f64>>, Failure> {
        let d = &self.decoding;
        let mut given: BTreeMap<String, HostTensor> = q.inputs.given(sequences, d.count, q.context)?;
        let row = |f: &dyn Fn(&Sequence) -> usize| prompts::integers(sequences.iter().map(f).collect());
        given.insert(d.start.clone(), row(&|s| s.start(q.context)));
        given.insert(d.last.clone(), row(&|s| s.pending().len().min(d.count) - 1));
        given.extend(d.parent.iter().map(|name| (name.clone(), prompts::integers(parents.to_vec()))));
        let provider: Provider = Arc::new(move |_, needed: &[LocalInput]| {
            let part = |leaf: &LocalInput| {
                let whole = given.get(&leaf.name).ok_or_else(|| format!("no input `{}`", leaf.name))?;
                whole.slice(&leaf.ranges).ok_or_else(|| format!("`{}` is of another size", leaf.name))
            };
            needed.iter().map(part).collect()
        });
        let report = cluster.run(self.program.id, 1, &provider)?;
        let plan = &self.program.plan;
        let stored = plan.outputs.iter().find_map(|o| Some((report.outputs.get(&o.name)?, &o.dims)));
        let Some((tensor, dims)) = stored else { unreachable!("the program has an output") };
        let mut order: Vec<Dim> = dims.iter().copied().filter(|d| *d != self.vocab).collect();
        order.push(self.vocab);
        let all = F64Tensor::new(&plan.dims, dims.clone(), tensor.data.to_f64()).ordered(&order).data;
        let known = q.tokenizer.vocab();
        Ok(all.chunks(plan.dims.size(self.vocab)).map(|row| row[..known].to_vec()).collect())
    }
}
