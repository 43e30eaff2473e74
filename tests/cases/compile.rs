//! Runs the compiler on the inputs of a case, as the command does but without files.

use crate::markdown::{Block, Page};
use meshwright_core::explain::{
    CollectiveReport, PipelineReport, Report, StageReport, attention_lines, explain, in_bf16, in_bf16_lines,
    note_no_kernels,
};
use meshwright_core::partition::{Instr, Spmd};
use meshwright_core::resolve::resolve;
use meshwright_core::why::{text, why};
use meshwright_core::{
    Compiled, DecodedOutput, Decoding, Layout, NewPositions, OutputKind, PASSES, Program, Settings,
    StepGraph, StepOutput, check_devices, compile, decode, evaluation, layout, training_step,
};
use meshwright_device::DevicePlan;
use meshwright_device::target::Target;
use meshwright_diag::render::{concise_all, full_all};
use meshwright_diag::{Diagnostic, Sources, Span, codes, has_errors};
use meshwright_ops::{Crossing, Id, Kind};
use meshwright_plan::{Arithmetic, Phase, Plan};
use meshwright_runs::catalog::{LAYOUTS, MODELS, find};
use meshwright_runs::catalog::{LIBRARY, STANDARD};
use meshwright_sorted::{SortedMap, SortedSet};
use meshwright_syntax::ast::LayoutFile;
use meshwright_syntax::{parse_layout, parse_mesh, parse_model, parse_mtf_layout};
use meshwright_train::project::line_of;
use std::fmt::Write;

/// The inputs of a case.
pub(crate) struct Case {
    model: (String, String),
    files: SortedMap<String, String>,
    layout: Option<LayoutText>,
    args: Args,
}

enum LayoutText {
    /// A block: rules of this model.
    Own(String),
    /// A block `layout shared`: a file for several models.
    Shared(String),
    /// A block `layout mtf`.
    Mtf(String),
}

#[derive(Default)]
struct Args {
    settings: Settings,
    mesh: Option<String>,
    devices: Option<usize>,
    eval: bool,
    /// The value whose next position is computed, in place of a step of training.
    decode: Option<String>,
}

/// What came out.
pub(crate) struct Output {
    sources: Sources,
    diagnostics: Vec<Diagnostic>,
    report: Option<Report>,
    compiled: Option<(Compiled, Layout)>,
    stages: SortedMap<&'static str, String>,
}

impl Case {
    pub(crate) fn of(page: &Page, section: usize) -> Result<Case, String> {
        let mut case = Case {
            model: (String::new(), String::new()),
            files: SortedMap::new(),
            layout: None,
            args: Args::default(),
        };
        for b in page.inputs(section, "mw") {
            match b.info.split_once(' ').map(|w| w.1) {
                None => case.model = ("model.mw".into(), b.text.clone()),
                Some(word) => match word.strip_prefix("shipped:") {
                    Some(name) => {
                        let s = find(MODELS, name).ok_or_else(|| format!("no model `{name}` ships"))?;
                        case.model = (s.path.into(), s.text.into());
                    }
                    None => {
                        case.files.insert(word.into(), b.text.clone());
                    }
                },
            }
        }
        if case.model.0.is_empty() {
            return Err("no ```mw block here or in a section around it".into());
        }
        for b in page.inputs(section, "layout") {
            case.layout = Some(layout_text(b)?);
        }
        for b in page.inputs(section, "args") {
            case.args.read(&b.text)?;
        }
        Ok(case)
    }

    /// Compiles as far as it goes.
    pub(crate) fn run(&self) -> Output {
        let mut out = Output {
            sources: Sources::new(),
            diagnostics: Vec::new(),
            report: None,
            compiled: None,
            stages: SortedMap::new(),
        };
        let Some((program, mut layout)) = self.front(&mut out) else { return out };
        let step = if let Some(value) = &self.args.decode {
            let Some(d) = decoding(&program, value, &mut out) else { return out };
            // As `generate` has it: each device takes of new positions what belongs to its part of a cache.
            layout.gathers.extend(&d.gathered);
            d.step
        } else if self.args.eval {
            let (e, found) = evaluation(&program);
            out.diagnostics.extend(found);
            let Some(e) = e else { return out };
            e.step
        } else {
            training_step(&program).unwrap_or_else(|| forward(&program))
        };
        let compiled = self.back(&step, &layout, &mut out);
        if let Some(c) = compiled {
            let sources = &out.sources;
            out.report = Some(explain(&c, &|s: Span| line_of(sources, s)));
            out.compiled = Some((c, layout));
        }
        out
    }

    fn front(&self, out: &mut Output) -> Option<(Program, Layout)> {
        let sources = &mut out.sources;
        let id = sources.add(self.model.0.clone(), self.model.1.clone());
        let (file, found) = parse_model(id, &self.model.1);
        out.diagnostics.extend(found);
        let files = &self.files;
        let program = file.as_ref().and_then(|f| {
            let (program, found) = resolve(f, None, &self.args.settings, &mut |path, span: Span| {
                let library = LIBRARY.iter().find(|s| path.strip_prefix(STANDARD) == Some(s.name));
                let shipped = || library.map(|s| s.text.to_string());
                let Some(text) = files.get(path).cloned().or_else(shipped) else {
                    let d = Diagnostic::error(codes::E0515, format!("cannot read `{path}`"));
                    return (None, vec![d.at(span, "used here")]);
                };
                parse_model(sources.add(path, text.clone()), &text)
            });
            out.diagnostics.extend(found);
            program
        });
        let mesh = self.args.mesh.as_ref().and_then(|text| {
            let (mesh, found) = parse_mesh(out.sources.add("--mesh", text.clone()), text);
            out.diagnostics.extend(found);
            mesh
        });
        let (rules, shared) = match &self.layout {
            None => (Some(LayoutFile::default()), false),
            Some(text) => {
                let (text, shared, parse): (_, _, fn(_, &str) -> _) = match text {
                    LayoutText::Own(t) => (t, false, parse_layout),
                    LayoutText::Shared(t) => (t, true, parse_layout),
                    LayoutText::Mtf(t) => (t, false, parse_mtf_layout),
                };
                let (rules, found) = parse(out.sources.add("rules.layout", text.clone()), text);
                out.diagnostics.extend(found);
                (rules, shared)
            }
        };
        let (program, rules) = (program?, rules?);
        let (layout, found) = layout(&rules, mesh.as_ref(), &program, shared);
        out.diagnostics.extend(found);
        let layout = layout?;
        if let Some(d) = self.args.devices.and_then(|n| check_devices(&layout.mesh, n)) {
            out.diagnostics.push(d);
        }
        (!has_errors(&out.diagnostics)).then_some((program, layout))
    }

    fn back(&self, step: &StepGraph, layout: &Layout, out: &mut Output) -> Option<Compiled> {
        let sources = &out.sources;
        let line = |s: Span| line_of(sources, s);
        let stages = &mut out.stages;
        let (compiled, found) = compile(step, layout, &line, &mut |i, stage| {
            stages.insert(PASSES[i].name, stage.print());
        });
        // Planning must be a function of its input alone.
        if let (Some(c), (Some(again), _)) = (&compiled, compile(step, layout, &line, &mut |_, _| {})) {
            assert_eq!(c.plan.to_json(), again.plan.to_json(), "two plans of one input");
        }
        out.diagnostics.extend(found);
        compiled
    }
}

fn layout_text(b: &Block) -> Result<LayoutText, String> {
    match b.info.split_once(' ').map(|w| w.1) {
        None => Ok(LayoutText::Own(b.text.clone())),
        Some("shared") => Ok(LayoutText::Shared(b.text.clone())),
        Some("mtf") => Ok(LayoutText::Mtf(b.text.trim().into())),
        Some(word) => {
            let name = word.strip_prefix("shipped:").ok_or_else(|| format!("what is a layout `{word}`?"))?;
            let s = find(LAYOUTS, name).ok_or_else(|| format!("no layout `{name}` ships"))?;
            Ok(LayoutText::Shared(s.text.into()))
        }
    }
}

impl Args {
    fn read(&mut self, text: &str) -> Result<(), String> {
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            if word == "--eval" {
                self.eval = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("`{word}` without a value"))?;
            let pair = || value.split_once('=').ok_or_else(|| format!("`{word} {value}`: no `=`"));
            match word {
                "--mesh" => self.mesh = Some(value.into()),
                "--expect-devices" => self.devices = Some(value.parse().map_err(|_| format!("`{value}`"))?),
                "--dim" => {
                    let (name, size) = pair()?;
                    self.settings.dims.push((name.into(), size.parse().map_err(|_| format!("`{size}`"))?));
                }
                "--set" => {
                    let (name, x) = pair()?;
                    self.settings.consts.push((name.into(), x.parse().map_err(|_| format!("`{x}`"))?));
                }
                "--decode" => self.decode = Some(value.into()),
                "--preset" => self.settings.size = Some(value.into()),
                "--precision" => {
                    let known = Arithmetic::named(value).ok_or_else(|| format!("no precision `{value}`"))?;
                    self.settings.float = Some(known);
                }
                _ => return Err(format!("no argument `{word}`")),
            }
        }
        Ok(())
    }
}

/// The step for one new position along `seq` of a value.
fn decoding(p: &Program, value: &str, out: &mut Output) -> Option<Decoding> {
    let seq = p.graph.dims.find("seq");
    let of = p.named_value(value).map_err(|d| out.diagnostics.push(*d)).ok()?;
    let new = NewPositions { count: 1, output: DecodedOutput::Value, kept_as: "cache" };
    let (decoding, found) = decode(p, &of, seq?, new);
    out.diagnostics.extend(found);
    decoding
}

/// The forward part: losses, metrics and outputs.
fn forward(p: &Program) -> StepGraph {
    let p = &meshwright_core::specialized(p, false);
    let scalars = p.losses.iter().chain(&p.metrics).map(|l| (l, OutputKind::Scalar));
    let outputs = p.outputs.iter().map(|o| (o, OutputKind::Output));
    StepGraph {
        model: p.model.clone(),
        program: "eval",
        float: p.float,
        scale_history: None,
        graph: p.graph.clone(),
        inputs: p.inputs.iter().map(|i| i.0.clone()).collect(),
        outputs: scalars
            .chain(outputs)
            .map(|(l, kind)| StepOutput { name: l.name.clone(), id: l.id, kind })
            .collect(),
    }
}

impl Output {
    /// The errors, a line each.
    pub(crate) fn errors(&self) -> String {
        let errors: Vec<Diagnostic> = self.diagnostics.iter().filter(|d| d.is_error()).cloned().collect();
        concise_all(&errors, &self.sources)
    }

    /// Why a dim of a value is split as it is, or what is wrong with the question.
    fn why(&self, question: &str) -> Result<String, String> {
        let (compiled, layout) =
            self.compiled.as_ref().ok_or_else(|| format!("it does not compile:\n{}", self.errors()))?;
        let place = |s: Span| (s != Span::default()).then(|| self.sources.locate(s));
        Ok(match why(&compiled.spmd, layout, question, &place) {
            Ok(answers) => text(&answers),
            Err(d) => full_all(&[*d], &self.sources, false),
        })
    }

    /// What a block of that kind shows.
    pub(crate) fn show(&self, info: &str) -> Result<String, String> {
        let report =
            || self.report.as_ref().ok_or_else(|| format!("it does not compile:\n{}", self.errors()));
        let stage = |name: &str| {
            let missing = || format!("no pass `{name}` was reached:\n{}", self.errors());
            self.stages.get(name).cloned().ok_or_else(missing)
        };
        match info {
            "diagnostic" => Ok(full_all(&self.diagnostics, &self.sources, false)),
            "diagnostic concise" => Ok(concise_all(&self.diagnostics, &self.sources)),
            "graph" => stage("joins"),
            "spmd" => stage("partition"),
            "plan" => stage("lifetimes"),
            "values" => Ok(values(report()?)),
            "collectives" => Ok(report()?.collectives.iter().map(collective).collect()),
            "totals" => Ok(totals(report()?)),
            "stages" => report()?.pipeline.as_ref().map(stages).ok_or_else(|| "it is no pipeline".into()),
            "residuals" => {
                let compiled = self.compiled.as_ref().ok_or_else(|| self.errors())?;
                Ok(residuals(&compiled.0.spmd))
            }
            _ => match info.split_once(' ') {
                Some(("why", question)) => self.why(question),
                Some(("device", kind)) => self.device(kind),
                Some(("attention", kind)) => self.attention(kind),
                Some(("fp8", kind)) => self.fp8(kind),
                _ => stage(info.strip_prefix("after:").unwrap_or(info)),
            },
        }
    }

    /// The device plan of rank 0 on a kind of device.
    fn device_plan(&self, kind: &str) -> Result<(&Plan, DevicePlan), String> {
        let plan = &self.compiled.as_ref().ok_or_else(|| self.errors())?.0.plan;
        let target = match kind {
            "cpu" => Target::cpu(),
            "cuda" => Target::cuda((9, 0), true),
            "cuda 8.0" => Target::cuda((8, 0), true),
            "cuda 8.6" => Target::cuda((8, 6), true),
            "cuda without cublaslt" => Target::cuda((9, 0), false),
            "cuda without fp8" => Target::cuda((8, 0), true),
            "cuda without tensor cores" => Target::cuda((7, 5), true),
            _ => return Err(format!("there is no device `{kind}`")),
        };
        Ok((plan, meshwright_device::compile(plan, 0, target).map_err(|e| e.to_string())?))
    }

    /// What is said of attention on a kind of device.
    fn attention(&self, kind: &str) -> Result<String, String> {
        let (plan, device) = self.device_plan(kind)?;
        let mut all = self.report.as_ref().map(|r| r.attention.clone()).unwrap_or_default();
        note_no_kernels(&mut all, plan, &device.attention_without_kernel);
        Ok(attention_lines(all.iter()).join("\n") + "\n")
    }

    /// Which matmuls of factors in 8 bits a kind of device computes in `bf16`.
    fn fp8(&self, kind: &str) -> Result<String, String> {
        let (plan, device) = self.device_plan(kind)?;
        let lines = in_bf16_lines(&in_bf16(plan, &device.fp8_declined));
        Ok(if lines.is_empty() { "all in 8 bits\n".into() } else { lines.join("\n") + "\n" })
    }

    /// What rank 0 launches on a kind of device, with its costs but for the list of inputs.
    fn device(&self, kind: &str) -> Result<String, String> {
        let (plan, device) = self.device_plan(kind)?;
        let text = meshwright_device::text::text(plan, &device, false);
        let mut parts = text.split("\n\n");
        let head = parts.next().and_then(|head| head.lines().next()).unwrap_or_default();
        Ok(format!("{head}\n{}", parts.last().unwrap_or_default()))
    }
}

fn phase(p: Phase) -> &'static str {
    match p {
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Update => "update",
    }
}

fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `forward  all_reduce c  4,000 B  logits  because `hidden` is summed`, and a line for each value of a bucket.
fn collective(c: &CollectiveReport) -> String {
    let head = format!("{:<9}{:<15}{:<7}", phase(c.phase), c.op, c.axes.join(","));
    let line = |head: &str, bytes: usize, value: &str, because: &str| {
        let because = if because.is_empty() { String::new() } else { format!("  because {because}") };
        format!("{head}{:>12} B  {value}{because}\n", grouped(bytes))
    };
    match c.parts.as_slice() {
        [one] => line(&head, c.bytes, &one.value, &one.because),
        parts => {
            let mut out = line(&head, c.bytes, &format!("{} values in one bucket", parts.len()), "");
            for p in parts {
                out.push_str(&line(&" ".repeat(31), p.bytes, &p.value, &p.because));
            }
            out
        }
    }
}

/// A line a value with its block and its splits.
fn values(r: &Report) -> String {
    let mut out = String::new();
    for v in &r.values {
        let shape: Vec<String> = v.shape.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            out,
            "{:>3} {:<9}{} [{}] {} {}  {}",
            v.line,
            phase(v.phase),
            v.value,
            v.dims.join(" "),
            shape.join("x"),
            v.dtype,
            v.split_by
        );
    }
    out
}

/// What the loops of the backward pass read of those of the forward pass: of each value the bytes of all its iterations on a
/// device, and their sum.
fn residuals(spmd: &Spmd) -> String {
    let g = &spmd.step.graph;
    let crossing = |id: Id| if let Kind::Boundary(b) = g.node(id).op.kind() { Some(b.how) } else { None };
    let kept = spmd.instrs.iter().filter_map(|instr| {
        let Instr::Op { inputs, out, .. } = instr else { return None };
        let (slice, stack) = (spmd.copy(*out).value, spmd.copy(*inputs.first()?).value);
        let read = crossing(slice) == Some(Crossing::Slice)
            && g.node(slice).origin.phase == Phase::Backward
            && crossing(stack) == Some(Crossing::Stack)
            && g.node(stack).origin.phase == Phase::Forward;
        read.then(|| inputs[0])
    });
    let kept: SortedSet<_> = kept.collect();
    let (mut out, mut sum) = (String::new(), 0);
    for copy in kept {
        let (stack, bytes) = (spmd.copy(copy).value, spmd.bytes(copy));
        let dims: Vec<&str> = g.ty(stack).dims.iter().map(|d| g.dims.name(*d)).collect();
        let _ = writeln!(out, "{:>12} B  {}[{}]", grouped(bytes), g.path(stack), dims.join(" "));
        sum += bytes;
    }
    let _ = writeln!(out, "{:>12} B  in all", grouped(sum));
    out
}

/// Collectives by phase, kind and axes, with the bytes of the values in them, and the totals of the busiest device.
fn totals(r: &Report) -> String {
    let mut kinds: SortedMap<(Phase, String, String), (usize, usize, usize)> = SortedMap::new();
    for c in &r.collectives {
        let sum = kinds.entry((c.phase, c.op.clone(), c.axes.join(","))).or_default();
        sum.0 += 1;
        sum.1 += c.parts.len();
        sum.2 += c.bytes;
    }
    let mut out = String::new();
    for ((p, op, axes), (calls, values, bytes)) in kinds {
        let _ = writeln!(
            out,
            "{:<9}{op:<15}{axes:<7}{calls:>3} calls{values:>4} values{:>12} B",
            phase(p),
            grouped(bytes)
        );
    }
    let d = &r.per_device;
    let _ = writeln!(
        out,
        "a device: {} flops, {} B in collectives, peak {} B, parameters {} B, moments {} B",
        grouped(d.flops as usize),
        grouped(d.collective_bytes as usize),
        grouped(d.memory.peak_bytes as usize),
        grouped(d.memory.parameter_bytes as usize),
        grouped(d.memory.optimizer_state_bytes as usize)
    );
    out
}

/// What each stage runs, sends in a step and holds.
fn stages(p: &PipelineReport) -> String {
    let line = |s: &StageReport| {
        let (sends, bytes) = (grouped(s.sends), grouped(s.send_bytes as usize));
        format!(
            "stage {}: layers {}, sends {sends}, {bytes} B, in flight {}\n",
            s.stage, s.layers, s.in_flight
        )
    };
    p.stages.iter().map(line).collect()
}
