//! Where each layer's cache is, and what moves next (Pie, sections 3.2 and 3.3).

use super::layer_set::LayerSet;

/// Where a layer's cache is. A layer that moves has memory on both sides, and is on the new one only when it has arrived:
/// the two phases of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the GPU.
    Gpu,
    /// On its way to the host.
    Leaving,
    /// On the host.
    Cpu,
    /// On its way to the GPU.
    Coming,
}

/// Which layers begin to move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swaps {
    /// To the host.
    pub out: Option<u16>,
    /// To the GPU.
    pub back: Option<u16>,
}

/// The mapping table. At most one layer moves each way. Layers are computed in turn, without end, so what is nearest in
/// that turn is the hottest.
#[derive(Debug, Clone)]
pub struct MappingTable {
    places: Vec<Place>,
    slots: u16,
    /// By layer, how many caches of its size the GPU has room for. They differ while all get another size.
    sizes: Vec<u16>,
    /// The same of a layer that moves, where it goes.
    sizes_there: Vec<u16>,
    /// Layers by what is asked of them with each computation: those that stay on the GPU, those that stay on the host, those
    /// whose cache has not the size that all are to get.
    on_gpu: LayerSet,
    on_host: LayerSet,
    old: LayerSet,
    /// Those on their way.
    moving: Swaps,
}

/// Sums of shares round.
const ROUNDING: f64 = 1e-9;

impl MappingTable {
    /// A model's layers, of which the first `slots` begin on the GPU.
    pub fn new(layers: u16, slots: u16) -> MappingTable {
        let place = |layer| {
            if layer < slots {
                Place::Gpu
            } else {
                Place::Cpu
            }
        };
        MappingTable {
            places: (0..layers).map(place).collect(),
            slots,
            sizes: vec![slots; layers.into()],
            sizes_there: vec![slots; layers.into()],
            on_gpu: LayerSet::those(layers, |layer| layer < slots),
            on_host: LayerSet::those(layers, |layer| layer >= slots),
            old: LayerSet::none(layers),
            moving: Swaps::default(),
        }
    }

    /// Where a layer is.
    #[inline]
    pub fn place(&self, layer: u16) -> Place {
        self.places[usize::from(layer)]
    }

    /// Caches of a layer that the GPU has room for.
    pub fn slots(&self) -> u16 {
        self.slots
    }

    /// Layers of a place.
    pub fn at(&self, place: Place) -> impl Iterator<Item = u16> + '_ {
        let all = self.places.iter().zip(0..);
        all.filter(move |(at, _)| **at == place)
            .map(|(_, layer)| layer)
    }

    /// What begins to move when a layer's computation begins, or waits for its cache: the layer on the GPU that
    /// is used last goes out, unless all on the host are used later still or, once all have their size, there is room already;
    /// of those on the host the one that is used first comes, if the GPU has room.
    pub fn swaps(&mut self, computing: u16) -> Swaps {
        if self.moving.out.is_some() && self.moving.back.is_some() {
            return Swaps::default();
        }
        let layers = self.places.len() as u16;
        let steps = |layer: u16| match layer >= computing {
            true => layer - computing,
            false => layer + layers - computing,
        };
        let taken = layers - self.on_host.count();
        let hottest = self.on_host.first_from(computing);
        // While caches get smaller, those that are still large leave no room for as many.
        let has_room = taken < self.slots && self.moving.back.is_none() && self.fits();
        let back = hottest.filter(|_| has_room);
        // Room that waits for the way back is not made twice: where that is the slower way, the GPU would run empty. While
        // caches change their size, they have to move to get it.
        let has_more_room = self.is_settled() && taken + u16::from(back.is_some()) < self.slots;
        let out = self.coldest(computing).filter(|coldest| {
            // A cache that has lost a slot has no choice.
            let withheld = hottest.is_none_or(|hottest| steps(hottest) > steps(*coldest))
                && taken <= self.slots;
            !withheld && !has_more_room && self.may_go(*coldest, computing)
        });
        let swaps = Swaps { out, back };
        if let Some(layer) = swaps.out {
            self.on_gpu.set(layer, false);
            self.moving.out = Some(layer);
            self.begin(layer, Place::Leaving);
        }
        if let Some(layer) = swaps.back {
            self.on_host.set(layer, false);
            self.moving.back = Some(layer);
            self.begin(layer, Place::Coming);
        }
        swaps
    }

    /// The layer on the GPU that is used last, if one may begin to leave.
    fn coldest(&self, computing: u16) -> Option<u16> {
        let coldest = match self.moving.out {
            Some(_) => None,
            None => self.on_gpu.last_before(computing),
        };
        coldest.filter(|layer| *layer != computing)
    }

    /// The share of the GPU's memory for caches that layers take there, those that move among them.
    pub fn used(&self) -> f64 {
        let layers = self.places.iter().zip(&self.sizes).zip(&self.sizes_there);
        let shares = layers.map(|((place, size), there)| match place {
            Place::Gpu | Place::Leaving => 1.0 / f64::from(*size),
            Place::Coming => 1.0 / f64::from(*there),
            Place::Cpu => 0.0,
        });
        shares.sum()
    }

    /// Whether another cache of the size that all are to get has room on the GPU.
    fn fits(&self) -> bool {
        let coming = self.moving.back;
        let coming_is_old =
            coming.is_some_and(|layer| self.sizes_there[usize::from(layer)] != self.slots);
        if self.old.count() == 0 && !coming_is_old {
            let layers = self.places.len() as u16;
            return layers - self.on_host.count() < self.slots;
        }
        self.used() + 1.0 / f64::from(self.slots) <= 1.0 + ROUNDING
    }

    /// Whether a layer may go out. While caches get another size, one that has it leaves the way to those on the GPU that
    /// have not, unless a computation waits: else the same layers might move in every pass, and others never. Where all are to
    /// be on the GPU, only those go that must.
    fn may_go(&self, layer: u16, computing: u16) -> bool {
        let old = |layer: u16| self.sizes[usize::from(layer)] != self.slots;
        let waits = self.place(computing) != Place::Gpu;
        match usize::from(self.slots) == self.places.len() {
            true => old(layer) || waits && !self.fits(),
            false => old(layer) || waits || !self.old.meets(&self.on_gpu),
        }
    }

    fn begin(&mut self, layer: u16, place: Place) {
        self.places[usize::from(layer)] = place;
        self.sizes_there[usize::from(layer)] = self.slots;
    }

    fn arrive(&mut self, layer: u16, place: Place) {
        let size = self.sizes_there[usize::from(layer)];
        self.places[usize::from(layer)] = place;
        self.sizes[usize::from(layer)] = size;
        self.old.set(layer, size != self.slots);
    }

    /// A layer has arrived on the host.
    pub fn gone(&mut self, layer: u16) {
        self.moving.out = None;
        self.on_host.set(layer, true);
        self.arrive(layer, Place::Cpu);
    }

    /// A layer has arrived on the GPU.
    pub fn come(&mut self, layer: u16) {
        self.moving.back = None;
        self.on_gpu.set(layer, true);
        self.arrive(layer, Place::Gpu);
    }

    /// Gives the GPU room for another number of caches, each of another size: each layer gets its new one when it next
    /// moves (section 4.1).
    pub fn resize(&mut self, slots: u16) {
        self.slots = slots;
        let layers = self.places.len() as u16;
        // One that moves has its size there when it arrives.
        let is_old = |layer: usize| [self.sizes[layer], self.sizes_there[layer]] != [slots; 2];
        self.old = LayerSet::those(layers, |layer| is_old(layer.into()));
    }

    /// Whether all layers' caches have their size.
    pub fn is_settled(&self) -> bool {
        self.old.count() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Layers of which some are off the GPU, computed in turn, a step each; a move takes some of them.
    struct Turns {
        table: MappingTable,
        /// Out, and back.
        swaps: [u32; 2],
        /// Who moves out and back, and for how many steps yet.
        moving: [Option<(u16, u32)>; 2],
    }

    impl Turns {
        /// How many steps it waited.
        fn pass(&mut self, layers: u16) -> u32 {
            let mut all = 0;
            for layer in 0..layers {
                let mut waited = 0;
                while !self.step(layer) {
                    waited += 1;
                    assert!(
                        waited <= u32::from(layers) * self.swaps[0].max(self.swaps[1]),
                        "{layer} never comes: {:?}",
                        self.table
                    );
                }
                all += waited;
            }
            all
        }

        /// False where the layer is not there yet.
        fn step(&mut self, layer: u16) -> bool {
            let (table, [out, back]) = (&mut self.table, &mut self.moving);
            let ended = |(_, left): &mut (u16, u32)| *left == 0;
            if let Some((gone, _)) = out.take_if(ended) {
                table.gone(gone);
            }
            if let Some((come, _)) = back.take_if(ended) {
                table.come(come);
            }
            let began = table.swaps(layer);
            *out = out.or(began.out.map(|layer| (layer, self.swaps[0])));
            *back = back.or(began.back.map(|layer| (layer, self.swaps[1])));
            assert!(
                table.used() <= 1.0 + ROUNDING,
                "more than there is: {table:?}"
            );
            for (_, left) in self.moving.iter_mut().flatten() {
                *left -= 1;
            }
            self.table.place(layer) == Place::Gpu
        }
    }

    /// A change, or one that after so many passes is taken back before all have their size.
    fn a_change(
        layers: u16,
        (before, after): (u16, u16),
        swaps: [u32; 2],
        taken_back: Option<u16>,
    ) {
        let mut turns = Turns {
            table: MappingTable::new(layers, before),
            swaps,
            moving: [None, None],
        };
        let passes = |turns: &mut Turns, count| {
            (0..count).for_each(|_| {
                turns.pass(layers);
            });
        };
        passes(&mut turns, 3);
        turns.table.resize(after);
        assert!(!turns.table.is_settled());
        let after = taken_back.map_or(after, |count| {
            passes(&mut turns, count);
            turns.table.resize(before);
            before
        });
        passes(&mut turns, 3 * layers);
        let table = turns.table;
        assert!(table.is_settled(), "{before} {after} {swaps:?}: {table:?}");
        let all_there = table.at(Place::Gpu).count() == usize::from(layers);
        assert_eq!(all_there, after == layers, "{table:?}");
    }

    /// Steps that the tenth pass waits, of so many slots, where moves out and back take so many steps.
    fn waits(layers: u16, slots: u16, swaps: [u32; 2]) -> u32 {
        let mut turns = Turns {
            table: MappingTable::new(layers, slots),
            swaps,
            moving: [None, None],
        };
        (0..10).map(|_| turns.pass(layers)).last().expect("ten")
    }

    #[test]
    fn a_faster_way_out_makes_nobody_wait() {
        let mut hidden = 0;
        for layers in [9, 12, 40] {
            for slots in layers / 2..layers {
                for back in 2..5 {
                    let alike = waits(layers, slots, [back; 2]);
                    for out in 1..back {
                        let faster = waits(layers, slots, [out, back]);
                        assert!(
                            faster <= alike,
                            "{layers} {slots} {out} {back}: {faster} for {alike}"
                        );
                    }
                    hidden += u32::from(alike == 0);
                }
            }
        }
        assert!(hidden > 30, "{hidden}");
    }

    #[test]
    fn a_cache_that_changes_its_size_never_takes_more_than_there_is_and_always_settles() {
        for layers in [6, 9, 12, 24] {
            for swaps in [[1; 2], [2; 2], [3; 2], [1, 3], [3, 1]] {
                for before in 3..=layers {
                    for after in (3..=layers).filter(|after| *after != before) {
                        for taken_back in [None, Some(1), Some(2), Some(4)] {
                            a_change(layers, (before, after), swaps, taken_back);
                        }
                    }
                }
            }
        }
    }
}
