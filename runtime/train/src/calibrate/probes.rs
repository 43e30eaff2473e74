//! The programs that are timed: model texts, each of work of one kind in several sizes.

use crate::project::ProjectOptions;
use meshwright_cost::machine::DeviceKind;
use meshwright_plan::Arithmetic;
use meshwright_runs::memory::available_bytes;

/// What a probe tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeKind {
    /// Matrix products by shape.
    Product,
    /// Memory by the bytes that are moved, and what a kernel takes beside its work.
    Stream,
    /// Functions of single numbers; the family is that of a machine file.
    Function(&'static str),
    /// Kernels that machine files have operations per second of.
    Family,
    /// Attention by the number of keys.
    Attention,
}

/// A program.
pub(super) struct Probe {
    pub(super) kind: ProbeKind,
    pub(super) options: ProjectOptions,
}

impl Probe {
    fn new(kind: ProbeKind, name: &str, text: &str, dims: &[(&str, usize)]) -> Probe {
        let options = ProjectOptions {
            model: name.into(),
            dims: dims.iter().map(|(name, size)| ((*name).into(), *size)).collect(),
            texts: [(name.to_string(), text.to_string())].into(),
            ..ProjectOptions::default()
        };
        Probe { kind, options }
    }

    /// Its name, with its sizes.
    pub(super) fn name(&self) -> String {
        let sizes = self.options.dims.iter().map(|(name, size)| format!(" {name}={size}"));
        self.options.model.trim_end_matches(".mw").to_string() + &sizes.collect::<String>()
    }
}

/// Products: rows, summed elements, columns and how many at once.
const SHAPES: [(usize, usize, usize, usize); 16] = [
    (1024, 1024, 1024, 1),
    (512, 512, 512, 1),
    (256, 256, 256, 1),
    (128, 128, 128, 1),
    (64, 64, 64, 1),
    (512, 2048, 512, 1),
    (64, 4096, 64, 1),
    (2048, 64, 256, 1),
    (2048, 256, 64, 1),
    (100, 784, 1024, 1),
    (100, 1024, 10, 1),
    (16, 512, 512, 1),
    (1, 1024, 1024, 1),
    (512, 32, 512, 1),
    (128, 64, 128, 16),
    (32, 32, 32, 64),
];

/// The same for a GPU, in `bf16`.
const GPU_SHAPES: [(usize, usize, usize, usize); 14] = [
    (8192, 8192, 8192, 1),
    (4096, 4096, 4096, 1),
    (2048, 2048, 2048, 1),
    (1024, 1024, 1024, 1),
    (512, 512, 512, 1),
    (8192, 768, 3072, 1),
    (8192, 3072, 768, 1),
    (8192, 768, 768, 1),
    (4096, 256, 4096, 1),
    (4096, 16384, 256, 1),
    (16384, 1024, 1024, 1),
    (512, 4096, 512, 1),
    (512, 64, 512, 192),
    (128, 128, 128, 512),
];

/// A shape that reaches the greatest rate of a GPU, for dtypes other than `bf16`.
const GPU_LARGE: (usize, usize, usize, usize) = (4096, 4096, 4096, 1);

/// Elements of vectors on a GPU.
const GPU_LENGTHS: [usize; 7] = [16, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 25, 1 << 28];

/// Keys of attention on a GPU, and the examples and heads that fill it.
const GPU_KEYS: [usize; 4] = [512, 1024, 2048, 4096];
const GPU_WIDTHS: [usize; 2] = [128, 64];
const GPU_HEADS: [(&str, usize); 2] = [("batch", 4), ("heads", 16)];

/// A shape that reaches the greatest rate, for dtypes other than `f32`.
const LARGE: (usize, usize, usize, usize) = (512, 1024, 512, 1);

/// Elements of vectors: from a few, whose time is that of their kernels, to more than caches hold.
const LENGTHS: [usize; 9] = [16, 4_096, 16_384, 65_536, 262_144, 1 << 20, 1 << 22, 1 << 23, 1 << 24];

/// Elements of vectors that a short calibration leaves out: to make them takes longer than it has.
const LONG: usize = 1 << 22;

/// Keys of attention.
const KEYS: [usize; 4] = [64, 128, 256, 512];

/// Elements of a key: those of most models, and fewer.
const WIDTHS: [usize; 2] = [64, 32];

/// Functions by family.
const FUNCTIONS: [(&str, &str); 6] = [
    ("simple", "0.9 * y + 0.1"),
    ("divide", "1 / (1 + y)"),
    ("root", "sqrt(1 + y)"),
    ("exponential", "exp(-y)"),
    ("power", "(1 + y) ** 1.3"),
    ("random", "dropout(y, 0.1)"),
];

const PRODUCT: &str = include_str!("probes/product.mw");
const STREAM: &str = include_str!("probes/stream.mw");
const FUNCTION: &str = include_str!("probes/function.mw");
const ATTENTION: &str = include_str!("probes/attention.mw");

/// Programs of kernels of one kind each.
const FAMILIES: [(&str, &str); 4] = [
    ("window.mw", include_str!("probes/window.mw")),
    ("pool.mw", include_str!("probes/pool.mw")),
    ("table.mw", include_str!("probes/table.mw")),
    ("scan.mw", include_str!("probes/scan.mw")),
];

/// The function in its text, in whose place others come.
const WRITTEN: &str = "exp(-y)";

fn product(precision: Option<Arithmetic>, (m, k, n, groups): (usize, usize, usize, usize)) -> Probe {
    let dims = [("batch", m), ("k", k), ("n", n), ("groups", groups)];
    let mut probe = Probe::new(ProbeKind::Product, "product.mw", PRODUCT, &dims);
    probe.options.precision = precision;
    probe
}

/// All probes of a kind of device; of a short calibration without the longest vectors.
pub(super) fn probes(kind: DeviceKind, short: bool) -> Vec<Probe> {
    match kind {
        DeviceKind::Cpu => of_cores(short),
        DeviceKind::Gpu => of_gpus(short),
    }
}

/// A GPU has no seconds of functions: memory is what limits them.
fn of_gpus(short: bool) -> Vec<Probe> {
    let lengths = GPU_LENGTHS.into_iter().take(GPU_LENGTHS.len() - usize::from(short));
    let mut all: Vec<Probe> =
        GPU_SHAPES.into_iter().map(|shape| product(Some(Arithmetic::BF16), shape)).collect();
    all.extend(
        [Arithmetic::F64, Arithmetic::F32, Arithmetic::TF32]
            .map(|arithmetic| product(Some(arithmetic), GPU_LARGE)),
    );
    all.extend(lengths.map(stream));
    all.extend(FAMILIES.into_iter().map(|(name, text)| Probe::new(ProbeKind::Family, name, text, &[])));
    let filled = |keys, width, rate| {
        let mut probe = attention(keys, width, rate);
        probe.options.dims.extend(GPU_HEADS.map(|(name, size)| (name.to_string(), size)));
        probe.options.precision = Some(Arithmetic::BF16);
        probe
    };
    all.extend(GPU_KEYS.into_iter().map(|keys| filled(keys, GPU_WIDTHS[0], 0.0)));
    all.extend(GPU_KEYS[1..3].iter().map(|keys| filled(*keys, GPU_WIDTHS[1], 0.0)));
    all.extend(GPU_KEYS[1..3].iter().map(|keys| filled(*keys, GPU_WIDTHS[0], 0.1)));
    all
}

fn of_cores(short: bool) -> Vec<Probe> {
    let lengths = LENGTHS.into_iter().filter(|n| !short || *n <= LONG);
    let function = |(family, of): (&'static str, &str)| {
        let text = FUNCTION.replace(WRITTEN, of);
        Probe::new(ProbeKind::Function(family), &format!("{family}.mw"), &text, &[])
    };
    let family = |(name, text): (&str, &str)| Probe::new(ProbeKind::Family, name, text, &[]);
    let mut all: Vec<Probe> = SHAPES.into_iter().map(|shape| product(None, shape)).collect();
    all.extend([Arithmetic::F64, Arithmetic::BF16].map(|arithmetic| product(Some(arithmetic), LARGE)));
    all.extend(lengths.map(stream));
    all.extend(FUNCTIONS.into_iter().map(function));
    all.extend(FAMILIES.into_iter().map(family));
    all.extend(KEYS.into_iter().map(|keys| attention(keys, WIDTHS[0], 0.0)));
    all.extend(KEYS[1..3].iter().map(|keys| attention(*keys, WIDTHS[1], 0.0)));
    all.extend(KEYS[1..3].iter().map(|keys| attention(*keys, WIDTHS[0], 0.1)));
    all
}

fn attention(keys: usize, width: usize, rate: f64) -> Probe {
    let dims = [("seq", keys), ("d_head", width)];
    let mut probe = Probe::new(ProbeKind::Attention, "attention.mw", ATTENTION, &dims);
    if rate > 0.0 {
        probe.options.sets = vec![("rate".into(), rate)];
    }
    probe
}

fn stream(n: usize) -> Probe {
    Probe::new(ProbeKind::Stream, "stream.mw", STREAM, &[("n", n)])
}

/// Bytes that a training of vectors takes for an element, with what it reads and makes.
const BYTES_OF_ELEMENT: usize = 32;

/// The length of vectors on some devices of a host, which share its memory: the greatest for which there is enough.
pub(super) fn shared_length(in_host: usize, short: bool) -> usize {
    let room =
        available_bytes().map_or(usize::MAX, |bytes| bytes as usize / BYTES_OF_ELEMENT / in_host.max(1));
    let most = room.min(if short { LONG } else { usize::MAX });
    LENGTHS.into_iter().rev().find(|n| *n <= most).unwrap_or(LENGTHS[0])
}

/// Vectors of this length on each of some devices.
pub(super) fn shared(length: usize, devices: usize) -> Probe {
    let mut probe = stream(length);
    probe.options.mesh = Some(format!("all={devices}"));
    probe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::Project;

    #[test]
    fn every_probe_is_a_program_of_its_own() {
        let mut names: Vec<String>;
        let shared = shared(shared_length(2, true), 2);
        let all = [DeviceKind::Cpu, DeviceKind::Gpu].map(|kind| probes(kind, false));
        for probe in all.iter().flatten().chain([&shared]) {
            let loaded = Project::load(&probe.options);
            assert!(loaded.project.is_some(), "{}: {:?}", probe.name(), loaded.diagnostics);
        }
        for all in &all {
            let name = |p: &Probe| format!("{} {:?} {:?}", p.name(), p.options.precision, p.options.sets);
            names = all.iter().map(name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all.len(), "{names:?}");
        }
    }
}
