//! A small disk for the source's database, which can be made full: a tmpfs whose size is cut to what is used.
//!
//! It is mounted in a mount namespace of this process and its children, so nobody else sees it and nothing is left when they end. Both
//! need root; without it there is no such fault.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};

/// Far more than a run writes; memory is taken only for what is written.
const SIZE: u64 = 2 << 30;
/// How often the disk is filled anew when what is on it grows at that moment.
const ATTEMPTS: u32 = 1_000;

/// Gives this process a mount namespace of its own. Call it before any thread is started. Says why it is not possible.
pub fn prepare() -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("a disk that can be filled is a mount, and mounting needs root".into());
    }
    unshare(CloneFlags::CLONE_NEWNS).map_err(|error| format!("no mount namespace: {error}"))?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(|error| format!("mounts can't be made private: {error}"))
}

/// The mounted disk.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Disk {
    /// Mounts it for a user and a group.
    pub fn mount((user, group): (u32, u32)) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("usage-chaos-disk-").tempdir()?;
        // The server's user has to get through.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let path = dir.path().join("disk");
        fs::create_dir(&path)?;
        let options = format!("size={SIZE},mode=700,uid={user},gid={group}");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .with_context(|| format!("mounting {}", path.display()))?;
        Ok(Self { path, _dir: dir })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// No further byte fits.
    pub fn fill(&self) -> anyhow::Result<()> {
        for _ in 0..ATTEMPTS {
            let used = nix::sys::statvfs::statvfs(&self.path)?;
            let blocks = used.blocks().saturating_sub(used.blocks_free());
            // A tmpfs of size 0 has no bound.
            let bytes = blocks.max(1) * used.fragment_size();
            match self.remount(bytes) {
                // The database has written meanwhile, so this much is not enough for what is there.
                Err(Errno::EINVAL) => {}
                done => return done.with_context(|| self.resizing(bytes)),
            }
        }
        anyhow::bail!("{} grew {ATTEMPTS} times while it was filled", self.path.display())
    }

    /// There is room again.
    pub fn free(&self) -> anyhow::Result<()> {
        self.remount(SIZE).with_context(|| self.resizing(SIZE))
    }

    fn remount(&self, bytes: u64) -> nix::Result<()> {
        let options = format!("size={bytes}");
        mount(None::<&str>, &self.path, None::<&str>, MsFlags::MS_REMOUNT, Some(options.as_str()))
    }

    fn resizing(&self, bytes: u64) -> String {
        format!("resizing {} to {bytes}", self.path.display())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It goes with the namespace at the latest.
        let _ = umount(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    /// On a thread of its own: a namespace belongs to a thread.
    fn in_a_namespace(test: impl FnOnce(Result<(), String>) + Send + 'static) {
        std::thread::spawn(|| test(prepare())).join().unwrap();
    }

    #[test]
    fn a_full_disk_refuses_bytes_until_there_is_room_or_says_why_it_can_not_be() {
        in_a_namespace(|prepared| {
            if let Err(reason) = prepared {
                assert!(!reason.is_empty());
                return;
            }
            let disk = Disk::mount((0, 0)).unwrap();
            let file = disk.path().join("file");
            fs::write(&file, vec![7; 10_000]).unwrap();
            disk.fill().unwrap();
            let refused = fs::write(disk.path().join("more"), vec![7; 100_000]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::StorageFull);
            assert_eq!(fs::read(&file).unwrap().len(), 10_000);
            disk.free().unwrap();
            fs::write(disk.path().join("more"), vec![7; 100_000]).unwrap();
        });
    }

    #[test]
    fn a_disk_that_is_written_to_meanwhile_can_be_filled() {
        in_a_namespace(|prepared| {
            if prepared.is_err() {
                return;
            }
            let disk = Disk::mount((0, 0)).unwrap();
            let mut file = fs::File::create(disk.path().join("file")).unwrap();
            let (full, stop) = std::sync::mpsc::channel::<()>();
            let writer = std::thread::spawn(move || {
                use std::io::Write as _;
                while stop.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                    // Full now and then.
                    let _ = file.write_all(&[7; 4096]);
                }
            });
            for _ in 0..200 {
                disk.fill().unwrap();
                disk.free().unwrap();
            }
            drop(full);
            writer.join().unwrap();
        });
    }
}
