//! The same work on many items, on all processors.

use std::panic::resume_unwind;
use std::thread;

/// One result an item, in the items' order whatever ends first.
pub(super) fn on_all_processors<T: Send, R: Send>(
    items: Vec<T>,
    work: &(dyn Fn(T) -> R + Sync),
) -> Vec<R> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let share = items.len().div_ceil(processors).max(1);
    let mut items = items.into_iter();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        loop {
            let some: Vec<T> = items.by_ref().take(share).collect();
            if some.is_empty() {
                break;
            }
            threads.push(scope.spawn(move || some.into_iter().map(work).collect::<Vec<R>>()));
        }
        let joined = threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|why| resume_unwind(why)));
        joined.flatten().collect()
    })
}
