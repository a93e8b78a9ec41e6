//! Free loopback ports.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::TcpListener;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Below the range from which systems take the ports of outgoing connections, so that a server that is down for a moment
/// finds its port free when it comes back.
const RANGE: std::ops::Range<u16> = 18_000..32_000;

/// Whether nobody listens on this loopback port.
#[must_use]
pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// A loopback port that nobody listens on, chosen at random so that processes that start at once do not meet.
pub fn free() -> Result<u16> {
    let size = u64::from(RANGE.end - RANGE.start);
    for _ in 0..200 {
        let random = RandomState::new().build_hasher().finish() % size;
        let port = RANGE.start + u16::try_from(random)?;
        if is_free(port) {
            return Ok(port);
        }
    }
    bail!("no free port between {} and {}", RANGE.start, RANGE.end)
}

/// The ports that a server's directory had the last time, if they are still free; else new ones, which are then kept.
pub fn kept<const N: usize>(dir: &Path) -> Result<[u16; N]> {
    let file = dir.join("ports");
    if let Some(ports) = read(&file)
        && ports.iter().copied().all(is_free)
    {
        return Ok(ports);
    }
    let mut ports = [0; N];
    for index in 0..N {
        ports[index] = loop {
            let port = free()?;
            if !ports[..index].contains(&port) {
                break port;
            }
        };
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
    fn a_port_that_is_listened_on_is_not_free() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(port));
        drop(listener);
        assert!(is_free(port));
    }
}
