//! Sums that products are added to, by the CUDA engine on the stand-in for the driver.

use super::dry_run::{computes_as_the_native_backend, libraries, losses, on_stand_in};
use crate::support::{SMALL, command, folder};

/// Gradients of microbatches are products that are added to the sums so far: at positions of stacks, beside sums of a factor, and
/// where rows of the first sum, which are zeros, have no gaps, and those of later ones have. A library that sums no factor beside
/// leaves it to kernels of ours.
#[test]
fn microbatches_are_summed_in_place_compiled_for_the_host() {
    let folder = folder(SMALL);
    let data = folder.path().join("data").display().to_string();
    let gpt = "train gpt --preset tiny --data king_james_next --steps 4 --no-eval --dim batch=2 --dim seq=16 --dim layers=2 \
               --precision f32";
    let mlp = format!(
        "train mnist_mlp --data {data} --steps 4 --no-eval --dim batch=12 --dim rows=5 --dim cols=4 --dim hidden1=301 --dim hidden2=8"
    );
    let libraries = libraries();
    for (args, layout) in [(gpt, "microbatches 2"), (&mlp, "microbatches 3")] {
        let args: Vec<&str> = args.split_whitespace().chain(["--layout", layout]).collect();
        computes_as_the_native_backend(&args, 2e-6);
        let args = [&args[..], &["--no-save", "--format", "json", "--peak-flops", "1e12"]].concat();
        let native = losses(command(&[&args[..], &["--device", "cpu"]].concat()));
        let args = [&args[..], &["--device", "cuda"]].concat();
        let mut apart = on_stand_in(libraries.path(), "dry_run_computed", &args);
        apart.env("FAKE_CUBLASLT_EPILOGUES", "0");
        apart.envs([("FAKE_CUDA_KERNELS", "run"), ("FAKE_CUDA_MEMORY", "1")]);
        let apart = losses(apart);
        let far = native.iter().zip(&apart).map(|(a, b)| (a - b).abs() / a.abs()).fold(0.0, f64::max);
        assert!(far <= 2e-6 && native.len() == apart.len(), "{native:?} {apart:?}");
    }
}
