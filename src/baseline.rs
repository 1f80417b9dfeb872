//! Systems to compare with, as rules that make plans of ours: what each decides by itself, and what
//! it cannot do.
//!
//! The rules are those of FlexGen's paper (Sheng et al., ICML 2023) and of the scripts released with
//! it, and of HeteGen's (Zhao et al., MLSys 2024), so that predictions can be held beside what it published. They describe how those systems
//! were run there, not all that they can do.

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::did_you_mean;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::plan::Plan;
use plimsoll_core::policy::{Granularity, PageLocked, Policy, PolicyError, Schedule};
use plimsoll_core::workload::Workload;

use crate::flexgen;
use crate::planner::{Blocks, Outcome, PlanError, Rules};

/// What systems are compared in: what FlexGen and the others store weights, cache and activations in.
pub const DTYPE: Dtype = Dtype::F16;

/// A system that serves a model from several memory tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum System {
    /// Our planner, with nothing compressed.
    Plimsoll,
    /// Our planner, which may keep weights and cache in 4 bits.
    Plimsoll4Bit,
    /// FlexGen without compression.
    FlexGen,
    /// FlexGen (c): weights and cache in 4 bits.
    FlexGen4Bit,
    /// DeepSpeed ZeRO-Inference.
    DeepSpeed,
    /// Hugging Face Accelerate.
    Accelerate,
    /// HeteGen.
    HeteGen,
}

impl System {
    /// All of them.
    pub const ALL: [System; 7] = [
        System::Plimsoll,
        System::Plimsoll4Bit,
        System::FlexGen,
        System::FlexGen4Bit,
        System::DeepSpeed,
        System::Accelerate,
        System::HeteGen,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            System::Plimsoll => "plimsoll",
            System::Plimsoll4Bit => "plimsoll-4bit",
            System::FlexGen => "flexgen",
            System::FlexGen4Bit => "flexgen-4bit",
            System::DeepSpeed => "deepspeed",
            System::Accelerate => "accelerate",
            System::HeteGen => "hetegen",
        }
    }

    /// Its rules in a line, and where they are stated.
    pub fn rules(self) -> &'static str {
        match self {
            System::Plimsoll => "the planner's own search, nothing compressed",
            System::Plimsoll4Bit => "the planner's own search; 4 bits where that is better",
            System::FlexGen => {
                "zig-zag with a barrier after each GPU batch, each layer's tensors placed by \
                 themselves, cache pageable, attention on the CPU where better (sections 4.2 and \
                 4.3, Algorithm 1)"
            }
            System::FlexGen4Bit => {
                "as flexgen, weights and cache in 4 bits, no attention on the CPU (section 5)"
            }
            System::DeepSpeed => {
                "row by row, weights wholly on the host, or on disk where that is too small; cache \
                 and activations on the device (section 6, A.4)"
            }
            System::Accelerate => {
                "row by row, weights wholly on the first of device, host and disk that holds them; \
                 cache and activations on the device; nothing moves while anything computes, \
                 nothing is page-locked (section 6, Table 15, the device maps of the released \
                 benchmark)"
            }
            System::HeteGen => {
                "linear layers split between the CPU and the device by the law, as many of them on the device \
                 as it holds, all else there (its sections 3.2, 4.2 and 4.5)"
            }
        }
    }

    /// The system of a name.
    ///
    /// # Errors
    /// What the name was probably meant to be, or all names.
    pub fn named(name: &str) -> Result<System, String> {
        let mut all = System::ALL.into_iter();
        let names = || System::ALL.into_iter().map(System::name);
        all.find(|system| system.name() == name).ok_or_else(|| {
            let known: Vec<&str> = names().collect();
            let meant = did_you_mean(name, names());
            let remedy = meant.unwrap_or_else(|| format!("give some of: {}", known.join(", ")));
            format!("`{name}` is no system; {remedy}")
        })
    }

    /// What a search of ours may compress; none for others' systems.
    fn may_compress(self) -> Option<Compression> {
        match self {
            System::Plimsoll => Some(Compression::default()),
            System::Plimsoll4Bit => Some(Compression::of(true, true)),
            _ => None,
        }
    }

    fn compressions(self) -> Vec<Compression> {
        if let Some(allowed) = self.may_compress() {
            return allowed.choices();
        }
        match self {
            System::FlexGen4Bit => vec![Compression::of(true, true)],
            _ => vec![Compression::default()],
        }
    }
}

/// A system at work: what is the same for all block sizes.
#[derive(Debug)]
pub struct Baseline<'a> {
    blocks: Blocks<'a>,
    rules: Decides,
    /// What a search of ours may compress.
    compression: Option<Compression>,
}

/// How a system comes to its plan.
#[derive(Debug)]
enum Decides {
    /// By a search under its rules.
    Searches(Rules),
    /// By trying, in this order, where all weights could be.
    Tries(Vec<Policy>),
    /// By HeteGen's law and scheduler.
    Splits,
}

impl<'a> Baseline<'a> {
    /// Prepares a system for a model and prompts of one length.
    ///
    /// # Errors
    /// A workload that means nothing for the model.
    pub fn new(
        system: System,
        profile: &'a HardwareProfile,
        model: &ModelSpec,
        workload: Workload,
    ) -> Result<Baseline<'a>, PlanError> {
        let compressions = system.compressions();
        Ok(Baseline {
            blocks: Blocks::new(profile, model, DTYPE, workload, &compressions)?,
            rules: system
                .decides()
                .map_err(plimsoll_core::lower::LowerError::from)?,
            compression: system.may_compress(),
        })
    }

    /// The size of the block that it would choose, where it is a search of ours.
    ///
    /// # Errors
    /// An error of ours in solving or simulating.
    pub fn favourite(&self) -> Result<Option<u32>, PlanError> {
        match self.compression {
            Some(compression) => self.blocks.favourite(compression),
            None => Ok(None),
        }
    }

    /// The best plan that splits linear layers, whatever the system's own rules, of those that `wanted` says.
    ///
    /// # Errors
    /// A model that cannot be split; an error of ours in simulating.
    pub fn split(
        &self,
        sequences: u32,
        wanted: impl Fn(&Policy) -> bool,
    ) -> Result<Outcome, PlanError> {
        self.blocks.split(sequences, wanted)
    }

    /// The better of its plan and of any split of linear layers, wherever the cache is: what the planner's
    /// `--strategy auto` may choose.
    ///
    /// # Errors
    /// As [`Baseline::block`].
    pub fn block_or_split(&self, sequences: u32) -> Result<Outcome, PlanError> {
        let whole = self.block(sequences)?;
        let split = match self.split(sequences, |_| true) {
            // Not with this model.
            Err(PlanError::Request(_)) => return Ok(whole),
            split => split?,
        };
        Ok(match (&whole, &split) {
            (Outcome::Fits(a), Outcome::Fits(b)) if a.throughput_tok_s >= b.throughput_tok_s => {
                whole
            }
            (_, Outcome::Fits(_)) => split,
            (Outcome::Fits(_), _) => whole,
            (Outcome::DoesNotFit(a), Outcome::DoesNotFit(b)) => {
                Outcome::DoesNotFit(if a.lack <= b.lack { *a } else { *b })
            }
        })
    }

    /// Its plan of a block of so many sequences with its prediction, or what does not fit.
    ///
    /// # Errors
    /// An error of ours in solving or simulating.
    pub fn block(&self, sequences: u32) -> Result<Outcome, PlanError> {
        self.ranked(sequences)?.predicted(self.blocks.profile())
    }

    /// The same without a prediction, which takes longer than finding the plan does.
    ///
    /// # Errors
    /// As [`Baseline::block`].
    pub fn ranked(&self, sequences: u32) -> Result<Outcome, PlanError> {
        match &self.rules {
            Decides::Searches(rules) => self.blocks.best(rules, sequences),
            Decides::Tries(policies) => {
                let sized = policies.iter().map(|policy| Policy {
                    gpu_batch_size: sequences,
                    ..*policy
                });
                self.blocks.first_that_fits(&sized.collect::<Vec<_>>())
            }
            Decides::Splits => self.blocks.split(sequences, cache_on_device),
        }
    }

    /// The same of schedules that end one block before the next begins; none where the system has no other.
    ///
    /// # Errors
    /// As [`Baseline::block`].
    pub fn ranked_block_by_block(&self, sequences: u32) -> Result<Option<Outcome>, PlanError> {
        let Decides::Searches(rules) = &self.rules else {
            return Ok(None);
        };
        let mut rules = rules.clone();
        for choices in &mut rules.choices {
            choices.retain(|choice| choice.schedule != Schedule::Diagonal);
        }
        self.blocks.best(&rules, sequences).map(Some)
    }
}

/// Percentages of weights on device and host; cache and activations on the device.
const ON_DEVICE: [f64; 2] = [100.0, 0.0];
const ON_HOST: [f64; 2] = [0.0, 100.0];
const ON_DISK: [f64; 2] = [0.0, 0.0];

/// HeteGen leaves all but linear layers on the device (its section 4.2).
fn cache_on_device(policy: &Policy) -> bool {
    policy.cache.device == 1.0
}

impl System {
    fn decides(self) -> Result<Decides, PolicyError> {
        Ok(match self {
            System::Plimsoll => Decides::Searches(Rules::free(Compression::default())),
            System::Plimsoll4Bit => Decides::Searches(Rules::free(Compression::of(true, true))),
            System::FlexGen => Decides::Searches(flexgen_rules(Compression::default())?),
            System::FlexGen4Bit => Decides::Searches(flexgen_rules(Compression::of(true, true))?),
            System::DeepSpeed => {
                let streams = |policy| Policy {
                    page_locked: PageLocked::ALL,
                    ..policy
                };
                Decides::Tries(row_by_row(&[ON_HOST, ON_DISK], streams)?)
            }
            System::Accelerate => {
                let waits = |policy| Policy {
                    overlap: false,
                    page_locked: PageLocked::NONE,
                    ..policy
                };
                Decides::Tries(row_by_row(&[ON_DEVICE, ON_HOST, ON_DISK], waits)?)
            }
            System::HeteGen => Decides::Splits,
        })
    }
}

/// One GPU batch in a block, cache and activations on the device; a layer is a step.
fn row_by_row(
    weights: &[[f64; 2]],
    with: impl Fn(Policy) -> Policy,
) -> Result<Vec<Policy>, PolicyError> {
    let policy = |[device, host]: &[f64; 2]| {
        let percent = [*device, *host, 100.0, 0.0, 100.0, 0.0];
        let policy = Policy {
            schedule: Schedule::Row,
            barrier: false,
            ..Policy::from_percent(1, 1, percent)?.in_whole_layers()
        };
        Ok(with(policy))
    };
    weights.iter().map(policy).collect()
}

/// FlexGen's cost model has one rate from host to device (A.3), so its search takes weights for
/// page-locked; whether they are follows from how many are on the host. Its code divides no activations over tiers, and no cache that
/// it compresses.
fn flexgen_rules(compression: Compression) -> Result<Rules, PolicyError> {
    let published = Policy::from_percent(1, 1, [100.0, 0.0, 100.0, 0.0, 100.0, 0.0])?;
    let mut choices: Vec<Policy> = [false, true]
        .map(|cpu_attention| Policy {
            cpu_attention,
            compression,
            ..published
        })
        .to_vec();
    choices.retain(|policy| policy.validate().is_ok());
    Ok(Rules {
        choices: vec![choices],
        batches_max: flexgen::BATCHES_MAX,
        undivided: true,
        granularities: vec![Granularity::Layer],
        page_locks: Some(|profile: &HardwareProfile, plan: &Plan| {
            flexgen::page_locked(profile, &plan.model, plan.dtype, &plan.policy)
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::hardware::embedded;
    use plimsoll_core::model::registry;
    use plimsoll_core::tier::{PerTier, Tier};
    use plimsoll_core::units::Bytes;

    const WORKLOAD: Workload = Workload {
        prompt_len: 512,
        gen_len: 32,
        num_prompts: None,
    };

    /// FlexGen's six percentages of a system's plan on the T4.
    fn percentages(system: System, model: &str, sequences: u32) -> [f64; 6] {
        let profile = embedded::profile("t4").unwrap();
        let model = registry::find(model).unwrap();
        let baseline = Baseline::new(system, &profile, &model, WORKLOAD).unwrap();
        let Outcome::Fits(block) = baseline.block(sequences).unwrap() else {
            panic!("{} does not fit", system.name());
        };
        let policy = &block.plan.policy;
        assert_eq!(policy.gpu_batch_size, sequences);
        assert_eq!(policy.num_gpu_batches, 1);
        let two = |shares: PerTier<f64>| [100.0 * shares.device, 100.0 * shares.host];
        let [[wg, wc], [cg, cc], [hg, hc]] =
            [policy.weights, policy.cache, policy.activations].map(two);
        [wg, wc, cg, cc, hg, hc]
    }

    #[test]
    fn deepspeed_and_accelerate_place_as_table_15_says() {
        let (device, host, disk) = ([100.0, 0.0], [0.0, 100.0], [0.0, 0.0]);
        for (system, model, sequences, [wg, wc]) in [
            (System::Accelerate, "opt-6.7b", 2, device),
            (System::Accelerate, "opt-30b", 8, host),
            (System::Accelerate, "opt-175b", 2, disk),
            (System::DeepSpeed, "opt-6.7b", 16, host),
            (System::DeepSpeed, "opt-30b", 4, host),
            (System::DeepSpeed, "opt-175b", 1, disk),
        ] {
            let expected = [wg, wc, 100.0, 0.0, 100.0, 0.0];
            let found = percentages(system, model, sequences);
            assert_eq!(found, expected, "{} {model}", system.name());
        }
    }

    #[test]
    fn a_batch_that_the_device_cannot_hold_names_it() {
        let profile = embedded::profile("t4").unwrap();
        let model = registry::find("opt-175b").unwrap();
        for system in [System::DeepSpeed, System::Accelerate] {
            let baseline = Baseline::new(system, &profile, &model, WORKLOAD).unwrap();
            let Outcome::DoesNotFit(excess) = baseline.block(8).unwrap() else {
                panic!("{} fits", system.name());
            };
            assert_eq!(excess.bound.tier(), Some(Tier::Device));
            assert!(excess.needed > excess.capacity);
        }
    }

    /// What is nearest would fit, with a divided cache, which no FlexGen has.
    #[test]
    fn flexgen_does_not_fit_by_dividing_its_cache() {
        let t4 = embedded::profile("t4").unwrap();
        let gb = |gb: f64| Some(Bytes((gb * 1e9) as u64));
        let small = t4.with_capacities(gb(7.5), gb(9.0), gb(0.0));
        let model = registry::find("opt-6.7b").unwrap();
        let baseline = Baseline::new(System::FlexGen4Bit, &small, &model, WORKLOAD).unwrap();
        let Outcome::DoesNotFit(excess) = baseline.ranked(80).unwrap() else {
            panic!("it fits");
        };
        assert!(excess.needed > excess.capacity, "{excess:?}");
    }

    /// With a cache on disk, which hides by the closed form alone, this block took 29% longer.
    #[test]
    fn a_block_leaves_the_disk_alone_where_that_is_faster() {
        let profile = embedded::profile("t4").unwrap();
        let model = registry::find("opt-30b").unwrap();
        let baseline = Baseline::new(System::FlexGen, &profile, &model, WORKLOAD).unwrap();
        let Outcome::Fits(block) = baseline.ranked(96).unwrap() else {
            panic!("it does not fit");
        };
        let policy = &block.plan.policy;
        let on_disk = [policy.weights, policy.cache, policy.activations].map(|shares| shares.disk);
        assert_eq!(on_disk, [0.0; 3]);
        // FlexGen's own policy for OPT-30B.
        let published = Policy::from_percent(48, 2, [20.0, 80.0, 0.0, 100.0, 0.0, 100.0]).unwrap();
        let plan = Plan {
            policy: Policy {
                cpu_attention: true,
                ..published
            },
            ..block.plan.clone()
        };
        let published = plimsoll_sim::predict(&plan, &profile).expect("it fits");
        assert!(block.throughput_tok_s > published.throughput_tok_s);
    }

    #[test]
    fn flexgen_keeps_to_its_rules() {
        let profile = embedded::profile("t4").unwrap();
        let model = registry::find("opt-30b").unwrap();
        for (system, compressed) in [(System::FlexGen, false), (System::FlexGen4Bit, true)] {
            let baseline = Baseline::new(system, &profile, &model, WORKLOAD).unwrap();
            let Outcome::Fits(block) = baseline.block(64).unwrap() else {
                panic!("{} does not fit", system.name());
            };
            let policy = &block.plan.policy;
            assert!(policy.barrier && !policy.page_locked.cache);
            assert_eq!(policy.granularity, Granularity::Layer);
            assert_eq!(policy.block_size(), 64);
            assert_eq!(policy.compression, Compression::of(compressed, compressed));
            assert!(!(compressed && policy.cpu_attention));
            let is_on_one =
                |shares: PerTier<f64>| Tier::ALL.iter().any(|tier| shares[*tier] == 1.0);
            assert!(is_on_one(policy.activations));
            assert!(!compressed || is_on_one(policy.cache), "{:?}", policy.cache);
        }
    }

    /// Its six percentages are then none of the linear program's.
    #[test]
    fn what_fits_because_tensors_are_whole_keeps_to_its_rules_too() {
        let profile = embedded::profile("t4").unwrap();
        let profile = profile.with_capacities(Some(Bytes(6_000_000_000)), None, None);
        let model = registry::find("opt-175b").unwrap();
        let baseline = Baseline::new(System::FlexGen4Bit, &profile, &model, WORKLOAD).unwrap();
        let Outcome::Fits(block) = baseline.block(256).unwrap() else {
            panic!("it does not fit");
        };
        let Plan {
            model,
            dtype,
            policy,
            ..
        } = &block.plan;
        let rule = flexgen::page_locked(&profile, model, *dtype, policy);
        assert_eq!(policy.page_locked, rule);
        // The machine cannot lock as much, so that this is not what any policy begins with.
        assert!(!rule.weights);
    }

    #[test]
    fn a_name_that_is_none_is_told_the_nearest() {
        assert_eq!(System::named("flexgen-4bit"), Ok(System::FlexGen4Bit));
        let said = System::named("flexgenn").unwrap_err();
        assert!(said.contains("did you mean `flexgen`"), "{said}");
        assert!(System::named("vllm").unwrap_err().contains("deepspeed"));
    }
}
