//! Contractions in all orders of dims against loops.

use super::nccl::library;
use super::plans::Builder;
use super::{close, cluster, no_inputs, noise, noise_tensor, tensor};
use meshwright_exec::{Cluster, ClusterOptions, HostTensor};
use meshwright_gpu::load::Paths;
use meshwright_plan::{DType, Dim, Dims, Mesh, ProgramInputKind};
use std::sync::Arc;

/// Loops over all dims.
fn naive(table: &Dims, a: (&[Dim], &HostTensor), b: (&[Dim], &HostTensor), out: &[Dim]) -> HostTensor {
    let mut dims: Vec<Dim> = out.to_vec();
    for d in a.0.iter().chain(b.0) {
        if !dims.contains(d) {
            dims.push(*d);
        }
    }
    let position = |of: &[Dim], index: &[usize]| {
        of.iter().fold(0, |p, d| p * table.size(*d) + index[dims.iter().position(|x| x == d).unwrap()])
    };
    let (x, y) = (a.1.data.to_f64(), b.1.data.to_f64());
    let mut sum = vec![0.0; table.elements(out)];
    let mut index = vec![0; dims.len()];
    if table.elements(&dims) > 0 {
        'all: loop {
            sum[position(out, &index)] += x[position(a.0, &index)] * y[position(b.0, &index)];
            for d in (0..dims.len()).rev() {
                index[d] += 1;
                if index[d] < table.size(dims[d]) {
                    continue 'all;
                }
                index[d] = 0;
            }
            break;
        }
    }
    tensor(DType::F64, &table.shape(out), sum)
}

fn shuffle(dims: &mut [Dim], seed: u64) {
    for (i, r) in noise(seed, dims.len()).iter().enumerate() {
        let j = ((r + 1.0) / 2.0 * (i + 1) as f64) as usize;
        dims.swap(i, j.min(i));
    }
}

#[test]
fn contractions_in_all_orders_equal_loops() {
    contractions(cluster);
}

/// The same as GPUs have them: matrices found in the views of the factors, by the stand-in for cuBLASLt.
#[test]
fn contractions_in_all_orders_equal_loops_by_cublas_lt() {
    #[expect(unsafe_code, reason = "a function of the stand-in, which counts")]
    // SAFETY: it has that type.
    let computed = || unsafe {
        let library = std::mem::ManuallyDrop::new(libloading::Library::new(library()).unwrap());
        library.get::<extern "C" fn() -> u64>(b"fakeProducts").unwrap()()
    };
    let before = computed();
    contractions(|mesh| {
        let libraries = Paths { cublas_lt: Some(library().into()), ..Paths::default() };
        let device = crate::device();
        let options = ClusterOptions { cores: Some(1), libraries, ..ClusterOptions::on(device) };
        Cluster::threads(mesh, &options).unwrap()
    });
    let products = computed() - before;
    assert!(products > 160 * 4, "{products} products");
}

/// Two devices that each find another kernel fastest take the same one from the second run on, and others after them find it in
/// the file and measure nothing.
#[test]
fn devices_agree_on_the_kernels_of_products() {
    let folder = std::env::temp_dir().join(format!("meshwright-kernels-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // A copy, so that no other test counts in it.
    let copy = folder.join("libcublasLt.so");
    std::fs::copy(library(), &copy).unwrap();
    let stand_in = std::mem::ManuallyDrop::new(
        #[expect(unsafe_code, reason = "our own library, without initializers")]
        // SAFETY: as said.
        unsafe { libloading::Library::new(&copy) }.unwrap(),
    );
    #[expect(unsafe_code, reason = "functions of the stand-in, which have these types")]
    // SAFETY: as said.
    let (differ, taken) = unsafe {
        stand_in.get::<extern "C" fn()>(b"fakeTakesHostMemory").unwrap()();
        (
            *stand_in.get::<extern "C" fn()>(b"fakeWaysDiffer").unwrap(),
            *stand_in.get::<extern "C" fn(u64, u64) -> u64>(b"fakeWaysTaken").unwrap(),
        )
    };
    differ();
    let mesh = Mesh::new([("a", 2)]);
    let mut b = Builder::new(&mesh);
    let [i, j, k] = ["i", "j", "k"].map(|d| b.dim(d, 8));
    let [x, y] = [("x", [i, k]), ("y", [k, j])].map(|(name, dims)| {
        let value = b.whole(DType::F64, &dims);
        b.leaf(ProgramInputKind::Param, name, &value);
        value
    });
    let out = b.whole(DType::F64, &[i, j]);
    b.contract("product", &x, &y, &out);
    b.output("out", &out);
    let plan = Arc::new(b.finish());
    // What each of two devices took in two runs: of each handle how often each way. The last way wants a workspace, which the
    // stand-in is not given.
    let ways = |handles: [u64; 2]| {
        let libraries =
            Paths { cublas_lt: Some(copy.clone()), cache: Some(folder.clone()), ..Paths::default() };
        let device = crate::device();
        let options = ClusterOptions { cores: Some(2), libraries, ..ClusterOptions::on(device) };
        let mut cluster = Cluster::threads(&mesh, &options).unwrap();
        let program = cluster.load(plan.clone()).unwrap();
        for name in ["x", "y"] {
            cluster.set_state(name, &noise_tensor(DType::F64, &[8, 8], 5)).unwrap();
        }
        let count = || handles.map(|handle| [0, 1].map(|way| taken(handle, way)));
        [1, 2].map(|run| {
            let before = count();
            cluster.run(program, run, &no_inputs()).unwrap();
            let after = count();
            [0, 1].map(|h| [0, 1].map(|way| after[h][way] - before[h][way]))
        })
    };
    let [measured, after] = ways([0, 1]);
    assert!(measured.iter().flatten().all(|n| *n > 3), "each measures both: {measured:?}");
    assert!(after[0] == after[1] && after[0].iter().sum::<u64>() == 1, "one product by one way: {after:?}");
    let [first, second] = ways([2, 3]);
    assert!(first == after && second == after, "{first:?}, {second:?} by what was kept: {after:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Random contractions, four to a plan: dims of each class, of sizes that may be 0 or 1, in random orders.
fn contractions(cluster: impl Fn(&Mesh) -> Cluster) {
    let mut runs = 0;
    for case in 0..160u64 {
        let mesh = Mesh::default();
        let mut b = Builder::new(&mesh);
        let mut expected = vec![];
        let mut given = vec![];
        for part in 0..4u64 {
            let seed = case * 4 + part + 1;
            let pick = noise(seed * 31, 16);
            let mut classes: [Vec<Dim>; 4] = Default::default();
            let mut n = 0;
            for class in &mut classes {
                let count = ((pick[n] + 1.0) * 1.5) as usize;
                for _ in 0..count {
                    n += 1;
                    let size = match ((pick[n] + 1.0) * 10.0) as usize {
                        0 if seed % 5 == 0 => 0,
                        1 | 2 => 1,
                        s => 2 + s % 4,
                    };
                    class.push(b.dim(&format!("d{part}_{n}"), size));
                }
                n += 1;
            }
            let [batch, rows, columns, summed] = classes;
            let join = |parts: &[&Vec<Dim>], seed| {
                let mut dims: Vec<Dim> = parts.iter().flat_map(|p| p.iter().copied()).collect();
                shuffle(&mut dims, seed);
                dims
            };
            let da = join(&[&batch, &rows, &summed], seed * 7 + 1);
            let db = join(&[&batch, &columns, &summed], seed * 7 + 2);
            let dout = join(&[&batch, &rows, &columns], seed * 7 + 3);
            let table = b.plan.dims.clone();
            let shape = |dims: &[Dim]| table.shape(dims);
            let (x, y) = (
                noise_tensor(DType::F64, &shape(&da), seed),
                noise_tensor(DType::F64, &shape(&db), seed + 99),
            );
            let (oa, ob, oo) =
                (b.whole(DType::F64, &da), b.whole(DType::F64, &db), b.whole(DType::F64, &dout));
            b.leaf(ProgramInputKind::Param, &format!("a{part}"), &oa);
            b.leaf(ProgramInputKind::Param, &format!("b{part}"), &ob);
            b.contract("product", &oa, &ob, &oo);
            b.output(&format!("out{part}"), &oo);
            expected.push(naive(&table, (&da, &x), (&db, &y), &dout));
            given.push((x, y));
        }
        let mut cluster = cluster(&mesh);
        let program = cluster.load(Arc::new(b.finish())).unwrap();
        for (part, (x, y)) in given.iter().enumerate() {
            cluster.set_state(&format!("a{part}"), x).unwrap();
            cluster.set_state(&format!("b{part}"), y).unwrap();
        }
        for step in 1..=2 {
            let report = cluster.run(program, step, &no_inputs()).unwrap();
            for (part, want) in expected.iter().enumerate() {
                let what = format!("case {case}, part {part}");
                close(&report.outputs[&format!("out{part}")], want, 1e-12, &what);
                runs += 1;
            }
        }
    }
    assert_eq!(runs, 160 * 4 * 2);
}

/// A factor that is contracted with itself, and is used afterwards.
#[test]
fn a_factor_with_itself() {
    let mesh = Mesh::default();
    let mut b = Builder::new(&mesh);
    let (m, n) = (b.dim("m", 3), b.dim("n", 4));
    let x = b.whole(DType::F32, &[m, n]);
    let s = b.whole(DType::F32, &[]);
    let y = b.whole(DType::F32, &[m, n]);
    b.leaf(ProgramInputKind::Param, "x", &x);
    b.contract("s", &x, &x, &s);
    b.map("y", &[&x, &s], &y, |e, r| e.binary(meshwright_plan::expr::BinaryFn::Mul, r[0], r[1]));
    b.next("x", &y);
    b.output("s", &s);
    let mut cluster = cluster(&mesh);
    let program = cluster.load(Arc::new(b.finish())).unwrap();
    cluster.set_state("x", &tensor(DType::F32, &[3, 4], vec![0.5; 12])).unwrap();
    assert_eq!(cluster.run(program, 1, &no_inputs()).unwrap().outputs["s"].scalar(), Some(3.0));
    assert_eq!(cluster.state("x").unwrap().data.to_f64(), [1.5; 12]);
    assert_eq!(cluster.run(program, 2, &no_inputs()).unwrap().outputs["s"].scalar(), Some(27.0));
}
