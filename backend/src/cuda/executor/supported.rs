//! What GPUs do not execute yet is refused before anything is taken or runs.

use plimsoll_core::Dtype;
use plimsoll_core::compression::{Compression, Kept};
use plimsoll_core::model::{ModelSpec, Positions};
use plimsoll_core::plan::Plan;

use crate::cpu::{CpuError, CpuOptions, Throttles};
use crate::cuda::CudaError;
use crate::cuda::launches::{HeldAs, check_cache};
use crate::serving::Served;

/// What the cache of a plan keeps.
pub(super) fn held(compression: Compression) -> HeldAs {
    match compression.cache {
        true => HeldAs::Packed,
        false => HeldAs::Whole,
    }
}

/// Refuses a plan that is not executed on GPUs.
pub(crate) fn check_plan(plan: &Plan, options: &CpuOptions) -> Result<(), CpuError> {
    let (model, policy) = (&plan.model, &plan.policy);
    if plan.dtype == Dtype::F32 {
        return Err(CudaError::Type(plan.dtype).into());
    }
    let head = policy
        .compression
        .cache_head_bytes(model.head_dim, plan.dtype);
    let record = 2 * head.0 as usize;
    check_cache(held(policy.compression), model.head_dim as usize, record)?;
    check_model(model)?;
    let projects = model.embedding_size != model.hidden_size;
    refuse([
        (
            policy.pipeline.stages > 1,
            "a plan for several GPUs",
            "plan for one, or use --backend cpu",
        ),
        (
            policy.sparse_attention < 1.0,
            "sparse attention",
            "plan without --sparse-attention, or use --backend cpu",
        ),
        (
            options.throttles != Throttles::default(),
            "a limit on the pace of a link",
            "leave the limits out, or use --backend cpu",
        ),
        (
            projects && policy.compression.weights,
            "a projected embedding in 4 bits",
            "plan without --compress-weight, or use --backend cpu",
        ),
    ])
}

/// Refuses requests that are not served on GPUs.
pub(crate) fn check_served(served: &Served, options: &CpuOptions) -> Result<(), CpuError> {
    let Served { model, kept, .. } = served;
    let Kept { dtype, compression } = *kept;
    if dtype == Dtype::F32 {
        return Err(CudaError::Type(dtype).into());
    }
    let head = model.head_dim as usize;
    check_cache(HeldAs::Whole, head, 2 * head * dtype.size_bytes() as usize)?;
    check_model(model)?;
    refuse([
        (
            model.embedding_size != model.hidden_size && compression.weights,
            "a projected embedding in 4 bits",
            "serve without --compress-weight, or use --backend cpu",
        ),
        (
            options.throttles != Throttles::default(),
            "a limit on the pace of a link",
            "leave the limits out, or use --backend cpu",
        ),
        (
            !served.traffic.0.is_empty(),
            "traffic of others on the link",
            "leave --traffic out, or use --backend cpu",
        ),
    ])
}

/// Refuses a model that kernels do not compute.
fn check_model(model: &ModelSpec) -> Result<(), CpuError> {
    refuse([
        (
            model.positions == Positions::Alibi,
            "a model with linear position penalties (ALiBi)",
            "execute an OPT, Llama, Mistral, Qwen2 or Qwen3 model",
        ),
        (
            !model.hidden_size.is_multiple_of(8),
            "a model whose width is not a multiple of 8",
            "use --backend cpu",
        ),
    ])
}

/// Refuses the first of these that is so, by what it is, with a remedy.
fn refuse<const N: usize>(
    refused: [(bool, &'static str, &'static str); N],
) -> Result<(), CpuError> {
    match refused.into_iter().find(|(is, ..)| *is) {
        Some((_, what, remedy)) => Err(CpuError::NotOnGpus { what, remedy }),
        None => Ok(()),
    }
}
