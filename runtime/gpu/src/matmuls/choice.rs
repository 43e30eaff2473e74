//! The choice of kernels for matmuls: the fastest by measurement, kept in a file.

use super::api::Algorithm;
use super::matmul::MatmulKey;
use meshwright_sorted::SortedMap;
use std::io::Write;
use std::path::Path;

/// The kernels of one GPU and version of the library, by the text of the matmul's key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelChoices(SortedMap<String, Algorithm>);

impl KernelChoices {
    /// The kernel of a matmul.
    pub fn of(&self, key: &MatmulKey) -> Option<Algorithm> {
        self.0.get(&key.to_string()).copied()
    }

    /// Chooses.
    pub fn set(&mut self, key: &MatmulKey, algorithm: Algorithm) {
        self.0.insert(key.to_string(), algorithm);
    }

    /// Takes a choice back.
    pub fn remove(&mut self, key: &MatmulKey) {
        self.0.remove(&key.to_string());
    }

    /// Number of matmuls with a kernel.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the choices of others, which take precedence.
    pub fn take_over(&mut self, others: KernelChoices) {
        self.0.extend(others.0);
    }

    /// A line for each product: its key, a tab, and the choice in 128 hexadecimal digits.
    pub fn to_text(&self) -> String {
        let hex = |a: &Algorithm| a.0.iter().map(|word| format!("{word:016x}")).collect::<String>();
        self.0.iter().map(|(key, algorithm)| format!("{key}\t{}\n", hex(algorithm))).collect()
    }

    /// The inverse. What is not such a line is left out: then that product is measured again.
    pub fn from_text(text: &str) -> KernelChoices {
        let line = |line: &str| {
            let (key, hex) = line.split_once('\t')?;
            let mut words = [0; 8];
            if hex.len() != 128 || !hex.is_ascii() {
                return None;
            }
            for (n, word) in words.iter_mut().enumerate() {
                *word = u64::from_str_radix(&hex[16 * n..16 * n + 16], 16).ok()?;
            }
            Some((key.to_owned(), Algorithm(words)))
        };
        KernelChoices(text.lines().filter_map(line).collect())
    }

    /// The choices in a file; none without a file.
    pub fn load(path: &Path) -> std::io::Result<KernelChoices> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(KernelChoices::from_text(&text)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(KernelChoices::default()),
            Err(e) => Err(e),
        }
    }

    /// Replaces a file in one go, so that who reads it meanwhile finds the old one or the new one.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        // Several devices and processes may do so at a time.
        let mut beside = tempfile::NamedTempFile::new_in(folder)?;
        beside.write_all(self.to_text().as_bytes())?;
        beside.persist(path).map(|_| ()).map_err(|e| e.error)
    }
}
