//! Programs of moves alone: copies and disk transfers of many sizes, one by one and beside each other.

use plimsoll_core::program::{
    Access, Arg, Buffer, BufferId, Cell, Content, HostPages, Machine, NewTask, Op, Program,
    ResourceKind, TaskId,
};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::units::Bytes;

/// The engines that move bytes.
pub(super) const MOVERS: [ResourceKind; 5] = [
    ResourceKind::H2d,
    ResourceKind::D2h,
    ResourceKind::DiskRead,
    ResourceKind::DiskWrite,
    ResourceKind::Pin,
];

/// Bytes of moves, from those of a batch's tokens on.
pub(super) const SIZES: &[u64] = &[
    64,
    PAGE,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    48 << 20,
];

/// Bytes of moves that are timed beside each other, and of as many alone as it takes for a median that no other process moves.
pub(super) const BESIDE: u64 = 4 << 20;

pub(super) const REPEATS_ALONE: u32 = 32;

/// How much an engine moves beside another: for long enough that threads that share a core have many turns.
pub(super) fn bytes_beside(kind: ResourceKind) -> u64 {
    match kind {
        ResourceKind::DiskRead | ResourceKind::DiskWrite => 256 << 20,
        _ => 1 << 30,
    }
}

/// A disk moves no less at once.
const PAGE: u64 = 4 << 10;

/// Room for two of the largest, and more for what is read on and on.
pub(super) const REGION: Bytes = Bytes(128 << 20);

/// The same on a disk that has room: something on the way may keep what was read just before.
pub(super) const DISK_REGION: Bytes = Bytes(1 << 30);

/// What a disk has free where regions of that size, and a file of reference, leave room.
pub(super) const DISK_ROOM: Bytes = Bytes(4 << 30);

/// Regions of each tier, on a disk with so much room.
pub(super) fn regions(disk_free: Bytes) -> PerTier<Bytes> {
    PerTier {
        device: REGION,
        host: REGION,
        disk: match disk_free >= DISK_ROOM {
            true => DISK_REGION,
            false => REGION,
        },
    }
}

/// A program of moves, with a region of its own for each engine's source and destination.
pub(super) struct Moves {
    pub program: Program,
    machine: Machine,
    movers: Vec<ResourceKind>,
    page_locked: Vec<bool>,
    regions: Vec<(BufferId, BufferId)>,
    sizes: PerTier<Bytes>,
    moved: Vec<u64>,
    last: Option<TaskId>,
}

/// The tiers that an engine moves from and to.
fn ends(kind: ResourceKind) -> (Tier, Tier) {
    match kind {
        ResourceKind::H2d => (Tier::Host, Tier::Device),
        ResourceKind::D2h => (Tier::Device, Tier::Host),
        ResourceKind::DiskWrite => (Tier::Host, Tier::Disk),
        ResourceKind::Pin => (Tier::Host, Tier::Host),
        _ => (Tier::Disk, Tier::Host),
    }
}

impl Moves {
    /// What each tier must hold besides `behind`, with regions of so many bytes for each engine.
    pub(super) fn room(
        movers: &[ResourceKind],
        sizes: PerTier<Bytes>,
        behind: PerTier<Bytes>,
    ) -> PerTier<Bytes> {
        PerTier::from_fn(|tier| {
            let ends = movers.iter().map(|kind| {
                let (from, to) = ends(*kind);
                u64::from(from == tier) + u64::from(to == tier)
            });
            behind[tier] + sizes[tier] * ends.sum()
        })
    }

    /// Appends moves to a program, of regions of so many bytes.
    pub(super) fn new(program: Program, machine: &Machine, sizes: PerTier<Bytes>) -> Moves {
        Moves {
            program,
            machine: machine.clone(),
            movers: Vec::new(),
            page_locked: Vec::new(),
            regions: Vec::new(),
            sizes,
            moved: Vec::new(),
            last: None,
        }
    }

    /// Adds regions of engines, which are page-locked on the host or not, behind what tiers hold already.
    pub(super) fn with(
        mut self,
        (movers, page_locked): (&[ResourceKind], bool),
        behind: PerTier<Bytes>,
    ) -> Moves {
        let mut end = behind;
        let mut declare = |tier: Tier| {
            let arena = self
                .machine
                .arena(tier, 0)
                .expect("a machine of one GPU has all tiers");
            let (offset, bytes) = (end[tier], self.sizes[tier]);
            end[tier] = offset + bytes;
            self.program.buffer(Buffer {
                arena,
                offset,
                bytes,
                content: Content::Workspace,
                resident: true,
            })
        };
        for kind in movers {
            let (from, to) = ends(*kind);
            self.regions.push((declare(from), declare(to)));
            self.movers.push(*kind);
            self.page_locked.push(page_locked);
            self.moved.push(0);
        }
        self
    }

    /// Appends a move of `bytes`. The source runs on through its region, as weights do. So does the destination of what leaves the
    /// device or the host, as a cache does; else it alternates between two places, as slots do.
    pub(super) fn push(&mut self, mover: usize, bytes: u64, deps: &[TaskId]) -> TaskId {
        let (source, target) = ends(self.movers[mover]);
        let place = |at: u64, tier: Tier| {
            let room = self.sizes[tier].0 / bytes;
            Bytes(at % room.max(1) * bytes)
        };
        let count = self.moved[mover];
        self.moved[mover] += 1;
        let from = place(count, source);
        let to = match self.movers[mover] {
            ResourceKind::D2h | ResourceKind::DiskWrite => place(count, target),
            _ => place(count % 2, target),
        };
        let op = self.program.op(Op::Move {
            bytes: Bytes(bytes),
            from,
            to,
            host: HostPages::of(self.page_locked[mover]),
        });
        let (source, destination) = self.regions[mover];
        let resource = self
            .machine
            .resource(self.movers[mover], 0)
            .expect("all movers are there");
        let task = self.program.push(NewTask {
            op,
            resource,
            cell: Cell::default(),
            deps,
            args: &[
                Arg {
                    buffer: source,
                    access: Access::Read,
                },
                Arg {
                    buffer: destination,
                    access: Access::Write,
                },
            ],
            takes: &[],
            gives: &[],
        });
        self.last = Some(task);
        task
    }

    /// Writes what the disk reader will read: blocks that were never written are not on the disk, and
    /// reading them would time nothing.
    pub(super) fn prepare(&mut self) {
        const PART: u64 = 16 << 20;
        let of = |kind: ResourceKind| self.movers.iter().position(|m| *m == kind);
        let (writer, reader) = (of(ResourceKind::DiskWrite), of(ResourceKind::DiskRead));
        let (Some(writer), Some(reader)) = (writer, reader) else {
            return;
        };
        let own = self.regions[writer];
        self.regions[writer].1 = self.regions[reader].0;
        for _ in 0..self.sizes.disk.0 / PART {
            self.push(writer, PART, &[]);
        }
        self.regions[writer] = own;
        for _ in 0..self.sizes.disk.0 / PART {
            self.push(writer, PART, &[]);
        }
        self.moved[writer] = 0;
    }

    /// Each size on each engine in turn, `repeats` times on end as a plan moves layer after layer, nothing
    /// beside it; all of that `turns` times. The first task of an engine's turn waits for the engine before.
    pub(super) fn one_by_one(&mut self, sizes: &[u64], repeats: u32, turns: u32) {
        let all: Vec<usize> = (0..self.movers.len()).collect();
        self.one_by_one_of(&all, (sizes, repeats, turns));
    }

    /// The same of some engines.
    pub(super) fn one_by_one_of(
        &mut self,
        movers: &[usize],
        (sizes, repeats, turns): (&[u64], u32, u32),
    ) {
        for _ in 0..turns {
            for mover in movers.iter().copied() {
                let mut before: Vec<TaskId> = self.last.into_iter().collect();
                let (from, to) = ends(self.movers[mover]);
                let on_disk = [from, to].contains(&Tier::Disk);
                let sizes = sizes.iter().filter(|bytes| !on_disk || **bytes >= PAGE);
                for bytes in sizes {
                    for _ in 0..repeats {
                        self.push(mover, *bytes, &before);
                        before.clear();
                    }
                }
            }
        }
    }

    /// Moves of engines behind each other, each as soon as its engine has time, after all that came before.
    pub(super) fn in_turn(&mut self, moves: &[(usize, u64)]) {
        let mut before: Vec<TaskId> = self.last.into_iter().collect();
        for (mover, bytes) in moves {
            self.push(*mover, *bytes, &before);
            before.clear();
        }
    }

    /// Two engines at once, after all that came before. Each moves about as many bytes in all as `totals` says.
    pub(super) fn together(&mut self, movers: [usize; 2], bytes: u64, totals: [u64; 2]) {
        let before: Vec<TaskId> = self.last.into_iter().collect();
        let mut ends = Vec::new();
        for (mover, total) in movers.into_iter().zip(totals) {
            let first = self.push(mover, bytes, &before);
            let rest = (1..total / bytes).map(|_| self.push(mover, bytes, &[]));
            ends.push(rest.last().unwrap_or(first));
        }
        self.last = None;
        let join = self.push(movers[0], PAGE, &ends);
        self.last = Some(join);
    }
}
