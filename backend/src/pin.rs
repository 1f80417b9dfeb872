//! Which cores a worker may use.
#![allow(unsafe_code)]

/// Keeps the calling thread on the given cores, as far as the system allows it.
pub(crate) fn pin_to(cores: &[usize]) {
    if cores.is_empty() {
        return;
    }
    // SAFETY: a set of bits is plain data, and the calls read or change only it and the caller's mask.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for core in cores
            .iter()
            .filter(|core| **core < libc::CPU_SETSIZE as usize)
        {
            libc::CPU_SET(*core, &mut set);
        }
        // Refused on some systems: then the thread stays where the system puts it.
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Says how the calling thread shares cores with others, as far as the system allows it.
pub(crate) fn share(how: Share) {
    // SAFETY: the system reads a structure of the stated size, and changes the calling thread only.
    unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        attributes.size = size_of::<libc::sched_attr>() as u32;
        attributes.sched_policy = libc::SCHED_OTHER as u32;
        attributes.sched_nice = how.nice();
        if how != Share::Patient {
            attributes.sched_runtime = SLICE_NS;
        }
        // Refused on some systems: then all share alike.
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0);
    }
}

/// How a thread shares cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// What emulates an engine of its own (a link, the device) does not wait for what the processor does in earnest.
    First,
    /// What the processor computes gives way to that, and does not wait for copies that go on for long.
    Second,
    /// Those copies.
    Patient,
}

impl Share {
    /// Of the system's -20 to 19, on which a fifth is a factor of three.
    fn nice(self) -> libc::c_int {
        match self {
            Share::First => 0,
            Share::Second => 5,
            Share::Patient => 10,
        }
    }
}

/// The shortest turn that Linux grants, from 6.12 on: who asks for a shorter one than another is served before it.
const SLICE_NS: u64 = 100_000;

/// The cores that this process may use.
pub(crate) fn allowed_cores() -> Vec<usize> {
    // SAFETY: as above.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Vec::new();
        }
        set
    };
    let cores = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: the core is within the set's size.
    cores
        .filter(|core| unsafe { libc::CPU_ISSET(*core, &set) })
        .collect()
}

/// Does something on some cores, or anywhere where there are none, by a thread of its own: who calls is to keep its cores.
///
/// # Panics
/// Where the work does.
pub(crate) fn on_cores<R: Send>(cores: &[usize], work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            pin_to(cores);
            work()
        });
        work.join().expect("it does not panic")
    })
}
