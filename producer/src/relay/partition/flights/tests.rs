use uuid::Uuid;

use super::*;
use crate::pg_time::PgTime;
use crate::relay::encode::Sources;

fn source() -> Arc<Source> {
    let sources = Sources::new(vec![("demo".into(), "k".into(), vec![0; 32])], Some("demo".into()));
    sources.of(None).unwrap().clone()
}

fn flight(id: i64, via: Via) -> Flight {
    let row = Row {
        key: RowKey { id, emitted_at: PgTime(0), segment: 0 },
        tenant_id: Uuid::from_u128(1),
        payload_type: String::new(),
        source: None,
        traceparent: None,
        payload: None,
        payload_bytes: 0,
        age: Duration::from_millis(5),
    };
    Flight::new(&row, 3, source(), via)
}

fn report(id: i64, serial: u64, outcome: Result<(), RDKafkaErrorCode>) -> Report {
    Report { id, serial, outcome }
}

#[test]
fn a_delivered_row_lands_once() {
    let mut flights = Flights::default();
    let serial = flights.depart(flight(7, Via::Batch));
    assert!(flights.contains(7) && flights.len() == 1);
    let Landing::Delivered(flight) = flights.land(report(7, serial, Ok(()))) else { panic!("delivered") };
    assert!(flight.key.id == 7 && flight.partition == 3 && flight.age() >= Duration::from_millis(5));
    assert!(flights.is_empty());
    assert!(matches!(flights.land(report(7, serial, Ok(()))), Landing::Unknown));
}

/// After a change of server the same id may be another row: what becomes of the first says nothing about the second.
#[test]
fn a_report_of_another_flight_of_the_same_id_means_nothing() {
    let mut flights = Flights::default();
    let before = flights.depart(flight(7, Via::Batch));
    flights.forget();
    let now = flights.depart(flight(7, Via::Batch));
    assert!(matches!(flights.land(report(7, before, Ok(()))), Landing::Unknown));
    assert!(flights.contains(7));
    assert!(matches!(flights.land(report(7, now, Ok(()))), Landing::Delivered(_)));
}

#[test]
fn only_a_row_that_was_refused_alone_is_dead() {
    for (code, reason) in
        [(RDKafkaErrorCode::MessageSizeTooLarge, TOO_LARGE), (RDKafkaErrorCode::InvalidRecord, REFUSED)]
    {
        let mut flights = Flights::default();
        let serial = flights.depart(flight(7, Via::Batch));
        assert!(matches!(flights.land(report(7, serial, Err(code))), Landing::Suspect(_)));
        assert!(flights.is_suspect(7) && flights.take_dead().is_empty());
        let serial = flights.depart(flight(7, Via::Alone));
        assert!(matches!(flights.land(report(7, serial, Err(code))), Landing::Dead(3)));
        let dead = flights.take_dead();
        assert_eq!((dead[0].key.id, dead[0].why.reason), (7, reason));
        assert!(!flights.is_suspect(7) && flights.take_dead().is_empty());
    }
}

#[test]
fn a_suspect_that_arrives_alone_is_cleared() {
    let mut flights = Flights::default();
    let serial = flights.depart(flight(7, Via::Batch));
    flights.land(report(7, serial, Err(RDKafkaErrorCode::MessageSizeTooLarge)));
    let serial = flights.depart(flight(7, Via::Alone));
    assert!(matches!(flights.land(report(7, serial, Ok(()))), Landing::Delivered(_)));
    assert!(!flights.is_suspect(7));
}

/// Missing rights are a fault of the configuration: the row stays, however often it is refused.
#[test]
fn every_other_error_may_pass() {
    for code in [
        RDKafkaErrorCode::TopicAuthorizationFailed,
        RDKafkaErrorCode::ClusterAuthorizationFailed,
        RDKafkaErrorCode::MessageTimedOut,
        RDKafkaErrorCode::InvalidTimestamp,
        RDKafkaErrorCode::NotEnoughReplicas,
        RDKafkaErrorCode::UnknownTopicOrPartition,
        RDKafkaErrorCode::PolicyViolation,
        RDKafkaErrorCode::Unknown,
    ] {
        for via in [Via::Batch, Via::Alone] {
            let mut flights = Flights::default();
            let serial = flights.depart(flight(7, via));
            assert!(
                matches!(flights.land(report(7, serial, Err(code))), Landing::Failed(_, found) if found == code)
            );
            assert!(flights.is_empty() && !flights.is_suspect(7) && flights.take_dead().is_empty());
        }
    }
}
