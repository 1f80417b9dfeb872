//! `plimsoll replay --stages`: a model on several GPUs.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::pipeline::Pipeline;

use super::{Args, Manager};
use crate::cli::exit::{Exit, Failure};
use crate::cli::input::check_gpus;
use crate::serve::gpus::Gpus;
use crate::serve::replay::Prediction;

/// How a model is spread over GPUs.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct StagesArgs {
    /// Stages that the model's layers are spread over, one a GPU
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    stages: u32,
    /// Batches that follow each other through the stages, each with its share of the requests and of the cache [default: as
    /// many as stages]
    #[arg(long, value_name = "N", requires = "stages", value_parser = clap::value_parser!(u32).range(1..=1024))]
    micro_batches: Option<u32>,
    /// Layers of the last stage, which has the head besides [default: as even as can be]
    #[arg(long, value_name = "N", requires = "stages", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    last_stage_layers: Option<u32>,
}

impl StagesArgs {
    /// The GPUs of a machine that a model is spread over.
    ///
    /// # Errors
    /// More GPUs than there are, a stage without layers.
    pub fn gpus(self, profile: &HardwareProfile, model: &ModelSpec) -> anyhow::Result<Gpus> {
        let asked = (self.micro_batches, self.last_stage_layers);
        if self.stages == 1 && asked == (None, None) {
            return Ok(Gpus::One);
        }
        let pipeline = Pipeline {
            stages: self.stages,
            micro_batches: self.micro_batches.unwrap_or(self.stages),
            stages_per_host: profile.gpus_per_host().min(self.stages),
            last_stage_layers: self.last_stage_layers,
            ..Pipeline::default()
        };
        if self.stages == 1 {
            let line = "--micro-batches, --last-stage-layers: one stage has all layers and one batch; give more --stages";
            return Err(Failure::new(Exit::Usage, line).into());
        }
        check_gpus(&pipeline, profile, None)?;
        if !pipeline.fills_stages(model.num_hidden_layers) {
            let line = format!(
                "--stages {}: {} has {} layers, and each stage needs one; give fewer stages, or another \
                 --last-stage-layers",
                self.stages, model.name, model.num_hidden_layers
            );
            return Err(Failure::new(Exit::Usage, line).into());
        }
        Ok(Gpus::Pipeline(pipeline))
    }
}

/// Refuses what several GPUs do not do together.
///
/// # Errors
/// What, and what they do.
pub(super) fn check(args: &Args, gpus: &Gpus, manager: &Manager) -> Result<(), Failure> {
    let line = match manager {
        _ if *gpus == Gpus::One => return Ok(()),
        Manager::Pie(_) => "--manager pie swaps layers of one GPU; give orca, vllm or s3",
        Manager::S3 {
            prediction: Prediction::Learner { .. },
            ..
        } => {
            "--predictor learned knows the answers of one batch, and there are several; give --predictor classifier \
             or oracle"
        }
        _ if args.clients.is_some() => {
            "--clients is of one batch, and there are several; give a trace with times"
        }
        _ if args.execute.asked() => "--execute has one GPU",
        _ => return Ok(()),
    };
    Err(Failure::new(
        Exit::Usage,
        format!("{line}; or leave out --stages"),
    ))
}

/// In words, behind what serves.
pub(super) fn text(gpus: &Gpus) -> String {
    match gpus {
        Gpus::One | Gpus::StageForAll { .. } => String::new(),
        Gpus::Pipeline(of) => format!(
            " in {} stages, {} batches in flight",
            of.stages, of.micro_batches
        ),
    }
}

/// Stages that a model is spread over.
pub(super) fn count(gpus: &Gpus) -> u32 {
    match gpus {
        Gpus::Pipeline(of) => of.stages,
        Gpus::One | Gpus::StageForAll { .. } => 1,
    }
}

/// What more stages would be had, behind other remedies; nothing where each GPU has one.
pub(super) fn more(gpus: &Gpus, profile: &HardwareProfile) -> String {
    let has = profile.num_gpus();
    match has > count(gpus) {
        true => format!(", or give more --stages: {} has {has} GPUs", profile.name),
        false => String::new(),
    }
}
