//! Adaptive expansion (Pie, section 3.4.2): how many layers are off the GPU is found while requests are served.

use super::expansion::slots;
use super::table::Swaps;

/// Numbers that the paper leaves open.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Iterations that are looked at together.
    pub window: u32,
    /// More than this share of a window's time spent waiting for swaps is too much.
    pub stalled_max: f64,
    /// So many such windows in a row, and a layer comes back; fewer are a brief disturbance.
    pub stalled_windows: u32,
    /// Two iterations in a row that each waited for more than this share of their time, and a layer comes back at once: with a link
    /// so slow each further one costs more than a whole trial may bring.
    pub stalled_at_once: f64,
    /// More than this share of the time since it grew, half a window or more and caches not all of their size yet, and it shrinks at
    /// once: the link does not hide it.
    pub stalled_growing_max: f64,
    /// At least this share of the layers that came back must have been for the next token already ("more swapping").
    pub early_min: f64,
    /// Where batches grow, throughput of iterations without prompts must grow by at least this share of it, in
    /// logarithms; else the workload no longer scales.
    pub scaling_min: f64,
    /// Iterations after which what was given up is tried again.
    pub probe_after: u32,
    /// But no sooner than this share of the time since is what was waited for at the last trial: all caches move once for another
    /// size, and once more for the old one.
    pub trials_max: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            window: 8,
            stalled_max: 0.01,
            stalled_windows: 2,
            stalled_at_once: 0.5,
            stalled_growing_max: 0.25,
            early_min: 0.02,
            scaling_min: 0.1,
            probe_after: 2000,
            trials_max: 0.05,
        }
    }
}

/// Another number of layers off the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// More.
    Grow,
    /// Fewer.
    Shrink,
}

/// What an iteration was like.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Observed {
    /// How long it took.
    pub seconds: f64,
    /// Of it, the time in which a layer waited for its cache.
    pub stalled: f64,
    /// Tokens made.
    pub tokens: u32,
    /// Layers that began to come back.
    pub back: u32,
    /// Of them, those that the next token needs first.
    pub early: u32,
    /// Whether it computed prompts as well.
    pub prompts: bool,
    /// Whether requests wait for room in the cache.
    pub wanted: bool,
}

impl Observed {
    /// Counts what begins to move when a layer is computed.
    pub(super) fn note(&mut self, swaps: Swaps, computed: u16) {
        if let Some(layer) = swaps.back {
            self.back += 1;
            self.early += u32::from(layer < computed);
        }
    }
}

/// Sums over a window.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    iterations: u32,
    wanted: u32,
    sum: Observed,
    /// Of those without prompts: iterations, their time, their tokens.
    decoding: (u32, f64, u32),
}

/// Throughput and batch with a number of layers off the GPU.
#[derive(Debug, Clone, Copy)]
struct Record {
    rate: f64,
    batch: f64,
}

/// Watches iterations and says when to swap more layers, or fewer.
#[derive(Debug, Clone)]
pub struct Adaptive {
    settings: Settings,
    layers: u16,
    /// Layers that ever may be off the GPU.
    most: u16,
    off: u16,
    window: Window,
    /// Iterations since it last grew, until all caches have their size.
    growing: Option<Window>,
    /// By layers off the GPU, what it was like when it was so last.
    records: Vec<Option<Record>>,
    /// No more than this many layers off it, until it is time to try again.
    ceiling: u16,
    /// Iterations since it was set, and their time.
    since_ceiling: (u32, f64),
    /// Time waited for caches since it last grew, until that is known to be good.
    trial: Option<f64>,
    /// The same of the trial that was given up last, until all caches had their old size.
    cost: f64,
    /// Iterations in a row that waited for most of their time.
    drowned: u32,
    /// Iterations in a row in which nobody wanted more room.
    idle: u32,
    /// Windows in a row in which computation waited too much.
    stalled: u32,
}

/// On the GPU there are a layer that is computed, one that comes and one that leaves.
const SLOTS_MIN: u16 = 3;

impl Adaptive {
    /// For a model of so many layers, all of which begin on the GPU.
    pub fn new(layers: u16, settings: Settings) -> Adaptive {
        Adaptive {
            settings,
            layers,
            most: layers,
            off: 0,
            window: Window::default(),
            growing: None,
            records: vec![None; usize::from(layers) + 1],
            ceiling: layers,
            since_ceiling: (0, 0.0),
            trial: None,
            cost: 0.0,
            drowned: 0,
            idle: 0,
            stalled: 0,
        }
    }

    /// The same with at most so many layers off the GPU.
    pub fn at_most(self, most: u16) -> Adaptive {
        Adaptive {
            most,
            ceiling: self.ceiling.min(most),
            ..self
        }
    }

    /// Layers off the GPU, buffers counted.
    pub fn off(&self) -> u16 {
        self.off
    }

    /// Sees an iteration; `settled` says that all caches have the size that was last decided on.
    pub fn see(&mut self, it: Observed, settled: bool) -> Option<Event> {
        self.since_ceiling.0 += 1;
        self.since_ceiling.1 += it.seconds;
        match &mut self.trial {
            Some(trial) => *trial += it.stalled,
            None if !settled => self.cost += it.stalled,
            None => {}
        }
        self.idle = if it.wanted { 0 } else { self.idle + 1 };
        let event = match settled {
            true => self.see_settled(it),
            false => self.see_growing(it),
        };
        match event {
            Some(Event::Grow) => self.off = if self.off == 0 { 3 } else { self.off + 1 },
            Some(Event::Shrink) => self.off = if self.off == 3 { 0 } else { self.off - 1 },
            None => {}
        }
        if event == Some(Event::Grow) {
            self.trial = Some(0.0);
        }
        if let Some(event) = event {
            self.growing = (event == Event::Grow).then(Window::default);
        }
        event
    }

    fn see_settled(&mut self, it: Observed) -> Option<Event> {
        self.growing = None;
        self.window.add(it);
        let drowned = it.stalled > self.settings.stalled_at_once * it.seconds;
        self.drowned = if drowned { self.drowned + 1 } else { 0 };
        if self.off > 0 && self.drowned >= 2 {
            self.window = Window::default();
            self.stop_below();
            return Some(Event::Shrink);
        }
        if self.window.iterations < self.settings.window {
            return None;
        }
        let window = std::mem::take(&mut self.window);
        self.judge(&window)
    }

    /// All else is not judged while caches have different sizes.
    fn see_growing(&mut self, it: Observed) -> Option<Event> {
        self.window = Window::default();
        let growing = self.growing.as_mut()?;
        growing.add(it);
        let most = self.settings.stalled_growing_max * growing.sum.seconds;
        if growing.iterations < self.settings.window / 2 || growing.sum.stalled <= most {
            return None;
        }
        self.stop_below();
        Some(Event::Shrink)
    }

    fn judge(&mut self, window: &Window) -> Option<Event> {
        let (iterations, seconds, tokens) = window.decoding;
        // Prompts come in bursts, and would be taken for a workload that scales no more.
        let now = (iterations > 0).then(|| Record {
            rate: f64::from(tokens) / seconds,
            batch: f64::from(tokens) / f64::from(iterations),
        });
        let known = &mut self.records[usize::from(self.off)];
        *known = now.or(*known);
        let stalls = window.sum.stalled > self.settings.stalled_max * window.sum.seconds;
        self.stalled = if stalls { self.stalled + 1 } else { 0 };
        let too_long = self.stalled >= self.settings.stalled_windows;
        let may_shrink = self.off > 0;
        if may_shrink && (too_long || now.is_some_and(|now| self.scales_no_more(now))) {
            self.stop_below();
            return Some(Event::Shrink);
        }
        if may_shrink && self.idle >= self.settings.probe_after {
            self.idle = 0;
            return Some(Event::Shrink);
        }
        if !stalls {
            self.trial = None;
        }
        let (iterations, seconds) = self.since_ceiling;
        let is_paid_for = self.cost <= self.settings.trials_max * seconds;
        if iterations >= self.settings.probe_after && is_paid_for {
            self.ceiling = self.most;
        }
        let more = if self.off == 0 { 3 } else { self.off + 1 };
        let early =
            f64::from(window.sum.early) >= self.settings.early_min * f64::from(window.sum.back);
        let wanted = window.wanted == window.iterations;
        let may = more <= self.ceiling && slots(self.layers, more) >= SLOTS_MIN;
        let grows = may && wanted && !stalls && (self.off == 0 || early);
        grows.then_some(Event::Grow)
    }

    fn stop_below(&mut self) {
        self.ceiling = self.off - 1;
        self.since_ceiling = (0, 0.0);
        self.cost = self.trial.take().unwrap_or(0.0);
        self.drowned = 0;
        self.stalled = 0;
    }

    /// Whether larger batches than with fewer layers off the GPU bring no more tokens a second.
    fn scales_no_more(&self, now: Record) -> bool {
        let fewer = self.records[..usize::from(self.off)].iter().rev().flatten();
        let gain = fewer
            .map(|before| {
                (
                    (now.batch / before.batch).ln(),
                    (now.rate / before.rate).ln(),
                )
            })
            .find(|(batch, _)| *batch > TOLD_APART);
        gain.is_some_and(|(batch, rate)| rate < self.settings.scaling_min * batch)
    }
}

/// Batches that differ by less, in logarithms, are as good as alike.
const TOLD_APART: f64 = 0.1;

impl Window {
    fn add(&mut self, it: Observed) {
        self.iterations += 1;
        self.wanted += u32::from(it.wanted);
        if !it.prompts {
            self.decoding.0 += 1;
            self.decoding.1 += it.seconds;
            self.decoding.2 += it.tokens;
        }
        self.sum.seconds += it.seconds;
        self.sum.stalled += it.stalled;
        self.sum.tokens += it.tokens;
        self.sum.back += it.back;
        self.sum.early += it.early;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Observed = Observed {
        seconds: 1.0,
        stalled: 0.0,
        tokens: 10,
        back: 10,
        early: 3,
        prompts: false,
        wanted: true,
    };

    fn run(adaptive: &mut Adaptive, iterations: u32, it: impl Fn(u16) -> Observed) -> u16 {
        for _ in 0..iterations {
            let off = adaptive.off();
            adaptive.see(it(off), true);
        }
        adaptive.off()
    }

    #[test]
    fn it_grows_until_it_stalls_and_tries_again_later() {
        let mut adaptive = Adaptive::new(40, Settings::default());
        // The link takes twelve layers, and eight while somebody else uses it.
        let link = |most: u16| {
            move |off: u16| Observed {
                stalled: if off > most { 0.1 } else { 0.0 },
                ..CALM
            }
        };
        assert_eq!(run(&mut adaptive, 400, link(12)), 12);
        assert_eq!(run(&mut adaptive, 400, link(8)), 8);
        assert_eq!(run(&mut adaptive, 1500, link(12)), 8, "not at once");
        assert_eq!(run(&mut adaptive, 1500, link(12)), 12);
    }

    #[test]
    fn it_stays_at_none_where_nobody_wants_room_and_gives_back_what_nobody_wants() {
        let mut adaptive = Adaptive::new(40, Settings::default());
        let unwanted = |_| Observed {
            wanted: false,
            ..CALM
        };
        assert_eq!(run(&mut adaptive, 100, unwanted), 0);
        assert!(run(&mut adaptive, 100, |_| CALM) > 5);
        assert_eq!(run(&mut adaptive, 100_000, unwanted), 0);
    }

    #[test]
    fn it_stops_where_larger_batches_bring_nothing() {
        let mut adaptive = Adaptive::new(40, Settings::default());
        // From 10 layers on a larger batch takes longer in proportion.
        let bound = |off: u16| Observed {
            tokens: 100 + 10 * u32::from(off),
            seconds: 1.0 + 0.1 * f64::from(off.saturating_sub(10)),
            ..CALM
        };
        let found = run(&mut adaptive, 1000, bound);
        assert!((9..=12).contains(&found), "{found}");
    }

    #[test]
    fn what_the_link_does_not_hide_comes_back_before_all_caches_have_their_size() {
        let settings = Settings::default();
        let mut adaptive = Adaptive::new(40, settings);
        let moving = |stalled| Observed { stalled, ..CALM };
        let grown = (0..settings.window).find_map(|_| adaptive.see(CALM, true));
        assert_eq!(grown, Some(Event::Grow));
        // What moves for the first time may be waited for a little.
        for _ in 0..100 {
            assert_eq!(adaptive.see(moving(0.2), false), None);
        }
        let mut adaptive = Adaptive::new(40, settings);
        run(&mut adaptive, settings.window, |_| CALM);
        let events: Vec<_> = (0..9).map(|_| adaptive.see(moving(0.6), false)).collect();
        let back = |event: &&Option<Event>| event.is_some();
        assert_eq!(events[3], Some(Event::Shrink));
        assert_eq!((events.iter().filter(back).count(), adaptive.off()), (1, 0));
        assert_eq!(run(&mut adaptive, 1000, |_| CALM), 0, "not at once again");
    }

    #[test]
    fn a_link_that_hides_next_to_nothing_is_given_up_at_once() {
        let mut adaptive = Adaptive::new(40, Settings::default());
        run(&mut adaptive, Settings::default().window, |_| CALM);
        assert_eq!(adaptive.off(), 3);
        let waiting = Observed {
            stalled: 0.9,
            ..CALM
        };
        // One may be waited for by chance, however long.
        let chance = Observed {
            seconds: 11.0,
            stalled: 10.0,
            ..CALM
        };
        assert_eq!(run(&mut adaptive, 1, |_| chance), 3);
        let calm = Observed { early: 0, ..CALM };
        assert_eq!(
            run(&mut adaptive, 2 * Settings::default().window, |_| calm),
            3
        );
        assert_eq!(run(&mut adaptive, 1, |_| waiting), 3);
        assert_eq!(run(&mut adaptive, 1, |_| waiting), 0);
        assert_eq!(run(&mut adaptive, 1000, |_| CALM), 0, "not at once again");
    }

    #[test]
    fn a_trial_that_costs_much_is_not_made_again_soon() {
        let settings = Settings::default();
        let again_after = |waited: f64| {
            let mut adaptive = Adaptive::new(40, settings);
            run(&mut adaptive, settings.window, |_| CALM);
            let waiting = Observed {
                seconds: waited,
                stalled: waited,
                ..CALM
            };
            run(&mut adaptive, 2, |_| waiting);
            let until = (1..).find(|_| run(&mut adaptive, 1, |_| CALM) > 0);
            until.expect("some time")
        };
        let near = |found: u32, expected: u32| found.abs_diff(expected) <= settings.window;
        assert!(near(again_after(10.0), settings.probe_after));
        // Two iterations of 100 s each, of 1 s alone.
        assert!(near(again_after(100.0), 4000), "{}", again_after(100.0));
    }

    #[test]
    fn what_was_tolerated_for_long_does_not_put_off_another_trial() {
        let settings = Settings::default();
        let mut adaptive = Adaptive::new(40, settings);
        let tolerated = |_| Observed {
            stalled: 0.008,
            early: 0,
            ..CALM
        };
        run(&mut adaptive, settings.window, |_| CALM);
        assert_eq!(run(&mut adaptive, 200_000, tolerated), 3);
        let waiting = Observed {
            stalled: 0.9,
            ..CALM
        };
        run(&mut adaptive, 2, |_| waiting);
        let until = (1_u32..).find(|_| run(&mut adaptive, 1, |_| CALM) > 0);
        assert!(until.expect("some time").abs_diff(settings.probe_after) <= settings.window);
    }

    #[test]
    fn a_brief_disturbance_is_tolerated() {
        let mut adaptive = Adaptive::new(40, Settings::default());
        let calm = |_| Observed { early: 0, ..CALM };
        let disturbed = |_| Observed {
            stalled: 0.3,
            ..calm(0)
        };
        let window = Settings::default().window;
        let before = run(&mut adaptive, 12 * window, calm);
        run(&mut adaptive, window, disturbed);
        let after = run(&mut adaptive, 6 * window, calm);
        assert_eq!((before, after), (3, 3));
        assert_eq!(
            run(&mut adaptive, 2 * window, disturbed),
            0,
            "not a brief one"
        );
    }
}
