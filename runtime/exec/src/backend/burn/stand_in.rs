//! Products of tests by the stand-in for cuBLASLt, in the memory of the host: what a GPU is told, of the same tensors.

use super::backend::OwnProduct;
use super::blas;
use burn_backend::DType as BurnType;
use burn_flex::FlexTensor;
use burn_std::Shape;
use meshwright_gpu::load::Paths;
use meshwright_gpu::products::{KernelChoices, Products, Workspace};

/// The stand-in, where one is named.
pub(super) fn open(libraries: &Paths) -> Option<OwnProduct> {
    libraries.cublas_lt.as_ref()?;
    let mut products = Products::open(libraries).unwrap();
    Some(Box::new(move |left, right, dtype| product(&mut products, left, right, dtype)))
}

/// A tensor that is made of matrices, and the address of its first element.
fn of_matrices(tensor: FlexTensor) -> (FlexTensor, u64) {
    let strides = |t: &FlexTensor| -> Option<Vec<usize>> {
        t.layout().strides().iter().map(|s| usize::try_from(*s).ok()).collect()
    };
    let fits = strides(&tensor).and_then(|s| blas::matrices(tensor.dtype(), tensor.layout().shape(), &s));
    let tensor = if fits.is_some() { tensor } else { tensor.to_contiguous() };
    let start = tensor.layout().start_offset() * tensor.dtype().size();
    let address = tensor.bytes().as_ptr() as u64 + start as u64;
    (tensor, address)
}

fn product(products: &mut Products, left: FlexTensor, right: FlexTensor, dtype: BurnType) -> FlexTensor {
    let ((left, at_left), (right, at_right)) = (of_matrices(left), of_matrices(right));
    let mut shape = left.layout().shape().to_vec();
    let last = shape.len() - 1;
    shape[last] = right.layout().shape()[last];
    let mut out = FlexTensor::zeros(Shape::from(shape), dtype);
    let at_out = crate::backend::native::bytes_mut(&mut out).as_mut_ptr() as u64;
    let matrices = |t: &FlexTensor| {
        let strides: Vec<usize> = t.layout().strides().iter().map(|s| *s as usize).collect();
        blas::matrices(t.dtype(), t.layout().shape(), &strides).unwrap()
    };
    let product = blas::product(matrices(&left), matrices(&right), matrices(&out)).unwrap();
    let product = blas::at(product, [at_left, at_right, at_out]);
    let workspace = Workspace { address: 0, bytes: 0 };
    #[expect(
        unsafe_code,
        reason = "memory that this function holds; without a stream the stand-in computes at once"
    )]
    // SAFETY: as said.
    let done =
        unsafe { products.multiply(&product, workspace, std::ptr::null_mut(), &KernelChoices::default()) };
    done.unwrap();
    out
}
