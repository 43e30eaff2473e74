//! `generate`: text that a checkpoint continues, a token at a time, with what earlier positions gave kept on the devices.

mod beams;
mod choice;
mod generation_request;
mod options;
mod programs;
mod prompts;
mod sequence;

pub use beams::BeamSearch;
pub use choice::Sampling;
pub use options::GenerateOptions;
pub use sequence::{GeneratedText, TextEnd};

use crate::devices::consensus::{abort_on_error, agree_on_result, check_same_configuration};
use crate::devices::{restore_but, start};
use crate::failure::Failure;
use crate::inference::{asked, checkpoint_of, oddities};
use crate::project::Project;
use crate::training::session::shown;
use beams::{FinishedBeam, PromptBeams};
use choice::Logits;
use generation_request::Question;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_exec::{Cluster, HostTensor};
use programs::{NextToken, Programs};
use sequence::Sequence;
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

/// Continues texts by the tokens that a checkpoint gives. `told` gets each piece of text as soon as it is known, with the number
/// of its prompt. What is drawn for a text depends on the seed, its number and the position, not on the texts beside it.
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
    let search = options.beams.as_ref();
    let more = [
        ("`--prompt`", options.prompts.join("\n")),
        ("`--seed`", options.seed.to_string()),
        ("`--max-tokens`", options.max_tokens.to_string()),
        ("`--temperature`", options.sampling.temperature.to_string()),
        ("`--top-k`", shown(options.sampling.top_k)),
        ("`--top-p`", shown(options.sampling.top_p)),
        ("`--beams`", shown(search.map(|b| b.width))),
        ("`--length-penalty`", shown(search.map(|b| b.length_penalty))),
        ("`--num-results`", shown(search.map(|b| b.results))),
    ];
    check_same_configuration(processes, &asked(e, None, None, &more))?;
    let programs = Programs::of(&q, options, &mut cluster, sources);
    let programs = agree_on_result(processes, "the programs", programs)?;
    let caches = programs.caches();
    for state in cluster.states().filter(|s| caches.contains(&s.name)) {
        cluster.set_state(&state.name, &HostTensor::zeros(state.dtype, state.shape.clone()))?;
    }
    restore_but(&cluster, checkpoint.as_ref().map(|c| &c.checkpoint), false, &caches)?;
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
    programs: &'a Programs,
    out: Generated,
}

impl Continuation<'_> {
    /// Continues each prompt by tokens that are chosen one by one.
    fn chosen(&mut self, told: &mut dyn FnMut(usize, &str)) -> Result<Vec<GeneratedText>, Failure> {
        let (q, options) = (self.q, self.options);
        let mut sequences: Vec<Sequence> =
            q.prompts.tokens.iter().map(|t| Sequence::new(t.clone())).collect();
        for round in 0.. {
            let computed: usize =
                sequences.iter().filter(|s| s.ended.is_none()).map(|s| s.pending().len()).sum();
            let next = self.round(round, computed, &sequences, None)?;
            for ((row, s), next) in sequences.iter_mut().enumerate().zip(&next) {
                if s.ended.is_some() {
                    continue;
                }
                let chosen = match next {
                    NextToken::Chosen(token, p) => p.is_finite().then_some((*token, *p)),
                    NextToken::Of(l) => options.sampling.choose(l, (options.seed, row, s.tokens.len())),
                };
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

    /// Continues each prompt by a beam search. A prompt is computed once, and has then as many rows as there are beams.
    fn searched(&mut self, search: BeamSearch) -> Result<Vec<GeneratedText>, Failure> {
        let (q, options) = (self.q, self.options);
        let mut beams: Vec<PromptBeams> =
            q.prompts.tokens.iter().map(|t| PromptBeams::new(Sequence::new(t.clone()))).collect();
        for round in 0.. {
            let width = if round == 0 { 1 } else { search.width };
            let (sequences, parents): (Vec<Sequence>, Vec<usize>) = match round {
                0 => beams.iter().map(|b| (b.prompt().clone(), 0)).unzip(),
                // What prompts have kept is in rows of their own until then.
                1 => beams
                    .iter()
                    .enumerate()
                    .flat_map(|(p, b)| b.rows(width).map(move |(text, _)| (text, p)))
                    .unzip(),
                _ => beams
                    .iter()
                    .enumerate()
                    .flat_map(|(p, b)| b.rows(width).map(move |(text, parent)| (text, p * width + parent)))
                    .unzip(),
            };
            let computed = beams.iter().map(PromptBeams::pending).sum();
            let next = self.round(round, computed, &sequences, Some(&parents))?;
            let logits: Vec<Logits> = next.into_iter().filter_map(NextToken::logits).collect();
            for (b, logits) in beams.iter_mut().zip(logits.chunks(width)).filter(|(b, _)| !b.is_done()) {
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

    /// Runs the program of a round: the first computes prompts, the others single tokens, of texts that go on from those of
    /// `parents`.
    fn round(
        &mut self,
        round: usize,
        computed: usize,
        sequences: &[Sequence],
        parents: Option<&[usize]>,
    ) -> Result<Vec<NextToken>, Failure> {
        let begin = Instant::now();
        let next = self.programs.run(self.cluster, self.q, round, sequences, parents)?;
        let spent = if round == 0 { &mut self.out.prompt } else { &mut self.out.decoded };
        *spent = (spent.0 + computed, spent.1 + begin.elapsed());
        Ok(next)
    }
}

fn not_numbers(value: &str) -> Failure {
    let d = Diagnostic::error(codes::E0517, format!("`{value}` is not a number for every token"));
    d.help("an earlier checkpoint may be finite: `ckpt list RUN` lists them, `--from STEP` takes one").into()
}
