//! The memory of a host that its CPU, copies and disk share.
//!
//! Tasks that together ask for more than it gives share it **max-min fairly**, as flows share a link: who asks for less than an even
//! part gets all of it, the others as much as each other. So a stream of copies keeps its pace where the CPU could take all.

use plimsoll_core::hardware::HardwareProfile;
use plimsoll_core::machine::Machine;
use plimsoll_core::program::{Op, Resource, ResourceKind};

use crate::cost::CostModel;
use crate::lanes::LaneSet;

/// What running tasks ask of the memory of their hosts.
#[derive(Debug)]
pub(crate) struct HostMemory {
    /// Bytes a second of each host.
    rate: f64,
    gpus_per_host: f64,
    /// For each host, the lanes that use its memory.
    hosts: Vec<LaneSet>,
    /// By lane, what its running task asks for, in bytes a second.
    asked: Vec<f64>,
}

impl HostMemory {
    /// That of a machine's hosts; none where a profile says nothing of what they share.
    pub fn new(machine: &Machine, profile: &HardwareProfile) -> Option<HostMemory> {
        let rate = profile.tiers.host_shared.as_ref()?.value.0;
        let num_hosts = machine.num_gpus().div_ceil(machine.gpus_per_host.into());
        let mut hosts = vec![LaneSet::default(); num_hosts];
        for (lane, resource) in machine.resources.iter().enumerate() {
            if uses(resource.kind) {
                hosts[usize::from(resource.gpu / machine.gpus_per_host)].insert(lane);
            }
        }
        Some(HostMemory {
            rate,
            gpus_per_host: machine.gpus_per_host.into(),
            hosts,
            asked: vec![0.0; machine.resources.len()],
        })
    }

    /// Whether it does for what each GPU's links carry together.
    pub fn does_for(&self, each: f64) -> bool {
        let links = self.gpus_per_host * each;
        links <= self.rate
    }

    /// Notes that a task of so many seconds alone begins on a lane.
    pub fn begin(
        &mut self,
        (lane, on): (usize, Resource),
        op: &Op,
        (cost, seconds): (&CostModel, f64),
    ) {
        let traffic = cost.host_traffic(on, op);
        self.asked[lane] = match traffic > 0.0 {
            // Alone it takes as long as the profile says, even where that is faster than all of the memory.
            true => (traffic / seconds).min(self.rate),
            false => 0.0,
        };
    }

    /// Calls with each running lane that uses a host's memory, and the share of its pace that this leaves it. Paces are what else
    /// leaves them.
    pub fn shares(
        &self,
        running: LaneSet,
        pace: impl Fn(usize) -> f64,
        mut each: impl FnMut(usize, f64),
    ) {
        let asks = |lane: usize| self.asked[lane] * pace(lane);
        for host in &self.hosts {
            let users = running.and(*host);
            let level = level(self.rate, users, asks);
            users.for_each(|lane| {
                let asked = asks(lane);
                each(lane, if asked > level { level / asked } else { 1.0 });
            });
        }
    }
}

/// Whether tasks of a resource go through a host's memory.
fn uses(kind: ResourceKind) -> bool {
    use ResourceKind::{Cpu, D2h, DiskRead, DiskWrite, H2d, Pin};
    matches!(kind, H2d | D2h | DiskRead | DiskWrite | Cpu | Pin)
}

/// What nobody gets more of; infinity where all get what they ask for.
fn level(rate: f64, users: LaneSet, asks: impl Fn(usize) -> f64) -> f64 {
    let (mut total, mut count) = (0.0, 0.0);
    users.for_each(|lane| {
        total += asks(lane);
        count += 1.0;
    });
    if total <= rate {
        return f64::INFINITY;
    }
    let mut level = rate / count;
    loop {
        let (mut left, mut above) = (rate, 0.0);
        users.for_each(|lane| match asks(lane) {
            less if less <= level => left -= less,
            _ => above += 1.0,
        });
        let next = if above > 0.0 {
            left / above
        } else {
            f64::INFINITY
        };
        // Who asks for no more than an even part leaves the others more, until nobody new does.
        if next <= level * (1.0 + 1e-12) {
            return next;
        }
        level = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(rate: f64, asked: &[f64]) -> Vec<f64> {
        let mut users = LaneSet::default();
        (0..asked.len()).for_each(|lane| users.insert(lane));
        let level = level(rate, users, |lane| asked[lane]);
        asked.iter().map(|asked| asked.min(level)).collect()
    }

    #[test]
    fn who_asks_for_little_keeps_it_and_the_others_share_alike() {
        assert_eq!(given(100.0, &[20.0, 30.0]), [20.0, 30.0]);
        assert_eq!(given(100.0, &[100.0, 20.0]), [80.0, 20.0]);
        assert_eq!(given(90.0, &[90.0, 90.0, 20.0]), [35.0, 35.0, 20.0]);
        assert_eq!(given(90.0, &[90.0, 32.0, 20.0]), [38.0, 32.0, 20.0]);
        assert_eq!(given(90.0, &[60.0, 60.0, 60.0]), [30.0, 30.0, 30.0]);
        assert_eq!(given(90.0, &[0.0, 90.0]), [0.0, 90.0]);
    }
}
