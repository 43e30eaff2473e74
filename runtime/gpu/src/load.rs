//! Opening the libraries of a GPU at run time, so that one program starts on every machine and names the missing
//! library.

use libloading::Library as Opened;
use meshwright_files::caches_of;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// An installed library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLibrary {
    /// Its version, as people write it.
    pub version: String,
    /// Its path, or the name that the system's loader knew.
    pub path: String,
}

/// A library of NVIDIA's that Meshwright opens where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LibraryKind {
    /// The driver's interface, installed together with the driver.
    Cuda,
    /// Matrix products.
    CublasLt,
    /// Collectives.
    Nccl,
    /// The management library, installed together with the driver.
    Nvml,
}

impl LibraryKind {
    /// Its common name.
    pub fn name(self) -> &'static str {
        match self {
            LibraryKind::Cuda => "the CUDA driver library",
            LibraryKind::CublasLt => "cuBLASLt",
            LibraryKind::Nccl => "NCCL",
            LibraryKind::Nvml => "NVML",
        }
    }

    /// The environment variable that says where it is, in place of the usual names.
    pub fn variable(self) -> &'static str {
        match self {
            LibraryKind::Cuda => "MESHWRIGHT_CUDA",
            LibraryKind::CublasLt => "MESHWRIGHT_CUBLASLT",
            LibraryKind::Nccl => "MESHWRIGHT_NCCL",
            LibraryKind::Nvml => "MESHWRIGHT_NVML",
        }
    }

    /// File names that the system's loader is asked for.
    fn names(self) -> &'static [&'static str] {
        match self {
            LibraryKind::Cuda => &["libcuda.so.1", "libcuda.so"],
            LibraryKind::CublasLt => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
            LibraryKind::Nccl => &["libnccl.so.2", "libnccl.so"],
            LibraryKind::Nvml => &["libnvidia-ml.so.1", "libnvidia-ml.so"],
        }
    }

    /// How to get it.
    pub fn remedy(self) -> &'static str {
        match self {
            LibraryKind::Cuda | LibraryKind::Nvml => {
                "install NVIDIA's driver on the host, and give containers its libraries (`docker run --gpus all`)"
            }
            LibraryKind::CublasLt => {
                "install the package libcublas of CUDA's toolkit, or `pip install nvidia-cublas` and set \
                 MESHWRIGHT_CUBLASLT to the libcublasLt.so.13 in its site-packages"
            }
            LibraryKind::Nccl => {
                "install the package libnccl2, or `pip install nvidia-nccl-cu13` and set MESHWRIGHT_NCCL to \
                 nvidia/nccl/lib/libnccl.so.2 in its site-packages"
            }
        }
    }
}

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It is not there, or cannot be opened.
    #[error("{} was not found: tried {}; {}", kind.name(), list(tried), kind.remedy())]
    NotFound {
        /// The library.
        kind: LibraryKind,
        /// Paths that were tried, each with the system's message.
        tried: Vec<(String, String)>,
    },
    /// The library lacks a function.
    #[error("{} at {path} has no `{symbol}`: {} or newer is needed", kind.name(), needed)]
    TooOld {
        /// The library.
        kind: LibraryKind,
        /// Its path.
        path: String,
        /// The missing function.
        symbol: String,
        /// The oldest version that will do.
        needed: &'static str,
    },
}

fn list(tried: &[(String, String)]) -> String {
    let one = |(path, why): &(String, String)| format!("{path} ({why})");
    tried.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Paths of libraries: none for the usual names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// The CUDA driver library.
    pub cuda: Option<PathBuf>,
    /// cuBLASLt.
    pub cublas_lt: Option<PathBuf>,
    /// NCCL.
    pub nccl: Option<PathBuf>,
    /// NVML.
    pub nvml: Option<PathBuf>,
    /// Whether the host launches each kernel of each step, without recording a step as a graph.
    pub launches_each: bool,
    /// The folder of measurements on GPUs; none to keep none.
    pub cache: Option<PathBuf>,
}

impl Paths {
    /// From the variable of each library, by `variable`, which reads the environment.
    pub fn from_env(variable: impl Fn(&str) -> Option<OsString>) -> Paths {
        let path = |kind: LibraryKind| variable(kind.variable()).filter(|v| !v.is_empty()).map(PathBuf::from);
        Paths {
            cuda: path(LibraryKind::Cuda),
            cublas_lt: path(LibraryKind::CublasLt),
            nccl: path(LibraryKind::Nccl),
            nvml: path(LibraryKind::Nvml),
            launches_each: variable("MESHWRIGHT_GRAPHS").is_some_and(|v| v == "none"),
            cache: caches_of(&variable),
        }
    }

    /// The same, without the cache where nothing can be written there, and a note of that for the user.
    pub fn with_writable_cache(&self) -> (Paths, Option<String>) {
        let Some(folder) = &self.cache else { return (self.clone(), None) };
        let tried = std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
        let Err(e) = tried else { return (self.clone(), None) };
        let note = format!(
            "what is measured and compiled for the device is not kept, so that each start does it again: {} cannot be written: {e} \
             (MESHWRIGHT_CACHE names another folder)",
            folder.display()
        );
        (Paths { cache: None, ..self.clone() }, Some(note))
    }

    /// The same library for everything.
    pub fn all(path: impl Into<PathBuf>) -> Paths {
        let path = Some(path.into());
        let (cuda, cublas_lt, nccl) = (path.clone(), path.clone(), path.clone());
        Paths { cuda, cublas_lt, nccl, nvml: path, ..Paths::default() }
    }

    fn of(&self, kind: LibraryKind) -> Option<&PathBuf> {
        match kind {
            LibraryKind::Cuda => self.cuda.as_ref(),
            LibraryKind::CublasLt => self.cublas_lt.as_ref(),
            LibraryKind::Nccl => self.nccl.as_ref(),
            LibraryKind::Nvml => self.nvml.as_ref(),
        }
    }
}

/// An open library.
#[derive(Clone)]
pub struct Library {
    kind: LibraryKind,
    path: String,
    opened: Arc<Opened>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.kind.name(), self.path)
    }
}

impl Library {
    /// Opens a library where `paths` says, or by its usual names. It stays open until the program ends: NVIDIA's
    /// libraries start threads, and cannot be unloaded safely.
    pub fn open(kind: LibraryKind, paths: &Paths) -> Result<Library, LoadError> {
        Library::open_first(kind, paths, Ok)
    }

    /// The result of `start` for the first library that it accepts, in the order of [`Library::open`]. Several versions
    /// may be installed, and the driver may not fit all.
    ///
    /// # Errors
    /// If none can be opened; otherwise the error of `start` for the first that can.
    pub fn open_first<T, E: From<LoadError>>(
        kind: LibraryKind,
        paths: &Paths,
        start: impl Fn(Library) -> Result<T, E>,
    ) -> Result<T, E> {
        let candidates: Vec<PathBuf> = match paths.of(kind) {
            Some(path) => vec![path.clone()],
            None => kind.names().iter().map(PathBuf::from).collect(),
        };
        let (mut tried, mut refused) = (Vec::new(), None);
        for candidate in candidates {
            let path = candidate.display().to_string();
            #[expect(unsafe_code, reason = "loading a library runs its initializers")]
            // SAFETY: it is the library that the user or the system names; that its initializers are sound is its promise.
            match unsafe { Opened::new(&candidate) } {
                Ok(opened) => {
                    let opened = Arc::new(opened);
                    std::mem::forget(opened.clone());
                    match start(Library { kind, path, opened }) {
                        Ok(made) => return Ok(made),
                        Err(e) => refused = refused.or(Some(e)),
                    }
                }
                Err(e) => {
                    let why = e.to_string();
                    let why = why.strip_prefix(&format!("{path}: ")).unwrap_or(&why).to_owned();
                    tried.push((path, why));
                }
            }
        }
        Err(refused.unwrap_or_else(|| LoadError::NotFound { kind, tried }.into()))
    }

    /// Its path, or the name that the system's loader knew.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A function, as `F` says; none where the library has none of that name.
    ///
    /// # Safety
    /// `F` is the type of a function pointer, and that of the function.
    #[expect(unsafe_code, reason = "nothing in a library says what type a function has")]
    pub unsafe fn find<F: Copy>(&self, symbol: &str) -> Option<F> {
        // SAFETY: the caller's promise. The library stays open for ever, so the copy does not outlive it.
        unsafe { self.opened.get::<F>(symbol.as_bytes()) }.ok().map(|f| *f)
    }

    /// [`Library::find`], for a function that is required.
    ///
    /// # Safety
    /// As for [`Library::find`].
    #[expect(unsafe_code, reason = "nothing in a library says what type a function has")]
    pub unsafe fn need<F: Copy>(&self, symbol: &str, needed: &'static str) -> Result<F, LoadError> {
        // SAFETY: the caller's promise.
        unsafe { self.find(symbol) }.ok_or_else(|| LoadError::TooOld {
            kind: self.kind,
            path: self.path.clone(),
            symbol: symbol.into(),
            needed,
        })
    }
}

/// A table of functions of a library: a struct with a field for each, and `load`, which finds them all.
#[macro_export]
macro_rules! functions {
    (
        $(#[$doc:meta])*
        $vis:vis $name:ident needs $needed:literal {
            $($field:ident = $symbol:literal ($($arg:ty),*) -> $ret:ty;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        $vis struct $name {
            $($vis $field: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl $name {
            /// Finds all functions.
            #[expect(unsafe_code, reason = "types of functions as the library's headers give them")]
            $vis fn load(
                library: &$crate::load::Library,
            ) -> Result<Self, $crate::load::LoadError> {
                Ok($name {
                    $($field: {
                        let (symbol, needed): (&str, &'static str) = ($symbol, $needed);
                        // SAFETY: the types are those of the library's headers.
                        unsafe { library.need(symbol, needed) }?
                    },)*
                })
            }
        }
    };
}
pub use functions;
