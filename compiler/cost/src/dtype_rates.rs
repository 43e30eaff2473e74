//! The rate of matrix products by dtype, also of a dtype for which a machine file has none.

use crate::machine::{Device, DeviceKind, Machine, MatrixRates};
use crate::shipped_machines::find;
use meshwright_plan::Arithmetic;
use serde::Serialize;
use std::sync::LazyLock;

/// Rates of the products of one dtype on a device, in operations per second.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProductRates {
    /// Peak of the data sheet.
    pub(crate) peak: f64,
    /// The fastest product.
    pub(crate) best: f64,
    /// The source of both, where the machine file has no rate of the dtype.
    pub(crate) assumed: Option<AssumedRate>,
}

/// A rate that a machine file lacks, and what an estimate took for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AssumedRate {
    /// The dtype without a rate: the key of a table below `device.matrix`.
    pub dtype: &'static str,
    /// The dtype of the file whose rate was taken.
    pub taken: &'static str,
    /// The factor of that rate, at most 1: a device may lack fast units for the dtype.
    pub factor: f64,
    /// The shipped machine with these relative rates; none where nothing was scaled.
    pub as_on: Option<&'static str>,
}

impl AssumedRate {
    /// A sentence for whoever has the file of the machine with this name.
    pub fn note(&self, machine: &str) -> String {
        let AssumedRate { dtype, taken, factor, .. } = self;
        let of = match self.as_on {
            Some(shipped) => format!("{factor:.3} of the rate of `{taken}`, as on {shipped}"),
            None => format!("the rate of `{taken}`"),
        };
        format!(
            "the file of {machine} has no rate of `{dtype}` products: they are priced at {of}; add `[device.matrix.{dtype}]` with `peak` and `best` to the file"
        )
    }
}

/// Shipped machines whose file has rates of all dtypes that such a device multiplies.
const fn reference(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Gpu => "dgx-h100",
    }
}

static REFERENCES: LazyLock<Vec<Machine>> = LazyLock::new(|| {
    let read = |kind| find(reference(kind)).and_then(|text| Machine::read(text).ok());
    [DeviceKind::Cpu, DeviceKind::Gpu].into_iter().filter_map(read).collect()
});

/// The key of the dtype in which a device multiplies, and those whose rates stand for it, the nearest first. CPUs multiply
/// factors of TF32 as `f32`, and both half types as one.
fn keys(kind: DeviceKind, arithmetic: Arithmetic, fp8: bool) -> (&'static str, &'static [&'static str]) {
    match (arithmetic, kind) {
        _ if fp8 => ("fp8", &["bf16", "f16", "tf32", "f32"]),
        (Arithmetic::F16, DeviceKind::Gpu) => ("f16", &["bf16", "tf32", "f32", "f64"]),
        (Arithmetic::BF16 | Arithmetic::F16 | Arithmetic::FP8, _) => ("bf16", &["f16", "tf32", "f32", "f64"]),
        (Arithmetic::TF32, DeviceKind::Gpu) => ("tf32", &["bf16", "f32", "f16", "f64"]),
        (Arithmetic::TF32 | Arithmetic::F32, _) => ("f32", &["tf32", "bf16", "f16", "f64"]),
        (Arithmetic::F64, _) => ("f64", &["f32", "tf32", "bf16", "f16"]),
    }
}

/// The rates of a dtype; of one that the file lacks, those of the nearest that it has, in the relation of a shipped machine, but
/// no greater.
pub(crate) fn product_rates(device: &Device, arithmetic: Arithmetic, fp8: bool) -> Option<ProductRates> {
    let (dtype, others) = keys(device.kind, arithmetic, fp8);
    if let Some(MatrixRates { peak, best, .. }) = device.matrix.get(dtype) {
        return Some(ProductRates { peak: *peak, best: *best, assumed: None });
    }
    let (taken, rates) = others.iter().find_map(|key| Some((*key, device.matrix.get(*key)?)))?;
    let factor = relative(device.kind, dtype, taken).min(1.0);
    let as_on = (factor < 1.0).then_some(reference(device.kind));
    let assumed = Some(AssumedRate { dtype, taken, factor, as_on });
    Some(ProductRates { peak: rates.peak * factor, best: rates.best * factor, assumed })
}

/// The peak of a dtype relative to that of another on the shipped machine; 1 where its file lacks one of them.
fn relative(kind: DeviceKind, dtype: &str, other: &str) -> f64 {
    let Some(machine) = REFERENCES.iter().find(|m| m.device.kind == kind) else { return 1.0 };
    let peak = |key: &str| machine.device.matrix.get(key).map(|m| m.peak);
    peak(dtype).zip(peak(other)).map_or(1.0, |(of, to)| of / to)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::shipped_machines::MACHINES;

    fn device(name: &str, without: &[&str]) -> Device {
        let mut device = Machine::read(find(name).unwrap()).unwrap().device;
        without.iter().for_each(|key| drop(device.matrix.remove(*key)));
        device
    }

    fn peak(device: &Device, arithmetic: Arithmetic) -> f64 {
        product_rates(device, arithmetic, false).unwrap().peak
    }

    #[test]
    fn shipped_gpus_have_rates_of_each_dtype() {
        for shipped in MACHINES {
            let d = device(shipped.name, &[]);
            for arithmetic in Arithmetic::ALL {
                let found = product_rates(&d, arithmetic, false).unwrap();
                // A V100 has no units for BF16.
                let lacks = !d.matrix.contains_key("bf16") && arithmetic != Arithmetic::F16;
                let halves = [Arithmetic::BF16, Arithmetic::FP8].contains(&arithmetic);
                assert_eq!(found.assumed.is_some(), lacks && halves, "{}: {arithmetic:?}", shipped.name);
            }
            if d.kind == DeviceKind::Gpu {
                let [f32, tf32] = [Arithmetic::F32, Arithmetic::TF32].map(|a| peak(&d, a));
                assert!(f32 <= tf32 && tf32 < peak(&d, Arithmetic::F16), "{}", shipped.name);
            }
        }
    }

    #[test]
    fn a_missing_rate_is_scaled_and_named() {
        let d = device("dgx-a100-80g", &["f32", "tf32", "f64", "f16"]);
        let found = product_rates(&d, Arithmetic::F32, false).unwrap();
        assert!((found.peak / 312e12 - 67.0 / 989.4).abs() < 1e-12, "{found:?}");
        let note = found.assumed.unwrap().note("mine");
        assert_eq!(
            note,
            "the file of mine has no rate of `f32` products: they are priced at 0.068 of the rate of `bf16`, as on dgx-h100; add `[device.matrix.f32]` with `peak` and `best` to the file"
        );
        let tf32 = peak(&d, Arithmetic::TF32);
        assert!(found.peak < tf32 && tf32 < 312e12, "{tf32}");
    }

    #[test]
    fn no_missing_rate_is_above_what_the_file_has() {
        let d = device("abci-v100", &["f16", "tf32", "f64"]);
        let found = product_rates(&d, Arithmetic::BF16, false).unwrap();
        assert!(found.peak == 15.7e12 && found.assumed.unwrap().as_on.is_none());
    }

    #[test]
    fn a_cpu_multiplies_factors_of_tf32_as_f32() {
        let d = device("cpu", &[]);
        assert_eq!(product_rates(&d, Arithmetic::TF32, false), product_rates(&d, Arithmetic::F32, false));
    }
}
