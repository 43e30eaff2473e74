//! A model with its layout, as every command on a model takes them.

use crate::complete;
use crate::value_parsers;
use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use meshwright_plan::Arithmetic;
use meshwright_train::ProjectOptions;

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    F32,
    F64,
    /// Matmuls, activations and their communication in bf16; parameters, sums, softmax and losses in f32.
    Bf16,
    /// The same in f16, with dynamic loss scaling: for GPUs without bf16.
    F16,
    /// All values in f32, factors of matmuls and convolutions rounded to TF32, which GPUs multiply several times as fast.
    Tf32,
    /// As bf16, with the factors of matmuls of layers scaled and rounded to 8 bits: E4M3, gradients E5M2. GPUs from compute
    /// capability 8.9 on multiply these, other devices multiply the same numbers in bf16.
    Fp8,
}

impl Precision {
    pub(crate) fn arithmetic(self) -> Arithmetic {
        match self {
            Precision::F32 => Arithmetic::F32,
            Precision::F64 => Arithmetic::F64,
            Precision::Bf16 => Arithmetic::BF16,
            Precision::F16 => Arithmetic::F16,
            Precision::Tf32 => Arithmetic::TF32,
            Precision::Fp8 => Arithmetic::FP8,
        }
    }
}

/// The layouts of a command.
pub(crate) trait LayoutArgs: Args + std::fmt::Debug {
    /// All that were given.
    fn all(&self) -> &[String];
}

#[derive(Args, Debug)]
pub(crate) struct OneLayout {
    /// The layout: a file, the name of a layout that ships, or rules such as 'batch -> r; hidden -> c' (also 'batch:r;hidden:c').
    #[arg(long, value_name = "FILE|NAME|RULES", add = ArgValueCompleter::new(complete::layouts))]
    layout: Option<String>,
}

impl LayoutArgs for OneLayout {
    fn all(&self) -> &[String] {
        self.layout.as_slice()
    }
}

#[derive(Args, Debug)]
pub(crate) struct Layouts {
    /// The layout: a file, the name of a layout that ships, or rules such as 'batch -> r; hidden -> c' (also 'batch:r;hidden:c').
    /// May be repeated: the model is read once, and each layout is answered for.
    #[arg(long, value_name = "FILE|NAME|RULES", add = ArgValueCompleter::new(complete::layouts))]
    layout: Vec<String>,
}

impl LayoutArgs for Layouts {
    fn all(&self) -> &[String] {
        &self.layout
    }
}

#[derive(Args, Debug)]
pub(crate) struct PageLayouts {
    /// The layout: a file, the name of a layout that ships, or rules such as 'batch -> r; hidden -> c' (also 'batch:r;hidden:c').
    /// May be repeated with --html: the page switches between the layouts and marks what differs.
    #[arg(long, value_name = "FILE|NAME|RULES", add = ArgValueCompleter::new(complete::layouts))]
    layout: Vec<String>,
}

impl LayoutArgs for PageLayouts {
    fn all(&self) -> &[String] {
        &self.layout
    }
}

/// What a model is made with, beside its dims.
#[derive(Args, Debug)]
#[command(next_help_heading = "Model and layout")]
pub(crate) struct SettingArgs {
    /// Override a `const` of the model; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = value_parsers::set, allow_hyphen_values = true, add = ArgValueCompleter::new(complete::consts))]
    pub(crate) sets: Vec<(String, f64)>,
    /// Use the values of the block `size NAME { … }` of the model; what follows the last `_` of one of its names is enough: `8b`
    /// for `llama3_8b`.
    #[arg(long, value_name = "NAME")]
    pub(crate) preset: Option<String>,
    /// Arithmetic type, which overrides that of the model.
    #[arg(long, value_enum)]
    pub(crate) precision: Option<Precision>,
    /// Do not overlap collectives with computation: wait for each where it starts.
    #[arg(long)]
    pub(crate) no_overlap: bool,
    /// Also list what a layout that ships says of dims and paths that the model does not have.
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

impl SettingArgs {
    /// What to load.
    pub(crate) fn options(&self) -> ProjectOptions {
        ProjectOptions {
            sets: self.sets.clone(),
            preset: self.preset.clone(),
            precision: self.precision.map(Precision::arithmetic),
            no_overlap: self.no_overlap,
            verbose: self.verbose,
            ..ProjectOptions::default()
        }
    }
}

/// What a device has.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MemoryArgs {
    /// Memory of a device, such as 80GiB: what needs more is found, with lines of the layout that would make it fit.
    #[arg(long = "memory", value_name = "SIZE", value_parser = value_parsers::size)]
    bytes: Option<usize>,
}

impl MemoryArgs {
    /// The memory of a device in bytes, where it was given.
    pub(crate) fn bytes(self) -> Option<u64> {
        self.bytes.map(|n| n as u64)
    }
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Model and layout")]
pub(crate) struct ModelArgs<L: LayoutArgs = OneLayout> {
    #[command(flatten)]
    layouts: L,
    /// The mesh, which overrides that of the layout: r=2,c=2 (also 'r:2;c:2'), or sizes alone, 2x2, for the axes of the layout in
    /// order. Without a mesh, one device.
    #[arg(long, value_name = "AXES")]
    pub(crate) mesh: Option<String>,
    /// Override the size of a dim; may be repeated.
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = value_parsers::dim, add = ArgValueCompleter::new(complete::dims))]
    pub(crate) dims: Vec<(String, usize)>,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
    /// Fail unless the mesh has exactly N devices.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) expect_devices: Option<u32>,
}

impl<L: LayoutArgs> ModelArgs<L> {
    /// All layouts that were given.
    pub(crate) fn layouts(&self) -> &[String] {
        self.layouts.all()
    }

    /// What to load, for a model.
    pub(crate) fn options(&self, model: &str) -> ProjectOptions {
        ProjectOptions {
            model: model.into(),
            layout: self.layouts.all().first().cloned(),
            mesh: self.mesh.clone(),
            dims: self.dims.clone(),
            expect_devices: self.expect_devices.map(|n| n as usize),
            ..self.settings.options()
        }
    }
}

/// A model with its layout.
#[derive(Args, Debug)]
pub(crate) struct ProjectArgs<L: LayoutArgs = OneLayout> {
    /// The model: a file, or the name of a model that ships (see `meshwright models`).
    #[arg(add = ArgValueCompleter::new(complete::models))]
    pub(crate) model: String,
    #[command(flatten)]
    rest: ModelArgs<L>,
}

impl<L: LayoutArgs> ProjectArgs<L> {
    /// All layouts that were given.
    pub(crate) fn layouts(&self) -> &[String] {
        self.rest.layouts.all()
    }

    /// What to load.
    pub(crate) fn options(&self) -> ProjectOptions {
        self.rest.options(&self.model)
    }

    /// The model as it was named.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The words that give the same options on another command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let ModelArgs { layouts, mesh, dims, settings, expect_devices } = &self.rest;
        let SettingArgs { sets, preset, precision, no_overlap, verbose } = settings;
        let mut words = vec![self.model.clone()];
        let mut push = |option: &str, value: String| words.extend([format!("--{option}"), value]);
        layouts.all().iter().for_each(|l| push("layout", l.clone()));
        let texts = [("mesh", mesh), ("preset", preset)];
        for (option, value) in texts {
            value.iter().for_each(|v| push(option, v.clone()));
        }
        dims.iter().for_each(|(name, size)| push("dim", format!("{name}={size}")));
        sets.iter().for_each(|(name, value)| push("set", format!("{name}={value}")));
        if let Some(value) = precision.and_then(|p| p.to_possible_value()) {
            push("precision", value.get_name().into());
        }
        expect_devices.iter().for_each(|n| push("expect-devices", n.to_string()));
        if *no_overlap {
            words.push("--no-overlap".into());
        }
        if *verbose {
            words.push("--verbose".into());
        }
        words
    }
}

/// A model with its layout, of which a run may say what the command does not.
#[derive(Args, Debug)]
pub(crate) struct OwnArgs {
    /// The model: a file, or the name of a model that ships (see `meshwright models`). Not needed with --resume.
    #[arg(required_unless_present = "resume", add = ArgValueCompleter::new(complete::models))]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    rest: ModelArgs,
}

impl OwnArgs {
    /// What to load; without a model where none is named.
    pub(crate) fn options(&self) -> ProjectOptions {
        self.rest.options(self.model.as_deref().unwrap_or_default())
    }
}
