//! Tensors of other frameworks as those of the model: rows taken, dims in another order.

use super::name_map::{Order, View};
use crate::RawTensor;
use crate::tensor::permuted;

impl View {
    /// The shape that a tensor of `shape` gets, before it is reshaped.
    ///
    /// # Errors
    ///
    /// Where it has not these rows or dims.
    pub(crate) fn shape(&self, shape: &[usize]) -> Result<Vec<usize>, String> {
        let mut taken = shape.to_vec();
        if let Some(rows) = &self.rows {
            match taken.first_mut() {
                Some(first) if rows.end <= *first => *first = rows.len(),
                _ => return Err(format!("it is {shape:?}, without the rows {}..{}", rows.start, rows.end)),
            }
        }
        let order = self.order(taken.len());
        if order.len() != taken.len() {
            return Err(format!("it is {shape:?}, not of {} dims", order.len()));
        }
        Ok(order.iter().map(|d| taken[*d]).collect())
    }

    /// Whether a tensor of `shape` becomes one of `wanted`.
    pub(crate) fn gives(&self, shape: &[usize], wanted: &[usize]) -> bool {
        let elements = |s: &[usize]| s.iter().product::<usize>();
        self.shape(shape).is_ok_and(|s| s == wanted || (self.reshaped && elements(&s) == elements(wanted)))
    }

    /// A tensor that [`View::gives`] one of the shape `wanted`.
    pub(crate) fn of(&self, mut tensor: RawTensor, wanted: &[usize]) -> RawTensor {
        if let (Some(rows), Some(first)) = (&self.rows, tensor.shape.first().copied()) {
            let row = tensor.data.len() / first.max(1);
            tensor.data = tensor.data[rows.start * row..rows.end * row].to_vec();
            tensor.shape[0] = rows.len();
        }
        let order = self.order(tensor.shape.len());
        if order.iter().enumerate().any(|(i, d)| i != *d) {
            tensor.data = permuted(&tensor.data, tensor.dtype.bytes(), &tensor.shape, &order);
        }
        RawTensor { shape: wanted.to_vec(), ..tensor }
    }

    fn order(&self, dims: usize) -> Vec<usize> {
        match &self.order {
            Order::Same => (0..dims).collect(),
            Order::Reversed => (0..dims).rev().collect(),
            Order::Of(order) => order.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshwright_plan::DType;

    #[test]
    fn rows_order_and_shape_change_in_turn() {
        let tensor = RawTensor { dtype: DType::U8, shape: vec![4, 3], data: (0..12).collect() };
        let view = View { rows: Some(1..3), order: Order::Reversed, reshaped: true };
        assert_eq!(view.shape(&[4, 3]), Ok(vec![3, 2]));
        assert!(view.gives(&[4, 3], &[3, 2]) && view.gives(&[4, 3], &[6]) && !view.gives(&[4, 3], &[5]));
        assert!(!view.gives(&[2, 3], &[3, 2]), "there is no third row");
        let turned = view.of(tensor.clone(), &[6]);
        assert_eq!((turned.shape, turned.data), (vec![6], vec![3, 6, 4, 7, 5, 8]));
        let cube = RawTensor { dtype: DType::U8, shape: vec![2, 3, 2], data: (0..12).collect() };
        let view = View { order: Order::Of(vec![1, 2, 0]), ..View::default() };
        assert_eq!(view.of(cube, &[3, 2, 2]).data, [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]);
        assert!(View { order: Order::Of(vec![0]), ..View::default() }.shape(&[4, 3]).is_err());
    }
}
