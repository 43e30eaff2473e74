//! Convolution and both of its gradients as one op: a sum of products in which kernels slide. Each of the three tensors is
//! such a sum of the two others, so gradients are made of the same op, and so are theirs.

use crate::family::float;
use crate::{
    Emit, F64Tensor, Family, Graph, Id, Linear, Op, OpError, Precision, Roles, Sample, Signature, Type, union,
};
use meshwright_diag::codes;
use meshwright_plan::{Dim, Dims, Monoid, Part, Prim, SlidingWindow};

/// One of input, kernel and result, from the two others in that order. With `i = n * stride + t * dilation - low`,
/// `result[n] = sum over t and the dims that input and kernel alone share of input[i] * kernel[t]`, and the others are its
/// transposes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Convolve {
    /// How each kernel dim slides.
    pub slides: Vec<SlidingWindow>,
    /// Which of the three is made.
    pub gives: Part,
    /// Dims of the result in order. Every dim that does not slide is in two of the three tensors or in all.
    pub out: Vec<Dim>,
}

/// Convolutions and gradients are made of it.
pub(crate) static FAMILY: &[Family] = &[Family {
    name: "convolve",
    signature: Signature::SYNTAX,
    doc: "A sum of products in which kernels slide: convolution, and its gradients for input and kernel.",
    build: |_, c| Err(OpError::new(codes::E0201, format!("`{}` is written `conv[…](x, w)`", c.name))),
    samples: || {
        let sample = |label, gives, out: &'static [&'static str], strided: bool, inputs| {
            Sample::new(label, inputs, move |g: &mut Graph, x: &[Id]| {
                for (name, size) in [("k", 3), ("n", 4), ("i", 7)] {
                    if g.dims.find(name).is_none() {
                        g.dims.add(name, size);
                    }
                }
                let find = |d: &str| {
                    g.dims.find(d).ok_or_else(|| OpError::new(codes::E0201, format!("no dim `{d}`")))
                };
                let slide = if strided {
                    SlidingWindow {
                        wide: find("i")?,
                        narrow: find("n")?,
                        tap: find("k")?,
                        stride: 2,
                        dilation: 1,
                        low: 1,
                    }
                } else {
                    SlidingWindow {
                        wide: find("i")?,
                        narrow: find("i")?,
                        tap: find("k")?,
                        stride: 1,
                        dilation: 1,
                        low: 1,
                    }
                };
                let out = out.iter().map(|d| find(d)).collect::<Result<Vec<Dim>, OpError>>()?;
                Ok(g.op(Convolve { slides: vec![slide], gives, out }, x))
            })
        };
        let (b, i, n, k, c, o) = (("b", 3), ("i", 7), ("n", 4), ("k", 3), ("c", 2), ("o", 3));
        vec![
            sample("input", Part::Input, &["b", "i", "c"], false, vec![float(&[k, c, o]), float(&[b, i, o])]),
            sample(
                "kernel",
                Part::Kernel,
                &["k", "c", "o"],
                false,
                vec![float(&[b, i, c]), float(&[b, i, o])],
            ),
            sample(
                "input, stride 2",
                Part::Input,
                &["b", "i"],
                true,
                vec![float(&[k, o]), float(&[b, n, o])],
            ),
            sample(
                "kernel, stride 2",
                Part::Kernel,
                &["k", "o"],
                true,
                vec![float(&[b, i]), float(&[b, n, o])],
            ),
        ]
    },
}];

impl Convolve {
    /// Which of the three the operands are.
    fn takes(&self) -> [Part; 2] {
        match self.gives {
            Part::Result => [Part::Input, Part::Kernel],
            Part::Input => [Part::Kernel, Part::Result],
            Part::Kernel => [Part::Input, Part::Result],
        }
    }

    fn slides(&self, d: Dim) -> bool {
        self.slides.iter().any(|s| [s.wide, s.narrow, s.tap].contains(&d))
    }
}

impl Op for Convolve {
    fn name(&self) -> &'static str {
        match self.gives {
            Part::Result => "conv",
            Part::Input => "conv_input",
            Part::Kernel => "conv_kernel",
        }
    }

    fn infer(&self, x: &[&Type], _: &Dims) -> Result<Type, OpError> {
        for (i, t) in x.iter().enumerate() {
            if t.dtype != x[0].dtype || !t.dtype.is_float() {
                return Err(OpError::new(
                    codes::E0202,
                    format!("a convolution of {} and {}", x[0].dtype, x[1].dtype),
                )
                .operand(i)
                .help("convert one of them: `cast(…, float)`"));
            }
        }
        Ok(Type::new(x[0].dtype, self.out.clone()))
    }

    fn ordered(&self, _: &[&Type], _: &Type, _: &Dims) -> Vec<Dim> {
        super::slides::dims(&self.slides)
    }

    fn roles(&self, x: &[&Type], y: &Type, table: &Dims) -> Roles {
        let taps: Vec<Dim> = self.slides.iter().map(|s| s.tap).collect();
        let mut roles = Roles::new(x, y, Monoid::Sum, Linear::EachAlone).whole(&taps);
        for s in &self.slides {
            roles = match self.gives {
                Part::Result | Part::Kernel => roles.window(s.narrow, 0, s.wide, s.of_positions(table)),
                Part::Input => roles.window(s.wide, 1, s.narrow, s.of_elements(table)),
            };
        }
        roles
    }

    fn precision(&self, _: &[&Type], _: &Type) -> Precision {
        Precision::Products
    }

    fn vjp(&self, g: &mut Graph, x: &[Id], y: Id, dy: Id, need: &[bool]) -> Vec<Option<Id>> {
        let dims = g.ty(y).dims.clone();
        let dy = g.expanded(dy, &dims);
        let all = self.gives.arrange([x[0], x[1]], dy);
        let mut out = Vec::new();
        for (slot, gives) in self.takes().into_iter().enumerate() {
            let others = match gives {
                Part::Input => [all[1], all[2]],
                Part::Kernel => [all[0], all[2]],
                Part::Result => [all[0], all[1]],
            };
            let to = g.ty(x[slot]).dims.clone();
            out.push(
                need[slot].then(|| g.op(Convolve { slides: self.slides.clone(), gives, out: to }, &others)),
            );
        }
        out
    }

    fn lower(&self, e: &mut dyn Emit) {
        let [a, b] = [e.input(0), e.input(1)];
        // What only the two images have goes outside: work is shared along it. The kernel is stored as it is declared.
        let order: Vec<Dim> = match self.gives {
            Part::Kernel => self.out.clone(),
            Part::Result | Part::Input => {
                let (image, kernel) = if self.gives == Part::Result { (&a, &b) } else { (&b, &a) };
                let outer = |d: &Dim| self.out.contains(d) && !self.slides(*d) && !kernel.dims.contains(d);
                let has = if self.gives == Part::Result {
                    super::slides::Has::Wide
                } else {
                    super::slides::Has::Narrow
                };
                let moved = super::slides::replaced(&image.dims, &self.slides, has);
                let mut order: Vec<Dim> = moved.iter().copied().filter(outer).collect();
                let rest = moved.iter().chain(&kernel.dims).chain(&self.out);
                for d in rest.filter(|d| self.out.contains(d)) {
                    if !order.contains(d) {
                        order.push(*d);
                    }
                }
                order
            }
        };
        let out = e.output(&order);
        e.push(Prim::Convolve { windows: self.slides.clone(), computes: self.gives }, vec![a, b], out);
    }

    fn flops(&self, x: &[&Type], y: &Type, size: &dyn Fn(Dim) -> u64, table: &Dims) -> u64 {
        let mut all: Vec<&Type> = x.to_vec();
        all.push(y);
        let rest: u64 = union(all).into_iter().filter(|d| !self.slides(*d)).map(size).product();
        let along = |s: &SlidingWindow| match self.gives {
            Part::Input => (size(s.wide) * table.size(s.tap) as u64).div_ceil(s.stride as u64),
            _ => size(s.narrow) * table.size(s.tap) as u64,
        };
        2 * rest * self.slides.iter().map(along).product::<u64>()
    }

    fn model_flops(&self, x: &[&Type], y: &Type, table: &Dims) -> u64 {
        self.flops(x, y, &|d| table.size(d) as u64, table)
    }

    fn oracle(&self, x: &[&F64Tensor], y: &Type, table: &Dims) -> F64Tensor {
        let mut out = F64Tensor::build(table, &y.dims, |_| 0.0);
        let rest: Vec<Dim> = {
            let types: Vec<Type> = x.iter().map(|t| Type::new(y.dtype, t.dims.clone())).collect();
            let mut all: Vec<&Type> = types.iter().collect();
            all.push(y);
            union(all).into_iter().filter(|d| !self.slides(*d)).collect()
        };
        // Positions of all that does not slide, then of every narrow dim, then of every tap.
        let along = |f: fn(&SlidingWindow) -> Dim| -> Vec<Dim> { self.slides.iter().map(f).collect() };
        let (wide, narrow, tap) = (along(|s| s.wide), along(|s| s.narrow), along(|s| s.tap));
        let loops = [rest.as_slice(), &narrow, &tap].concat();
        let names = [&wide, &tap, &narrow].map(|d| [rest.as_slice(), d].concat());
        let (r, n) = (rest.len(), self.slides.len());
        crate::tensor::each_position(&table.shape(&loops), |at| {
            let (positions, taps) = (&at[r..r + n], &at[r + n..]);
            let mut elements = Vec::new();
            for (k, s) in self.slides.iter().enumerate() {
                match s.element(positions[k], taps[k], table) {
                    Some(i) => elements.push(i),
                    None => return,
                }
            }
            let places = [&elements[..], taps, positions].map(|p| [&at[..r], p].concat());
            let read = |t: &F64Tensor, part: usize| t.at(&names[part], &places[part]);
            let (product, part) = match self.gives {
                Part::Result => (read(x[0], 0) * read(x[1], 1), 2),
                Part::Input => (read(x[0], 1) * read(x[1], 2), 0),
                Part::Kernel => (read(x[0], 0) * read(x[1], 2), 1),
            };
            let o = out.offset(&names[part], &places[part]);
            out.data[o] += product;
        });
        out
    }
}
