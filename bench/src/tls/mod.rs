//! What TLS costs: lookups at an index replica, then PUT and mkdir at two whole stacks, one plain, one with TLS on every
//! connection. The two ways take turns within the run, so that both meet the same machine; ratios are to plain.

mod stacks;

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, ensure};

use self::stacks::{Operation, Stack};
use crate::{
    lookup, machine,
    report::{Report, short},
    sql::Session,
};

/// Bound on the lookups in a second of processor time.
const LOOKUPS_RATIO_MIN: f64 = 0.9;
/// Bound on the processor time of all servers for a PUT or a mkdir.
const CPU_RATIO_MAX: f64 = 1.05;

/// Measure what TLS costs
#[derive(clap::Args)]
pub struct Options {
    /// Seconds of each turn
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Turns of each way
    #[arg(long, value_name = "N", default_value_t = 7)]
    turns: u32,
    /// Clients at once, for PUT and mkdir
    #[arg(long, value_name = "N", default_value_t = 32)]
    clients: usize,
    /// The gateways of the plain stack and of the one with TLS, separated by a comma, as all pairs below
    #[arg(long, env = "MANTLE_URLS", value_name = "URLS", value_delimiter = ',')]
    urls: Vec<String>,
    /// Their bearer tokens
    #[arg(long, env = "MANTLE_TOKENS", value_name = "TOKENS", value_delimiter = ',', hide_env_values = true)]
    tokens: Vec<String>,
    /// Their access keys for S3
    #[arg(long, env = "MANTLE_ACCESS_KEYS", value_name = "KEYS", value_delimiter = ',')]
    access_keys: Vec<String>,
    /// Their secret keys
    #[arg(long, env = "MANTLE_SECRET_KEYS", value_name = "KEYS", value_delimiter = ',', hide_env_values = true)]
    secret_keys: Vec<String>,
    #[arg(long, env = "AWS_REGION")]
    region: String,
    /// The processes of the plain stack: `name=pid`, separated by commas
    #[arg(long, env = "MANTLE_PLAIN_PROCESSES", value_name = "LIST", value_delimiter = ',')]
    plain_processes: Vec<String>,
    /// The same of the stack with TLS
    #[arg(long, env = "MANTLE_TLS_PROCESSES", value_name = "LIST", value_delimiter = ',')]
    tls_processes: Vec<String>,
    /// The certificate of the authority that signed the gateway's, in PEM
    #[arg(long, env = "MANTLE_TLS_CA", value_name = "FILE")]
    authority: PathBuf,
    /// Direct PostgreSQL URL of the plain stack's superuser, for the settings that the report shows
    #[arg(long, env = "MANTLE_ADMIN_URL", value_name = "URL", hide_env_values = true)]
    admin: String,
}

/// A ratio to compare with a bound.
fn exact(ratio: f64) -> String {
    format!("{ratio:.3}")
}

/// Measures; answers the report and whether the bounds held.
pub async fn run(options: &Options) -> Result<(Report, bool)> {
    let Options { seconds, turns, clients, .. } = options;
    ensure!(*seconds > 0 && *turns > 0 && *clients > 0, "nothing to do");
    let stacks = Stack::both(options).await?;
    let mut facts = machine::facts(&Session::connect(&options.admin).await?).await?;
    facts.push(format!(
        "turns          {turns} of {seconds} seconds each way (--turns, --seconds), after one that warms up"
    ));
    facts.push(format!("clients        {clients} (--clients)"));
    let mut report = Report::new(
        "Bench: TLS",
        "Written by `make bench ONLY=tls` (`mantle-bench tls`); do not edit. One machine runs everything: the servers of both \
         ways, and the clients. The ways take turns, and the order changes with each turn. Figures are medians of turns, so \
         parts need not add up to a sum. Connections are kept: a handshake is part of no operation. TLS is 1.3, by the \
         settings as shipped.",
        &facts,
    );
    let period = Duration::from_secs(*seconds);
    let ratio = lookup::tls::run(*turns as usize, period, &mut report).await?;
    let mut are_held = ratio >= LOOKUPS_RATIO_MIN;
    let text = format!(
        "A second of processor time does at least {} times as many lookups as without TLS: it does {} times as many.",
        short(LOOKUPS_RATIO_MIN),
        exact(ratio),
    );
    report.verdict(&text, are_held);
    report.heading("Two stacks");
    let idle = stacks.each_ref().map(|stack| short(stack.idle() * 100.0));
    report.paragraph(&format!(
        "Each has PostgreSQL, PgBouncer, three IndexNodes and a gateway. With TLS means: HTTPS to the gateway; certificates at \
         both ends from the gateway to the IndexNodes, between these, and from these to PostgreSQL; a verified server and a \
         password from the gateway to PgBouncer, and from there to PostgreSQL. Processor time is of each server with its child \
         processes. What the servers use without clients is subtracted: {} % of a processor for the plain stack, {} % with TLS.",
        idle[0], idle[1],
    ));
    for operation in Operation::ALL {
        let ratio = stacks::compare(&stacks, operation, options, &mut report).await?;
        let is_held = ratio <= CPU_RATIO_MAX;
        let text = format!(
            "The servers' processor time for a {} is at most {} times that without TLS: it is {} times that.",
            operation.name(),
            short(CPU_RATIO_MAX),
            exact(ratio),
        );
        report.verdict(&text, is_held);
        are_held &= is_held;
    }
    Ok((report, are_held))
}
