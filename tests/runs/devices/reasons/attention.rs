//! Attentions that draw bits again: see [`meshwright_device::passes::attention_bits`].

use meshwright_core::training_step;
use meshwright_device::compile;
use meshwright_device::decisions::decide::decisions;
use meshwright_device::target::Target;
use meshwright_plan::{BufId, Dim, Operand, Plan, Prim};
use meshwright_train::{Project, ProjectOptions};

const LAYERS: &str = "
dim layers = 3, batch = 2, seq = 128, heads = 2, d = 32, e = d, key = seq
model m {
    input x[batch, seq, heads, d]: float
    let y = x
    repeat layers {
        param w[d, e] = normal(0, 1)
        let q = sum[d](y * w)[e -> d]
        y = sum[key](dropout(softmax[key](sum[d](q * q[seq -> key])), 0.1) * q[seq -> key])
    }
    loss l = mean[batch, seq, heads, d](y * y)
}
train m {
    minimize l
    optimizer sgd(lr = 0.1)
    precision bf16
}
";

/// A training step whose stacks begin with zeros, so that any position may be read.
fn plan() -> Plan {
    let options = ProjectOptions {
        model: "m.mw".into(),
        texts: [("m.mw".to_string(), LAYERS.to_string())].into(),
        ..ProjectOptions::default()
    };
    let loaded = Project::load(&options);
    let project = loaded.project.unwrap();
    let step = training_step(&project.program).unwrap();
    let mut plan = project.compile(&step, &loaded.sources).0.unwrap().plan;
    for step in &mut plan.steps {
        if let Prim::Blank { zero } = &mut step.prim {
            *zero = true;
        }
    }
    plan
}

/// Number of attentions that read bits of an earlier loop, and of their own iteration. The Plan compiles.
fn read(plan: &Plan) -> [usize; 2] {
    let bits = decisions(plan, 0, Target::h100()).unwrap().attention_bits;
    compile(plan, 0, Target::h100()).unwrap();
    [bits.loaded.len(), bits.shared.len()]
}

fn gradient_of(plan: &Plan) -> usize {
    let is =
        |prim: &Prim| matches!(prim, Prim::Attention { parts, .. } if parts.iter().any(|p| p.is_gradient()));
    plan.steps.iter().position(|s| is(&s.prim)).unwrap()
}

/// The begin of the loop around a step.
fn begin(plan: &Plan, step: usize) -> usize {
    (0..step).rev().find(|s| matches!(plan.steps[*s].prim, Prim::Repeat { .. })).unwrap()
}

#[test]
fn a_loop_reads_bits_of_the_positions_that_the_other_has_drawn() {
    let mut plan = plan();
    assert_eq!(read(&plan), [1, 0]);
    let forward = plan.steps.iter().position(|s| matches!(s.prim, Prim::Repeat { .. })).unwrap();
    if let Prim::Repeat { from, .. } = &mut plan.steps[forward].prim {
        *from = 1;
    }
    assert_eq!(read(&plan), [0, 0]);
}

#[test]
fn a_loop_reads_bits_of_a_loop_over_its_own_dim() {
    let mut plan = plan();
    let (layers, other) = (plan.dims.find("layers").unwrap(), plan.dims.add("other", 3));
    let renamed = |dim: &mut Dim| {
        if *dim == layers {
            *dim = other;
        }
    };
    let backward = begin(&plan, gradient_of(&plan));
    let end = (backward..).find(|s| matches!(plan.steps[*s].prim, Prim::EndRepeat)).unwrap();
    for step in &mut plan.steps[backward..=end] {
        match &mut step.prim {
            Prim::Repeat { dim, .. } | Prim::IterationSlice { dim } | Prim::IterationUpdate { dim } => {
                renamed(dim)
            }
            _ => {}
        }
        let all = step.reads.iter_mut().chain(&mut step.writes);
        all.flat_map(|o| &mut o.dims).for_each(renamed);
    }
    assert_eq!(read(&plan), [0, 0]);
}

/// The bits end with the one gradient that reads them.
#[test]
fn one_gradient_reads_bits() {
    let mut plan = plan();
    let at = gradient_of(&plan);
    let mut again = plan.steps[at].clone();
    let mut made: Vec<BufId> = vec![];
    for Operand { buf, .. } in &mut again.writes {
        plan.buffers.push(plan.buffers[buf.0 as usize].clone());
        *buf = BufId(plan.buffers.len() as u32 - 1);
        made.push(*buf);
    }
    (again.free, again.aliases) = (made, vec![]);
    plan.steps.insert(at, again);
    assert_eq!(read(&plan), [1, 0]);
}
