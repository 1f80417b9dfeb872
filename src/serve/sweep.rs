//! A trace served again and again, with one number changed.

use std::str::FromStr;

use plimsoll_core::serve::Request;
use plimsoll_core::units::Seconds;
use serde::Serialize;

use super::replay::{Expansion, Manager, Replayed, Server, check_expansion};
use super::workload::Description;
use crate::parallel::on_all_processors;

/// What is changed, and to what.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// The number.
    pub what: Swept,
    /// Its values.
    pub values: Vec<f64>,
}

/// A number that can be swept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swept {
    /// Requests a second: the trace's times are stretched.
    Rate,
    /// Device memory for the cache, of each GPU, in GB of 10^9 bytes.
    KvGb,
    /// Pie's expansion.
    Expansion,
}

impl Swept {
    /// As in the flag.
    pub fn name(self) -> &'static str {
        match self {
            Swept::Rate => "rate",
            Swept::KvGb => "kv-gb",
            Swept::Expansion => "expansion",
        }
    }

    /// Below a picture.
    pub fn axis(self) -> &'static str {
        match self {
            Swept::Rate => "requests a second",
            Swept::KvGb => "KV cache on the device (GB)",
            Swept::Expansion => "expansion, buffers counted",
        }
    }
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Sweep, String> {
        let wrong = || {
            "give rate, kv-gb or expansion, =, and numbers with commas between, such as kv-gb=3,5,7"
                .to_owned()
        };
        let (what, values) = text.split_once('=').ok_or_else(wrong)?;
        let what = match what {
            "rate" => Swept::Rate,
            "kv-gb" => Swept::KvGb,
            "expansion" => Swept::Expansion,
            _ => return Err(wrong()),
        };
        let least = if what == Swept::Expansion {
            1.0
        } else {
            f64::MIN_POSITIVE
        };
        let values = values
            .split(',')
            .map(|value| value.trim().parse::<f64>().ok());
        let values: Option<Vec<f64>> = values.collect();
        let values = values.ok_or_else(wrong)?;
        if values
            .iter()
            .any(|value| !(*value >= least && value.is_finite()))
        {
            return Err(match what {
                Swept::Expansion => {
                    "give finite expansions of at least 1, such as expansion=1,1.4".to_owned()
                }
                Swept::Rate | Swept::KvGb => {
                    format!("give finite numbers above 0, such as {}=3,5,7", what.name())
                }
            });
        }
        Ok(Sweep { what, values })
    }
}

/// A value, and what comes of the trace with it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SweepRow {
    /// The value.
    pub value: f64,
    /// Requests completed.
    pub completed: u64,
    /// Requests that can never have room.
    pub refused: u64,
    /// Requests completed a second.
    pub requests_per_s: f64,
    /// Tokens of answers a second.
    pub output_tokens_per_s: f64,
    /// Mean time to the first token; none, as those after it, where nothing was completed.
    pub ttft_s_mean: Option<f64>,
    /// Its median.
    pub ttft_s_p50: Option<f64>,
    /// Its 99th percentile.
    pub ttft_s_p99: Option<f64>,
    /// Mean time of a token after the first.
    pub tpot_s_mean: Option<f64>,
    /// Its 99th percentile.
    pub tpot_s_p99: Option<f64>,
    /// 99th percentile of the time between tokens.
    pub itl_s_p99: Option<f64>,
    /// Mean time of a whole request.
    pub e2e_s_mean: Option<f64>,
    /// Its 99th percentile.
    pub e2e_s_p99: Option<f64>,
    /// Mean queueing by tokens of answers.
    pub queueing_s_per_token: Option<f64>,
    /// Mean compute by tokens of answers.
    pub compute_s_per_token: Option<f64>,
    /// Requests a second within the objective.
    pub goodput_per_s: f64,
    /// Sequences in an iteration.
    pub average_batch: f64,
    /// How often requests had to leave.
    pub preemptions: u64,
    /// Pie's expansion over time, in whole layers; none where no layers were swapped.
    pub expansion: Option<f64>,
    /// Why requests were refused, where some were: what the first of them did, or what the machine and the model have less of.
    pub refusal: Option<String>,
}

impl SweepRow {
    fn of(value: f64, replayed: &Replayed) -> SweepRow {
        let it = &replayed.summary;
        let refusal = replayed.refusals.first();
        let of_answers = |seconds: f64| (it.completed > 0).then_some(seconds);
        SweepRow {
            value,
            completed: it.completed,
            refused: it.refused,
            requests_per_s: it.requests_per_s,
            output_tokens_per_s: it.output_tokens_per_s,
            ttft_s_mean: of_answers(it.ttft_s.mean),
            ttft_s_p50: of_answers(it.ttft_s.p50),
            ttft_s_p99: of_answers(it.ttft_s.p99),
            tpot_s_mean: of_answers(it.tpot_s.mean),
            tpot_s_p99: of_answers(it.tpot_s.p99),
            itl_s_p99: of_answers(it.itl_s.p99),
            e2e_s_mean: of_answers(it.e2e_s.mean),
            e2e_s_p99: of_answers(it.e2e_s.p99),
            queueing_s_per_token: of_answers(it.queueing_s_per_token.mean),
            compute_s_per_token: of_answers(it.compute_s_per_token.mean),
            goodput_per_s: it.goodput_per_s,
            average_batch: it.average_batch,
            preemptions: it.preemptions,
            expansion: it.layers.as_ref().map(|layers| layers.expansion),
            refusal: refusal.map(|refusal| format!("the first {}", refusal.why)),
        }
    }

    /// A value that cannot be had, and why.
    fn refused(value: f64, requests: &[Request], why: String) -> SweepRow {
        SweepRow {
            value,
            refused: requests.len() as u64,
            refusal: Some(why),
            ..SweepRow::default()
        }
    }
}

impl Sweep {
    /// A row a value.
    ///
    /// # Errors
    /// A trace without a rate, a server without an expansion; an error of ours.
    pub fn rows(&self, server: &Server, requests: &[Request]) -> anyhow::Result<Vec<SweepRow>> {
        let row = |value: f64| {
            if let Err(why) = self.can_be(value, server) {
                return Ok(SweepRow::refused(value, requests, why));
            }
            let (server, requests) = self.with(value, server, requests);
            if let Err(why) = server.check_host() {
                return Ok(SweepRow::refused(value, &requests, why));
            }
            Ok(SweepRow::of(value, &server.replay(&requests)?))
        };
        on_all_processors(self.values.clone(), &row)
            .into_iter()
            .collect()
    }

    /// Whether it changes anything; else why not.
    ///
    /// # Errors
    /// What does not go together, and what does.
    pub fn check(&self, server: &Server, requests: &[Request]) -> Result<(), String> {
        match (self.what, &server.manager) {
            (Swept::Rate, _) if server.clients.is_some() || Description::of(requests).rate.is_none() => {
                Err("requests that come at once, or in a closed loop, have no rate; give a trace with times".to_owned())
            }
            (Swept::Expansion, Manager::Orca { .. } | Manager::Vllm { .. } | Manager::S3 { .. }) => {
                Err("only Pie has an expansion; give --manager pie".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Whether the machine has the memory, or the model the layers, for a value; else what there is.
    fn can_be(&self, value: f64, server: &Server) -> Result<(), String> {
        let Server {
            gpus,
            profile,
            model,
            ..
        } = server;
        match self.what {
            Swept::Rate => Ok(()),
            Swept::KvGb => {
                let left = gpus
                    .kv_left(profile, model, server.kept())
                    .unwrap_or_default();
                gpus.kv_within(left, value, model).map(|_| ())
            }
            Swept::Expansion => check_expansion(value, model),
        }
    }

    fn with(&self, value: f64, server: &Server, requests: &[Request]) -> (Server, Vec<Request>) {
        let (mut server, mut requests) = (server.clone(), requests.to_vec());
        match self.what {
            Swept::Rate => {
                let factor = Description::of(&requests).rate.unwrap_or(value) / value;
                let stretch =
                    |request: &mut Request| request.arrival = Seconds(request.arrival.0 * factor);
                requests.iter_mut().for_each(stretch);
            }
            Swept::KvGb => {
                server.kv_bytes = server.gpus.kv_of(value, &server.model);
            }
            Swept::Expansion => server.manager = Manager::Pie(Expansion::Fixed(value)),
        }
        (server, requests)
    }
}
