//! What is marked in records: none of it may be in what the programs write.

use base64::Engine as _;
use usage_tests::answers::Api;
use usage_tests::pipeline::{Pipeline, RANGE};
use uuid::Uuid;

use crate::run::{Secrets, Written, leaks};

/// What one source emits, each part of it a text that nothing else holds.
pub struct Marked {
    pub tenant: Uuid,
    pub value: String,
    pub other_value: String,
    pub subject: Uuid,
    pub resource: Uuid,
    pub metadata: String,
}

impl Marked {
    pub fn new() -> Self {
        let digits = || (Uuid::new_v4().as_u128() % 10_u128.pow(15) + 10_u128.pow(15)).to_string();
        Self {
            tenant: Uuid::new_v4(),
            value: format!("{}.5", digits()),
            other_value: format!("{}.25", digits()),
            subject: Uuid::new_v4(),
            resource: Uuid::new_v4(),
            metadata: format!("marked-metadata-{}", Uuid::new_v4().simple()),
        }
    }

    pub async fn emit(
        &self,
        pipeline: &Pipeline,
        metric: &str,
        key: &str,
        at: &'static str,
    ) -> anyhow::Result<()> {
        self.emit_value(pipeline, metric, key, at, &self.value).await
    }

    pub async fn emit_value(
        &self,
        pipeline: &Pipeline,
        metric: &str,
        key: &str,
        at: &'static str,
        value: &str,
    ) -> anyhow::Result<()> {
        let sql = format!(
            "SELECT usage_emit($1, $2, $3::numeric, $4, {at}, resource_id => $5, resource_type => 'vm', subject_id => $6, \
             subject_type => 'user', metadata => $7::json)"
        );
        let metadata = serde_json::json!({"note": self.metadata}).to_string();
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(self.tenant)
            .bind(metric)
            .bind(value)
            .bind(key)
            .bind(self.resource)
            .bind(self.subject)
            .bind(metadata)
            .execute(&pipeline.source)
            .await?;
        Ok(())
    }

    /// Questions that are answered and questions that are refused, all of them with what is marked.
    pub async fn ask(&self, api: &Api, secrets: &Secrets) -> anyhow::Result<Vec<(u16, String)>> {
        let (subject, resource) = (self.subject.to_string(), self.resource.to_string());
        let (from, to) = RANGE;
        let mut answers = Vec::new();
        let raw = "/v1/usage/raw";
        for (path, query) in [
            (raw, vec![("from", from), ("to", to), ("subject_id", subject.as_str())]),
            (raw, vec![("from", from), ("to", to), ("resource_id", resource.as_str())]),
            (raw, vec![("from", subject.as_str()), ("to", self.value.as_str())]),
            (raw, vec![("from", from), ("to", to), (self.metadata.as_str(), self.value.as_str())]),
            (raw, vec![("from", from), ("to", to), ("cursor", self.metadata.as_str())]),
            (raw, vec![("from", from), ("to", to), ("subject_id", self.metadata.as_str())]),
            (
                "/v1/usage/aggregated",
                vec![("from", from), ("to", to), ("group_by", "metric,subject"), ("subject_id", &subject)],
            ),
            ("/v1/usage/aggregated", vec![("from", from), ("to", to), ("metric", self.metadata.as_str())]),
            (&format!("/v1/usage/records/{resource}"), vec![]),
            (&format!("/v1/usage/records/{}", self.metadata), vec![]),
            (&format!("/v1/usage/{subject}"), vec![]),
        ] {
            answers.push(api.try_get(self.tenant, path, &query).await?);
        }
        let client = reqwest::Client::new();
        for token in [secrets.bearer.clone(), format!("ey{}.{}.x", secrets.bearer, self.metadata)] {
            let answer = client.get(format!("{}{raw}", api.url)).bearer_auth(token).send().await?;
            answers.push((answer.status().as_u16(), answer.text().await?));
        }
        Ok(answers)
    }

    /// The answers are the caller's own; everything else must not hold a part of a record.
    pub fn assert_absent_all(&self, written: &Written) {
        let bare = self.metadata.trim_start_matches("marked-metadata-");
        let base64 = base64::engine::general_purpose::STANDARD_NO_PAD.encode(&self.metadata);
        let mut parts = vec![bare.to_owned(), base64];
        for value in [&self.value, &self.other_value] {
            parts.push(value.split('.').next().unwrap_or(value).to_owned());
        }
        for id in [self.subject, self.resource] {
            parts.extend([id.to_string(), id.simple().to_string()]);
        }
        let parts = || parts.iter().map(String::as_str);
        let others = written.iter().filter(|(what, _)| what != "answers");
        let found: Vec<_> = others.flat_map(|(what, text)| leaks(what, text, parts())).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}
