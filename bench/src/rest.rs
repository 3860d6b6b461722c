//! A client of the native REST API with one connection, kept alive.

use anyhow::{Context, Result, bail};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

use crate::http;

#[derive(Clone)]
pub struct Rest {
    client: Client,
    url: String,
    token: String,
}

impl Rest {
    pub fn new(url: &str, token: &str) -> Self {
        Self { client: http::client(), url: url.trim_end_matches('/').to_owned(), token: token.to_owned() }
    }

    /// Calls through this client from now on.
    pub fn by(self, client: Client) -> Self {
        Self { client, ..self }
    }

    /// A client with a connection of its own.
    pub fn another(&self) -> Self {
        Self { client: http::client(), ..self.clone() }
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>, expected: &[StatusCode]) -> Result<()> {
        let mut request = self.client.request(method.clone(), format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.with_context(|| format!("{method} {path}"))?;
        let status = answer.status();
        let text = answer.text().await?;
        if !expected.contains(&status) {
            bail!("{method} {path}: {status} {text}");
        }
        Ok(())
    }

    /// Makes a namespace; one that exists is no error.
    pub async fn create_namespace(&self, ns: &str) -> Result<()> {
        self.call(Method::PUT, &format!("/v1/ns/{ns}"), None, &[StatusCode::CREATED, StatusCode::OK]).await
    }

    /// Makes a directory. `path` must need no percent-encoding.
    pub async fn mkdir(&self, ns: &str, path: &str) -> Result<()> {
        self.call(Method::PUT, &format!("/v1/ns/{ns}/dirs/{path}"), None, &[StatusCode::CREATED]).await
    }

    /// Stat of an entry. `path` must need no percent-encoding.
    pub async fn stat(&self, ns: &str, path: &str) -> Result<()> {
        self.call(Method::GET, &format!("/v1/ns/{ns}/entries/{path}"), None, &[StatusCode::OK]).await
    }

    pub async fn rename(&self, ns: &str, source: &str, destination: &str) -> Result<()> {
        let body = json!({ "src": source, "dst": destination, "overwrite": false });
        self.call(Method::POST, &format!("/v1/ns/{ns}/rename"), Some(body), &[StatusCode::OK]).await
    }
}
