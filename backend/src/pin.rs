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

/// Has the calling thread give way to others that want its core: what emulates an engine of its own (a link, the device) does
/// not wait for what the processor does in earnest.
pub(crate) fn give_way() {
    // SAFETY: changes a number of the calling thread.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, GIVES_WAY);
    }
}

/// Of the system's -20 to 19, on which a fifth is a factor of three.
const GIVES_WAY: libc::c_int = 10;

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

/// Does something on the core that an executor's device has, where `pin_cores` gives it one of its own.
///
/// # Panics
/// Where the work does.
pub(crate) fn on_device_core<R: Send>(pin_cores: bool, work: impl FnOnce() -> R + Send) -> R {
    let cores = match pin_cores {
        true => allowed_cores(),
        false => Vec::new(),
    };
    let device = if cores.len() > 1 { &cores[..1] } else { &[] };
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            pin_to(device);
            work()
        });
        work.join().expect("it does not panic")
    })
}
