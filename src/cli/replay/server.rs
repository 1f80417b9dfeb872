//! What serves: a model on a machine, and who gives room in the cache that its weights leave.

use plimsoll_core::Dtype;
use plimsoll_core::compression::{Compression, Kept};
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::Limits;
use plimsoll_core::traffic::Background;
use plimsoll_core::units::Bytes;

use super::{Args, manager, stages};
use crate::cli::exit::{Exit, Failure};
use crate::files::find_model;
use crate::serve::gpus::Gpus;
use crate::serve::replay::{Expansion, Manager, Server, check_expansion};

/// Who serves, by the flags.
///
/// # Errors
/// Weights or a cache that do not fit; a flag that is not of the manager's.
pub(super) fn server(args: &Args, profile: &HardwareProfile) -> anyhow::Result<Server> {
    let profile = args.execute.held(profile.clone());
    let model = find_model(&args.model)?;
    let dtype = model.dtype(args.dtype.map(Dtype::from))?;
    let model = model.spec;
    let gpus = args.stages.gpus(&profile, &model)?;
    let compression = Compression::of(args.compress_weight, false);
    let left = kv_left((&gpus, &profile), (&model, Kept { dtype, compression }))?;
    let kv_bytes = match args.kv_gb {
        Some(gb) => {
            let within = gpus.kv_within(left, gb, &model);
            within.map_err(|why| Failure::new(Exit::Infeasible, format!("--kv-gb {gb}: {why}")))?
        }
        None => left,
    };
    let positions = model.max_position_embeddings;
    let manager = manager::manager(args, positions)?;
    if let Manager::Pie(Expansion::Fixed(expansion)) = manager {
        check_expansion(expansion, &model)
            .map_err(|why| Failure::new(Exit::Usage, format!("--expansion {expansion}: {why}")))?;
    }
    stages::check(args, &gpus, &manager)?;
    Ok(Server {
        gpus,
        manager,
        limits: Limits {
            sequences: args.max_sequences,
            tokens: args.max_tokens.unwrap_or(positions.clamp(2048, 8192)),
        },
        clients: args.clients,
        slo_s: args.slo_s_per_token,
        traffic: Background(args.traffic.clone()),
        logged: args.sweep.is_none() && (args.per_iteration.is_some() || !args.output.is_empty()),
        profile,
        model,
        dtype,
        compression,
        kv_bytes,
    })
}

/// Memory that the weights leave for the cache.
fn kv_left(
    (gpus, profile): (&Gpus, &HardwareProfile),
    (model, kept): (&ModelSpec, Kept),
) -> Result<Bytes, Failure> {
    gpus.kv_left(profile, model, kept).ok_or_else(|| {
        let usable = profile.tiers.device_usable();
        let (name, in_what) = (&model.name, kept.words());
        let (weights, whose) = match gpus.heaviest(model, kept) {
            Some((stage, bytes)) => (bytes, format!("stage {stage} of {} has", stages::count(gpus))),
            None => (kept.weights(model), "the GPU has".to_owned()),
        };
        let line = format!(
            "{whose} {weights} of {name}'s weights in {in_what}, and tensors may fill {usable} of {}'s device memory: \
             {} too little, before any cache; take {}a smaller model or a larger machine{}",
            profile.name,
            weights.saturating_sub(usable),
            in_4_bits((gpus, profile), (model, kept)),
            stages::more(gpus, profile)
        );
        Failure::new(Exit::Infeasible, line)
    })
}

/// The flag with which the weights would leave some memory, if there is one.
fn in_4_bits(
    (gpus, profile): (&Gpus, &HardwareProfile),
    (model, kept): (&ModelSpec, Kept),
) -> &'static str {
    let packed = Kept {
        compression: Compression::of(true, false),
        ..kept
    };
    match gpus.kv_left(profile, model, packed) {
        Some(_) => "--compress-weight (4 bits), ",
        None => "",
    }
}
