//! Plans on a GPU: the same programs as the CPU executor's, each resource of the device a stream.
//!
//! Tasks of the GPU, of its copies and of barriers are *issued*: a thread a stream gives it, in program order, waits for what
//! the task needs of other streams, an event, the task's commands, and another event. It waits for nothing but tasks of the
//! host (disk, CPU attention, the CPU's rows of split linear layers, page-locking), so whole passes lie in the streams before
//! they are computed. A second thread a stream sleeps until the next task's last event, and so knows when it ended, by the
//! GPU's clock; what waits for it on the host goes on then.
//! Tasks of the host, memory, loading and texts are the CPU executor's own (`crate::cpu`): [`crate::cpu::CpuOptions::card`].
//!
//! Nothing is allocated on the device once a plan's executor has been made. Beside the plan's arena lies `Beside`: what a
//! plan does not count, such as logits and tables.
//!
//! The host waits for the device in two cases: where it chooses tokens, since they are drawn or given, or keeps logits; and for the end
//! of copies down to pageable memory.

mod attend;
mod beside;
mod ground;
mod head;
mod issue;
mod lanes;
mod linear;
mod multiply;
mod parts;
pub(crate) mod serving;
mod stages;
mod supported;
mod timing;

pub use issue::UnifiedMaximum;
pub(crate) use issue::{CardDevice, Planned, RECOMPUTED_AT};
pub(crate) use lanes::{Issue, start, streams_of};
pub(crate) use linear::{choose, choose_joined};
pub(crate) use supported::check_plan;
pub use timing::Repeats;
pub(crate) use timing::{
    Busy, Operands, Taken, Way, apart, copies, in_turns, in_turns_behind, learn_on,
    learn_with_prompts_on, read, read_numbers, timed, with_stream,
};
