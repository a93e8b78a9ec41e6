//! A message of the topic of dead letters, whatever lies there.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use rdkafka::Message as _;
use rdkafka::message::{BorrowedMessage, Headers as _};

use crate::arguments::Place;

/// A message, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub place: Place,
    /// The broker's time, milliseconds since the Unix epoch.
    pub timestamp: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// In order; `None` for a name that is not text.
    pub headers: Vec<(Option<String>, Option<Vec<u8>>)>,
}

impl Message {
    pub fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map(|headers| {
            let one =
                |index| {
                    // rdkafka panics on a name that is not UTF-8; such a message must not stop the tool.
                    quietly(|| headers.try_get(index).map(|header| (header.key.to_owned(), header.value)))
                        .map_or((None, None), |found| match found {
                            Some((name, value)) => (Some(name), value.map(<[u8]>::to_vec)),
                            None => (None, None),
                        })
                };
            (0..headers.count()).map(one).collect()
        });
        Self {
            place: Place { partition: message.partition(), offset: message.offset() },
            timestamp: message.timestamp().to_millis().unwrap_or_default(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: headers.unwrap_or_default(),
        }
    }

    /// The value of a header; of a repeated one the last counts, as in Kafka's own clients.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let last = self.headers.iter().rev().find(|(found, _)| found.as_deref() == Some(name));
        last.and_then(|(_, value)| value.as_deref())
    }

    /// The same as text; `None` if it is missing or not text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.header(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Bytes that it takes in memory, about.
    pub fn size(&self) -> usize {
        let bytes = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter();
        let headers: usize =
            headers.map(|(name, value)| name.as_ref().map_or(0, String::len) + bytes(value)).sum();
        bytes(&self.key) + bytes(&self.value) + headers
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// `None` if the work panics, without a word on standard error.
fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(work)).ok();
    QUIET.set(false);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_rdkafka_is_no_answer_and_ends_nothing() {
        assert_eq!(quietly(|| 7), Some(7));
        let name = vec![0xff];
        assert_eq!(quietly(|| String::from_utf8(name).expect("text").len()), None);
        assert!(!QUIET.get(), "the next panic is told again");
    }

    #[test]
    fn the_last_of_repeated_headers_counts() {
        let message = crate::commands::dead_letters::testing::message(
            0,
            0,
            &[("a", b"1"), ("a", b"2"), ("b", &[0xff])],
        );
        assert_eq!((message.text("a"), message.text("b"), message.header("c")), (Some("2"), None, None));
    }
}
