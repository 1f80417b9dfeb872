//! `plimsoll replay --execute`: the trace served for real.

use std::path::Path;
use std::sync::atomic::Ordering;

use plimsoll_backend::cpu::{CpuOptions, Throttles};
use plimsoll_backend::serving::ROUNDED;
use plimsoll_backend::weights::{Safetensors, Synthetic, WeightSource};
use plimsoll_core::hardware::{HardwareProfile, Slowness};
use plimsoll_core::program::ResourceKind;
use plimsoll_core::serve::{Request, Reserve, ServeSummary};
use plimsoll_core::traffic::Traffic;
use plimsoll_core::units::{Bytes, BytesPerSecond};

use crate::cli::backend::Backend;
use crate::cli::exit::{Exit, Failure};
use crate::cli::options::positive;
use crate::cli::output::complain;
use crate::cli::pace::Around;
use crate::cli::profile::cpu_options;
use crate::cli::progress::Progress;
use crate::cli::threads::DeviceThreads;
use crate::files::find_model;
use crate::report::serve::serve_comparison;
use crate::serve::replay::{Manager, Replayed, Server};

/// How to serve for real.
#[derive(Debug, clap::Args)]
pub(super) struct ExecuteArgs {
    /// Serve the trace for real as well, on this machine, and lay what was measured beside the prediction: --hw is what
    /// `plimsoll profile` wrote here; weights are the checkpoint's in --model, else synthetic, and prompts are random
    #[arg(long, conflicts_with = "sweep")]
    execute: bool,
    /// --execute: what serves, this machine's processor or its GPU (f16 and bf16)
    #[arg(long, value_enum, default_value_t = Backend::Cpu, requires = "execute")]
    backend: Backend,
    /// --execute: for random prompts and synthetic weights
    #[arg(long, default_value_t = 0, requires = "execute")]
    seed: u64,
    /// The most that copies to the device carry, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    h2d_gb_s: Option<f64>,
    /// The most that copies from the device carry, in GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    d2h_gb_s: Option<f64>,
    #[command(flatten)]
    threads: DeviceThreads,
}

/// What came of serving for real.
pub(super) struct Measured {
    /// What served.
    backend: Backend,
    /// Whether predictions were of another machine, and nothing is to be compared with them.
    pub foreign: bool,
    pub replayed: Replayed,
    /// What of the traffic was carried.
    pub carried: Bytes,
    /// How much longer reference work took around it than when the machine was profiled, where that is known.
    pub pace: Option<Slowness>,
    /// The prediction of a machine that goes at that pace. Requests come as they do: their times are not the machine's.
    pub at_pace: Option<Replayed>,
}

impl ExecuteArgs {
    /// The machine with its links held to what was asked for.
    pub fn held(&self, profile: HardwareProfile) -> HardwareProfile {
        match (self.h2d_gb_s, self.d2h_gb_s) {
            (None, None) => profile,
            (h2d, d2h) => profile.with_link_cap(h2d.map(rate), d2h.map(rate)),
        }
    }

    /// Refuses to serve on what is not here, before anything else is done.
    ///
    /// # Errors
    /// What the machine lacks.
    pub fn check_available(&self) -> anyhow::Result<()> {
        self.backend.check_available()
    }

    /// Whether the trace is to be served for real.
    pub fn asked(&self) -> bool {
        self.execute
    }

    /// Whether a profile is not of a machine with the device that serves.
    fn is_foreign(&self, profile: &HardwareProfile) -> bool {
        profile.kind != self.backend.kind()
    }

    /// A machine that is not this one does not say how much cache this one has room for.
    ///
    /// # Errors
    /// Where nothing else does.
    pub fn check_cache(
        &self,
        profile: &HardwareProfile,
        kv_gb: Option<f64>,
    ) -> Result<(), Failure> {
        if !self.execute || kv_gb.is_some() || !self.is_foreign(profile) {
            return Ok(());
        }
        let line = format!(
            "--execute: {} is not of a machine with this device, so that it does not say what this one has room for; give \
             --kv-gb, or what `plimsoll profile` wrote here as --hw",
            profile.name
        );
        Err(Failure::new(Exit::Usage, line))
    }

    /// What serves for real; none where nobody asked for that.
    ///
    /// # Errors
    /// What this machine lacks.
    pub fn options(&self, profile: &HardwareProfile) -> anyhow::Result<Option<CpuOptions>> {
        if !self.execute {
            return Ok(None);
        }
        let threads = self.threads.beside(self.backend, Some(profile));
        let cpu = cpu_options(Path::new("."), threads)?;
        let on_device = self.backend.on_device(cpu)?;
        Ok(Some(CpuOptions {
            throttles: self.throttles(),
            ..self.backend.choosing_by(on_device, profile)
        }))
    }

    /// Leaves a GPU room for what lies beside weights and cache: the cache has the rest, or what was asked for where that is less.
    ///
    /// # Errors
    /// That there is no such room, or a model that cannot be computed.
    pub fn leave_room(
        &self,
        (server, profile): (&mut Server, &HardwareProfile),
        (requests, kv_gb): (&[Request], Option<f64>),
        options: &CpuOptions,
    ) -> anyhow::Result<()> {
        let beside = match server.beside(requests, options)? {
            Bytes::ZERO => return Ok(()),
            _ if self.is_foreign(profile) => return Ok(()),
            beside => beside + ROUNDED,
        };
        let left = server.gpus.kv_left(profile, &server.model, server.kept());
        let left = left.unwrap_or_default();
        let asked = kv_gb.map(|_| server.kv_bytes);
        server.kv_bytes = cache_beside(left, beside, asked).ok_or_else(|| {
            let line = format!(
                "--execute: the weights leave {left}, of which activations, tables and more for {} tokens an iteration take {beside}: \
                 {} for the cache; give a smaller --kv-gb, --max-tokens or --max-sequences, or shorter requests",
                server.most(requests).tokens,
                left.saturating_sub(beside)
            );
            Failure::new(Exit::Infeasible, line)
        })?;
        Ok(())
    }

    /// Serves the trace on the machine of a profile; so many tokens come out.
    ///
    /// # Errors
    /// What is not served for real, what this machine lacks, an interruption.
    pub fn run(
        &self,
        (server, profile): (&Server, &HardwareProfile),
        (model, options): (&str, &CpuOptions),
        (requests, tokens): (&[Request], u64),
    ) -> anyhow::Result<Measured> {
        let foreign = self.is_foreign(profile);
        if foreign {
            complain(&format!(
                "warning: {} is not of a machine with this device, and nothing that it predicts is of this run; give what \
                 `plimsoll profile --backend {}` wrote here as --hw",
                profile.name,
                match self.backend {
                    Backend::Cpu => "cpu",
                    Backend::Cuda => "cuda",
                }
            ));
        }
        let source: Box<dyn WeightSource> = match find_model(model)?.checkpoint()? {
            Some(folder) => {
                let checkpoint = Safetensors::open(folder, &server.model)?;
                checkpoint.check(&server.model)?;
                Box::new(checkpoint)
            }
            None => Box::new(Synthetic { seed: self.seed }),
        };
        let around = Around::begin(Some(profile).filter(|_| !foreign), options);
        let progress = Progress::new("loading weights, then serving; tokens", tokens);
        let mut see = |done| progress.begin("serving, tokens", done);
        let executed = server.execute(requests, (&*source, self.seed), options, &mut see);
        drop(progress);
        let executed =
            executed.map_err(|error| match options.interrupt.load(Ordering::Relaxed) {
                true => Failure::new(Exit::Interrupted, "interrupted; nothing was written").into(),
                false => anyhow::Error::from(error),
            })?;
        let pace = around.and_then(Around::end);
        let at_pace = pace.and_then(|pace| {
            // A link is held to what was asked for, however fast the machine goes.
            let profile = self.held(profile.at_pace(&pace));
            let server = Server {
                profile,
                ..server.clone()
            };
            // What traffic leaves nothing of at this pace has no prediction at it.
            server
                .check_traffic()
                .is_ok()
                .then(|| server.replay(requests))
        });
        Ok(Measured {
            backend: self.backend,
            foreign,
            replayed: executed.replayed,
            carried: executed.carried,
            pace,
            at_pace: at_pace.transpose()?,
        })
    }

    fn throttles(&self) -> Throttles {
        Throttles {
            h2d: self.h2d_gb_s.map(rate),
            d2h: self.d2h_gb_s.map(rate),
            ..Throttles::default()
        }
    }

    /// Refuses what is not served for real.
    ///
    /// # Errors
    /// Why, and what would be.
    pub fn check(&self, server: &Server) -> Result<(), Failure> {
        let unpaced = |it: &Traffic| {
            it.ways.kinds().any(|kind| match kind {
                ResourceKind::H2d => self.h2d_gb_s.is_none(),
                _ => self.d2h_gb_s.is_none(),
            })
        };
        if self.execute {
            self.backend.computed([server.dtype])?;
        }
        let on_gpu = self.backend == Backend::Cuda;
        let line = match &server.manager {
            _ if !self.execute && self.threads.asked() => {
                "--device-threads: are those that --execute computes with; give that as well"
            }
            _ if !self.execute => return Ok(()),
            _ if on_gpu && self.throttles() != Throttles::default() => {
                "--backend cuda: a GPU's link goes as fast as it does; leave out --h2d-gb-s and --d2h-gb-s, or give \
                 --backend cpu"
            }
            _ if on_gpu && !server.traffic.0.is_empty() => {
                "--traffic: is not carried over a GPU's link yet; leave it out, or give --backend cpu"
            }
            Manager::S3 {
                reserve: Reserve::Output,
                ..
            } => "--execute: prompts need room as well; give --reserve all",
            _ if server.traffic.0.iter().any(unpaced) => {
                "--traffic with --execute shares the link's rate; give --h2d-gb-s and --d2h-gb-s"
            }
            _ => return Ok(()),
        };
        Err(Failure::new(Exit::Usage, line))
    }
}

impl Measured {
    /// Beside what was predicted.
    pub fn text(&self, predicted: &ServeSummary) -> String {
        let predicted = (!self.foreign).then_some(predicted);
        let at_pace = self.at_pace.as_ref().map(|it| &it.summary);
        let table = serve_comparison((predicted, at_pace), &self.replayed.summary);
        let pace = self.pace.map_or(String::new(), |pace| {
            format!(
                "pace: around it, {pace}; errors are of the prediction at this pace, with requests at their own times\n"
            )
        });
        let carried = match self.carried {
            Bytes(0) => String::new(),
            some => format!("traffic: {some} were carried beside\n"),
        };
        let device = match self.backend {
            Backend::Cpu => "an emulated device",
            Backend::Cuda => "a GPU",
        };
        format!("\nserved for real on {device}\n{table}{pace}{carried}")
    }
}

fn rate(gb_s: f64) -> BytesPerSecond {
    BytesPerSecond(gb_s * 1e9)
}

/// The cache that there is room for beside so much of what weights leave: all of the rest, or what was asked for; none where that is
/// more, or nothing is left.
fn cache_beside(left: Bytes, beside: Bytes, asked: Option<Bytes>) -> Option<Bytes> {
    let room = left.saturating_sub(beside);
    let cache = asked.unwrap_or(room);
    (Bytes::ZERO < cache && cache <= room).then_some(cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_has_what_is_left_or_what_was_asked_for_of_it() {
        let of = |left, beside, asked: Option<u64>| {
            cache_beside(Bytes(left), Bytes(beside), asked.map(Bytes)).map(|cache| cache.0)
        };
        assert_eq!(of(10, 4, None), Some(6));
        assert_eq!(of(10, 4, Some(5)), Some(5));
        assert_eq!(of(10, 4, Some(7)), None);
        assert_eq!(of(4, 4, None), None);
        assert_eq!(of(3, 4, Some(1)), None);
    }
}
