//! Where each layer's cache is, and what moves next (Pie, sections 3.2 and 3.3).

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
    /// While all layers' caches are to get another size: those that have it. None: all have the same.
    resized: Option<Vec<bool>>,
}

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
            resized: None,
        }
    }

    /// Where a layer is.
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
    /// is used last goes out, unless all on the host are used later still; of those on the host the one that is used
    /// first comes, if the GPU has room.
    pub fn swaps(&mut self, computing: u16) -> Swaps {
        let layers = self.places.len() as u16;
        let after = |steps: u16| (computing + steps) % layers;
        let is = |layer: u16, place| self.place(layer) == place;
        let hottest = (0..layers).find(|steps| is(after(*steps), Place::Cpu));
        let coldest = (1..layers)
            .rev()
            .find(|steps| is(after(*steps), Place::Gpu));
        let slots = usize::from(self.slots);
        let on_gpu = self
            .places
            .iter()
            .filter(|place| **place != Place::Cpu)
            .count();
        let out = coldest.filter(|steps| {
            let moves = self.at(Place::Leaving).next().is_some();
            // A cache that has lost a slot has no choice.
            let withheld = hottest.is_none_or(|hottest| hottest > *steps) && on_gpu <= slots;
            !moves && !withheld && self.may_go(after(*steps), computing)
        });
        let has_room = on_gpu < slots && self.at(Place::Coming).next().is_none();
        let swaps = Swaps {
            out: out.map(after),
            back: hottest.filter(|_| has_room).map(after),
        };
        swaps
            .out
            .into_iter()
            .for_each(|layer| self.begin(layer, Place::Leaving));
        swaps
            .back
            .into_iter()
            .for_each(|layer| self.begin(layer, Place::Coming));
        swaps
    }

    /// Whether a layer may go out. While caches get another size, one that has it leaves the way to those on the GPU that
    /// have not, unless a computation waits: else the same layers might move in every pass, and others never.
    fn may_go(&self, layer: u16, computing: u16) -> bool {
        let Some(resized) = &self.resized else {
            return true;
        };
        let old = |layer: u16| !resized[usize::from(layer)];
        old(layer) || self.place(computing) != Place::Gpu || !self.at(Place::Gpu).any(old)
    }

    fn begin(&mut self, layer: u16, place: Place) {
        self.places[usize::from(layer)] = place;
        if let Some(resized) = &mut self.resized {
            resized[usize::from(layer)] = true;
            if resized.iter().all(|done| *done) {
                self.resized = None;
            }
        }
    }

    /// A layer has arrived on the host.
    pub fn gone(&mut self, layer: u16) {
        self.places[usize::from(layer)] = Place::Cpu;
    }

    /// A layer has arrived on the GPU.
    pub fn come(&mut self, layer: u16) {
        self.places[usize::from(layer)] = Place::Gpu;
    }

    /// Gives the GPU room for another number of caches, each of another size: each layer gets its new one when it next
    /// moves (section 4.1).
    pub fn resize(&mut self, slots: u16) {
        self.slots = slots;
        self.resized = Some(vec![false; self.places.len()]);
    }

    /// Says that all layers' caches have their size.
    pub fn settle(&mut self) {
        self.resized = None;
    }

    /// Whether all layers' caches have their size.
    pub fn is_settled(&self) -> bool {
        self.resized.is_none()
    }
}
