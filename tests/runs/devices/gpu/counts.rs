//! What the engine of a GPU launches and holds on the stand-in for its driver, beside what an estimate says.

use super::dry_run::{libraries, on_stand_in, report};
use crate::support::{command, said};
use std::process::Command;

/// Programs of `docs/results/host_time.md`: those that take little time to compile, and the others.
const PROGRAMS: [&str; 2] = ["mnist_conv", "bert --preset tiny --dim batch=4"];
const MORE: [&str; 7] = [
    "mnist_mlp",
    "unet --dim batch=2",
    "llama --preset tiny --dim batch=4",
    "gpt --preset tiny --dim batch=4",
    "vit --preset tiny",
    "switch --preset tiny --dim batch=4",
    "t5 --preset tiny --dim batch=4",
];

fn json(command: &mut Command) -> serde_json::Value {
    let out = said(command.output().unwrap());
    assert_eq!(out.code, Some(0), "{}{}", out.out, out.err);
    serde_json::from_str(out.out.lines().last().unwrap()).unwrap()
}

/// With `LONG=1` of all programs.
#[test]
fn kernels_and_bytes_are_those_of_the_estimate_compiled_for_the_host() {
    let libraries = libraries();
    let long = std::env::var("LONG").is_ok_and(|v| v == "1");
    for program in PROGRAMS.iter().chain(MORE.iter().filter(|_| long)) {
        for precision in ["f32", "bf16"] {
            let of = |words: &str, more: &str| -> Vec<String> {
                let all = format!("{words} {program} --precision {precision} --format json {more}");
                all.split_whitespace().map(String::from).collect()
            };
            let args = of("estimate", "--machine dgx-h100");
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let estimated = json(&mut command(&args));
            let args = of("bench model", "--device cuda --steps 1 --warmup 1");
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let mut bench = on_stand_in(libraries.path(), "dry_run", &args);
            bench
                .env("FAKE_CUDA_MEMORY", "8")
                .env("FAKE_CUBLASLT_COMPUTES", "0")
                .env("MESHWRIGHT_GRAPHS", "none");
            let ran = json(&mut bench);
            let kernels = ran["kernels"].as_array().unwrap().iter();
            let launched: u64 = kernels.map(|k| k["launches"].as_u64().unwrap()).sum();
            let counts = [launched as f64, estimated["kernels"].as_f64().unwrap()];
            let bytes =
                [&ran["device_plan_bytes"], &estimated["memory"]["peak_bytes"]].map(|b| b.as_f64().unwrap());
            report(&format!("{program} in {precision}: kernels {counts:?}, bytes {bytes:?}"));
            assert!((counts[1] / counts[0] - 1.0).abs() < 0.15, "{program} in {precision}: {counts:?}");
            // The arena of a device plan has gaps, which an estimate does not count.
            assert!((0.9..=1.0).contains(&(bytes[1] / bytes[0])), "{program} in {precision}: {bytes:?}");
        }
    }
}
