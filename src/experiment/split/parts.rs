//! What each part of HeteGen is worth: its Table 3.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::plan::Plan;
use plimsoll_core::split::law::Rates;
use plimsoll_core::split::{PerModule, Route, SplitLinears};
use plimsoll_sim::predict;
use serde::Serialize;

use super::{Percentage, Scene, published};
use crate::experiment::study::{Study, percent};
use crate::planner::PlanError;
use crate::planner::split::{Scheduler, scheduled};
use crate::report::Align::{Left, Right};
use crate::report::signed_percent;

/// What is asked.
#[derive(Debug)]
pub struct Parts {
    /// Where, and of what.
    pub scene: Scene,
    /// What is left of the performance without a part.
    pub published: Vec<Percentage>,
}

/// A part taken out, in one reading of what that means.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct PartsRow {
    /// The CPU's speed, assumed.
    cpu_gb_s: f64,
    /// The part, as the paper calls it.
    without: &'static str,
    /// What is done instead; the paper does not say.
    instead: &'static str,
    /// Tokens a second.
    throughput_tok_s: f64,
    /// Of those with all parts.
    predicted: f64,
    /// As published.
    published: Option<f64>,
    /// Predicted less published.
    error: Option<f64>,
}

/// The parts in the paper's order of importance, and what is done instead.
pub const WITHOUT: [(&str, &str, Without); 5] = [
    (
        "module-scheduler",
        "no linear layer on the device whole",
        Without::Scheduler,
    ),
    (
        "hybrid-parallelism",
        "rows straight from pageable memory (Figure 5a)",
        Without::Pinning,
    ),
    (
        "hybrid-parallelism",
        "page-locking blocks copy and CPU (Figure 5b)",
        Without::PinningAhead,
    ),
    (
        "alpha-benchmark",
        "alpha by Eq. 6 from host memory's rate and the link's",
        Without::Benchmark,
    ),
    (
        "parameter-manager",
        "no half of a layer finds rows page-locked",
        Without::Manager,
    ),
];

/// A part that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// Linear layers on the device.
    Scheduler,
    /// Page-locked buffers.
    Pinning,
    /// Buffers that are filled ahead.
    PinningAhead,
    /// Measured shares.
    Benchmark,
    /// Buffers that are handed on.
    Manager,
}

impl Without {
    /// A whole split without the part, on a machine. What is on the device stays there, but for the scheduler.
    pub fn of(self, all: SplitLinears, profile: &HardwareProfile) -> SplitLinears {
        match self {
            Without::Scheduler => SplitLinears {
                layers_on_device: PerModule::default(),
                ..all
            },
            Without::Pinning => SplitLinears {
                route: Route::Direct,
                ..all
            },
            Without::PinningAhead => SplitLinears {
                route: Route::Blocking,
                ..all
            },
            Without::Benchmark => {
                let rates = Rates {
                    cpu: profile.tiers.host_bandwidth.value.0,
                    device: f64::INFINITY,
                    link: profile.links.h2d.page_locked.peak(),
                };
                let share = rates.share_of_fast_device();
                SplitLinears {
                    share: PerModule::from_fn(|_| share),
                    ..all
                }
            }
            Without::Manager => SplitLinears {
                hands_on: false,
                ..all
            },
        }
    }
}

impl Parts {
    /// A row for each speed and part.
    ///
    /// # Errors
    /// A model that cannot be split, or a machine that is too small.
    pub fn study(&self) -> anyhow::Result<Study> {
        study(&self.rows()?)
    }

    fn rows(&self) -> Result<Vec<PartsRow>, PlanError> {
        let mut rows = Vec::new();
        for cpu_gb_s in self.scene.cpu_gb_s.iter().copied() {
            let machine = self.scene.with_cpu(cpu_gb_s);
            let plan = self.scene.split(&machine);
            let Some(whole) = scheduled(plan, &machine, Scheduler::Greedy)? else {
                continue;
            };
            let rate = |plan: &Plan| Ok::<_, PlanError>(predict(plan, &machine)?.throughput_tok_s);
            let best = rate(&whole)?;
            let mut row = |without, instead, throughput_tok_s| {
                let published = published(&self.published, without);
                let predicted = throughput_tok_s / best;
                rows.push(PartsRow {
                    cpu_gb_s,
                    without,
                    instead,
                    throughput_tok_s,
                    predicted,
                    published,
                    error: published.map(|published| predicted - published),
                });
            };
            row("nothing", "all parts", best);
            for (without, instead, part) in WITHOUT {
                let mut plan = whole.clone();
                plan.policy.split = plan.policy.split.map(|all| part.of(all, &machine));
                row(without, instead, rate(&plan)?);
            }
        }
        Ok(rows)
    }
}

/// The rows as a table.
fn study(rows: &[PartsRow]) -> anyhow::Result<Study> {
    let lead = "Throughput without a part, of that with all. Errors are in points. The paper says neither which model and how \
                much device memory its numbers\nare of, nor what is done instead of a part.";
    let columns = [
        ("assumed CPU", Right),
        ("without", Left),
        ("instead", Left),
        ("tok/s", Right),
        ("predicted", Right),
        ("published", Right),
        ("error", Right),
    ];
    Study::of(rows, lead.to_owned(), columns, |row| {
        [
            format!("{} GB/s", row.cpu_gb_s),
            row.without.to_string(),
            row.instead.to_string(),
            format!("{:.2}", row.throughput_tok_s),
            percent(row.predicted),
            row.published.map_or(String::new(), percent),
            row.error.map_or(String::new(), signed_percent),
        ]
    })
}
