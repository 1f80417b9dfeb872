//! The engines and memories that a program is written for.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tier::{PerTier, Tier};
use crate::units::Bytes;

/// A resource's number in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId(pub u8);

/// An arena's number in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArenaId(pub u8);

/// What kind of engine a resource is. Each runs its tasks one by one in program order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// The accelerator's compute.
    Gpu,
    /// Copies from host to device.
    H2d,
    /// Copies from device to host.
    D2h,
    /// Disk reads into host memory.
    DiskRead,
    /// Disk writes from host memory.
    DiskWrite,
    /// The CPU's compute.
    Cpu,
    /// Copies into page-locked memory.
    Pin,
    /// Barriers: takes no engine, orders the others.
    Sync,
    /// The link on which a GPU, or its host, sends to the next one's.
    PeerLink,
}

impl ResourceKind {
    /// How many there are.
    pub const COUNT: usize = 9;

    /// All of them, each at its own number.
    pub const ALL: [ResourceKind; ResourceKind::COUNT] = [
        ResourceKind::Gpu,
        ResourceKind::H2d,
        ResourceKind::D2h,
        ResourceKind::DiskRead,
        ResourceKind::DiskWrite,
        ResourceKind::Cpu,
        ResourceKind::Pin,
        ResourceKind::Sync,
        ResourceKind::PeerLink,
    ];

    /// Those that slow each other, each at its own number: barriers take no engine, and no profile says what a link between devices
    /// disturbs.
    pub const CONTENDED: [ResourceKind; 7] = {
        let [gpu, h2d, d2h, disk_read, disk_write, cpu, pin, ..] = ResourceKind::ALL;
        [gpu, h2d, d2h, disk_read, disk_write, cpu, pin]
    };

    /// Whether others may slow it, and it others.
    pub fn is_contended(self) -> bool {
        ResourceKind::CONTENDED.contains(&self)
    }

    /// Whether its tasks are given to a stream where the device is a GPU; those of others are threads' of the host.
    pub const fn is_stream(self) -> bool {
        use ResourceKind::{D2h, Gpu, H2d, Sync};
        matches!(self, Gpu | H2d | D2h | Sync)
    }

    /// The name as written in traces, summaries and reports.
    pub const fn name(self) -> &'static str {
        match self {
            ResourceKind::Gpu => "gpu",
            ResourceKind::H2d => "h2d",
            ResourceKind::D2h => "d2h",
            ResourceKind::DiskRead => "disk_read",
            ResourceKind::DiskWrite => "disk_write",
            ResourceKind::Cpu => "cpu",
            ResourceKind::Pin => "pin",
            ResourceKind::Sync => "sync",
            ResourceKind::PeerLink => "peer_link",
        }
    }

    /// Whether GPUs that share a host share this engine.
    pub const fn is_of_host(self) -> bool {
        use ResourceKind::{Cpu, DiskRead, DiskWrite, Pin};
        matches!(self, DiskRead | DiskWrite | Cpu | Pin)
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One engine of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resource {
    /// What it does.
    pub kind: ResourceKind,
    /// Which GPU it belongs to; of an engine of a host, the first of its GPUs.
    pub gpu: u8,
}

/// Where a kind of engine is the same on every GPU, any of them stands for it.
impl From<ResourceKind> for Resource {
    fn from(kind: ResourceKind) -> Resource {
        Resource { kind, gpu: 0 }
    }
}

/// A bounded region of one tier. Buffers lie at fixed offsets in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arena {
    /// Its tier.
    pub tier: Tier,
    /// Which GPU it belongs to; of a host's memory and disk, the first of its GPUs.
    pub gpu: u8,
    /// How much it holds.
    pub capacity: Bytes,
}

/// The engines and memories that a program is written for: GPUs, and hosts that each have some of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// By [`ResourceId`]. At most [`Machine::MAX_RESOURCES`].
    pub resources: Vec<Resource>,
    /// By [`ArenaId`].
    pub arenas: Vec<Arena>,
    /// GPUs that have one host's memory, disk and CPU between them.
    pub gpus_per_host: u8,
}

impl Machine {
    /// Executors keep a bit a resource.
    pub const MAX_RESOURCES: usize = 128;

    /// One GPU with its host and disk.
    pub fn single_gpu(capacity: PerTier<Bytes>) -> Machine {
        use ResourceKind::{Cpu, D2h, DiskRead, DiskWrite, Gpu, H2d, Pin, Sync};
        let mut machine = Machine::without_gpus(1);
        let kinds = [Gpu, H2d, D2h, DiskRead, DiskWrite, Cpu, Pin, Sync];
        machine.add_gpu(0, &kinds, capacity);
        machine
    }

    /// Several GPUs, each with a link to the next, and the last to the first. `capacity` is of a GPU and
    /// of a host; the last host may have fewer GPUs.
    pub fn several_gpus(capacity: PerTier<Bytes>, gpus: u8, gpus_per_host: u8) -> Machine {
        use ResourceKind::{Cpu, D2h, DiskRead, DiskWrite, Gpu, H2d, PeerLink, Sync};
        let mut machine = Machine::without_gpus(gpus_per_host.max(1));
        let kinds = [Gpu, H2d, D2h, DiskRead, DiskWrite, Cpu, Sync, PeerLink];
        for gpu in 0..gpus {
            machine.add_gpu(gpu, &kinds, capacity);
        }
        machine
    }

    fn without_gpus(gpus_per_host: u8) -> Machine {
        Machine {
            resources: Vec::new(),
            arenas: Vec::new(),
            gpus_per_host,
        }
    }

    /// Adds a GPU's engines and memory and, with the first of its host, the host's.
    fn add_gpu(&mut self, gpu: u8, kinds: &[ResourceKind], capacity: PerTier<Bytes>) {
        let with_host = self.first_of_host(gpu) == gpu;
        let kinds = kinds.iter().filter(|kind| with_host || !kind.is_of_host());
        self.resources
            .extend(kinds.map(|kind| Resource { kind: *kind, gpu }));
        let tiers = Tier::ALL.into_iter();
        let tiers = tiers.filter(|tier| with_host || *tier == Tier::Device);
        self.arenas.extend(tiers.map(|tier| Arena {
            tier,
            gpu,
            capacity: capacity[tier],
        }));
    }

    /// The first GPU of the host that a GPU has.
    pub fn first_of_host(&self, gpu: u8) -> u8 {
        gpu - gpu % self.gpus_per_host
    }

    /// How many GPUs there are.
    pub fn num_gpus(&self) -> usize {
        let devices = self.arenas.iter().filter(|a| a.tier == Tier::Device);
        devices.count()
    }

    /// The resource of a kind that serves a GPU.
    pub fn resource(&self, kind: ResourceKind, gpu: u8) -> Option<ResourceId> {
        let gpu = match kind.is_of_host() {
            true => self.first_of_host(gpu),
            false => gpu,
        };
        let wanted = Resource { kind, gpu };
        let index = self.resources.iter().position(|r| *r == wanted)?;
        Some(ResourceId(index as u8))
    }

    /// The arena of a tier that serves a GPU.
    pub fn arena(&self, tier: Tier, gpu: u8) -> Option<ArenaId> {
        let gpu = match tier {
            Tier::Device => gpu,
            Tier::Host | Tier::Disk => self.first_of_host(gpu),
        };
        let index = self
            .arenas
            .iter()
            .position(|a| a.tier == tier && a.gpu == gpu)?;
        Some(ArenaId(index as u8))
    }

    /// What the memories of all hosts hold.
    pub fn host_capacity(&self) -> Bytes {
        let of_hosts = self.arenas.iter().filter(|arena| arena.tier == Tier::Host);
        of_hosts.map(|arena| arena.capacity).sum()
    }

    /// Whether two resources may get in each other's way: those of one GPU, and those of one host where
    /// either is the host's.
    pub fn share_something(&self, a: Resource, b: Resource) -> bool {
        let same_host = self.first_of_host(a.gpu) == self.first_of_host(b.gpu);
        let of_host = a.kind.is_of_host() || b.kind.is_of_host();
        a.gpu == b.gpu || same_host && of_host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_in_order() {
        for (index, kind) in ResourceKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        let contended = ResourceKind::CONTENDED.map(|kind| kind as usize);
        assert_eq!(contended, [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn kinds_are_written_by_their_names() {
        for kind in ResourceKind::ALL {
            assert_eq!(serde_json::json!(kind), kind.name());
        }
    }

    #[test]
    fn gpus_of_a_host_share_its_memory_its_disk_and_its_cpu() {
        let machine = Machine::several_gpus(PerTier::from_fn(|_| Bytes(1)), 3, 2);
        assert_eq!(machine.num_gpus(), 3);
        for kind in [ResourceKind::Cpu, ResourceKind::DiskRead] {
            let of = |gpu| machine.resource(kind, gpu);
            assert_eq!(of(0), of(1));
            assert_ne!(of(1), of(2));
        }
        for kind in [ResourceKind::Gpu, ResourceKind::H2d, ResourceKind::PeerLink] {
            assert_ne!(machine.resource(kind, 0), machine.resource(kind, 1));
        }
        let host = |gpu| machine.arena(Tier::Host, gpu);
        assert_eq!(host(0), host(1));
        assert_ne!(host(1), host(2));
        assert_ne!(
            machine.arena(Tier::Device, 0),
            machine.arena(Tier::Device, 1)
        );
    }
}
