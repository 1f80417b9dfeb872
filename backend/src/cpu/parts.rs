//! Tasks of layers whose linear layers the CPU and the device compute together.

use plimsoll_core::Dtype;
use plimsoll_core::compression::GROUP_ELEMENTS;
use plimsoll_core::model::TensorSpec;
use plimsoll_core::program::{Content, Gemm, Op, ResourceKind, Stage};
use plimsoll_core::split::Module;
use plimsoll_core::units::Bytes;

use super::error::TaskError;
use super::turn::Turn;
use crate::decoder::{DecoderError, Joined, Parted, Product};
use crate::kernels::groups::PackedMatrix;
use crate::kernels::{Elements, ElementsMut, Matrix};
use crate::tiers::Pace;

/// Of weights that a CPU which is held back computes with at a time.
const BAND_BYTES: u64 = 1 << 20;

impl<'a> Turn<'a> {
    /// Does one of them.
    pub(super) fn in_parts(
        &self,
        (op, kind): (&Op, ResourceKind),
        pace: Option<&Pace<'_>>,
    ) -> Result<(), TaskError> {
        let Op::Linear {
            stage, position, ..
        } = *op
        else {
            return Err(TaskError::NoOperand("a split linear layer"));
        };
        let batch = self.batch(position);
        let decoder = &self.engine.decoder;
        if stage == Stage::Part {
            return self.part((op, kind), pace);
        }
        let tensors = self.tensors()?;
        let joined = Joined {
            block: &tensors,
            batch,
        };
        let parted = |module| self.parted(module);
        match stage {
            Stage::Normalise => {
                decoder.normalise(joined, &self.hidden(batch)?, self.new_input()?)?;
            }
            Stage::Attended => {
                decoder.attended(batch, &self.attended(batch)?, self.new_input()?)?;
            }
            Stage::JoinProject => {
                let all = [parted(Module::Q)?, parted(Module::K)?, parted(Module::V)?];
                let (mut queries, mut parts) = self.projected(batch)?;
                decoder.join_project(joined, all, (&mut queries, &mut parts))?;
            }
            Stage::JoinOutput => {
                let mut hidden = self.hidden_mut(batch)?;
                let into = (&mut hidden, self.new_input()?);
                decoder.join_output(joined, parted(Module::O)?, into)?;
            }
            Stage::JoinInner => {
                let both = (parted(Module::Up)?, parted(Module::Gate)?);
                decoder.join_inner(joined, both, self.new_input()?)?;
            }
            _ => {
                let mut hidden = self.hidden_mut(batch)?;
                decoder.join_mlp(joined, parted(Module::Down)?, &mut hidden)?;
            }
        }
        Ok(())
    }

    /// The input that the task makes for the next step.
    fn new_input(&self) -> Result<&'a mut [f32], TaskError> {
        let index = self.need("a buffer of inputs", |content| {
            matches!(content, Content::Input { .. })
        })?;
        as_f32_mut(self.operands.write(index)?)
    }

    /// The weight of one of the block's linear layers.
    pub(crate) fn weight(&self, module: Module) -> Result<&'a TensorSpec, TaskError> {
        let block = self.engine.placement.blocks.get(self.cell.block as usize);
        let mut tensors = block.into_iter().flat_map(|block| &block.tensors);
        let tensor = tensors.find(|tensor| tensor.spec.role == module.weight());
        let tensor = tensor.ok_or(TaskError::NoOperand("a linear layer of the model"))?;
        Ok(&tensor.spec)
    }

    /// What parts gave of a module; nothing where the model has no such module.
    fn parted(&self, module: Module) -> Result<Parted<'a>, TaskError> {
        let mut parts = Vec::new();
        // The CPU's rows are the first, and the device's follow as they came.
        for (index, operand) in self.operands.all().iter().enumerate() {
            if matches!(operand.content, Content::Outputs { module: of, .. } if of == module) {
                parts.push(as_f32(self.operands.read(index)?)?);
            }
        }
        Ok(Parted(parts))
    }

    /// Computes some rows of a linear layer. With a pace it takes its time evenly: a CPU that is held back leaves its cores to
    /// others all the while, and not only once it has computed everything.
    fn part(
        &self,
        (op, kind): (&Op, ResourceKind),
        pace: Option<&Pace<'_>>,
    ) -> Result<(), TaskError> {
        let Op::Linear { m, gemms, .. } = *op else {
            return Err(TaskError::NoOperand("a split linear layer"));
        };
        let outputs = self.need("room for a part's outputs", |content| {
            matches!(content, Content::Outputs { .. })
        })?;
        let Content::Outputs { module, .. } = self.operands.get(outputs)?.content else {
            return Err(TaskError::NoOperand("room for a part's outputs"));
        };
        let gemm = gemms.iter().next();
        let gemm = gemm.ok_or(TaskError::NoOperand("a product of a part"))?;
        let input = self.need("the input of a part", |content| {
            matches!(content, Content::Input { .. })
        })?;
        let x = as_f32(self.operands.read(input)?)?;
        let product = Product {
            weight: self.part_weight(module, gemm)?,
            rows: gemm.n as usize,
            columns: gemm.k as usize,
        };
        let into = as_f32_mut(self.operands.write(outputs)?)?;
        let decoder = &self.engine.decoder;
        let with_all = kind != ResourceKind::Cpu || self.engine.on_card;
        let (m, rows) = (m as usize, product.rows);
        let Some(pace) = pace else {
            return Ok(decoder.part((m, x), product, (into, with_all))?);
        };
        let all = self.engine.weight_bytes(op).0;
        let at_once = (u128::from(BAND_BYTES) * rows as u128 / u128::from(all.max(1))) as usize;
        let at_once = at_once.next_multiple_of(GROUP_ELEMENTS as usize);
        let mut band_into = Vec::new();
        for start in (0..rows).step_by(at_once) {
            let band = start..rows.min(start + at_once);
            let some = Product {
                weight: product.weight.rows(band.clone(), product.columns),
                rows: band.len(),
                columns: product.columns,
            };
            band_into.resize(m * band.len(), 0.0);
            decoder.part((m, x), some, (&mut band_into, with_all))?;
            for (into, from) in into.chunks_mut(rows).zip(band_into.chunks(band.len())) {
                into[band.clone()].copy_from_slice(from);
            }
            pace.keep(Bytes(all * band.end as u64 / rows as u64))?;
        }
        Ok(())
    }

    /// The rows of a weight that a part computes with: those that came to the device, or the first ones of its home, which are
    /// the CPU's, or all.
    fn part_weight(&self, module: Module, gemm: Gemm) -> Result<Matrix<'a>, TaskError> {
        let (rows, columns) = (gemm.n as usize, gemm.k as usize);
        let came = self.find(|content| matches!(content, Content::Rows { .. }));
        let Some(index) = came else {
            let all = self.tensors()?.get(module.weight())?;
            return Ok(all.rows(0..rows, columns));
        };
        let bytes = self.operands.read(index)?;
        let plan = &self.engine.plan;
        let weight = self.weight(module)?;
        let matrix = match plan.policy.compression.packs(weight) {
            true => PackedMatrix::new(bytes, rows, columns).map(Matrix::Packed),
            false => Elements::from_bytes(bytes, plan.dtype).map(Matrix::from),
        };
        Ok(matrix.map_err(DecoderError::from)?)
    }
}

fn as_f32(bytes: &[u8]) -> Result<&[f32], TaskError> {
    match Elements::from_bytes(bytes, Dtype::F32).map_err(DecoderError::from)? {
        Elements::F32(seen) => Ok(seen),
        _ => Err(TaskError::NoOperand("values in f32")),
    }
}

fn as_f32_mut(bytes: &mut [u8]) -> Result<&mut [f32], TaskError> {
    match ElementsMut::from_bytes(bytes, Dtype::F32).map_err(DecoderError::from)? {
        ElementsMut::F32(seen) => Ok(seen),
        _ => Err(TaskError::NoOperand("values in f32")),
    }
}
