//! Approximate exponentials: a product and one instruction of the GPU, instead of nine that are exact to the last place. The
//! error, 2 units in the last place of `f32` (PTX ISA, `ex2.approx`), disappears when weights are rounded to a half type.
//!
//! CubeCL's operations have no such instruction, so this is one of our own, with its lowering.

use cubecl::ir::ExpandValue;
use cubecl::ir::interfaces::TriviallyUnrollable;
use cubecl::ir::prelude::*;
use cubecl::ir::{CanMaterialize, PropagatesUniformity, Pure, cube_op};
use cubecl::prelude::*;
use cubecl_llvm::LlvmTarget;
use cubecl_llvm::shared::intrinsic::call_op;
use cubecl_llvm::shared::to_llvm::ToLLVMDialect;
use cubecl_llvm::shared::to_llvm::ty::cube_type_to_llvm;
use cubecl_llvm::target::CtxTarget;

/// 2 to the power of an `f32`; what is subnormal becomes 0.
#[cube_op(name = "meshwright.exp2")]
#[result_ty(same_as = input)]
#[op_interfaces(SameOperandsType, SameOperandsAndResultType, TriviallyUnrollable)]
#[op_traits(CanMaterialize, Pure, PropagatesUniformity)]
pub struct Exp2Op {
    pub input: Value,
}

#[op_interface_impl]
impl ToLLVMDialect for Exp2Op {
    fn rewrite(
        &self,
        ctx: &mut Context,
        rewriter: &mut DialectConversionRewriter,
        _operands_info: &OperandsInfo,
    ) -> Result<()> {
        let input = self.input(ctx);
        let result = cube_type_to_llvm(ctx, self.get_result(ctx).get_type(ctx));
        let name = match ctx.target() {
            LlvmTarget::Cpu => "llvm.exp2.f32",
            _ => "llvm.nvvm.ex2.approx.ftz.f32",
        };
        let op = call_op(ctx, name, result, vec![input]);
        rewriter.insert_op(ctx, &op);
        rewriter.replace_operation_with_values(ctx, self.get_operation(), vec![op.get_result(ctx)]);
        Ok(())
    }
}

/// 2 to the power of `x`.
#[cube]
pub(crate) fn exp2(x: f32) -> f32 {
    intrinsic!(|scope| {
        let value: ExpandValue = x.into();
        let input = value.read_value(scope);
        let op = Exp2Op::new(scope.ctx_mut(), input);
        ExpandValue::from(scope.register_with_result(&op)).into()
    })
}

/// `e` to the power of `x`.
#[cube]
pub(crate) fn exp(x: f32) -> f32 {
    exp2(x * comptime!(std::f32::consts::LOG2_E))
}
