//! The models, layouts, maps and standard layers that ship, embedded in the binary: settings of runs name them.

/// A shipped file: its name, what messages call it, and its text.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// The name users give.
    pub name: &'static str,
    /// Its path in the repository.
    pub path: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! shipped {
    ($folder:literal, $extension:literal: $($name:literal)*) => {
        &[$(Shipped {
            name: $name,
            path: concat!($folder, "/", $name, ".", $extension),
            text: include_str!(concat!("../../../", $folder, "/", $name, ".", $extension)),
        }),*]
    };
}

/// Every shipped model.
pub const MODELS: &[Shipped] = shipped!("models", "mw": "mlp" "mnist_mlp" "mnist_conv" "unet" "bert" "bert_classify" "bert_tag" "gpt" "llama" "switch" "t5" "vit");

/// Every shipped layout.
pub const LAYOUTS: &[Shipped] = shipped!("layouts", "layout": "dp" "tp" "dp_tp" "megatron_sp" "zero1" "zero2" "zero3" "hybrid" "context" "ring" "ring_zigzag" "ulysses" "experts" "folded" "spatial" "unet_tiles" "pipeline" "3d");

/// Every shipped map between a model and that of Hugging Face: what `import hf` and `export hf` go by.
pub const MAPS: &[Shipped] = shipped!("models/hf", "toml": "bert" "bert_classify" "bert_tag" "gpt" "llama" "mistral" "qwen2" "qwen3" "gemma" "roberta" "roberta_classify" "roberta_tag" "t5");

/// The standard library; `nn` is `std:nn`.
pub const LIBRARY: &[Shipped] = shipped!("models/std", "mw": "nn");

/// What the path of a file of the standard library begins with.
pub const STANDARD: &str = "std:";

/// The shipped file that a name means, unless the name has an extension and a file of the user's own is called so.
pub fn meant(list: &'static [Shipped], name: &str) -> Option<&'static Shipped> {
    find(list, name).filter(|s| s.name == name || !std::path::Path::new(name).is_file())
}

/// Other words for layouts that ship: model parallel is what tensor parallel was called first.
const SYNONYMS: [(&str, &str); 2] = [("mp", "tp"), ("dp_mp", "dp_tp")];

/// The shipped file of that name, with or without its extension.
pub fn find(list: &'static [Shipped], name: &str) -> Option<&'static Shipped> {
    let name = SYNONYMS.iter().find(|s| s.0 == name).map_or(name, |s| s.1);
    list.iter().find(|s| s.name == name || s.path.rsplit('/').next() == Some(name))
}
