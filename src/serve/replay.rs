//! A trace of requests against a machine and a model, in modelled time.

use plimsoll_core::Dtype;
use plimsoll_core::compression::{Compression, Kept};
use plimsoll_core::control::{DriveError, follow};
use plimsoll_core::executor::Executor;
use plimsoll_core::extrapolation::Extrapolation;
use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::machine::{Machine, ResourceKind};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::serve::pie::{
    Adaptive, Lanes, Pie, Settings, layers_off, layers_off_at_most, on_host, with_buffers,
};
use plimsoll_core::serve::predict::{
    Buckets, Classifier, Features, Learner, Oracle, Predictor, Score, Wrong,
};
use plimsoll_core::serve::{
    BLOCK_TOKENS, InFlight, IterationRow, KvManager, Limits, Orca, Preemption, Refusal, Request,
    Reserve, S3, Scheduler, Sequence, ServeSummary, Shape, State, Vllm,
};
use plimsoll_core::traffic::Background;
use plimsoll_core::units::{Bytes, BytesPerSecond, Seconds};
use plimsoll_sim::{CostModel, Relying, Simulator};
use serde::Serialize;

use super::gpus::Gpus;

/// What serves.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// The machine.
    pub profile: HardwareProfile,
    /// The model.
    pub model: ModelSpec,
    /// The type of weights and cache.
    pub dtype: Dtype,
    /// What is in 4 bits: weights, or nothing.
    pub compression: Compression,
    /// Where the model lies.
    pub gpus: Gpus,
    /// Who gives room in the cache.
    pub manager: Manager,
    /// Device memory for the KV cache, of all GPUs together.
    pub kv_bytes: Bytes,
    /// How much an iteration may be.
    pub limits: Limits,
    /// Clients of a closed loop; none where requests come when the trace says.
    pub clients: Option<u32>,
    /// The seconds a token within which an answer is good.
    pub slo_s: f64,
    /// What others carry over the links meanwhile.
    pub traffic: Background,
    /// Whether iterations are kept one by one.
    pub logged: bool,
}

/// Who gives room in the cache.
#[derive(Debug, Clone, PartialEq)]
pub enum Manager {
    /// A maximum length for each request.
    Orca {
        /// Tokens.
        max_len: u32,
    },
    /// Blocks as they are needed.
    Vllm {
        /// What becomes of who has to leave.
        preemption: Preemption,
    },
    /// Room by the predicted length of the answer.
    S3 {
        /// Who predicts.
        prediction: Prediction,
        /// What room is made for.
        reserve: Reserve,
    },
    /// The same blocks over a cache whose layers are swapped; who has to leave is computed again.
    Pie(Expansion),
}

/// Whether some number of layers off the GPU gives so much expansion.
///
/// # Errors
/// That none does, in words.
pub fn check_expansion(expansion: f64, model: &ModelSpec) -> Result<(), String> {
    let layers = model.num_hidden_layers as u16;
    let most = with_buffers(layers, layers);
    match expansion <= most {
        true => Ok(()),
        false => Err(format!(
            "with the caches of all {layers} layers of {} off the GPU, but buffers, it is {most}; give at most that",
            model.name
        )),
    }
}

/// Who predicts lengths of answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Prediction {
    /// Nobody is wrong.
    Oracle,
    /// A classifier into buckets.
    Classifier {
        /// Its classes.
        buckets: Buckets,
        /// Share of right answers.
        accuracy: f64,
        /// Which way the others are wrong.
        wrong: Wrong,
        /// By how many buckets, on average.
        distance: f64,
        /// Of its mistakes.
        seed: u64,
    },
    /// One that learns from each answer that ends.
    Learner {
        /// Its classes.
        buckets: Buckets,
        /// What it knows of prompts.
        features: Features,
    },
}

impl Prediction {
    /// The longest answer that is predicted; none where nobody is wrong.
    pub fn longest(&self) -> Option<u32> {
        match self {
            Prediction::Oracle => None,
            Prediction::Classifier { buckets, .. } | Prediction::Learner { buckets, .. } => {
                Some(buckets.max_len)
            }
        }
    }

    fn predictor(&self) -> Box<dyn Predictor> {
        match *self {
            Prediction::Oracle => Box::new(Oracle),
            Prediction::Classifier {
                buckets,
                accuracy,
                wrong,
                distance,
                seed,
            } => Box::new(Classifier {
                buckets,
                accuracy,
                wrong,
                distance,
                seed,
            }),
            Prediction::Learner {
                buckets,
                ref features,
            } => Box::new(Learner::new(buckets, features.clone())),
        }
    }
}

/// How much of Pie's cache is off the GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Expansion {
    /// Found while requests are served.
    Auto(Settings),
    /// The nearest that whole layers allow, buffers counted.
    Fixed(f64),
}

/// What came of a trace.
#[derive(Debug, Clone)]
pub struct Replayed {
    /// In a few numbers.
    pub summary: ServeSummary,
    /// Request by request.
    pub sequences: Vec<Sequence>,
    /// Those that could not be served.
    pub refusals: Vec<Refusal>,
    /// All iterations, where they are kept.
    pub iterations: Vec<IterationRow>,
    /// How good predictions of answers' lengths were, where they were learnt.
    pub prediction: Option<Score>,
    /// Of modelled time, where the profile was asked what nobody measured.
    pub extrapolates: Vec<Extrapolation>,
}

impl Server {
    /// Serves a trace, whose requests are in the order of their coming.
    ///
    /// # Errors
    /// An error of ours.
    pub fn replay(&self, requests: &[Request]) -> Result<Replayed, DriveError> {
        let cost = CostModel::of_model(&self.profile, &self.model, self.kept());
        let machine = self.machine();
        let simulator = Simulator::new(&machine, cost.clone());
        let simulator = simulator.with_traffic(&machine, &self.traffic);
        let mut simulator = Relying::new(simulator, &machine, cost);
        let replayed = self.serve(requests, &mut simulator, false)?;
        let took = Seconds(replayed.summary.duration_s);
        Ok(Replayed {
            extrapolates: simulator.extrapolations(took),
            ..replayed
        })
    }

    /// The type whose rates of matrix products are taken, where the profile has none of this model's own.
    pub fn rates_of(&self) -> Option<Dtype> {
        CostModel::of_model(&self.profile, &self.model, self.kept()).stand_in()
    }

    /// How weights and cache are kept.
    pub fn kept(&self) -> Kept {
        Kept {
            dtype: self.dtype,
            compression: self.compression,
        }
    }

    /// The expansion that was stated, and what whole layers make of it.
    pub fn expansions(&self) -> Option<[f64; 2]> {
        let Manager::Pie(Expansion::Fixed(stated)) = self.manager else {
            return None;
        };
        let layers = self.model.num_hidden_layers as u16;
        let had = match layers_off(layers, stated) {
            0 => 1.0,
            off => with_buffers(layers, off),
        };
        Some([stated, had])
    }

    /// Whether the host has room for the layers of a stated expansion that are off the GPU.
    ///
    /// # Errors
    /// That it has not, and what would help.
    pub fn check_host(&self) -> Result<(), String> {
        let Manager::Pie(Expansion::Fixed(expansion)) = self.manager else {
            return Ok(());
        };
        let layers = self.model.num_hidden_layers as u16;
        let share = on_host(layers, layers_off(layers, expansion));
        let (off, holds) = (
            Bytes((self.kv_bytes.0 as f64 * share) as u64),
            self.profile.usable().host,
        );
        match off <= holds {
            true => Ok(()),
            false => Err(format!(
                "layers off the GPU take {off} of the host's memory, which holds {holds}; give less --expansion or --kv-gb"
            )),
        }
    }

    /// Whether the traffic leaves something of each link.
    ///
    /// # Errors
    /// Why not, and what would help.
    pub fn check_traffic(&self) -> Result<(), String> {
        let links = &self.profile.links;
        for (kind, link) in [
            (ResourceKind::H2d, &links.h2d),
            (ResourceKind::D2h, &links.d2h),
        ] {
            let rate = BytesPerSecond(link.page_locked.peak());
            self.traffic.check(kind, rate)?;
        }
        Ok(())
    }

    /// The machine that pieces are written for.
    pub(super) fn machine(&self) -> Machine {
        self.gpus.machine(&self.profile)
    }

    /// Serves a trace on an executor, whose pieces say who takes part where it really computes.
    pub(super) fn serve(
        &self,
        requests: &[Request],
        executor: &mut dyn Executor,
        described: bool,
    ) -> Result<Replayed, DriveError> {
        let Gpus::Pipeline(pipeline) = self.gpus else {
            let mut scheduler = self.scheduler(requests, (1, described));
            if !described {
                scheduler = scheduler.foreseeing(executor.times());
            }
            follow(&mut scheduler, executor)?;
            return Ok(Replayed {
                summary: scheduler.summary(self.slo_s),
                sequences: scheduler.running().sequences().to_vec(),
                refusals: scheduler.refusals().to_vec(),
                iterations: scheduler.iterations().to_vec(),
                prediction: scheduler.prediction_score(),
                extrapolates: Vec::new(),
            });
        };
        let batches = pipeline.micro_batches;
        let each = (0..batches).map(|_| self.scheduler(requests, (batches, described)));
        let mut all = InFlight::new(each.collect());
        follow(&mut all, executor)?;
        Ok(Replayed {
            summary: all.summary(self.slo_s),
            sequences: all.sequences(),
            refusals: all.refusals(),
            iterations: all.iterations(),
            prediction: None,
            extrapolates: Vec::new(),
        })
    }

    /// One that has the cache to itself, or shares it with others.
    fn scheduler(&self, requests: &[Request], (sharing, described): (u32, bool)) -> Scheduler {
        let (machine, shape) = (self.machine(), Shape::of(&self.model, self.kept()));
        let pie = self.manager.layers(&machine, self.kv_bytes, &shape);
        let whole = self.kv_bytes.0 / shape.bytes_per_token().0 / u64::from(sharing);
        // What a stated expansion holds is never taken away.
        let capacity = pie.as_ref().map_or(whole, Pie::capacity_tokens);
        let manager = self.manager.of(capacity);
        let stages = self.gpus.stages(&machine, self.model.num_hidden_layers);
        let mut scheduler = Scheduler::new(machine, shape, self.limits, manager, requests);
        scheduler = scheduler.over(stages);
        if let Some(pie) = pie {
            scheduler = scheduler.with_layers_swapped(pie);
        }
        if let Some(clients) = self.clients {
            scheduler = scheduler.in_closed_loop(clients);
        }
        if described {
            scheduler = scheduler.described();
        }
        if self.logged {
            scheduler = scheduler.logged();
        }
        scheduler
    }
}

impl Prediction {
    /// What messages call it.
    fn name(&self) -> String {
        match self {
            Prediction::Oracle => "oracle".to_owned(),
            Prediction::Classifier {
                accuracy,
                distance,
                wrong,
                ..
            } => {
                let far = match *distance == 1.0 {
                    true => String::new(),
                    false => format!(", wrong by {distance} buckets"),
                };
                let way = match wrong {
                    Wrong::Either => "",
                    Wrong::Short => ", always short",
                    Wrong::Long => ", always long",
                };
                format!("accuracy {accuracy}{far}{way}")
            }
            Prediction::Learner { features, .. } => match features.texts() {
                0 => "learns from prompts' lengths".to_owned(),
                texts => format!("learns from {texts} prompts"),
            },
        }
    }
}

impl Manager {
    /// As flags call it.
    pub fn name(&self) -> String {
        match self {
            Manager::Orca { max_len } => format!("orca (max length {max_len})"),
            Manager::Vllm {
                preemption: Preemption::Recompute,
            } => "vllm (recompute)".to_owned(),
            Manager::Vllm {
                preemption: Preemption::Swap,
            } => "vllm (swap)".to_owned(),
            Manager::S3 {
                prediction,
                reserve,
            } => {
                let what = match reserve {
                    Reserve::Output => "; room for answers alone",
                    Reserve::All => "",
                };
                format!("s3 ({}{what})", prediction.name())
            }
            Manager::Pie(Expansion::Auto(settings)) => format!(
                "pie (adaptive expansion, tried again after {} iterations at the soonest)",
                settings.probe_after
            ),
            Manager::Pie(Expansion::Fixed(expansion)) => format!("pie (expansion {expansion})"),
        }
    }

    /// Tells one that learns what is known of a trace's prompts.
    pub fn knows(&mut self, known: Features) {
        if let Manager::S3 {
            prediction: Prediction::Learner { features, .. },
            ..
        } = self
        {
            *features = known;
        }
    }

    /// Tokens whose room is given away together.
    pub(super) fn block_tokens(&self) -> u32 {
        match *self {
            Manager::Orca { max_len } => max_len,
            Manager::Vllm { .. } | Manager::Pie(_) => BLOCK_TOKENS,
            Manager::S3 { .. } => 1,
        }
    }

    fn of(&self, capacity_tokens: u64) -> Box<dyn KvManager> {
        match *self {
            Manager::Orca { max_len } => Box::new(Orca::new(capacity_tokens, max_len)),
            Manager::Vllm { preemption } => Box::new(Vllm::new(capacity_tokens, preemption)),
            Manager::S3 {
                ref prediction,
                reserve,
            } => Box::new(S3::new(capacity_tokens, reserve, prediction.predictor())),
            Manager::Pie(_) => Box::new(Vllm::new(capacity_tokens, Preemption::Recompute)),
        }
    }

    /// The layers that are swapped, if any are.
    pub(super) fn layers(&self, machine: &Machine, kv_bytes: Bytes, shape: &Shape) -> Option<Pie> {
        let lanes = Lanes::of(machine);
        match *self {
            Manager::Pie(Expansion::Auto(settings)) => {
                let host = machine.host_capacity().0 as f64 / kv_bytes.0.max(1) as f64;
                let most = layers_off_at_most(shape.layers, host);
                let adaptive = Adaptive::new(shape.layers, settings).at_most(most);
                Some(Pie::adaptive(lanes, kv_bytes, shape, adaptive))
            }
            Manager::Pie(Expansion::Fixed(expansion)) => {
                match layers_off(shape.layers, expansion) {
                    0 => None,
                    off => Some(Pie::fixed(lanes, kv_bytes, shape, off)),
                }
            }
            Manager::Orca { .. } | Manager::Vllm { .. } | Manager::S3 { .. } => None,
        }
    }
}

/// A request's row in a table of all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestRow<'a> {
    /// Of which run, as in the table of iterations.
    pub run: &'a str,
    /// Its number in the trace, from 0 on.
    pub request: usize,
    /// When it came.
    pub arrival_s: f64,
    /// Tokens of its prompt.
    pub prompt_len: u32,
    /// Tokens of its answer.
    pub output_len: u32,
    /// From its coming to its first token; none where it was refused.
    pub ttft_s: Option<f64>,
    /// Between its first and its last token, by tokens; none where there was but one.
    pub tpot_s: Option<f64>,
    /// From its coming to its last token.
    pub e2e_s: Option<f64>,
    /// Time of the iterations that computed it.
    pub compute_s: Option<f64>,
    /// The rest.
    pub queueing_s: Option<f64>,
    /// How often it had to leave.
    pub preemptions: u32,
    /// Whether it could never have room.
    pub refused: bool,
}

impl<'a> RequestRow<'a> {
    /// Of all requests of a run, in their order.
    pub fn of(run: &'a str, sequences: &[Sequence]) -> Vec<RequestRow<'a>> {
        let rows = sequences.iter().enumerate().map(|(request, it)| {
            let done = it.state == State::Done;
            let if_done = |value: f64| done.then_some(value);
            let Request {
                arrival,
                prompt_len,
                output_len,
            } = it.request;
            let decoding = (it.last_token - it.first_token).0;
            RequestRow {
                run,
                request,
                arrival_s: arrival.0,
                prompt_len,
                output_len,
                ttft_s: if_done((it.first_token - arrival).0),
                tpot_s: if_done(decoding / f64::from(output_len.max(2) - 1))
                    .filter(|_| output_len > 1),
                e2e_s: if_done(it.latency().0),
                compute_s: if_done(it.computed.0),
                queueing_s: if_done((it.latency() - it.computed).0.max(0.0)),
                preemptions: it.preemptions,
                refused: it.state == State::Refused,
            }
        });
        rows.collect()
    }
}
