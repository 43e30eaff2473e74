//! What the runs share: small data sets, projects, the command.

use crate::training::datasets::npy;
use meshwright_files::RawTensor;
use meshwright_runs::checkpoint::Which;
use meshwright_runs::metrics::Event;
use meshwright_sorted::SortedMap;
use meshwright_train::{
    Devices, Failure, Progress, Project, ProjectOptions, TrainOptions, read_checkpoint, train,
};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Sizes of a data set of images with labels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) examples: usize,
    pub(crate) test: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// Small images: trainings on them take milliseconds.
pub(crate) const SMALL: Sizes = Sizes { examples: 300, test: 50, rows: 5, cols: 4 };

/// Dims that go with [`SMALL`]; none is a multiple of another.
pub(crate) const SMALL_DIMS: &[(&str, usize)] = &[("batch", 12), ("rows", 5), ("cols", 4)];

/// Numbers that look random, the same ones each time.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

/// An IDX file of bytes.
pub(crate) fn idx(shape: &[usize], data: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0, 8, shape.len() as u8];
    for n in shape {
        out.extend((*n as u32).to_be_bytes());
    }
    out.extend(data);
    out
}

/// Writes a data set of ten classes, each a pattern with noise, with a `data.toml`.
pub(crate) fn write_data(folder: &Path, s: Sizes) {
    std::fs::create_dir_all(folder).unwrap();
    let mut numbers = Numbers(7);
    for (split, n) in [("train", s.examples), ("test", s.test)] {
        let mut images = Vec::new();
        let mut labels = Vec::new();
        for _ in 0..n {
            let label = numbers.below(10);
            labels.push(label as u8);
            for pixel in 0..s.rows * s.cols {
                let bright = (pixel * 7 + label * 3) % 10 < 4;
                images.push((numbers.below(120) + if bright { 130 } else { 0 }) as u8);
            }
        }
        std::fs::write(folder.join(format!("{split}-image")), idx(&[n, s.rows, s.cols], &images)).unwrap();
        std::fs::write(folder.join(format!("{split}-label")), idx(&[n], &labels)).unwrap();
    }
    let manifest =
        ["train", "test"].map(|s| format!("[{s}]\nimage = \"{s}-image\"\nlabel = \"{s}-label\"\n"));
    std::fs::write(folder.join("data.toml"), manifest.concat()).unwrap();
}

/// Writes a data set of tagged tokens, which do not ship: so many examples of so many tokens of a vocabulary, in nine classes.
pub(crate) fn write_tags(folder: &Path, [examples, seq, vocab]: [usize; 3]) {
    std::fs::create_dir_all(folder).unwrap();
    let all = examples * seq;
    let mut list = String::from("[train]\n");
    let counted: Vec<u8> = (0..all).flat_map(|i| f32::from(u8::from(i % 5 > 0)).to_le_bytes()).collect();
    std::fs::write(folder.join("counted.npy"), npy("<f4", &format!("({examples}, {seq})"), &counted))
        .unwrap();
    list += "counted = \"counted.npy\"\n";
    let mut numbers = Numbers(5);
    for (name, classes) in [("token", vocab.min(256)), ("segment", 2), ("real", 2), ("label", 9)] {
        let values: Vec<u8> = (0..all).map(|_| numbers.below(classes) as u8).collect();
        std::fs::write(folder.join(name), idx(&[examples, seq], &values)).unwrap();
        list += &format!("{name} = \"{name}\"\n");
    }
    std::fs::write(folder.join("data.toml"), list).unwrap();
}

/// A folder that is gone at the end, with the data set in `data`.
pub(crate) fn folder(sizes: Sizes) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_data(&dir.path().join("data"), sizes);
    dir
}

pub(crate) fn options(model: &str, mesh: &str, layout: &str, dims: &[(&str, usize)]) -> ProjectOptions {
    ProjectOptions {
        model: model.into(),
        layout: (!layout.is_empty()).then(|| layout.into()),
        mesh: (!mesh.is_empty()).then(|| mesh.into()),
        dims: dims.iter().map(|(n, s)| (n.to_string(), *s)).collect(),
        ..ProjectOptions::default()
    }
}

/// A training that is done: the loss of each step, and all parameters and moments at the end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f64>,
    /// The norm of the gradients of the first step, where it was asked for or gradients are clipped.
    pub(crate) gradient_norm: Option<f64>,
    pub(crate) tensors: SortedMap<String, RawTensor>,
}

impl Trained {
    pub(crate) fn values(&self, name: &str) -> Vec<f64> {
        self.tensors[name].to_f64().unwrap()
    }
}

/// Trains for some steps on the data below `folder`, with the run's folder beside it.
pub(crate) fn trained(options: &ProjectOptions, folder: &Path, run: &str, steps: u64) -> Trained {
    trained_on(&Devices::default(), options, folder, run, steps)
}

/// The same on some devices.
pub(crate) fn trained_on(
    devices: &Devices,
    options: &ProjectOptions,
    folder: &Path,
    run: &str,
    steps: u64,
) -> Trained {
    attempted(devices, options, folder, run, steps).unwrap_or_else(|e| panic!("{options:?}: {e}"))
}

/// The same, or the codes and messages of what is wrong with the options.
pub(crate) fn attempted(
    devices: &Devices,
    options: &ProjectOptions,
    folder: &Path,
    run: &str,
    steps: u64,
) -> Result<Trained, String> {
    let loaded = Project::load(options);
    let Some(project) = loaded.project else {
        return Err(told(&Failure::Diagnostics(loaded.diagnostics)));
    };
    let run = folder.join(run);
    let o = TrainOptions {
        data: Some(folder.join("data").display().to_string()),
        steps: Some(steps),
        seed: Some(3),
        run: Some(run.clone()),
        devices: devices.clone(),
        ..TrainOptions::default()
    };
    let (mut losses, mut gradient_norm) = (Vec::new(), None);
    let result = train(&project, &loaded.sources, &o, &AtomicBool::new(false), &mut |p| {
        if let Progress::Event { event: Event::Step(s), .. } = p {
            if losses.is_empty() {
                gradient_norm = s.gradient_norm;
            }
            losses.push(s.loss);
        }
    });
    assert_eq!(result.map_err(|e| told(&e))?.steps, steps);
    Ok(Trained { losses, gradient_norm, tensors: tensors(&run) })
}

/// Everything in the newest checkpoint of a run.
pub(crate) fn tensors(run: &Path) -> SortedMap<String, RawTensor> {
    let found = read_checkpoint(run, Which::Newest).unwrap_or_else(|e| panic!("{}", told(&e)));
    found.checkpoint.whole().unwrap()
}

pub(crate) fn told(e: &Failure) -> String {
    match e {
        Failure::Diagnostics(d) => d.iter().map(|d| format!("{}: {}\n", d.code.id, d.message)).collect(),
        Failure::Exec(e) => e.to_string(),
        Failure::Elsewhere => String::new(),
    }
}

/// The greatest difference relative to the greatest magnitude.
pub(crate) fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let most = a.iter().fold(0f64, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0f64, |m, (x, y)| m.max((x - y).abs())) / most.max(f64::MIN_POSITIVE)
}

/// The command, built from this tree.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_meshwright-under-test"));
    c.args(args).current_dir(root()).env_remove("MESHWRIGHT_DATA").env("NO_COLOR", "1");
    c
}

/// The shapes that ship, as the data below `folder`.
pub(crate) fn shapes(folder: &Path) {
    let (from, to) = (root().join("models/data/shapes"), folder.join("data"));
    std::fs::create_dir(&to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// The repository's folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// What a command said and how it ended.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn said(output: Output) -> Said {
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs the command to its end.
pub(crate) fn run(args: &[&str]) -> Said {
    said(command(args).output().unwrap())
}

/// What a process took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessUse {
    /// Its largest resident memory.
    pub(crate) peak_kib: u64,
    /// Processor time of all its threads, to the hundredth of a second in which Linux counts it.
    pub(crate) cpu: Duration,
}

/// Longest that a command may run: far more than any takes on a busy machine, so that only one that hangs is ended.
const LONGEST: Duration = Duration::from_secs(1200);

/// Runs a command to its end, and watches what it takes. Processor time, unlike the clock, is its own, whatever runs beside it.
pub(crate) fn measured(command: &mut Command) -> (ProcessUse, Said) {
    measured_within(command, LONGEST)
}

/// The same of a command that may run for so long: one that does not end by then is killed, and fails the test.
fn measured_within(command: &mut Command, longest: Duration) -> (ProcessUse, Said) {
    let begin = Instant::now();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let at = PathBuf::from(format!("/proc/{}", child.id()));
    let read = |mut pipe: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            pipe.read_to_end(&mut all).map(|_| all)
        })
    };
    let out = read(Box::new(child.stdout.take().unwrap()));
    let err = read(Box::new(child.stderr.take().unwrap()));
    // A process that has ended, and for which nobody has waited yet, has lost its memory and still has its times.
    let (mut peak_kib, mut ticks) = (0, 0);
    loop {
        let status = std::fs::read_to_string(at.join("status")).unwrap();
        let peak =
            status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
        peak_kib = peak.unwrap_or(peak_kib);
        let stat = std::fs::read_to_string(at.join("stat")).unwrap();
        // Behind the name, which may hold anything: the state, and as the 12th and 13th field the ticks.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        ticks = fields[11..13].iter().fold(0, |sum: u64, n| sum + n.parse::<u64>().unwrap()).max(ticks);
        if fields[0] == "Z" {
            break;
        }
        if begin.elapsed() > longest {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{command:?} did not end within {longest:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let status = child.wait().unwrap();
    let [stdout, stderr] = [out, err].map(|pipe| pipe.join().unwrap().unwrap());
    let used = ProcessUse { peak_kib, cpu: Duration::from_millis(ticks * 10) };
    (used, said(Output { status, stdout, stderr }))
}

#[test]
#[should_panic(expected = "did not end within 100ms")]
fn a_command_that_hangs_fails_its_test() {
    measured_within(Command::new("sleep").arg("600"), Duration::from_millis(100));
}
