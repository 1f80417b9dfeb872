//! Tasks of layers whose linear layers the CPU and the GPU compute together (HeteGen): the GPU's rows as they come, and what
//! joins its outputs to the CPU's.
//!
//! What parts read and give is f32, as the program has it. What they read holds numbers of the stored type, though, since a
//! GPU multiplies these: so CPU and GPU read the same, and whole outputs are rounded as those of a whole layer are.

use plimsoll_core::model::{NormPosition, TensorRole, TensorSpec};
use plimsoll_core::plan::Plan;
use plimsoll_core::program::{Content, Gemm, Op, Stage};
use plimsoll_core::split::Module;
use plimsoll_core::units::Bytes;

use super::issue::{Piece, Tensor, Work};
use crate::cpu::error::TaskError;
use crate::cuda::launches::{self, Join, Product, to_stored, to_wide};

/// Tokens of which inputs are converted at once: a product of as many reads its weights seldom enough.
const TOKENS_AT_ONCE: usize = 256;

/// Bytes of an element of what parts read and give.
const WIDE: usize = 4;

/// Bytes of what the plan does not count: inputs of the stored type. Nothing where nothing is split.
pub(super) fn inputs_bytes(plan: &Plan) -> usize {
    if plan.policy.split.is_none() {
        return 0;
    }
    let tensors = plan.model.tensors(1);
    let split = tensors.iter().filter(|t| Module::of(t.role).is_some());
    let widest = split.map(|tensor| tensor.cols).max().unwrap_or(0);
    let tokens = u64::from(plan.policy.gpu_batch_size * plan.workload.prompt_len);
    let elements = widest * tokens.min(TOKENS_AT_ONCE as u64);
    (elements * plan.dtype.size_bytes()) as usize
}

/// First tokens and counts of those that are converted at once.
fn tiles(tokens: usize) -> impl Iterator<Item = (usize, usize)> {
    let starts = (0..tokens).step_by(TOKENS_AT_ONCE);
    starts.map(move |first| (first, TOKENS_AT_ONCE.min(tokens - first)))
}

/// Where whole outputs of some tokens are.
#[derive(Clone, Copy)]
struct Whole {
    /// Of the first of these tokens.
    y: u64,
    /// Bytes of an element there.
    element: usize,
    first: usize,
    tokens: usize,
    /// Of the batch.
    all_tokens: usize,
}

impl Work<'_> {
    /// Does a task of a split linear layer.
    pub(super) fn in_parts(&self, op: &Op) -> Result<(), TaskError> {
        let Op::Linear {
            stage,
            m,
            gemms,
            position,
            ..
        } = *op
        else {
            return Err(TaskError::NoOperand("a split linear layer"));
        };
        match stage {
            Stage::Part => {
                let gemm = gemms.iter().next();
                let gemm = gemm.ok_or(TaskError::NoOperand("a product of a part"))?;
                self.part(m as usize, gemm)
            }
            Stage::Normalise => {
                let roles = [TensorRole::AttnNormWeight, TensorRole::AttnNormBias];
                self.make_input(&self.hidden(position)?, roles)
            }
            Stage::Attended => self.make_input_of_attended(position),
            Stage::JoinProject => self.join_project(position),
            Stage::JoinOutput => self.join_output(position),
            Stage::JoinInner => self.join_inner(position),
            _ => {
                let norm = [TensorRole::MlpNormWeight, TensorRole::MlpNormBias];
                self.join_residual(Module::Down, position, norm)?;
                Ok(())
            }
        }
    }

    /// Computes with some rows of a module.
    fn part(&self, m: usize, gemm: Gemm) -> Result<(), TaskError> {
        let [n, k] = [gemm.n as usize, gemm.k as usize];
        let what = "room for a part's outputs";
        let outputs = self
            .turn
            .need(what, |c| matches!(c, Content::Outputs { .. }))?;
        let Content::Outputs { module, .. } = self.turn.operands.get(outputs)?.content else {
            return Err(TaskError::NoOperand(what));
        };
        let y = self.wide(outputs, m * n)?;
        let x = self.input(m * k)?;
        let weight = self.turn.weight(module)?;
        let tensor = self.part_weight((module, weight), n)?;
        let stored = self.device.beside.at.stored_inputs;
        let dtype = self.turn.engine.plan.dtype;
        let product = Product {
            dtype,
            x: stored,
            weights: tensor.address,
            packed: tensor.packed,
            bias: 0,
            y,
            shape: [m, n, k],
            wide: true,
            fresh: false,
        };
        let layer = [m, weight.rows as usize, k];
        let product = match tensor.packed && !self.stays_packed(layer, false) {
            true => self.unpacked(product, self.matrix_room(n * k)?)?,
            false => product,
        };
        for (first, count) in tiles(m) {
            let from = x + (WIDE * first * k) as u64;
            self.launch(&to_stored(dtype, [stored, from], count * k)?)?;
            let tile = Product {
                y: y + (WIDE * first * n) as u64,
                shape: [count, n, k],
                ..product
            };
            self.multiply(&tile, weight.rows as usize)?;
        }
        Ok(())
    }

    /// The rows that a part computes with: those that came, or all that are at home here.
    fn part_weight<'s>(
        &'s self,
        (module, spec): (Module, &'s TensorSpec),
        rows: usize,
    ) -> Result<Tensor<'s>, TaskError> {
        let came = self.turn.find(|c| matches!(c, Content::Rows { .. }));
        let Some(index) = came else {
            return self.need(module.weight());
        };
        let plan = &self.turn.engine.plan;
        let compression = plan.policy.compression;
        let bytes = compression.rows_bytes(spec, rows as u64, plan.dtype);
        self.turn.operands.get(index)?.part(Bytes::ZERO, bytes)?;
        Ok(Tensor {
            address: self.turn.operands.address(index)?,
            spec,
            packed: compression.packs(spec),
        })
    }

    /// The address of an operand of so many f32.
    fn wide(&self, index: usize, count: usize) -> Result<u64, TaskError> {
        let bytes = Bytes((WIDE * count) as u64);
        self.turn.operands.get(index)?.part(Bytes::ZERO, bytes)?;
        self.turn.operands.address(index)
    }

    /// The input that a task reads, or makes, of so many f32.
    fn input(&self, count: usize) -> Result<u64, TaskError> {
        let index = self.turn.need("a buffer of inputs", |content| {
            matches!(content, Content::Input { .. })
        })?;
        self.wide(index, count)
    }

    /// Makes a step's input of the activations, normalised where the model does so before.
    fn make_input(&self, pieces: &[Piece], norm: [TensorRole; 2]) -> Result<(), TaskError> {
        let plan = &self.turn.engine.plan;
        let before = plan.model.norm_position == NormPosition::Before;
        let width = self.width();
        let into = self.input(pieces.iter().map(|piece| piece.tokens * width).sum())?;
        let normal = self.device.beside.at.stored_inputs;
        for piece in pieces {
            for (first, count) in tiles(piece.tokens) {
                let mut x = piece.address + (first * width * self.element()) as u64;
                if before {
                    self.normalise((x, normal), count, norm)?;
                    x = normal;
                }
                let y = into + (WIDE * (piece.first + first) * width) as u64;
                self.launch(&to_wide(plan.dtype, [y, x], count * width)?)?;
            }
        }
        Ok(())
    }

    /// Makes the input of attention's output layer.
    fn make_input_of_attended(&self, position: u32) -> Result<(), TaskError> {
        let parts = self.attended_parts(position)?;
        let mut into = self.input(parts.iter().map(|(_, elements)| elements).sum())?;
        for (from, elements) in parts {
            self.launch(&to_wide(
                self.turn.engine.plan.dtype,
                [into, from],
                elements,
            )?)?;
            into += (WIDE * elements) as u64;
        }
        Ok(())
    }

    fn join_project(&self, position: u32) -> Result<(), TaskError> {
        let tokens = self.tokens(position);
        let mut projected = [0; 3];
        for (y, module) in projected.iter_mut().zip([Module::Q, Module::K, Module::V]) {
            let width = self.turn.weight(module)?.rows as usize;
            *y = self.room(tokens * width)?;
            self.join(
                (module, Join::Put),
                self.all(position, (*y, self.element())),
            )?;
        }
        self.projected(projected, position)
    }

    fn join_output(&self, position: u32) -> Result<(), TaskError> {
        let norm = [TensorRole::AttnNormWeight, TensorRole::AttnNormBias];
        let pieces = self.join_residual(Module::O, position, norm)?;
        let roles = [TensorRole::MlpNormWeight, TensorRole::MlpNormBias];
        self.make_input(&pieces, roles)
    }

    fn join_inner(&self, position: u32) -> Result<(), TaskError> {
        let activation = self.turn.engine.decoder.activation();
        let model = &self.turn.engine.plan.model;
        let inner = self.tokens(position) * model.intermediate_size as usize;
        let all = self.all(position, (self.input(inner)?, WIDE));
        if !model.gated_mlp {
            return self.join((Module::Up, Join::Activate(Some(activation))), all);
        }
        self.join((Module::Gate, Join::Activate(None)), all)?;
        self.join((Module::Up, Join::Gate(activation)), all)
    }

    /// All tokens' outputs in one place.
    fn all(&self, position: u32, (y, element): (u64, usize)) -> Whole {
        let tokens = self.tokens(position);
        Whole {
            y,
            element,
            first: 0,
            tokens,
            all_tokens: tokens,
        }
    }

    /// Adds a module's outputs to the activations, which are normalised where the model does so after; gives these.
    fn join_residual(
        &self,
        module: Module,
        position: u32,
        norm: [TensorRole; 2],
    ) -> Result<Vec<Piece>, TaskError> {
        let after = self.turn.engine.plan.model.norm_position == NormPosition::After;
        let pieces = self.hidden(position)?;
        for piece in &pieces {
            let whole = Whole {
                first: piece.first,
                tokens: piece.tokens,
                ..self.all(position, (piece.address, self.element()))
            };
            self.join((module, Join::Add), whole)?;
            if after {
                self.normalise((piece.address, piece.address), piece.tokens, norm)?;
            }
        }
        Ok(pieces)
    }

    /// Brings what parts gave of a module to its place among all rows.
    fn join(&self, (module, how): (Module, Join), whole: Whole) -> Result<(), TaskError> {
        let width = self.turn.weight(module)?.rows as usize;
        let bias = self.vector(module.bias())?;
        let mut begin = 0;
        // The CPU's rows are the first, and the GPU's follow as they came.
        for (index, operand) in self.turn.operands.all().iter().enumerate() {
            if !matches!(operand.content, Content::Outputs { module: of, .. } if of == module) {
                continue;
            }
            let rows = operand.bytes as usize / (WIDE * whole.all_tokens);
            let from = self.turn.operands.address(index)?;
            let part = launches::Part {
                dtype: self.turn.engine.plan.dtype,
                part: from + (WIDE * whole.first * rows) as u64,
                bias: match bias {
                    0 => 0,
                    bias => bias + (begin * self.element()) as u64,
                },
                y: whole.y + (begin * whole.element) as u64,
                tokens: whole.tokens,
                rows,
                width,
            };
            self.launch(&part.join(how)?)?;
            begin += rows;
        }
        match begin == width {
            true => Ok(()),
            false => Err(TaskError::NoOperand("all outputs of a linear layer")),
        }
    }
}
