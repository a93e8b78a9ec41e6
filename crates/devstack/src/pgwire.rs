//! As much of Postgres' protocol as it takes to ask whether the server answers and to run a statement, without a driver.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

/// A connection of a user that is trusted (no password).
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    /// Connects on loopback and waits until the server takes queries.
    pub fn open(port: u16, user: &str, database: &str, timeout: Duration) -> Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let stream = TcpStream::connect_timeout(&address, timeout)
            .with_context(|| format!("connecting to {address}"))?;
        stream.set_read_timeout(Some(timeout))?;
        let mut this = Self { stream };
        this.stream.write_all(&startup(user, database))?;
        this.until_ready()?;
        Ok(this)
    }

    /// Runs a statement (the simple protocol) and gives its rows as text; NULL is `None`.
    pub fn query(&mut self, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
        let mut message = vec![b'Q'];
        message.extend_from_slice(&u32::try_from(sql.len() + 5)?.to_be_bytes());
        message.extend_from_slice(sql.as_bytes());
        message.push(0);
        self.stream.write_all(&message)?;
        self.until_ready().with_context(|| format!("running {sql:?}"))
    }

    /// Reads messages up to ReadyForQuery; the rows among them are the result.
    fn until_ready(&mut self) -> Result<Vec<Vec<Option<String>>>> {
        let mut rows = Vec::new();
        let mut error = None;
        loop {
            let (kind, body) = self.message()?;
            match kind {
                b'Z' => return error.map_or(Ok(rows), Err),
                b'D' => rows.push(data_row(&body)?),
                // After a refused start there is no ReadyForQuery.
                b'E' => error = Some(server_error(&body)),
                b'R' if body != [0, 0, 0, 0] => bail!("the server wants a password"),
                _ => {}
            }
        }
    }

    fn message(&mut self) -> Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head).context("the server closed the connection")?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        ensure!((4..1 << 24).contains(&length), "a message of {length} bytes");
        let mut body = vec![0; usize::try_from(length)? - 4];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

fn startup(user: &str, database: &str) -> Vec<u8> {
    let mut body = 196_608_u32.to_be_bytes().to_vec();
    for text in ["user", user, "database", database] {
        body.extend_from_slice(text.as_bytes());
        body.push(0);
    }
    body.push(0);
    let length = u32::try_from(body.len() + 4).expect("short names");
    [length.to_be_bytes().to_vec(), body].concat()
}

fn data_row(body: &[u8]) -> Result<Vec<Option<String>>> {
    let (count, mut rest) = body.split_first_chunk::<2>().context("a short row")?;
    let mut row = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>().context("a short row")?;
        let length = i32::from_be_bytes(*length);
        rest = after;
        let Ok(length) = usize::try_from(length) else {
            row.push(None);
            continue;
        };
        let (value, after) = rest.split_at_checked(length).context("a short row")?;
        row.push(Some(String::from_utf8_lossy(value).into_owned()));
        rest = after;
    }
    Ok(row)
}

/// Fields `C` (SQLSTATE) and `M` (message).
fn server_error(body: &[u8]) -> anyhow::Error {
    let field = |letter: u8| {
        body.split(|byte| *byte == 0)
            .find(|field| field.first() == Some(&letter))
            .map(|field| String::from_utf8_lossy(&field[1..]).into_owned())
            .unwrap_or_default()
    };
    anyhow::anyhow!("postgres: {} ({})", field(b'M'), field(b'C'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_with_their_nulls() {
        let body = [0, 2, 0, 0, 0, 2, b'h', b'i', 255, 255, 255, 255];
        assert_eq!(data_row(&body).unwrap(), vec![Some("hi".to_owned()), None]);
        assert!(data_row(&body[..7]).is_err());
    }

    #[test]
    fn errors_carry_message_and_code() {
        let error = server_error(b"SFATAL\0C57P03\0Mthe database system is starting up\0\0");
        assert_eq!(error.to_string(), "postgres: the database system is starting up (57P03)");
    }

    #[test]
    fn the_startup_message_counts_itself() {
        let message = startup("usage", "postgres");
        assert_eq!(usize::from(message[3]), message.len());
        assert_eq!(message[4..8], [0, 3, 0, 0]);
    }
}
