//! The launch of the kernels of an attention.

use super::layout::Multiply;
use super::load::QUERIES;
use super::scores::{AttentionShape, BesideLaunch, BesideShape, DECIDED, DrawnShape, SpaceLaunch};
use super::{backward, bias, draws, forward};
use crate::kernel::arguments::address_type;
use crate::kernel::drawn::Drawn;
use crate::kernel::operands::{GpuLaunch, OwnInputs, ResultSlot};
use crate::kernel::tile::UNITS;
use burn_backend::DType as BurnType;
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_std::Shape as Extents;
use cubecl::ir::FloatKind;
use cubecl::ir::features::MmaConfig;
use cubecl::prelude::*;
use meshwright_device::KernelError;
use meshwright_device::kernels::attention::{AttentionCall, AttentionDraws, AttentionInput, AttentionOutput};
use meshwright_device::kernels::call::Computes;
use meshwright_exec::backend::RngState;
use meshwright_plan::{AttentionOperands, AttentionPart, Zigzag};

/// Whether a device has the tensor cores of the kernels.
pub(in super::super) fn is_there(client: &Client) -> bool {
    let half = |kind| ElemType::Float(kind);
    let config =
        |a_type| MmaConfig { a_type, b_type: a_type, cd_type: half(FloatKind::F32), m: 16, n: 8, k: 16 };
    let matmul = &client.features().matmul;
    let has = |of| matmul.mma.contains(&config(of)) && matmul.ldmatrix.contains(&of);
    [FloatKind::BF16, FloatKind::F16].into_iter().all(|kind| has(half(kind)))
}

impl Computes<AttentionCall> for GpuLaunch<'_> {
    /// The last operand is the table of decided tiles.
    fn compute(self, call: &AttentionCall) -> Result<Vec<CubeTensor>, KernelError> {
        let GpuLaunch { rng, step, inputs: OwnInputs { tensors: mut inputs, .. }, outputs, .. } = self;
        let decided = last(&mut inputs)?;
        let bits = if call.words_ahead() > 0 { last(&mut inputs)? } else { decided.clone() };
        let many = 2 + usize::from(call.values > 0) + usize::from(call.slope.is_some());
        for (i, input) in inputs.iter_mut().enumerate().take(many) {
            if !is_vectors(input, &call.inputs[i]) {
                *input = into_contiguous(input.clone());
                if !is_vectors(input, &call.inputs[i]) {
                    let message =
                        format!("operand {i} of an attention is not aligned for vectors of {BYTES} bytes");
                    return Err(KernelError::Unsupported(message));
                }
            }
        }
        // The values of other keys.
        if let Some(values) = inputs.last_mut().filter(|_| call.continues)
            && values.meta.strides.last() != Some(&1)
        {
            *values = into_contiguous(values.clone());
        }
        let by = match inputs[0].dtype {
            BurnType::F32 if call.rounds => Multiply::Rounded,
            BurnType::F32 => Multiply::Threads,
            _ if multiplies_together(&decided.client) => Multiply::Together,
            _ => Multiply::Warps,
        };
        let drawn = drawn(call, rng);
        Ok(AttentionRun { call, inputs, many, decided, outputs: &outputs, drawn, step, by }.go(bits))
    }
}

impl Computes<AttentionDraws> for GpuLaunch<'_> {
    /// A bit for each truth value.
    fn compute(self, draws: &AttentionDraws) -> Result<Vec<CubeTensor>, KernelError> {
        let GpuLaunch { rng, step, inputs: OwnInputs { tensors: mut inputs, .. }, outputs, .. } = self;
        let call = &draws.0;
        let (decided, drawn) = (last(&mut inputs)?, drawn(call, rng));
        let (outputs, by) = (&outputs, Multiply::Warps);
        Ok(AttentionRun { call, inputs, many: 0, decided, outputs, drawn, step, by }.bits())
    }
}

fn last(inputs: &mut Vec<CubeTensor>) -> Result<CubeTensor, KernelError> {
    inputs.pop().ok_or_else(|| KernelError::Unsupported("an attention without all of its operands".into()))
}

fn drawn(call: &AttentionCall, rng: RngState) -> Vec<Drawn> {
    call.draws.iter().map(|draw| Drawn::new(draw, call.sizes.len(), rng)).collect()
}

/// Whether four warps of a device multiply together: only GPUs of compute capability 9.0 have `wgmma`.
fn multiplies_together(client: &Client) -> bool {
    client.properties().identity.fingerprint == "ptx_sm90"
}

/// Bytes of a vector.
const BYTES: usize = 16;

/// Whether a tensor can be read as vectors of its own dim.
fn is_vectors(tensor: &CubeTensor, input: &AttentionInput) -> bool {
    let (shape, strides) = (&tensor.meta.shape, &tensor.meta.strides);
    let vector = BYTES / tensor.dtype.size();
    let whole = |i: &usize| shape[*i] == 1 || strides[*i] % vector == 0;
    let start = tensor.handle.offset_start.unwrap_or(0);
    strides.last() == Some(&1) && input.0.iter().flatten().all(whole) && start.is_multiple_of(BYTES as u64)
}

/// A call whose operands are there.
struct AttentionRun<'a> {
    call: &'a AttentionCall,
    inputs: Vec<CubeTensor>,
    /// Number of factors; the others are operands of the scores.
    many: usize,
    decided: CubeTensor,
    outputs: &'a [ResultSlot<'a>],
    drawn: Vec<Drawn>,
    step: &'a CubeTensor,
    by: Multiply,
}

impl AttentionRun<'_> {
    /// Where keys are in another order, those of a group must be in one range of it.
    fn drawn_shape(&self, drawn: &Drawn) -> DrawnShape {
        let many = drawn.to_a_counter();
        let along = self.call.orders().last().copied().flatten();
        let start = self.call.starts.last().copied().unwrap_or(0);
        let follow = along.is_none_or(|order| [order.length, start].iter().all(|n| n.is_multiple_of(many)));
        DrawnShape { many, in_groups: many == 8 && follow && drawn.is_in_groups(&drawn.strides, many) }
    }

    /// A tensor as kernels walk it.
    fn walked(&self, tensor: &CubeTensor, dims: &[Option<usize>]) -> TensorArg {
        let stride = |at: &Option<usize>| at.map_or(0, |i| tensor.meta.strides[i]);
        let strides: Vec<usize> = dims.iter().map(stride).chain([1]).collect();
        let shape: Vec<usize> = tensor.meta.shape.iter().copied().collect();
        let last = shape.last().copied().unwrap_or(1);
        let shape: Vec<usize> = dims.iter().map(|at| at.map_or(1, |i| shape[i])).chain([last]).collect();
        #[expect(
            unsafe_code,
            reason = "the strides are those of the tensor, of fewer dims or in another order"
        )]
        // SAFETY: no position along the dims of the scores is beyond the tensor's.
        unsafe {
            TensorArg::from_raw_parts(tensor.handle.clone(), strides.into(), shape.into())
        }
    }

    fn factor(&self, i: usize) -> TensorArg {
        // A missing operand may be any tensor.
        let i = if i < self.many { i } else { 0 };
        self.walked(&self.inputs[i], &self.call.inputs[i].0)
    }

    fn beside(&self) -> BesideLaunch {
        let beside =
            (self.many..self.inputs.len()).map(|i| self.walked(&self.inputs[i], &self.call.inputs[i].0));
        let draws = self.drawn.iter().map(|d| d.launch(&d.strides));
        let step = self.step.clone().into_tensor_arg();
        BesideLaunch::new(beside.collect(), draws.collect(), step)
    }

    fn beside_shapes(&self) -> Vec<BesideShape> {
        let of = |i: usize| {
            let dims = &self.call.inputs[i].0;
            let along = dims.last().copied().flatten();
            let dense = along.is_some_and(|i_key| self.inputs[i].meta.strides[i_key] == 1);
            BesideShape { dims: dims.iter().map(Option::is_some).collect(), dense }
        };
        (self.many..self.inputs.len()).map(of).collect()
    }

    fn space(&self) -> SpaceLaunch {
        let (call, sizes) = (self.call, &self.call.sizes);
        let key = sizes.len() - 1;
        let (outer, rows) = (&sizes[..call.outer], &sizes[call.outer..key]);
        let divisors = |sizes: &[usize]| -> Vec<u32> {
            (1..=sizes.len()).map(|i| sizes[i..].iter().product::<usize>() as u32).collect()
        };
        let divisors = [divisors(outer), divisors(rows), vec![1]].concat();
        // Kernels of attentions without any have no arguments for them.
        let found = call.orders();
        let none = Zigzag { length: 1, devices: 0 };
        let orders: Vec<Zigzag> = match found.iter().any(Option::is_some) {
            true => found.into_iter().map(|order| order.unwrap_or(none)).collect(),
            false => vec![],
        };
        SpaceLaunch::new(
            sizes.iter().map(|n| *n as u32).collect(),
            divisors.into_iter().collect(),
            call.starts.iter().map(|n| *n as u32).collect(),
            orders.iter().map(|order| order.length as u32).collect(),
            orders.iter().map(|order| 2 * order.devices as u32).collect(),
            rows.iter().product::<usize>() as u32,
            sizes[key] as u32,
            call.decided.unwrap_or(0.0),
        )
    }

    fn shape(&self, columns: usize) -> AttentionShape {
        let call = self.call;
        let at = AttentionOperands::of(&call.parts);
        let mut next = call.extras;
        let mut given = |there: bool| {
            next += usize::from(there);
            there.then(|| next - 1)
        };
        let [max, scale, delta] = [at.max, at.scale, at.delta].map(|i| given(i.is_some()));
        AttentionShape {
            outer: call.outer,
            rows: call.sizes.len() - 1 - call.outer,
            width: call.width,
            values: call.values,
            columns,
            score: call.score.clone(),
            slope: call.slope.clone(),
            summed: vec![],
            weight: call.weight.clone(),
            beside: self.beside_shapes(),
            extras: call.extras,
            max,
            scale,
            delta,
            before: call.continues.then_some(next),
            draws: self.drawn.iter().map(|drawn| self.drawn_shape(drawn)).collect(),
            ordered: call.orders().iter().map(Option::is_some).collect(),
            ahead: call.words_ahead() > 0,
            decides: call.decided.is_some(),
            whole: self.rows().is_multiple_of(QUERIES)
                && call.sizes[call.sizes.len() - 1].is_multiple_of(QUERIES),
            by: self.by,
            buffers: call.tiles.buffers,
            parts: call.parts.clone(),
        }
    }

    /// Draws.
    fn bits(&self) -> Vec<CubeTensor> {
        let bits = self.outputs[0].memory();
        #[expect(unsafe_code, reason = "there is a word for each unit of each tile")]
        // SAFETY: as said.
        unsafe {
            draws::attention_draws::launch_unchecked(
                &self.decided.client,
                self.cubes(self.rows()),
                CubeDim::new_1d(UNITS as u32),
                self.beside(),
                self.space(),
                self.decided.clone().into_tensor_arg(),
                bits.clone().into_tensor_arg(),
                self.shape(DECIDED),
            );
        }
        vec![bits]
    }

    /// Memory for a part, as it is walked; see [`Self::nothing`] where it is not asked for.
    fn out(&self, part: AttentionPart, made: &mut [Option<CubeTensor>]) -> TensorArg {
        match self.call.parts.iter().position(|p| *p == part) {
            Some(i) => {
                let AttentionOutput { dims, .. } = &self.call.outputs[i];
                let tensor = self.outputs[i].memory();
                let arg = self.walked(&tensor, dims);
                made[i] = Some(tensor);
                arg
            }
            None => self.nothing(),
        }
    }

    /// Memory for a result that a kernel does not write.
    fn nothing(&self) -> TensorArg {
        let like = &self.inputs[0];
        let (client, device, few) =
            (like.client.clone(), like.device.clone(), Extents::from([self.by.vector()]));
        let nothing = empty_device_contiguous_dtype(client, device, few, BurnType::F32);
        self.walked(&nothing, &vec![None; self.call.sizes.len()])
    }

    /// The results in order.
    fn go(&self, bits: CubeTensor) -> Vec<CubeTensor> {
        let call = self.call;
        let mut made = vec![None; call.parts.len()];
        let has = |part: &AttentionPart| call.parts.contains(part);
        if call.slope.is_none() {
            self.forward(bits, &mut made);
        } else {
            if has(&AttentionPart::Query) {
                self.query_grad(bits.clone(), &mut made);
            }
            let of_keys: Vec<AttentionPart> =
                [AttentionPart::Key, AttentionPart::Value].into_iter().filter(has).collect();
            let many = if call.tiles.apart { 1 } else { 2 };
            for parts in of_keys.chunks(many) {
                self.key_grad(parts, bits.clone(), &mut made);
            }
            if has(&AttentionPart::Bias) {
                self.bias_grad(bits, &mut made);
            }
        }
        made.into_iter().flatten().collect()
    }

    /// Number of blocks for `of` positions of each attention.
    fn cubes(&self, of: usize) -> CubeCount {
        let outer: usize = self.call.sizes[..self.call.outer].iter().product();
        CubeCount::Static((outer * of.div_ceil(QUERIES)) as u32, 1, 1)
    }

    fn rows(&self) -> usize {
        let (call, key) = (self.call, self.call.sizes.len() - 1);
        call.sizes[call.outer..key].iter().product()
    }

    fn address(&self) -> AddressType {
        let outputs = self.call.outputs.iter().map(|o| AddressType::from_len(o.shape.iter().product()));
        self.inputs.iter().map(address_type).chain(outputs).max().unwrap_or_default()
    }

    /// The half type, and that of the results that are as wide as values.
    fn types(&self) -> [ElemType; 2] {
        let of_results = self.call.parts.iter().zip(self.outputs);
        let wide = of_results.filter(|(p, _)| p.has_own_dims());
        let result = wide.map(|(_, out)| out.ir.dtype).next().unwrap_or(BurnType::F32);
        [self.inputs[0].dtype, result].map(dtype_to_storage_type)
    }

    fn forward(&self, bits: CubeTensor, made: &mut [Option<CubeTensor>]) {
        let [half, result] = self.types();
        let is_result = self.call.parts.contains(&AttentionPart::Result);
        let of_values = if is_result { AttentionPart::Result } else { AttentionPart::Values };
        #[expect(unsafe_code, reason = "the kernel checks how many queries and keys there are")]
        // SAFETY: as said.
        unsafe {
            forward::attention_forward::launch_unchecked(
                &self.inputs[0].client,
                self.cubes(self.rows()),
                CubeDim::new_1d(UNITS as u32),
                self.address(),
                self.by.vector(),
                2,
                self.factor(0),
                self.factor(1),
                self.factor(2),
                self.beside(),
                self.space(),
                self.decided.clone().into_tensor_arg(),
                bits.into_tensor_arg(),
                self.out(AttentionPart::Max, made),
                self.out(AttentionPart::Sum, made),
                self.out(of_values, made),
                self.shape(self.call.tiles.forward),
                half,
                result,
            );
        }
    }

    fn query_grad(&self, bits: CubeTensor, made: &mut [Option<CubeTensor>]) {
        let [half, result] = self.types();
        #[expect(unsafe_code, reason = "the kernel checks how many queries and keys there are")]
        // SAFETY: as said.
        unsafe {
            backward::attention_query_grad::launch_unchecked(
                &self.inputs[0].client,
                self.cubes(self.rows()),
                CubeDim::new_1d(UNITS as u32),
                self.address(),
                self.by.vector(),
                2,
                self.factor(0),
                self.factor(1),
                self.factor(2),
                self.factor(3),
                self.beside(),
                self.space(),
                self.decided.clone().into_tensor_arg(),
                bits.into_tensor_arg(),
                self.out(AttentionPart::Query, made),
                self.shape(self.call.tiles.query_grad),
                half,
                result,
            );
        }
    }

    /// Gradients of keys, of values, or of both. That of values alone needs no slopes.
    fn key_grad(&self, parts: &[AttentionPart], bits: CubeTensor, made: &mut [Option<CubeTensor>]) {
        let [half, result] = self.types();
        let slope = self.call.slope.clone().filter(|_| parts.contains(&AttentionPart::Key));
        let shape = AttentionShape { parts: parts.to_vec(), slope, ..self.shape(QUERIES) };
        let mut out = |part| if parts.contains(&part) { self.out(part, made) } else { self.nothing() };
        let (keys_out, values_out) = (out(AttentionPart::Key), out(AttentionPart::Value));
        let keys = self.call.sizes.last().copied().unwrap_or(0);
        #[expect(unsafe_code, reason = "the kernel checks how many queries and keys there are")]
        // SAFETY: as said.
        unsafe {
            backward::attention_key_grad::launch_unchecked(
                &self.inputs[0].client,
                self.cubes(keys),
                CubeDim::new_1d(UNITS as u32),
                self.address(),
                self.by.vector(),
                2,
                self.factor(0),
                self.factor(1),
                self.factor(2),
                self.factor(3),
                self.beside(),
                self.space(),
                self.decided.clone().into_tensor_arg(),
                bits.into_tensor_arg(),
                keys_out,
                values_out,
                self.call.tiles.key_grad,
                shape,
                half,
                result,
            );
        }
    }

    fn bias_grad(&self, bits: CubeTensor, made: &mut [Option<CubeTensor>]) {
        let (call, key) = (self.call, self.call.sizes.len() - 1);
        let out = call.parts.iter().position(|p| *p == AttentionPart::Bias).map(|i| &call.outputs[i].dims);
        let summed: Vec<bool> =
            out.iter().flat_map(|dims| &dims[..call.outer]).map(Option::is_none).collect();
        let positions = |of: bool| -> usize {
            let sizes = call.sizes.iter().zip(&summed).filter(|(_, is)| **is == of);
            sizes.map(|(size, _)| size).product()
        };
        let blocks = positions(false) * self.rows().div_ceil(QUERIES) * call.sizes[key].div_ceil(QUERIES);
        let terms = positions(true) as u32;
        let shape = AttentionShape { slope: call.bias.clone(), summed, ..self.shape(QUERIES) };
        let [half, _] = self.types();
        #[expect(unsafe_code, reason = "the kernel checks how many queries and keys there are")]
        // SAFETY: as said.
        unsafe {
            bias::attention_bias_grad::launch_unchecked(
                &self.inputs[0].client,
                CubeCount::Static(blocks as u32, 1, 1),
                CubeDim::new_1d(UNITS as u32),
                self.address(),
                self.by.vector(),
                self.factor(0),
                self.factor(1),
                self.factor(2),
                self.factor(3),
                self.beside(),
                self.space(),
                self.decided.clone().into_tensor_arg(),
                bits.into_tensor_arg(),
                self.out(AttentionPart::Bias, made),
                terms,
                shape,
                half,
            );
        }
    }
}
