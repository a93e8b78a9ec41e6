//! Room on the disk.

use std::path::Path;

use nix::sys::statvfs::statvfs;

/// What a build with its tests and the servers' data take, measured on a clean clone: 4 GB of artifacts, the rest data and downloads.
const WANTED: u64 = 6 << 30;

/// Warns if the disk of `dir` has less room than a whole run takes: what fails for want of it says so badly, or not at all.
pub fn warn_if_short(dir: &Path) {
    if let Some(free) = free(dir).filter(|free| *free < WANTED) {
        eprintln!("{}", warning(free));
    }
}

fn warning(free: u64) -> String {
    format!("warning: {} MiB of disk are free, a whole run takes about {} MiB", free >> 20, WANTED >> 20)
}

/// Bytes that this user may still write.
fn free(dir: &Path) -> Option<u64> {
    let of = statvfs(dir).ok()?;
    of.blocks_available().checked_mul(of.fragment_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_of_a_directory_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free(dir.path()).unwrap() > 0);
        assert_eq!(free(&dir.path().join("absent")), None);
    }

    #[test]
    fn both_sizes_are_said() {
        let text = "warning: 287 MiB of disk are free, a whole run takes about 6144 MiB";
        assert_eq!(warning(287 << 20), text);
    }
}
