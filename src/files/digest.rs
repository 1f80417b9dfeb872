//! The digest of a checkpoint.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use plimsoll_backend::digest::digest;

/// Of each file of a checkpoint: its name, its length and samples from end to end. Reading all of it
/// would take as long as loading it; other weights differ nearly everywhere.
///
/// # Errors
/// What the system says.
pub fn digest_of_checkpoint(folder: &Path) -> io::Result<String> {
    const SAMPLES: u64 = 64;
    const SAMPLE_BYTES: u64 = 4096;
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for path in shards(folder)? {
        let file = File::open(&path)?;
        let length = file.metadata()?.len();
        parts.push(
            path.file_name()
                .unwrap_or_default()
                .as_encoded_bytes()
                .to_vec(),
        );
        parts.push(length.to_le_bytes().to_vec());
        let last = length.saturating_sub(SAMPLE_BYTES);
        for sample in 0..SAMPLES {
            let mut bytes = vec![0; length.min(SAMPLE_BYTES) as usize];
            let at = u128::from(last) * u128::from(sample) / u128::from(SAMPLES - 1);
            file.read_exact_at(&mut bytes, at as u64)?;
            parts.push(bytes);
        }
    }
    Ok(digest(parts))
}

fn shards(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries: io::Result<Vec<_>> = std::fs::read_dir(folder)?.collect();
    let paths = entries?.into_iter().map(|entry| entry.path());
    let is_shard = |path: &PathBuf| path.extension().is_some_and(|end| end == "safetensors");
    let mut shards: Vec<PathBuf> = paths.filter(is_shard).collect();
    shards.sort();
    Ok(shards)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_weights_in_files_of_the_same_size_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let of = |byte: u8| {
            std::fs::write(&path, vec![byte; 100_000]).unwrap();
            digest_of_checkpoint(folder.path()).unwrap()
        };
        assert_ne!(of(1), of(2));
        assert_eq!(of(1), of(1));
    }
}
