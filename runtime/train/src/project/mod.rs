//! A model and a layout, read and checked: what every command starts from.

pub(super) mod files;
pub mod standard_library;
pub(super) mod warnings;

use crate::project::files::Files;
use meshwright_core::compile::Observer;
use meshwright_core::resolve::resolve;
use meshwright_core::step::evaluation::Evaluation;
use meshwright_core::{
    CompileOptions, Compiled, GRADIENT_NORM, Layout, LossParts, Program, Reports, Settings, StepGraph,
    check_devices, compile_with, layout,
};
use meshwright_diag::{Diagnostic, FileId, Outcome, Severity, Sources, Span, codes, has_errors, nearest};
use meshwright_files::text_file::text_of_at_most;
use meshwright_plan::{Arithmetic, Dim, InputDecl};
use meshwright_runs::catalog::STANDARD;
use meshwright_runs::catalog::{LAYOUTS, MODELS, meant};
use meshwright_sorted::SortedMap;
use meshwright_syntax::ast::{LayoutFile, LayoutItem, LayoutKind, MeshOption, ModelFile};
use meshwright_syntax::{MAX_BYTES, parse_layout, parse_mesh, parse_model, parse_mtf_layout};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The user's options.
#[derive(Clone, Debug, Default)]
pub struct ProjectOptions {
    /// A shipped model's name or a file.
    pub model: String,
    /// A shipped layout's name, a file, or rules.
    pub layout: Option<String>,
    /// `r=2,c=2`, `r:2;c:2`, or `2x2` for the axes of the layout in order.
    pub mesh: Option<String>,
    /// The mesh where neither `mesh` nor the layout gives one.
    pub default_mesh: Option<String>,
    /// `--dim name=size`.
    pub dims: Vec<(String, usize)>,
    /// `--set name=value`.
    pub sets: Vec<(String, f64)>,
    /// The name of a `size NAME { … }` block of the model, whose values are taken.
    pub preset: Option<String>,
    /// Arithmetic, where it is not the model's own.
    pub precision: Option<Arithmetic>,
    /// Reports of training steps besides their losses.
    pub reports: Reports,
    /// Evaluations and predictions read the parameters themselves, not their moving averages.
    pub no_ema: bool,
    /// Collectives are blocking, and do not overlap with later steps.
    pub no_overlap: bool,
    /// Losses are computed for all rows at once, as other systems do.
    pub whole_losses: bool,
    /// The number of devices that the mesh must have.
    pub expect_devices: Option<usize>,
    /// Notes the rules of a shipped layout on dims and paths that the model lacks.
    pub verbose: bool,
    /// Texts to take for the files of these paths, in place of reading them.
    pub texts: SortedMap<String, String>,
}

/// A model and its layout, checked.
#[derive(Clone, Debug)]
pub struct Project {
    /// The model, resolved.
    pub program: Arc<Program>,
    /// The layout.
    pub layout: Layout,
    /// The texts it was read from.
    pub texts: Texts,
    file: ModelFile,
    uses: Files,
    settings: Settings,
    pub(crate) compiling: CompileOptions,
    resolutions: Arc<AtomicUsize>,
}

/// The texts of a project, by their number in [`Loaded::sources`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Texts {
    /// The model's file.
    pub model: FileId,
    /// Files that it uses, in the order in which they were read.
    pub used: Vec<FileId>,
    /// The layout's file, or the rules of the command line; `None` without a layout.
    pub layout: Option<FileId>,
}

/// A project with all that is to be said about it. `sources` are needed to render the diagnostics.
pub struct Loaded {
    /// All texts that were read.
    pub sources: Sources,
    /// The project; `None` where there are errors.
    pub project: Option<Project>,
    /// Errors, warnings and notes.
    pub diagnostics: Vec<Diagnostic>,
    /// Which texts come from files; the others ship, or were given in the options.
    pub files: Vec<FileId>,
}

impl Project {
    /// Reads and checks model and layout.
    pub fn load(options: &ProjectOptions) -> Loaded {
        let mut loaded =
            Loaded { sources: Sources::new(), project: None, diagnostics: Vec::new(), files: Vec::new() };
        loaded.project = load(options, &mut loaded);
        if has_errors(&loaded.diagnostics) {
            loaded.project = None;
        }
        loaded
    }

    /// The loss that is minimized; the first one where nothing is trained.
    pub fn loss(&self) -> Option<&str> {
        let minimized = self.program.train.as_ref().map(|t| t.loss());
        minimized.or(self.program.losses.first()).map(|l| l.name.as_str())
    }

    /// The values that an evaluation reports besides the loss: the other losses, and the metrics.
    pub fn metrics(&self) -> impl Iterator<Item = &str> {
        let all = self.program.losses.iter().chain(&self.program.metrics);
        all.map(|l| l.name.as_str()).filter(|n| Some(*n) != self.loss())
    }

    /// The settings of the command line.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The same for a run that has skipped updates in `f16`: its training step keeps their count.
    pub(crate) fn counting_skips(&self) -> Project {
        let mut counting = self.clone();
        counting.settings.skips = true;
        Arc::make_mut(&mut counting.program).count_skips();
        counting
    }

    /// The dim that counts examples, and its name.
    pub fn example_dim(&self) -> Option<(Dim, &str)> {
        let d = *self.program.inputs.first()?.0.dims.first()?;
        Some((d, self.program.graph.dims.name(d)))
    }

    /// Examples in a batch; 1 where no dim counts them.
    pub fn batch(&self) -> usize {
        self.example_dim().map_or(1, |d| self.program.graph.dims.size(d.0)).max(1)
    }

    /// Tokens of an example: positions of the first input with sequences of indices that are called tokens, or that are into a
    /// vocabulary. Others, as classes of pixels or numbers of items, are none.
    pub fn tokens(&self) -> Option<usize> {
        let (inputs, dims) = (&self.program.inputs, &self.program.graph.dims);
        let are_tokens = |i: &&InputDecl| {
            let of_words = |range| i.name.contains("token") || dims.name(range).contains("vocab");
            i.dims.len() > 1 && i.range.is_some_and(of_words)
        };
        let sequences = inputs.iter().map(|i| &i.0).find(are_tokens)?;
        Some(sequences.dims[1..].iter().map(|d| dims.size(*d)).product())
    }

    /// Number of times that the text was resolved for this project and its relatives.
    pub fn resolutions(&self) -> usize {
        self.resolutions.load(Ordering::Relaxed)
    }

    /// The same model with another number of examples in a batch.
    ///
    /// # Errors
    /// See [`Project::with_sizes`].
    pub fn with_batch(&self, examples: usize) -> Result<Project, Vec<Diagnostic>> {
        let Some((_, name)) = self.example_dim() else {
            let message = format!("`{}` has no example dim", self.program.model);
            return Err(vec![Diagnostic::error(codes::E0516, message)]);
        };
        self.with_sizes(&[(name.to_string(), examples)])
    }

    /// The same model and layout with some dims of other sizes. The text is resolved again only where a size went into the
    /// program as a number: see [`Project::resolutions`].
    ///
    /// # Errors
    /// If the model does not resolve with these sizes, as when another dim is a part of one of these.
    pub fn with_sizes(&self, sizes: &[(String, usize)]) -> Result<Project, Vec<Diagnostic>> {
        let mut settings = self.settings.clone();
        settings.dims.extend(sizes.iter().cloned());
        let program = match self.program.rebind(sizes) {
            Ok(program) => program,
            Err(_) => {
                self.resolutions.fetch_add(1, Ordering::Relaxed);
                let mut again = |path: &str, span| self.uses.again(path, span);
                let (program, found) = resolve(&self.file, None, &settings, &mut again);
                program.ok_or(found)?
            }
        };
        // Dims have the numbers that the layout knows them by: those of their declarations.
        Ok(Project { program: Arc::new(program), settings, ..self.clone() })
    }

    /// The same resolved model under the layout and the mesh of other options. Texts are added to `sources`.
    pub fn with_layout(&self, options: &ProjectOptions, sources: &mut Sources) -> Outcome<Project> {
        let mut found = Vec::new();
        let rules = Rules::read(options, sources, &mut Vec::new(), &mut found);
        let project = rules.and_then(|rules| {
            let layout = rules.layout(options, &self.program, &mut found)?;
            let texts = Texts { layout: rules.text, ..self.texts.clone() };
            Some(Project { layout, texts, ..self.clone() })
        });
        (project.filter(|_| !has_errors(&found)), found)
    }

    /// The same resolved model on the same mesh, with further lines in its layout; none where these have errors.
    pub(crate) fn with_more_rules(&self, lines: &str, sources: &Sources) -> Option<Project> {
        self.with_more_rules_on(&self.layout.mesh.option(), lines, &mut sources.clone()).ok()
    }

    /// The same on another mesh. Texts are added to `sources`.
    pub(crate) fn with_more_rules_on(
        &self,
        mesh: &str,
        lines: &str,
        sources: &mut Sources,
    ) -> Result<Project, Vec<Diagnostic>> {
        let rules = self.texts.layout.map_or("", |id| sources.text(id));
        let text = format!("{rules}\n{lines}");
        let mut found = Vec::new();
        let mesh = read_mesh(Some(mesh).filter(|m| !m.is_empty()), sources, &mut found);
        let mut bound = |text: &str, shared| {
            let (file, mut found) = parse_layout(sources.add("--layout", text), text);
            let (layout, more) =
                layout(&file.ok_or_else(|| found.clone())?, mesh.as_ref(), &self.program, shared);
            found.extend(more);
            layout.filter(|_| !has_errors(&found)).ok_or(found)
        };
        // By themselves the lines must be about this program, as the rules of a file that others share need not be.
        bound(lines, false)?;
        bound(&text, true).map(|layout| Project { layout, ..self.clone() })
    }

    /// The same, compiled to Plans in which every value can be looked at.
    pub(crate) fn examined(&self) -> Project {
        let compiling = CompileOptions { examined: true, ..self.compiling };
        Project { compiling, ..self.clone() }
    }

    /// Compiles a step of this project's program.
    pub fn compile(&self, step: &StepGraph, sources: &Sources) -> (Option<Compiled>, Vec<Diagnostic>) {
        self.compile_observed(step, sources, &mut |_, _| {})
    }

    /// [`Project::compile`]; `observe` is called after each pass with its position in [`meshwright_core::PASSES`] and its
    /// result.
    pub fn compile_observed(
        &self,
        step: &StepGraph,
        sources: &Sources,
        observe: &mut Observer<'_>,
    ) -> (Option<Compiled>, Vec<Diagnostic>) {
        compile_with(step, &self.layout, &|span| line_of(sources, span), self.compiling, observe)
    }

    /// The same for evaluations: where the layout takes a training step in parts, with the examples of one part in a batch, so
    /// that an evaluation needs no more memory. `Err` says why its batches are whole all the same: its results would change.
    pub fn evaluated_in_parts(&self) -> Result<Option<Project>, String> {
        let (size, parts) = (self.batch(), self.layout.microbatches.map_or(1, |m| m.0));
        if parts < 2 || !size.is_multiple_of(parts) || self.program.train.is_none() {
            return Ok(None);
        }
        if self.layout.pipeline.is_some()
            && let (Some(whole), _) = self.evaluation()
            && meshwright_core::evaluates_in_microbatches(&whole.step, &self.layout)
        {
            return Ok(None);
        }
        let name = self.example_dim().map_or("?", |d| d.1);
        let why = |what: &str| format!("an evaluation takes its batches of {size} whole: {what}");
        let Ok(mut part) = self.with_batch(size / parts) else {
            return Err(why(&format!("the model cannot be made for `{name}` = {}", size / parts)));
        };
        part.layout.microbatches = None;
        let (whole, less) = (&self.program.graph, &part.program.graph.dims);
        if let Some(d) = whole.captured.iter().find(|d| whole.dims.size(**d) != less.size(**d)) {
            return Err(why(&format!("the model computes with the size of `{}`", whole.dims.name(*d))));
        }
        match part.evaluation() {
            (Some(_), found) if found.is_empty() => Ok(Some(part)),
            _ => Err(why("what it reports mixes the examples of a batch")),
        }
    }

    /// The evaluation of this project's losses and metrics.
    pub fn evaluation(&self) -> (Option<Evaluation>, Vec<Diagnostic>) {
        meshwright_core::evaluation(&self.program)
    }
}

/// Line of a span; 0 for a place that is nowhere.
pub fn line_of(sources: &Sources, span: Span) -> u32 {
    if span == Span::default() { 0 } else { sources.line(span) as u32 }
}

fn load(options: &ProjectOptions, loaded: &mut Loaded) -> Option<Project> {
    let Loaded { sources, diagnostics: out, files, .. } = loaded;
    let (name, text, shipped) = read_model(options, out)?;
    let id = sources.add(name.clone(), text);
    files.extend((!shipped).then_some(id));
    let (file, found) = parse_model(id, sources.text(id));
    out.extend(found);
    let settings = Settings {
        dims: options.dims.clone(),
        consts: options.sets.clone(),
        size: options.preset.clone(),
        float: options.precision,
        reports: options.reports.clone(),
        no_ema: options.no_ema,
        skips: false,
    };
    let mut uses = Files::new(&name, id, file.as_ref());
    let program = file.as_ref().and_then(|f| {
        let (program, found) = resolve(f, None, &settings, &mut |path, span| {
            uses.read(path, span, sources, &|at| text_of(options, at))
        });
        files.extend(uses.on_disk());
        out.extend(found);
        program
    });
    // Errors in the layout's text are reported with those of the model.
    let rules = Rules::read(options, sources, files, out);
    let (program, file, rules) = (program?, file?, rules?);
    // A preset has a shorter name too, and a run is to have one.
    let settings = Settings { size: program.preset().map(String::from), ..settings };
    out.extend(unknown_metric(options, &program));
    let layout = rules.layout(options, &program, out)?;
    let texts = Texts { model: id, used: uses.ids(), layout: rules.text };
    let parts = match options.whole_losses {
        true => LossParts { bytes: u64::MAX, ..LossParts::default() },
        false => LossParts::default(),
    };
    let compiling = CompileOptions { overlap: !options.no_overlap, parts, ..CompileOptions::default() };
    let (program, resolutions) = (Arc::new(program), Arc::new(AtomicUsize::new(1)));
    Some(Project { program, layout, texts, file, uses, settings, compiling, resolutions })
}

/// A metric that is asked for and that the model does not have.
fn unknown_metric(options: &ProjectOptions, program: &Program) -> Option<Diagnostic> {
    let known: Vec<&str> = program.metrics.iter().map(|m| m.name.as_str()).collect();
    let wrong = options.reports.metrics.iter().find(|m| !known.contains(&m.as_str()))?;
    let message = format!("`{}` has no metric `{wrong}`", program.model);
    let d = Diagnostic::error(codes::E0516, message);
    let all = known.iter().copied().chain([GRADIENT_NORM]);
    let d = match nearest(wrong, all.clone()) {
        Some(near) => d.help(format!("did you mean `{near}`?")),
        None => d,
    };
    Some(d.help(format!("`--metrics` takes {}", all.collect::<Vec<_>>().join(", "))))
}

/// A layout and a mesh as they are written.
struct Rules {
    mesh: Option<MeshOption>,
    file: LayoutFile,
    /// Origin of the rules.
    origin: Origin,
    /// Their text, if there is one.
    text: Option<FileId>,
}

/// Origin of rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The command line: they are for this model.
    Own,
    /// A file that several models may share.
    File,
    /// A file that ships, which no user wrote for this model.
    Shipped,
}

impl Rules {
    fn read(
        options: &ProjectOptions,
        sources: &mut Sources,
        files: &mut Vec<FileId>,
        out: &mut Vec<Diagnostic>,
    ) -> Option<Rules> {
        let mut mesh = read_mesh(options.mesh.as_deref(), sources, out);
        let before = sources.len();
        let (file, origin) = read_layout(options, sources, files, out)?;
        let text = (sources.len() > before).then_some(FileId(before as u32));
        let declares = |i: &LayoutItem| matches!(i.kind, LayoutKind::Mesh(_));
        if options.mesh.is_none() && !file.items.iter().any(declares) {
            mesh = read_mesh(options.default_mesh.as_deref(), sources, out);
        }
        Some(Rules { mesh, file, origin, text })
    }

    fn layout(
        &self,
        options: &ProjectOptions,
        program: &Program,
        out: &mut Vec<Diagnostic>,
    ) -> Option<Layout> {
        let shared = self.origin != Origin::Own;
        let (layout, mut found) = layout(&self.file, self.mesh.as_ref(), program, shared);
        // Rules of a shipped file on other models are not worth a note.
        if self.origin == Origin::Shipped && !options.verbose {
            found.retain(|d| d.severity != Severity::Note);
        }
        out.extend(found);
        let layout = layout?;
        match options.expect_devices.and_then(|n| check_devices(&layout.mesh, n)) {
            Some(d) => {
                out.push(d);
                None
            }
            None => Some(layout),
        }
    }
}

/// Name and text of the model, and whether it ships.
fn read_model(options: &ProjectOptions, out: &mut Vec<Diagnostic>) -> Option<(String, String, bool)> {
    let name = options.model.as_str();
    if let Some(s) = meant(MODELS, name) {
        return Some((s.path.into(), s.text.into(), true));
    }
    match text_of(options, name) {
        Ok(text) => Some((name.into(), text, name.starts_with(STANDARD))),
        Err(d) => {
            let d = *d;
            let shipped: Vec<&str> = MODELS.iter().map(|s| s.name).collect();
            let d = match nearest(name, shipped.iter().copied()) {
                Some(c) => d.help(format!("did you mean the shipped model `{c}`?")),
                None => d,
            };
            out.push(d.help(format!("give a file, or a shipped model: {}", shipped.join(", "))));
            None
        }
    }
}

fn text_of(options: &ProjectOptions, path: &str) -> Result<String, Box<Diagnostic>> {
    // A run goes on with the library that it began with: the texts of a run come first.
    match (options.texts.get(path), path.strip_prefix(STANDARD)) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(name)) => standard_library::text(name).map(String::from),
        (None, None) => read_text(path),
    }
}

fn read_text(path: &str) -> Result<String, Box<Diagnostic>> {
    text_of_at_most(Path::new(path), MAX_BYTES)
        .map_err(|why| Box::new(Diagnostic::error(codes::E0515, format!("cannot read `{path}`: {why}"))))
}

fn read_mesh(text: Option<&str>, sources: &mut Sources, out: &mut Vec<Diagnostic>) -> Option<MeshOption> {
    let text = text?;
    let id = sources.add("--mesh", text);
    let (mesh, found) = parse_mesh(id, text);
    out.extend(found);
    mesh
}

/// The rules, and where they come from.
fn read_layout(
    options: &ProjectOptions,
    sources: &mut Sources,
    files: &mut Vec<FileId>,
    out: &mut Vec<Diagnostic>,
) -> Option<(LayoutFile, Origin)> {
    let Some(text) = options.layout.as_deref() else { return Some((LayoutFile::default(), Origin::Own)) };
    let (file, found, origin) = if let Some(s) = meant(LAYOUTS, text) {
        let id = sources.add(s.path, s.text);
        let (f, d) = parse_layout(id, s.text);
        (f, d, Origin::Shipped)
    } else if !text.contains("->") && (options.texts.contains_key(text) || Path::new(text).exists()) {
        match text_of(options, text) {
            Ok(content) => {
                let id = sources.add(text, content.clone());
                files.push(id);
                let (f, d) = parse_layout(id, &content);
                (f, d, Origin::File)
            }
            Err(d) => (None, vec![*d], Origin::File),
        }
    } else if is_rules(text) {
        let id = sources.add("--layout", text);
        let (f, d) = parse_layout(id, text);
        (f, d, Origin::Own)
    } else if text.contains(':') {
        let id = sources.add("--layout", text);
        let (f, d) = parse_mtf_layout(id, text);
        (f, d, Origin::Own)
    } else {
        (None, vec![no_layout(text)], Origin::Own)
    };
    out.extend(found);
    file.map(|f| (f, origin))
}

/// Whether a text that names no file is the layout itself: a rule, or a line without one.
fn is_rules(text: &str) -> bool {
    let first = text.split_whitespace().next();
    text.contains("->")
        || first.is_none_or(|word| {
            [
                "recompute",
                "gather",
                "keep",
                "mesh",
                "microbatches",
                "reduce",
                "ring",
                "order",
                "schedule",
                "chunks",
                "stages",
            ]
            .contains(&word)
        })
}

fn no_layout(text: &str) -> Diagnostic {
    let shipped: Vec<&str> = LAYOUTS.iter().map(|s| s.name).collect();
    let d = Diagnostic::error(
        codes::E0515,
        format!("`{text}` is not a layout: neither a file, nor a layout that ships, nor rules"),
    );
    let d = match nearest(text, shipped.iter().copied()) {
        Some(c) => d.help(format!("did you mean the shipped layout `{c}`?")),
        None => d,
    };
    d.help(format!("give a file, one of {}, or rules such as 'batch -> r; hidden -> c'", shipped.join(", ")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn integers_that_are_no_words_are_no_tokens() {
        let tokens = |model: &str| {
            let options = ProjectOptions { model: model.into(), ..ProjectOptions::default() };
            Project::load(&options).project.unwrap().tokens().is_some()
        };
        assert_eq!(["gpt", "bert", "t5", "unet", "mnist_mlp"].map(tokens), [true, true, true, false, false]);
    }
}
