//! Completeness markers as a batch takes them in (protocol 8).

use std::collections::BTreeMap;

use usage_schemas::{Marker, Reason};
use uuid::Uuid;

use crate::message::Envelope;

/// How far a marker may be ahead of the broker's clock, microseconds. Beyond that the source's clock is wrong, and what it says of
/// itself would hide what it still emits.
const AHEAD: i64 = 5 * 60 * 1_000_000;

/// A delivered marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    pub offset: i64,
    pub marker: Marker,
    /// Too far ahead of the broker's clock: it moves nothing.
    pub ahead: bool,
}

/// Reads a message whose payload type says that it is a marker; the error is why it is none.
pub fn read(message: &Envelope<'_>) -> Result<Heard, (Reason, &'static str)> {
    let marker = Marker::decode(message.value.unwrap_or_default())
        .map_err(|_| (Reason::Undecodable, "the value is not a marker"))?;
    let source = message.headers.and_then(|headers| headers.source);
    if source != Some(marker.source.as_bytes()) {
        return Err((Reason::UnknownSource, "the marker names another source than the one that signed it"));
    }
    let ahead =
        marker.complete_until.micros() > message.timestamp.saturating_mul(1_000).saturating_add(AHEAD);
    Ok(Heard { offset: message.offset, marker, ahead })
}

/// What the markers up to offset `last` move: the greatest of each outbox; and those that move nothing because they are ahead.
pub fn fold(heard: Vec<Heard>, last: i64) -> (Vec<Marker>, Vec<Marker>) {
    let mut greatest = BTreeMap::<(String, Uuid), Marker>::new();
    let mut ahead = Vec::new();
    for Heard { marker, ahead: is_ahead, .. } in heard.into_iter().filter(|heard| heard.offset <= last) {
        if is_ahead {
            ahead.push(marker);
            continue;
        }
        let place = (marker.source.clone(), marker.outbox);
        match greatest.get(&place) {
            Some(other) if other.complete_until >= marker.complete_until => {}
            _ => {
                greatest.insert(place, marker);
            }
        }
    }
    (greatest.into_values().collect(), ahead)
}

#[cfg(test)]
mod tests {
    use usage_schemas::{Timestamp, names};

    use super::*;
    use crate::testing::{NOW, SOURCE, marker, sealed};

    #[test]
    fn a_marker_more_than_five_minutes_ahead_of_the_brokers_clock_moves_nothing() {
        let at = |micros: i64| read(&marker(7, 1, NOW * 1_000 + micros).envelope()).unwrap().ahead;
        assert!(!at(0) && !at(300_000_000) && at(300_000_001));
    }

    #[test]
    fn what_is_no_marker_of_its_source_is_refused() {
        let of = |value: &[u8]| {
            read(&sealed(1, names::PAYLOAD_MARKER, SOURCE.as_bytes(), value, SOURCE).envelope())
                .map_err(|(reason, _)| reason)
        };
        assert_eq!(of(b"{}"), Err(Reason::Undecodable));
        let foreign = Marker {
            source: "mail".into(),
            outbox: Uuid::nil(),
            complete_until: Timestamp::from_micros(NOW),
        };
        assert_eq!(of(&foreign.encode()), Err(Reason::UnknownSource));
        assert!(of(&Marker { source: SOURCE.into(), ..foreign }.encode()).is_ok());
    }

    #[test]
    fn the_greatest_of_each_outbox_counts_up_to_the_end_of_the_batch() {
        let heard =
            |offset: i64, outbox: u128, until: i64| read(&marker(offset, outbox, until).envelope()).unwrap();
        let (ahead, late) = (NOW * 1_000 + 400_000_000, NOW * 1_000);
        let all =
            vec![heard(1, 1, 50), heard(2, 2, 30), heard(3, 1, 40), heard(4, 2, ahead), heard(5, 1, late)];
        let (moves, ignored) = fold(all, 4);
        let moves: Vec<_> = moves.iter().map(|m| (m.outbox.as_u128(), m.complete_until.micros())).collect();
        assert_eq!(moves, [(1, 50), (2, 30)]);
        assert_eq!(ignored.len(), 1);
    }
}
