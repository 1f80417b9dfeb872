//! Linear layers that the CPU and the device compute together (HeteGen): which, and how much of each.
//!
//! A **module** is one linear layer of a decoder layer. Its weight `[n, k]` lives on the host, row after row.
//! Of a split module the CPU computes the first outputs where their rows lie; the other rows come over the link
//! and the device computes theirs. Both have the same input, `[token][k]`, and what they give is joined on the device,
//! `[token][n]`. Inputs and outputs of parts are f32, as sums are, so that a split rounds nothing more. All else
//! of a model is on the device (HeteGen section 4.2), and so are modules that the scheduler put there whole
//! (section 4.5), in as many layers as it says: layers need not be alike.

mod breakdown;
pub mod law;
mod module;

pub use breakdown::Breakdown;
pub use module::{Group, Module, PerModule};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::compression::Compression;
use crate::model::TensorSpec;
use crate::pipeline::Pipeline;
use crate::policy::{Policy, Schedule};

/// How the device's rows of a module come from their pageable home on the host (HeteGen Figure 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Route {
    /// Straight from their home, while the CPU computes: Figure 5a where the home is pageable, as the policy's
    /// `page_locked.weights` says.
    Direct,
    /// By way of a page-locked buffer. While that is filled, nothing of the module is moved or computed by the
    /// CPU, nor is the buffer filled while anything of the module before is: Figure 5b.
    Blocking,
    /// By way of page-locked buffers that are filled ahead, while rows before them are moved and the CPU
    /// computes: Figure 5c.
    Ahead,
}

impl Route {
    /// Whether rows pass through page-locked buffers.
    pub fn pins(self) -> bool {
        self != Route::Direct
    }
}

/// What is split, and how it moves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitLinears {
    /// The share of each module's outputs that the device computes for a new token, alpha.
    pub share: PerModule<f64>,
    /// The same for a prompt, of every module. The paper measures for one token only and does not say what its
    /// prompts do; 1 sends all rows to the device.
    pub prefill_share: f64,
    /// In how many layers each module lives on the device whole.
    pub layers_on_device: PerModule<u32>,
    /// How rows come to the device.
    pub route: Route,
    /// Whether page-locked buffers are handed on from one half of a layer to the next and across layers
    /// (Figure 6). Without, those of a half's first module are filled when the half begins.
    pub hands_on: bool,
}

impl SplitLinears {
    /// The same share of every module, none on the device, rows by way of buffers that are filled ahead.
    pub fn even(share: f64) -> SplitLinears {
        SplitLinears {
            share: PerModule::from_fn(|_| share),
            prefill_share: 1.0,
            layers_on_device: PerModule::from_fn(|_| 0),
            route: Route::Ahead,
            hands_on: true,
        }
    }

    /// Whether a module lives on the device whole in a layer, counted from 0, of so many: those that do are
    /// spread evenly.
    pub fn is_on_device(&self, module: Module, layer: u32, num_layers: u32) -> bool {
        let count = u64::from(self.layers_on_device[module]);
        let upto = |layer: u64| layer * count / u64::from(num_layers.max(1));
        upto(u64::from(layer) + 1) > upto(u64::from(layer))
    }

    /// The share of a module's outputs that the device computes.
    pub fn share_of(&self, module: Module, is_prefill: bool) -> f64 {
        match is_prefill {
            true => self.prefill_share,
            false => self.share[module],
        }
    }

    /// What each computes of a split module's rows.
    pub fn rows(
        &self,
        (module, weight): (Module, &TensorSpec),
        is_prefill: bool,
        compression: Compression,
    ) -> RowSplit {
        let share = self.share_of(module, is_prefill);
        RowSplit::new(weight, share, compression)
    }

    /// Checks shares, and what else a policy with a split says.
    pub(crate) fn validate(&self, policy: &Policy) -> Result<(), SplitError> {
        for (module, share) in self.share.iter() {
            check_share(module.name(), share)?;
        }
        check_share("prefill", self.prefill_share)?;
        let needs = [
            (policy.num_gpu_batches == 1, "num_gpu_batches = 1"),
            (
                policy.schedule != Schedule::Diagonal,
                "the zig-zag schedule",
            ),
            (policy.overlap, "overlap"),
            (!policy.barrier, "no barrier"),
            (policy.pipeline == Pipeline::default(), "one stage"),
            (
                policy.weights.device == 1.0,
                "weights 100% on the device, which is those that are not split",
            ),
        ];
        match needs.into_iter().find(|(kept, _)| !kept) {
            Some((_, what)) => Err(SplitError::Needs { what }),
            None => Ok(()),
        }
    }
}

fn check_share(of: &'static str, share: f64) -> Result<(), SplitError> {
    match (0.0..=1.0).contains(&share) {
        true => Ok(()),
        false => Err(SplitError::Share { of, share }),
    }
}

/// Why a split is refused.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SplitError {
    /// No such part of a module's outputs.
    #[error("split.share of {of} is {share}; give the device's share of outputs, from 0 to 1")]
    Share {
        /// Which.
        of: &'static str,
        /// What was given.
        share: f64,
    },
    /// Something else in the policy stands against it.
    #[error("split linear layers need {what}; give that, or no split")]
    Needs {
        /// What.
        what: &'static str,
    },
}

/// Who computes which rows of a module: the CPU the first, the device the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSplit {
    /// The CPU's.
    pub host: u64,
    /// The device's.
    pub device: u64,
}

impl RowSplit {
    /// The nearest whole rows to a share of the device, in whole bands of 64 where the weight is in 4-bit groups:
    /// those run along the outputs.
    pub fn new(weight: &TensorSpec, device_share: f64, compression: Compression) -> RowSplit {
        let unit = compression.rows_together(weight);
        let host = (1.0 - device_share) * weight.rows as f64 / unit as f64;
        let host = (host.round() as u64 * unit).min(weight.rows);
        RowSplit {
            host,
            device: weight.rows - host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::registry;

    #[test]
    fn modules_on_the_device_are_spread_over_layers() {
        let mut split = SplitLinears::even(0.5);
        split.layers_on_device[Module::Up] = 3;
        let layers: Vec<u32> = (0..8)
            .filter(|l| split.is_on_device(Module::Up, *l, 8))
            .collect();
        assert_eq!(layers, [2, 5, 7]);
        assert!((0..8).all(|layer| !split.is_on_device(Module::Down, layer, 8)));
        split.layers_on_device[Module::Up] = 8;
        assert!((0..8).all(|layer| split.is_on_device(Module::Up, layer, 8)));
    }

    #[test]
    fn rows_are_whole_and_packed_ones_whole_bands() {
        let model = registry::find("opt-125m").expect("registered");
        let tensors = model.tensors(1);
        let weight = tensors.iter().find(|t| t.role == Module::Up.weight());
        let weight = weight.expect("an MLP");
        assert_eq!(weight.rows, 3072);
        for (share, packed, host) in [
            (0.0, false, 3072),
            (1.0, false, 0),
            (0.3, false, 2150),
            (0.3, true, 2176),
            (0.99, true, 0),
        ] {
            let rows = RowSplit::new(weight, share, Compression::of(packed, false));
            assert_eq!((rows.host, rows.device), (host, 3072 - host), "{share}");
        }
    }

    #[test]
    fn what_a_split_cannot_be_with_is_refused() {
        let policy = |split| Policy {
            barrier: false,
            split: Some(split),
            ..Policy::from_percent(1, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]).expect("a policy")
        };
        let good = policy(SplitLinears::even(0.3));
        assert_eq!(good.validate(), Ok(()));
        let said = |policy: Policy| policy.validate().expect_err("refused").to_string();
        let said_of_share = said(policy(SplitLinears::even(1.5)));
        assert!(
            said_of_share.contains("share of q is 1.5"),
            "{said_of_share}"
        );
        for (changed, needed) in [
            (
                Policy {
                    num_gpu_batches: 2,
                    ..good
                },
                "num_gpu_batches = 1",
            ),
            (
                Policy {
                    barrier: true,
                    ..good
                },
                "no barrier",
            ),
            (
                Policy {
                    overlap: false,
                    ..good
                },
                "overlap",
            ),
        ] {
            let said = said(changed);
            assert!(said.contains(needed), "{said}");
        }
    }

    #[test]
    fn a_policy_without_a_split_does_not_mention_it() {
        let plain = Policy::from_percent(1, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0]);
        let plain = plain.expect("a policy");
        let text = serde_json::to_string(&plain).expect("JSON");
        assert!(!text.contains("split"), "{text}");
        let split = Policy {
            barrier: false,
            split: Some(SplitLinears::even(0.25)),
            ..plain
        };
        let text = serde_json::to_string(&split).expect("JSON");
        assert_eq!(
            serde_json::from_str::<Policy>(&text).expect("a policy"),
            split
        );
    }
}
