mod authorize;
mod doubles;

use std::sync::Mutex;

use futures::FutureExt;
use usage_access::{Scope, Scopes};
use usage_schemas::Quantity;
use usage_schemas::codec::Decoder;

use super::*;

const TENANT: Uuid = Uuid::from_u128(0x0190_f3c2_6f1e_7a44_9d3b_5a1f_0c2e_7b10);
const OTHER: Uuid = Uuid::from_u128(0x0190_f3c2_6f1e_7a44_9d3b_5a1f_0c2e_7b11);
const SUBJECT: Uuid = Uuid::from_u128(7);

/// A transaction that keeps what was written.
#[derive(Default)]
struct Written(Mutex<Vec<(String, String, OutboxRow)>>);

impl OutboxTransaction for Written {
    async fn insert(
        &mut self,
        _: &OutboxTable,
        source: &str,
        payload_type: &str,
        rows: &[OutboxRow],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let rows = rows.iter().map(|row| (source.into(), payload_type.into(), row.clone()));
        self.0.lock().unwrap().extend(rows);
        Ok(())
    }
}

fn caller(tenant_id: Uuid) -> SecurityContext {
    SecurityContext {
        tenant_id,
        subject_id: Some(SUBJECT),
        subject_type: Some("user".into()),
        scopes: Scopes::NONE.with(Scope::Emit),
        token_id: None,
    }
}

fn one() -> Quantity {
    Quantity::parse("1").unwrap()
}

fn counter() -> NewRecord {
    NewRecord::counter(TENANT, "llm.tokens", one(), "k")
}

fn trusting() -> UsageCollectorBuilder {
    UsageCollector::builder().trust_scopes().unchecked_types()
}

fn scoped() -> ScopedCollector {
    trusting().build().unwrap().for_module("llm-gateway")
}

fn authorize(collector: &ScopedCollector) -> EmitAuthorization {
    collector.authorize_emit(&caller(TENANT), "llm.tokens").now_or_never().unwrap().unwrap()
}

/// Emits; nothing may be awaited, and nothing may be written on an error.
fn emit(
    collector: &ScopedCollector,
    record: NewRecord,
    auth: &EmitAuthorization,
) -> Result<UsageRecord, EmitError> {
    try_emit(collector, &caller(TENANT), record, auth)
}

fn try_emit(
    collector: &ScopedCollector,
    ctx: &SecurityContext,
    record: NewRecord,
    auth: &EmitAuthorization,
) -> Result<UsageRecord, EmitError> {
    let mut tx = Written::default();
    let result = collector.emit(&mut tx, ctx, record, auth).now_or_never().unwrap();
    let written = tx.0.into_inner().unwrap();
    let id = match result {
        Ok(id) => id,
        Err(error) => {
            assert!(written.is_empty(), "written in spite of {error}");
            return Err(error);
        }
    };
    let [(source, payload_type, row)] = &written[..] else { panic!("one row") };
    assert_eq!(payload_type, names::PAYLOAD_RECORD);
    let record = Decoder::new().decode(&row.payload).unwrap().to_owned();
    assert_eq!((&record.source, record.record_id, record.tenant_id), (source, id, row.tenant_id));
    Ok(record)
}

#[test]
fn source_and_subject_come_from_module_and_context() {
    let collector = scoped();
    let record = emit(&collector, counter(), &authorize(&collector)).unwrap();
    assert_eq!(record.source, "llm-gateway");
    assert_eq!((record.subject_id, record.subject_type.as_deref()), (Some(SUBJECT), Some("user")));
    assert_eq!(record.record_id, ids::record_id(TENANT, "k"));
    let age = clock::now_micros() - record.timestamp.micros();
    assert!((0..60_000_000).contains(&age), "the time of the emit by default");
}

#[test]
fn a_gauge_without_a_key_gets_an_id_of_its_own() {
    let collector = scoped();
    let auth = authorize(&collector);
    let gauge = || NewRecord::gauge(TENANT, "llm.tokens", one());
    let (first, second) =
        (emit(&collector, gauge(), &auth).unwrap(), emit(&collector, gauge(), &auth).unwrap());
    assert_eq!(first.record_id.get_version_num(), 7);
    assert_ne!(first.record_id, second.record_id);
    let keyed = emit(&collector, gauge().with_key("k"), &auth).unwrap();
    assert_eq!(keyed.record_id, ids::record_id(TENANT, "k"));
}

#[test]
fn every_field_error_names_its_field() {
    let collector = scoped();
    let auth = authorize(&collector);
    let long = "x".repeat(256);
    let future = Timestamp::from_micros(clock::now_micros() + 360_000_000);
    let cases: Vec<(NewRecord, &str, &str)> = vec![
        (NewRecord { tenant_id: Uuid::nil(), ..counter() }, "tenant_id", "InvalidRecord"),
        (NewRecord { tenant_id: OTHER, ..counter() }, "tenant_id", "ConstraintViolation"),
        (NewRecord { metric: "LLM".into(), ..counter() }, "metric", "InvalidRecord"),
        (NewRecord { metric: "llm.requests".into(), ..counter() }, "metric", "ConstraintViolation"),
        (NewRecord { value: Quantity::parse("-1").unwrap(), ..counter() }, "value", "InvalidRecord"),
        (NewRecord { idempotency_key: None, ..counter() }, "idempotency_key", "MissingIdempotencyKey"),
        (counter().with_key(""), "idempotency_key", "InvalidRecord"),
        (counter().with_key(long), "idempotency_key", "InvalidRecord"),
        (counter().with_key("a\0b"), "idempotency_key", "InvalidRecord"),
        (counter().at(future), "timestamp", "InvalidRecord"),
        (counter().at(Timestamp::from_micros(0)), "timestamp", "InvalidRecord"),
        (counter().at(Timestamp::from_micros(1_755_933_141_855)), "timestamp", "InvalidRecord"),
        (counter().with_resource(OTHER, "Machine"), "resource_type", "InvalidRecord"),
        (counter().with_metadata("[]"), "metadata", "InvalidRecord"),
        (counter().with_metadata("{"), "metadata", "InvalidRecord"),
        (
            counter().with_metadata(format!("{{\"a\":\"{}\"}}", "x".repeat(8192))),
            "metadata",
            "MetadataTooLarge",
        ),
        (counter().with_traceparent("00-abc"), "traceparent", "InvalidRecord"),
    ];
    for (record, field, variant) in cases {
        let error = emit(&collector, record.clone(), &auth).expect_err(field);
        assert_eq!(error.field(), Some(field), "{record:?}");
        assert!(format!("{error:?}").starts_with(variant), "{error:?} is not {variant}");
    }
}

#[test]
fn checks_come_in_the_order_of_the_requirements() {
    let expired = trusting().authorization_max_age(Duration::ZERO).build().unwrap().for_module("llm-gateway");
    let all_wrong = NewRecord {
        tenant_id: OTHER,
        metric: "LLM".into(),
        value: Quantity::parse("-1").unwrap(),
        idempotency_key: None,
        ..counter()
    };
    let fault = |collector: &ScopedCollector, record: &NewRecord| {
        emit(collector, record.clone(), &authorize(collector)).unwrap_err()
    };
    assert!(matches!(fault(&expired, &all_wrong), EmitError::AuthorizationExpired));
    let mut record = all_wrong;
    assert_eq!(fault(&scoped(), &record).field(), Some("value"));
    record.value = one();
    assert!(matches!(fault(&scoped(), &record), EmitError::MissingIdempotencyKey));
    record.idempotency_key = Some("k".into());
    assert_eq!(fault(&scoped(), &record).field(), Some("metric"));
    record.metric = "llm.tokens".into();
    assert!(matches!(fault(&scoped(), &record), EmitError::ConstraintViolation { field: "tenant_id", .. }));
    record.tenant_id = TENANT;
    let collector = scoped();
    assert!(emit(&collector, record, &authorize(&collector)).is_ok());
}

#[test]
fn an_authorization_serves_its_module_and_its_caller_only() {
    let usage = trusting().build().unwrap();
    let (collector, other) = (usage.for_module("llm-gateway"), usage.for_module("billing"));
    let error = emit(&other, counter(), &authorize(&collector)).unwrap_err();
    assert!(matches!(error, EmitError::ConstraintViolation { field: "source", .. }));
    let foreign = collector.authorize_emit(&caller(OTHER), "llm.tokens").now_or_never().unwrap().unwrap();
    let error = emit(&collector, counter(), &foreign).unwrap_err();
    assert!(matches!(error, EmitError::ConstraintViolation { field: "subject_id", .. }));
    assert_ne!(foreign.nonce(), authorize(&collector).nonce());
}

#[test]
fn authorize_refuses_what_can_never_be_emitted() {
    let ask = |module: &str, tenant, metric: &str| {
        let collector = trusting().build().unwrap().for_module(module);
        collector
            .authorize_emit(&caller(tenant), metric)
            .now_or_never()
            .unwrap()
            .map(|auth| auth.metric().to_string())
    };
    assert_eq!(ask("llm-gateway", TENANT, "llm.tokens").unwrap(), "llm.tokens");
    assert_eq!(ask("LLM", TENANT, "llm.tokens").unwrap_err().field(), Some("source"));
    assert_eq!(ask("llm-gateway", TENANT, "").unwrap_err().field(), Some("metric"));
    assert!(matches!(ask("llm-gateway", Uuid::nil(), "llm.tokens"), Err(EmitError::Denied { .. })));
}

#[test]
fn authorize_asks_for_the_scope_to_emit() {
    let others =
        Scope::ALL.into_iter().filter(|scope| *scope != Scope::Emit).fold(Scopes::NONE, Scopes::with);
    let ask = |scopes| {
        let ctx = SecurityContext { scopes, ..caller(TENANT) };
        scoped().authorize_emit(&ctx, "llm.tokens").now_or_never().unwrap()
    };
    for scopes in [Scopes::NONE, others] {
        assert!(matches!(ask(scopes), Err(EmitError::Denied { metric }) if metric == "llm.tokens"));
    }
    assert!(ask(others.with(Scope::Emit)).is_ok() && ask(Scopes::NONE.with(Scope::Emit)).is_ok());
}

#[test]
fn a_batch_is_all_or_nothing() {
    let collector = scoped();
    let auth = authorize(&collector);
    let mut tx = Written::default();
    let batch = vec![counter(), counter().with_key("k2"), counter().with_key("")];
    let error =
        collector.emit_batch(&mut tx, &caller(TENANT), batch, &auth).now_or_never().unwrap().unwrap_err();
    assert!(matches!(&error, EmitError::InBatch { index: 2, .. }));
    assert_eq!(error.field(), Some("idempotency_key"));
    assert!(tx.0.lock().unwrap().is_empty());
    let batch = vec![counter(), counter().with_key("k2")];
    let ids = collector.emit_batch(&mut tx, &caller(TENANT), batch, &auth).now_or_never().unwrap().unwrap();
    assert_eq!(ids, [ids::record_id(TENANT, "k"), ids::record_id(TENANT, "k2")]);
    assert_eq!(tx.0.lock().unwrap().len(), 2);
}

#[test]
fn traceparents_are_told_from_other_texts() {
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    assert!(record::is_traceparent(good));
    let zero = "0".repeat(32);
    for bad in [
        "",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        &format!("00-{zero}-00f067aa0ba902b7-01"),
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
    ] {
        assert!(!record::is_traceparent(bad), "{bad}");
    }
}
