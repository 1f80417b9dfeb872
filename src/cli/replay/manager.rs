//! Flags of who gives room in the KV cache, and what they come to.

use clap::ValueEnum;
use plimsoll_core::serve::pie::Settings;
use plimsoll_core::serve::{Preemption, Reserve};

use super::Args;
use crate::cli::exit::{Exit, Failure};
use crate::serve::replay::{Expansion, Manager};
use crate::serve::sweep::Swept;

/// Managers of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ManagerName {
    /// A maximum length for each request.
    Orca,
    /// Blocks of 16 tokens as they are needed; the latest has to leave.
    Vllm,
    /// Room by the predicted length of the answer; who outgrows it goes to the host and gets twice as much.
    S3,
    /// vllm's blocks, and layers of the cache are swapped while others are computed.
    Pie,
}

/// What becomes of who has to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PreemptionName {
    /// It is computed again.
    Recompute,
    /// It goes to the host and comes back.
    Swap,
}

/// What S3 makes room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ReserveName {
    /// The answer alone, as S3's figures have it: prompts are not counted.
    Output,
    /// Prompt and answer.
    All,
}

/// An expansion by its number, or `auto`.
pub(super) fn expansion(text: &str) -> Result<Expansion, String> {
    match text.parse::<f64>() {
        _ if text == "auto" => Ok(Expansion::Auto(Settings::default())),
        Ok(number) if number >= 1.0 && number.is_finite() => Ok(Expansion::Fixed(number)),
        _ => Err("give auto, or a number of 1 and more, such as 1.6".to_owned()),
    }
}

/// Refuses what only other managers go by.
fn check_flags(args: &Args) -> Result<(), Failure> {
    use ManagerName::{Orca, Pie, S3, Vllm};
    let flags: [(_, _, &[ManagerName]); 10] = [
        ("--max-len", args.max_len.is_some(), &[Orca, S3]),
        ("--preemption", args.preemption.is_some(), &[Vllm]),
        ("--predictor", args.predict.predictor.is_some(), &[S3]),
        ("--accuracy", args.predict.accuracy.is_some(), &[S3]),
        ("--distance", args.predict.distance.is_some(), &[S3]),
        ("--wrong", args.predict.wrong.is_some(), &[S3]),
        ("--buckets", args.predict.buckets.is_some(), &[S3]),
        ("--reserve", args.reserve.is_some(), &[S3]),
        ("--expansion", args.expansion.is_some(), &[Pie]),
        ("--probe-after", args.probe_after.is_some(), &[Pie]),
    ];
    let foreign =
        |(_, given, whose): &(_, bool, &[ManagerName])| *given && !whose.contains(&args.manager);
    let Some((flag, _, whose)) = flags.into_iter().find(foreign) else {
        return check_probes(args);
    };
    let name = |it: ManagerName| format!("{it:?}").to_lowercase();
    let whose: Vec<String> = whose.iter().copied().map(name).collect();
    let line = format!(
        "{flag} is of --manager {}, and {} does not go by it; leave it out",
        whose.join(" or "),
        name(args.manager)
    );
    Err(Failure::new(Exit::Usage, line))
}

/// Tokens of a request at most: all positions, or what is given of them.
fn max_len(args: &Args, positions: u32) -> Result<u32, Failure> {
    match args.max_len {
        Some(given) if given > positions => {
            let line = format!(
                "--max-len {given}: the model has {positions} positions; give at most those"
            );
            Err(Failure::new(Exit::Usage, line))
        }
        given => Ok(given.unwrap_or(positions)),
    }
}

/// Refuses a word to the controller where expansions are given.
fn check_probes(args: &Args) -> Result<(), Failure> {
    let given = matches!(args.expansion, Some(Expansion::Fixed(_)));
    let swept = args.sweep.as_ref().map(|sweep| sweep.what) == Some(Swept::Expansion);
    match args.probe_after {
        Some(_) if given || swept => {
            let line =
                "--probe-after is of --expansion auto, and expansions are given; leave it out";
            Err(Failure::new(Exit::Usage, line))
        }
        _ => Ok(()),
    }
}

/// Who gives room, to a model with so many positions.
pub(super) fn manager(args: &Args, positions: u32) -> Result<Manager, Failure> {
    check_flags(args)?;
    let max_len = max_len(args, positions)?;
    Ok(match args.manager {
        ManagerName::Orca => Manager::Orca { max_len },
        ManagerName::Pie => Manager::Pie(match args.expansion {
            None | Some(Expansion::Auto(_)) => {
                let usual = Settings::default();
                Expansion::Auto(Settings {
                    probe_after: args.probe_after.unwrap_or(usual.probe_after),
                    ..usual
                })
            }
            Some(fixed @ Expansion::Fixed(_)) => fixed,
        }),
        ManagerName::S3 => Manager::S3 {
            prediction: args.predict.prediction(max_len)?,
            reserve: match args.reserve {
                Some(ReserveName::Output) => Reserve::Output,
                None | Some(ReserveName::All) => Reserve::All,
            },
        },
        ManagerName::Vllm => Manager::Vllm {
            preemption: match args.preemption {
                None | Some(PreemptionName::Recompute) => Preemption::Recompute,
                Some(PreemptionName::Swap) => Preemption::Swap,
            },
        },
    })
}
