//! Leases of outbox partitions, on the database's clock.
//!
//! A lease only keeps relays out of each other's way: what an expired one costs is a repeated row, which its id makes harmless.

use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;

use usage_service::fail_point;

use super::session::bounded;

/// A partition that this relay holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Held {
    pub part: i16,
    pub epoch: i64,
}

/// What is left of a lease's time before its holder stops taking new work.
pub(crate) fn working_time(ttl: Duration) -> Duration {
    ttl * 4 / 5
}

/// The leases of one relay.
pub(crate) struct Leases {
    owner: String,
    ttl: Duration,
}

impl Leases {
    pub(crate) fn new(owner: String, ttl: Duration) -> Self {
        Self { owner, ttl }
    }

    /// The name of this relay.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    fn interval(&self) -> PgInterval {
        PgInterval {
            months: 0,
            days: 0,
            microseconds: i64::try_from(self.ttl.as_micros()).unwrap_or(i64::MAX),
        }
    }

    /// Says that this relay is alive, and prolongs the leases that it still holds. Returns them.
    pub(crate) async fn renew(&self, connection: &mut PgConnection) -> Result<Vec<Held>, sqlx::Error> {
        let work = async {
            sqlx::query(
                "INSERT INTO usage_outbox_relays (owner, expires_at) VALUES ($1, clock_timestamp() + $2) \
                 ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at",
            )
            .bind(&self.owner)
            .bind(self.interval())
            .execute(&mut *connection)
            .await?;
            let held: Vec<(i16, i64)> = sqlx::query_as(
                "UPDATE usage_outbox_partitions SET expires_at = clock_timestamp() + $2 \
                 WHERE owner = $1 AND expires_at > clock_timestamp() RETURNING part, epoch",
            )
            .bind(&self.owner)
            .bind(self.interval())
            .fetch_all(&mut *connection)
            .await?;
            Ok(held.into_iter().map(|(part, epoch)| Held { part, epoch }).collect())
        };
        bounded(self.ttl, work).await
    }

    /// How many partitions a relay may hold: an even share of all, among the relays that are alive.
    pub(crate) async fn share(&self, connection: &mut PgConnection) -> Result<usize, sqlx::Error> {
        let work = sqlx::query_as(
            "SELECT (SELECT count(*) FROM usage_outbox_partitions), \
             (SELECT count(*) FROM usage_outbox_relays WHERE expires_at > clock_timestamp() AND owner <> $1) + 1",
        )
        .bind(&self.owner)
        .fetch_one(connection);
        let (partitions, relays): (i64, i64) = bounded(self.ttl, work).await?;
        Ok(usize::try_from((partitions + relays - 1) / relays).unwrap_or(usize::MAX))
    }

    /// Takes one partition that nobody holds, if there is one.
    pub(crate) async fn take(&self, connection: &mut PgConnection) -> Result<Option<Held>, sqlx::Error> {
        fail_point!("relay.claim");
        let work = sqlx::query_as(
            "UPDATE usage_outbox_partitions SET owner = $1, epoch = epoch + 1, expires_at = clock_timestamp() + $2 \
             WHERE part = (SELECT part FROM usage_outbox_partitions WHERE expires_at < clock_timestamp() \
             ORDER BY part FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING part, epoch",
        )
        .bind(&self.owner)
        .bind(self.interval())
        .fetch_optional(connection);
        let taken: Option<(i16, i64)> = bounded(self.ttl, work).await?;
        if taken.is_some() {
            fail_point!("relay.claimed");
        }
        Ok(taken.map(|(part, epoch)| Held { part, epoch }))
    }

    /// Gives leases back; whoever looks next may take them at once.
    pub(crate) async fn give_back(
        &self,
        connection: &mut PgConnection,
        held: &[Held],
    ) -> Result<(), sqlx::Error> {
        let parts: Vec<i16> = held.iter().map(|held| held.part).collect();
        let epochs: Vec<i64> = held.iter().map(|held| held.epoch).collect();
        let work = sqlx::query(
            "UPDATE usage_outbox_partitions AS p SET expires_at = clock_timestamp() \
             FROM unnest($2::smallint[], $3::bigint[]) AS held (part, epoch) \
             WHERE p.owner = $1 AND p.part = held.part AND p.epoch = held.epoch",
        )
        .bind(&self.owner)
        .bind(parts)
        .bind(epochs)
        .execute(connection);
        bounded(self.ttl, work).await.map(|_| ())
    }

    /// Takes this relay off the list of those that are alive.
    pub(crate) async fn leave(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let work = sqlx::query("DELETE FROM usage_outbox_relays WHERE owner = $1")
            .bind(&self.owner)
            .execute(connection);
        bounded(self.ttl, work).await.map(|_| ())
    }

    /// Takes off the list those that have been dead for long.
    pub(crate) async fn sweep(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let sql = "DELETE FROM usage_outbox_relays WHERE expires_at < clock_timestamp() - interval '1 hour'";
        bounded(self.ttl, sqlx::query(sql).execute(connection)).await.map(|_| ())
    }
}
