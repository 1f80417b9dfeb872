//! Memory, disk and what the system permits.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::path::Path;

use plimsoll_core::units::Bytes;

use super::{Finding, State};
use crate::kernels::simd::InstructionSet;
use crate::tiers::{DiskMode, DiskTier, available_memory, memory_limit, total_memory};

pub fn findings(disk_dir: &Path) -> Vec<Finding> {
    vec![
        processor(),
        memory(),
        huge_pages(),
        locked_memory(),
        disk(disk_dir),
        io_uring(),
    ]
}

fn processor() -> Finding {
    const NAME: &str = "processor";
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let set = InstructionSet::best();
    let found = format!("{cores} cores, {set:?}");
    match set {
        InstructionSet::Plain => {
            let remedy =
                "run on a processor with AVX2 or AVX-512, for which there are faster kernels";
            Finding::other(NAME, State::Weak, found, remedy)
        }
        _ => Finding::good(NAME, found),
    }
}

fn memory() -> Finding {
    const NAME: &str = "host memory";
    let held = match memory_limit() {
        Some(_) => ", which is what a control group (a container's, or a service's) allows",
        None => "",
    };
    match (available_memory(), total_memory()) {
        (Some(free), Some(all)) => Finding::good(NAME, format!("{free} of {all} free{held}")),
        _ => {
            let remedy = "mount /proc, from which capacities are read";
            Finding::other(NAME, State::Missing, "/proc/meminfo does not say", remedy)
        }
    }
}

/// What is chosen in a list such as `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

fn huge_pages() -> Finding {
    const NAME: &str = "huge pages";
    const FILE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = fs::read_to_string(FILE).unwrap_or_default();
    match chosen(&text) {
        Some(word @ ("always" | "madvise")) => Finding::good(NAME, format!("transparent: {word}")),
        other => {
            let found = format!("transparent: {}", other.unwrap_or("not known"));
            let remedy =
                format!("as root: echo madvise > {FILE}; arenas then have fewer pages to look up");
            Finding::other(NAME, State::Weak, found, remedy)
        }
    }
}

fn locked_memory() -> Finding {
    const NAME: &str = "locked-memory limit";
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call writes the structure and nothing else.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    if asked != 0 {
        let why = io::Error::last_os_error().to_string();
        return Finding::other(NAME, State::Weak, why, "see `ulimit -l`");
    }
    if limit.rlim_cur == libc::RLIM_INFINITY {
        return Finding::good(NAME, "unlimited");
    }
    let found = Bytes(limit.rlim_cur).to_string();
    let remedy = "`ulimit -l unlimited` (or memlock in /etc/security/limits.conf), to lock pages without the driver";
    Finding::other(NAME, State::Weak, found, remedy)
}

fn disk(dir: &Path) -> Finding {
    const NAME: &str = "disk tier";
    let place = dir.display();
    match DiskTier::create(dir, Bytes(1 << 20)) {
        Err(error) => {
            let remedy = "give a --disk-dir that can be written to";
            Finding::other(NAME, State::Missing, error.to_string(), remedy)
        }
        Ok(disk) => match disk.mode() {
            DiskMode::Direct => Finding::good(NAME, format!("{place}: O_DIRECT")),
            DiskMode::Buffered => {
                let found = format!("{place}: through the page cache, O_DIRECT is refused");
                let remedy = "give a --disk-dir on ext4 or xfs, whose reads are those of the disk";
                Finding::other(NAME, State::Weak, found, remedy)
            }
        },
    }
}

fn io_uring() -> Finding {
    const NAME: &str = "io_uring";
    // The kernel reads and writes this many bytes of parameters.
    let mut parameters = [0_u8; 120];
    // SAFETY: asks for a ring of one entry with zeroed parameters, which the kernel fills in.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    if ring >= 0 {
        // SAFETY: the descriptor is ours.
        unsafe { libc::close(ring as i32) };
        return Finding::good(NAME, "permitted; not used yet");
    }
    let why = io::Error::last_os_error();
    let found = format!("refused ({why}); not used yet");
    let remedy = "nothing needs it; as root: sysctl kernel.io_uring_disabled=0, or permit it in the container";
    Finding::other(NAME, State::Weak, found, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_writes_is_read() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen(""), None);
    }
}
