//! Instructions of NVIDIA's GPUs that CubeCL has no operations for: copies to shared memory that go on while the threads compute,
//! products of matrices that four warps compute together, of factors in shared memory (PTX ISA, `cp.async` and `wgmma`), and
//! codes of FP8.
//!
//! An instruction is an operation of our own: text of PTX with operands, which LLVM passes on as it is.

use cubecl::ir::interfaces::TypedExt;
use cubecl::ir::interfaces::side_effects::{MemoryEffect, MemoryEffectsOp};
use cubecl::ir::prelude::*;
use cubecl::ir::{AddressSpace, CanMaterialize, ExpandValue, HasSideEffects, Pure, Scope, cube_op};
use cubecl::prelude::*;
use cubecl_llvm::shared::to_llvm::ToLLVMDialect;
use cubecl_llvm::shared::to_llvm::ty::cube_type_to_llvm;
use meshwright_plan::Fp8;
use pliron::builtin::attributes::StringAttr;
use pliron::builtin::types::{FP32Type, IntegerType, Signedness};
use pliron_llvm::op_interfaces::CastOpInterface;
use pliron_llvm::ops as llvm;
use pliron_llvm::types::{PointerType, StructLayout, StructType, VectorType, VoidType};

/// LLVM's numbers of global and of shared memory.
const GLOBAL: u32 = 1;
const SHARED: u32 = 3;

/// Text of PTX, in which `$0` and so on are the results and then the operands, and LLVM's constraints for these.
#[pliron_op(
    name = "meshwright.ptx",
    format,
    attributes = (meshwright_ptx_text: StringAttr, meshwright_ptx_constraints: StringAttr),
    verifier = "succ"
)]
#[op_traits(CanMaterialize, HasSideEffects)]
pub struct PtxOp;

impl PtxOp {
    fn new(
        ctx: &mut Context,
        text: &str,
        constraints: &str,
        operands: Vec<Value>,
        results: Vec<TypeHandle>,
    ) -> Self {
        let info = Self::get_concrete_op_info();
        let made = PtxOp { op: Operation::new(ctx, info, results, operands, vec![], 0) };
        made.set_attr_meshwright_ptx_text(ctx, StringAttr::new(text.into()));
        made.set_attr_meshwright_ptx_constraints(ctx, StringAttr::new(constraints.into()));
        made
    }
}

#[op_interface_impl]
impl MemoryEffectsOp for PtxOp {
    fn memory_effects(&self, _ctx: &Context) -> Vec<MemoryEffect> {
        let (shared, global) = (AddressSpace::Shared, AddressSpace::Global(0));
        vec![
            MemoryEffect::ReadAllInSpace(global),
            MemoryEffect::ReadAllInSpace(shared),
            MemoryEffect::WriteAllInSpace(shared),
        ]
    }
}

/// The register form of a value for an instruction: two halves as one word, and a pointer as an address in global
/// memory.
fn in_register(ctx: &mut Context, rewriter: &mut DialectConversionRewriter, value: Value) -> Value {
    let ty = value.get_type(ctx);
    let (is_pair, is_pointer) = (ty.deref(ctx).is::<VectorType>(), ty.deref(ctx).is::<PointerType>());
    if is_pair {
        let word = IntegerType::get(ctx, 32, Signedness::Signless).into();
        let cast = llvm::BitcastOp::new(ctx, value, word);
        rewriter.insert_op(ctx, &cast);
        return cast.get_result(ctx);
    }
    let global = PointerType::get(ctx, GLOBAL).into();
    if is_pointer && ty != global {
        let cast = llvm::AddrSpaceCastOp::new(ctx, value, global);
        rewriter.insert_op(ctx, &cast);
        return cast.get_result(ctx);
    }
    value
}

#[op_interface_impl]
impl ToLLVMDialect for PtxOp {
    fn rewrite(
        &self,
        ctx: &mut Context,
        rewriter: &mut DialectConversionRewriter,
        _operands_info: &OperandsInfo,
    ) -> Result<()> {
        let old = self.get_operation();
        let types: Vec<_> = old.results(ctx).into_iter().map(|r| r.get_type(ctx)).collect();
        let types: Vec<_> = types.into_iter().map(|ty| cube_type_to_llvm(ctx, ty)).collect();
        let result = match types.as_slice() {
            [] => VoidType::get(ctx).into(),
            [one] => *one,
            _ => StructType::get_unnamed(ctx, (types.clone(), StructLayout::Unpacked)).into(),
        };
        let operands: Vec<_> = old.operands(ctx).into_iter().map(|v| in_register(ctx, rewriter, v)).collect();
        let text = String::from(
            self.get_attr_meshwright_ptx_text(ctx).expect("it is set when the operation is made").clone(),
        );
        let constraints =
            String::from(self.get_attr_meshwright_ptx_constraints(ctx).expect("it is set then too").clone());
        let call = llvm::InlineAsmOp::new(ctx, result, operands, &text, &constraints, true);
        rewriter.insert_op(ctx, &call);
        let call = call.get_operation();
        match types.len() {
            0 => rewriter.erase_operation(ctx, old),
            1 => {
                let made = call.deref(ctx).get_result(0);
                rewriter.replace_operation_with_values(ctx, old, vec![made]);
            }
            many => {
                let whole = call.deref(ctx).get_result(0);
                let mut parts = Vec::with_capacity(many);
                for i in 0..many {
                    let part = llvm::ExtractValueOp::new(ctx, whole, vec![i as u32])?;
                    rewriter.insert_op(ctx, &part);
                    parts.push(part.get_operation().deref(ctx).get_result(0));
                }
                rewriter.replace_operation_with_values(ctx, old, parts);
            }
        }
        Ok(())
    }
}

/// The address of something in shared memory, as instructions take it.
#[cube_op(name = "meshwright.shared_address")]
#[result_ty(fixed = IntegerType::get(ctx, 32, Signedness::Unsigned).into())]
#[op_traits(CanMaterialize, Pure)]
pub struct SharedAddressOp {
    pub pointer: Value,
}

#[op_interface_impl]
impl ToLLVMDialect for SharedAddressOp {
    fn rewrite(
        &self,
        ctx: &mut Context,
        rewriter: &mut DialectConversionRewriter,
        _operands_info: &OperandsInfo,
    ) -> Result<()> {
        let mut pointer = self.pointer(ctx);
        let shared = PointerType::get(ctx, SHARED).into();
        if pointer.get_type(ctx) != shared {
            let cast = llvm::AddrSpaceCastOp::new(ctx, pointer, shared);
            rewriter.insert_op(ctx, &cast);
            pointer = cast.get_result(ctx);
        }
        let word = IntegerType::get(ctx, 32, Signedness::Signless).into();
        let cast = llvm::PtrToIntOp::new(ctx, pointer, word);
        rewriter.insert_op(ctx, &cast);
        rewriter.replace_operation_with_values(ctx, self.get_operation(), vec![cast.get_result(ctx)]);
        Ok(())
    }
}

/// The address of a tile in shared memory.
#[cube]
pub(crate) fn shared_address<T: CubePrimitive>(tile: &[T]) -> u32 {
    intrinsic!(|scope| {
        #[expect(unsafe_code, reason = "only the address is taken")]
        // SAFETY: as said.
        let pointer = unsafe { *tile.__expand_as_ptr_method(scope) }.value(scope);
        let op = SharedAddressOp::new(scope.ctx_mut(), pointer);
        ExpandValue::from(scope.register_with_result(&op)).into()
    })
}

/// Adds an instruction; gives its results.
fn instruction(
    scope: &Scope,
    text: &str,
    constraints: &str,
    operands: Vec<Value>,
    results: Vec<TypeHandle>,
) -> Vec<Value> {
    let op = PtxOp::new(scope.ctx_mut(), text, constraints, operands, results);
    scope.register(&op);
    op.get_operation().results(scope.ctx())
}

/// Bytes of a copy (4 or 16), and how far it begins behind the place in global and in shared memory that it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CopyShape {
    pub(crate) size: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl CopyShape {
    /// A copy that begins at both places.
    pub(crate) const fn of(size: usize) -> CopyShape {
        CopyShape { size, from: 0, to: 0 }
    }
}

/// Copies from the start of `from` to an address in shared memory, and zeros if `bytes` is 0. The copy is asynchronous.
#[cube]
pub(crate) fn copy_ahead<T: CubePrimitive>(from: &[T], to: u32, bytes: u32, #[comptime] copy: CopyShape) {
    intrinsic!(|scope| {
        #[expect(unsafe_code, reason = "the caller says how many bytes are there")]
        // SAFETY: as said.
        let from = unsafe { *from.__expand_as_ptr_method(scope) }.value(scope);
        let (to, bytes) =
            (ExpandValue::from(to).read_value(scope), ExpandValue::from(bytes).read_value(scope));
        // Only whole vectors go past the first cache.
        let through = if copy.size == 16 { "cg" } else { "ca" };
        let CopyShape { size, from: after, to: behind } = copy;
        let text = format!("cp.async.{through}.shared.global [$0+{behind}], [$1+{after}], {size}, $2;");
        instruction(scope, &text, "r,l,r,~{memory}", vec![to, from, bytes], vec![]);
    })
}

/// Waits for all copies of this thread. Matmuls of four warps see them too, after a barrier.
#[cube]
pub(crate) fn wait_for_copies() {
    intrinsic!(|scope| {
        instruction(scope, "cp.async.wait_all;", "~{memory}", vec![], vec![]);
    })
}

/// Makes this thread's writes to shared memory visible to matmuls of four warps, after a barrier.
#[cube]
pub(crate) fn show_to_products() {
    intrinsic!(|scope| {
        instruction(scope, "fence.proxy.async.shared::cta;", "~{memory}", vec![], vec![]);
    })
}

/// Stores two halves at an address in shared memory.
#[cube]
pub(crate) fn store_two<E: Float>(two: Vector<E, Const<2>>, to: u32) {
    intrinsic!(|scope| {
        let (two, to) = (ExpandValue::from(two).read_value(scope), ExpandValue::from(to).read_value(scope));
        instruction(scope, "st.shared.b32 [$0], $1;", "r,r,~{memory}", vec![to, two], vec![]);
    })
}

/// Stores a number at an address in shared memory.
#[cube]
pub(crate) fn store_one(number: f32, to: u32) {
    intrinsic!(|scope| {
        let (number, to) =
            (ExpandValue::from(number).read_value(scope), ExpandValue::from(to).read_value(scope));
        instruction(scope, "st.shared.f32 [$0], $1;", "r,f,~{memory}", vec![to, number], vec![]);
    })
}

/// Reads a word `offset` bytes behind an address in shared memory.
#[cube]
pub(crate) fn load_word(from: u32, #[comptime] offset: usize) -> u32 {
    intrinsic!(|scope| {
        let from = ExpandValue::from(from).read_value(scope);
        let word = IntegerType::get(scope.ctx(), 32, Signedness::Unsigned).into();
        let text = format!("ld.shared.b32 $0, [$1+{offset}];");
        let made = instruction(scope, &text, "=r,r,~{memory}", vec![from], vec![word]);
        ExpandValue::from(made[0]).into()
    })
}

/// Adds the product of 16 by 8 and 8 by 8 numbers of TF32 to four sums of each thread (PTX ISA, `mma` with shape `m16n8k8`).
/// `factors` are four words of the left and two of the right one, whose lower 13 bits must be 0: what hardware does with others
/// is not documented. Lane `4 g + t` has of the left factor the column `t` of rows `g` and `g + 8`, then `t + 4` of these; of
/// the right one the rows `t` and `t + 4` of column `g`; of the sums the columns `2 t` and `2 t + 1` of row `g`, then of row
/// `g + 8`.
#[cube]
pub(crate) fn multiply_tf32(factors: Sequence<u32>, sums: Sequence<f32>) -> Sequence<f32> {
    intrinsic!(|scope| {
        let mut operands: Vec<Value> =
            sums.into_iter().map(|x| ExpandValue::from(x).read_value(scope)).collect();
        operands.extend(factors.into_iter().map(|x| ExpandValue::from(x).read_value(scope)));
        let text = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {$0, $1, $2, $3}, {$8, $9, $10, $11}, {$12, $13}, {$4, $5, $6, $7};";
        let constraints = "=f,=f,=f,=f,0,1,2,3,r,r,r,r,r,r";
        let results = vec![FP32Type::get(scope.ctx()).into(); 4];
        let made = instruction(scope, text, constraints, operands, results);
        let mut all = Sequence::<f32>::__expand_new(scope);
        made.into_iter().for_each(|x| all.__expand_push_method(scope, ExpandValue::from(x).into()));
        all
    })
}

/// Stores four matrices of 8 rows by 8 halves, as accumulators have them; lane 8 `i` + `r` has the address of row `r` of the
/// `i`-th (PTX ISA, `stmatrix`).
#[cube]
pub(crate) fn store_matrices<E: Float>(four: Sequence<Vector<E, Const<2>>>, to: u32) {
    intrinsic!(|scope| {
        let mut operands = vec![ExpandValue::from(to).read_value(scope)];
        operands.extend(four.into_iter().map(|x| ExpandValue::from(x).read_value(scope)));
        let text = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};";
        instruction(scope, text, "r,r,r,r,r,~{memory}", operands, vec![]);
    })
}

/// The codes of FP8 of two numbers, rounded to the nearest, ties to even, and greater ones to the greatest: the first one's in
/// the lower byte (PTX ISA, `cvt`, from compute capability 8.9 on).
#[cube]
pub(crate) fn two_codes(first: f32, second: f32, #[comptime] format: Fp8) -> u16 {
    intrinsic!(|scope| {
        let operands = [second, first].map(|x| ExpandValue::from(x).read_value(scope)).to_vec();
        let name = if format == Fp8::E4M3 { "e4m3x2" } else { "e5m2x2" };
        let half = IntegerType::get(scope.ctx(), 16, Signedness::Unsigned).into();
        let text = format!("cvt.rn.satfinite.{name}.f32 $0, $1, $2;");
        let made = instruction(scope, &text, "=h,f,f", operands, vec![half]);
        ExpandValue::from(made[0]).into()
    })
}

/// Bytes of two words in the order of a selector: each of its digits is the number of a byte, those of the second word from 4 on
/// (PTX ISA, `prmt`).
#[cube]
pub(crate) fn permuted(first: u32, second: u32, #[comptime] selector: u32) -> u32 {
    intrinsic!(|scope| {
        let operands = [first, second].map(|x| ExpandValue::from(x).read_value(scope)).to_vec();
        let word = IntegerType::get(scope.ctx(), 32, Signedness::Unsigned).into();
        let text = format!("prmt.b32 $0, $1, $2, {selector};");
        let made = instruction(scope, &text, "=r,r,r", operands, vec![word]);
        ExpandValue::from(made[0]).into()
    })
}

/// The same number, for the compiler another one: what depends on it is computed anew, in place of being kept in registers from
/// an earlier iteration or pass.
#[cube]
pub(crate) fn anew(number: u32) -> u32 {
    intrinsic!(|scope| {
        let number = ExpandValue::from(number).read_value(scope);
        let word = IntegerType::get(scope.ctx(), 32, Signedness::Unsigned).into();
        let made = instruction(scope, "mov.b32 $0, $1;", "=r,r", vec![number], vec![word]);
        ExpandValue::from(made[0]).into()
    })
}

/// The left factors of a product, for each step over 16 columns of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Left {
    /// In registers, in the layout of accumulators.
    Registers,
    /// In shared memory: offset of each step from the first, in units of 16 bytes, and whether rows are contiguous.
    Shared { at: Vec<usize>, by_columns: bool },
}

/// A product of 64 rows by four warps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WarpgroupMatmul {
    pub(crate) columns: usize,
    pub(crate) left: Left,
    /// Offset of the right factor of each step, as for the left; and whether it is stored by rows, with contiguous
    /// columns.
    pub(crate) right_at: Vec<usize>,
    pub(crate) right_by_rows: bool,
    /// Whether the sums are added to.
    pub(crate) adds: bool,
}

impl WarpgroupMatmul {
    /// The instructions. Operands are the sums twice, as results and as initial values, the left factor's registers or
    /// descriptor, and the right one's descriptor.
    fn text(&self, half: &str) -> String {
        let sums = self.columns / 2;
        let steps = self.right_at.len();
        let first = sums + if self.adds { sums } else { 0 };
        let list = |from: usize, many: usize| {
            let names: Vec<String> = (from..from + many).map(|i| format!("${i}")).collect();
            names.join(", ")
        };
        let of_left = if self.left == Left::Registers { 4 * steps } else { 1 };
        let right = first + of_left;
        let mut text = String::from("{ .reg .pred go; .reg .b64 left, right; wgmma.fence.sync.aligned; ");
        for step in 0..steps {
            let adds = u32::from(self.adds || step > 0);
            let by_rows = u32::from(self.right_by_rows);
            text += &format!("setp.ne.b32 go, {adds}, 0; add.s64 right, ${right}, {}; ", self.right_at[step]);
            let (left, transposed) = match &self.left {
                Left::Registers => (format!("{{{}}}", list(first + 4 * step, 4)), String::new()),
                Left::Shared { at, by_columns } => {
                    text += &format!("add.s64 left, ${first}, {}; ", at[step]);
                    ("left".into(), format!("{}, ", u32::from(*by_columns)))
                }
            };
            text += &format!(
                "wgmma.mma_async.sync.aligned.m64n{}k16.f32.{half}.{half} {{{}}}, {left}, right, go, 1, 1, {transposed}{by_rows}; ",
                self.columns,
                list(0, sums)
            );
        }
        text + "wgmma.commit_group.sync.aligned; }"
    }

    fn constraints(&self) -> String {
        let sums = self.columns / 2;
        let mut all = vec!["=&f".to_string(); sums];
        if self.adds {
            all.extend((0..sums).map(|i| i.to_string()));
        }
        match self.left {
            Left::Registers => all.extend(vec!["r".into(); 4 * self.right_at.len()]),
            Left::Shared { .. } => all.push("l".into()),
        }
        all.extend(["l".into(), "~{memory}".into()]);
        all.join(",")
    }
}

/// Starts a matmul of factors of `E`: `sums` may not be read before they have [`arrived`]. `registers` are the left
/// factor if it is in registers; otherwise `left` describes it.
#[cube]
pub(crate) fn begin_product<E: Float>(
    sums: Sequence<f32>,
    registers: Sequence<Vector<E, Const<2>>>,
    left: u64,
    right: u64,
    #[comptime] product: WarpgroupMatmul,
) -> Sequence<f32> {
    intrinsic!(|scope| {
        let half = if E::__expand_as_type(scope).is_bfloat16(scope.ctx()) { "bf16" } else { "f16" };
        let read = |value: ExpandValue| value.read_value(scope);
        let mut operands: Vec<Value> = vec![];
        if product.adds {
            operands.extend(sums.into_iter().map(|x| read(x.into())));
        }
        match product.left {
            Left::Registers => operands.extend(registers.into_iter().map(|x| read(x.into()))),
            Left::Shared { .. } => operands.push(read(left.into())),
        }
        operands.push(read(right.into()));
        let results = vec![FP32Type::get(scope.ctx()).into(); product.columns / 2];
        let made = instruction(scope, &product.text(half), &product.constraints(), operands, results);
        let mut all = Sequence::<f32>::__expand_new(scope);
        made.into_iter().for_each(|x| all.__expand_push_method(scope, ExpandValue::from(x).into()));
        all
    })
}

/// Sums of finished matmuls: all but the `later` last ones.
#[cube]
pub(crate) fn arrived(sums: Sequence<f32>, #[comptime] later: usize) -> Sequence<f32> {
    intrinsic!(|scope| {
        instruction(scope, &format!("wgmma.wait_group.sync.aligned {later};"), "~{memory}", vec![], vec![]);
        // Nothing reads or moves the sums before that: from here on they are the results of another instruction, which is none.
        let operands: Vec<Value> = sums.into_iter().map(|x| ExpandValue::from(x).read_value(scope)).collect();
        let many = operands.len();
        let own = (0..many).map(|i| i.to_string());
        let constraints: Vec<String> = vec!["=f".to_string(); many].into_iter().chain(own).collect();
        let results = vec![FP32Type::get(scope.ctx()).into(); many];
        let made = instruction(scope, "", &constraints.join(","), operands, results);
        let mut all = Sequence::<f32>::__expand_new(scope);
        made.into_iter().for_each(|x| all.__expand_push_method(scope, ExpandValue::from(x).into()));
        all
    })
}
