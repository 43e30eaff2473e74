//! What wants a first value.

use crate::project::Project;
use meshwright_plan::DType;

/// A parameter or a state of a model.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) path: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Names of its dims.
    pub(crate) names: Vec<String>,
    /// `[classes=10 hidden=32]`.
    pub(crate) dims: String,
    pub(crate) is_param: bool,
}

/// All parameters and states of a model.
pub(crate) fn targets(project: &Project) -> Vec<Target> {
    let program = &project.program;
    let params = program.params.iter().map(|p| (&p.path, p.id, true));
    let all = params.chain(program.states.iter().map(|s| (&s.path, s.id, false)));
    all.map(|(path, id, is_param)| {
        let (table, ty) = (&program.graph.dims, program.graph.ty(id));
        let named: Vec<String> =
            ty.dims.iter().map(|d| format!("{}={}", table.name(*d), table.size(*d))).collect();
        let (shape, dims) = (table.shape(&ty.dims), format!("[{}]", named.join(" ")));
        let names = ty.dims.iter().map(|d| table.name(*d).to_string()).collect();
        Target { path: path.clone(), dtype: ty.dtype, shape, names, dims, is_param }
    })
    .collect()
}
