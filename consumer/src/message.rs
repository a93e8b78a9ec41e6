//! A message as Kafka delivers it: the borrowed view that deciding needs, and an owned copy for what outlives the poll.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rdkafka::Message as _;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers as _, OwnedHeaders};
use usage_schemas::names;

/// The headers that the consumer reads. Of repeated ones the last counts, as in Kafka's own clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownHeaders<'a> {
    pub payload_type: Option<&'a [u8]>,
    pub source: Option<&'a [u8]>,
    pub key_id: Option<&'a [u8]>,
    pub signature: Option<&'a [u8]>,
    pub forwarded: Option<&'a [u8]>,
    pub dlq_attempt: Option<&'a [u8]>,
}

/// A delivered message.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    pub offset: i64,
    /// The broker's time, milliseconds since the Unix epoch.
    pub timestamp: i64,
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    /// `None` if a header's name is not text.
    pub headers: Option<KnownHeaders<'a>>,
    /// Bytes of all headers.
    pub header_bytes: usize,
}

impl<'a> Envelope<'a> {
    pub fn of(message: &'a BorrowedMessage<'_>) -> Self {
        let (headers, header_bytes) = read_headers(message.headers());
        Self {
            offset: message.offset(),
            timestamp: message.timestamp().to_millis().unwrap_or_default(),
            key: message.key(),
            value: message.payload(),
            headers,
            header_bytes,
        }
    }

    /// Bytes that the message takes, for the budget, but for its headers: only a copy of the message keeps those.
    pub fn size(&self) -> usize {
        self.key.map_or(0, <[u8]>::len) + self.value.map_or(0, <[u8]>::len)
    }
}

/// Taken for the bytes of headers that can't be read to their end: about what the broker lets a message have.
const UNREADABLE: usize = 1 << 20;

/// The headers, unless one's name is not text, and the bytes of all.
fn read_headers(headers: Option<&BorrowedHeaders>) -> (Option<KnownHeaders<'_>>, usize) {
    let Some(headers) = headers else { return (Some(KnownHeaders::default()), 0) };
    match known_headers(headers) {
        Some((known, bytes)) => (Some(known), bytes),
        None => (None, UNREADABLE),
    }
}

fn known_headers(headers: &BorrowedHeaders) -> Option<(KnownHeaders<'_>, usize)> {
    // rdkafka panics on a name that is not UTF-8, and a message that ends the process whenever it is read would stop the
    // partition for good.
    catch_unwind(AssertUnwindSafe(|| {
        let (mut known, mut bytes) = (KnownHeaders::default(), 0);
        for header in headers.iter() {
            bytes += header.key.len() + header.value.map_or(0, <[u8]>::len);
            let place = match header.key {
                names::HEADER_PAYLOAD_TYPE => &mut known.payload_type,
                names::HEADER_SOURCE => &mut known.source,
                names::HEADER_KEY_ID => &mut known.key_id,
                names::HEADER_SIGNATURE => &mut known.signature,
                names::HEADER_FORWARDED => &mut known.forwarded,
                names::HEADER_DLQ_ATTEMPT => &mut known.dlq_attempt,
                _ => continue,
            };
            *place = header.value;
        }
        (known, bytes)
    }))
    .ok()
}

/// A copy, byte for byte.
#[derive(Debug)]
pub struct OwnedMessage {
    pub offset: i64,
    /// The broker's time, milliseconds since the Unix epoch.
    pub timestamp: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Option<OwnedHeaders>,
}

impl OwnedMessage {
    pub fn of(message: &BorrowedMessage<'_>) -> Self {
        Self {
            offset: message.offset(),
            timestamp: message.timestamp().to_millis().unwrap_or_default(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: message.headers().map(BorrowedHeaders::detach),
        }
    }

    pub fn envelope(&self) -> Envelope<'_> {
        let (headers, header_bytes) = read_headers(self.headers.as_ref().map(OwnedHeaders::as_borrowed));
        Envelope {
            offset: self.offset,
            timestamp: self.timestamp,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
            headers,
            header_bytes,
        }
    }

    /// Names and values of all headers, `None` if a name is not text.
    pub fn header_list(&self) -> Option<Vec<(String, Option<Vec<u8>>)>> {
        let Some(headers) = &self.headers else { return Some(Vec::new()) };
        let list = || {
            let owned = |header: rdkafka::message::Header<'_, &[u8]>| {
                (header.key.to_string(), header.value.map(<[u8]>::to_vec))
            };
            headers.as_borrowed().iter().map(owned).collect()
        };
        catch_unwind(AssertUnwindSafe(list)).ok()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::with_headers;

    #[test]
    fn unknown_headers_are_counted_too() {
        let plain = with_headers(1, b"key", b"value", &[]);
        assert_eq!((plain.envelope().size(), plain.envelope().header_bytes), (8, 0));
        let unknown = vec![0; 900_000];
        let message = with_headers(1, b"key", b"value", &[("usage-source", b"s"), ("padding", &unknown)]);
        let expected = "usage-source".len() + 1 + "padding".len() + 900_000;
        assert_eq!(message.envelope().header_bytes, expected);
        assert_eq!(message.envelope().headers.unwrap().source, Some(b"s".as_slice()));
    }
}
