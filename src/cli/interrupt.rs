//! Ctrl-C: the first asks the work to stop at the next task, the second ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::exit::Exit;

/// A flag that Ctrl-C sets. For commands that can stop in order; without it Ctrl-C ends at once.
///
/// # Errors
/// Where the system takes no handler.
pub fn stop_on_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(Exit::Interrupted as u8));
        }
    })?;
    Ok(stop)
}
