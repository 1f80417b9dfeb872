//! Who slows whom among the lanes of a machine.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::hardware::contention::{delay_of, rate_of};
use plimsoll_core::machine::Machine;
use plimsoll_core::program::{Op, Resource};

use crate::cost::CostModel;
use crate::lanes::LaneSet;

/// The profile's pairs as delays, seconds lost to each second of work, by victim and then the lane beside it.
#[derive(Debug, Clone)]
pub(crate) struct Contention {
    num_lanes: usize,
    delays: Vec<f64>,
    /// What is added where the GPU of the two reads weights all the while; empty where that makes no difference to any.
    of_reading: Vec<f64>,
    /// For each lane, the lanes that slow it.
    slowed_by: Vec<LaneSet>,
    /// For which share of its time each lane's running task reads weights that no cache holds.
    reading: Vec<f64>,
}

impl Contention {
    /// That of a machine's lanes.
    pub fn new(machine: &Machine, profile: &HardwareProfile) -> Contention {
        let resources = &machine.resources;
        let num_lanes = resources.len();
        let (mut delays, mut of_reading) = (Vec::new(), Vec::new());
        let mut slowed_by = vec![LaneSet::default(); num_lanes];
        for (victim, of) in resources.iter().enumerate() {
            for (beside, with) in resources.iter().enumerate() {
                let shares = victim != beside && machine.share_something(*of, *with);
                let pair = shares.then(|| profile.contention_of(of.kind, with.kind));
                let pair = pair.flatten();
                delays.push(pair.map_or(0.0, |pair| delay_of(pair.rate.value)));
                of_reading.push(pair.map_or(0.0, |pair| pair.delay_of_reading()));
                if delays.last() != Some(&0.0) || of_reading.last() != Some(&0.0) {
                    slowed_by[victim].insert(beside);
                }
            }
        }
        if of_reading.iter().all(|delay| *delay == 0.0) {
            of_reading.clear();
        }
        Contention {
            num_lanes,
            delays,
            of_reading,
            slowed_by,
            reading: vec![0.0; num_lanes],
        }
    }

    /// Notes that a task of so many seconds alone begins on a lane.
    pub fn begin(
        &mut self,
        (lane, on): (usize, Resource),
        op: &Op,
        (cost, seconds): (&CostModel, f64),
    ) {
        if self.asks_what_runs() {
            self.reading[lane] = cost.reading_share(on, op, seconds);
        }
    }

    /// Whether delays depend on more than which lanes run.
    pub fn asks_what_runs(&self) -> bool {
        !self.of_reading.is_empty()
    }

    /// Those that slow a lane.
    pub fn slowed_by(&self, lane: usize) -> LaneSet {
        self.slowed_by[lane]
    }

    /// A running victim's delay beside some lanes, by what runs on them.
    pub fn delay(&self, victim: usize, beside: LaneSet) -> f64 {
        let mut delay = 0.0;
        beside.for_each(|other| delay += self.delay_beside(victim, other));
        delay
    }

    /// A running victim's delay beside a lane, by what runs on both.
    pub fn delay_beside(&self, victim: usize, other: usize) -> f64 {
        let pair = victim * self.num_lanes + other;
        match self.of_reading.get(pair) {
            // Only a GPU reads, and it has no pair with another.
            Some(more) => self.delays[pair] + more * (self.reading[victim] + self.reading[other]),
            None => self.delays[pair],
        }
    }

    /// The least fraction of its rate that a victim keeps beside a lane, whatever runs on both.
    pub fn least_rate(&self, victim: usize, beside: usize) -> f64 {
        let pair = victim * self.num_lanes + beside;
        let more = self.of_reading.get(pair).map_or(0.0, |more| more.max(0.0));
        rate_of(self.delays[pair] + more)
    }
}
