//! `devices`: what a machine has, and what is wrong with it.

use crate::fake_nccl;
use crate::support::{command, lines, said};

/// On the stand-in for NVIDIA's libraries.
fn devices(args: &[&str], variables: &[(&str, &str)]) -> (i32, String, String) {
    let fake = fake_nccl::library();
    let mut c = command(&[&["devices"], args].concat());
    for library in ["CUDA", "CUBLASLT", "NCCL", "NVML"] {
        c.env(format!("MESHWRIGHT_{library}"), fake);
    }
    c.env("CUDA_PATH", "/nowhere").envs(variables.iter().copied());
    said(c.output().unwrap())
}

#[test]
fn devices_lists_gpus_and_what_connects_them() {
    let (code, out, err) = devices(&[], &[("FAKE_NCCL_GPUS", "3")]);
    assert_eq!((code, err.as_str()), (0, ""));
    let first = "  GPU 0     Fake GPU, 1.00 GiB of memory (768 MiB free), compute capability 9.0, PCI 0000:00:00.0, NVLink to 1\n";
    assert!(out.contains(first), "{out}");
    assert!(out.contains("PCI 0000:02:00.0, no NVLink\n"), "{out}");
    assert!(out.contains("  driver    580.95.05\n  CUDA      13.0 (/"), "{out}");
    assert!(out.contains("  cuBLASLt  13.2.0 (/"), "{out}");
    assert!(out.contains("  NCCL      2.30.7 (/"), "{out}");
    assert!(
        out.contains("libdevice, which compiling kernels needs, was not found: tried /nowhere/nvvm/"),
        "{out}"
    );

    let (code, out, _) = devices(&["--format", "json"], &[("FAKE_NCCL_GPUS", "2")]);
    let json = &lines(&out)[0];
    assert_eq!((code, json["gpus"].as_array().unwrap().len()), (0, 2));
    assert_eq!(json["gpus"][1]["nvlink"], serde_json::json!([0]));
    assert_eq!((&json["nccl"]["version"], &json["usable"]), (&"2.30.7".into(), &false.into()));
    assert_eq!(json["cublas_lt"]["version"], "13.2.0");

    let (_, out, _) = devices(&[], &[("MESHWRIGHT_CUBLASLT", "/nowhere/lt")]);
    let note = "  - Burn's kernels compute products of matrices, which takes longer than with cuBLASLt: cuBLASLt was not found: tried /nowhere/lt (";
    assert!(out.contains(note) && out.contains("pip install nvidia-cublas"), "{out}");
}

#[test]
fn devices_tells_what_is_wrong_with_a_gpu() {
    let ecc = [("FAKE_NCCL_GPUS", "2"), ("FAKE_NVML_ECC", "3:gpu1"), ("FAKE_NVML_PENDING_ROWS", "1:gpu1")];
    let (_, out, _) = devices(&[], &ecc);
    let wrong = "NVLink to 0, 3 uncorrected ECC errors now, 5 in its life, broken rows of memory to be replaced at its next reset\n";
    assert!(out.contains(wrong) && out.contains("NVLink to 1\n"), "{out}");
    let (_, out, _) = devices(&["--format", "json"], &ecc);
    let gpus = &lines(&out)[0]["gpus"];
    assert_eq!(gpus[0]["uncorrected_ecc_errors"], serde_json::json!({ "volatile": 0, "aggregate": 0 }));
    assert_eq!(gpus[1]["uncorrected_ecc_errors"], serde_json::json!({ "volatile": 3, "aggregate": 5 }));
    let rows = serde_json::json!({ "uncorrected": 1, "pending": true, "failed": false });
    assert_eq!((&gpus[1]["remapped_rows"], &gpus[1]["reachable"]), (&rows, &true.into()));

    let (_, out, _) = devices(&[], &[("FAKE_NCCL_GPUS", "1"), ("FAKE_NVML_LOST", "1")]);
    assert!(out.contains(", LOST: the driver cannot reach it\n"), "{out}");
    // A driver that counts no errors.
    let old = [("FAKE_NCCL_GPUS", "1"), ("FAKE_NVML_OLD", "1"), ("FAKE_NVML_ECC", "3")];
    let (_, out, _) = devices(&["--format", "json"], &old);
    assert_eq!(lines(&out)[0]["gpus"][0]["uncorrected_ecc_errors"], serde_json::Value::Null);
}

#[test]
fn devices_says_why_a_gpu_cannot_be_used() {
    let (code, out, _) = devices(&[], &[("MESHWRIGHT_CUDA", "/nowhere/libcuda.so.1")]);
    assert_eq!(code, 0);
    assert!(out.starts_with("  CPU ") && !out.contains("  GPU"), "{out}");
    let why = "No GPU can be used:\n  - the CUDA driver library was not found: tried /nowhere/libcuda.so.1 (";
    assert!(out.contains(why) && out.contains("install NVIDIA's driver"), "{out}");

    let old = [("FAKE_NCCL_GPUS", "2"), ("FAKE_NCCL_VERSION", "21605"), ("FAKE_CUDA_VERSION", "12040")];
    let (_, out, _) = devices(&[], &old);
    assert!(out.contains("  - NCCL 2.16.5 at /") && out.contains("2.18.0 or newer is needed"), "{out}");
    assert!(out.contains("Notes:\n  - the driver offers CUDA 12.4:"), "{out}");

    let (_, out, _) = devices(&[], &[("FAKE_NCCL_GPUS", "0")]);
    assert!(out.contains("`cuInit` failed: CUDA_ERROR_NO_DEVICE"), "{out}");

    let missing =
        [("FAKE_NCCL_GPUS", "1"), ("MESHWRIGHT_NCCL", "/nowhere/nccl"), ("MESHWRIGHT_NVML", "/nowhere/nvml")];
    let (_, out, _) = devices(&[], &missing);
    assert!(
        out.contains("a mesh of several GPUs needs NCCL: NCCL was not found: tried /nowhere/nccl"),
        "{out}"
    );
    assert!(out.contains("NVLink and free memory are not known: NVML was not found"), "{out}");
}
