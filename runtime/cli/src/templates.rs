//! The projects that `new` writes: models with layouts, notebooks, checks for CI, and small data sets, made here, on which they
//! train as they are.

/// A model to begin with.
pub(crate) struct Template {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// What it is, in a few words.
    pub(crate) about: &'static str,
    /// The model file; `NAME` stands for the model's name.
    pub(crate) model: &'static str,
    /// The layout file.
    pub(crate) layout: &'static str,
    /// The inputs of some examples.
    data: fn(&mut Noise, usize) -> Vec<Array>,
}

/// All of them.
pub(crate) const TEMPLATES: [Template; 7] = [
    Template {
        name: "mlp",
        about: "a classifier of points",
        model: include_str!("../templates/mlp.mw"),
        layout: DATA_AND_WIDE,
        data: rings,
    },
    Template {
        name: "cnn",
        about: "a classifier of images by a convolution",
        model: include_str!("../templates/cnn.mw"),
        layout: DATA,
        data: images,
    },
    Template {
        name: "vit",
        about: "a classifier of images by a transformer",
        model: include_str!("../templates/vit.mw"),
        layout: TRANSFORMER,
        data: images,
    },
    Template {
        name: "lm",
        about: "a language model of characters",
        model: include_str!("../templates/lm.mw"),
        layout: TRANSFORMER,
        data: sentences,
    },
    Template {
        name: "bert",
        about: "a masked language model of characters",
        model: include_str!("../templates/bert.mw"),
        layout: TRANSFORMER,
        data: twice,
    },
    Template {
        name: "autoencoder",
        about: "an autoencoder of images",
        model: include_str!("../templates/autoencoder.mw"),
        layout: DATA_AND_WIDE,
        data: unlabeled,
    },
    Template {
        name: "diffusion",
        about: "a diffusion model of images",
        model: include_str!("../templates/diffusion.mw"),
        layout: DATA,
        data: unlabeled,
    },
];

const DATA: &str = "\
// Data parallel: each device has its share of the batch.
mesh data = 2
batch -> data
";

const DATA_AND_WIDE: &str = "\
// The batch over one axis, the first hidden layer over the other.
mesh data = 2, model = 2
batch -> data
hidden -> model
";

const TRANSFORMER: &str = "\
// The batch over one axis; heads and the wide layers over the other.
mesh data = 2, model = 2
batch -> data
heads, d_ff -> model
";

/// Examples of the training set and of the test set.
const EXAMPLES: [(&str, usize); 2] = [("train", 600), ("test", 100)];

impl Template {
    /// The files of a project, from its folder: path and content.
    pub(crate) fn files(&self, name: &str) -> Vec<(String, Vec<u8>)> {
        let named = |text: &str| text.replace("NAME", name).into_bytes();
        let texts = [
            (format!("{name}.mw"), self.model),
            (format!("{name}.layout"), self.layout),
            (format!("{name}.ipynb"), include_str!("../templates/notebook.ipynb")),
            (".github/workflows/check.yml".into(), include_str!("../templates/check.yml")),
        ];
        let texts = texts.map(|(file, text)| (file, named(text)));
        texts.into_iter().chain(self.data_files()).collect()
    }

    fn data_files(&self) -> Vec<(String, Vec<u8>)> {
        let mut random = Noise(0x2545_f491_4f6c_dd1d);
        let mut manifest = String::new();
        let mut out = Vec::new();
        for (split, n) in EXAMPLES {
            manifest += &format!("[{split}]\n");
            for array in (self.data)(&mut random, n) {
                let file = format!("{split}-{}.idx", array.name);
                manifest += &format!("{} = \"{file}\"\n", array.name);
                out.push((format!("data/{file}"), array.idx(n)));
            }
        }
        out.push(("data/data.toml".into(), manifest.into_bytes()));
        out
    }
}

/// An input of all examples.
struct Array {
    name: &'static str,
    /// Sizes beside that which counts examples.
    shape: &'static [usize],
    values: Elements,
}

enum Elements {
    F32(Vec<f32>),
    I32(Vec<i32>),
    U8(Vec<u8>),
}

impl Array {
    /// As an IDX file: an element type, the number of dims, their sizes and the elements, all big-endian.
    fn idx(&self, examples: usize) -> Vec<u8> {
        let (code, bytes): (u8, Vec<u8>) = match &self.values {
            Elements::F32(v) => (0x0d, v.iter().flat_map(|x| x.to_be_bytes()).collect()),
            Elements::I32(v) => (0x0c, v.iter().flat_map(|x| x.to_be_bytes()).collect()),
            Elements::U8(v) => (0x08, v.clone()),
        };
        let shape = [&[examples], self.shape].concat();
        let mut out = vec![0, 0, code, shape.len() as u8];
        out.extend(shape.iter().flat_map(|n| (*n as u32).to_be_bytes()));
        out.extend(bytes);
        out
    }
}

/// Numbers that look random, the same ones each time (Marsaglia's xorshift).
struct Noise(u64);

impl Noise {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % n as u64) as usize
    }

    /// In 0..1.
    fn unit(&mut self) -> f32 {
        self.below(1 << 20) as f32 / (1 << 20) as f32
    }
}

/// Points of three rings around the origin.
fn rings(random: &mut Noise, n: usize) -> Vec<Array> {
    let (mut points, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..n {
        let ring = random.below(3);
        let (radius, angle) =
            (ring as f32 + 0.5 + 0.6 * (random.unit() - 0.5), random.unit() * std::f32::consts::TAU);
        points.extend([radius * angle.cos(), radius * angle.sin()]);
        labels.push(ring as i32);
    }
    vec![
        Array { name: "point", shape: &[2], values: Elements::F32(points) },
        Array { name: "label", shape: &[], values: Elements::I32(labels) },
    ]
}

const ROWS: usize = 12;
const COLS: usize = 12;

/// Stripes that lie, stand or are slanted, with noise.
fn images(random: &mut Noise, n: usize) -> Vec<Array> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..n {
        let (kind, phase) = (random.below(3), random.below(4));
        for at in 0..ROWS * COLS {
            let along = [at / COLS, at % COLS, at / COLS + at % COLS][kind];
            let bright = (along + phase) % 4 < 2;
            pixels.push((random.below(90) + if bright { 160 } else { 0 }) as u8);
        }
        labels.push(kind as i32);
    }
    vec![
        Array { name: "image", shape: &[ROWS, COLS], values: Elements::U8(pixels) },
        Array { name: "label", shape: &[], values: Elements::I32(labels) },
    ]
}

fn unlabeled(random: &mut Noise, n: usize) -> Vec<Array> {
    images(random, n).into_iter().filter(|a| a.name == "image").collect()
}

/// Characters of a window, as the template has `seq`.
const WINDOW: usize = 32;

/// Sentences of few words, from somewhere, as numbers of characters. 0 is a blank, 27 the end of a sentence.
fn sentence(random: &mut Noise) -> Vec<i32> {
    const WORDS: [[&str; 4]; 3] = [
        ["the mesh", "a layout", "one device", "every axis"],
        ["splits", "gathers", "holds", "shares"],
        ["the batch", "all weights", "a shard", "its heads"],
    ];
    let mut text: Vec<i32> = Vec::new();
    while text.len() < 2 * WINDOW {
        let words: Vec<&str> = WORDS.iter().map(|w| w[random.below(4)]).collect();
        let code = |c: char| if c == ' ' { 0 } else { c as i32 - 'a' as i32 + 1 };
        text.extend(words.join(" ").chars().map(code));
        text.extend([27, 0]);
    }
    text.split_off(random.below(WINDOW))
}

/// Windows over sentences: a character and the one after it.
fn sentences(random: &mut Noise, n: usize) -> Vec<Array> {
    let (mut tokens, mut next) = (Vec::new(), Vec::new());
    for _ in 0..n {
        let text = sentence(random);
        tokens.extend(&text[..WINDOW]);
        next.extend(&text[1..=WINDOW]);
    }
    vec![
        Array { name: "token", shape: &[WINDOW], values: Elements::I32(tokens) },
        Array { name: "next", shape: &[WINDOW], values: Elements::I32(next) },
    ]
}

/// Halves of windows over sentences, each of them twice.
fn twice(random: &mut Noise, n: usize) -> Vec<Array> {
    let halves = (0..n).flat_map(|_| {
        let mut half = sentence(random);
        half.truncate(WINDOW / 2);
        half.repeat(2)
    });
    vec![Array { name: "token", shape: &[WINDOW], values: Elements::I32(halves.collect()) }]
}
