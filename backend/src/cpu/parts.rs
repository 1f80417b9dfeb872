//! Tasks of layers whose linear layers the CPU and the device compute together.

use plimsoll_core::Dtype;
use plimsoll_core::compression::GROUP_ELEMENTS;
use plimsoll_core::model::TensorSpec;
use plimsoll_core::program::{Content, Op, ResourceKind, Stage};
use plimsoll_core::split::{Module, RowSplit};
use plimsoll_core::tier::Tier;
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
        let parted = |module| self.parted(module, position == 0);
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

    fn weight(&self, module: Module) -> Option<&'a TensorSpec> {
        let block = self.engine.placement.blocks.get(self.cell.block as usize)?;
        let tensors = block.tensors.iter().map(|tensor| &tensor.spec);
        tensors.into_iter().find(|t| t.role == module.weight())
    }

    /// Who computes which rows of a module in this layer.
    fn rows(&self, module: Module, is_prefill: bool) -> Option<(&'a TensorSpec, RowSplit)> {
        let plan = &self.engine.plan;
        let split = plan.policy.split.as_ref()?;
        let weight = self.weight(module)?;
        let layer = u32::from(self.cell.block) - 1;
        let rows = match split.is_on_device(module, layer, plan.model.num_hidden_layers) {
            true => RowSplit {
                host: 0,
                device: weight.rows,
            },
            false => split.rows((module, weight), is_prefill, plan.policy.compression),
        };
        Some((weight, rows))
    }

    /// What parts gave of a module; nothing where the model has no such module.
    fn parted(&self, module: Module, is_prefill: bool) -> Result<Parted<'a>, TaskError> {
        let Some((_, rows)) = self.rows(module, is_prefill) else {
            return Ok(Parted::default());
        };
        let part = |tier: Tier, rows: u64| {
            let wanted = |content| match content {
                Content::Outputs { module: of, by, .. } => of == module && by == tier,
                _ => false,
            };
            if rows == 0 {
                return Ok::<_, TaskError>(None);
            }
            let index = self.need("outputs of a part", wanted)?;
            let outputs = as_f32(self.operands.read(index)?)?;
            Ok(Some((outputs, rows as usize)))
        };
        Ok(Parted {
            host: part(Tier::Host, rows.host)?,
            device: part(Tier::Device, rows.device)?,
        })
    }

    /// Computes some rows of a linear layer. With a pace it takes its time evenly: a CPU that is held back leaves its cores to
    /// others all the while, and not only once it has computed everything.
    fn part(
        &self,
        (op, kind): (&Op, ResourceKind),
        pace: Option<&Pace<'_>>,
    ) -> Result<(), TaskError> {
        let Op::Linear { m, position, .. } = *op else {
            return Err(TaskError::NoOperand("a split linear layer"));
        };
        let outputs = self.need("room for a part's outputs", |content| {
            matches!(content, Content::Outputs { .. })
        })?;
        let Content::Outputs { module, by, .. } = self.operands.get(outputs)?.content else {
            return Err(TaskError::NoOperand("room for a part's outputs"));
        };
        let (weight, rows) = self
            .rows(module, position == 0)
            .ok_or(TaskError::NoOperand("a linear layer of the model"))?;
        let input = self.need("the input of a part", |content| {
            matches!(content, Content::Input { .. })
        })?;
        let x = as_f32(self.operands.read(input)?)?;
        let product = Product {
            weight: self.part_weight((module, weight), (rows, by))?,
            rows: match by {
                Tier::Host => rows.host,
                _ => rows.device,
            } as usize,
            columns: weight.cols as usize,
        };
        let into = as_f32_mut(self.operands.write(outputs)?)?;
        let decoder = &self.engine.decoder;
        let on_device = kind != ResourceKind::Cpu;
        let (m, rows) = (m as usize, product.rows);
        let Some(pace) = pace else {
            return Ok(decoder.part((m, x), product, (into, on_device))?);
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
            decoder.part((m, x), some, (&mut band_into, on_device))?;
            for (into, from) in into.chunks_mut(rows).zip(band_into.chunks(band.len())) {
                into[band.clone()].copy_from_slice(from);
            }
            pace.keep(Bytes(all * band.end as u64 / rows as u64))?;
        }
        Ok(())
    }

    /// The rows of a weight that a part computes with: of its home, or those that came to the device.
    fn part_weight(
        &self,
        (module, weight): (Module, &TensorSpec),
        (rows, by): (RowSplit, Tier),
    ) -> Result<Matrix<'a>, TaskError> {
        let columns = weight.cols as usize;
        let came = self.find(|content| matches!(content, Content::Rows { .. }));
        let Some(index) = came else {
            let range = match by {
                Tier::Host => 0..rows.host as usize,
                _ => rows.host as usize..weight.rows as usize,
            };
            let all = self.tensors()?.get(module.weight())?;
            return Ok(all.rows(range, columns));
        };
        let bytes = self.operands.read(index)?;
        let plan = &self.engine.plan;
        let matrix = match plan.policy.compression.packs(weight) {
            true => PackedMatrix::new(bytes, rows.device as usize, columns).map(Matrix::Packed),
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
