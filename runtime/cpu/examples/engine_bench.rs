//! Times the engine on hand-built Plans: a training step of a 784-1024-10 network at batch 100, the cost of an operation
//! outside of its kernel, and of a small collective.
//!
//! `cargo run --release -p meshwright-cpu --example engine_bench [CORES]`
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use meshwright_exec::{
    Cluster, ClusterOptions, HostData, HostTensor, LocalInput, Provider, process_cpu_time,
};
use meshwright_plan::expr::{BinaryFn, Reg, Scalar, UnaryFn};
use meshwright_plan::{
    Arithmetic, BufId, Buffer, Collective, DType, Dim, Dims, Expr, Extent, Init, Mesh, Monoid, Operand,
    OutputDecl, Plan, Prim, ProgramInput, ProgramInputKind, Provenance, Step, Summary,
};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Builder(Plan);

impl Builder {
    fn new(mesh: &Mesh) -> Builder {
        Builder(Plan {
            version: Plan::VERSION,
            model: "bench".into(),
            program: "train".into(),
            mesh: mesh.clone(),
            dims: Dims::default(),
            float: Arithmetic::F32,
            microbatches: None,
            pipeline: None,
            inputs: vec![],
            buffers: vec![],
            program_inputs: vec![],
            steps: vec![],
            outputs: vec![],
            summary: Summary::default(),
        })
    }

    fn buf(&mut self, dtype: DType, dims: &[Dim]) -> Operand {
        let size = |d: &Dim| self.0.dims.size(*d);
        let extents = dims
            .iter()
            .map(|d| Extent { size: size(d), axes: vec![], window: None, rotated: 0, cuts: None })
            .collect();
        self.0.buffers.push(Buffer::new(dtype, extents));
        Operand { buf: BufId(self.0.buffers.len() as u32 - 1), dims: dims.to_vec() }
    }

    fn leaf(&mut self, kind: ProgramInputKind, name: &str, o: &Operand) {
        let init = Some(Init::Uniform { low: -0.05, high: 0.05 });
        let (buf, dims) = (o.buf, o.dims.clone());
        self.0.program_inputs.push(ProgramInput { kind, name: name.into(), buf, dims, init, next: None });
    }

    /// `in_place` hands the storage of the first operand on to the result.
    fn step(&mut self, prim: Prim, reads: &[&Operand], out: &Operand, in_place: bool, free: &[&Operand]) {
        let reads: Vec<Operand> = reads.iter().map(|o| (*o).clone()).collect();
        let aliases = reads.first().filter(|_| in_place).map(|o| (o.buf, out.buf)).into_iter().collect();
        let step = Step::new(prim, reads, vec![out.clone()]);
        let path = step.name().into();
        self.0.steps.push(Step {
            origin: vec![Provenance { path, line: 1, ..Provenance::default() }],
            aliases,
            free: free.iter().map(|o| o.buf).collect(),
            ..step
        });
    }

    fn map(
        &mut self,
        inputs: &[&Operand],
        out: &Operand,
        aliases: bool,
        free: &[&Operand],
        f: fn(&mut Expr, &[Reg]) -> Reg,
    ) {
        let mut expr = Expr::default();
        let loads: Vec<Reg> =
            (0..inputs.len()).map(|k| expr.push(Scalar::Load(k as u16), DType::F32)).collect();
        let reg = f(&mut expr, &loads);
        self.step(Prim::Map { expr, regs: vec![reg] }, inputs, out, aliases, free);
    }

    fn contract(&mut self, a: &Operand, b: &Operand, out: &Operand, free: &[&Operand]) {
        self.step(Prim::Contract, &[a, b], out, false, free);
    }
}

fn mlp(batch: usize) -> Plan {
    let f = DType::F32;
    let mut b = Builder::new(&Mesh::default());
    let mut dim = |n: &str, s| b.0.dims.add(n, s);
    let (db, di, dh, dc) = (dim("batch", batch), dim("in", 784), dim("hidden", 1024), dim("class", 10));
    let (x, label) = (b.buf(f, &[db, di]), b.buf(DType::I32, &[db]));
    let (w1, b1, w2) = (b.buf(f, &[di, dh]), b.buf(f, &[dh]), b.buf(f, &[dh, dc]));
    b.leaf(ProgramInputKind::Input, "x", &x);
    b.leaf(ProgramInputKind::Input, "label", &label);
    for (name, w) in [("w1", &w1), ("b1", &b1), ("w2", &w2)] {
        b.leaf(ProgramInputKind::Param, name, w);
    }
    let (pre, h, logits, each, sum) =
        (b.buf(f, &[db, dh]), b.buf(f, &[db, dh]), b.buf(f, &[db, dc]), b.buf(f, &[db]), b.buf(f, &[]));
    b.contract(&x, &w1, &pre, &[]);
    b.map(&[&pre, &b1], &h, true, &[], |e, r| {
        let s = e.binary(BinaryFn::Add, r[0], r[1]);
        e.unary(UnaryFn::Relu, s)
    });
    b.contract(&h, &w2, &logits, &[]);
    b.step(Prim::CrossEntropy { dim: dc }, &[&logits, &label], &each, false, &[]);
    b.step(Prim::Reduce { monoid: Monoid::Sum }, &[&each], &sum, false, &[&each]);
    b.0.outputs.push(OutputDecl { name: "loss".into(), buf: sum.buf, dims: vec![] });
    let (scale, dlogits, dw2, dh_, dpre, dw1, db1) = (
        b.buf(f, &[]),
        b.buf(f, &[db, dc]),
        b.buf(f, &[dh, dc]),
        b.buf(f, &[db, dh]),
        b.buf(f, &[db, dh]),
        b.buf(f, &[di, dh]),
        b.buf(f, &[dh]),
    );
    let mut expr = Expr::default();
    let reg = expr.constant(1.0 / batch as f64, f);
    b.step(Prim::Map { expr, regs: vec![reg] }, &[], &scale, false, &[]);
    let prim = Prim::CrossEntropyGrad { dim: dc };
    b.step(prim, &[&logits, &label, &scale], &dlogits, true, &[&label, &scale]);
    b.contract(&h, &dlogits, &dw2, &[]);
    b.contract(&dlogits, &w2, &dh_, &[&dlogits]);
    b.map(&[&dh_, &h], &dpre, true, &[&h], |e, r| {
        let zero = e.constant(0.0, DType::F32);
        let c = e.binary(BinaryFn::Gt, r[1], zero);
        e.select(c, r[0], zero)
    });
    b.step(Prim::Reduce { monoid: Monoid::Sum }, &[&dpre], &db1, false, &[]);
    b.contract(&x, &dpre, &dw1, &[&x, &dpre]);
    for (i, (w, g)) in [(&w1, &dw1), (&b1, &db1), (&w2, &dw2)].into_iter().enumerate() {
        let new = b.buf(f, &w.dims);
        b.map(&[w, g], &new, true, &[g], |e, r| {
            let lr = e.constant(0.1, DType::F32);
            let g = e.binary(BinaryFn::Mul, r[1], lr);
            e.binary(BinaryFn::Sub, r[0], g)
        });
        b.0.program_inputs[2 + i].next = Some(new.buf);
    }
    b.0
}

/// One product of the network's step: `0` the first layer, `1` its weights' gradient, then the three of the second layer.
fn product(batch: usize, which: usize) -> Plan {
    let mut b = Builder::new(&Mesh::default());
    let mut dim = |n: &str, s| b.0.dims.add(n, s);
    let (db, di, dh, dc) = (dim("batch", batch), dim("in", 784), dim("hidden", 1024), dim("class", 10));
    let dims = match which {
        0 => [[db, di], [di, dh], [db, dh]],
        1 => [[db, di], [db, dh], [di, dh]],
        2 => [[db, dh], [dh, dc], [db, dc]],
        3 => [[db, dh], [db, dc], [dh, dc]],
        _ => [[db, dc], [dh, dc], [db, dh]],
    };
    let [x, y, out] = dims.map(|d| b.buf(DType::F32, &d));
    b.leaf(ProgramInputKind::Param, "x", &x);
    b.leaf(ProgramInputKind::Param, "y", &y);
    b.contract(&x, &y, &out, &[&out]);
    b.0
}

/// `n` maps of eight elements, one after the other.
fn tiny_maps(n: usize) -> Plan {
    let mut b = Builder::new(&Mesh::default());
    let d = b.0.dims.add("d", 8);
    let mut last = b.buf(DType::F32, &[d]);
    b.leaf(ProgramInputKind::Param, "x", &last);
    for _ in 0..n {
        let next = b.buf(DType::F32, &[d]);
        b.map(&[&last], &next, true, &[], |e, r| {
            let c = e.constant(0.5, DType::F32);
            e.binary(BinaryFn::Mul, r[0], c)
        });
        last = next;
    }
    b.0.program_inputs[0].next = Some(last.buf);
    b.0
}

/// `n` all-reduces of eight elements, one after the other.
fn tiny_sums(mesh: &Mesh, n: usize) -> Plan {
    let mut b = Builder::new(mesh);
    let d = b.0.dims.add("d", 8);
    let mut last = b.buf(DType::F32, &[d]);
    b.leaf(ProgramInputKind::Param, "x", &last);
    for _ in 0..n {
        let next = b.buf(DType::F32, &[d]);
        let axes = mesh.iter().collect();
        let max = Collective::AllReduce { axes, monoid: Monoid::Max };
        b.step(Prim::Collective(max), &[&last], &next, true, &[]);
        last = next;
    }
    b.0.program_inputs[0].next = Some(last.buf);
    b.0
}

fn provider() -> Provider {
    Arc::new(|_: usize, leaves: &[LocalInput]| {
        let one = |leaf: &LocalInput| {
            let n: usize = leaf.shape().iter().product();
            let values =
                (0..n).map(|i| if leaf.dtype == DType::I32 { i % 10 } else { i * 7919 % 256 } as f64);
            let data = values.map(|v| if leaf.dtype == DType::I32 { v } else { v / 256.0 }).collect();
            HostTensor::new(leaf.shape(), HostData::from_f64(leaf.dtype, data)).ok_or("shape".to_string())
        };
        leaves.iter().map(one).collect()
    })
}

fn milliseconds(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// Median wall and mean CPU time of a step, without the provider.
fn time(cluster: &mut Cluster, plan: Plan, steps: u64) -> Result<(f64, f64, f64), Box<dyn Error>> {
    let program = cluster.load(Arc::new(plan))?;
    cluster.init_state(program, 1)?;
    let prepared: Vec<HostTensor> = provider()(0, cluster.local_inputs(program, 0)?)?;
    let given: Provider = Arc::new(move |_: usize, _: &[LocalInput]| Ok(prepared.clone()));
    for step in 0..5 {
        cluster.run(program, step, &given)?;
    }
    let (mut walls, mut round_trips) = (vec![], vec![]);
    let cpu = process_cpu_time();
    for step in 0..steps {
        let report = cluster.run(program, step, &given)?;
        let slowest = report.devices.iter().max().copied().unwrap_or_default();
        walls.push(milliseconds(slowest));
        round_trips.push(milliseconds(report.wall - slowest));
    }
    let cpu = milliseconds(process_cpu_time() - cpu) / steps as f64;
    walls.sort_by(f64::total_cmp);
    round_trips.sort_by(f64::total_cmp);
    Ok((walls[walls.len() / 2], cpu, round_trips[round_trips.len() / 2]))
}

fn main() -> Result<(), Box<dyn Error>> {
    let cores = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(2);
    let options = ClusterOptions { cores: Some(cores), ..ClusterOptions::on(meshwright_cpu::device()) };
    let one = Mesh::default();
    for batch in [100, 250, 1000] {
        let (wall, cpu, around) = time(&mut Cluster::threads(&one, &options)?, mlp(batch), 60)?;
        println!(
            "mlp batch {batch}, {cores} threads: {wall:.2} ms wall, {cpu:.2} ms CPU a step; {around:.3} ms around it"
        );
    }
    for (which, name) in ["x w1", "x' dh", "h w2", "h' dy", "dy w2'"].into_iter().enumerate() {
        let (wall, cpu, _) = time(&mut Cluster::threads(&one, &options)?, product(100, which), 100)?;
        println!("{name}: {wall:.3} ms wall, {cpu:.3} ms CPU");
    }
    let (wall, _, around) = time(&mut Cluster::threads(&one, &options)?, tiny_maps(1000), 100)?;
    println!("tiny map: {wall:.2} us an operation; {:.1} us around a step", around * 1e3);
    let mesh = Mesh::new([("a", 4)]);
    let (wall, cpu, _) = time(&mut Cluster::threads(&mesh, &options)?, tiny_sums(&mesh, 200), 50)?;
    println!("tiny all-reduce of 4 devices: {:.1} us wall, {:.1} us CPU", wall * 5.0, cpu * 5.0);
    Ok(())
}
