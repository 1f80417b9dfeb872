//! The law's shares on a machine, by the cost function's own times of each module.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::lower::BUFFER_PARTS;
use plimsoll_core::model::TensorSpec;
use plimsoll_core::placement::PAGE_BYTES;
use plimsoll_core::plan::Plan;
use plimsoll_core::program::{Gemm, Gemms, HostPages, Op, ResourceKind, Stage};
use plimsoll_core::split::law::{Memory, Times};
use plimsoll_core::split::{self, PerModule};
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_sim::CostModel;

use super::modules::Candidate;

/// A module of a model on a machine.
#[derive(Debug, Clone, Copy)]
pub struct Module {
    /// Which.
    pub module: split::Module,
    /// Of all of it, for a new token of each sequence.
    pub times: Times,
    /// What that takes the host's memory.
    pub memory: Memory,
    /// What it takes on the device.
    pub bytes: Bytes,
}

impl Module {
    /// The device's share (Eq. 8), or less where the host's memory is short.
    pub fn share(&self) -> f64 {
        self.times.share_of(&self.memory)
    }

    /// The CPU's time at that share, and the device's and the link's (Eq. 11 and 12).
    pub fn balanced(&self) -> Seconds {
        Seconds((1.0 - self.share()) * self.times.cpu)
    }
}

/// All modules of a plan's model.
#[derive(Debug, Clone)]
pub struct Modules {
    /// In the order of a layer.
    pub all: Vec<Module>,
    /// The share of the largest for a prompt.
    pub prefill_share: f64,
}

impl Modules {
    /// What a machine takes for a plan's modules.
    pub fn of(plan: &Plan, profile: &HardwareProfile) -> Modules {
        let cost = CostModel::new(profile, plan.dtype);
        let sequences = plan.policy.gpu_batch_size;
        let tensors = plan.model.tensors(1);
        let weights = tensors
            .iter()
            .filter_map(|t| Some((split::Module::of(t.role)?, t)));
        let weights: Vec<(split::Module, &TensorSpec)> = weights.collect();
        let of = |module, weight: &TensorSpec, tokens| {
            let (times, memory) = times(&cost, plan, (weight, tokens));
            Module {
                module,
                times,
                memory,
                bytes: stored(plan, weight).align_up(PAGE_BYTES),
            }
        };
        let all = weights.iter().map(|(m, weight)| of(*m, weight, sequences));
        let largest = weights.iter().max_by_key(|(_, weight)| weight.elements());
        let tokens = sequences.saturating_mul(plan.workload.prompt_len);
        let prefill_share = largest.map_or(1.0, |(m, weight)| of(*m, weight, tokens).share());
        Modules {
            all: all.collect(),
            prefill_share,
        }
    }

    /// The share of each; 0 of those that the model does not have.
    pub fn shares(&self) -> PerModule<f64> {
        let of = |module| self.all.iter().find(|m| m.module == module);
        PerModule::from_fn(|module| of(module).map_or(0.0, Module::share))
    }

    /// What may be put on the device, of so many layers.
    pub fn candidates(&self, layers: u32) -> Vec<Candidate> {
        let candidate = |m: &Module| Candidate {
            module: m.module,
            layers,
            saved: m.balanced(),
            bytes: m.bytes,
        };
        self.all.iter().map(candidate).collect()
    }
}

fn stored(plan: &Plan, weight: &TensorSpec) -> Bytes {
    plan.policy.compression.tensor_bytes(weight, plan.dtype)
}

/// Times of a whole weight for `m` tokens, and of the host's memory for it.
fn times(cost: &CostModel, plan: &Plan, (weight, m): (&TensorSpec, u32)) -> (Times, Memory) {
    let route = plan.policy.split.map(|split| split.route);
    let pins = route.is_some_and(split::Route::pins);
    let product = Op::Linear {
        stage: Stage::Part,
        m,
        gemms: Gemms::new(&[Gemm {
            n: weight.rows as u32,
            k: weight.cols as u32,
        }]),
        position: plan.workload.prompt_len,
        reused: false,
        compressed: plan.policy.compression.packs(weight),
        packed_elements: 0,
    };
    let moved = Op::Move {
        bytes: stored(plan, weight),
        from: Bytes::ZERO,
        to: Bytes::ZERO,
        host: HostPages::of(pins || plan.policy.page_locked.weights),
    };
    let seconds = |on: ResourceKind, op: &Op| cost.seconds(on, op).0;
    let mut times = Times {
        cpu: seconds(ResourceKind::Cpu, &product),
        device: seconds(ResourceKind::Gpu, &product),
        pin: 0.0,
        transfer: seconds(ResourceKind::H2d, &moved),
    };
    if pins {
        times.pin = seconds(ResourceKind::Pin, &moved);
        times.device = after_the_last(times);
    }
    let shared = cost.profile().tiers.host_shared.as_ref();
    let memory = shared.map_or(Memory::default(), |rate| {
        let seconds = |on, op| cost.host_traffic(on, op) / rate.value.0;
        let pinned = if pins {
            seconds(ResourceKind::Pin, &moved)
        } else {
            0.0
        };
        Memory {
            cpu: seconds(ResourceKind::Cpu, &product),
            device: pinned + seconds(ResourceKind::H2d, &moved),
        }
    });
    (times, memory)
}

/// What is left of the device's time when the last part of the rows has come: it computes with each part while the next comes.
fn after_the_last(times: Times) -> f64 {
    let part = 1.0 / BUFFER_PARTS as f64;
    let behind = times.device - (1.0 - part) * times.communication();
    behind.max(part * times.device)
}
