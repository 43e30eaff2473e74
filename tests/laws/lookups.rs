//! Lookups and their transpose, which devices with compiled kernels do at once: with few entries, few rows, or entries that are
//! put in the order of rows before, many of which name the same row.

use crate::devices::{Devices, to};
#[cfg(feature = "cuda")]
use crate::devices::{layout, plan};
use crate::equations::Equations;
use crate::split::way;
#[cfg(feature = "cuda")]
use crate::subject::{step, tensors};
use meshwright_ops::{F64Tensor, Id, InputOp, InputOpKind, Lookup, ScatterAdd, Type};
use meshwright_plan::{DType, Dim};

impl Equations {
    /// Positions in a dim of so many, and a few beyond its ends; one in three is the same.
    fn index(&mut self, name: &str, dims: &[Dim], size: usize) -> Id {
        let leaf = InputOpKind::Input { name: name.into() };
        let id = self.g.op(InputOp { input: leaf, ty: Type::new(DType::I32, dims.to_vec()) }, &[]);
        let mut next = 0;
        let positions = F64Tensor::build(&self.g.dims, dims, |_| {
            next += 1;
            if next % 3 == 0 { (size / 2) as f64 } else { ((next * 7919) % (size + 3)) as f64 - 1.0 }
        });
        self.bound.insert(id, positions);
        id
    }
}

/// Dims of a table and of its indices, with the sizes of both.
struct Case {
    name: &'static str,
    sizes: &'static [(&'static str, usize)],
    table: &'static [&'static str],
    indexed: &'static [&'static str],
    indices: &'static [&'static [&'static str]],
    /// That a mesh splits, one after the other.
    split: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        name: "embedding",
        sizes: &[("v", 600), ("w", 40), ("b", 3), ("s", 150)],
        table: &["v", "w"],
        indexed: &["v"],
        indices: &[&["b", "s"]],
        split: &["v", "w", "s"],
    },
    Case {
        name: "columns before rows",
        sizes: &[("v", 300), ("w", 70), ("s", 290)],
        table: &["w", "v"],
        indexed: &["v"],
        indices: &[&["s"]],
        split: &["v"],
    },
    Case {
        name: "few rows",
        sizes: &[("v", 3), ("w", 260), ("b", 5), ("s", 77)],
        table: &["v", "w"],
        indexed: &["v"],
        indices: &[&["s", "b"]],
        split: &["w", "b"],
    },
    Case {
        name: "few rows and columns of many entries",
        sizes: &[("v", 5), ("w", 12), ("s", 2300)],
        table: &["v", "w"],
        indexed: &["v"],
        indices: &[&["s"]],
        split: &["s"],
    },
    Case {
        name: "one column",
        sizes: &[("v", 90), ("s", 700)],
        table: &["v"],
        indexed: &["v"],
        indices: &[&["s"]],
        split: &["v"],
    },
    Case {
        name: "one entry to a row",
        sizes: &[("v", 70), ("s", 40)],
        table: &["s", "v"],
        indexed: &["v"],
        indices: &[&["s"]],
        split: &["s", "v"],
    },
    Case {
        name: "a table for each group",
        sizes: &[("g", 3), ("v", 270), ("w", 12), ("s", 60)],
        table: &["g", "v", "w"],
        indexed: &["v"],
        indices: &[&["g", "s"]],
        split: &["g", "v"],
    },
    Case {
        name: "few entries and columns",
        sizes: &[("v", 40), ("w", 3), ("s", 100)],
        table: &["v", "w"],
        indexed: &["v"],
        indices: &[&["s"]],
        split: &["v"],
    },
    Case {
        name: "few rows for each group, between columns, in chunks",
        sizes: &[("g", 3), ("v", 5), ("p", 4), ("w", 6), ("s", 2100)],
        table: &["g", "p", "v", "w"],
        indexed: &["v"],
        indices: &[&["s", "g"]],
        split: &["g"],
    },
    Case {
        name: "rows of many entries for each group",
        sizes: &[("g", 2), ("v", 300), ("w", 12), ("s", 400)],
        table: &["g", "v", "w"],
        indexed: &["v"],
        indices: &[&["g", "s"]],
        split: &["s"],
    },
    Case {
        name: "rows of so many entries that these are put in order in chunks of the greatest size",
        sizes: &[("v", 900), ("w", 2), ("s", 33_000)],
        table: &["v", "w"],
        indexed: &["v"],
        indices: &[&["s"]],
        split: &["s"],
    },
    Case {
        name: "two dims",
        sizes: &[("u", 19), ("v", 31), ("w", 6), ("a", 9), ("c", 20)],
        table: &["u", "w", "v"],
        indexed: &["u", "v"],
        indices: &[&["a", "c"], &["c"]],
        split: &["u", "v", "c"],
    },
];

fn are_the_same(mut devices: Devices, what: &str, split: bool) {
    let mut cases = 0;
    for half in [None, Some(DType::BF16)] {
        for case in CASES {
            let mut e = Equations::new(half);
            for (name, size) in case.sizes {
                e.g.dims.add(*name, *size);
            }
            let find = |e: &Equations, names: &[&str]| -> Vec<Dim> {
                names.iter().map(|name| e.g.dims.find(name).unwrap()).collect()
            };
            let (table_dims, dims) = (find(&e, case.table), find(&e, case.indexed));
            let indices: Vec<Id> = (case.indices.iter().zip(&dims))
                .map(|(over, dim)| {
                    let (over, size) = (find(&e, over), e.g.dims.size(*dim));
                    e.index(&format!("at{}", dim.0), &over, size)
                })
                .collect();
            let table = e.input("table", &table_dims);
            let found = e.g.op(Lookup { dims: dims.clone() }, &[&[table], &indices[..]].concat());
            let entries = e.g.ty(found).dims.clone();
            let values = e.input("values", &entries);
            let scatter = ScatterAdd { dims, out: table_dims };
            let sums = e.g.op(scatter, &[&[values], &indices[..]].concat());
            e.outputs.extend([("found", found), ("sums", sums)]);
            let mut ways = vec![way(&[], vec![])];
            if split {
                ways.extend(find(&e, case.split).into_iter().map(|d| way(&[2], vec![to(d, &[0])])));
            }
            cases += e.are_the_same(&format!("{}, {half:?}", case.name), &ways, &mut devices);
        }
    }
    crate::report(&format!("{what}: {cases} cases"));
}

#[test]
fn lookups_are_the_same_on_the_host() {
    are_the_same(Devices::default(), "lookups, native", true);
    are_the_same(Devices::of(meshwright_burn::device()), "lookups, plain operations", false);
}

#[test]
fn lookups_are_the_same_as_a_gpu_launches_them() {
    are_the_same(Devices::of(meshwright_burn::reference()), "lookups, launches of a GPU", true);
}

#[cfg(feature = "cuda")]
#[test]
fn lookups_are_the_same_on_a_gpu() {
    if !crate::engines::gpu() {
        return;
    }
    let split = crate::engines::has_gpu(1).is_ok();
    let ((), launches) =
        crate::engines::counted(|| are_the_same(Devices::of(meshwright_cuda::gpu(0)), "lookups, GPU", split));
    for (kernel, least) in [
        ("LookUpRows", 24),
        ("SortChunks", 14),
        ("OrderEntries", 14),
        ("ScatterOrdered", 14),
        ("ScatterFewRows", 6),
        ("ScatterEach", 4),
    ] {
        assert!(launches(kernel) >= least, "{kernel}: {} of {least}", launches(kernel));
    }
}

/// Bit by bit the sums of a loop over entries, of all rows that are not long: entries of a row stay in their order, in one chunk
/// and in several of each size.
#[cfg(feature = "cuda")]
#[test]
fn entries_of_a_row_are_added_in_their_own_order_on_a_gpu() {
    const COLUMNS: usize = 8;
    const LONG: usize = 64;
    if !crate::engines::gpu() {
        return;
    }
    let mut devices = Devices::of(meshwright_cuda::gpu(0));
    for (rows, many) in [(65, 65), (300, 1024), (1200, 4_100), (900, 19_000), (900, 33_000)] {
        let mut e = Equations::new(None);
        let [v, w, s] =
            [("v", rows), ("w", COLUMNS), ("s", many)].map(|(name, size)| e.g.dims.add(name, size));
        let (at, values) = (e.index("at", &[s], rows), e.input("values", &[s, w]));
        let sums = e.g.op(ScatterAdd { dims: vec![v], out: vec![v, w] }, &[values, at]);
        e.outputs.push(("sums", sums));
        let (step, (inputs, states)) = (step(&e.g, &e.outputs), tensors(&e.g, &e.bound));
        let [named, values] = ["at", "values"].map(|name| inputs[name].data.to_f64());
        let mut wanted = vec![0.0_f32; rows * COLUMNS];
        let mut entries = vec![0; rows];
        for (row, entry) in named.iter().zip(values.chunks(COLUMNS)) {
            if *row < 0.0 || *row >= rows as f64 {
                continue;
            }
            let row = *row as usize;
            entries[row] += 1;
            let sums = wanted.iter_mut().skip(row * COLUMNS);
            sums.zip(entry).for_each(|(sum, x)| *sum += *x as f32);
        }
        let way = way(&[], vec![]);
        let Ok(planned) = plan(&step, &layout(&way.mesh, way.rules), true) else { panic!("no plan") };
        let out = devices.run(planned.plan, &inputs, &states).unwrap();
        let (found, dims) = &out["sums"];
        assert_eq!(*dims, [v, w]);
        let mut compared = 0;
        for (row, found) in
            found.data.to_f64().chunks(COLUMNS).enumerate().filter(|(r, _)| entries[*r] <= LONG)
        {
            let wanted: Vec<f64> = wanted[row * COLUMNS..][..COLUMNS].iter().map(|x| f64::from(*x)).collect();
            assert_eq!(found, wanted, "row {row} of {rows}, which {} entries of {many} name", entries[row]);
            compared += 1;
        }
        assert!(compared + 2 >= rows, "{compared} of {rows} rows");
    }
}
