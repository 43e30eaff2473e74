//! Where tuned and compiled kernels are stored.

use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};
use meshwright_gpu::driver::Driver;
use meshwright_gpu::load::Paths;

/// Makes CubeCL store tuned and compiled kernels with other measurements of GPUs, for each driver separately, so that a
/// later start does neither. A `cubecl.toml` with a path takes precedence.
pub(super) fn keep_tuned(libraries: &Paths) {
    let Some(folder) = &libraries.cache else { return };
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Directory(folder.join("cubecl"));
        config.compilation.cache = true;
        if let Ok(version) = Driver::open(libraries).and_then(|driver| driver.version()) {
            config.environment.name = format!("cuda-{version}");
        }
    }
    // The first device of a process sets it for all.
    CubeClRuntimeConfig::try_set(config);
}
