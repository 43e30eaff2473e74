//! `generate`.

use super::eval;
use super::project::OfRun;
use crate::args::GenerateArgs;
use crate::output::console::Console;
use crate::output::json::object;
use crate::output::text::{counted, seconds};
use crate::stop::Stop;
use meshwright_diag::render::printable;
use meshwright_diag::{Diagnostic, Sources, codes};
use meshwright_files::text::listed;
use meshwright_files::text_file::text_of_at_most;
use meshwright_runs::run_dir::tokenizer_in;
use meshwright_train::{BeamSearch, GenerateOptions, Generated, GeneratedText, Sampling, TextEnd, generate};
use std::time::Duration;

/// Runs the command.
pub(crate) fn run(args: &GenerateArgs, console: &mut Console) -> Result<(), Stop> {
    let few = args.search().filter(|s| s.results > s.width).map(too_many);
    let prompts =
        few.map_or_else(|| prompts(args), Err).map_err(|d| console.failed((*d).into(), &Sources::new()))?;
    let idle = args.idle();
    if !idle.is_empty() {
        let words: Vec<&str> = idle.iter().map(String::as_str).collect();
        console.note(&format!(
            "{} {} nothing here: at temperature 0 the most probable token is always taken; `--temperature 1` draws",
            listed(&words),
            if words.len() == 1 { "changes" } else { "change" }
        ));
    }
    let split = args.what.split.as_deref().unwrap_or("test");
    let (OfRun { project, sources, .. }, eval) = eval::load((&args.what, "generate"), split, console)?;
    // What was imported has a tokenizer of its own; data that is named has another.
    let tokenizer = match &args.tokenizer {
        None if args.what.data.data.is_none() => {
            tokenizer_in(&eval.checkpoint).map_err(|d| console.failed((*d).into(), &sources))?
        }
        given => given.clone(),
    };
    let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    let options = GenerateOptions {
        eval,
        value: args.value.clone(),
        tokenizer,
        prompts,
        max_tokens: size(args.max_tokens),
        sampling: Sampling { temperature: args.temperature, top_k: args.top_k.map(size), top_p: args.top_p },
        beams: args.search(),
        seed: args.seed,
    };
    // What is best is known at the end of a search.
    let streams = options.prompts.len() == 1 && options.beams.is_none() && !console.json();
    // What is written while text is made cannot fail the command: whoever reads no more has had enough.
    let (mut begun, mut stopped) = (false, None);
    let ended = generate(&project, &sources, &options, &mut |_, piece| {
        if streams && stopped.is_none() {
            let first = if begun { "" } else { options.prompts[0].as_str() };
            begun = true;
            let text = printable(&format!("{first}{piece}")).into_owned();
            stopped = console.out(&text).and_then(|()| console.flush()).err();
        }
    });
    if let Some(stop) = stopped {
        return Err(stop);
    }
    let made = ended.map_err(|failure| console.failed(failure, &sources))?;
    made.notes.iter().for_each(|note| console.note(note));
    if streams && begun {
        console.out("\n")?;
        console.flush()?;
    }
    for text in made.texts.iter().filter(|_| !(streams && begun)) {
        match console.json() {
            true => line(text, &made, console)?,
            false => console.out(&printable(&format!("{}{}\n", text.prompt, text.text)))?,
        }
    }
    if !console.json() {
        report(&made, console);
    }
    Ok(())
}

fn too_many(search: BeamSearch) -> Box<Diagnostic> {
    let BeamSearch { width, results, .. } = search;
    let message = format!(
        "a search of {} gives at most as many texts, and not {results}",
        counted(width as u64, "beam")
    );
    let d = Diagnostic::error(codes::E0516, message);
    Box::new(
        d.help(format!("search with more (`--beams {results}`), or ask for fewer (`--num-results {width}`)")),
    )
}

/// The largest file of prompts.
const MOST_BYTES: usize = 64 << 20;

fn prompts(args: &GenerateArgs) -> Result<Vec<String>, Box<Diagnostic>> {
    let mut all = args.prompt.clone();
    if let Some(path) = &args.prompts {
        let read = text_of_at_most(path, MOST_BYTES).map_err(|why| {
            let message = format!("`{}` cannot be read: {why}", path.display());
            let d = Diagnostic::error(codes::E0502, message);
            Box::new(d.help("name a text file with a prompt on each line"))
        })?;
        all.extend(read.lines().filter(|l| !l.is_empty()).map(String::from));
        if all.is_empty() {
            let message = format!("`{}` has no prompt", path.display());
            return Err(Box::new(Diagnostic::error(codes::E0516, message).help("write one on each line")));
        }
    }
    Ok(all)
}

/// A text as a line of JSON.
fn line(text: &GeneratedText, made: &Generated, console: &mut Console) -> Result<(), Stop> {
    let (tokens, time) = made.decoded;
    let mut out = object([("prompt", text.prompt.as_str().into())]);
    out.push("number", text.number);
    out.push("text", text.text.as_str());
    out.push("tokens", text.tokens.clone());
    out.push("log_probability", text.log_probability);
    if let Some((rank, score)) = text.beam {
        out.push("rank", rank);
        out.push("score", score);
    }
    out.push("ended", text.ended.name());
    out.push("tokens_per_second", rate(tokens, time));
    console.out_json(&out)
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if tokens == 0 { 0.0 } else { tokens as f64 / time.as_secs_f64().max(1e-9) }
}

/// How fast it was, and what ended texts before their time.
fn report(made: &Generated, console: &mut Console) {
    let of = |(tokens, time): (usize, Duration)| {
        let all = counted(tokens as u64, "token");
        format!("{all} in {} ({:.1} tokens/s)", seconds(time.as_secs_f64()), rate(tokens, time))
    };
    console.note(&format!("prompt: {}; decoding: {}", of(made.prompt), of(made.decoded)));
    let full = made.texts.iter().filter(|t| t.ended == TextEnd::Context).count();
    if full > 0 {
        let texts = counted(full as u64, "text");
        console.note(&format!("{texts} ended where the model has no positions left"));
    }
}
