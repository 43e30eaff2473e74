//! What is said of GPUs that fail, and what a GPU of the stand-in tells.

use super::*;
use crate::built;

#[test]
fn a_gpu_that_is_well_has_no_findings() {
    let monitor = GpuMonitor::open(&Paths::all(built::library()), 5).unwrap();
    assert_eq!(monitor.name().to_string(), "GPU 5 (0000:05:00.0)");
    let health = monitor.health();
    assert_eq!(health.ecc, Some(EccErrors { volatile: 0, aggregate: 0 }));
    assert!(health.findings().is_empty() && health.advice().is_empty(), "{health:?}");
    assert_eq!(monitor.memory(), Some(DeviceMemory { total: 1 << 30, free: 3 << 28 }));
    assert_eq!(monitor.error_name(214), "CUDA_ERROR_ECC_UNCORRECTABLE");
    assert!(GpuMonitor::open(&Paths::all(built::library()), 5000).is_none());
}

#[test]
fn what_is_missing_is_not_told() {
    let paths = Paths { nvml: Some("/nowhere/nvml".into()), ..Paths::all(built::library()) };
    let monitor = GpuMonitor::open(&paths, 1).unwrap();
    assert_eq!((monitor.health(), monitor.memory()), (GpuHealth::default(), None));
    let paths = Paths { cuda: Some("/nowhere/cuda".into()), ..Paths::all(built::library()) };
    assert!(GpuMonitor::open(&paths, 1).is_none());
}

#[test]
fn findings_say_what_is_wrong_and_what_to_do() {
    let of = |xids: &[u64]| GpuHealth { xids: xids.to_vec(), ..GpuHealth::default() };
    for (xid, advice) in [
        (13, "a bug of a program"),
        (48, "reset the GPU"),
        (95, "reset the GPU"),
        (79, "restart the machine"),
    ] {
        let health = of(&[xid]);
        assert!(health.findings()[0].starts_with(&format!("the driver reported Xid {xid}, ")), "{health:?}");
        assert!(health.advice()[0].contains(advice), "{health:?}");
    }
    assert_eq!((of(&[109]).findings().len(), of(&[109]).advice().len()), (1, 0));
    // Broken memory explains what a program did.
    assert_eq!(of(&[63, 31]).advice().len(), 1);
    let rows = RemappedRows { uncorrected: 1, pending: false, failed: true };
    let old = EccErrors { volatile: 0, aggregate: 2 };
    let health = GpuHealth { lost: true, ecc: Some(old), rows: Some(rows), ..GpuHealth::default() };
    assert_eq!((health.findings().len(), health.advice().len()), (3, 2));
}
