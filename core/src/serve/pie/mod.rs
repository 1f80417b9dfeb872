//! Pie: a cache larger than the GPU's memory, whose layers move while others are computed.

mod adaptive;
mod expansion;
mod foreseen;
mod layer_set;
mod layers;
mod moves;
mod table;
mod timeline;

pub use adaptive::{Adaptive, Event, Observed, Settings};
pub use expansion::{layers_off, layers_off_at_most, on_host, slots, with_buffers};
pub use layers::{Iteration, Lanes, Next, Pie, Swapped};
pub use table::{MappingTable, Place, Swaps};
pub use timeline::{Step, hides, most_off, most_off_by_rates, timeline};
