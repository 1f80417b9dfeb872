//! Ctrl-C, and what else asks a process to end: the first asks the work to stop at the next task, the second ends
//! the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::exit::Exit;

/// The signal that came; 0 before one has.
static CAME: AtomicUsize = AtomicUsize::new(0);

/// What shells add to a signal's number.
const SIGNALLED: u8 = 128;

/// A flag that Ctrl-C, `kill` and a closed terminal set; the terminal's end not where the process was started to outlive it (`nohup`). For commands that can stop in order; without it each ends at
/// once.
///
/// # Errors
/// Where the system takes no handler.
pub fn stop_on_interrupt() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if signal == SIGHUP && is_ignored(signal) {
            continue;
        }
        let second = i32::from(SIGNALLED) + signal;
        // Before the first is noted, so that only the next one ends the process.
        flag::register_conditional_shutdown(signal, second, Arc::clone(&stop))?;
        flag::register_usize(signal, &CAME, signal as usize)?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Whether the process ignores a signal, as /proc says (a bit a signal); where it does not, none is.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    ignored.is_some_and(|bits| bits >> (signal - 1) & 1 == 1)
}

/// The process's exit code: of an interruption, that of the signal which asked for it.
pub(super) fn code_of(exit: Exit) -> u8 {
    let came = u8::try_from(CAME.load(Ordering::SeqCst)).unwrap_or(0);
    match (exit, came) {
        (Exit::Interrupted, 1..SIGNALLED) => SIGNALLED + came,
        _ => exit as u8,
    }
}
