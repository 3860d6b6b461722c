//! `mantle data migrate`: asks a gateway to move bytes to where it would put them now, and watches. The token of uid 0 goes to
//! another machine over TLS only.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use mantle_tls::{is_loopback, secret_file};
use reqwest::{Client, Method, redirect::Policy};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::{
    exit::{Exit, failure},
    output::Output,
};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);
const RUNNING: &str = "running";
const DONE: &str = "done";

#[derive(clap::Args)]
pub struct Options {
    /// The gateway: http://HOST:PORT or https://HOST:PORT
    #[arg(long, env = "MANTLE_GATEWAY", value_name = "URL")]
    gateway: String,
    /// A file with the token of uid 0, of mode 0600
    #[arg(long, env = "MANTLE_TOKEN_FILE", value_name = "FILE")]
    token_file: PathBuf,
    /// Only the objects of this namespace
    #[arg(long)]
    namespace: Option<String>,
    /// Certificates of the authority that signs the gateway's certificate, in PEM
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Send the token to another machine without TLS, where everybody on the way can read it
    #[arg(long)]
    plain: bool,
}

/// The answer of `mantle data migrate --json`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Migration {
    /// `done` or `failed`.
    state: String,
    /// Objects whose bytes were moved. Each upload in parts counts once, finished or not, however many objects share its bytes.
    objects: u64,
    /// How many bytes were moved.
    bytes: u64,
    /// Objects and uploads that could not be moved: bytes are gone or do not match their etag. The gateway's log names them.
    failed: u64,
    /// Why the migration ended early; null if it did not.
    error: Option<String>,
}

/// What the gateway says of a refusal.
#[derive(Deserialize)]
struct Problem {
    detail: String,
}

pub async fn run(options: Options, output: Output) -> Result<Exit> {
    check_plain(&url_of(&options)?, options.plain)?;
    let client = client(&options)?;
    let mut migration = ask(&client, &options, Method::POST).await?;
    let mut shown = None;
    while migration.state == RUNNING {
        if shown != Some(migration.objects) {
            eprintln!("{} objects, {} bytes", migration.objects, migration.bytes);
            shown = Some(migration.objects);
        }
        tokio::time::sleep(LOOK).await;
        migration = ask(&client, &options, Method::GET).await?;
    }
    let Migration { objects, bytes, failed, error, .. } = &migration;
    output.text(format_args!("{objects} objects with {bytes} bytes were moved, {failed} failed\n"));
    if let Some(error) = error {
        output.text(format_args!("{error}\n"));
    }
    output.answer(&migration);
    Ok(if migration.state == DONE && migration.failed == 0 { Exit::Fine } else { Exit::Fault })
}

fn client(options: &Options) -> Result<Client> {
    // Another part of the program may have chosen it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A gateway redirects nobody. Whoever does is none, and gets no token.
    let mut builder = Client::builder().redirect(Policy::none());
    if let Some(ca) = &options.ca {
        let named = || format!("--ca {}", ca.display());
        let pem = std::fs::read(ca).with_context(named)?;
        builder = builder.tls_certs_only(reqwest::Certificate::from_pem_bundle(&pem).with_context(named)?);
    }
    Ok(builder.build()?)
}

fn url_of(options: &Options) -> Result<Url> {
    let text = format!("{}/v1/migration", options.gateway.trim_end_matches('/'));
    Url::parse(&text).map_err(|error| failure(Exit::Usage, format!("--gateway {text}: {error}")))
}

/// An error if the token would leave this machine in clear.
fn check_plain(url: &Url, is_chosen: bool) -> Result<()> {
    let host = url.host_str().unwrap_or_default();
    let is_here = || is_loopback(&format!("{host}:{}", url.port_or_known_default().unwrap_or(0))).unwrap_or(false);
    if is_chosen || url.scheme() == "https" || is_here() {
        return Ok(());
    }
    let why = format!("--gateway {url}: `{host}` is another machine: use https://, or --plain to do without TLS");
    Err(failure(Exit::Usage, why))
}

async fn ask(client: &Client, options: &Options, method: Method) -> Result<Migration> {
    let token = secret_file::password(&options.token_file);
    let token = token.map_err(|error| failure(Exit::Usage, format!("--token-file: {error:#}")))?;
    let mut url = url_of(options)?;
    if let Some(namespace) = options.namespace.as_ref().filter(|_| method == Method::POST) {
        url.query_pairs_mut().append_pair("namespace", namespace);
    }
    let answer = client.request(method, url.clone()).bearer_auth(token).send().await;
    let answer = answer.map_err(|error| failure(Exit::Away, format!("{url}: {error}")))?;
    let status = answer.status();
    if !status.is_success() {
        let text = answer.text().await.unwrap_or_default();
        let detail = serde_json::from_str::<Problem>(&text).map_or(text, |problem| problem.detail);
        let exit = match status.as_u16() {
            401 | 403 => Exit::Permission,
            503 => Exit::Away,
            400..500 => Exit::Usage,
            _ => Exit::Other,
        };
        return Err(failure(exit, format!("{url} answers {status}: {detail}")));
    }
    answer.json().await.with_context(|| format!("{url} answers something else than a migration"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leaves_this_machine_over_tls_only() {
        let refusal = |text: &str, is_chosen| check_plain(&Url::parse(text).unwrap(), is_chosen).err();
        for fine in ["http://127.0.0.1:7400/", "http://[::1]:7400/", "http://localhost/", "https://198.51.100.1/"] {
            assert!(refusal(fine, false).is_none(), "{fine}");
        }
        for elsewhere in ["http://198.51.100.1:7400/", "http://gateway.invalid/", "http://127.0.0.1.invalid/"] {
            assert!(refusal(elsewhere, false).unwrap().to_string().contains("https://"), "{elsewhere}");
            assert!(refusal(elsewhere, true).is_none(), "{elsewhere}");
        }
    }
}
