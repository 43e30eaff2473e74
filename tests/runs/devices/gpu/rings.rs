//! Long sequences on GPUs: keys around a ring, in either order of positions, and heads in place of positions, by the plans of
//! GPUs and through the CUDA engine on the stand-in for the driver and for NCCL, which interprets the kernels.

use crate::devices::gpu::launches::{NEXT, TEXT, are_those_of_the_cpu};
use crate::training::text::tokenized;

/// Shards that are uneven, in zigzag order, over two axes, heads, and both over an axis each.
const LONG: [(&str, &str); 5] = [
    ("ctx=3", "seq -> ctx; ring key"),
    ("ctx=2", "seq -> ctx; ring key; order seq zigzag ctx"),
    ("a=2,b=2", "seq -> b, a; ring key"),
    ("ctx=2", "inside -> ctx; seq -> ctx when free"),
    (
        "around=2,ctx=2",
        "seq -> around; inside -> ctx; seq -> ctx when free; ring key; order seq zigzag around",
    ),
];

/// With dropout at true positions.
#[test]
fn gpt_on_long_sequences_as_gpus_launch_it() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &NEXT);
    let sizes = TEXT.map(|(name, size)| (name, if name == "seq" { 72 } else { size }));
    are_those_of_the_cpu("gpt", &[&sizes[..], &[("places", 72)]].concat(), &LONG, dir.path());
}

/// Queries that share keys.
#[test]
fn llama_on_long_sequences_as_gpus_launch_it() {
    let dir = tempfile::tempdir().unwrap();
    tokenized(dir.path(), &NEXT);
    let sizes = [("batch", 2), ("seq", 20), ("vocab", 320), ("layers", 1), ("d_head", 16), ("d_ff", 24)];
    let sizes = [&sizes[..], &[("groups", 2), ("queries", 2)]].concat();
    are_those_of_the_cpu("llama", &sizes, &LONG, dir.path());
}

/// The losses of threads, by kernels of attention in `bf16` and by plain operations in `f32`.
#[cfg(feature = "cuda")]
#[test]
fn long_sequences_on_gpus_train_compiled_for_the_host() {
    use crate::devices::gpu::dry_run::{libraries, losses, on_stand_in, report};
    use crate::devices::nccl::built;
    use crate::support::command;
    const TRAINED: &str = "train gpt --preset tiny --data king_james_next --no-eval --dim batch=2 --dim seq=20 --dim layers=1 \
                           --dim d_ff=16 --dim d_head=16 --dim heads=2 --peak-flops 1e12 --no-save --format json --steps 4";
    let libraries = libraries();
    for ((mesh, layout), (precision, within)) in
        LONG.into_iter().flat_map(|long| [("bf16", 2e-4), ("f32", 2e-6)].map(|precision| (long, precision)))
    {
        let args = TRAINED.split_whitespace();
        let args: Vec<&str> =
            args.chain(["--mesh", mesh, "--layout", layout, "--precision", precision]).collect();
        let native = losses(command(&[&args[..], &["--device", "cpu"]].concat()));
        let args = [&args[..], &["--device", "cuda"]].concat();
        let mut command = on_stand_in(libraries.path(), "dry_run_computed", &args);
        command.envs([("FAKE_CUDA_KERNELS", "run"), ("FAKE_CUDA_MEMORY", "1"), ("FAKE_NCCL_GPUS", "4")]);
        // Of several GPUs in a process nothing is recorded, and they write what they choose at once.
        command.env("MESHWRIGHT_GRAPHS", "none").env("MESHWRIGHT_CACHE", "");
        command.env("MESHWRIGHT_NCCL", built::library());
        let gpus = losses(command);
        let apart = native.iter().zip(&gpus).map(|(a, b)| (a - b).abs() / a.abs()).fold(0.0, f64::max);
        report(&format!("{layout} in {precision}: losses differ by {apart:.1e}"));
        assert!(apart <= within && native.len() == gpus.len(), "{layout}: {native:?} {gpus:?}");
    }
}
