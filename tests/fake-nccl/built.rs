//! Builds the stand-in for tests of any crate, which take this file in by `#[path]`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn sources(under: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(under).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found.into_iter().flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// The processor to compile for. Kernels that compute take a small part of the time where sums of products are one instruction.
fn processor() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        let has = [
            is_x86_feature_detected!("avx2"),
            is_x86_feature_detected!("fma"),
            is_x86_feature_detected!("bmi1"),
            is_x86_feature_detected!("bmi2"),
            is_x86_feature_detected!("f16c"),
            is_x86_feature_detected!("lzcnt"),
            is_x86_feature_detected!("movbe"),
        ];
        if has == [true; 7] {
            return "x86-64-v3";
        }
    }
    "generic"
}

/// The library, compiled unless it is there already: its name tells its sources and the processor.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // The crates that have such tests are two folders below the workspace's, or beside this one.
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let places = [own.join("../../tests/fake-nccl/src"), own.join("fake-nccl/src")];
        let folder = places.into_iter().find(|p| p.join("lib.rs").is_file()).unwrap();
        let mut hasher = DefaultHasher::new();
        processor().hash(&mut hasher);
        for source in sources(&folder) {
            std::fs::read(source).unwrap().hash(&mut hasher);
        }
        // The tests' binary is in `deps` of the target folder.
        let own = std::env::current_exe().unwrap();
        let folder_of_builds = own.parent().unwrap().parent().unwrap().join("fake-nccl");
        std::fs::create_dir_all(&folder_of_builds).unwrap();
        let built = folder_of_builds.join(format!("libfake_nccl-{:016x}.so", hasher.finish()));
        if built.exists() {
            return built;
        }
        let cargo = Path::new(env!("CARGO"));
        let beside = cargo.with_file_name("rustc");
        let rustc = if beside.exists() { beside } else { PathBuf::from("rustc") };
        let half = built.with_extension(format!("{}.so", std::process::id()));
        let done = Command::new(rustc)
            .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "fake_nccl", "-O"])
            .arg(format!("-Ctarget-cpu={}", processor()))
            .arg(folder.join("lib.rs"))
            .arg("-o")
            .arg(&half)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        // Another process may have built the same meanwhile.
        std::fs::rename(&half, &built).unwrap();
        built
    })
}
