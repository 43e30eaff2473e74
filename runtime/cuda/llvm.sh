#!/usr/bin/env bash
# Fetches LLVM for builds with the feature `cuda` or `cubecl-cpu`, whose compilers link it, and puts it where their
# build script looks before it would download a bundle of its own: `.llvm` at the repository's root (400 MB). And to
# `.llvm/cuda` the mathematical functions that kernels for GPUs are compiled with (libdevice), for `CUDA_PATH` where there is no
# toolkit. Needs python3 with pip, and x86-64 Linux. Run again, it does nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Puts wheels, by name, version and hash on standard input, as folders under $work.
fetch() {
    cat > "$work/wheels.txt"
    python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: --dest "$work" -r "$work/wheels.txt"
    for wheel in "$work"/*.whl; do
        python3 -m zipfile -e "$wheel" "$work"
        rm "$wheel"
    done
}

libdevice=.llvm/cuda/nvvm/libdevice/libdevice.10.bc
if [ ! -e "$libdevice" ]; then
    fetch <<'WHEELS'
nvidia-nvvm==13.5.37 --hash=sha256:c41bfa362e407405163f103c2229f0765f8cc2ed7d148b754dc77f228bf7e070
WHEELS
    mkdir -p "$(dirname "$libdevice")"
    mv "$work/nvidia/cu13/nvvm/libdevice/libdevice.10.bc" "$libdevice"
fi

home=.llvm/tracel/tracel-llvm-23.1.0-4
if [ ! -e "$home/.tracel-llvm-installed" ]; then
    fetch <<'WHEELS'
mlc-llvm-static==23.1.1.post0 --hash=sha256:dcfec888abfaa418be77d41af585805f31463584cf9c90582992c00f392c1ac5
mlc-llvm-static-extra-targets==23.1.1.post0 --hash=sha256:c36e834d9a4e9cf9759f27fece65711ece7a2fc2b5a96dbb15d66f5e9e787929
WHEELS
    rm -rf "$home"
    mkdir -p "$home"
    cp -r "$work"/mlc_llvm_static/static/. "$home"
    chmod +x "$home/bin/llvm-config"
    # What the build script takes as the sign that all is there: last, so that an interrupted copy is made again.
    touch "$home/.tracel-llvm-installed"
fi
echo "LLVM is in place: $home"
