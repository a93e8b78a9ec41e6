//! The API's answers, read as a person who bills would read them, and how they differ from the truth.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;
use usage_producer::{Freshness, QueryApi, RememberedTypes, TlsFiles, TokenSource};
use uuid::Uuid;

use crate::source::{Total, Totals};

/// A caller of the API; mints a token per tenant.
pub struct Api {
    pub url: String,
    client: reqwest::Client,
    token: Mint,
}

/// Makes a token of a tenant.
pub type Mint = Arc<dyn Fn(Uuid) -> anyhow::Result<String> + Send + Sync>;

impl Api {
    pub fn new(url: String, token: Mint) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder().timeout(Duration::from_secs(30)).build()?;
        Ok(Self { url, client, token })
    }

    /// A token of a tenant with all scopes.
    pub fn token(&self, tenant: Uuid) -> anyhow::Result<String> {
        (self.token)(tenant)
    }

    /// The usage types as this API lists them to a source, which is a tenant of its own.
    pub fn types(&self, freshness: Freshness) -> anyhow::Result<Arc<RememberedTypes>> {
        let (token, source) = (self.token.clone(), Uuid::new_v4());
        // One that can't be minted is empty, which the API refuses.
        let token: TokenSource = Arc::new(move || token(source).unwrap_or_default().into());
        let list = QueryApi::new(&self.url, token, &TlsFiles::default(), false)?;
        Ok(Arc::new(RememberedTypes::new(list, freshness)))
    }

    /// One GET as `tenant`; the status must be 200.
    pub async fn get(&self, tenant: Uuid, path: &str, query: &[(&str, &str)]) -> anyhow::Result<Value> {
        let (status, body) = self.try_get(tenant, path, query).await?;
        if status != 200 {
            bail!("GET {path} answered {status}: {body}");
        }
        serde_json::from_str(&body).with_context(|| format!("GET {path} answered no JSON: {body}"))
    }

    /// One GET as `tenant`: status and body.
    pub async fn try_get(
        &self,
        tenant: Uuid,
        path: &str,
        query: &[(&str, &str)],
    ) -> anyhow::Result<(u16, String)> {
        let response = self
            .client
            .get(format!("{}{path}", self.url))
            .query(query)
            .bearer_auth(self.token(tenant)?)
            .send()
            .await
            .with_context(|| format!("GET {path}"))?;
        let status = response.status().as_u16();
        Ok((status, response.text().await?))
    }

    /// One POST of a JSON body as `tenant`: status and body.
    pub async fn post(&self, tenant: Uuid, path: &str, body: &Value) -> anyhow::Result<(u16, String)> {
        let request = self.client.post(format!("{}{path}", self.url)).bearer_auth(self.token(tenant)?);
        let request = request.header("content-type", "application/json").body(body.to_string());
        let response = request.send().await.with_context(|| format!("POST {path}"))?;
        let status = response.status().as_u16();
        Ok((status, response.text().await?))
    }

    /// Count and sum per metric of one tenant over [from, to), following the cursor.
    pub async fn totals(&self, tenant: Uuid, from: &str, to: &str) -> anyhow::Result<Totals> {
        let sums = self.per_metric(tenant, from, to, "sum").await?;
        let counts = self.per_metric(tenant, from, to, "count").await?;
        let mut totals = Totals::new();
        for (metric, sum) in sums {
            // A record stored between the two questions shows in the second only; the caller asks again until all agree.
            let count = counts
                .iter()
                .find(|(name, _)| *name == metric)
                .map_or_else(|| "0".into(), |(_, n)| n.clone());
            totals.insert((tenant, metric), Total { count, sum });
        }
        Ok(totals)
    }

    async fn per_metric(
        &self,
        tenant: Uuid,
        from: &str,
        to: &str,
        aggregation: &str,
    ) -> anyhow::Result<Vec<(String, String)>> {
        let mut rows = Vec::new();
        let mut cursor = String::new();
        loop {
            let mut query =
                vec![("from", from), ("to", to), ("aggregation", aggregation), ("group_by", "metric")];
            if !cursor.is_empty() {
                query.push(("cursor", &cursor));
            }
            let answer = self.get(tenant, "/v1/usage/aggregated", &query).await?;
            for row in answer["data"].as_array().context("data is no array")? {
                let text = |name: &str| {
                    row[name].as_str().map(String::from).with_context(|| format!("{name}: {row}"))
                };
                rows.push((text("metric")?, text("value")?));
            }
            match answer["next_cursor"].as_str() {
                Some(next) => cursor = next.into(),
                None => return Ok(rows),
            }
        }
    }

    /// Totals of all tenants that the truth names.
    pub async fn all_totals(&self, truth: &Totals, from: &str, to: &str) -> anyhow::Result<Totals> {
        let tenants: BTreeSet<Uuid> = truth.keys().map(|(tenant, _)| *tenant).collect();
        let mut all = Totals::new();
        for tenant in tenants {
            all.append(&mut self.totals(tenant, from, to).await?);
        }
        Ok(all)
    }

    /// Asks until the answers equal the truth or the deadline has passed; returns the last answers.
    pub async fn settle(
        &self,
        truth: &Totals,
        from: &str,
        to: &str,
        within: Duration,
    ) -> anyhow::Result<Totals> {
        let deadline = Instant::now() + within;
        let mut every = tokio::time::interval(Duration::from_millis(250));
        loop {
            every.tick().await;
            let answers = self.all_totals(truth, from, to).await;
            match answers {
                Ok(answers) if answers == *truth || Instant::now() >= deadline => return Ok(answers),
                Err(error) if Instant::now() >= deadline => return Err(error),
                // A server that is away answers 503 for a while: that is what the deadline is for.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// Every (tenant, metric) where truth and answer differ, in words.
pub fn differences(truth: &Totals, answers: &Totals) -> Vec<String> {
    let keys: BTreeSet<_> = truth.keys().chain(answers.keys()).collect();
    keys.into_iter()
        .filter(|key| truth.get(*key) != answers.get(*key))
        .map(|key| format!("{} {}: truth {:?}, answer {:?}", key.0, key.1, truth.get(key), answers.get(key)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(rows: &[(&str, &str, &str)]) -> Totals {
        rows.iter()
            .map(|(metric, count, sum)| {
                ((Uuid::from_u128(1), (*metric).into()), Total { count: (*count).into(), sum: (*sum).into() })
            })
            .collect()
    }

    #[test]
    fn a_missing_an_extra_and_a_wrong_total_are_each_named() {
        let truth = totals(&[("a", "1", "1"), ("b", "2", "2"), ("c", "1", "3")]);
        let answers = totals(&[("a", "1", "1"), ("b", "2", "2.5"), ("d", "1", "1")]);
        let found = differences(&truth, &answers);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains(" b: ") && found[1].contains(" c: ") && found[2].contains(" d: "));
        assert!(differences(&truth, &truth).is_empty());
    }
}
