//! Free loopback ports.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};

/// Below the range from which systems take the ports of outgoing connections, so that a server that is down for a moment
/// finds its port free when it comes back.
const RANGE: std::ops::Range<u16> = 18_000..32_000;

/// Whether nobody listens on this loopback port.
#[must_use]
pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// Ports that were given out: nobody listens on them yet, and another server must not get them meanwhile. Each is the name of
/// a locked file, so other processes know too; the locks go when this process ends.
static GIVEN: Mutex<BTreeMap<u16, File>> = Mutex::new(BTreeMap::new());

/// Takes the port for this process; false when another process or another server of this one has it.
fn claim(port: u16) -> Result<bool> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    if given.contains_key(&port) {
        return Ok(false);
    }
    let dir = std::env::temp_dir().join(format!("usage-ports-{}", nix::unistd::geteuid()));
    fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
    let file = File::create(dir.join(port.to_string()))?;
    let claimed = file.try_lock().is_ok();
    if claimed {
        given.insert(port, file);
    }
    Ok(claimed)
}

/// A loopback port that nobody listens on and nobody else was given.
pub fn free() -> Result<u16> {
    let size = u64::from(RANGE.end - RANGE.start);
    for _ in 0..200 {
        let random = RandomState::new().build_hasher().finish() % size;
        let port = RANGE.start + u16::try_from(random)?;
        if is_free(port) && claim(port)? {
            return Ok(port);
        }
    }
    bail!("no free port between {} and {}", RANGE.start, RANGE.end)
}

/// Whether all these ports are free; then they are this process's, who may have had them before.
pub fn take(ports: &[u16]) -> Result<bool> {
    for port in ports {
        let ours = GIVEN.lock().unwrap_or_else(PoisonError::into_inner).contains_key(port);
        if !is_free(*port) || !(ours || claim(*port)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The ports that a server's directory had the last time, if they are still free; else new ones, which are then kept.
pub fn kept<const N: usize>(dir: &Path) -> Result<[u16; N]> {
    let file = dir.join("ports");
    if let Some(ports) = read(&file)
        && take(&ports)?
    {
        return Ok(ports);
    }
    let mut ports = [0; N];
    for port in &mut ports {
        *port = free()?;
    }
    let text: Vec<String> = ports.iter().map(u16::to_string).collect();
    fs::write(&file, text.join(" ")).with_context(|| format!("writing {}", file.display()))?;
    Ok(ports)
}

fn read<const N: usize>(file: &Path) -> Option<[u16; N]> {
    let text = fs::read_to_string(file).ok()?;
    let ports: Vec<u16> = text.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    ports.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_ports_while_they_are_free() {
        let dir = tempfile::tempdir().unwrap();
        let first: [u16; 2] = kept(dir.path()).unwrap();
        assert_ne!(first[0], first[1]);
        assert_eq!(kept(dir.path()).unwrap(), first);
        let taken = TcpListener::bind(("127.0.0.1", first[1])).unwrap();
        let second: [u16; 2] = kept(dir.path()).unwrap();
        assert!(!second.contains(&first[1]));
        drop(taken);
        assert_eq!(kept(dir.path()).unwrap(), second);
    }

    #[test]
    fn a_spoilt_file_of_ports_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ports"), "80 what").unwrap();
        let ports: [u16; 2] = kept(dir.path()).unwrap();
        assert_eq!(read(&dir.path().join("ports")), Some(ports));
    }

    #[test]
    fn a_free_port_is_in_the_range_and_can_be_bound() {
        let port = free().unwrap();
        assert!(RANGE.contains(&port));
        TcpListener::bind(("127.0.0.1", port)).unwrap();
    }

    #[test]
    fn a_port_is_given_out_once_also_among_processes() {
        let port = free().unwrap();
        assert!(is_free(port));
        assert!(!claim(port).unwrap());
        let dir = std::env::temp_dir().join(format!("usage-ports-{}", nix::unistd::geteuid()));
        let lock = format!("flock --nonblock '{}/{port}' true", dir.display());
        let status = std::process::Command::new("sh").args(["-c", &lock]).status().unwrap();
        assert!(!status.success());
    }

    #[test]
    fn a_port_that_is_listened_on_is_not_free() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(port));
        drop(listener);
        assert!(is_free(port));
    }
}
