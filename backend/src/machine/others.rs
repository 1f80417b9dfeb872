//! What keeps the processors busy besides this program.

use std::thread::sleep;
use std::time::Duration;

/// Ticks of all processors, from `/proc/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
}

/// Which share of the processors others, or who this machine is a guest of, take while this program waits so long; none where the
/// system does not say.
pub fn busy_share(wait: Duration) -> Option<f64> {
    let before = now()?;
    sleep(wait);
    share(before, now()?)
}

fn now() -> Option<Ticks> {
    of_text(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// The first line: user, nice, system, idle, iowait, irq, softirq and steal; guests are counted as users already.
fn of_text(text: &str) -> Option<Ticks> {
    let numbers = text.lines().next()?.strip_prefix("cpu ")?;
    let numbers = numbers.split_whitespace().take(8).map(str::parse);
    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
    Some(Ticks {
        all: numbers.iter().sum(),
        idle: numbers.get(3)? + numbers.get(4)?,
    })
}

fn share(before: Ticks, after: Ticks) -> Option<f64> {
    let all = after.all.checked_sub(before.all).filter(|all| *all > 0)?;
    let idle = after.idle.saturating_sub(before.idle);
    Some(1.0 - idle.min(all) as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_idle_is_busy() {
        let ticks = |line: &str| of_text(line).unwrap();
        let before = ticks("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3\n");
        assert_eq!(
            before,
            Ticks {
                all: 1000,
                idle: 850
            }
        );
        let after = ticks("cpu  140 0 60 840 60 0 0 0 9 0\n");
        assert_eq!(share(before, after), Some(0.5));
        assert_eq!(share(before, before), None);
        assert_eq!(of_text("intr 1 2"), None);
        assert_eq!(of_text(""), None);
    }

    #[test]
    fn a_share_is_one() {
        let busy = busy_share(Duration::from_millis(50));
        assert!(busy.is_none_or(|busy| (0.0..=1.0).contains(&busy)));
    }
}
