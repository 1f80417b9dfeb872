//! The same work on many items, on all processors.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Hears how many items of how many are done.
pub type Watch<'a> = dyn Fn(u64, u64) + Sync + 'a;

/// The same as [`on_all_processors`], with whoever watches told of each item that is done.
pub(crate) fn watched<T: Send, R: Send>(
    items: Vec<T>,
    watch: &Watch<'_>,
    work: &(dyn Fn(T) -> R + Sync),
) -> Vec<R> {
    let (all, done) = (items.len() as u64, AtomicU64::new(0));
    watch(0, all);
    on_all_processors(items, &|item| {
        let result = work(item);
        watch(done.fetch_add(1, Ordering::Relaxed) + 1, all);
        result
    })
}

/// One result an item, in the items' order whatever ends first.
pub(crate) fn on_all_processors<T: Send, R: Send>(
    items: Vec<T>,
    work: &(dyn Fn(T) -> R + Sync),
) -> Vec<R> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = processors.min(items.len());
    // Items differ in size, so whoever is free takes the next.
    let items = Mutex::new(items.into_iter().enumerate());
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work_off = || {
        let mut results = Vec::new();
        while let Some((index, item)) = next() {
            results.push((index, work(item)));
        }
        results
    };
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work_off)).collect();
        let joined = threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|why| resume_unwind(why)));
        joined.flatten().collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
