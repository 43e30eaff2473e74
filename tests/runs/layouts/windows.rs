//! Windows over split dims change no result: trainings of convolutional networks on many meshes beside one on a single
//! device. Shards are uneven, thinner than the halo, or empty; some kernels are larger than the image.

use crate::support::{Sizes, Trained, apart, folder, options, shapes, trained};
use meshwright_plan::Arithmetic;
use meshwright_train::ProjectOptions;
use std::path::Path;

/// Convolution, pools, a transposed convolution and a skip over one image, strided and dilated.
const HOURGLASS: &str = "
dim batch = 12, rows = 14, cols = 9, gray = 1, f = 3, g = 2, classes = 10
dim kh = 3, kw = 4, r2 = 7, c2 = 5, ph = 2, pw = 3, r3 = 4, c3 = 3

model hourglass {
    input image[batch, rows, cols, gray]: u8
    input label[batch]: i32 in classes
    param w1[kh, kw, gray, f] = normal(0, 0.4)
    param w2[kh, kw, f, g]    = normal(0, 0.4)
    param w3[kh, kw, f, g]    = normal(0, 0.4)
    param w4[kh, kw, f]       = normal(0, 0.4)
    param w5[r3, c3, f, classes] = normal(0, 0.3)
    let x    = cast(image, float) / 255 - 0.5
    let f1   = tanh(conv[rows by kh, cols by kw; gray](x, w1, padding = same))
    let top  = max_pool[rows -> r2 by ph, cols -> c2 by pw](f1, stride = 2, padding = same)
    let f2   = tanh(conv[r2 by kh, c2 by kw; f](top, w2, padding = same, dilation = 2))
    let up   = conv_transpose[r2 -> rows by kh, c2 -> cols by kw; g](f2, w3, padding = same, stride = 2)
    let both = up + conv[rows by kh, cols by kw](f1, w4, padding = same)
    let low  = mean_pool[rows -> r3 by r2, cols -> c3 by kh](both, padding = same, stride = 4)
    let y    = sum[r3, c3, f](low * w5)
    loss xent = mean[batch](cross_entropy[classes](y, label))
}

train hourglass {
    minimize xent
    optimizer sgd(lr = 0.2, momentum = 0.9)
}
";

/// Mesh and layout.
const HOURGLASSES: &[(&str, &str, &str)] = &[
    ("batch", "all=4", "batch -> all"),
    ("rows", "a=2", "rows -> a"),
    ("rows-three", "a=3", "rows -> a"),
    ("cols-four", "a=4", "cols -> a"),
    ("thin", "a=7", "rows -> a"),
    ("both", "b1=2,b2=2", "rows -> b1; cols -> b2"),
    ("swapped", "b1=3,b2=2", "cols -> b1; rows -> b2"),
    ("folded", "b1=2,b2=3", "rows -> b1, b2"),
    ("pooled-too", "a=3", "rows, r2, r3 -> a"),
    ("pooled-other", "a=2,b=2", "rows -> a; r2 -> b; gather rows; gather r2"),
    ("channels", "a=3", "f -> a"),
    ("out-channels", "a=2", "g -> a"),
    ("batch-and-rows", "a=2,b=2", "batch -> a; rows -> b"),
    ("rows-and-channels", "a=2,b=2", "rows -> a; f -> b"),
    ("zero3", "data=3", "zero3"),
];

const MNIST_CONV: &[(&str, &str, &str)] = &[
    ("batch", "all=4", "batch -> all"),
    ("spatial", "y=2,x=2", "spatial"),
    ("spatial-three", "b2=3", "cols -> b2"),
    ("thin", "a=5", "rows -> a"),
    ("empty", "a=7", "rows -> a"),
    ("filters2", "a=2", "filters2 -> a"),
    ("filters1", "a=3", "filters1 -> a"),
    ("batch-and-spatial", "a=2,b=2", "batch -> a; rows -> b"),
    ("spatial-and-hidden", "b1=2,c=2", "rows -> b1; hidden1 -> c"),
];

fn f64_options(model: &str, mesh: &str, layout: &str, dims: &[(&str, usize)]) -> ProjectOptions {
    ProjectOptions { precision: Some(Arithmetic::F64), ..options(model, mesh, layout, dims) }
}

fn agrees(one: &Trained, other: &Trained, name: &str) {
    assert_eq!(one.losses.len(), other.losses.len(), "{name}");
    for (step, (a, b)) in one.losses.iter().zip(&other.losses).enumerate() {
        assert!((a - b).abs() <= 1e-11 * a.abs(), "{name}: step {}: {a} and {b}", step + 1);
    }
    for path in one.tensors.keys() {
        let off = apart(&one.values(path), &other.values(path));
        assert!(off <= 1e-9, "{name}: {path} is {off:e} apart");
    }
}

fn all_agree(model: &str, steps: u64, dims: &[(&str, usize)], meshes: &[(&str, &str, &str)], at: &Path) {
    let one = trained(&f64_options(model, "", "", dims), at, "one", steps);
    let (first, last) = (one.losses[0], one.losses[one.losses.len() - 1]);
    assert!(last < 0.9 * first, "the loss does not go down: {first} to {last}");
    for (name, mesh, layout) in meshes {
        let other = trained(&f64_options(model, mesh, layout, dims), at, name, steps);
        agrees(&one, &other, name);
    }
}

#[test]
fn an_hourglass_trains_the_same_on_every_mesh() {
    let dir = folder(Sizes { examples: 120, test: 10, rows: 14, cols: 9 });
    let model = dir.path().join("hourglass.mw");
    std::fs::write(&model, HOURGLASS).unwrap();
    all_agree(&model.display().to_string(), 40, &[], HOURGLASSES, dir.path());
}

/// The shipped model at reduced sizes: images of 8 x 7 under kernels of 9 x 9.
#[test]
fn mnist_conv_trains_the_same_on_every_mesh() {
    let dir = folder(Sizes { examples: 120, test: 10, rows: 8, cols: 7 });
    let text = include_str!("../../../models/mnist_conv.mw").replace("adafactor(lr = 1e-2)", "sgd(lr = 0.2)");
    let model = dir.path().join("mnist_conv.mw");
    std::fs::write(&model, text).unwrap();
    let dims = [
        ("batch", 12),
        ("rows", 8),
        ("cols", 7),
        ("filters1", 5),
        ("filters2", 3),
        ("hidden1", 11),
        ("hidden2", 9),
    ];
    all_agree(&model.display().to_string(), 40, &dims, MNIST_CONV, dir.path());
}

/// As it stands, with Adafactor.
#[test]
fn shipped_mnist_conv_trains_the_same_on_every_mesh() {
    let dir = folder(Sizes { examples: 120, test: 10, rows: 8, cols: 7 });
    let dims = [("batch", 12), ("rows", 8), ("cols", 7), ("filters1", 5), ("filters2", 3), ("hidden1", 11)];
    all_agree("mnist_conv", 60, &dims, MNIST_CONV, dir.path());
}

const UNET: &[(&str, &str, &str)] = &[
    ("tiles", "", "unet_tiles"),
    ("batch", "all=3", "batch -> all"),
    ("uneven-tiles", "b1=3", "rows, mid_rows, low_rows -> b1"),
    ("batch-and-tiles", "a=2,b2=2", "batch -> a; cols, mid_cols, low_cols -> b2"),
    ("channels", "a=2", "low -> a"),
    ("thin", "b1=9", "rows, mid_rows, low_rows -> b1"),
];

/// The shipped model and images, with fewer channels.
#[test]
fn unet_trains_the_same_on_every_mesh() {
    let dir = tempfile::tempdir().unwrap();
    shapes(dir.path());
    let dims = [("batch", 5), ("wide", 2), ("wide_up", 3), ("wide_out", 2), ("mid", 3), ("low", 4)];
    all_agree("unet", 25, &dims, UNET, dir.path());
}

/// Inputs that are read with a halo, or by blocks with other edges, the dim of the examples among them.
const MOVED: &str = "
dim batch = 10, rows = 12, cols = 7, classes = 10, r2 = 10, four = 4, three = 3
model moved {
    input image[batch, rows, cols]: u8
    input label[batch]: i32 in classes
    param w[rows, cols, classes] = normal(0, 0.02)
    param v[r2, cols, classes]   = normal(0, 0.02)
    let a = cast(shift[batch, by = 1](image), float) / 255
    let b = cast(image[rows = 1..11 -> r2], float) / 255
    let c = cast(image, float)[rows -> four * three][four * three -> rows] / 255
    let y = sum[rows, cols]((a + c) * w) + sum[r2, cols](b * v)
    loss xent = mean[batch](cross_entropy[classes](y, label))
}
train moved { minimize xent optimizer sgd(lr = 0.02) }
";

#[test]
fn inputs_are_read_with_what_lies_beyond_their_blocks() {
    let dir = folder(Sizes { examples: 120, test: 10, rows: 12, cols: 7 });
    let model = dir.path().join("moved.mw");
    std::fs::write(&model, MOVED).unwrap();
    let meshes = [
        ("batch", "a=3", "batch -> a"),
        ("rows", "a=3", "rows, r2 -> a"),
        ("cut", "a=3", "four, rows -> a"),
        ("both", "a=2,b=2", "batch -> a; cols -> b"),
        ("empty", "a=13", "batch -> a"),
    ];
    all_agree(&model.display().to_string(), 30, &[], &meshes, dir.path());
}
