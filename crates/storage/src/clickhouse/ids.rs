//! Which record ids are stored: all of a partition's tenants for the filter, and single ones exactly.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

use uuid::Uuid;

use super::client::{CallError, Client, push_literal};
use super::months::TIMESTAMPS;
use super::patience::Patience;
use super::rowbinary::RowReader;
use crate::{IdProbe, StorageError, StoredId};

/// The stream of a large partition's ids takes seconds; between two chunks the server has this long.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);

/// Probes asked for by key in one query; with the longest metrics its text has 2 MB.
const KEYS_PER_QUERY: usize = 5_000;
const MAX_QUERY_SIZE: &str = "4194304";

/// Ids asked for in one query: each reads a granule of the projection in every part.
const IDS_PER_QUERY: usize = 500;

/// Metrics are 1 to 128 bytes long.
const LONGEST_METRIC: usize = 128;

/// The partition of a tenant as the topic's producers compute it. `kafkaMurmurHash` has the sign bit cleared already.
pub(crate) fn partition_expression(partition_count: i32) -> String {
    format!("kafkaMurmurHash(toString(tenant_id)) % {partition_count}")
}

/// Hands every record id of the partition's tenants to `sink`.
pub(crate) async fn stream(
    client: &Client,
    partition: i32,
    partition_count: i32,
    sink: &mut (dyn for<'a> FnMut(&'a [Uuid]) + Send),
) -> Result<(), StorageError> {
    // The tenants first: with them the ids are read by the sort key. The server must not push the condition below DISTINCT,
    // where it would hash the tenant of every row (five times the CPU).
    let sql = format!(
        "SELECT record_id FROM usage_records WHERE tenant_id IN (\
         SELECT tenant_id FROM (SELECT DISTINCT tenant_id FROM usage_records) WHERE {} = {partition})",
        partition_expression(partition_count)
    );
    let client = client.clone().with_setting("query_plan_filter_push_down", "0");
    let mut cursor = client.stream(&sql)?;
    let mut ids = Vec::new();
    // Chunks end anywhere, also within an id.
    let mut rest: Vec<u8> = Vec::with_capacity(16);
    loop {
        let next =
            tokio::time::timeout(CHUNK_TIMEOUT, cursor.next()).await.map_err(|_| StorageError::Timeout)?;
        let Some(chunk) = next.map_err(CallError::from)? else { break };
        let mut chunk = &chunk[..];
        if !rest.is_empty() {
            let missing = chunk.len().min(16 - rest.len());
            rest.extend_from_slice(&chunk[..missing]);
            chunk = &chunk[missing..];
            if rest.len() == 16 {
                ids.push(decode(&rest));
                rest.clear();
            }
        }
        let whole = chunk.chunks_exact(16);
        rest.extend_from_slice(whole.remainder());
        ids.extend(whole.map(decode));
        sink(&ids);
        ids.clear();
    }
    if rest.is_empty() { Ok(()) } else { Err(CallError::Lost("the answer ends within an id".into()).into()) }
}

fn decode(bytes: &[u8]) -> Uuid {
    let half = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    Uuid::from_u64_pair(half(0), half(8))
}

/// Those of the probes that are stored. Most are true repeats and found by the sort key; only the others are looked up by id,
/// which is dearer (a granule of the projection for each) and so is done in smaller portions.
pub(crate) async fn find(
    client: &Client,
    patience: &Patience,
    probes: &[IdProbe],
) -> Result<Vec<StoredId>, StorageError> {
    let by_ids = client.clone().with_timeout(patience.deadline());
    // A tuple condition on the sort key together with the id makes 26.7 look for the other columns in the id's projection and
    // fail (code 10, only on tables with more than a million rows): here the sort key is wanted, so projections are left aside.
    let by_keys = by_ids
        .clone()
        .with_setting("optimize_use_projection_filtering", "0")
        .with_setting("max_query_size", MAX_QUERY_SIZE);
    let mut search = Search {
        patience,
        wanted: probes.iter().map(|probe| (probe.tenant_id, probe.record_id)).collect(),
        seen: HashSet::new(),
        found: Vec::new(),
    };
    // What the table can't hold is not asked for by key; its id may still be there with another content.
    let possible: Vec<&IdProbe> = probes
        .iter()
        .filter(|probe| probe.metric.len() <= LONGEST_METRIC && TIMESTAMPS.contains(&probe.timestamp))
        .collect();
    for portion in possible.chunks(KEYS_PER_QUERY) {
        search.ask(&by_keys, &by_key(portion)).await?;
    }
    let rest: Vec<&IdProbe> = probes.iter().filter(|probe| !search.has(probe)).collect();
    for portion in rest.chunks(IDS_PER_QUERY) {
        search.ask(&by_ids, &by_id(portion)).await?;
    }
    patience.answered();
    Ok(search.found)
}

struct Search<'a> {
    patience: &'a Patience,
    wanted: HashSet<(Uuid, Uuid)>,
    seen: HashSet<(Uuid, Uuid)>,
    found: Vec<StoredId>,
}

impl Search<'_> {
    fn has(&self, probe: &IdProbe) -> bool {
        self.seen.contains(&(probe.tenant_id, probe.record_id))
    }

    async fn ask(&mut self, client: &Client, sql: &str) -> Result<(), StorageError> {
        let bytes = client.fetch(sql).await.inspect_err(|error| {
            if matches!(error, CallError::Timeout) {
                self.patience.timed_out();
            }
        })?;
        let mut rows = RowReader::new(&bytes);
        while !rows.is_empty() {
            let (tenant_id, record_id, content_hash) = (rows.uuid()?, rows.uuid()?, rows.array()?);
            // An id of another tenant is another identity.
            let id = (tenant_id, record_id);
            if self.wanted.contains(&id) && self.seen.insert(id) {
                self.found.push(StoredId { tenant_id, record_id, content_hash });
            }
        }
        Ok(())
    }
}

/// The probes travel as one literal that the server parses by columns: half the time of a list of tuples.
///
fn by_key(probes: &[&IdProbe]) -> String {
    let mut lines = String::with_capacity(probes.len() * 130);
    for probe in probes {
        push_uuid(&mut lines, probe.tenant_id);
        lines.push('\t');
        push_field(&mut lines, &probe.metric);
        write!(lines, "\t{}\t", probe.timestamp).expect("to a String");
        push_uuid(&mut lines, probe.record_id);
        lines.push('\n');
    }
    let mut sql = String::with_capacity(lines.len() + 400);
    sql.push_str(
        "SELECT tenant_id, record_id, content_hash FROM usage_records \
         WHERE (tenant_id, metric, timestamp, record_id) IN \
         (SELECT tenant, metric, fromUnixTimestamp64Micro(micros, 'UTC'), id \
         FROM format(TSV, 'tenant UUID, metric String, micros Int64, id UUID', ",
    );
    push_literal(&mut sql, &lines);
    sql.push_str("))");
    sql
}

fn by_id(probes: &[&IdProbe]) -> String {
    let mut lines = String::with_capacity(probes.len() * 37);
    for probe in probes {
        push_uuid(&mut lines, probe.record_id);
        lines.push('\n');
    }
    let mut sql = String::with_capacity(lines.len() + 200);
    sql.push_str(
        "SELECT tenant_id, record_id, content_hash FROM usage_records \
         WHERE record_id IN (SELECT id FROM format(TSV, 'id UUID', ",
    );
    push_literal(&mut sql, &lines);
    sql.push_str("))");
    sql
}

/// A text as a field of TSV.
fn push_field(lines: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\t' => lines.push_str("\\t"),
            '\n' => lines.push_str("\\n"),
            '\\' => lines.push_str("\\\\"),
            '\0' => lines.push_str("\\0"),
            c => lines.push(c),
        }
    }
}

fn push_uuid(sql: &mut String, id: Uuid) {
    sql.push_str(id.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
}
