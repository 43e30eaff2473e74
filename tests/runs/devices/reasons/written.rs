//! Plans that are written by hand: for reasons that no program of the language reaches.
//!
//! A line is a step as `explain --emit plan` prints it, with names for buffers and without lifetimes, which follow from the last
//! readers:
//!
//! ```text
//! x[batch d] = input
//! y:bf16[batch d] = map tanh($0) (x)
//! s[] = sum (y)
//! output s
//! ```

use meshwright_device::decisions::def_use::DefUse;
use meshwright_plan::expr::{BinaryFn, Reg, Scalar, UnaryFn};
use meshwright_plan::random::Distribution;
use meshwright_plan::{
    Arithmetic, Axis, BufId, Buffer, Collective, DType, Dim, Dims, Expr, Extent, Init, Mesh, Monoid, Operand,
    OutputDecl, Plan, Prim, ProgramInput, ProgramInputKind, Provenance, Step, Summary,
};
use meshwright_sorted::SortedMap;

/// The Plan of a text. `sizes` has the size of each dim: `batch 16 d 64`. The mesh has two devices along `a`.
pub(super) fn written(float: Arithmetic, sizes: &str, text: &str) -> Plan {
    let mut dims = Dims::default();
    let words: Vec<&str> = sizes.split_whitespace().collect();
    for pair in words.chunks(2) {
        dims.add(pair[0], pair[1].parse().unwrap());
    }
    let plan = Plan {
        version: Plan::VERSION,
        model: "written".into(),
        program: "train".into(),
        mesh: Mesh::new([("a", 2)]),
        dims,
        float,
        inputs: vec![],
        microbatches: None,
        pipeline: None,
        buffers: vec![],
        program_inputs: vec![],
        steps: vec![],
        outputs: vec![],
        summary: Summary::default(),
    };
    let mut reader = PlanText { plan, names: SortedMap::new() };
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        reader.line(line);
    }
    with_lifetimes(reader.plan)
}

struct PlanText<'t> {
    plan: Plan,
    names: SortedMap<&'t str, Operand>,
}

/// The text before a mark, and the text behind it.
fn cut<'t>(text: &'t str, mark: &str) -> (&'t str, &'t str) {
    text.split_once(mark).unwrap_or((text, ""))
}

/// Parts between commas that stand in no brackets.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut all) = (0, 0, vec![]);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                all.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    all.push(text[from..].trim());
    all.retain(|part| !part.is_empty());
    all
}

fn dtype(name: &str) -> Option<DType> {
    use DType::{BF16, Bool, F16, F32, F64, I32, U8};
    [F64, F32, BF16, F16, I32, U8, Bool].into_iter().find(|d| d.name() == name)
}

impl<'t> PlanText<'t> {
    fn line(&mut self, line: &'t str) {
        if let Some(name) = line.strip_prefix("output ") {
            let Operand { buf, dims } = self.names[name].clone();
            self.plan.outputs.push(OutputDecl { name: name.into(), buf, dims });
            return;
        }
        let (line, lag) = cut(line, " lag ");
        let (results, line) = match line.split_once(" = ") {
            Some((results, line)) => (parts(results), line),
            None => (vec![], line),
        };
        let (head, operands) = match line.rfind(" (") {
            Some(at) => (&line[..at], parts(line[at + 2..].strip_suffix(')').unwrap())),
            None => (line, vec![]),
        };
        let reads: Vec<Operand> = operands.into_iter().map(|o| self.operand(o)).collect();
        let writes: Vec<Operand> = results.into_iter().map(|result| self.buffer(result)).collect();
        let (name, rest) = cut(head, " ");
        if let "input" | "param" = name {
            return self.leaf(name, &writes[0]);
        }
        let (async_id, head) = match name {
            "start" => (Some(cut(rest, " ").0.parse().unwrap()), cut(rest, " ").1),
            "wait" => (Some(rest.parse().unwrap()), head),
            _ => (None, head),
        };
        let prim = self.prim(head, &reads, &writes);
        let cause = Provenance { path: head.into(), line: 1, ..Provenance::default() };
        let origin = vec![cause; writes.len().max(1)];
        let lag = lag.parse().unwrap_or(0);
        self.plan.steps.push(Step { origin, async_id, lag, ..Step::new(prim, reads, writes) });
    }

    fn leaf(&mut self, kind: &str, Operand { buf, dims }: &Operand) {
        let (kind, init) = match kind {
            "input" => (ProgramInputKind::Input, None),
            _ => (ProgramInputKind::Param, Some(Init::Constant(1.0))),
        };
        let name = format!("leaf{}", buf.0);
        self.plan.program_inputs.push(ProgramInput {
            kind,
            name,
            buf: *buf,
            dims: dims.clone(),
            init,
            next: None,
        });
    }

    fn dim(&self, name: &str) -> Dim {
        self.plan.dims.find(name).unwrap_or_else(|| panic!("no dim {name}"))
    }

    /// A buffer that is there, perhaps under other names of dims: `x` or `x[batch e]`.
    fn operand(&self, text: &str) -> Operand {
        let (name, dims) = cut(text, "[");
        let known = self.names.get(name).unwrap_or_else(|| panic!("no buffer {name}"));
        let dims = dims.strip_suffix(']').map(|dims| dims.split_whitespace().map(|d| self.dim(d)).collect());
        Operand { buf: known.buf, dims: dims.unwrap_or_else(|| known.dims.clone()) }
    }

    /// A new buffer: `x:bf16[batch/a d]` is split along `batch`; numbers are `f32` unless a dtype is given.
    fn buffer(&mut self, text: &'t str) -> Operand {
        let (name, dims) = text.strip_suffix(']').unwrap().split_once('[').unwrap();
        let (name, of) = cut(name, ":");
        let (mut all, mut extents) = (vec![], vec![]);
        for word in dims.split_whitespace() {
            let (dim, axis) = cut(word, "/");
            let axes: &[Axis] = if axis.is_empty() { &[] } else { &[Axis(0)] };
            all.push(self.dim(dim));
            extents.push(Extent::of(&self.plan.dims, self.dim(dim), axes));
        }
        self.plan.buffers.push(Buffer::new(dtype(of).unwrap_or(DType::F32), extents));
        let operand = Operand { buf: BufId(self.plan.buffers.len() as u32 - 1), dims: all };
        assert!(self.names.insert(name, operand.clone()).is_none(), "{name} is there twice");
        operand
    }

    fn prim(&self, head: &str, reads: &[Operand], writes: &[Operand]) -> Prim {
        let words: Vec<&str> = head.split_whitespace().collect();
        let dim = |at: usize| self.dim(words[at]);
        let dims = || vec![dim(1); reads.len()];
        match words[0] {
            "map" => self.map(&head[4..], reads, writes),
            "contract" => Prim::Contract,
            "sum" => Prim::Reduce { monoid: Monoid::Sum },
            "max" => Prim::Reduce { monoid: Monoid::Max },
            "random" => Prim::Random {
                stream: "mask".into(),
                distribution: Distribution::Bernoulli { rate: words[1].parse().unwrap() },
            },
            "blank" => Prim::Blank { zero: false },
            "zeros" => Prim::Blank { zero: true },
            "copy" => Prim::Copy,
            "shift" => Prim::Shift { dim: dim(1), to: dim(1), start: 1, fill: words[2].parse().unwrap() },
            "repeat" => Prim::Repeat {
                dim: dim(1),
                reverse: words.contains(&"reversed"),
                from: words.iter().position(|w| *w == "from").map_or(0, |at| words[at + 1].parse().unwrap()),
                axes: vec![],
            },
            "end" => Prim::EndRepeat,
            "slice" => Prim::IterationSlice { dim: dim(1) },
            "update" => Prim::IterationUpdate { dim: dim(1) },
            "all_reduce" => {
                Prim::Collective(Collective::AllReduce { axes: vec![Axis(0)], monoid: Monoid::Sum })
            }
            "all_gather" => Prim::Collective(Collective::AllGather { axis: Axis(0), dims: dims() }),
            "wait" => Prim::Wait,
            other => panic!("no primitive {other}"),
        }
    }

    /// An expression for each result, with `$n` for operand `n`: `add(mul($0, 2), $1); $0`.
    fn map(&self, text: &str, reads: &[Operand], writes: &[Operand]) -> Prim {
        let of = |o: &Operand| self.plan.buffer(o.buf).dtype;
        let (mut expr, loads) = Expr::of_operands(reads.iter().map(of));
        let each = text.split(';').zip(writes);
        let regs = each.map(|(text, out)| {
            let reg = scalar(&mut expr, &loads, text.trim());
            expr.cast(reg, of(out))
        });
        let regs = regs.collect();
        Prim::Map { expr, regs }
    }
}

/// A scalar: `$0`, a number of `f32`, or a function of scalars; `bf16(x)` converts.
fn scalar(expr: &mut Expr, loads: &[Reg], text: &str) -> Reg {
    if let Some(number) = text.strip_prefix('$') {
        return loads[number.parse::<usize>().unwrap()];
    }
    let Some((name, rest)) = text.split_once('(') else {
        return expr.constant(text.parse().unwrap_or_else(|_| panic!("{text}")), DType::F32);
    };
    let of: Vec<Reg> =
        parts(rest.strip_suffix(')').unwrap()).into_iter().map(|t| scalar(expr, loads, t)).collect();
    let binary = [
        ("add", BinaryFn::Add),
        ("sub", BinaryFn::Sub),
        ("mul", BinaryFn::Mul),
        ("div", BinaryFn::Div),
        ("gt", BinaryFn::Gt),
    ];
    match (dtype(name), UnaryFn::named(name), &of[..]) {
        (Some(to), _, [x]) => expr.cast(*x, to),
        (_, Some(f), [x]) => expr.unary(f, *x),
        (_, _, [c, a, b]) => expr.push(Scalar::Select(*c, *a, *b), expr.dtype(*a)),
        (_, _, [a, b]) => {
            let f = binary.iter().find(|(of, _)| *of == name).unwrap_or_else(|| panic!("no function {name}"));
            expr.binary(f.1, *a, *b)
        }
        _ => panic!("no function {name}"),
    }
}

/// The same with the end of each buffer at its last reader, or at the end of the loop whose iterations all read it. A result
/// takes the storage of an operand that ends, where it may.
fn with_lifetimes(mut plan: Plan) -> Plan {
    let ends = ends(&plan);
    for (at, step) in plan.steps.iter_mut().enumerate() {
        let mut free: Vec<BufId> = ends.iter().filter(|(_, end)| **end == at).map(|(buf, _)| *buf).collect();
        for out in &step.writes {
            let fits = |buf: &BufId| {
                step.may_donate(*buf, out.buf)
                    && plan.buffers[buf.0 as usize] == plan.buffers[out.buf.0 as usize]
            };
            if let Some(place) = free.iter().position(fits) {
                let from = free.remove(place);
                step.aliases.push((from, out.buf));
            }
        }
        step.free = free;
    }
    plan
}

/// The step with which each buffer ends, but for those that outlive the Plan.
fn ends(plan: &Plan) -> SortedMap<BufId, usize> {
    let uses = DefUse::of(plan);
    let end_of = |begin: usize| uses.begins.iter().find(|(_, b)| **b == begin).map(|(end, _)| *end).unwrap();
    let starts: SortedMap<u32, usize> = plan
        .steps
        .iter()
        .enumerate()
        .filter(|(_, s)| !matches!(s.prim, Prim::Wait))
        .filter_map(|(at, s)| Some((s.async_id?, at)))
        .collect();
    let mut ends = SortedMap::new();
    for (at, step) in plan.steps.iter().enumerate() {
        // Operands of a collective in flight end with its wait.
        let start = step.async_id.and_then(|id| starts.get(&id)).filter(|start| **start != at);
        let operands = start.map_or(&[][..], |start| &plan.steps[*start].reads);
        // The end of a loop reads in the last iteration, and writes behind it.
        let own = uses.begins.get(&at).copied();
        let read = step.reads.iter().chain(operands).map(|o| (o.buf, own.or(uses.within[at])));
        let written = step.writes.iter().map(|o| (o.buf, uses.within[at]));
        for (buf, within) in read.chain(written) {
            let made = uses.written_by(buf, usize::MAX);
            // What a loop begins with is there in its iterations.
            let home = made.and_then(|made| match plan.steps[made].prim {
                Prim::Repeat { .. } => Some(made),
                _ => uses.within[made],
            });
            let around = std::iter::successors(within, |at| uses.within[*at]);
            let outside = around.take_while(|begin| Some(*begin) != home).last();
            ends.insert(buf, outside.map_or(at, end_of));
        }
    }
    let kept = plan.program_inputs.iter().filter(|leaf| leaf.kind != ProgramInputKind::Input);
    for buf in plan.outputs.iter().map(|o| o.buf).chain(kept.map(|leaf| leaf.buf)) {
        ends.remove(&buf);
    }
    ends
}
