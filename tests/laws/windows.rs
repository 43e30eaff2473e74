//! Windows, which devices with compiled kernels never store: convolutions with both gradients, and pools with their transposes,
//! in sizes that take several tiles, chunks of what is summed, and vectors of every width.

use crate::devices::{Devices, to};
use crate::equations::Equations;
use crate::split::{Way, way};
use meshwright_ops::{ArgmaxPool, Convolve, Pool, Unpool};
use meshwright_plan::{DType, Dim, Monoid, Part, SlidingWindow};

/// How a kernel of `taps` slides, along two dims.
#[derive(Clone, Copy, Debug)]
struct Sliding {
    size: [usize; 2],
    taps: [usize; 2],
    stride: usize,
    dilation: usize,
    low: usize,
}

impl Sliding {
    fn windows(self, e: &mut Equations) -> [SlidingWindow; 2] {
        let Sliding { size, taps, stride, dilation, low } = self;
        [("h", "nh", "kh"), ("w", "nw", "kw")].map(|(wide, narrow, tap)| {
            let i = usize::from(wide == "w");
            let reach = (taps[i] - 1) * dilation + 1;
            let positions = (size[i] + 2 * low - reach) / stride + 1;
            let wide = e.g.dims.add(wide, size[i]);
            let narrow = e.g.dims.add(narrow, positions);
            SlidingWindow { wide, narrow, tap: e.g.dims.add(tap, taps[i]), stride, dilation, low }
        })
    }
}

/// Dims of channels, last or before those that slide.
fn image(channels_last: bool, outer: &[Dim], slid: [Dim; 2], channels: &[Dim]) -> Vec<Dim> {
    match channels_last {
        true => [outer, &slid, channels].concat(),
        false => [outer, channels, &slid].concat(),
    }
}

/// One device, and where `split` several that share images, their rows, or their channels.
fn ways(split: bool, by: &[Dim]) -> Vec<Way> {
    let mut all = vec![way(&[], vec![])];
    if split {
        all.extend(by.iter().map(|d| way(&[2], vec![to(*d, &[0])])));
    }
    all
}

/// A convolution of so many images, channels of the input and of the result, and groups, and both of its gradients.
fn convolutions(
    half: Option<DType>,
    [images, ins, outs, groups]: [usize; 4],
    sliding: Sliding,
    channels_last: bool,
    split: bool,
    devices: &mut Devices,
) -> usize {
    let mut e = Equations::new(half);
    let windows = sliding.windows(&mut e);
    let [b, c, o, g] =
        [("b", images), ("c", ins), ("o", outs), ("g", groups)].map(|(n, size)| e.g.dims.add(n, size));
    let group: &[Dim] = if groups > 1 { &[g] } else { &[] };
    let x_dims = image(channels_last, &[b], windows.map(|s| s.wide), &[group, &[c]].concat());
    let y_dims = image(channels_last, &[b], windows.map(|s| s.narrow), &[group, &[o]].concat());
    let taps = windows.map(|s| s.tap);
    let w_dims = match channels_last {
        true => [&taps, group, &[c, o]].concat(),
        false => [group, &[o, c], &taps].concat(),
    };
    let (x, w, d) = (e.input("x", &x_dims), e.input("w", &w_dims), e.input("d", &y_dims));
    let slides = windows.to_vec();
    let mut made = |gives, out: &[Dim], operands: [_; 2]| {
        e.g.op(Convolve { slides: slides.clone(), gives, out: out.to_vec() }, &operands)
    };
    let result = made(Part::Result, &y_dims, [x, w]);
    let kernel = made(Part::Kernel, &w_dims, [x, d]);
    let input = made(Part::Input, &x_dims, [w, d]);
    e.outputs.extend([("result", result), ("kernel", kernel), ("input", input)]);
    let name = format!("{images} images of {ins} to {outs} channels, {sliding:?}, {channels_last}, {half:?}");
    e.are_the_same(&name, &ways(split, &[b, windows[0].wide, c]), devices)
}

/// Pools of so many images and channels, and their transposes.
fn pools(
    half: Option<DType>,
    [images, channels]: [usize; 2],
    sliding: Sliding,
    channels_last: bool,
    split: bool,
    devices: &mut Devices,
) -> usize {
    let mut e = Equations::new(half);
    let windows = sliding.windows(&mut e);
    let [b, c] = [("b", images), ("c", channels)].map(|(n, size)| e.g.dims.add(n, size));
    let channel: &[Dim] = if channels > 1 { &[c] } else { &[] };
    let x_dims = image(channels_last, &[b], windows.map(|s| s.wide), channel);
    let y_dims = image(channels_last, &[b], windows.map(|s| s.narrow), channel);
    let (x, d) = (e.input("x", &x_dims), e.input("d", &y_dims));
    let slides = windows.to_vec();
    for (name, monoid) in [("sum", Monoid::Sum), ("max", Monoid::Max), ("min", Monoid::Min)] {
        let pool = e.g.op(Pool { monoid, slides: slides.clone(), spread: false }, &[x]);
        e.outputs.push((name, pool));
    }
    let spread = e.g.op(Pool { monoid: Monoid::Sum, slides: slides.clone(), spread: true }, &[d]);
    let tap = e.g.op(ArgmaxPool { monoid: Monoid::Max, slides: slides.clone() }, &[x]);
    let least = e.g.op(ArgmaxPool { monoid: Monoid::Min, slides: slides.clone() }, &[x]);
    let chosen = e.g.op(Unpool { slides }, &[tap, d]);
    e.outputs.extend([("spread", spread), ("tap", tap), ("least", least), ("chosen", chosen)]);
    let name =
        format!("pools of {images} images of {channels} channels, {sliding:?}, {channels_last}, {half:?}");
    e.are_the_same(&name, &ways(split, &[b, windows[0].wide]), devices)
}

fn are_the_same(mut devices: Devices, what: &str, split: bool) {
    let plain = Sliding { size: [9, 10], taps: [3, 3], stride: 1, dilation: 1, low: 1 };
    let mut cases = 0;
    for half in [None, Some(DType::BF16)] {
        for channels_last in [true, false] {
            for (sizes, sliding) in [
                // Whole tiles and parts of some, in vectors of eight; several of rows and of columns.
                ([3, 16, 24, 1], plain),
                ([2, 8, 72, 1], plain),
                // Vectors of two and of one.
                ([2, 6, 10, 1], plain),
                ([2, 1, 1, 1], Sliding { taps: [5, 4], low: 2, ..plain }),
                ([1, 3, 5, 1], Sliding { size: [11, 13], stride: 2, ..plain }),
                ([2, 2, 4, 1], Sliding { size: [13, 9], stride: 3, dilation: 2, low: 0, ..plain }),
                // Channels that are each convolved alone, and in groups; so few channels that tiles would be empty.
                ([2, 1, 1, 16], plain),
                ([1, 1, 1, 7], Sliding { stride: 2, ..plain }),
                ([1, 4, 8, 3], plain),
                ([2, 6, 3, 1], plain),
                // Sums so long that they are cut into chunks.
                ([12, 2, 6, 1], Sliding { size: [20, 18], ..plain }),
                ([12, 1, 1, 4], Sliding { size: [20, 18], ..plain }),
                // Whole tiles of so many rows that units share no steps, by 32 and 64 columns; and of so many that two do, by 16.
                ([1, 3, 12, 1], Sliding { size: [16, 16], ..plain }),
                ([4, 4, 20, 1], Sliding { size: [16, 16], stride: 2, ..plain }),
                ([4, 2, 40, 1], Sliding { size: [16, 16], taps: [2, 3], ..plain }),
                // Rows between which there are gaps, and a kernel of one tap.
                ([1, 516, 6, 1], Sliding { size: [3, 4], ..plain }),
                ([2, 16, 24, 1], Sliding { taps: [1, 1], low: 0, ..plain }),
            ] {
                cases += convolutions(half, sizes, sliding, channels_last, split, &mut devices);
            }
            for (sizes, sliding) in [
                ([2, 8], Sliding { size: [8, 6], taps: [2, 2], stride: 2, low: 0, ..plain }),
                ([2, 3], Sliding { size: [9, 7], stride: 2, ..plain }),
                ([3, 1], Sliding { size: [9, 7], taps: [3, 2], dilation: 2, ..plain }),
                ([1, 514], Sliding { size: [4, 4], taps: [2, 2], stride: 2, low: 0, ..plain }),
                ([1, 515], Sliding { size: [4, 4], taps: [2, 2], stride: 2, low: 0, ..plain }),
            ] {
                cases += pools(half, sizes, sliding, channels_last, split, &mut devices);
            }
        }
    }
    crate::report(&format!("{what}: {cases} cases"));
}

#[test]
fn windows_are_the_same_on_the_host() {
    are_the_same(Devices::default(), "windows, native", true);
    are_the_same(Devices::of(meshwright_burn::device()), "windows, plain operations", false);
}

#[test]
fn windows_are_the_same_as_a_gpu_launches_them() {
    are_the_same(Devices::of(meshwright_burn::reference()), "windows, launches of a GPU", true);
}

#[cfg(feature = "cuda")]
#[test]
fn windows_are_the_same_on_a_gpu() {
    if !crate::engines::gpu() {
        return;
    }
    let split = crate::engines::has_gpu(1).is_ok();
    let ((), launches) =
        crate::engines::counted(|| are_the_same(Devices::of(meshwright_cuda::gpu(0)), "windows, GPU", split));
    // Of each case on one device three convolutions or seven pools.
    for (kernel, least) in [
        ("ConvolveInRegisters", 40),
        ("ConvolveOnTensorCores", 40),
        ("ConvolveEach", 40),
        ("PoolWindows", 4 * 4 * 7),
    ] {
        assert!(launches(kernel) >= least, "{kernel}: {} of {least}", launches(kernel));
    }
}
