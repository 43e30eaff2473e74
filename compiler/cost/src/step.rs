//! Seconds of the kernels of a device.

use crate::dtype_rates::{AssumedRate, ProductRates, product_rates};
use crate::engine::OWN_ATTENTION;
use crate::machine::{AttentionRates, Device, DeviceKind, Machine};
use crate::shape::efficiency;
use crate::work::{KernelWork, Matmul, ScalarFamily, Scores};
use meshwright_device::kernels::host::{LEAST_MATRIX, MOST_ROWS};
use meshwright_plan::expr::FunctionCost;
use meshwright_plan::{Arithmetic, KernelFamily};

/// A machine as one of a number of devices sees it, which may share its cores and its memory.
#[derive(Clone, Debug)]
pub struct DeviceRates {
    device: Device,
    /// Names of attention kernels, the best first.
    attention: Vec<String>,
    /// Units that products are divided among: of a CPU one.
    units: f64,
    /// The rate relative to one unit's: less than 1 where devices share cores, more where each has several.
    share: f64,
    /// Devices that share the memory.
    beside: f64,
}

/// Seconds of kernels, by what limits them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seconds {
    /// Of work.
    pub work: f64,
    /// Of launches.
    pub launch: f64,
}

/// Products of a gradient of attention in the kernels whose rates machine files have.
const PUBLISHED_PRODUCTS: (f64, f64) = (2.0, 5.0);

impl DeviceRates {
    /// The rates of one of `devices`, with its attention computed by the first of these kernels that the machine has.
    pub fn new(machine: &Machine, devices: usize, attention: &[&str]) -> DeviceRates {
        let cores = f64::from(machine.device.units);
        let each = cores / devices as f64;
        let (units, share, beside) = match machine.device.kind {
            DeviceKind::Gpu => (cores, 1.0, 1.0),
            DeviceKind::Cpu if each < 1.0 => (1.0, each, devices as f64),
            DeviceKind::Cpu => (1.0, each.floor().powf(machine.device.threads), devices as f64),
        };
        DeviceRates {
            device: machine.device.clone(),
            attention: attention.iter().map(ToString::to_string).collect(),
            units,
            share,
            beside,
        }
    }

    /// Seconds of kernels.
    pub fn seconds(&self, work: &KernelWork) -> Seconds {
        let d = &self.device;
        let memory = work.bytes / self.stream(work.bytes / work.kernels.max(1.0));
        let scalar = self.scalar(&work.scalars);
        let computed = match work.family {
            KernelFamily::Matmul => work.products.iter().map(|p| self.product(p)).sum(),
            KernelFamily::Attention => work.attention.as_ref().map_or(0.0, |s| self.scores(s)),
            KernelFamily::Memory => 0.0,
            family => d.families.get(family.name()).map_or(0.0, |rate| work.operations / (rate * self.share)),
        };
        let again = if work.again > 0.0 { work.again / self.stream(work.again) } else { 0.0 };
        Seconds {
            work: memory.max(computed + scalar) + again,
            launch: work.kernels * d.kernel / self.share.min(1.0),
        }
    }

    /// The least seconds of the same work in kernels of any shape and size: products and memory at their greatest rates.
    pub fn least(&self, work: &KernelWork) -> Seconds {
        let stream = &self.device.stream;
        let alone = stream.rates.iter().map(|r| r.1).fold(0.0, f64::max) * self.share;
        let memory = work.bytes / stream.total.map_or(alone, |total| alone.min(total / self.beside));
        let product = |p: &Matmul| {
            let rate =
                |m: ProductRates| (self.device.product.issue * m.peak).min(m.best * self.device.sustained);
            self.matrix(p.arithmetic, p.fp8).map_or(0.0, |m| p.flops() / rate(m) / self.share)
        };
        let products = match work.family {
            KernelFamily::Matmul => work.products.iter().map(product).sum(),
            _ => 0.0,
        };
        let rest = self.seconds(&KernelWork { bytes: 0.0, again: 0.0, products: Vec::new(), ..work.clone() });
        Seconds { work: memory.max(products + rest.work), launch: rest.launch }
    }

    /// Bytes per second of a kernel that moves this many bytes.
    fn stream(&self, bytes: f64) -> f64 {
        let stream = &self.device.stream;
        let alone = interpolated(&stream.rates, bytes) * self.share;
        stream.total.map_or(alone, |total| alone.min(total / self.beside))
    }

    /// Seconds of so many scalar functions of each family. Rates are those of `f32`.
    fn scalar(&self, of: &[f64; ScalarFamily::ALL.len()]) -> f64 {
        self.functions(of) / self.share
    }

    /// Seconds of so many functions of each family on one core, or on a GPU.
    fn functions(&self, of: &[f64; ScalarFamily::ALL.len()]) -> f64 {
        let each = |f: ScalarFamily| self.device.scalar.get(f.name()).map_or(0.0, |s| s * of[f.position()]);
        ScalarFamily::ALL.into_iter().map(each).sum()
    }

    /// Seconds of a matrix product: the slowest of issuing and of power, whatever the shape. Of a few rows on a CPU a kernel of
    /// their own reads the other factor once: a product and a sum of each of its elements.
    pub fn product(&self, p: &Matmul) -> f64 {
        let d = &self.device;
        let thin = |rows: u64, others: u64| rows <= MOST_ROWS as u64 && p.k * others >= LEAST_MATRIX as u64;
        if d.kind == DeviceKind::Cpu && p.batch == 1 && (thin(p.m, p.n) || thin(p.n, p.m)) {
            let mut functions = [0.0; ScalarFamily::ALL.len()];
            functions[ScalarFamily::Function(FunctionCost::Simple).position()] =
                2.0 * (p.k * p.m.max(p.n)) as f64;
            return self.scalar(&functions);
        }
        let Some(m) = self.matrix(p.arithmetic, p.fp8) else { return 0.0 };
        let issue = d.product.issue * m.peak * efficiency(p, &d.product, self.units);
        let power = m.best * d.sustained;
        if issue <= 0.0 { 0.0 } else { p.flops() / issue.min(power) / self.share }
    }

    /// Operations per second of the data sheet, for a dtype.
    pub fn peak(&self, arithmetic: Arithmetic) -> Option<f64> {
        self.matrix(arithmetic, false).map(|m| m.peak * self.share)
    }

    /// The rates of a dtype, or what is taken for them.
    fn matrix(&self, arithmetic: Arithmetic, fp8: bool) -> Option<ProductRates> {
        product_rates(&self.device, arithmetic, fp8)
    }

    /// Rates that the machine file lacks, of all dtypes that kernels multiply.
    pub(crate) fn assumed<'k>(&self, all: impl IntoIterator<Item = &'k KernelWork>) -> Vec<AssumedRate> {
        let mut found: Vec<AssumedRate> = vec![];
        for work in all {
            let products = work.products.iter().map(|p| (p.arithmetic, p.fp8));
            let scores = work.attention.iter().map(|s| (s.arithmetic, false));
            let rates = products.chain(scores).filter_map(|(arithmetic, fp8)| self.matrix(arithmetic, fp8));
            for assumed in rates.filter_map(|rates| rates.assumed) {
                if !found.contains(&assumed) {
                    found.push(assumed);
                }
            }
        }
        found
    }

    fn own_scores(&self, s: &Scores) -> f64 {
        let d = &self.device;
        let pairs = s.matrices * s.queries * s.keys * s.visible;
        let products = s.products + SHARED_PRODUCTS * (s.kernels - 1.0);
        let rate = self.matrix(s.arithmetic, false).map_or(f64::INFINITY, |m| m.best * d.sustained);
        let multiplied = products * pairs * (s.width + s.values) / rate;
        (multiplied + pairs * self.functions(&s.functions)) / d.attention_sustained / self.share
    }

    /// The rate of an attention's factors relative to that of half types: rates of attention in a GPU's file are theirs.
    fn relative_to_halves(&self, arithmetic: Arithmetic) -> f64 {
        let halves = [Arithmetic::BF16, Arithmetic::F16, Arithmetic::FP8];
        if self.device.kind == DeviceKind::Cpu || halves.contains(&arithmetic) {
            return 1.0;
        }
        let best = |a: Arithmetic| self.matrix(a, false).map(|m| m.best);
        best(arithmetic).zip(best(Arithmetic::BF16)).map_or(1.0, |(own, half)| own / half)
    }

    /// Seconds of an attention: by the rates of the first kernel that the machine has. Where nobody has measured this project's
    /// own on a GPU, what it computes is priced: products at the rate of all products, and then the functions of each score.
    fn scores(&self, s: &Scores) -> f64 {
        let d = &self.device;
        let own = self.attention.first().filter(|name| *name == OWN_ATTENTION);
        if own.is_some_and(|name| !d.attention.contains_key(name) && !d.scalar.is_empty()) {
            return self.own_scores(s);
        }
        let found =
            self.attention.iter().find_map(|name| d.attention.get(name)).or(d.attention.values().next());
        let Some(AttentionRates { forward, backward, dropout, .. }) = found else { return 0.0 };
        let (top, half) = if s.backward { backward } else { forward };
        let products = products_of(d.kind, s);
        let width = found.map_or(1.0, |f| f.width_rate(s.width));
        let pairs = s.matrices * s.queries * s.keys * s.visible;
        let flops = products * pairs * (s.width + s.values) * if s.dropout { *dropout } else { 1.0 };
        flops
            / (top * width * s.keys / (s.keys + half) * d.attention_sustained * self.share)
            / self.relative_to_halves(s.arithmetic)
    }
}

/// Products that each kernel of a gradient computes again: the scores, and those of the cotangent with values.
const SHARED_PRODUCTS: f64 = 2.0;

/// Products of an attention that the rates of a kind of device count.
pub fn products_of(kind: DeviceKind, s: &Scores) -> f64 {
    match (kind, s.backward) {
        (DeviceKind::Cpu, _) => s.products,
        (DeviceKind::Gpu, false) => PUBLISHED_PRODUCTS.0,
        (DeviceKind::Gpu, true) => PUBLISHED_PRODUCTS.1,
    }
}

/// A value between entries, by the logarithm of the key; beyond the ends the value of the end.
fn interpolated(entries: &[(f64, f64)], key: f64) -> f64 {
    let Some(above) = entries.iter().position(|(k, _)| *k >= key) else {
        return entries.last().map_or(1.0, |e| e.1);
    };
    let Some(below) = above.checked_sub(1) else { return entries[above].1 };
    let ((k0, v0), (k1, v1)) = (entries[below], entries[above]);
    v0 + (v1 - v0) * (key / k0).ln() / (k1 / k0).ln()
}
