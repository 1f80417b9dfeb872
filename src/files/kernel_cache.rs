//! Where compiled CUDA kernels are kept from run to run.

use std::ffi::OsString;
use std::path::PathBuf;

use plimsoll_backend::cuda::KernelCache;

/// The variable that says where else, or `off`.
const VARIABLE: &str = "PLIMSOLL_KERNEL_CACHE";

/// The user's own cache of kernels: `plimsoll/kernels` in `XDG_CACHE_HOME`, else in `~/.cache`, unless `PLIMSOLL_KERNEL_CACHE`
/// names a folder, or is `off`.
pub fn kernel_cache() -> KernelCache {
    folder(|name| std::env::var_os(name)).map_or(KernelCache::OFF, KernelCache::in_folder)
}

/// None: nothing is kept.
fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(own) = set(VARIABLE) {
        return (own != "off").then(|| own.into());
    }
    // As the XDG base directory specification has it, a relative path says nothing.
    let absolute = |name: &str| {
        set(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let caches = absolute("XDG_CACHE_HOME");
    let caches = caches.or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(caches?.join("plimsoll/kernels"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_of(set: &[(&str, &str)]) -> Option<PathBuf> {
        folder(|name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_variable_comes_first_then_the_users_cache() {
        let (home, caches) = (("HOME", "/home/a"), ("XDG_CACHE_HOME", "/c"));
        let at_home = Some("/home/a/.cache/plimsoll/kernels".into());
        assert_eq!(folder_of(&[home]), at_home);
        let in_caches = folder_of(&[home, caches]);
        assert_eq!(in_caches, Some("/c/plimsoll/kernels".into()));
        assert_eq!(folder_of(&[home, ("XDG_CACHE_HOME", "c")]), at_home);
        assert_eq!(folder_of(&[home, (VARIABLE, "")]), at_home);
        assert_eq!(folder_of(&[home, (VARIABLE, "k")]), Some("k".into()));
        assert_eq!(folder_of(&[home, (VARIABLE, "off")]), None);
        assert_eq!(folder_of(&[]), None);
    }
}
