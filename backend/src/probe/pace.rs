//! Times reference work, to know how fast the machine happens to be going.

use std::time::Instant;

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{HardwareProfile, LinkSlowness, Slowness};
use plimsoll_core::program::ResourceKind;
use plimsoll_core::units::Bytes;

use super::disk_pace::DiskMeter;
use super::link_pace::{BothWays, LinkMeter, LinkTimes};
use super::stats::median;
use crate::cpu::{Cores, CpuError, CpuOptions};
use crate::decoder::Team;
use crate::kernels::Elements;
use crate::kernels::linear::{How, LinearWeight, Ways};
use crate::pin;
use crate::tiers::{Region, free_bytes};

/// The reference product's weights.
const N: usize = 1536;
const K: usize = 2048;
/// Weights, and bytes to copy, that take turns: together larger than what a shared last cache keeps. A model's come from memory and
/// go there too, while what stays in that cache goes as fast as neighbours let it, which says nothing of a run.
const TURNS: usize = 8;
/// Tokens of the two products.
const FEW: usize = 3;
const MANY: usize = 96;
/// Bytes of the reference copy.
const COPY_BYTES: usize = 12 << 20;
/// Each is repeated at least so often, and for so long; the median counts.
const REPEATS_MIN: usize = 5;
const REPEATS_S: f64 = 20e-3;

/// Seconds that the reference work took at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// Matrix product of few tokens, on the device's cores.
    pub few_tokens_s: f64,
    /// Matrix product of many tokens, on the device's cores.
    pub many_tokens_s: f64,
    /// Copy, on the other cores.
    pub copy_s: f64,
    /// Reads of the disk; none where nobody asked for it.
    pub disk_read_s: Option<f64>,
    /// Copies to a GPU and from it; none where nobody asked for it, and without one.
    pub links_s: Option<BothWays>,
}

/// How often in all a measurement is begun again because the machine changed its pace meanwhile: where
/// it keeps doing so, more of it takes time and brings nothing.
const RESTARTS_MAX: u32 = 10;

/// The reference work with its operands.
#[derive(Debug)]
pub struct PaceMeter {
    restarts_left: u32,
    /// In large pages, as an executor's tiers are.
    weights: Region,
    turn: usize,
    input: Vec<f32>,
    output: Vec<f32>,
    from: Region,
    into: Region,
    cores: Cores,
    /// The device's threads, by which the products are computed.
    threads: usize,
    /// A GPU has a pace of its own, of which the processor's says nothing: all moments are alike, but for disk and links.
    on_card: bool,
    options: CpuOptions,
    /// Kept once it is there.
    disk: Option<DiskMeter>,
    watches_disk: bool,
    /// Likewise.
    links: Option<LinkMeter>,
    watches_links: bool,
}

impl PaceMeter {
    /// Work on the cores that an executor with these options uses.
    ///
    /// # Errors
    /// [`CpuError::Tier`] where there is no memory for the work's operands.
    pub fn new(options: &CpuOptions) -> Result<PaceMeter, CpuError> {
        let on_card = options.card.is_some();
        let region = |bytes: usize| {
            let wanted = if on_card { 0 } else { bytes };
            Region::new("host", Bytes(wanted as u64))
        };
        let value = |i: usize| (i % 17) as f32 * 0.01 - 0.08;
        let mut weights = region(TURNS * N * K * size_of::<f32>())?;
        let numbers: &mut [f32] = bytemuck::cast_slice_mut(weights.bytes_mut());
        for (i, number) in numbers.iter_mut().enumerate() {
            *number = value(i);
        }
        Ok(PaceMeter {
            restarts_left: RESTARTS_MAX,
            weights,
            turn: 0,
            input: (0..MANY * K).map(value).collect(),
            output: vec![0.0; MANY * N],
            from: region(TURNS * COPY_BYTES)?,
            into: region(TURNS * COPY_BYTES)?,
            cores: Cores::of(options),
            threads: options.device_threads,
            on_card,
            options: options.clone(),
            disk: None,
            watches_disk: false,
            links: None,
            watches_links: false,
        })
    }

    /// Whether the disk's pace is asked for from now on, beside something that needs so much room there. A disk without room for
    /// both has none.
    pub fn watch_disk(&mut self, beside: Option<Bytes>) {
        self.watches_disk = beside.is_some();
        let Some(beside) = beside else { return };
        let options = &self.options;
        let leaves_room = free_bytes(&options.disk_dir).is_ok_and(|free| free >= beside);
        self.disk = match self.disk.take().filter(|_| leaves_room) {
            Some(disk) => Some(disk),
            None => DiskMeter::new(options, beside).ok().flatten(),
        };
    }

    /// Whether the pace of a GPU's links is asked for from now on. A host without memory for it has none.
    pub fn watch_links(&mut self, watches: bool) {
        self.watches_links = watches;
        if watches && self.links.is_none() {
            let card = self.options.card.clone();
            self.links = card.and_then(|card| LinkMeter::new(card).ok());
        }
    }

    /// Measures something with the reference work before and after. Where both are apart, the reference work is timed once more:
    /// if that is as before again, only the reference work was disturbed; else the pace may have changed, and all is measured
    /// once more, as often as that helps.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn steadily<T, E>(
        &mut self,
        mut work: impl FnMut() -> Result<T, E>,
    ) -> Result<Paced<T>, E> {
        let mut restarted = false;
        loop {
            let before = self.now();
            let result = work()?;
            let after = self.now();
            let moment = match Moment::is_steady(before, after) {
                true => Some(Moment::between(before, after)),
                false => Moment::despite(before, self.now()),
            };
            let last = restarted || self.restarts_left == 0;
            let either_way = last.then(|| Moment::between(before, after));
            if let Some(moment) = moment.or(either_way) {
                return Ok(Paced {
                    result,
                    moment,
                    restarted,
                });
            }
            restarted = true;
            self.restarts_left -= 1;
        }
    }

    /// Times the reference work now: about a tenth of a second, a fifth more where the disk's is asked for, and two fifths where the links' are.
    /// A GPU's links can only be while no executor has it.
    pub fn now(&mut self) -> Moment {
        let disk = self.disk.as_mut().filter(|_| self.watches_disk);
        let disk_read_s = disk.and_then(|disk| disk.now().ok());
        let links = self.links.as_mut().filter(|_| self.watches_links);
        let links_s = links.and_then(|links| links.now().ok());
        if self.on_card {
            return Moment {
                few_tokens_s: 1.0,
                many_tokens_s: 1.0,
                copy_s: 1.0,
                disk_read_s,
                links_s,
            };
        }
        let (input, output, turn) = (&self.input, &mut self.output, &mut self.turn);
        let weights: &[f32] = bytemuck::cast_slice(self.weights.bytes());
        let team = Team::new(self.threads, Dtype::F32);
        let device = self.cores.of_resource(ResourceKind::Gpu);
        let products = pin::on_cores(&device, || {
            [FEW, MANY].map(|m| {
                timed(|| {
                    *turn = (*turn + 1) % TURNS;
                    product(&team, m, &weights[*turn * N * K..][..N * K], input, output);
                })
            })
        });
        let (from, into) = (self.from.bytes(), self.into.bytes_mut());
        let others = self.cores.of_resource(ResourceKind::H2d);
        let copy_s = pin::on_cores(&others, || {
            timed(|| {
                *turn = (*turn + 1) % TURNS;
                let at = *turn * COPY_BYTES..(*turn + 1) * COPY_BYTES;
                into[at.clone()].copy_from_slice(&from[at]);
            })
        });
        Moment {
            few_tokens_s: products[0],
            many_tokens_s: products[1],
            copy_s,
            disk_read_s,
            links_s,
        }
    }
}

/// A measurement, and how the machine went meanwhile.
#[derive(Debug)]
pub struct Paced<T> {
    /// What was measured.
    pub result: T,
    /// The reference work's times around it.
    pub moment: Moment,
    /// Whether there was one before that does not count, because the machine changed its pace.
    pub restarted: bool,
}

fn product(team: &Team, m: usize, weight: &[f32], input: &[f32], output: &mut [f32]) {
    let how = How::best(Ways::BUILT_IN);
    let weight = LinearWeight {
        weight: Elements::F32(weight).into(),
        bias: None,
    };
    let output = &mut output[..m * N];
    team.linears_by([how], (m, &input[..m * K]), [weight], [output])
        .expect("operands have the shape's sizes");
}

fn timed(mut work: impl FnMut()) -> f64 {
    work();
    let mut times = Vec::new();
    while times.len() < REPEATS_MIN || times.iter().sum::<f64>() < REPEATS_S {
        let start = Instant::now();
        work();
        times.push(start.elapsed().as_secs_f64());
    }
    median(&times)
}

/// A change of pace within one measurement that is still called steady.
const STEADY: f64 = 0.2;

impl Moment {
    /// Between two moments.
    pub fn between(before: Moment, after: Moment) -> Moment {
        let mean = |part: fn(&Moment) -> f64| (part(&before) * part(&after)).sqrt();
        let disk_read_s = before.disk_read_s.zip(after.disk_read_s);
        Moment {
            few_tokens_s: mean(|m| m.few_tokens_s),
            many_tokens_s: mean(|m| m.many_tokens_s),
            copy_s: mean(|m| m.copy_s),
            disk_read_s: disk_read_s.map(|(before, after)| (before * after).sqrt()),
            links_s: before.links_s.zip(after.links_s).map(|(before, after)| {
                [0, 1].map(|way| {
                    LinkTimes::by(|part| (part(&before[way]) * part(&after[way])).sqrt())
                })
            }),
        }
    }

    /// Between a moment and a later one that is like it, whatever the reference work said between them; none where the pace is
    /// another now.
    fn despite(before: Moment, later: Moment) -> Option<Moment> {
        Moment::is_steady(before, later).then(|| Moment::between(before, later))
    }

    /// Whether the processor went at the same pace at both moments. Disks seldom do for long, so runs are not done again for theirs.
    fn is_steady(before: Moment, after: Moment) -> bool {
        let ratio = after.relative_to(&before);
        [ratio.few_tokens, ratio.many_tokens, ratio.copy]
            .iter()
            .all(|r| r.ln().abs() < STEADY)
    }

    /// How much slower than another moment.
    pub fn relative_to(&self, base: &Moment) -> Slowness {
        let [h2d, d2h] = match (&self.links_s, &base.links_s) {
            (Some(now), Some(then)) => [0, 1].map(|way| now[way].relative_to(&then[way])),
            _ => [LinkSlowness::NONE; 2],
        };
        Slowness {
            h2d,
            d2h,
            few_tokens: self.few_tokens_s / base.few_tokens_s,
            many_tokens: self.many_tokens_s / base.many_tokens_s,
            copy: self.copy_s / base.copy_s,
            disk_read: match (self.disk_read_s, base.disk_read_s) {
                (Some(now), Some(then)) => now / then,
                _ => 1.0,
            },
        }
    }

    /// How much slower than when a profile was measured, where it says of the processor or of a disk that was asked for.
    pub fn slowness(&self, profile: &HardwareProfile) -> Option<Slowness> {
        let pace = profile.compute.pace.as_ref();
        let disk = profile.links.disk_read_pace.as_ref();
        let disk = disk.filter(|_| self.disk_read_s.is_some());
        let links = [&profile.links.h2d, &profile.links.d2h].map(|link| link.pace.as_ref());
        let links = links[0].zip(links[1]).filter(|_| self.links_s.is_some());
        if pace.is_none() && disk.is_none() && links.is_none() {
            return None;
        }
        Some(self.relative_to(&Moment {
            few_tokens_s: pace.map_or(self.few_tokens_s, |pace| pace.few_tokens.value.0),
            many_tokens_s: pace.map_or(self.many_tokens_s, |pace| pace.many_tokens.value.0),
            copy_s: pace.map_or(self.copy_s, |pace| pace.copy.value.0),
            disk_read_s: disk.map(|pace| pace.value.0),
            links_s: links.map(|(h2d, d2h)| {
                [h2d, d2h].map(|pace| LinkTimes {
                    page_locked: pace.page_locked.value.0,
                    pageable: pace.pageable.value.0,
                })
            }),
        }))
    }

    /// The middle of several moments.
    pub fn middle(moments: &[Moment]) -> Moment {
        let of = |part: fn(&Moment) -> f64| median(&moments.iter().map(part).collect::<Vec<_>>());
        let disk: Vec<f64> = moments.iter().filter_map(|m| m.disk_read_s).collect();
        let links: Vec<BothWays> = moments.iter().filter_map(|m| m.links_s).collect();
        Moment {
            few_tokens_s: of(|m| m.few_tokens_s),
            many_tokens_s: of(|m| m.many_tokens_s),
            copy_s: of(|m| m.copy_s),
            disk_read_s: (!disk.is_empty()).then(|| median(&disk)),
            links_s: (!links.is_empty()).then(|| {
                [0, 1].map(|way| {
                    LinkTimes::by(|part| {
                        median(&links.iter().map(|it| part(&it[way])).collect::<Vec<_>>())
                    })
                })
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(times: f64) -> Moment {
        Moment {
            few_tokens_s: times,
            many_tokens_s: 2.0 * times,
            copy_s: 3.0 * times,
            disk_read_s: Some(4.0 * times),
            links_s: Some([5.0, 7.0].map(|part| LinkTimes {
                page_locked: part * times,
                pageable: (part + 1.0) * times,
            })),
        }
    }

    /// A GPU's profile knows the disk's pace alone, and a moment that was not asked for it has none.
    #[test]
    fn a_disk_has_a_pace_of_its_own() {
        use plimsoll_core::hardware::{Quantity, embedded};
        use plimsoll_core::units::Seconds;
        let mut profile = embedded::profile("t4").expect("embedded");
        let asked = moment(2.0);
        assert_eq!(asked.slowness(&profile), None);
        profile.links.disk_read_pace = Some(Quantity::new(Seconds(4.0), "a test"));
        let found = asked.slowness(&profile).expect("known");
        assert_eq!(
            (found.disk_read, found.few_tokens, found.copy),
            (2.0, 1.0, 1.0)
        );
        let not_asked = Moment {
            disk_read_s: None,
            ..asked
        };
        assert_eq!(not_asked.slowness(&profile), None);
        assert_eq!(Moment::between(asked, not_asked).disk_read_s, None);
        assert_eq!(Moment::middle(&[not_asked, asked]).disk_read_s, Some(8.0));
    }

    /// Each way, page-locked and pageable, each by itself; and only where both profile and moment know them.
    #[test]
    fn links_have_paces_of_their_own() {
        use plimsoll_core::hardware::{LinkPace, Quantity, embedded};
        use plimsoll_core::units::Seconds;
        let mut profile = embedded::profile("t4").expect("embedded");
        let pace = |page_locked, pageable| {
            let time = |seconds| Quantity::new(Seconds(seconds), "a test");
            Some(LinkPace {
                page_locked: time(page_locked),
                pageable: time(pageable),
            })
        };
        profile.links.h2d.pace = pace(5.0, 4.0);
        assert_eq!(moment(2.0).slowness(&profile), None);
        profile.links.d2h.pace = pace(2.0, 16.0);
        let found = moment(2.0).slowness(&profile).expect("known");
        let slowness = |page_locked, pageable| LinkSlowness {
            page_locked,
            pageable,
        };
        assert_eq!(found.h2d, slowness(2.0, 3.0));
        assert_eq!(found.d2h, slowness(7.0, 1.0));
        assert_eq!((found.copy, found.disk_read), (1.0, 1.0));
        let not_asked = Moment {
            links_s: None,
            ..moment(2.0)
        };
        assert_eq!(not_asked.slowness(&profile), None);
        assert_eq!(Moment::between(moment(2.0), not_asked).links_s, None);
        let between = Moment::between(moment(1.0), moment(4.0));
        assert_eq!(between.links_s, moment(2.0).links_s);
        let middle = Moment::middle(&[not_asked, moment(3.0), moment(1.0), moment(9.0)]);
        assert_eq!(middle.links_s, moment(3.0).links_s);
    }

    #[test]
    fn a_moment_like_the_one_before_tells_a_disturbance_from_another_pace() {
        let known = Moment::despite(moment(1.0), moment(1.1)).expect("alike");
        assert!((known.few_tokens_s - 1.1_f64.sqrt()).abs() < 1e-12);
        assert_eq!(Moment::despite(moment(1.0), moment(2.0)), None);
        // One part that is off is another pace, too.
        let copies = Moment {
            copy_s: 6.0,
            ..moment(1.0)
        };
        assert_eq!(Moment::despite(moment(1.0), copies), None);
    }
}
