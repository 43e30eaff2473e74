//! Matmuls of tests by the stand-in for cuBLASLt, in the memory of the host: with a GPU's arguments, on the same
//! tensors.

use super::blas::{self, MatmulAddresses, Then};
use super::host::HostMatmuls;
use burn_backend::DType as BurnType;
use burn_flex::FlexTensor;
use burn_std::Shape;
use meshwright_device::kernels::matmul::FactorDigits;
use meshwright_gpu::load::Paths;
use meshwright_gpu::matmuls::{TunedMatmuls, Workspace};

/// The stand-in, where one is named.
pub(super) fn open(libraries: &Paths) -> Option<Box<dyn HostMatmuls>> {
    libraries.cublas_lt.as_ref()?;
    Some(Box::new(StandIn(TunedMatmuls::open(libraries, "Fake GPU").unwrap())))
}

struct StandIn(TunedMatmuls);

impl HostMatmuls for StandIn {
    fn product(&mut self, left: FlexTensor, right: FlexTensor, dtype: BurnType) -> FlexTensor {
        product(&mut self.0, left, right, dtype)
    }

    fn tuned(&mut self) -> &mut TunedMatmuls {
        &mut self.0
    }
}

/// Memory as that of a GPU is given out: at multiples of 512 bytes.
#[repr(align(512))]
#[derive(Clone, Copy)]
struct Line([u8; 512]);

/// A copy of bytes, with their address.
fn placed(bytes: &[u8]) -> (Vec<Line>, u64) {
    let mut lines = vec![Line([0; 512]); bytes.len().div_ceil(512).max(1)];
    for (line, part) in lines.iter_mut().zip(bytes.chunks(512)) {
        line.0[..part.len()].copy_from_slice(part);
    }
    let address = lines.as_mut_ptr() as u64;
    (lines, address)
}

/// A tensor that is made of matrices: itself, or a copy.
fn of_matrices(tensor: FlexTensor) -> FlexTensor {
    let strides = |t: &FlexTensor| -> Option<Vec<usize>> {
        t.layout().strides().iter().map(|s| usize::try_from(*s).ok()).collect()
    };
    let fits = strides(&tensor).and_then(|s| blas::matrices(tensor.dtype(), tensor.layout().shape(), &s));
    if fits.is_some() { tensor } else { tensor.to_contiguous() }
}

fn product(products: &mut TunedMatmuls, left: FlexTensor, right: FlexTensor, dtype: BurnType) -> FlexTensor {
    let (left, right) = (of_matrices(left), of_matrices(right));
    let mut shape = left.layout().shape().to_vec();
    let last = shape.len() - 1;
    shape[last] = right.layout().shape()[last];
    let mut out = FlexTensor::zeros(Shape::from(shape), dtype);
    let matrices = |t: &FlexTensor| {
        let strides: Vec<usize> = t.layout().strides().iter().map(|s| *s as usize).collect();
        blas::matrices(t.dtype(), t.layout().shape(), &strides).unwrap()
    };
    let product =
        blas::product(matrices(&left), matrices(&right), matrices(&out), FactorDigits::All).unwrap();
    let start = |t: &FlexTensor| (t.layout().start_offset() * t.dtype().size()) as u64;
    let (_left, at_left) = placed(left.bytes());
    let (_right, at_right) = placed(right.bytes());
    let (made, at_out) = placed(out.bytes());
    let factors = [at_left + start(&left), at_right + start(&right)];
    let places = MatmulAddresses { factors, out: at_out, vector: None, aux: None, added: None, scales: None };
    let product = blas::at(product, Then::Nothing, &places);
    let workspace = (Workspace { address: 0, bytes: 0 }, None);
    #[expect(
        unsafe_code,
        reason = "memory that this function holds; without a stream the stand-in computes at once"
    )]
    // SAFETY: as said.
    let done = unsafe { products.multiply(&product, workspace, std::ptr::null_mut(), || Ok(())) };
    done.unwrap();
    for (part, line) in meshwright_cpu::bytes_mut(&mut out).chunks_mut(512).zip(&made) {
        part.copy_from_slice(&line.0[..part.len()]);
    }
    out
}
