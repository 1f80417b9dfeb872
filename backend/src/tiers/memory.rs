//! How much main memory there is, and is left, for this process: the machine's, or less where a container or a service is held to less.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_core::units::Bytes;

/// What a limit of nobody reads as: version 1 writes the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 60;

/// All of it, where the system says.
pub fn total_memory() -> Option<Bytes> {
    let all = meminfo(&report(), "MemTotal");
    least(all, groups().map(|group| group.limit))
}

/// What can be taken without swapping, where the system says. It promises more than it has, and ends the process that comes to collect;
/// so it is asked first.
pub fn available_memory() -> Option<Bytes> {
    let free = meminfo(&report(), "MemAvailable");
    least(free, groups().map(|group| group.left))
}

/// What the process is held to, where that is less than all of the machine.
pub fn memory_limit() -> Option<Bytes> {
    let limit = groups().map(|group| group.limit).min();
    limit.filter(|limit| meminfo(&report(), "MemTotal").is_none_or(|all| *limit < all))
}

fn least(machine: Option<Bytes>, groups: impl Iterator<Item = Bytes>) -> Option<Bytes> {
    groups.chain(machine).min()
}

fn report() -> String {
    fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// A number of /proc/meminfo, in bytes.
fn meminfo(text: &str, key: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let number = line.trim_start_matches(':').split_whitespace().next()?;
    number.parse().ok().map(|kib: u64| Bytes(kib << 10))
}

/// A control group with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group {
    limit: Bytes,
    left: Bytes,
}

/// Those that the process is in, as far as they are to be seen.
fn groups() -> impl Iterator<Item = Group> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let folders = folders(Path::new("/sys/fs/cgroup"), &own);
    folders
        .into_iter()
        .filter_map(|folder| Group::read(&folder))
}

/// Where the groups are that `/proc/self/cgroup` names, and those around them: in a container, whose own is what it sees as the root,
/// the others are not there.
fn folders(root: &Path, own: &str) -> Vec<PathBuf> {
    let of_line = |line: &str| -> Option<Vec<PathBuf>> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let root = match controllers {
            "" => root.to_owned(),
            _ if controllers.split(',').any(|it| it == "memory") => root.join("memory"),
            _ => return None,
        };
        let group = Path::new(group.trim_start_matches('/')).to_owned();
        Some(group.ancestors().map(|group| root.join(group)).collect())
    };
    own.lines().filter_map(of_line).flatten().collect()
}

impl Group {
    /// Of version 2, or 1; none without a limit.
    fn read(folder: &Path) -> Option<Group> {
        let number = |name: &str| -> Option<u64> {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            text.trim().parse().ok()
        };
        let of = |limit, used| Some((number(limit)?, number(used)?));
        let (limit, used) = of("memory.max", "memory.current")
            .or_else(|| of("memory.limit_in_bytes", "memory.usage_in_bytes"))?;
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let counted = |key: &str| -> Option<u64> {
            let line = stat.lines().find_map(|line| line.strip_prefix(key))?;
            line.trim().parse().ok()
        };
        // What is kept of files gives way. In version 1 the totals have it of groups within this one.
        let kept = |state: &str| {
            let of_all = counted(&format!("total_{state} "));
            of_all
                .or_else(|| counted(&format!("{state} ")))
                .unwrap_or(0)
        };
        let cached = kept("inactive_file") + kept("active_file");
        let used = used.saturating_sub(cached);
        (limit < NO_LIMIT).then(|| Group {
            limit: Bytes(limit),
            left: Bytes(limit.saturating_sub(used)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_writes_is_read() {
        let text = "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(Bytes(2 << 20)));
        assert_eq!(meminfo(text, "MemTotal"), Some(Bytes(16 << 20)));
        assert_eq!(meminfo(text, "Swap"), None);
        assert!(available_memory() <= total_memory() && available_memory().is_some());
    }

    #[test]
    fn groups_are_those_of_the_process_and_around_them() {
        let root = Path::new("/root");
        let of = |own: &str| -> Vec<String> {
            let folders = folders(root, own).into_iter();
            folders.map(|it| it.display().to_string()).collect()
        };
        assert_eq!(of("0::/a/b\n"), ["/root/a/b", "/root/a", "/root/"]);
        assert_eq!(of("0::/\n"), ["/root/"]);
        let first = "9:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/1\n";
        let expected = [
            "/root/memory/docker/1",
            "/root/memory/docker",
            "/root/memory/",
        ];
        assert_eq!(of(first), expected);
        assert!(of("nonsense\n").is_empty());
    }

    #[test]
    fn a_group_says_what_it_allows_and_has_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            fs::write(folder.path().join(name), text).expect("a file");
        };
        assert_eq!(Group::read(folder.path()), None);
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.usage_in_bytes", "5000\n");
        assert_eq!(Group::read(folder.path()), None);
        write("memory.limit_in_bytes", "8000\n");
        let of = |limit, left| {
            Some(Group {
                limit: Bytes(limit),
                left: Bytes(left),
            })
        };
        assert_eq!(Group::read(folder.path()), of(8000, 3000));
        let stat = "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 1000\n";
        write("memory.stat", stat);
        assert_eq!(Group::read(folder.path()), of(8000, 4500));
        write("memory.max", "6000\n");
        write("memory.current", "7000\n");
        write("memory.stat", "anon 1\ninactive_file 200\n");
        assert_eq!(Group::read(folder.path()), of(6000, 0));
        // Version 2 without a limit says so in a word.
        write("memory.max", "max\n");
        fs::remove_file(folder.path().join("memory.limit_in_bytes")).expect("a file");
        assert_eq!(Group::read(folder.path()), None);
    }
}
